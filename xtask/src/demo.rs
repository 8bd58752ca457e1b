//! `cargo x demo`: runs `./x demo`, which needs no Rust to start.

use crate::tools;
use anyhow::Result;
use std::process::Command;

pub(crate) fn run() -> Result<()> {
    let root = tools::root();
    tools::show(Command::new(root.join("x")).arg("demo").current_dir(root))
}
