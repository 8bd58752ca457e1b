//! Descriptors, memory and age of this process from the kernel: proc(5), getrlimit(2).
//!
//! Without `/proc`, or with another format, a figure is zero: it is only displayed.

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The unit of times in `/proc` (`USER_HZ`): part of the kernel's interface, and the same on each
/// machine that Blockyard is for. `rustix` would read it by a call that the sandbox refuses.
const TICKS_PER_SECOND: u64 = 100;

/// Resources that this process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Open descriptors.
    pub open_descriptors: u64,
    /// Limit of open descriptors; `None` if there is none.
    pub max_descriptors: Option<u64>,
    /// Memory in use, without swapped pages.
    pub resident_bytes: u64,
    /// Start of the process in seconds since 1970.
    pub started_at_unix_s: u64,
}

impl Footprint {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        // Read once: the estimate is not the same at each call.
        static STARTED_AT_UNIX_S: LazyLock<u64> = LazyLock::new(started_at_unix_s);
        // One of the descriptors is that of the list itself.
        let open = fs::read_dir("/proc/self/fd").map_or(0, |list| list.count().saturating_sub(1));
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        Self {
            open_descriptors: open as u64,
            max_descriptors: getrlimit(Resource::Nofile).current,
            resident_bytes: field(resident.unwrap_or_default(), 0) << 10,
            started_at_unix_s: *STARTED_AT_UNIX_S,
        }
    }
}

/// A number of a line with blanks between its fields; zero without it.
fn field(line: &str, place: usize) -> u64 {
    line.split_whitespace().nth(place).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// The kernel has the start in ticks since the boot.
fn started_at_unix_s() -> u64 {
    let facts = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name before the bracket may contain blanks.
    let ticks = facts.rsplit_once(')').map_or(0, |(_, rest)| field(rest, 19));
    let started = Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND);
    let now = clock_gettime(ClockId::Boottime);
    let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since_epoch.saturating_sub(now.saturating_sub(started)).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_this_process() {
        let before = Footprint::of_process();
        let held: Vec<_> = (0..8).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        let memory = vec![1u8; 32 << 20];
        let after = Footprint::of_process();
        assert!(after.open_descriptors > before.open_descriptors, "{before:?} {after:?}");
        assert!(after.resident_bytes >= before.resident_bytes + (16 << 20), "{before:?} {after:?}");
        assert_eq!(after.started_at_unix_s, before.started_at_unix_s);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        assert!((now - 600..=now).contains(&after.started_at_unix_s), "{now} {after:?}");
        drop((held, memory));
    }
}
