//! `cargo x audit`: checks every crate against the RustSec advisories, with cargo-audit.
//!
//! The advisories change independently of the project, so this is not part of `cargo x check`: a
//! clean commit stays clean. Without network, `--db` names a checkout of
//! <https://github.com/rustsec/advisory-db>.

use crate::tools;
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;

/// Source of the advisories.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Take the advisories from this checkout, without fetching.
    #[arg(long)]
    pub(crate) db: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    tools::need("cargo-audit").context("install it with: cargo install --locked cargo-audit")?;
    let db = args.db.as_ref().map(std::path::absolute).transpose()?;
    if let Some(db) = &db {
        ensure!(db.join("crates").is_dir(), "{}: no advisory database", db.display());
    }
    for manifest in tools::WORKSPACES {
        let lock = manifest.replace(".toml", ".lock");
        let mut audit = tools::cargo();
        audit.args(["audit", "--deny", "warnings", "--file", &lock]);
        if let Some(db) = &db {
            // The checkout's owner decides how old it may be.
            audit.args(["--no-fetch", "--stale", "--db"]).arg(db);
        }
        tools::show(&mut audit)?;
    }
    Ok(())
}
