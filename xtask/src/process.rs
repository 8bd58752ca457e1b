//! The kernel's figures about a running server: memory, descriptors, threads, CPU time.

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// A process observed from outside.
#[derive(Clone, Copy)]
pub(crate) struct Watched(pub(crate) u32);

impl Watched {
    fn pid(self) -> Pid {
        Pid::from_raw(i32::try_from(self.0).expect("a pid fits"))
    }

    pub(crate) fn signal(self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).with_context(|| format!("{signal} to {}", self.0))
    }

    /// Stops it, and waits until all of its threads stand still: on another CPU, or before their
    /// turn on a busy one, they answer requests until they see the signal.
    pub(crate) fn pause(self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let tasks = format!("/proc/{}/task", self.0);
        let is_stopped = || -> Result<bool> {
            for task in fs::read_dir(&tasks)? {
                let stat = fs::read_to_string(task?.path().join("stat"))?;
                let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
                if !state.starts_with('T') {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let stopped = until(Duration::from_secs(10), || is_stopped().unwrap_or(false));
        ensure!(stopped, "process {} does not stop", self.0);
        Ok(())
    }

    /// CPU time of the whole process in nanoseconds, ended threads included. The scheduler's own
    /// sum: `/proc/PID/stat` counts in 10 ms, and `task/*/schedstat` forgets ended threads.
    pub(crate) fn cpu_ns(self) -> Result<u64> {
        let clock = clock_getcpuclockid(self.pid()).context("the process's CPU clock")?;
        let now = clock.now().context("the process's CPU clock")?;
        let ns = Duration::from(now).as_nanos();
        Ok(u64::try_from(ns)?)
    }

    fn status_kib(self, field: &str) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let Some(value) = line.and_then(|line| line.split_whitespace().nth(1)) else {
            bail!("/proc/{}/status has no {field}", self.0);
        };
        Ok(value.parse()?)
    }

    /// Resident memory without the mapped pages of a volume in tmpfs, which belong to the file.
    pub(crate) fn rss_mib(self) -> Result<f64> {
        let own_kib = self.status_kib("VmRSS")? - self.status_kib("RssShmem")?;
        Ok(f64::from(u32::try_from(own_kib)?) / 1024.0)
    }

    pub(crate) fn threads(self) -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/task", self.0))?.count())
    }

    pub(crate) fn descriptors(self) -> Result<usize> {
        let dir = format!("/proc/{}/fd", self.0);
        let entries = fs::read_dir(&dir).with_context(|| format!("{dir}: not readable"))?;
        Ok(entries.count())
    }

    pub(crate) fn alive(self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.0))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
    }
}

/// Polls until the condition holds or the time is over; returns whether it holds. For conditions
/// without a kernel event.
pub(crate) fn until(limit: Duration, mut yes: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if yes() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
