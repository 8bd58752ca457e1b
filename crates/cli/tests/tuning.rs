//! `blockyard tune`: finds settings by measuring.

mod lab;

use lab::{Lab, SMALL_LEN_BYTES, noise, text};
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn request_size_of_the_ram_disk_of_2013_is_found() {
    let lab = Lab::new();
    let world = ["tune", "--lab", "parallel-dm-crypt-2013", "--variant", "ram-64k"];
    let jobs = ["--axis", "request size", "--json", "--", "rw=write", "bs=256k", "size=4m"];
    let words: Vec<&str> = world.into_iter().chain(jobs).chain(["direct=1"]).collect();
    let output = lab.ok(&words);
    let evidence: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(evidence["best"], "crypt.bio_kib=8");
    let ratio = evidence["against_default"]["low"].as_f64().unwrap();
    assert!(ratio > 1.0, "{evidence:#}");
}

#[test]
fn volume_is_tuned_without_a_write_and_the_result_is_a_configuration() {
    let lab = Lab::new();
    lab.volume("vol");
    let plaintext = noise(SMALL_LEN_BYTES, 9);
    assert!(lab.fed(&["load", "vol", "-d", "pass"], &plaintext).status.success());
    let before = lab.read("vol");
    let words = ["tune", "vol", "-d", "pass", "-O", "tuned.toml", "--time", "1", "--slice", "10"];
    let jobs = ["--", "rw=randread", "bs=4k"];
    let output = lab.ok(&words.into_iter().chain(jobs).collect::<Vec<_>>());
    let evidence = text(&output.stderr);
    let has_line = |start: &str| evidence.lines().any(|line| line.starts_with(start));
    assert!(has_line("measured again") && has_line("the default "), "{evidence}");
    assert!(!evidence.contains("\\n"), "{evidence}");
    assert_eq!(lab.read("vol"), before);
    let config = String::from_utf8(lab.read("tuned.toml")).unwrap();
    assert!(config.contains("[exports.vol]") && config.contains("/vol\""), "{config}");
    let server = lab.serve(&["--config", "tuned.toml", "--socket", "s"]);
    assert!(server.stop(Signal::TERM).success());
    // It is not overwritten.
    let error = lab.refused(&words.into_iter().chain(["-w", "lone"]).collect::<Vec<_>>(), 5);
    assert!(error.contains("tuned.toml: exists already"), "{error}");
}

#[test]
fn jobs_that_write_need_leave_and_a_workload_is_needed() {
    let lab = Lab::new();
    lab.volume("vol");
    let words = ["tune", "vol", "-d", "pass", "--", "rw=randwrite", "bs=4k"];
    let error = lab.refused(&words, 5);
    assert!(error.contains("--destroy"), "{error}");
    let error = lab.refused(&["tune", "vol", "-d", "pass"], 1);
    assert!(error.contains("--workload"), "{error}");
    let error = lab.refused(&["tune", "vol", "-d", "pass", "-w", "vms"], 1);
    assert!(error.contains("vm, database"), "{error}");
    // Unwritable outputs, and settings without effect.
    for (words, wanted) in [
        (["-O", "no/found.toml"], "the folder no"),
        (["--html", "no/page.html"], "the folder no"),
        (["--axis", "pipeline"], "--axis"),
        (["--time=1", "--wrap"], "--wrap"),
    ] {
        let words = [&["tune", "vol", "-d", "pass", "-w", "vm"], &words[..]].concat();
        let output = lab.run(&words);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {error}");
        assert!(error.contains(wanted), "{words:?}: {error}");
    }
}

#[test]
fn settings_of_a_plain_file_are_options_since_no_configuration_names_one() {
    let lab = Lab::new();
    lab.write("data", noise(1 << 20, 9));
    let words = ["tune", "--raw", "data", "--time", "1", "--slice", "10", "-w", "vm"];
    let output = lab.ok(&words);
    let found = text(&output.stdout);
    assert!(found.starts_with("the default") || found.starts_with("--"), "{found}");
    let said = text(&output.stderr);
    assert!(said.contains("only reads") && !said.contains("70 % reads"), "{said}");
    assert!(lab.refused(&[&words[..], &["-O", "x.toml"]].concat(), 1).contains("--raw"));
    assert!(!lab.path("x.toml").exists());
}
