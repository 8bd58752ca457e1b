//! A line as text, in the form of `dmsetup table`; [`super::parse`] reads it again.
//!
//! A key is hidden as dmsetup hides it, as one zero per digit, unless requested. Options come in
//! the kernel's order (`crypt_status` of `drivers/md/dm-crypt.c`), and only those that differ from
//! the default.

use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use core::fmt::{Result, Write};

use blockyard_crypt::params::CryptParams;

use super::{Line, LineTarget, MappedDevice};
use crate::dm::Leg;
use crate::dm::delay::{DelaySpec, DelayedLeg};
use crate::dm::flakey::{FlakeySpec, ReadFault, WriteFault};
use crate::dm::null::NullOptions;
use crate::time::Nanos;

/// Whether keys are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// In hex (`dmsetup table --showkeys`). The caller must wipe the output.
    Shown,
    /// As zeroes.
    Hidden,
}

impl MappedDevice {
    /// Writes the lines, each with the device's name in front if it has one.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, keys: Keys, out: &mut dyn Write) -> Result {
        for line in &self.lines {
            if !self.name.is_empty() {
                write!(out, "{}: ", self.name)?;
            }
            line.write(keys, out)?;
            out.write_char('\n')?;
        }
        Ok(())
    }

    /// The lines as `dmsetup status` prints them, without the targets' own status. Crypt has none.
    #[must_use]
    pub fn targets(&self) -> String {
        let of = |line: &Line| {
            let name = if self.name.is_empty() { "" } else { &format!("{}: ", self.name) };
            format!("{name}{} {} {}\n", line.start, line.len, line.target.name())
        };
        self.lines.iter().map(of).collect()
    }

    /// The lines as in [`MappedDevice::write`], with hidden keys.
    #[must_use]
    pub fn without_keys(&self) -> String {
        let mut text = String::new();
        self.write(Keys::Hidden, &mut text).expect("a string never fails");
        text
    }
}

impl Line {
    /// Writes the line, without a newline.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, keys: Keys, out: &mut dyn Write) -> Result {
        write!(out, "{} {} {}", self.start, self.len, self.target.name())?;
        match &self.target {
            LineTarget::Linear { device, start } => write!(out, " {device} {start}"),
            LineTarget::Zero | LineTarget::Error | LineTarget::Ram => Ok(()),
            LineTarget::Null(options) => write_options(&null_options(options), out),
            LineTarget::Loop(leg) => write!(out, " {} {}", leg.dev, leg.start.0),
            LineTarget::Striped(spec) => {
                write!(out, " {} {}", spec.legs.len(), spec.chunk.0)?;
                spec.legs.iter().try_for_each(|leg| write_leg(leg, out))
            }
            LineTarget::Delay(spec) => delayed(spec).into_iter().try_for_each(|delayed| {
                write_leg(&delayed.leg, out)?;
                write!(out, " {}", delayed.delay.0.div_ceil(MILLISECOND.0))
            }),
            LineTarget::Flakey(spec) => {
                write_leg(&spec.leg, out)?;
                write!(out, " {} {}", spec.up_s, spec.down_s)?;
                write_options(&flakey_words(spec), out)
            }
            LineTarget::LogWrites { device, log } => write!(out, " {device} {log}"),
            // With a trailing space, as in the kernel.
            LineTarget::Multipath(spec) => write!(out, " {spec}"),
            LineTarget::Crypt { device, params } => write_crypt(device, params, keys, out),
        }
    }
}

impl LineTarget {
    /// The target's name in a line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "linear",
            Self::Zero => "zero",
            Self::Error => "error",
            Self::Ram => "ram",
            Self::Null(_) => "null",
            Self::Loop(_) => "loop",
            Self::Striped(_) => "striped",
            Self::Delay(_) => "delay",
            Self::Flakey(_) => "flakey",
            Self::LogWrites { .. } => "log-writes",
            Self::Multipath(_) => "multipath",
            Self::Crypt { .. } => "crypt",
        }
    }
}

const MILLISECOND: Nanos = Nanos(1_000_000);

fn write_leg(leg: &Leg<String>, out: &mut dyn Write) -> Result {
    write!(out, " {} {}", leg.dev, leg.start.0)
}

/// Writes the number of options and the options; nothing if there are none.
fn write_options(options: &[String], out: &mut dyn Write) -> Result {
    if options.is_empty() {
        return Ok(());
    }
    write!(out, " {}", options.len())?;
    options.iter().try_for_each(|option| write!(out, " {option}"))
}

fn write_crypt(device: &str, params: &CryptParams, keys: Keys, out: &mut dyn Write) -> Result {
    write!(out, " {} ", params.cipher)?;
    let mut digits = |byte: u8| write!(out, "{byte:02x}");
    match keys {
        _ if params.key.is_empty() => out.write_char('-')?,
        Keys::Shown => params.key.as_slice().iter().try_for_each(|&byte| digits(byte))?,
        Keys::Hidden => params.key.as_slice().iter().try_for_each(|_| digits(0))?,
    }
    write!(out, " {} {device} {}", params.iv_offset_sectors, params.data_offset_sectors)?;
    write_options(&crypt_options(params), out)
}

fn crypt_options(params: &CryptParams) -> Vec<String> {
    let flags = &params.flags;
    let named = [
        (flags.allow_discards, "allow_discards"),
        (flags.same_cpu_crypt, "same_cpu_crypt"),
        (flags.high_priority, "high_priority"),
        (flags.submit_from_crypt_cpus, "submit_from_crypt_cpus"),
        (flags.no_read_workqueue, "no_read_workqueue"),
        (flags.no_write_workqueue, "no_write_workqueue"),
    ];
    let set = named.into_iter().filter(|(is_set, _)| *is_set);
    let mut options: Vec<String> = set.map(|(_, name)| name.into()).collect();
    if params.sector_size_bytes != 512 {
        options.push(format!("sector_size:{}", params.sector_size_bytes));
    }
    if params.iv_large_sectors {
        options.push("iv_large_sectors".into());
    }
    options
}

fn null_options(options: &NullOptions) -> Vec<String> {
    let mut words = vec![];
    if let Some(completion) = options.timer {
        words.push("irqmode:timer".into());
        words.push(format!("completion_nsec:{}", completion.0));
    }
    if options.block_size_bytes != 512 {
        words.push(format!("blocksize:{}", options.block_size_bytes));
    }
    let flags = [(options.memory_backed, "memory_backed:1"), (options.discard, "discard:1")];
    words.extend(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word.into()));
    if let Some(bad) = &options.bad {
        words.push(format!("badblocks:{}-{}", bad.start(), bad.end()));
    }
    if options.stale_reads {
        words.push("stale_reads:1".into());
    }
    words
}

/// The legs in the shortest form: those of writes and flushes only if they differ from the leg
/// before.
fn delayed(spec: &DelaySpec<String>) -> Vec<&DelayedLeg<String>> {
    let DelaySpec { read, write, flush } = spec;
    if flush != write {
        vec![read, write, flush]
    } else if write != read {
        vec![read, write]
    } else {
        vec![read]
    }
}

fn flakey_words(spec: &FlakeySpec<String>) -> Vec<String> {
    let mut words: Vec<String> = match spec.reads {
        ReadFault::None => vec![],
        ReadFault::Fail => vec!["error_reads".into()],
        ReadFault::Corrupt { offset_bytes, value } => {
            // The kernel counts bytes from one.
            let nth = u64::from(offset_bytes) + 1;
            vec![
                "corrupt_bio_byte".into(),
                format!("{nth}"),
                "r".into(),
                format!("{value}"),
                "0".into(),
            ]
        }
    };
    match spec.writes {
        WriteFault::None => {}
        WriteFault::Fail => words.push("error_writes".into()),
        WriteFault::Drop => words.push("drop_writes".into()),
    }
    // Both failing is the default without features.
    let is_usual = spec.reads == ReadFault::Fail && spec.writes == WriteFault::Fail;
    if is_usual { vec![] } else { words }
}
