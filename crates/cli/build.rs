//! Gives the program the commit of its source: the value of `BLOCKYARD_COMMIT`, else git's if the
//! source is a checkout, else `unknown`.

use std::env;
use std::path::Path;
use std::process::Command;

/// Always as long, so that a build does not depend on the other commits of a clone.
const DIGITS: usize = 8;

fn main() {
    println!("cargo::rerun-if-env-changed=BLOCKYARD_COMMIT");
    // Without a file, cargo would run this again after each change of the package.
    println!("cargo::rerun-if-changed=build.rs");
    let given = env::var("BLOCKYARD_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(commit_of_checkout).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=BLOCKYARD_COMMIT={commit}");
}

fn commit_of_checkout() -> Option<String> {
    let words = ["--show-prefix", "--git-path", "HEAD", "--git-path", "logs/HEAD", "HEAD"];
    let told = Command::new("git").arg("rev-parse").args(words).output().ok()?;
    let told = String::from_utf8(told.stdout).ok()?;
    let [prefix, head, log, commit] = told.lines().collect::<Vec<_>>().try_into().ok()?;
    // A source archive may lie inside the checkout of another project.
    if prefix != "crates/cli/" {
        return None;
    }
    // The log grows with each commit. A file that is not there would count as changed always.
    for file in [head, log].into_iter().filter(|file| Path::new(file).exists()) {
        println!("cargo::rerun-if-changed={file}");
    }
    commit.get(..DIGITS).map(str::to_owned)
}
