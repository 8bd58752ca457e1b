//! Keyslots and headers: each command, and cryptsetup on what it left.

mod lab;

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use blockyard_crypt::luks1;
use blockyard_crypt::secret::SecretBytes;
use lab::{Lab, PASSPHRASE, text};
use serde_json::Value;

const NEW: &str = "another passphrase 51e0";
/// A keyslot that is derived quickly.
const CHEAP: [&str; 2] = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];

/// A LUKS2 volume, and a LUKS1 volume, that the key file `pass` opens.
fn both(lab: &Lab) -> [&'static str; 2] {
    lab.write("new", NEW);
    roomy(lab, "two");
    luks1_volume(lab);
    ["two", "one"]
}

/// A LUKS1 volume `one` that the key file `pass` opens.
fn luks1_volume(lab: &Lab) {
    let options = luks1::FormatOptions {
        iterations: Some(1000),
        digest_iterations: Some(1000),
        ..luks1::FormatOptions::default()
    };
    let mut disk = vec![0; 3 << 20];
    luks1::format(&mut disk, &SecretBytes::copy_of(PASSPHRASE.as_bytes()), &options).unwrap();
    lab.write("one", disk);
}

/// A LUKS2 volume with room for seven keyslots.
fn roomy(lab: &Lab, name: &str) {
    let layout = ["--luks2-keyslots-size", "2M", "--offset", "8192"];
    let words = ["format", name, "--size", "5M", "-d", "pass"];
    lab.ok(&[&words[..], &layout, &CHEAP].concat());
}

fn key(lab: &Lab, words: &[&str]) {
    lab.ok(&[&["key"], words, &CHEAP[..]].concat());
}

/// Whether a key file opens the volume; Blockyard and cryptsetup must agree.
fn opens(lab: &Lab, volume: &str, key_file: &str) -> bool {
    let ours = lab.run(&["dump", volume, "-d", key_file, "--force", "-o", "plain"]);
    let Some(theirs) = cryptsetup(lab, &["open", "--test-passphrase", "-d", key_file, volume])
    else {
        return ours.status.success();
    };
    assert_eq!(ours.status.success(), theirs, "{volume}: {}", text(&ours.stderr));
    theirs
}

/// Runs cryptsetup, if it is installed.
fn cryptsetup(lab: &Lab, words: &[&str]) -> Option<bool> {
    let mut command = Command::new("cryptsetup");
    command.arg("-q").args(words).current_dir(lab.path(""));
    command.output().ok().map(|output| output.status.success())
}

fn info(lab: &Lab, volume: &str) -> Value {
    serde_json::from_slice(&lab.ok(&["info", "--json", volume]).stdout).unwrap()
}

fn numbers(lab: &Lab, volume: &str) -> Vec<String> {
    info(lab, volume)["keyslots"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn passphrase_is_added_changed_and_removed_and_cryptsetup_agrees() {
    let lab = Lab::new();
    lab.write("third", "a third one");
    for volume in both(&lab) {
        key(&lab, &["add", volume, "-d", "pass", "--new-keyfile", "new"]);
        assert!(opens(&lab, volume, "pass") && opens(&lab, volume, "new"));
        key(&lab, &["change", volume, "-d", "new", "--new-keyfile", "third"]);
        assert!(!opens(&lab, volume, "new") && opens(&lab, volume, "third"));
        lab.ok(&["key", "remove", volume, "-d", "third"]);
        assert!(!opens(&lab, volume, "third") && opens(&lab, volume, "pass"));
        assert_eq!(numbers(&lab, volume), ["0"]);
        key(&lab, &["add", volume, "-d", "pass", "--new-keyfile", "new", "-S", "5"]);
        assert_eq!(numbers(&lab, volume), ["0", "5"]);
        // The keyslot's own passphrase proves nothing.
        let refused = lab.refused(&["key", "kill", volume, "5", "-d", "new"], 2);
        assert!(refused.contains("no keyslot opens"), "{refused}");
        lab.ok(&["key", "kill", volume, "5", "-d", "pass"]);
        assert!(!opens(&lab, volume, "new") && opens(&lab, volume, "pass"));
    }
}

#[test]
fn passphrases_come_from_two_lines_of_standard_input() {
    let lab = Lab::new();
    for volume in both(&lab) {
        let words = [&["key", "add", volume], &CHEAP[..]].concat();
        let lines = format!("{PASSPHRASE}\n{NEW}\n");
        let output = lab.fed(&words, lines.as_bytes());
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(opens(&lab, volume, "new"));
    }
}

#[test]
fn last_keyslot_stays_unless_its_removal_is_forced() {
    let lab = Lab::new();
    for volume in both(&lab) {
        let before = lab.read(volume);
        for words in [&["remove", volume, "-d", "pass"][..], &["kill", volume, "0", "-q"]] {
            let said = lab.refused(&[&["key"], words].concat(), 1);
            assert!(said.contains("is the last one that opens the volume"), "{said}");
            assert!(said.contains("--force"), "{said}");
        }
        // The number is checked before the passphrase.
        for (number, problem) in [("0", "is the last one"), ("5", "5: it is not in use")] {
            for source in [&["-d", "new"][..], &[]] {
                let said = lab.refused(&[&["key", "kill", volume, number], source].concat(), 1);
                assert!(said.contains(problem), "{said}");
            }
        }
        let add = ["key", "add", volume, "-S", "0"];
        assert!(lab.refused(&add, 1).contains("keyslot 0: it is in use"));
        let add = ["key", "add", volume, "-S", "40"];
        assert!(lab.refused(&add, 1).contains("keyslot 40: LUKS"));
        let change = ["key", "change", volume, "-S", "5"];
        assert!(lab.refused(&change, 1).contains("keyslot 5: it is not in use"));
        assert!(lab.read(volume) == before);
        // The last keyslot can be proved only by itself.
        let kill = ["key", "kill", volume, "0", "--force", "-d"];
        lab.refused(&[&kill[..], &["new"]].concat(), 2);
        lab.ok(&[&kill[..], &["pass"]].concat());
        assert!(!opens(&lab, volume, "pass"));
        assert!(numbers(&lab, volume).is_empty());
    }
}

#[test]
fn volume_key_opens_a_volume_without_keyslots_and_another_key_does_not() {
    let lab = Lab::new();
    let [volume, _] = both(&lab);
    let table = text(&lab.ok(&["table", volume, "-d", "pass", "--showkeys"]).stdout);
    let hex = table.split_whitespace().find(|word| word.len() == 128).unwrap();
    let bytes = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    let volume_key: Vec<u8> = (0..128).step_by(2).map(bytes).collect();
    let shorter = &volume_key[..32];
    lab.write("short", shorter);
    lab.write("wrong", [7; 64]);
    lab.write("right", &volume_key);
    lab.ok(&["erase", volume, "-q"]);
    assert!(!opens(&lab, volume, "pass"));
    for wrong in ["short", "wrong"] {
        let words = ["key", "add", volume, "--volume-key-file", wrong, "--new-keyfile", "new"];
        let said = lab.refused(&words, 2);
        assert!(said.contains("does not belong to this volume"), "{said}");
    }
    key(&lab, &["add", volume, "--volume-key-file", "right", "--new-keyfile", "new"]);
    assert!(opens(&lab, volume, "new"));
}

#[test]
fn unbound_key_opens_nothing_of_the_volume() {
    let lab = Lab::new();
    let [volume, luks1] = both(&lab);
    key(&lab, &["add", volume, "--unbound", "--new-keyfile", "new"]);
    assert_eq!(info(&lab, volume)["keyslots"]["1"]["unbound"], true);
    let dump = lab.run(&["dump", volume, "-d", "new"]);
    assert_eq!(dump.status.code(), Some(2), "{}", text(&dump.stderr));
    if let Some(accepted) =
        cryptsetup(&lab, &["open", "--test-passphrase", "-S", "1", "-d", "new", volume])
    {
        assert!(accepted, "cryptsetup verifies its key");
    }
    lab.ok(&["key", "kill", volume, "1", "-q"]);
    assert_eq!(info(&lab, volume)["digests"].as_object().unwrap().len(), 1);
    let said = lab.refused(&["key", "add", luks1, "--unbound", "--new-keyfile", "new"], 1);
    assert!(said.contains("LUKS1 has no unbound keyslots"), "{said}");
}

#[test]
fn keyslot_is_converted_and_given_a_priority() {
    let lab = Lab::new();
    let [volume, luks1] = both(&lab);
    key(&lab, &["add", volume, "-d", "pass", "--new-keyfile", "new"]);
    lab.ok(&["key", "priority", volume, "-S", "1", "--priority", "prefer"]);
    let argon = ["--pbkdf", "argon2i", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];
    let cipher = ["--keyslot-cipher", "aes-cbc-essiv:sha256", "--keyslot-key-size", "256"];
    lab.ok(&[&["key", "convert", volume, "-d", "new"], &argon[..], &cipher].concat());
    let keyslot = info(&lab, volume)["keyslots"]["1"].clone();
    assert_eq!(keyslot["kdf"]["type"], "argon2i");
    assert_eq!(keyslot["priority"], "prefer");
    assert_eq!(keyslot["area"]["cipher"], "aes-cbc-essiv:sha256");
    assert!(opens(&lab, volume, "new"));
    let said = lab.refused(&["key", "priority", luks1, "-S", "0", "--priority", "ignore"], 4);
    assert!(said.contains("LUKS2 has"), "{said}");
    let null = [&["key", "add", volume, "-d", "pass", "--new-keyfile", "new"], &CHEAP[..]].concat();
    let cipher = ["--keyslot-cipher", "cipher_null-ecb", "--keyslot-key-size", "256"];
    let said = lab.refused(&[&null[..], &cipher].concat(), 1);
    assert!(said.contains("encrypts nothing"), "{said}");
}

#[test]
fn table_of_keyslots_that_is_full_is_refused_and_changed_in_place_only_by_force() {
    let lab = Lab::new();
    let [_, luks1] = both(&lab);
    lab.write("third", "a third one");
    for _ in 1..8 {
        key(&lab, &["add", luks1, "-d", "pass", "--new-keyfile", "new"]);
    }
    let before = lab.read(luks1);
    for verb in ["add", "change"] {
        let words = ["key", verb, luks1, "-d", "pass", "--new-keyfile", "third"];
        let said = lab.refused(&[&words[..], &CHEAP].concat(), 1);
        assert!(said.contains("all 8 keyslots are in use"), "{said}");
    }
    assert!(lab.read(luks1) == before);
    key(&lab, &["change", luks1, "-d", "pass", "--new-keyfile", "third", "--force"]);
    assert!(opens(&lab, luks1, "third") && !opens(&lab, luks1, "pass"));
}

#[test]
fn backup_has_the_bytes_of_cryptsetup_and_brings_removed_passphrases_back() {
    let lab = Lab::new();
    for volume in both(&lab) {
        let backup = format!("{volume}.backup");
        lab.ok(&["header", "backup", volume, "-o", &backup]);
        let mode = lab.path(&backup).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let theirs = format!("{volume}.theirs");
        let words = ["luksHeaderBackup", volume, "--header-backup-file", &theirs];
        if cryptsetup(&lab, &words) == Some(true) {
            assert!(lab.read(&backup) == lab.read(&theirs), "{volume}");
        }
        let said = lab.refused(&["header", "backup", volume, "-o", &backup], 5);
        assert!(said.contains("exists already"), "{said}");
        key(&lab, &["change", volume, "-d", "pass", "--new-keyfile", "new"]);
        let refused = lab.refused(&["header", "restore", volume, "-i", &backup], 5);
        assert!(refused.contains("present passphrases of keyslots"), "{refused}");
        assert!(refused.contains("--batch-mode"), "{refused}");
        lab.ok(&["header", "restore", volume, "-i", &backup, "-q"]);
        assert!(opens(&lab, volume, "pass") && !opens(&lab, volume, "new"));
        let whole = lab.read(&backup);
        lab.write("short", &whole[..whole.len() - 1]);
        let said = lab.refused(&["header", "restore", volume, "-i", "short", "-q"], 4);
        assert!(said.contains("truncated"), "{said}");
    }
}

#[test]
fn backup_of_another_volume_is_named_before_it_is_restored() {
    let lab = Lab::new();
    let [volume, luks1] = both(&lab);
    roomy(&lab, "other");
    lab.ok(&["header", "backup", "other", "-o", "backup"]);
    let said = lab.refused(&["header", "restore", volume, "-i", "backup"], 5);
    for difference in ["is of the volume", "another volume key", "keyslots 0 are lost"] {
        assert!(said.contains(difference), "{said}");
    }
    let said = lab.refused(&["header", "restore", luks1, "-i", "backup", "-q"], 4);
    assert!(said.contains("the data starts at byte"), "{said}");
    let layout = ["--luks2-keyslots-size", "1M", "--offset", "4096"];
    let words = ["format", "same offset", "--size", "5M", "-d", "pass"];
    lab.ok(&[&words[..], &layout, &CHEAP].concat());
    lab.ok(&["header", "backup", "same offset", "-o", "backup", "--force"]);
    let said = lab.refused(&["header", "restore", luks1, "-i", "backup"], 5);
    assert!(said.contains("another version of LUKS"), "{said}");
    lab.write("noise", vec![7; 1 << 20]);
    lab.refused(&["header", "restore", volume, "-i", "noise", "-q"], 4);
    assert!(opens(&lab, volume, "pass"));
}

#[test]
fn fields_of_a_header_are_set_and_cryptsetup_reads_them() {
    let lab = Lab::new();
    let [volume, luks1] = both(&lab);
    let uuid = "0f35c1f2-6c2f-4c3b-9d4c-6f6a3f0b9d11";
    lab.ok(&["header", "label", volume, "--label", "home", "--subsystem", "s"]);
    lab.ok(&["header", "flags", volume, "allow-discards", "no-read-workqueue"]);
    for volume in [volume, luks1] {
        lab.ok(&["header", "uuid", volume, "--uuid", uuid]);
        let shown = text(&lab.ok(&["header", "uuid", volume]).stdout);
        assert_eq!(shown, format!("{uuid}\n"));
        assert!(opens(&lab, volume, "pass"));
    }
    let info = info(&lab, volume);
    assert_eq!((&info["label"], &info["subsystem"]), (&"home".into(), &"s".into()));
    assert_eq!(info["seqid"], 4);
    let flags = text(&lab.ok(&["header", "flags", volume]).stdout);
    assert_eq!(flags, "allow-discards\nno-read-workqueue\n");
    let long = "l".repeat(48);
    let said = lab.refused(&["header", "label", volume, "--label", &long], 1);
    assert!(said.contains("--label"), "{said}");
    lab.refused(&["header", "label", luks1, "--label", "home"], 4);
    lab.ok(&["header", "flags", volume, "--none"]);
    assert!(lab.ok(&["header", "flags", volume]).stdout.is_empty());
}

#[test]
fn header_is_checked_and_wiped() {
    let lab = Lab::new();
    for volume in both(&lab) {
        lab.ok(&["header", "check", volume]);
        lab.refused(&["header", "wipe", volume], 5);
        assert!(opens(&lab, volume, "pass"));
        lab.ok(&["header", "wipe", volume, "-q"]);
        let said = lab.refused(&["info", volume], 4);
        assert!(said.contains("no LUKS header"), "{said}");
        lab.refused(&["header", "wipe", volume, "-q"], 4);
    }
    let volume = lab.volume("damaged");
    File::options().write(true).open(&volume).unwrap().write_all_at(b"#", 4106).unwrap();
    let said = lab.refused(&["header", "check", "damaged"], 1);
    assert!(said.contains("primary LUKS2 header is damaged"), "{said}");
}

#[test]
fn volume_is_converted_between_versions_and_cryptsetup_opens_it() {
    let lab = Lab::new();
    lab.write("new", NEW);
    luks1_volume(&lab);
    key(&lab, &["add", "one", "-d", "pass", "--new-keyfile", "new"]);
    assert!(opens(&lab, "one", "pass"));
    let plain = std::fs::read(lab.path("plain")).unwrap();
    lab.refused(&["header", "convert", "one", "--type", "luks2"], 5);
    lab.refused(&["header", "convert", "one", "--type", "luks1", "-q"], 4);
    for version in ["luks2", "luks1"] {
        lab.ok(&["header", "convert", "one", "--type", version, "-q"]);
        let now = cryptsetup(&lab, &["isLuks", "--type", version, "one"]);
        assert!(now.is_none_or(|is_version| is_version), "{version}");
        for key_file in ["new", "pass"] {
            assert!(opens(&lab, "one", key_file), "{version}, {key_file}");
            assert!(std::fs::read(lab.path("plain")).unwrap() == plain, "{version}");
        }
    }
    roomy(&lab, "sectors");
    let said = lab.refused(&["header", "convert", "sectors", "--type", "luks1", "-q"], 4);
    assert!(said.contains("sector"), "{said}");
    assert!(opens(&lab, "sectors", "pass"));
}

#[test]
fn keys_of_a_volume_that_is_served_can_be_changed_and_its_header_not_replaced() {
    let lab = Lab::new();
    let [volume, _] = both(&lab);
    lab.ok(&["header", "backup", volume, "-o", "backup"]);
    let _server = lab.serve(&[volume, "-d", "pass", "--socket", "s"]);
    key(&lab, &["change", volume, "-d", "pass", "--new-keyfile", "new"]);
    for words in [&["restore", volume, "-i", "backup", "-q"][..], &["wipe", volume, "-q"]] {
        lab.refused(&[&["header"], words].concat(), 5);
    }
    let words = ["open", "--test-passphrase", "-d", "new", volume];
    assert_ne!(cryptsetup(&lab, &words), Some(false));
}

/// A volume whose header is in the file `header`.
fn detached(lab: &Lab) {
    lab.write("data", vec![7; 1 << 20]);
    let words = ["format", "data", "--header", "header", "-d", "pass", "-q"];
    lab.ok(&[&words[..], &CHEAP].concat());
}

#[test]
fn detached_header_of_a_volume_that_is_served_is_not_replaced() {
    let lab = Lab::new();
    lab.write("new", NEW);
    detached(&lab);
    lab.ok(&["header", "backup", "header", "-o", "backup"]);
    let server = lab.serve(&["data", "--header", "header", "-d", "pass", "--socket", "s"]);
    key(&lab, &["add", "header", "-d", "pass", "--new-keyfile", "new"]);
    for words in [&["restore", "header", "-i", "backup", "-q"][..], &["wipe", "header", "-q"]] {
        lab.refused(&[&["header"], words].concat(), 5);
    }
    drop(server);
    lab.ok(&["header", "wipe", "header", "-q"]);
}

#[test]
fn backup_is_not_written_over_the_data_of_its_volume() {
    let lab = Lab::new();
    detached(&lab);
    let before = lab.read("data");
    for output in ["data", "header"] {
        let words = ["header", "backup", "data", "--header", "header", "-o", output, "--force"];
        let said = lab.refused(&words, 5);
        assert!(said.contains("is in use"), "{said}");
    }
    assert!(lab.read("data") == before);
}

/// The text of `luksDump` without what differs by its nature: salts, digests, key material. The
/// sequence id after `erase` too: cryptsetup writes the header once for each keyslot.
fn dumped(lab: &Lab, volume: &str, operation: &str) -> Option<String> {
    let mut command = Command::new("cryptsetup");
    let output = command.args(["luksDump", volume]).current_dir(lab.path("")).output().ok()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let is_hex = |line: &str| {
        let mut words = line.split_whitespace();
        words.clone().count() > 1
            && words.all(|word| word.len() == 2 && u8::from_str_radix(word, 16).is_ok())
    };
    let mut differs = vec!["LUKS header information", "Salt:", "MK salt:", "MK digest:", "Digest:"];
    differs.extend((operation == "erase").then_some("Epoch:"));
    let lines = text(&output.stdout);
    let kept = lines.lines().filter(|line| {
        !is_hex(line) && !differs.iter().any(|name| line.trim_start().starts_with(name))
    });
    Some(kept.collect::<Vec<_>>().join("\n"))
}

#[test]
fn header_after_an_operation_is_that_of_cryptsetup_after_the_same() {
    let lab = Lab::new();
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    type Words = &'static [&'static str];
    let operations: [(Words, Words); 6] = [
        (
            &["key", "add", "V", "-d", "pass", "--new-keyfile", "new"],
            &["luksAddKey", "V", "-d", "pass", "new"],
        ),
        (
            &["key", "add", "V", "-d", "pass", "--new-keyfile", "third", "-S", "6"],
            &["luksAddKey", "V", "-d", "pass", "third", "-S", "6"],
        ),
        (
            &["key", "change", "V", "-d", "new", "--new-keyfile", "fourth"],
            &["luksChangeKey", "V", "-d", "new", "fourth"],
        ),
        (&["key", "remove", "V", "-d", "third"], &["luksRemoveKey", "V", "-d", "third"]),
        (
            &["header", "uuid", "V", "--uuid", "0f35c1f2-6c2f-4c3b-9d4c-6f6a3f0b9d11"],
            &["luksUUID", "V", "--uuid", "0f35c1f2-6c2f-4c3b-9d4c-6f6a3f0b9d11"],
        ),
        (&["erase", "V", "-q"], &["erase", "V"]),
    ];
    for volume in both(&lab) {
        lab.write("third", "a third one");
        lab.write("fourth", "a fourth one");
        lab.write("theirs", lab.read(volume));
        for (ours, theirs) in operations {
            let named = |words: Words, name: &'static str| -> Vec<&str> {
                words.iter().map(|word| if *word == "V" { name } else { word }).collect()
            };
            let cost: &[&str] = if ["add", "change"].contains(&ours[1]) { &cheap } else { &[] };
            lab.ok(&[&named(ours, volume)[..], cost].concat());
            let Some(done) = cryptsetup(&lab, &[&named(theirs, "theirs")[..], cost].concat())
            else {
                return;
            };
            assert!(done, "{theirs:?}");
            let of = |volume| dumped(&lab, volume, ours[0]);
            assert_eq!(of(volume), of("theirs"), "{volume}: {ours:?}");
        }
    }
}

#[test]
fn empty_passphrase_is_never_stored() {
    let lab = Lab::new();
    lab.write("empty", "");
    for volume in both(&lab) {
        let before = lab.read(volume);
        for source in [
            &["--new-keyfile", "empty"][..],
            &["--new-keyfile", "new", "--new-keyfile-size", "0"],
            &["--new-keyfile", "new", "--new-keyfile-offset", "100"],
            &["--new-keyfile", "/dev/null"],
        ] {
            for action in ["add", "change"] {
                let words = [&["key", action, volume, "-d", "pass"], source, &CHEAP].concat();
                lab.refused(&words, 1);
            }
        }
        let lines = format!("{PASSPHRASE}\n\n");
        let words = [&["key", "add", volume][..], &CHEAP].concat();
        let said = lab::one_error(&lab.fed(&words, lines.as_bytes()), 1);
        assert!(said.contains("an empty passphrase protects nothing"), "{said}");
        let twice = ["key", "add", volume, "-d", "-", "--new-keyfile", "-"];
        let said = lab::one_error(&lab.fed(&twice, PASSPHRASE.as_bytes()), 1);
        assert!(said.contains("are both standard input"), "{said}");
        assert!(lab.read(volume) == before, "{volume}");
    }
}

#[test]
fn restore_over_partitions_is_refused_with_their_option() {
    let lab = Lab::new();
    roomy(&lab, "two");
    lab.ok(&["header", "backup", "two", "-o", "backup"]);
    let mut disk = vec![0; 8 << 20];
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[450] = 0x83;
    disk[454..462].copy_from_slice(&[0, 8, 0, 0, 0, 40, 0, 0]);
    lab.write("disk", &disk);
    let said = lab.refused(&["header", "restore", "disk", "-i", "backup", "-q"], 4);
    assert!(said.contains("in --partition"), "{said}");
    assert!(lab.read("disk") == disk);
    // A protective MBR without its GPT is a table too.
    let mut damaged = disk.clone();
    damaged[450] = 0xee;
    lab.write("disk", &damaged);
    lab.refused(&["header", "restore", "disk", "-i", "backup", "-q"], 4);
    assert!(lab.read("disk") == damaged);
    lab.write("disk", &disk);
    lab.ok(&["header", "restore", "disk", "--partition", "1", "-i", "backup", "-q"]);
    assert!(
        lab.run(&["dump", "disk", "--partition", "1", "-d", "pass", "-o", "out"]).status.success()
    );
    // The place as a number of sectors, for keys too.
    lab.write("new", NEW);
    key(&lab, &["add", "disk", "--offset", "2048", "-d", "pass", "--new-keyfile", "new"]);
    lab.ok(&["dump", "disk", "--partition", "1", "-d", "new", "-o", "out", "--force"]);
}

#[test]
fn conversion_to_luks1_drops_no_field_and_a_full_table_names_the_way_out() {
    let lab = Lab::new();
    lab.write("new", NEW);
    let size = ["--size", "5M", "--sector-size", "512", "--offset", "8192"];
    let layout = ["--luks2-keyslots-size", "2M", "-d", "pass"];
    lab.ok(&[&["format", "two"][..], &size, &layout, &CHEAP].concat());
    let convert = ["header", "convert", "two", "--type", "luks1", "-q"];
    lab.ok(&["header", "label", "two", "--label", "home"]);
    assert!(lab.refused(&convert, 4).contains("no label or subsystem"));
    lab.ok(&["header", "label", "two", "--label", ""]);
    lab.ok(&["key", "priority", "two", "-S", "0", "--priority", "prefer"]);
    assert!(lab.refused(&convert, 4).contains("keyslot 0 the priority normal"));
    lab.ok(&["key", "priority", "two", "-S", "0", "--priority", "normal"]);
    key(&lab, &["add", "two", "-d", "pass", "--new-keyfile", "new", "-S", "9"]);
    assert!(lab.refused(&convert, 4).contains("no keyslot 9"));
    lab.ok(&["key", "remove", "two", "-d", "new", "-S", "9"]);
    lab.ok(&convert);
    for number in 1..8 {
        lab.write("more", number.to_string());
        key(&lab, &["add", "two", "-d", "pass", "--new-keyfile", "more"]);
    }
    let change = ["key", "change", "two", "-d", "pass", "--new-keyfile", "new"];
    let said = lab.refused(&[&change[..], &CHEAP].concat(), 1);
    assert!(said.contains("let --force overwrite the old one"), "{said}");
}
