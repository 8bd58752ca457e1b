//! `blockyard lab`: a user's experiments, from the file to the report.

mod lab;

use lab::{Lab, text};
use serde_json::Value;

/// Small enough for many runs.
const SMALL: &str = r#"
name = "small"
title = "Readers on a card"
seeds = [1, 2]

[file_system]
kind = "none"

[queue]
elevator = "noop"

[device]
kind = "flash"
size_mib = 64
read_page_us = 100

[jobs.mix]
program = "fio"
sections.reader = { rw = "randread", bs = "4k", size = "4m", direct = 1, iodepth = 8 }

[variants.fast]

[variants.slow]
set = { "device.read_page_us" = 200 }

[published.fast]
role = "calibrate"
rows."reader read" = { iops = 5000, cpu_sys = 0.1 }

[published.slow]
rows."reader read" = { iops = 2000 }

[fits.card]
variants = ["fast"]
box = [{ path = "device.read_page_us", low = 50, high = 400 }]
accept = [{ row = "fast/reader read/iops", error_max = 0.1 }]
draws = 200
keep = 2

[[claims]]
id = "1"
text = "slow is slower"
control.set = { "device.read_page_us" = 100 }
[[claims.measure]]
ratio = ["slow/reader read/iops", "fast/reader read/iops"]
max = 0.8
"#;

fn json(lab: &Lab, words: &[&str]) -> Value {
    serde_json::from_slice(&lab.ok(words).stdout).unwrap()
}

fn ours<'a>(report: &'a Value, variant: &str, metric: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    rows.iter().find(|row| row["variant"] == variant && row["metric"] == metric).unwrap()
}

#[test]
fn experiment_is_run_judged_and_comes_out_the_same_each_time() {
    let lab = Lab::new();
    lab.write("small.toml", SMALL);
    let first = lab.ok(&["lab", "run", "small.toml", "--json", "--check"]);
    let second = lab.ok(&["lab", "run", "small.toml", "--json"]);
    assert_eq!(text(&first.stdout), text(&second.stdout));
    assert!(text(&first.stderr).contains("NOT FITTED"), "{}", text(&first.stderr));

    let report: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(report["experiment"], "small");
    let fast = ours(&report, "fast", "iops");
    let slow = ours(&report, "slow", "iops");
    assert_eq!((&fast["calibrated"], &slow["calibrated"]), (&true.into(), &false.into()));
    assert_eq!((&fast["unit"], &fast["published"]), (&"1/s".into(), &5000.0.into()));
    let ratio = slow["ours"].as_f64().unwrap() / 2000.0 - 1.0;
    assert!((slow["error"].as_f64().unwrap() - ratio).abs() < 1e-9);
    let claim = &report["claims"][0];
    // The box's middle is 225 us per page: there, slow is faster.
    assert_eq!((&claim["holds"], &claim["id"]), (&false.into(), &"1".into()));

    let shown = text(&lab.ok(&["lab", "run", "small.toml"]).stdout);
    for words in ["reader read", "slow is slower", "NOT FITTED", "Causes", "published"] {
        assert!(shown.contains(words), "{words} is missing in {shown}");
    }
}

#[test]
fn fitted_points_are_written_beside_the_file_and_used() {
    let lab = Lab::new();
    lab.write("small.toml", SMALL);
    let said = lab.ok(&["lab", "fit", "small.toml"]).stderr;
    assert!(text(&said).contains("2 of "), "{}", text(&said));
    let points = lab.read("small.fits.toml");
    assert_eq!(text(&points).matches("device.read_page_us").count(), 2);
    lab.ok(&["lab", "fit", "small.toml", "-o", "again.toml"]);
    assert_eq!(points, lab.read("again.toml"), "a search does not depend on luck");

    let output = lab.ok(&["lab", "run", "small.toml", "--json"]);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let fast = ours(&report, "fast", "iops");
    let low = fast["low"].as_f64().unwrap();
    let high = fast["high"].as_f64().unwrap();
    assert!(low > 4_500.0 && low < high && high < 5_500.0, "{low} to {high}");
    let shown = text(&lab.ok(&["lab", "run", "small.toml"]).stdout);
    assert!(shown.contains("2 of 2 points meet the bound"), "{shown}");

    lab.write("small.fits.toml", "[card]\npoints = [{ \"device.read_page_us\" = 300 }]\n");
    let stale = lab.ok(&["lab", "run", "small.toml"]).stderr;
    assert!(text(&stale).contains("only 0 of 1 points"), "{}", text(&stale));
}

#[test]
fn settings_are_changed_by_path_and_compared_side_by_side() {
    let lab = Lab::new();
    lab.write("small.toml", SMALL);
    let run = ["lab", "run", "small.toml", "--variant", "slow", "--seed", "7", "--json"];
    let base = json(&lab, &run);
    let set: Vec<&str> = run.iter().copied().chain(["--set", "device.read_page_us=20"]).collect();
    let changed = json(&lab, &set);
    let iops = |report: &Value| ours(report, "slow", "iops")["ours"].as_f64().unwrap();
    assert!(iops(&changed) > 2.0 * iops(&base));
    assert_eq!(base["claims"].as_array().unwrap().len(), 0, "claims are about the whole");

    let words = ["lab", "run", "small.toml", "--seed", "7", "--set", "device.read_page_us=20"];
    let shown = text(&lab.ok(&words).stdout);
    assert!(shown.contains("slow [device.read_page_us = 20]"), "{shown}");
    assert!(!shown.contains("fast ["), "it sets nothing of its own: {shown}");

    let set = "device.read_page_us=20; queue.elevator=deadline,fifo_batch=4";
    let words = ["lab", "compare", "small.toml", "--variant", "slow", "--set", set];
    let shown = text(&lab.ok(&words).stdout);
    assert!(shown.contains("slow / reader read / iops") && shown.contains("change"), "{shown}");
    lab.write("other.toml", SMALL.replace("reader", "user"));
    let refused = lab.refused(&["lab", "compare", "small.toml", "other.toml"], 1);
    assert!(refused.contains("the same names"), "{refused}");
    assert!(lab.refused(&["lab", "compare", "small.toml"], 1).contains("--set"));
}

#[test]
fn trace_shows_who_ran_and_what_became_of_requests() {
    let lab = Lab::new();
    lab.write("small.toml", SMALL);
    let words = ["lab", "trace", "small.toml", "--variant", "slow", "--until", "0.01"];
    let shown = text(&lab.ok(&words).stdout);
    for words in ["cpu 0: thread", "submits bio", "to the device", "passed by", "read 4 KiB"] {
        assert!(shown.contains(words), "{words} is missing in {shown}");
    }
    let narrow: Vec<&str> = words.iter().copied().chain(["--limit", "3"]).collect();
    assert!(text(&lab.ok(&narrow).stdout).contains("more: see --limit"));
    assert!(shown.contains("0 is the flusher, 1 the journal"), "{shown}");
    let late =
        ["lab", "trace", "small.toml", "--variant", "slow", "--from", "900", "--until", "901"];
    assert!(text(&lab.ok(&late).stdout).contains("the last event was at"));
    assert!(lab.refused(&["lab", "trace", "small.toml"], 1).contains("fast, slow"));
}

#[test]
fn report_is_one_page_with_plots() {
    let lab = Lab::new();
    lab.write("small.toml", SMALL);
    lab.ok(&["lab", "report", "small.toml", "-o", "page.html"]);
    let page = text(&lab.read("page.html"));
    for words in ["<svg", "Readers on a card", "slow is slower", "threads at the device"] {
        assert!(page.contains(words), "{words} is missing");
    }
    assert!(!page.contains("http://") && !page.contains("https://"), "it needs nothing else");
    let refused = lab.refused(&["lab", "report", "small.toml", "-o", "no/folder.html"], 1);
    assert!(refused.contains("no/folder.html"));
}

#[test]
fn same_jobs_run_on_this_machine() {
    let lab = Lab::new();
    lab.write("small.toml", SMALL);
    let words = ["lab", "run", "small.toml", "--variant", "fast", "--real", "memory"];
    let shown = text(&lab.ok(&words).stdout);
    assert!(shown.contains("no page cache") && shown.contains("iops"), "{shown}");
    lab.write("kept", "something");
    let words = ["lab", "run", "small.toml", "--real", "kept"];
    assert!(lab.refused(&words, 5).contains("--destroy"));
}

#[test]
fn queue_on_a_null_device_is_slower_in_a_simulated_world_and_left_out_in_this_one() {
    const NULL: &str = r#"
name = "null"
title = "A queue on a queue"
[file_system]
kind = "none"
[device]
kind = "null"
[machine.costs]
user_ns = 300
[stack]
kind = "off"
[jobs.fio]
program = "fio"
sections.r = { rw = "randread", filename = "n", bs = "4k", size = "4m", direct = 1, iodepth = 8 }
[variants.raw]
[variants.stacked]
set = { "stack.kind" = "dm-mq" }
[variants.today.set]
"stack.kind" = "dm-mq"
"stack.insert" = "direct"
"stack.run_on_completion" = false
"stack.complete_by" = "here"
"#;
    let lab = Lab::new();
    lab.write("null.toml", NULL);
    let report = json(&lab, &["lab", "run", "null.toml", "--json", "--check"]);
    let value = |variant, metric| ours(&report, variant, metric)["ours"].as_f64().unwrap();
    assert!(value("stacked", "iops") < 0.8 * value("raw", "iops"));
    assert!(value("stacked", "ctx_per_1000") > 5.0 && value("raw", "ctx_per_1000") < 5.0);
    assert_eq!(
        (value("stacked", "issued_by_workers"), value("raw", "issued_by_workers")),
        (1.0, 0.0)
    );
    assert!(value("raw", "usr") > 0.0 && value("raw", "usr") < value("raw", "sys"));

    let shown = text(&lab.ok(&["lab", "trace", "null.toml", "--variant", "stacked"]).stdout);
    assert!(shown.contains(" after kworker/") && shown.contains(" after ksoftirqd/"), "{shown}");
    let shown = text(&lab.ok(&["lab", "run", "null.toml", "--real", "memory"]).stdout);
    let words: Vec<&str> = shown.split_whitespace().collect();
    let shown = words.join(" ");
    let on = "on null 1 irqmode:softirq; multipath, queue_mode mq, over null 1 irqmode:softirq";
    assert!(shown.contains(on), "{shown}");
    assert!(shown.contains("stacked: real mode has no worker"), "{shown}");
    for variant in ["raw", "today"] {
        let beside = format!("beside the tasks of {variant}, fio");
        assert!(shown.contains(&beside), "{shown}");
    }
    assert!(shown.contains("iops"), "{shown}");
}

#[test]
fn bad_files_and_names_are_one_error_with_the_place_and_what_is_allowed() {
    let lab = Lab::new();
    let line = |words: &str| SMALL.lines().position(|line| line.starts_with(words)).unwrap() + 1;
    for (from, to, at, words) in [
        ("kind = \"flash\"", "kind = \"tape\"", "kind = \"flash\"", "\"disk\", \"flash\""),
        ("iodepth = 8", "iodepth = 0", "sections.reader", "from 1 to"),
        ("iodepth = 8", "io_depth = 8", "sections.reader", "iodepth"),
        ("seeds", "sedes", "seeds", "seeds"),
        ("size_mib = 64", "size_mib = \"64\"", "size_mib", "whole number"),
    ] {
        lab.write("bad.toml", SMALL.replacen(from, to, 1));
        let said = lab.refused(&["lab", "run", "bad.toml"], 1);
        let place = format!("bad.toml, line {}:", line(at));
        assert!(said.contains(&place) && said.contains(words), "{to}: {said}");
    }
    lab.write("small.toml", SMALL);
    lab.write("binary.toml", b"name = 'a'\n\xff\n");
    for (words, named) in [
        (&["lab", "run", "deadline-1999"][..], "deadline-2009"),
        (&["lab", "run", "missing.toml"], "missing.toml"),
        (&["lab", "run", "small.toml", "--variant", "x"], "fast, slow"),
        (&["lab", "run", "small.toml", "--set", "queue.elevator=lift"], "mq-deadline"),
        (&["lab", "run", "small.toml", "--set", "queue"], "PATH=VALUE"),
        (&["lab", "run", "small.toml", "--destroy"], "--real"),
        (&["lab", "trace", "small.toml", "--from", "x"], "seconds"),
        (&["lab", "trace", "small.toml", "--from", "-1"], "seconds"),
        (&["lab", "run", "small.toml", "--seed", "-1"], "from 0 to"),
        (&["lab", "run", "small.toml", "--real", "memory", "--check"], "--check"),
        (&["lab", "run", "small.toml", "--set", "jobs.mxi.size=4k"], "jobs are mix"),
        (&["lab", "compare", "small.toml", "--set", ";"], "PATH=VALUE"),
        (&["lab", "run", "binary.toml"], "binary.toml, line 2"),
        (&["lab", "fit", "deadline-2009"], "-o"),
        (&["lab", "report", "small.toml"], "--output"),
    ] {
        let output = lab.run(words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert_eq!(said.matches("error: ").count(), 1, "{words:?}: {said}");
        assert!(said.contains(named), "{words:?} does not name {named}: {said}");
    }
}

#[test]
fn ours_are_listed_and_shown_and_the_template_runs() {
    let lab = Lab::new();
    let listed = text(&lab.ok(&["lab", "list"]).stdout);
    assert!(listed.contains("deadline-2009") && listed.contains("hdd-cfq"), "{listed}");
    let shown = text(&lab.ok(&["lab", "show", "deadline-2009"]).stdout);
    assert!(shown.contains("id = \"004-29\""));
    lab.write("mine.toml", lab.ok(&["lab", "template"]).stdout);
    let words = ["lab", "run", "mine.toml", "--json", "--seed", "1", "--set", "jobs.log.samples=2"];
    let report = json(&lab, &words);
    assert_eq!(report["rows"].as_array().unwrap().len(), 3 * (4 + 1));
}

/// The lines of the guide's blocks of a kind, without the opening line.
fn blocks(guide: &str, opening: &str) -> Vec<String> {
    let behind = guide.split(opening).skip(1);
    behind.map(|block| block.split("\n```").next().unwrap().to_owned()).collect()
}

/// Checks that the guide's output appears in order; `...` stands for any text.
fn shows(said: &str, shown: &str) {
    let mut lines = said.lines().map(str::trim_end);
    for wanted in shown.lines().map(str::trim_end).filter(|line| *line != "..." && !line.is_empty())
    {
        assert!(
            lines.any(|line| line == wanted),
            "docs/lab.md shows {wanted:?}, but it says:\n{said}"
        );
    }
}

#[test]
fn experiment_of_the_guide_prints_what_the_guide_shows() {
    let guide = include_str!("../../../docs/lab.md");
    let lab = Lab::new();
    let [whole, fits] = &blocks(guide, "\n```toml\n")[..] else { panic!("two blocks of TOML") };
    lab.write("mine.toml", whole);
    let [shown, ..] = &blocks(guide, "\n```\n$ blockyard lab run mine.toml\n")[..] else {
        panic!("its output is there")
    };
    shows(&text(&lab.ok(&["lab", "run", "mine.toml"]).stdout), shown);

    lab.write("mine.toml", format!("{whole}\n{fits}"));
    let [shown] = &blocks(guide, "\n```\n$ blockyard lab fit mine.toml\n")[..] else {
        panic!("its output is there")
    };
    let (fit, rest) = shown.split_once("\n$ cat mine.fits.toml\n").unwrap();
    let (points, run) = rest.split_once("\n$ blockyard lab run mine.toml\n").unwrap();
    shows(&text(&lab.ok(&["lab", "fit", "mine.toml"]).stderr), fit);
    shows(&text(&lab.read("mine.fits.toml")), points);
    shows(&text(&lab.ok(&["lab", "run", "mine.toml"]).stdout), run);
}

#[test]
fn fit_that_accepts_nothing_fails_and_leaves_the_points_that_were_there() {
    let lab = Lab::new();
    let far =
        SMALL.replacen("iops = 5000", "iops = 50000000", 1).replacen("draws = 200", "draws = 3", 1);
    lab.write("small.toml", far);
    lab.write("small.fits.toml", "[card]\npoints = [{ \"device.read_page_us\" = 300 }]\n");
    let said = lab.refused(&["lab", "fit", "small.toml", "--force"], 1);
    assert!(said.contains("no point was accepted for card"), "{said}");
    assert!(text(&lab.read("small.fits.toml")).contains("300"));
    let wide = SMALL.replacen("low = 50", "low = 0", 1).replacen("high = 400", "high = 2000000", 1);
    lab.write("small.toml", wide);
    let said = lab.refused(&["lab", "fit", "small.toml", "-o", "x.toml"], 1);
    assert!(said.contains("invalid configuration") && said.contains("from 0 to 1000000"), "{said}");
}

#[test]
fn rows_that_no_job_measures_are_refused_and_not_left_without_a_verdict() {
    let lab = Lab::new();
    let line = |words: &str| SMALL.lines().position(|line| line.starts_with(words)).unwrap() + 1;
    for (from, to, at, words) in [
        ("slow/reader read/iops", "slow/raeder read/iops", "ratio", "reader read"),
        ("slow/reader read/iops", "slow/reader write/iops", "ratio", "reader read"),
        ("slow/reader read/iops", "slow/reader read/fsync_max", "ratio", "latency_p99"),
        ("row = \"fast/reader read", "row = \"fast/read", "accept", "reader read"),
    ] {
        lab.write("bad.toml", SMALL.replacen(from, to, 1));
        let said = lab.refused(&["lab", "run", "bad.toml"], 1);
        let place = format!("bad.toml, line {}:", line(at));
        assert!(said.contains(&place) && said.contains(words), "{to}: {said}");
    }
}

#[test]
fn outputs_that_cannot_be_written_are_found_out_before_the_run() {
    let lab = Lab::new();
    // It would take minutes.
    let long = ["lab", "report", "deadline-2009", "-o"];
    for place in ["no/page.html", "."] {
        let words: Vec<&str> = long.iter().copied().chain([place]).collect();
        assert!(lab.refused(&words, 1).contains("cannot write"));
    }
    lab.write("small.toml", SMALL);
    let page = text(&lab.ok(&["lab", "report", "small.toml", "-o", "-"]).stdout);
    assert!(page.starts_with("<!DOCTYPE html>") && !lab.path("-").exists());
}
