//! TrueCrypt and VeraCrypt volumes of a writer of our own. `cryptsetup tcryptDump` opens the same
//! headers and prints the same keys and place, as far as its library has the ciphers without the
//! kernel: AES alone. The names of cipher and hash keep it from trying others, which would end it.

mod tcrypt_maker;

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use blockyard_crypt::Error;
use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::{Argon2Variant, Kdf, KdfLimits};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::tcrypt::{self, HiddenKey, Options, Unlocked, VolumeKind};
use tcrypt_maker::{
    AREA, DISK_LEN, HIDDEN, OUTER, VOLUME_LEN, Written, keys, pbkdf2, plaintext, with_hidden,
};

fn secret(bytes: &[u8]) -> SecretBytes {
    SecretBytes::copy_of(bytes)
}

/// The decrypted volume.
fn opened(disk: &[u8], password: &[u8], options: &Options) -> Result<Vec<u8>, Error> {
    let unlocked = tcrypt::unlock(&disk, &secret(password), options)?;
    let params = unlocked.crypt_params(disk.len() as u64)?;
    let spec = CipherSpec::parse_line(&params.cipher).unwrap();
    let cipher = SectorCipher::new(&spec, params.key.as_slice(), 512, false).unwrap();
    let start = params.data_offset_sectors as usize * 512;
    let len = params.len_sectors.unwrap() as usize * 512;
    let mut data = disk[start..start + len].to_vec();
    cipher.decrypt_in_place(&mut data, params.iv_offset_sectors);
    Ok(data)
}

/// Output of `cryptsetup tcryptDump`, or its error.
fn cryptsetup(disk: &[u8], password: &[u8], words: &[&str]) -> Result<String, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(disk).unwrap();
    let mut child = Command::new("cryptsetup")
        .args(["tcryptDump", "-q", "--dump-volume-key", "-c", "aes"])
        .args(words)
        .arg(file.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cryptsetup is installed");
    child.stdin.take().unwrap().write_all(password).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The bytes after `MK dump:`.
fn dumped_key(text: &str) -> Vec<u8> {
    let digits: String = text.split("MK dump:").nth(1).unwrap().split_whitespace().collect();
    let digits = digits.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// The dump of a header of [`Written`] with AES in XTS mode.
fn check_dump(dump: &str) {
    let words: String = dump.split_whitespace().collect();
    assert!(words.contains("xts-plain64"), "{dump}");
    assert!(words.contains(&format!("offset:{}MK", AREA / 512)), "{dump}");
    assert_eq!(dumped_key(dump), keys(1, "xts-plain64", &Written::area()).concat());
}

/// Time for TrueCrypt's derivations only.
fn cheap() -> Options {
    let limits = KdfLimits { seconds_max: 0, ..KdfLimits::default() };
    Options { limits, ..Options::default() }
}

const CHAINS: [&[&str]; 10] = [
    &["aes"],
    &["serpent"],
    &["twofish"],
    &["twofish", "aes"],
    &["serpent", "twofish", "aes"],
    &["aes", "serpent"],
    &["aes", "twofish", "serpent"],
    &["serpent", "twofish"],
    &["camellia"],
    &["serpent", "camellia"],
];

#[test]
fn every_cipher_cascade_and_mode_opens() {
    for mode in ["xts-plain64", "lrw-benbi"] {
        for names in CHAINS {
            let written = Written { names, mode, ..Written::default() };
            let disk = written.disk(b"a passphrase");
            let data = opened(&disk, b"a passphrase", &cheap()).unwrap();
            assert!(data == plaintext(), "{names:?} {mode}");
        }
    }
}

#[test]
fn every_kdf_of_truecrypt_and_veracrypt_opens() {
    use HashAlgorithm::{Blake2s256, Ripemd160, Sha1, Sha256, Sha512, Whirlpool};
    for (hash, iterations) in
        [(Ripemd160, 2000), (Ripemd160, 1000), (Sha512, 1000), (Whirlpool, 1000), (Sha1, 2000)]
    {
        let written = Written { kdf: pbkdf2(hash, iterations), ..Written::default() };
        let disk = written.disk(b"p");
        assert!(opened(&disk, b"p", &cheap()).unwrap() == plaintext(), "{hash:?}");
        // The first of its hash, of those that cryptsetup's library has.
        if hash == Sha512 {
            check_dump(&cryptsetup(&disk, b"p", &["-h", hash.name()]).unwrap());
        }
    }
    let argon2 =
        Kdf::Argon2 { variant: Argon2Variant::Id, time: 3, memory_kib: 64 << 10, lanes: 1 };
    let hashes = [Sha512, Sha256, Blake2s256, Whirlpool, Ripemd160];
    let kdfs = hashes.map(|hash| pbkdf2(hash, 16_000));
    let options = Options { pim: Some(1), ..Options::default() };
    for kdf in kdfs.into_iter().chain([argon2]) {
        let written = Written { magic: b"VERA", kdf, ..Written::default() };
        let disk = written.disk(b"p");
        assert!(opened(&disk, b"p", &options).unwrap() == plaintext(), "{kdf:?}");
        if let Kdf::Pbkdf2 { hash, .. } = kdf
            && matches!(hash, Sha512 | Sha256)
        {
            let words = ["--veracrypt", "--veracrypt-pim", "1", "-h", hash.name()];
            check_dump(&cryptsetup(&disk, b"p", &words).unwrap());
        }
    }
    let other = Options { pim: Some(2), ..Options::default() };
    let written = Written { magic: b"VERA", kdf: kdfs[0], ..Written::default() };
    assert!(matches!(opened(&written.disk(b"p"), b"p", &other), Err(Error::NoTcrypt { .. })));
}

#[test]
fn hidden_backup_and_system_headers_are_where_the_options_say() {
    let hidden = |at| Written { at, hidden_len: VOLUME_LEN, ..Written::default() };
    let normal = |at| Written { at, ..Written::default() };
    let cases = [
        (hidden(65_536), VolumeKind::Hidden, false, vec!["--tcrypt-hidden"]),
        (
            hidden(DISK_LEN - 65_536),
            VolumeKind::Hidden,
            true,
            vec!["--tcrypt-hidden", "--tcrypt-backup"],
        ),
        (normal(DISK_LEN - 131_072), VolumeKind::Normal, true, vec!["--tcrypt-backup"]),
        (normal(31_744), VolumeKind::System, false, vec!["--tcrypt-system"]),
    ];
    for (written, kind, backup, words) in cases {
        let disk = written.disk(b"p");
        let options = Options { kind, backup, ..cheap() };
        assert!(opened(&disk, b"p", &options).unwrap() == plaintext(), "{words:?}");
        let words = [&["-h", "sha512"], &words[..]].concat();
        check_dump(&cryptsetup(&disk, b"p", &words).unwrap());
        let elsewhere = opened(&disk, b"p", &cheap());
        assert!(matches!(elsewhere, Err(Error::NoTcrypt { .. })));
    }
}

#[test]
fn keyfiles_make_the_password_that_cryptsetup_makes() {
    let pool = |files: &[&[u8]], passphrase: &[u8]| {
        let mut pool = vec![0_u8; 64];
        for file in files {
            let mut crc = u32::MAX;
            let mut at = 0;
            for byte in *file {
                crc ^= u32::from(*byte);
                crc = (0..8).fold(crc, |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)));
                for part in crc.to_be_bytes() {
                    pool[at % 64] = pool[at % 64].wrapping_add(part);
                    at += 1;
                }
            }
        }
        for (place, byte) in pool.iter_mut().zip(passphrase) {
            *place = place.wrapping_add(*byte);
        }
        pool
    };
    let files: [&[u8]; 2] = [b"the first keyfile", &[0xff; 5000]];
    let disk = Written::default().disk(&pool(&files, b"word"));
    let keyfiles = files.iter().map(|file| secret(file)).collect();
    let options = Options { keyfiles, ..cheap() };
    assert!(opened(&disk, b"word", &options).unwrap() == plaintext());
    let mut words = vec!["-h".to_owned(), "sha512".to_owned()];
    let folder = tempfile::tempdir().unwrap();
    for (index, file) in files.iter().enumerate() {
        let path = folder.path().join(format!("key{index}"));
        std::fs::write(&path, file).unwrap();
        words.push(format!("--key-file={}", path.display()));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    check_dump(&cryptsetup(&disk, b"word", &words).unwrap());
    assert!(opened(&disk, b"other", &options).is_err());
}

#[test]
fn damaged_unfinished_and_costly_volumes_are_refused() {
    let whole = Written::default().disk(b"p");
    for place in [64, 72, 300, 511 - 64] {
        let mut disk = whole.clone();
        disk[place] ^= 1;
        assert!(matches!(opened(&disk, b"p", &cheap()), Err(Error::NoTcrypt { .. })));
    }
    // VeraCrypt writes 0 before the encryption of a disk begins.
    for encrypted_len in [0, VOLUME_LEN - 512] {
        let unfinished = Written { encrypted_len, ..Written::default() };
        let error = opened(&unfinished.disk(b"p"), b"p", &cheap()).unwrap_err().to_string();
        assert!(error.contains("are encrypted; let VeraCrypt finish"), "{error}");
    }
    let mut text = String::new();
    let limits = KdfLimits { seconds_max: 1, memory_kib_max: 1024, ..KdfLimits::default() };
    let options = Options { pim: Some(1_000_000), limits, ..Options::default() };
    let error = opened(&whole, b"p", &options).unwrap_err();
    write!(text, "{error}").unwrap();
    assert!(text.contains("not tried") && text.contains("`seconds_max`"), "{text}");
    for (len, backup) in [(0, false), (511, false), (1000, true)] {
        let options = Options { backup, ..cheap() };
        let error = opened(&whole[..len], b"p", &options).unwrap_err();
        assert!(matches!(error, Error::DataDevice(_)), "{error}");
    }
    let long = opened(&whole, &[b'x'; 129], &cheap()).unwrap_err().to_string();
    assert!(long.contains("at most 128"), "{long}");
    let short = whole[..AREA + 1024].to_vec();
    assert!(matches!(opened(&short, b"p", &cheap()), Err(Error::DataDevice(_))));
}

#[test]
fn decrypted_header_opens_as_the_encrypted_one_does() {
    let written = Written { names: &["serpent"], mode: "lrw-benbi", ..Written::default() };
    let disk = written.disk(b"p");
    let unlocked = tcrypt::unlock(&disk, &secret(b"p"), &cheap()).unwrap();
    let header = written.header();
    let plain = header.first_chunk().unwrap();
    let cipher = 1 + CHAINS.len() as u8;
    let read = Unlocked::of_decrypted(plain, VolumeKind::Normal, cipher).unwrap().unwrap();
    let params = |of: &Unlocked| of.crypt_params(DISK_LEN as u64).unwrap();
    assert_eq!(params(&read), params(&unlocked));
    let mut wrong = *plain;
    wrong[300] ^= 1;
    assert!(Unlocked::of_decrypted(&wrong, VolumeKind::Normal, cipher).unwrap().is_none());
}

/// The protected sectors of an outer volume.
fn protected(disk: &[u8], options: &Options, passphrase: &[u8]) -> Result<Vec<(u64, u64)>, Error> {
    let outer = Options { kind: VolumeKind::Normal, ..options.clone() };
    let unlocked = tcrypt::unlock(&disk, &secret(b"outer"), &outer).unwrap();
    let outer = unlocked.crypt_params(disk.len() as u64).unwrap();
    let hidden = HiddenKey { passphrase: secret(passphrase), pim: None, keyfiles: Vec::new() };
    let found = tcrypt::hidden_sectors(&disk, &outer, options, &hidden)?;
    Ok(found.ranges().iter().map(|range| (range.start, range.end)).collect())
}

/// A range of bytes in sectors of a volume that starts at `from`.
fn sectors(bytes: std::ops::Range<usize>, from: usize) -> (u64, u64) {
    ((bytes.start - from) as u64 / 512, (bytes.end - from) as u64 / 512)
}

#[test]
fn hidden_sectors_are_those_of_the_hidden_volume_and_of_its_header_in_the_outer_data() {
    let disk = with_hidden(b"outer", b"hidden");
    let data = sectors(HIDDEN, OUTER.start);
    assert_eq!(protected(&disk, &cheap(), b"hidden").unwrap(), [data]);

    // Before version 4: the outer volume has the rest of the disk, and the hidden header is in it.
    let end = DISK_LEN - 1536;
    let data = end - VOLUME_LEN as usize..end;
    let outer = Written { version: 3, data: 512..DISK_LEN, encrypted_len: 0, ..Written::default() };
    let hidden = Written {
        version: 3,
        at: end,
        data: data.clone(),
        hidden_len: VOLUME_LEN,
        ..Written::default()
    };
    let mut disk = outer.disk(b"outer");
    hidden.write_to(&mut disk, b"hidden");
    let header = sectors(end..end + 512, 512);
    assert_eq!(protected(&disk, &cheap(), b"hidden").unwrap(), [sectors(data, 512), header]);

    // The header that opened is protected in any place.
    let mut disk = outer.disk(b"outer");
    let hidden = Written { at: 65_536, ..hidden };
    hidden.write_to(&mut disk, b"hidden");
    let header = sectors(65_536..66_048, 512);
    assert!(protected(&disk, &cheap(), b"hidden").unwrap().contains(&header));

    // A new hidden volume in an old outer one: both of its headers are in the outer data.
    let mut disk = outer.disk(b"outer");
    let hidden = Written { at: 65_536, hidden_len: VOLUME_LEN, ..Written::default() };
    hidden.write_to(&mut disk, b"hidden");
    let ranges = [AREA..AREA + VOLUME_LEN as usize, 65_536..131_072, DISK_LEN - 65_536..DISK_LEN];
    let ranges = ranges.map(|range| sectors(range, 512));
    assert_eq!(protected(&disk, &cheap(), b"hidden").unwrap(), ranges);
}

#[test]
fn volume_without_a_hidden_one_in_it_is_not_protected() {
    let disk = with_hidden(b"outer", b"hidden");
    for passphrase in [&b"other"[..], b"outer"] {
        let error = protected(&disk, &cheap(), passphrase).unwrap_err();
        assert!(matches!(error, Error::NoHidden { .. }), "{error}");
    }
    for kind in [VolumeKind::Hidden, VolumeKind::System] {
        let error = protected(&disk, &Options { kind, ..cheap() }, b"hidden").unwrap_err();
        assert!(error.to_string().contains("only an outer volume"), "{error}");
    }
    // One sector leaves the outer volume, at either end.
    for data in
        [OUTER.end - HIDDEN.len() + 512..OUTER.end + 512, AREA - 512..HIDDEN.len() + AREA - 512]
    {
        let mut disk = with_hidden(b"outer", b"hidden");
        let hidden = Written { at: 65_536, data, hidden_len: VOLUME_LEN, ..Written::default() };
        hidden.write_to(&mut disk, b"hidden");
        let error = protected(&disk, &cheap(), b"hidden").unwrap_err().to_string();
        assert!(error.contains("but the outer volume is in sectors 256 to 543"), "{error}");
    }
}
