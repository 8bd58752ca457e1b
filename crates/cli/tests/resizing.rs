//! `blockyard resize`: served volumes that grow, and sizes that a header fixes.

mod lab;

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use lab::nbd::Nbd;
use lab::{Lab, SMALL_DATA_OFFSET_BYTES, SMALL_LEN_BYTES, noise, text};
use rustix::process::Signal;
use serde_json::Value;

const EINVAL: u32 = 22;
/// Size of the volumes before they grow, and what is added to them.
const SMALL_BYTES: u64 = SMALL_LEN_BYTES as u64;
const ADDED_BYTES: u64 = 3 << 20;

fn set_len(lab: &Lab, name: &str, len_bytes: u64) {
    File::options().write(true).open(lab.path(name)).unwrap().set_len(len_bytes).unwrap();
}

/// Gives a file of a small volume room for `len_bytes` of plaintext.
fn make_room(lab: &Lab, len_bytes: u64) {
    set_len(lab, "vol", SMALL_DATA_OFFSET_BYTES + len_bytes);
}

fn status(lab: &Lab) -> Value {
    let reply: Value = serde_json::from_slice(&lab.ok(&["status", "--json", "c"]).stdout).unwrap();
    reply["devices"][0].clone()
}

/// The end of a volume in the words of `luksDump`.
fn length_by_cryptsetup(lab: &Lab) -> Option<String> {
    let dump = Command::new("cryptsetup").arg("luksDump").arg(lab.path("vol")).output().ok()?;
    let dump = text(&dump.stdout);
    let line = dump.lines().find(|line| line.trim().starts_with("length: ")).unwrap().trim();
    Some(line.to_owned())
}

#[test]
fn served_volume_grows_on_command_and_no_write_of_an_open_connection_is_lost() {
    for options in [&[][..], &["--direct"], &["--threads", "2", "--pipeline", "G"]] {
        let lab = Lab::new();
        lab.volume("vol");
        let words = ["vol", "-d", "pass", "--socket", "s", "--control", "c"];
        let server = lab.serve(&[&words[..], options].concat());
        let mut early = Nbd::open(&lab.path("s"));
        let before = noise(SMALL_LEN_BYTES, 1);
        let after = noise(ADDED_BYTES as usize, 2);
        let has_grown = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                // Goes over the whole old volume at least once after it has grown.
                let mut rounds_left = 1;
                while rounds_left > 0 {
                    rounds_left -= i32::from(has_grown.load(Ordering::SeqCst));
                    for (at, piece) in (0..).step_by(8192).zip(before.chunks(8192)) {
                        assert_eq!(early.write(at, piece), 0);
                    }
                }
                assert_eq!(early.flush(), 0);
                early
            });
            make_room(&lab, SMALL_BYTES + ADDED_BYTES + 511);
            assert_eq!(Nbd::open(&lab.path("s")).size_bytes, SMALL_BYTES, "nobody has told");
            let said = text(&lab.ok(&["resize", "c"]).stderr);
            let sizes = [SMALL_BYTES + ADDED_BYTES, SMALL_BYTES].map(|size| size.to_string());
            assert!(sizes.iter().all(|size| said.contains(size)), "{said}");
            has_grown.store(true, Ordering::SeqCst);
            let mut late = Nbd::open(&lab.path("s"));
            assert_eq!(late.size_bytes, SMALL_BYTES + ADDED_BYTES);
            for (at, piece) in (SMALL_BYTES..).step_by(65_536).zip(after.chunks(65_536)) {
                assert_eq!(late.write(at, piece), 0);
            }
            let mut early = writing.join().unwrap();
            // An open connection has the size that its client knows.
            assert_eq!(early.read_error(SMALL_BYTES, 4096), EINVAL);
            assert!(early.read(SMALL_BYTES - 4096, 4096) == before[SMALL_LEN_BYTES - 4096..]);
            // A write over the old end, and reads over it.
            let over = noise(16_384, 3);
            assert_eq!(late.write(SMALL_BYTES - 8192, &over), 0);
            assert!(late.read(SMALL_BYTES - 8192, 16_384) == over);
            assert!(early.read(SMALL_BYTES - 8192, 8192) == over[..8192]);
            assert_eq!(late.write(SMALL_BYTES - 8192, &before[SMALL_LEN_BYTES - 8192..]), 0);
            assert_eq!(late.write(SMALL_BYTES, &after[..8192]), 0);
            assert_eq!(late.read_error(SMALL_BYTES + ADDED_BYTES, 512), EINVAL);
        });
        let status = status(&lab);
        assert_eq!(status["size_bytes"], SMALL_BYTES + ADDED_BYTES);
        let line = format!("0 {} crypt", (SMALL_BYTES + ADDED_BYTES) / 512);
        for lines in ["table", "status"] {
            let shown = status[lines][0].as_str().unwrap();
            assert!(shown.starts_with(&line), "{shown}");
        }
        let again = text(&lab.ok(&["resize", "c"]).stderr);
        assert!(again.contains("as before"), "{again}");
        assert!(server.stop(Signal::TERM).success());
        lab.ok(&["dump", "vol", "-d", "pass", "-o", "plain"]);
        assert!(lab.read("plain") == [before, after].concat(), "{options:?}");
    }
}

#[test]
fn volume_that_was_killed_while_it_grew_has_all_flushed_writes() {
    let lab = Lab::new();
    lab.volume("vol");
    let mut len_bytes = SMALL_BYTES;
    let mut expected = noise(SMALL_LEN_BYTES, 7);
    lab.write("plain", &expected);
    lab.ok(&["load", "vol", "-i", "plain", "-d", "pass"]);
    for round in 0..12 {
        let server = lab.serve(&["vol", "-d", "pass", "--socket", "s", "--control", "c"]);
        let mut client = Nbd::open(&lab.path("s"));
        assert_eq!(client.size_bytes, len_bytes);
        let piece = noise(4096, round);
        assert_eq!(client.write(len_bytes - 4096, &piece), 0);
        assert_eq!(client.flush(), 0);
        let at = expected.len() - 4096;
        expected[at..].copy_from_slice(&piece);
        len_bytes += 1 << 20;
        make_room(&lab, len_bytes);
        let mut resize = lab.blockyard(&["resize", "c"]).stderr(Stdio::null()).spawn().unwrap();
        if round % 2 == 0 {
            resize.wait().unwrap();
            let mut late = Nbd::open(&lab.path("s"));
            assert_eq!(late.write(len_bytes - (1 << 20), &piece), 0);
            assert_eq!(late.flush(), 0);
        }
        server.stop(Signal::KILL);
        resize.wait().unwrap();
        lab.ok(&["dump", "vol", "-d", "pass", "-o", "plain", "--force"]);
        let plain = lab.read("plain");
        assert_eq!(plain.len() as u64, len_bytes);
        assert!(plain[..expected.len()] == expected, "round {round}");
        if round % 2 == 0 {
            assert!(plain[expected.len()..expected.len() + 4096] == piece, "round {round}");
        }
        expected = plain;
    }
}

#[test]
fn served_volume_that_cannot_follow_says_why_and_goes_on() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("raw", vec![0; 1 << 20]);
    lab.write("table", "0 2048 linear raw 0\n");
    let with = |words: &[&'static str]| [words, &["--socket", "s", "--control", "c"]].concat();
    let server = lab.serve(&with(&["--table", "table"]));
    let said = lab.refused(&["resize", "c"], 1);
    assert!(said.contains("lines of a table fix its size"), "{said}");
    assert!(server.stop(Signal::TERM).success());

    let plain = ["raw", "-d", "pass", "-M", "plain", "-c", "aes-xts-plain64", "-s", "256"];
    lab.write("pass", noise(32, 9));
    let server = lab.serve(&with(&[&plain[..], &["--size", "1024"]].concat()));
    let said = lab.refused(&["resize", "c"], 1);
    assert!(said.contains("was given when it was opened"), "{said}");
    assert!(server.stop(Signal::TERM).success());
    let server = lab.serve(&with(&plain));
    set_len(&lab, "raw", 3 << 20);
    lab.ok(&["resize", "c"]);
    assert_eq!(Nbd::open(&lab.path("s")).size_bytes, 3 << 20);
    assert!(server.stop(Signal::TERM).success());

    lab.write("pass", lab::PASSPHRASE);
    let server = lab.serve(&with(&["vol", "-d", "pass"]));
    for (words, code, why) in [
        (&["resize", "c", "--device-size", "1M"][..], 1, "which comes first"),
        (&["resize", "c", "-b", "8"], 1, "which comes first"),
        (&["resize", "c", "--export", "other"], 4, "no export"),
        (&["resize", "vol", "--export", "other"], 1, "control socket"),
    ] {
        let said = lab.refused(words, code);
        assert!(said.contains(why), "{words:?}: {said}");
    }
    let image = lab.read("vol");
    make_room(&lab, SMALL_BYTES / 2);
    let said = lab.refused(&["resize", "c"], 1);
    assert!(
        said.contains("EINVAL") && said.contains("does not shrink while it is served"),
        "{said}"
    );
    fs::write(lab.path("vol"), &image).unwrap();
    fs::rename(lab.path("vol"), lab.path("elsewhere")).unwrap();
    lab.write("vol", &image);
    let said = lab.refused(&["resize", "c"], 1);
    assert!(said.contains("another file has this name now"), "{said}");
    assert_eq!(Nbd::open(&lab.path("s")).size_bytes, SMALL_BYTES);
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn header_fixes_a_size_and_lets_it_go_again() {
    let lab = Lab::new();
    lab.volume("vol");
    let said = text(&lab.ok(&["resize", "vol"]).stderr);
    assert!(said.contains("ends with its file"), "{said}");
    lab.ok(&["resize", "vol", "--device-size", "512K", "-q"]);
    lab.ok(&["dump", "vol", "-d", "pass", "-o", "plain"]);
    assert_eq!(lab.read("plain").len(), 512 << 10);
    if let Some(length) = length_by_cryptsetup(&lab) {
        assert_eq!(length, "length: 524288 [bytes]");
    }
    // Without a terminal nobody can be asked.
    let said = lab.refused(&["resize", "vol", "-b", "512"], 5);
    assert!(said.contains("262144") && said.contains("file system"), "{said}");
    for (size, why) in [("2M", "has room for a volume of 1048576 bytes"), ("0", "multiple")] {
        let said = lab.refused(&["resize", "vol", "--device-size", size, "-q"], 1);
        assert!(said.contains(why), "{said}");
    }
    let said = lab.refused(&["resize", "vol", "-b", "1001", "-q"], 1);
    assert!(said.contains("sector size"), "{said}");

    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s", "--control", "c"]);
    let said = lab.refused(&["resize", "vol", "-b", "512", "-q"], 5);
    assert!(said.contains("in use"), "{said}");
    make_room(&lab, 4 << 20);
    lab.ok(&["resize", "c"]);
    assert_eq!(Nbd::open(&lab.path("s")).size_bytes, 512 << 10, "the header fixes it");
    lab.ok(&["resize", "vol", "--device-size", "1M"]);
    lab.ok(&["resize", "c"]);
    assert_eq!(Nbd::open(&lab.path("s")).size_bytes, 1 << 20);
    lab.ok(&["resize", "vol"]);
    lab.ok(&["resize", "c"]);
    assert_eq!(Nbd::open(&lab.path("s")).size_bytes, 4 << 20);
    assert!(server.stop(Signal::TERM).success());
    if let Some(length) = length_by_cryptsetup(&lab) {
        assert_eq!(length, "length: (whole device)");
    }
}

#[test]
fn sizes_of_luks1_and_of_detached_headers_follow_their_files() {
    let lab = Lab::new();
    let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--sector-size", "512"];
    lab.ok(&[&["format", "one", "--size", "20M", "-d", "pass"], &cheap[..]].concat());
    lab.ok(&["header", "convert", "one", "--type", "luks1", "-q"]);
    let said = lab.refused(&["resize", "one", "--device-size", "1M", "-q"], 4);
    assert!(said.contains("it ends with its file or device"), "{said}");
    let server = lab.serve(&["one", "-d", "pass", "--socket", "s", "--control", "c"]);
    let before = Nbd::open(&lab.path("s")).size_bytes;
    set_len(&lab, "one", 21 << 20);
    lab.ok(&["resize", "c"]);
    assert_eq!(Nbd::open(&lab.path("s")).size_bytes, before + (1 << 20));
    assert!(server.stop(Signal::TERM).success());

    lab.write("data", vec![0; 1 << 20]);
    let words = ["--header", "head", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    lab.ok(&[&["format", "data", "-d", "pass", "-q"], &words[..]].concat());
    let said = lab.refused(&["resize", "head"], 4);
    assert!(said.contains("detached"), "{said}");
    let words = ["data", "--header", "head", "-d", "pass", "--socket", "s", "--control", "c"];
    let server = lab.serve(&words);
    set_len(&lab, "data", 2 << 20);
    lab.ok(&["resize", "c"]);
    assert_eq!(Nbd::open(&lab.path("s")).size_bytes, 2 << 20);
    assert!(server.stop(Signal::TERM).success());
    lab.ok(&["resize", "data", "--header", "head", "--device-size", "1M", "-q"]);
    lab.ok(&["dump", "data", "--header", "head", "-d", "pass", "-o", "plain"]);
    assert_eq!(lab.read("plain").len(), 1 << 20);
}
