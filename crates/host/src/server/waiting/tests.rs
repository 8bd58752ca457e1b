use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;

use super::*;

const LIMITS: Limits = Limits { clients_max: 4, of_one_peer_max: 2, time: Duration::from_secs(10) };

/// A client that is complete with its first byte, or asks the server with a `?`.
struct OneByte(char);

impl Conversation for OneByte {
    const LEAVES_WITH: PollFlags = PollFlags::RDHUP;

    fn go_on(&mut self, socket: &Socket) -> Progress {
        let mut byte = [0];
        match socket.receive_now(&mut byte) {
            Ok(None) => Progress::WaitsFor(PollFlags::IN),
            Ok(Some(1)) if byte == *b"?" => Progress::Asks,
            Ok(Some(1)) => Progress::Complete,
            _ => Progress::Over,
        }
    }

    fn time_is_up(&mut self) -> Progress {
        Progress::Over
    }
}

/// Waiting clients named by letters, and the other ends of their sockets.
struct Room {
    waiting: Waiting<OneByte>,
    start: Instant,
    ends: Vec<UnixStream>,
}

impl Room {
    fn new() -> Self {
        Self { waiting: Waiting::new(LIMITS), start: Instant::now(), ends: Vec::new() }
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    fn enter(&mut self, second: u64, name: char, peer: Option<IpAddr>, says: &[u8]) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::io::Write::write_all(&mut &theirs, says).unwrap();
        self.ends.push(theirs);
        let socket = Socket::new(ours.into(), true);
        let now = self.at(second);
        self.waiting.admit(now, socket, peer, OneByte(name));
    }

    fn names(&self) -> String {
        self.waiting.clients.iter().map(|client| client.conversation.0).collect()
    }
}

#[test]
fn most_silent_client_goes_when_there_are_too_many_and_complete_ones_stay() {
    let mut room = Room::new();
    room.enter(0, 'a', None, b"x");
    for (second, name) in [(1, 'b'), (2, 'c'), (3, 'd'), (4, 'e'), (5, 'f')] {
        room.enter(second, name, None, b"");
    }
    assert_eq!(room.names(), "adef");
    assert!(room.waiting.make_room());
    assert_eq!(room.names(), "aef");
    assert_eq!(room.waiting.take_complete().map(|(_, one)| one.0), Some('a'));
    assert!(room.waiting.take_complete().is_none());
}

#[test]
fn nobody_is_taken_in_while_all_wait_for_a_place() {
    let mut room = Room::new();
    for (second, name) in [(0, 'a'), (1, 'b'), (2, 'c')] {
        room.enter(second, name, None, b"x");
    }
    assert!(!room.waiting.is_full());
    room.enter(3, 'd', None, b"x");
    assert!(room.waiting.is_full() && !room.waiting.make_room());
    assert_eq!(room.waiting.next_deadline(), None, "a complete client may wait forever");
    // Another client had already connected.
    room.enter(4, 'e', None, b"x");
    assert!(room.waiting.is_full());
    // Two clients leave.
    room.waiting.on_ready(room.at(5), 1);
    assert!(room.waiting.is_full());
    room.waiting.on_ready(room.at(5), 1);
    assert_eq!(room.names(), "ade");
    assert!(!room.waiting.is_full());
}

#[test]
fn client_makes_room_for_another_of_its_own_address_first() {
    let mut room = Room::new();
    let v4 = |last| Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)));
    let mapped = Some(IpAddr::V6(Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped()));
    room.enter(0, 'a', v4(2), b"");
    for (second, name, peer) in [(1, 'b', v4(1)), (2, 'c', v4(1)), (3, 'd', mapped)] {
        room.enter(second, name, peer, b"");
    }
    assert_eq!(room.names(), "acd");
    let v6 = |last| Some(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last)));
    let mut room = Room::new();
    for (second, name) in [(0, 'a'), (1, 'b'), (2, 'c')] {
        room.enter(second, name, v6(second as u16), b"");
    }
    assert_eq!(room.names(), "bc", "a /64 is one address");
}

#[test]
fn client_that_says_something_is_not_the_most_silent_but_its_time_ends_all_the_same() {
    let mut room = Room::new();
    for (second, name) in [(0, 'a'), (1, 'b')] {
        room.enter(second, name, None, b"");
    }
    room.waiting.on_ready(room.at(2), 0);
    assert!(room.waiting.make_room());
    assert_eq!(room.names(), "a");
    assert_eq!(room.waiting.next_deadline(), Some(room.at(10)));
    room.waiting.expire(room.at(9));
    assert_eq!(room.names(), "a");
    room.waiting.expire(room.at(10));
    assert_eq!(room.names(), "");
}

#[test]
fn wait_for_the_server_does_not_count_and_questions_do_not_prolong_the_time() {
    let mut room = Room::new();
    room.enter(0, 'a', None, b"?");
    assert_eq!(room.waiting.next_deadline(), None);
    room.waiting.expire(room.at(60));
    assert_eq!(room.names(), "a");
    room.waiting.answer(room.at(60), |client| client.0 != 'a');
    assert_eq!(room.waiting.next_deadline(), None, "it has no answer");
    room.waiting.answer(room.at(60), |_| true);
    assert_eq!(room.waiting.next_deadline(), Some(room.at(70)));
    // An answer at once gives no more time.
    std::io::Write::write_all(&mut &room.ends[0], b"?").unwrap();
    room.waiting.on_ready(room.at(69), 0);
    room.waiting.answer(room.at(69), |_| true);
    assert_eq!(room.waiting.next_deadline(), Some(room.at(70)));
    room.waiting.expire(room.at(70));
    assert_eq!(room.names(), "");
}

#[test]
fn questions_that_came_at_once_are_answered_at_once() {
    let mut room = Room::new();
    for (name, says) in [('a', &b"?x"[..]), ('b', b"???x"), ('c', b"??")] {
        room.enter(0, name, None, says);
    }
    let mut asked = String::new();
    room.waiting.answer(room.at(1), |client| {
        asked.push(client.0);
        true
    });
    assert_eq!(asked, "ccbbba");
    assert_eq!(room.waiting.complete().map(|one| one.0).collect::<String>(), "ab");
    // Nothing else would wake a client that has sent all.
    assert_eq!(room.waiting.next_deadline(), Some(room.at(11)));
}

#[test]
fn client_that_waits_for_an_opening_is_never_dropped_for_another() {
    let mut room = Room::new();
    for (second, name, says) in [(0, 'a', &b"?"[..]), (1, 'b', b"?"), (2, 'c', b""), (3, 'd', b"x")]
    {
        room.enter(second, name, None, says);
    }
    room.enter(4, 'e', None, b"?");
    assert_eq!(room.names(), "abde");
    assert!(room.waiting.is_full() && !room.waiting.make_room());
    room.waiting.answer(room.at(5), |client| client.0 == 'a');
    assert!(!room.waiting.is_full());
    // One address does not take the places of others in this way.
    let peer = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let mut room = Room::new();
    for (second, name) in [(0, 'a'), (1, 'b'), (2, 'c')] {
        room.enter(second, name, peer, b"?");
    }
    assert_eq!(room.names(), "ab");
}
