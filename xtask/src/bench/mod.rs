//! `cargo x bench`: figures beside other programs, taken in the same run on the same machine. A
//! figure without a comparison says nothing.

mod budget;
mod cluster;
mod cores;
mod elevators;
mod engine;
pub(crate) mod fio;
mod floor;
mod fuse;
mod generator;
mod line_numbers;
pub(crate) mod machine;
mod nbd;
mod peers;
mod rbd;
mod readme;
mod scale;
#[cfg(target_arch = "x86_64")]
mod sharing;
mod table;
mod tune;
mod vhost;

use crate::{lab, tools};
use anyhow::Result;
use std::io::{IsTerminal, Write};
use std::process::Command;

/// The benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(clap::Subcommand)]
enum Benchmark {
    /// One LUKS1 image served by blockyard, nbdkit and QEMU, and an unencrypted file served by
    /// nbdkit.
    Nbd(nbd::Args),
    /// A LUKS1 image as the disk of a virtual machine: blockyard and QEMU over vhost-user,
    /// blockyard over NBD, and the bare cipher, with one client.
    Vhost(vhost::Args),
    /// The plaintext of a LUKS1 volume as a file: blockyard, nbdfuse above blockyard, and QEMU.
    Fuse(fuse::Args),
    /// Images of a Ceph cluster on this machine: blockyard with encryption beside fio's engine
    /// without.
    Rbd(rbd::Args),
    /// Many volumes of one server on Ceph clusters of one OSD and of several, with one copy and
    /// more.
    Cluster(cluster::Args),
    /// Three clients on one encrypted disk under every elevator and under the kernel's schedulers.
    Elevators(elevators::Args),
    /// The sector ciphers beside OpenSSL, in GB/s of one core.
    Cipher(Further),
    /// Every encryption pipeline beside the bare cipher, on one core and on two, and the engine's
    /// own cost per request, without cipher and without system calls.
    Engine(engine::Args),
    /// fio and `blockyard bench`, alternating: request rates of both generators, and bandwidth on
    /// the same plain file.
    Fio(generator::Args),
    /// One volume and many on 1 to all CPUs, with one submitter and many, beside the bare cipher, a
    /// copy in memory, and the pipelines of the kernel.
    Cores(cores::Args),
    /// CPU time per request and memory per connection, with growing numbers of connections, exports
    /// and volumes.
    Scale(scale::Args),
    /// The result of `blockyard tune` on three volumes, beside the default and every pipeline.
    Tune(tune::Args),
    /// The parts of a request's cost, and the server beside their sum.
    Floor(floor::Args),
    /// Instructions of a 4 KiB request above the bare cipher, by layer. Needs valgrind.
    Budget,
    /// Atomic instructions and shared cache lines of a request, and bounds of them, for requests of
    /// 4 KiB and 1 MiB from one submitter and from two.
    #[cfg(target_arch = "x86_64")]
    Sharing(sharing::Args),
    /// The simulator: simulated requests per second of one core.
    Sim(Further),
    /// Page allocators for the ciphertext of writes: alone, and within whole writes.
    Pages(Further),
    /// Whole volumes copied out and in, by the number of cipher workers.
    Copy(Further),
    /// Every benchmark for a moment, too short for valid figures: a test of the benchmarks.
    Smoke,
}

/// Arguments for the example that measures.
#[derive(clap::Args)]
struct Further {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.benchmark {
        Benchmark::Nbd(args) => nbd::run(args),
        Benchmark::Vhost(args) => vhost::run(args),
        Benchmark::Fuse(args) => fuse::run(args),
        Benchmark::Rbd(args) => rbd::run(args),
        Benchmark::Cluster(args) => cluster::run(args),
        Benchmark::Elevators(args) => elevators::run(args),
        Benchmark::Cipher(further) => example("blockyard-crypt", "cipher_bench", &further.words),
        Benchmark::Engine(args) => engine::run(args),
        Benchmark::Fio(args) => generator::run(args),
        Benchmark::Cores(args) => cores::run(args),
        Benchmark::Scale(args) => scale::run(args),
        Benchmark::Tune(args) => tune::run(args),
        Benchmark::Floor(args) => floor::run(args),
        Benchmark::Budget => budget::run(),
        #[cfg(target_arch = "x86_64")]
        Benchmark::Sharing(args) => sharing::run(args),
        Benchmark::Sim(further) => example("blockyard-sim", "sim_bench", &further.words),
        Benchmark::Pages(further) => example("blockyard-host", "page_pool", &further.words),
        Benchmark::Copy(further) => example("blockyard-host", "copy_bench", &further.words),
        Benchmark::Smoke => smoke(),
    }
}

/// Runs every server with two jobs, an elevator and two schedulers, and every pipeline, too short
/// for valid figures: a test of the benchmarks themselves.
fn smoke() -> Result<()> {
    lab::build_examples_as_tests();
    nbd::run(&nbd::Args::smoke(false))?;
    nbd::run(&nbd::Args::smoke(true))?;
    vhost::run(&vhost::Args::smoke())?;
    fuse::run(&fuse::Args::smoke())?;
    rbd::run(&rbd::Args::smoke())?;
    cluster::run(&cluster::Args::smoke())?;
    elevators::run(&elevators::Args::smoke())?;
    generator::run(&generator::Args::smoke())?;
    scale::run(&scale::Args::smoke())?;
    cores::run(&cores::Args::smoke())?;
    tune::run(&tune::Args::smoke())?;
    floor::run(&floor::Args::smoke())?;
    engine::run(&engine::Args::smoke())
}

/// A measurement in which no request ended.
#[derive(Debug)]
struct NothingMoved;

impl std::fmt::Display for NothingMoved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nothing was moved")
    }
}

impl std::error::Error for NothingMoved {}

/// Longest measurement of [`moving`], in seconds: a server that moves nothing in a minute hangs.
const MOVING_MAX_SECONDS: f64 = 60.0;

/// Measures for some seconds. On a busy machine no request of a short measurement may end; it is
/// repeated with more time.
fn moving<T>(seconds: f64, mut measure: impl FnMut(f64) -> Result<T>) -> Result<T> {
    let mut seconds = seconds;
    loop {
        match measure(seconds) {
            Err(error) if error.is::<NothingMoved>() && seconds < MOVING_MAX_SECONDS => {
                seconds *= 4.0;
            }
            measured => return measured,
        }
    }
}

/// A line that is overwritten, on a terminal only.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }
}

fn example(package: &str, name: &str, words: &[String]) -> Result<()> {
    tools::show(example_command(package, name)?.args(words))
}

/// The output of an example.
fn example_text(package: &str, name: &str, words: &[&str]) -> Result<String> {
    let output = tools::run(example_command(package, name)?.args(words))?;
    Ok(tools::text(&output.stdout))
}

fn example_command(package: &str, name: &str) -> Result<Command> {
    let mut command = Command::new(lab::build_example(package, name)?);
    command.current_dir(tools::root());
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn measurement_in_which_nothing_moved_has_more_time_and_then_fails() {
        let mut tried = Vec::new();
        let moved = moving(0.5, |seconds| {
            tried.push(seconds);
            if seconds < 2.0 {
                bail!(NothingMoved);
            }
            Ok(seconds)
        });
        assert_eq!((moved.unwrap(), tried), (2.0, vec![0.5, 2.0]));
        let hung = moving(0.5, |_| -> Result<()> { bail!(NothingMoved) });
        assert_eq!(hung.unwrap_err().to_string(), "nothing was moved");
        let failed = moving(0.5, |_| -> Result<()> { bail!("no server") });
        assert_eq!(failed.unwrap_err().to_string(), "no server");
    }
}
