//! `blockyard bench`: fio's jobs on a volume, through the data path of `serve`, without a client.
//!
//! A volume is not filled first: a hole in its image reads faster than data. Writing jobs overwrite
//! the volume's data, and so need `--destroy`.

mod conditions;
mod json;
#[cfg(feature = "lab")]
mod lab;
mod logs;
mod result_lines;
mod stop;
mod watch;

use std::path::{Path, PathBuf};

use blockyard::bench::{self, Tally};
use blockyard::{TraceFile, Volume};
use blockyard_host::volume::VolumeOptions;
use blockyard_workload::fio::{Fio, Ignored, JobFile, JobResult, print_all};
use clap::{Args, ValueHint};

use crate::args::{ForceArgs, HelpArgs, JobArgs, SchedulingArgs, VolumeArgs};
use crate::failure::{Failure, printable};
use crate::output::{InUse, Output, print, say};
use crate::size::parse_size;
use crate::stages;
use crate::volume_spec::VolumeSpec;

/// Run fio jobs on a volume, and print fio's figures
///
/// A job file has fio's format. Options alone form a job too.
// 13 fields: one for each option of the command, and groups of shared options.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    volume: VolumeArgs,

    /// Run on the file or block device itself, without encryption
    #[arg(long, conflicts_with_all = ["table", "kind", "header", "key_slot", "key_file", "key_fd",
                                      "key_command", "key_credential", "token_only", "token_id",
                                      "token_type", "cipher", "key_size", "hash"])]
    raw: bool,

    /// Permit overwriting the data on the volume
    #[arg(long)]
    destroy: bool,

    /// Cipher worker threads besides the jobs' threads [default: chosen by the cipher's speed]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u16).range(0..=crate::commands::serve::THREADS_MAX))]
    threads: Option<u16>,

    /// Print JSON with fio's names
    #[arg(long)]
    json: bool,

    /// Repeat the jobs this many times, and print one line for each job: mean KiB/s and deviation
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=1000),
          conflicts_with_all = ["json", "trace"])]
    result_lines: Option<u32>,

    #[cfg(feature = "lab")]
    #[command(flatten)]
    page: lab::PageArgs,

    /// Record the jobs' requests in this file (docs/trace.md)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,

    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    scheduling: SchedulingArgs,

    #[command(flatten)]
    jobs: JobArgs,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Target of the jobs if it is not a volume.
#[derive(Args, Debug)]
#[command(next_help_heading = "Other targets")]
#[cfg_attr(feature = "lab", command(
    mut_arg("lab", |lab| lab.conflicts_with_all(["null", "trace", "result_lines"])),
    mut_arg("variant", |variant| variant.conflicts_with("null")),
    mut_arg("set", |set| set.conflicts_with("null")),
))]
struct TargetArgs {
    /// Run on a device of this size that ends each request at once and stores nothing
    #[arg(long, value_name = "SIZE", value_parser = parse_size,
          conflicts_with_all = ["volume", "table", "raw"])]
    null: Option<u64>,

    #[cfg(feature = "lab")]
    #[command(flatten)]
    world: crate::args::WorldArgs,
}

/// Runs the jobs.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.jobs.is_empty() {
        return Err(Failure::failed(
            "no job: name a job file with --job FILE, or give options, as in -- rw=randread bs=4k",
        ));
    }
    let mut in_use = args.in_use();
    args.check_outputs(&in_use)?;
    let text = args.jobs.text()?;
    let parse = |device_bytes| args.jobs.parse(text.as_deref(), device_bytes);
    #[cfg(feature = "lab")]
    if let Some(name) = &args.target.world.lab {
        return lab::run(args, name, parse);
    }
    // Before the key is asked for: the length of the volume does not decide whether it is written.
    let JobFile { jobs, direct, .. } = parse(u64::MAX >> 2)?;
    if direct == Some(false) && args.volume.direct {
        return Err(Failure::failed("--direct contradicts a job's direct=0"));
    }
    let direct = direct.unwrap_or(args.volume.direct);
    logs::check(&jobs, args.force.force, &in_use)?;
    let writes = jobs.iter().any(|job| job.shape.rw.destroys());
    if writes && !args.destroy && args.target.null.is_none() {
        return Err(Failure::busy(
            "the jobs write, and would overwrite what is on the volume; say --destroy if nothing \
             on it is needed any more",
        ));
    }
    let volume = args.open(!writes, direct)?;
    let JobFile { jobs, ignored, .. } = parse(volume.len())?;
    note(&ignored);
    in_use.add_volume(&volume);
    let conditions = conditions::conditions(args.file(), &volume);
    if let Some(times) = args.result_lines {
        let is_plain = args.raw || args.target.null.is_some();
        conditions.iter().for_each(|(name, value)| say(&format!("{name}: {value}")));
        let pipeline = result_lines::module(args.scheduling.pipeline());
        let module = if is_plain { "_" } else { &pipeline };
        return result_lines::run(&volume, &jobs, module, times, &in_use);
    }
    let mut fio = Fio::new(jobs.clone()).map_err(|error| Failure::failed(error.to_string()))?;
    let description = volume.describe();
    let tally = Tally::default();
    let stopper = fio.stopper();
    let (outcome, is_stopped) = stop::stoppable(&stopper, || {
        args.record(&volume, &in_use)?;
        let ran = watch::watched(&jobs, &tally, || bench::run(&volume, &mut fio, &tally));
        ran.map_err(Failure::from)
    })?;
    outcome?;
    if let Some(recorded) = volume.stop_recording()? {
        say(&format!("trace: {recorded}"));
    }
    args.give(&fio, &description, Some((&volume, &conditions)), &in_use)?;
    fio.results().iter().try_for_each(judge)?;
    if is_stopped {
        Err(Failure::failed("a signal ended the jobs early: the figures cover the time until then"))
    } else {
        Ok(())
    }
}

fn note(ignored: &[Ignored]) {
    for ignored in ignored {
        say(&format!("note: {} has no effect: {}", ignored.key, ignored.why));
    }
}

/// Error numbers of Linux.
const EIO: i32 = 5;
const ETIMEDOUT: i32 = 110;

/// Checks whether a job succeeded.
fn judge(result: &JobResult) -> Result<(), Failure> {
    let name = &result.name;
    let mismatches = result.errors.mismatches;
    match (&result.errors.mismatch, result.errors.ended_by) {
        (Some(mismatch), _) => {
            Err(Failure::failed(format!("job {name}: {mismatch}; {mismatches} in all")))
        }
        (None, Some(error)) => {
            let reason = std::io::Error::from_raw_os_error(error);
            let why = match error {
                EIO => ", or it was slower than rate_min",
                ETIMEDOUT => ": a request exceeded max_latency or latency_target",
                _ => "",
            };
            let text = format!("job {name} ended early: {reason}{why}");
            Err(Failure::failed(text))
        }
        (None, None) => Ok(()),
    }
}

impl BenchArgs {
    /// Prints the results in the chosen format, with the times by stage if the jobs ran on a
    /// volume.
    fn give(
        &self,
        fio: &Fio,
        description: &str,
        on: Option<(&Volume, &[(&str, String)])>,
        in_use: &InUse,
    ) -> Result<(), Failure> {
        logs::write(fio.logs(), in_use)?;
        let (volume, conditions) = on.unzip();
        let conditions = conditions.unwrap_or_default();
        #[cfg(feature = "lab")]
        self.page.write(self.force, fio, (description, conditions), in_use)?;
        if self.json {
            print(&json::text(fio, description, volume, conditions))
        } else {
            let stages =
                volume.map_or_else(String::new, |volume| stages::report(&volume.activity()));
            let conditions: String = conditions
                .iter()
                .map(|(name, text)| format!("{name}: {}\n", printable(text)))
                .collect();
            let jobs = print_all(&fio.listed());
            print(&format!("{description}\n{conditions}\n{jobs}{stages}"))
        }
    }

    /// Records the jobs' requests, if `--trace` is given.
    fn record(&self, volume: &Volume, in_use: &InUse) -> Result<(), Failure> {
        let Some(path) = self.trace.clone() else { return Ok(()) };
        let to = TraceFile { path, replace: self.force.force, limit: None };
        Ok(volume.record("", &to, in_use)?)
    }

    /// Refuses unwritable outputs before the jobs run, which may take long.
    fn check_outputs(&self, in_use: &InUse) -> Result<(), Failure> {
        #[cfg(feature = "lab")]
        self.page.check(self.force, in_use)?;
        match &self.trace {
            Some(path) => Ok(Output::recording(path, self.force.force).check(in_use)?),
            None => Ok(()),
        }
    }

    /// Files that no output may overwrite, known before the volume is open.
    fn in_use(&self) -> InUse {
        let spec = self.volume.spec().ok();
        InUse::of_paths(spec.iter().flat_map(VolumeSpec::paths).chain(self.jobs.job.as_deref()))
    }

    /// The file or block device that the jobs run on, if any.
    fn file(&self) -> Option<&Path> {
        let volume = &self.volume;
        let named = volume.table.as_deref().or(volume.volume.as_deref());
        named.filter(|_| self.target.null.is_none())
    }

    fn open(&self, read_only: bool, direct: bool) -> Result<Volume, Failure> {
        let options = VolumeOptions {
            read_only,
            direct,
            scheduling: self.scheduling.scheduling(),
            pipeline: self.scheduling.pipeline(),
            bounce: self.scheduling.bounce(),
            worker_threads: self.threads.map(usize::from),
            ..VolumeOptions::default()
        };
        if let Some(len_bytes) = self.target.null {
            return Ok(bench::null((len_bytes / 512).max(1), &options)?);
        }
        let spec = VolumeSpec { direct, ..self.volume.spec()? };
        spec.open(options, self.raw)
    }
}
