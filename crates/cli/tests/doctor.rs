//! `blockyard doctor`: slow and risky settings, and their correction.

mod lab;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lab::nbd::Nbd;
use lab::{Lab, text};
use serde_json::Value;

/// Findings about a volume's file, as grade and text.
fn findings(lab: &Lab, words: &[&str]) -> Vec<(String, String)> {
    let output = lab.ok(&[words, &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_file = |one: &&Value| one["place"].as_str().unwrap().ends_with("vol");
    let findings = report["findings"].as_array().unwrap().iter().filter(of_file);
    let part = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    findings.map(|one| (part(one, "grade"), part(one, "seen"))).collect()
}

#[test]
fn faults_of_a_volume_are_found_without_a_passphrase() {
    let lab = Lab::new();
    lab.volume("vol");
    let path = lab.path("vol");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let before = lab.read("vol");
    let risky = |findings: &[(String, String)], word: &str| {
        findings.iter().any(|(grade, seen)| grade == "risky" && seen.contains(word))
    };
    let bad = findings(&lab, &["doctor", "vol"]);
    assert!(risky(&bad, "everybody on this machine can read"), "{bad:?}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let mended = findings(&lab, &["doctor", "vol"]);
    assert!(!risky(&mended, "can read"), "{mended:?}");
    assert!(mended.iter().any(|(_, seen)| seen.contains("TRIM")), "{mended:?}");
    assert_eq!(lab.read("vol"), before);
}

#[test]
fn configuration_and_its_volumes_are_looked_at_and_what_is_missing_is_an_error() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("all.toml", "listen = \"0.0.0.0:1\"\n[exports.a]\nvolume = \"vol\"\n");
    let output = lab.ok(&["doctor", "--config", "all.toml"]);
    let said = text(&output.stdout);
    assert!(said.contains("0.0.0.0:1 is open to the network"), "{said}");
    assert!(said.contains("TRIM"), "{said}");
    let twice = ["a", "b"].map(|name| format!("[exports.{name}]\nvolume = \"vol\"\n"));
    lab.write("twice.toml", twice.concat());
    let found = findings(&lab, &["doctor", "--config", "twice.toml"]);
    let trim = found.iter().filter(|(_, seen)| seen.contains("TRIM is not passed"));
    assert_eq!(trim.count(), 1, "{found:?}");
    for option in ["read_only", "allow_discards"] {
        lab.write("one.toml", format!("[exports.a]\nvolume = \"vol\"\n{option} = true\n"));
        let said = text(&lab.ok(&["doctor", "--config", "one.toml"]).stdout);
        assert!(!said.contains("TRIM is not passed"), "{option}: {said}");
    }
    let volume = "[exports.a]\nvolume = \"vol\"\n";
    lab.write("cpus.toml", format!("cpus = \"0\"\nthreads = 2\n{volume}"));
    let said = text(&lab.ok(&["doctor", "--config", "cpus.toml"]).stdout);
    assert!(said.contains("2 cipher threads share 1 CPUs"), "{said}");
    for (setting, words) in [("cpus = \"0,4095\"", "CPU 4095"), ("numa = 999", "no such node")] {
        lab.write("other.toml", format!("{setting}\n{volume}"));
        let error = lab.refused(&["doctor", "--config", "other.toml"], 1);
        assert!(error.contains("other.toml") && error.contains(words), "{error}");
    }
    let error = lab.refused(&["doctor", "missing"], 4);
    assert!(error.contains("missing: cannot be checked"), "{error}");
    let error = lab.refused(&["doctor", "nbd://store.example/home"], 1);
    assert!(error.contains("run doctor on an NBD server itself"), "{error}");
    lab.write("no-vol", "Dear all,");
    let letter = findings(&lab, &["doctor", "no-vol"]);
    assert!(letter.iter().any(|(_, seen)| seen.contains("no LUKS header")), "{letter:?}");
}

#[test]
fn server_that_runs_is_asked_what_its_requests_wait_for() {
    let lab = Lab::new();
    lab.volume("vol");
    let words = ["vol", "-d", "pass", "--socket", "s", "--control", "c", "--max-connections", "1"];
    let _server = lab.serve(&words);
    let said = |words: &[&str]| text(&lab.ok(words).stdout);
    let idle = said(&["doctor", "--control", "c"]);
    assert!(!idle.contains("export \"\"") && !idle.contains("connections are taken"), "{idle}");
    let mut client = Nbd::open(&lab.path("s"));
    client.read(0, 4096);
    lab.ok(&["suspend", "c"]);
    let busy = said(&["doctor", "--control", "c"]);
    for wanted in [
        "slow   c: all 1 connections are taken",
        "--max-connections 2\n",
        "slow   export \"\": it is suspended, and 0 requests wait until it is resumed\n       \
         blockyard resume c\n",
        "note   export \"\": the client limits since the start: ",
    ] {
        assert!(busy.contains(wanted), "{wanted}: {busy}");
    }
    let error = lab.refused(&["doctor", "--control", "missing"], 4);
    assert!(error.contains("is a server running"), "{error}");
}
