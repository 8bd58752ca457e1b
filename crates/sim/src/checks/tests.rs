//! Rules hold and their controls do not, with any seed; measured checks run and repeat.

use super::*;

/// Checks of rules; the verdicts of others are results.
const RULES: [&str; 15] = [
    "002-19", "002-22", "003-5", "003-6", "003-7", "003-8", "003-9", "004-1", "004-4", "004-5",
    "004-6", "004-7", "004-8", "004-10", "004-13",
];

fn is_rule(check: &&Check) -> bool {
    RULES.contains(&check.id)
}

#[test]
fn rules_hold_and_not_without_their_mechanism() {
    for check in all().iter().filter(is_rule) {
        for seed in 1..=3 {
            let verdict = (check.run)(seed);
            assert!(verdict.holds, "{} with seed {seed}: {}", check.id, verdict.ours);
            let control = verdict.control.expect("every check has a control");
            assert_eq!(verdict.control_holds, Some(true), "{} seed {seed}: {control}", check.id);
        }
    }
}

#[test]
fn measured_checks_repeat_and_give_numbers() {
    for check in all().iter().filter(|check| !is_rule(check)) {
        let verdict = (check.run)(1);
        assert_eq!(verdict, (check.run)(1), "{}", check.id);
        for text in [Some(&verdict.ours), verdict.control.as_ref()] {
            let text = text.expect("every check has a control");
            assert!(text.contains(|c: char| c.is_ascii_digit()), "{}: {text}", check.id);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{}: {text}", check.id);
        }
    }
}

#[test]
fn every_claim_has_one_check_and_rules_are_among_them() {
    let mut ids: Vec<&str> = all().iter().map(|check| check.id).collect();
    for id in &ids {
        assert_eq!(find(id).map(|check| check.id), Some(*id));
    }
    assert!(RULES.iter().all(|id| ids.contains(id)));
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all().len());
    assert!(find("004-2").is_none());
}
