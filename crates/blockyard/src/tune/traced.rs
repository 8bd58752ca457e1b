//! A trace as the workload of a search.
//!
//! Each measurement plays a part of it, the same one for all candidates of a round. For a latency,
//! a part is a *window* of time, played at the recorded times; else it is a number of bios, played
//! as fast as possible, wrapping around at the trace's end.

use std::sync::Arc;
use std::time::Duration;

use blockyard_engine::bio::Op;
use blockyard_engine::time::Nanos;
use blockyard_workload::replay::{Pace, Replay, SPEED_ONE, Target};
use blockyard_workload::trace::Trace;

use super::goal::{Goal, Run, cpu_seconds};
use super::{Measurement, TuneError};
use crate::bench::{self, Tally};
use crate::{Error, Volume};

/// Minimum of bios in a part, which is extended to it.
const BIOS_MIN: usize = 1000;
/// Limit of bios in a part: 100 MB of memory for each measurement.
const BIOS_MAX: usize = 1 << 20;

/// A trace, or its playable part.
#[derive(Clone, Debug)]
pub struct Traced {
    trace: Arc<Trace>,
    left_out: usize,
    /// Played at the recorded times.
    is_timed: bool,
    /// Bios beyond the volume's end wrap around to its start.
    wrap: bool,
    /// Length of a part that is played as fast as possible.
    bios: usize,
}

impl Traced {
    /// Plays a trace. Bios that change the volume are left out unless `may_write`. With `wrap`,
    /// bios beyond the end of the volume wrap around to its start.
    ///
    /// # Errors
    /// [`TuneError::NoBios`] if no bio is left.
    pub fn new(
        mut trace: Trace,
        goal: Goal,
        may_write: bool,
        wrap: bool,
    ) -> Result<Self, TuneError> {
        let all = trace.bios.len();
        if !may_write {
            trace.bios.retain(|bio| bio.op == Op::Read);
        }
        let left_out = all - trace.bios.len();
        if trace.bios.is_empty() {
            return Err(TuneError::NoBios { left_out });
        }
        let is_timed = matches!(goal, Goal::Latency | Goal::P99);
        Ok(Self { trace: Arc::new(trace), left_out, is_timed, wrap, bios: BIOS_MIN })
    }

    /// Number of bios that are left out because they change the volume.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Number of bios to play.
    #[must_use]
    pub fn bios(&self) -> usize {
        self.trace.bios.len()
    }

    /// Whether a bio changes the volume.
    pub(super) fn writes(&self) -> bool {
        self.trace.bios.iter().any(|bio| bio.op != Op::Read)
    }

    pub(super) fn check(&self, volume: &Volume) -> Result<(), String> {
        self.target(volume).check(&self.trace).map_err(|misfit| misfit.to_string())?;
        let discards = self.trace.bios.iter().any(|bio| bio.op == Op::Discard);
        if discards && !volume.can_discard() {
            return Err("the trace has discards, which the volume does not accept".into());
        }
        Ok(())
    }

    fn target(&self, volume: &Volume) -> Target {
        let len_bytes = volume.len();
        let sector_bytes = volume.sector_size();
        Target { len_bytes, sector_bytes, wrap: self.wrap }
    }

    /// Plays a round's part.
    pub(super) fn run(&self, volume: &Volume, slice: Nanos, round: usize) -> Result<Run, Error> {
        let pace = if self.is_timed {
            Pace::Timed { speed_permille: SPEED_ONE }
        } else {
            Pace::Fastest { depth: None }
        };
        let mut replay = Replay::new(&self.part(slice, round), pace, self.target(volume))
            .map_err(|misfit| Error::Workload(misfit.to_string()))?;
        let before = cpu_seconds();
        bench::run(volume, &mut replay, &Tally::default())?;
        match replay.errors() {
            0 => Ok(Run::of_replay(&replay, cpu_seconds() - before)),
            errors => Err(Error::Workload(format!("{errors} bios of the trace failed"))),
        }
    }

    fn part(&self, slice: Nanos, round: usize) -> Trace {
        if !self.is_timed {
            let first = round.wrapping_mul(self.bios) % self.trace.bios.len();
            return self.trace.part(first, self.bios);
        }
        let windows = self.trace.windows(slice);
        let window = &windows[round % windows.len()];
        self.trace.part(window.start, window.len())
    }

    /// Extends parts shorter than a slice, or the slice if its windows have few bios; false if they
    /// are long enough.
    pub(super) fn lengthen(&mut self, slice: &mut Nanos, slice_max: Nanos, run: &Run) -> bool {
        let is_enough = if self.is_timed {
            let windows = self.trace.windows(*slice);
            let bios: usize = windows.iter().map(ExactSizeIterator::len).sum();
            bios >= BIOS_MIN * windows.len() || *slice >= slice_max
        } else {
            run.seconds >= slice.0 as f64 / 1e9 || self.bios >= BIOS_MAX
        };
        match (is_enough, self.is_timed) {
            (true, _) => return false,
            (false, true) => *slice = Nanos(slice.0 * 2).min(slice_max),
            (false, false) => self.bios *= 2,
        }
        true
    }

    pub(super) fn measurement(&self, slice: Nanos) -> Measurement {
        if self.is_timed {
            let windows = self.trace.windows(slice).len();
            Measurement::Window { slice: Duration::from_nanos(slice.0), windows }
        } else {
            Measurement::Bios { bios: self.bios, all: self.trace.bios.len() }
        }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_workload::trace::iolog;

    use super::*;

    /// A read every millisecond, and a write after every tenth.
    fn log() -> Trace {
        let mut text = String::from("fio version 3 iolog\n0 f add\n");
        for at in 0..300 {
            text += &format!("{} f read {} 4096\n", at * 1000, at * 4096);
            if at % 10 == 0 {
                text += &format!("{} f write 0 4096\n", at * 1000 + 1);
            }
        }
        iolog::read(text.as_bytes()).unwrap()
    }

    fn volume(len_bytes: u64) -> (Volume, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(len_bytes).unwrap();
        let volume = Volume::options().raw().open(file.path()).unwrap();
        (volume, file)
    }

    #[test]
    fn only_reads_are_played_unless_it_may_write() {
        let log = log();
        let traced =
            |may_write, wrap| Traced::new(log.clone(), Goal::Throughput, may_write, wrap).unwrap();
        assert!(!traced(false, false).writes() && traced(true, false).writes());
        assert_eq!((traced(false, false).left_out(), traced(false, false).bios()), (30, 300));
        let (volume, _file) = volume(1 << 20);
        let said = traced(false, false).check(&volume).unwrap_err();
        assert!(said.contains("bio 257 (read of 4096 bytes at byte 1048576)"), "{said}");
        let traced = traced(true, true);
        traced.check(&volume).unwrap();
        let run = traced.run(&volume, Nanos::from_ms(1), 3).unwrap();
        assert_eq!((run.ios, run.bytes), (1000, 4_096_000), "longer than the trace");
    }

    #[test]
    fn parts_follow_each_other_and_become_long_enough() {
        let log = log();
        let mut fast = Traced::new(log.clone(), Goal::Cpu, true, true).unwrap();
        let first = |traced: &Traced, slice, round| traced.part(slice, round).bios[0].sector;
        let slice = Nanos::from_ms(50);
        assert_eq!([0, 1].map(|round| first(&fast, slice, round)), [0, 9 * 8]);
        let mut longer = slice;
        let run = |seconds| Run { seconds, ios: 5, ..Run::default() };
        assert!(fast.lengthen(&mut longer, slice, &run(0.04)) && fast.bios == 2000);
        assert!(!fast.lengthen(&mut longer, slice, &run(0.05)) && longer == slice);

        let mut timed = Traced::new(log, Goal::P99, false, true).unwrap();
        assert_eq!([0, 1, 6].map(|round| first(&timed, slice, round)), [0, 400, 0]);
        assert!(timed.lengthen(&mut longer, Nanos::from_ms(80), &run(1.0)));
        assert_eq!(longer, Nanos::from_ms(80));
        assert!(!timed.lengthen(&mut longer, Nanos::from_ms(80), &run(1.0)));
        let (volume, _file) = volume(1 << 20);
        let run = timed.run(&volume, slice, 0).unwrap();
        assert!(run.ios == 50 && run.seconds >= 0.049, "{run:?}");
    }
}
