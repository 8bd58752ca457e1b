//! The workload of a search: jobs, a preset, or a trace.

use std::time::Duration;

use blockyard_engine::time::Nanos;
use blockyard_workload::fio::{Fio, Job, JobFile, Verify};

use super::Measurement;
use super::goal::{Goal, Run, cpu_seconds};
use super::traced::Traced;
use crate::bench::{self, Tally};
use crate::{Error, Volume};

/// Minimum of requests in a slice, which is extended to it. With some in flight at either end,
/// their number is accurate to a percent or two, and there are many rounds.
const REQUESTS_MIN: u64 = 250;
/// Enough for a 99th percentile.
const REQUESTS_MIN_P99: u64 = 1000;
/// Limit of a slice: a slow disk serves few requests in any acceptable time.
const SLICE_MAX: Nanos = Nanos(2_000_000_000);

/// A named workload, as options of fio. Numbers are ours.
#[derive(Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    /// The share of reads in [`Preset::mixed`], as text.
    pub mix: &'static str,
    /// Options of reading jobs.
    pub reads: &'static str,
    /// Options of jobs that also write.
    pub mixed: &'static str,
}

/// All presets.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "vm",
        about: "a guest: random 4 KiB, 32 in flight",
        mix: "70 % reads",
        reads: "rw=randread bs=4k ioengine=libaio iodepth=32",
        mixed: "rw=randrw rwmixread=70 bs=4k ioengine=libaio iodepth=32",
    },
    Preset {
        name: "database",
        about: "four clients, random 16 KiB, 8 in flight each",
        mix: "80 % reads",
        reads: "rw=randread bs=16k ioengine=libaio iodepth=8 numjobs=4",
        mixed: "rw=randrw rwmixread=80 bs=16k ioengine=libaio iodepth=8 numjobs=4 fdatasync=32",
    },
    Preset {
        name: "stream",
        about: "one client, sequential 1 MiB, 4 in flight: backup, copies, media",
        mix: "only writes",
        reads: "rw=read bs=1m ioengine=libaio iodepth=4",
        mixed: "rw=write bs=1m ioengine=libaio iodepth=4",
    },
    Preset {
        name: "lone",
        about: "one request at a time, random 4 KiB: programs that wait for each read",
        mix: "70 % reads",
        reads: "rw=randread bs=4k",
        mixed: "rw=randrw rwmixread=70 bs=4k",
    },
];

/// The workload of a search.
#[derive(Clone, Debug)]
pub enum Workload {
    /// Jobs of fio. Their bytes are not verified.
    Jobs(Vec<Job>),
    /// A trace.
    Trace(Traced),
}

impl Preset {
    /// The preset with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Its options.
    #[must_use]
    pub fn options(&self, may_write: bool) -> &'static str {
        if may_write { self.mixed } else { self.reads }
    }
}

impl Workload {
    /// Whether it changes the volume.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            Self::Jobs(jobs) => jobs.iter().any(|job| job.shape.rw.destroys()),
            Self::Trace(traced) => traced.writes(),
        }
    }

    /// Whether a job asks for verification, which a search leaves out.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        match self {
            Self::Jobs(jobs) => jobs.iter().any(|job| job.verify.sum.is_some()),
            Self::Trace(_) => false,
        }
    }

    /// Checks whether it can run on a volume.
    ///
    /// # Errors
    /// The reason if it cannot, as text.
    pub fn check(&self, volume: &Volume) -> Result<(), String> {
        match self {
            Self::Jobs(_) => Ok(()),
            Self::Trace(traced) => traced.check(volume),
        }
    }

    /// Runs a round's slice.
    pub(super) fn run(&self, volume: &Volume, slice: Nanos, round: usize) -> Result<Run, Error> {
        let jobs = match self {
            Self::Jobs(jobs) => slice_of(jobs, slice, round),
            Self::Trace(traced) => return traced.run(volume, slice, round),
        };
        let mut fio = Fio::new(jobs).map_err(|error| Error::Workload(error.to_string()))?;
        let before = cpu_seconds();
        bench::run(volume, &mut fio, &Tally::default())?;
        Ok(Run::of_jobs(&fio, cpu_seconds() - before))
    }

    /// Extends slices if the last one was too short; false if it was long enough.
    pub(super) fn lengthen(&mut self, slice: &mut Nanos, run: &Run, goal: Goal) -> bool {
        let enough = if goal == Goal::P99 { REQUESTS_MIN_P99 } else { REQUESTS_MIN };
        match self {
            Self::Jobs(_) if run.ios >= enough || *slice >= SLICE_MAX => false,
            Self::Jobs(_) => {
                *slice = Nanos(slice.0 * 2).min(SLICE_MAX);
                true
            }
            Self::Trace(traced) => traced.lengthen(slice, SLICE_MAX, run),
        }
    }

    pub(super) fn measurement(&self, slice: Nanos) -> Measurement {
        match self {
            Self::Jobs(_) => Measurement::Time { slice: Duration::from_nanos(slice.0) },
            Self::Trace(traced) => traced.measurement(slice),
        }
    }
}

/// Jobs from options of fio such as `rw=randread bs=4k`, on a volume of this length.
///
/// # Errors
/// [`Error::Workload`] if an option is wrong.
pub fn jobs(words: &str, device_bytes: u64) -> Result<Vec<Job>, Error> {
    let pair = |word: &'_ str| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        (key.to_owned(), value.to_owned())
    };
    let pairs: Vec<(String, String)> = words.split_whitespace().map(pair).collect();
    let pairs: Vec<(&str, &str)> =
        pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let JobFile { jobs, .. } = JobFile::parse(None, &pairs, &bench::surroundings(device_bytes))
        .map_err(|error| Error::Workload(error.to_string()))?;
    Ok(jobs)
}

/// The jobs of a round: repeated for the slice's time, after a quarter of it that does not count.
/// Other rounds have other offsets. Data is not verified: slices would have to know each other's
/// writes.
fn slice_of(jobs: &[Job], slice: Nanos, round: usize) -> Vec<Job> {
    let cut = |job: &Job| {
        job.clone().with(|job| {
            job.end.runtime = Some(slice);
            job.pace.ramp_time = Nanos(slice.0 / 4);
            job.end.time_based = true;
            job.end.loops = 1;
            job.end.number_ios = None;
            job.pace.start_delay = Nanos(0);
            job.verify = Verify::default();
            job.shape.seed = job.shape.seed.wrapping_add(round as u64);
        })
    };
    jobs.iter().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_jobs_and_only_write_when_they_may() {
        for preset in PRESETS {
            for may_write in [false, true] {
                let workload = Workload::Jobs(jobs(preset.options(may_write), 1 << 30).unwrap());
                assert_eq!(workload.writes(), may_write, "{}", preset.name);
            }
            assert_eq!(Preset::find(preset.name).unwrap().reads, preset.reads);
        }
        assert!(Preset::find("vms").is_none());
    }

    #[test]
    fn slice_has_its_length_whatever_the_jobs_say() {
        let words = "rw=randread bs=4k number_ios=3 loops=9 startdelay=5 runtime=60 verify=crc32c";
        let jobs = jobs(words, 1 << 30).unwrap();
        let slice = Nanos::from_ms(200);
        let first = &slice_of(&jobs, slice, 0)[0];
        let second = &slice_of(&jobs, slice, 1)[0];
        assert_eq!((first.end.runtime, first.pace.ramp_time), (Some(slice), Nanos::from_ms(50)));
        let plain =
            (first.end.number_ios, first.end.loops, first.pace.start_delay, first.end.time_based);
        assert_eq!(plain, (None, 1, Nanos(0), true));
        assert!(first.verify.sum.is_none());
        assert_ne!(first.shape.seed, second.shape.seed);
    }
}
