//! `null`: a device that does nothing, quickly or after a while (`drivers/block/null_blk/`). Table:
//! `[<#options> <option>...]`, with the names of null_blk's parameters; the syntax is ours, because
//! null_blk is no target.
//!
//! | option | what it does | without it |
//! |---|---|---|
//! | `irqmode:none`, `softirq` (`0`, `1`) | ends at once: there are no interrupts here | at once |
//! | `irqmode:timer` (`2`) | ends after `completion_nsec` | |
//! | `completion_nsec:<n>` | with the timer | 10000 |
//! | `blocksize:<n>` | 512 to 4096 bytes | 512 |
//! | `memory_backed:<0\|1>` | keeps what is written, as `ram` | writes are forgotten |
//! | `discard:<0\|1>` | takes discards | refuses them |
//! | `badblocks:<first>-<last>` | these sectors fail | none do |
//! | `stale_reads:<0\|1>` | ours: reads leave the buffer as it was, as null_blk's do | zeros |
//!
//! ```text
//! map ─ memory or zeros? ──yes──> Transfer ─ timer? ──yes──> Timer ─> end
//!          └─no─> timer? ...                  └─no─> end
//! ```
//! A timer stands for a device with endless queues: each bio waits its time, however many there
//! are. Parameters of null_blk's queues (`submit_queues`, `hw_queue_depth`, ...) are refused: a
//! target has none.

use alloc::format;
use alloc::string::String;
use core::ops::RangeInclusive;

use super::line::{LineTarget, number, shown};
use super::{Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, SECTOR_SHIFT, Sector};
use crate::slab::Slab;
use crate::sq::{DevId, Owner, Sqe, SqeOp, Token};
use crate::time::Nanos;

/// From null_blk.
const COMPLETION: Nanos = Nanos(10_000);

/// What one line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullOptions {
    /// With a timer: how long each bio takes.
    pub timer: Option<Nanos>,
    /// What bios are aligned to.
    pub block_size_bytes: u32,
    /// What is written can be read.
    pub memory_backed: bool,
    /// Discards are taken.
    pub discard: bool,
    /// These sectors fail.
    pub bad: Option<RangeInclusive<u64>>,
    /// Reads without memory leave the buffer as it was.
    pub stale_reads: bool,
}

/// The part has been given what it asked for; what is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Memory is read or written, or zeros are.
    Transfer,
    /// Time passes.
    Timer,
}

/// One part in flight.
#[derive(Debug)]
struct NullIo {
    part: Part,
    phase: Phase,
}

/// The target.
#[derive(Debug)]
pub struct Null {
    options: NullOptions,
    /// The memory behind it.
    memory: Option<DevId>,
    /// Its number in the table.
    number: u16,
    ios: Slab<NullIo>,
}

impl Null {
    /// A target of this line. With `memory_backed` there is a memory.
    #[must_use]
    pub fn new(options: NullOptions, memory: Option<DevId>, number: u16) -> Self {
        assert_eq!(options.memory_backed, memory.is_some());
        Self { options, memory, number, ios: Slab::default() }
    }

    /// What bytes the part moves, or frees.
    fn transfer(&self, part: &Part) -> Option<SqeOp> {
        match (self.memory, part.op) {
            (Some(dev), _) => Some(part.at(dev, part.sector)),
            (None, Op::Read) if !self.options.stale_reads => {
                Some(SqeOp::Fill { buf: part.buf, byte: 0 })
            }
            (None, _) => None,
        }
    }

    /// Why the part fails.
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
pub(super) fn parse(args: &[&str], start: u64, len: u64) -> Result<LineTarget, String> {
    let words = match args {
        [count, words @ ..] if number(count, "number of options")? == words.len() as u64 => words,
        [count, words @ ..] => {
            return Err(format!("it announces {count} options, but has {}", words.len()));
        }
        [] => &[],
    };
    let mut options = NullOptions {
        timer: None,
        block_size_bytes: 512,
        memory_backed: false,
        discard: false,
        bad: None,
        stale_reads: false,
    };
    let (mut has_timer, mut completion) = (false, COMPLETION);
    for word in words {
        let Some((name, value)) = word.split_once(':') else {
            return Err(format!("option `{}` is not `name:value`", shown(word)));
        };
        match name {
            "irqmode" => has_timer = parse_irqmode(value)?,
            "completion_nsec" => completion = Nanos(number(value, name)?),
            "blocksize" => options.block_size_bytes = super::line::sector_size(value, name)?,
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
    Ok(LineTarget::Null(options))
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
    let (first, last) = (number(first, "first bad sector")?, number(last, "last bad sector")?);
    if first > last {
        return Err(format!("bad sectors {first}-{last} end before they start"));
    }
    Ok(first..=last)
}

fn unknown(name: &str) -> String {
    match name {
        "queue_mode" | "submit_queues" | "poll_queues" | "hw_queue_depth" | "use_per_node_hctx"
        | "no_sched" | "shared_tags" | "home_node" | "blocking" | "mbps" => {
            format!("option `{name}` belongs to null_blk's request queue, and a target has none")
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
