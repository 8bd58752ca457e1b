//! Output files: existing files are kept unless `--force` is given, and files in use always.

mod lab;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lab::{Lab, text};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

#[test]
fn trace_never_overwrites_what_the_server_serves() {
    let lab = Lab::new();
    let image = lab.volume("vol");
    fs::hard_link(&image, lab.path("hard")).unwrap();
    std::os::unix::fs::symlink(&image, lab.path("soft")).unwrap();
    let before = fs::read(&image).unwrap();
    let key = lab.read("pass");
    let image = lab.path("vol");
    let words = ["vol", "-d", "pass", "--socket", "s", "--control", "c", "--sandbox-allow", "."];
    let server = lab.serve(&words);
    for name in ["vol", "hard", "soft", "pass"] {
        let record = ["trace", "record", "c", "-o", name, "--for", "1ms"];
        for force in [&[][..], &["--force"], &["--overwrite"]] {
            let said = lab.refused(&[&record[..], force].concat(), 5);
            assert!(
                said.contains(if force.is_empty() { "exists already" } else { "in use" }),
                "{said}"
            );
        }
    }
    assert!(server.stop(Signal::TERM).success());
    assert!(fs::read(image).unwrap() == before && lab.read("pass") == key);
}

#[test]
fn trace_into_a_fifo_is_refused_and_sigterm_ends_the_server() {
    let lab = Lab::new();
    lab.volume("vol");
    mknodat(CWD, lab.path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s", "--control", "c"]);
    let said = lab.refused(&["trace", "record", "c", "-o", "fifo", "--for", "1ms"], 1);
    assert!(said.contains("regular file"), "{said}");
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn trace_of_a_server_overwrites_a_file_with_force_only() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("old", "mine");
    let serve = ["serve", "vol", "-d", "pass", "--socket", "s", "--trace", "old"];
    assert!(lab.refused(&serve, 5).contains("--force"));
    assert_eq!(lab.read("old"), b"mine");
    let server = lab.serve(&[&serve[1..], &["--force"]].concat());
    assert!(server.stop(Signal::TERM).success());
    assert_ne!(lab.read("old"), b"mine");
}

#[test]
fn bench_shows_control_characters_of_a_name() {
    let lab = Lab::new();
    let name = "a\u{1b}[31m\nb";
    lab.volume(name);
    let output = lab.run(&["bench", name, "-d", "pass", "--", "rw=read", "size=4k"]);
    let said = text(&output.stdout);
    assert!(said.contains("a\\u{1b}[31m\\nb"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
}

#[test]
fn dump_that_cannot_be_written_names_its_output() {
    let lab = Lab::new();
    lab.volume("vol");
    let dump = ["dump", "vol", "-d", "pass", "-o", "/dev/full"];
    assert!(lab.refused(&dump, 1).contains("cannot write /dev/full: No space left"));
    let mut to_stdout = lab.blockyard(&dump[..4]);
    to_stdout.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let said = text(&to_stdout.output().unwrap().stderr);
    assert!(said.contains("cannot write to standard output: No space left"), "{said}");
}

#[test]
fn dump_is_private_and_overwrites_neither_unasked_nor_what_is_in_use() {
    let lab = Lab::new();
    lab.volume("vol");
    let served = lab.volume("served");
    let before = fs::read(&served).unwrap();
    fs::set_permissions(lab.write("out", "mine"), fs::Permissions::from_mode(0o644)).unwrap();
    let dump = |to| ["dump", "vol", "-d", "pass", "-o", to, "--force"];
    assert!(lab.refused(&dump("out")[..6], 5).contains("--force"));
    assert_eq!(lab.read("out"), b"mine");
    lab.ok(&dump("out"));
    assert_eq!(lab.read("out").len() as u64, lab.path("out").metadata().unwrap().len());
    assert_eq!(lab.path("out").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    for used in ["vol", "pass"] {
        assert!(lab.refused(&dump(used), 5).contains("in use"), "{used}");
    }
    let server = lab.serve(&["served", "-d", "pass", "--socket", "s"]);
    assert!(lab.refused(&dump("served"), 5).contains("in use"));
    assert!(server.stop(Signal::TERM).success());
    assert!(fs::read(&served).unwrap() == before);
    // The files of a table are known only after the volume is open.
    let table = format!("0 8 linear {} 0\n", lab.write("data", [1; 4096]).display());
    lab.write("table", table);
    let onto_itself = ["dump", "--table", "table", "-o", "data", "--force"];
    assert!(lab.refused(&onto_itself, 5).contains("in use"));
    assert_eq!(lab.read("data"), [1; 4096]);
}

#[test]
fn every_command_keeps_a_file_that_is_there_until_it_is_told_otherwise() {
    let lab = Lab::new();
    lab.write("data", [7; 1 << 16]);
    lab.volume("vol");
    let job = ["--", "rw=read", "bs=4k", "size=64k"];
    let bench = ["bench", "--raw", "data", "--trace", "t.trace"];
    lab.ok(&[&bench[..], &job].concat());
    fs::write(
        lab.path("run.json"),
        lab.ok(&[&["bench", "--raw", "data", "--json"][..], &job].concat()).stdout,
    )
    .unwrap();
    let logged = ["--", "rw=read", "bs=4k", "size=64k", "write_bw_log=old"];
    let commands: &[(&str, &[&str], &[&str])] = &[
        ("old", &["bench", "--raw", "data", "--html", "old"], &job),
        ("old", &["bench", "--raw", "data", "--trace", "old"], &job),
        ("old_bw.1.log", &["bench", "--raw", "data"], &logged),
        ("old", &["report", "run.json", "-o", "old"], &[]),
        ("old", &["trace", "convert", "t.trace", "-o", "old"], &[]),
        ("old", &["lab", "report", "deadline-2009", "-o", "old"], &[]),
        ("old", &["lab", "fit", "deadline-2009", "-o", "old"], &[]),
        ("old", &["replay", "t.trace", "--lab", "deadline-2009", "--output", "old"], &[]),
        ("old", &["tune", "vol", "-w", "lone", "-O", "old"], &[]),
        ("old", &["tune", "--raw", "data", "-w", "lone", "--html", "old"], &[]),
    ];
    for (name, command, behind) in commands {
        lab.write(name, "mine");
        let said = lab.refused(&[*command, *behind].concat(), 5);
        assert!(said.contains(name) && said.contains("--force"), "{command:?}: {said}");
        assert_eq!(text(&lab.read(name)), "mine", "{command:?}");
        // The simulator and tune take minutes.
        if !["lab", "tune", "replay"].contains(&command[0]) {
            lab.ok(&[*command, &["--force"], *behind].concat());
            assert_ne!(text(&lab.read(name)), "mine", "{command:?}");
        }
    }
    // No option permits overwriting an input.
    for command in [
        &["report", "run.json", "-o", "run.json", "--force"][..],
        &["trace", "convert", "t.trace", "-o", "t.trace", "--force"],
        &["bench", "--raw", "data", "--html", "data", "--force", "--", "rw=read", "bs=4k"],
    ] {
        assert!(lab.refused(command, 5).contains("in use"), "{command:?}");
    }
    assert_eq!(lab.read("data"), [7; 1 << 16]);
}
