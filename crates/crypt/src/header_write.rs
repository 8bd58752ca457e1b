//! The one function that writes headers: steps of writes, each stable before the next begins.
//!
//! An operation on a header is planned first, without a write, as a list of [`Step`]s. Their order
//! decides about the volume after a power cut, and so it is data that a test can read:
//!
//! ```text
//!   area of the new keyslot -> sync -> copy 1 -> sync -> copy 2 -> sync -> area of the old one ...
//! ```
//!
//! The rules of every plan (`docs/rfd/0009-keys-for-life.md`):
//!
//! * a header names an area only after the area is stable;
//! * an area is overwritten before a header says that it is free;
//! * a header is erased before the areas that it names, if the volume is replaced;
//! * the sector that makes a header valid is written alone, after the rest of the header.

use std::ops::Range;

use crate::error::Error;
use crate::source::HeaderDevice;

/// Bytes per write of zeros or random bytes.
const CHUNK_LEN_BYTES: usize = 256 * 1024;

/// One write. Nothing in it is secret: key material is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// These bytes from this offset on.
    Bytes(u64, Vec<u8>),
    /// Zeros over a range of bytes.
    Zeros(Range<u64>),
    /// Random bytes over a range, so that an unused keyslot area looks like a used one.
    Random(Range<u64>),
}

/// Writes that may reach the disk in any order, and a sync after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The written part, for messages: "the keyslots".
    pub(crate) what: String,
    pub(crate) writes: Vec<Write>,
}

impl Step {
    pub(crate) fn new(what: impl Into<String>, writes: Vec<Write>) -> Self {
        Self { what: what.into(), writes }
    }
}

/// Writes the steps, one after the other, each with a sync at its end. The first error ends the
/// operation, because a later step relies on the earlier ones.
pub(crate) fn write_steps(device: &mut dyn HeaderDevice, steps: &[Step]) -> Result<(), Error> {
    for step in steps {
        let failed = |error| Error::Write { what: step.what.clone(), error };
        for write in &step.writes {
            match write {
                Write::Bytes(offset_bytes, bytes) => {
                    device.write_at(*offset_bytes, bytes).map_err(failed)?;
                }
                Write::Zeros(range) => fill(device, range, step, |_| Ok(()))?,
                Write::Random(range) => {
                    fill(device, range, step, |chunk| Ok(getrandom::fill(chunk)?))?;
                }
            }
        }
        device.sync().map_err(failed)?;
    }
    Ok(())
}

fn fill(
    device: &mut dyn HeaderDevice,
    range: &Range<u64>,
    step: &Step,
    mut content: impl FnMut(&mut [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut chunk = vec![0u8; CHUNK_LEN_BYTES];
    let mut offset_bytes = range.start;
    while offset_bytes < range.end {
        let left = range.end - offset_bytes;
        let len = usize::try_from(left).map_or(CHUNK_LEN_BYTES, |left| left.min(CHUNK_LEN_BYTES));
        content(&mut chunk[..len])?;
        device
            .write_at(offset_bytes, &chunk[..len])
            .map_err(|error| Error::Write { what: step.what.clone(), error })?;
        offset_bytes += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{HeaderSink, HeaderSource, SourceError};

    #[test]
    fn step_overwrites_its_ranges_and_nothing_beside_them() {
        let start = 1000;
        let end = 2 * CHUNK_LEN_BYTES + 3000;
        let len = 3 * CHUNK_LEN_BYTES;
        let range = start as u64..end as u64;
        let mut device = vec![7; len];
        let zeros = Step::new("zeros", vec![Write::Zeros(range.clone())]);
        write_steps(&mut device, &[zeros]).unwrap();
        assert!(device[start..end].iter().all(|byte| *byte == 0));
        let random = Step::new("random bytes", vec![Write::Random(range)]);
        write_steps(&mut device, &[random]).unwrap();
        // Of 512 random bytes about two are zeros.
        let is_random = |piece: &[u8]| piece.iter().filter(|byte| **byte == 0).count() < 64;
        assert!(device[start..end].chunks_exact(512).all(is_random));
        assert!(device[..start].iter().chain(&device[end..]).all(|byte| *byte == 7));
    }

    /// A device that keeps the order of its calls, and fails one of them.
    struct Recorder {
        calls: Vec<String>,
        fails_at: usize,
    }

    impl Recorder {
        fn call(&mut self, call: String) -> Result<(), SourceError> {
            if self.calls.len() == self.fails_at {
                return Err(std::io::Error::from(std::io::ErrorKind::StorageFull).into());
            }
            self.calls.push(call);
            Ok(())
        }
    }

    impl HeaderSource for Recorder {
        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            unreachable!("a plan is complete before the first write")
        }

        fn len_bytes(&self) -> u64 {
            1 << 20
        }
    }

    impl HeaderSink for Recorder {
        fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), SourceError> {
            self.call(format!("{offset_bytes}+{}", bytes.len()))
        }

        fn sync(&mut self) -> Result<(), SourceError> {
            self.call("sync".to_owned())
        }
    }

    #[test]
    fn each_step_is_synced_before_the_next_and_an_error_ends_them() {
        let steps = [
            Step::new("one", vec![Write::Bytes(8, vec![1; 3]), Write::Zeros(16..20)]),
            Step::new("two", vec![Write::Bytes(0, vec![2])]),
        ];
        let all = ["8+3", "16+4", "sync", "0+1", "sync"];
        for fails_at in 0..=all.len() {
            let mut device = Recorder { calls: Vec::new(), fails_at };
            let result = write_steps(&mut device, &steps);
            assert_eq!(device.calls, all[..fails_at]);
            assert_eq!(result.is_ok(), fails_at == all.len());
            if let Err(error) = result {
                let step = if fails_at < 3 { "one" } else { "two" };
                assert!(error.to_string().contains(step), "{error}");
            }
        }
    }
}
