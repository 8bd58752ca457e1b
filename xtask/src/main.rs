//! `cargo x`: one command for every check of the project, in CI and on any machine.
//!
//! One command, one file. Commands that drive the finished binary do it from outside, as a user
//! would: through its command line, its socket and `/proc`; nothing here links against the crates
//! under test.

mod audit;
mod backing;
mod bare;
mod bench;
mod cases;
mod ceph;
mod ceph_scale;
mod certificates;
mod check;
mod choosing;
mod ci;
mod clocks;
mod corpus;
mod demo;
mod deny;
mod disconnects;
mod dist;
mod elsewhere;
mod fuzz;
mod growth;
mod hygiene;
mod interop;
mod keys;
mod lab;
mod markdown;
mod mutants;
mod nbd;
mod numbers;
mod powercut;
mod process;
mod python;
mod races;
mod random;
mod recipes;
mod recording;
mod sim;
mod soak;
mod syscalls;
mod systemd;
mod test;
mod tidy;
mod tools;
mod totals;
mod verdicts;
mod volume;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use totals::Totals;

/// Every check, test and benchmark of Blockyard.
#[derive(Parser)]
#[command(name = "cargo x", bin_name = "cargo x")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Write the counts of this run to a file, as JSON; `soak` adds them to its journal.
    #[arg(long, global = true, value_name = "FILE")]
    totals: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Format, clippy, rustdoc, licences and tidy: the checks before every commit.
    Check,
    /// Style rules beyond the compiler: lengths, banned words, the arrows between crates.
    Tidy,
    /// Licences, sources and duplicates of all crates, with cargo-deny.
    Deny,
    /// Known vulnerabilities of all crates, with cargo-audit.
    Audit(audit::Args),
    /// Unit, vector and property tests of the whole workspace, and of the packages in `examples`.
    Test(test::Args),
    /// Serve and dump every corpus volume and compare checksums.
    Corpus(corpus::Args),
    /// Each command on keys and headers, and what cryptsetup makes of the volumes that it left.
    Keys(keys::Args),
    /// Foreign clients, foreign servers and the real kernel against the binary.
    Interop(interop::Args),
    /// Search passphrase and key in memory, logs, argv, environment and core files.
    Hygiene(hygiene::Args),
    /// Feed every parser of untrusted bytes with mutated input.
    Fuzz(fuzz::Args),
    /// Random worlds with faults and power cuts under the oracles, and the bugs that these must
    /// find.
    Sim(sim::Args),
    /// Clients that leave at every byte of a session.
    Disconnects(disconnects::Args),
    /// Memory, descriptors and threads of a server under load that comes and goes.
    Growth(growth::Args),
    /// Commands and servers while the wall clock jumps.
    Clocks(clocks::Args),
    /// ThreadSanitizer over the threads of the server: tests, and servers under load.
    Races(races::Args),
    /// Changed LUKS headers before Blockyard, cryptsetup and QEMU.
    Verdicts(verdicts::Args),
    /// Fail each system call by turns: an error line, and no loss.
    Syscalls(syscalls::Args),
    /// Cut the power of a disk under the server: flushed data must survive.
    Powercut(powercut::Args),
    /// Compare docs/ceph-scale.md with the experiment that its tables come from.
    CephScale(ceph_scale::Args),
    /// Run the commands of README.md and of the pages in docs, and compare what they print.
    Recipes(recipes::Args),
    /// Compare docs/elevators/choosing.md with the experiment that its tables come from.
    Choosing(choosing::Args),
    /// Compare the table in docs/lab.md of publications that the lab was not built for with its
    /// experiments.
    Elsewhere(elsewhere::Args),
    /// Compare the terminal session on the front page with a new run.
    Recording(recording::Args),
    /// The Python package, installed from its wheel: pytest, with readers of others on top.
    Python(python::Args),
    /// Mutate the code in small ways, each of which a test must find; with cargo-mutants.
    Mutants(mutants::Args),
    /// Benchmarks beside other programs, in the same run.
    Bench(bench::Args),
    /// The main use case from scratch, as `./x demo`.
    Demo,
    /// The release as it is shipped: the program without symbols, these beside it, and packages.
    Dist(dist::Args),
    /// The units of the package under a real systemd, by the commands of docs/systemd.md.
    Systemd,
    /// All checks, with a summary.
    Ci(ci::Args),
    /// Long campaigns with new seeds, for a number of hours, and the page of their totals.
    Soak(soak::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut totals = Totals::default();
    let result = run(cli.command, &mut totals);
    let written = cli.totals.map_or(Ok(()), |path| totals.write(&path));
    match result.and(written) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo x: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, totals: &mut Totals) -> Result<()> {
    match command {
        Command::Check => check::run(),
        Command::Tidy => tidy::run(),
        Command::Deny => deny::run(),
        Command::Audit(args) => audit::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Corpus(args) => corpus::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Interop(args) => interop::run(&args, totals),
        Command::Hygiene(args) => hygiene::run(&args),
        Command::Fuzz(args) => fuzz::run(&args, totals),
        Command::Sim(args) => sim::run(&args, totals),
        Command::Disconnects(args) => disconnects::run(&args, totals),
        Command::Clocks(args) => clocks::run(&args, totals),
        Command::Growth(args) => growth::run(&args, totals),
        Command::Races(args) => races::run(&args, totals),
        Command::Verdicts(args) => verdicts::run(&args, totals),
        Command::Syscalls(args) => syscalls::run(&args, totals),
        Command::Powercut(args) => powercut::run(&args, totals),
        Command::CephScale(args) => ceph_scale::run(&args),
        Command::Recipes(args) => recipes::run(&args),
        Command::Choosing(args) => choosing::run(&args),
        Command::Elsewhere(args) => elsewhere::run(&args),
        Command::Recording(args) => recording::run(&args),
        Command::Python(args) => python::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Demo => demo::run(),
        Command::Dist(args) => dist::run(&args),
        Command::Systemd => systemd::run(),
        Command::Ci(args) => ci::run(&args),
        Command::Soak(args) => soak::run(&args),
    }
}
