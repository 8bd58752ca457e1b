//! A server whose system calls fail while it serves.

use super::commands::Bench;
use super::{Calls, Fault, Met, counted};
use crate::lab::Server;
use crate::nbd::{FLUSH, Range, Raw, TRIM, WRITE, WRITE_ZEROES};
use crate::process::until;
use crate::tools;
use crate::volume::noise;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Parts of sectors of 4096 bytes, in the server's smallest unit.
const BLOCK_BYTES: usize = 39 * 512;
const BLOCKS: u64 = 24;
/// Place behind the blocks.
const BEHIND: u64 = 512 << 10;
/// Blocks between two flushes.
const BATCH: u64 = 4;
/// Time limit for strace to attach.
const ATTACH: Duration = Duration::from_secs(20);

pub(super) fn calls(bench: &Bench<'_>) -> Result<Calls> {
    let log = bench.lab.write("calls.log", "")?;
    let load = served(bench, &log, &[])?;
    ensure!(load.promised == BLOCKS, "without a fault: {}", load.error);
    counted(&log, false)
}

/// Serves and writes with a fault. What a flush acknowledged must be there for the next server.
pub(super) fn check(bench: &Bench<'_>, fault: &Fault) -> Result<Met> {
    let log = bench.lab.write("fault.log", "")?;
    let load = served(bench, &log, &fault.options())?;
    let is_met = tools::text(&fs::read(&log)?).contains("(INJECTED)");
    let server = serve(bench)?;
    let mut client = Raw::connect(server.socket()).context("the next server")?;
    for block in 0..load.promised {
        let got = client.read(offset(block), BLOCK_BYTES as u32)?;
        ensure!(got == noise(block, BLOCK_BYTES), "flushed block {block} is lost");
    }
    server.stop()?;
    Ok(match (is_met, load.promised == BLOCKS) {
        (false, _) => Met::Nothing,
        (true, true) => Met::Success,
        (true, false) => Met::Error,
    })
}

/// Result of the load.
#[derive(Default)]
struct Load {
    /// Blocks whose flush was acknowledged.
    promised: u64,
    /// The last error of a client.
    error: String,
}

fn serve(bench: &Bench<'_>) -> Result<Server> {
    let volume = bench.lab.path("volume.img").display().to_string();
    let pass = bench.lab.pass().display().to_string();
    bench.lab.serve("syscalls", &[&volume, "--key-file", &pass, "--allow-discards"])
}

/// Serves a fresh volume under strace with these options, writes, and ends the server.
fn served(bench: &Bench<'_>, log: &Path, options: &[String]) -> Result<Load> {
    bench.volume()?;
    let mut server = serve(bench)?;
    let mut strace = attach(&server, log, options)?;
    let mut load = Load::default();
    // A client whose connection breaks tries once more: the server must not be gone.
    for _ in 0..2 {
        match write(server.socket(), &mut load) {
            Ok(()) => break,
            Err(error) if is_silence(&error) => return Err(error.context("no reply in time")),
            // An error reply, or the end of the connection.
            Err(error) => load.error = format!("{error:#}"),
        }
    }
    server.process().signal(Signal::SIGTERM)?;
    let ended = server.wait().context("the server hangs")?;
    strace.wait()?;
    let said = server.log();
    ensure!(!said.contains("a defect in blockyard"), "a panic: {}", said.trim());
    ensure!(matches!(ended.code(), Some(0..=5)), "the server ended with {ended}: {}", said.trim());
    Ok(load)
}

/// Whether a reply did not come within the client's time limit.
fn is_silence(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    kinds.map(io::Error::kind).any(|kind| kind == ErrorKind::WouldBlock)
}

fn attach(server: &Server, log: &Path, options: &[String]) -> Result<Child> {
    let pid = server.process().0;
    let mut strace = tools::daemon("strace");
    strace.args(["-f", "-y", "-qq", "-o"]).arg(log).args(options).arg("-p").arg(pid.to_string());
    let mut child = strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let is_traced = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        tasks
            .map(|task| fs::read_to_string(task.path().join("status")))
            .all(|status| status.is_ok_and(|text| !text.contains("TracerPid:\t0\n")))
    };
    let attached = until(ATTACH, || is_traced() || !matches!(child.try_wait(), Ok(None)));
    ensure!(attached && matches!(child.try_wait(), Ok(None)), "strace does not attach");
    Ok(child)
}

fn offset(block: u64) -> u64 {
    block * (BLOCK_BYTES as u64 + 1024)
}

/// Writes the blocks that are not promised yet, with flushes, and some of all other requests behind
/// them. A failed reply ends the load.
fn write(socket: &Path, load: &mut Load) -> Result<()> {
    let mut client = Raw::connect(socket)?;
    while load.promised < BLOCKS {
        let batch = load.promised..(load.promised + BATCH).min(BLOCKS);
        for block in batch.clone() {
            client.write(offset(block), &noise(block, BLOCK_BYTES))?;
        }
        client.call(WRITE_ZEROES, Range { offset: BEHIND, len: 8192 }, &[])?;
        client.call(TRIM, Range { offset: BEHIND, len: 8192 }, &[])?;
        client.call(WRITE, Range { offset: BEHIND + 512, len: 1024 }, &noise(1, 1024))?;
        client.read(offset(batch.start), BLOCK_BYTES as u32)?;
        client.call(FLUSH, Range { offset: 0, len: 0 }, &[])?;
        load.promised = batch.end;
    }
    Ok(())
}
