//! Resource usage of this process's threads from the kernel: proc(5), `schedstat` for times on a
//! CPU and in a run queue in nanoseconds, `status` for context switches.
//!
//! Without `/proc`, or with another format, the usage is zero: it is only displayed.

use std::fs;

use blockyard_engine::time::Nanos;

/// Usage of one or several threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a CPU, in user mode and in the kernel.
    pub cpu: Nanos,
    /// Time in a run queue.
    pub runnable: Nanos,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
}

impl Usage {
    /// Adds the usage of others.
    pub fn add(&mut self, other: &Self) {
        self.cpu = self.cpu + other.cpu;
        self.runnable = self.runnable + other.runnable;
        self.voluntary += other.voluntary;
        self.involuntary += other.involuntary;
    }

    /// Usage since an earlier value.
    pub(crate) fn since(self, earlier: &Self) -> Self {
        Self {
            cpu: self.cpu.since(earlier.cpu),
            runnable: self.runnable.since(earlier.runnable),
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

/// Number of the calling thread.
pub(crate) fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The signal by which each thread takes the limits of the sandbox. No thread blocks it.
pub(crate) fn signal_of_sandbox() -> i32 {
    libc::SIGRTMIN() + 4
}

/// Usage of the thread with this number; zero for an ended thread.
pub(crate) fn of_thread(number: u32) -> Usage {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/task/{number}/{name}"));
    usage_of(&read("schedstat").unwrap_or_default(), &read("status").unwrap_or_default())
}

fn usage_of(schedstat: &str, status: &str) -> Usage {
    let mut times = schedstat.split_whitespace().map(|field| Nanos(field.parse().unwrap_or(0)));
    let mut time = || times.next().unwrap_or(Nanos(0));
    let switches = |name: &str| {
        let mut lines = status.lines().filter_map(|line| line.split_once(':'));
        let count = lines.find(|(key, _)| *key == name).map(|(_, count)| count.trim());
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    };
    Usage {
        cpu: time(),
        runnable: time(),
        voluntary: switches("voluntary_ctxt_switches"),
        involuntary: switches("nonvoluntary_ctxt_switches"),
    }
}

/// Aborts the process when a thread panics, because every connection would wait forever.
/// Acknowledged data is at the device, not in this process, so nothing is lost.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_missing_ones_are_nothing() {
        let status = "Name:\ta\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        let usage = usage_of("123456 99 7\n", status);
        let cpu = Nanos(123_456);
        let runnable = Nanos(99);
        assert_eq!(usage, Usage { cpu, runnable, voluntary: 5, involuntary: 2 });
        assert_eq!(usage_of("", ""), Usage::default());
    }

    #[test]
    fn thread_that_slept_has_been_switched_to() {
        let own = this_thread();
        let before = of_thread(own);
        std::thread::sleep(std::time::Duration::from_millis(1));
        let after = of_thread(own);
        assert!(after.voluntary > before.voluntary && after.cpu > before.cpu);
    }
}
