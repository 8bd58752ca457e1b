//! `blockyard tune`: the best settings for a volume and a workload, or for a world of the lab.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use blockyard_engine::time::Nanos;
use blockyard_lab::{Experiment, JobSpec, Override, TraceJob, Variant};
use blockyard_workload::fio::Job;
use blockyard_workload::replay::Pace;
use blockyard_workload::trace::blktrace::Action;
use clap::{Args, ValueHint};

use super::lab::load;
use super::report::write;
use crate::args::{ForceArgs, HelpArgs, JobArgs, VolumeArgs};
use crate::failure::Failure;
use crate::key::StdinUse;
use crate::output::{InUse, Output, print, say};
use crate::terminal::Terminal;
use crate::traces;
use crate::tune::config;
use crate::tune::evidence::{Evidence, Table};
use crate::tune::goal::Goal;
use crate::tune::model::{self, Model};
use crate::tune::race::Rules;
use crate::tune::search::{Step, search};
use crate::tune::traced::Traced;
use crate::tune::volume::{Settings, Source, Tuned, pipelines};
use crate::tune::workload::{Load, Usual, Workload, ask, jobs_of_words};
use crate::volume::VolumeSpec;
use blockyard_host::volume::VolumeOptions;

/// Rounds of a race at most: what is not clear then is not worth more.
const ROUNDS_MAX: usize = 24;

/// Find the best settings for a volume and a workload, by measuring
///
/// One thing after the other is varied: page cache, pipeline, threads, elevator, queue depth,
/// request size, tunables. Its values run against each other in turns, so that a busy machine
/// disturbs all of them alike; the worse half goes, the rest runs until it is clear which is
/// best. Nothing is written without --destroy. What is printed in the end is a configuration for
/// `serve --config`; the evidence goes to standard error, or as JSON to standard output.
///
///     blockyard tune home.img --workload vm
///     blockyard tune home.img --goal p99 --time 300 -- rw=randread bs=16k iodepth=8
///     blockyard tune home.img --goal p99 --trace home.trace
///     blockyard tune --lab parallel-dm-crypt-2013 --variant ram-64k --axis "request size"
#[derive(Args, Debug)]
#[command(disable_help_flag = true, verbatim_doc_comment)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    volume: VolumeArgs,

    /// The volume is not encrypted: tune for the file or block device as it is, and print options
    /// in place of a configuration, which names encrypted volumes and tables only
    #[arg(long, conflicts_with_all = ["table", "kind", "header", "key_slot", "key_file", "key_fd",
                                      "cipher", "key_size", "hash"])]
    raw: bool,

    /// A usual workload: vm, database, stream or lone; a person is asked if nothing is said
    #[arg(short = 'w', long, value_name = "NAME", value_parser = Usual::parse,
          conflicts_with_all = ["job", "options"])]
    workload: Option<&'static Usual>,

    /// A trace (see `trace record`): parts of it are played as fast as possible, or for a latency
    /// when they came. Without --destroy only what reads is played
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["job", "options", "workload"])]
    trace: Option<PathBuf>,

    /// Bios of the trace behind the end of the volume begin again at its start
    #[arg(long, requires = "trace", conflicts_with_all = ["job", "options", "workload"])]
    wrap: bool,

    #[command(flatten)]
    jobs: JobArgs,

    /// What is to be made good
    #[arg(short = 'g', long, value_enum, default_value = "throughput")]
    goal: Goal,

    /// No race is begun after so long
    #[arg(long, value_name = "SECONDS", default_value = "120",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    time: u64,

    /// Each measurement takes so long at first; longer if few requests end in it
    #[arg(long, value_name = "MILLISECONDS", default_value = "125",
          value_parser = clap::value_parser!(u64).range(10..=60_000))]
    slice: u64,

    /// What is on the volume may be overwritten
    #[arg(long)]
    destroy: bool,

    /// Write the configuration to this file
    #[arg(short = 'O', long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with = "raw")]
    output: Option<PathBuf>,

    /// Print the evidence as JSON instead of the configuration
    #[arg(long)]
    json: bool,

    /// Write an HTML page with the evidence to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,

    #[command(flatten)]
    lab: LabArgs,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Tuning in the simulated world.
#[derive(Args, Debug)]
#[command(next_help_heading = "In the lab")]
struct LabArgs {
    /// Tune the world of this experiment (see `lab list`) instead of a volume
    #[arg(long, value_name = "NAME|FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["volume", "table", "raw", "destroy", "output"])]
    lab: Option<String>,

    // `requires` of an option that conflicts with what is there asks for nothing: so these have the
    // conflicts of --lab too.
    /// The world and the jobs of this variant; without one, of the first
    #[arg(long, value_name = "NAME", requires = "lab",
          conflicts_with_all = ["volume", "table", "raw"])]
    variant: Option<String>,

    /// Change a value of the world, as in `lab run`
    #[arg(long, value_name = "PATH=VALUE", value_parser = Override::parse, requires = "lab",
          conflicts_with_all = ["volume", "table", "raw"])]
    set: Vec<Override>,

    /// Only this: pipeline, request size, elevator, longest request or requests
    #[arg(long = "axis", value_name = "NAME", requires = "lab",
          conflicts_with_all = ["volume", "table", "raw"],
          value_parser = clap::builder::PossibleValuesParser::new(Model::axis_names()))]
    axes: Vec<String>,
}

/// Tunes.
pub(crate) fn run(args: &TuneArgs) -> Result<(), Failure> {
    let in_use = args.in_use();
    let outputs = [&args.output, &args.html].into_iter().flatten();
    outputs.map(|path| args.output(path)).try_for_each(|output| output.check(&in_use))?;
    match &args.lab.lab {
        Some(name) => in_lab(args, name),
        None => on_volume(args),
    }
}

fn on_volume(args: &TuneArgs) -> Result<(), Failure> {
    let workload_at = args.workloads()?;
    // Before a key is asked for: how long the volume is plays no part in whether it is written.
    if workload_at(u64::MAX >> 2)?.writes() && !args.destroy {
        return Err(Failure::busy(
            "the jobs write, and would overwrite what is on the volume; take jobs that only read, \
             or say --destroy if nothing on it is needed any more",
        ));
    }
    let spec = args.volume.spec()?;
    let source = match args.raw {
        true => Source::raw(&spec.path),
        false => {
            let settings = VolumeOptions {
                read_only: !args.destroy,
                shared: args.destroy,
                ..VolumeOptions::default()
            };
            Source::new(&spec, spec.prepare(settings, StdinUse::Free)?.unlock()?)
        }
    };
    let default = Settings { direct: args.volume.direct, ..Settings::default() };
    let opened = source.open(&default, true)?;
    let workload = workload_at(opened.len())?;
    workload.check(&opened).map_err(Failure::failed)?;
    let mut conditions = vec![
        ("volume", opened.describe().to_owned()),
        ("workload", workload.about.clone()),
        ("machine", machine()),
    ];
    drop(opened);
    if workload.is_verified() {
        conditions
            .push(("left out", "verify: how fast bytes are, not whether they are right".into()));
    }
    let goal = args.goal;
    let told = move |step: &Step<Settings>| {
        let label = |settings: &Settings| settings.on_axis(step.axis);
        say_lines(&Table::new(step, label, |score| goal.shown(score)).print(goal.unit()));
    };
    let limits = (Nanos::from_ms(args.slice), Duration::from_secs(args.time));
    let mut space = Tuned::new(source, workload, goal, limits, Box::new(told));
    let slice = ("each measurement", space.fit_slice(&default)?);
    for (key, value) in conditions.iter().chain([&slice]) {
        say(&format!("{key}: {value}"));
    }
    say("");
    let rivals: Vec<Settings> =
        pipelines().into_iter().map(|pipeline| Settings { pipeline, ..default.clone() }).collect();
    let rivals = if args.raw { Vec::new() } else { rivals };
    let found = search(&mut space, &default, &rivals, RULES)?;
    conditions.push(("each measurement", space.measurement()));
    let shown = |score| goal.shown(score);
    let label = |settings: &Settings, axis: &str| settings.on_axis(axis);
    let evidence = Evidence::new(&found, goal.unit(), label, shown);
    let evidence = Evidence { conditions, ..evidence };
    say_lines(&evidence.result());
    args.give(&evidence, &found.best)
}

const RULES: Rules = Rules { rounds_max: ROUNDS_MAX, seed: 1 };

fn in_lab(args: &TuneArgs, name: &str) -> Result<(), Failure> {
    let experiment = load(name)?;
    let variant = experiment.variant_or_first(args.lab.variant.as_deref())?;
    let job = args.job_in_lab(&experiment, variant)?;
    let told = |step: &Step<model::Settings>| {
        let label = |settings: &model::Settings| model::on_axis(settings, step.axis);
        say_lines(&Table::new(step, label, mib).print("MiB/s"));
    };
    let (set, axes) = (args.lab.set.clone(), args.lab.axes.clone());
    let experiment = &experiment;
    let mut space = Model { experiment, variant, job, set, axes, told: Box::new(told) };
    let default = model::Settings::new();
    let found = search(&mut space, &default, &[], RULES)?;
    drop(space);
    let conditions = vec![("world", format!("{}, {}", experiment.name, variant.name))];
    let evidence = Evidence::new(&found, "MiB/s", model::on_axis, mib);
    let evidence = Evidence { conditions, ..evidence };
    if let Some(path) = &args.html {
        write(args.output(path), &args.in_use(), &evidence.page())?;
    }
    match args.json {
        true => print(&(pretty(&evidence) + "\n")),
        false => print(&evidence.result()),
    }
}

/// Lines on standard error, and an empty one behind them.
fn say_lines(text: &str) {
    text.lines().for_each(say);
    say("");
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

fn pretty(evidence: &Evidence) -> String {
    serde_json::to_string_pretty(&evidence.json()).expect("it has no odd keys")
}

/// What a figure depends on.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("").to_owned();
    format!("{cpus} CPUs, load {load}, blockyard {}", env!("CARGO_PKG_VERSION"))
}

impl TuneArgs {
    fn output<'a>(&self, path: &'a Path) -> Output<'a> {
        Output::new(path, self.force.force)
    }

    /// Files that no output may overwrite. The volume is locked while it is open, and so are the
    /// devices of a table.
    fn in_use(&self) -> InUse {
        let spec = self.volume.spec().ok();
        let inputs = [&self.trace, &self.jobs.job].into_iter().flatten().map(PathBuf::as_path);
        InUse::of_paths(spec.iter().flat_map(VolumeSpec::paths).chain(inputs))
    }

    /// The workload as options, unless it is a job.
    fn words(&self) -> Result<Option<String>, Failure> {
        if let Some(usual) = self.workload {
            say(&format!("workload {}: {}", usual.name, usual.about(self.destroy)));
            return Ok(Some(usual.options(self.destroy).into()));
        }
        if !self.jobs.is_empty() || self.lab.lab.is_some() {
            return Ok(None);
        }
        match Terminal::on_stdin() {
            Some(terminal) => ask(&terminal, self.destroy).map(Some),
            None => Err(Failure::failed(
                "no workload: name one with --workload, a job file with --job FILE, or options, as \
                 in -- rw=randread bs=4k",
            )),
        }
    }

    /// What is run, on a volume of this length. A trace is read, and a person is asked, once.
    fn workloads(&self) -> Result<impl Fn(u64) -> Result<Workload, Failure>, Failure> {
        let traced = self.trace.as_ref();
        let traced = traced
            .map(|path| Traced::read(path, self.goal, (self.destroy, self.wrap)))
            .transpose()?;
        let (words, text) = match traced {
            Some(_) => (None, None),
            None => (self.words()?, self.jobs.text()?),
        };
        Ok(move |device_bytes| {
            if let (Some(traced), Some(path)) = (&traced, &self.trace) {
                let about = format!("trace {}", path.display());
                return Ok(Workload { load: Load::Trace(traced.clone()), about });
            }
            let (jobs, about) = self.jobs_of(words.as_deref(), text.as_deref(), device_bytes)?;
            Ok(Workload { load: Load::Jobs(jobs), about })
        })
    }

    /// What runs in a simulated world; none if it is the variant's own jobs.
    fn job_in_lab(
        &self,
        experiment: &Experiment,
        variant: &Variant,
    ) -> Result<Option<JobSpec>, Failure> {
        if self.trace.is_none() && self.workload.is_none() && self.jobs.is_empty() {
            return Ok(None);
        }
        let config = experiment.setup(variant, None, &self.lab.set, &[])?.config;
        if let Some(path) = &self.trace {
            let trace = Arc::new(traces::read(path, Action::default())?);
            let pace = Pace::Fastest { depth: None };
            return Ok(Some(JobSpec::Trace(TraceJob::new(trace, pace, &config, self.wrap))));
        }
        let (words, text) = (self.words()?, self.jobs.text()?);
        let device_bytes = config.device.sectors().saturating_mul(512);
        let (jobs, _) = self.jobs_of(words.as_deref(), text.as_deref(), device_bytes)?;
        Ok(Some(JobSpec::Fio(jobs, false)))
    }

    fn jobs_of(
        &self,
        words: Option<&str>,
        text: Option<&str>,
        device_bytes: u64,
    ) -> Result<(Vec<Job>, String), Failure> {
        if let Some(words) = words {
            return Ok((jobs_of_words(words, device_bytes)?, words.into()));
        }
        let jobs = self.jobs.parse(text, device_bytes)?.jobs;
        let file = self.jobs.job.as_ref().map(|path| path.display().to_string());
        let words: Vec<String> = file.into_iter().chain(self.jobs.options.clone()).collect();
        Ok((jobs, words.join(" ")))
    }

    /// A file without a cipher is no volume that a configuration could name.
    fn give_options(&self, evidence: &Evidence, best: &Settings) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            write(self.output(path), &self.in_use(), &evidence.page())?;
        }
        if self.json {
            return print(&(pretty(evidence) + "\n"));
        }
        print(&(best.text() + "\n"))
    }

    fn give(&self, evidence: &Evidence, best: &Settings) -> Result<(), Failure> {
        let mut heading = vec![format!("Found by `blockyard tune`, for {}.", self.goal.unit())];
        heading.extend(evidence.conditions.iter().map(|(key, value)| format!("{key}: {value}")));
        if self.raw {
            return self.give_options(evidence, best);
        }
        let config = config::text(&self.volume, best, &heading)?;
        if let Some(path) = &self.output {
            self.output(path).write(&self.in_use(), &config)?;
        }
        if let Some(path) = &self.html {
            write(self.output(path), &self.in_use(), &evidence.page())?;
        }
        match (self.json, &self.output) {
            (true, _) => print(&(pretty(evidence) + "\n")),
            (false, Some(path)) => {
                say(&format!("the configuration is in {}", path.display()));
                Ok(())
            }
            (false, None) => print(&config),
        }
    }
}
