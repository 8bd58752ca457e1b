//! How a connection's thread is scheduled: sched(7).
//!
//! A thread that wakes for a short request preempts the client that has just sent it, answers it,
//! and sleeps again before the client has sent the next: two switches and two system calls for each
//! request, however many the client would keep in flight. `SCHED_BATCH` does not preempt who wakes
//! it. So the client goes on until it waits, and the thread finds all of it in one `recv`.
//!
//! Long requests gain nothing from that, and lose the overlap of sending and receiving. A client
//! on another machine is not preempted: there it would only take longer to get a CPU that is busy.

/// Longer requests are long. With 8 in flight, requests of 16 KiB gained in both directions, of 64
/// KiB reads only, and of 256 KiB neither.
const SHORT_BYTES: u64 = 32 << 10;
/// After so many short requests one after the other. Each change is a system call; a client that
/// mixes lengths does not see many.
const SHORT_MANY: u32 = 64;

/// Of the thread that this was made on.
pub(super) struct Pace {
    /// Short requests since the last long one.
    short: u32,
    is_batch: bool,
    /// Nobody who started us has chosen another policy, and the client is on this machine.
    may_change: bool,
}

impl Pace {
    pub(super) fn new(is_client_here: bool) -> Self {
        // SAFETY: asks for the policy of this thread, and touches no memory.
        let policy = unsafe { libc::sched_getscheduler(0) };
        let may_change = is_client_here && policy == libc::SCHED_OTHER;
        Self { short: 0, is_batch: false, may_change }
    }

    /// A request of this length has come.
    pub(super) fn on_request(&mut self, len_bytes: u64) {
        self.short = if len_bytes > SHORT_BYTES { 0 } else { self.short.saturating_add(1) };
        let is_batch = self.short > SHORT_MANY;
        if is_batch != self.is_batch && self.may_change {
            self.is_batch = is_batch;
            set_policy(if is_batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER });
        }
    }
}

/// Where it is forbidden all stays as it is.
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
        // SAFETY: as in `Pace::new`.
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
