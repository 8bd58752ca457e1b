use super::*;
use crate::info::KdfCost;
use crate::luks::HeaderInfo;
use crate::luks2::{DigestBody, Info};
use crate::source::{HeaderSink, HeaderSource, SourceError};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const DEVICE_LEN: usize = 17 << 20;

fn options() -> FormatOptions {
    let kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };
    FormatOptions { digest_iterations: Some(1000), ..FormatOptions::new(Pbkdf::Fixed(kdf)) }
}

fn refused(device_len: usize, change: &dyn Fn(&mut FormatOptions)) -> String {
    let mut options = options();
    change(&mut options);
    let mut device = vec![7; device_len];
    let passphrase = SecretBytes::copy_of(b"x");
    let error = format(&mut device, &passphrase, &options).unwrap_err().to_string();
    assert!(device.iter().all(|byte| *byte == 7), "the device was written: {error}");
    error
}

fn luks2_info(formatted: &Formatted) -> Info {
    match formatted.header.info() {
        HeaderInfo::Luks2(info) => info,
        HeaderInfo::Luks1(_) => panic!("a LUKS2 volume was formatted"),
    }
}

#[test]
fn format_refuses_wrong_options_by_their_name_and_writes_nothing() {
    let refused = |change: &dyn Fn(&mut FormatOptions)| refused(DEVICE_LEN, change);
    assert!(refused(&|o| o.cipher = "blowfish-xts-plain64".to_owned()).starts_with("`cipher`"));
    assert!(refused(&|o| o.cipher = "cipher_null-ecb".to_owned()).starts_with("`cipher`"));
    assert!(refused(&|o| o.key_size_bits = 0).starts_with("`key_size_bits`"));
    assert!(refused(&|o| o.key_size_bits = u32::MAX).starts_with("`key_size_bits`"));
    assert!(refused(&|o| o.key_size_bits = 320).contains("`key_size_bits`"));
    assert!(refused(&|o| o.sector_size_bytes = 520).contains("`sector_size_bytes`"));
    assert!(refused(&|o| o.label = "x".repeat(48)).starts_with("`label`"));
    assert!(refused(&|o| o.subsystem = "a\0b".to_owned()).starts_with("`subsystem`"));
    assert!(refused(&|o| o.uuid = Some("12".to_owned())).starts_with("`uuid`"));
    assert!(refused(&|o| o.metadata_len_bytes = 12345).starts_with("`metadata_len_bytes`"));
    assert!(refused(&|o| o.keyslots_len_bytes = Some(4097)).starts_with("`keyslots_len_bytes`"));
    assert!(refused(&|o| o.keyslots_len_bytes = Some(4096)).starts_with("`keyslots_len_bytes`"));
    let huge = |o: &mut FormatOptions| o.keyslots_len_bytes = Some(u64::MAX - 4095);
    assert!(refused(&huge).starts_with("`keyslots_len_bytes`"));
    assert!(refused(&|o| o.data_offset_bytes = Some(0)).starts_with("`data_offset_bytes`"));
    assert!(refused(&|o| o.data_offset_bytes = Some(4096)).starts_with("`data_offset_bytes`"));
    assert!(
        refused(&|o| o.data_offset_bytes = Some((1 << 20) + 512))
            .starts_with("`data_offset_bytes`")
    );
    assert!(refused(&|o| o.volume_key = Some(SecretBytes::zeroed(32))).starts_with("`volume_key`"));
    let weak = Kdf::Argon2 { variant: Argon2Variant::Id, time: 3, memory_kib: 1024, lanes: 1 };
    assert!(refused(&|o| o.pbkdf = Pbkdf::Fixed(weak)).starts_with("`pbkdf`"));
    assert!(refused(&|o| o.digest_iterations = Some(1)).starts_with("`digest iterations`"));
}

#[test]
fn format_takes_what_just_fits() {
    let formatted = |len: usize, change: &dyn Fn(&mut FormatOptions)| {
        let mut options = options();
        change(&mut options);
        let mut device = vec![0; len];
        let formatted = format(&mut device, &SecretBytes::copy_of(b"x"), &options).unwrap();
        assert_eq!(opens(&device, b"x"), Some(true));
        luks2_info(&formatted)
    };
    // A header file, whose data device is as short as a sector.
    let detached = |data_device_len_bytes| {
        move |options: &mut FormatOptions| {
            options.detached = Some(Detached { data_device_len_bytes });
        }
    };
    let mut header_only = options();
    detached(None)(&mut header_only);
    assert_eq!(header_len_bytes(&header_only).unwrap(), 16 << 20);
    formatted(16 << 20, &detached(None));
    formatted(16 << 20, &detached(Some(4096)));
    assert!(refused((16 << 20) - 1, &detached(None)).contains("the header takes 16777216 bytes"));
    assert!(refused(16 << 20, &detached(Some(4095))).contains("has 4095; make it larger"));
    // Keyslots in whole pages, though the data starts at half of one.
    let unaligned = |options: &mut FormatOptions| {
        (options.sector_size_bytes, options.data_offset_bytes) = (512, Some((1 << 20) + 512));
    };
    let info = formatted(2 << 20, &unaligned);
    assert_eq!(info.keyslots_area_bytes, (1 << 20) - (32 << 10));
    // A file whose last bytes are no sector.
    formatted(DEVICE_LEN + 100, &|options| options.sector_size_bytes = 512);
    // The longest key.
    formatted(DEVICE_LEN, &|options| {
        options.cipher = "aes:64-cbc-lmk".to_owned();
        (options.key_size_bits, options.sector_size_bytes) = (8192, 512);
    });
    // The longest label.
    let label = "l".repeat(47);
    let info = formatted(DEVICE_LEN, &|options| options.label.clone_from(&label));
    assert_eq!(info.label, label);
}

#[test]
fn every_salt_is_its_own() {
    let salts = || {
        let mut device = vec![0; 2 << 20];
        format(&mut device, &SecretBytes::copy_of(b"x"), &short()).unwrap();
        let end = device[4096..].iter().position(|byte| *byte == 0).unwrap();
        let json: Value = serde_json::from_slice(&device[4096..4096 + end]).unwrap();
        let copies = [0, 16 << 10].map(|copy| STANDARD.encode(&device[copy + 104..copy + 168]));
        let areas = [&json["keyslots"]["0"]["kdf"]["salt"], &json["digests"]["0"]["salt"]]
            .map(|salt| salt.as_str().unwrap().to_owned());
        [copies, areas].concat()
    };
    let mut all = [salts(), salts()].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8);
}

#[test]
fn format_refuses_a_device_without_room_or_with_half_a_sector() {
    let nothing = |_: &mut FormatOptions| {};
    assert!(refused(1 << 20, &nothing).contains("the header takes 16777216 bytes"));
    assert!(refused(16 << 20, &nothing).contains("the data starts at byte 16777216"));
    assert!(refused(DEVICE_LEN + 512, &nothing).starts_with("`sector_size_bytes`"));
}

#[test]
fn format_leaves_nothing_of_an_older_header() {
    let mut device = vec![0; DEVICE_LEN];
    let passphrase = SecretBytes::copy_of(b"old");
    let old = FormatOptions { metadata_len_bytes: 64 << 10, ..options() };
    format(&mut device, &passphrase, &old).unwrap();
    format(&mut device, &SecretBytes::copy_of(b"new"), &options()).unwrap();
    assert_ne!(&device[64 << 10..(64 << 10) + 6], b"SKUL\xba\xbe");
    let (header, notices) = Header::read(&device).unwrap();
    assert_eq!(notices, []);
    let refused = header.unlock(&device, &passphrase, &crate::luks::UnlockOptions::default());
    assert!(matches!(refused, Err(Error::WrongPassphrase { .. })));
}

#[test]
fn format_takes_a_given_volume_key_and_measures_what_is_not_forced() {
    let key = SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>());
    let bounds = cost::Argon2Bounds { target_ms: 20, memory_kib_max: 2048, lanes: 2 };
    let options = FormatOptions {
        volume_key: Some(key.clone()),
        digest_iterations: None,
        pbkdf: Pbkdf::Argon2 { variant: Argon2Variant::Id, bounds },
        ..options()
    };
    let mut device = vec![0; DEVICE_LEN];
    let passphrase = SecretBytes::copy_of(b"x");
    let formatted = format(&mut device, &passphrase, &options).unwrap();
    assert_eq!(formatted.volume_key, key);
    let info = luks2_info(&formatted);
    let kdf = info.keyslots[&0].kdf.as_ref().unwrap();
    let KdfCost::Argon2 { time, memory_kib, .. } = kdf.cost else { panic!("{kdf:?}") };
    assert!(time >= 4 && (32..=2048).contains(&memory_kib), "{kdf:?}");
    let digest = &info.digests[&0].body;
    let DigestBody::Pbkdf2 { iterations, .. } = digest else { panic!("{digest:?}") };
    assert!(*iterations >= 1000);
    let (header, _) = Header::read(&device).unwrap();
    let unlocked =
        header.unlock(&device, &passphrase, &crate::luks::UnlockOptions::default()).unwrap();
    assert_eq!(unlocked.volume_key, key);
}

/// A device with a possible power cut at each write: of the unsynced writes, the disk keeps only
/// that one.
struct PowerCut {
    now: Vec<u8>,
    stable: Vec<u8>,
    /// Checks the remaining content.
    check: fn(&Vec<u8>),
}

impl HeaderSource for PowerCut {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.now.read_at(offset_bytes, buf)
    }

    fn len_bytes(&self) -> u64 {
        self.now.len() as u64
    }
}

impl HeaderSink for PowerCut {
    fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), SourceError> {
        self.now.write_at(offset_bytes, bytes)?;
        let mut left = self.stable.clone();
        left.write_at(offset_bytes, bytes)?;
        (self.check)(&left);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SourceError> {
        self.stable.clone_from(&self.now);
        (self.check)(&self.stable);
        Ok(())
    }
}

/// Whether a passphrase opens a device; nothing, if it has no header.
fn opens(device: &[u8], passphrase: &[u8]) -> Option<bool> {
    let passphrase = SecretBytes::copy_of(passphrase);
    let (header, _) = Header::read(&device).ok()?;
    Some(header.unlock(&device, &passphrase, &crate::luks::UnlockOptions::default()).is_ok())
}

/// Makes a volume over one that the passphrase "old" opens, and cuts the power at each write: what
/// is left opens with "old" or "new", or is no volume. In the end "new" opens it.
fn format_under_power_cuts(format_over: impl FnOnce(&mut PowerCut, &SecretBytes)) {
    let mut now = vec![0; 4 << 20];
    let old = FormatOptions {
        metadata_len_bytes: 64 << 10,
        keyslots_len_bytes: Some(512 << 10),
        data_offset_bytes: Some(1 << 20),
        ..options()
    };
    format(&mut now, &SecretBytes::copy_of(b"old"), &old).unwrap();
    let check = |left: &Vec<u8>| {
        let old = opens(left, b"old");
        let new = opens(left, b"new");
        assert!(old != Some(false) || new != Some(false), "a header that nothing opens");
    };
    let mut device = PowerCut { stable: now.clone(), now, check };
    format_over(&mut device, &SecretBytes::copy_of(b"new"));
    assert_eq!(opens(&device.stable, b"new"), Some(true));
}

#[test]
fn format_over_a_volume_leaves_no_header_without_its_keyslots_whenever_power_is_cut() {
    format_under_power_cuts(|device, passphrase| {
        format(device, passphrase, &short()).unwrap();
    });
    format_under_power_cuts(|device, passphrase| {
        crate::luks1::format(device, passphrase, &luks1_options()).unwrap();
    });
}

fn luks1_options() -> crate::luks1::FormatOptions {
    crate::luks1::FormatOptions {
        iterations: Some(1000),
        digest_iterations: Some(1000),
        ..crate::luks1::FormatOptions::default()
    }
}

/// The options of a volume whose data starts at 1 MiB.
fn short() -> FormatOptions {
    FormatOptions {
        keyslots_len_bytes: Some(768 << 10),
        data_offset_bytes: Some(1 << 20),
        ..options()
    }
}

/// Formats over `device` and then destroys the new header: the remaining header is of an older
/// volume.
fn formatted_over(mut device: Vec<u8>) -> Vec<u8> {
    format(&mut device, &SecretBytes::copy_of(b"new"), &short()).unwrap();
    device[..32 << 10].fill(0);
    device
}

#[test]
fn format_over_a_longer_header_leaves_no_copy_and_no_keyslot_of_it() {
    let passphrase = SecretBytes::copy_of(b"old");
    let long = FormatOptions { metadata_len_bytes: 4 << 20, ..options() };
    let mut old = vec![0; DEVICE_LEN];
    format(&mut old, &passphrase, &long).unwrap();
    let damaged = |offsets: &[usize]| {
        let mut device = old.clone();
        offsets.iter().for_each(|offset| device[*offset] ^= 1);
        device
    };
    // Intact; without its primary copy; with both copies damaged.
    for device in [old.clone(), damaged(&[0]), damaged(&[4100, (4 << 20) + 4100])] {
        let device = formatted_over(device);
        assert!(matches!(Header::read(&device), Err(Error::NotLuks)));
        // A backup of the old header finds no key material.
        assert!(device[8 << 20..(8 << 20) + 256_000].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn format_over_a_stale_second_header_wipes_it_too() {
    let mut device = vec![0; DEVICE_LEN];
    let long = FormatOptions { metadata_len_bytes: 4 << 20, ..options() };
    format(&mut device, &SecretBytes::copy_of(b"older"), &long).unwrap();
    let stale = device[4 << 20..8 << 20].to_vec();
    format(&mut device, &SecretBytes::copy_of(b"old"), &short()).unwrap();
    // The state after a version that wiped only the space before its own data.
    device[4 << 20..8 << 20].copy_from_slice(&stale);
    assert!(matches!(Header::read(&formatted_over(device)), Err(Error::NotLuks)));
}

#[test]
fn format_over_a_volume_keeps_the_data_behind_both_headers() {
    let mut device = vec![0xaa; 2 << 20];
    for passphrase in [b"old", b"new"] {
        format(&mut device, &SecretBytes::copy_of(passphrase), &short()).unwrap();
        assert!(device[1 << 20..].iter().all(|byte| *byte == 0xaa), "the data was touched");
    }
}

#[test]
fn format_over_luks1_wipes_every_keyslot_area() {
    let mut device = vec![0; DEVICE_LEN];
    crate::luks1::format(&mut device, &SecretBytes::copy_of(b"old"), &luks1_options()).unwrap();
    // The last keyslot's area, after the new data offset, and the data after it.
    let last = (8 + 7 * 504) * 512;
    let end = (8 + 7 * 504 + 500) * 512;
    device[last..].fill(0xaa);
    let device = formatted_over(device);
    assert!(device[last..end].iter().all(|byte| *byte == 0));
    assert!(device[2 << 20..].iter().all(|byte| *byte == 0xaa), "the data was touched");
}

#[test]
fn keyslot_takes_the_cipher_of_the_data_where_cryptsetup_would() {
    for (cipher, key_size_bits, area_cipher, area_key_size_bits) in [
        ("aes-xts-plain64", 512, "aes-xts-plain64", 512),
        ("aes-xts-plain64", 256, "aes-xts-plain64", 256),
        ("aes-cbc-essiv:sha256", 256, "aes-cbc-essiv:sha256", 256),
        ("serpent-cbc-plain64", 256, "serpent-cbc-plain64", 256),
        ("aes-cbc-elephant", 512, "aes-xts-plain64", 512),
        ("capi:xts(aes)-plain64", 256, "aes-xts-plain64", 512),
    ] {
        let options = FormatOptions {
            cipher: cipher.to_owned(),
            key_size_bits,
            sector_size_bytes: 512,
            ..options()
        };
        let mut device = vec![0; DEVICE_LEN];
        let passphrase = SecretBytes::copy_of(b"x");
        let formatted = format(&mut device, &passphrase, &options).unwrap();
        let area = luks2_info(&formatted).keyslots[&0].area.encryption.clone().unwrap();
        assert_eq!(area.cipher, area_cipher, "{cipher}");
        assert_eq!(area.key_size_bits, area_key_size_bits, "{cipher}");
        let opened = formatted.header.unlock(&device, &passphrase, &Default::default()).unwrap();
        assert_eq!(opened.volume_key, formatted.volume_key, "{cipher}");
    }
}
