//! `blockyard bench`: fio's jobs on volumes.

mod lab;

use std::process::Stdio;

use lab::{Lab, SMALL_LEN_BYTES, noise, one_error, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const JOBS: &str = "\
[global]
ioengine=libaio
direct=1
size=50%

[filler]
rw=write
bs=64k

[reader]
stonewall
rw=randread
bs=4k
iodepth=8
";

#[test]
fn jobs_of_a_file_run_in_their_order_and_have_fios_names() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("jobs.fio", JOBS);
    let words = ["bench", "vol", "-d", "pass", "-j", "jobs.fio", "--destroy", "--json"];
    let output = lab.ok(&words);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let half = SMALL_LEN_BYTES as u64 / 2;
    let seen: Vec<_> = report["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| {
            let number = |side: &str, name: &str| job[side][name].as_u64().unwrap();
            let name = job["jobname"].as_str().unwrap().to_owned();
            let bytes = (number("read", "io_bytes"), number("write", "io_bytes"));
            (name, job["groupid"].as_u64().unwrap(), bytes, number("read", "total_ios"))
        })
        .collect();
    let filler = ("filler".into(), 0, (0, half), 0);
    assert_eq!(seen, [filler, ("reader".into(), 1, (half, 0), half / 4096)]);
    assert!(report["jobs"][1]["read"]["clat_ns"]["percentile"]["99.000000"].as_u64() > Some(0));
    assert!(!text(&output.stderr).contains("direct"), "{}", text(&output.stderr));
}

#[test]
fn volume_is_not_written_without_leave_and_not_behind_what_the_jobs_have() {
    let lab = Lab::new();
    lab.volume("vol");
    let plaintext = noise(SMALL_LEN_BYTES, 9);
    assert!(lab.fed(&["load", "vol", "-d", "pass"], &plaintext).status.success());
    let write = ["bench", "vol", "-d", "pass", "--", "rw=randwrite", "bs=4k", "size=64k"];
    let error = lab.refused(&write, 5);
    assert!(error.contains("--destroy"), "{error}");
    let dump = || lab.ok(&["dump", "vol", "-d", "pass"]).stdout;
    assert!(dump() == plaintext);
    lab.ok(&["bench", "vol", "-d", "pass", "--", "rw=randread", "bs=4k", "ioengine=io_uring"]);
    assert!(dump() == plaintext, "reading jobs change nothing");
    let mut words = vec!["bench", "vol", "-d", "pass", "--destroy"];
    words.extend(["--", "rw=write", "bs=4k", "size=64k", "offset=128k"]);
    let output = text(&lab.ok(&words).stdout).to_owned();
    assert!(output.contains("write: IOPS="), "{output}");
    let after = dump();
    let changed: Vec<usize> =
        (0..after.len()).step_by(4096).filter(|at| after[*at] != plaintext[*at]).collect();
    assert!(changed.iter().all(|at| (128 << 10..192 << 10).contains(at)), "{changed:?}");
    assert!(after[..128 << 10] == plaintext[..128 << 10] && !changed.is_empty());
}

#[test]
fn mistake_in_a_job_is_one_error_with_its_place() {
    let lab = Lab::new();
    lab.write("raw", vec![0; 1 << 20]);
    lab.write("bad.fio", "[a]\nrw=read\niodeph=4\n");
    for (words, wanted) in [
        (
            &["-j", "bad.fio"][..],
            "bad.fio, line 3: iodeph is not a known option; did you mean iodepth",
        ),
        (&["-j", "missing.fio"], "cannot read missing.fio"),
        (&[], "no job: name a job file"),
        (&["--", "rw=read", "size=2m"], "size and offset end at 2097152 bytes, and the volume has"),
        (&["--", "rw=append"], "rw is \"append\": it must be one of"),
        (&["--", "bs=${NO_SUCH_VARIABLE}"], "bs is \"\": it must be a number"),
        (
            &["--", "offset=1m"],
            "a block of 4096 bytes at offset 1048576 ends past the volume's end",
        ),
        (&["--", "bs=2m"], "a block of 2097152 bytes at offset 0 ends past the volume's end"),
        // Refused before the jobs run.
        (&["--html", "no/page.html", "--", "time_based", "runtime=1d"], "the folder no"),
        (&["--", "write_bw_log=no/log", "time_based", "runtime=1d"], "the folder no"),
        (&["--set", "device.kind=flash", "--", "rw=read"], "--set"),
        (&["--variant", "cfq", "--", "rw=read"], "--variant"),
    ] {
        let words = [&["bench", "--raw", "raw"], words].concat();
        let error = one_error(&lab.run(&words), 1);
        assert!(error.contains(wanted), "{words:?}: {error}");
    }
}

#[test]
fn null_device_and_the_lab_are_targets_too() {
    let lab = Lab::new();
    let jobs = ["--", "rw=randrw", "bs=4k", "size=64k"];
    let null = [&["bench", "--null", "1m", "--json"][..], &jobs].concat();
    let moved = |words: &[&str]| {
        let report: Value = serde_json::from_slice(&lab.ok(words).stdout).unwrap();
        let bytes = |side: &str| report["jobs"][0][side]["io_bytes"].as_u64().unwrap();
        (bytes("read") + bytes("write"), report)
    };
    assert_eq!(moved(&null).0, 64 << 10);
    let world = ["bench", "--lab", "parallel-dm-crypt-2013", "--variant", "ram-64k", "--json"];
    let words = [&world[..], &jobs, &["direct=1"]].concat();
    let (bytes, first) = moved(&words);
    assert_eq!(bytes, 64 << 10);
    assert_eq!(moved(&words).1, first, "a simulated run is reproducible");
}

#[test]
fn runs_are_compared_on_one_page() {
    let lab = Lab::new();
    for (name, ios) in [("one.json", "number_ios=8"), ("two.json", "number_ios=16")] {
        let words = ["bench", "--null", "1m", "--json", "--", "rw=read", "bs=4k", ios];
        lab.write(name, lab.ok(&words).stdout);
    }
    let said = lab.ok(&["report", "one.json", "two.json"]).stdout;
    let said = text(&said);
    let line = said.lines().find(|line| line.starts_with("requests")).unwrap();
    assert!(line.contains('8') && line.ends_with("16 (+100.0 %)"), "{said}");
    lab.ok(&["report", "one.json", "two.json", "-o", "page.html"]);
    let page = String::from_utf8(lab.read("page.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("(+100.0 %)"));
    let error = lab.refused(&["report", "one.json", "-o", "page.html"], 5);
    assert!(error.contains("page.html: exists already"), "{error}");
    lab.write("bad.json", "{\"jobs\": 3}");
    let error = lab.refused(&["report", "bad.json"], 1);
    assert!(error.contains("bad.json: has no \"jobs\""), "{error}");
}

/// True if a process collects signals, without delivering them to its threads. The main thread
/// blocks just these signals: for a moment of each `pthread_create` it blocks all signals.
fn collects_signals(pid: u32) -> bool {
    let blocks = |mask: u64, signal: Signal| mask & 1 << (signal.as_raw() - 1) != 0;
    let is_blocked = |thread: std::io::Result<std::fs::DirEntry>| {
        let thread = thread.unwrap();
        // An ended thread takes none either.
        let Ok(status) = std::fs::read_to_string(thread.path().join("status")) else {
            return true;
        };
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        let is_main = thread.file_name().to_str() == Some(&pid.to_string());
        blocks(mask, Signal::INT) && !(is_main && blocks(mask, Signal::USR1))
    };
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(is_blocked)
}

/// Runs endless jobs on a target until a signal comes; the measurements are printed all the same.
fn ended_by_a_signal(lab: &Lab, target: &[&str]) {
    let words = [&["bench"], target, &["--json", "--trace", "jobs.trace", "--", "rw=randread"]];
    let mut command = lab.blockyard(&words.concat());
    command.args(["bs=4k", "rate_iops=1000", "runtime=3600", "time_based"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = std::time::Instant::now();
    while !collects_signals(child.id()) {
        assert!(start.elapsed().as_secs() < 60, "a thread takes signals for itself");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = one_error(&output, 1);
    assert!(error.contains("a signal ended the jobs early"), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["jobs"].as_array().map(Vec::len), Some(1));
    lab.ok(&["trace", "summary", "jobs.trace"]);
}

#[test]
fn measurements_before_a_signal_are_printed() {
    ended_by_a_signal(&Lab::new(), &["--null", "1G"]);
}

#[test]
fn measurements_on_an_argon2_volume_before_a_signal_are_printed() {
    let lab = Lab::new();
    let cost = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "32768"];
    let words = ["format", "vol", "--size", "24M", "-q", "--key-file", "pass", "--pbkdf=argon2id"];
    lab.ok(&[&words[..], &cost, &["--pbkdf-parallel", "4"]].concat());
    ended_by_a_signal(&lab, &["vol", "-d", "pass"]);
}

#[test]
fn direct_is_honoured_and_every_result_says_what_it_depends_on() {
    let lab = Lab::new();
    let data = lab.write("data", noise(1 << 20, 1));
    // tmpfs has no O_DIRECT: its pages are the storage.
    let is_tmpfs = rustix::fs::statfs(&data).unwrap().f_type == 0x0102_1994;
    let said = |direct: &[&str]| {
        let words = ["bench", "--raw", "data", "--html", "page.html", "--force"];
        let jobs = ["--", "rw=randread", "bs=4k", "size=64k"];
        let shown = text(&lab.ok(&[&words[..], &jobs, direct].concat()).stdout);
        let report = lab.ok(&[&words[..], &["--json"], &jobs, direct].concat()).stdout;
        let report: Value = serde_json::from_slice(&report).unwrap();
        let page = text(&lab.read("page.html"));
        for name in ["file", "host", "backing", "direct", "placement"] {
            let value = report["conditions"][name].as_str().unwrap();
            assert!(shown.contains(&format!("{name}: {value}\n")), "{shown}");
            assert!(page.contains(name), "{name} is not on the page");
        }
        report["conditions"]["direct"].as_str().unwrap().to_owned()
    };
    for (options, wanted) in [
        (&["direct=1"][..], "yes"),
        (&["buffered=0"], "yes"),
        (&["direct=0"], "no, through"),
        (&[], "no, through"),
    ] {
        let wanted = if is_tmpfs { "no, its pages" } else { wanted };
        assert!(said(options).starts_with(wanted), "{options:?}: {}", said(options));
    }
    let both = ["bench", "--raw", "data", "--direct", "--", "rw=read", "direct=0"];
    assert!(lab.refused(&both, 1).contains("contradict"));
}
