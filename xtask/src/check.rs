//! `cargo x check`: checks before every commit.

use crate::deny;
use crate::tidy;
use crate::tools;
use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    tools::show(tools::cargo().args(["fmt", "--all", "--check"]))?;
    let mut clippy = tools::cargo();
    clippy.args(["clippy", "--quiet", "--workspace", "--all-targets", "--locked"]);
    tools::show(clippy.args(["--", "-D", "warnings"]))?;
    deny::check()?;
    tidy::run()
}
