//! Options of a job as text, with fio's names and forms of values.

use std::collections::BTreeSet;

use blockyard_engine::priority::{Priority, PriorityClass};
use blockyard_engine::time::Nanos;

use super::job::{IODEPTH_MAX, Job, JobError, NUMJOBS_MAX, Rw};

/// No machine has more sockets. Ours.
const NODE_MAX: u16 = 255;

/// Sets what an option says; or says what it must be.
type Set = fn(&mut Job, &str) -> Result<(), String>;

/// The options, and what each does. Ours are `ioprio`, class and level in one, and `divide`.
const OPTIONS: &[(&str, Set)] = &[
    ("rw", set_rw),
    ("readwrite", set_rw),
    ("rwmixread", |job, text| set(&mut job.read_percent, number(text, 0, 100))),
    ("rwmixwrite", |job, text| {
        set(&mut job.read_percent, number(text, 0, 100).map(|percent: u8| 100 - percent))
    }),
    ("bs", |job, text| set(&mut job.block_bytes, size(text))),
    ("blocksize", |job, text| set(&mut job.block_bytes, size(text))),
    ("iodepth", |job, text| set(&mut job.iodepth, number(text, 1, IODEPTH_MAX.into()))),
    ("numjobs", |job, text| set(&mut job.numjobs, number(text, 1, NUMJOBS_MAX.into()))),
    ("size", |job, text| set(&mut job.size_bytes, size(text))),
    ("offset", |job, text| set(&mut job.offset_bytes, size(text))),
    ("offset_increment", |job, text| set(&mut job.offset_increment_bytes, size(text))),
    ("divide", |job, text| set(&mut job.divide, flag(text))),
    ("numa_cpu_nodes", |job, text| set(&mut job.nodes, nodes(text))),
    ("filename", set_filename),
    ("direct", |job, text| set(&mut job.direct, flag(text))),
    ("buffered", |job, text| set(&mut job.direct, flag(text).map(|buffered| !buffered))),
    ("overwrite", |job, text| set(&mut job.overwrite, flag(text))),
    ("fsync", |job, text| set(&mut job.fsync_every, number(text, 0, u32::MAX.into()))),
    // Nothing but the file's data is on a volume: both are the same there.
    ("fdatasync", |job, text| set(&mut job.fsync_every, number(text, 0, u32::MAX.into()))),
    ("end_fsync", |job, text| set(&mut job.end_fsync, flag(text))),
    ("norandommap", |job, text| set(&mut job.norandommap, flag(text))),
    ("loops", |job, text| set(&mut job.loops, number(text, 1, u32::MAX.into()))),
    ("startdelay", |job, text| set(&mut job.start_delay, duration(text))),
    ("ramp_time", |job, text| set(&mut job.ramp_time, duration(text))),
    ("thinktime", |job, text| set(&mut job.thinktime, microseconds(text))),
    ("thinktime_blocks", |job, text| {
        set(&mut job.thinktime_blocks, number(text, 1, u32::MAX.into()))
    }),
    ("rate", |job, text| set(&mut job.rate_bytes_s, rate(text).map(Some))),
    ("rate_iops", |job, text| set(&mut job.rate_iops, number(text, 1, u64::MAX).map(Some))),
    ("ioprio", |job, text| {
        set(&mut job.priority, Priority::parse(text).map_err(|error| error.to_string()))
    }),
    ("prioclass", set_priority_class),
    ("prio", set_priority_level),
    ("number_ios", |job, text| set(&mut job.number_ios, number(text, 1, u64::MAX).map(Some))),
    ("runtime", |job, text| set(&mut job.runtime, duration(text).map(Some))),
    ("time_based", |job, text| set(&mut job.time_based, flag(text))),
    ("randseed", |job, text| set(&mut job.seed, number(text, 0, u64::MAX))),
    ("stonewall", |job, text| set(&mut job.stonewall, flag(text))),
];

/// All there are.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|(name, _)| *name)
}

impl Job {
    /// Sets an option, as `key=value` in a job file does; a flag may have an empty value.
    ///
    /// # Errors
    /// When there is no such option, or its value has another form.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), JobError> {
        let Some((key, set)) = OPTIONS.iter().find(|(name, _)| *name == key) else {
            let keys: Vec<&str> = names().collect();
            let problem = format!("is not an option here; there are {}", keys.join(", "));
            return Err(JobError { job: self.name.clone(), key: key.into(), problem });
        };
        set(self, value).map_err(|wanted| JobError {
            job: self.name.clone(),
            key: (*key).into(),
            problem: format!("is {value:?}: {wanted}"),
        })
    }
}

fn set<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn set_rw(job: &mut Job, text: &str) -> Result<(), String> {
    // `readwrite` is the other name of a sequential mix.
    let name = if text == "readwrite" { "rw" } else { text };
    let rw = Rw::ALL.into_iter().find(|rw| rw.name() == name);
    let names = || format!("it must be one of {}", Rw::ALL.map(Rw::name).join(", "));
    set(&mut job.rw, rw.ok_or_else(names))
}

fn set_filename(job: &mut Job, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("a file has a name".into());
    }
    job.filename = Some(text.into());
    Ok(())
}

fn set_priority_class(job: &mut Job, text: &str) -> Result<(), String> {
    let level = job.priority.level;
    job.priority = match text {
        "1" | "rt" => Priority::real_time(level),
        "2" | "be" => Priority::best_effort(level),
        "3" | "idle" => Priority::IDLE,
        _ => return Err("it must be 1 (rt), 2 (be) or 3 (idle)".into()),
    };
    Ok(())
}

/// The idle class has no levels: there it changes nothing.
fn set_priority_level(job: &mut Job, text: &str) -> Result<(), String> {
    let level = number(text, 0, Priority::LEVEL_MAX.into())?;
    if job.priority.class != PriorityClass::Idle {
        job.priority.level = level;
    }
    Ok(())
}

fn number<T: TryFrom<u64>>(text: &str, min: u64, max: u64) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| (min..=max).contains(number));
    let number = number.and_then(|number: u64| T::try_from(number).ok());
    number.ok_or_else(|| format!("it must be a number from {min} to {max}"))
}

/// Numbers and ranges with commas between, each once; none is everywhere.
fn nodes(text: &str) -> Result<Vec<u16>, String> {
    let wanted = || format!("it must be sockets from 0 to {NODE_MAX}, each once, as in 0-3 or 0,2");
    let mut nodes = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let edge = |text: &str| text.parse::<u16>().ok().filter(|node| *node <= NODE_MAX);
        let (first, last) = edge(first).zip(edge(last)).ok_or_else(wanted)?;
        nodes.extend(first..=last);
    }
    let different: BTreeSet<&u16> = nodes.iter().collect();
    if different.len() == nodes.len() { Ok(nodes) } else { Err(wanted()) }
}

/// A switch; alone it is on.
fn flag(text: &str) -> Result<bool, String> {
    match text {
        "" | "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("it must be 0 or 1".into()),
    }
}

/// Counted in 1024s, as fio does by default. It takes `Ki` for 1000 then: not taken here.
fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let unit = unit.to_ascii_lowercase();
    let power = ["", "k", "m", "g", "t", "p"]
        .into_iter()
        .position(|prefix| unit == prefix || unit.strip_suffix('b') == Some(prefix));
    let bytes = power.and_then(|power| number?.checked_mul(1 << (10 * power)));
    bytes.ok_or_else(|| "it must be a number with k, m, g, t or p (1024s), as in 4k or 1g".into())
}

/// In seconds, as fio does.
fn duration(text: &str) -> Result<Nanos, String> {
    let (number, unit) = split(text);
    let unit_ns = match unit {
        "d" => Some(86_400_000_000_000),
        "h" => Some(3_600_000_000_000),
        "m" => Some(60_000_000_000),
        "" | "s" => Some(1_000_000_000),
        "ms" | "msec" => Some(1_000_000),
        "us" | "usec" => Some(1_000),
        _ => None,
    };
    let ns = number.zip(unit_ns).and_then(|(number, unit_ns)| number.checked_mul(unit_ns));
    let ns = ns.filter(|ns| *ns > 0).map(Nanos);
    ns.ok_or_else(|| "it must be a time in s, m, h, d, ms or us, as in 60 or 500ms".into())
}

/// In microseconds, as fio has it where it says so.
fn microseconds(text: &str) -> Result<Nanos, String> {
    let is_bare = text.bytes().all(|byte| byte.is_ascii_digit());
    duration(&if is_bare { format!("{text}us") } else { text.into() })
}

/// Bytes a second.
fn rate(text: &str) -> Result<u64, String> {
    let nonzero = size(text)?;
    if nonzero == 0 { Err("it must be more than nothing, as in 10m".into()) } else { Ok(nonzero) }
}

/// The number in front, if there is one, and what follows.
fn split(text: &str) -> (Option<u64>, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    (digits.parse().ok(), unit)
}

#[cfg(test)]
mod tests {
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
        let expected = Job {
            rw: Rw::ReadWrite,
            read_percent: 70,
            block_bytes: 256 << 10,
            size_bytes: 1 << 30,
            offset_bytes: 4096,
            direct: true,
            iodepth: 32,
            numjobs: 4,
            fsync_every: 8,
            priority: Priority::real_time(2),
            runtime: Some(Nanos::from_ms(500)),
            time_based: true,
            stonewall: true,
            filename: Some("x".into()),
            number_ios: Some(7),
            seed: 9,
            offset_increment_bytes: 1 << 20,
            divide: true,
            nodes: vec![3, 0, 1],
            end_fsync: true,
            norandommap: true,
            loops: 2,
            start_delay: Nanos::from_ms(1000),
            ramp_time: Nanos::from_ms(120_000),
            thinktime: Nanos(30_000),
            thinktime_blocks: 5,
            rate_bytes_s: Some(1 << 20),
            rate_iops: Some(77),
            ..Job::new("a")
        };
        assert_eq!(written, expected);
        assert_eq!(job(&[("ioprio", "rt:1")]).priority, Priority::real_time(1));
        assert_eq!(job(&[("prioclass", "idle"), ("prio", "1")]).priority, Priority::IDLE);
        assert_eq!(job(&[("buffered", "0"), ("runtime", "2")]).runtime, Some(Nanos::from_ms(2000)));
    }

    #[test]
    fn unknown_option_is_refused_with_those_that_there_are() {
        let error = Job::new("a").set("iodeph", "4").unwrap_err().to_string();
        assert!(error.starts_with("job a: iodeph is not an option here; there are rw,"), "{error}");
        assert!(error.contains("iodepth"), "{error}");
    }

    #[test]
    fn wrong_values_are_refused_with_what_they_must_be_and_change_nothing() {
        for (key, value, wanted) in [
            ("rw", "trim", "randrw"),
            ("bs", "4x", "as in 4k"),
            ("bs", "4ki", "1024s"),
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
            ("rate", "0", "more than nothing"),
            ("thinktime", "4q", "a time"),
            ("loops", "0", "1 to"),
            ("numa_cpu_nodes", "0-256", "0 to 255"),
            ("numa_cpu_nodes", "x", "as in 0-3"),
        ] {
            let mut job = Job::new("a");
            let error = job.set(key, value).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains(key), "{key}={value}: {error}");
            assert_eq!(job, Job::new("a"));
        }
    }
}
