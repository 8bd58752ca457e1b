//! Accepted requests and their encoding, and refused requests.

use blockyard_protocol::nbd::client::{Failure, Refusal, Request, Settings};
use blockyard_protocol::nbd::{Command, Errno, ReplyMode};

use crate::server::*;

/// The header of a request, without its cookie.
fn header(mode: ReplyMode, request: Request) -> (Vec<u8>, Vec<u8>) {
    let mut client = opened(mode);
    client.session.submit(&request, &mut client.out).expect("it can be sent");
    let bytes = client.take_out();
    (bytes[..8].to_vec(), bytes[16..].to_vec())
}

#[test]
fn request_looks_as_the_specification_has_it() {
    let read = Request::new(Command::Read, 0x1_0000_0200..0x1_0000_0400);
    for mode in [ReplyMode::Simple, ReplyMode::Structured] {
        let (begin, end) = header(mode, read);
        assert_eq!(begin, [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0]);
        assert_eq!(end, [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 2, 0]);
    }
    let (begin, end) = header(ReplyMode::Extended, read);
    assert_eq!(begin, [0x21, 0xe4, 0x1c, 0x71, 0, 0, 0, 0]);
    assert_eq!(end, [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
}

#[test]
fn flags_and_command_are_those_that_were_asked_for() {
    let new = |command| Request::new(command, 0..512);
    for (request, flags, extended_flags, number) in [
        (new(Command::Read), 0, 0, 0),
        (new(Command::Write), 0, 32, 1),
        (Request { fua: true, ..new(Command::Write) }, 1, 33, 1),
        (Request::FLUSH, 0, 0, 3),
        (Request { fua: true, ..new(Command::Trim) }, 1, 1, 4),
        (new(Command::Cache), 0, 0, 5),
        (new(Command::WriteZeroes), 0, 0, 6),
        (Request { no_hole: true, ..new(Command::WriteZeroes) }, 2, 2, 6),
        (Request { fast_zero: true, fua: true, ..new(Command::WriteZeroes) }, 17, 17, 6),
        (new(Command::BlockStatus), 0, 0, 7),
        (Request { req_one: true, ..new(Command::BlockStatus) }, 8, 8, 7),
    ] {
        let (begin, _) = header(ReplyMode::Structured, request);
        assert_eq!(begin[4..], [0, flags, 0, number], "{request:?}");
        let (begin, _) = header(ReplyMode::Extended, request);
        assert_eq!(begin[4..], [0, extended_flags, 0, number], "{request:?}");
    }
}

#[test]
fn length_beyond_32_bits_needs_extended_headers() {
    let zeroes = Request::new(Command::WriteZeroes, 0..SIZE);
    let (_, end) = header(ReplyMode::Extended, zeroes);
    assert_eq!(end[8..], SIZE.to_be_bytes());
    let mut client = opened(ReplyMode::Structured);
    let refusal = client.session.submit(&zeroes, &mut client.out);
    assert_eq!(refusal, Err(Refusal::TooLong(u64::from(u32::MAX))));
    assert!(client.out.is_empty());
    let limit = client.session.remote().expect("it is open").len_max_bytes(Command::WriteZeroes);
    assert_eq!(limit, u64::from(u32::MAX));
}

#[test]
fn no_more_are_in_flight_than_were_agreed_on() {
    let mut client = Client::new(Settings { in_flight_max: 3, ..settings(ReplyMode::Simple) });
    opening(ReplyMode::Simple).iter().for_each(|bytes| client.feed(bytes));
    client.take_seen();
    let sent: Vec<_> = (0..3).map(|_| client.submit(Request::FLUSH)).collect();
    let slots: Vec<_> = sent.iter().map(|(cookie, _)| cookie.slot()).collect();
    assert_eq!(slots, [0, 1, 2]);
    assert_eq!(client.session.submit(&Request::FLUSH, &mut client.out), Err(Refusal::Busy));
    assert!(client.out.is_empty(), "what was refused is not sent");

    client.feed(&simple(sent[1].1.cookie, 0));
    assert_eq!(client.take_seen(), [SessionOutput::Done { cookie: sent[1].0, result: Ok(()) }]);
    assert_eq!(client.session.in_flight_count(), 2);
    let (again, _) = client.submit(Request::FLUSH);
    assert_eq!(again.slot(), 1);
    assert_ne!(again, sent[1].0, "a slot's requests have different names");
    let waiting: Vec<_> = client.session.in_flight().map(|(cookie, _)| cookie).collect();
    assert_eq!(waiting, [sent[0].0, again, sent[2].0]);
}

#[test]
fn nothing_can_be_asked_before_it_is_open_or_after_the_goodbye() {
    let mut early = Client::new(settings(ReplyMode::Simple));
    assert_eq!(early.session.submit(&Request::FLUSH, &mut early.out), Err(Refusal::NotOpen));
    for (mode, len, magic) in
        [(ReplyMode::Structured, 28, 0x2560_9513_u32), (ReplyMode::Extended, 32, 0x21e4_1c71)]
    {
        let mut client = opened(mode);
        let (cookie, sent) = client.submit(Request::FLUSH);
        client.session.disconnect(&mut client.out);
        client.session.disconnect(&mut client.out);
        let goodbye = client.take_out();
        assert_eq!(goodbye.len(), len, "it is said once");
        assert_eq!(goodbye[..8], [&magic.to_be_bytes()[..], &[0, 0, 0, 2]].concat());
        assert_eq!(client.session.submit(&Request::FLUSH, &mut client.out), Err(Refusal::Closing));
        // Earlier requests may still be answered.
        client.feed(&sent.none());
        assert_eq!(client.take_seen(), [SessionOutput::Done { cookie, result: Ok(()) }]);
        assert_eq!(client.session.on_eof(), &Failure::Closed { in_flight: 0 });
        assert_eq!(client.session.submit(&Request::FLUSH, &mut client.out), Err(Refusal::NotOpen));
    }
}

#[test]
fn server_that_shuts_down_is_asked_nothing_new() {
    let mut client = opened(ReplyMode::Simple);
    let (cookie, sent) = client.submit(Request::FLUSH);
    client.feed(&simple(sent.cookie, 108));
    assert_eq!(client.take_seen(), [SessionOutput::Done { cookie, result: Err(Errno::Shutdown) }]);
    assert_eq!(client.session.submit(&Request::FLUSH, &mut client.out), Err(Refusal::Closing));
    client.session.disconnect(&mut client.out);
    assert_eq!(client.out.len(), 28, "the specification wants the goodbye");
}

#[test]
fn lost_connection_leaves_the_list_of_what_was_not_answered() {
    let mut client = opened(ReplyMode::Extended);
    let (read, sent) = client.submit(Request::new(Command::Read, 0..512));
    let (write, _) = client.submit(Request::new(Command::Write, 512..1024));
    client.feed(&sent.data(false, 0, &[1; 100]));
    assert_eq!(client.session.on_eof(), &Failure::Closed { in_flight: 2 });
    let waiting: Vec<_> = client.session.in_flight().map(|(cookie, _)| cookie).collect();
    assert_eq!(waiting, [read, write]);
    client.feed(&sent.none());
    assert_eq!(client.failure(), Failure::Closed { in_flight: 2 });
}
