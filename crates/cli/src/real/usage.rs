//! What a thread of this machine has used, as the kernel counts it.
//!
//! `/proc/thread-self/stat` has CPU time in ticks of 10 ms, `status` the switches: proc(5). Without
//! `/proc`, or if it says something else, nothing was used: it is shown, and nothing hangs on it.

use std::fs;

use blockyard_engine::time::Nanos;
use blockyard_load::program::Usage;

/// `USER_HZ` is 100 on every machine that Linux runs on here.
const TICK_NS: u64 = 10_000_000;

/// Of the thread that asks.
pub(super) fn of_this_thread() -> Usage {
    let read = |name: &str| fs::read_to_string(format!("/proc/thread-self/{name}"));
    let (stat, status) = (read("stat").unwrap_or_default(), read("status").unwrap_or_default());
    usage_of(&stat, &status)
}

fn usage_of(stat: &str, status: &str) -> Usage {
    // The name of the program stands in brackets, and may have spaces and brackets in it.
    let behind_name = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = behind_name.split_whitespace();
    // Fields 14 and 15, of which the first behind the name is the third.
    let mut ticks = |skip| fields.nth(skip).and_then(|field| field.parse().ok()).unwrap_or(0);
    let (user, system): (u64, u64) = (ticks(11), ticks(0));
    let switches = |name: &str| {
        let mut lines = status.lines().filter_map(|line| line.split_once(':'));
        let count = lines.find(|(key, _)| *key == name).map(|(_, count)| count.trim());
        count.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0)
    };
    let voluntary = switches("voluntary_ctxt_switches");
    let involuntary = switches("nonvoluntary_ctxt_switches");
    Usage {
        user: Nanos(user.saturating_mul(TICK_NS)),
        system: Nanos(system.saturating_mul(TICK_NS)),
        switches: voluntary.saturating_add(involuntary),
        voluntary,
        involuntary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a) b (c) R 1 7 7 0 -1 4194304 83 0 0 0 12 34 0 0 20 0 1 0 9 8 7";
        let status = "Name:\ta\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n";
        let usage = usage_of(stat, status);
        assert_eq!((usage.user, usage.system), (Nanos(120_000_000), Nanos(340_000_000)));
        assert_eq!((usage.switches, usage.voluntary, usage.involuntary), (7, 5, 2));
        assert_eq!(usage_of("", ""), Usage::default());
    }

    #[test]
    fn thread_that_slept_has_been_switched_to() {
        let before = of_this_thread().switches;
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(of_this_thread().switches > before);
    }
}
