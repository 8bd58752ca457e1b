//! Options of a job as text, with fio's names and value formats ([`super::value`]).

use blockyard_engine::priority::{Priority, PriorityClass};

use super::buffers;
use super::command_priority;
use super::control;
use super::distribution::{Distribution, Zone, ZoneLen};
use super::ends::{ExitWhat, GoesOn};
use super::histogram_log::HistogramLogs;
use super::job::{IODEPTH_MAX, Job, JobError, Kept, NUMJOBS_MAX, Rw, Sequencer};
use super::known;
use super::lens::Lens;
use super::pace::RateProcess;
use super::value::{
    KbBase, any_duration, cpus, duration, flag, microseconds, milliseconds, nodes, number,
    of_directions, rate, signed_size, size, thousandths,
};
use super::verify::{Pattern, Sum};
use super::zoned;

/// Sets an option from text; the error describes the valid values.
pub(super) type Set = fn(&mut Job, &str) -> Result<(), String>;

/// Most parts of a `bssplit` and most zones of a distribution. Our choice.
pub(super) const PARTS_MAX: usize = 256;

/// The options and their setters. `ioprio` (class and level in one) and `divide` are our own.
const OPTIONS: &[(&str, Set)] = &[
    ("rw", set_rw),
    ("readwrite", set_rw),
    ("rw_sequencer", set_sequencer),
    ("rwmixread", |job, text| set(&mut job.shape.read_percent, number(text, 0, 100))),
    ("rwmixwrite", |job, text| {
        set(&mut job.shape.read_percent, number(text, 0, 100).map(|percent: u8| 100 - percent))
    }),
    ("bs", set_block),
    ("blocksize", set_block),
    ("bsrange", set_range),
    ("blocksize_range", set_range),
    ("bssplit", set_split),
    ("blockalign", |job, text| {
        let base = job.kb_base;
        set(&mut job.shape.align_bytes, of_directions(text, |text| rate(text, base)))
    }),
    ("ba", |job, text| job.set("blockalign", text).map_err(|error| error.problem)),
    ("random_distribution", |job, text| {
        let base = job.kb_base;
        set(&mut job.shape.distribution, distribution(text, base))
    }),
    ("percentage_random", |job, text| {
        let percents = of_directions(text, |text| number::<u8>(text, 0, 100));
        set(&mut job.shape.random_percent, percents.map(|all| all.map(|part| part.unwrap_or(100))))
    }),
    ("iodepth", |job, text| set(&mut job.submission.iodepth, number(text, 1, IODEPTH_MAX.into()))),
    ("iodepth_batch", |job, text| set(&mut job.submission.batching.submit, depth(text))),
    ("iodepth_batch_submit", |job, text| set(&mut job.submission.batching.submit, depth(text))),
    ("iodepth_batch_complete", |job, text| set(&mut job.submission.batching.reap_min, depth(text))),
    ("iodepth_batch_complete_min", |job, text| {
        set(&mut job.submission.batching.reap_min, depth(text))
    }),
    ("iodepth_batch_complete_max", |job, text| {
        set(&mut job.submission.batching.reap_max, depth(text))
    }),
    ("iodepth_low", |job, text| set(&mut job.submission.batching.low, depth(text))),
    ("ioengine", set_engine),
    ("numjobs", |job, text| set(&mut job.clones.numjobs, number(text, 1, NUMJOBS_MAX.into()))),
    ("size", |job, text| set(&mut job.region.size_bytes, size(text, job.kb_base))),
    ("io_size", |job, text| set(&mut job.region.io_size_bytes, rate(text, job.kb_base).map(Some))),
    ("io_limit", |job, text| set(&mut job.region.io_size_bytes, rate(text, job.kb_base).map(Some))),
    ("offset", |job, text| set(&mut job.region.offset_bytes, size(text, job.kb_base))),
    ("offset_increment", |job, text| {
        set(&mut job.region.offset_increment_bytes, size(text, job.kb_base))
    }),
    ("kb_base", set_kb_base),
    ("divide", |job, text| set(&mut job.region.divide, flag(text))),
    ("numa_cpu_nodes", |job, text| set(&mut job.clones.nodes, nodes(text))),
    ("cpus_allowed", |job, text| set(&mut job.clones.cpus, cpus(text))),
    ("cpus_allowed_policy", |job, text| {
        job.clones.splits_cpus = match text {
            "shared" => false,
            "split" => true,
            _ => return Err("it must be shared or split".into()),
        };
        Ok(())
    }),
    ("filename", set_filename),
    ("direct", |job, text| set(&mut job.submission.direct, flag(text))),
    ("buffered", |job, text| set(&mut job.submission.direct, flag(text).map(|buffered| !buffered))),
    ("overwrite", |job, text| set(&mut job.region.overwrite, flag(text))),
    ("fsync", |job, text| set(&mut job.submission.fsync_every, number(text, 0, u32::MAX.into()))),
    // A volume has data only and no metadata, so both are the same.
    ("fdatasync", |job, text| {
        set(&mut job.submission.fsync_every, number(text, 0, u32::MAX.into()))
    }),
    ("end_fsync", |job, text| set(&mut job.submission.end_fsync, flag(text))),
    ("norandommap", |job, text| set(&mut job.shape.norandommap, flag(text))),
    ("loops", |job, text| set(&mut job.end.loops, number(text, 1, u32::MAX.into()))),
    ("startdelay", |job, text| set(&mut job.pace.start_delay, any_duration(text))),
    ("ramp_time", |job, text| set(&mut job.pace.ramp_time, any_duration(text))),
    ("thinktime", |job, text| set(&mut job.pace.thinktime, microseconds(text))),
    ("thinktime_blocks", |job, text| {
        set(&mut job.pace.thinktime_blocks, number(text, 1, u32::MAX.into()))
    }),
    ("thinktime_blocks_type", set_thinktime_blocks_type),
    ("rate", |job, text| set(&mut job.pace.rate_bytes_s, rates(job.kb_base, text))),
    ("rate_min", |job, text| set(&mut job.pace.rate_min_bytes_s, rates(job.kb_base, text))),
    ("ratemin", |job, text| set(&mut job.pace.rate_min_bytes_s, rates(job.kb_base, text))),
    ("rate_iops", |job, text| set(&mut job.pace.rate_iops, counts(text))),
    ("rate_iops_min", |job, text| set(&mut job.pace.rate_min_iops, counts(text))),
    ("rate_cycle", |job, text| set(&mut job.pace.rate_cycle, milliseconds(text))),
    ("ratecycle", |job, text| set(&mut job.pace.rate_cycle, milliseconds(text))),
    ("rate_process", set_rate_process),
    ("rate_ignore_thinktime", |job, text| set(&mut job.pace.rate_ignore_thinktime, flag(text))),
    ("ioprio", |job, text| {
        set(
            &mut job.submission.priority,
            Priority::parse(text).map(Some).map_err(|error| error.to_string()),
        )
    }),
    ("prioclass", set_priority_class),
    ("prio", set_priority_level),
    ("number_ios", |job, text| set(&mut job.end.number_ios, number(text, 1, u64::MAX).map(Some))),
    ("runtime", set_runtime),
    ("timeout", set_runtime),
    ("time_based", |job, text| set(&mut job.end.time_based, flag(text))),
    ("randseed", |job, text| set(&mut job.shape.seed, number(text, 0, u64::MAX))),
    ("stonewall", |job, text| set(&mut job.grouping.stonewall, flag(text))),
    ("wait_for_previous", |job, text| set(&mut job.grouping.stonewall, flag(text))),
    ("wait_for", |job, text| set(&mut job.grouping.wait_for, Ok(Some(text.into())))),
    ("new_group", |job, text| set(&mut job.grouping.new_group, flag(text))),
    ("group_reporting", |job, text| set(&mut job.grouping.group_reporting, flag(text))),
    ("zonemode", set_zonemode),
    ("zonesize", |job, text| set(&mut job.shape.strides.size_bytes, rate(text, job.kb_base))),
    ("zonerange", |job, text| {
        set(&mut job.shape.strides.range_bytes, rate(text, job.kb_base).map(Some))
    }),
    ("zoneskip", |job, text| set(&mut job.shape.strides.skip_bytes, size(text, job.kb_base))),
    ("exitall", |job, text| set(&mut job.end.exitall, flag(text))),
    ("exit_what", set_exit_what),
    ("exitall_on_error", |job, text| set(&mut job.end.exitall_on_error, flag(text))),
    ("continue_on_error", set_continue_on_error),
    ("gtod_reduce", set_gtod_reduce),
    ("disable_slat", |job, text| set(&mut job.kept.slat, flag(text).map(|off| !off))),
    ("disable_clat", |job, text| set(&mut job.kept.clat, flag(text).map(|off| !off))),
    ("disable_lat", |job, text| set(&mut job.kept.lat, flag(text).map(|off| !off))),
    ("disable_bw", |job, text| set(&mut job.kept.rates, flag(text).map(|off| !off))),
    ("disable_bw_measurement", |job, text| set(&mut job.kept.rates, flag(text).map(|off| !off))),
    ("percentile_list", |job, text| job.percentiles.set_list(text)),
    ("slat_percentiles", |job, text| set(&mut job.percentiles.slat, flag(text))),
    ("clat_percentiles", |job, text| set(&mut job.percentiles.clat, flag(text))),
    ("lat_percentiles", |job, text| set(&mut job.percentiles.lat, flag(text))),
    ("write_bw_log", |job, text| set(&mut job.logs.bandwidth, Ok(Some(text.into())))),
    ("write_iops_log", |job, text| set(&mut job.logs.iops, Ok(Some(text.into())))),
    ("write_lat_log", |job, text| set(&mut job.logs.latency, Ok(Some(text.into())))),
    ("write_hist_log", |job, text| set(&mut job.logs.histograms.name, Ok(Some(text.into())))),
    ("log_hist_msec", |job, text| set(&mut job.logs.histograms.span, milliseconds(text))),
    ("log_hist_coarseness", |job, text| {
        let coarseness = number(text, 0, HistogramLogs::COARSENESS_MAX);
        set(&mut job.logs.histograms.coarseness, coarseness)
    }),
    ("log_avg_msec", |job, text| set(&mut job.logs.span, milliseconds(text))),
    ("log_max_value", |job, text| set(&mut job.logs.largest, flag(text))),
    ("log_offset", |job, text| set(&mut job.logs.offset, flag(text))),
    ("per_job_logs", |job, text| set(&mut job.logs.shared, flag(text).map(|own| !own))),
    ("verify", set_verify),
    ("do_verify", |job, text| set(&mut job.verify.reads_again, flag(text))),
    ("verify_only", |job, text| set(&mut job.verify.only, flag(text))),
    ("verify_fatal", |job, text| set(&mut job.verify.is_fatal, flag(text))),
    ("verify_pattern", |job, text| set(&mut job.verify.pattern, Pattern::parse(text).map(Some))),
    ("verify_interval", |job, text| {
        set(&mut job.verify.interval_bytes, rate(text, job.kb_base).map(Some))
    }),
    ("verify_offset", |job, text| set(&mut job.verify.offset_bytes, size(text, job.kb_base))),
    ("verify_backlog", |job, text| {
        let writes = number(text, 0, u64::MAX).map(|writes| Some(writes).filter(|n| *n > 0));
        set(&mut job.verify.backlog, writes)
    }),
];

/// Names of all options.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    all().map(|(name, _)| *name)
}

fn all() -> impl Iterator<Item = &'static (&'static str, Set)> {
    OPTIONS
        .iter()
        .chain(control::OPTIONS)
        .chain(buffers::OPTIONS)
        .chain(command_priority::OPTIONS)
        .chain(zoned::OPTIONS)
}

impl Job {
    /// Sets an option, as `key=value` in a job file. A flag may have an empty value.
    ///
    /// # Errors
    /// When the option is unknown or its value is invalid.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), JobError> {
        let Some((key, set)) = all().find(|(name, _)| *name == key) else {
            let keys: Vec<&str> = names().collect();
            let problem = format!("is not a known option; there are {}", keys.join(", "));
            return Err(JobError { job: self.name.clone(), key: key.into(), problem });
        };
        set(self, value).map_err(|wanted| JobError {
            job: self.name.clone(),
            key: (*key).into(),
            problem: format!("is {value:?}: {wanted}"),
        })
    }
}

pub(super) fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// A number of requests in flight; 0 stands for fio's own choice.
fn depth(text: &str) -> Result<u32, String> {
    number(text, 0, IODEPTH_MAX.into())
}

/// The suffix after the colon is the leap of a sequential job, or the random interval of a random
/// one.
fn set_engine(job: &mut Job, text: &str) -> Result<(), String> {
    job.submission.interface = known::engine(text)?.interface();
    Ok(())
}

fn set_rw(job: &mut Job, text: &str) -> Result<(), String> {
    let (name, more) = text.split_once(':').unwrap_or((text, ""));
    // Aliases of the same mixes.
    let name = match name {
        "readwrite" => "rw",
        "rwtrim" | "trimrw" => "trimwrite",
        name => name,
    };
    let rw = Rw::ALL.into_iter().find(|rw| rw.name() == name);
    let names = || format!("it must be one of {}", Rw::ALL.map(Rw::name).join(", "));
    let rw = rw.ok_or_else(names)?;
    let mut leap_bytes = 0;
    let mut random_every = 1;
    if !more.is_empty() {
        if rw.is_random() {
            random_every = number(more, 1, u32::MAX.into())?;
        } else {
            leap_bytes = signed_size(more, job.kb_base)?;
        }
    }
    (job.shape.rw, job.shape.leap_bytes, job.shape.random_every) = (rw, leap_bytes, random_every);
    Ok(())
}

fn set_sequencer(job: &mut Job, text: &str) -> Result<(), String> {
    job.shape.sequencer = match text {
        "sequential" => Sequencer::Sequential,
        "identical" => Sequencer::Identical,
        _ => return Err("it must be sequential or identical".into()),
    };
    Ok(())
}

/// Sets the lengths of all directions; the second and third are stored only where they differ.
fn set_lens(job: &mut Job, lens: [Option<Lens>; 3]) {
    job.shape.block_bytes = Job::new("").shape.block_bytes;
    if let Some(Lens::Fixed(bytes)) = lens[0] {
        job.shape.block_bytes = bytes;
    }
    let usual = Lens::Fixed(job.shape.block_bytes);
    // A direction without a length of its own has fio's default of 4k, not the length of reads.
    let [read, write, trim] = lens.map(|lens| lens.unwrap_or(Lens::Fixed(4096)));
    job.shape.lens = [read, write, trim].map(|lens| Some(lens).filter(|lens| *lens != usual));
}

fn set_block(job: &mut Job, text: &str) -> Result<(), String> {
    let base = job.kb_base;
    let lens = of_directions(text, |text| size(text, base).map(Lens::Fixed))?;
    set_lens(job, lens);
    Ok(())
}

fn set_range(job: &mut Job, text: &str) -> Result<(), String> {
    let wanted = || String::from("it must be the shortest and the longest, as in 4k-64k");
    let base = job.kb_base;
    let range = |text: &str| {
        let (min, max) = text.split_once(['-', ':']).ok_or_else(wanted)?;
        let min_bytes = size(min, base)?;
        let max_bytes = size(max, base)?;
        match min_bytes {
            0 => Err(wanted()),
            _ if min_bytes == max_bytes => Ok(Lens::Fixed(min_bytes)),
            _ if min_bytes > max_bytes || max_bytes % min_bytes != 0 => {
                Err(wanted() + ", the longest a multiple of the shortest")
            }
            _ => Ok(Lens::Range { min_bytes, max_bytes }),
        }
    };
    let lens = of_directions(text, range)?;
    set_lens(job, lens);
    Ok(())
}

fn set_split(job: &mut Job, text: &str) -> Result<(), String> {
    let base = job.kb_base;
    let lens = of_directions(text, |text| split(text, base))?;
    set_lens(job, lens);
    Ok(())
}

/// Parses `4k/10:64k/90`; parts without a share divide the remainder evenly.
fn split(text: &str, base: KbBase) -> Result<Lens, String> {
    let wanted = "it must be lengths with shares in percent, as in 4k/10:64k/90";
    let mut parts: Vec<(u64, Option<u32>)> = Vec::new();
    for part in text.split(':') {
        let (len, share) = part.split_once('/').unwrap_or((part, ""));
        let share = match share {
            "" => None,
            share => Some(number(share, 0, 100)?),
        };
        if parts.len() == PARTS_MAX {
            return Err(format!("it has more than {PARTS_MAX} parts"));
        }
        parts.push((size(len, base)?, share));
    }
    let given: u32 = parts.iter().filter_map(|part| part.1).sum();
    let open = parts.iter().filter(|part| part.1.is_none()).count() as u32;
    if given > 100 || (open == 0 && given < 100) {
        return Err(format!("{wanted}; the shares are {given}"));
    }
    let mut left = 100 - given;
    let mut open_left = open;
    let share = |(bytes, share): (u64, Option<u32>)| {
        let share = share.unwrap_or_else(|| {
            let share = left / open_left;
            (left, open_left) = (left - share, open_left - 1);
            share
        });
        (bytes, share)
    };
    Ok(Lens::Split(parts.into_iter().map(share).collect()))
}

fn distribution(text: &str, base: KbBase) -> Result<Distribution, String> {
    let wanted =
        "it must be random, zipf:1.2, pareto:0.2, normal:10, zoned:60/10:40/90 or zoned_abs";
    let (name, value) = text.split_once(':').unwrap_or((text, ""));
    let thousandths = |min, max| thousandths(value, min, max);
    let distribution = match name {
        "random" => Some(Distribution::Uniform),
        // The formula has a pole at 1.
        "zipf" => thousandths(1, 9999).filter(|theta| *theta != 1000).map(Distribution::Zipf),
        "pareto" => thousandths(1, 999).map(Distribution::Pareto),
        "normal" | "gauss" => thousandths(0, 100_000).map(Distribution::Normal),
        "zoned" => Some(zones(value, |len| match len {
            "" => Ok(ZoneLen::Percent(100)),
            len => number(len, 0, 100).map(ZoneLen::Percent),
        })?),
        "zoned_abs" => Some(zones(value, |len| size(len, base).map(ZoneLen::Bytes))?),
        _ => None,
    };
    distribution.ok_or_else(|| wanted.into())
}

fn zones(
    text: &str,
    len: impl Fn(&str) -> Result<ZoneLen, String>,
) -> Result<Distribution, String> {
    let wanted = "its zones must be shares of requests and of the region, as in 60/10:40/90";
    if text.contains(',') {
        return Err("it has zones of several directions; give each direction a job".into());
    }
    let mut zones = Vec::new();
    for zone in text.split(':') {
        let (share, zone_len) = zone.split_once('/').ok_or(wanted)?;
        if zones.len() == PARTS_MAX {
            return Err(format!("it has more than {PARTS_MAX} zones"));
        }
        zones.push(Zone { requests_percent: number(share, 0, 100)?, len: len(zone_len)? });
    }
    let percent = |zone: &Zone| match zone.len {
        ZoneLen::Percent(percent) => percent,
        ZoneLen::Bytes(_) => 0,
    };
    let requests: u32 = zones.iter().map(|zone| zone.requests_percent).sum();
    // A last zone without a length has the remainder.
    let before: u32 = zones.iter().rev().skip(1).map(percent).sum();
    if requests != 100 || before > 100 {
        return Err(format!("{wanted}, in all 100"));
    }
    if let Some(Zone { len: ZoneLen::Percent(last), .. }) = zones.last_mut() {
        *last = (*last).min(100 - before);
    }
    Ok(Distribution::Zoned(zones))
}

fn set_kb_base(job: &mut Job, text: &str) -> Result<(), String> {
    job.kb_base = match text {
        "1024" => KbBase::Binary,
        "1000" => KbBase::Decimal,
        _ => return Err("it must be 1024 or 1000".into()),
    };
    Ok(())
}

fn set_thinktime_blocks_type(job: &mut Job, text: &str) -> Result<(), String> {
    job.pace.thinks_of_completed = match text {
        "issue" => false,
        "complete" => true,
        _ => return Err("it must be issue or complete".into()),
    };
    Ok(())
}

fn set_rate_process(job: &mut Job, text: &str) -> Result<(), String> {
    job.pace.rate_process = match text {
        "linear" => RateProcess::Linear,
        "poisson" => RateProcess::Poisson,
        _ => return Err("it must be linear or poisson".into()),
    };
    Ok(())
}

fn set_zonemode(job: &mut Job, text: &str) -> Result<(), String> {
    (job.shape.strides.is_on, job.shape.zoned.is_on) = match text {
        "none" => (false, false),
        "strided" => (true, false),
        "zbd" => (false, true),
        _ => return Err("it must be none, strided or zbd".into()),
    };
    Ok(())
}

fn set_exit_what(job: &mut Job, text: &str) -> Result<(), String> {
    job.end.exit_what = match text {
        "group" => ExitWhat::Group,
        "stonewall" => ExitWhat::Running,
        "all" => ExitWhat::All,
        _ => return Err("it must be group, stonewall or all".into()),
    };
    Ok(())
}

/// A verification mismatch ends a clone after the check, or at once with `verify_fatal`.
fn set_continue_on_error(job: &mut Job, text: &str) -> Result<(), String> {
    let (read, write) = match text {
        "none" | "0" | "verify" => (false, false),
        "read" => (true, false),
        "write" => (false, true),
        "io" | "all" | "1" | "" => (true, true),
        _ => return Err("it must be none, read, write, io, verify or all".into()),
    };
    job.end.goes_on = GoesOn { read, write };
    Ok(())
}

fn set_gtod_reduce(job: &mut Job, text: &str) -> Result<(), String> {
    job.kept = if flag(text)? {
        Kept { slat: false, clat: false, lat: false, rates: false, is_seldom: true }
    } else {
        Kept::default()
    };
    Ok(())
}

fn set_runtime(job: &mut Job, text: &str) -> Result<(), String> {
    set(&mut job.end.runtime, duration(text).map(Some))
}

fn set_verify(job: &mut Job, text: &str) -> Result<(), String> {
    // The hardware-accelerated variant gives the same checksum.
    let name = text.strip_suffix("-intel").unwrap_or(text);
    let found = Sum::ALL.into_iter().find(|sum| sum.name() == name);
    let names = || format!("it must be one of {}", Sum::ALL.map(Sum::name).join(", "));
    job.verify.sum = if text == "0" { None } else { Some(found.ok_or_else(names)?) };
    Ok(())
}

fn rates(base: KbBase, text: &str) -> Result<[Option<u64>; 3], String> {
    of_directions(text, |text| rate(text, base))
}

fn counts(text: &str) -> Result<[Option<u64>; 3], String> {
    of_directions(text, |text| number(text, 1, u64::MAX))
}

fn set_filename(job: &mut Job, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("a file has a name".into());
    }
    job.region.filename = Some(text.into());
    Ok(())
}

/// As in fio, a class without a level means its most urgent level.
fn set_priority_class(job: &mut Job, text: &str) -> Result<(), String> {
    let level = job.submission.priority.map_or(0, |priority| priority.level);
    job.submission.priority = Some(match text {
        "1" | "rt" => Priority::real_time(level),
        "2" | "be" => Priority::best_effort(level),
        "3" | "idle" => Priority::IDLE,
        _ => return Err("it must be 1 (rt), 2 (be) or 3 (idle)".into()),
    });
    Ok(())
}

/// The idle class has no levels, so a level changes nothing.
fn set_priority_level(job: &mut Job, text: &str) -> Result<(), String> {
    let level = number(text, 0, Priority::LEVEL_MAX.into())?;
    let priority = job.submission.priority.get_or_insert_default();
    if priority.class != PriorityClass::Idle {
        priority.level = level;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use blockyard_engine::time::Nanos;

    use super::super::lens::Direction;
    use super::super::verify::Verify;
    use super::*;

    fn job(options: &[(&str, &str)]) -> Job {
        let mut job = Job::new("a");
        for (key, value) in options {
            job.set(key, value).unwrap();
        }
        job
    }

    #[test]
    fn options_of_a_job_file_are_understood() {
        let written = job(&[
            ("readwrite", "readwrite"),
            ("rwmixwrite", "30"),
            ("bs", "256K"),
            ("size", "1g"),
            ("offset", "4kb"),
            ("direct", "1"),
            ("iodepth", "32"),
            ("numjobs", "4"),
            ("fsync", "8"),
            ("prio", "2"),
            ("prioclass", "1"),
            ("runtime", "500ms"),
            ("time_based", ""),
            ("stonewall", ""),
            ("filename", "x"),
            ("number_ios", "7"),
            ("randseed", "9"),
            ("offset_increment", "1m"),
            ("divide", ""),
            ("numa_cpu_nodes", "3,0-1"),
            ("cpus_allowed", "8,2-3"),
            ("cpus_allowed_policy", "split"),
            ("end_fsync", ""),
            ("norandommap", "1"),
            ("loops", "2"),
            ("startdelay", "1"),
            ("ramp_time", "2m"),
            ("thinktime", "30"),
            ("thinktime_blocks", "5"),
            ("rate", "1m"),
            ("rate_iops", "77"),
        ]);
        let expected = Job::new("a").with(|job| {
            job.shape.rw = Rw::ReadWrite;
            job.shape.read_percent = 70;
            job.shape.block_bytes = 256 << 10;
            job.region.size_bytes = 1 << 30;
            job.region.offset_bytes = 4096;
            job.submission.direct = true;
            job.submission.iodepth = 32;
            job.clones.numjobs = 4;
            job.submission.fsync_every = 8;
            job.submission.priority = Some(Priority::real_time(2));
            job.end.runtime = Some(Nanos::from_ms(500));
            job.end.time_based = true;
            job.grouping.stonewall = true;
            job.region.filename = Some("x".into());
            job.end.number_ios = Some(7);
            job.shape.seed = 9;
            job.region.offset_increment_bytes = 1 << 20;
            job.region.divide = true;
            job.clones.nodes = vec![3, 0, 1];
            job.clones.cpus = vec![2, 3, 8];
            job.clones.splits_cpus = true;
            job.submission.end_fsync = true;
            job.shape.norandommap = true;
            job.end.loops = 2;
            job.pace.start_delay = Nanos::from_ms(1000);
            job.pace.ramp_time = Nanos::from_ms(120_000);
            job.pace.thinktime = Nanos(30_000);
            job.pace.thinktime_blocks = 5;
            job.pace.rate_bytes_s = [Some(1 << 20); 3];
            job.pace.rate_iops = [Some(77); 3];
        });
        assert_eq!(written, expected);
    }

    #[test]
    fn priority_and_runtime_have_several_spellings() {
        assert_eq!(job(&[("ioprio", "rt:1")]).submission.priority, Some(Priority::real_time(1)));
        assert_eq!(
            job(&[("prioclass", "idle"), ("prio", "1")]).submission.priority,
            Some(Priority::IDLE)
        );
        assert_eq!(job(&[("prioclass", "be")]).submission.priority, Some(Priority::best_effort(0)));
        assert_eq!(
            job(&[("buffered", "0"), ("runtime", "2")]).end.runtime,
            Some(Nanos::from_ms(2000))
        );
    }

    #[test]
    fn unknown_option_is_refused_with_those_that_there_are() {
        let error = Job::new("a").set("iodeph", "4").unwrap_err().to_string();
        assert!(error.starts_with("job a: iodeph is not a known option; there are rw,"), "{error}");
        assert!(error.contains("iodepth"), "{error}");
    }

    #[test]
    fn paces_of_a_job_file_are_understood() {
        let paced = job(&[
            ("io_size", "2g"),
            ("rate_process", "poisson"),
            ("thinktime_blocks_type", "complete"),
            ("rate_min", "1k,2k"),
            ("rate_cycle", "100"),
        ]);
        let expected = Job::new("a").with(|job| {
            job.region.io_size_bytes = Some(2 << 30);
            job.pace.rate_process = RateProcess::Poisson;
            job.pace.thinks_of_completed = true;
            job.pace.rate_min_bytes_s = [Some(1024), Some(2048), Some(2048)];
            job.pace.rate_cycle = Nanos::from_ms(100);
        });
        assert_eq!(paced, expected);
    }

    #[test]
    fn verify_is_understood() {
        let checked = job(&[
            ("verify", "crc32c-intel"),
            ("do_verify", "0"),
            ("verify_only", ""),
            ("verify_fatal", "1"),
            ("verify_pattern", "0xaa"),
            ("verify_interval", "4k"),
            ("verify_offset", "64"),
            ("verify_backlog", "16"),
        ]);
        let expected = Verify {
            sum: Some(Sum::Crc32c),
            reads_again: false,
            only: true,
            is_fatal: true,
            pattern: Some(Pattern::parse("0xaa").unwrap()),
            interval_bytes: Some(4096),
            offset_bytes: 64,
            backlog: Some(16),
        };
        assert_eq!(checked.verify, expected);
        assert_eq!(job(&[("verify", "0")]).verify, Verify::default());
    }

    #[test]
    fn lengths_of_directions_ranges_and_splits_are_understood() {
        let lens = |key: &str, value: &str| {
            let job = job(&[(key, value)]);
            Direction::ALL.map(|direction| job.shape.lens(direction))
        };
        let fixed = |bytes: u64| Lens::Fixed(bytes);
        assert_eq!(lens("bs", "8k"), [fixed(8192), fixed(8192), fixed(8192)]);
        assert_eq!(lens("bs", "256k,32k"), [fixed(262_144), fixed(32_768), fixed(32_768)]);
        assert_eq!(lens("bs", ",8k"), [fixed(4096), fixed(8192), fixed(8192)]);
        assert_eq!(lens("bs", "8k,"), [fixed(8192), fixed(4096), fixed(4096)]);
        let range = Lens::Range { min_bytes: 1024, max_bytes: 4096 };
        assert_eq!(lens("bsrange", "1k-4k,2k:8k")[0], range);
        let shares = vec![(4096, 10), (65_536, 45), (32_768, 45)];
        assert_eq!(lens("bssplit", "4k/10:64k/:32k/")[1], Lens::Split(shares));
        assert_eq!(job(&[("bssplit", "4k/100"), ("bs", "4k")]), Job::new("a"), "the last is it");
    }

    #[test]
    fn order_and_distribution_are_understood() {
        let back = job(&[("rw", "read:-8k")]);
        assert_eq!((back.shape.rw, back.shape.leap_bytes), (Rw::Read, -8192));
        let often = job(&[("rw", "randrw:8"), ("rw_sequencer", "identical")]);
        assert_eq!((often.shape.random_every, often.shape.sequencer), (8, Sequencer::Identical));
        let of = |text: &str| job(&[("random_distribution", text)]).shape.distribution;
        assert_eq!(of("zipf:0.99"), Distribution::Zipf(990));
        assert_eq!(of("pareto:0.2"), Distribution::Pareto(200));
        assert_eq!(of("normal:5"), Distribution::Normal(5000));
        let zone =
            |requests_percent, percent| Zone { requests_percent, len: ZoneLen::Percent(percent) };
        let zones = Distribution::Zoned(vec![zone(50, 5), zone(30, 15), zone(20, 80)]);
        assert_eq!(of("zoned:50/5:30/15:20/"), zones);
        let decimal = job(&[("kb_base", "1000"), ("size", "4k")]);
        assert_eq!(decimal.region.size_bytes, 4000);
    }

    #[test]
    fn wrong_values_are_refused_with_what_they_must_be_and_change_nothing() {
        for (key, value, wanted) in [
            ("rw", "append", "randrw"),
            ("rw", "read:8x", "as in 4k"),
            ("rw", "randread:0", "1 to"),
            ("bs", "1,2,3,4", "three parts"),
            ("bsrange", "4k", "as in 4k-64k"),
            ("bsrange", "8k-4k", "multiple"),
            ("bssplit", "4k/10:8k/80", "the shares are 90"),
            ("bssplit", "4k/60:8k/60", "the shares are 120"),
            ("random_distribution", "zipf:1.0", "zipf:1.2"),
            ("random_distribution", "zoned:50/50:40/50", "in all 100"),
            ("percentage_random", "101", "0 to 100"),
            ("verify", "crc7", "crc32c"),
            ("verify_pattern", "xyz", "0xaabb"),
            ("kb_base", "1", "1024 or 1000"),
            ("bs", "4x", "as in 4k"),
            ("bs", "4kk", "1024s"),
            ("size", "20000000000000p", "as in 4k"),
            ("size", "-1", "as in 4k"),
            ("iodepth", "0", "1 to 65536"),
            ("iodepth", "4294967297", "1 to 65536"),
            ("rwmixread", "101", "0 to 100"),
            ("direct", "yes", "0 or 1"),
            ("ioprio", "rt:9", "be:7"),
            ("prio", "8", "0 to 7"),
            ("prioclass", "0", "3 (idle)"),
            ("runtime", "1y", "as in 60"),
            ("runtime", "0", "as in 60"),
            ("filename", "", "name"),
            ("numa_cpu_nodes", "0-3,2", "each once"),
            ("rate", "0", "above zero"),
            ("thinktime", "4q", "a time"),
            ("loops", "0", "1 to"),
            ("numa_cpu_nodes", "0-256", "0 to 255"),
            ("numa_cpu_nodes", "x", "as in 0-3"),
            ("cpus_allowed", "0-8192", "0 to 8191"),
            ("cpus_allowed", "", "as in 0-3"),
            ("cpus_allowed_policy", "each", "shared or split"),
        ] {
            let mut job = Job::new("a");
            let error = job.set(key, value).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains(key), "{key}={value}: {error}");
            assert_eq!(job, Job::new("a"));
        }
    }
}
