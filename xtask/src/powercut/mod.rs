//! `cargo x powercut`: what a flush or FUA has promised is on the disk after a power cut.
//!
//! The server runs on a disk of ours ([`fuse`]) that loses what was not synced. Clients write
//! ([`load`]) and note what was promised ([`ledger`]). Then the power goes off: right after the
//! answer to a flush or FUA, when an operation arrives at the disk, or when the server has ended.
//! The server is killed, the disk drops what was not stable, and the server started again must show
//! every promise kept.

mod disk;
mod fuse;
mod headers;
mod ledger;
mod load;
mod random;
mod variants;

use crate::backing::LoopDevice;
use crate::cases::Cases;
use crate::lab::Lab;
use anyhow::{Context, Result, anyhow, bail};
use fuse::PowerDisk;
use headers::{Headers, JOBS};
use ledger::Ledger;
use load::Load;
use random::Random;
use std::fs;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use variants::{Layout, Running, Setup, VARIANTS, VOLUME_BYTES, Variant};

/// The load brings the cut within this time, or something hangs.
const CUT_LIMIT: Duration = Duration::from_secs(20);

/// How many cuts, and of what.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Cuts the power so often, in all variants together.
    #[arg(long, default_value_t = 500)]
    cuts: u64,
    /// 10,000 cuts.
    #[arg(long, conflicts_with = "cuts")]
    full: bool,
    /// Only in this variant.
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// The seed of the first cut; the next cut has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Args {
    /// As in CI.
    pub(crate) fn ci(full: bool) -> Self {
        Self { cuts: 500, full, variant: None, seed: 1 }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    fuse::check_machine()?;
    let lab = Lab::new()?;
    let mut cases = Cases::new(None);
    let cuts = if args.full { 10_000 } else { args.cuts };
    let is_chosen = |name: &str| args.variant.as_deref().is_none_or(|wanted| wanted == name);
    let names =
        VARIANTS.iter().map(|variant| variant.name).chain(JOBS.iter().map(|(name, _)| *name));
    let names: Vec<_> = names.collect();
    let chosen = names.iter().filter(|name| is_chosen(name)).count() as u64;
    if chosen == 0 {
        bail!("no such variant; there are {}", names.join(", "));
    }
    let each = cuts.div_ceil(chosen);
    for variant in VARIANTS.iter().filter(|variant| is_chosen(variant.name)) {
        cases.run(&format!("power cuts: {}", variant.name), || {
            if variant.layout == Layout::Loop && !LoopDevice::available() {
                return Ok("no loop device to be had here".into());
            }
            let power = mount(&lab)?;
            cut_often(&lab, &power, variant, args.seed, each).map(|tally| tally.to_string())
        });
    }
    for (name, job) in JOBS.iter().filter(|(name, _)| is_chosen(name)) {
        cases.run(&format!("power cuts: {name}"), || {
            let power = mount(&lab)?;
            let headers = Headers::new(*job, &lab, &power)?;
            let mut tally = Tally::default();
            for seed in args.seed..args.seed + each {
                headers.cut(seed, &mut tally).with_context(|| replay(name, seed))?;
            }
            Ok(tally.to_string())
        });
    }
    cases.finish("powercut")
}

fn mount(lab: &Lab) -> Result<PowerDisk> {
    let dir = lab.path("power");
    if !dir.exists() {
        fs::create_dir(&dir)?;
    }
    PowerDisk::mount(&dir)
}

/// The command that does a cut again.
fn replay(name: &str, seed: u64) -> String {
    format!("cargo x powercut --variant {name} --seed {seed} --cuts 1")
}

/// What some cuts have seen.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    cuts: u64,
    /// Answers to flushes and FUA writes.
    promises: u64,
    syncs: u64,
    lost_sectors: u64,
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cuts, promises, syncs, lost_sectors } = self;
        write!(
            f,
            "{cuts} cuts, {promises} promises kept, {syncs} syncs, {lost_sectors} sectors without \
             a promise lost"
        )
    }
}

/// When the power goes off.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    /// When so many operations have arrived at the disk.
    Operation(u64),
    /// Right after so many answers to flushes and FUA writes.
    Answer(u64),
    /// When the server has ended after SIGTERM.
    Stop,
}

impl Trigger {
    fn draw(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Stop,
            1..4 => Self::Operation(1 + random.below(60)),
            _ => Self::Answer(1 + random.below(12)),
        }
    }
}

fn cut_often(
    lab: &Lab,
    power: &PowerDisk,
    variant: &Variant,
    seed: u64,
    cuts: u64,
) -> Result<Tally> {
    let setup = Setup::new(variant, lab, power)?;
    let ledger = Mutex::new(Ledger::new(VOLUME_BYTES));
    let running = setup.start()?;
    load::fill(running.server().socket(), &ledger.lock().unwrap_or_else(PoisonError::into_inner))?;
    let mut running = running;
    let mut tally = Tally::default();
    for seed in seed..seed + cuts {
        running = cut(&setup, power, &ledger, running, seed, &mut tally)
            .with_context(|| replay(variant.name, seed))?;
    }
    running.kill()?;
    Ok(tally)
}

/// Load, cut, start, check. Gives the server that runs now.
fn cut(
    setup: &Setup<'_>,
    power: &PowerDisk,
    ledger: &Mutex<Ledger>,
    running: Running,
    seed: u64,
    tally: &mut Tally,
) -> Result<Running> {
    let mut random = Random::new(seed);
    let trigger = Trigger::draw(&mut random);
    let (cut_after, cut_after_answers, bursts) = match trigger {
        Trigger::Operation(count) => (Some(count), None, None),
        Trigger::Answer(count) => (None, Some(count), None),
        Trigger::Stop => (None, None, Some(4)),
    };
    power.arm(random.next(), cut_after);
    let load = Load {
        socket: running.server().socket(),
        power,
        ledger,
        sector_bytes: setup.variant.sector_bytes,
        cut_after_answers,
        answers: AtomicU64::new(0),
        bursts,
    };
    let clients: Vec<Random> = (0..setup.variant.connections).map(|_| random.fork()).collect();
    let is_stop = matches!(trigger, Trigger::Stop);
    let loaded = run_load(&load, clients, is_stop);
    tally.promises += load.answers.into_inner();
    if let Err(error) = loaded {
        power.cut();
        running.kill()?;
        return Err(error.context(format!("{trigger:?}")));
    }
    if is_stop {
        running.stop()?;
        power.cut();
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        let began = ledger.flush_begins();
        ledger.flushed(began);
    } else {
        running.kill()?;
    }
    tally.syncs += power.counts().1;
    let dropped = power.restore()?;
    let running = setup.start().context("the server does not start after the power cut")?;
    let image = load::read(running.server().socket(), VOLUME_BYTES)?;
    let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    ledger
        .check(&image)
        .with_context(|| format!("a promise was broken, {trigger:?}, {dropped:?}"))?;
    tally.cuts += 1;
    tally.lost_sectors += dropped.lost_sectors;
    Ok(running)
}

/// Runs the clients until the power is off, or, before a stop, until they have ended.
fn run_load(load: &Load<'_>, clients: Vec<Random>, until_they_end: bool) -> Result<()> {
    thread::scope(|scope| {
        let clients: Vec<_> =
            clients.into_iter().map(|random| scope.spawn(|| load.client(random))).collect();
        if !until_they_end && !load.power.wait_off(CUT_LIMIT) {
            load.power.cut();
            bail!("the load did not bring the cut within {CUT_LIMIT:?}");
        }
        for client in clients {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        Ok(())
    })
}
