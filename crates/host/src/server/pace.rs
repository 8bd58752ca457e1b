//! Scheduling policy of a connection's thread: sched(7).
//!
//! A thread that wakes for a short request preempts the client that has just sent it, replies, and
//! sleeps before the next request. Each request then costs two switches and two system calls,
//! regardless of the client's queue depth. `SCHED_BATCH` threads do not preempt their waker. So the
//! client runs on until it waits, and the thread finds all its requests in one `recv`.
//!
//! Long requests gain nothing from that, and lose the overlap of sending and receiving. A remote
//! client is not preempted: for it the thread would only wait longer for a busy CPU.

/// Limit of short requests. With 8 in flight, requests of 16 KiB gained in both directions, of 64
/// KiB only reads, of 256 KiB neither.
const SHORT_BYTES: u64 = 32 << 10;
/// Number of consecutive short requests before the change. Each change is a system call; clients
/// with mixed lengths rarely cause one.
const SHORT_MANY: u32 = 64;

/// Policy of the thread that created this value.
pub(super) struct Pace {
    /// Number of short requests since the last long one.
    short: u32,
    is_batch: bool,
    /// The thread has the default policy, and the client is on this machine.
    may_change: bool,
}

impl Pace {
    pub(super) fn new(is_client_here: bool) -> Self {
        // SAFETY: the call queries this thread's policy and touches no memory.
        let policy = unsafe { libc::sched_getscheduler(0) };
        let may_change = is_client_here && policy == libc::SCHED_OTHER;
        Self { short: 0, is_batch: false, may_change }
    }

    /// Adjusts the policy to a request of this length.
    pub(super) fn on_request(&mut self, len_bytes: u64) {
        self.short = if len_bytes > SHORT_BYTES { 0 } else { self.short.saturating_add(1) };
        let is_batch = self.short > SHORT_MANY;
        if is_batch != self.is_batch && self.may_change {
            self.is_batch = is_batch;
            set_policy(if is_batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER });
        }
    }
}

/// Sets the policy; without permission it stays.
fn set_policy(policy: libc::c_int) {
    // SAFETY: all integers of the parameter may be zero, and it lives until the call returns.
    unsafe {
        let parameter: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, policy, &raw const parameter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: the call queries this thread's policy and touches no memory.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn many_short_requests_make_a_batch_and_a_long_one_ends_it() {
        let mut pace = Pace::new(true);
        (0..SHORT_MANY).for_each(|_| pace.on_request(SHORT_BYTES));
        assert_eq!(policy(), libc::SCHED_OTHER);
        pace.on_request(0);
        assert_eq!(policy(), libc::SCHED_BATCH);
        pace.on_request(SHORT_BYTES + 1);
        assert_eq!(policy(), libc::SCHED_OTHER);
        pace.on_request(4096);
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    #[test]
    fn client_elsewhere_changes_nothing() {
        let mut pace = Pace::new(false);
        (0..2 * SHORT_MANY).for_each(|_| pace.on_request(4096));
        assert_eq!(policy(), libc::SCHED_OTHER);
    }

    #[test]
    fn policy_that_somebody_has_chosen_stays() {
        set_policy(libc::SCHED_IDLE);
        let mut pace = Pace::new(true);
        (0..2 * SHORT_MANY).for_each(|_| pace.on_request(4096));
        pace.on_request(1 << 20);
        assert_eq!(policy(), libc::SCHED_IDLE);
    }
}
