//! The clients of a gateway, which is one of several servers of an image, and the takeovers by
//! other gateways that they may have missed (RFD 12, 4a).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Instant;

use blockyard_engine::bio::IoContext;

/// Numbers of takeovers that are kept, the latest. Ours: a client that has waited for its
/// connection during more takeovers connects again.
const LEARNED_MAX: usize = 64;

/// State of a gateway.
#[derive(Default)]
pub(super) struct Gateway {
    /// Another gateway has fenced this one.
    pub(super) is_fenced: bool,
    /// Numbers of takeovers, each with the time at which it was learned.
    learned: Vec<(Instant, u64)>,
    /// For each client, the number that was known before its first request.
    seen: BTreeMap<IoContext, u64>,
    /// Clients that wait for no answer any more.
    abandoned: BTreeSet<IoContext>,
}

impl Gateway {
    /// Notes the present number of takeovers, or that this gateway is fenced.
    pub(super) fn learn(&mut self, takeovers: io::Result<u64>) {
        match takeovers {
            Ok(takeovers) => {
                if self.learned.last().is_some_and(|(_, known)| *known == takeovers) {
                    return;
                }
                if self.learned.len() == LEARNED_MAX {
                    self.learned.remove(0);
                }
                self.learned.push((Instant::now(), takeovers));
            }
            Err(error) => self.is_fenced |= error.raw_os_error() == Some(libc::ESHUTDOWN),
        }
    }

    /// Adds a client, whose requests are not older than `since`.
    pub(super) fn join(&mut self, client: IoContext, since: Instant) {
        let known = self.learned.iter().rev().find(|(learned_at, _)| *learned_at <= since);
        if let Some((_, takeovers)) = known {
            self.seen.insert(client, *takeovers);
        }
    }

    /// The client waits for no answer any more. It may have sent its writes again elsewhere.
    pub(super) fn abandon(&mut self, client: IoContext) {
        self.abandoned.insert(client);
    }

    pub(super) fn leave(&mut self, client: IoContext) {
        self.seen.remove(&client);
        self.abandoned.remove(&client);
    }

    /// The number of takeovers before a client's first request, to write for this client.
    ///
    /// # Errors
    /// `ECANCELED`: the client has gone. `ESTALE`: the number is not known, so the client must
    /// connect again.
    pub(super) fn seen_by(&self, client: IoContext) -> io::Result<u64> {
        let refusal = if self.abandoned.contains(&client) { libc::ECANCELED } else { libc::ESTALE };
        let seen = self.seen.get(&client).filter(|_| refusal == libc::ESTALE);
        seen.copied().ok_or_else(|| io::Error::from_raw_os_error(refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(gateway: &Gateway, client: u32) -> Option<i32> {
        gateway.seen_by(IoContext(client)).unwrap_err().raw_os_error()
    }

    #[test]
    fn client_has_seen_only_what_was_known_before_its_requests() {
        let mut gateway = Gateway::default();
        let first = Instant::now();
        gateway.join(IoContext(1), first);
        assert_eq!(refusal(&gateway, 1), Some(libc::ESTALE), "nothing was known");
        gateway.learn(Ok(0));
        let before = Instant::now();
        gateway.learn(Ok(1));
        // The server accepted both before it had learned of the takeover, and one came late.
        gateway.join(IoContext(2), before);
        gateway.join(IoContext(3), Instant::now());
        gateway.join(IoContext(4), before);
        let seen = [2, 3, 4].map(|client| gateway.seen_by(IoContext(client)).unwrap());
        assert_eq!(seen, [0, 1, 0]);
    }

    #[test]
    fn writes_of_a_client_that_has_gone_are_refused() {
        let mut gateway = Gateway::default();
        gateway.learn(Ok(7));
        gateway.join(IoContext(1), Instant::now());
        assert_eq!(gateway.seen_by(IoContext(1)).unwrap(), 7);
        gateway.abandon(IoContext(1));
        assert_eq!(refusal(&gateway, 1), Some(libc::ECANCELED));
        gateway.leave(IoContext(1));
        assert_eq!(refusal(&gateway, 1), Some(libc::ESTALE));
    }

    #[test]
    fn gateway_that_cannot_ask_because_it_is_fenced_knows_that() {
        let mut gateway = Gateway::default();
        gateway.learn(Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)));
        assert!(!gateway.is_fenced);
        gateway.learn(Err(io::Error::from_raw_os_error(libc::ESHUTDOWN)));
        assert!(gateway.is_fenced);
    }

    #[test]
    fn old_numbers_are_dropped() {
        let mut gateway = Gateway::default();
        gateway.learn(Ok(0));
        let old = Instant::now();
        (1..=LEARNED_MAX as u64).for_each(|count| gateway.learn(Ok(count)));
        gateway.join(IoContext(1), old);
        assert_eq!(refusal(&gateway, 1), Some(libc::ESTALE));
        assert_eq!(gateway.learned.len(), LEARNED_MAX);
    }
}
