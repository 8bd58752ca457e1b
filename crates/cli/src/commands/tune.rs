//! `blockyard tune`: finds the best settings for a volume and a workload, or on a simulated
//! machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use blockyard::tune::{
    self, Axis, Comparison, Goal, Limits, PRESETS, Preset, Rules, Settings, Source, Traced,
    TuneError, Tuner, Workload, search,
};
use blockyard::{Options, VolumeKey};
use blockyard_lab::{Experiment, FioRows, JobSpec, TraceJob, Variant};
use blockyard_workload::fio::Job;
use blockyard_workload::replay::Pace;
use blockyard_workload::trace::blktrace::Action;
use clap::{Args, ValueHint};

use super::lab::load;
use super::report::write;
use crate::args::{ForceArgs, HelpArgs, JobArgs, VolumeArgs, WorldArgs};
use crate::failure::Failure;
use crate::json::pretty;
use crate::key::StdinUse;
use crate::output::{InUse, Output, print, say};
use crate::terminal::Terminal;
use crate::traces;
use crate::tune::config;
use crate::tune::evidence::{Evidence, Table};
use crate::tune::model::{self, Model};
use crate::tune::questions::ask;
use crate::tune::settings::{self, GoalArg};
use crate::volume_spec::VolumeSpec;

/// Find the best settings for a volume and a workload, by measuring
///
/// Settings are varied one after the other: page cache, pipeline, threads, elevator, queue depth,
/// request size, tunables. Their values run in turns, so that a busy machine disturbs all of them
/// alike; the worse half is dropped, and the rest runs until the best is clear. Nothing is written
/// without --destroy. The result is a configuration for `serve --config`; the measurements go to
/// standard error, or as JSON to standard output.
// 16 fields: one for each option of the command, and groups of shared options.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    volume: VolumeArgs,

    /// Tune for the file or block device itself, without encryption, and print options instead of a
    /// configuration, which names only encrypted volumes and tables
    #[arg(long, conflicts_with_all = ["table", "kind", "header", "key_slot", "key_file", "key_fd",
                                      "key_command", "key_credential", "token_only", "token_id",
                                      "token_type", "cipher", "key_size", "hash"])]
    raw: bool,

    /// Workload: vm, database, stream or lone; asked for at a terminal if no workload is given
    #[arg(short = 'w', long, value_name = "NAME", value_parser = preset,
          conflicts_with_all = ["job", "options"])]
    workload: Option<&'static Preset>,

    /// Trace (see `trace record`): parts of it are played as fast as possible, or at the recorded
    /// times if the goal is a latency. Without --destroy only its reads are played
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["job", "options", "workload"])]
    trace: Option<PathBuf>,

    /// Wrap bios of the trace beyond the end of the volume around to its start
    #[arg(long, requires = "trace", conflicts_with_all = ["job", "options", "workload"])]
    wrap: bool,

    #[command(flatten)]
    jobs: JobArgs,

    /// Figure to optimise
    #[arg(short = 'g', long, value_enum, default_value = "throughput")]
    goal: GoalArg,

    /// Start no further comparison after this many seconds
    #[arg(long, value_name = "SECONDS", default_value = "120",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    time: u64,

    /// Initial duration of a measurement in milliseconds; extended if few requests end in it
    #[arg(long, value_name = "MILLISECONDS", default_value = "125",
          value_parser = clap::value_parser!(u64).range(10..=60_000))]
    slice: u64,

    /// Permit overwriting the data on the volume
    #[arg(long)]
    destroy: bool,

    /// Write the configuration to this file
    #[arg(short = 'O', long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with = "raw")]
    output: Option<PathBuf>,

    /// Print the measurements as JSON instead of the configuration
    #[arg(long)]
    json: bool,

    /// Write an HTML page with the measurements to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,

    #[command(flatten)]
    lab: LabArgs,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Tuning on a simulated machine.
#[derive(Args, Debug)]
#[command(
    next_help_heading = "In the lab",
    mut_arg("lab", |lab| {
        lab.help("Tune the machine of this experiment (see `lab list`) instead of a volume")
            .conflicts_with_all(["destroy", "output"])
    }),
    mut_arg("variant", |variant| {
        variant.help("Variant of the experiment, with its jobs; the default is the first")
    }),
)]
struct LabArgs {
    #[command(flatten)]
    world: WorldArgs,

    /// Vary this setting only: pipeline, request size, elevator, longest request or requests
    #[arg(long = "axis", value_name = "NAME", requires = "lab",
          conflicts_with_all = ["volume", "table", "raw"],
          value_parser = clap::builder::PossibleValuesParser::new(Model::axis_names()))]
    axes: Vec<String>,
}

/// Tunes the settings.
pub(crate) fn run(args: &TuneArgs) -> Result<(), Failure> {
    let in_use = args.in_use();
    let outputs = [&args.output, &args.html].into_iter().flatten();
    outputs.map(|path| args.output(path)).try_for_each(|output| output.check(&in_use))?;
    match &args.lab.world.lab {
        Some(name) => in_lab(args, name),
        None => on_volume(args),
    }
}

fn on_volume(args: &TuneArgs) -> Result<(), Failure> {
    let workload_at = args.workloads()?;
    // Before the key is asked for: the length of the volume does not decide whether it is written.
    if workload_at(u64::MAX >> 2)?.0.writes() && !args.destroy {
        return Err(Failure::busy(
            "the jobs write, and would overwrite what is on the volume; take jobs that only read, \
             or say --destroy if nothing on it is needed any more",
        ));
    }
    let source = args.source()?;
    let default = Settings { direct: args.volume.direct, ..Settings::default() };
    let opened = source.open(&default, true)?;
    let (workload, about) = workload_at(opened.len())?;
    workload.check(&opened).map_err(Failure::failed)?;
    let mut conditions =
        vec![("volume", opened.describe()), ("workload", about), ("machine", machine())];
    drop(opened);
    if workload.is_verified() {
        conditions.push(("left out", "verify: speed is measured, not correctness".into()));
    }
    let goal = Goal::from(args.goal);
    let limits =
        Limits { slice: Duration::from_millis(args.slice), time: Duration::from_secs(args.time) };
    let mut tuner = Tuner::new(source.may_destroy(args.destroy), workload, goal, limits)?;
    tuner.fit_slice(&default)?;
    let slice = ("each measurement", settings::measurement(tuner.measurement()));
    for (key, value) in conditions.iter().chain([&slice]) {
        say(&format!("{key}: {value}"));
    }
    say("");
    let rivals = if args.raw { Vec::new() } else { default.rivals() };
    let progress = &mut |one: &Comparison<Axis, Settings>| {
        let label = |settings: &Settings| settings::on_axis(settings, one.axis);
        let table = Table::new(one, one.axis.map(Axis::name), label, |score| goal.value(score));
        say_lines(&table.print(goal.unit()));
    };
    let found = search(&mut tuner, &default, &rivals, Rules::default(), progress)?;
    conditions.push(("each measurement", settings::measurement(tuner.measurement())));
    let words = (Axis::name, settings::on_axis);
    let evidence = Evidence::new(&found, goal.unit(), words, |score| goal.value(score));
    let evidence = Evidence { conditions, ..evidence };
    say_lines(&evidence.result());
    args.give(&evidence, &found.best)
}

fn in_lab(args: &TuneArgs, name: &str) -> Result<(), Failure> {
    let experiment = load(name)?;
    let variant = experiment.variant_or_first(args.lab.world.variant.as_deref())?;
    let job = args.job_in_lab(&experiment, variant)?;
    let progress = &mut |one: &Comparison<&'static str, model::Settings>| {
        let label = |settings: &model::Settings| model::on_axis(settings, one.axis);
        say_lines(&Table::new(one, one.axis, label, mib).print("MiB/s"));
    };
    let set = args.lab.world.set.clone();
    let axes = args.lab.axes.clone();
    let mut space = Model { experiment: &experiment, variant, job, set, axes };
    let found = search(&mut space, &model::Settings::new(), &[], Rules::default(), progress)?;
    let conditions = vec![("world", format!("{}, {}", experiment.name, variant.name))];
    let words = (|axis| axis, model::on_axis);
    let evidence = Evidence::new(&found, "MiB/s", words, mib);
    let evidence = Evidence { conditions, ..evidence };
    if let Some(path) = &args.html {
        write(args.output(path), &args.in_use(), &evidence.page())?;
    }
    if args.json { print(&pretty(&evidence)) } else { print(&evidence.result()) }
}

/// The preset with this name.
fn preset(name: &str) -> Result<&'static Preset, String> {
    Preset::find(name).ok_or_else(|| {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        format!("{name:?} is no workload; workloads are {}", names.join(", "))
    })
}

/// Lines on standard error, and an empty line after them.
fn say_lines(text: &str) {
    text.lines().for_each(say);
    say("");
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// Machine, load and version for the report.
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

    /// Files that no output may overwrite. An open volume is locked, and so are the devices of a
    /// table.
    fn in_use(&self) -> InUse {
        let spec = self.volume.spec().ok();
        let inputs = [&self.trace, &self.jobs.job].into_iter().flatten().map(PathBuf::as_path);
        InUse::of_paths(spec.iter().flat_map(VolumeSpec::paths).chain(inputs))
    }

    /// The volume, unlocked.
    fn source(&self) -> Result<Source, Failure> {
        let spec = self.volume.spec()?;
        if self.raw {
            return Ok(Source::new(spec.path, Options::default().raw(), VolumeKey::default()));
        }
        let settings = blockyard::Settings {
            read_only: !self.destroy,
            shared: self.destroy,
            ..blockyard::Settings::default()
        };
        let unlocked = spec.prepare(settings, StdinUse::Free)?.unlock()?;
        Ok(Source::new(spec.path, unlocked.options, unlocked.key))
    }

    /// The workload as options, unless it is a job.
    fn words(&self) -> Result<Option<String>, Failure> {
        if let Some(preset) = self.workload {
            let mix = if self.destroy { preset.mix } else { "only reads, without --destroy" };
            say(&format!("workload {}: {}; {mix}", preset.name, preset.about));
            return Ok(Some(preset.options(self.destroy).into()));
        }
        if !self.jobs.is_empty() || self.lab.world.lab.is_some() {
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

    /// The workload on a volume of this length, and its description. The trace is read, and the
    /// user asked, only once.
    fn workloads(&self) -> Result<impl Fn(u64) -> Result<(Workload, String), Failure>, Failure> {
        let traced = self.trace.as_ref().map(|path| self.traced(path)).transpose()?;
        let (words, text) = match traced {
            Some(_) => (None, None),
            None => (self.words()?, self.jobs.text()?),
        };
        Ok(move |device_bytes| {
            if let (Some(traced), Some(path)) = (&traced, &self.trace) {
                return Ok((Workload::Trace(traced.clone()), format!("trace {}", path.display())));
            }
            let (jobs, about) = self.jobs_of(words.as_deref(), text.as_deref(), device_bytes)?;
            Ok((Workload::Jobs(jobs), about))
        })
    }

    /// Reads a trace. Bios that change the volume are left out, with a note, unless permitted.
    fn traced(&self, path: &Path) -> Result<Traced, Failure> {
        let trace = traces::read(path, Action::default())?;
        let place = path.display();
        let all = trace.bios.len();
        let traced = Traced::new(trace, self.goal.into(), self.destroy, self.wrap);
        let traced = traced.map_err(|error| match error {
            TuneError::NoBios { left_out: 0 } => {
                Failure::failed(format!("{place}: the trace has no bios"))
            }
            TuneError::NoBios { .. } => Failure::failed(format!(
                "{place}: the trace has no reads; use --destroy to permit overwriting the volume"
            )),
            error => Failure::from(error),
        })?;
        let left_out = traced.left_out();
        if left_out > 0 {
            say(&format!(
                "note: {left_out} of the {all} bios of {place} do not read and are left out; \
                 --destroy plays them too"
            ));
        }
        Ok(traced)
    }

    /// The job for a simulated machine; `None` for the variant's own jobs.
    fn job_in_lab(
        &self,
        experiment: &Experiment,
        variant: &Variant,
    ) -> Result<Option<JobSpec>, Failure> {
        if self.trace.is_none() && self.workload.is_none() && self.jobs.is_empty() {
            return Ok(None);
        }
        let config = experiment.setup(variant, None, &self.lab.world.set, &[])?.config;
        if let Some(path) = &self.trace {
            let trace = Arc::new(traces::read(path, Action::default())?);
            let pace = Pace::Fastest { depth: None };
            return Ok(Some(JobSpec::Trace(TraceJob::new(trace, pace, &config, self.wrap))));
        }
        let words = self.words()?;
        let text = self.jobs.text()?;
        let device_bytes = config.sectors().saturating_mul(512);
        let (jobs, _) = self.jobs_of(words.as_deref(), text.as_deref(), device_bytes)?;
        Ok(Some(JobSpec::Fio(jobs, FioRows::Usual)))
    }

    fn jobs_of(
        &self,
        words: Option<&str>,
        text: Option<&str>,
        device_bytes: u64,
    ) -> Result<(Vec<Job>, String), Failure> {
        if let Some(words) = words {
            return Ok((tune::jobs(words, device_bytes)?, words.into()));
        }
        let jobs = self.jobs.parse(text, device_bytes)?.jobs;
        let file = self.jobs.job.as_ref().map(|path| path.display().to_string());
        let words: Vec<String> = file.into_iter().chain(self.jobs.options.clone()).collect();
        Ok((jobs, words.join(" ")))
    }

    /// A configuration cannot name a file without a cipher.
    fn give_options(&self, evidence: &Evidence, best: &Settings) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            write(self.output(path), &self.in_use(), &evidence.page())?;
        }
        if self.json {
            return print(&pretty(evidence));
        }
        print(&(settings::text(best) + "\n"))
    }

    fn give(&self, evidence: &Evidence, best: &Settings) -> Result<(), Failure> {
        let mut heading =
            vec![format!("Found by `blockyard tune`, for {}.", Goal::from(self.goal).unit())];
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
            (true, _) => print(&pretty(evidence)),
            (false, Some(path)) => {
                say(&format!("the configuration is in {}", path.display()));
                Ok(())
            }
            (false, None) => print(&config),
        }
    }
}
