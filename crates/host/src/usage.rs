//! Resource usage of a thread or the process from the kernel: getrusage(2).
//!
//! The sum of the times is exact; the kernel's share comes from samples. Without the call the usage
//! is zero: it is only displayed.

use blockyard_engine::time::Nanos;

/// CPU time and context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode.
    pub user: Nanos,
    /// CPU time in the kernel.
    pub system: Nanos,
    /// Voluntary context switches (`ru_nvcsw`).
    pub voluntary: u64,
    /// Involuntary context switches (`ru_nivcsw`).
    pub involuntary: u64,
}

impl Usage {
    /// Usage of the calling thread.
    #[must_use]
    pub fn of_this_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    /// Usage of all threads, including ended ones.
    #[must_use]
    pub fn of_process() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    /// Usage since an earlier value.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.since(earlier.user),
            system: self.system.since(earlier.system),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }

    /// Sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            user: self.user + other.user,
            system: self.system + other.system,
            voluntary: self.voluntary + other.voluntary,
            involuntary: self.involuntary + other.involuntary,
        }
    }

    fn of(who: libc::c_int) -> Self {
        // SAFETY: the structure is plain numbers, which the call fills.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            if libc::getrusage(who, &raw mut usage) != 0 {
                return Self::default();
            }
            usage
        };
        let time = |time: libc::timeval| {
            let [seconds, micros] = [time.tv_sec, time.tv_usec].map(i64::unsigned_abs);
            Nanos(seconds * 1_000_000_000 + micros * 1000)
        };
        Self {
            user: time(usage.ru_utime),
            system: time(usage.ru_stime),
            voluntary: usage.ru_nvcsw.unsigned_abs(),
            involuntary: usage.ru_nivcsw.unsigned_abs(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn thread_that_slept_has_waited_and_one_that_ran_has_used_time() {
        let before = Usage::of_this_thread();
        std::thread::sleep(Duration::from_millis(1));
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(5) {}
        let used = Usage::of_this_thread().since(before);
        assert!(used.voluntary > 0);
        assert!(used.user + used.system > Nanos(0));
        let other = std::thread::spawn(Usage::of_this_thread).join().unwrap();
        assert!(other.user < Nanos(5_000_000), "it has not run: {other:?}");
        let all = Usage::of_process();
        assert!(all.user + all.system >= used.user + used.system);
    }
}
