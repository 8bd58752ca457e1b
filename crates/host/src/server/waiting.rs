//! Clients that have connected and have not yet said what they want.
//!
//! They have no thread and take no place from anybody: the thread that accepts waits for all of
//! them at once and never blocks for one. A client that says nothing costs a descriptor until its
//! time is up, or until another client needs it.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::socket::Socket;

/// What a client and the server say to each other until it is clear what the client wants.
pub(super) trait Conversation {
    /// The event that says that a client has left whose conversation is complete, besides the end
    /// of both directions.
    const LEAVES_WITH: PollFlags;

    /// Sends and receives what is possible without waiting.
    fn go_on(&mut self, socket: &Socket) -> Progress;

    /// The client has had its time.
    fn time_is_up(&mut self) -> Progress;
}

/// Where a conversation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It goes on when the socket has one of these events.
    WaitsFor(PollFlags),
    /// The client is to be served as soon as there is a place.
    Complete,
    /// The connection has ended, or has to.
    Over,
}

/// How many may wait, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) clients_max: usize,
    /// Of one address on TCP.
    pub(super) of_one_peer_max: usize,
    /// Until a conversation is complete.
    pub(super) time: Duration,
}

/// A waiting client.
struct Client<C> {
    socket: Socket,
    /// Clients on unix sockets have none.
    peer: Option<IpAddr>,
    deadline: Instant,
    /// When its socket was last ready.
    heard: Instant,
    progress: Progress,
    conversation: C,
}

impl<C> Client<C> {
    fn is_complete(&self) -> bool {
        self.progress == Progress::Complete
    }
}

/// All that wait at one kind of door, in the order in which they came.
pub(super) struct Waiting<C> {
    limits: Limits,
    clients: Vec<Client<C>>,
}

impl<C: Conversation> Waiting<C> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, clients: Vec::new() }
    }

    /// Whether nobody can be taken in: all who wait are complete, and want a place to be served.
    pub(super) fn is_full(&self) -> bool {
        self.clients.len() >= self.limits.clients_max
            && self.clients.iter().all(Client::is_complete)
    }

    /// Takes a client in, and drops the one that has been silent for longest if that makes too
    /// many: of its own address first.
    pub(super) fn admit(&mut self, now: Instant, socket: Socket, peer: Option<IpAddr>, new: C) {
        let peer = peer.map(network);
        let of_peer = self.clients.iter().filter(|client| client.peer == peer);
        if peer.is_some() && of_peer.count() >= self.limits.of_one_peer_max {
            self.drop_most_silent(|client| client.peer == peer);
        }
        if self.clients.len() >= self.limits.clients_max {
            self.drop_most_silent(|_| true);
        }
        let deadline = now + self.limits.time;
        let (progress, conversation) = (Progress::WaitsFor(PollFlags::IN), new);
        self.clients.push(Client { socket, peer, deadline, heard: now, progress, conversation });
        self.go_on(now, self.clients.len() - 1);
    }

    /// Drops the client that has been silent for longest, to have its descriptor. Whether there was
    /// one.
    pub(super) fn make_room(&mut self) -> bool {
        self.drop_most_silent(|_| true)
    }

    fn drop_most_silent(&mut self, among: impl Fn(&Client<C>) -> bool) -> bool {
        let silent = self.clients.iter().enumerate();
        let silent = silent.filter(|(_, client)| !client.is_complete() && among(client));
        let most = silent.min_by_key(|(_, client)| client.heard).map(|(index, _)| index);
        most.map(|index| self.clients.remove(index)).is_some()
    }

    /// What to wait for, one for each client. Of those that are complete only whether they leave.
    pub(super) fn sources(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        self.clients.iter().map(|client| match client.progress {
            Progress::WaitsFor(events) => (client.socket.as_fd(), events),
            Progress::Complete | Progress::Over => (client.socket.as_fd(), C::LEAVES_WITH),
        })
    }

    /// The client at this place in [`Waiting::sources`] has an event. Those behind it move up if it
    /// is over.
    pub(super) fn on_ready(&mut self, now: Instant, index: usize) {
        match self.clients[index].is_complete() {
            true => drop(self.clients.remove(index)),
            false => self.go_on(now, index),
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

    /// When somebody's time is up.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let talking = self.clients.iter().filter(|client| !client.is_complete());
        talking.map(|client| client.deadline).min()
    }

    /// Ends the conversations whose time is up.
    pub(super) fn expire(&mut self, now: Instant) {
        self.clients.retain_mut(|client| {
            if !client.is_complete() && client.deadline <= now {
                client.progress = client.conversation.time_is_up();
            }
            client.progress != Progress::Over
        });
    }

    /// Drops all of them.
    pub(super) fn end(&mut self) {
        self.clients.clear();
    }

    /// The client that is complete and came first.
    pub(super) fn take_complete(&mut self) -> Option<(Socket, C)> {
        let index = self.clients.iter().position(Client::is_complete)?;
        let client = self.clients.remove(index);
        Some((client.socket, client.conversation))
    }
}

/// What counts as one address: a client has a whole /64 of IPv6.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) >> 64 << 64).into()),
        IpAddr::V4(address) => IpAddr::V4(address),
    }
}

#[cfg(test)]
mod tests;
