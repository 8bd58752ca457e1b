//! `blockyard replay`: plays a trace on a volume, a file, memory, a null device, or in the lab.

#[cfg(feature = "lab")]
mod lab;

use blockyard::Volume;
use blockyard::bench::replay_report::{self, ReplayReport};
use blockyard::bench::{self, Tally};
use blockyard_engine::bio::Op;
use blockyard_host::volume::VolumeOptions;
use blockyard_workload::replay::{Pace, Replay, SPEED_ONE, Target};
use blockyard_workload::trace::Trace;
use clap::Args;

use crate::args::{HelpArgs, SchedulingArgs, VolumeArgs};
use crate::failure::Failure;
use crate::json::pretty;
use crate::output::print;
use crate::traces::InputArgs;

/// Play a trace on a volume or in the lab, and measure it
///
/// Each submitter of the trace is a task, with its priority. Bios start at their recorded times,
/// unless --speed or --fast is given. In the lab, the simulated machine is an experiment's.
// 14 fields: one for each option of the command, and groups of shared options.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    input: InputArgs,

    #[command(flatten)]
    volume: VolumeArgs,

    /// Play on the file or block device itself, without encryption
    #[arg(long, conflicts_with_all = ["table", "kind", "header", "key_slot", "key_file", "key_fd",
                                      "key_command", "key_credential", "token_only", "token_id",
                                      "token_type", "cipher", "key_size", "hash"])]
    raw: bool,

    /// Play on a device that ends every bio at once
    #[arg(long, conflicts_with_all = ["volume", "table", "raw"])]
    null: bool,

    #[cfg(feature = "lab")]
    #[command(flatten)]
    place: lab::PlaceArgs,

    /// Permit overwriting the data on the volume
    #[arg(long)]
    destroy: bool,

    /// Play this many times as fast: 2, 0.5
    #[arg(long, value_name = "FACTOR", value_parser = parse_speed, conflicts_with = "fast")]
    speed: Option<u32>,

    /// Play as fast as possible: bios wait only for the limit of bios in flight
    #[arg(long)]
    fast: bool,

    /// Limit of bios in flight for each submitter with --fast; the default is the recorded depth
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536),
          requires = "fast", conflicts_with = "speed")]
    depth: Option<u32>,

    /// Wrap bios beyond the end of the target around to its start
    #[arg(long)]
    wrap: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    scheduling: SchedulingArgs,

    #[cfg(feature = "lab")]
    #[command(flatten)]
    force: crate::args::ForceArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Plays the trace.
pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    #[cfg(feature = "lab")]
    args.place.check(args)?;
    let trace = args.input.read()?;
    if trace.bios.is_empty() {
        return Err(Failure::failed(format!(
            "{}: the trace has no bios",
            args.input.trace.display()
        )));
    }
    let (replay, place) = args.play(&trace)?;
    let lines = if args.json {
        pretty(&ReplayReport::new(&trace, &replay, &place))
    } else {
        replay_report::lines(&trace, &replay, &place)
    };
    print(&lines)?;
    if !replay.is_complete() {
        return Err(Failure::failed("some submitted bios have not ended; please report this"));
    }
    replay_report::failed(&replay).map_or(Ok(()), |failed| Err(Failure::failed(failed)))
}

impl ReplayArgs {
    fn pace(&self) -> Pace {
        if self.fast {
            Pace::Fastest { depth: self.depth }
        } else {
            Pace::Timed { speed_permille: self.speed.unwrap_or(SPEED_ONE) }
        }
    }

    /// The trace as a program for a target.
    fn replay(&self, trace: &Trace, len_bytes: u64, sector_bytes: u32) -> Result<Replay, Failure> {
        let target = Target { len_bytes, sector_bytes, wrap: self.wrap };
        Replay::new(trace, self.pace(), target)
            .map_err(|misfit| Failure::failed(format!("{}: {misfit}", self.input.trace.display())))
    }

    /// Plays the trace in the lab or on this machine; returns the place too.
    fn play(&self, trace: &Trace) -> Result<(Replay, String), Failure> {
        #[cfg(feature = "lab")]
        if let Some(experiment) = &self.place.world.lab {
            return lab::play(self, experiment, trace);
        }
        let changes = |op| matches!(op, Op::Write | Op::Discard | Op::WriteZeroes);
        let writes = trace.bios.iter().any(|bio| changes(bio.op));
        if writes && !self.destroy && !self.null {
            return Err(Failure::busy(
                "the trace writes, and would overwrite what is on the volume with noise; say \
                 --destroy if nothing on it is needed any more",
            ));
        }
        let volume = self.open(trace, writes)?;
        let discards = trace.bios.iter().any(|bio| bio.op == Op::Discard);
        if discards && !volume.can_discard() {
            return Err(Failure::failed(
                "the trace has discards, which the volume does not accept: open a LUKS2 volume \
                 that allows them, or play on a file with --raw",
            ));
        }
        let mut replay = self.replay(trace, volume.len(), volume.sector_size())?;
        let place = volume.describe();
        bench::run(&volume, &mut replay, &Tally::default())?;
        Ok((replay, place))
    }

    fn open(&self, trace: &Trace, writes: bool) -> Result<Volume, Failure> {
        let options = VolumeOptions {
            read_only: !writes,
            direct: self.volume.direct,
            scheduling: self.scheduling.scheduling(),
            pipeline: self.scheduling.pipeline(),
            bounce: self.scheduling.bounce(),
            ..VolumeOptions::default()
        };
        if self.null {
            let end = trace.bios.iter().map(|bio| bio.end_sector()).max().unwrap_or(0);
            let sectors = end.max(trace.header.volume_bytes / 512).max(1);
            let options = VolumeOptions { read_only: false, ..options };
            return Ok(bench::null(sectors, &options)?);
        }
        self.volume.spec()?.open(options, self.raw)
    }
}

/// Parses a speed in thousandths.
fn parse_speed(text: &str) -> Result<u32, String> {
    let refuse = || format!("{text:?} is no speed: give 0.001 to 1000, for example 2 or 0.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 3 || !part.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(refuse());
    }
    let whole: u32 = whole.parse().map_err(|_| refuse())?;
    let part: u32 = format!("{part:0<3}").parse().map_err(|_| refuse())?;
    let speed = whole.checked_mul(SPEED_ONE).and_then(|whole| whole.checked_add(part));
    speed.filter(|speed| (1..=1000 * SPEED_ONE).contains(speed)).ok_or_else(refuse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_in_thousandths() {
        assert_eq!(parse_speed("2"), Ok(2000));
        assert_eq!(parse_speed("0.5"), Ok(500));
        assert_eq!(parse_speed("1000"), Ok(1_000_000));
        for text in ["", "0", "0.0001", "1001", "-1", "1,5", "x", "99999999999"] {
            assert!(parse_speed(text).is_err(), "{text}");
        }
    }
}
