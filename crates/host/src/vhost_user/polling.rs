//! Whether a queue polls for its next request before it sleeps.
//!
//! ```text
//! no work ─> short waits came before, no debt? ─yes─> poll: ring, device, orders ─ found ─> work
//!              │no                                      └ the limit has passed ─┐
//!              └───────────> ask for a kick, look again, sleep <────────────────┘
//! ```
//! A poll saves the guest a kick and this thread a wake-up, and uses a CPU meanwhile. So each poll
//! has a limit. The time of polls for nothing is a debt, which short waits pay: no queue polls
//! while it has one. So polls for nothing use little time for each request, whatever the guest
//! does.

use std::str::FromStr;
use std::time::{Duration, Instant};

/// Limit of a poll, and of a short wait. A sleeping thread works again after 7 to 60 µs. So a poll
/// for nothing costs about as much as the sleep that it could have saved.
const POLL_MAX: Duration = Duration::from_micros(60);
/// Short waits in a row before a queue polls. Guests often send fewer requests at a time.
const SHORT_MIN: u32 = 4;
/// Debt that a short wait pays: a part of the 7 µs that a poll saves at least. With more, a busy
/// machine loses by polls: a thread that polls there loses its CPU for some milliseconds.
const PAID: Duration = Duration::from_micros(1);
/// Limit of the debt, so that one stop of the machine does not count for long.
const DEBT_MAX: Duration = Duration::from_millis(10);
/// Looks between two offers of the CPU to other threads: about a microsecond.
const LOOKS: u32 = 16;

/// Whether queues poll for requests of their guest, without a kick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Queues sleep.
    Off,
    /// A queue polls for a short time while requests follow each other quickly.
    #[default]
    Auto,
    /// A queue polls until the front end stops it: each queue uses a CPU.
    Always,
}

impl FromStr for Polling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            _ => Err("a queue polls `auto`, `off` or `always`".into()),
        }
    }
}

/// The decisions of one queue.
#[derive(Debug)]
pub(super) struct Poller {
    polling: Polling,
    /// Short waits since the last long one.
    short: u32,
    /// Time of polls for nothing that is not paid.
    debt: Duration,
}

impl Poller {
    /// The thread may use this number of CPUs. With one, the guest could not work during a poll.
    pub(super) fn new(polling: Polling, cpus: usize) -> Self {
        let polling = if cpus > 1 { polling } else { Polling::Off };
        Self { polling, short: 0, debt: Duration::ZERO }
    }

    /// Limit of a poll that begins now, if there is to be one.
    pub(super) fn limit(&self) -> Option<Duration> {
        match self.polling {
            Polling::Off => None,
            Polling::Auto => (self.short >= SHORT_MIN && self.debt.is_zero()).then_some(POLL_MAX),
            Polling::Always => Some(Duration::MAX),
        }
    }

    /// Learns from a wait, whose poll lasted for `polled`. A poll that was longer than its limit
    /// lost its CPU to another thread, so it was one for nothing even if it has found something.
    pub(super) fn waited(&mut self, lasted: Duration, polled: Duration) {
        if lasted <= POLL_MAX {
            self.short = self.short.saturating_add(1);
            self.debt = self.debt.saturating_sub(PAID);
        } else {
            self.short = 0;
            self.debt = (self.debt + polled).min(DEBT_MAX);
        }
    }
}

/// Looks until something is found or the limit has passed; returns whether something was found.
pub(super) fn poll(limit: Duration, mut is_found: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if is_found() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= limit {
            return false;
        }
        // The guest may wait for this CPU.
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(10);
    const LONG: Duration = Duration::from_millis(1);

    /// Plays these waits; returns the number of polls.
    fn polls(poller: &mut Poller, waits: impl IntoIterator<Item = Duration>) -> usize {
        let mut polls = 0;
        for lasted in waits {
            let limit = poller.limit();
            polls += usize::from(limit.is_some());
            poller.waited(lasted, limit.unwrap_or_default().min(lasted));
        }
        polls
    }

    fn auto() -> Poller {
        Poller::new(Polling::Auto, 2)
    }

    #[test]
    fn idle_queue_polls_once_after_quick_requests_and_never_again() {
        let mut poller = auto();
        assert_eq!(polls(&mut poller, [LONG; 1000]), 0);
        assert_eq!(polls(&mut poller, [SHORT; 100]), 96);
        assert_eq!(poller.limit(), Some(POLL_MAX));
        assert_eq!(polls(&mut poller, [LONG; 1000]), 1, "the one after the last request");
    }

    #[test]
    fn polls_for_nothing_use_little_time_for_each_request() {
        let burst = || [SHORT; 6].into_iter().chain([LONG]);
        let for_nothing = 6000 / POLL_MAX.as_micros() as usize;
        let mut poller = auto();
        let mut long = 0;
        for lasted in (0..1000).flat_map(|_| burst()) {
            long += usize::from(lasted == LONG && poller.limit().is_some());
            polls(&mut poller, [lasted]);
        }
        assert!((1..=for_nothing).contains(&long), "{long}");
        // Each poll loses its CPU for a while to others.
        let mut poller = auto();
        let mut lost = Duration::ZERO;
        for _ in 0..100_000 {
            let lasted = if poller.limit().is_some() { 4 * LONG } else { SHORT };
            let polled = poller.limit().map_or(Duration::ZERO, |_| lasted);
            poller.waited(lasted, polled);
            lost += polled;
        }
        assert!(lost <= 100_000 * PAID, "{lost:?}");
        // A stop of the machine is soon forgotten.
        poller.waited(3600 * 1000 * LONG, 3600 * 1000 * LONG);
        assert!(polls(&mut poller, [SHORT; 20_000]) > 9_000);
    }

    #[test]
    fn no_queue_polls_on_the_only_cpu() {
        for polling in [Polling::Auto, Polling::Always] {
            assert_eq!(polls(&mut Poller::new(polling, 1), [SHORT; 100]), 0);
        }
        assert_eq!(polls(&mut Poller::new(Polling::Off, 8), [SHORT; 100]), 0);
        assert_eq!(Poller::new(Polling::Always, 2).limit(), Some(Duration::MAX));
    }

    #[test]
    fn poll_looks_before_its_limit_and_not_for_ever() {
        assert!(poll(Duration::ZERO, || true));
        assert!(!poll(Duration::ZERO, || false));
        let mut looks = 0;
        let found = poll(Duration::MAX, || {
            looks += 1;
            looks == 1000
        });
        assert!(found && looks == 1000);
    }
}
