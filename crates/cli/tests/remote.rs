//! A disk on an NBD server: used like a file, while its server goes and returns.

mod lab;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lab::nbd::Nbd;
use lab::{Lab, SMALL, SMALL_DATA_OFFSET_BYTES, SMALL_LEN_BYTES, Server, noise, text};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;

const LEN_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = (LEN_BYTES / BLOCK_BYTES) as u64;
const EIO: u32 = 5;

/// A server of the plain file `image`, on the socket `far`.
fn far(lab: &Lab) -> Server {
    lab.write("far.table", format!("0 {} linear image 0\n", LEN_BYTES / 512));
    lab.serve(&["--table", "far.table", "--socket", "far"])
}

/// A server of a line over it, on the socket `near`.
fn near(lab: &Lab, parameters: &str) -> Server {
    let len = LEN_BYTES / 512;
    lab.write("near.table", format!("0 {len} linear nbd+unix:///?socket=far{parameters} 0\n"));
    lab.serve(&["--table", "near.table", "--socket", "near", "--control", "ctl"])
}

#[test]
fn volume_on_a_server_is_opened_as_one_in_a_file() {
    let lab = Lab::new();
    let len_bytes = SMALL_LEN_BYTES as u64 + SMALL_DATA_OFFSET_BYTES;
    lab.write("vol", vec![0; len_bytes as usize]);
    let len = len_bytes / 512;
    lab.write("far.table", format!("0 {len} linear vol 0\n"));
    let far = lab.serve(&["--table", "far.table", "--socket", "far", "--export-name", "my disk"]);
    let uri = "nbd+unix:///my%20disk?socket=far";
    let mut format = vec!["format", uri, "-q", "--key-file", "pass"];
    format.extend(SMALL);
    lab.ok(&format);
    let plaintext = noise(SMALL_LEN_BYTES - 5, 3);
    let loaded = lab.fed(&["load", uri, "--key-file", "pass", "--allow-short"], &plaintext);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    let near = lab.serve(&[uri, "--key-file", "pass", "--socket", "near"]);
    let read = Nbd::open(&lab.path("near")).read(0, SMALL_LEN_BYTES);
    assert!(read[..plaintext.len()] == plaintext, "the server over the server");
    assert_eq!(near.stop(Signal::TERM).code(), Some(0));
    let table = text(&lab.ok(&["table", uri, "--key-file", "pass"]).stdout);
    assert!(table.contains(&format!(" {uri} 1024 ")), "{table}");
    assert_eq!(far.stop(Signal::TERM).code(), Some(0));
    let dumped = lab.ok(&["dump", "vol", "--key-file", "pass"]).stdout;
    assert!(dumped[..plaintext.len()] == plaintext, "the file itself");
}

#[test]
fn disk_that_cannot_be_had_is_one_error() {
    let lab = Lab::new();
    let dump = |uri: &str| lab.refused(&["dump", uri, "--key-file", "pass"], 4);
    let said = dump("nbd+unix:///?socket=far");
    assert!(said.contains("nbd+unix:///?socket=far: cannot connect"), "{said}");
    let said = lab.refused(&["dump", "nbd://[::1", "--key-file", "pass"], 1);
    assert!(said.contains("an NBD URI is nbd://HOST:PORT/EXPORT"), "{said}");
    lab.write("image", vec![0; LEN_BYTES]);
    let server = far(&lab);
    let said = dump("nbd+unix:///other?socket=far");
    assert!(said.contains("no export of this name"), "{said}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    lab.write("far.table", format!("0 {} linear image 0\n", LEN_BYTES / 512));
    let _far = lab.serve(&["--table", "far.table", "--socket", "far", "-r"]);
    lab.write("near.table", "0 8 linear nbd+unix:///?socket=far 0\n");
    let near = ["serve", "--table", "near.table", "--socket", "near"];
    let said = lab.refused(&near, 4);
    assert!(said.contains("read-only"), "{said}");
    lab.write("near.table", format!("0 {} linear nbd+unix:///?socket=far 1\n", LEN_BYTES / 512));
    let said = lab.refused(&[&near[..], &["-r"]].concat(), 4);
    assert!(said.contains("has 2048 sectors"), "{said}");
    let format = ["format", "nbd+unix:///?socket=far", "-d", "pass", "--size", "1M"];
    assert!(lab.refused(&format, 1).contains("on a server"));
}

/// Contents of a block after its write of this generation.
fn content(block: u64, generation: u64) -> Vec<u8> {
    noise(BLOCK_BYTES, block << 32 | generation)
}

#[test]
fn server_that_is_killed_and_comes_back_is_waited_for() {
    // Only the process ends: the page cache of the machine keeps its unflushed writes.
    for parameters in ["&unflushed=trust", "&unflushed=trust&connections=3"] {
        let lab = Lab::new();
        lab.write("image", vec![0; LEN_BYTES]);
        let mut server = Some(far(&lab));
        let near = near(&lab, parameters);
        let written = AtomicU64::new(0);
        let is_over = AtomicBool::new(false);
        let generations = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut client = Nbd::open(&lab.path("near"));
                let mut generation = 0;
                while !is_over.load(Ordering::Relaxed)
                    || !written.load(Ordering::Relaxed).is_multiple_of(BLOCKS)
                {
                    let number = written.load(Ordering::Relaxed);
                    let block = number % BLOCKS;
                    generation = number / BLOCKS;
                    let at = block * BLOCK_BYTES as u64;
                    assert_eq!(client.write(at, &content(block, generation)), 0);
                    if number.is_multiple_of(7) {
                        assert_eq!(client.flush(), 0);
                        assert!(client.read(at, BLOCK_BYTES) == content(block, generation));
                    }
                    written.store(number + 1, Ordering::Relaxed);
                }
                generation
            });
            for _ in 0..4 {
                let before = written.load(Ordering::Relaxed);
                while written.load(Ordering::Relaxed) < before + 50 {
                    assert!(!writer.is_finished(), "the writer has failed");
                    thread::yield_now();
                }
                server.take().unwrap().stop(Signal::KILL);
                server = Some(far(&lab));
            }
            is_over.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        assert_eq!(near.stop(Signal::TERM).code(), Some(0));
        drop(server);
        let image = lab.read("image");
        for (block, bytes) in (0..).zip(image.chunks(BLOCK_BYTES)) {
            assert!(bytes == content(block, generations), "block {block}");
        }
    }
}

#[test]
fn server_that_is_killed_with_unflushed_writes_fails_the_next_flush() {
    let lab = Lab::new();
    lab.write("image", vec![0; LEN_BYTES]);
    let mut server = far(&lab);
    let mut near = near(&lab, "");
    let mut client = Nbd::open(&lab.path("near"));
    let uri = "blockyard: nbd+unix:///?socket=far";
    // Flushed data is not lost with it.
    assert_eq!(client.write(0, &content(0, 0)), 0);
    assert_eq!(client.flush(), 0);
    server.stop(Signal::KILL);
    server = far(&lab);
    near.wait_for(&format!("{uri}: connected"));
    assert_eq!(client.write(0, &content(0, 1)), 0);
    assert_eq!(client.flush(), 0);
    // Unflushed data may be.
    assert_eq!(client.write(0, &content(0, 2)), 0);
    server.stop(Signal::KILL);
    near.wait_for(&format!("{uri}: the server was lost with 4096 acknowledged unflushed bytes"));
    let _server = far(&lab);
    for mut client in [client, Nbd::open(&lab.path("near"))] {
        assert_eq!(client.flush(), EIO);
        assert_eq!(client.write(0, &content(0, 3)), EIO);
        assert_eq!(client.read(0, BLOCK_BYTES).len(), BLOCK_BYTES, "reads go on");
    }
    lab.ok(&["suspend", "ctl"]);
    lab.ok(&["resume", "ctl", "--accept-loss"]);
    let mut client = Nbd::open(&lab.path("near"));
    assert_eq!(client.write(0, &content(0, 4)), 0);
    assert_eq!(client.flush(), 0);
    drop(client);
    assert_eq!(near.stop(Signal::TERM).code(), Some(0));
}

/// The servers without a connection, as `status` shows them.
fn lost_servers(lab: &Lab) -> Vec<String> {
    let status: Value =
        serde_json::from_slice(&lab.ok(&["status", "ctl", "--json"]).stdout).unwrap();
    let servers = status["devices"][0]["lost_servers"].as_array().unwrap();
    servers.iter().map(|lost| lost["server"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn server_that_stays_away_is_an_error_after_the_limit_and_is_found_again() {
    let lab = Lab::new();
    lab.write("image", vec![0; LEN_BYTES]);
    let server = far(&lab);
    let mut near = near(&lab, "&reconnect-delay=1&unflushed=trust");
    let mut client = Nbd::open(&lab.path("near"));
    assert_eq!(client.write(0, &content(0, 0)), 0);
    server.stop(Signal::KILL);
    assert_eq!(client.write(0, &content(0, 1)), EIO);
    assert_eq!(client.flush(), EIO);
    let uri = "nbd+unix:///?socket=far&reconnect-delay=1&unflushed=trust";
    assert_eq!(lost_servers(&lab), [uri]);
    let shown = text(&lab.ok(&["status", "ctl"]).stdout);
    assert!(shown.contains(&format!("server lost:  {uri} has had no")), "{shown}");
    let server = far(&lab);
    near.wait_for(&format!("blockyard: {uri}: connected"));
    assert_eq!(client.write(0, &content(0, 2)), 0);
    assert_eq!(client.flush(), 0);
    assert!(client.read(0, BLOCK_BYTES) == content(0, 2));
    assert!(lost_servers(&lab).is_empty());
    // A stop does not wait for an unreachable server.
    server.stop(Signal::KILL);
    assert_eq!(near.stop(Signal::TERM).code(), Some(1));
}

#[test]
fn blank_disk_on_a_server_is_formatted_unasked_and_one_with_data_is_not() {
    let lab = Lab::new();
    lab.write("blank", vec![0; 2 << 20]);
    lab.write("table", "0 4096 linear blank 0\n");
    let server = lab.serve(&["--table", "table", "--socket", "s"]);
    let mut format = vec!["format", "nbd+unix:///?socket=s", "--key-file", "pass"];
    format.extend(SMALL);
    lab.ok(&format);
    assert!(lab.refused(&format, 5).contains("a LUKS2 volume"));
    assert!(server.stop(Signal::TERM).success());
    let mut late = vec![0; 2 << 20];
    late[(2 << 20) - 1] = 1;
    lab.write("blank", late);
    let server = lab.serve(&["--table", "table", "--socket", "s"]);
    assert!(lab.refused(&format, 5).contains("holds data"));
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn holes_of_a_blank_disk_on_a_server_are_not_read() {
    let lab = Lab::new();
    let blank = std::fs::File::create(lab.path("blank")).unwrap();
    blank.set_len(8 << 30).unwrap();
    lab.write("table", "0 16777216 linear blank 0\n");
    let _server = lab.serve(&["--table", "table", "--socket", "s", "--control", "c"]);
    let mut format = vec!["format", "nbd+unix:///?socket=s", "--key-file", "pass"];
    format.extend(SMALL);
    let read_bytes = || -> u64 {
        let status = lab.ok(&["status", "--json", "c"]).stdout;
        let status: Value = serde_json::from_slice(&status).unwrap();
        status["devices"][0]["reads"]["bytes"].as_u64().unwrap()
    };
    // Data after a hole is found too.
    std::os::unix::fs::FileExt::write_all_at(&blank, b"x", 5 << 30).unwrap();
    assert!(lab.refused(&format, 5).contains("holds data"));
    blank.set_len(5 << 30).unwrap();
    blank.set_len(8 << 30).unwrap();
    lab.ok(&format);
    assert!(read_bytes() < 64 << 20, "{} bytes were read", read_bytes());
}

#[test]
fn stop_beside_silent_servers_takes_one_timeout_whatever_was_in_flight() {
    let lab = Lab::new();
    lab.write("image", vec![0; LEN_BYTES]);
    lab.write("far.table", "0 2048 linear image 0\n");
    let [a, b] = ["a", "b"].map(|name| format!("nbd+unix:///?timeout=3&socket={name}"));
    for table in [
        format!("0 2048 linear {a}&connections=3 0\n"),
        format!("0 2048 striped 2 8 {a} 0 {b} 0\n"),
        format!("0 2048 multipath 0 0 1 1 service-time 0 2 0 {a} {b}\n"),
    ] {
        let far = |socket| lab.serve(&["--table", "far.table", "--shared", "--socket", socket]);
        let servers = ["a", "b"].map(far);
        lab.write("near.table", &table);
        let words = ["--table", "near.table", "--socket", "near", "--control", "ctl"];
        let near = lab.serve(&words);
        let mut client = Nbd::open(&lab.path("near"));
        for server in &servers {
            let server = Pid::from_raw(server.pid() as i32);
            kill_process(server.unwrap(), Signal::STOP).unwrap();
            // A thread on another CPU answers requests until it sees the signal.
            waitpid(server, WaitOptions::UNTRACED).unwrap();
        }
        thread::scope(|scope| {
            let writing = scope.spawn(|| client.write(0, &content(0, 0)));
            let in_flight = || text(&lab.ok(&["status", "--json", "ctl"]).stdout);
            while !in_flight().contains("\"in_flight\": 1") {
                assert!(!writing.is_finished(), "its server is silent");
            }
            let start = Instant::now();
            assert_eq!(near.stop(Signal::TERM).code(), Some(1), "{table}");
            assert!(start.elapsed() < Duration::from_secs(5), "{table}: {:?}", start.elapsed());
            assert_eq!(writing.join().unwrap(), EIO, "{table}");
        });
    }
}
