//! The configuration of a running server is read again: exports come and go, and others do not
//! notice.

mod lab;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lab::nbd::Nbd;
use lab::{Lab, PASSPHRASE, Server, is_socket, noise, text};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// An export of a volume with the same name.
fn export(name: &str, more: &str) -> String {
    format!("[exports.{name}]\nvolume = '{name}'\nkey_file = 'pass'\n{more}\n")
}

/// Settings of every server. New exports lie in its folder.
const HEAD: &str = "socket = 's'\ncontrol = 'c'\nsandbox_allow = ['.']\n";

fn configure(lab: &Lab, exports: &[String]) {
    lab.write("c.toml", format!("{HEAD}{}", exports.concat()));
}

/// Serves these exports, each with a volume of its own.
fn serve(lab: &Lab, exports: &[String]) -> Server {
    configure(lab, exports);
    Server::start(lab.blockyard(&["serve", "--config", "c.toml"]))
}

/// A lab with volumes of these names.
fn with_volumes(names: &[&str]) -> Lab {
    let lab = Lab::new();
    names.iter().for_each(|name| drop(lab.volume(name)));
    lab
}

fn reload(lab: &Lab) -> String {
    text(&lab.ok(&["reload", "c"]).stdout)
}

fn names(lab: &Lab) -> Vec<String> {
    let status: Value = serde_json::from_slice(&lab.ok(&["status", "--json", "c"]).stdout).unwrap();
    let devices = status["devices"].as_array().unwrap();
    devices.iter().map(|device| device["exports"][0].as_str().unwrap().to_owned()).collect()
}

/// Writes and reads blocks until the end; every block must have what was written last.
fn verified_load(lab: &Lab, end: &AtomicBool, rounds: &AtomicU64) {
    const BLOCK: usize = 4096;
    let mut client = Nbd::open_export(&lab.path("s"), "kept");
    let mut round = 0;
    while !end.load(Ordering::Relaxed) {
        let offset = round % 32 * BLOCK as u64;
        let bytes = noise(BLOCK, round);
        assert_eq!(client.write(offset, &bytes), 0, "round {round}");
        assert_eq!(client.read(offset, BLOCK), bytes, "round {round}");
        if round.is_multiple_of(16) {
            assert_eq!(client.flush(), 0, "round {round}");
        }
        round += 1;
        rounds.store(round, Ordering::Relaxed);
    }
}

/// Opens and closes connections until the end.
fn coming_and_going(lab: &Lab, end: &AtomicBool) {
    while !end.load(Ordering::Relaxed) {
        let mut client = Nbd::open_export(&lab.path("s"), "kept");
        let offset = 64 * 4096;
        assert_eq!(client.write(offset, &noise(4096, 1)), 0);
        assert_eq!(client.read(offset, 4096), noise(4096, 1));
    }
}

/// "Config reload under load, 100 times, 0 errors."
#[test]
fn hundred_reloads_under_load_disturb_no_client_of_an_export_that_stays() {
    let lab = with_volumes(&["kept", "other"]);
    let kept = export("kept", "");
    // The log of all these clients would fill the pipe.
    let serve = ["serve", "--config", "c.toml", "--log-level", "error"];
    configure(&lab, std::slice::from_ref(&kept));
    let server = Server::start(lab.blockyard(&serve));
    let end = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // A failed load ends the test only if the reloads end too.
        let loads = [scope.spawn(|| verified_load(&lab, &end, &rounds)), {
            scope.spawn(|| coming_and_going(&lab, &end))
        }];
        let mut seen = 0;
        for number in 0..100 {
            let all = [kept.clone(), export("other", "")];
            let is_there = number % 2 == 0;
            configure(&lab, if is_there { &all } else { &all[..1] });
            let said = lab.run(&["reload", "c"]);
            if !said.status.success() {
                end.store(true, Ordering::Relaxed);
                panic!("reload {number}: {}", text(&said.stderr));
            }
            let what = if is_there { "added" } else { "removed" };
            assert_eq!(text(&said.stdout), format!("{what} other\n"));
            // The load continues between two reloads.
            while rounds.load(Ordering::Relaxed) == seen && !loads[0].is_finished() {
                std::thread::yield_now();
            }
            seen = rounds.load(Ordering::Relaxed);
        }
        end.store(true, Ordering::Relaxed);
    });
    assert!(rounds.load(Ordering::Relaxed) >= 100);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn removed_export_answers_what_it_received_and_is_flushed_and_closed() {
    let lab = with_volumes(&["kept", "gone"]);
    // Without an end of the limit the answers would take 15 s.
    let server = serve(&lab, &[export("gone", "iops_limit = 1\nburst = '1s'"), export("kept", "")]);
    let mut client = Nbd::open_export(&lab.path("s"), "gone");
    let mut other = Nbd::open_export(&lab.path("s"), "kept");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    assert_eq!(client.flush(), 0);
    (1..16).for_each(|block| client.send_write(block * 4096, &noise(4096, block + 1)));
    configure(&lab, &[export("kept", "")]);
    let start = Instant::now();
    assert_eq!(reload(&lab), "removed gone\n");
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    (1..16).for_each(|block| assert_eq!(client.reply(), 0, "block {block}"));
    assert_eq!(client.end(), 0, "the connection ends behind the replies");
    assert!(!Nbd::can_open(&lab.path("s"), "gone"));
    assert_eq!(names(&lab), ["kept"]);
    // The server has closed it, with all of its data.
    lab.ok(&["dump", "gone", "-d", "pass", "-o", "plain"]);
    let plain = lab.read("plain");
    (0..16).for_each(|block: usize| {
        assert!(plain[block * 4096..][..4096] == noise(4096, block as u64 + 1), "block {block}");
    });
    assert_eq!(other.write(0, &noise(4096, 9)), 0);
    assert_eq!(other.read(0, 4096), noise(4096, 9));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn held_requests_of_a_removed_export_start_although_nothing_controls_it() {
    let lab = with_volumes(&["kept", "gone"]);
    let config = |exports: &[String]| {
        lab.write("c.toml", format!("socket = 's'\nsandbox_allow = ['.']\n{}", exports.concat()))
    };
    config(&[export("gone", "iops_limit = 1\nburst = '1s'"), export("kept", "")]);
    let mut server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    let mut client = Nbd::open_export(&lab.path("s"), "gone");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    (1..16).for_each(|block| client.send_write(block * 4096, &noise(4096, block + 1)));
    config(&[export("kept", "")]);
    let start = Instant::now();
    server.send(Signal::HUP);
    (1..16).for_each(|block| assert_eq!(client.reply(), 0, "block {block}"));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert_eq!(client.end(), 0);
    server.wait_for_line("removed \"gone\"");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn mistake_in_the_configuration_changes_nothing() {
    let lab = with_volumes(&["kept", "gone", "new"]);
    let before = [export("gone", ""), export("kept", "")];
    let mut server = serve(&lab, &before);
    let mut client = Nbd::open_export(&lab.path("s"), "gone");
    lab.write("wrong", "wrong");
    for (exports, word) in [
        ("[exports.new]\nvolume = 'new'\nkey_file = 'pass'\nshape = 'round'\n", "shape"),
        ("[exports.new\n", "c.toml:4"),
        ("", "exports"),
        ("[exports.new]\nvolume = 'none'\nkey_file = 'pass'\n", "exports.new: "),
        ("[exports.new]\nvolume = 'new'\nkey_file = 'wrong'\n", "exports.new: "),
        ("[exports.new]\nvolume = 'new'\n", "key_file"),
        ("[exports.new]\nvolume = 'new'\nkey_fd = 0\n", "key_file"),
        (
            "[exports.new]\nvolume = 'new'\nkey_file = 'pass'\nvhost_user = 'no/folder'\n",
            "`vhost_user`",
        ),
        ("[exports.new]\nvolume = 'new'\nkey_file = 'pass'\nublk = 3\n", "`ublk`"),
    ] {
        lab.write("c.toml", format!("{HEAD}{exports}"));
        let said = lab.refused(&["reload", "c"], 1);
        assert!(said.contains(word), "{exports}: {said}");
        assert!(server.wait_for_line("was not reloaded: ").contains(word));
        assert_eq!(names(&lab), ["gone", "kept"], "{exports}");
        assert_eq!(client.write(0, &noise(4096, 1)), 0, "{exports}");
        assert!(Nbd::can_open(&lab.path("s"), "kept"));
    }
    // A volume that was opened in vain is closed again.
    lab.ok(&["dump", "new", "-d", "pass", "-o", "plain"]);
    fs::remove_file(lab.path("c.toml")).unwrap();
    server.send(Signal::HUP);
    assert!(server.wait_for_line("was not reloaded: ").contains("c.toml"));
    assert_eq!(client.read(0, 4096), noise(4096, 1));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn new_export_outside_of_the_permitted_places_is_named_with_the_remedy() {
    let lab = with_volumes(&["one", "two"]);
    let head = "socket = 's'\ncontrol = 'c'\n";
    lab.write("c.toml", format!("{head}{}", export("one", "")));
    let server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    let mut client = Nbd::open_export(&lab.path("s"), "one");
    lab.write("c.toml", format!("{head}{}{}", export("one", ""), export("two", "")));
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("two: ") && said.contains("`sandbox_allow`"), "{said}");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    // A program that was not named at the start.
    let command = "[exports.two]\nvolume = 'two'\nkey_command = 'cat pass'\n";
    lab.write("c.toml", format!("{head}{}{command}", export("one", "")));
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("`key_command`") && said.contains("after a restart"), "{said}");
    assert_eq!(client.read(0, 4096), noise(4096, 1));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn export_with_other_settings_is_opened_again_and_its_name_stays() {
    let lab = with_volumes(&["vol", "kept"]);
    let mut server = serve(&lab, &[export("kept", ""), export("vol", "")]);
    let mut client = Nbd::open_export(&lab.path("s"), "vol");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    let read_only = export("vol", "read_only = true\naliases = { again = 'idle' }");
    configure(&lab, &[export("kept", ""), read_only]);
    assert_eq!(reload(&lab), "replaced vol\n");
    assert_eq!(client.end(), 0);
    for name in ["vol", "again"] {
        let mut client = Nbd::open_export(&lab.path("s"), name);
        assert_ne!(client.write(0, &noise(4096, 2)), 0);
        assert_eq!(client.read(0, 4096), noise(4096, 1));
    }
    // Without its new settings it is served as before.
    configure(&lab, &[export("kept", ""), export("vol", "key_slot = 7")]);
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("exports.vol: ") && said.contains("served as before"), "{said}");
    assert_eq!(Nbd::open_export(&lab.path("s"), "again").read(0, 4096), noise(4096, 1));
    configure(&lab, &[export("kept", ""), export("vol", "vhost_user = 'disk'")]);
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("`vhost_user`") && said.contains("--sandbox off"), "{said}");
    server.wait_for_line("was reloaded only in part: exports.vol: ");
    assert_eq!(Nbd::open_export(&lab.path("s"), "again").read(0, 4096), noise(4096, 1));
    // Under another name, with the file of one that leaves.
    let renamed = export("vol", "").replace("[exports.vol]", "[exports.name]");
    configure(&lab, &[export("kept", ""), renamed]);
    assert_eq!(reload(&lab), "added name\nremoved vol\n");
    assert_eq!(Nbd::open_export(&lab.path("s"), "name").write(0, &noise(4096, 3)), 0);
    server.wait_for_line("added \"name\"; removed \"vol\"");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn limits_change_for_open_connections() {
    let lab = with_volumes(&["one", "two"]);
    let limit = "limit_group = 'slow'";
    let all = |one: &str, two: &str, group: &str| {
        lab.write("c.toml", format!("{HEAD}{}{}{group}", export("one", one), export("two", two)));
    };
    let group = "[limit_groups.slow]\nbps_limit = 1\n";
    all(limit, limit, group);
    let server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    let mut one = Nbd::open_export(&lab.path("s"), "one");
    let mut two = Nbd::open_export(&lab.path("s"), "two");
    // The first write takes the bucket of both into a debt of an hour.
    assert_eq!(one.write(0, &noise(4096, 1)), 0);
    two.send_write(0, &noise(4096, 2));
    all(limit, "", group);
    assert_eq!(reload(&lab), "limited two\n");
    assert_eq!(two.reply(), 0, "it is in the group no more");
    one.send_write(4096, &noise(4096, 3));
    all("bps_limit = '1G'", "", "");
    assert_eq!(reload(&lab), "limited one\n");
    assert_eq!(one.reply(), 0);
    assert_eq!(one.read(4096, 4096), noise(4096, 3), "its connection has stayed");
    // Limits of the control socket stay where the configuration stays.
    lab.ok(&["limit", "c", "--export", "two", "--iops-limit", "77"]);
    assert_eq!(reload(&lab), "");
    assert!(text(&lab.ok(&["status", "c"]).stdout).contains("77 requests/s for \"two\""));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn sockets_of_virtual_machines_come_and_go() {
    let lab = with_volumes(&["one", "two"]);
    // The sandbox permits no new socket.
    configure(&lab, &[export("one", "vhost_user = 'v'")]);
    let words = ["serve", "--config", "c.toml", "--sandbox", "off"];
    let server = Server::start(lab.blockyard(&words));
    assert!(is_socket(&lab.path("v")));
    // The socket changes its export.
    configure(&lab, &[export("one", "vhost_user = 'w'"), export("two", "vhost_user = 'v'")]);
    assert_eq!(reload(&lab), "added two\nreplaced one\n");
    assert!(is_socket(&lab.path("v")) && is_socket(&lab.path("w")));
    configure(&lab, &[export("two", "")]);
    assert_eq!(reload(&lab), "removed one\nreplaced two\n");
    assert!(!lab.path("v").exists() && !lab.path("w").exists());
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn recording_of_an_export_that_stays_goes_on_and_is_complete_at_the_end_of_the_server() {
    let lab = with_volumes(&["kept", "other"]);
    let server = serve(&lab, &[export("kept", "")]);
    // A recording goes on without the command that has started it.
    let mut record = lab.blockyard(&["trace", "record", "c", "--export", "kept", "-o", "t"]);
    let mut record = record.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(record.stderr.take().unwrap());
    said.read_line(&mut String::new()).unwrap();
    record.kill().unwrap();
    record.wait().unwrap();
    configure(&lab, &[export("kept", ""), export("other", "")]);
    assert_eq!(reload(&lab), "added other\n");
    assert_eq!(Nbd::open_export(&lab.path("s"), "kept").write(0, &noise(4096, 1)), 0);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let summary = lab.ok(&["trace", "summary", "t"]);
    assert!(text(&summary.stdout).contains("write"), "{}", text(&summary.stdout));
    assert!(summary.stderr.is_empty(), "{}", text(&summary.stderr));
}

#[test]
fn server_ends_during_a_reload_and_so_does_the_command_of_a_key() {
    let lab = with_volumes(&["vol", "new"]);
    let new = "[exports.new]\nvolume = 'new'\nkey_command = \"sh -c 'exec 3>started; sleep 999 & \
               wait'\"\n";
    let path = lab.path("started");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for by_signal in [false, true] {
        configure(&lab, &[export("vol", "")]);
        let words = ["serve", "--config", "c.toml", "--sandbox", "off"];
        let server = Server::start(lab.blockyard(&words));
        configure(&lab, &[export("vol", ""), new.into()]);
        let client = if by_signal {
            server.send(Signal::HUP);
            None
        } else {
            Some(lab.blockyard(&["reload", "c"]).stderr(Stdio::piped()).spawn().unwrap())
        };
        // Waits for the command.
        let started = fs::File::open(&path).unwrap();
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        // All its processes have ended.
        let mut ends = [PollFd::new(&started, PollFlags::IN)];
        assert_eq!(poll(&mut ends, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })), Ok(1));
        assert!(ends[0].revents().contains(PollFlags::HUP), "{:?}", ends[0].revents());
        let said = client.map(|client| text(&client.wait_with_output().unwrap().stderr));
        assert!(said.is_none_or(|said| said.contains("this process ends")));
    }
}

#[test]
fn recording_of_a_removed_export_is_complete_and_its_command_says_so() {
    let lab = with_volumes(&["gone", "kept"]);
    let server = serve(&lab, &[export("gone", ""), export("kept", "")]);
    for (after, what) in [
        (vec![export("kept", "")], "the export was removed meanwhile"),
        (vec![export("gone", "read_only = true"), export("kept", "")], "was replaced meanwhile"),
    ] {
        configure(&lab, &[export("gone", ""), export("kept", "")]);
        lab.ok(&["reload", "c"]);
        let words = ["trace", "record", "c", "--export", "gone", "-o", "t", "--force"];
        let mut record = lab.blockyard(&words).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(record.stderr.take().unwrap());
        said.read_line(&mut String::new()).unwrap();
        assert_eq!(Nbd::open_export(&lab.path("s"), "gone").write(0, &noise(4096, 1)), 0);
        configure(&lab, &after);
        lab.ok(&["reload", "c"]);
        kill_process(Pid::from_child(&record), Signal::INT).unwrap();
        let mut error = String::new();
        said.read_line(&mut error).unwrap();
        assert!(error.contains(what) && error.contains("t has what was recorded"), "{error}");
        assert_eq!(record.wait().unwrap().code(), Some(1));
        assert!(text(&lab.ok(&["trace", "summary", "t"]).stdout).contains("write"));
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn export_that_cannot_be_opened_is_named_at_the_start_too() {
    let lab = with_volumes(&["one", "two"]);
    lab.write("wrong", "wrong");
    configure(&lab, &[export("one", ""), export("two", "").replace("'pass'", "'wrong'")]);
    let said = lab.refused(&["serve", "--config", "c.toml"], 2);
    assert!(said.contains("exports.two: "), "{said}");
    configure(&lab, &[export("one", ""), export("two", "").replace("'pass'", "'none'")]);
    let said = lab.refused(&["serve", "--config", "c.toml"], 1);
    assert!(said.contains("exports.two: "), "{said}");
}

/// The sandbox permits the folder that was there at the start.
#[test]
fn what_the_sandbox_hinders_at_a_reload_is_said_with_a_remedy() {
    let lab = with_volumes(&["vol", "new"]);
    lab.ok(&["tls", "init", "pki", "--host", "127.0.0.1"]);
    let head = "listen = '127.0.0.1:0'\ncontrol = 'c'\ntls_certificates = 'pki'\n";
    let config = |more: &str| lab.write("c.toml", format!("{head}{}{more}", export("vol", "")));
    config("");
    let mut server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    // It answers when the sandbox has begun.
    lab.ok(&["status", "c"]);
    fs::rename(lab.path("pki"), lab.path("old")).unwrap();
    lab.ok(&["tls", "init", "pki", "--host", "127.0.0.1"]);
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("pki: the sandbox of the running server"), "{said}");
    assert!(said.contains("`sandbox_allow`"), "{said}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    // A volume without a key, whose token needs a program.
    let token = concat!(
        r#"{"type":"clevis","keyslots":["0"],"jwe":{"ciphertext":"YWI","encrypted_key":"","#,
        r#""iv":"YWI","protected":"eyJjbGV2aXMiOnsicGluIjoidHBtMiIsInRwbTIiOnt9fX0","tag":"YWI"}}"#
    );
    lab.write("token", token);
    lab.ok(&["token", "import", "new", "--json-file", "token"]);
    let head = "socket = 's'\ncontrol = 'c'\nsandbox_allow = ['.']\n";
    lab.write("c.toml", format!("{head}{}", export("vol", "")));
    server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    lab.write("c.toml", format!("{head}{}[exports.new]\nvolume = 'new'\n", export("vol", "")));
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("exports.new: ") && said.contains("permits no tokens"), "{said}");
    server.wait_for_line("the sandbox of this process permits no programs");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

/// The broker starts it, and never another.
#[test]
fn key_command_of_the_start_runs_at_a_reload_in_the_sandbox() {
    let lab = with_volumes(&["vol", "other"]);
    let of = |name: &str, command: &str, more: &str| {
        format!("[exports.{name}]\nvolume = '{name}'\nkey_command = \"{command}\"\n{more}\n")
    };
    let script = "sh -c 'echo run >> runs; test -e wait && cat wait; cat pass; exit `cat code`'";
    lab.write("code", "0");
    configure(&lab, &[of("vol", script, "")]);
    let server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    // For other settings, and for another volume.
    configure(&lab, &[of("vol", script, "read_only = true"), of("other", script, "")]);
    assert_eq!(reload(&lab), "added other\nreplaced vol\n");
    assert_eq!(lab.read("runs"), b"run\nrun\nrun\n");
    assert_eq!(Nbd::open_export(&lab.path("s"), "other").write(0, &noise(4096, 1)), 0);
    // It fails.
    lab.write("code", "3");
    configure(&lab, &[of("vol", script, ""), of("other", script, "")]);
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("command sh: it ended with exit code 3"), "{said}");
    // Another command is refused before an export is closed.
    configure(&lab, &[of("vol", "cat pass", ""), of("other", script, "")]);
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("exports.vol: ") && said.contains("`key_command`"), "{said}");
    // The server ends while it runs.
    let path = lab.path("wait");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    configure(&lab, &[of("other", script, "read_only = true")]);
    server.send(Signal::HUP);
    let started = fs::File::options().write(true).open(&path).unwrap();
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    // No reader of the pipe is left, soon: a killed process closes its files as it ends.
    let mut ends = [PollFd::new(&started, PollFlags::empty())];
    assert_eq!(poll(&mut ends, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })), Ok(1));
    assert!(ends[0].revents().contains(PollFlags::ERR), "{:?}", ends[0].revents());
}

/// The broker would start a program that a server in the hands of a client has written.
#[test]
fn key_command_in_a_place_that_the_server_may_write_is_refused() {
    let lab = with_volumes(&["vol"]);
    lab.write("print", "#!/bin/sh\nexec cat pass\n");
    fs::set_permissions(lab.path("print"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/bin/cat", lab.path("link")).unwrap();
    fs::create_dir(lab.path("inner")).unwrap();
    let export =
        |command: &str| format!("[exports.vol]\nvolume = 'vol'\nkey_command = \"{command}\"\n");
    for command in ["./print", "sh print", "./link pass", "inner/../print"] {
        configure(&lab, &[export(command)]);
        let said = lab.refused(&["serve", "--config", "c.toml"], 1);
        assert!(said.contains("exports.vol: key_command: "), "{command}: {said}");
    }
    // The volume is also writable, but nothing beside it is.
    lab.write("c.toml", format!("socket = 's'\ncontrol = 'c'\n{}", export("./print")));
    let server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn reload_beside_another_one_is_refused_and_other_commands_are_answered() {
    let lab = with_volumes(&["vol", "new"]);
    let new = "[exports.new]\nvolume = 'new'\nkey_command = \"sh -c 'exec 3>started; \
               read line <go; cat pass'\"\n";
    for name in ["started", "go"] {
        mknodat(CWD, lab.path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    configure(&lab, &[export("vol", "")]);
    let server = Server::start(lab.blockyard(&["serve", "--config", "c.toml", "--sandbox", "off"]));
    configure(&lab, &[export("vol", ""), new.into()]);
    let first = lab.blockyard(&["reload", "c"]).stdout(Stdio::piped()).spawn().unwrap();
    let _started = fs::File::open(lab.path("started")).unwrap();
    for _ in 0..10 {
        let said = lab.refused(&["reload", "c"], 1);
        assert!(said.contains("another reload is running"), "{said}");
    }
    lab.ok(&["status", "c"]);
    fs::write(lab.path("go"), "\n").unwrap();
    let output = first.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "added new\n");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn settings_of_the_whole_server_wait_for_a_restart() {
    let lab = with_volumes(&["vol"]);
    let mut server = serve(&lab, &[export("vol", "")]);
    let changed = "socket = 't'\ncontrol = 'c'\nthreads = 3\nsandbox_allow = ['.']\n";
    lab.write("c.toml", format!("{changed}{}", export("vol", "")));
    let output = lab.ok(&["reload", "c"]);
    let said = text(&output.stderr);
    assert!(said.contains("`socket`") && said.contains("`threads`"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    server.wait_for_line("`threads` has changed, which takes effect after a restart");
    assert!(Nbd::can_open(&lab.path("s"), "vol") && !lab.path("t").exists());
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn hangup_is_a_reload_that_the_service_manager_follows() {
    let lab = with_volumes(&["one", "two"]);
    let manager = UnixDatagram::bind(lab.path("notify")).unwrap();
    let told = || {
        let mut message = [0; 256];
        let len = manager.recv(&mut message).unwrap();
        text(&message[..len])
    };
    configure(&lab, &[export("one", "")]);
    let mut command = lab.blockyard(&["serve", "--config", "c.toml"]);
    command.env("NOTIFY_SOCKET", lab.path("notify"));
    let mut server = Server::start(command);
    assert_eq!(told().trim_end(), "READY=1");
    for exports in [&[export("one", ""), export("two", "")][..], &["nonsense".into()]] {
        configure(&lab, exports);
        server.send(Signal::HUP);
        let reloading = told();
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        assert_eq!(told().trim_end(), "READY=1");
    }
    server.wait_for_line("was reloaded: added \"two\"");
    server.wait_for_line("was not reloaded");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn hangup_without_a_configuration_is_a_line_in_the_log() {
    let lab = with_volumes(&["vol"]);
    let mut server = lab.serve(&["vol", "-d", "pass", "--socket", "s", "--control", "c"]);
    let mut client = Nbd::open(&lab.path("s"));
    server.send(Signal::HUP);
    let said = server.wait_for_line("SIGHUP: ");
    assert!(said.contains("--config"), "{said}");
    assert_eq!(client.write(0, &noise(4096, 3)), 0);
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("--config"), "{said}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn certificates_are_read_again_for_new_clients() {
    let lab = with_volumes(&["vol"]);
    lab.ok(&["tls", "init", "pki", "--host", "127.0.0.1"]);
    let config = |dir: &str| {
        let head = format!(
            "listen = '127.0.0.1:0'\ncontrol = 'c'\ntls_certificates = '{dir}'\n\
             sandbox_allow = ['.']\n"
        );
        lab.write("c.toml", format!("{head}{}", export("vol", "")));
    };
    config("pki");
    let server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    let uri = server.said[0].split(" at ").nth(1).unwrap().to_owned();
    let with = |dir: &str| format!("{uri}?tls-certificates={}", lab.path(dir).display());
    lab.ok(&["info", &with("pki")]);
    lab.ok(&["tls", "init", "others", "--host", "127.0.0.1"]);
    lab.run(&["info", &with("others")]).status.success().then(|| panic!("another CA"));
    config("others");
    assert_eq!(reload(&lab), "");
    lab.ok(&["info", &with("others")]);
    config("none");
    assert!(lab.refused(&["reload", "c"], 1).contains("none"));
    lab.ok(&["info", &with("others")]);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

/// The lines of a log of JSON, up to one of this event.
fn json_line(server: &mut Server, event: &str) -> Value {
    let line = server.wait_for_line(&format!("\"event\":\"{event}\""));
    serde_json::from_str(&line).unwrap()
}

#[test]
fn events_are_lines_of_json_with_their_fields() {
    let lab = with_volumes(&["one", "two"]);
    configure(&lab, &[export("one", "")]);
    let mut command = lab.blockyard(&["serve", "--config", "c.toml", "--log-format", "json"]);
    command.stderr(Stdio::piped());
    let mut server = Server::start_silent(command);
    let serving = json_line(&mut server, "said");
    assert!(serving["message"].as_str().unwrap().starts_with("serving one"), "{serving}");
    let mut client = Nbd::open_export(&lab.path("s"), "one");
    let came = json_line(&mut server, "client-connected");
    assert_eq!((&came["level"], &came["export"]), (&"info".into(), &"one".into()));
    let me = format!("process {} of user", std::process::id());
    assert!(came["peer"].as_str().unwrap().starts_with(&me), "{came}");
    assert_eq!(client.write(0, &noise(8192, 1)), 0);
    client.read(0, 4096);
    client.flush();
    drop(client);
    let went = json_line(&mut server, "client-disconnected");
    assert_eq!((&went["bytes_written"], &went["bytes_read"]), (&8192.into(), &4096.into()));
    assert_eq!((&went["other_requests"], &went["errors"]), (&1.into(), &0.into()));
    lab.ok(&["suspend", "c"]);
    assert_eq!(json_line(&mut server, "suspended")["export"], "one");
    lab.ok(&["resume", "c"]);
    assert_eq!(json_line(&mut server, "resumed")["export"], "one");
    lab.ok(&["limit", "c", "--iops-limit", "5"]);
    let limited = json_line(&mut server, "limited");
    assert_eq!((&limited["iops"], &limited["bytes_per_s"]), (&5.into(), &0.into()));
    let sentence = limited["message"].as_str().unwrap();
    assert!(sentence.ends_with("is limited to 5 requests per second"), "{sentence}");
    lab.ok(&["limit", "c", "--none"]);
    let sentence = json_line(&mut server, "limited")["message"].as_str().unwrap().to_owned();
    assert!(sentence.ends_with("has no limits of its rate any more"), "{sentence}");
    configure(&lab, &[export("two", "")]);
    server.send(Signal::HUP);
    let reloaded = json_line(&mut server, "reloaded");
    assert_eq!((&reloaded["added"][0], &reloaded["removed"][0]), (&"two".into(), &"one".into()));
    server.said.iter().for_each(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let time = line["time"].as_str().unwrap();
        assert!(time.len() == "2026-11-25T22:50:00.123Z".len() && time.ends_with('Z'), "{time}");
        assert!(!line.to_string().contains(PASSPHRASE));
    });
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn slow_request_is_a_line_with_its_stages() {
    let lab = with_volumes(&["vol"]);
    lab.write("delay.table", "0 2048 delay vol 0 30\n");
    let words = ["--table", "delay.table", "--socket", "s", "--slow-request", "20"];
    let mut server = lab.serve(&words);
    let mut client = Nbd::open(&lab.path("s"));
    client.read(8 * 512, 4096);
    let said = server.wait_for_line("took");
    assert!(said.contains("a read of 8 sectors at 8 took"), "{said}");
    assert!(said.contains("device "), "{said}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn failed_operation_is_a_line_with_its_sector_and_error_number() {
    let lab = with_volumes(&["vol"]);
    let script = r#"ulimit -f 2048; exec "$0" serve vol -d pass --socket s --log-format json"#;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_blockyard")]).current_dir(lab.path(""));
    let mut server = Server::start_silent(shell);
    json_line(&mut server, "said");
    let mut client = Nbd::open(&lab.path("s"));
    // Blocks of 512 bytes: the second half of the volume is beyond the limit.
    assert_ne!(client.write(1 << 19, &noise(4096, 1)), 0);
    let error = json_line(&mut server, "io-error");
    assert_eq!((&error["level"], &error["operation"]), (&"error".into(), &"write".into()));
    assert_eq!((&error["errno"], &error["device"]), (&27.into(), &"vol".into()));
    let offset_bytes = lab::SMALL_DATA_OFFSET_BYTES + (1 << 19);
    assert_eq!(error["sector"], offset_bytes / 512);
    drop(client);
    assert_eq!(json_line(&mut server, "client-disconnected")["errors"], 1);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn flood_of_events_is_cut_off() {
    let lab = with_volumes(&["vol"]);
    let server = serve(&lab, &[export("vol", "")]);
    for _ in 0..150 {
        assert!(Nbd::can_open(&lab.path("s"), "vol"));
    }
    let said = server.stop_and_read(Signal::TERM);
    let opened = said.iter().filter(|line| line.contains("has opened export")).count();
    assert_eq!(opened, 100, "{said:?}");
}

#[test]
fn level_and_command_make_the_log_quiet() {
    let lab = with_volumes(&["vol"]);
    for words in [&["--log-level", "warning"][..], &["--run", "exec sleep 60"]] {
        let server = lab.serve(&[&["vol", "-d", "pass", "--socket", "s"], words].concat());
        assert!(Nbd::can_open(&lab.path("s"), ""));
        let said = server.stop_and_read(Signal::TERM);
        assert!(!said.iter().any(|line| line.contains("has opened")), "{said:?}");
    }
}

#[test]
fn status_of_one_export_and_the_name_of_a_group() {
    let lab = with_volumes(&["one", "two"]);
    let group = "[limit_groups.slow]\niops_limit = 9\nburst = '2s'\n".into();
    let server = serve(&lab, &[export("one", "limit_group = 'slow'"), export("two", ""), group]);
    let shown = text(&lab.ok(&["status", "c", "--export", "one"]).stdout);
    assert!(shown.contains("export \"one\"") && !shown.contains("\"two\""), "{shown}");
    assert!(
        shown.contains("9 requests/s for \"one\" of the group \"slow\", burst 2.00 s"),
        "{shown}"
    );
    let said = lab.refused(&["status", "c", "--export", "three"], 4);
    assert!(said.contains("\"one\", \"two\""), "{said}");
    // The burst stays.
    lab.ok(&["limit", "c", "--export", "one", "--iops-limit", "8"]);
    let shown = text(&lab.ok(&["status", "c", "--export", "one"]).stdout);
    assert!(shown.contains("8 requests/s") && shown.contains("burst 2.00 s"), "{shown}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn metrics_and_control_are_keys_of_the_configuration() {
    let lab = with_volumes(&["vol"]);
    let config = format!("socket = 's'\ncontrol = 'c'\nmetrics = './m'\n{}", export("vol", ""));
    lab.write("c.toml", config);
    let server = Server::start(lab.blockyard(&["serve", "--config", "c.toml"]));
    assert!(is_socket(&lab.path("c")) && is_socket(&lab.path("m")));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn export_whose_passphrase_cannot_be_read_again_is_not_closed_for_new_settings() {
    let lab = with_volumes(&["vol"]);
    let of = |more: &str| format!("{HEAD}[exports.vol]\nvolume = 'vol'\nkey_fd = 0\n{more}");
    lab.write("c.toml", of(""));
    let mut command = lab.blockyard(&["serve", "--config", "c.toml"]);
    command.stdin(fs::File::open(lab.path("pass")).unwrap());
    let server = Server::start(command);
    let mut client = Nbd::open_export(&lab.path("s"), "vol");
    lab.write("c.toml", of("read_only = true\n"));
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("exports.vol: ") && said.contains("`key_file`"), "{said}");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn configuration_without_an_end_is_refused() {
    let lab = with_volumes(&["vol"]);
    let server = serve(&lab, &[export("vol", "")]);
    fs::remove_file(lab.path("c.toml")).unwrap();
    symlink("/dev/zero", lab.path("c.toml")).unwrap();
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("more than 1 MiB"), "{said}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}
