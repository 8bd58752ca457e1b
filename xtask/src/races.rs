//! `cargo x races`: ThreadSanitizer over the threads of the server, with the single stable
//! toolchain.
//!
//! A nightly compiler is not necessary: the release has the sanitizer's runtime, and rustup has the
//! sources of the standard library, which must be instrumented too. The tests of `crates/host`,
//! with its doors, and servers under load run with it. Two accesses to the same memory from two
//! threads, one of them a write, without an order between them, are a finding.
//!
//! The sanitizer sees neither the cipher kernels nor C code, nor what the kernel does with a buffer
//! in a ring. rustix calls the C library here, whose calls the sanitizer knows: an eventfd or a
//! socket puts threads in order. `tests/races.txt` has what it takes for a race and is none.

use crate::cases::Cases;
use crate::growth;
use crate::lab::{self, Lab};
use crate::tools;
use crate::totals::Totals;
use crate::volume::{Maker, Recipe};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const SUPPRESSIONS: &str = "tests/races.txt";
/// First words of a report.
const REPORT: &str = "WARNING: ThreadSanitizer: ";

/// The C library instead of the kernel's calls is a choice of rustix.
const FLAGS: &[&str] = &["-Zsanitizer=thread", "--cfg=rustix_use_libc"];

/// Foreign crates need half the time to build with less optimisation, and few tests wait for them.
const PROFILE: &str = "profile.dev.package.\"*\".opt-level=1";

/// The command line without the lab, which has no server.
const PROGRAM: &[&str] = &["--package", "blockyard-cli", "--no-default-features"];

/// Tests that the sanitizer hinders. Its own thread, which is in each process, takes no signal, and
/// so not the limits of the sandbox. A program is slow with it, so the times of stages differ. A
/// child of a process that serves a FUSE mount to itself hangs: it closes a file of the mount, and
/// waits for its parent. A mount starts a child, so only one test has one. The fault of a log that
/// shrinks arises in the sanitizer's own code.
const SKIPPED: &[&str] = &[
    "sandbox",
    "server_that_was_taken_over",
    "threads_lose_new_privileges",
    "elevator_and_its_thread_are_the_queue",
    "copy_of_a_long_write_is_the_device",
    "end_unmounts_no_other_file_system",
    "random_calls_leave_the_same_bytes",
    "file_has_the_size_and_the_refusals_of_a_disk",
    "read_only_volume_refuses_writes_and_an_end",
    "header_in_a_file_of_fuse_is_written_by_one_program",
    "bad_log_ends_the_connection_or_stops_the_queue",
];

/// Servers under load: one for each way of a request through the threads.
pub(crate) const SERVERS: &[&str] = &[
    "",
    "--pipeline G --elevator bfq --queue-depth 4",
    "--pipeline D --elevator mq-deadline",
    "--direct",
];

/// Two threads that count with the same word.
const ALARM: &str = "
    static mut COUNT: u64 = 0;
    fn main() {
        let count = || (0..1000).for_each(|_| unsafe { COUNT += 1 });
        let thread = std::thread::spawn(count);
        count();
        thread.join().unwrap();
    }
";

/// Name of their cases.
const LOAD: &str = "server under load";

/// Commands for them, each of which meets requests of clients.
const COMMANDS: &[&str] = &[
    "status --json control",
    "suspend control",
    "resume control",
    "limit control --iops-limit 20000",
    "limit control --none",
    "trace record control --output trace --force --for 100ms",
    "top control --once --json",
];

/// Length and selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of load, for all kinds of servers together.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the load.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Succeed without a run if the sources of the standard library cannot be had.
    #[arg(long)]
    if_possible: bool,
    /// Only cases with this part of a name.
    only: Option<String>,
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    if let Err(error) = need_sources() {
        if !args.if_possible {
            return Err(error);
        }
        println!("races: skipped: {error:#}");
        return Ok(());
    }
    let sanitizer = Sanitizer::new()?;
    let mut cases = Cases::new(args.only.as_deref());
    cases.run("alarm", || sanitizer.finds_a_race());
    cases.run("tests of crates/host", || sanitizer.test());
    if cases.wants_some(LOAD) {
        under_load(&sanitizer, args, totals, &mut cases)?;
    }
    let reports = sanitizer.reports()?;
    totals.add("races", reports.len() as u64);
    for (summary, report) in reports {
        cases.verdict(&summary, Err(anyhow!(report)));
    }
    cases.finish("races")
}

/// Installs the sources of the standard library.
fn need_sources() -> Result<()> {
    let sysroot = tools::read(Command::new("rustc").args(["--print", "sysroot"]))?;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if sources.is_dir() {
        return Ok(());
    }
    let mut install = Command::new("rustup");
    tools::run(install.args(["component", "add", "rust-src"]).current_dir(tools::root()))
        .context("the sources of the standard library are missing, which rustup installs")?;
    Ok(())
}

/// Builds with the sanitizer, and its reports.
struct Sanitizer {
    triple: String,
    target: PathBuf,
    /// Each process with a finding has a file here.
    reports: TempDir,
}

impl Sanitizer {
    fn new() -> Result<Self> {
        let reports = tempfile::Builder::new().prefix("blockyard-races-").tempdir()?;
        // The servers are of another user, who may not read the checkout.
        fs::set_permissions(reports.path(), Permissions::from_mode(0o777))?;
        fs::copy(tools::root().join(SUPPRESSIONS), reports.path().join("suppressions"))?;
        let target = lab::target().join("races");
        Ok(Self { triple: tools::host_triple()?, target, reports })
    }

    fn cargo(&self, words: &[&str]) -> Command {
        let mut cargo = tools::cargo();
        cargo.args(["--config", PROFILE]).args(words);
        cargo.args(["--locked", "-Zbuild-std", "--target", &self.triple]);
        cargo.env("CARGO_TARGET_DIR", &self.target).env("RUSTC_BOOTSTRAP", "1");
        cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
        cargo.env("TSAN_OPTIONS", self.options());
        cargo
    }

    /// Options of the instrumented programs. The reports decide, not the exit status, which tests
    /// look at. A child after a fork may have threads: the server of the tests, and ours without
    /// its broker.
    fn options(&self) -> String {
        let dir = self.reports.path().display();
        format!("suppressions={dir}/suppressions log_path={dir}/report exitcode=0 die_after_fork=0")
    }

    /// A race on purpose must be a report; it is no finding.
    fn finds_a_race(&self) -> Result<String> {
        let dir = tempfile::tempdir()?;
        let [source, program] = ["alarm.rs", "alarm"].map(|name| dir.path().join(name));
        fs::write(&source, ALARM)?;
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition=2024", "-Zsanitizer=thread"]).arg(&source).arg("-o").arg(&program);
        // The standard library of the release is not instrumented.
        rustc.arg("-Cunsafe-allow-abi-mismatch=sanitizer").env("RUSTC_BOOTSTRAP", "1");
        tools::run(rustc.current_dir(tools::root()))?;
        let output = tools::output(Command::new(&program).env("TSAN_OPTIONS", "exitcode=0"))?;
        let found = summaries(&tools::text(&output.stderr));
        ensure!(!found.is_empty(), "no report of a race on purpose");
        Ok(String::new())
    }

    fn test(&self) -> Result<String> {
        let words =
            ["--quiet", "--no-fail-fast", "--package", "blockyard-host", "--lib", "--tests"];
        let mut test = self.cargo(&["test"]);
        test.args(words).arg("--").args(SKIPPED.iter().flat_map(|name| ["--skip", name]));
        tools::run(&mut test).map(|_| String::new())
    }

    /// Builds the program, and returns its path.
    fn program(&self) -> Result<PathBuf> {
        let mut build = self.cargo(&["build", "--quiet", "--bin", "blockyard"]);
        tools::show(build.args(PROGRAM))?;
        Ok(self.target.join(&self.triple).join("debug/blockyard"))
    }

    /// One report for each pair of places, by its summary.
    fn reports(&self) -> Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        for entry in fs::read_dir(self.reports.path())? {
            all.extend(summaries(&tools::text(&fs::read(entry?.path())?)));
        }
        Ok(all)
    }
}

/// The reports in a text, by their summaries.
fn summaries(text: &str) -> BTreeMap<String, String> {
    let reports = text.split(REPORT).skip(1);
    let summary = |report: &str| {
        let line = report.lines().find_map(|line| line.strip_prefix("SUMMARY: ThreadSanitizer: "));
        line.or(report.lines().next()).unwrap_or_default().to_owned()
    };
    reports.map(|report| (summary(report), report.trim_end().to_owned())).collect()
}

/// Servers with clients that come and go, and with commands for the running server beside them.
fn under_load(
    sanitizer: &Sanitizer,
    args: &Args,
    totals: &mut Totals,
    cases: &mut Cases,
) -> Result<()> {
    let mut lab = Lab::with(&sanitizer.program()?)?;
    lab.set("TSAN_OPTIONS", sanitizer.options());
    let recipe = Recipe { name: "races", maker: Maker::Blockyard, options: "--sector-size 512" };
    let mut volume = recipe.make(&lab)?;
    // A file in memory is not opened past the page cache.
    let image = lab.disk().join("races.img");
    fs::copy(&volume.image, &image)?;
    lab.give(&image)?;
    volume.image = image;
    let time = Duration::from_secs(args.seconds) / u32::try_from(SERVERS.len())?;
    totals.raise("first_seed", args.seed);
    for options in SERVERS {
        cases.run(format!("{LOAD} {options}").trim_end(), || {
            // The sandbox permits no file of reports.
            let fixed = ["--sandbox", "off", "--allow-discards", "--control", "control"];
            let words: Vec<&str> = options.split_whitespace().chain(fixed).collect();
            let server = volume.serve(&lab, &words)?;
            let load = growth::Load::new(args.seed);
            load.run(&server, time, || commands(&lab))?;
            load.count(totals);
            server.stop().map(|()| String::new())
        });
    }
    Ok(())
}

/// One of each command that reads or changes the state of a running server.
pub(crate) fn commands(lab: &Lab) -> Result<()> {
    for words in COMMANDS {
        tools::run(&mut lab.blockyard(&words.split(' ').collect::<Vec<_>>()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_reports_are_one() {
        let report = |at: u32| {
            format!(
                "==================\n{REPORT}data race (pid={at})\n  Write of size 8\n\
                 SUMMARY: ThreadSanitizer: data race a.rs:1 in f\n==================\n"
            )
        };
        let found = summaries(&[report(1), report(2)].concat());
        assert_eq!(found.len(), 1);
        assert!(found["data race a.rs:1 in f"].contains("Write of size 8"));
        assert!(summaries("no finding").is_empty());
    }
}
