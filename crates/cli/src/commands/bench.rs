//! `blockyard bench`: fio's jobs on a volume, through the path that `serve` takes, without a
//! client.
//!
//! A volume is not filled first: a hole in its image reads faster than data. Jobs that write
//! overwrite what is on it, and so need `--destroy`.

mod json;

use std::sync::Arc;

use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::volume::{Volume, VolumeOptions};
use blockyard_load::fio::{Fio, JobFile};
use clap::Args;

use crate::args::{HelpArgs, JobArgs, SchedulingArgs, VolumeArgs};
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

    /// What is on the volume may be overwritten
    #[arg(long)]
    destroy: bool,

    /// Print JSON with fio's names
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    scheduling: SchedulingArgs,

    #[command(flatten)]
    jobs: JobArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Runs the jobs.
pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.jobs.is_empty() {
        return Err(Failure::failed(
            "no job: name a job file with --job FILE, or options, as in -- rw=randread bs=4k",
        ));
    }
    let text = args.jobs.text()?;
    let parse = |device_bytes| args.jobs.parse(text.as_deref(), device_bytes);
    // Before a key is asked for: how long the volume is plays no part in whether it is written.
    let writes = parse(u64::MAX >> 2)?.jobs.iter().any(|job| job.rw.destroys());
    if writes && !args.destroy {
        return Err(Failure::busy(
            "the jobs write, and would overwrite what is on the volume; say --destroy if nothing \
             on it is needed any more",
        ));
    }
    let volume = args.open(if writes { Access::ReadWrite } else { Access::ReadOnly })?;
    let JobFile { jobs, ignored } = parse(volume.size_bytes())?;
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
