//! `cargo x audit`: every crate beside the advisories of RustSec, with cargo-audit.
//!
//! The advisories are data that changes without us, so this is no part of `cargo x check`: a commit
//! that was clean stays clean. Without network, `--db` names a checkout of
//! <https://github.com/rustsec/advisory-db>.

use crate::tools;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;

/// Where the advisories are.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Takes the advisories from this checkout, and fetches nothing.
    #[arg(long)]
    pub(crate) db: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    tools::need("cargo-audit").context("install it with: cargo install --locked cargo-audit")?;
    let db = args.db.as_ref().map(std::path::absolute).transpose()?;
    if let Some(db) = &db {
        ensure!(db.join("crates").is_dir(), "{}: no advisory database", db.display());
    }
    for lock in ["Cargo.lock", "fuzz/Cargo.lock"] {
        let mut audit = tools::cargo();
        audit.args(["audit", "--deny", "warnings", "--file", lock]);
        if let Some(db) = &db {
            // How old a copy may be is for its owner to say.
            audit.args(["--no-fetch", "--stale", "--db"]).arg(db);
        }
        tools::show(&mut audit)?;
    }
    Ok(())
}
