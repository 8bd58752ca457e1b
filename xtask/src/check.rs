//! `cargo x check`: checks before every commit.

use crate::deny;
use crate::test;
use crate::tidy;
use crate::tools;
use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    tools::show(tools::cargo().args(["fmt", "--all", "--check"]))?;
    test::format_outside()?;
    // A new version of a crate has to be in the lock of the fuzz targets too.
    let mut lock = tools::cargo();
    lock.args(["metadata", "--quiet", "--locked", "--format-version", "1"]);
    tools::run(lock.current_dir(tools::root().join("fuzz")))?;
    let mut clippy = tools::cargo();
    clippy.args(["clippy", "--quiet", "--workspace", "--all-targets", "--locked"]);
    tools::show(clippy.args(["--", "-D", "warnings"]))?;
    let mut doc = tools::cargo();
    doc.args(["doc", "--quiet", "--workspace", "--no-deps", "--locked"]);
    tools::show(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    deny::check()?;
    tidy::run()
}
