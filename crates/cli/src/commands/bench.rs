//! `blockyard bench`: fio's jobs on a volume, through the path that `serve` takes, without a
//! client.
//!
//! A volume is not filled first: a hole in its image reads faster than data. Jobs that write
//! overwrite what is on it, and so need `--destroy`.

mod json;

use std::path::PathBuf;
use std::sync::Arc;

use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::volume::{Volume, VolumeOptions};
use blockyard_load::fio::{Fio, JobFile};
use clap::{Args, ValueHint};

use crate::args::{HelpArgs, SchedulingArgs, VolumeArgs};
use crate::failure::Failure;
use crate::key::StdinUse;
use crate::output::{print, say};
use crate::real;

/// Run fio jobs on a volume, and print what they measured as fio does
///
/// A job file has fio's form. Options alone are a job too:
///
///     blockyard bench disk.luks -- rw=randread bs=4k ioengine=libaio iodepth=32 runtime=10
#[derive(Args, Debug)]
#[command(disable_help_flag = true, verbatim_doc_comment)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    volume: VolumeArgs,

    /// The volume is not encrypted: run on the file or block device as it is
    #[arg(long, conflicts_with_all = ["table", "kind", "header", "key_slot", "key_file", "key_fd",
                                      "cipher", "key_size", "hash"])]
    raw: bool,

    /// Job file; without one, the options are the job
    #[arg(short = 'j', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    job: Option<PathBuf>,

    /// What is on the volume may be overwritten
    #[arg(long)]
    destroy: bool,

    /// Print JSON with fio's names
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    scheduling: SchedulingArgs,

    #[command(flatten)]
    help: HelpArgs,

    /// Options of all jobs, behind `--`; a switch needs no value
    #[arg(value_name = "KEY[=VALUE]", last = true)]
    options: Vec<String>,
}

/// Runs the jobs.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let text = args.job.as_ref().map(|path| {
        let text = std::fs::read_to_string(path);
        text.map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))
    });
    let text = text.transpose()?;
    if text.is_none() && args.options.is_empty() {
        return Err(Failure::failed(
            "no job: name a job file with --job FILE, or options, as in -- rw=randread bs=4k",
        ));
    }
    // Before a key is asked for: how long the volume is plays no part in whether it is written.
    let writes = args.jobs(text.as_deref(), u64::MAX >> 2)?.jobs.iter().any(|job| job.rw.writes());
    if writes && !args.destroy {
        return Err(Failure::busy(
            "the jobs write, and would overwrite what is on the volume; say --destroy if nothing \
             on it is needed any more",
        ));
    }
    let volume = args.open(if writes { Access::ReadWrite } else { Access::ReadOnly })?;
    let JobFile { jobs, ignored } = args.jobs(text.as_deref(), volume.size_bytes())?;
    for ignored in &ignored {
        say(&format!("note: {} changes nothing: {}", ignored.key, ignored.why));
    }
    let mut fio = Fio::new(jobs).map_err(|error| Failure::failed(error.to_string()))?;
    let description = volume.describe().to_owned();
    real::run_on_whole(&Arc::new(volume), &mut fio)?;
    match args.json {
        true => print(&json::report(&fio, &description)?),
        false => print(&format!("{description}\n\n{}", fio.print())),
    }
}

impl BenchArgs {
    fn jobs(&self, text: Option<&str>, device_bytes: u64) -> Result<JobFile, Failure> {
        let split = |option: &'_ String| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            (key.trim_start_matches("--").to_owned(), value.to_owned())
        };
        let options: Vec<(String, String)> = self.options.iter().map(split).collect();
        let options: Vec<(&str, &str)> =
            options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        JobFile::parse(text, &options, device_bytes).map_err(|error| {
            let place = match (&self.job, error.line) {
                (Some(path), Some(_)) => format!("{}, ", path.display()),
                (Some(path), None) if options.is_empty() => format!("{}: ", path.display()),
                _ => String::new(),
            };
            Failure::failed(format!("{place}{error}"))
        })
    }

    fn open(&self, access: Access) -> Result<Volume, Failure> {
        let options = VolumeOptions {
            read_only: access == Access::ReadOnly,
            direct: self.volume.direct,
            scheduling: self.scheduling.scheduling(),
            pipeline: self.scheduling.pipeline(),
            bounce: self.scheduling.bounce(),
            ..VolumeOptions::default()
        };
        if self.raw {
            let spec = self.volume.spec()?;
            let file = DeviceFile::open(&spec.path, access, self.volume.direct)?;
            return Ok(Volume::from_file(file, &options)?);
        }
        let unlocked = self.volume.spec()?.prepare(access, StdinUse::Free)?.unlock()?;
        unlocked.into_volume(&options)
    }
}
