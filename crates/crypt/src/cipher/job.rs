//! One call in the form for kernels.

use super::iv::IvCounter;
use super::registers;
use super::schedule::Schedule;
use crate::stack::with_wiped_stack_of;

/// Facts about the memory that only the caller knows.
///
/// Both hints change only the time of a call, never the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The source is cold (a file's pages): prefetch it. A wrong hint costs little.
    pub prefetch_source: bool,
    /// The destination is cold and will not be read soon (a file's pages): use non-temporal stores.
    /// A wrong hint costs much. No effect where the destination is not aligned to the tier's
    /// registers, or the tier has no such stores.
    pub stream_dest: bool,
}

/// Prefetch distance: measured best between 1 and 4 KiB, with little difference there.
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 2048;

/// The memory of one call and the IVs of its sectors.
pub(super) struct Job {
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    /// Encryption sector size, a multiple of 512.
    pub(super) sector_bytes: usize,
    /// Number of sectors.
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

    /// Prefetch distance; zero prefetches the current address, which saves a branch.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(super) fn prefetch_bytes(&self) -> usize {
        if self.hints.prefetch_source { PREFETCH_BYTES } else { 0 }
    }

    /// Whether to use non-temporal stores of `register_bytes`.
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
/// The schedule was made for the kernel's tier and key length. The CPU has the tier's instructions.
/// `src` and `dst` are valid for `sectors * sector_bytes` and are equal or disjoint. The schedule
/// is passed by pointer, not by reference: otherwise the compiler could assume its bytes constant
/// over stores to `dst` and keep round keys on the stack, where they are never wiped.
pub(super) type Kernel = unsafe fn(*const Schedule, &Job);

/// Kernels of both directions.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    pub(super) encrypt: Kernel,
    pub(super) decrypt: Kernel,
    /// Whether the kernel spills round keys to the stack, as they are or added to data. Then a call
    /// must wipe [`SPILL_STACK_BYTES`]. XTS on VAES keeps them in registers. The portable kernels
    /// wipe more stack by themselves.
    pub(super) spills: bool,
}

impl Kernels {
    /// Runs a kernel of the two.
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

/// Stack of a spilling kernel: at most 1.6 KiB by the disassembly.
const SPILL_STACK_BYTES: usize = 2560;
