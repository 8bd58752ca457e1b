//! Unlocking: the order of keyslots, and limits of the KDF before it runs.

use super::*;

#[test]
fn kdf_that_demands_a_tebibyte_is_refused_by_slot_demand_limit_and_option() {
    let kdf = json!({"type": "argon2id", "time": 4, "memory": 1u32 << 30, "cpus": 4,
                     "salt": document()["keyslots"]["0"]["kdf"]["salt"]});
    let error = unlock_changed("/keyslots/0/kdf", kdf).unwrap_err();
    for part in ["keyslot 0", "1073741824 KiB", "4194304 KiB", "`memory_kib_max`"] {
        assert!(error.contains(part), "{part} is missing: {error}");
    }
}

#[test]
fn kdf_over_the_defaults_runs_where_the_limits_are_raised() {
    let kdf = json!({"type": "argon2id", "time": 1, "memory": 136, "cpus": 17,
                     "salt": document()["keyslots"]["0"]["kdf"]["salt"]});
    let device = device_with(&changed("/keyslots/0/kdf", kdf));
    let refused = unlock(&device, &UnlockOptions::default()).unwrap_err();
    assert!(refused.contains("17 lanes"), "{refused}");
    let limits = KdfLimits { lanes_max: 17, ..KdfLimits::default() };
    let (header, _) = Header::read(&device).unwrap();
    let options = UnlockOptions { keyslot: None, limits };
    let error = header.unlock(&device, &passphrase(), &options).unwrap_err();
    // The passphrase was made with another KDF: the keyslot was tried.
    let Error::WrongPassphrase { untried } = &error else { panic!("{error}") };
    assert!(untried.is_empty(), "{error}");
}

#[test]
fn volume_that_is_not_supported_is_refused_before_the_kdf_runs() {
    let linear = json!({"type": "linear", "offset": "1048576", "size": "dynamic"});
    let integrity = json!({"type": "hmac(sha256)", "journal_encryption": "none",
                           "journal_integrity": "none"});
    // A KDF that the limits would refuse.
    for (path, value, expected) in [
        ("/segments/0", linear, "segments.0: a segment of type \"linear\""),
        ("/segments/0/integrity", integrity, "integrity protection \"hmac(sha256)\""),
        ("/segments/0/encryption", json!("anubis-xts-plain64"), "`anubis`"),
        ("/segments/0/encryption", json!("cipher_null-ecb"), "does not encrypt"),
    ] {
        let mut document = changed(path, value);
        document["keyslots"]["0"]["kdf"]["iterations"] = json!(u32::MAX);
        let error = unlock(&device_with(&document), &UnlockOptions::default()).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let mut two = changed("/segments/0/size", json!("8192"));
    two["segments"]["1"] = two["segments"]["0"].clone();
    two["segments"]["1"]["offset"] = json!("2097152");
    two["digests"]["0"]["segments"] = json!(["0", "1"]);
    let error = unlock(&device_with(&two), &UnlockOptions::default()).unwrap_err();
    assert!(error.contains("2 data segments"), "{error}");
}

#[test]
fn unlock_tries_preferred_keyslots_first_and_ignored_ones_only_by_name() {
    let mut document = document();
    document["keyslots"]["0"]["priority"] = json!(0);
    let device = device_with(&document);
    let error = unlock(&device, &UnlockOptions::default()).unwrap_err();
    assert!(error.contains("keyslot 0: its priority is \"ignore\""), "{error}");
    let named = UnlockOptions { keyslot: Some(0), ..UnlockOptions::default() };
    assert_eq!(unlock(&device, &named).unwrap().keyslot, 0);
    let absent = UnlockOptions { keyslot: Some(3), ..UnlockOptions::default() };
    assert_eq!(unlock(&device, &absent).unwrap_err(), "keyslot 3: it is not in use");

    // Copy the material, so that both keyslots open with the same passphrase.
    document["keyslots"]["0"]["priority"] = json!(1);
    let mut second = document["keyslots"]["0"].clone();
    second["area"]["offset"] = json!((32768 + 258_048).to_string());
    second["priority"] = json!(2);
    document["keyslots"]["7"] = second;
    document["digests"]["0"]["keyslots"] = json!(["0", "7"]);
    let mut device = device_with(&document);
    device.copy_within(32768..32768 + 258_048, 32768 + 258_048);
    assert_eq!(unlock(&device, &UnlockOptions::default()).unwrap().keyslot, 7);
    document["keyslots"]["7"]["priority"] = json!(1);
    let mut normal = device_with(&document);
    normal.copy_within(32768..32768 + 258_048, 32768 + 258_048);
    assert_eq!(unlock(&normal, &UnlockOptions::default()).unwrap().keyslot, 0);
}

#[test]
fn unlock_with_too_low_limits_names_the_option_and_does_not_call_it_wrong() {
    let limits = KdfLimits { seconds_max: 0, ..KdfLimits::default() };
    let document = changed("/keyslots/0/kdf/iterations", json!(10_000_000));
    let options = UnlockOptions { keyslot: None, limits };
    let error = unlock(&device_with(&document), &options).unwrap_err();
    assert!(error.contains("`seconds_max`"), "{error}");
    assert!(!error.contains("opens with this passphrase"), "{error}");
}
