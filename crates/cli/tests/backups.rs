//! `serve --dirty-bitmap` and `blockyard backup`: the blocks of an incremental backup.

mod lab;

use std::fs;

use lab::nbd::Nbd;
use lab::{Lab, SMALL_LEN_BYTES, Server};
use rustix::process::Signal;
use serde_json::Value;

const SIZE: u64 = SMALL_LEN_BYTES as u64;
const BLOCK: u64 = 4096;
const SERVE: [&str; 11] = [
    "vol",
    "-d",
    "pass",
    "--socket",
    "s",
    "--control",
    "c",
    "--dirty-bitmap",
    "daily=bitmap",
    "--dirty-granularity",
    "4K",
];

/// The bitmap in the status: dirty bytes, and those of the backup.
fn dirty(lab: &Lab) -> (u64, Option<u64>) {
    let status: Value = serde_json::from_slice(&lab.ok(&["status", "--json", "c"]).stdout).unwrap();
    let bitmap = &status["devices"][0]["dirty_bitmap"];
    assert_eq!((&bitmap["name"], &bitmap["granularity_bytes"]), (&"daily".into(), &BLOCK.into()));
    (bitmap["dirty_bytes"].as_u64().unwrap(), bitmap["frozen_bytes"].as_u64())
}

fn write(lab: &Lab, offset: u64) {
    assert_eq!(Nbd::open(&lab.path("s")).write(offset, &[7; 512]), 0);
}

/// Begins a backup; returns its ID.
fn freeze(lab: &Lab) -> String {
    lab::text(&lab.ok(&["backup", "c", "freeze"]).stdout).trim_end().to_owned()
}

/// Serves a volume whose last backup has all of it.
fn backed_up(lab: &Lab) -> Server {
    let server = lab.serve(&SERVE);
    assert_eq!(dirty(lab), (SIZE, None), "there was no backup");
    lab.ok(&["backup", "c", "done", &freeze(lab)]);
    assert_eq!(dirty(lab), (0, None));
    server
}

#[test]
fn backup_has_the_blocks_since_the_last_one_also_over_a_restart() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = backed_up(&lab);
    write(&lab, 0);
    write(&lab, 9 * BLOCK - 256);
    assert_eq!(dirty(&lab), (3 * BLOCK, None));
    let backup = freeze(&lab);
    write(&lab, 20 * BLOCK);
    assert_eq!(dirty(&lab), (BLOCK, Some(3 * BLOCK)));
    let text = lab::text(&lab.ok(&["status", "c"]).stdout);
    let now = format!("daily, 4 KiB dirty in blocks of 4 KiB, 12 KiB in the backup {backup}");
    assert!(text.contains(&now), "{text}");
    let said = lab.refused(&["backup", "c", "freeze"], 1);
    assert!(said.contains(&format!("`done {backup}`")), "{said}");
    lab.ok(&["backup", "c", "failed", &backup]);
    assert_eq!(dirty(&lab), (4 * BLOCK, None), "the next backup has them too");
    assert!(server.stop(Signal::TERM).success());
    // Without the option, the granularity is that of the file.
    let server = lab.serve(&SERVE[..9]);
    assert_eq!(dirty(&lab), (4 * BLOCK, None));
    assert!(lab.refused(&["backup", "c", "done"], 1).contains("required"));
    assert!(lab.refused(&["backup", "c", "freeze", &backup], 1).contains("takes no ID"));
    assert!(lab.refused(&["backup", "c", "done", "0"], 1).contains("16 hexadecimal digits"));
    // The script of a backup that a restart has ended.
    let other = freeze(&lab);
    for step in ["done", "failed"] {
        let said = lab.refused(&["backup", "c", step, &backup], 1);
        assert!(said.contains(&format!("no backup {backup}: {other} runs")), "{said}");
        assert_eq!(dirty(&lab), (0, Some(4 * BLOCK)), "{step} of another backup");
    }
    lab.ok(&["backup", "c", "done", &other]);
    let said = lab.refused(&["backup", "c", "done", &other], 1);
    assert!(said.contains("none runs"), "{said}");
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn whole_volume_is_dirty_after_the_server_was_killed() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = backed_up(&lab);
    server.send(Signal::KILL);
    assert!(!server.ended().success());
    let server = lab.serve(&SERVE);
    let said = server.said.concat();
    assert!(said.contains("the whole volume counts as dirty"), "{said}");
    assert_eq!(dirty(&lab), (SIZE, None));
    assert!(server.stop(Signal::TERM).success());
    let server = lab.serve(&SERVE);
    assert_eq!(dirty(&lab), (SIZE, None), "no backup was made since");
    assert!(!server.said.concat().contains("counts as dirty"), "it is said once");
}

#[test]
fn whole_volume_is_dirty_after_a_last_flush_that_failed() {
    let lab = Lab::new();
    lab.volume("vol");
    let sectors = lab.read("vol").len() / 512;
    lab.write("far.table", format!("0 {sectors} linear vol 0\n"));
    let far = || lab.serve(&["--table", "far.table", "--socket", "far"]);
    let mut words = SERVE;
    // The loss is not latched: the server may come back with all writes.
    words[0] = "nbd+unix:///?socket=far&reconnect-delay=1&unflushed=trust";
    let server = far();
    let near = lab.serve(&words);
    let backup = freeze(&lab);
    write(&lab, 0);
    lab.ok(&["backup", "c", "done", &backup]);
    assert_eq!(dirty(&lab), (BLOCK, None));
    assert!(!server.stop(Signal::KILL).success());
    assert_eq!(near.stop(Signal::TERM).code(), Some(1));
    let _server = far();
    let near = lab.serve(&words);
    assert_eq!(dirty(&lab), (SIZE, None), "the write of the last backup may be lost");
    assert!(near.stop(Signal::TERM).success());
}

#[test]
fn bitmap_of_another_volume_and_one_in_use_are_refused() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.volume("other");
    let server = backed_up(&lab);
    let mut words = ["serve", "other", "-d", "pass", "--socket", "t", "--dirty-bitmap", "a=bitmap"];
    let said = lab.refused(&words, 5);
    assert!(said.contains("bitmap") && said.contains("in use"), "{said}");
    assert!(server.stop(Signal::TERM).success());
    let before = lab.read("bitmap");
    let said = lab.refused(&words, 4);
    assert!(said.contains("another volume"), "{said}");
    words[7] = "a=vol";
    let said = lab.refused(&words, 4);
    assert!(said.contains("no dirty bitmap"), "{said}");
    assert!(lab.read("bitmap") == before);
    let _server = lab.serve(&SERVE);
    assert_eq!(dirty(&lab), (0, None));
}

#[test]
fn whole_volume_is_dirty_after_a_server_without_the_bitmap() {
    // On a disk: a file in memory has no time of its last write.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("vol");
    let image = image.to_str().unwrap();
    let lab = Lab::new();
    fs::copy(lab.volume("vol"), image).unwrap();
    let mut words = SERVE;
    words[0] = image;
    let begun = |whole: bool| {
        let server = lab.serve(&words);
        assert_eq!(dirty(&lab), (if whole { SIZE } else { 0 }, None));
        assert_eq!(server.said.concat().contains("the image was changed without it"), whole);
        lab.ok(&["backup", "c", "done", &freeze(&lab)]);
        assert!(server.stop(Signal::TERM).success());
    };
    let server = lab.serve(&words);
    lab.ok(&["backup", "c", "done", &freeze(&lab)]);
    assert!(server.stop(Signal::TERM).success());
    begun(false);
    let server = lab.serve(&words[..7]);
    write(&lab, 0);
    assert!(server.stop(Signal::TERM).success());
    begun(true);
    let server = lab.serve(&words[..7]);
    assert!(server.stop(Signal::TERM).success());
    begun(false);
    // An older image, with the time of the present one.
    let time = fs::metadata(image).unwrap().modified().unwrap();
    let older = format!("{image}.older");
    fs::copy(image, &older).unwrap();
    fs::File::options().write(true).open(&older).unwrap().set_modified(time).unwrap();
    fs::rename(older, image).unwrap();
    begun(true);
}

#[test]
fn volume_without_a_bitmap_takes_no_backup() {
    let lab = Lab::new();
    lab.volume("vol");
    let _server = lab.serve(&SERVE[..7]);
    let said = lab.refused(&["backup", "c", "freeze"], 1);
    assert!(said.contains("--dirty-bitmap"), "{said}");
}

#[test]
fn exports_of_a_configuration_have_bitmaps_at_the_start_by_reload_and_at_the_first_use() {
    let lab = Lab::new();
    for name in ["vol", "later", "asleep"] {
        lab.volume(name);
    }
    lab.write("asleep.bitmap", "");
    fs::create_dir(lab.path("maps")).unwrap();
    let export = |name: &str, more: &str| {
        let key = "key_file = \"pass\"\n";
        format!("[exports.{name}]\nvolume = \"{name}\"\n{key}{more}\n")
    };
    let first = "socket = \"s\"\ncontrol = \"c\"\nsandbox_allow = [\".\"]\n".to_owned()
        + &export("vol", "dirty_bitmap = \"a=vol.bitmap\"\ndirty_granularity = \"4K\"")
        + &export("asleep", "dirty_bitmap = \"b=asleep.bitmap\"\nopen = \"first-use\"");
    lab.write("conf", &first);
    let server = lab.serve(&["--config", "conf"]);
    lab.write("conf", first + &export("later", "dirty_bitmap = \"c=maps/later.bitmap\""));
    lab.ok(&["reload", "c"]);
    for (name, bytes) in [("vol", 4096), ("later", 65_536), ("asleep", 65_536)] {
        let mut client = Nbd::open_export(&lab.path("s"), name);
        let id = lab.ok(&["backup", "c", "--export", name, "freeze"]).stdout;
        lab.ok(&["backup", "c", "--export", name, "done", lab::text(&id).trim_end()]);
        assert_eq!(client.write(0, &[7; 512]), 0);
        let words = ["status", "--json", "c", "--export", name];
        let status: Value = serde_json::from_slice(&lab.ok(&words).stdout).unwrap();
        assert_eq!(status["devices"][0]["dirty_bitmap"]["dirty_bytes"], bytes, "{name}");
    }
    assert!(server.stop(Signal::TERM).success());
    let is_clean = |path: &str| fs::read(lab.path(path)).unwrap()[12] == 0;
    for file in ["vol.bitmap", "maps/later.bitmap", "asleep.bitmap"] {
        assert!(is_clean(file), "{file}");
    }
}
