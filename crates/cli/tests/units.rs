//! The units of systemd, judged by systemd itself.

mod lab;

use std::fs;
use std::path::Path;
use std::process::Command;

use lab::{Lab, text};

const SERVICE: &str = "blockyard@.service";
/// Highest permitted exposure, times ten. Most services have more than 90.
const EXPOSURE_MAX: &str = "--threshold=20";

/// The units of the system or of a user in a folder of their own, with the program of this test.
fn units(folder: &str) -> Lab {
    let lab = Lab::new();
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(folder);
    for unit in fs::read_dir(packaged).unwrap() {
        let unit = unit.unwrap();
        if unit.path().is_dir() {
            continue;
        }
        let content = fs::read_to_string(unit.path()).unwrap();
        let content = content.replace("/usr/bin/blockyard", env!("CARGO_BIN_EXE_blockyard"));
        lab.write(unit.file_name().to_str().unwrap(), content);
    }
    lab
}

/// Runs systemd-analyze; `None` where it is not installed, which `cargo x test` does.
fn analyzed(lab: &Lab, words: &[&str]) -> Option<(bool, String)> {
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(words).arg("--no-pager").current_dir(lab.path(""));
    // The folder of units of a user.
    analyze.env("XDG_RUNTIME_DIR", lab.path(""));
    let output = analyze.output().ok()?;
    Some((output.status.success(), text(&output.stdout) + &text(&output.stderr)))
}

#[test]
fn units_are_valid_and_expose_little() {
    let lab = units("systemd");
    let names = ["./blockyard@test.service", "./blockyard@test.socket"];
    let Some((is_valid, said)) = analyzed(&lab, &[&["verify"][..], &names].concat()) else {
        return;
    };
    assert!(is_valid && !said.contains("blockyard"), "{said}");
    let security = ["security", "--offline=true", EXPOSURE_MAX, names[0]];
    let (is_low, said) = analyzed(&lab, &security).unwrap();
    assert!(is_low, "{said}");
    // Without a line that limits much.
    let service = text(&lab.read(SERVICE));
    let open: String = service.lines().filter(|line| !line.starts_with("SystemCall")).collect();
    lab.write(SERVICE, open.replace("[", "\n[").replace("CapabilityBoundingSet=", ""));
    assert!(!analyzed(&lab, &security).unwrap().0, "the check passes everything");
}

#[test]
fn units_of_a_user_are_valid() {
    let lab = units("systemd/user");
    let names = ["./blockyard@test.service", "./blockyard@test.socket"];
    let Some((is_valid, said)) = analyzed(&lab, &[&["verify", "--user"][..], &names].concat())
    else {
        return;
    };
    assert!(is_valid && !said.contains("blockyard"), "{said}");
}

/// A filter of systemd kills a process at a call that it does not list.
#[test]
fn calls_of_the_sandbox_pass_the_filter_of_the_unit() {
    for folder in ["systemd", "systemd/user"] {
        let service = text(&units(folder).read(SERVICE));
        let filter = service.lines().filter_map(|line| line.strip_prefix("SystemCallFilter="));
        let named: String = filter.collect::<Vec<_>>().join(" ");
        for call in
            ["seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
        {
            assert!(named.split(' ').any(|name| name == call), "{folder}: no {call} in {named}");
        }
    }
}
