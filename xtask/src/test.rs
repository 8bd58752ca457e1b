//! `cargo x test`: unit, vector and property tests of every crate, with nextest where it is
//! installed.

use crate::tools;
use anyhow::Result;

pub(crate) fn run() -> Result<()> {
    let nextest = tools::output(tools::cargo().args(["nextest", "--version"]));
    if nextest.is_ok_and(|output| output.status.success()) {
        let mut test = tools::cargo();
        tools::show(test.args(["nextest", "run", "--workspace", "--locked", "--no-fail-fast"]))?;
        // nextest does not run documentation examples; cargo does.
        let mut doc = tools::cargo();
        return tools::show(doc.args(["test", "--quiet", "--workspace", "--locked", "--doc"]));
    }
    let mut test = tools::cargo();
    tools::show(test.args(["test", "--quiet", "--workspace", "--locked", "--no-fail-fast"]))
}
