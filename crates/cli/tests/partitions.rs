//! Volumes in partitions of whole disks, and at offsets.

mod lab;

use std::fs::File;
use std::os::unix::fs::FileExt;

use lab::{Lab, text};

const MIB: u64 = 1 << 20;
/// Place of partition 3 of `disk`.
const START: u64 = 2 * MIB;
const LEN: u64 = 24 * MIB;

/// A disk of 32 MiB with an MBR: partition 1 of 1 MiB, partition 3 of 24 MiB. All other bytes are
/// not zero.
fn disk(lab: &Lab) {
    let mut bytes = vec![0x5a; 32 * MIB as usize];
    bytes[..512].fill(0);
    bytes[440..444].copy_from_slice(&0x00c0_ffee_u32.to_le_bytes());
    for (index, start, len) in [(0, MIB, MIB), (2, START, LEN)] {
        let entry = &mut bytes[446 + 16 * index..][..16];
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&u32::try_from(start / 512).unwrap().to_le_bytes());
        entry[12..].copy_from_slice(&u32::try_from(len / 512).unwrap().to_le_bytes());
    }
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    lab.write("disk", &bytes);
}

/// Gives partition 3 another place.
fn move_partition(lab: &Lab, start: u64, len: u64) {
    let sectors = [start, len].map(|bytes| u32::try_from(bytes / 512).unwrap().to_le_bytes());
    let file = File::options().write(true).open(lab.path("disk")).unwrap();
    file.write_all_at(&sectors.concat(), 446 + 2 * 16 + 8).unwrap();
}

/// `disk` with a volume in partition 3 that holds `data`.
fn formatted(lab: &Lab) -> Vec<u8> {
    disk(lab);
    lab.write("pass", "secret");
    let cheap = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "32", "-q"];
    lab.ok(&[&["format", "disk", "--partition", "3", "-d", "pass"], &cheap[..]].concat());
    let data: Vec<u8> = (0..LEN - 16 * MIB).map(|at| (at % 251) as u8).collect();
    lab.write("data", &data);
    lab.ok(&["load", "disk", "--partition", "3", "-d", "pass", "-i", "data"]);
    data
}

#[test]
fn volume_in_a_partition_is_formatted_written_and_read_and_nothing_else_of_the_disk_changes() {
    let lab = Lab::new();
    let data = formatted(&lab);
    let disk = lab.read("disk");
    assert!(disk[512..START as usize].iter().all(|byte| *byte == 0x5a));
    assert!(disk[(START + LEN) as usize..].iter().all(|byte| *byte == 0x5a));
    lab.write("part", &disk[START as usize..(START + LEN) as usize]);
    lab.ok(&["dump", "part", "-d", "pass", "-o", "alone"]);
    assert!(lab.read("alone") == data, "the partition is a volume of its own");
    let json = text(&lab.ok(&["info", "disk", "--partition", "3", "--json"]).stdout);
    let uuid = json.split("\"uuid\": \"").nth(1).unwrap().split('"').next().unwrap();
    for place in [
        &["--partition", "3"][..],
        &["--partition", "00c0ffee-03"],
        &["--partition", uuid],
        &["--offset", "4096"],
        &["--partition", "3", "--direct"],
    ] {
        lab.ok(&[&["dump", "disk", "-d", "pass", "-o", "out", "--force"], place].concat());
        let out = lab.read("out");
        assert!(out.starts_with(&data), "{place:?}");
    }
    let table = text(&lab.ok(&["table", "disk", "--partition", "3", "-d", "pass"]).stdout);
    let start = ((START + 16 * MIB) / 512).to_string();
    assert!(table.split_whitespace().any(|word| word == start), "{table}");
    lab.ok(&["repair", "disk", "--partition", "3"]);
}

#[test]
fn header_of_a_partition_is_changed_and_nothing_before_or_behind_it() {
    let lab = Lab::new();
    let data = formatted(&lab);
    lab.write("new", "other");
    let cheap = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "32"];
    let here = ["disk", "--partition", "3"];
    let run = |action: &[&str], rest: &[&str]| lab.ok(&[action, &here, rest].concat());
    run(&["header", "backup"], &["-o", "backup"]);
    let add = [&["-d", "pass", "--new-keyfile", "new"][..], &cheap].concat();
    run(&["key", "add"], &add);
    run(&["key", "remove"], &["-d", "pass"]);
    run(&["header", "label"], &["--label", "vault"]);
    lab.ok(&["dump", "disk", "--partition", "vault", "-d", "new", "-o", "out"]);
    assert!(lab.read("out") == data, "the new passphrase opens the volume");
    run(&["erase"], &["-q"]);
    run(&["header", "restore"], &["-i", "backup", "-q"]);
    run(&["dump"], &["-d", "pass", "-o", "out", "--force"]);
    assert!(lab.read("out") == data, "the backup opens the volume");
    run(&["header", "wipe"], &["-q"]);
    let disk = lab.read("disk");
    assert!(disk[512..START as usize].iter().all(|byte| *byte == 0x5a));
    assert!(disk[(START + LEN) as usize..].iter().all(|byte| *byte == 0x5a));
    assert!(!disk[START as usize..].starts_with(b"LUKS"), "the header was destroyed");
}

#[test]
fn served_partition_grows_in_its_place_only() {
    let lab = Lab::new();
    formatted(&lab);
    let served = ["disk", "--partition", "3", "-d", "pass", "--socket", "s", "--control", "c"];
    lab.write("key", [7; 32]);
    let plain = ["-M", "plain", "-c", "aes-xts-plain64", "-s", "256", "-d", "key"];
    let plain = [&served[..3], &plain, &served[5..]].concat();
    for (words, header_len) in [(&served[..], 16 * MIB), (&plain, 0)] {
        move_partition(&lab, START, LEN);
        let server = lab.serve(words);
        move_partition(&lab, START + MIB, LEN + 4 * MIB);
        let said = lab.refused(&["resize", "c"], 1);
        assert!(said.contains(&format!("starts at byte {} now", START + MIB)), "{said}");
        move_partition(&lab, START, LEN + 4 * MIB);
        let said = text(&lab.ok(&["resize", "c"]).stderr);
        let len = LEN + 4 * MIB - header_len;
        assert!(said.contains(&format!("the volume has {len} bytes now")), "{said}");
        drop(server);
    }
}

#[test]
fn disk_without_a_header_names_the_partition_that_has_one() {
    let lab = Lab::new();
    formatted(&lab);
    for words in [
        &["dump", "disk", "-d", "pass", "-o", "out"][..],
        &["serve", "disk", "-d", "pass", "--socket", "s"],
        &["repair", "disk"],
    ] {
        let said = lab.refused(words, 4);
        assert!(said.contains("partition 3 holds one: --partition 3"), "{said}");
    }
    let said = text(&lab.ok(&["doctor", "disk"]).stdout);
    assert!(said.contains("--partition 3"), "{said}");
    let said = text(&lab.ok(&["info", "disk"]).stdout);
    assert!(said.contains("MBR partition table") && said.contains("LUKS2 volume"), "{said}");
    let json = text(&lab.ok(&["info", "disk", "--json"]).stdout);
    assert!(json.contains("\"type\": \"luks2\"") && json.contains("\"number\": 3"), "{json}");
}

#[test]
fn wrong_places_are_refused_by_name() {
    let lab = Lab::new();
    formatted(&lab);
    lab.volume("vol");
    for (words, code, wanted) in [
        (&["--partition", "2"][..], 1, "partitions 1 and 3"),
        (&["--partition", "1"], 4, "no LUKS header"),
        (&["--offset", "999999999"], 1, "--offset"),
        (&["--partition", "3", "--offset", "8"], 1, "either --partition or --offset"),
    ] {
        let words = [&["dump", "disk", "-d", "pass", "-o", "out"], words].concat();
        let said = lab.refused(&words, code);
        assert!(said.contains(wanted), "{said}");
    }
    let said = lab.refused(&["dump", "vol", "--partition", "1", "-d", "pass", "-o", "out"], 1);
    assert!(said.contains("no partition table"), "{said}");
    let said =
        lab.refused(&["format", "disk", "--partition", "3", "--size", "1G", "-q", "-d", "pass"], 1);
    assert!(said.contains("--size"), "{said}");
    let file = File::options().write(true).open(lab.path("disk")).unwrap();
    file.write_all_at(&0x00ff_ffff_u32.to_le_bytes(), 446 + 32 + 12).unwrap();
    let said = lab.refused(&["dump", "disk", "--partition", "3", "-d", "pass", "-o", "out"], 1);
    assert!(said.contains("ends at byte"), "{said}");
}

#[test]
fn image_of_a_virtual_disk_is_named_with_the_line_that_opens_it() {
    let lab = Lab::new();
    let mut image = vec![0; 1 << 20];
    image[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    lab.write("image", &image);
    let said = lab.refused(&["info", "image"], 4);
    assert!(said.contains("qemu-nbd --format=qcow2"), "{said}");
}
