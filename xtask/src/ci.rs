//! `cargo x ci`: all checks, cheapest first; a failed part does not stop the rest. The last line is
//! the count of a test runner.

use crate::{audit, check, corpus, deny, fuzz, hygiene, interop, powercut, sim, test, tools};
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::time::Instant;

/// Selection and length.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these parts; without a name, all.
    #[arg(value_name = "PART")]
    parts: Vec<String>,
    /// Full lengths of the interop load instead of CI's short ones.
    #[arg(long)]
    full: bool,
    /// Also look for known vulnerabilities, with the advisories of this checkout.
    #[arg(long, value_name = "PATH")]
    advisory_db: Option<PathBuf>,
}

/// A part of CI.
struct Part<'a> {
    name: &'static str,
    run: Box<dyn Fn() -> Result<()> + 'a>,
}

/// Result of a part.
struct Outcome {
    name: &'static str,
    seconds: f64,
    error: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (seconds, rounds) = if args.full { (60, 50) } else { (10, 10) };
    let interop = interop::Args { seconds, rounds, disconnects: 10_000, only: None };
    let parts: Vec<Part> = vec![
        part("check", check::run),
        part("test", test::run),
        part("sim", || sim::run(&sim::Args::short())),
        part("multipath", || sim::run(&sim::Args::multipath())),
        part("devices", || sim::run(&sim::Args::devices())),
        part("ranges", || sim::run(&sim::Args::ranges())),
        part("canaries", || sim::run(&sim::Args::canaries())),
        part("ranges-canaries", || sim::run(&sim::Args::ranges_canaries())),
        part("powercut", || powercut::run(&powercut::Args::ci(args.full))),
        part("power-canaries", || powercut::run(&powercut::Args::ci_canaries())),
        part("corpus", || corpus::run(&corpus::Args::default())),
        part("interop", || interop::run(&interop)),
        part("hygiene", || hygiene::run(&hygiene::Args::default())),
        part("fuzz", || fuzz::run(&fuzz::Args::short())),
        // Benchmark figures are not judged here, because the machine is shared; but the benchmarks
        // must run.
        part("bench", crate::bench::smoke),
    ];
    // The dependency rules are part of `check` on every machine. The tool that follows the whole
    // graph takes minutes to build.
    let deny = tools::need("cargo-deny").is_ok().then(|| part("deny", deny::run));
    let audit = args
        .advisory_db
        .is_some()
        .then(|| part("audit", || audit::run(&audit::Args { db: args.advisory_db.clone() })));
    let parts = wanted(parts.into_iter().chain(deny).chain(audit).collect(), &args.parts)?;
    summary(&parts.iter().map(outcome).collect::<Vec<_>>());
    Ok(())
}

fn part<'a>(name: &'static str, run: impl Fn() -> Result<()> + 'a) -> Part<'a> {
    Part { name, run: Box::new(run) }
}

/// The parts with these names, in the original order.
fn wanted<'a>(parts: Vec<Part<'a>>, names: &[String]) -> Result<Vec<Part<'a>>> {
    let is_known = |name: &String| parts.iter().any(|part| part.name == *name);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let known: Vec<&str> = parts.iter().map(|part| part.name).collect();
        bail!("{unknown}: no such part; the parts are {}", known.join(", "));
    }
    let is_wanted =
        |part: &Part<'_>| names.is_empty() || names.iter().any(|name| name == part.name);
    Ok(parts.into_iter().filter(is_wanted).collect())
}

fn outcome(part: &Part<'_>) -> Outcome {
    println!("\n== {}", part.name);
    let start = Instant::now();
    let error = (part.run)().err().map(|error| format!("{error:#}"));
    if let Some(error) = &error {
        println!("{}: {error}", part.name);
    }
    Outcome { name: part.name, seconds: start.elapsed().as_secs_f64(), error }
}

fn summary(parts: &[Outcome]) {
    println!("\n== summary ({})", tools::root().display());
    for part in parts {
        let word = if part.error.is_none() { "ok  " } else { "FAIL" };
        let why = part.error.as_deref().map_or(String::new(), |why| format!("  {why}"));
        println!("  {word} {:<15} {:>6.1} s{why}", part.name, part.seconds);
    }
    let failed = parts.iter().filter(|part| part.error.is_some()).count();
    println!("{} passed, {failed} failed", parts.len() - failed);
    // The count must be the last line, so the failure is not printed here.
    if failed > 0 {
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_name_and_unknown_names_are_refused() {
        let parts = || vec![part("one", || Ok(())), part("two", || Ok(()))];
        let names = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            wanted(parts(), &words)
                .map(|parts| parts.iter().map(|part| part.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap(), ["one", "two"]);
        assert_eq!(names(&["two"]).unwrap(), ["two"]);
        let error = names(&["three"]).unwrap_err().to_string();
        assert_eq!(error, "three: no such part; the parts are one, two");
    }
}
