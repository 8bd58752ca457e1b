//! Clients in their handshake, or waiting for room.
//!
//! They have no thread and do not block other clients: the accepting thread waits for all of them
//! at once. A silent client costs a descriptor, until its time limit or until another client needs
//! the descriptor.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::socket::Socket;

/// The messages between a client and the server until the client can be served.
pub(super) trait Conversation {
    /// Poll event of a client that leaves after its conversation is complete, besides the end of
    /// both directions.
    const LEAVES_WITH: PollFlags;

    /// Sends and receives without waiting.
    fn go_on(&mut self, socket: &Socket) -> Progress;

    /// Handles the time limit.
    fn time_is_up(&mut self) -> Progress;
}

/// State of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It continues when the socket has one of these events.
    WaitsFor(PollFlags),
    /// It continues when the server has opened what the client asks for. It has no time limit.
    Asks,
    /// The client can be served when there is room.
    Complete,
    /// The connection has ended or must end.
    Over,
}

/// Limits of number and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) clients_max: usize,
    /// Limit per TCP address.
    pub(super) of_one_peer_max: usize,
    /// Time limit of a conversation.
    pub(super) time: Duration,
}

/// A waiting client.
struct Client<C> {
    socket: Socket,
    /// Address of the client; `None` on Unix sockets.
    peer: Option<IpAddr>,
    deadline: Instant,
    /// Time of the last event of its socket.
    heard: Instant,
    progress: Progress,
    conversation: C,
}

impl<C> Client<C> {
    fn is_complete(&self) -> bool {
        self.progress == Progress::Complete
    }

    fn waits_for_the_server(&self) -> bool {
        matches!(self.progress, Progress::Asks | Progress::Complete)
    }
}

/// All waiting clients of one kind of listener, in the order of arrival.
pub(super) struct Waiting<C> {
    limits: Limits,
    clients: Vec<Client<C>>,
}

impl<C: Conversation> Waiting<C> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, clients: Vec::new() }
    }

    /// Whether no client can be admitted, because all clients wait for the server.
    pub(super) fn is_full(&self) -> bool {
        self.clients.len() >= self.limits.clients_max
            && self.clients.iter().all(Client::waits_for_the_server)
    }

    /// Admits a client. Above the limit, drops the client that has been silent for longest, first
    /// of the same address: a client that waits for the server is not silent. An address whose
    /// clients have asked, and wait, gets no more.
    pub(super) fn admit(&mut self, now: Instant, socket: Socket, peer: Option<IpAddr>, new: C) {
        let peer = peer.map(network);
        let mut of_peer = self.clients.iter().filter(|client| client.peer == peer);
        let has_asked = of_peer.clone().any(|client| client.progress == Progress::Asks);
        if peer.is_some()
            && of_peer.nth(self.limits.of_one_peer_max - 1).is_some()
            && !self.drop_most_silent(|client| client.peer == peer)
            && has_asked
        {
            return;
        }
        if self.clients.len() >= self.limits.clients_max {
            self.drop_most_silent(|_| true);
        }
        let deadline = now + self.limits.time;
        let progress = Progress::WaitsFor(PollFlags::IN);
        let conversation = new;
        self.clients.push(Client { socket, peer, deadline, heard: now, progress, conversation });
        self.go_on(now, self.clients.len() - 1);
    }

    /// Drops the client that has been silent for longest, to free its descriptor. Returns whether
    /// there was one.
    pub(super) fn make_room(&mut self) -> bool {
        self.drop_most_silent(|_| true)
    }

    fn drop_most_silent(&mut self, among: impl Fn(&Client<C>) -> bool) -> bool {
        let silent = self.clients.iter().enumerate();
        let silent = silent.filter(|(_, client)| !client.waits_for_the_server() && among(client));
        let most = silent.min_by_key(|(_, client)| client.heard).map(|(index, _)| index);
        most.map(|index| self.clients.remove(index)).is_some()
    }

    /// Events to poll for, one entry for each client; for complete clients only their leaving.
    pub(super) fn sources(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.clients.iter().map(|client| match client.progress {
            Progress::WaitsFor(events) => (client.socket.as_fd(), events),
            Progress::Asks | Progress::Complete | Progress::Over => {
                (client.socket.as_fd(), C::LEAVES_WITH)
            }
        })
    }

    /// Handles an event of the client at this index in [`Waiting::sources`]. If the client is
    /// removed, later ones move up.
    pub(super) fn on_ready(&mut self, now: Instant, index: usize) {
        if self.clients[index].waits_for_the_server() {
            drop(self.clients.remove(index));
        } else {
            self.go_on(now, index);
        }
    }

    fn go_on(&mut self, now: Instant, index: usize) {
        let client = &mut self.clients[index];
        client.heard = now;
        client.progress = client.conversation.go_on(&client.socket);
        if client.progress == Progress::Over {
            self.clients.remove(index);
        }
    }

    /// The next time limit of a client.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let talking = self.clients.iter().filter(|client| !client.waits_for_the_server());
        talking.map(|client| client.deadline).min()
    }

    /// Ends conversations past their time limit.
    pub(super) fn expire(&mut self, now: Instant) {
        self.clients.retain_mut(|client| {
            if !client.waits_for_the_server() && client.deadline <= now {
                client.progress = client.conversation.time_is_up();
            }
            client.progress != Progress::Over
        });
    }

    /// Drops all clients.
    pub(super) fn end(&mut self) {
        self.clients.clear();
    }

    /// Lets clients continue that ask the server, if the function has answered them. The time of
    /// their wait does not count. A client may have sent several questions at once.
    pub(super) fn answer(&mut self, now: Instant, mut answers: impl FnMut(&mut C) -> bool) {
        let mut index = self.clients.len();
        while index > 0 {
            let len = self.clients.len();
            let client = &mut self.clients[index - 1];
            if client.progress != Progress::Asks || !answers(&mut client.conversation) {
                index -= 1;
                continue;
            }
            client.deadline += now.saturating_duration_since(client.heard);
            self.go_on(now, index - 1);
            // Without the client, the one before it is next.
            index -= len - self.clients.len();
        }
    }

    /// Complete clients, which wait for room.
    pub(super) fn complete(&self) -> impl Iterator<Item = &C> {
        let complete = self.clients.iter().filter(|client| client.is_complete());
        complete.map(|client| &client.conversation)
    }

    /// Takes the first complete client.
    pub(super) fn take_complete(&mut self) -> Option<(Socket, C)> {
        let index = self.clients.iter().position(Client::is_complete)?;
        let client = self.clients.remove(index);
        Some((client.socket, client.conversation))
    }
}

/// The unit of an address limit: a client may own a whole IPv6 /64.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        IpAddr::V4(address) => IpAddr::V4(address),
    }
}

#[cfg(test)]
mod tests;
