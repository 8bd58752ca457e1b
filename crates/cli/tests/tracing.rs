//! A trace from a server's bios to a replay: recorded, shown, played on a file, on a null device
//! and in the lab.

mod lab;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use lab::nbd::Nbd;
use lab::{Lab, noise, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A simulated machine without a crypt target: the replayed bios reach its queue unchanged.
const WORLD: &str = r#"
name = "world"
title = "a disk"
[queue]
elevator = "deadline"
[device]
kind = "disk"
size_mib = 1024
[jobs.any]
program = "fsync-tester"
samples = 1
[variants.a]
"#;

fn json(lab: &Lab, words: &[&str]) -> Value {
    serde_json::from_slice(&lab.ok(words).stdout).unwrap()
}

/// Two clients: a sequential writer that flushes, and a random reader.
fn clients_work(lab: &Lab) {
    let mut clients = [Nbd::open(&lab.path("s")), Nbd::open(&lab.path("s"))];
    for number in 0..20u64 {
        assert_eq!(clients[0].write(number * 8192, &noise(8192, number)), 0);
        clients[1].read(number * 7 % 16 * 65536, 4096);
    }
    assert_eq!(clients[0].flush(), 0);
}

/// Figures that must be equal in two summaries: operations, sizes, order, submitters.
fn nature(summary: &Value) -> Vec<Value> {
    let ops = summary["ops"].as_array().unwrap().iter().map(|op| {
        let keys = ["op", "bios", "bytes", "sequential", "sync", "sizes", "not_ended", "errors"];
        keys.iter().map(|key| op[*key].clone()).collect()
    });
    let submitters = summary["submitters"].as_array().unwrap().iter();
    let submitters =
        submitters.map(|of| Value::from(vec![of["bios"].clone(), of["bytes"].clone()]));
    ops.chain(submitters).collect()
}

#[test]
fn recording_of_a_server_is_equal_to_the_recording_of_its_replay() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("world.toml", WORLD);
    let words = [
        "vol",
        "-d",
        "pass",
        "--socket",
        "s",
        "--control",
        "c",
        "--trace",
        "all.trace",
        "--sandbox-allow",
        ".",
    ];
    let server = lab.serve(&words);
    let said = lab.refused(&["trace", "record", "c", "-o", "b.trace", "--for", "1s"], 5);
    assert!(said.contains("EBUSY") && said.contains("trace stop"), "{said}");
    clients_work(&lab);
    assert!(server.stop(Signal::TERM).success());

    let mode = std::fs::metadata(lab.path("all.trace")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let recorded = json(&lab, &["trace", "summary", "all.trace", "--json"]);
    assert_eq!(recorded["lost"], 0);
    let op = |name: &str| {
        let ops = recorded["ops"].as_array().unwrap();
        ops.iter().find(|op| op["op"] == name).unwrap().clone()
    };
    assert_eq!(
        (op("write")["bytes"].as_u64(), op("read")["bios"].as_u64()),
        (Some(163_840), Some(20))
    );
    let bios = op("write")["bios"].as_u64();
    let sequential = op("write")["sequential"].as_u64();
    assert_eq!(sequential, bios.map(|bios| bios - 1), "each follows the one before");
    assert_eq!(op("flush")["bios"], 1);

    let replay = ["replay", "all.trace", "--json"];
    let null = json(&lab, &[&replay[..], &["--null", "--fast"]].concat());
    let file = ["--raw", "image", "--destroy", "--speed", "10"];
    lab.write("image", vec![0; 2 << 20]);
    let file = json(&lab, &[&replay[..], &file].concat());
    let in_lab = ["--lab", "world.toml", "--output", "lab.trace"];
    let first = json(&lab, &[&replay[..], &in_lab].concat());
    let second = json(&lab, &[&replay[..], &in_lab[..2]].concat());
    for played in [&null, &file, &first] {
        assert_eq!(played["is_complete"], true, "{played}");
        assert_eq!(played["bios"], recorded["bios"]);
        for op in played["ops"].as_array().unwrap() {
            assert_eq!((&op["in_bios"], &op["in_bytes"]), (&op["out_bios"], &op["out_bytes"]));
            assert_eq!(op["errors"], 0);
        }
    }
    for told in [&recorded, &null, &file, &first] {
        assert_percentiles_within(told);
    }
    assert_eq!(first, second, "the hash of the world's events is in the target's line");
    let replayed = json(&lab, &["trace", "summary", "lab.trace", "--json"]);
    assert_eq!(nature(&replayed), nature(&recorded));
    let other = ["--lab", "world.toml", "--elevator", "noop"];
    assert_ne!(json(&lab, &[&replay[..], &other].concat())["target"], first["target"]);
}

/// No percentile exceeds the maximum.
fn assert_percentiles_within(told: &Value) {
    let ops = told["ops"].as_array().unwrap().iter();
    for times in ops.map(|op| &op["latency_ns"]).chain(told.get("late_ns")) {
        let of = |name: &str| times[name].as_u64().unwrap();
        assert!(of("p50").max(of("p99")) <= of("max"), "{told:#}");
    }
}

#[test]
fn recording_from_the_start_is_stopped_and_makes_room_for_another() {
    let lab = Lab::new();
    lab.volume("vol");
    let words = [
        "vol",
        "-d",
        "pass",
        "--socket",
        "s",
        "--control",
        "c",
        "--trace",
        "a.trace",
        "--sandbox-allow",
        ".",
    ];
    let server = lab.serve(&words);
    Nbd::open(&lab.path("s")).read(0, 4096);
    let said = lab.refused(&["trace", "record", "c", "-o", "b.trace", "--for", "1ms"], 5);
    assert!(said.contains("blockyard trace stop"), "{said}");
    assert!(text(&lab.ok(&["trace", "stop", "c"]).stdout).starts_with("1 bios in "));
    assert_eq!(json(&lab, &["trace", "summary", "a.trace", "--json"])["bios"], 1);
    lab.ok(&["trace", "record", "c", "-o", "b.trace", "--for", "1ms"]);
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn recording_of_a_running_server_begins_and_ends_when_it_is_told() {
    let lab = Lab::new();
    lab.volume("vol");
    let words = ["vol", "-d", "pass", "--socket", "s", "--control", "c", "--sandbox-allow", "."];
    let server = lab.serve(&words);
    let mut client = Nbd::open(&lab.path("s"));
    client.read(0, 4096);
    let mut record = lab.blockyard(&["trace", "record", "c", "-o", "a.trace"]);
    let mut recording = record.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(recording.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.starts_with("recording"), "{said}");
    client.read(8192, 512);
    kill_process(Pid::from_child(&recording), Signal::INT).unwrap();
    assert!(recording.wait().unwrap().success());
    client.read(0, 4096);
    let lines = text(&lab.ok(&["trace", "show", "a.trace", "--json"]).stdout);
    let bios: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(bios.len(), 1, "{lines}");
    assert_eq!((&bios[0]["sector"], &bios[0]["status"]), (&Value::from(16), &Value::from("ok")));
    let again = ["trace", "record", "c", "-o", "a.trace", "--for", "1ms"];
    assert!(lab.refused(&again, 5).contains("--force"));
    lab.ok(&[&again[..], &["--force"]].concat());
    assert!(lab.refused(&["trace", "stop", "c"], 1).contains("not being recorded"));
    assert!(server.stop(Signal::TERM).success());
}

#[test]
fn every_command_of_the_lab_warns_of_a_trace_that_is_cut_off() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write(
        "world.toml",
        format!("{WORLD}[jobs.played]\nprogram = \"trace\"\nfile = \"a.trace\"\n"),
    );
    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s", "--trace", "a.trace"]);
    clients_work(&lab);
    assert!(server.stop(Signal::TERM).success());
    let bytes = lab.read("a.trace");
    lab.write("cut.trace", &bytes[..bytes.len() - 1]);
    let set = ["--set", "jobs.played.file=cut.trace"];
    for (words, rest) in [
        (&["lab", "trace", "world.toml", "--until", "0.001"][..], &[][..]),
        (&["bench", "--lab=world.toml"], &["--", "rw=read", "size=64k"]),
        (&["replay", "a.trace", "--lab=world.toml"], &[]),
        (&["tune", "--lab=world.toml", "--axis", "requests"], &["--", "rw=read", "size=64k"]),
    ] {
        let ended = lab.run(&[words, &set[..], rest].concat());
        let said = text(&ended.stderr);
        assert!(ended.status.success() && said.contains("is cut off at byte"), "{words:?}: {said}");
    }
}

#[test]
fn trace_that_cannot_be_replayed_says_why() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("world.toml", WORLD);
    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s", "--trace", "a.trace"]);
    clients_work(&lab);
    assert!(server.stop(Signal::TERM).success());
    lab.write("short", vec![0; 8192]);
    let short = ["replay", "a.trace", "--raw", "short"];
    assert!(lab.refused(&short, 5).contains("--destroy"));
    let short = [&short[..], &["--destroy", "--fast"]].concat();
    let said = lab.refused(&short, 1);
    assert!(said.contains("bio ") && said.contains("--wrap"), "{said}");
    lab.ok(&[&short[..], &["--wrap"]].concat());
    lab.write("no.trace", "[global]\nrw=read\n");
    assert!(lab.refused(&["trace", "summary", "no.trace"], 1).contains("does not begin with"));
    let bytes = lab.read("a.trace");
    lab.write("cut.trace", &bytes[..bytes.len() - 40]);
    let cut = lab.ok(&["trace", "summary", "cut.trace"]);
    assert!(text(&cut.stderr).contains("is cut off at byte"), "{}", text(&cut.stderr));
    let mut bad = bytes;
    bad[100] ^= 1;
    lab.write("bad.trace", bad);
    for (words, wanted, code) in [
        (["--null", "--output", "new.trace"], "--output", 1),
        (["--null", "--set", "device.kind=flash"], "--set", 1),
        (["--lab=world.toml", "--output", "no/new.trace"], "the folder no", 1),
        (["--lab=world.toml", "--output", "bad.trace"], "exists already", 5),
    ] {
        let output = lab.run(&[&["replay", "a.trace"], &words[..]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(wanted), "{words:?}: {said}");
    }
    let said = lab.refused(&["replay", "bad.trace", "--null"], 1);
    assert!(said.contains("damaged") && said.contains("truncate"), "{said}");
}
