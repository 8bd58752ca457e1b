//! Tables of keyslots without a free place, and backups that end early: one clear error each.

use blockyard_crypt::backup::Backup;
use blockyard_crypt::format::{self, FormatOptions, Pbkdf};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::Kdf;
use blockyard_crypt::keys::{self, NewKeyslot, Usage};
use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::luks1;
use blockyard_crypt::secret::SecretBytes;

const KDF: Kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };

fn secret(text: &str) -> SecretBytes {
    SecretBytes::copy_of(text.as_bytes())
}

fn luks2(keyslots_len_bytes: u64) -> Vec<u8> {
    let options = FormatOptions {
        key_size_bits: 256,
        digest_iterations: Some(1000),
        keyslots_len_bytes: Some(keyslots_len_bytes),
        data_offset_bytes: Some(keyslots_len_bytes + (1 << 20)),
        ..FormatOptions::new(Pbkdf::Fixed(KDF))
    };
    let mut disk = vec![0; usize::try_from(keyslots_len_bytes).unwrap() + (1 << 20) + 4096];
    format::format(&mut disk, &secret("old"), &options).unwrap();
    disk
}

fn luks1() -> Vec<u8> {
    let options = luks1::FormatOptions {
        key_size_bits: 256,
        iterations: Some(1000),
        digest_iterations: Some(1000),
        ..luks1::FormatOptions::default()
    };
    let mut disk = vec![0; (2 << 20) + 4096];
    luks1::format(&mut disk, &secret("old"), &options).unwrap();
    disk
}

#[test]
fn keyslot_after_the_last_one_is_refused_and_the_header_stays() {
    for (mut disk, count, why) in [
        (luks2(8 << 20), 32, "all 32 keyslots are in use"),
        (luks2(768 << 10), 6, "no free space of 131072 bytes"),
        (luks1(), 8, "all 8 keyslots are in use"),
    ] {
        let (header, _) = Header::read(&disk).unwrap();
        let options = UnlockOptions::default();
        let key = header.unlock(&disk, &secret("old"), &options).unwrap().volume_key;
        let new = NewKeyslot {
            pbkdf: Pbkdf::Fixed(KDF),
            hash: HashAlgorithm::Sha256,
            area: None,
            priority: None,
            usage: Usage::Data,
        };
        let new = keys::prepare(&header, &key, &secret("new"), &new).unwrap();
        for number in 1..count {
            assert_eq!(keys::add(&mut disk, &new, None).unwrap(), number);
        }
        let full = disk.clone();
        let refused = keys::add(&mut disk, &new, None).unwrap_err().to_string();
        assert!(refused.contains(why) && refused.contains("remove"), "{refused}");
        assert!(disk == full);
        let (header, _) = Header::read(&disk).unwrap();
        let last = UnlockOptions { keyslot: Some(count - 1), ..UnlockOptions::default() };
        header.unlock(&disk, &secret("new"), &last).unwrap();
    }
}

#[test]
fn backup_of_any_shorter_length_is_refused() {
    for disk in [luks2(768 << 10), luks1()] {
        let whole = Backup::of(&disk.as_slice()).unwrap();
        for len in (0..whole.bytes().len()).step_by(4096 - 1).chain([whole.bytes().len() - 1]) {
            let refused = Backup::from_bytes(whole.bytes()[..len].to_vec()).unwrap_err();
            assert!(!refused.to_string().is_empty());
        }
        let mut longer = whole.bytes().to_vec();
        longer.extend([7; 4096]);
        assert!(Backup::from_bytes(longer).unwrap().bytes() == whole.bytes());
    }
}
