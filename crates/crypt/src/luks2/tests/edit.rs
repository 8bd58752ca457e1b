//! Plans of changed headers.

use super::*;
use crate::backup::{Backup, Difference};
use crate::keys::{self, Last, NewKeyslot, Usage};

/// The keyslot of the volume, and one like it under number 1, whose digest is `digest`.
fn with_second_keyslot(digest: &str) -> Value {
    let mut document = document();
    let mut second = document["keyslots"]["0"].clone();
    let after = 32_768 + second["area"]["size"].as_str().unwrap().parse::<u64>().unwrap();
    second["area"]["offset"] = json!(after.to_string());
    document["keyslots"]["1"] = second;
    if digest == "0" {
        document["digests"]["0"]["keyslots"] = json!(["0", "1"]);
    } else {
        let mut other = document["digests"]["0"].clone();
        other["keyslots"] = json!(["1"]);
        other["segments"] = json!(["1"]);
        document["digests"][digest] = other;
    }
    document
}

fn removal(document: &Value, number: u32) -> Result<(), Error> {
    keys::remove(&mut device_with(document), None, number, Last::Keep)
}

fn is_kept(document: &Value, number: u32) -> bool {
    matches!(removal(document, number), Err(Error::LastKeyslot(kept)) if kept == number)
}

#[test]
fn last_keyslot_of_each_key_of_a_reencryption_is_kept() {
    // The new key of a reencryption that has begun opens no data yet.
    let mut document = with_second_keyslot("1");
    let mut backup = document["segments"]["0"].clone();
    backup["flags"] = json!(["backup-final"]);
    document["segments"]["1"] = backup;
    document["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2"]});
    assert!(is_kept(&document, 0), "the key of the data");
    assert!(is_kept(&document, 1), "the key that the data will have");
    keys::remove(&mut device_with(&document), None, 0, Last::Remove).unwrap();
    let mut unbound = with_second_keyslot("1");
    unbound["digests"]["1"]["segments"] = json!([]);
    assert!(is_kept(&unbound, 0));
    removal(&unbound, 1).unwrap();
}

#[test]
fn keyslot_that_is_not_supported_counts_as_the_last_one() {
    let unsupported = |document: &mut Value, number: &str| {
        document["keyslots"][number]["kdf"]["hash"] = json!("sm3");
    };
    let mut alone = document();
    unsupported(&mut alone, "0");
    assert!(is_kept(&alone, 0));
    let mut both = with_second_keyslot("0");
    removal(&both, 0).unwrap();
    removal(&both, 1).unwrap();
    unsupported(&mut both, "1");
    removal(&both, 1).unwrap();
    assert!(is_kept(&both, 0), "nothing would be left that this program opens");
    unsupported(&mut both, "0");
    removal(&both, 0).unwrap();
}

#[test]
fn area_of_an_unbound_keyslot_has_a_cipher_key_as_long_as_that_of_the_data() {
    let area_key_len = |device: &[u8], len: usize| {
        let (header, _) = luks::Header::read(&device).unwrap();
        let new = NewKeyslot {
            pbkdf: Pbkdf::Fixed(Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 }),
            hash: HashAlgorithm::Sha256,
            area: None,
            priority: None,
            usage: Usage::Unbound,
        };
        let key = SecretBytes::zeroed(len);
        let new = keys::prepare(&header, &key, &passphrase(), &new).unwrap();
        let mut device = device.to_vec();
        let number = keys::add(&mut device, &new, None).unwrap();
        let document = read(&device).unwrap().metadata.document;
        document["keyslots"][number.to_string()]["area"]["key_size"].clone()
    };
    let device = &volume().0;
    for len in [8, 32, 64] {
        assert_eq!(area_key_len(device, len), json!(64), "a key of {len} bytes");
    }
    let mut erased = device.clone();
    keys::erase(&mut erased).unwrap();
    assert_eq!(area_key_len(&erased, 8), json!(64));
}

#[test]
fn restore_reports_another_volume_key_of_a_volume_that_cannot_be_opened() {
    let protected = json!({"type": "hmac(sha256)", "journal_encryption": "none",
                           "journal_integrity": "none"});
    let document = changed("/segments/0/integrity", protected);
    let device = device_with(&document);
    let mut other = document.clone();
    other["digests"]["0"]["digest"] = json!("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    let backup = Backup::of(&device_with(&other)).unwrap();
    let lost = backup.compare(&device).unwrap();
    assert!(lost.contains(&Difference::VolumeKey), "{lost:?}");
    assert_eq!(Backup::of(&device).unwrap().compare(&device).unwrap(), []);
}

#[test]
fn backup_with_a_requirement_is_not_restored() {
    let device = &volume().0;
    for (requirement, is_restored) in
        [("online-reencrypt-v2", true), ("offline-reencrypt", false), ("warp-drive", false)]
    {
        let requirements = json!({"mandatory": [requirement]});
        let with_it = device_with(&changed("/config/requirements", requirements));
        let backup = Backup::of(&with_it).unwrap();
        assert_eq!(backup.restore(&mut device.clone()).is_ok(), is_restored, "{requirement}");
    }
}
