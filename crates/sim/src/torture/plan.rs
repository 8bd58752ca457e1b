//! The plan of a world, drawn from its seed: elevator and tunables, queue, device, faults,
//! submitters.

use std::fmt;

use blockyard_engine::dm::multipath::line::QueueMode;
use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec, ElevatorType, Generation};
use blockyard_engine::mq::{Limits, PlugRule, QueueConfig};
use blockyard_engine::priority::Priority;
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::devices::Devices;
use super::paths::Paths;
use super::sabotage::Sabotage;
use super::{Storage, TortureConfig};
use crate::device::Device;
use crate::device::disk::geometry::{Geometry, SeekTimes, Zone};
use crate::device::disk::{Disk, DiskConfig, Policy};
use crate::device::flash::{EraseBlocks, Flash, FlashConfig, PageTypes, Queues, Slow};
use crate::device::memory::{Memory, MemoryConfig};
use crate::fault::{Faults, chance};
use crate::oracle::bound::Settings;

/// Sectors of the bios; few, so that bios overlap.
pub(super) const SECTORS: u64 = 2048;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const MINUTE: u64 = 60_000 * MS;
const DAY: u64 = 24 * 60 * MINUTE;

/// A random one of these values.
pub(super) fn one_of<T: Copy>(random: &mut Random, values: &[T]) -> T {
    values[random.below(values.len() as u64) as usize]
}

/// Model of the device.
#[derive(Clone, Debug)]
pub(super) enum Model {
    Disk(DiskConfig),
    Flash(FlashConfig),
    Memory(MemoryConfig),
}

impl Model {
    pub(super) fn build(&self) -> Box<dyn Device> {
        match self {
            Self::Disk(config) => Box::new(Disk::new(config.clone())),
            Self::Flash(config) => Box::new(Flash::new(*config)),
            Self::Memory(config) => Box::new(Memory::new(*config)),
        }
    }
}

/// Behaviour of the submitters, in percent of bios unless noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    pub(super) submitters: u32,
    /// Bios in flight per submitter.
    pub(super) depth: u32,
    pub(super) reads: u64,
    pub(super) flushes: u64,
    pub(super) discards: u64,
    /// Percent of writes with preflush, and with FUA.
    pub(super) stable: u64,
    pub(super) sync: u64,
    /// Limit of consecutive bios.
    pub(super) burst: u64,
    /// Mean pause.
    pub(super) think: Nanos,
    /// Priorities to choose from.
    pub(super) priorities: &'static [Priority],
    /// Number of first sectors that get most bios.
    pub(super) hot: u64,
}

/// Plan of a world.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) spec: ElevatorSpec,
    pub(super) queue: QueueConfig,
    pub(super) model: Model,
    pub(super) faults: Faults,
    pub(super) traffic: Traffic,
    /// Time at the start.
    pub(super) start: Nanos,
    /// Whether each round ends with a power cut instead of a quiet time.
    pub(super) cuts: Vec<bool>,
    /// Paths, if the disk has several.
    pub(super) paths: Option<Paths>,
    /// Devices, if there are several.
    pub(super) devices: Option<Devices>,
}

const SAME: &[Priority] = &[Priority::best_effort(4)];
const LEVELS: &[Priority] =
    &[Priority::best_effort(0), Priority::best_effort(4), Priority::best_effort(7)];
const CLASSES: &[Priority] =
    &[Priority::real_time(4), Priority::best_effort(0), Priority::best_effort(4), Priority::IDLE];

impl Plan {
    pub(super) fn draw(random: &mut Random, config: &TortureConfig) -> Self {
        let sabotage = config.sabotage;
        let generation = one_of(random, &[Generation::Single, Generation::Multi]);
        let (settings, spec) = match sabotage.and_then(Sabotage::elevator) {
            Some(elevator) => {
                (Settings { elevator, values: Vec::new() }, ElevatorSpec::of(elevator))
            }
            None => elevator(random),
        };
        let mut queue = queue(random, generation);
        let depth = queue.queue_depth * u32::from(queue.hw_queues);
        let model = model(random, depth, &mut queue);
        let cuts = (0..1 + random.below(3)).map(|_| random.below(2) == 0).collect();
        let mut faults = faults(random, &queue);
        let traffic = traffic(random);
        // Drawn last, so that worlds with one disk do not change.
        let mut paths = None;
        let mut devices = None;
        match Sabotage::storage(config) {
            Storage::Disk => {}
            Storage::Paths => {
                let drawn = Paths::draw(random, &queue, sabotage);
                faults = drawn.faults(faults);
                paths = Some(drawn);
            }
            Storage::Devices => {
                // The submitters' plug is above the queues of the devices.
                queue.plug = PlugRule::Off;
                devices = Some(Devices::draw(random));
            }
        }
        let start = Nanos(0);
        Self { settings, spec, queue, model, faults, traffic, start, cuts, paths, devices }
    }

    /// Makes the pauses long. The world begins anywhere in a year, or shortly before a counter of
    /// milliseconds or of ticks of four overflows.
    pub(super) fn lengthen(&mut self, random: &mut Random) {
        let pause = Nanos(one_of(random, &[1_000 * MS, MINUTE, 30 * MINUTE]));
        let overflow = one_of(random, &[1 << 31, 1 << 32, 4 << 31, 4 << 32]) * MS;
        let soon = overflow - random.below(20 * pause.0);
        let start = if random.below(2) == 0 { soon } else { random.below(365 * DAY) };
        self.traffic.think = pause;
        self.start = Nanos(start);
        if let Some(paths) = &mut self.paths {
            paths.lengthen(pause);
        }
    }

    /// The configuration of the queue of each device.
    pub(super) fn lowest(&self) -> QueueConfig {
        self.paths.as_ref().map_or(self.queue, |paths| paths.lower)
    }

    /// The queue over the devices, as the ledger knows it.
    pub(super) fn issuing(&self) -> QueueConfig {
        let QueueConfig { queue_depth, hw_queues, .. } = self.lowest();
        QueueConfig { queue_depth, hw_queues, ..self.queue }
    }

    /// Number of devices, or of paths to the one.
    pub(super) fn ways(&self) -> u16 {
        let devices = self.devices.as_ref().map(|devices| devices.count);
        devices.or(self.paths.as_ref().map(|paths| paths.count)).unwrap_or(1)
    }

    /// Whether a shard is above the queues, instead of one queue.
    pub(super) fn has_shard(&self) -> bool {
        let of_bios = self.paths.as_ref().is_some_and(|paths| paths.mode == QueueMode::Bio);
        of_bios || self.devices.is_some()
    }

    /// Whether submitters have plugs.
    pub(super) fn plugs(&self) -> bool {
        self.queue.plug == PlugRule::PerContext
    }

    /// Whether all priorities have one class.
    pub(super) fn one_class(&self) -> bool {
        self.traffic.priorities.iter().all(|priority| priority.class == SAME[0].class)
    }
}

/// One line of the plan.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, queue, model, faults, traffic, start, cuts, paths, devices, .. } = self;
        writeln!(f, "elevator  {spec}")?;
        writeln!(f, "queue     {queue:?}")?;
        writeln!(f, "device    {model:?}")?;
        writeln!(f, "faults    {faults:?}")?;
        writeln!(f, "traffic   {traffic:?}")?;
        if let Some(paths) = paths {
            writeln!(f, "paths     {paths:?}")?;
        }
        if let Some(devices) = devices {
            writeln!(f, "devices   {devices:?}")?;
        }
        if *start > Nanos(0) {
            writeln!(f, "start     {} ms", start.0 / MS)?;
        }
        write!(f, "rounds    {}, power cuts {cuts:?}", cuts.len())
    }
}

/// Half of the tunables have defaults, the others are small or random below a hundred.
fn elevator(random: &mut Random) -> (Settings, ElevatorSpec) {
    let elevator: &'static ElevatorType = one_of(random, ELEVATORS);
    let mut values = Vec::new();
    let mut text = elevator.name.to_string();
    for tunable in elevator.tunables {
        let value = match random.below(4) {
            0 => tunable.min,
            1 => tunable.min.saturating_add(random.below(100)).min(tunable.max),
            _ => continue,
        };
        values.push((tunable.name, value));
        text += &format!(",{}={value}", tunable.name);
    }
    let spec = ElevatorSpec::parse(&text).expect("the values are in their ranges");
    (Settings { elevator, values }, spec)
}

fn queue(random: &mut Random, generation: Generation) -> QueueConfig {
    let cpus = one_of(random, &[1, 1, 2, 4]);
    let hw_queues = match generation {
        Generation::Single => 1,
        Generation::Multi => one_of(random, &[1, 1, 2, 4]).min(cpus),
    };
    QueueConfig {
        cpus,
        hw_queues,
        queue_depth: one_of(random, &[1, 1, 2, 4, 32]),
        nr_requests: one_of(random, &[1, 2, 8, 32, 128]),
        limits: Limits {
            max_sectors: one_of(random, &[1, 8, 16, 64, 256]),
            max_segments: one_of(random, &[1, 2, 3, 16, 128]),
        },
        rotational: random.below(2) == 0,
        write_cache: random.below(4) > 0,
        fua: random.below(2) == 0,
        plug: one_of(random, &[PlugRule::Off, PlugRule::PerContext, PlugRule::PerQueue]),
        tick: one_of(random, &[Nanos(1), Nanos(MS), Nanos(4 * MS)]),
        timeout: one_of(random, &[None, Some(Nanos(30 * MS)), Some(Nanos(2_000 * MS))]),
        ..QueueConfig::of(generation)
    }
}

fn model(random: &mut Random, queue_depth: u32, queue: &mut QueueConfig) -> Model {
    match random.below(3) {
        0 => Model::Disk(disk(random, queue_depth, queue)),
        1 => {
            let blocks = EraseBlocks { sectors: 256, open: 2, close: Nanos(2 * MS) };
            Model::Flash(FlashConfig {
                sectors: SECTORS,
                page_sectors: one_of(random, &[1, 8, 32]),
                channels: one_of(random, &[1, 4, 16]),
                read_page: Nanos(60 * US),
                program_page: Nanos(200 * US),
                overhead: Nanos(8 * US),
                bus_sector: Nanos(one_of(random, &[160, 25_000])),
                bus_write_sector: None,
                bus_command: Nanos(0),
                queue_depth,
                blocks: one_of(random, &[None, Some(blocks)]),
                collection: None,
                write_buffer_sectors: 0,
                queues: Queues::default(),
                page_types: PageTypes::default(),
                slow: Slow::default(),
            })
        }
        _ => Model::Memory(MemoryConfig {
            sectors: SECTORS,
            command: Nanos(one_of(random, &[1, 5 * US, 300 * US])),
            sector: Nanos(one_of(random, &[0, 100])),
            lanes: one_of(random, &[1, 4, 64]),
        }),
    }
}

/// A small disk: two zones of 64 cylinders with one platter.
fn disk(random: &mut Random, queue_depth: u32, queue: &mut QueueConfig) -> DiskConfig {
    let seek = SeekTimes {
        track_to_track: Nanos(800 * US),
        average: Nanos(4_000 * US),
        full_stroke: Nanos(8_000 * US),
        head_switch: Nanos(700 * US),
        write_settle: Nanos(500 * US),
    };
    let zone = |sectors_per_track| Zone { cylinders: 64, sectors_per_track };
    let revolution = Nanos(one_of(random, &[4_000 * US, 8_333 * US]));
    let write_cache_sectors = one_of(random, &[0, 16, 256]);
    queue.write_cache |= write_cache_sectors > 0;
    let ageing = Policy::ShortestPositioning { age_max: Nanos(100 * MS) };
    DiskConfig {
        geometry: Geometry::new(revolution, 2, vec![zone(16), zone(8)], seek),
        overhead: Nanos(100 * US),
        overlaps_overhead: false,
        bus_sector: Nanos(1_700),
        queue_depth,
        policy: one_of(random, &[Policy::InOrder, ageing]),
        write_cache_sectors,
        destage_after: Nanos::from_ms(if write_cache_sectors > 16 { 20 } else { 0 }),
        read_ahead_sectors: one_of(random, &[0, 64]),
    }
}

fn faults(random: &mut Random, queue: &QueueConfig) -> Faults {
    let mut some = |per_mille: &[u32]| {
        let rate = one_of(random, per_mille);
        if chance(random, 500) { rate } else { 0 }
    };
    Faults {
        errors: some(&[2, 20, 100]),
        stalls: some(&[2, 20]),
        stall_max: Nanos(100 * MS),
        reorders: some(&[20, 300]),
        reorder_max: Nanos(2 * MS),
        // Without a timeout a hung command would never end.
        hangs: if queue.timeout.is_some() { some(&[2, 10]) } else { 0 },
        refusals: some(&[10, 100]),
    }
}

fn traffic(random: &mut Random) -> Traffic {
    Traffic {
        submitters: 1 + random.below(6) as u32,
        depth: one_of(random, &[1, 4, 16]),
        reads: one_of(random, &[0, 30, 50, 90]),
        flushes: one_of(random, &[0, 3, 10]),
        discards: one_of(random, &[0, 2]),
        stable: one_of(random, &[0, 4, 20]),
        sync: one_of(random, &[0, 30, 100]),
        burst: one_of(random, &[1, 4, 16]),
        think: Nanos(one_of(random, &[0, 10 * US, 500 * US, 5 * MS])),
        priorities: one_of(random, &[SAME, SAME, LEVELS, CLASSES]),
        hot: one_of(random, &[64, 512, SECTORS]),
    }
}
