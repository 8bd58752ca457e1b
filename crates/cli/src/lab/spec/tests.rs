use super::*;
use crate::lab::builtin::{BUILTIN, TEMPLATE, load};

const SMALL: &str = include_str!("testdata/small.toml");

fn small() -> Experiment {
    Experiment::parse("small.toml", SMALL, None).unwrap()
}

/// What is said about the small experiment after some of its text has been replaced.
fn refusal(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    let text = SMALL.replacen(from, to, 1);
    Experiment::parse("small.toml", &text, None).expect_err(to).message
}

fn line_of(text: &str) -> String {
    let line = SMALL.lines().position(|line| line.contains(text)).unwrap() + 1;
    format!("small.toml, line {line}:")
}

#[test]
fn variants_are_overrides_over_settings_points_and_what_the_user_sets() {
    let experiment = small();
    let (old, new) = (experiment.variant("old").unwrap(), experiment.variant("new").unwrap());
    let elevator = |variant, set: &[Override], control: &[Override]| {
        let setup = experiment.setup(variant, None, set, control).unwrap();
        setup.config.elevator.to_string()
    };
    assert_eq!(elevator(old, &[], &[]), "deadline");
    assert_eq!(elevator(new, &[], &[]), "deadline-prio");
    let set = [Override::parse("queue.elevator=noop").unwrap()];
    assert_eq!(elevator(new, &set, &[]), "noop", "the user's word is the last");
    let control = [Override::parse("queue.elevator=none").unwrap()];
    assert_eq!(elevator(new, &set, &control), "none", "but for a control's");

    let point = Point { values: vec![9_500, 200] };
    let setup = experiment.setup(old, Some(&point), &[], &[]).unwrap();
    let JobSpec::Fsync(options) = &setup.jobs[0].1 else { panic!("{setup:?}") };
    assert_eq!(options.background_bytes, Some(200 << 20));
}

#[test]
fn without_accepted_points_the_middle_of_the_box_is_run() {
    let experiment = small();
    let old = experiment.variant("old").unwrap();
    assert_eq!(experiment.points(old), [Some(Point { values: vec![9_000, 181] })]);
    let points = "[disk]\ndrawn = 3\npoints = [\n\
                  { \"device.seek_average_us\" = 8001, \"jobs.fsync.background_mib\" = 130 },\n]\n";
    let fitted = Experiment::parse("small.toml", SMALL, Some(points)).unwrap();
    let old = fitted.variant("old").unwrap();
    assert_eq!(fitted.points(old), [Some(Point { values: vec![8_001, 130] })]);
    assert!(fitted.fits[0].print(3).contains("\"device.seek_average_us\" = 8001"));
    let printed = fitted.fits[0].print(3);
    let again = Experiment::parse("small.toml", SMALL, Some(&printed)).unwrap();
    assert_eq!(again.fits[0].points, fitted.fits[0].points);
    for bad in ["8001", "9999999", "-1"] {
        let lacking = format!("[disk]\npoints = [{{ \"device.seek_average_us\" = {bad} }}]\n");
        let said = Experiment::parse("small.toml", SMALL, Some(&lacking)).unwrap_err().message;
        assert!(said.contains("small.fits.toml, line 2"), "{said}");
    }
}

#[test]
fn published_fsync_samples_become_the_rows_that_are_measured() {
    let experiment = small();
    let at = |metric| {
        let cell = Cell { variant: "old".into(), row: "fsync".into(), metric };
        experiment.published_at(&cell).map(|row| (row.value, row.role))
    };
    assert_eq!(at("fsync_median"), Some((1.0, Role::Calibrate)));
    assert_eq!(at("fsync_max"), Some((1.5, Role::Calibrate)));
    assert_eq!(at("fsync_over_1s"), Some((0.5, Role::Calibrate)));
    assert_eq!(at("rate"), None);
}

#[test]
fn mistakes_are_told_with_line_key_and_what_is_allowed() {
    for (from, to, line, words) in [
        ("kind = \"disk\"", "kind = \"dsik\"", "kind =", &["device.kind", "\"flash\""][..]),
        ("size_mib = 16384", "size_mb = 16384", "size_mib", &["device.size_mb", "size_mib"]),
        ("size_mib = 16384", "size_mib = 0", "size_mib", &["device.size_mib", "from 1 to"]),
        ("memory_mib = 64", "memory_mib = 1e9", "memory_mib", &["whole number"]),
        ("\"deadline\"", "\"dealdine\"", "\"deadline\"", &["queue.elevator", "mq-deadline"]),
        ("samples = 4", "samples = -4", "samples", &["jobs.fsync.samples", "from 1"]),
        ("program = \"fsync-tester\"", "program = \"dd\"", "program", &["\"tiotest\""]),
        ("settings = [\"prio\"]", "settings = [\"pro\"]", "settings = [", &["prio"]),
        ("role = \"calibrate\"", "role = \"fit\"", "role =", &["\"predict\""]),
        ("fsync_median = 0.1", "fsync_mean = 0.1", "fsync_median = 0.1", &["fsync_max"]),
        ("max = 0.3", "maximum = 0.3", "max = 0.3", &["maximum", "published"]),
        ("seeds = [1, 2]", "seeds = []", "seeds", &["1 to 64"]),
    ] {
        let said = refusal(from, to);
        assert!(said.starts_with(&line_of(line)), "{to}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{to}: {said}");
    }
}

#[test]
fn mistake_in_an_override_names_the_override() {
    let experiment = small();
    let old = experiment.variant("old").unwrap();
    for (set, words) in [
        ("queue.nr_requests=0", &["--set queue.nr_requests=0", "from 1 to"][..]),
        ("queue.nr_request=8", &["--set queue.nr_request=8", "nr_requests"]),
        ("claims.x=8", &["--set claims.x=8", "queue, device"]),
        ("device.kind=tape", &["--set device.kind=tape", "\"disk\""]),
        ("jobs.fsync.ioprio=rt:9", &["--set jobs.fsync.ioprio=rt:9", "be:7"]),
    ] {
        let set = [Override::parse(set).unwrap()];
        let said = experiment.setup(old, None, &set, &[]).unwrap_err().message;
        assert!(words.iter().all(|word| said.contains(word)), "{set:?}: {said}");
    }
    let said = refusal("\"queue.elevator\" = \"deadline-prio\"", "\"queue.elevator\" = \"x\"");
    assert!(said.starts_with(&line_of("deadline-prio")), "{said}");
}

#[test]
fn what_is_named_must_be_there_and_predictions_are_not_fitted_on() {
    for (from, to, words) in [
        ("variants = [\"old\", \"new\"]", "variants = [\"odl\"]", &["\"odl\"", "old, new"][..]),
        ("row = \"old/", "row = \"new/", &["calibrate"]),
        ("row = \"old/fsync/fsync_median\"", "row = \"old/x/rate\"", &["old/x/rate"]),
        ("row = \"old/fsync/fsync_median\"", "row = \"old/fsync\"", &["variant/row/metric"]),
        ("[published.new]", "[published.nwe]", &["nwe", "old, new"]),
        ("value = \"new/", "value = \"nwe/", &["nwe", "old, new"]),
        ("id = \"2\"", "id = \"1\"", &["twice"]),
        ("unjudged = \"one sample\"", "check = \"004-1\"", &["\"unjudged\""]),
        ("sync_flags\" = false", "sync_flag\" = false", &["write_back.sync_flag", "sync_flags"]),
        ("kind = \"disk\"", "kind = \"disk\"\nseek_track_us = 20000", &["seek_track_us <="]),
        ("size_mib = 16384", "size_mib = 1", &["job fsync", "larger device"]),
    ] {
        let said = refusal(from, to);
        assert!(words.iter().all(|word| said.contains(word)), "{to}: {said}");
    }
}

#[test]
fn every_experiment_of_ours_and_the_template_can_be_read() {
    for builtin in BUILTIN {
        assert_eq!(load(builtin.name).unwrap().name, builtin.name);
    }
    let template = Experiment::parse("template.toml", TEMPLATE, None).unwrap();
    assert!(!template.variants.is_empty());
}

#[test]
fn deadline_2009_has_all_claims_and_fits_only_on_the_rows_it_may() {
    let experiment = load("deadline-2009").unwrap();
    let ids: Vec<String> = experiment.claims.iter().map(|claim| claim.id.clone()).collect();
    assert_eq!(ids, (1..=29).map(|n| format!("004-{n}")).collect::<Vec<_>>());
    assert_eq!(experiment.published.len(), 3 * 36 + 2 * 36 + 4 * 4);
    let fitted = |row: &&Published| row.role == Role::Calibrate;
    let fitted = experiment.published.iter().filter(fitted).map(|row| row.cell.variant.as_str());
    let fitted: BTreeSet<&str> = fitted.collect();
    assert_eq!(fitted, BTreeSet::from(["hdd-deadline-original", "sd-cfq"]));
}
