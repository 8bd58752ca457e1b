//! A trace on the simulated machine of an experiment: its device, queue, elevator and crypt target,
//! with the trace in place of its jobs.
//!
//! Bios go directly to the device, without the experiment's file system. Every replay runs twice,
//! and both results must be equal. The requests to the simulated queue form a new trace.

use std::collections::BTreeMap;
use std::io::{self, BufWriter};
use std::path::PathBuf;

use blockyard::output::OutputFile;
use blockyard_engine::time::Nanos;
use blockyard_lab::sim::cpu::ThreadId;
use blockyard_lab::sim::world::{self, Config, Event, Observer, Role};
use blockyard_workload::replay::Replay;
use blockyard_workload::trace::{Completion, Header, Trace, TracedBio, Writer};
use clap::{Args, ValueHint};

use super::ReplayArgs;
use crate::args::WorldArgs;
use crate::commands::lab::{load, set_up};
use crate::failure::Failure;
use crate::output::{InUse, Output};

/// Options for a simulated machine instead of a volume.
#[derive(Args, Debug)]
#[command(
    mut_arg("lab", |lab| {
        lab.help("Play on the machine of an experiment: name (see `lab list`) or TOML file")
            .value_hint(ValueHint::Unknown)
            .conflicts_with("null")
    }),
    mut_arg("variant", |variant| variant.conflicts_with("null")),
    mut_arg("set", |set| {
        set.help("Change a setting of the machine: device.kind=flash, crypt.pipeline=sorted")
            .conflicts_with("null")
    }),
)]
pub(super) struct PlaceArgs {
    #[command(flatten)]
    pub(super) world: WorldArgs,

    /// Write the requests that reached the simulated queue as a new trace
    #[arg(long, value_name = "FILE", requires = "lab", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["volume", "table", "raw", "null"])]
    pub(super) output: Option<PathBuf>,
}

impl PlaceArgs {
    /// The new trace, and the files that it must not overwrite.
    fn output(&self, args: &ReplayArgs) -> Option<(Output<'_>, InUse)> {
        let output = Output::private(self.output.as_deref()?, args.force.force);
        Some((output, InUse::of_paths([args.input.trace.as_path()])))
    }

    /// Refuses an unwritable output before anything runs.
    pub(super) fn check(&self, args: &ReplayArgs) -> Result<(), Failure> {
        match self.output(args) {
            Some((output, in_use)) => Ok(output.check(&in_use)?),
            None => Ok(()),
        }
    }
}

/// Plays the trace; returns a description of the simulated machine too.
pub(super) fn play(
    args: &ReplayArgs,
    experiment: &str,
    trace: &Trace,
) -> Result<(Replay, String), Failure> {
    let experiment = load(experiment)?;
    let variant = experiment.variant_or_first(args.place.world.variant.as_deref())?;
    let mut set = args.scheduling.of_lab()?;
    set.extend(args.place.world.set.iter().cloned());
    let setup = set_up(&experiment, variant, &set)?;
    let config = Config { seed: experiment.seeds[0], ..setup.config };
    let len_bytes = config.sectors().saturating_mul(512);
    let (replay, hash, queue) = once(args, &config, trace, (len_bytes, QueueTrace::default()))?;
    let (_, again, ()) = once(args, &config, trace, (len_bytes, ()))?;
    if hash != again {
        return Err(Failure::failed(format!(
            "two replays differ ({hash:016x} and {again:016x}); please report this"
        )));
    }
    if let Some((output, in_use)) = args.place.output(args) {
        let export = format!("lab: {}, {}", experiment.name, variant.name);
        let began_unix_ns = trace.header.began_unix_ns;
        let header = Header { volume_bytes: len_bytes, sector_bytes: 512, export, began_unix_ns };
        let written = queue.write(output.create(&in_use)?, &header);
        written.map_err(|error| {
            Failure::failed(format!("{}: cannot write: {error}", output.path().display()))
        })?;
    }
    let place = format!(
        "the world of {}, variant {}, elevator {}; two replays were equal: {hash:016x}",
        experiment.name, variant.name, config.elevator
    );
    Ok((replay, place))
}

fn once<O: Observer>(
    args: &ReplayArgs,
    config: &Config,
    trace: &Trace,
    (len_bytes, observer): (u64, O),
) -> Result<(Replay, u64, O), Failure> {
    let mut replay = args.replay(trace, len_bytes, 512)?;
    let (outcome, observer) = world::run(config, &mut replay, observer).map_err(Failure::failed)?;
    Ok((replay, outcome.trace_hash, observer))
}

/// The trace of the bios that reached the queue.
#[derive(Debug, Default)]
struct QueueTrace {
    /// The first thread of the replay.
    first: Option<ThreadId>,
    open: BTreeMap<u64, TracedBio>,
    bios: Vec<TracedBio>,
    ended: Nanos,
}

impl Observer for QueueTrace {
    fn event(&mut self, at: Nanos, event: &Event) {
        match *event {
            Event::Spawn { thread, role: Role::Task } => {
                self.first.get_or_insert(thread);
            }
            Event::Submit { bio, thread, op, sector, sectors, sync, fua, preflush, priority } => {
                let first = self.first.map_or(0, |first| first.0);
                let traced = TracedBio {
                    start: at,
                    op,
                    fua,
                    preflush,
                    sync,
                    sector,
                    sectors,
                    submitter: thread.0.saturating_sub(first),
                    priority,
                    completion: None,
                };
                self.open.insert(bio, traced);
            }
            Event::End { bio, status } => {
                if let Some(traced) = self.open.remove(&bio) {
                    let latency = at.since(traced.start);
                    let completion = Some(Completion { latency, status });
                    self.bios.push(TracedBio { completion, ..traced });
                }
            }
            _ => {}
        }
        self.ended = self.ended.max(at);
    }
}

impl QueueTrace {
    fn write(&self, file: OutputFile, header: &Header) -> io::Result<()> {
        let mut writer = Writer::begin(BufWriter::new(file), header)?;
        self.bios.iter().chain(self.open.values()).try_for_each(|bio| writer.push(bio))?;
        writer.end(self.ended).map(|_| ())
    }
}
