//! `cargo x test`: unit, vector and property tests of every crate, with nextest where it is
//! installed, and of the packages in `examples`.

use crate::tools::{self, root};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;

/// Packages that use the crates from outside of the workspace, as those of users do.
const OUTSIDE: &[&str] = &["examples/elevator"];

/// Tests with a count of rounds, which `BLOCKYARD_SOAK` raises: package and name.
type Campaign = [(&'static str, &'static str)];

const VHOST_USER: &Campaign = &[
    ("blockyard-cli", "requests_in_flight_at_a_kill_are_done_by_the_next_server"),
    ("blockyard-host", "random_tables_are_fetched_or_refused_and_no_buffer_is_outside_of_memory"),
];

const FUSE: &Campaign = &[
    ("blockyard-host", "random_calls_leave_the_same_bytes_as_in_memory_and_in_the_next_mount"),
    ("blockyard-host", "threads_that_write_neighbours_in_a_sector_lose_nothing"),
];

/// Selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the tests of virtual machines that have rounds, with the counts of `soak`: 500 kills of
    /// the server for each way of access, and a million descriptor tables.
    #[arg(long)]
    vhost_user: bool,
    /// Only the random calls on the file of a FUSE mount, with the counts of `soak`: a million for
    /// each thread, with a new seed.
    #[arg(long)]
    fuse: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.vhost_user || args.fuse {
        let vhost_user = if args.vhost_user { VHOST_USER } else { &[] };
        let fuse = if args.fuse { FUSE } else { &[] };
        return vhost_user.iter().chain(fuse).try_for_each(|(package, test)| {
            let mut command = tools::cargo();
            command.env("BLOCKYARD_SOAK", "1").args(["test", "--locked", "--package", package]);
            tools::show(command.arg(test))
        });
    }
    workspace()?;
    OUTSIDE.iter().try_for_each(|package| outside(&root().join(package)))
}

fn workspace() -> Result<()> {
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

/// Tests a package with the workspace's versions of other crates, in the workspace's target folder:
/// what was built of them serves again.
fn outside(package: &Path) -> Result<()> {
    let lock = "Cargo.lock";
    fs::copy(root().join(lock), package.join(lock)).context(lock)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let mut test = tools::cargo();
    test.current_dir(package).env("CARGO_TARGET_DIR", root().join(target));
    tools::show(test.args(["test", "--quiet"]))
}

/// Packages outside that only have a format to check here.
const FORMATTED: &[&str] = &["crates/host/vhost_client"];

/// Checks the format of the packages outside, which `cargo fmt --all` does not know.
pub(crate) fn format_outside() -> Result<()> {
    OUTSIDE.iter().chain(FORMATTED).try_for_each(|package| {
        tools::show(tools::cargo().current_dir(root().join(package)).args(["fmt", "--check"]))
    })
}
