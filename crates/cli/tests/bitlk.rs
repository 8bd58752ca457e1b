//! BitLocker volumes through the binary.

#[path = "../../crypt/tests/bitlk_maker/mod.rs"]
mod bitlk_maker;
mod lab;

use bitlk_maker::{
    AREA_LEN, DISK_LEN, HEADER_AT, HEADER_LEN, METADATA, Maker, PASSPHRASE, RECOVERY_KEY, Secret,
    plaintext, startup_key_file,
};
use lab::{Lab, noise, text};

/// A lab with the volume `vol` in a file, and key files.
fn lab(maker: &Maker) -> Lab {
    let lab = Lab::new();
    lab.write("vol", maker.disk());
    lab.write("words", PASSPHRASE);
    lab.write("recovery", format!("{RECOVERY_KEY}\n"));
    lab.write("key.BEK", startup_key_file());
    lab
}

fn clear() -> Maker {
    Maker { protectors: vec![Secret::ClearKey], ..Maker::default() }
}

#[test]
fn volume_is_recognised_and_each_secret_opens_it() {
    let protectors = vec![Secret::Passphrase, Secret::StartupKey, Secret::RecoveryKey];
    let lab = lab(&Maker { protectors, ..Maker::default() });
    for key in ["words", "recovery", "key.BEK"] {
        assert!(lab.ok(&["dump", "vol", "-d", key]).stdout == plaintext(), "{key}");
    }
    assert!(lab.ok(&["dump", "vol", "--type", "bitlk", "-d", "words"]).stdout == plaintext());
    lab.write("other", "no passphrase");
    let refused = lab.refused(&["dump", "vol", "-d", "other"], 2);
    assert!(refused.contains("no protector of the BitLocker volume opens"), "{refused}");
}

#[test]
fn clear_key_opens_without_a_question_and_doctor_tells_of_it() {
    let lab = lab(&clear());
    assert!(lab.ok(&["dump", "vol"]).stdout == plaintext());
    let findings = lab.run(&["doctor", "vol"]);
    assert!(text(&findings.stdout).contains("protection of this BitLocker"), "{findings:?}");
}

#[test]
fn written_data_is_read_again_and_metadata_is_never_overwritten() {
    for (method, sector_size) in [(0x8000, 512), (0x8003, 4096), (0x8005, 4096)] {
        let lab = lab(&Maker { method, sector_size, ..clear() });
        let before = lab.read("vol");
        let mut data = noise(DISK_LEN, u64::from(method));
        lab.write("in", &data);
        lab.ok(&["load", "vol", "-i", "in"]);
        for (at, len) in
            METADATA.map(|at| (at, AREA_LEN)).into_iter().chain([(HEADER_AT, HEADER_LEN)])
        {
            data[at..at + len].fill(0);
        }
        assert!(lab.ok(&["dump", "vol"]).stdout == data, "{method:x}");
        let after = lab.read("vol");
        assert!(after[..HEADER_LEN] == before[..HEADER_LEN]);
        for at in METADATA {
            assert!(after[at..at + AREA_LEN] == before[at..at + AREA_LEN]);
        }
        assert!(after[HEADER_AT..][..HEADER_LEN] != before[HEADER_AT..][..HEADER_LEN]);
    }
}

#[test]
fn facts_and_tables_are_shown() {
    let lab = lab(&Maker { protectors: vec![Secret::ClearKey, Secret::Tpm], ..Maker::default() });
    let shown = text(&lab.ok(&["info", "vol"]).stdout);
    for part in
        ["BitLocker volume", "aes-xts-plain64", "State:       encrypted", "TPM", "clear key"]
    {
        assert!(shown.contains(part), "{shown}");
    }
    let json = text(&lab.ok(&["info", "vol", "--json"]).stdout);
    for part in ["\"type\": \"bitlk\"", "\"kind\": \"TPM\"", "\"notices\": []"] {
        assert!(json.contains(part), "{json}");
    }
    let table = text(&lab.ok(&["table", "vol"]).stdout);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 9, "{table}");
    assert!(lines[0].starts_with("0 16 crypt aes-xts-plain64 "), "{table}");
    assert!(lines[0].contains(" 256 ") && lines[0].ends_with(" 256"), "{table}");
    assert_eq!(lines[2..4], ["128 128 zero", "256 16 zero"]);
}

#[test]
fn partition_with_bitlocker_is_named_and_opened() {
    let lab = lab(&clear());
    let mut disk = vec![0; 1 << 20];
    disk.extend(lab.read("vol"));
    disk[446 + 4] = 7;
    disk[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&(DISK_LEN as u32 / 512).to_le_bytes());
    disk[510..512].copy_from_slice(b"\x55\xaa");
    lab.write("disk", disk);
    let refused = lab.refused(&["dump", "disk"], 4);
    assert!(refused.contains("--partition 1"), "{refused}");
    assert!(text(&lab.ok(&["info", "disk"]).stdout).contains("a BitLocker volume"));
    assert!(text(&lab.ok(&["info", "disk", "--partition", "1"]).stdout).contains("UUID:"));
    assert!(lab.ok(&["dump", "disk", "--partition", "1"]).stdout == plaintext());
    assert!(lab.ok(&["dump", "disk", "--offset", "2048"]).stdout == plaintext());
}

#[test]
fn volumes_of_another_type_or_state_are_refused() {
    let lab = lab(&Maker { state: [2, 1], ..clear() });
    let unfinished = lab.refused(&["dump", "vol"], 4);
    assert!(unfinished.contains("`being decrypted`"), "{unfinished}");
    let as_luks = lab.refused(&["dump", "vol", "--type", "luks", "-d", "words"], 4);
    assert!(as_luks.contains("holds a BitLocker volume"), "{as_luks}");
    lab.volume("luks");
    let as_bitlk = lab.refused(&["dump", "luks", "--type", "bitlk", "-d", "pass"], 4);
    assert!(as_bitlk.contains("no BitLocker volume found"), "{as_bitlk}");
    let slot = lab.refused(&["dump", "vol", "--type", "bitlk", "--key-slot", "1"], 1);
    assert!(slot.contains("are for LUKS"), "{slot}");
}
