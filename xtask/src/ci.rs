//! `cargo x ci`: everything, in the order in which a mistake is cheapest to find, and all of it
//! even when one part fails. Its last line is the count that a test runner prints.

use crate::{audit, check, corpus, deny, fuzz, hygiene, interop, powercut, sim, test, tools};
use anyhow::Result;
use std::path::PathBuf;
use std::time::Instant;

/// Shorter or longer.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The full lengths of the interop load instead of CI's short ones.
    #[arg(long)]
    full: bool,
    /// Looks for known vulnerabilities too, with the advisories of this checkout.
    #[arg(long, value_name = "PATH")]
    advisory_db: Option<PathBuf>,
}

/// A part of CI and its outcome.
struct Part {
    name: &'static str,
    seconds: f64,
    error: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let (seconds, rounds) = if args.full { (60, 50) } else { (10, 10) };
    let interop = interop::Args { seconds, rounds, disconnects: 10_000, only: None };
    let mut parts = Vec::new();
    let mut part = |name, run: &dyn Fn() -> Result<()>| {
        println!("\n== {name}");
        let start = Instant::now();
        let error = run().err().map(|error| format!("{error:#}"));
        if let Some(error) = &error {
            println!("{name}: {error}");
        }
        parts.push(Part { name, seconds: start.elapsed().as_secs_f64(), error });
    };
    part("check", &check::run);
    // Its rules are checked above on every machine; the tool itself takes minutes to build.
    if tools::need("cargo-deny").is_ok() {
        part("deny", &deny::run);
    }
    if args.advisory_db.is_some() {
        part("audit", &|| audit::run(&audit::Args { db: args.advisory_db.clone() }));
    }
    part("test", &test::run);
    part("sim", &|| sim::run(&sim::Args::short()));
    part("multipath", &|| sim::run(&sim::Args::multipath()));
    part("devices", &|| sim::run(&sim::Args::devices()));
    part("ranges", &|| sim::run(&sim::Args::ranges()));
    part("canaries", &|| sim::run(&sim::Args::canaries()));
    part("ranges canaries", &|| sim::run(&sim::Args::ranges_canaries()));
    part("powercut", &|| powercut::run(&powercut::Args::ci(args.full)));
    part("power canaries", &|| powercut::run(&powercut::Args::ci_canaries()));
    part("corpus", &|| corpus::run(&corpus::Args::default()));
    part("interop", &|| interop::run(&interop));
    part("hygiene", &|| hygiene::run(&hygiene::Args::default()));
    part("fuzz", &|| fuzz::run(&fuzz::Args::short()));
    part("bench", &benches_run);
    summary(&parts);
    Ok(())
}

/// Benchmarks are not judged here, where the machine is shared; but they must run.
fn benches_run() -> Result<()> {
    crate::bench::smoke()
}

fn summary(parts: &[Part]) {
    println!("\n== summary ({})", tools::root().display());
    for part in parts {
        let word = if part.error.is_none() { "ok  " } else { "FAIL" };
        let why = part.error.as_deref().map_or(String::new(), |why| format!("  {why}"));
        println!("  {word} {:<10} {:>6.1} s{why}", part.name, part.seconds);
    }
    let failed = parts.iter().filter(|part| part.error.is_some()).count();
    println!("{} passed, {failed} failed", parts.len() - failed);
    // The count is the last line, so nothing may be said about the failure here.
    if failed > 0 {
        std::process::exit(1);
    }
}
