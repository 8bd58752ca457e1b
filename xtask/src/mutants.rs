//! `cargo x mutants`: mutates one place of the code at a time and checks that a test fails, with
//! cargo-mutants. Never part of the checks: each mutant needs a build and a test run.
//!
//! Most mutants are found by a unit test in the same file. So `--unit` builds and runs only those
//! first, and tries all tests of the crate on the survivors.
//!
//! A mutant that no test finds (a survivor) needs a new test, or a line in `docs/guide/mutants.md`
//! with the reason why it is equivalent.

use crate::tools::{self, root};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;

/// Selection of the mutants.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Crates (`crypt`, `host`, …) or files; with `--changed` none means all changed ones.
    #[arg(value_name = "CRATE|FILE")]
    targets: Vec<String>,
    /// Only this number of mutants, spread evenly over all.
    #[arg(long, value_name = "N")]
    sample: Option<NonZeroUsize>,
    /// Only the k-th of n equal shares, k from 0 on: for several machines.
    #[arg(long, value_name = "K/N", conflicts_with = "sample")]
    shard: Option<String>,
    /// Only in lines that changed since this commit; without a value, since the last one.
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD",
          require_equals = true)]
    changed: Option<String>,
    /// First only the unit tests with this in their name (`ranges::`), then all tests of the crate
    /// on the survivors.
    #[arg(long, value_name = "FILTER", conflicts_with = "list")]
    unit: Option<String>,
    /// Print the mutants without trying them.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.targets.is_empty() && args.changed.is_none() {
        bail!("name crates or files, or use --changed");
    }
    tools::need("cargo-mutants")
        .context("install it with: cargo install --locked cargo-mutants")?;
    let scratch = tempfile::tempdir()?;
    let mut chosen = chosen(&args.targets)?;
    if let Some(commit) = &args.changed {
        let diff = scratch.path().join("changed.diff");
        let mut git = tools::tool("git");
        git.args(["diff", commit, "--", "*.rs"]).current_dir(root());
        fs::write(&diff, tools::read(&mut git)?)?;
        chosen.push("--in-diff".to_owned());
        chosen.push(diff.to_string_lossy().into_owned());
    }
    if let Some(count) = args.sample {
        let all = tools::read(mutants().args(&chosen).arg("--list"))?;
        let shares = shares(all.lines().count(), count.get());
        chosen.push(format!("--shard=0/{shares}"));
        chosen.push("--sharding=round-robin".to_owned());
    }
    if let Some(shard) = &args.shard {
        chosen.push(format!("--shard={shard}"));
    }
    if args.list {
        return tools::show(mutants().args(&chosen).arg("--list"));
    }
    let target = root().join("target/mutants");
    fs::create_dir_all(&target)?;
    if let Some(filter) = &args.unit {
        let mut command = trial(&target, &chosen, "--lib");
        // A binary that is built and run once needs no optimisation.
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
        let status = command.args(["--", filter]).status().context("cargo does not start")?;
        match status.code() {
            Some(0) => return Ok(()),
            // Some mutants survived, or timed out.
            Some(2 | 3) => {}
            _ => bail!("cargo mutants ended with {status}"),
        }
        let missed = fs::read_to_string(target.join("mutants.out/missed.txt"))?;
        if missed.is_empty() {
            return Ok(());
        }
        chosen.retain(|word| !word.starts_with("--shard"));
        chosen.extend(missed.lines().map(|name| format!("--re=^{}$", literal(name))));
    }
    tools::show(&mut trial(&target, &chosen, "--tests"))
}

/// A run of cargo-mutants that builds and runs these test targets.
fn trial(target: &Path, chosen: &[String], tests: &str) -> Command {
    let mut command = mutants();
    command.args(chosen);
    // Dependencies are built once for all copies of the tree.
    command.env("CARGO_TARGET_DIR", target.join("build")).arg("--output").arg(target);
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.args(["--cargo-arg=--locked", "--colors=never"]);
    command.arg(format!("--cargo-arg={tests}"));
    command
}

/// A regular expression that matches this text.
fn literal(text: &str) -> String {
    let escaped = |c: char| {
        if r"\.+*?()|[]{}^$".contains(c) { format!("\\{c}") } else { c.to_string() }
    };
    text.chars().map(escaped).collect()
}

fn mutants() -> Command {
    let mut command = tools::cargo();
    command.arg("mutants");
    command
}

/// The targets as arguments of cargo-mutants.
fn chosen(targets: &[String]) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for target in targets {
        let option = if target.ends_with(".rs") {
            ensure!(root().join(target).is_file(), "{target}: no such file");
            format!("--file={target}")
        } else {
            let dir = target.trim_start_matches("crates/").trim_end_matches('/');
            ensure!(root().join("crates").join(dir).is_dir(), "{target}: no such crate");
            format!("--file=crates/{dir}/**/*.rs")
        };
        words.push(option);
    }
    Ok(words)
}

/// Number of shares, so that each has at most `count` of all mutants.
fn shares(all: usize, count: usize) -> usize {
    all.div_ceil(count).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_has_as_many_as_were_asked_for_at_most() {
        for (all, count) in [(0, 5), (5, 5), (6, 5), (100, 7)] {
            let sample = (0..all).step_by(shares(all, count)).count();
            assert!(sample <= count && (sample > 0 || all == 0), "{count} of {all}: {sample}");
        }
    }

    #[test]
    fn name_of_a_mutant_is_a_regular_expression_of_itself_alone() {
        let name = "a/b.rs:1:2: replace A<'_>::f -> [u8] with Ok(())";
        assert_eq!(literal(name), r"a/b\.rs:1:2: replace A<'_>::f -> \[u8\] with Ok\(\(\)\)");
    }

    #[test]
    fn targets_are_crates_or_files_that_exist() {
        let words = chosen(&["crypt".to_owned(), "xtask/src/main.rs".to_owned()]).unwrap();
        assert_eq!(words, ["--file=crates/crypt/**/*.rs", "--file=xtask/src/main.rs"]);
        assert!(chosen(&["attic".to_owned()]).unwrap_err().to_string().contains("no such crate"));
        assert!(chosen(&["attic.rs".to_owned()]).unwrap_err().to_string().contains("no such file"));
    }
}
