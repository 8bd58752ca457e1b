//! Thousands of mutated headers: reading one never panics and never exceeds the limits.
//!
//! A mutated header either still opens, because the mutation has no effect, or gives one error.
//! Half of the mutations get correct checksums, so that the rules after the checksum are reached.
//! The limits refuse a KDF that a mutation made too expensive.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use blockyard_crypt::format::{self, FormatOptions, Pbkdf};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::{Kdf, KdfLimits};
use blockyard_crypt::luks::{self, Header, UnlockOptions};
use blockyard_crypt::luks1;
use blockyard_crypt::secret::SecretBytes;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const HDR_LEN: usize = 0x4000;
const BINARY_LEN: usize = 4096;
const DEVICE_LEN: usize = 1 << 20;

/// Greatest time for one header, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn passphrase() -> SecretBytes {
    SecretBytes::copy_of(b"mutant")
}

fn luks2_volume() -> &'static Vec<u8> {
    static VOLUME: OnceLock<Vec<u8>> = OnceLock::new();
    VOLUME.get_or_init(|| {
        let kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };
        let options = FormatOptions {
            keyslots_len_bytes: Some(256 << 10),
            data_offset_bytes: Some(512 << 10),
            digest_iterations: Some(1000),
            ..FormatOptions::new(Pbkdf::Fixed(kdf))
        };
        let mut device = vec![0; DEVICE_LEN];
        format::format(&mut device, &passphrase(), &options).unwrap();
        device
    })
}

fn luks1_volume() -> &'static Vec<u8> {
    static VOLUME: OnceLock<Vec<u8>> = OnceLock::new();
    VOLUME.get_or_init(|| {
        let options = luks1::FormatOptions {
            cipher: "aes-cbc-essiv:sha256".to_owned(),
            key_size_bits: 128,
            iterations: Some(1000),
            digest_iterations: Some(1000),
            data_offset_bytes: Some(1032 * 512),
            ..luks1::FormatOptions::default()
        };
        let mut device = vec![0; DEVICE_LEN];
        luks1::format(&mut device, &passphrase(), &options).unwrap();
        device
    })
}

/// Uses a device as a program would. The test looks for panics.
fn exercise(device: &[u8]) {
    let start = Instant::now();
    match Header::read(&device) {
        Err(error) => assert!(error.to_string().len() < 4096, "{error}"),
        Ok((header, notices)) => {
            for notice in notices {
                assert!(notice.to_string().len() < 4096, "{notice}");
            }
            let _ = (header.to_string(), serde_json::to_string(&header.info()).unwrap());
            let limits = KdfLimits { memory_kib_max: 1024, lanes_max: 4, seconds_max: 0 };
            let options = UnlockOptions { keyslot: None, limits };
            if let Ok(unlocked) = header.unlock(&device, &passphrase(), &options) {
                let _ = header.crypt_params(&unlocked.volume_key, DEVICE_LEN as u64, false);
            }
            let _ = header.crypt_params(&SecretBytes::zeroed(64), u64::MAX, true);
        }
    }
    let mut repaired = device.to_vec();
    let _ = luks::repair(&mut repaired);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

/// Corrects the checksums of both LUKS2 copies.
fn seal(device: &mut [u8]) {
    for start in [0, HDR_LEN] {
        let copy = &mut device[start..start + HDR_LEN];
        copy[448..512].fill(0);
        let mut checksum = [0u8; 32];
        HashAlgorithm::Sha256.digest(&[copy], &mut checksum);
        copy[448..480].copy_from_slice(&checksum);
    }
}

fn json_of(device: &[u8]) -> Value {
    let area = &device[BINARY_LEN..HDR_LEN];
    let len = area.iter().position(|byte| *byte == 0).unwrap();
    serde_json::from_slice(&area[..len]).unwrap()
}

/// Both copies with this metadata, if it fits.
fn with_json(document: &Value) -> Vec<u8> {
    let text = document.to_string();
    let mut device = luks2_volume().clone();
    for start in [0, HDR_LEN] {
        let area = &mut device[start + BINARY_LEN..start + HDR_LEN];
        area.fill(0);
        let len = text.len().min(area.len());
        area[..len].copy_from_slice(&text.as_bytes()[..len]);
    }
    seal(&mut device);
    device
}

/// Invalid values for most fields.
fn odd_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!(true)),
        Just(json!("")),
        Just(json!("dynamic")),
        Just(json!("18446744073709551615")),
        Just(json!("18446744073709551616")),
        Just(json!("cipher_null-ecb")),
        Just(json!(-1)),
        Just(json!(1.5)),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["0", "0", "1"])),
        Just(json!({"0": {}})),
        any::<u64>().prop_map(|number| json!(number)),
        any::<u32>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number.to_string())),
        (0u64..64).prop_map(|number| json!((number * 4096).to_string())),
        "[ -~]{0,40}".prop_map(|text| json!(text)),
    ]
}

/// Replaces, removes or duplicates the `index`-th value of the tree.
fn edit(value: &mut Value, index: &mut usize, odd: &Value, how: u8) {
    if *index == 0 {
        *value = match how {
            0 => odd.clone(),
            1 => Value::Object(Map::from_iter([("0".to_owned(), value.clone())])),
            _ => Value::Array(vec![value.clone(), odd.clone()]),
        };
        *index = usize::MAX;
        return;
    }
    *index -= 1;
    match value {
        Value::Object(map) => {
            let keys: Vec<String> = map.keys().cloned().collect();
            for key in keys {
                if how == 3 && *index == 0 {
                    map.shift_remove(&key);
                    *index = usize::MAX;
                    return;
                }
                edit(map.get_mut(&key).unwrap(), index, odd, how);
                if *index == usize::MAX {
                    return;
                }
            }
        }
        Value::Array(array) => {
            for element in array {
                edit(element, index, odd, how);
                if *index == usize::MAX {
                    return;
                }
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn luks2_with_flipped_bits_gives_an_error_or_opens(
        flips in prop::collection::vec((0..2 * HDR_LEN, 0u8..8), 1..8),
        sealed: bool,
    ) {
        let mut device = luks2_volume().clone();
        for (offset, bit) in flips {
            device[offset] ^= 1 << bit;
        }
        if sealed {
            seal(&mut device);
        }
        exercise(&device);
    }

    #[test]
    fn luks2_with_a_flipped_bit_in_its_text_gives_an_error_or_opens(
        flips in prop::collection::vec((0..1100usize, 0u8..8), 1..4),
    ) {
        let mut device = luks2_volume().clone();
        for (offset, bit) in flips {
            device[BINARY_LEN + offset] ^= 1 << bit;
            device[HDR_LEN + BINARY_LEN + offset] ^= 1 << bit;
        }
        seal(&mut device);
        exercise(&device);
    }

    #[test]
    fn luks2_with_edited_metadata_gives_an_error_or_opens(
        edits in prop::collection::vec((0..80usize, odd_value(), 0u8..4), 1..4),
    ) {
        let mut document = json_of(luks2_volume());
        for (index, odd, how) in edits {
            edit(&mut document, &mut index.clone(), &odd, how);
        }
        exercise(&with_json(&document));
    }

    #[test]
    fn luks1_with_flipped_bits_gives_an_error_or_opens(
        flips in prop::collection::vec((0..592usize, 0u8..8), 1..8),
    ) {
        let mut device = luks1_volume().clone();
        for (offset, bit) in flips {
            device[offset] ^= 1 << bit;
        }
        exercise(&device);
    }
}

#[test]
fn volumes_cut_at_every_512_bytes_give_an_error_or_open() {
    for volume in [luks1_volume(), luks2_volume()] {
        for len in (0..volume.len()).step_by(512).filter(|len| *len < 40_000 || len % 32_768 == 0) {
            exercise(&volume[..len]);
        }
    }
}

#[test]
fn every_single_bit_of_a_luks1_header_may_flip() {
    for offset in 0..592 {
        for bit in 0..8 {
            let mut device = luks1_volume().clone();
            device[offset] ^= 1 << bit;
            let read = Header::read(&device);
            if let Ok((header, _)) = read {
                let _ = (header.to_string(), header.info());
            }
        }
    }
}

#[test]
fn key_material_may_be_damaged_without_telling_more_than_wrong_passphrase() {
    let mut device = luks2_volume().clone();
    device[2 * HDR_LEN + 100_000] ^= 1;
    let (header, _) = Header::read(&device).unwrap();
    let damaged = header.unlock(&device, &passphrase(), &UnlockOptions::default()).unwrap_err();
    let wrong = SecretBytes::copy_of(b"other");
    let (header, _) = Header::read(luks2_volume()).unwrap();
    let wrong = header.unlock(luks2_volume(), &wrong, &UnlockOptions::default()).unwrap_err();
    assert_eq!(damaged.to_string(), wrong.to_string());
}
