mod edges;
mod edit;
mod unlock;

use std::sync::OnceLock;

use serde_json::{Value, json};

use super::*;
use crate::format::{FormatOptions, Formatted, Pbkdf, format};
use crate::hash::HashAlgorithm;
use crate::header_write::write_steps;
use crate::kdf::{Kdf, KdfLimits};
use crate::luks;

const PASSPHRASE: &[u8] = b"a passphrase";
const HDR_LEN: usize = 0x4000;
const DEVICE_LEN: usize = (1 << 20) + 8192;

fn passphrase() -> SecretBytes {
    SecretBytes::copy_of(PASSPHRASE)
}

/// A small volume that all tests share.
fn volume() -> &'static (Vec<u8>, Formatted) {
    static VOLUME: OnceLock<(Vec<u8>, Formatted)> = OnceLock::new();
    VOLUME.get_or_init(|| {
        let kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };
        let options = FormatOptions {
            keyslots_len_bytes: Some(768 << 10),
            data_offset_bytes: Some(1 << 20),
            digest_iterations: Some(1000),
            ..FormatOptions::new(Pbkdf::Fixed(kdf))
        };
        let mut device = vec![0; DEVICE_LEN];
        let formatted = format(&mut device, &passphrase(), &options).unwrap();
        (device, formatted)
    })
}

fn document() -> Value {
    match &volume().1.header {
        luks::Header::Luks2(header) => header.metadata.document.clone(),
        luks::Header::Luks1(_) => unreachable!(),
    }
}

/// The volume with other metadata in both copies and correct checksums.
fn device_with(document: &Value) -> Vec<u8> {
    device_with_text(document.to_string().as_bytes())
}

fn device_with_text(text: &[u8]) -> Vec<u8> {
    let (mut device, formatted) = volume().clone();
    let luks::Header::Luks2(header) = formatted.header else { unreachable!() };
    let mut area = text.to_vec();
    assert!(area.len() < HDR_LEN - 4096);
    area.resize(HDR_LEN - 4096, 0);
    for copy in [Copy::Primary, Copy::Secondary] {
        write_copy(&mut device, copy, &header.binary, &area);
    }
    device
}

fn write_copy(device: &mut Vec<u8>, copy: Copy, binary: &Binary, json_area: &[u8]) {
    write_steps(device, &copy_steps(copy, binary, json_area)).unwrap();
}

fn store_keyslot(
    device: &mut Vec<u8>,
    number: u32,
    keyslot: &metadata::Keyslot,
    key: &SecretBytes,
) -> Result<(), Error> {
    let material = keyslot_material(number, keyslot, &passphrase(), key)?;
    write_steps(device, &[Step::new("a keyslot", vec![material])])
}

fn read(device: &[u8]) -> Result<Header, String> {
    Header::read(&device).map(|(header, _)| header).map_err(|error| error.to_string())
}

fn unlock(device: &[u8], options: &UnlockOptions) -> Result<Unlocked, String> {
    let (header, _) = Header::read(&device).map_err(|error| error.to_string())?;
    header.unlock(&device, &passphrase(), options).map_err(|error| error.to_string())
}

fn unlock_changed(path: &str, value: Value) -> Result<Unlocked, String> {
    unlock(&device_with(&changed(path, value)), &UnlockOptions::default())
}

/// The document with `value` at a JSON pointer; the last part of the pointer may be new.
fn changed(path: &str, value: Value) -> Value {
    let mut document = document();
    let (parent, key) = path.rsplit_once('/').unwrap();
    document.pointer_mut(parent).unwrap()[key] = value;
    document
}

fn without(path: &str) -> Value {
    let mut document = document();
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    assert!(parent.shift_remove(key).is_some(), "{path}");
    document
}

#[test]
fn header_written_by_format_is_read_back() {
    let header = read(&volume().0).unwrap();
    assert_eq!(luks::Header::Luks2(header.clone()).info(), volume().1.header.info());
    assert_eq!(header.seqid(), 1);
    assert_eq!(header.uuid(), header.info().uuid);
    assert_eq!(header.uuid().len(), 36);
    let unlocked = unlock(&volume().0, &UnlockOptions::default()).unwrap();
    assert_eq!(unlocked.volume_key, volume().1.volume_key);
}

#[test]
fn header_with_a_missing_field_names_its_path() {
    for path in [
        "/keyslots",
        "/tokens",
        "/segments",
        "/digests",
        "/config",
        "/config/json_size",
        "/config/keyslots_size",
        "/keyslots/0/type",
        "/keyslots/0/key_size",
        "/keyslots/0/kdf",
        "/keyslots/0/kdf/salt",
        "/keyslots/0/kdf/iterations",
        "/keyslots/0/kdf/hash",
        "/keyslots/0/af",
        "/keyslots/0/af/stripes",
        "/keyslots/0/af/hash",
        "/keyslots/0/area",
        "/keyslots/0/area/offset",
        "/keyslots/0/area/size",
        "/keyslots/0/area/encryption",
        "/keyslots/0/area/key_size",
        "/segments/0/type",
        "/segments/0/offset",
        "/segments/0/size",
        "/segments/0/iv_tweak",
        "/segments/0/encryption",
        "/segments/0/sector_size",
        "/digests/0/type",
        "/digests/0/keyslots",
        "/digests/0/segments",
    ] {
        let error = read(&device_with(&without(path))).unwrap_err();
        let dotted = path[1..].replace('/', ".");
        assert!(error.contains(&format!("{dotted}: it is missing")), "{path}: {error}");
    }
}

fn area(offset: &str, size: &str) -> Value {
    json!({"type": "raw", "offset": offset, "size": size, "encryption": "aes-xts-plain64",
           "key_size": 64})
}

fn base64_of(len: usize) -> Value {
    use base64::Engine;
    json!(base64::engine::general_purpose::STANDARD.encode(vec![0; len]))
}

#[test]
fn header_with_a_hostile_value_gives_an_error_of_its_own() {
    let cases = [
        ("/keyslots", json!([]), "keyslots: it is an array, must be an object"),
        ("/keyslots/0", json!(7), "keyslots.0: it is a number, must be an object"),
        ("/keyslots/32", json!({}), "keyslots.32.type: it is missing"),
        ("/keyslots/00", json!({}), "keyslots.00: its key is not the plain form"),
        ("/digests/4294967296", json!({}), "its key is not the plain form"),
        ("/tokens/x", json!({}), "tokens.x: its key is not a number"),
        ("/keyslots/x", json!({}), "keyslots.x: its key is not a number"),
        ("/keyslots/-1", json!({}), "its key is not a number"),
        ("/keyslots/0/key_size", json!("64"), "keyslots.0.key_size: it is a string"),
        ("/keyslots/0/key_size", json!(-64), "-64 is not a whole number"),
        ("/keyslots/0/key_size", json!(1u64 << 60), "is not a whole number from 0 to 2^32"),
        ("/keyslots/0/key_size", json!(64.5), "64.5 is not a whole number"),
        ("/keyslots/0/af/type", json!("luks9"), "keyslots.0.af.type: \"luks9\" is not luks1"),
        ("/keyslots/0/area/type", json!("none"), "keyslots.0.area.type: \"none\" is not raw"),
        ("/keyslots/0/area", area("0", "258048"), "not inside the keyslots area"),
        ("/keyslots/0/area", area("28672", "258048"), "not inside the keyslots area"),
        ("/keyslots/0/area", area("1048576", "258048"), "not inside the keyslots area"),
        ("/keyslots/0/area", area("18446744073709551615", "258048"), "more than 2^64"),
        ("/keyslots/0/area", area("18446744073709551616", "258048"), "is not a number from 0"),
        ("/keyslots/0/area", area("-1", "258048"), "keyslots.0.area.offset: \"-1\" is not"),
        ("/keyslots/0/area", area("32768", "0"), "it is empty"),
        ("/keyslots/0/area", area("32768", "1e6"), "keyslots.0.area.size: \"1e6\" is not"),
        ("/keyslots/0/kdf/iterations", json!("1000"), "it is a string, must be a number"),
        ("/keyslots/0/kdf/type", json!(""), "keyslots.0.kdf.type: it is empty"),
        ("/keyslots/0/type", json!("x".repeat(257)), "is not printable ASCII of at most 256"),
        ("/segments", json!({}), "digests.0.segments: there is no segment 0"),
        ("/segments/0/offset", json!("1048577"), "is not a multiple of 512"),
        ("/segments/0/offset", json!("512"), "reach into the data"),
        ("/segments/0/size", json!("0"), "not \"dynamic\" or a positive multiple"),
        ("/segments/0/size", json!("4608"), "4608 is not a multiple of the sector size 4096"),
        ("/segments/0/sector_size", json!(0), "segments.0.sector_size: it is 0"),
        ("/segments/0/iv_tweak", json!(0), "segments.0.iv_tweak: it is a number"),
        ("/segments/0/flags", json!([1]), "segments.0.flags[0]: it is a number"),
        ("/digests/0/keyslots", json!(["7"]), "digests.0.keyslots: there is no keyslot 7"),
        ("/digests/0/segments", json!(["1"]), "digests.0.segments: there is no segment 1"),
        ("/digests/0/segments", json!([]), "segments.0: no digest belongs to it"),
        ("/digests/0/keyslots", json!([0]), "digests.0.keyslots[0]: it is a number"),
        ("/digests/8", json!({}), "digests.8.type: it is missing"),
        ("/digests/0/keyslots", json!([]), "keyslots.0: no digest belongs to it"),
        ("/tokens/0", json!({"type": "t", "keyslots": ["9"]}), "there is no keyslot 9"),
        ("/config/json_size", json!("4096"), "a header of 16384 bytes has a JSON area of 12288"),
        ("/config/json_size", json!("18446744073709551615"), "has a JSON area of 12288"),
        ("/config/keyslots_size", json!("1000"), "is not a multiple of 4096"),
        ("/config/keyslots_size", json!("134221824"), "is not a multiple of 4096 up to"),
        ("/config/keyslots_size", json!("1019904"), "reach into the data"),
        ("/config/flags", json!("allow-discards"), "config.flags: it is a string"),
        ("/config/requirements", json!([]), "config.requirements: it is an array"),
        ("/config/requirements", json!({"mandatory": {}}), "mandatory: it is an object"),
    ];
    for (path, value, expected) in cases {
        let error = read(&device_with(&changed(path, value.clone()))).unwrap_err();
        assert!(error.contains(expected), "{path} = {value}: {error}");
    }
}

#[test]
fn areas_and_data_that_touch_their_limits_are_accepted() {
    for (path, value) in [
        ("/keyslots/0/area", area("561152", "258048")),
        ("/config/keyslots_size", json!("1015808")),
    ] {
        read(&device_with(&changed(path, value))).unwrap();
    }
    let error = read(&device_with(&changed("/config/keyslots_size", json!("134217728"))));
    assert!(error.unwrap_err().contains("reach into the data"), "and not above the maximum");
}

#[test]
fn header_with_overlapping_areas_names_both_keyslots() {
    let mut document = document();
    let mut second = document["keyslots"]["0"].clone();
    second["area"]["offset"] = json!((32768 + 4096).to_string());
    document["keyslots"]["5"] = second;
    document["digests"]["0"]["keyslots"] = json!(["0", "5"]);
    let error = read(&device_with(&document)).unwrap_err();
    assert!(error.contains("the areas of keyslots 0 and 5 overlap"), "{error}");
}

#[test]
fn segments_that_overlap_or_leave_a_gap_are_refused() {
    let segment =
        |offset: &str, size: &str| json!({"type": "linear", "offset": offset, "size": size});
    let cases = [
        (json!({}), "segments: there is no segment"),
        (json!({"1": segment("1048576", "dynamic")}), "segment 0 is missing"),
        (
            json!({"0": segment("1048576", "8192"), "1": segment("1052672", "dynamic")}),
            "0 and 1 overlap",
        ),
        (
            json!({"0": segment("1048576", "dynamic"), "1": segment("2097152", "dynamic")}),
            "only the last segment may be \"dynamic\"",
        ),
    ];
    for (segments, expected) in cases {
        let mut document = changed("/segments", segments);
        document["digests"]["0"]["segments"] = json!([]);
        let error = read(&device_with(&document)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn metadata_that_is_huge_deep_or_no_json_is_refused() {
    let deep = format!("{{\"a\":{}", "[".repeat(12_000));
    let many = format!("{{\"a\":[{}0]}}", "0,".repeat(6_000));
    for (text, expected) in [
        (deep.as_str(), "nested deeper than 32 levels"),
        (many.as_str(), "keyslots: it is missing"),
        ("{\"keyslots\":{", "it is no JSON"),
        ("[]", "it does not start with an object"),
        ("", "it does not start with an object"),
        ("{}", "keyslots: it is missing"),
        ("{\"keyslots\":{},\"tokens\":{},\"segments\":NaN}", "it is no JSON"),
    ] {
        let error = read(&device_with_text(text.as_bytes())).unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert!(error.len() < 1000, "a message of {} bytes", error.len());
    }
}

#[test]
fn unknown_fields_and_tokens_are_kept() {
    let mut document = changed("/future", json!({"answer": [42]}));
    document["keyslots"]["0"]["comment"] = json!("kept");
    document["tokens"]["3"] = json!({"type": "acme", "keyslots": ["0"], "secret": "s"});
    let header = read(&device_with(&document)).unwrap();
    assert_eq!(header.metadata.document, document);
    let shown = format!("{header}{:?}", header.info());
    assert!(shown.contains("acme") && !shown.contains("\"s\""), "{shown}");
}

#[test]
fn requirements_are_refused_by_name_but_shown() {
    for (name, expected) in [
        ("online-reencrypt", "cryptsetup reencrypt --resume-only"),
        ("online-reencrypt-v2", "cryptsetup reencrypt --resume-only"),
        ("offline-reencrypt", "cryptsetup reencrypt --resume-only"),
        ("online-reencrypt-vx", "\"online-reencrypt-vx\" is not supported"),
        ("opal", "\"opal\" is not supported"),
    ] {
        let document = changed("/config/requirements", json!({"mandatory": [name]}));
        let device = device_with(&document);
        let header = read(&device).unwrap();
        assert!(header.to_string().contains(name));
        let error = unlock(&device, &UnlockOptions::default()).unwrap_err();
        assert!(error.contains(name) && error.contains(expected), "{error}");
        let key = SecretBytes::zeroed(64);
        assert!(header.crypt_params(&key, DEVICE_LEN as u64, false).is_err());
    }
}

#[test]
fn segment_that_cannot_be_mapped_is_shown_and_refused_by_name() {
    for (path, value, expected) in [
        ("/segments/0/sector_size", json!(8192), "segments.0: its sector size is 8192"),
        ("/segments/0/sector_size", json!(1536), "segments.0: its sector size is 1536"),
        ("/segments/0/iv_tweak", json!("1"), "segments.0: its IV tweak 1 is not a multiple"),
    ] {
        let device = device_with(&changed(path, value));
        let header = read(&device).unwrap();
        assert!(header.to_string().contains("crypt"), "{header}");
        let error = unlock(&device, &UnlockOptions::default()).unwrap_err();
        assert!(error.contains(expected), "{error}");
        let key = SecretBytes::zeroed(64);
        assert!(header.crypt_params(&key, DEVICE_LEN as u64, false).is_err());
    }
}

#[test]
fn requirement_explains_metadata_that_breaks_the_rules() {
    let mut document = changed("/config/requirements", json!({"mandatory": ["warp-drive"]}));
    document["segments"]["0"]["sector_size"] = json!("warped");
    let error = read(&device_with(&document)).unwrap_err();
    assert!(error.contains("\"warp-drive\" is not supported"), "{error}");
}

#[test]
fn keyslot_that_cannot_be_used_is_named_with_its_reason() {
    for (path, value, expected) in [
        ("/keyslots/0/area/encryption", json!("cipher_null-ecb"), "encrypts nothing; refused"),
        ("/keyslots/0/area/encryption", json!("null"), "encrypts nothing; refused"),
        ("/keyslots/0/area/encryption", json!("capi:ecb(cipher_null)-null"), "refused"),
        ("/keyslots/0/area/encryption", json!("anubis-xts-plain64"), "`anubis`"),
        ("/keyslots/0/af/hash", json!("md5"), "its split's hash \"md5\""),
        ("/keyslots/0/kdf/hash", json!("md5"), "its KDF's hash \"md5\""),
        ("/keyslots/0/kdf/type", json!("scrypt"), "its KDF \"scrypt\""),
        ("/keyslots/0/kdf/iterations", json!(1u32 << 31), "2147483648 iterations"),
        ("/keyslots/0/kdf/iterations", json!(0), "0 iterations"),
        ("/keyslots/0/type", json!("reencrypt"), "its type \"reencrypt\""),
        ("/digests/0/hash", json!("sha512"), "digest 0: its 32 bytes do not fit sha512"),
        ("/digests/0/hash", json!("md5"), "digest 0: hash \"md5\""),
        ("/digests/0/type", json!("magic"), "digest 0: its type \"magic\" is not known"),
        ("/digests/0/digest", base64_of(19), "digest 0: digest: it has 19 bytes, must have 20"),
        ("/digests/0/digest", base64_of(65), "digest 0: digest: it has 65 bytes, must have 20"),
        ("/digests/0/salt", base64_of(31), "digest 0: salt: it has 31 bytes, must have 32"),
        ("/keyslots/0/key_size", json!(0), "key_size: 0 is not in 1 to 1024"),
        ("/keyslots/0/key_size", json!(1025), "key_size: 1025 is not in 1 to 1024"),
        ("/keyslots/0/key_size", json!(128), "area: its size is 258048 bytes; the split"),
        ("/keyslots/0/priority", json!(3), "priority: 3 is not 0, 1 or 2"),
        ("/keyslots/0/af/stripes", json!(4001), "af.stripes: it is 4001, must be 4000"),
        ("/keyslots/0/kdf/salt", json!("AAAA"), "kdf.salt: it has 3 bytes, must have 32"),
        ("/keyslots/0/kdf/salt", json!("*"), "kdf.salt: no base64"),
        ("/keyslots/0/kdf/iterations", json!(-1), "kdf.iterations: -1 is not a whole number"),
        ("/keyslots/0/kdf/type", json!("\u{1b}[31m"), "kdf.type: it is not printable ASCII"),
        ("/digests/0/iterations", json!(4_000_000_000u32), "digest 0: its pbkdf2"),
    ] {
        let error = unlock_changed(path, value).unwrap_err();
        assert!(error.contains("keyslot 0: ") && error.contains(expected), "{path}: {error}");
    }
}

#[test]
fn newest_copy_wins_and_the_other_is_reported_outdated() {
    for newer in [Copy::Primary, Copy::Secondary] {
        let (mut device, formatted) = volume().clone();
        let luks::Header::Luks2(header) = formatted.header else { unreachable!() };
        let mut area = changed("/config/flags", json!(["allow-discards"])).to_string().into_bytes();
        area.resize(HDR_LEN - 4096, 0);
        let binary = Binary { seqid: 9, ..header.binary };
        write_copy(&mut device, newer, &binary, &area);
        let (header, notices) = Header::read(&device).unwrap();
        assert_eq!(header.seqid(), 9);
        assert!(header.metadata.config.crypt_flags().allow_discards);
        let outdated = Notice::OutdatedCopy { copy: newer.other(), seqid: 1, newest_seqid: 9 };
        assert_eq!(notices, [outdated]);
        assert_eq!(repair(&mut device).unwrap(), [newer.other()]);
        let (header, notices) = Header::read(&device).unwrap();
        assert_eq!((header.seqid(), notices), (9, Vec::new()));
    }
}

#[test]
fn copies_with_one_seqid_but_other_contents_are_reported() {
    let (mut device, formatted) = volume().clone();
    let luks::Header::Luks2(header) = formatted.header else { unreachable!() };
    let mut area = changed("/config/flags", json!(["allow-discards"])).to_string().into_bytes();
    area.resize(HDR_LEN - 4096, 0);
    write_copy(&mut device, Copy::Secondary, &header.binary, &area);
    let (header, notices) = Header::read(&device).unwrap();
    assert_eq!(notices, [Notice::CopiesDiffer]);
    assert!(!header.metadata.config.crypt_flags().allow_discards);
    assert_eq!(repair(&mut device).unwrap(), [Copy::Secondary]);
    assert_eq!(Header::read(&device).unwrap().1, []);
}

#[test]
fn secondary_is_found_at_every_legal_offset_when_the_primary_is_gone() {
    for hdr_len_bytes in HDR_LENS_BYTES {
        let kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };
        let options = FormatOptions {
            metadata_len_bytes: hdr_len_bytes,
            keyslots_len_bytes: Some(256 << 10),
            digest_iterations: Some(1000),
            ..FormatOptions::new(Pbkdf::Fixed(kdf))
        };
        let mut device = vec![0; 10 << 20];
        format(&mut device, &passphrase(), &options).unwrap();
        device[..4096].fill(0xff);
        let (header, notices) = Header::read(&device).unwrap();
        assert_eq!(header.binary.hdr_len_bytes, hdr_len_bytes);
        assert!(matches!(notices[..], [Notice::DamagedCopy { copy: Copy::Primary, .. }]));
        header.unlock(&device, &passphrase(), &UnlockOptions::default()).unwrap();
    }
}

#[test]
fn header_with_both_copies_damaged_says_what_is_wrong_with_each() {
    let mut device = volume().0.clone();
    device[5000] ^= 1;
    device[HDR_LEN + 8] ^= 1;
    let error = read(&device).unwrap_err();
    assert!(error.contains("primary: its sha256 checksum is wrong"), "{error}");
    assert!(error.contains("secondary: its length"), "{error}");
    assert!(error.contains("blockyard header restore"), "{error}");
    assert!(matches!(repair(&mut device), Err(Error::BothCopiesDamaged { .. })));
}

#[test]
fn device_without_header_or_of_another_version_is_told_apart() {
    for device in [vec![], vec![0; 5], vec![0; 100], vec![0; 4096], vec![0xff; 1 << 20]] {
        let error = read(&device).unwrap_err();
        assert!(error.starts_with("no LUKS header found"), "{error}");
    }
    let mut device = volume().0.clone();
    device[7] = 3;
    assert!(read(&device).unwrap_err().contains("LUKS version 3 is not supported"));
    device.truncate(2000);
    device[7] = 2;
    assert!(read(&device).unwrap_err().contains("truncated"));
}

#[test]
fn truncated_device_is_refused_by_crypt_params() {
    let header = read(&volume().0).unwrap();
    let key = &volume().1.volume_key;
    let params = header.crypt_params(key, DEVICE_LEN as u64 + 511, false).unwrap();
    assert_eq!((params.data_offset_sectors, params.len_sectors), (2048, Some(16)));
    let error = header.crypt_params(key, 1 << 20, false).unwrap_err().to_string();
    assert!(error.contains("truncated"), "{error}");
    let fixed = read(&device_with(&changed("/segments/0/size", json!("16384")))).unwrap();
    let error = fixed.crypt_params(key, DEVICE_LEN as u64, false).unwrap_err().to_string();
    assert!(error.contains("the data is 16384 bytes"), "{error}");
}

#[test]
fn persistent_flags_and_iv_tweak_reach_the_mapping() {
    let flags = [
        "allow-discards",
        "same-cpu-crypt",
        "submit-from-crypt-cpus",
        "high_priority",
        "no-read-workqueue",
        "no-write-workqueue",
        "no-journal",
        "unknown",
    ];
    let mut document = changed("/config/flags", json!(flags));
    document["segments"]["0"]["iv_tweak"] = json!("4096");
    let header = read(&device_with(&document)).unwrap();
    let params = header.crypt_params(&volume().1.volume_key, DEVICE_LEN as u64, false).unwrap();
    let f = params.flags;
    assert!(f.allow_discards && f.same_cpu_crypt && f.submit_from_crypt_cpus);
    assert!(f.high_priority && f.no_read_workqueue && f.no_write_workqueue);
    assert_eq!(params.iv_offset_sectors, 4096);
}

/// New uses of a disk that was a LUKS2 volume before.
fn reused_disks() -> Vec<(&'static str, Vec<u8>)> {
    let reused = |edit: &dyn Fn(&mut [u8])| {
        let mut device = volume().0.clone();
        edit(&mut device);
        device
    };
    vec![
        (
            "LVM2",
            reused(&|device| {
                device[..1024].fill(0);
                device[512..520].copy_from_slice(b"LABELONE");
                device[536..544].copy_from_slice(b"LVM2 001");
            }),
        ),
        (
            "FAT",
            reused(&|device| {
                device[..512].fill(0);
                device[..3].copy_from_slice(b"\xeb\x58\x90");
                device[82..90].copy_from_slice(b"FAT32   ");
                device[510..512].copy_from_slice(b"\x55\xaa");
            }),
        ),
        // A partitioner may keep the first 440 bytes, with the magic of LUKS.
        (
            "GPT",
            reused(&|device| {
                device[446..512].fill(0);
                (device[446 + 4], device[446 + 12]) = (0xee, 1);
                device[510..512].copy_from_slice(b"\x55\xaa");
                device[512..520].copy_from_slice(b"EFI PART");
            }),
        ),
    ]
}

#[test]
fn disk_that_became_something_else_is_refused_by_its_name_and_not_repaired() {
    for (name, device) in reused_disks() {
        let error = Header::read(&device).unwrap_err();
        assert!(matches!(error, Error::Reused(_)), "{name}: {error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("`header_copy`"), "{text}");
        let mut repaired = device.clone();
        assert!(matches!(repair(&mut repaired), Err(Error::Reused(_))));
        assert!(repaired == device, "{name}: it was written to");
        // Inspection of the old volume is possible.
        let header = Header::read_copy(&device, Copy::Secondary).unwrap();
        header.unlock(&device, &passphrase(), &UnlockOptions::default()).unwrap();
        let absent = Header::read_copy(&device, Copy::Primary).unwrap_err().to_string();
        assert!(absent.contains("the primary LUKS2 header"), "{absent}");
    }
}

#[test]
fn disk_of_another_format_is_refused_by_its_name() {
    let mut device = vec![0; 1 << 20];
    device[3..11].copy_from_slice(b"-FVE-FS-");
    let error = Header::read(&device).unwrap_err();
    assert!(matches!(error, Error::OtherFormat(_)));
    assert!(error.to_string().contains("a BitLocker volume"), "{error}");
}

#[test]
fn signature_in_a_volume_whose_primary_header_is_intact_is_its_own_business() {
    let mut device = volume().0.clone();
    // Key material may be any bytes.
    device[0x1_0040..0x1_0048].copy_from_slice(b"_BHRfS_M");
    assert_eq!(Header::read(&device).unwrap().1, []);
}

#[test]
fn odd_keyslot_is_shown_with_its_reason_and_the_others_open() {
    let good = document()["keyslots"]["0"].clone();
    let offset = json!((32_768 + 258_048).to_string());
    for (pointer, value, reason) in [
        ("/af/stripes", json!(17), "af.stripes: it is 17"),
        ("/kdf/salt", base64_of(16), "kdf.salt: it has 16 bytes"),
        ("/area/size", json!("4096"), "area: its size is 4096 bytes"),
        ("/key_size", json!(4_000_000_000u32), "key_size: 4000000000 is not in 1 to 1024"),
        ("/priority", json!(9), "priority: 9 is not"),
    ] {
        let mut document = document();
        let mut odd = good.clone();
        odd["area"]["offset"] = offset.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        odd.pointer_mut(parent).unwrap()[key] = value;
        document["keyslots"]["1"] = odd;
        document["digests"]["0"]["keyslots"] = json!(["0", "1"]);
        let device = device_with(&document);
        let header = read(&device).unwrap();
        let text = header.to_string();
        assert!(text.contains("unusable: ") && text.contains(reason), "{text}");
        let keyslots = header.info().keyslots;
        let shown = keyslots[&1].problem.as_ref().unwrap();
        assert!(shown.contains(reason), "{shown}");
        assert_eq!(keyslots[&0].problem, None);
        assert_eq!(unlock(&device, &UnlockOptions::default()).unwrap().keyslot, 0);
        let named = UnlockOptions { keyslot: Some(1), ..UnlockOptions::default() };
        let error = unlock(&device, &named).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn header_that_only_names_things_oddly_opens_as_in_cryptsetup() {
    let mut two_tokens = document();
    two_tokens["tokens"] = json!({
        "0": {"type": "t", "keyslots": []}, "00": {"type": "t", "keyslots": []},
    });
    let mut high_numbers = document();
    high_numbers["keyslots"]["40"] = high_numbers["keyslots"]["0"].clone();
    high_numbers["keyslots"].as_object_mut().unwrap().shift_remove("0");
    high_numbers["digests"]["32"] = high_numbers["digests"]["0"].clone();
    high_numbers["digests"].as_object_mut().unwrap().shift_remove("0");
    high_numbers["digests"]["32"]["keyslots"] = json!(["40"]);
    // cryptsetup rounds the place of an area down to a sector.
    let unaligned = |past: u64| {
        let mut document = document();
        let offset = &mut document["keyslots"]["0"]["area"]["offset"];
        *offset = json!(format!("0{}", offset.as_str().unwrap().parse::<u64>().unwrap() + past));
        document
    };
    for document in [two_tokens, high_numbers, unaligned(1), unaligned(511)] {
        unlock(&device_with(&document), &UnlockOptions::default()).unwrap();
    }
    // A segment longer than any device gives a truncated device.
    let endless = changed("/segments/0/size", json!("18446744073709547520"));
    let header = read(&device_with(&endless)).unwrap();
    let key = &volume().1.volume_key;
    let error = header.crypt_params(key, DEVICE_LEN as u64, false).unwrap_err().to_string();
    assert!(error.contains("truncated"), "{error}");
}

/// `cargo x verdicts` found that cryptsetup opens such a volume, and ours refused it.
#[test]
fn header_with_an_unprintable_uuid_opens_and_keeps_its_bytes() {
    let mut device = volume().0.clone();
    let (mut header, _) = Header::read(&device).unwrap();
    let text = header.uuid()[..9].to_owned();
    header.binary.uuid.0[9] = 0xfb;
    for copy in [Copy::Primary, Copy::Secondary] {
        let area = json_area(&document(), header.binary.hdr_len_bytes).unwrap();
        write_copy(&mut device, copy, &header.binary, &area);
    }
    unlock(&device, &UnlockOptions::default()).unwrap();
    let again = read(&device).unwrap();
    assert_eq!((again.uuid(), again.binary.uuid), (&*text, header.binary.uuid));
}

#[test]
fn keyslot_belongs_to_exactly_one_digest_and_that_is_the_segments() {
    let second = document()["digests"]["0"].clone();
    let mut twice = document();
    twice["digests"]["1"] = second.clone();
    let error = read(&device_with(&twice)).unwrap_err();
    assert!(error.contains("keyslots.0: several digests belong to it"), "{error}");
    // The first digest of the segment has no keyslot: cryptsetup finds no usable one.
    let mut elsewhere = document();
    elsewhere["digests"]["1"] = second;
    elsewhere["digests"]["0"]["keyslots"] = json!([]);
    let error = unlock(&device_with(&elsewhere), &UnlockOptions::default()).unwrap_err();
    assert!(error.contains("no keyslot that can be used"), "{error}");
}

#[test]
fn digest_confirms_a_key_of_its_own_length_only() {
    // 256 bits that end in 64 zero bits have the same digest as the shorter AES-192 key: HMAC pads
    // short keys with zeros.
    let mut key = SecretBytes::copy_of(&[7; 32]);
    key.as_mut_slice()[24..].fill(0);
    let kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };
    let options = FormatOptions {
        cipher: "aes-cbc-essiv:sha256".to_owned(),
        key_size_bits: 256,
        sector_size_bytes: 512,
        keyslots_len_bytes: Some(768 << 10),
        data_offset_bytes: Some(1 << 20),
        digest_iterations: Some(1000),
        volume_key: Some(key.clone()),
        ..FormatOptions::new(Pbkdf::Fixed(kdf))
    };
    let mut device = vec![0; DEVICE_LEN];
    let formatted = format(&mut device, &passphrase(), &options).unwrap();
    let luks::Header::Luks2(header) = formatted.header else { unreachable!() };
    let mut document = header.metadata.document.clone();
    let mut short = document["keyslots"]["0"].clone();
    short["key_size"] = json!(24);
    short["area"]["offset"] = json!((32_768 + 258_048).to_string());
    document["keyslots"]["1"] = short;
    document["digests"]["0"]["keyslots"] = json!(["0", "1"]);
    let mut area = document.to_string().into_bytes();
    area.resize(HDR_LEN - 4096, 0);
    let metadata = Metadata::parse(&area, HDR_LEN as u64).unwrap();
    let cut = SecretBytes::copy_of(&key.as_slice()[..24]);
    store_keyslot(&mut device, 1, &metadata.keyslots[&1], &cut).unwrap();
    for copy in [Copy::Primary, Copy::Secondary] {
        write_copy(&mut device, copy, &header.binary, &area);
    }
    let open = |keyslot| unlock(&device, &UnlockOptions { keyslot, ..UnlockOptions::default() });
    assert_eq!(open(None).unwrap().volume_key, key);
    assert_eq!(open(Some(0)).unwrap().volume_key, key);
    let error = open(Some(1)).unwrap_err();
    assert!(
        error.contains("keyslot 1: digest 0: it belongs to a key of 32 bytes, not of 24"),
        "{error}"
    );
}

#[test]
fn null_cipher_keyslot_is_passed_over_and_shown_as_unusable() {
    let mut document = document();
    let mut null = document["keyslots"]["0"].clone();
    null["area"]["encryption"] = json!("cipher_null-ecb");
    document["keyslots"]["0"] = null;
    let mut good = self::document()["keyslots"]["0"].clone();
    good["area"]["offset"] = json!((32_768 + 258_048).to_string());
    document["keyslots"]["1"] = good;
    document["digests"]["0"]["keyslots"] = json!(["0", "1"]);
    let mut device = device_with(&document);
    let metadata = read(&device).unwrap().metadata;
    let key = &volume().1.volume_key;
    store_keyslot(&mut device, 1, &metadata.keyslots[&1], key).unwrap();
    // The result of cipher_null: the plain split, which opens for any passphrase.
    assert!(store_keyslot(&mut device, 0, &metadata.keyslots[&0], key).is_err());
    let mut material = vec![0; crate::af::material_len_bytes(key.len())];
    crate::af::split(key.as_slice(), &mut material, crate::af::STRIPES, HashAlgorithm::Sha256);
    device[32_768..32_768 + material.len()].copy_from_slice(&material);
    assert_eq!(unlock(&device, &UnlockOptions::default()).unwrap().keyslot, 1);
    let named = UnlockOptions { keyslot: Some(0), ..UnlockOptions::default() };
    assert!(unlock(&device, &named).unwrap_err().contains("encrypts nothing; refused"));
    let header = read(&device).unwrap();
    let shown = header.info().keyslots[&0].problem.clone().unwrap();
    assert!(shown.contains("encrypts nothing"), "{shown}");
}

#[test]
fn json_of_a_keyslot_of_another_type_lacks_the_members_of_its_key() {
    let keyslot = |document: &Value| {
        let header = luks::Header::Luks2(read(&device_with(document)).unwrap());
        let shown = serde_json::to_value(header.info()).unwrap();
        assert_eq!(shown.as_object().unwrap().keys().next().unwrap(), "type");
        shown["keyslots"]["0"].clone()
    };
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let usual = keyslot(&document());
    let all = ["type", "unbound", "priority", "key_size_bits", "problem", "area", "kdf", "af"];
    assert_eq!(names(&usual), all);
    assert!(usual["problem"].is_null());
    assert_eq!(usual["area"]["cipher"], "aes-xts-plain64");
    let other = keyslot(&changed("/keyslots/0/type", json!("reencrypt")));
    assert_eq!(names(&other), all[..6]);
    assert_eq!(names(&other["area"]), ["type", "offset_bytes", "len_bytes"]);
}

#[test]
fn info_tells_of_tables_in_the_ciphers_of_data_and_keyslots() {
    let of_data = |header: &Header| {
        header.info().segments[&0].encryption.as_ref().unwrap().cipher_table_based
    };
    let header = read(&volume().0).unwrap();
    assert!(!header.to_string().contains("table-based"));
    assert_eq!(of_data(&header), Some(false));
    let data = changed("/segments/0/encryption", json!("twofish-xts-plain64"));
    let header = read(&device_with(&data)).unwrap();
    assert!(header.to_string().contains("twofish-xts-plain64, sectors of 4096 bytes, table-based"));
    assert_eq!(of_data(&header), Some(true));
    let slot = changed("/keyslots/0/area/encryption", json!("camellia-xts-plain64"));
    let header = read(&device_with(&slot)).unwrap();
    assert!(header.to_string().contains("area camellia-xts-plain64 (512 bits), table-based"));
    let area = header.info().keyslots[&0].area.clone();
    assert_eq!(area.encryption.unwrap().cipher_table_based, Some(true));
    let unknown = changed("/segments/0/encryption", json!("anubis-xts-plain64"));
    let header = read(&device_with(&unknown)).unwrap();
    assert_eq!(of_data(&header), None);
}
