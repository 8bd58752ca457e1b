//! `[crypt]`: a crypt target above the queue, its pipeline and its costs.

use blockyard_engine::dm::crypt::pipeline::{self, Adaptive, Choice, Pipeline, PipelineFlags};
use blockyard_engine::pages::{AllocatorSpec, BIO_PAGES_MAX, ORDER_MAX, Sizes};
use blockyard_engine::time::Nanos;
use blockyard_sim::memory::{ListSizes, MemoryConfig, ZoneConfig};
use blockyard_sim::world::{
    ActiveLimit, Below, Cryptd, MappedConfig, MappedCosts, PagesConfig, SHARD_CORES, Scope,
    Workqueue,
};

use super::section::{Section, listed};
use super::world::ns;
use crate::Error;

/// Pipeline name of a variant without a crypt target.
pub(super) const OFF: &str = "off";
/// Name of the kernel's pipeline, which takes the options of a crypt line.
const LINUX: &str = "linux";
/// Name of the server's own, which decides by the load.
const ADAPTIVE: &str = "adaptive";
/// Bytes by which the server measures its cipher, and the longest hand-over that pays
/// (crates/host/src/volume/placement.rs).
const PART_BYTES: u64 = 64 << 10;
const FAN_OUT_MAX_BYTES: u64 = 2 << 20;

/// Reads the section, if present, for a machine with `cpus` CPUs.
pub(super) fn read(root: &mut Section<'_>, cpus: u16) -> Result<Option<MappedConfig>, Error> {
    let Some(mut section) = root.section("crypt")? else { return Ok(None) };
    let Selected { pipeline, high_priority } = selected(&mut section)?;
    let parts = Parts::read(&mut section, &pipeline)?;
    let hand_over = hand_over(&mut section, &pipeline)?;
    let bio_kib = section.number("bio_kib", 0..=1024, 0u32)?;
    let keeps_context = section.flag("keep_context_at_split", true)?;
    let (costs, copy_kib) = costs(&mut section)?;
    let ram = Below::Memory { ns_per_kib: copy_kib.0 };
    let places = [("queue", Below::Queue), ("zero", Below::Memory { ns_per_kib: 0 }), ("ram", ram)];
    let below = section.choice("below", &places)?;
    let sector_bytes = section.number("sector_size", 512..=4096, 512u32)?;
    if !sector_bytes.is_power_of_two() {
        return Err(section.wrong_key("sector_size", "takes 512, 1024, 2048 or 4096"));
    }
    let cryptd = [("never", Cryptd::Never), ("busy", Cryptd::Busy), ("always", Cryptd::Always)];
    let cryptd = section.choice("cryptd", &cryptd)?;
    let workqueue = workqueue(&mut section)?;
    let pages = pages(root, &mut section, cpus)?;
    section.finish()?;
    let pipeline = match pipeline {
        Named::Off => return Ok(None),
        Named::Fixed(pipeline) => Choice::Fixed(parts.of(pipeline)),
        Named::Adaptive => {
            let part = costs.encrypt_kib.0 * (PART_BYTES / 1024)
                + (costs.sector.0 + costs.fpu.0) * (PART_BYTES / u64::from(sector_bytes));
            let pays_from_bytes = (hand_over.0 * PART_BYTES).div_ceil(part.max(1));
            let pays_from_bytes = pays_from_bytes.next_multiple_of(4096);
            let pays = cpus > 1 && pays_from_bytes <= FAN_OUT_MAX_BYTES;
            Choice::Adaptive(Adaptive {
                fan_out_min_bytes: pays.then_some(pays_from_bytes as u32),
                seeks: false,
                queues: below == Below::Queue,
            })
        }
    };
    Ok(Some(MappedConfig {
        pipeline,
        hand_over,
        high_priority,
        workqueue,
        bio_sectors: (bio_kib > 0).then_some(bio_kib * 2),
        keeps_context,
        sector_bytes,
        cryptd,
        below,
        pages,
        costs,
    }))
}

/// A pipeline by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// A variant without a crypt target.
    Off,
    Fixed(Pipeline),
    Adaptive,
}

/// The pipeline of the section.
struct Selected {
    pipeline: Named,
    high_priority: bool,
}

/// Longest parts, which override the pipeline's.
struct Parts {
    max_read_kib: Option<u32>,
    max_write_kib: Option<u32>,
}

impl Parts {
    fn read(section: &mut Section<'_>, pipeline: &Named) -> Result<Self, Error> {
        let mut read = |key| {
            let kib = section.maybe_number(key, 0..=1024u32)?;
            if kib.is_some() && *pipeline == Named::Adaptive {
                return Err(section.wrong_key(key, "is for the other pipelines: adaptive decides"));
            }
            Ok(kib)
        };
        Ok(Self { max_read_kib: read("max_read_kib")?, max_write_kib: read("max_write_kib")? })
    }

    fn of(&self, pipeline: Pipeline) -> Pipeline {
        let bytes = |kib: u32| (kib > 0).then_some(kib * 1024);
        Pipeline {
            max_read_bytes: self.max_read_kib.map_or(pipeline.max_read_bytes, bytes),
            max_write_bytes: self.max_write_kib.map_or(pipeline.max_write_bytes, bytes),
            ..pipeline
        }
    }
}

/// Time of a hand-over to a sleeping worker of `adaptive` and back. The default is ours: measured
/// on two virtual machines.
fn hand_over(section: &mut Section<'_>, pipeline: &Named) -> Result<Nanos, Error> {
    let key = "hand_over_ns";
    let given = section.maybe_number(key, 1..=1_000_000u64)?;
    if given.is_some() && matches!(pipeline, Named::Fixed(_)) {
        return Err(section.wrong_key(key, "is for adaptive: no other pipeline measures it"));
    }
    Ok(Nanos(given.unwrap_or(16_000)))
}

/// Reads `pipeline`, and the options of a table line, which belong to `linux`.
fn selected(section: &mut Section<'_>) -> Result<Selected, Error> {
    let name = section.needed_text("pipeline")?.to_owned();
    let options = section.texts("options")?;
    if name == LINUX {
        return from_options(section, &options);
    }
    if !options.is_empty() {
        let what = format!("needs pipeline = {LINUX:?}; {name:?} takes no options");
        return Err(section.wrong_key("options", &what));
    }
    let pipeline = match name.as_str() {
        OFF => Named::Off,
        ADAPTIVE => Named::Adaptive,
        _ => Named::Fixed(Pipeline::parse(&name).map_err(|error| {
            let what = if name.contains('=') {
                format!("is {name:?}: {error}")
            } else {
                let names = listed(pipeline::PRESETS.iter().map(|preset| preset.name));
                format!(
                    "is {name:?}, but takes {OFF:?}, {ADAPTIVE:?}, {LINUX:?}, {names}, or fields"
                )
            };
            section.wrong_key("pipeline", &what)
        })?),
    };
    Ok(Selected { pipeline, high_priority: false })
}

/// The kernel's pipeline with the options of a crypt line (`crypt_ctr_optional`).
fn from_options(section: &Section<'_>, options: &[String]) -> Result<Selected, Error> {
    let mut flags = PipelineFlags::default();
    let mut high_priority = false;
    for option in options {
        match option.as_str() {
            "same_cpu_crypt" => flags.same_cpu_crypt = true,
            "submit_from_crypt_cpus" => flags.submit_from_crypt_cpus = true,
            "no_read_workqueue" => flags.no_read_workqueue = true,
            "no_write_workqueue" => flags.no_write_workqueue = true,
            "high_priority" => high_priority = true,
            other => {
                let what = format!(
                    "has {other:?}, but takes same_cpu_crypt, submit_from_crypt_cpus, \
                     no_read_workqueue, no_write_workqueue, high_priority"
                );
                return Err(section.wrong_key("options", &what));
            }
        }
    }
    Ok(Selected { pipeline: Named::Fixed(Pipeline::from_options(flags)), high_priority })
}

/// The unbound workqueue; the default is that of kernels until 6.4.
fn workqueue(crypt: &mut Section<'_>) -> Result<Workqueue, Error> {
    let mut section = crypt.part("workqueue")?;
    let cores = section.number("shard_cores", 1..=256, SHARD_CORES)?;
    let scopes = [
        ("numa", Scope::Numa),
        ("cpu", Scope::Cpu),
        ("smt", Scope::Smt),
        ("cache", Scope::Cache),
        ("cache_shard", Scope::CacheShard { cores }),
        ("system", Scope::System),
    ];
    let limits = [("socket", ActiveLimit::Socket), ("pod", ActiveLimit::Pod)];
    let read = Workqueue {
        scope: section.choice("scope", &scopes)?,
        is_strict: section.flag("strict", true)?,
        max_active: section.maybe_number("max_active", 1..=2048u16)?,
        limit: section.choice("max_active_of", &limits)?,
    };
    section.finish()?;
    Ok(read)
}

/// The page allocator and its memory (`[memory]`).
fn pages(
    root: &mut Section<'_>,
    crypt: &mut Section<'_>,
    cpus: u16,
) -> Result<Option<PagesConfig>, Error> {
    let mut memory = root.part("memory")?;
    let reserve_pages = crypt.number("reserve_pages", 1..=BIO_PAGES_MAX, BIO_PAGES_MAX)?;
    let limit_pages = crypt.number("limit_pages", reserve_pages..=1 << 24, 1 << 20)?;
    let allocator = crypt.text("allocator")?.map(|text| {
        let wrong = |error| crypt.wrong_key("allocator", &format!("is {text:?}: {error}"));
        AllocatorSpec::parse(text).map_err(wrong)
    });
    let pages = memory.number("size_mib", 4..=1 << 14, 1024u32)? * 256;
    let watermark_pages = memory.number("watermark_pages", 0..=1 << 20, 1024)?;
    if watermark_pages + reserve_pages > pages {
        return Err(memory.wrong("has fewer pages than watermark_pages and the reserve together"));
    }
    let usual = MemoryConfig::of_pages(pages);
    let mut config = MemoryConfig {
        zones: vec![ZoneConfig { pages, watermark_pages }],
        cpus: usize::from(cpus),
        lists: ListSizes {
            batch_pages: memory.number("list_batch_pages", 1..=1024, usual.lists.batch_pages)?,
            high_pages: memory.number("list_high_pages", 1..=65_536, usual.lists.high_pages)?,
        },
        ..usual
    };
    config.costs.contention = ns(&mut memory, "contention_ns", 0)?;
    let order = memory.number("fragmented_order", 0..=ORDER_MAX, 0)?;
    let per_mille = memory.number("fragmented_per_mille", 0..=1000, 1000)?;
    let usable_pages = memory.maybe_number("usable_pages", 0..=1 << 24)?;
    memory.finish()?;
    let Some(allocator) = allocator.transpose()? else { return Ok(None) };
    Ok(Some(PagesConfig {
        allocator,
        sizes: Sizes { reserve_pages, limit_pages },
        memory: config,
        fragmented: (order > 0).then_some((order, per_mille)),
        usable_pages,
    }))
}

/// Costs of the target, and of a KiB on a ram disk. The defaults are ours: AES-XTS at 1 GB/s a
/// core, and measured costs of work items.
fn costs(section: &mut Section<'_>) -> Result<(MappedCosts, Nanos), Error> {
    let mut costs = section.part("costs")?;
    let encrypt_kib = ns(&mut costs, "cipher_ns_per_kib", 1_000)?;
    let decrypt_kib = ns(&mut costs, "decrypt_ns_per_kib", encrypt_kib.0)?;
    let read = MappedCosts {
        encrypt_kib,
        decrypt_kib,
        jitter_percent: costs.number("jitter_percent", 0..=100, 10)?,
        remote_percent: costs.number("remote_cipher_percent", 0..=1_000, 0)?,
        other_l3_percent: costs.number("other_l3_cipher_percent", 0..=1_000, 0)?,
        sector: ns(&mut costs, "sector_ns", 0)?,
        fpu: ns(&mut costs, "fpu_ns", 0)?,
        part: ns(&mut costs, "part_ns", 500)?,
        end: ns(&mut costs, "end_ns", 0)?,
        end_page: ns(&mut costs, "end_page_ns", 0)?,
        queue_work: ns(&mut costs, "queue_work_ns", 300)?,
        queue_lines: ns(&mut costs, "queue_lines_ns", 0)?,
        batch: ns(&mut costs, "batch_ns", 300)?,
        sort: ns(&mut costs, "sort_ns", 100)?,
    };
    let copy_kib = ns(&mut costs, "ram_ns_per_kib", 100)?;
    costs.finish()?;
    Ok((read, copy_kib))
}
