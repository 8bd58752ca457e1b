//! Checks of a job: which values are valid, and which go together.

use super::super::lens::Direction;
use super::super::map::UNITS_MAX;
use super::super::strides::Strides;
use super::super::verify::{HEADER_BYTES, Sum};
use super::super::zoned;
use crate::program::Interface;

use super::{IODEPTH_MAX, Job, JobError, NUMJOBS_MAX};

/// Longest request that can be verified; a client has memory for no more.
const VERIFIED_MAX_BYTES: u64 = 64 << 20;

impl Job {
    /// Checks that the job is valid.
    ///
    /// # Errors
    /// The invalid option.
    pub fn check(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: String| {
            Err(JobError { job: self.name.clone(), key: String::from(key), problem })
        };
        let is_whole = |bytes: u64| bytes > 0 && bytes.is_multiple_of(512);
        let lens = Direction::ALL.map(|direction| self.shape.lens(direction));
        if !is_whole(self.shape.block_bytes) || !lens.iter().all(|lens| lens.all(is_whole)) {
            return refuse("bs", "must be a multiple of 512 bytes, as in bs=4k".into());
        }
        if !self.shape.align_bytes.iter().flatten().all(|bytes| is_whole(*bytes)) {
            return refuse("blockalign", "must be a multiple of 512 bytes".into());
        }
        if self.region.size_bytes < self.shape.min_bytes() {
            let text = format!("must be at least one block of {} bytes", self.shape.min_bytes());
            return refuse("size", text + ", as in size=1g");
        }
        for (key, bytes) in [
            ("offset", self.region.offset_bytes),
            ("offset_increment", self.region.offset_increment_bytes),
        ] {
            if !bytes.is_multiple_of(512) {
                return refuse(key, "must be a multiple of 512 bytes".into());
            }
        }
        for (key, value, max) in [
            ("iodepth", self.submission.iodepth, IODEPTH_MAX),
            ("numjobs", self.clones.numjobs, NUMJOBS_MAX),
            ("numjobs", self.clones.count(), NUMJOBS_MAX),
        ] {
            if value == 0 || value > max {
                return refuse(key, format!("must be a number from 1 to {max}, on all nodes"));
            }
        }
        if self.submission.interface == Interface::Sync && self.submission.iodepth > 1 {
            let text = "is more than 1, but this ioengine has one request in flight; take libaio";
            return refuse("iodepth", text.into());
        }
        if self.region.divide && self.region_bytes() == 0 {
            let text =
                format!("must be at least one block for each of {} clones", self.clones.count());
            return refuse("size", text);
        }
        let apart_bytes =
            self.region.offset_increment_bytes.checked_mul(self.clones.count().into());
        let end_bytes = apart_bytes
            .and_then(|apart| apart.checked_add(self.region.offset_bytes))
            .and_then(|start| start.checked_add(self.region.size_bytes));
        if end_bytes.is_none_or(|end| end > 1 << 62) {
            return refuse("size", "and offset together are more than a file can have".into());
        }
        if self.shape.read_percent > 100 {
            return refuse("rwmixread", "must be a number from 0 to 100".into());
        }
        self.check_order()?;
        self.check_strides()?;
        self.check_verify()?;
        let problem = self.controls.problem().or_else(|| self.submission.command.problem());
        let problem = problem.or_else(|| zoned::problem(self));
        if let Some((key, problem)) = problem {
            return refuse(key, problem);
        }
        if self.end.time_based && self.end.runtime.is_none() {
            return refuse("time_based", "needs a runtime, as in runtime=60".into());
        }
        Ok(())
    }

    /// Checks that written data can be verified.
    fn check_verify(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: String| {
            Err(JobError { job: self.name.clone(), key: String::from(key), problem })
        };
        let Some(sum) = self.verify.sum else { return Ok(()) };
        if sum == Sum::Pattern && self.verify.pattern.is_none() {
            return refuse("verify", "is pattern, and needs verify_pattern, as in 0xaa55".into());
        }
        if self.submission.interface == Interface::Nowhere {
            return refuse("verify", "cannot read data back from ioengine=null".into());
        }
        let chunk_bytes = self.verify.interval_bytes.unwrap_or(self.shape.min_bytes());
        let is_whole = |len: u64| len.is_multiple_of(chunk_bytes);
        let used = self.shape.used().all(|direction| self.shape.lens(direction).all(is_whole));
        if self.verify.interval_bytes.is_some() && !used {
            return refuse("verify_interval", "must divide all lengths of requests".into());
        }
        let behind = (HEADER_BYTES + sum.len()) as u64;
        let end = self.verify.offset_bytes.saturating_add(behind);
        if behind > chunk_bytes || end > chunk_bytes {
            let text = format!("has no room for a header of {behind} bytes in {chunk_bytes}");
            return refuse("verify_offset", text);
        }
        if self.verify.offset_bytes > 0 && self.verify.offset_bytes < behind {
            return refuse("verify_offset", format!("must be 0, or {behind} bytes at least"));
        }
        if self.verify.only && self.end.time_based {
            return refuse(
                "verify_only",
                "computes the writes of a pass, so it excludes time_based".into(),
            );
        }
        if self.shape.max_bytes() > VERIFIED_MAX_BYTES {
            return refuse("bs", format!("must be {VERIFIED_MAX_BYTES} at most with verify"));
        }
        Ok(())
    }

    /// Checks the strided zones.
    fn check_strides(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: &str| {
            Err(JobError { job: self.name.clone(), key: key.into(), problem: problem.into() })
        };
        let Strides { is_on, size_bytes, range_bytes, skip_bytes } = self.shape.strides;
        if self.shape.zoned.is_on {
            return Ok(());
        }
        if !is_on {
            let has_lens = size_bytes > 0 || range_bytes.is_some() || skip_bytes > 0;
            return if has_lens {
                refuse("zonesize", "and its options need zonemode=strided or zbd")
            } else {
                Ok(())
            };
        }
        let range_bytes = self.shape.strides.range_bytes();
        if size_bytes == 0 {
            return refuse("zonemode", "is strided, and needs a zonesize, as in 1m");
        }
        let lens = [size_bytes, range_bytes, skip_bytes];
        if !lens.iter().all(|bytes| bytes.is_multiple_of(self.shape.unit_bytes())) {
            return refuse("zonesize", "and its options must be multiples of the shortest block");
        }
        if range_bytes < self.shape.max_bytes() || range_bytes > self.region_bytes() {
            return refuse("zonerange", "must be one block at least, and no more than size");
        }
        if self.shape.rw.trims() || self.shape.leap_bytes != 0 {
            return refuse("zonemode", "is for reads and writes without a leap");
        }
        if self.shape.rw.is_random() && self.shape.has_map() && self.shape.needs_bitmap() {
            return refuse("zonemode", "with blocks of several lengths needs norandommap=1");
        }
        Ok(())
    }

    /// Checks the order of the requests.
    fn check_order(&self) -> Result<(), JobError> {
        let refuse = |key: &str, problem: String| {
            Err(JobError { job: self.name.clone(), key: String::from(key), problem })
        };
        if self.region.size_bytes < self.shape.max_bytes() && self.shape.rw.is_random() {
            return refuse("size", format!("must be {} bytes at least", self.shape.max_bytes()));
        }
        if self
            .shape
            .used()
            .any(|direction| self.shape.lens(direction).min_bytes() > self.region_bytes())
        {
            return refuse("size", "must be one block of each direction at least".into());
        }
        if self.shape.leap_bytes % 512 != 0
            || self.shape.leap_bytes.unsigned_abs() >= self.region_bytes()
        {
            let text = "with a leap must be a multiple of 512 bytes below size";
            return refuse("rw", text.into());
        }
        let units = self.region_bytes() / self.shape.unit_bytes().max(1);
        let has_bitmap =
            self.shape.rw.is_random() && self.shape.has_map() && self.shape.needs_bitmap();
        if has_bitmap && units > UNITS_MAX {
            let text = format!("needs a map of {units} units, more than {UNITS_MAX}");
            return refuse("size", text + "; use norandommap=1, or a longer smallest block");
        }
        if self.shape.rw.is_random() && !self.shape.has_map() && units == 0 {
            return refuse("blockalign", "exceeds the region".into());
        }
        Ok(())
    }
}
