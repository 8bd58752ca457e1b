//! Fits a device of the simulated world to measurements of a real one.
//!
//! ```text
//!   JSON of fio, traces ─> measurements ─┬─ every other one: fitted ─> an experiment ─> search
//!                                        └─ the rest: held out ────────> predicted, and compared
//! ```
//! Each measurement is a variant of an experiment whose machine is the usual one, without a file
//! system. Its rows are the published numbers: those of the fitted half are
//! calibrated, those of the other half are predictions. So the found device fits any experiment
//! that keeps the usual machine.

mod fio_json;
mod models;
mod traced;

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use blockyard::text::printable;
use blockyard::traces;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::none::NONE;
use blockyard_workload::trace::Trace;
use blockyard_workload::trace::blktrace::Action;

use super::execute::{Done, Key, Run, RunOptions, execute};
use super::results::values;
use super::search::{miss, nearest};
use super::spec::metric::Cell;
use super::spec::traced::Traces;
use super::spec::{Experiment, Role};
use crate::Error;

pub use self::models::Model;

/// Measurements at least: two for each half.
const MEASUREMENTS_MIN: usize = 4;
/// The size of a device without a measured size.
const USUAL_MIB: u64 = 64 << 10;
/// Stand-ins in the text of a job.
const NAME: &str = "{name}";
const SIZE: &str = "{size}";
/// Limit of a file of JSON: thousands of jobs.
const JSON_BYTES_MAX: u64 = 64 << 20;
/// A row is good if ours and the measured value differ by at most this factor.
const GOOD: f64 = 1.2;

/// A file of measurements.
#[derive(Debug)]
pub struct Input {
    /// Its name in errors and in the result.
    pub name: String,
    /// Its content.
    pub content: Content,
}

/// Content of a file of measurements.
#[derive(Debug)]
pub enum Content {
    /// JSON of fio or of `blockyard bench --json`.
    FioJson(String),
    /// A trace with completions.
    Trace(Trace),
}

impl Input {
    /// Reads a file; returns warnings about missing parts of a trace.
    ///
    /// # Errors
    /// The file cannot be read, or is a damaged trace.
    pub fn read(path: &Path) -> Result<(Self, Vec<String>), Error> {
        let name = printable(&path.display().to_string());
        let failed = |error: std::io::Error| Error::new(format!("{name}: cannot be read: {error}"));
        let mut file = File::open(path).map_err(failed)?;
        let mut first = Vec::new();
        file.by_ref().take(4).read_to_end(&mut first).map_err(failed)?;
        if traces::begin_with(&first) {
            let (trace, warnings) = traces::read(path, Action::default())
                .map_err(|error| Error::new(error.to_string()))?;
            return Ok((Self { name, content: Content::Trace(trace) }, warnings));
        }
        let mut bytes = first;
        file.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > JSON_BYTES_MAX {
            let limit = JSON_BYTES_MAX >> 20;
            return Err(Error::new(format!(
                "{name}: is longer than {limit} MiB: leave jobs out, or plot-only percentiles"
            )));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok((Self { name, content: Content::FioJson(text) }, Vec::new()))
    }
}

/// Options of a fit: models, size of the device, length of the search.
#[derive(Clone, Debug)]
pub struct FitRequest {
    /// The model; `None` tries all.
    pub model: Option<Model>,
    /// Size of the device in MiB; `None` takes the largest `size` of the jobs, or 64 GiB.
    pub size_mib: Option<u64>,
    /// Points that are run for each model.
    pub draws: u32,
    /// Requests of a job of fio that are simulated. Its slowest hundredth needs a few hundred.
    pub requests: u32,
    /// The elevator above the device while it was measured.
    pub elevator: ElevatorSpec,
}

impl Default for FitRequest {
    fn default() -> Self {
        let elevator = ElevatorSpec::of(&NONE);
        Self { model: None, size_mib: None, draws: 600, requests: 2_000, elevator }
    }
}

/// One measurement: a load, and its measured numbers.
#[derive(Clone, Debug)]
pub(crate) struct Measurement {
    /// Source and load, for the result: "vda.json: r4k-d1 (randread 4k, depth 1)".
    label: String,
    /// Its job in the language of experiments; `{name}` stands for the job's name, and `{size}` for
    /// the size of the device.
    job: String,
    /// Row, with the same stand-in, and metrics in seconds.
    rows: Vec<(String, Vec<(&'static str, f64)>)>,
    facts: Facts,
}

/// Facts of a measurement from which the boxes of the models are made.
#[derive(Clone, Copy, Debug, Default)]
struct Facts {
    /// Requests in flight.
    depth: u32,
    /// Median latency of reads and of writes, in seconds.
    read_s: Option<f64>,
    write_s: Option<f64>,
    /// Bytes up to which the device is used; zero if unknown.
    end_bytes: u64,
}

/// A measured number and its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Source and load of the measurement.
    pub measurement: String,
    /// Direction and metric: "read clat_p99".
    pub what: String,
    /// Measured value in seconds.
    pub measured: f64,
    /// Value of the model.
    pub ours: f64,
    /// The model was not fitted on it.
    pub held_out: bool,
}

impl Compared {
    /// The factor between both values; 1 means equal.
    #[must_use]
    pub fn factor(&self) -> f64 {
        (self.ours / self.measured).max(self.measured / self.ours)
    }
}

/// A fitted device.
#[derive(Clone, Debug)]
pub struct FittedDevice {
    /// The model.
    pub model: Model,
    /// The table `[device]` of an experiment.
    pub device: String,
    /// All rows.
    pub rows: Vec<Compared>,
    /// The mean miss of the fitted rows of each model that was tried, from 0 to 1.
    pub misses: Vec<(Model, f64)>,
}

impl FittedDevice {
    /// The factors of the held-out rows whose metric ends in these words, in order.
    #[must_use]
    pub fn held_out(&self, metric: &str) -> Vec<f64> {
        let is_wanted = |row: &&Compared| row.held_out && row.what.ends_with(metric);
        let mut factors: Vec<f64> =
            self.rows.iter().filter(is_wanted).map(Compared::factor).collect();
        factors.sort_by(f64::total_cmp);
        factors
    }

    /// The verdict in lines of text: how well the device predicts the rows that were held out.
    #[must_use]
    pub fn summary(&self) -> Vec<String> {
        let misses: Vec<String> =
            self.misses.iter().map(|(model, miss)| format!("{model} {miss:.3}")).collect();
        let mut lines = vec![
            format!("model {}; mean miss of the fitted rows: {}", self.model, misses.join(", ")),
            "every other measurement was fitted; the rest was held out".into(),
        ];
        for metric in ["p50", "p99"] {
            let factors = self.held_out(metric);
            let Some((middle, worst)) = factors.get(factors.len() / 2).zip(factors.last()) else {
                continue;
            };
            let good = factors.iter().filter(|factor| **factor <= GOOD).count();
            lines.push(format!(
                "held out, {metric}: {good} of {} rows within 20 %; the middle row is {:.1} % off, \
                 the worst a factor of {worst:.2}",
                factors.len(),
                (middle - 1.0) * 100.0,
            ));
        }
        lines
    }

    /// All rows as a table of text.
    #[must_use]
    pub fn table(&self) -> Vec<String> {
        let longest = |of: fn(&Compared) -> usize| self.rows.iter().map(of).max().unwrap_or(0);
        let label = longest(|row| row.measurement.chars().count());
        let what = longest(|row| row.what.chars().count());
        let line = |row: &Compared| {
            let half = if row.held_out { "held out" } else { "fitted" };
            format!(
                "{:label$}  {:what$}  {:>12.1}  {:>12.1}  {:+8.1} %  {half}",
                row.measurement,
                row.what,
                row.measured * 1e6,
                row.ours * 1e6,
                (row.ours / row.measured - 1.0) * 100.0,
            )
        };
        let head = format!(
            "{:label$}  {:what$}  {:>12}  {:>12}  {:>10}",
            "measurement", "row", "measured, us", "ours, us", "error"
        );
        std::iter::once(head).chain(self.rows.iter().map(line)).collect()
    }
}

/// The measurements of JSON of fio or of `blockyard bench`, without a fit: job, load and depth of
/// each. `requests` is as in [`FitRequest`].
///
/// # Errors
/// The text is no measurement that a device can be fitted to.
pub fn measurements(name: &str, text: &str, requests: u32) -> Result<Vec<String>, Error> {
    let read = fio_json::read(name, text, requests)?;
    Ok(read.into_iter().map(|measurement| measurement.label).collect())
}

/// Fits a device to the measurements of these files. `searched` receives the numbers of points that
/// were run and of all.
///
/// # Errors
/// A file is no measurement that a device can be fitted to; the message names file, field and
/// remedy.
pub fn fit_device(
    inputs: Vec<Input>,
    request: &FitRequest,
    mut searched: impl FnMut(u32, u32),
) -> Result<FittedDevice, Error> {
    let traces = Traces::default();
    let mut measurements = Vec::new();
    let files: Vec<String> = inputs.iter().map(|input| input.name.clone()).collect();
    for Input { name, content } in inputs {
        match content {
            Content::FioJson(text) => {
                measurements.extend(fio_json::read(&name, &text, request.requests)?);
            }
            Content::Trace(trace) => {
                measurements.extend(traced::read(&name, &trace, &traces)?);
            }
        }
    }
    if measurements.len() < MEASUREMENTS_MIN {
        return Err(Error::new(format!(
            "{}: {} measurements; a fit needs {MEASUREMENTS_MIN}, because it holds out every other \
             one: measure more block sizes, depths or mixes of reads and writes, one job each",
            files.join(", "),
            measurements.len()
        )));
    }
    let models = request.model.map_or(models::ALL.to_vec(), |model| vec![model]);
    let all = request.draws * models.len() as u32;
    let mut tried = Vec::new();
    for (number, model) in models.into_iter().enumerate() {
        let before = request.draws * number as u32;
        let fit = ModelFit { measurements: &measurements, model, request, traces: &traces };
        tried.push(fit.run(|drawn| searched(before + drawn, all))?);
    }
    let misses = tried.iter().map(|(model, _, rows)| (*model, miss_of(rows))).collect();
    let best = tried.into_iter().min_by(|one, other| miss_of(&one.2).total_cmp(&miss_of(&other.2)));
    let (model, device, rows) = best.expect("there is a model");
    Ok(FittedDevice { model, device, rows, misses })
}

/// The mean miss of the fitted rows.
fn miss_of(rows: &[Compared]) -> f64 {
    let fitted: Vec<f64> =
        rows.iter().filter(|row| !row.held_out).map(|row| miss(row.factor())).collect();
    fitted.iter().sum::<f64>() / fitted.len() as f64
}

/// The fit of one model.
struct ModelFit<'a> {
    measurements: &'a [Measurement],
    model: Model,
    request: &'a FitRequest,
    traces: &'a Traces,
}

impl ModelFit<'_> {
    /// Fits the constants of reads to the measurements without writes, and then those of writes to
    /// the others: two small boxes are searched better than a large one.
    fn run(&self, mut searched: impl FnMut(u32)) -> Result<(Model, String, Vec<Compared>), Error> {
        let bounds = facts(self.measurements, self.request);
        let writes = |one: &Measurement| one.facts.write_s.is_some();
        let of_stage = |has_writes: bool| {
            let fitted = (0..self.measurements.len()).filter(|number| !is_held_out(*number));
            fitted.filter(|number| writes(&self.measurements[*number]) == has_writes).collect()
        };
        let [reads, writes]: [Vec<usize>; 2] = [of_stage(false), of_stage(true)];
        let read_sides = models::sides(self.model, &bounds);
        let write_sides = models::write_sides(self.model, &bounds);
        let stages = if reads.is_empty() || writes.is_empty() || write_sides.is_empty() {
            vec![([reads, writes].concat(), [read_sides, write_sides].concat())]
        } else {
            vec![(reads, read_sides), (writes, write_sides)]
        };
        let draws = self.request.draws / stages.len() as u32;
        let mut device = models::table(self.model, &bounds);
        let mut before = 0;
        for (rows, sides) in stages {
            let text = self.text(&device) + &self.fit_text(&rows, &sides, draws);
            let experiment = self.parse(&text)?;
            let fit = &experiment.fits[0];
            let point = nearest(&experiment, fit, |drawn| searched(before + drawn))?;
            before += draws;
            for (side, value) in fit.sides.iter().zip(&point.values) {
                let key = side.path.strip_prefix("device.").unwrap_or(&side.path);
                let _ = writeln!(device, "{key} = {value}");
            }
        }
        let experiment = self.parse(&self.text(&device))?;
        let rows = compare(&experiment, self.measurements)?;
        Ok((self.model, device, rows))
    }

    fn parse(&self, text: &str) -> Result<Experiment, Error> {
        Experiment::parse_with("fit-device", text, None, self.traces.clone())
    }

    /// The experiment without a fit.
    fn text(&self, device: &str) -> String {
        let size = format!("{}m", facts(self.measurements, self.request).size_mib);
        let mut text = format!(
            "name = \"fit-device\"\ntitle = \"A device fitted to measurements\"\n\
             [file_system]\nkind = \"none\"\n[queue]\nelevator = \"{}\"\n{device}",
            self.request.elevator
        );
        for (number, measurement) in self.measurements.iter().enumerate() {
            let name = variant(number);
            let job = measurement.job.replace(NAME, &name).replace(SIZE, &size);
            let role = if is_held_out(number) { "predict" } else { "calibrate" };
            let _ = writeln!(text, "[jobs.{name}]\n{job}\n[variants.{name}]\njobs = [\"{name}\"]");
            let _ = writeln!(text, "[published.{name}]\nrole = \"{role}\"");
            for (row, metrics) in &measurement.rows {
                let row = row.replace(NAME, &name);
                let cells: Vec<String> =
                    metrics.iter().map(|(metric, value)| format!("{metric} = {value:?}")).collect();
                let _ = writeln!(text, "rows.\"{row}\" = {{ {} }}", cells.join(", "));
            }
        }
        text
    }

    /// The fit of these sides to these measurements.
    fn fit_text(&self, numbers: &[usize], sides: &[String], draws: u32) -> String {
        let mut accept = Vec::new();
        for number in numbers {
            let name = variant(*number);
            for (row, metrics) in &self.measurements[*number].rows {
                let row = row.replace(NAME, &name);
                accept.extend(metrics.iter().map(|(metric, _)| {
                    format!("{{ row = \"{name}/{row}/{metric}\", error_max = 0.2 }}")
                }));
            }
        }
        let variants: Vec<String> =
            numbers.iter().map(|number| format!("\"{}\"", variant(*number))).collect();
        format!(
            "[fits.device]\nvariants = [{}]\nbox = [{}]\naccept = [{}]\ndraws = {draws}\n",
            variants.join(", "),
            sides.join(", "),
            accept.join(", ")
        )
    }
}

/// The facts of all fitted measurements together.
fn facts(measurements: &[Measurement], request: &FitRequest) -> models::Bounds {
    let fitted = || measurements.iter().step_by(2);
    let largest = |of: fn(&Facts) -> Option<f64>| {
        fitted().filter_map(|one| of(&one.facts)).fold(0.0, f64::max)
    };
    let smallest = |of: fn(&Facts) -> Option<f64>| {
        fitted().filter_map(|one| of(&one.facts)).fold(f64::INFINITY, f64::min)
    };
    let end_bytes = measurements.iter().map(|one| one.facts.end_bytes).max().unwrap_or(0);
    let used_mib = if end_bytes > 0 { end_bytes.div_ceil(1 << 20) } else { USUAL_MIB };
    models::Bounds {
        size_mib: request.size_mib.unwrap_or(used_mib).max(1),
        depth: measurements.iter().map(|one| one.facts.depth).max().unwrap_or(1),
        read_us: (smallest(|facts| facts.read_s) * 1e6, largest(|facts| facts.read_s) * 1e6),
        write_us: (smallest(|facts| facts.write_s) * 1e6, largest(|facts| facts.write_s) * 1e6),
        write_measurements: fitted().filter(|one| one.facts.write_s.is_some()).count(),
    }
}

/// Name of a measurement's variant and job.
fn variant(number: usize) -> String {
    format!("m{number}")
}

fn is_held_out(number: usize) -> bool {
    number % 2 == 1
}

/// Runs all measurements.
fn compare(experiment: &Experiment, measurements: &[Measurement]) -> Result<Vec<Compared>, Error> {
    let progress = &|_, _| ();
    let options = RunOptions { experiment, set: &[], elevator: None, progress, check: false };
    let seed = experiment.seeds[0];
    let key =
        |variant: &str| Key { variant: variant.to_owned(), point: 0, seed, control: String::new() };
    let runs: Vec<Run<'_>> = experiment
        .variants
        .iter()
        .map(|variant| Run {
            key: key(&variant.name),
            variant,
            point: None,
            control: &[],
            record: false,
        })
        .collect();
    let done = execute(options, &runs)?;
    experiment
        .published
        .iter()
        .map(|published| {
            let ours = ours(&done, &published.cell, seed)?;
            let number =
                experiment.variants.iter().position(|one| one.name == published.cell.variant);
            let measurement = &measurements[number.expect("each row is of a variant")];
            let direction = published.cell.row.rsplit(' ').next().unwrap_or_default();
            Ok(Compared {
                measurement: measurement.label.clone(),
                what: format!("{direction} {}", published.cell.metric),
                measured: published.value,
                ours,
                held_out: published.role == Role::Predict,
            })
        })
        .collect()
}

fn ours(done: &Done, cell: &Cell, seed: u64) -> Result<f64, Error> {
    let missing = || Error::new(format!("the simulated job yields no {cell}; please report it"));
    values(done, cell, "").get(&(0, seed)).copied().ok_or_else(missing)
}

#[cfg(test)]
mod tests;
