//! `cargo x fuzz`: libFuzzer on every parser of untrusted bytes, with the single stable toolchain.
//!
//! cargo-fuzz is not necessary: its coverage instrumentation is a pass of the compiler's own LLVM.
//! Seeds lie in `testdata/fuzz-seeds/TARGET`. New inputs are added to `fuzz/corpus/TARGET`. A crash
//! is written to `fuzz/artifacts/TARGET`; the same command with the file's name replays it.

use crate::cases::Cases;
use crate::tools;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Memory limit of a parser.
const RSS_MIB: u32 = 512;

/// Time limit of one input.
const INPUT_LIMIT_S: u32 = 5;

/// cargo-fuzz's flags: edge counters, a table of program counters, and traced comparisons.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "--cfg=fuzzing",
];

/// Duration and selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds for each target.
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// Seed of the mutations; 0 draws one. Equal seeds and seconds try nearly equal inputs.
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Only this target.
    target: Option<String>,
    /// Replay this file instead of fuzzing.
    input: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let dir = tools::root().join("fuzz");
    let built = build(&dir)?;
    let mut cases = Cases::new(args.target.as_deref());
    for target in targets(&dir)? {
        cases.run(&format!("fuzz {target}"), || one(&dir, &built, &target, args));
    }
    cases.finish("fuzz")
}

fn targets(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir.join("fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Builds every target and returns their folder. The target triple is explicit so that build
/// scripts and macros, which run on the host, are not instrumented.
fn build(dir: &Path) -> Result<PathBuf> {
    let rustc = tools::read(Command::new("rustc").arg("-vV").current_dir(dir))?;
    let triple = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    let triple = triple.context("rustc names no host")?;
    let target_dir = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => tools::root().join(target).join("fuzz"),
        None => dir.join("target"),
    };
    let mut build = tools::cargo();
    build.current_dir(dir).env("CARGO_TARGET_DIR", &target_dir);
    build.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\x1f"));
    build.args(["build", "--quiet", "--release", "--bins", "--locked", "--target", triple]);
    tools::show(&mut build).context("building the fuzz targets")?;
    Ok(target_dir.join(triple).join("release"))
}

fn one(dir: &Path, built: &Path, target: &str, args: &Args) -> Result<String> {
    let corpus = dir.join("corpus").join(target);
    let artifacts = dir.join("artifacts").join(target);
    let seeds = tools::root().join("testdata/fuzz-seeds").join(target);
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder)?;
    }
    ensure!(seeds.is_dir(), "no seeds: {} is missing", seeds.display());
    // A process inherits the peak memory of its parent (`ru_maxrss` outlives `exec`), and libFuzzer
    // takes that for its own. So a small shell stands between.
    let mut fuzz = Command::new("sh");
    fuzz.args(["-c", r#""$@"; exit $?"#, "sh"]).arg(built.join(target));
    fuzz.arg(format!("-rss_limit_mb={RSS_MIB}")).arg(format!("-timeout={INPUT_LIMIT_S}"));
    fuzz.arg(format!("-artifact_prefix={}/", artifacts.display()));
    match &args.input {
        Some(input) => fuzz.arg(input),
        None => fuzz
            .arg(format!("-max_total_time={}", args.seconds))
            .arg(format!("-seed={}", args.seed))
            .arg("-print_final_stats=1")
            .args(["-len_control=20", "-max_len=65536"])
            .arg(&corpus)
            .arg(&seeds),
    };
    let output = tools::run(&mut fuzz)?;
    let said = tools::text(&output.stderr);
    let stat = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.map_or("?", str::trim).to_owned()
    };
    let edges = said.lines().rev().find_map(|line| line.split("cov: ").nth(1));
    let edges = edges.and_then(|rest| rest.split(' ').next()).unwrap_or("?");
    let runs = stat("stat::number_of_executed_units:");
    Ok(format!("{runs} inputs, {edges} edges, {} MiB", stat("stat::peak_rss_mb:")))
}
