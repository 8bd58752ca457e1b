//! A trace as what a volume is tuned for.
//!
//! Each measurement plays a part of it, and in a round every candidate has the same one. For a
//! latency a part is a *window* of so much time, and its bios come when they came; else it is so
//! many bios, as fast as possible, and after the last one the trace begins again.

use std::path::Path;
use std::sync::Arc;

use blockyard::Volume;
use blockyard::bench::{self, Tally};
use blockyard_engine::bio::Op;
use blockyard_engine::time::Nanos;
use blockyard_workload::replay::{Pace, Replay, SPEED_ONE, Target};
use blockyard_workload::trace::Trace;
use blockyard_workload::trace::blktrace::Action;

use super::goal::{Goal, Run, cpu_seconds};
use crate::failure::Failure;
use crate::output::say;
use crate::traces;

/// A part has so many at least; it becomes longer.
const BIOS_MIN: usize = 1000;
/// But no longer than this: 100 MB of memory for each measurement.
const BIOS_MAX: usize = 1 << 20;

/// A trace, or as much of it as may be played.
#[derive(Clone, Debug)]
pub(crate) struct Traced {
    trace: Arc<Trace>,
    /// In the trace's own time.
    is_timed: bool,
    /// What lies behind the end of the volume begins again at its start.
    wrap: bool,
    /// Of a part that is played as fast as possible.
    bios: usize,
}

impl Traced {
    /// Reads a trace. What changes the volume is left out, with a note, unless it may.
    pub(crate) fn read(
        path: &Path,
        goal: Goal,
        (may_write, wrap): (bool, bool),
    ) -> Result<Self, Failure> {
        let mut trace = traces::read(path, Action::default())?;
        let all = trace.bios.len();
        if !may_write {
            trace.bios.retain(|bio| bio.op == Op::Read);
        }
        let (place, left_out) = (path.display(), all - trace.bios.len());
        if trace.bios.is_empty() {
            let what = if left_out > 0 { "reads" } else { "bios" };
            let remedy = match left_out {
                0 => "",
                _ => "; say --destroy if what is on the volume may be overwritten",
            };
            return Err(Failure::failed(format!("{place}: has no {what}{remedy}")));
        }
        if left_out > 0 {
            say(&format!(
                "note: {left_out} of the {all} bios of {place} do not read and are left out; \
                 --destroy plays them too"
            ));
        }
        let is_timed = matches!(goal, Goal::Latency | Goal::P99);
        Ok(Self { trace: Arc::new(trace), is_timed, wrap, bios: BIOS_MIN })
    }

    /// Whether something of it changes what is on the volume.
    pub(crate) fn writes(&self) -> bool {
        self.trace.bios.iter().any(|bio| bio.op != Op::Read)
    }

    /// Whether it can be played on a volume; why not, if not.
    pub(crate) fn check(&self, volume: &Volume) -> Result<(), String> {
        self.target(volume).check(&self.trace).map_err(|misfit| misfit.to_string())?;
        let discards = self.trace.bios.iter().any(|bio| bio.op == Op::Discard);
        if discards && !volume.can_discard() {
            return Err("the trace has discards, and the volume takes none".into());
        }
        Ok(())
    }

    fn target(&self, volume: &Volume) -> Target {
        let (len_bytes, sector_bytes) = (volume.len(), volume.sector_size());
        Target { len_bytes, sector_bytes, wrap: self.wrap }
    }

    /// Plays the part of a round.
    pub(crate) fn run(&self, volume: &Volume, slice: Nanos, round: usize) -> Result<Run, Failure> {
        let pace = match self.is_timed {
            true => Pace::Timed { speed_permille: SPEED_ONE },
            false => Pace::Fastest { depth: None },
        };
        let mut replay = Replay::new(&self.part(slice, round), pace, self.target(volume))
            .map_err(|misfit| Failure::failed(misfit.to_string()))?;
        let before = cpu_seconds();
        bench::run(volume, &mut replay, &Tally::default())?;
        match replay.errors() {
            0 => Ok(Run::of_replay(&replay, cpu_seconds() - before)),
            errors => Err(Failure::failed(format!("{errors} bios of the trace failed"))),
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

    /// Makes parts longer if one was shorter than a slice, or the slice if windows of its length
    /// have few bios; false if they are long enough.
    pub(crate) fn lengthen(&mut self, slice: &mut Nanos, slice_max: Nanos, run: &Run) -> bool {
        let is_enough = match self.is_timed {
            false => run.seconds >= slice.0 as f64 / 1e9 || self.bios >= BIOS_MAX,
            true => {
                let windows = self.trace.windows(*slice);
                let bios: usize = windows.iter().map(ExactSizeIterator::len).sum();
                bios >= BIOS_MIN * windows.len() || *slice >= slice_max
            }
        };
        match (is_enough, self.is_timed) {
            (true, _) => return false,
            (false, true) => *slice = Nanos(slice.0 * 2).min(slice_max),
            (false, false) => self.bios *= 2,
        }
        true
    }

    /// What each measurement is.
    pub(crate) fn measurement(&self, slice: Nanos) -> String {
        match self.is_timed {
            true => {
                let windows = self.trace.windows(slice).len();
                format!("{} ms of the trace, of {windows} such windows", slice.0 / 1_000_000)
            }
            false => {
                let (all, bios) = (self.trace.bios.len(), self.bios);
                let again = if bios > all { ", again and again" } else { "" };
                format!("{bios} bios of the trace's {all}{again}, as fast as possible")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A read every millisecond, and a write behind every tenth.
    fn log() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut text = String::from("fio version 3 iolog\n0 f add\n");
        for at in 0..300 {
            text += &format!("{} f read {} 4096\n", at * 1000, at * 4096);
            if at % 10 == 0 {
                text += &format!("{} f write 0 4096\n", at * 1000 + 1);
            }
        }
        file.write_all(text.as_bytes()).unwrap();
        file
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
        let traced = |may_write, wrap| {
            Traced::read(log.path(), Goal::Throughput, (may_write, wrap)).unwrap()
        };
        assert!(!traced(false, false).writes() && traced(true, false).writes());
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
        let mut fast = Traced::read(log.path(), Goal::Cpu, (true, true)).unwrap();
        let first = |traced: &Traced, slice, round| traced.part(slice, round).bios[0].sector;
        let slice = Nanos::from_ms(50);
        assert_eq!([0, 1].map(|round| first(&fast, slice, round)), [0, 9 * 8]);
        let mut longer = slice;
        let run = |seconds| Run { seconds, ios: 5, ..Run::default() };
        assert!(fast.lengthen(&mut longer, slice, &run(0.04)) && fast.bios == 2000);
        assert!(!fast.lengthen(&mut longer, slice, &run(0.05)) && longer == slice);

        let mut timed = Traced::read(log.path(), Goal::P99, (false, true)).unwrap();
        assert_eq!([0, 1, 6].map(|round| first(&timed, slice, round)), [0, 400, 0]);
        assert!(timed.lengthen(&mut longer, Nanos::from_ms(80), &run(1.0)));
        assert_eq!(longer, Nanos::from_ms(80));
        assert!(!timed.lengthen(&mut longer, Nanos::from_ms(80), &run(1.0)));
        let (volume, _file) = volume(1 << 20);
        let run = timed.run(&volume, slice, 0).unwrap();
        assert!(run.ios == 50 && run.seconds >= 0.049, "{run:?}");
    }
}
