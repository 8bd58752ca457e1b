//! `null`: a device without data, fast or with a fixed latency (`drivers/block/null_blk/`). Table:
//! `[<#options> <option>...]`, with the names of null_blk's parameters; the syntax is our own,
//! because null_blk is no target.
//!
//! | option | what it does | without it |
//! |---|---|---|
//! | `irqmode:none`, `softirq` (`0`, `1`) | ends at once: there are no interrupts here | at once |
//! | `irqmode:timer` (`2`) | ends after `completion_nsec` | |
//! | `completion_nsec:<n>` | with the timer | 10000 |
//! | `blocksize:<n>` | 512 to 4096 bytes | 512 |
//! | `memory_backed:<0\|1>` | keeps written data, as `ram` | writes are forgotten |
//! | `discard:<0\|1>` | accepts discards | refuses them |
//! | `badblocks:<first>-<last>` | these sectors fail | none do |
//! | `stale_reads:<0\|1>` | ours: reads leave the buffer as it was, as null_blk's do | zeros |
//!
//! ```text
//! map ─ memory or zeros? ──yes──> Transfer ─ timer? ──yes──> Timer ─> end
//!          └─no─> timer? ...                  └─no─> end
//! ```
//! A timer stands for a device with endless queues: each bio takes the same time, however many
//! there are. Parameters of null_blk's queues (`submit_queues`, `hw_queue_depth`, ...) are refused,
//! because a target has no queues.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::fmt;
use core::ops::RangeInclusive;

use super::registry::{Arguments, Keys, LineRange, Needs, Opened, TargetType};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::words::{announced, number, sector_size, shown, write_announced};
use super::{Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, SECTOR_SHIFT, Sector};
use crate::slab::Slab;
use crate::sq::{DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// null_blk's default.
const COMPLETION: Nanos = Nanos(10_000);

/// The target's type.
pub static NULL: TargetType = TargetType {
    name: "null",
    arguments: "[<#options> <option>...]",
    parse: |args, line| Ok(Arc::new(parse(args, line)?)),
};

/// Options of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullOptions {
    /// Latency of each bio, with a timer.
    pub timer: Option<Nanos>,
    /// Alignment of bios.
    pub block_size_bytes: u32,
    /// Whether written data can be read back.
    pub memory_backed: bool,
    /// Whether discards are accepted.
    pub discard: bool,
    /// Sectors that fail.
    pub bad: Option<RangeInclusive<u64>>,
    /// Whether reads without memory leave the buffer unchanged.
    pub stale_reads: bool,
}

impl Arguments for NullOptions {
    fn write(&self, _: Keys, out: &mut dyn fmt::Write) -> fmt::Result {
        write_announced(&self.words(), out)
    }

    fn needs(&self, len: Sector) -> Needs<'_> {
        Needs { memory: self.memory_backed.then_some(len), ..Needs::default() }
    }

    fn open(&self, opened: Opened) -> Result<Arc<dyn TargetSpec>, String> {
        Ok(Arc::new(NullSpec { options: self.clone(), memory: opened.memory }))
    }
}

impl NullOptions {
    /// The options that differ from the default.
    fn words(&self) -> Vec<String> {
        let mut words = vec![];
        if let Some(completion) = self.timer {
            words.push("irqmode:timer".into());
            words.push(format!("completion_nsec:{}", completion.0));
        }
        if self.block_size_bytes != 512 {
            words.push(format!("blocksize:{}", self.block_size_bytes));
        }
        let flags = [(self.memory_backed, "memory_backed:1"), (self.discard, "discard:1")];
        words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word.into()));
        if let Some(bad) = &self.bad {
            words.push(format!("badblocks:{}-{}", bad.start(), bad.end()));
        }
        if self.stale_reads {
            words.push("stale_reads:1".into());
        }
        words
    }
}

/// A line with its memory.
#[derive(Clone, Debug)]
pub struct NullSpec {
    /// Options of the line.
    pub options: NullOptions,
    /// With `memory_backed`, memory of the line's length.
    pub memory: Option<DevId>,
}

impl TargetSpec for NullSpec {
    fn facts(&self) -> TargetFacts {
        TargetFacts {
            waits: self.options.timer.is_some(),
            refuses_discards: !self.options.discard,
            sector_size_bytes: self.options.block_size_bytes,
            ..TargetFacts::new(Flushes::To(vec![]))
        }
    }

    fn build(&self, number: u16, _: Reserve) -> Box<dyn Target> {
        Box::new(Null::new(self.options.clone(), self.memory, number))
    }
}

/// Phase of an accepted part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Reading or writing memory, or filling the buffer with zeroes.
    Transfer,
    /// Waiting for the timer.
    Timer,
}

/// One part in flight.
#[derive(Debug)]
struct NullIo {
    part: Part,
    phase: Phase,
}

/// The null target.
#[derive(Debug)]
pub struct Null {
    options: NullOptions,
    /// Memory, with `memory_backed`.
    memory: Option<DevId>,
    /// Its number in the table.
    number: u16,
    ios: Slab<NullIo>,
}

impl Null {
    /// Creates the target of a line; `memory` is required with `memory_backed`.
    #[must_use]
    pub fn new(options: NullOptions, memory: Option<DevId>, number: u16) -> Self {
        assert_eq!(options.memory_backed, memory.is_some());
        Self { options, memory, number, ios: Slab::default() }
    }

    /// The transfer of the part's bytes, if there is one.
    fn transfer(&self, part: &Part) -> Option<SqeOp> {
        match (self.memory, part.op) {
            (Some(dev), _) => Some(part.at(dev, part.sector)),
            (None, Op::Read) if !self.options.stale_reads => {
                Some(SqeOp::Fill { buf: part.buf, byte: 0 })
            }
            (None, _) => None,
        }
    }

    /// Status of a refused part.
    fn refusal(&self, part: &Part) -> Option<BlkStatus> {
        let block = u64::from(self.options.block_size_bytes >> SECTOR_SHIFT);
        if !(part.sector.0 | part.len.0).is_multiple_of(block) {
            return Some(BlkStatus::Invalid);
        }
        if part.op == Op::Discard && !self.options.discard {
            return Some(BlkStatus::NotSupported);
        }
        let bad = self.options.bad.as_ref()?;
        let end = part.sector + part.len;
        (*bad.start() < end.0 && part.sector.0 <= *bad.end()).then_some(BlkStatus::IoError)
    }

    fn push(&mut self, index: u32, op: SqeOp, cx: &mut TargetCx<'_>) {
        let origin = self.ios.get(index).part.origin;
        let token = Token { owner: Owner::Target(self.number), index };
        cx.push(Sqe { token, op, linked: false, origin });
    }
}

impl Target for Null {
    fn map(&mut self, part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        if let Some(status) = self.refusal(&part) {
            return Mapped::Ended(status);
        }
        let (phase, op) = match (self.transfer(&part), self.options.timer) {
            (Some(op), _) => (Phase::Transfer, op),
            (None, Some(after)) => (Phase::Timer, SqeOp::Timeout { after }),
            (None, None) => return Mapped::Ended(BlkStatus::Ok),
        };
        let index = self.ios.insert(NullIo { part, phase });
        self.push(index, op, cx);
        Mapped::Submitted
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let io = self.ios.at(index);
        match self.options.timer {
            Some(after) if io.phase == Phase::Transfer && status == BlkStatus::Ok => {
                io.phase = Phase::Timer;
                self.push(index, SqeOp::Timeout { after }, cx);
            }
            _ => {
                let part = self.ios.remove(index).part;
                cx.end(part.index, status);
            }
        }
    }

    fn max_io(&self, _: Op, _: Sector) -> Sector {
        Sector(u64::MAX)
    }

    fn is_idle(&self) -> bool {
        self.ios.is_empty()
    }
}

/// Parses the arguments of a line.
fn parse(args: &[&str], LineRange { start, len }: LineRange) -> Result<NullOptions, String> {
    let words = announced(args, "options")?;
    let mut options = NullOptions {
        timer: None,
        block_size_bytes: 512,
        memory_backed: false,
        discard: false,
        bad: None,
        stale_reads: false,
    };
    let mut has_timer = false;
    let mut completion = COMPLETION;
    for word in words {
        let Some((name, value)) = word.split_once(':') else {
            return Err(format!("option `{}` is not `name:value`", shown(word)));
        };
        match name {
            "irqmode" => has_timer = parse_irqmode(value)?,
            "completion_nsec" => completion = Nanos(number(value, name)?),
            "blocksize" => options.block_size_bytes = sector_size(value, name)?,
            "memory_backed" => options.memory_backed = parse_switch(name, value)?,
            "discard" => options.discard = parse_switch(name, value)?,
            "badblocks" => options.bad = Some(parse_range(value)?),
            "stale_reads" => options.stale_reads = parse_switch(name, value)?,
            other => return Err(unknown(other)),
        }
    }
    options.timer = has_timer.then_some(completion);
    let block = u64::from(options.block_size_bytes >> SECTOR_SHIFT);
    if !(start | len).is_multiple_of(block) {
        return Err(format!(
            "start {start} and length {len} are not multiples of the block size ({block} sectors)"
        ));
    }
    Ok(options)
}

fn parse_irqmode(value: &str) -> Result<bool, String> {
    match value {
        "none" | "0" | "softirq" | "1" => Ok(false),
        "timer" | "2" => Ok(true),
        other => {
            Err(format!("irqmode `{}` is none of none, softirq and timer (0-2)", shown(other)))
        }
    }
}

fn parse_switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(format!("option {name} is `{}`; it must be 0 or 1", shown(other))),
    }
}

fn parse_range(value: &str) -> Result<RangeInclusive<u64>, String> {
    let (first, last) = value.split_once('-').ok_or("badblocks takes `<first>-<last>` sector")?;
    let first = number(first, "first bad sector")?;
    let last = number(last, "last bad sector")?;
    if first > last {
        return Err(format!("bad sectors {first}-{last} end before they start"));
    }
    Ok(first..=last)
}

fn unknown(name: &str) -> String {
    match name {
        "queue_mode" | "submit_queues" | "poll_queues" | "hw_queue_depth" | "use_per_node_hctx"
        | "no_sched" | "shared_tags" | "home_node" | "blocking" | "mbps" => {
            format!("option `{name}` belongs to null_blk's request queue, which a target lacks")
        }
        other => format!(
            "option `{}` is unknown; there are irqmode, completion_nsec, blocksize, \
             memory_backed, discard, badblocks and stale_reads",
            shown(other)
        ),
    }
}

#[cfg(test)]
mod tests;
