//! The simulated machine of an experiment, with its variant's jobs or others.
//!
//! Rounds are the points of the variant's fit, one after the other, each with another seed. So a
//! result holds for all points.

use std::collections::BTreeMap;

use blockyard::tune::Space;
use blockyard_engine::dm::crypt::pipeline::PRESETS;
use blockyard_engine::elevator::ELEVATORS;
use blockyard_lab::{Error, Experiment, JobSpec, Measured, Override, Setup, Variant, run_job, sim};

use crate::failure::Failure;
use crate::output::warn;

/// Settings that differ from the variant's, by path.
pub(crate) type Settings = BTreeMap<&'static str, String>;

const KIB: [u32; 9] = [4, 8, 16, 32, 64, 128, 256, 512, 1024];
const NR_REQUESTS: [u32; 6] = [16, 32, 64, 128, 256, 512];

/// As `--set` options; empty for the unchanged variant.
pub(crate) fn text(settings: &Settings) -> String {
    let words: Vec<String> =
        settings.iter().map(|(path, value)| format!("{path}={value}")).collect();
    if words.is_empty() { "as it is".into() } else { words.join(" ") }
}

/// The value on an axis; without one, all of them.
pub(crate) fn on_axis(settings: &Settings, axis: Option<&'static str>) -> String {
    match axes().into_iter().find(|(name, ..)| Some(*name) == axis) {
        Some((_, path, _)) => settings.get(path).cloned().unwrap_or_else(|| "as it is".into()),
        None => text(settings),
    }
}

/// A simulated machine to tune.
pub(crate) struct Model<'a> {
    pub(crate) experiment: &'a Experiment,
    pub(crate) variant: &'a Variant,
    /// Replaces the variant's jobs.
    pub(crate) job: Option<JobSpec>,
    /// Settings from the command line, which are not tuned.
    pub(crate) set: Vec<Override>,
    /// Restricts the axes, unless empty.
    pub(crate) axes: Vec<String>,
}

/// Axes: name, path and values.
fn axes() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let numbers = |numbers: &[u32]| numbers.iter().map(ToString::to_string).collect();
    let names = |names: &mut dyn Iterator<Item = &'static str>| {
        names.map(ToString::to_string).collect::<Vec<_>>()
    };
    vec![
        ("pipeline", "crypt.pipeline", names(&mut PRESETS.iter().map(|preset| preset.name))),
        ("request size", "crypt.bio_kib", numbers(&KIB)),
        ("elevator", "queue.elevator", names(&mut ELEVATORS.iter().map(|one| one.name))),
        ("longest request", "queue.max_kib", numbers(&KIB)),
        ("requests", "queue.nr_requests", numbers(&NR_REQUESTS)),
    ]
}

impl Model<'_> {
    /// The names of all axes.
    pub(crate) fn axis_names() -> Vec<&'static str> {
        axes().into_iter().map(|(name, ..)| name).collect()
    }

    fn overrides(&self, settings: &Settings) -> Result<Vec<Override>, String> {
        let own = settings.iter().map(|(path, value)| Override::parse(&format!("{path}={value}")));
        let own: Result<Vec<Override>, String> = own.collect();
        Ok(self.set.iter().cloned().chain(own?).collect())
    }

    fn setup(&self, settings: &Settings, round: usize) -> Result<Setup, Error> {
        let set = self.overrides(settings).map_err(Error::Experiment)?;
        let points = self.experiment.points(self.variant);
        let point = points[round % points.len()].as_ref();
        self.experiment.setup(self.variant, point, &set, &[])
    }
}

impl Space for Model<'_> {
    type Settings = Settings;
    type Axis = &'static str;
    type Error = Failure;

    fn axes(&self) -> Vec<&'static str> {
        let wanted = |name: &&str| self.axes.is_empty() || self.axes.iter().any(|one| one == name);
        Self::axis_names().into_iter().filter(wanted).collect()
    }

    fn others(&self, axis: &'static str, base: &Settings) -> Vec<Settings> {
        let has_cipher = self.setup(base, 0).is_ok_and(|setup| setup.module != "_");
        let axis = axes().into_iter().find(|(name, ..)| *name == axis);
        let (_, path, values) = axis.expect("the search uses only known axes");
        if !has_cipher && path.starts_with("crypt.") {
            return Vec::new();
        }
        let with = |value| {
            let mut other = base.clone();
            other.insert(path, value);
            other
        };
        values.into_iter().map(with).filter(|other| other != base).collect()
    }

    fn check(&mut self, settings: &Settings) -> Result<(), String> {
        self.setup(settings, 0).map(drop).map_err(|error| error.to_string())
    }

    fn measure(&mut self, settings: &Settings, round: usize) -> Result<f64, Failure> {
        let setup = self.setup(settings, round)?;
        warn(&self.experiment.take_warnings());
        let seeds = &self.experiment.seeds;
        let seed = seeds[0].wrapping_add(round as u64);
        let config = sim::world::Config { seed, ..setup.config };
        let jobs = match &self.job {
            Some(job) => vec![("job".to_owned(), job.clone())],
            None => setup.jobs,
        };
        let mut logs = Vec::new();
        for (name, job) in &jobs {
            job.check(&config).map_err(|error| Failure::from(error).at(format!("job {name}")))?;
            let (done, ()) = run_job(&config, name, job, ())?;
            logs.push(speed(&done.measured).map(f64::ln).ok_or_else(|| {
                Failure::failed(format!("job {name} has neither a rate nor a time to tune"))
            })?);
        }
        Ok((logs.iter().sum::<f64>() / logs.len() as f64).exp())
    }

    fn begins(&mut self, _: bool) -> bool {
        true
    }

    fn goes_on(&self) -> bool {
        true
    }
}

/// Bytes per second of a job; for a job without I/O, its iterations per second.
fn speed(measured: &[Measured]) -> Option<f64> {
    let sum = |metric| -> f64 {
        measured.iter().filter(|one| one.metric == metric).map(|one| one.value).sum()
    };
    let rate = sum("rate");
    let median = sum("fsync_median");
    if rate > 0.0 { Some(rate) } else { (median > 0.0).then(|| 1.0 / median) }
}
