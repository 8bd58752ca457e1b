use super::*;

fn key_of(hash: Option<&str>, passphrase: &[u8], key_size_bits: u32) -> Result<Vec<u8>, String> {
    let options =
        PlainOptions { hash: hash.map(str::to_owned), key_size_bits, ..PlainOptions::default() };
    let passphrase = PlainKey::Passphrase(SecretBytes::copy_of(passphrase));
    derive_key(&options, &passphrase)
        .map(|key| key.as_slice().to_vec())
        .map_err(|error| error.to_string())
}

fn digest(hash: HashAlgorithm, text: &[u8]) -> Vec<u8> {
    let mut out = vec![0u8; hash.digest_len_bytes()];
    hash.digest(&[text], &mut out);
    out
}

fn refusal(options: &PlainOptions, device_len_bytes: u64) -> String {
    let key = PlainKey::KeyFile(SecretBytes::zeroed(64));
    open(options, &key, device_len_bytes).unwrap_err().to_string()
}

#[test]
fn plain_short_hash_is_continued_with_letters_a_before_the_passphrase() {
    let mut expected = digest(HashAlgorithm::Ripemd160, b"secret");
    expected.extend(digest(HashAlgorithm::Ripemd160, b"Asecret"));
    expected.extend(digest(HashAlgorithm::Ripemd160, b"AAsecret"));
    expected.extend(digest(HashAlgorithm::Ripemd160, b"AAAsecret"));
    assert_eq!(key_of(Some("ripemd160"), b"secret", 512).unwrap(), expected[..64]);
}

#[test]
fn plain_hash_with_length_leaves_the_rest_of_the_key_zero() {
    let mut expected = digest(HashAlgorithm::Sha512, b"secret")[..10].to_vec();
    expected.resize(32, 0);
    assert_eq!(key_of(Some("sha512:10"), b"secret", 256).unwrap(), expected);
    let too_long = key_of(Some("sha512:33"), b"secret", 256).unwrap_err();
    assert!(too_long.contains("`hash`") && too_long.contains("\"33\""), "{too_long}");
    assert!(key_of(Some("sha512:"), b"secret", 256).is_err());
    assert!(key_of(Some("sha512:-1"), b"secret", 256).is_err());
    assert!(key_of(Some("md4"), b"secret", 256).unwrap_err().contains("\"md4\""));
}

#[test]
fn plain_without_hash_takes_the_passphrase_padded_or_cut() {
    let mut padded = b"secret".to_vec();
    padded.resize(16, 0);
    for hash in [None, Some("plain")] {
        assert_eq!(key_of(hash, b"secret", 128).unwrap(), padded);
        assert_eq!(key_of(hash, &[7; 20], 128).unwrap(), [7; 16]);
    }
    let mut four = b"secr".to_vec();
    four.resize(16, 0);
    assert_eq!(key_of(Some("plain:4"), b"secret", 128).unwrap(), four);
    assert!(key_of(Some("plain:7"), b"secret", 128).unwrap_err().contains("shorter"));
}

#[test]
fn plain_key_file_is_the_key_and_must_be_long_enough() {
    let options = PlainOptions::default();
    let file = SecretBytes::copy_of(&(0..40).collect::<Vec<u8>>());
    let params = open(&options, &PlainKey::KeyFile(file), 4096).unwrap();
    assert_eq!(params.key.as_slice(), (0..32).collect::<Vec<u8>>());
    let short = PlainKey::KeyFile(SecretBytes::zeroed(31));
    let refused = open(&options, &short, 4096).unwrap_err().to_string();
    assert!(refused.starts_with("`key`: it has 31 bytes"), "{refused}");
}

#[test]
fn plain_options_end_in_the_mapping() {
    let options = PlainOptions {
        cipher: "aes-xts-plain64".to_owned(),
        key_size_bits: 512,
        offset_sectors: 8,
        skip_sectors: 16,
        sector_size_bytes: 4096,
        iv_large_sectors: true,
        allow_discards: true,
        ..PlainOptions::default()
    };
    let key = PlainKey::KeyFile(SecretBytes::zeroed(64));
    let params = open(&options, &key, 4096 * 5 + 513).unwrap();
    assert_eq!(params.len_sectors, Some(32));
    assert_eq!((params.data_offset_sectors, params.iv_offset_sectors), (8, 16));
    assert!(params.iv_large_sectors && params.flags.allow_discards);
}

#[test]
fn plain_wrong_options_are_refused_by_their_name() {
    let default = PlainOptions::default();
    let with = |change: &dyn Fn(&mut PlainOptions)| {
        let mut options = default.clone();
        change(&mut options);
        refusal(&options, 1 << 20)
    };
    assert!(with(&|o| o.sector_size_bytes = 8192).starts_with("`sector_size_bytes`"));
    assert!(with(&|o| o.sector_size_bytes = 0).starts_with("`sector_size_bytes`"));
    assert!(with(&|o| o.key_size_bits = 0).starts_with("`key_size_bits`"));
    assert!(with(&|o| o.key_size_bits = 252).starts_with("`key_size_bits`"));
    assert!(with(&|o| o.key_size_bits = u32::MAX).starts_with("`key_size_bits`"));
    assert!(with(&|o| o.key_size_bits = 64).starts_with("`key_size_bits`"));
    assert!(with(&|o| o.cipher = "aes-gcm-random".to_owned()).starts_with("`cipher`"));
    assert!(with(&|o| o.offset_sectors = u64::MAX).starts_with("`offset_sectors`"));
    assert!(with(&|o| o.size_sectors = Some(u64::MAX)).starts_with("`size_sectors`"));
    let unaligned = |o: &mut PlainOptions| (o.sector_size_bytes, o.skip_sectors) = (4096, 9);
    assert!(with(&unaligned).starts_with("`skip_sectors`"));
    assert!(with(&|o| o.size_sectors = Some(4096)).starts_with("data device"));
    assert!(with(&|o| o.offset_sectors = 2048).starts_with("data device"));
}
