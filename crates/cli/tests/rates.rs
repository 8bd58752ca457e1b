//! Limits of the rate of exports: kept over all connections, visible, changed while requests wait.

mod lab;

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::nbd::Nbd;
use lab::{Lab, noise};
use rustix::process::Signal;
use serde_json::Value;

fn status(lab: &Lab) -> Value {
    let reply: Value = serde_json::from_slice(&lab.ok(&["status", "--json", "c"]).stdout).unwrap();
    reply["devices"][0].clone()
}

/// Serves `vol` with a control socket.
fn serve(lab: &Lab, more: &[&str]) -> lab::Server {
    lab.volume("vol");
    let mut words = vec!["vol", "-d", "pass", "--socket", "s", "--control", "c"];
    words.extend(more);
    lab.serve(&words)
}

/// A separate client that writes a block, and so the debt of hours to a limit of a byte.
fn writer(lab: &Lab, offset: u64, len_bytes: usize) -> JoinHandle<(u32, Vec<u8>)> {
    let socket = lab.path("s");
    let bytes = noise(len_bytes, offset);
    std::thread::spawn(move || (Nbd::open(&socket).write(offset, &bytes), bytes))
}

#[test]
fn requests_of_all_clients_together_keep_the_limit() {
    let lab = Lab::new();
    let _server = serve(
        &lab,
        &["--iops-limit", "100", "--burst", "50ms", "--minimum-block", "1", "--allow-discards"],
    );
    let start = Instant::now();
    let socket = lab.path("s");
    let client = |number: u64| {
        let socket = socket.clone();
        std::thread::spawn(move || {
            let mut client = Nbd::open(&socket);
            // Unaligned writes, whole sectors, zeroes, trims and reads count; a flush does not.
            for at in 0..4 {
                let block = (8 * number + at) * 8192;
                assert_eq!(client.write(block + 100, b"part"), 0);
                assert_eq!(client.write(block + 4096, &[3; 4096]), 0);
                assert_eq!(client.zero(block, 4096), 0);
                assert_eq!(client.trim(block, 4096), 0);
                assert_eq!(client.read(block + 4096, 4096), [3; 4096]);
                assert_eq!(client.flush(), 0);
            }
        })
    };
    let clients = [0, 1].map(client);
    clients.into_iter().for_each(|client| client.join().unwrap());
    // Forty requests. Five tokens are in the bucket, and one request takes it into debt.
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(10 * (40 - 5 - 1)), "{took:?}");
    let limits = &status(&lab)["limits"][0];
    assert_eq!((&limits["iops"], &limits["exports"][0]), (&100.into(), &"".into()));
    let shown = lab::text(&lab.ok(&["status", "c"]).stdout);
    assert!(shown.contains("100 requests/s for \"\", burst 50.0 ms"), "{shown}");
}

#[test]
fn long_request_counts_once_by_requests_and_whole_by_bytes() {
    let lab = Lab::new();
    let _server = serve(&lab, &["--iops-limit", "1", "--burst", "2s"]);
    let mut client = Nbd::open(&lab.path("s"));
    let start = Instant::now();
    // Several bios each. Two tokens are in the bucket, and one request takes it into debt.
    for at in 0..3 {
        assert_eq!(client.write(at << 18, &noise(1 << 18, at)), 0);
    }
    // Each of its bios would wait for a second.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    lab.ok(&["limit", "c", "--bps-limit", "1M", "--burst", "1ms"]);
    let start = Instant::now();
    for at in 0..3 {
        assert_eq!(client.read(at << 18, 1 << 18), noise(1 << 18, at));
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(2 * 250 - 1), "{took:?}");
}

#[test]
fn new_limits_reach_requests_that_wait() {
    let lab = Lab::new();
    let server = serve(&lab, &["--bps-limit", "1"]);
    let mut early = Nbd::open(&lab.path("s"));
    assert_eq!(early.write(0, &noise(4096, 9)), 0, "the bucket was not in debt");
    // A flush never waits for tokens.
    assert_eq!(early.flush(), 0);
    let waiting = [8192, 16384 + 77].map(|offset| writer(&lab, offset, 2048));
    while status(&lab)["connections"] != 3 {
        std::thread::yield_now();
    }
    lab.ok(&["limit", "c", "--none"]);
    for (waiting, offset) in waiting.into_iter().zip([8192, 16384 + 77]) {
        let (error, bytes) = waiting.join().unwrap();
        assert_eq!((error, early.read(offset, bytes.len())), (0, bytes));
    }
    assert_eq!(status(&lab)["limits"], Value::Array(Vec::new()));
    let times = |kind: &str| status(&lab)["requests"][kind]["stages"]["throttle"].clone();
    assert!(times("write").is_object(), "{}", status(&lab));
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn suspend_and_end_of_the_server_do_not_wait_for_tokens() {
    let lab = Lab::new();
    let server = serve(&lab, &["--bps-limit", "1"]);
    let mut early = Nbd::open(&lab.path("s"));
    assert_eq!(early.write(0, &noise(4096, 9)), 0);
    let first = writer(&lab, 8192, 4096);
    while status(&lab)["connections"] != 2 {
        std::thread::yield_now();
    }
    lab.ok(&["suspend", "c"]);
    // Limits that end meanwhile: the request waits for the resume only.
    lab.ok(&["limit", "c", "--none"]);
    while status(&lab)["held_bios"] != 1 {
        std::thread::yield_now();
    }
    lab.ok(&["resume", "c"]);
    assert_eq!(first.join().unwrap().0, 0);
    lab.ok(&["limit", "c", "--bps-limit", "1"]);
    assert_eq!(early.write(0, &noise(4096, 9)), 0, "the bucket was not in debt");
    let second = writer(&lab, 16384, 4096);
    while status(&lab)["connections"] != 2 {
        std::thread::yield_now();
    }
    drop(early);
    assert!(server.stop(Signal::TERM).success());
    // The request was received, so it ends. Otherwise its client sees the end of the connection.
    let _ = second.join();
}

/// A client in debt whose zeroes wait: the reply to a later flush proves that they were taken.
fn with_waiting_zeroes(lab: &Lab) -> Nbd {
    let mut client = Nbd::open(&lab.path("s"));
    assert_eq!(client.write(0, &noise(16384, 9)), 0);
    client.send_zero(8192, 4096);
    assert_eq!(client.flush(), 0);
    client
}

#[test]
fn server_without_a_control_socket_ends_what_waits_and_then_itself() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s", "--bps-limit", "1"]);
    let mut client = with_waiting_zeroes(&lab);
    assert!(server.stop(Signal::TERM).success());
    assert_eq!(client.reply(), 0, "the request was received");
}

#[test]
fn client_that_has_left_keeps_no_connection_and_changes_nothing_later() {
    let lab = Lab::new();
    let _server = serve(&lab, &["--bps-limit", "1", "--max-connections", "1"]);
    drop(with_waiting_zeroes(&lab));
    // It waits for the only connection.
    let mut next = Nbd::open(&lab.path("s"));
    lab.ok(&["limit", "c", "--none"]);
    assert_eq!(next.read(0, 16384), noise(16384, 9));
}

#[test]
fn trims_of_no_whole_sector_are_no_debt_of_later_requests() {
    let lab = Lab::new();
    let words = ["--iops-limit", "1", "--burst", "1ms", "--allow-discards", "--minimum-block", "1"];
    let _server = serve(&lab, &words);
    let mut client = Nbd::open(&lab.path("s"));
    let start = Instant::now();
    (0..200).for_each(|_| assert_eq!(client.trim(100, 10), 0));
    (0..2).for_each(|at| drop(client.read(at * 4096, 4096)));
    assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
}

#[test]
fn requests_of_a_deep_queue_start_one_after_another() {
    let lab = Lab::new();
    let _server = serve(&lab, &["--iops-limit", "100", "--burst", "1ms"]);
    let mut client = Nbd::open(&lab.path("s"));
    let start = Instant::now();
    (0..150).for_each(|at| client.send_read(at * 4096, 4096));
    for replies in 1..=150 {
        client.read_reply(4096);
        // The first one finds a token, and takes the bucket into debt.
        let earliest = Duration::from_millis(10 * u64::max(replies, 2) - 20);
        assert!(start.elapsed() >= earliest, "{replies} replies after {:?}", start.elapsed());
    }
}

#[test]
fn exports_of_a_group_share_its_limit() {
    let lab = Lab::new();
    lab.volume("one");
    lab.volume("two");
    let export = |name: &str, more: &str| {
        format!("[exports.{name}]\nvolume = '{name}'\nkey_file = 'pass'\n{more}\n")
    };
    let config = |one: &str, two: &str| {
        let group = "socket = 's'\n[limit_groups.tenant]\nbps_limit = 1\n";
        lab.write("config", [group, &export("one", one), &export("two", two)].concat());
    };
    let group = "limit_group = 'tenant'";
    for (two, problem) in [
        ("limit_group = 'other'", "there is no table [limit_groups.other]"),
        ("limit_group = 'tenant'\nburst = '1s'", "either `limit_group` or limits of its own"),
        ("burst = '1s'", "a burst needs a limit"),
        ("bps_limit = 0", "bps_limit: the limit is 1"),
    ] {
        config(group, two);
        let said = lab.refused(&["serve", "--config", "config"], 1);
        assert!(said.contains(problem), "{said}");
    }
    config(group, group);
    let _server = lab.serve(&["--config", "config", "--control", "c"]);
    assert_eq!(Nbd::open_export(&lab.path("s"), "one").write(0, &noise(4096, 1)), 0);
    let socket = lab.path("s");
    let two = std::thread::spawn(move || Nbd::open_export(&socket, "two").write(0, &[7; 4096]));
    let second = || {
        let reply = lab.ok(&["status", "--json", "c"]).stdout;
        serde_json::from_slice::<Value>(&reply).unwrap()["devices"][1].clone()
    };
    while second()["connections"] != 1 {
        std::thread::yield_now();
    }
    assert!(!two.is_finished(), "the debt is that of its group");
    lab.ok(&["limit", "c", "--export", "one", "--none"]);
    assert_eq!(two.join().unwrap(), 0);
}

#[test]
fn bad_limits_get_one_error_that_names_the_option() {
    let lab = Lab::new();
    lab.volume("vol");
    for (words, said) in [
        (&["--iops-limit", "0"][..], "--iops-limit"),
        (&["--iops-limit=-1"], "--iops-limit"),
        (&["--bps-limit", "0"], "suspend"),
        (&["--bps-limit", "fast"], "--bps-limit"),
        (&["--iops-limit", "9", "--burst", "2h"], "at most 1h"),
        (&["--burst", "2s"], "--burst"),
    ] {
        let mut command = vec!["serve", "vol", "-d", "pass", "--socket", "s"];
        command.extend(words);
        let output = lab.run(&command);
        let error = lab::text(&output.stderr);
        assert!(!output.status.success() && error.contains(said), "{words:?}: {error}");
    }
    let said = lab.refused(&["limit", "c"], 1);
    assert!(said.contains("--none"), "{said}");
    let said = lab.refused(&["limit", "c", "--none"], 4);
    assert!(said.contains('c'), "{said}");
}
