//! `cargo x powercut`: data promised by a flush or FUA must be on the disk after a power cut.
//!
//! The server runs on a simulated disk ([`fuse`]) that loses unsynced changes. Clients write
//! ([`load`]) and note the promises ([`ledger`]). Then the power goes off: right after the reply to
//! a flush or FUA, when an operation arrives at the disk, or when the server has ended. The server
//! is killed, the disk drops unstable changes, and the restarted server must keep every promise.

mod canaries;
mod disk;
mod fuse;
mod headers;
mod ledger;
mod load;
mod variants;

use crate::backing::LoopDevice;
use crate::cases::Cases;
use crate::lab::Lab;
use crate::random::Random;
use crate::totals::Totals;
use anyhow::{Context, Result, anyhow, bail};
use fuse::PowerDisk;
use headers::{Headers, JOBS};
use ledger::Ledger;
use load::Load;
use std::fs;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use variants::{Layout, Running, Setup, VARIANTS, VOLUME_BYTES, Variant};

/// Time limit of the load until the cut; a longer run hangs.
const CUT_LIMIT: Duration = Duration::from_secs(20);

/// Number and selection of the cuts.
#[derive(clap::Args, Clone)]
pub(crate) struct Args {
    /// Number of cuts, in all variants together.
    #[arg(long, default_value_t = 500)]
    cuts: u64,
    /// 10,000 cuts.
    #[arg(long, conflicts_with = "cuts")]
    full: bool,
    /// As many cuts as fit into this time, in all variants together.
    #[arg(long, conflicts_with_all = ["cuts", "full", "canaries"])]
    seconds: Option<u64>,
    /// Only in this variant.
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Plant one fault after another until a cut has found it; fails if one is not found.
    #[arg(long, conflicts_with_all = ["cuts", "full", "variant"])]
    canaries: bool,
    /// Only this planted fault.
    #[arg(long, value_name = "NAME", requires = "canaries")]
    canary: Option<String>,
    /// Seed of the first cut; the next cut has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    fuse::check_machine()?;
    if args.canaries {
        return canaries::run(args.seed, args.canary.as_deref());
    }
    let lab = Lab::new()?;
    let mut cases = Cases::new(None);
    let all: Vec<_> = variant_names().collect();
    let is_chosen = |name: &&str| args.variant.as_deref().is_none_or(|wanted| wanted == *name);
    let chosen: Vec<_> = all.iter().copied().filter(is_chosen).collect();
    if chosen.is_empty() {
        bail!("no such variant; there are {}", all.join(", "));
    }
    let cuts = if args.full { 10_000 } else { args.cuts };
    let each = match args.seconds {
        Some(seconds) => Length::of_time(seconds, chosen.len()),
        None => Length { cuts: cuts.div_ceil(chosen.len() as u64), time: None },
    };
    totals.raise("first_seed", args.seed);
    for name in chosen {
        cases.run(&format!("power cuts: {name}"), || {
            let power = mount(&lab)?;
            match cuts_of(name, &lab, &power, args.seed, each)? {
                Outcome::Kept(tally) => {
                    tally.add_to(args.seed, totals);
                    Ok(tally.to_string())
                }
                Outcome::Impossible(why) => Ok(why.to_owned()),
                Outcome::Broken { why, .. } => bail!(why),
            }
        });
    }
    cases.finish("powercut")
}

fn variant_names() -> impl Iterator<Item = &'static str> {
    let served = VARIANTS.iter().map(|variant| variant.name);
    served.chain(JOBS.iter().map(|(name, _)| *name))
}

/// End of the cuts of a variant.
#[derive(Clone, Copy)]
struct Length {
    cuts: u64,
    time: Option<Duration>,
}

impl Length {
    /// This time, shared out over the variants. One cut is always done.
    fn of_time(seconds: u64, variants: usize) -> Self {
        let time = Duration::from_secs(seconds) / u32::try_from(variants).expect("a few");
        Self { cuts: u64::from(u32::MAX), time: Some(time) }
    }

    fn seeds(self, first: u64) -> impl Iterator<Item = u64> {
        let start = Instant::now();
        let is_over = move || self.time.is_some_and(|time| start.elapsed() >= time);
        (first..first + self.cuts).take_while(move |seed| *seed == first || !is_over())
    }
}

/// Result of some cuts of a variant.
enum Outcome {
    Kept(Tally),
    /// A promise was not kept: found by the cut with this number.
    Broken {
        cuts: u64,
        why: String,
    },
    /// This machine lacks a requirement.
    Impossible(&'static str),
}

/// A promise that was not kept; all other errors are the test's own.
#[derive(Debug)]
struct Broken(String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// Does cuts in the variant of this name, until a promise is broken.
fn cuts_of(name: &str, lab: &Lab, power: &PowerDisk, seed: u64, length: Length) -> Result<Outcome> {
    let mut tally = Tally::default();
    let variant = VARIANTS.iter().find(|variant| variant.name == name);
    let result = match variant {
        Some(variant) if variant.layout == Layout::Loop && !LoopDevice::available() => {
            return Ok(Outcome::Impossible("this machine has no loop device"));
        }
        Some(variant) => cut_often(lab, power, variant, length.seeds(seed), &mut tally),
        None => cut_headers(lab, power, name, length.seeds(seed), &mut tally),
    };
    match result {
        Ok(()) => Ok(Outcome::Kept(tally)),
        Err(error) if error.downcast_ref::<Broken>().is_some() => {
            Ok(Outcome::Broken { cuts: tally.cuts + 1, why: format!("{error:#}") })
        }
        Err(error) => Err(error),
    }
}

fn cut_headers(
    lab: &Lab,
    power: &PowerDisk,
    name: &str,
    seeds: impl Iterator<Item = u64>,
    tally: &mut Tally,
) -> Result<()> {
    let job = JOBS.iter().find(|(known, _)| *known == name).context("no such variant")?.1;
    let headers = Headers::new(job, lab, power)?;
    for seed in seeds {
        headers.cut(seed, tally).with_context(|| replay(name, seed))?;
    }
    Ok(())
}

fn mount(lab: &Lab) -> Result<PowerDisk> {
    let dir = lab.path("power");
    if !dir.exists() {
        fs::create_dir(&dir)?;
    }
    PowerDisk::mount(&dir)
}

/// The command that repeats a cut.
fn replay(name: &str, seed: u64) -> String {
    format!("cargo x powercut --variant {name} --seed {seed} --cuts 1")
}

/// Observations of some cuts.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    cuts: u64,
    /// Number of replies to flushes and FUA writes.
    promises: u64,
    syncs: u64,
    lost_sectors: u64,
}

impl Tally {
    fn add_to(&self, seed: u64, totals: &mut Totals) {
        totals.raise("last_seed", (seed + self.cuts).saturating_sub(1));
        totals.add("power_cuts", self.cuts);
        totals.add("promises", self.promises);
        totals.add("sectors_lost", self.lost_sectors);
    }
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

/// Trigger of a power cut.
#[derive(Clone, Copy, Debug)]
enum Trigger {
    /// This number of operations has arrived at the disk.
    Operation(u64),
    /// Right after this number of replies to flushes and FUA writes.
    Answer(u64),
    /// The server has ended after SIGTERM.
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
    seeds: impl Iterator<Item = u64>,
    tally: &mut Tally,
) -> Result<()> {
    let setup = Setup::new(variant, lab, power)?;
    let ledger = Mutex::new(Ledger::new(VOLUME_BYTES));
    let mut running = setup.start()?;
    load::fill(running.server().socket(), &ledger.lock().unwrap_or_else(PoisonError::into_inner))?;
    for seed in seeds {
        running = cut(&setup, power, &ledger, running, seed, tally)
            .with_context(|| replay(variant.name, seed))?;
    }
    running.kill()
}

/// Load, cut, start, check. Returns the server that runs now.
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
    let (running, backup) = setup.back_up(running)?;
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
    if let Some(backup) = backup {
        let checked = setup.check_bitmap(&running, &backup, &image);
        checked.with_context(|| format!("a block is not dirty, {trigger:?}, {dropped:?}"))?;
    }
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
