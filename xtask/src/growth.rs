//! `cargo x growth`: memory, descriptors and threads of a server under load that comes and goes.
//!
//! Four clients connect, read, write, discard and flush, and leave, again and again. The memory
//! must not grow from the first half of the time to the second one, and everything else must be
//! given back.

use crate::cases::Cases;
use crate::interop::broken::Footprint;
use crate::lab::{Lab, Server};
use crate::nbd::{FLUSH, Range, Raw, TRIM, WRITE_ZEROES};
use crate::random::Random;
use crate::totals::Totals;
use crate::volume::{Maker, Recipe, noise};
use anyhow::{Context, Result, anyhow, ensure};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Share of the time until the server has all of its buffers.
const WARM_UP: u32 = 8;
/// Growth that is not a leak: buffers of connections that happen to live at once.
const GROWTH_MIB_MAX: f64 = 8.0;
const CLIENTS: u64 = 4;
const SAMPLE: Duration = Duration::from_millis(250);
/// Length of one client's part of the volume.
const PART_BYTES: u64 = 6 << 20;
/// Server options of the runs.
const KINDS: &[&str] = &["", "--elevator bfq --queue-depth 4", "--direct"];

/// Length.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Seconds of load, for all kinds of servers together.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the load.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    let lab = Lab::new()?;
    let recipe = Recipe { name: "growth", maker: Maker::Blockyard, options: "--sector-size 512" };
    let mut volume = recipe.make(&lab)?;
    // A file in memory is not opened past the page cache.
    let image = lab.disk().join("growth.img");
    std::fs::copy(&volume.image, &image)?;
    lab.give(&image)?;
    volume.image = image;
    let time = Duration::from_secs(args.seconds) / u32::try_from(KINDS.len())?;
    totals.raise("first_seed", args.seed);
    let mut cases = Cases::new(None);
    for kind in KINDS {
        cases.run(format!("growth under load {kind}").trim_end(), || {
            let words: Vec<&str> = kind.split_whitespace().chain(["--allow-discards"]).collect();
            watch(volume.serve(&lab, &words)?, time, args.seed, totals)
        });
    }
    cases.finish("growth")
}

/// Clients that come and go, and counts of what they did.
pub(crate) struct Load {
    seed: u64,
    requests: AtomicU64,
    connections: AtomicU64,
    is_over: AtomicBool,
}

impl Load {
    pub(crate) fn new(seed: u64) -> Self {
        let [requests, connections] = [0; 2].map(AtomicU64::new);
        Self { seed, requests, connections, is_over: AtomicBool::new(false) }
    }

    /// Loads a server for this time, and repeats what goes on beside it.
    pub(crate) fn run(
        &self,
        server: &Server,
        time: Duration,
        mut beside: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        thread::scope(|scope| {
            let socket = server.socket();
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| scope.spawn(move || self.client(socket, client)))
                .collect();
            let start = Instant::now();
            let mut result = Ok(());
            while result.is_ok()
                && start.elapsed() < time
                && !clients.iter().any(thread::ScopedJoinHandle::is_finished)
            {
                result = beside();
            }
            self.is_over.store(true, Ordering::Relaxed);
            let ends = clients.into_iter().try_for_each(|client| {
                client.join().map_err(|_| anyhow!("a client panicked"))?.context("the load failed")
            });
            result.and(ends)
        })
    }

    /// Adds its counts.
    pub(crate) fn count(&self, totals: &mut Totals) {
        totals.add("requests_served", self.requests.load(Ordering::Relaxed));
        totals.add("connections", self.connections.load(Ordering::Relaxed));
    }

    /// Connections of one client, each with some dozens of requests on its own part of the volume.
    fn client(&self, socket: &Path, client: u64) -> Result<()> {
        let mut random = Random::new(self.seed ^ client << 56);
        let mut buffers = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let mut raw = Raw::connect(socket)?;
            self.connections.fetch_add(1, Ordering::Relaxed);
            for _ in 0..20 + random.below(100) {
                request(&mut raw, client, &mut random, &mut buffers)?;
                self.requests.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// A request of a client. `buffers` is the number of its writes.
fn request(raw: &mut Raw, client: u64, random: &mut Random, buffers: &mut u64) -> Result<()> {
    let sectors = [1, 8, 128, 2048][random.below(4) as usize];
    let len = 512 * (1 + random.below(sectors));
    let offset = client * PART_BYTES + random.below(PART_BYTES - len) / 512 * 512;
    let at = Range { offset, len: u32::try_from(len)? };
    match random.below(8) {
        0 => drop(raw.call(TRIM, at, &[])?),
        1 => drop(raw.call(WRITE_ZEROES, at, &[])?),
        2 => drop(raw.call(FLUSH, Range { offset: 0, len: 0 }, &[])?),
        3 | 4 => {
            *buffers += 1;
            let bytes = noise(*buffers, len as usize);
            raw.write(offset, &bytes)?;
            ensure!(raw.read(offset, at.len)? == bytes, "other bytes at {offset}");
        }
        _ => drop(raw.read(offset, at.len)?),
    }
    Ok(())
}

fn watch(server: Server, time: Duration, seed: u64, totals: &mut Totals) -> Result<String> {
    let before = Footprint::of(&server)?;
    let load = Load::new(seed);
    let mut samples = Vec::new();
    load.run(&server, time, || {
        thread::sleep(SAMPLE);
        samples.push(server.process().rss_mib().unwrap_or(0.0));
        Ok(())
    })?;
    load.count(totals);
    before.regained(&server)?;
    ensure!(!server.log().contains("a defect in blockyard"), "{}", server.log());
    server.stop()?;
    let [first, second] = halves(&samples).context("too short for a sample")?;
    totals.raise("rss_mib_max", first.max(second).ceil() as u64);
    ensure!(
        second < first + GROWTH_MIB_MAX,
        "resident memory grew from {first:.1} to {second:.1} MiB"
    );
    Ok(format!("{first:.1} MiB resident at most in the first half, {second:.1} in the second"))
}

/// Peaks of both halves of the samples after the warm-up.
fn halves(samples: &[f64]) -> Option<[f64; 2]> {
    let warm = &samples[samples.len() / WARM_UP as usize..];
    let (first, second) = warm.split_at(warm.len() / 2);
    let peak = |part: &[f64]| part.iter().copied().reduce(f64::max);
    Some([peak(first)?, peak(second)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_during_the_warm_up_hides_no_growth() {
        let mut samples = vec![90.0, 90.0];
        samples.extend((0..14).map(f64::from));
        assert_eq!(halves(&samples), Some([6.0, 13.0]));
        assert_eq!(halves(&[1.0]), None);
    }
}
