//! A trace as a job: `program = "trace"`.
//!
//! Bios go to the device itself, whatever file system the world has; the seed plays no part. A file
//! is looked for beside the experiment's and read once, however many worlds play it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use blockyard_sim::world::Config;
use blockyard_workload::replay::{Pace, Replay, SPEED_ONE, Target, op_name};
use blockyard_workload::trace::Trace;
use blockyard_workload::trace::blktrace::Action;

use super::section::{Section, mistake, text_of};
use super::tree::{Node, Origin};
use crate::failure::Failure;
use crate::traces;

/// The row of all bios together.
pub(crate) const TRACE_ROW: &str = "trace";

/// Traces that have been read.
#[derive(Debug, Default)]
pub(crate) struct Traces(Mutex<BTreeMap<PathBuf, Arc<Trace>>>);

impl Traces {
    fn read(&self, path: &Path) -> Result<Arc<Trace>, Failure> {
        // Held while the file is read: others would only read it too.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(trace) = known.get(path) {
            return Ok(Arc::clone(trace));
        }
        let trace = Arc::new(traces::read(path, Action::default())?);
        if trace.bios.is_empty() {
            return Err(Failure::failed(format!("{}: has no bios", path.display())));
        }
        known.insert(path.to_owned(), Arc::clone(&trace));
        Ok(trace)
    }
}

/// A trace, and how it is played.
#[derive(Clone, Debug)]
pub(crate) struct TraceJob {
    pub(crate) trace: Arc<Trace>,
    pub(crate) pace: Pace,
    pub(crate) target: Target,
}

/// What a job says of it.
pub(super) struct TraceKeys<'a> {
    file: &'a Node,
    path: String,
    pace: Pace,
    wrap: bool,
}

impl<'a> TraceKeys<'a> {
    pub(super) fn read(section: &mut Section<'a>) -> Result<Self, Failure> {
        let path = section.path("file");
        let file = section.node("file");
        let is_fast = section.flag("fast", false)?;
        let depth = section.maybe_number("depth", 1..=65_536u32)?;
        let speed = section.maybe_number("speed_percent", 1..=100_000u32)?;
        let wrap = section.flag("wrap", false)?;
        if depth.is_some() && !is_fast {
            return Err(section.wrong_key("depth", "goes with fast = true only"));
        }
        if speed.is_some() && is_fast {
            return Err(section.wrong_key("speed_percent", "goes without fast = true only"));
        }
        let pace = match is_fast {
            true => Pace::Fastest { depth },
            false => {
                Pace::Timed { speed_permille: speed.map_or(SPEED_ONE, |percent| percent * 10) }
            }
        };
        let file = file.ok_or_else(|| section.wrong_key("file", "takes the path of a trace"))?;
        Ok(Self { file, path, pace, wrap })
    }

    pub(super) fn load(&self, traces: &Traces, config: &Config) -> Result<TraceJob, Failure> {
        let name = text_of(self.file, &self.path)?;
        let beside = match &self.file.origin {
            Origin::Line { file, .. } => Path::new(&**file).parent().unwrap_or(Path::new("")),
            Origin::Set(_) => Path::new(""),
        };
        let trace = traces
            .read(&beside.join(name))
            .map_err(|failure| mistake(self.file, &self.path, &failure.message))?;
        Ok(TraceJob { trace, pace: self.pace, target: target(config, self.wrap) })
    }
}

/// The whole device.
pub(crate) fn target(config: &Config, wrap: bool) -> Target {
    let len_bytes = config.device.sectors().saturating_mul(512);
    Target { len_bytes, sector_bytes: 512, wrap }
}

impl TraceJob {
    /// The trace as a program.
    pub(crate) fn program(&self) -> Result<Replay, Failure> {
        Replay::new(&self.trace, self.pace, self.target)
            .map_err(|misfit| Failure::failed(misfit.to_string()))
    }

    /// How long the device must be at least.
    pub(super) fn end_bytes(&self) -> u64 {
        self.program().map_or(0, |program| program.end_bytes())
    }

    /// The names of its operations, each once.
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
