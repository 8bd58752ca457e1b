use std::sync::OnceLock;

use super::*;
use crate::source::SourceError;

const DEVICE_LEN: usize = 4 << 20;
/// Offsets of fields in the header.
const CIPHER_NAME: usize = 8;
const CIPHER_MODE: usize = 40;
const HASH: usize = 72;
const PAYLOAD_OFFSET: usize = 104;
const KEY_BYTES: usize = 108;
const DIGEST_ITERATIONS: usize = 164;
const UUID: usize = 168;
const KEYSLOT_0: usize = 208;
const KEYSLOT_LEN: usize = 48;

fn passphrase() -> SecretBytes {
    SecretBytes::copy_of(b"a passphrase")
}

/// A volume that all tests share.
fn volume() -> &'static (Vec<u8>, SecretBytes) {
    static VOLUME: OnceLock<(Vec<u8>, SecretBytes)> = OnceLock::new();
    VOLUME.get_or_init(|| {
        let options = FormatOptions {
            iterations: Some(1000),
            digest_iterations: Some(1000),
            ..FormatOptions::default()
        };
        let mut device = vec![0; DEVICE_LEN];
        let (_, key) = format(&mut device, &passphrase(), &options).unwrap();
        (device, key)
    })
}

fn device_with(offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut device = volume().0.clone();
    device[offset..offset + bytes.len()].copy_from_slice(bytes);
    device
}

fn refused(offset: usize, bytes: &[u8]) -> String {
    Header::read(&device_with(offset, bytes)).unwrap_err().to_string()
}

fn unlock(device: &[u8], keyslot: Option<u32>) -> Result<Unlocked, String> {
    let options = UnlockOptions { keyslot, ..UnlockOptions::default() };
    Header::read(&device)
        .and_then(|header| header.unlock(&device, &passphrase(), &options))
        .map_err(|error| error.to_string())
}

#[test]
fn header_written_by_format_opens_and_maps_the_rest_of_the_device() {
    let (device, key) = volume();
    assert_eq!(unlock(device, None).unwrap().volume_key, *key);
    assert_eq!(unlock(device, Some(0)).unwrap().keyslot, 0);
    let header = Header::read(&device).unwrap();
    let params = header.crypt_params(key, DEVICE_LEN as u64, false).unwrap();
    assert_eq!((params.data_offset_sectors, params.len_sectors), (4096, Some(4096)));
    let error = header.crypt_params(key, 2 << 20, false).unwrap_err().to_string();
    assert!(error.contains("truncated"), "{error}");
}

#[test]
fn header_with_a_hostile_field_is_refused_by_the_fields_name() {
    let be = u32::to_be_bytes;
    let keyslot_3 = KEYSLOT_0 + 3 * KEYSLOT_LEN;
    let material = 40;
    let stripes = 44;
    for (offset, bytes, expected) in [
        (KEY_BYTES, be(0), "key bytes: 0 is not in 1 to 1024"),
        (KEY_BYTES, be(u32::MAX), "key bytes: 4294967295 is not in 1 to 1024"),
        (KEY_BYTES, be(1024), "keyslot 0: its area at sector 8"),
        (HASH, *b"md5\0", "hash: hash \"md5"),
        (CIPHER_NAME, *b"a\x1b[3", "cipher name: it is not printable"),
        (PAYLOAD_OFFSET, be(9), "keyslot 0: its area at sector 8 reaches into the data"),
        (keyslot_3 + stripes, be(4001), "keyslot 3: it has 4001 stripes, must have 4000"),
        (keyslot_3 + stripes, be(u32::MAX), "keyslot 3: it has 4294967295 stripes"),
        (keyslot_3 + material, be(0), "keyslot 3: its area starts at sector 0"),
        (keyslot_3 + material, be(u32::MAX), "keyslot 3: its area at sector 4294967295"),
        (keyslot_3 + material, be(16), "the areas of keyslots 0 and 3 overlap"),
    ] {
        let error = refused(offset, &bytes);
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let no_data = device_with(PAYLOAD_OFFSET, &be(0));
    let header = Header::read(&no_data).unwrap();
    let error = header.crypt_params(&volume().1, DEVICE_LEN as u64, false).unwrap_err();
    assert!(error.to_string().contains("`header`"), "{error}");
    assert!(header.crypt_params(&volume().1, DEVICE_LEN as u64, true).is_ok());
}

/// `cargo x verdicts` found that cryptsetup opens such a volume, and ours refused it.
#[test]
fn header_with_an_unprintable_uuid_opens_and_keeps_its_bytes() {
    let device = device_with(UUID + 9, &[0x1b, 0xfb]);
    assert_eq!(unlock(&device, None).unwrap().volume_key, volume().1);
    let header = Header::read(&device).unwrap();
    assert_eq!(header.uuid(), String::from_utf8_lossy(&device[UUID..UUID + 9]));
    assert_eq!(header.to_bytes()[UUID..UUID + 40], device[UUID..UUID + 40]);
}

#[test]
fn header_whose_parts_touch_is_read() {
    let be = u32::to_be_bytes;
    let material = 40;
    let keyslot_3 = KEYSLOT_0 + 3 * KEYSLOT_LEN;
    // Areas of 500 sectors, one every 504 from sector 8 on; the last one ends at 4036.
    for (offset, at, beyond, expected) in [
        (PAYLOAD_OFFSET, 4036, 4035, "keyslot 7: its area at sector 3536 reaches into the data"),
        (KEYSLOT_0 + material, 2, 1, "keyslot 0: its area starts at sector 1, inside the header"),
        (keyslot_3 + material, 1524, 1525, "the areas of keyslots 3 and 4 overlap"),
    ] {
        Header::read(&device_with(offset, &be(at))).unwrap();
        let error = refused(offset, &be(beyond));
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let device = &volume().0;
    Header::read(&device[..4036 * 512].to_vec()).unwrap();
    let error = Header::read(&device[..4036 * 512 - 1].to_vec()).unwrap_err();
    assert!(error.to_string().contains("truncated"), "{error}");
    assert!(Header::is_at(&device[..8].to_vec()).unwrap());
    assert!(!Header::is_at(&device[..7].to_vec()).unwrap());
}

#[test]
fn unlock_refuses_what_would_cost_too_much_or_protect_nothing() {
    let iterations = device_with(KEYSLOT_0 + 4, &(1u32 << 31).to_be_bytes());
    let error = unlock(&iterations, None).unwrap_err();
    assert!(error.contains("keyslot 0: its pbkdf2 would take"), "{error}");
    let digest = device_with(DIGEST_ITERATIONS, &u32::MAX.to_be_bytes());
    let error = unlock(&digest, None).unwrap_err();
    assert!(error.contains("the header's digest cannot be checked"), "{error}");
    let mut null = device_with(CIPHER_NAME, b"cipher_null\0");
    null[CIPHER_MODE..CIPHER_MODE + 4].copy_from_slice(b"ecb\0");
    assert!(unlock(&null, None).unwrap_err().contains("encrypts nothing"));
}

#[test]
fn digest_confirms_a_key_of_its_own_length_only() {
    let mut header = Header::read(&volume().0).unwrap();
    let limits = KdfLimits::default();
    header.key_len_bytes = 32;
    let mut key = SecretBytes::copy_of(&[7; 32]);
    key.as_mut_slice()[24..].fill(0);
    let kdf = header.digest_kdf();
    kdf.derive(key.as_slice(), &header.digest_salt, &mut header.digest, &limits).unwrap();
    assert_eq!(header.verifies(&key, &limits), Ok(true));
    // HMAC pads short keys with zeros: the same digest, but another key for the cipher.
    let mut longer = key.as_slice().to_vec();
    longer.push(0);
    for other in [&key.as_slice()[..24], &longer[..]] {
        let mut digest = [0; DIGEST_LEN_BYTES];
        kdf.derive(other, &header.digest_salt, &mut digest, &limits).unwrap();
        assert_eq!(digest, header.digest, "this test needs keys of one digest");
        let error = header.verifies(&SecretBytes::copy_of(other), &limits).unwrap_err();
        assert!(error.contains("of a key of 32 bytes"), "{error}");
    }
}

#[test]
fn null_cipher_is_refused_in_each_spelling() {
    let mut device = volume().0.clone();
    for (name, mode) in [("cipher_null", "ecb"), ("cipher_null", "xts-plain64"), ("null", "ecb")] {
        for (offset, text) in [(CIPHER_NAME, name), (CIPHER_MODE, mode)] {
            device[offset..offset + 32].fill(0);
            device[offset..offset + text.len()].copy_from_slice(text.as_bytes());
        }
        let error = unlock(&device, None).unwrap_err();
        assert!(error.contains("encrypts nothing"), "{name}-{mode}: {error}");
        let header = Header::read(&device).unwrap();
        assert!(header.crypt_params(&volume().1, DEVICE_LEN as u64, false).is_err());
    }
}

#[test]
fn info_tells_of_tables_in_the_cipher() {
    let shown = |name: &str| {
        let mut device = volume().0.clone();
        device[CIPHER_NAME..CIPHER_NAME + 32].fill(0);
        device[CIPHER_NAME..CIPHER_NAME + name.len()].copy_from_slice(name.as_bytes());
        let header = Header::read(&device).unwrap();
        (header.to_string().contains("table-based"), header.info().cipher_table_based)
    };
    assert_eq!(shown("aes"), (false, Some(false)));
    assert_eq!(shown("cast6"), (true, Some(true)));
    assert_eq!(shown("anubis"), (false, None));
}

#[test]
fn unlock_names_the_keyslot_that_cannot_be_tried() {
    let (device, _) = volume();
    assert_eq!(unlock(device, Some(4)).unwrap_err(), "keyslot 4: it is not in use");
    assert_eq!(unlock(device, Some(8)).unwrap_err(), "keyslot 8: LUKS1 has keyslots 0 to 7");
    let broken = device_with(KEYSLOT_0, &7u32.to_be_bytes());
    let error = unlock(&broken, None).unwrap_err();
    assert!(error.contains("keyslot 0: its state 0x00000007"), "{error}");
    let inactive = device_with(KEYSLOT_0, &KEYSLOT_INACTIVE.to_be_bytes());
    let error = unlock(&inactive, None).unwrap_err();
    assert_eq!(error, "the header has no keyslot that can be used for its data");
    let error = unlock(&device[..40_000], None).unwrap_err();
    assert!(error.contains("file at byte 40000; it is truncated"), "{error}");
}

#[test]
fn format_refuses_wrong_options_by_their_name() {
    let with = |change: &dyn Fn(&mut FormatOptions)| {
        let mut options = FormatOptions {
            iterations: Some(1000),
            digest_iterations: Some(1000),
            ..FormatOptions::default()
        };
        change(&mut options);
        let mut device = vec![7; DEVICE_LEN];
        let error = format(&mut device, &passphrase(), &options).unwrap_err();
        assert!(device.iter().all(|byte| *byte == 7), "the device was written");
        error.to_string()
    };
    assert!(with(&|o| o.cipher = "aes".to_owned()).starts_with('`'));
    assert!(with(&|o| o.cipher = "cipher_null-ecb".to_owned()).starts_with("`cipher`"));
    assert!(with(&|o| o.key_size_bits = 100).contains("100 is not a multiple of 8"));
    assert!(with(&|o| o.key_size_bits = 320).starts_with("`key_size_bits`"));
    assert!(with(&|o| o.hash = HashAlgorithm::Blake2s128).starts_with("`hash`"));
    assert!(with(&|o| o.iterations = Some(999)).starts_with("`iterations`"));
    assert!(with(&|o| o.uuid = Some("no".to_owned())).starts_with("`uuid`"));
    assert!(with(&|o| o.data_offset_bytes = Some(4096)).starts_with("`data_offset_bytes`"));
    assert!(with(&|o| o.data_offset_bytes = Some(u64::MAX)).starts_with("`data_offset_bytes`"));
    assert!(with(&|o| o.data_offset_bytes = Some(1 << 30)).starts_with("data device"));
}

#[test]
fn format_takes_what_just_fits_into_a_header() {
    let formatted = |cipher: &str, key_size_bits, hash, device_len| {
        let options = FormatOptions {
            cipher: cipher.to_owned(),
            key_size_bits,
            hash,
            iterations: Some(1000),
            digest_iterations: Some(1000),
            ..FormatOptions::default()
        };
        let mut device = vec![0; device_len];
        let (_, key) = format(&mut device, &passphrase(), &options)?;
        assert_eq!(unlock(&device, None).unwrap().volume_key, key);
        Ok::<(), Error>(())
    };
    let sha1 = HashAlgorithm::Sha1;
    let sha256 = HashAlgorithm::Sha256;
    // A hash as long as the digest, and a device as long as the header; the longest key.
    formatted("aes-xts-plain64", 512, sha1, 2 << 20).unwrap();
    assert!(formatted("aes-xts-plain64", 512, sha1, (2 << 20) - 1).is_err());
    formatted("aes:64-cbc-lmk", 8192, sha256, 32 << 20).unwrap();
    // A cipher of 31 characters, which leave one for the NUL.
    formatted("capi:essiv(cbc(twofish),sha256)-plain64", 256, sha256, DEVICE_LEN).unwrap();
    let error = formatted("capi:essiv(cbc(camellia),sha256)-plain64", 256, sha256, DEVICE_LEN);
    assert!(error.unwrap_err().to_string().contains("does not fit into a LUKS1 header"));
}

#[test]
fn header_of_another_kind_is_no_luks1_header() {
    for (offset, byte) in [(0, b'X'), (7, 2)] {
        let error = Header::read(&device_with(offset, &[byte])).unwrap_err();
        assert!(matches!(error, Error::NotLuks), "{error}");
    }
}

#[test]
fn hash_must_fill_the_digest() {
    Header::read(&device_with(HASH, b"sha1\0")).unwrap();
    let error = refused(HASH, b"blake2s-128\0");
    assert!(error.contains("blake2s-128 is shorter than the header's digest"), "{error}");
}

#[test]
fn broken_keyslot_does_not_keep_the_others_from_being_tried() {
    let mut device = volume().0.clone();
    let first = KEYSLOT_0;
    let second = KEYSLOT_0 + KEYSLOT_LEN;
    // State, iterations and salt; the area is keyslot 1's own.
    device.copy_within(first..first + 40, second);
    device.copy_within(8 * 512..508 * 512, 512 * 512);
    device[first..first + 4].copy_from_slice(&7u32.to_be_bytes());
    assert_eq!(unlock(&device, None).unwrap().keyslot, 1);
}

/// A device whose bytes from here on cannot be read.
struct Unreadable(&'static [u8], u64);

impl HeaderSource for Unreadable {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        if offset_bytes < self.1 {
            self.0.read_at(offset_bytes, buf)
        } else {
            Err(std::io::Error::other("bad sector").into())
        }
    }

    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
}

#[test]
fn keyslot_that_cannot_be_read_is_named() {
    let device = Unreadable(&volume().0, 4096);
    let header = Header::read(&device).unwrap();
    let error = header.unlock(&device, &passphrase(), &UnlockOptions::default()).unwrap_err();
    assert!(error.to_string().contains("the key material of keyslot 0: bad sector"), "{error}");
}
