//! What a volume is tuned for: a job file, options of jobs, a usual workload by its name, what a
//! person answers, or a trace.

use blockyard::Volume;
use blockyard::bench::{self, Tally};
use blockyard_engine::time::Nanos;
use blockyard_workload::fio::{Fio, Job, JobFile, Verify};

use super::goal::{Goal, Run, cpu_seconds};
use super::traced::Traced;
use crate::failure::Failure;
use crate::terminal::Terminal;

/// A slice with fewer requests says little: it becomes longer. With some in flight at either end
/// their number is right to a percent or two, and rounds are many.
const REQUESTS_MIN: u64 = 250;
/// One of a hundred has to be found in it.
const REQUESTS_MIN_P99: u64 = 1000;
/// But no longer than this: a slow disk has few in any time that a person waits.
const SLICE_MAX: Nanos = Nanos(2_000_000_000);

/// A usual workload. Numbers are ours.
#[derive(Debug)]
pub(crate) struct Usual {
    pub(crate) name: &'static str,
    about: &'static str,
    /// How much of it reads, if it may write.
    mix: &'static str,
    /// If nothing may be written.
    reads: &'static str,
    /// If it may.
    mixed: &'static str,
}

/// All of them.
pub(crate) const USUAL: &[Usual] = &[
    Usual {
        name: "vm",
        about: "a guest: random 4 KiB, 32 in flight",
        mix: "70 % reads",
        reads: "rw=randread bs=4k ioengine=libaio iodepth=32",
        mixed: "rw=randrw rwmixread=70 bs=4k ioengine=libaio iodepth=32",
    },
    Usual {
        name: "database",
        about: "four clients, random 16 KiB, 8 in flight each",
        mix: "80 % reads",
        reads: "rw=randread bs=16k ioengine=libaio iodepth=8 numjobs=4",
        mixed: "rw=randrw rwmixread=80 bs=16k ioengine=libaio iodepth=8 numjobs=4 fdatasync=32",
    },
    Usual {
        name: "stream",
        about: "one client, sequential 1 MiB, 4 in flight: backup, copies, media",
        mix: "only writes",
        reads: "rw=read bs=1m ioengine=libaio iodepth=4",
        mixed: "rw=write bs=1m ioengine=libaio iodepth=4",
    },
    Usual {
        name: "lone",
        about: "one request at a time, random 4 KiB: programs that wait for each read",
        mix: "70 % reads",
        reads: "rw=randread bs=4k",
        mixed: "rw=randrw rwmixread=70 bs=4k",
    },
];

/// What is run, and a line about it.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) load: Load,
    pub(crate) about: String,
}

/// What is run.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Jobs(Vec<Job>),
    Trace(Traced),
}

impl Usual {
    /// The one with this name.
    pub(crate) fn parse(name: &str) -> Result<&'static Self, String> {
        USUAL.iter().find(|usual| usual.name == name).ok_or_else(|| {
            let names: Vec<&str> = USUAL.iter().map(|usual| usual.name).collect();
            format!("{name:?} is none of the usual workloads; there are {}", names.join(", "))
        })
    }

    /// What it is, in a line.
    pub(crate) fn about(&self, may_write: bool) -> String {
        let mix = if may_write { self.mix } else { "only reads, without --destroy" };
        format!("{}; {mix}", self.about)
    }

    /// Its options.
    pub(crate) fn options(&self, may_write: bool) -> &'static str {
        if may_write { self.mixed } else { self.reads }
    }
}

impl Workload {
    /// Whether it changes what is on the volume.
    pub(crate) fn writes(&self) -> bool {
        match &self.load {
            Load::Jobs(jobs) => jobs.iter().any(|job| job.rw.destroys()),
            Load::Trace(traced) => traced.writes(),
        }
    }

    /// Whether a job checks bytes.
    pub(crate) fn is_verified(&self) -> bool {
        match &self.load {
            Load::Jobs(jobs) => jobs.iter().any(|job| job.verify.sum.is_some()),
            Load::Trace(_) => false,
        }
    }

    /// Whether it can be run on a volume; why not, if not.
    pub(crate) fn check(&self, volume: &Volume) -> Result<(), String> {
        match &self.load {
            Load::Jobs(_) => Ok(()),
            Load::Trace(traced) => traced.check(volume),
        }
    }

    /// Runs a slice of it, the one of this round.
    pub(crate) fn run(&self, volume: &Volume, slice: Nanos, round: usize) -> Result<Run, Failure> {
        let jobs = match &self.load {
            Load::Jobs(jobs) => slice_of(jobs, slice, round),
            Load::Trace(traced) => return traced.run(volume, slice, round),
        };
        let mut fio = Fio::new(jobs).map_err(|error| Failure::failed(error.to_string()))?;
        let before = cpu_seconds();
        bench::run(volume, &mut fio, &Tally::default())?;
        Ok(Run::of_jobs(&fio, cpu_seconds() - before))
    }

    /// Makes slices longer if the one that was run is too short; false if it is long enough.
    pub(crate) fn lengthen(&mut self, slice: &mut Nanos, run: &Run, goal: Goal) -> bool {
        let enough = if goal == Goal::P99 { REQUESTS_MIN_P99 } else { REQUESTS_MIN };
        match &mut self.load {
            Load::Jobs(_) if run.ios >= enough || *slice >= SLICE_MAX => false,
            Load::Jobs(_) => {
                *slice = Nanos(slice.0 * 2).min(SLICE_MAX);
                true
            }
            Load::Trace(traced) => traced.lengthen(slice, SLICE_MAX, run),
        }
    }

    /// What each measurement is.
    pub(crate) fn measurement(&self, slice: Nanos) -> String {
        match &self.load {
            Load::Jobs(_) => format!("{} ms", slice.0 / 1_000_000),
            Load::Trace(traced) => traced.measurement(slice),
        }
    }
}

/// Jobs from words such as `rw=randread`.
pub(crate) fn jobs_of_words(words: &str, device_bytes: u64) -> Result<Vec<Job>, Failure> {
    let pair = |word: &'_ str| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        (key.to_owned(), value.to_owned())
    };
    let pairs: Vec<(String, String)> = words.split_whitespace().map(pair).collect();
    let pairs: Vec<(&str, &str)> =
        pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let JobFile { jobs, .. } = JobFile::parse(None, &pairs, &bench::surroundings(device_bytes))
        .map_err(|error| Failure::failed(error.to_string()))?;
    Ok(jobs)
}

/// The jobs of a round: pass after pass for so long, after a quarter of it that does not count.
/// Another round has other offsets. Bytes are not checked: one slice would have to know what
/// another has written.
fn slice_of(jobs: &[Job], slice: Nanos, round: usize) -> Vec<Job> {
    let cut = |job: &Job| Job {
        runtime: Some(slice),
        ramp_time: Nanos(slice.0 / 4),
        time_based: true,
        loops: 1,
        number_ios: None,
        start_delay: Nanos(0),
        verify: Verify::default(),
        seed: job.seed.wrapping_add(round as u64),
        ..job.clone()
    };
    jobs.iter().map(cut).collect()
}

/// Asks a person for it: what a job would say.
pub(crate) fn ask(terminal: &Terminal, may_write: bool) -> Result<String, Failure> {
    let mut words = Vec::new();
    let order = choose(
        terminal,
        "Are requests spread over the volume?",
        &[
            ("random", "databases, virtual machines, file systems with many files"),
            ("sequential", "backups, copies, media"),
        ],
    )?;
    let mix = if may_write {
        choose(
            terminal,
            "What do they do?",
            &[
                ("read", "they read"),
                ("write", "they write: what is on the volume is lost"),
                ("both", "seven of ten read"),
            ],
        )?
    } else {
        0
    };
    let rw = [["randread", "read"], ["randwrite", "write"], ["randrw", "rw"]][mix][order];
    words.push(format!("rw={rw}"));
    if mix == 2 {
        words.push("rwmixread=70".into());
    }
    let sizes = [("4k", "4 KiB"), ("16k", "16 KiB"), ("64k", "64 KiB"), ("1m", "1 MiB")];
    let size = choose(terminal, "How long are they?", &sizes)?;
    words.push(format!("bs={}", sizes[size].0));
    let depths = [("1", "each waits for the one before"), ("8", "some"), ("32", "many")];
    let depth = choose(terminal, "How many are in flight at a time?", &depths)?;
    words.push(format!("ioengine=libaio iodepth={}", depths[depth].0));
    Ok(words.join(" "))
}

/// Which of some answers a person chooses; Enter is the first.
fn choose(terminal: &Terminal, question: &str, answers: &[(&str, &str)]) -> Result<usize, Failure> {
    let failed = |error| Failure::failed(format!("cannot ask at the terminal: {error}"));
    let mut text = format!("{question}\n");
    for (number, (name, about)) in (1..).zip(answers) {
        text += &format!("  {number}  {name}: {about}\n");
    }
    loop {
        terminal.say(&format!("{text}[1] ")).map_err(failed)?;
        let answer = terminal.line().map_err(failed)?;
        let answer = answer.trim();
        if answer.is_empty() {
            return Ok(0);
        }
        let by_number = answer.parse().ok().filter(|number| (1..=answers.len()).contains(number));
        let by_name = answers.iter().position(|(name, _)| *name == answer);
        if let Some(place) = by_number.map(|number: usize| number - 1).or(by_name) {
            return Ok(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_workloads_are_jobs_and_only_write_when_they_may() {
        for usual in USUAL {
            for may_write in [false, true] {
                let jobs = jobs_of_words(usual.options(may_write), 1 << 30).unwrap();
                let workload = Workload { load: Load::Jobs(jobs), about: String::new() };
                assert_eq!(workload.writes(), may_write, "{}", usual.name);
            }
        }
        assert!(Usual::parse("vms").err().unwrap().contains("vm, database"));
    }

    #[test]
    fn slice_is_as_long_as_it_is_told_whatever_the_jobs_say() {
        let words = "rw=randread bs=4k number_ios=3 loops=9 startdelay=5 runtime=60 verify=crc32c";
        let jobs = jobs_of_words(words, 1 << 30).unwrap();
        let slice = Nanos::from_ms(200);
        let (first, second) = (&slice_of(&jobs, slice, 0)[0], &slice_of(&jobs, slice, 1)[0]);
        assert_eq!((first.runtime, first.ramp_time), (Some(slice), Nanos::from_ms(50)));
        let plain = (first.number_ios, first.loops, first.start_delay, first.time_based);
        assert_eq!(plain, (None, 1, Nanos(0), true));
        assert!(first.verify.sum.is_none());
        assert_ne!(first.seed, second.seed);
    }
}
