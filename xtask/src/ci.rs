//! `cargo x ci`: all checks. Each part is a command of `cargo x` in a process of
//! its own. Two lanes of parts run side by side; a failed part does not stop the rest. The last
//! line is the count of a test runner.

use crate::tools;
use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these parts; without a name, all.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
    /// Also look for known vulnerabilities, with the advisories of this checkout.
    #[arg(long, value_name = "PATH")]
    advisory_db: Option<PathBuf>,
}

/// Parts that run one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// They compute, in the dev profile for the most part.
    Crates,
    /// They run the release binary, and often wait: for a guest, a disk, a deadline.
    Binary,
    /// They need no part of a lane: the first lane that is empty takes them.
    Either,
}

/// A part of CI.
#[derive(Debug)]
struct Part {
    name: &'static str,
    lane: Lane,
    /// Arguments of `cargo x`.
    words: Vec<String>,
}

/// Name, lane and command of each part of `cargo x ci`. The canaries replace `debug/blockyard` for
/// a moment, so `power-canaries` comes behind `test` in its lane.
const TESTS: &[(&str, Lane, &str)] = &[
    ("check", Lane::Crates, "check"),
    ("test", Lane::Crates, "test"),
    ("power-canaries", Lane::Crates, "powercut --canaries"),
    ("powercut", Lane::Binary, "powercut"),
    ("corpus", Lane::Binary, "corpus"),
    // The formats of our own; the volumes of the corpus are `soak`'s.
    ("keys", Lane::Binary, "keys ours"),
    ("interop", Lane::Binary, "interop --seconds 10 --rounds 10"),
    ("hygiene", Lane::Binary, "hygiene"),
    ("recording", Lane::Binary, "recording"),
    ("dist", Lane::Binary, "dist --check --no-wheel --no-static"),
    // Behind `dist`, whose image one of the pages runs.
    ("recipes", Lane::Binary, "recipes"),
    ("systemd", Lane::Binary, "systemd"),
    ("clocks", Lane::Binary, "clocks --seconds 8"),
    // Benchmark figures are not judged here, because the machine is shared; but the benchmarks
    // must run.
    ("bench", Lane::Binary, "bench smoke"),
    // A fixed seed, so that results of a commit do not vary. The search for new inputs is `soak`'s.
    ("fuzz", Lane::Either, "fuzz --seconds 3 --seed 1"),
    // Counts, which no load changes.
    ("sharing", Lane::Either, "bench sharing"),
    // Short ones last, so that both lanes end at about the same time.
    ("ceph-scale", Lane::Either, "ceph-scale"),
    ("python", Lane::Either, "python"),
    ("sim", Lane::Either, "sim --seeds 1000000000 --seconds 10"),
    ("multipath", Lane::Either, "sim --multipath --seeds 1000000000 --seconds 10"),
    ("devices", Lane::Either, "sim --devices --seeds 1000000000 --seconds 10"),
    ("ranges", Lane::Either, "sim --ranges --seeds 1000000000 --seconds 10"),
    ("canaries", Lane::Either, "sim --canaries"),
    ("ranges-canaries", Lane::Either, "sim --ranges --canaries"),
    ("choosing", Lane::Either, "choosing"),
    ("elsewhere", Lane::Either, "elsewhere"),
];

/// Result of a part.
struct Outcome {
    name: &'static str,
    seconds: f64,
    error: Option<String>,
    /// End of its output, if that was kept.
    end: String,
}

/// Lines of a failed part below the summary. A log of a whole run may be shortened in its middle.
const END_LINES: usize = 20;

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut parts = all(TESTS);
    // The dependency rules are part of `check` on every machine. The tool that follows the whole
    // graph takes minutes to build.
    if tools::need("cargo-deny").is_ok() {
        parts.push(part(&("deny", Lane::Binary, "deny")));
    }
    if let Some(db) = &args.advisory_db {
        let mut audit = part(&("audit", Lane::Binary, "audit --db"));
        audit.words.push(db.display().to_string());
        parts.push(audit);
    }
    run_all(&wanted(parts, &args.parts)?)
}

fn all(table: &[(&'static str, Lane, &str)]) -> Vec<Part> {
    table.iter().map(part).collect()
}

fn part(&(name, lane, words): &(&'static str, Lane, &str)) -> Part {
    Part { name, lane, words: words.split(' ').map(str::to_owned).collect() }
}

/// The parts with these names, in the original order.
fn wanted(parts: Vec<Part>, names: &[String]) -> Result<Vec<Part>> {
    let is_known = |name: &String| parts.iter().any(|part| part.name == *name);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let known: Vec<&str> = parts.iter().map(|part| part.name).collect();
        bail!("{unknown}: no such part; the parts are {}", known.join(", "));
    }
    let is_wanted = |part: &Part| names.is_empty() || names.iter().any(|name| name == part.name);
    Ok(parts.into_iter().filter(is_wanted).collect())
}

fn run_all(parts: &[Part]) -> Result<()> {
    let of = |lane: Lane| parts.iter().filter(move |part| part.lane == lane).collect();
    let lanes: [VecDeque<&Part>; 3] = [Lane::Crates, Lane::Binary, Lane::Either].map(of);
    if lanes.iter().filter(|lane| !lane.is_empty()).count() < 2 {
        return summary(&parts.iter().map(shown).collect::<Vec<_>>());
    }
    let waiting = Waiting(Mutex::new(lanes));
    let printer = Mutex::new(());
    let run_lane = |own: Lane| -> Vec<Outcome> {
        std::iter::from_fn(|| waiting.next(own)).map(|part| kept(part, &printer)).collect()
    };
    let mut outcomes: Vec<Outcome> = thread::scope(|scope| {
        let other = scope.spawn(|| run_lane(Lane::Binary));
        let mut outcomes = run_lane(Lane::Crates);
        outcomes.extend(other.join().expect("a lane does not panic"));
        outcomes
    });
    outcomes.sort_by_key(|outcome| parts.iter().position(|part| part.name == outcome.name));
    summary(&outcomes)
}

/// The parts that have not begun, by lane.
struct Waiting<'a>(Mutex<[VecDeque<&'a Part>; 3]>);

impl<'a> Waiting<'a> {
    fn next(&self, own: Lane) -> Option<&'a Part> {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lanes[own as usize].pop_front().or_else(|| lanes[Lane::Either as usize].pop_front())
    }
}

/// Runs a part that has the terminal to itself.
fn shown(part: &Part) -> Outcome {
    println!("\n== {}: cargo x {}", part.name, part.words.join(" "));
    timed(part, |command| Ok(command.status()?.success()))
}

/// Runs a part beside another one, and prints its output when it has ended.
fn kept(part: &Part, printer: &Mutex<()>) -> Outcome {
    let mut said = Vec::new();
    let mut outcome = timed(part, |command| {
        let mut output: File = tempfile::tempfile()?;
        let is_success =
            command.stdout(output.try_clone()?).stderr(output.try_clone()?).status()?.success();
        output.rewind()?;
        output.read_to_end(&mut said)?;
        Ok(is_success)
    });
    let _printing = printer.lock();
    println!("\n== {}: cargo x {}", part.name, part.words.join(" "));
    let _ = io::stdout().write_all(&said);
    println!("== {} took {:.0} s", part.name, outcome.seconds);
    outcome.end = end(&String::from_utf8_lossy(&said));
    outcome
}

/// Runs `cargo x` with the part's words. Another part may replace the executable's file, so it is
/// named by this process.
fn timed(part: &Part, run: impl FnOnce(&mut Command) -> io::Result<bool>) -> Outcome {
    let start = Instant::now();
    let mut command = Command::new("/proc/self/exe");
    let result = run(command.args(&part.words)).context("cargo x does not start");
    let error = match result {
        Ok(true) => None,
        Ok(false) => Some(format!("again: cargo x {}", part.words.join(" "))),
        Err(error) => Some(format!("{error:#}")),
    };
    Outcome { name: part.name, seconds: start.elapsed().as_secs_f64(), error, end: String::new() }
}

/// The last lines, and each failed case before them.
fn end(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    let last = lines.len().saturating_sub(END_LINES);
    let is_shown = |(at, line): &(usize, &&str)| *at >= last || line.contains("FAIL ");
    let shown = lines.iter().enumerate().filter(is_shown);
    shown.map(|(_, line)| format!("    {line}\n")).collect()
}

fn summary(parts: &[Outcome]) -> Result<()> {
    println!("\n== summary ({})", tools::root().display());
    for part in parts {
        let word = if part.error.is_none() { "ok  " } else { "FAIL" };
        let why = part.error.as_deref().map_or(String::new(), |why| format!("  {why}"));
        println!("  {word} {:<15} {:>6.1} s{why}", part.name, part.seconds);
    }
    let failed: Vec<_> = parts.iter().filter(|part| part.error.is_some()).collect();
    for part in failed.iter().filter(|part| !part.end.is_empty()) {
        println!("\n== end of {}\n{}", part.name, part.end);
    }
    let failed = failed.len();
    println!("{} passed, {failed} failed", parts.len() - failed);
    // The count must be the last line, so the failure is not printed here.
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn parts_are_chosen_by_name_and_unknown_names_are_refused() {
        let table = &[("one", Lane::Crates, "check"), ("two", Lane::Binary, "corpus")];
        let names = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            wanted(all(table), &words)
                .map(|parts| parts.iter().map(|part| part.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap(), ["one", "two"]);
        assert_eq!(names(&["two"]).unwrap(), ["two"]);
        let error = names(&["three"]).unwrap_err().to_string();
        assert_eq!(error, "three: no such part; the parts are one, two");
    }

    #[test]
    fn end_of_a_failed_part_has_its_failed_cases_and_last_lines() {
        let cases = "  ok   one\n  FAIL two\n".to_owned();
        let said = cases + &"line\n".repeat(END_LINES);
        assert_eq!(end(&said), "      FAIL two\n".to_owned() + &"    line\n".repeat(END_LINES));
        assert_eq!(end("  FAIL one\n"), "      FAIL one\n");
    }

    #[test]
    fn empty_lane_takes_a_part_of_either() {
        let table = &[
            ("one", Lane::Crates, "check"),
            ("x", Lane::Either, "sim"),
            ("y", Lane::Either, "sim"),
        ];
        let parts = all(table);
        let waiting = Waiting(Mutex::new(Default::default()));
        for part in &parts {
            waiting.0.lock().unwrap()[part.lane as usize].push_back(part);
        }
        let [binary, crates] = [Lane::Binary, Lane::Crates];
        let taken = [binary, crates, crates, binary].map(|own| waiting.next(own));
        let taken = taken.map(|part| part.map(|part| part.name));
        assert_eq!(taken, [Some("x"), Some("one"), Some("y"), None]);
    }

    #[test]
    fn every_part_is_a_command() {
        for part in all(TESTS) {
            let words = std::iter::once("x".to_owned()).chain(part.words);
            if let Err(error) = crate::Cli::try_parse_from(words) {
                panic!("{}: {error}", part.name);
            }
        }
    }
}
