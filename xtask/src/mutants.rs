//! `cargo x mutants`: changes one thing of the code at a time and looks whether a test fails, with
//! cargo-mutants. Never a part of the checks: each mutant is a build and a test run.
//!
//! A mutant that no test finds (a survivor) is answered with a test, or with a line in
//! `docs/guide/mutants.md` why it changes nothing.

use crate::tools::{self, root};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::process::Command;

/// Which mutants.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Crates (`crypt`, `host`, …) or files; none with `--changed` means all that changed.
    #[arg(value_name = "CRATE|FILE")]
    targets: Vec<String>,
    /// Only this many, spread evenly over all.
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Only the k-th of n equal shares, k from 0 on: for several machines.
    #[arg(long, value_name = "K/N", conflicts_with = "sample")]
    shard: Option<String>,
    /// Only in lines that changed since this commit; without a name, since the last one.
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "HEAD",
          require_equals = true)]
    changed: Option<String>,
    /// Prints the mutants, and tries none.
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.targets.is_empty() && args.changed.is_none() {
        bail!("name crates or files, or say --changed");
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
        let names: Vec<&str> = all.lines().collect();
        ensure!(!names.is_empty(), "there is no mutant");
        for name in spread(&names, count) {
            chosen.push("--re".to_owned());
            chosen.push(format!("^{}$", escaped(name)));
        }
    }
    if let Some(shard) = &args.shard {
        chosen.extend(["--shard".to_owned(), shard.clone()]);
    }
    let mut command = mutants();
    command.args(&chosen);
    if args.list {
        return tools::show(command.arg("--list"));
    }
    let target = root().join("target/mutants");
    fs::create_dir_all(&target)?;
    // Crates of others are built once, whichever copy of the tree is under test.
    command.env("CARGO_TARGET_DIR", target.join("build")).arg("--output").arg(target);
    command.args(["--cargo-arg=--locked", "--colors=never"]);
    tools::show(&mut command)
}

fn mutants() -> Command {
    let mut command = tools::cargo();
    command.arg("mutants");
    command
}

/// What is named, in the words of cargo-mutants.
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

/// `count` of the names at most, evenly spread.
fn spread<'a>(names: &[&'a str], count: usize) -> Vec<&'a str> {
    let count = count.min(names.len());
    (0..count).map(|index| names[index * names.len() / count]).collect()
}

/// A text as a regular expression that matches nothing else.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for letter in text.chars() {
        if letter.is_ascii_punctuation() {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_is_spread_over_all_names() {
        let names = ["a", "b", "c", "d", "e"];
        assert_eq!(spread(&names, 2), ["a", "c"]);
        assert_eq!(spread(&names, 5), names);
        assert_eq!(spread(&names, 9), names);
    }

    #[test]
    fn name_of_a_mutant_is_matched_as_it_stands() {
        assert_eq!(escaped("a.rs:1:2: replace + with *"), r"a\.rs\:1\:2\: replace \+ with \*");
    }

    #[test]
    fn targets_are_crates_or_files_that_exist() {
        let words = chosen(&["crypt".to_owned(), "xtask/src/main.rs".to_owned()]).unwrap();
        assert_eq!(words, ["--file=crates/crypt/**/*.rs", "--file=xtask/src/main.rs"]);
        assert!(chosen(&["attic".to_owned()]).unwrap_err().to_string().contains("no such crate"));
        assert!(chosen(&["attic.rs".to_owned()]).unwrap_err().to_string().contains("no such file"));
    }
}
