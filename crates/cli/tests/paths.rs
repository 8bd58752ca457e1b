//! Several servers of one image, and a multipath line over them: the servers are killed, restarted
//! and stopped, and a client sees no error and no wrong byte.

mod lab;

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::nbd::Nbd;
use lab::{Lab, Server, noise, text};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

const LEN_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = (LEN_BYTES / BLOCK_BYTES) as u64;
const EIO: u32 = 5;

/// A path, up to its socket. Only processes end here: the page cache keeps unflushed writes.
const TRUSTED: &str = "nbd+unix:///?unflushed=trust&socket=";

/// Features of the multipath line; others follow these.
const BIO: &str = "queue_mode bio";
const MQ: &str = "queue_mode mq";

/// Two servers of one image, and a server over both.
struct Paths {
    lab: Lab,
    servers: [Option<Server>; 2],
    near: Server,
}

impl Paths {
    /// I/O without a path fails.
    fn failing(mode: &str) -> Self {
        Self::with_parameters(&format!("2 {mode}"), "")
    }

    /// I/O without a path waits.
    fn waiting(mode: &str) -> Self {
        Self::with_parameters(&format!("3 queue_if_no_path {mode}"), "")
    }

    fn with_parameters(features: &str, parameters: &str) -> Self {
        Self::with_uri(TRUSTED, features, parameters)
    }

    fn with_uri(uri: &str, features: &str, parameters: &str) -> Self {
        let lab = Lab::new();
        lab.write("image", vec![0; LEN_BYTES]);
        let len = LEN_BYTES / 512;
        lab.write("far.table", format!("0 {len} linear image 0\n"));
        let path = |name| format!("{uri}{name}{parameters}");
        let group = format!("service-time 0 2 0 {} {}", path("a"), path("b"));
        lab.write("near.table", format!("0 {len} multipath {features} 0 1 1 {group}\n"));
        let servers = ["a", "b"].map(|socket| Some(serve(&lab, socket)));
        let words = ["--table", "near.table", "--socket", "near", "--control", "ctl"];
        let near = lab.serve(&words);
        Self { lab, servers, near }
    }

    fn kill(&mut self, path: usize) {
        self.servers[path].take().unwrap().stop(Signal::KILL);
    }

    fn start(&mut self, path: usize) {
        self.servers[path] = Some(serve(&self.lab, ["a", "b"][path]));
    }

    fn client(&self) -> Nbd {
        Nbd::open(&self.lab.path("near"))
    }

    /// The words of the multipath line's status.
    fn status(&self) -> String {
        let reply = self.lab.ok(&["status", "--json", "ctl"]).stdout;
        let reply: Value = serde_json::from_slice(&reply).unwrap();
        let lines = reply["devices"][0]["status"].as_array().unwrap();
        assert_eq!(lines.len(), 1, "one connection");
        lines[0].as_str().unwrap().to_owned()
    }

    fn wait_for_status(&self, wanted: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.status().contains(wanted) {
            assert!(Instant::now() < deadline, "{} is not {wanted}", self.status());
        }
    }

    /// Waits until a write waits in the multipath line.
    fn wait_for_parked(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let asked = || text(&self.lab.ok(&["status", "--json", "ctl"]).stdout);
        while !asked().contains("\"parked_parts\": 1") {
            assert!(Instant::now() < deadline, "{}", asked());
        }
    }

    fn message(&self, words: &[&str]) {
        self.lab.ok(&[&["message", "ctl"], words].concat());
    }
}

fn serve(lab: &Lab, socket: &str) -> Server {
    lab.serve(&["--table", "far.table", "--shared", "--socket", socket])
}

/// Contents of a block after its write of this generation.
fn content(block: u64, generation: u64) -> Vec<u8> {
    noise(BLOCK_BYTES, block << 32 | generation)
}

/// Writes block after block, repeatedly, until `is_over` is set and a generation is complete. Reads
/// new and earlier blocks.
fn write_until(client: &mut Nbd, is_over: &AtomicBool, written: &AtomicU64) -> u64 {
    let mut number = 0;
    while !is_over.load(Ordering::Relaxed) || number % BLOCKS != 0 {
        let block = number % BLOCKS;
        let generation = number / BLOCKS;
        let at = block * BLOCK_BYTES as u64;
        assert_eq!(client.write(at, &content(block, generation)), 0, "write {number}");
        if number.is_multiple_of(5) {
            assert_eq!(client.flush(), 0, "flush after {number}");
            assert!(client.read(at, BLOCK_BYTES) == content(block, generation), "read {number}");
        }
        if generation > 0 && number.is_multiple_of(3) {
            let old = (block + BLOCKS / 2) % BLOCKS;
            let generation = if old < block { generation } else { generation - 1 };
            let read = client.read(old * BLOCK_BYTES as u64, BLOCK_BYTES);
            assert!(read == content(old, generation), "old block {old} at {number}");
        }
        number += 1;
        written.store(number, Ordering::Relaxed);
    }
    number / BLOCKS - 1
}

/// Checks the image after a generation.
fn check_image(lab: &Lab, generation: u64) {
    let image = lab.read("image");
    for (block, bytes) in (0..).zip(image.chunks(BLOCK_BYTES)) {
        assert!(bytes == content(block, generation), "block {block}");
    }
}

/// Changes the paths with `what` while a client writes and reads.
fn under_load(paths: &mut Paths, what: impl FnOnce(&mut Paths, &dyn Fn(u64))) {
    let written = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let mut client = paths.client();
    let generation = thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&mut client, &is_over, &written));
        // Waits until this many more blocks are written.
        let go_on = |blocks: u64| {
            let before = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) < before + blocks {
                assert!(!writer.is_finished(), "the writer has failed");
                thread::yield_now();
            }
        };
        what(paths, &go_on);
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    drop(client);
    check_image(&paths.lab, generation);
}

#[test]
fn either_server_may_be_killed_and_come_back() {
    for mode in [BIO, MQ] {
        let mut paths = Paths::failing(mode);
        under_load(&mut paths, |paths, go_on| {
            go_on(50);
            for path in [0, 1, 0] {
                paths.kill(path);
                go_on(100);
                paths.start(path);
                // A path check finds it; then the other path may go.
                paths.wait_for_status(&format!("socket={} A", ["a", "b"][path]));
                go_on(100);
            }
        });
        assert_eq!(paths.near.stop(Signal::TERM).code(), Some(0));
    }
}

#[test]
fn both_servers_may_be_away_while_io_waits_for_a_path() {
    for mode in [BIO, MQ] {
        let mut paths = Paths::waiting(mode);
        under_load(&mut paths, |paths, go_on| {
            for _ in 0..2 {
                go_on(50);
                paths.kill(0);
                paths.kill(1);
                paths.wait_for_status("socket=a F");
                paths.wait_for_status("socket=b F");
                paths.start(1);
                go_on(50);
                paths.start(0);
            }
        });
        assert_eq!(paths.near.stop(Signal::TERM).code(), Some(0));
    }
}

#[test]
fn write_of_a_server_that_stands_still_waits_for_its_end_and_others_go_on() {
    for mode in [BIO, MQ] {
        let mut paths = Paths::with_parameters(&format!("2 {mode}"), "&timeout=1");
        let pid = |server: &Server| Pid::from_raw(server.pid() as i32).unwrap();
        let mut first = paths.client();
        let mut second = paths.client();
        let still = pid(paths.servers[0].as_ref().unwrap());
        kill_process(still, Signal::STOP).unwrap();
        // A thread on another CPU answers requests until it sees the signal.
        waitpid(Some(still), WaitOptions::UNTRACED).unwrap();
        let [a, b] = ["a", "b"].map(|name| format!("{TRUSTED}{name}&timeout=1"));
        paths.message(&["fail_path", &b]);
        thread::scope(|scope| {
            let doubtful = scope.spawn(|| first.write(0, &content(0, 1)));
            paths.near.wait_for(&format!("blockyard: {a}: the server has not"));
            paths.message(&["reinstate_path", &b]);
            assert_eq!(second.write(BLOCK_BYTES as u64, &content(1, 1)), 0);
            assert!(second.read(BLOCK_BYTES as u64, BLOCK_BYTES) == content(1, 1));
            assert!(!doubtful.is_finished(), "the first server may still do it");
            kill_process(still, Signal::CONT).unwrap();
            assert_eq!(doubtful.join().unwrap(), 0);
        });
        assert_eq!(second.write(0, &content(0, 2)), 0);
        assert!(second.read(0, BLOCK_BYTES) == content(0, 2));
    }
}

#[test]
fn without_a_path_the_error_comes_at_once() {
    for mode in [BIO, MQ] {
        let mut paths = Paths::failing(mode);
        let mut client = paths.client();
        assert_eq!(client.write(0, &content(0, 0)), 0);
        paths.kill(0);
        paths.kill(1);
        let start = Instant::now();
        assert_eq!(client.write(0, &content(0, 1)), EIO);
        assert_eq!(client.flush(), EIO);
        assert!(start.elapsed() < Duration::from_secs(5));
        paths.start(1);
        paths.wait_for_status("socket=b A 1");
        assert_eq!(client.write(0, &content(0, 2)), 0);
        assert!(client.read(0, BLOCK_BYTES) == content(0, 2));
    }
}

/// Nothing checks the path then.
#[test]
fn server_of_a_path_is_found_again_without_a_client() {
    let mut paths = Paths::failing(MQ);
    let lost = |paths: &Paths| {
        let reply = paths.lab.ok(&["status", "--json", "ctl"]).stdout;
        let reply: Value = serde_json::from_slice(&reply).unwrap();
        reply["devices"][0]["lost_servers"].clone()
    };
    paths.kill(0);
    paths.near.wait_for_line("socket=a: cannot connect");
    let server = lost(&paths);
    assert_eq!((&server[0]["is_path"], &server[1]), (&true.into(), &Value::Null), "{server}");
    assert!(server[0]["server"].as_str().unwrap().ends_with("socket=a"), "{server}");
    let once = text(&paths.lab.ok(&["top", "--once", "ctl"]).stdout);
    assert!(once.contains("server lost (see status)"), "{once}");
    paths.start(0);
    paths.near.wait_for_line("socket=a: connected");
    assert_eq!(lost(&paths), Value::Array(Vec::new()));
}

#[test]
fn lost_path_is_an_event_of_its_own_kind() {
    let lab = Lab::new();
    let images = ["a", "b"].map(|name| lab.write(name, vec![7; LEN_BYTES]));
    let line = format!("multipath 2 {BIO} 0 1 1 service-time 0 2 0 a b");
    lab.write("table", format!("0 {} {line}\n", LEN_BYTES / 512));
    let words = ["serve", "--table", "table", "--socket", "s", "--log-format", "json"];
    let mut server = Server::start_silent(lab.blockyard(&words));
    server.wait_for_line("\"event\":\"said\"");
    // Paths are used in turn.
    fs::File::options().write(true).open(&images[0]).unwrap().set_len(0).unwrap();
    let mut client = Nbd::open(&lab.path("s"));
    for block in 0..4 {
        assert_eq!(client.read(block * 4096, BLOCK_BYTES), [7; BLOCK_BYTES]);
    }
    let lost: Value = serde_json::from_str(&server.wait_for_line("path-lost")).unwrap();
    assert_eq!((&lost["event"], &lost["level"]), (&"path-lost".into(), &"warning".into()));
    assert_eq!((&lost["device"], &lost["operation"]), (&"a".into(), &"read".into()));
    assert_eq!(lost["errno"], EIO);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn lost_server_is_an_event_with_its_name() {
    let lab = Lab::new();
    lab.volume("image");
    let far = lab.serve(&["image", "-d", "pass", "--socket", "far"]);
    lab.write("table", "0 8 linear nbd+unix:///?socket=far 0\n");
    let words = ["serve", "--table", "table", "--socket", "s", "--log-format", "json"];
    let mut server = Server::start_silent(lab.blockyard(&words));
    server.wait_for_line("\"event\":\"said\"");
    drop(far);
    let lost: Value = serde_json::from_str(&server.wait_for_line("\"remote\"")).unwrap();
    assert_eq!(lost["level"], "warning");
    assert_eq!(lost["device"], "nbd+unix:///?socket=far");
}

#[test]
fn operator_is_obeyed_also_by_what_waits() {
    for mode in [BIO, MQ] {
        let paths = Paths::waiting(mode);
        let fail = |path: &str| paths.message(&["fail_path", &format!("{TRUSTED}{path}")]);
        assert!(paths.status().contains("multipath 2 0 0 0 1 1 E 0 2 2 nbd"), "{}", paths.status());
        fail("a");
        fail("b");
        assert!(paths.status().contains("socket=a F 1 0 1 nbd"), "{}", paths.status());
        let write = thread::scope(|scope| {
            let waiting = scope.spawn(|| paths.client().write(0, &content(0, 0)));
            paths.wait_for_parked();
            assert!(!waiting.is_finished(), "it waits for a path");
            paths.message(&["reinstate_path", &format!("{TRUSTED}b")]);
            waiting.join().unwrap()
        });
        assert_eq!(write, 0);
        let mut client = paths.client();
        fail("b");
        paths.message(&["fail_if_no_path"]);
        assert_eq!(client.write(0, &content(0, 1)), EIO);
        paths.message(&["reinstate_path", &format!("{TRUSTED}a")]);
        assert!(client.read(0, BLOCK_BYTES) == content(0, 0));
        let refuse = |words: &[&str]| paths.lab.refused(&[&["message", "ctl"], words].concat(), 1);
        assert!(refuse(&["fail_path", "/x"]).contains("no path is named `/x`"));
        assert!(refuse(&["switch_group", "2"]).contains("group `2` is not one of 1 to 1"));
        assert!(refuse(&["key", "wipe"]).contains("not suspended"));
        paths.lab.ok(&["suspend", "ctl"]);
        let words = ["message", "ctl", "queue_if_no_path"];
        assert!(paths.lab.refused(&words, 5).contains("the device is suspended"));
        paths.lab.ok(&["resume", "ctl"]);
    }
}

#[test]
fn suspend_and_stop_end_what_waits_for_a_path() {
    for mode in [BIO, MQ] {
        let mut paths = Paths::waiting(mode);
        paths.kill(0);
        paths.kill(1);
        let mut client = paths.client();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let answer = client.write(0, &content(0, 0));
                (client, answer)
            });
            paths.wait_for_parked();
            paths.lab.ok(&["suspend", "ctl"]);
            let (mut client, answer) = waiting.join().unwrap();
            assert_eq!(answer, EIO);
            paths.lab.ok(&["resume", "ctl"]);
            let waiting = scope.spawn(move || client.write(0, &content(0, 0)));
            paths.wait_for_parked();
            assert!(!waiting.is_finished(), "it waits again");
            let near = Pid::from_raw(paths.near.pid() as i32).unwrap();
            kill_process(near, Signal::TERM).unwrap();
            assert_eq!(waiting.join().unwrap(), EIO);
        });
    }
}

#[test]
fn server_that_is_killed_with_unflushed_writes_is_a_loss_unless_its_machine_is_trusted() {
    for mode in [BIO, MQ] {
        let uri = "nbd+unix:///?socket=";
        let mut paths = Paths::with_uri(uri, &format!("2 {mode}"), "");
        let mut client = paths.client();
        for generation in 0..4 {
            assert_eq!(client.write(0, &content(0, generation)), 0);
        }
        // One path gets it, and it counts for all.
        assert_eq!(client.flush(), 0);
        paths.kill(0);
        paths.near.wait_for(&format!("blockyard: {uri}a: "));
        assert_eq!(client.write(0, &content(0, 4)), 0);
        assert_eq!(client.flush(), 0);
        assert_eq!(client.write(0, &content(0, 5)), 0);
        paths.kill(1);
        let lost = "the server was lost with 4096 acknowledged unflushed bytes";
        paths.near.wait_for(&format!("blockyard: {uri}b: {lost}"));
        paths.start(0);
        paths.wait_for_status("socket=a A");
        assert_eq!(client.flush(), EIO);
        assert_eq!(client.write(0, &content(0, 6)), EIO);
        assert_eq!(client.read(0, BLOCK_BYTES).len(), BLOCK_BYTES, "reads go on");
    }
}

#[test]
fn line_whose_paths_are_all_away_fails_the_last_flush_though_another_line_has_one() {
    let lab = Lab::new();
    lab.write("image", vec![0; LEN_BYTES]);
    let len = LEN_BYTES / 512;
    lab.write("far.table", format!("0 {len} linear image 0\n"));
    let line = |start: usize, paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| format!("{TRUSTED}{path}")).collect();
        let group = format!("service-time 0 {} 0 {}", paths.len(), paths.join(" "));
        format!("{start} {len} multipath 2 {BIO} 0 1 1 {group}\n")
    };
    for (second, code) in [(["b", "c"], 1), (["b", "a"], 0)] {
        let _far = serve(&lab, "a");
        lab.write("near.table", line(0, &["a"]) + &line(len, &second));
        let near = lab.serve(&["--table", "near.table", "--socket", "near"]);
        assert_eq!(near.stop(Signal::TERM).code(), Some(code), "{second:?}");
    }
}
