//! Unusual headers: reused disks, locks of other programs, odd keys, odd files.

mod lab;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use blockyard_crypt::format::{self, FormatOptions, Pbkdf};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::Kdf;
use blockyard_crypt::secret::SecretBytes;
use lab::{Lab, SMALL, one_error, text};
use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat};

/// A LUKS2 volume whose disk was then made an LVM physical volume.
fn reused(lab: &Lab) -> Vec<u8> {
    let volume = lab.volume("vol");
    let file = File::options().write(true).open(&volume).unwrap();
    file.write_all_at(&[0; 1024], 0).unwrap();
    file.write_all_at(b"LABELONE", 512).unwrap();
    file.write_all_at(b"LVM2 001", 536).unwrap();
    lab.read("vol")
}

#[test]
fn disk_with_another_use_is_refused_by_name_by_every_command_and_not_changed() {
    let lab = Lab::new();
    lab.write("in", "x");
    lab.volume("whole");
    lab.ok(&["dump", "whole", "-d", "pass", "-o", "plain"]);
    let disk = reused(&lab);
    for words in [
        &["info", "vol"][..],
        &["dump", "vol", "-d", "pass"],
        &["table", "vol", "-d", "pass"],
        &["load", "vol", "-i", "in", "-d", "pass"],
        &["serve", "vol", "-d", "pass", "--socket", "s"],
        &["repair", "vol"],
        &["repair", "vol", "-q"],
        &["header", "wipe", "vol", "-q"],
        &["erase", "vol", "-q"],
    ] {
        let said = lab.refused(words, 4);
        assert!(said.contains("an LVM2 physical volume"), "{words:?}: {said}");
    }
    let said = lab.refused(&["format", "vol", "-d", "pass"], 5);
    assert!(said.contains("an LVM2 physical volume"), "{said}");
    let doctor = text(&lab.ok(&["doctor", "vol"]).stdout);
    assert!(doctor.contains("an LVM2 physical volume"), "{doctor}");
    assert!(!doctor.contains("blockyard repair"), "{doctor}");
    assert!(lab.read("vol") == disk);
}

#[test]
fn old_volume_on_a_reused_disk_may_be_looked_at_and_not_written() {
    let lab = Lab::new();
    let disk = reused(&lab);
    let copy = ["--header-copy", "secondary"];
    lab.ok(&[&["dump", "vol", "-d", "pass", "-o", "out"], &copy[..]].concat());
    lab.ok(&[&["table", "vol", "-d", "pass"], &copy[..]].concat());
    assert!(text(&lab.ok(&[&["info", "vol"], &copy[..]].concat()).stdout).contains("LUKS2"));
    let served =
        lab.serve(&[&["vol", "-d", "pass", "--socket", "s", "--read-only"], &copy[..]].concat());
    drop(served);
    for words in [
        &["load", "vol", "-i", "pass", "-d", "pass"][..],
        &["serve", "vol", "-d", "pass", "--socket", "s2"],
    ] {
        let said = lab.refused(&[words, &copy[..]].concat(), 1);
        assert!(said.contains("--header-copy"), "{said}");
    }
    let said = lab.refused(&["info", "vol", "--header-copy", "primary"], 4);
    assert!(said.contains("the primary LUKS2 header: it is missing"), "{said}");
    assert!(lab.read("vol") == disk);
}

#[test]
fn plain_volume_is_no_luks_volume_and_the_commands_for_it_are_named() {
    let lab = Lab::new();
    lab.write("vol", [7; 1 << 16]);
    let said = lab.refused(&["info", "vol"], 4);
    assert!(
        said.ends_with("commands that read its data, such as dump, take --type plain"),
        "{said}"
    );
}

#[test]
fn bitlocker_disk_without_metadata_is_refused_by_name() {
    let lab = Lab::new();
    let mut disk = vec![0; 1 << 20];
    disk[..11].copy_from_slice(b"\xeb\x58\x90-FVE-FS-");
    lab.write("vol", disk);
    for words in [&["info", "vol"][..], &["dump", "vol", "-d", "pass"]] {
        let said = lab.refused(words, 4);
        assert!(
            said.contains("BitLocker volume: all copies of its metadata are damaged"),
            "{said}"
        );
    }
}

#[test]
fn repair_without_a_terminal_needs_batch_mode() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    File::options().write(true).open(&volume).unwrap().write_all_at(b"#", 4106).unwrap();
    let damaged = lab.read("vol");
    let said = lab.refused(&["repair", "vol"], 5);
    assert!(said.contains("--batch-mode"), "{said}");
    assert!(lab.read("vol") == damaged);
    lab.ok(&["repair", "vol", "-q"]);
    assert!(text(&lab.ok(&["info", "vol"]).stderr).is_empty());
}

#[test]
fn header_that_another_program_has_locked_is_not_written() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    File::options().write(true).open(&volume).unwrap().write_all_at(b"#", 4106).unwrap();
    let before = lab.read("vol");
    let other = File::open(&volume).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let format = [&["format", "vol", "-q", "-d", "pass"], &SMALL[..]].concat();
    for words in [&["repair", "vol", "-q"][..], &format] {
        let said = lab.refused(words, 5);
        assert!(said.contains("holds the lock of the LUKS header"), "{said}");
    }
    assert!(lab.read("vol") == before);
    flock(&other, FlockOperation::Unlock).unwrap();
    lab.ok(&["repair", "vol", "-q"]);
    lab.ok(&format);
}

#[test]
fn header_that_another_program_writes_is_not_read_and_readers_share_it() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    let other = File::open(&volume).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    for words in [
        &["info", "vol"][..],
        &["doctor", "vol"],
        &["dump", "vol", "-d", "pass"],
        &["serve", "vol", "-d", "pass", "--socket", "s"],
    ] {
        let said = lab.refused(words, 5);
        assert!(said.contains("holds the lock of the LUKS header"), "{words:?}: {said}");
    }
    flock(&other, FlockOperation::LockShared).unwrap();
    lab.ok(&["info", "vol"]);
    let _server = lab.serve(&["vol", "-d", "pass", "--socket", "s"]);
    // The served volume is not locked.
    flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn file_becomes_longer_only_when_its_format_is_allowed() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    let before = lab.read("vol");
    let size = (before.len() + (1 << 20)).to_string();
    let format = [&["format", "vol", "--size", &size, "-d", "pass"], &SMALL[..]].concat();
    let confirmed = [&format[..], &["-q"]].concat();
    assert!(lab.refused(&format, 5).contains("--batch-mode"));
    assert!(lab.read("vol") == before);
    let other = File::open(&volume).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    assert!(lab.refused(&confirmed, 5).contains("lock"));
    assert!(lab.read("vol") == before);
    flock(&other, FlockOperation::Unlock).unwrap();
    lab.ok(&confirmed);
    assert_eq!(lab.read("vol").len(), before.len() + (1 << 20));
    let plaintext = lab.ok(&["dump", "vol", "-d", "pass"]).stdout;
    assert_eq!(plaintext.len(), lab::SMALL_LEN_BYTES + (1 << 20));
}

#[test]
fn volume_with_an_empty_passphrase_opens_with_an_empty_line_or_file() {
    let lab = Lab::new();
    let kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };
    let options = FormatOptions {
        keyslots_len_bytes: Some(256 << 10),
        data_offset_bytes: Some(512 << 10),
        digest_iterations: Some(1000),
        ..FormatOptions::new(Pbkdf::Fixed(kdf))
    };
    let mut disk = vec![0; 1 << 20];
    format::format(&mut disk, &SecretBytes::copy_of(b""), &options).unwrap();
    lab.write("vol", disk);
    lab.write("empty", "");
    let dump = ["dump", "vol"];
    lab.ok(&[&dump[..], &["-d", "empty"]].concat());
    assert!(lab.fed(&dump, b"\n").status.success());
    assert!(one_error(&lab.fed(&dump, b""), 1).contains("has no passphrase for"));
    assert_eq!(lab.fed(&dump, b"x\n").status.code(), Some(2));
    // Making such a volume is refused.
    let said = lab.refused(&["format", "new", "--size", "20M", "-d", "empty"], 1);
    assert!(said.contains("an empty passphrase protects nothing"), "{said}");
    assert!(!lab.path("new").exists());
}

#[test]
fn file_of_odd_size_gets_small_sectors_unless_large_ones_are_asked_for() {
    let lab = Lab::new();
    for size in ["2097664", "2097700"] {
        let words = [&["format", "vol", "-q", "--size", size, "-d", "pass"], &SMALL[..]].concat();
        let said = lab.refused(&[&words[..], &["--sector-size", "4096"]].concat(), 1);
        assert!(said.contains("--sector-size"), "{said}");
        lab.ok(&words);
        let info: serde_json::Value =
            serde_json::from_slice(&lab.ok(&["info", "--json", "vol"]).stdout).unwrap();
        assert_eq!(info["segments"]["0"]["sector_size_bytes"], 512);
        let plaintext = lab.ok(&["dump", "vol", "-d", "pass"]).stdout;
        assert_eq!(plaintext.len(), (2 << 20) + 512 - (512 << 10));
        fs::remove_file(lab.path("vol")).unwrap();
    }
}

#[test]
fn fifo_is_no_volume_and_is_not_waited_for() {
    let lab = Lab::new();
    mknodat(CWD, lab.path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for words in [
        &["info", "fifo"][..],
        &["doctor", "fifo"],
        &["dump", "fifo", "-d", "pass"],
        &["table", "fifo", "-d", "pass"],
        &["serve", "fifo", "-d", "pass", "--socket", "s"],
        &["repair", "fifo"],
    ] {
        let said = lab.refused(words, 4);
        assert!(said.contains("neither a regular file nor a block device"), "{words:?}: {said}");
    }
}

#[test]
fn empty_table_is_refused_as_a_table() {
    let lab = Lab::new();
    for table in ["", "\n \n"] {
        lab.write("table", table);
        let said = lab.refused(&["dump", "--table", "table"], 1);
        assert!(said.contains("the table table is empty"), "{said}");
    }
}

#[test]
fn control_characters_of_a_path_do_not_reach_the_terminal() {
    let lab = Lab::new();
    let name = "a\u{1b}[2J\nerror: b";
    lab.write(name, "no volume");
    for words in [&["info", name][..], &["dump", name, "-d", "pass"], &["doctor", name]] {
        let output = lab.run(words);
        let shown = [output.stdout, output.stderr].concat();
        assert!(!shown.contains(&0x1b), "{}", text(&shown));
        assert!(!text(&shown).contains("\nerror: b"), "{}", text(&shown));
        assert!(text(&shown).contains("a\\u{1b}[2J\\nerror: b"), "{}", text(&shown));
    }
}

#[test]
fn control_characters_of_a_label_do_not_reach_the_terminal() {
    let lab = Lab::new();
    let words = ["format", "vol", "--size", "2M", "-q", "-d", "pass", "--label", "a\u{1b}[2J\nb"];
    lab.ok(&[&words[..], &SMALL[..]].concat());
    for words in [&["info", "vol"][..], &["info", "--json", "vol"], &["doctor", "vol"]] {
        let output = lab.run(words);
        let shown = [output.stdout, output.stderr].concat();
        assert!(!shown.contains(&0x1b) && !text(&shown).contains("\nb"), "{}", text(&shown));
    }
    assert!(text(&lab.ok(&["info", "vol"]).stdout).contains("a\\u{1b}[2J\\nb"));
}
