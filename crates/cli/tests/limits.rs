//! Times by stage, and bottlenecks: the output of `bench`, `status` and `top` for a slow device, a
//! single worker and a slow client.

mod lab;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use lab::{Lab, SMALL, SMALL_DATA_OFFSET_BYTES, SMALL_LEN_BYTES, text};
use serde_json::Value;

/// The server of every test, for a client.
const URI: &str = "nbd+unix:///?socket=s";

fn json(lab: &Lab, words: &[&str]) -> Value {
    serde_json::from_slice(&lab.ok(words).stdout).unwrap()
}

fn status(lab: &Lab) -> Value {
    json(lab, &["status", "--json", "c"])["devices"][0].clone()
}

fn jobs(options: &str) -> impl Iterator<Item = &str> {
    ["--", "ioengine=libaio"].into_iter().chain(options.split(' '))
}

/// Jobs at the server's socket, until it is dropped.
struct Load(Child);

impl Load {
    fn start(lab: &Lab, options: &str) -> Self {
        let words = ["bench", "--raw", URI].into_iter().chain(jobs(options));
        let words: Vec<&str> = words.chain(["time_based", "runtime=600"]).collect();
        let mut command = lab.blockyard(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file, and a table that delays all its requests by this time.
fn delayed(lab: &Lab, ms: u32) -> [&'static str; 2] {
    lab.write("image", vec![0; SMALL_LEN_BYTES]);
    lab.write("slow.table", format!("0 {} delay image 0 {ms}\n", SMALL_LEN_BYTES / 512));
    ["--table", "slow.table"]
}

/// A volume with a cipher that is far slower than the transport to a client.
fn slow_cipher(lab: &Lab) {
    let size = (SMALL_DATA_OFFSET_BYTES + SMALL_LEN_BYTES as u64).to_string();
    let cipher = ["--cipher", "camellia-xts-plain64", "--key-size", "512"];
    let words = ["format", "vol", "--size", &size, "--key-file", "pass", "-q"];
    lab.ok(&words.into_iter().chain(SMALL).chain(cipher).collect::<Vec<_>>());
}

/// The stages of each sampled kind add up to the whole.
fn assert_adds_up(requests: &Value) {
    let number = |value: &Value| value.as_f64().unwrap();
    for kind in ["read", "write"] {
        let of_kind = &requests[kind];
        let total_ns = number(&of_kind["total"]["sum_ns"]);
        assert!(total_ns > 0.0, "{kind}: nothing was sampled: {requests}");
        let stages = of_kind["stages"].as_object().unwrap();
        let stages_ns: f64 = stages.values().map(|times| number(&times["sum_ns"])).sum();
        assert!((stages_ns / total_ns - 1.0).abs() < 0.02, "{kind}: {stages_ns} of {total_ns} ns");
        let means_ns: f64 = stages.values().map(|times| number(&times["mean_ns"])).sum();
        let mean_ns = number(&of_kind["total"]["mean_ns"]);
        assert!((means_ns / mean_ns - 1.0).abs() < 0.02, "{kind}: {means_ns} of {mean_ns} ns");
    }
}

#[test]
fn stages_add_up_to_the_total_of_a_server_under_load() {
    for (server, bench) in [
        (&["--threads", "0"][..], &[][..]),
        (&["--pipeline", "G", "--threads", "1"], &["--pipeline", "G", "--threads", "1"]),
    ] {
        let lab = Lab::new();
        lab.volume("vol");
        let volume = ["vol", "-d", "pass"];
        let words = volume.iter().chain(server).chain(&["--socket", "s", "--control", "c"]);
        let server = lab.serve(&words.collect::<Vec<_>>());
        let load = "rw=randrw bs=4k iodepth=8 loops=16";
        let at_socket = ["bench", "--raw", URI, "--destroy"].into_iter().chain(jobs(load));
        lab.ok(&at_socket.collect::<Vec<_>>());
        assert_adds_up(&status(&lab)["requests"]);
        drop(server);
        let words = ["bench", "vol", "-d", "pass", "--destroy", "--json"].into_iter();
        let words = words.chain(bench.iter().copied()).chain(jobs(load));
        let report = json(&lab, &words.collect::<Vec<_>>());
        assert_adds_up(&report["stages"]["requests"]);
    }
}

/// All of them name the same bottleneck: `bench` on the volume itself, `top` and `status` of a
/// server under the same load.
fn assert_limit(lab: &Lab, volume: &[&str], (load, passes): (&str, &str), party: &str) {
    let bench = ["bench", "--json"].iter().chain(volume).copied();
    let words: Vec<_> = bench.chain(jobs(load)).chain([passes]).collect();
    comes_true("bench", || {
        let stages = json(lab, &words)["stages"].clone();
        (stages["limit"]["party"] == party, format!("{stages:#}"))
    });
    let words = volume.iter().chain(&["--socket", "s", "--control", "c"]).copied();
    let _server = lab.serve(&words.collect::<Vec<_>>());
    let _load = Load::start(lab, load);
    while status(lab)["requests"]["read"]["requests"].as_u64() < Some(10) {
        std::thread::yield_now();
    }
    for words in [&["top", "c", "--once"][..], &["status", "c"]] {
        comes_true(words[0], || {
            let said = text(&lab.ok(words).stdout);
            (said.contains(&format!("limit: {party}: ")), said)
        });
    }
}

/// Looks until a program says it. Other programs may have the CPUs for a while: then these are the
/// limit.
fn comes_true(program: &str, mut look: impl FnMut() -> (bool, String)) {
    let start = Instant::now();
    loop {
        let (is_true, said) = look();
        if is_true {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{program}: {said}");
    }
}

#[test]
fn slow_device_is_named_as_the_limit() {
    let lab = Lab::new();
    let table = delayed(&lab, 5);
    let load = ("rw=randread bs=4k iodepth=4", "number_ios=100");
    assert_limit(&lab, &table, load, "the device");
}

#[test]
fn single_worker_is_named_as_the_limit() {
    let lab = Lab::new();
    slow_cipher(&lab);
    let volume = ["vol", "-d", "pass", "--pipeline", "E", "--threads", "1"];
    let load = ("rw=randread bs=64k iodepth=8", "loops=250");
    assert_limit(&lab, &volume, load, "the cipher, on a single worker");
}

#[test]
fn slow_client_is_named_as_the_limit() {
    let lab = Lab::new();
    lab.volume("vol");
    let volume = ["vol", "-d", "pass", "--threads", "0"];
    let load = ("rw=randread bs=4k iodepth=1 thinktime=20000", "number_ios=20");
    assert_limit(&lab, &volume, load, "the client");
}
