//! The world of an experiment: machine, page cache, write-back, file system, queue, device.
//!
//! Every key has a range, which is checked before any allocation, and a default, so that an
//! experiment sets only the keys that matter. The name of a key contains its unit.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use blockyard_engine::elevator::{ElevatorSpec, Generation};
use blockyard_engine::mq::complete::RqAffinity;
use blockyard_engine::mq::{Limits, PlugRule, QueueConfig};
use blockyard_engine::throttle;
use blockyard_engine::time::Nanos;
use blockyard_sim::cache::CacheConfig;
use blockyard_sim::cpu::{
    Costs, Governor, Idle, IdleConfig, IdleGovernor, IdleState, Migration, Scheduler, Topology,
    VmCosts,
};
use blockyard_sim::device::disk::geometry::{Geometry, SeekTimes};
use blockyard_sim::device::disk::{DiskConfig, Policy};
use blockyard_sim::device::flash::{
    Collection, EraseBlocks, FlashConfig, PAGE_TYPES_MAX, PageTypes, Queues, Slow,
};
use blockyard_sim::fs::FsConfig;
use blockyard_sim::fs::ext3::{DataMode, Ext3Config, JournalPlace};
use blockyard_sim::fs::log::LogConfig;
use blockyard_sim::world::{
    BandwidthConfig, CallCosts, Config, DeviceConfig, ElevatorCosts, ElevatorLock, FsyncOrder,
    Housekeeping, InterruptConfig, QueueMode, RamConfig, WriteBack,
};

use super::section::Section;
use super::tree::Value;
use super::{cluster, crypt, null, raid};
use crate::Error;

/// A second in nanoseconds: the limit of costs and delays.
const SECOND_NS: u64 = 1_000_000_000;
/// An hour in milliseconds: the limit of timers.
const HOUR_MS: u64 = 3_600_000;
/// 64 TiB of sectors.
const SECTORS_MAX: u64 = 1 << 37;
const MIB_SECTORS: u64 = 2048;
const PERCENT: RangeInclusive<u32> = 0..=100;

/// Reads the world's sections of an experiment.
pub(super) fn read(root: &mut Section<'_>) -> Result<Config, Error> {
    let Machine { topology, costs, call_costs, bandwidth, housekeeping } = machine(root)?;
    let (cache, bio_sectors) = page_cache(root)?;
    let (write_back, sync_flags) = write_back(root)?;
    let fs = file_system(root)?;
    let (device, interrupts) = device(root)?;
    let raid = raid::read(root, &device)?;
    let mapped = crypt::read(root, topology.cpus())?;
    let (queue, elevator, elevator_costs) = queue(root, &topology, &device)?;
    let stack = null::stack(root, &queue, &device)?;
    if stack.is_some() && elevator_costs.lock == ElevatorLock::Deferred {
        let what = "has a deferred lock, which a queue above another one cannot have";
        return Err(root.wrong_key("queue", what));
    }
    let limits = limits(root, &device)?;
    Ok(Config {
        topology,
        costs,
        call_costs,
        bandwidth,
        cache,
        write_back,
        fs,
        bio_sectors,
        sync_flags,
        housekeeping,
        limits,
        mapped,
        stack,
        queue,
        elevator,
        elevator_costs,
        device,
        raid,
        interrupts,
        seed: 0,
    })
}

/// The section `[machine]`.
struct Machine {
    topology: Topology,
    costs: Costs,
    call_costs: CallCosts,
    bandwidth: Option<BandwidthConfig>,
    housekeeping: Option<Housekeeping>,
}

fn machine(root: &mut Section<'_>) -> Result<Machine, Error> {
    let mut machine = root.part("machine")?;
    let topology = topology(&mut machine)?;
    let mut costs = machine.part("costs")?;
    let read = Costs {
        switch: ns(&mut costs, "switch_ns", 2_000)?,
        wake_up: ns(&mut costs, "wake_up_ns", 1_000)?,
        ipi: ns(&mut costs, "ipi_ns", 1_000)?,
        ipi_remote: ns(&mut costs, "ipi_remote_ns", 2_000)?,
        idle: idle(&mut machine, ns(&mut costs, "idle_exit_ns", 5_000)?)?,
        vm: vm(&mut costs)?,
        migrate: migration(&mut costs)?,
        cache_hot: ns(&mut costs, "cache_hot_ns", 0)?,
        slice: ns(&mut costs, "slice_ns", 6_000_000)?,
        granularity: ns(&mut costs, "granularity_ns", 1_000_000)?,
        scheduler: machine
            .choice("scheduler", &[("cfs", Scheduler::Cfs), ("eevdf", Scheduler::Eevdf)])?,
        user: ns(&mut costs, "user_ns", 0)?,
        syscall: ns(&mut costs, "syscall_ns", 300)?,
        page: ns(&mut costs, "page_ns", 1_500)?,
        submit: ns(&mut costs, "submit_ns", 2_000)?,
        issue: ns(&mut costs, "issue_ns", 2_000)?,
        interrupt: ns(&mut costs, "interrupt_ns", 3_000)?,
        complete: ns(&mut costs, "complete_ns", 2_000)?,
        governor: governor(&mut machine)?,
        shared_core_percent: shared_core(&mut machine, topology)?,
    };
    let call_costs = CallCosts {
        direct_write: ns(&mut costs, "direct_write_ns", 0)?,
        direct_write_page: ns(&mut costs, "direct_write_page_ns", 0)?,
        create: ns(&mut costs, "create_ns", 10_000)?,
        verify_kib: ns(&mut costs, "verify_ns_per_kib", 0)?,
        random_offset: ns(&mut costs, "random_offset_ns", 0)?,
    };
    costs.finish()?;
    let bandwidth = bandwidth(&mut machine, topology.sockets)?;
    let every = us(&mut machine, "housekeeping_us", 0)?;
    let takes = ns(&mut machine, "housekeeping_takes_ns", 2_000)?;
    if every > Nanos(0) && (takes == Nanos(0) || takes + read.switch >= every) {
        let what = "needs a housekeeping_takes_ns above 0, and with costs.switch_ns together below \
                    housekeeping_us";
        return Err(machine.wrong(what));
    }
    if read.scheduler == Scheduler::Eevdf && read.granularity == Nanos(0) {
        let what =
            "needs a costs.granularity_ns above 0 for the scheduler \"eevdf\": it is the slice";
        return Err(machine.wrong(what));
    }
    machine.finish()?;
    let housekeeping = (every > Nanos(0)).then_some(Housekeeping { every, takes });
    Ok(Machine { topology, costs: read, call_costs, bandwidth, housekeeping })
}

/// Reads the limits of memory.
fn bandwidth(machine: &mut Section<'_>, sockets: u16) -> Result<Option<BandwidthConfig>, Error> {
    const MIB_MAX: u64 = 1 << 24;
    let mut section = machine.part("bandwidth")?;
    let memory = section.number("memory_mib_per_s", 0..=MIB_MAX, 0u64)?;
    let link = section.number("link_mib_per_s", 0..=MIB_MAX, 0u64)?;
    let read = BandwidthConfig {
        memory_bytes_per_s: memory << 20,
        link_bytes_per_s: (link > 0).then_some(link << 20),
        cipher_percent: section.number("cipher_percent", 0..=1000, 200)?,
        copy_percent: section.number("copy_percent", 0..=1000, 200)?,
        dma_percent: section.number("dma_percent", 0..=1000, 100)?,
        device_socket: section.number("device_socket", 0..=15, 0)?,
    };
    if link > 0 && memory == 0 {
        return Err(section.wrong_key("link_mib_per_s", "has no effect without memory_mib_per_s"));
    }
    if read.device_socket >= sockets {
        return Err(section.wrong_key("device_socket", "is not below machine.sockets"));
    }
    section.finish()?;
    Ok((memory > 0).then_some(read))
}

/// Reads the sockets, their L3 caches and CPUs.
fn topology(machine: &mut Section<'_>) -> Result<Topology, Error> {
    let sockets = machine.number("sockets", 1..=16, 1)?;
    let cpus_per_socket = machine.number("cpus_per_socket", 1..=256, 2u16)?;
    let cpus_per_l3 = machine.maybe_number("cpus_per_l3", 1..=256u16)?;
    if cpus_per_l3.is_some_and(|cpus| !cpus_per_socket.is_multiple_of(cpus)) {
        return Err(machine.wrong_key("cpus_per_l3", "does not divide cpus_per_socket"));
    }
    Ok(Topology { sockets, cpus_per_socket, cpus_per_l3 })
}

/// Reads the price of a migration.
fn migration(costs: &mut Section<'_>) -> Result<Migration, Error> {
    let same_l3 = ns(costs, "migrate_ns", 0)?;
    let other_l3 = ns(costs, "migrate_l3_ns", same_l3.0)?;
    Ok(Migration { same_l3, other_l3, remote: ns(costs, "migrate_remote_ns", 0)? })
}

/// Reads the number of CPUs of a core, and their speed when both are busy.
fn shared_core(machine: &mut Section<'_>, topology: Topology) -> Result<Option<u32>, Error> {
    let cpus = machine.number("cpus_per_core", 1..=2, 1u32)?;
    let percent = machine.number("shared_core_percent", 1..=100, 60)?;
    if cpus == 2 && !topology.l3_cpus().is_multiple_of(2) {
        let what = "is 2, but cpus_per_socket or cpus_per_l3 is odd";
        return Err(machine.wrong_key("cpus_per_core", what));
    }
    Ok((cpus == 2).then_some(percent))
}

/// Reads the costs of a virtual machine.
fn vm(costs: &mut Section<'_>) -> Result<Option<VmCosts>, Error> {
    let exit = ns(costs, "vm_exit_ns", 0)?;
    let vcpu_wake = ns(costs, "vcpu_wake_ns", 0)?;
    Ok((exit + vcpu_wake > Nanos(0)).then_some(VmCosts { exit, vcpu_wake }))
}

/// Reads the idle states and their governor; the defaults are those of Skylake servers
/// (`skx_cstates` in `drivers/idle/intel_idle.c`) and of `haltpoll`.
fn idle(machine: &mut Section<'_>, fixed: Nanos) -> Result<Idle, Error> {
    let mut section = machine.part("idle")?;
    let poll_max = Nanos(section.number("poll_us", 0..=1_000_000, 200u64)? * 1000);
    let governors = [
        ("off", None),
        ("menu", Some(IdleGovernor::Menu)),
        ("haltpoll", Some(IdleGovernor::HaltPoll { poll_max })),
    ];
    let governor = section.choice("governor", &governors)?;
    let c1 = IdleState { exit: ns(&mut section, "c1_exit_ns", 2_000)?, residency: Some(Nanos(0)) };
    let c1e = idle_state(&mut section, ("c1e_exit_ns", 10_000), ("c1e_residency_us", 20))?;
    let c6 = idle_state(&mut section, ("c6_exit_ns", 133_000), ("c6_residency_us", 600))?;
    section.finish()?;
    let states = [c1, c1e, c6];
    let governed = |governor| Idle::Governed(IdleConfig { governor, states });
    Ok(governor.map_or(Idle::Fixed(fixed), governed))
}

fn idle_state(
    idle: &mut Section<'_>,
    (exit_key, exit_ns): (&'static str, u64),
    (residency_key, residency_us): (&'static str, u64),
) -> Result<IdleState, Error> {
    let exit = ns(idle, exit_key, exit_ns)?;
    let least = us(idle, residency_key, residency_us)?;
    Ok(IdleState { exit, residency: Some(least).filter(|least| *least > Nanos(0)) })
}

/// Reads the CPU frequency governor; the defaults are those of `ondemand`.
fn governor(machine: &mut Section<'_>) -> Result<Option<Governor>, Error> {
    let mut section = machine.part("governor")?;
    let ondemand = section.choice("kind", &[("performance", false), ("ondemand", true)])?;
    let governor = Governor {
        sample: Nanos(section.number("sample_us", 1..=1_000_000, 10_000u64)? * 1000),
        up_threshold_percent: section.number("up_threshold_percent", 1..=100, 95)?,
        speed_min_percent: section.number("speed_min_percent", 1..=100, 40)?,
    };
    section.finish()?;
    Ok(ondemand.then_some(governor))
}

fn page_cache(root: &mut Section<'_>) -> Result<(CacheConfig, u32), Error> {
    let mut cache = root.part("page_cache")?;
    let dirty_ratio_percent = cache.number("dirty_ratio_percent", PERCENT, 20)?;
    let background = cache.number("dirty_background_ratio_percent", PERCENT, 10)?;
    if background > dirty_ratio_percent {
        let what = "exceeds dirty_ratio_percent";
        return Err(cache.wrong_key("dirty_background_ratio_percent", what));
    }
    let read = CacheConfig {
        memory_bytes: cache.number("memory_mib", 1..=1 << 20, 1024u64)? << 20,
        dirty_ratio_percent,
        dirty_background_ratio_percent: background,
        dirty_expire: ms(&mut cache, "dirty_expire_ms", 30_000)?,
        write_back_interval: ms(&mut cache, "write_back_interval_ms", 5_000)?,
        read_ahead_bytes: cache.number("read_ahead_kib", 0..=65_536, 128u64)? << 10,
    };
    let bio_sectors = cache.number("bio_kib", 4..=32_768, 128u32)? * 2;
    cache.finish()?;
    Ok((read, bio_sectors))
}

fn write_back(root: &mut Section<'_>) -> Result<(WriteBack, bool), Error> {
    let mut section = root.part("write_back")?;
    let fsync = [("data first", FsyncOrder::DataFirst), ("commit first", FsyncOrder::CommitFirst)];
    let read = WriteBack {
        flushers: section.number("flushers", 1..=64, 1)?,
        writers_write: section.flag("writers_write", false)?,
        writer_pages: section.number("writer_pages", 1..=1 << 20, 1536)?,
        flusher_pages: section.number("flusher_pages", 1..=1 << 20, 1024)?,
        fsync: section.choice("fsync", &fsync)?,
    };
    let sync_flags = section.flag("sync_flags", true)?;
    section.finish()?;
    Ok((read, sync_flags))
}

#[derive(Clone, Copy)]
enum FsKind {
    Ext3,
    Log,
    None,
}

fn file_system(root: &mut Section<'_>) -> Result<Option<FsConfig>, Error> {
    let mut section = root.part("file_system")?;
    let kinds = [("ext3", FsKind::Ext3), ("log", FsKind::Log), ("none", FsKind::None)];
    let read = match section.choice("kind", &kinds)? {
        FsKind::None => None,
        FsKind::Ext3 => Some(FsConfig::Ext3(ext3(&mut section)?)),
        FsKind::Log => {
            let usual = LogConfig::of_2009();
            Some(FsConfig::Log(LogConfig {
                segment_blocks: section.number(
                    "segment_blocks",
                    16..=1 << 20,
                    usual.segment_blocks,
                )?,
                metadata_blocks_per_commit: section.number(
                    "metadata_blocks_per_commit",
                    1..=4096,
                    usual.metadata_blocks_per_commit,
                )?,
                barriers: section.flag("barriers", usual.barriers)?,
                commit_interval: ms(
                    &mut section,
                    "commit_interval_ms",
                    usual.commit_interval.0 / 1_000_000,
                )?,
            }))
        }
    };
    section.finish()?;
    Ok(read)
}

fn ext3(section: &mut Section<'_>) -> Result<Ext3Config, Error> {
    let usual = Ext3Config::of_2009();
    let modes = [("ordered", DataMode::Ordered), ("writeback", DataMode::Writeback)];
    let places = [("middle", JournalPlace::Middle), ("start", JournalPlace::Start)];
    let blocks = 1..=1u32 << 24;
    Ok(Ext3Config {
        mode: section.choice("data", &modes)?,
        barriers: section.flag("barriers", usual.barriers)?,
        journal_blocks: section.number("journal_blocks", blocks.clone(), usual.journal_blocks)?,
        journal_place: section.choice("journal_place", &places)?,
        group_blocks: section.number("group_blocks", blocks.clone(), usual.group_blocks)?,
        group_inodes: section.number("group_inodes", blocks.clone(), usual.group_inodes)?,
        directory_group: section.number("directory_group", 0..=1 << 24, usual.directory_group)?,
        start_places: section.number("start_places", 1..=4096, usual.start_places)?,
        window_blocks_min: section.number(
            "window_blocks_min",
            blocks.clone(),
            usual.window_blocks_min,
        )?,
        window_blocks_max: section.number("window_blocks_max", blocks, usual.window_blocks_max)?,
        commit_interval: ms(section, "commit_interval_ms", usual.commit_interval.0 / 1_000_000)?,
        read_bitmaps: section.flag("read_bitmaps", usual.read_bitmaps)?,
        writes_wait: section.flag("writes_wait", usual.writes_wait)?,
    })
}

fn queue(
    root: &mut Section<'_>,
    topology: &Topology,
    device: &DeviceConfig,
) -> Result<(QueueConfig, ElevatorSpec, ElevatorCosts), Error> {
    let mut section = root.part("queue")?;
    let text = section.text("elevator")?.unwrap_or("none");
    let elevator = ElevatorSpec::parse(text)
        .map_err(|error| section.wrong_key("elevator", &format!("is {text:?}: {error}")))?;
    let own = match device {
        // The queue mode determines the generation.
        DeviceConfig::Null(config) if config.queue_mode == QueueMode::Rq => Generation::Single,
        DeviceConfig::Null(_) => Generation::Multi,
        _ => elevator.elevator.generation,
    };
    let generations =
        [("as the elevator", own), ("single", Generation::Single), ("multi", Generation::Multi)];
    let generation = section.choice("generation", &generations)?;
    let plugs =
        [("context", PlugRule::PerContext), ("queue", PlugRule::PerQueue), ("off", PlugRule::Off)];
    if generation == Generation::Single && null::hw_queues(device) > 1 {
        return Err(section
            .wrong("of this generation has one hardware queue: set device.nr_hw_queues to 1"));
    }
    let usual = QueueConfig::of(generation);
    let queue_depth = device_depth(device);
    let nr_requests = QueueConfig::usual_nr_requests(generation, queue_depth);
    let timeout_ms = section.number("timeout_ms", 0..=HOUR_MS, 0)?;
    if timeout_ms > 0 && matches!(device, DeviceConfig::Null(_)) {
        return Err(section.wrong_key("timeout_ms", "cannot be set for a null device"));
    }
    let read = QueueConfig {
        generation,
        cpus: topology.cpus(),
        hw_queues: null::hw_queues(device),
        queue_depth,
        nr_requests: section.number("nr_requests", 1..=2_000_000, nr_requests)?,
        limits: Limits {
            max_sectors: section.number("max_kib", 4..=32_764, 512u32)? * 2,
            max_segments: section.number("max_segments", 1..=4096, usual.limits.max_segments)?,
        },
        rotational: section.flag("rotational", matches!(device, DeviceConfig::Disk(_)))?,
        write_cache: section.flag("write_cache", has_write_cache(device))?,
        fua: section.flag("fua", false)?,
        plug: section.choice("plug", &plugs)?,
        tick: Nanos(section.number("tick_us", 0..=100_000, 0u64)?.saturating_mul(1000).max(1)),
        timeout: (timeout_ms > 0).then(|| Nanos::from_ms(timeout_ms)),
    };
    let costs = elevator_costs(&mut section)?;
    let is_null = matches!(device, DeviceConfig::Null(null) if null.queue_mode == QueueMode::Mq);
    if costs.lock == ElevatorLock::Deferred && !is_null {
        let what = "is \"deferred\", which only a null device with queue_mode \"mq\" can have";
        return Err(section.wrong_key("lock", what));
    }
    section.finish()?;
    Ok((read, elevator, costs))
}

/// Reads the costs of the elevator, and its lock.
fn elevator_costs(queue: &mut Section<'_>) -> Result<ElevatorCosts, Error> {
    let locks = [
        ("off", ElevatorLock::None),
        ("queue", ElevatorLock::Queue),
        ("hctx", ElevatorLock::HardwareQueue),
        ("deferred", ElevatorLock::Deferred),
    ];
    let lock = queue.choice("lock", &locks)?;
    let mut costs = queue.part("costs")?;
    let step = ns(&mut costs, "step_ns", 0)?;
    let contended = ns(&mut costs, "contended_ns", 0)?;
    costs.finish()?;
    if lock != ElevatorLock::None && step == Nanos(0) {
        let what = "has no effect without queue.costs.step_ns, the work under the lock";
        return Err(queue.wrong_key("lock", what));
    }
    Ok(ElevatorCosts { step, lock, contended })
}

/// Reads the limits of the rate.
fn limits(root: &mut Section<'_>, device: &DeviceConfig) -> Result<throttle::Limits, Error> {
    let mut section = root.part("limit")?;
    let iops = section.number("iops", 0..=1_000_000_000, 0u64)?;
    let kib_per_s = section.number("kib_per_s", 0..=1 << 40, 0u64)?;
    let burst_ms = section.number("burst_ms", 0..=HOUR_MS, 100u64)?;
    let limits = throttle::Limits {
        iops: NonZeroU64::new(iops),
        bytes_per_s: NonZeroU64::new(kib_per_s * 1024),
        burst: Nanos::from_ms(burst_ms),
    };
    if limits.is_some() && matches!(device, DeviceConfig::Null(_)) {
        return Err(section.wrong("has no effect on a null device, which has queues of its own"));
    }
    section.finish()?;
    Ok(limits)
}

#[derive(Clone, Copy)]
enum DeviceKind {
    Disk,
    Flash,
    Cluster,
    Memory,
    Null,
}

fn device(root: &mut Section<'_>) -> Result<(DeviceConfig, InterruptConfig), Error> {
    let mut section = root.part("device")?;
    let kinds = [
        ("disk", DeviceKind::Disk),
        ("flash", DeviceKind::Flash),
        ("cluster", DeviceKind::Cluster),
        ("memory", DeviceKind::Memory),
        ("null", DeviceKind::Null),
    ];
    let device = match section.choice("kind", &kinds)? {
        DeviceKind::Disk => DeviceConfig::Disk(disk(&mut section)?),
        DeviceKind::Flash => DeviceConfig::Flash(flash(&mut section)?),
        DeviceKind::Cluster => DeviceConfig::Cluster(cluster::read(&mut section)?),
        DeviceKind::Memory => DeviceConfig::Memory(RamConfig {
            sectors: sectors(&mut section)?,
            command: ns(&mut section, "command_ns", 0)?,
            sector: ns(&mut section, "sector_ns", 0)?,
        }),
        DeviceKind::Null => {
            let sectors = sectors(&mut section)?;
            DeviceConfig::Null(null::device(&mut section, sectors)?)
        }
    };
    let interrupts = interrupts(&mut section, &device)?;
    section.finish()?;
    Ok((device, interrupts))
}

/// Reads the interrupts of a device. Memory has none; a null device has its own keys.
fn interrupts(section: &mut Section<'_>, device: &DeviceConfig) -> Result<InterruptConfig, Error> {
    let usual = match device {
        // Each of several queues has a vector.
        DeviceConfig::Flash(flash) if flash.queues.count > 1 => {
            let vectors = section.maybe_number("interrupt_vectors", 1..=1024u16)?;
            if vectors.is_some_and(|vectors| vectors != flash.queues.count) {
                let what = "differs from nr_hw_queues, of which each has a vector";
                return Err(section.wrong_key("interrupt_vectors", what));
            }
            flash.queues.count
        }
        DeviceConfig::Flash(flash) if flash.blocks.is_none() => 1024,
        DeviceConfig::Cluster(_) => 1024,
        _ => 1,
    };
    if matches!(device, DeviceConfig::Memory(_) | DeviceConfig::Null(_)) {
        return Ok(InterruptConfig { vectors: usual, rq_affinity: RqAffinity::Group });
    }
    Ok(InterruptConfig {
        vectors: section.number("interrupt_vectors", 1..=1024, usual)?,
        rq_affinity: rq_affinity(section)?,
    })
}

pub(super) fn rq_affinity(section: &mut Section<'_>) -> Result<RqAffinity, Error> {
    Ok(match section.number("rq_affinity", 0..=2, 1u8)? {
        0 => RqAffinity::Off,
        1 => RqAffinity::Group,
        _ => RqAffinity::Force,
    })
}

/// A disk of 2009: 500 GB, 7200 rpm. All defaults are ours, close to the drive manuals of the time.
fn disk(section: &mut Section<'_>) -> Result<DiskConfig, Error> {
    let seek = SeekTimes {
        track_to_track: us(section, "seek_track_us", 1_000)?,
        average: us(section, "seek_average_us", 9_000)?,
        full_stroke: us(section, "seek_full_us", 18_000)?,
        head_switch: us(section, "head_switch_us", 800)?,
        write_settle: us(section, "write_settle_us", 500)?,
    };
    if seek.track_to_track > seek.average || seek.average > seek.full_stroke {
        return Err(section.wrong("takes seek_track_us <= seek_average_us <= seek_full_us"));
    }
    let rpm = section.number("rpm", 60..=100_000u64, 7_200)?;
    let outer = section.number("outer_track_sectors", 16..=1 << 20, 1_260)?;
    let inner = section.number("inner_track_sectors", 16..=1 << 20, 630)?;
    if inner > outer {
        return Err(section.wrong("takes inner_track_sectors <= outer_track_sectors"));
    }
    let heads = section.number("heads", 1..=64, 4)?;
    let sectors = sectors(section)?;
    let age_max_ms = section.number("age_max_ms", 1..=HOUR_MS, 2_400)?;
    let policies = [
        ("shortest", Policy::ShortestPositioning { age_max: Nanos::from_ms(age_max_ms) }),
        ("in order", Policy::InOrder),
    ];
    Ok(DiskConfig {
        geometry: Geometry::even(Nanos(60 * SECOND_NS / rpm), heads, sectors, (outer, inner), seek),
        overhead: us(section, "overhead_us", 100)?,
        overlaps_overhead: section.flag("overlap_overhead", false)?,
        bus_sector: ns(section, "bus_sector_ns", 1_700)?,
        queue_depth: section.number("queue_depth", 1..=1024, 1)?,
        policy: section.choice("policy", &policies)?,
        write_cache_sectors: section.number("write_cache_kib", 0..=1 << 20, 0u32)? * 2,
        destage_after: Nanos::from_ms(section.number("destage_after_ms", 0..=HOUR_MS, 20)?),
        read_ahead_sectors: section.number("read_ahead_kib", 0..=1 << 20, 0u32)? * 2,
    })
}

fn flash(section: &mut Section<'_>) -> Result<FlashConfig, Error> {
    let page_sectors = section.number("page_kib", 1..=1 << 16, 4u32)? * 2;
    let block_kib = section.number("erase_block_kib", 0..=1 << 20, 0u32)?;
    let open = section.number("open_blocks", 1..=65_536, 2)?;
    let close = us(section, "close_block_us", 0)?;
    let spare_percent = section.number("spare_percent", 0..=100, 0)?;
    let free_mib = section.number("free_mib", 0..=SECTORS_MAX / MIB_SECTORS, 0u64)?;
    let erase = us(section, "erase_us", 3_000)?;
    let sectors = sectors(section)?;
    if block_kib > 0 && block_kib * 2 < page_sectors {
        return Err(section.wrong("takes an erase block that holds a page"));
    }
    let collects = spare_percent > 0;
    if collects && block_kib == 0 {
        return Err(section.wrong_key("erase_block_kib", "is what spare_percent collects"));
    }
    if collects && sectors / u64::from(page_sectors) >= u64::from(u32::MAX) {
        return Err(section.wrong("takes 2^32 pages at most with spare_percent: set size_mib"));
    }
    let blocks = EraseBlocks { sectors: block_kib * 2, open, close };
    let collection = Collection {
        block_sectors: block_kib * 2,
        spare_percent,
        free_sectors: free_mib * MIB_SECTORS,
        erase,
    };
    let slow = Slow {
        per_mille: section.number("slow_per_mille", 0..=1000, 0)?,
        takes: us(section, "slow_us", 0)?,
    };
    let (read_page, page_types) = read_page(section)?;
    Ok(FlashConfig {
        sectors,
        page_sectors,
        channels: section.number("channels", 1..=1024, 1)?,
        read_page,
        program_page: us(section, "program_page_us", 200)?,
        overhead: us(section, "overhead_us", 10)?,
        bus_sector: ns(section, "bus_sector_ns", 160)?,
        bus_write_sector: section.maybe_number("bus_write_sector_ns", 0..=SECOND_NS)?.map(Nanos),
        bus_command: ns(section, "bus_command_ns", 0)?,
        queue_depth: section.number("queue_depth", 1..=65_536, 1)?,
        queues: Queues {
            count: section.number("nr_hw_queues", 1..=1024, 1)?,
            working_max: section.number("commands_max", 0..=65_536, 0)?,
        },
        page_types,
        blocks: (block_kib > 0 && !collects).then_some(blocks),
        collection: collects.then_some(collection),
        write_buffer_sectors: section.number("write_buffer_kib", 0..=1 << 20, 0u32)? * 2,
        slow,
    })
}

/// Reads the time to read a page, or those of its types; then the first is their mean.
fn read_page(section: &mut Section<'_>) -> Result<(Nanos, PageTypes), Error> {
    const KEY: &str = "read_page_us";
    if !section.is_list(KEY) {
        return Ok((us(section, KEY, 60)?, PageTypes::default()));
    }
    let most = i64::try_from(SECOND_NS / 1000).expect("it is a million");
    let time = |value: &Value| match value {
        Value::Number(us @ 0..) if *us <= most => Some(Nanos(us.unsigned_abs() * 1000)),
        _ => None,
    };
    let times: Option<Vec<Nanos>> = section.scalars(KEY)?.iter().map(time).collect();
    let times = times.filter(|times| (1..=PAGE_TYPES_MAX).contains(&times.len()));
    let Some(times) = times else {
        let what =
            format!("takes 1 to {PAGE_TYPES_MAX} times from 0 to {most}, one a type of page");
        return Err(section.wrong_key(KEY, &what));
    };
    let sum: u64 = times.iter().map(|time| time.0).sum();
    Ok((Nanos(sum / times.len() as u64), PageTypes::new(&times)))
}

pub(super) fn sectors(section: &mut Section<'_>) -> Result<u64, Error> {
    let largest = SECTORS_MAX / MIB_SECTORS;
    Ok(section.number("size_mib", 1..=largest, 64 << 10)? * MIB_SECTORS)
}

pub(super) fn ns(section: &mut Section<'_>, key: &'static str, usual: u64) -> Result<Nanos, Error> {
    Ok(Nanos(section.number(key, 0..=SECOND_NS, usual)?))
}

pub(super) fn us(section: &mut Section<'_>, key: &'static str, usual: u64) -> Result<Nanos, Error> {
    Ok(Nanos(section.number(key, 0..=SECOND_NS / 1000, usual)? * 1000))
}

fn ms(section: &mut Section<'_>, key: &'static str, usual: u64) -> Result<Nanos, Error> {
    Ok(Nanos::from_ms(section.number(key, 1..=HOUR_MS, usual)?))
}

/// Number of requests that a device accepts; the limit of the queue.
fn device_depth(device: &DeviceConfig) -> u32 {
    match device {
        DeviceConfig::Disk(disk) => disk.queue_depth,
        DeviceConfig::Flash(flash) => flash.queue_depth,
        DeviceConfig::Cluster(cluster) => cluster.queue_depth,
        // Memory has no tags.
        DeviceConfig::Memory(_) => 1024,
        DeviceConfig::Null(null) => null.hw_queue_depth,
    }
}

fn has_write_cache(device: &DeviceConfig) -> bool {
    matches!(device, DeviceConfig::Disk(disk) if disk.write_cache_sectors > 0)
}
