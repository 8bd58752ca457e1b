//! One call, as a kernel sees it.

use super::iv::IvCounter;
use super::registers;
use super::schedule::Schedule;
use crate::stack::with_wiped_stack_of;

/// What the caller knows about its memory and the cipher cannot.
///
/// Both hints change only the time a call takes, never the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The source is cold (a file's pages): fetch it ahead of its use. Costs little when wrong.
    pub prefetch_source: bool,
    /// The destination is cold and will not be read soon (a file's pages): write it around the
    /// cache. Costs much when wrong. Without effect where the destination is not aligned to the
    /// tier's registers, or the tier has no such stores.
    pub stream_dest: bool,
}

/// How far ahead of its use the source is fetched: measured best between 1 and 4 KiB, flat there.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 2048;

/// The memory of one call and the IVs of its sectors.
pub(super) struct Job {
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    /// Encryption sector size, a multiple of 512.
    pub(super) sector_bytes: usize,
    /// How many of them.
    pub(super) sectors: usize,
    pub(super) iv: IvCounter,
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(
            dead_code,
            reason = "the portable kernels work on copies, which hints do not reach"
        )
    )]
    pub(super) hints: Hints,
}

impl Job {
    /// The job without its first `sectors`.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn skip(&self, sectors: usize) -> Self {
        let offset = sectors * self.sector_bytes;
        let first = self.iv.first.wrapping_add(self.iv.step.wrapping_mul(sectors as u64));
        Self {
            src: self.src.wrapping_add(offset),
            dst: self.dst.wrapping_add(offset),
            sectors: self.sectors - sectors,
            iv: IvCounter { first, ..self.iv },
            ..*self
        }
    }

    /// Distance of the prefetch: zero fetches what is read anyway, which spares a branch.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn prefetch_bytes(&self) -> usize {
        if self.hints.prefetch_source { PREFETCH_BYTES } else { 0 }
    }

    /// Whether to write around the cache with registers of `register_bytes`.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn streams(&self, register_bytes: usize) -> bool {
        self.hints.stream_dest && self.dst.addr().is_multiple_of(register_bytes)
    }
}

/// A kernel: runs one job with one schedule.
///
/// # Safety (of every kernel)
///
/// The schedule was made for the kernel's tier and key length, the CPU has the tier's
/// instructions, `src` and `dst` are valid for `sectors * sector_bytes` and are equal or disjoint.
/// The schedule comes by pointer, not by reference, so that the compiler may not assume its bytes
/// constant over stores to `dst` and keep round keys on the stack, where nothing would wipe them.
pub(super) type Kernel = unsafe fn(*const Schedule, &Job);

/// The two directions.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    pub(super) encrypt: Kernel,
    pub(super) decrypt: Kernel,
    /// The registers do not suffice, and round keys go to the stack, as they are or added to data:
    /// a call must wipe [`SPILL_STACK_BYTES`] of it. XTS on VAES keeps them in registers.
    /// The portable kernels wipe more, by themselves.
    pub(super) spills: bool,
}

impl Kernels {
    /// Runs one of the two.
    ///
    /// # Safety
    ///
    /// As [`Kernel`].
    #[inline]
    pub(super) unsafe fn run(self, kernel: Kernel, schedule: *const Schedule, job: &Job) {
        // SAFETY: the caller's promise is the kernel's.
        let run = || unsafe { kernel(schedule, job) };
        if self.spills {
            with_wiped_stack_of::<SPILL_STACK_BYTES, _>(run);
        } else {
            run();
            registers::clear();
        }
    }
}

/// Stack of a kernel that spills: at most 1.6 KiB by the disassembly.
const SPILL_STACK_BYTES: usize = 2560;
