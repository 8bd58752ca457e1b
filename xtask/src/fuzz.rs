//! `cargo x fuzz`: libFuzzer on every parser of untrusted bytes, with the single stable toolchain.
//!
//! cargo-fuzz is not necessary: its coverage instrumentation is a pass of the compiler's own LLVM.
//! Seeds lie in `testdata/fuzz-seeds/TARGET`. New inputs are added to `fuzz/corpus/TARGET`. A crash
//! is written to `fuzz/artifacts/TARGET`; the same command with the file's name replays it.

use crate::cases::Cases;
use crate::tools;
use crate::totals::Totals;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Memory limit of a parser.
const RSS_MIB: u32 = 512;

/// Time limit of one input.
const INPUT_LIMIT_S: u32 = 5;

/// Bounds of the longest input, in bytes; libFuzzer's own default is the smaller one.
const LENGTHS: [u64; 2] = [4 << 10, 64 << 10];

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

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    let dir = tools::root().join("fuzz");
    let built = build(&dir)?;
    let mut cases = Cases::new(args.target.as_deref());
    for target in targets()? {
        cases.run(&format!("fuzz {target}"), || one(&dir, &built, &target, args, totals));
    }
    cases.finish("fuzz")
}

/// Names of all targets.
pub(crate) fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(tools::root().join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Builds every target and returns their folder.
fn build(dir: &Path) -> Result<PathBuf> {
    let triple = tools::host_triple()?;
    let target_dir = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => tools::root().join(target).join("fuzz"),
        None => dir.join("target"),
    };
    let mut build = tools::cargo();
    build.current_dir(dir).env("CARGO_TARGET_DIR", &target_dir);
    build.env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\x1f"));
    build.args(["build", "--quiet", "--release", "--bins", "--locked", "--target", &triple]);
    tools::show(&mut build).context("building the fuzz targets")?;
    Ok(target_dir.join(triple).join("release"))
}

fn one(dir: &Path, built: &Path, target: &str, args: &Args, totals: &mut Totals) -> Result<String> {
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
            .arg("-len_control=20")
            .arg(format!("-max_len={}", length_max(&seeds)?))
            .arg(&corpus)
            .arg(&seeds),
    };
    let output = tools::output(&mut fuzz)?;
    let said = tools::text(&output.stderr);
    let stats = Stats::of(&said);
    totals.add(&format!("{target}/executions"), stats.executions);
    totals.raise(&format!("{target}/edges"), stats.edges);
    totals.raise(&format!("{target}/edges_of"), stats.edges_of);
    totals.raise(&format!("{target}/corpus"), fs::read_dir(&corpus)?.count() as u64);
    if !output.status.success() {
        bail!("{}\n{}", again(target, &said), tools::tail(&said));
    }
    let Stats { executions, edges, edges_of, rss_mib } = stats;
    Ok(format!("{executions} inputs, {edges} of {edges_of} edges, {rss_mib} MiB"))
}

/// Length of the longest input: eight times that of the longest seed. Longer inputs repeat what
/// shorter ones do, and take most of the time.
fn length_max(seeds: &Path) -> Result<u64> {
    let mut longest = 0;
    for seed in fs::read_dir(seeds)? {
        longest = longest.max(seed?.metadata()?.len());
    }
    let [least, most] = LENGTHS;
    Ok((8 * longest).clamp(least, most))
}

/// The command that repeats a crash.
fn again(target: &str, said: &str) -> String {
    let unit = said.lines().find_map(|line| line.split("Test unit written to ").nth(1));
    let root = format!("{}/", tools::root().display());
    match unit {
        Some(unit) => format!("again: cargo x fuzz {target} {}", unit.trim_start_matches(&root)),
        None => format!("again: cargo x fuzz {target}"),
    }
}

/// Figures of libFuzzer.
struct Stats {
    executions: u64,
    /// Edges that were reached.
    edges: u64,
    /// Edges of the target, code of its libraries included.
    edges_of: u64,
    rss_mib: u64,
}

impl Stats {
    fn of(said: &str) -> Self {
        let number = |text: Option<&str>| {
            let digits = text.map_or("", str::trim).split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
        };
        let line = |name: &str| said.lines().find_map(|line| line.strip_prefix(name));
        let last = said.lines().rev().find_map(|line| line.split("cov: ").nth(1));
        let tables = said.lines().find(|line| line.starts_with("INFO: Loaded 1 PC tables"));
        Self {
            executions: number(line("stat::number_of_executed_units:")),
            edges: number(last),
            edges_of: number(tables.and_then(|line| line.split('(').nth(1))),
            rss_mib: number(line("stat::peak_rss_mb:")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_the_command_of_a_crash_are_read_from_libfuzzer() {
        let said = "INFO: Loaded 1 PC tables (5120 PCs): 5120 [0x1,0x2),\n\
                    #9\tINITED cov: 70 ft: 71 corp: 3/9b\n\
                    #512\tpulse  cov: 88 ft: 90 corp: 4/12b\n\
                    stat::number_of_executed_units: 1200\n\
                    stat::peak_rss_mb:              61\n";
        let stats = Stats::of(said);
        assert_eq!([stats.executions, stats.edges, stats.edges_of], [1200, 88, 5120]);
        assert_eq!(stats.rss_mib, 61);
        let said = format!("x; Test unit written to {}/fuzz/a/crash-1", tools::root().display());
        assert_eq!(again("trace", &said), "again: cargo x fuzz trace fuzz/a/crash-1");
    }
}
