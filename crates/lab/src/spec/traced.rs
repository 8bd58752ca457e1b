//! A trace as a job: `program = "trace"`.
//!
//! Bios go to the device itself and bypass the world's file system; the seed has no effect. The
//! path of the trace is relative to the experiment file. A trace is read once for all worlds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use blockyard::text::printable;
use blockyard::traces;
use blockyard_sim::world::Config;
use blockyard_workload::replay::{Pace, Replay, SPEED_ONE, Target, op_name};
use blockyard_workload::trace::Trace;
use blockyard_workload::trace::blktrace::Action;

use super::section::{Section, mistake, text_of};
use super::tree::{Node, Origin};
use crate::Error;

/// Row of all bios.
pub(crate) const TRACE_ROW: &str = "trace";

/// Cache of traces; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    traces: BTreeMap<PathBuf, Arc<Trace>>,
    /// Warnings about cut-off traces.
    warnings: Vec<String>,
}

impl Traces {
    /// Returns the warnings of the traces that were read since the last call.
    pub(super) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).warnings)
    }

    /// Adds a trace that is in memory, under a name that jobs use as its path.
    pub(crate) fn add(&self, name: &str, trace: Trace) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.traces.insert(PathBuf::from(name), Arc::new(trace));
    }

    fn read(&self, path: &Path) -> Result<Arc<Trace>, String> {
        // Held during the read, so that no other thread reads the file too.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trace) = known.traces.get(path) {
            return Ok(Arc::clone(trace));
        }
        let read = traces::read(path, Action::default());
        let (trace, warnings) = read.map_err(|error| printable(&error.to_string()))?;
        if trace.bios.is_empty() {
            return Err(format!("{}: has no bios", path.display()));
        }
        let trace = Arc::new(trace);
        known.warnings.extend(warnings);
        known.traces.insert(path.to_owned(), Arc::clone(&trace));
        Ok(trace)
    }
}

/// A trace and its replay options.
#[derive(Clone, Debug)]
pub struct TraceJob {
    /// Trace.
    pub trace: Arc<Trace>,
    /// Submission times of its bios.
    pub pace: Pace,
    /// Device.
    pub target: Target,
}

/// Keys of a trace job.
pub(super) struct TraceKeys<'a> {
    file: &'a Node,
    path: String,
    pace: Pace,
    wrap: bool,
}

impl<'a> TraceKeys<'a> {
    pub(super) fn read(section: &mut Section<'a>) -> Result<Self, Error> {
        let path = section.path("file");
        let file = section.node("file");
        let is_fast = section.flag("fast", false)?;
        let depth = section.maybe_number("depth", 1..=65_536u32)?;
        let speed = section.maybe_number("speed_percent", 1..=100_000u32)?;
        let wrap = section.flag("wrap", false)?;
        if depth.is_some() && !is_fast {
            return Err(section.wrong_key("depth", "needs fast = true"));
        }
        if speed.is_some() && is_fast {
            return Err(section.wrong_key("speed_percent", "excludes fast = true"));
        }
        let pace = if is_fast {
            Pace::Fastest { depth }
        } else {
            Pace::Timed { speed_permille: speed.map_or(SPEED_ONE, |percent| percent * 10) }
        };
        let file = file.ok_or_else(|| section.wrong_key("file", "takes the path of a trace"))?;
        Ok(Self { file, path, pace, wrap })
    }

    pub(super) fn load(&self, traces: &Traces, config: &Config) -> Result<TraceJob, Error> {
        let name = text_of(self.file, &self.path)?;
        let beside = match &self.file.origin {
            Origin::Line { file, .. } => Path::new(&**file).parent().unwrap_or(Path::new("")),
            Origin::Set(_) => Path::new(""),
        };
        let trace = traces
            .read(&beside.join(name))
            .map_err(|problem| mistake(self.file, &self.path, &problem))?;
        Ok(TraceJob::new(trace, self.pace, config, self.wrap))
    }
}

impl TraceJob {
    /// A trace on the whole device of a world. With `wrap`, bios past its end wrap around to its
    /// start.
    #[must_use]
    pub fn new(trace: Arc<Trace>, pace: Pace, config: &Config, wrap: bool) -> Self {
        let len_bytes = config.sectors().saturating_mul(512);
        Self { trace, pace, target: Target { len_bytes, sector_bytes: 512, wrap } }
    }

    /// The trace as a program.
    pub(crate) fn program(&self) -> Result<Replay, Error> {
        Replay::new(&self.trace, self.pace, self.target)
            .map_err(|misfit| Error::new(misfit.to_string()))
    }

    /// Minimum length of the device.
    pub(super) fn end_bytes(&self) -> u64 {
        self.program().map_or(0, |program| program.end_bytes())
    }

    /// The names of its operations, without duplicates.
    pub(super) fn ops(&self) -> Vec<&'static str> {
        let mut ops: Vec<&'static str> = Vec::new();
        for bio in &self.trace.bios {
            if !ops.contains(&op_name(bio.op)) {
                ops.push(op_name(bio.op));
            }
        }
        ops.sort_unstable();
        ops
    }
}
