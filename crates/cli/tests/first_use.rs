//! Exports that are opened when a client asks for them, and closed when they have none.

mod lab;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;

use lab::nbd::{Nbd, greeted};
use lab::{Lab, PASSPHRASE, SMALL_LEN_BYTES, Server, noise, text};
use rustix::process::Signal;
use serde_json::Value;

/// Settings of every server. New exports lie in its folder.
const HEAD: &str = "socket = 's'\ncontrol = 'c'\nsandbox_allow = ['.']\n";
const SERVE: [&str; 3] = ["serve", "--config", "c.toml"];

/// An export of a volume with the same name that is opened at its first use.
fn export(name: &str, more: &str) -> String {
    format!(
        "[exports.{name}]\nvolume = '{name}'\nopen = 'first-use'\nkey_file = '{name}.key'\n{more}\n"
    )
}

fn configure(lab: &Lab, exports: &[String]) {
    lab.write("c.toml", format!("{HEAD}{}", exports.concat()));
}

/// A lab with volumes of these names, each with a key file.
fn with_volumes(names: &[&str]) -> Lab {
    let lab = Lab::new();
    for name in names {
        lab.volume(name);
        lab.write(&format!("{name}.key"), PASSPHRASE);
    }
    lab
}

fn serve(lab: &Lab, exports: &[String]) -> Server {
    configure(lab, exports);
    Server::start(lab.blockyard(&SERVE))
}

/// Names of the open exports.
fn open(lab: &Lab) -> Vec<String> {
    let status: Value = serde_json::from_slice(&lab.ok(&["status", "--json", "c"]).stdout).unwrap();
    let devices = status["devices"].as_array().unwrap();
    devices.iter().map(|device| device["exports"][0].as_str().unwrap().to_owned()).collect()
}

fn opens(lines: &[String], name: &str) -> usize {
    let start = format!("blockyard: export {name:?} was opened in ");
    lines.iter().filter(|line| line.starts_with(&start)).count()
}

#[test]
fn export_is_listed_closed_and_is_opened_by_its_first_client_only() {
    let lab = with_volumes(&["a", "b"]);
    let server = serve(&lab, &[export("a", ""), export("b", "")]);
    assert!(open(&lab).is_empty());
    let socket = lab.path("s");
    let mut first = Nbd::open_export(&socket, "a");
    assert_eq!(first.write(0, &noise(4096, 1)), 0);
    let mut second = Nbd::open_export(&socket, "a");
    assert_eq!(second.read(0, 4096), noise(4096, 1));
    assert_eq!(open(&lab), ["a"]);
    // It stays open without `idle_close`.
    drop((first, second));
    assert_eq!(Nbd::open_export(&socket, "a").read(0, 4096), noise(4096, 1));
    let lines = server.stop_and_read(Signal::TERM);
    assert_eq!((opens(&lines, "a"), opens(&lines, "b")), (1, 0), "{lines:?}");
    let opened = lines.iter().find(|line| line.contains("was opened")).unwrap();
    assert!(opened.contains("with its key_file: ") && opened.contains("aes-xts"), "{opened}");
}

#[test]
fn clients_that_come_at_once_share_one_opening() {
    let lab = with_volumes(&["a", "b"]);
    let aliased = export("a", "aliases = { other = 'idle' }");
    let server = serve(&lab, &[aliased, export("b", "")]);
    let socket = lab.path("s");
    thread::scope(|scope| {
        for number in 0..24 {
            let socket = &socket;
            let name = ["a", "other", "b"][number % 3];
            scope.spawn(move || assert_eq!(Nbd::open_export(socket, name).read(0, 512).len(), 512));
        }
    });
    let lines = server.stop_and_read(Signal::TERM);
    assert_eq!((opens(&lines, "a"), opens(&lines, "b")), (1, 1), "{lines:?}");
}

#[test]
fn export_that_does_not_open_is_refused_with_a_reason_in_the_log_and_tried_again() {
    let lab = with_volumes(&["a", "b"]);
    lab.write("a.key", "wrong");
    let mut server = serve(&lab, &[export("a", ""), export("b", "")]);
    let socket = lab.path("s");
    assert!(!Nbd::can_open(&socket, "a"));
    server.wait_for("blockyard: export \"a\" cannot be opened: ");
    // Others are not affected, and the next client tries it again.
    assert!(Nbd::can_open(&socket, "b"));
    lab.write("a.key", PASSPHRASE);
    assert!(Nbd::can_open(&socket, "a"));
    fs::remove_file(lab.path("a.key")).unwrap();
    assert!(Nbd::can_open(&socket, "a"), "it is open");
}

#[test]
fn idle_export_is_flushed_and_closed_and_asks_for_its_key_again() {
    let lab = with_volumes(&["a"]);
    let mut server = serve(&lab, &[export("a", "idle_close = 1")]);
    let socket = lab.path("s");
    let mut client = Nbd::open_export(&socket, "a");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    drop(client);
    server.wait_for("blockyard: export \"a\" is closed after 1 s without a client");
    assert!(open(&lab).is_empty());
    // Another process may write: the lock of the image is free.
    let words = ["dump", "a", "--key-file", "a.key", "--output", "plain"];
    lab.ok(&words);
    assert_eq!(lab.read("plain")[..4096], noise(4096, 1));
    let other = lab.serve(&["a", "--key-file", "a.key", "--socket", "other"]);
    assert!(!Nbd::can_open(&socket, "a"), "the other server has the volume");
    server.wait_for("blockyard: export \"a\" cannot be opened: ");
    assert!(other.stop(Signal::TERM).success());
    lab.write("a.key", "wrong");
    assert!(!Nbd::can_open(&socket, "a"), "no key is kept");
    lab.write("a.key", PASSPHRASE);
    let mut client = Nbd::open_export(&socket, "a");
    assert_eq!(client.read(0, 4096), noise(4096, 1));
    assert!(server.stop(Signal::TERM).success());
}

/// The list that it was shown has an open export.
#[test]
fn client_that_connected_before_the_close_opens_the_export_after_it() {
    let lab = with_volumes(&["a"]);
    let mut server = serve(&lab, &[export("a", "idle_close = 1")]);
    let socket = lab.path("s");
    let first = Nbd::open_export(&socket, "a");
    let second = greeted(&socket);
    drop(first);
    server.wait_for("blockyard: export \"a\" is closed after 1 s without a client");
    assert_eq!(Nbd::of_greeted(second, "a").read(0, 512).len(), 512);
}

#[test]
fn suspended_export_is_not_closed() {
    let lab = with_volumes(&["a", "b"]);
    let mut server = serve(&lab, &[export("a", "idle_close = 1"), export("b", "idle_close = 1")]);
    let socket = lab.path("s");
    assert!(Nbd::can_open(&socket, "a"));
    lab.ok(&["suspend", "c", "--export", "a"]);
    assert!(Nbd::can_open(&socket, "b"));
    server.wait_for("blockyard: export \"b\" is closed after 1 s without a client");
    assert_eq!(open(&lab), ["a"]);
    lab.ok(&["resume", "c", "--export", "a"]);
    server.wait_for("blockyard: export \"a\" is closed after 1 s without a client");
}

#[test]
fn client_keeps_its_export_open_and_a_silent_one_does_not() {
    let lab = with_volumes(&["a", "b"]);
    let mut server = serve(&lab, &[export("a", "idle_close = 1"), export("b", "idle_close = 1")]);
    let socket = lab.path("s");
    let mut client = Nbd::open_export(&socket, "a");
    // It negotiates nothing.
    let _silent = UnixStream::connect(&socket).unwrap();
    assert!(Nbd::can_open(&socket, "b"));
    server.wait_for("blockyard: export \"b\" is closed after 1 s without a client");
    assert_eq!(open(&lab), ["a"]);
    assert_eq!(client.read(0, 512).len(), 512);
}

#[test]
fn reload_adds_changes_and_removes_closed_exports() {
    let lab = with_volumes(&["a", "b"]);
    let server = serve(&lab, &[export("a", "")]);
    let socket = lab.path("s");
    let mut client = Nbd::open_export(&socket, "a");
    assert!(!Nbd::can_open(&socket, "b"));
    configure(&lab, &[export("a", ""), export("b", "")]);
    let said = text(&lab.ok(&["reload", "c"]).stdout);
    assert!(said.contains("added") && !said.contains("replaced"), "{said}");
    assert_eq!(open(&lab), ["a"]);
    assert_eq!(client.read(0, 512).len(), 512, "its connection stays");
    assert!(Nbd::can_open(&socket, "b"));
    // Other settings close an open export; the next client opens it with them.
    configure(&lab, &[export("a", "read_only = true"), export("b", "")]);
    lab.ok(&["reload", "c"]);
    assert_eq!(open(&lab), ["b"]);
    assert_ne!(Nbd::open_export(&socket, "a").write(0, &[1; 512]), 0);
    configure(&lab, &[export("b", "")]);
    lab.ok(&["reload", "c"]);
    assert!(!Nbd::can_open(&socket, "a"));
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn forgotten_export_loses_nothing_and_asks_for_its_key_again() {
    let lab = with_volumes(&["a", "b"]);
    let mut server = serve(&lab, &[export("a", ""), export("b", "").replace("first-use", "start")]);
    let socket = lab.path("s");
    let mut client = Nbd::open_export(&socket, "a");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    lab.ok(&["forget", "c", "--export", "a"]);
    server.wait_for("blockyard: export \"a\" is closed on request");
    assert_eq!(client.end(), 0, "it is disconnected");
    assert_eq!(open(&lab), ["b"]);
    lab.write("a.key", "wrong");
    assert!(!Nbd::can_open(&socket, "a"));
    lab.write("a.key", PASSPHRASE);
    assert_eq!(Nbd::open_export(&socket, "a").read(0, 4096), noise(4096, 1));
    lab.ok(&["forget", "c", "--export", "a"]);
    // A closed one is no error: its key is not there.
    lab.ok(&["forget", "c", "--export", "a"]);
    let error = lab.refused(&["forget", "c", "--export", "b"], 1);
    assert!(error.contains("opens with the server"), "{error}");
    let error = lab.refused(&["forget", "c", "--export", "none"], 1);
    assert!(error.contains("there is no export \"none\""), "{error}");
}

/// The process outside of the sandbox starts one program at a time.
#[test]
fn key_commands_of_many_exports_run_one_after_another() {
    let names = ["a", "b", "c1", "d"];
    let lab = with_volumes(&names);
    // Nothing that the server could write: the command is refused otherwise.
    let head = HEAD.replace("sandbox_allow = ['.']\n", "");
    let export = |name: &str| {
        let file = lab.path(&format!("{name}.key")).display().to_string();
        format!(
            "[exports.{name}]\nvolume = '{name}'\nopen = 'first-use'\nkey_command = 'cat {file}'\n"
        )
    };
    lab.write("c.toml", format!("{head}{}", names.map(export).concat()));
    let server = Server::start(lab.blockyard(&SERVE));
    let socket = lab.path("s");
    thread::scope(|scope| {
        for name in names {
            let socket = &socket;
            scope.spawn(move || assert!(Nbd::can_open(socket, name), "{name}"));
        }
    });
    let lines = server.stop_and_read(Signal::TERM);
    let by_command = lines.iter().filter(|line| line.contains("with its key_command: "));
    assert_eq!(by_command.count(), names.len(), "{lines:?}");
}

/// A derivation takes the memory that its header says, which may be 1 GiB.
#[test]
fn derivations_of_many_exports_run_one_after_another() {
    const MEMORY_KIB: u64 = 48 << 10;
    let names = ["a", "b", "c1", "d"];
    let lab = Lab::new();
    for name in names {
        lab.write(&format!("{name}.key"), PASSPHRASE);
        let memory = MEMORY_KIB.to_string();
        let cost = ["--pbkdf=argon2id", "--pbkdf-force-iterations=4", "--pbkdf-memory", &memory];
        let words = ["format", name, "--size", "17M", "-q", "--key-file", "pass"];
        lab.ok(&[&words[..], &cost].concat());
    }
    let server = serve(&lab, &names.map(|name| export(name, "")));
    let socket = lab.path("s");
    thread::scope(|scope| {
        for name in names {
            let socket = &socket;
            scope.spawn(move || assert!(Nbd::can_open(socket, name), "{name}"));
        }
    });
    let most_kib = server.peak_kib();
    assert!((MEMORY_KIB..2 * MEMORY_KIB).contains(&most_kib), "{most_kib} KiB");
}

#[test]
fn table_is_read_at_the_first_use_and_its_disks_are_in_the_sandbox() {
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk");
    fs::write(&disk, noise(1 << 20, 2)).unwrap();
    lab.write("t", format!("0 2048 linear {} 0\n", disk.display()));
    let config = "socket = 's'\ncontrol = 'c'\n\
                  [exports.t]\ntable = 't'\nopen = 'first-use'\nidle_close = 1\n";
    lab.write("c.toml", config);
    let mut server = Server::start(lab.blockyard(&SERVE));
    assert!(open(&lab).is_empty());
    let socket = lab.path("s");
    let mut client = Nbd::open_export(&socket, "t");
    assert_eq!(client.read(0, 1 << 20), noise(1 << 20, 2));
    assert_eq!(client.write(4096, &noise(4096, 3)), 0);
    assert_eq!(open(&lab), ["t"]);
    drop(client);
    server.wait_for_line("is closed after");
    // The next opening reads the new text.
    lab.write("t", format!("0 1024 linear {} 1024\n", disk.display()));
    let mut client = Nbd::open_export(&socket, "t");
    assert_eq!(client.read(0, 512 << 10), noise(1 << 20, 2)[512 << 10..]);
    drop(client);
    let lines = server.stop_and_read(Signal::TERM);
    assert!(lines.iter().any(|line| line.contains("with its table: ")), "{lines:?}");
    assert_eq!(fs::read(&disk).unwrap()[4096..8192], noise(4096, 3));
}

#[test]
fn table_that_cannot_be_read_stops_no_other_export() {
    let lab = with_volumes(&["a"]);
    let table = "[exports.t]\ntable = 't'\nopen = 'first-use'\n";
    let pipe = || {
        let mut make = Command::new("mkfifo");
        assert!(make.arg(lab.path("t")).status().unwrap().success());
    };
    let broken = || drop(lab.write("t", "0 nothing\n"));
    for (make, problem) in [
        (None::<&dyn Fn()>, "No such file"),
        (Some(&broken), "t: "),
        (Some(&pipe), "no regular file"),
    ] {
        let _ = fs::remove_file(lab.path("t"));
        make.into_iter().for_each(|make| make());
        let server = serve(&lab, &[export("a", ""), table.into()]);
        assert!(Nbd::can_open(&lab.path("s"), "a"));
        let lines = server.stop_and_read(Signal::TERM);
        let warned =
            |line: &String| line.contains("warning: exports.t: ") && line.contains(problem);
        assert!(lines.iter().any(warned), "{problem}: {lines:?}");
    }
}

#[test]
fn table_has_new_settings_by_a_reload_if_the_sandbox_permits_its_disks() {
    let lab = Lab::new();
    let folder = tempfile::tempdir().unwrap();
    let [disk, other] = ["disk", "other"].map(|name| folder.path().join(name));
    for (file, seed) in [(&disk, 2), (&other, 3)] {
        fs::write(file, noise(1 << 20, seed)).unwrap();
    }
    let line = |disk: &std::path::Path| format!("0 2048 linear {} 0\n", disk.display());
    lab.write("t", line(&disk));
    let config = "socket = 's'\ncontrol = 'c'\n[exports.t]\ntable = 't'\nopen = 'first-use'\n";
    lab.write("c.toml", config);
    let server = Server::start(lab.blockyard(&SERVE));
    let socket = lab.path("s");
    drop(Nbd::open_export(&socket, "t"));
    lab.write("c.toml", format!("{config}idle_close = 600\n"));
    lab.ok(&["reload", "c"]);
    assert_eq!(Nbd::open_export(&socket, "t").read(0, 4096), noise(1 << 20, 2)[..4096]);
    // The sandbox has no right on the other disk, and says so at the reload.
    lab.write("t", line(&other));
    lab.write("c.toml", format!("{config}idle_close = 700\n"));
    let error = lab.refused(&["reload", "c"], 1);
    assert!(error.contains("sandbox") && error.contains("`sandbox_allow`"), "{error}");
    server.stop_and_read(Signal::TERM);
}

#[test]
fn opening_that_never_ends_is_not_in_the_way_of_new_settings() {
    let lab = with_volumes(&["a", "b"]);
    let pipe = lab.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let hung = export("a", "").replace("key_file = 'a.key'", "key_command = 'cat pipe'");
    configure(&lab, &[hung, export("b", "")]);
    let server = Server::start(lab.blockyard(&[&SERVE[..], &["--sandbox", "off"]].concat()));
    let socket = lab.path("s");
    thread::scope(|scope| {
        scope.spawn(|| Nbd::can_open(&socket, "a"));
        // Returns when the command has opened the pipe; it waits for the end of the pipe.
        let _waits = fs::File::options().write(true).open(&pipe).unwrap();
        configure(&lab, &[export("b", "")]);
        lab.ok(&["reload", "c"]);
        // Its own volume is in use by the opening.
        configure(&lab, &[export("b", "").replace("exports.b", "exports.a")]);
        lab.ok(&["reload", "c"]);
        assert!(Nbd::can_open(&socket, "a"));
        lab.ok(&["forget", "c", "--export", "a"]);
    });
    server.stop_and_read(Signal::TERM);
}

#[test]
fn status_names_the_closed_exports() {
    let lab = with_volumes(&["a", "b"]);
    let server = serve(&lab, &[export("a", "aliases = { other = 'idle' }"), export("b", "")]);
    let closed = || {
        let status = lab.ok(&["status", "--json", "c"]).stdout;
        let status: Value = serde_json::from_slice(&status).unwrap();
        status["closed"].as_array().unwrap().clone()
    };
    assert_eq!(closed(), ["a", "other", "b"]);
    let said = text(&lab.ok(&["status", "c"]).stdout);
    assert!(said.contains("closed exports: 3 (\"a\", \"other\", \"b\")"), "{said}");
    let client = Nbd::open_export(&lab.path("s"), "other");
    assert_eq!(closed(), ["b"]);
    let said = text(&lab.ok(&["status", "c", "--export", "b"]).stdout);
    assert!(said.contains("closed exports: 1 (\"b\")") && !said.contains("size:"), "{said}");
    for more in [&["--export", "zz"][..], &[]] {
        let error = lab.refused(&[&["suspend", "c"], more].concat(), 4);
        assert!(error.contains("\"a\", \"b\""), "{more:?}: {error}");
    }
    let error = lab.refused(&["suspend", "c", "--export", "b"], 4);
    assert!(error.contains("export \"b\" is closed"), "{error}");
    drop(client);
    configure(&lab, &[export("a", "")]);
    lab.ok(&["reload", "c"]);
    assert!(closed().iter().all(|name| name == "a"), "{:?}", closed());
    server.stop_and_read(Signal::TERM);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let lab = with_volumes(&["a"]);
    let key = "key_file = 'a.key'";
    for (settings, problem) in [
        (format!("volume = 'a'\n{key}\nidle_close = 9"), "add `open = \"first-use\"`"),
        ("volume = 'a'\nopen = 'first-use'".into(), "needs `key_file`, `key_command`"),
        ("volume = 'a'\nopen = 'first-use'\ntoken_id = 1".into(), "or `token_only`"),
        (format!("volume = 'a'\n{key}\nopen = 'first-use'\nvhost_user = 'v'"), "`vhost_user`"),
        (format!("volume = 'a'\n{key}\nopen = 'first-use'\nidle_close = 0"), "1 second to a year"),
        (
            format!("volume = 'a'\n{key}\nopen = 'first-use'\nidle_close = {}", i64::MAX),
            "1 second to a year",
        ),
        (format!("volume = 'a'\n{key}\nopen = 'later'"), "first-use"),
    ] {
        lab.write("c.toml", format!("{HEAD}[exports.a]\n{settings}\n"));
        let error = lab.refused(&SERVE, 1);
        assert!(error.contains(problem), "{settings}: {error}");
    }
}

#[test]
fn one_tenant_does_not_take_the_connections_of_another() {
    let lab = with_volumes(&["a", "b"]);
    let limited = export("a", "max_connections = 2\naliases = { other = 'idle' }");
    let mut server = serve(&lab, &[limited, export("b", "")]);
    let socket = lab.path("s");
    let mut first = Nbd::open_export(&socket, "a");
    let second = Nbd::open_export(&socket, "other");
    for name in ["a", "other"] {
        assert!(!Nbd::can_open(&socket, name));
    }
    server.wait_for("blockyard: a client is refused: export \"a\" has its 2 connections already");
    assert!(Nbd::can_open(&socket, "b"));
    assert_eq!(first.read(0, 512).len(), 512);
    drop(second);
    server.wait_for_line("has left export \"other\"");
    // The place is free when the thread has ended, which is after its line.
    while !Nbd::can_open(&socket, "a") {}
}

#[test]
fn descriptors_suffice_for_all_exports_though_the_soft_limit_is_low() {
    let names: Vec<String> = (0..24).map(|number| format!("v{number}")).collect();
    let lab = with_volumes(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let exports: Vec<String> = names.iter().map(|name| export(name, "")).collect();
    configure(&lab, &exports);
    let mut limited = Command::new("prlimit");
    limited.args(["--nofile=48:4096", "--", env!("CARGO_BIN_EXE_blockyard")]).args(SERVE);
    limited.current_dir(lab.path(""));
    let server = Server::start(limited);
    let socket = lab.path("s");
    let open: Vec<Nbd> = names.iter().map(|name| Nbd::open_export(&socket, name)).collect();
    assert_eq!(open.len(), names.len());
    drop(open);
    assert!(server.stop(Signal::TERM).success());
}

/// The list that it was shown has an open export, though that is not closed when it is idle.
#[test]
fn client_in_its_handshake_is_served_after_a_forget() {
    let lab = with_volumes(&["a"]);
    let mut server = serve(&lab, &[export("a", "")]);
    let socket = lab.path("s");
    let first = Nbd::open_export(&socket, "a");
    let second = greeted(&socket);
    lab.ok(&["forget", "c", "--export", "a"]);
    server.wait_for("blockyard: export \"a\" is closed on request");
    assert_eq!(first.end(), 0);
    assert_eq!(Nbd::of_greeted(second, "a").read(0, 512).len(), 512);
}

/// A client that has asked for more than its socket has room for, and reads nothing.
fn slow_client(lab: &Lab, name: &str) -> Nbd {
    let mut client = Nbd::open_export(&lab.path("s"), name);
    (0..SLOW_READS).for_each(|_| client.send_read(0, SMALL_LEN_BYTES as u32));
    client
}

const SLOW_READS: usize = 16;

#[test]
fn exports_are_opened_and_closed_while_a_reload_waits_for_a_client() {
    let lab = with_volumes(&["a", "b"]);
    let server = serve(&lab, &[export("a", ""), export("b", "")]);
    let socket = lab.path("s");
    let slow = slow_client(&lab, "a");
    configure(&lab, &[export("b", "")]);
    let mut reload = lab.blockyard(&["reload", "c"]).stdout(Stdio::null()).spawn().unwrap();
    while Nbd::can_open(&socket, "a") {}
    assert!(Nbd::can_open(&socket, "b"));
    lab.ok(&["forget", "c", "--export", "b"]);
    drop(slow);
    assert!(reload.wait().unwrap().success());
    let lines = server.stop_and_read(Signal::TERM);
    let place = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
    let order = ["\"b\" was opened", "\"b\" is closed on request", "was reloaded"].map(place);
    assert!(order.is_sorted(), "{lines:?}");
}

#[test]
fn close_that_waits_for_a_client_is_not_asked_for_twice() {
    let lab = with_volumes(&["a"]);
    let server = serve(&lab, &[export("a", "")]);
    let slow = slow_client(&lab, "a");
    let forget = ["forget", "c", "--export", "a"];
    let mut first = lab.blockyard(&forget).spawn().unwrap();
    while !open(&lab).is_empty() {}
    let error = lab.refused(&forget, 1);
    assert!(error.contains("is being closed already"), "{error}");
    drop(slow);
    assert!(first.wait().unwrap().success());
    lab.ok(&forget);
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn recording_has_what_a_removed_export_has_answered_at_its_end() {
    for words in [&["forget", "c", "--export", "a"][..], &["reload", "c"]] {
        let lab = with_volumes(&["a", "b"]);
        let server = serve(&lab, &[export("a", ""), export("b", "")]);
        assert!(Nbd::can_open(&lab.path("s"), "a"));
        let mut record = lab.blockyard(&["trace", "record", "c", "--export", "a", "-o", "t"]);
        let mut record = record.stderr(Stdio::piped()).spawn().unwrap();
        BufReader::new(record.stderr.take().unwrap()).read_line(&mut String::new()).unwrap();
        let slow = slow_client(&lab, "a");
        configure(&lab, &[export("b", "")]);
        let mut end = lab.blockyard(words).stdout(Stdio::null()).spawn().unwrap();
        while !open(&lab).is_empty() {}
        let bytes = slow.end() - SLOW_READS * REPLY_BYTES;
        assert_eq!(bytes, SLOW_READS * SMALL_LEN_BYTES);
        assert!(end.wait().unwrap().success());
        let summary = lab.ok(&["trace", "summary", "t", "--json"]).stdout;
        let summary: Value = serde_json::from_slice(&summary).unwrap();
        let read = &summary["ops"][0];
        assert_eq!((&read["op"], &read["bytes"]), (&"read".into(), &bytes.into()), "{words:?}");
        assert_eq!(read["not_ended"], 0, "{words:?}");
        record.kill().unwrap();
        record.wait().unwrap();
        assert!(server.stop(Signal::TERM).success());
    }
}

/// Length of a simple reply of NBD without its data.
const REPLY_BYTES: usize = 16;
