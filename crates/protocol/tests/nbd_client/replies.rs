//! Valid replies.

use blockyard_protocol::nbd::client::{Event, Piece, Request};
use blockyard_protocol::nbd::{Command, Errno, Extent, ReplyMode};

use crate::server::*;

fn read(range: std::ops::Range<u64>) -> Request {
    Request::new(Command::Read, range)
}

#[test]
fn read_by_simple_reply_is_one_piece() {
    let mut client = opened(ReplyMode::Simple);
    let (first, first_sent) = client.submit(read(1000..1004));
    let (second, second_sent) = client.submit(read(0..3));
    client.feed(&[&simple(second_sent.cookie, 0), &b"abc"[..]].concat());
    client.feed(&[&simple(first_sent.cookie, 0), &b"wxyz"[..]].concat());
    assert_eq!(
        client.take_seen(),
        [
            SessionOutput::Payload { cookie: second, start: 0, data: b"abc".to_vec() },
            SessionOutput::Done { cookie: second, result: Ok(()) },
            SessionOutput::Payload { cookie: first, start: 0, data: b"wxyz".to_vec() },
            SessionOutput::Done { cookie: first, result: Ok(()) },
        ]
    );
}

#[test]
fn simple_error_has_no_payload() {
    let mut client = opened(ReplyMode::Simple);
    let (cookie, sent) = client.submit(read(0..4096));
    client.feed(&simple(sent.cookie, 5));
    assert_eq!(client.take_seen(), [SessionOutput::Done { cookie, result: Err(Errno::Io) }]);
}

#[test]
fn chunks_of_a_read_come_in_any_order_and_between_others() {
    for mode in CHUNKS {
        let mut client = opened(mode);
        let (a, a_sent) = client.submit(read(100..110));
        let (b, b_sent) = client.submit(read(100..110));
        client.feed(&a_sent.data(false, 106, b"6789"));
        client.feed(&b_sent.hole(false, 100, 9));
        client.feed(&a_sent.hole(false, 100, 4));
        client.feed(&b_sent.data(true, 109, b"9"));
        client.feed(&a_sent.data(false, 104, b"45"));
        client.feed(&a_sent.none());
        assert_eq!(
            client.take_seen(),
            [
                SessionOutput::Payload { cookie: a, start: 6, data: b"6789".to_vec() },
                SessionOutput::Zeroes { cookie: b, start: 0, len: 9 },
                SessionOutput::Zeroes { cookie: a, start: 0, len: 4 },
                SessionOutput::Payload { cookie: b, start: 9, data: b"9".to_vec() },
                SessionOutput::Done { cookie: b, result: Ok(()) },
                SessionOutput::Payload { cookie: a, start: 4, data: b"45".to_vec() },
                SessionOutput::Done { cookie: a, result: Ok(()) },
            ]
        );
    }
}

#[test]
fn error_among_chunks_fails_the_request_when_it_is_over() {
    for mode in CHUNKS {
        let mut client = opened(mode);
        client.dribble = true;
        let (cookie, sent) = client.submit(read(0..1000));
        client.feed(&sent.error_at(false, 5, 999));
        client.feed(&sent.error(false, 12, b"and \x07more"));
        client.feed(&sent.chunk(false, 0x8777, &[&error_body(1, b""), &[7; 50][..]].concat()));
        assert_eq!(client.take_seen(), []);
        client.feed(&sent.none());
        let result = Err(Errno::Io);
        assert_eq!(
            client.take_seen(),
            [SessionOutput::Done { cookie, result }],
            "the first error counts"
        );
        let (cookie, sent) = client.submit(read(0..1000));
        client.feed(&sent.error(true, 12, b"and \x07more"));
        assert_eq!(client.take_seen(), [SessionOutput::Done { cookie, result: Err(Errno::NoMem) }]);
        assert_eq!(client.session.message(), "and \\u{7}more");
    }
}

#[test]
fn error_of_the_server_keeps_its_meaning() {
    let errors = [
        (1, Errno::Perm),
        (5, Errno::Io),
        (12, Errno::NoMem),
        (22, Errno::Inval),
        (28, Errno::NoSpc),
        (75, Errno::Overflow),
        (95, Errno::NotSup),
    ];
    let mut client = opened(ReplyMode::Structured);
    for (code, errno) in errors {
        let (cookie, sent) = client.submit(Request::FLUSH);
        client.feed(&sent.error(true, code, b""));
        assert_eq!(client.take_seen(), [SessionOutput::Done { cookie, result: Err(errno) }]);
    }
}

#[test]
fn error_that_is_unknown_counts_as_invalid() {
    let mut client = opened(ReplyMode::Structured);
    let (cookie, sent) = client.submit(Request::FLUSH);
    client.feed(&sent.error(true, 4711, b""));
    assert_eq!(client.take_seen(), [SessionOutput::Done { cookie, result: Err(Errno::Inval) }]);
}

#[test]
fn structured_server_may_answer_all_but_reads_simply() {
    let mut client = opened(ReplyMode::Structured);
    let (write, write_sent) = client.submit(Request::new(Command::Write, 0..512));
    let (status, status_sent) = client.submit(Request::new(Command::BlockStatus, 0..512));
    client.feed(&simple(write_sent.cookie, 0));
    client.feed(&simple(status_sent.cookie, 22));
    assert_eq!(
        client.take_seen(),
        [
            SessionOutput::Done { cookie: write, result: Ok(()) },
            SessionOutput::Done { cookie: status, result: Err(Errno::Inval) },
        ]
    );
}

#[test]
fn flags_of_a_chunk_that_are_unknown_are_ignored() {
    let mut client = opened(ReplyMode::Extended);
    let (cookie, sent) = client.submit(Request::FLUSH);
    let mut bytes = sent.none();
    bytes[4] = 0xff;
    client.feed(&bytes);
    assert_eq!(client.take_seen(), [SessionOutput::Done { cookie, result: Ok(()) }]);
}

#[test]
fn extents_end_with_the_request() {
    for mode in CHUNKS {
        let mut client = opened(mode);
        client.dribble = true;
        let (cookie, sent) = client.submit(Request::new(Command::BlockStatus, 512..5120));
        // Unknown flags of later specifications are ignored.
        client.feed(&sent.status(true, CONTEXT, &[(512, 3), (1024, 0), (1 << 30, 0x42)]));
        let extent = |len_bytes, hole, zero| SessionOutput::Extent {
            cookie,
            extent: Extent { len_bytes, hole, zero },
        };
        assert_eq!(
            client.take_seen(),
            [
                extent(512, true, true),
                extent(1024, false, false),
                extent(4608 - 512 - 1024, false, true),
                SessionOutput::Done { cookie, result: Ok(()) },
            ]
        );
    }
}

#[test]
fn extents_may_tell_less_than_was_asked() {
    let mut client = opened(ReplyMode::Extended);
    let request = Request { req_one: true, ..Request::new(Command::BlockStatus, 0..SIZE) };
    let (cookie, sent) = client.submit(request);
    client.feed(&sent.status(false, CONTEXT, &[(5 << 30, 1)]));
    client.feed(&sent.none());
    let extent = Extent { len_bytes: 5 << 30, hole: true, zero: false };
    assert_eq!(
        client.take_seen(),
        [SessionOutput::Extent { cookie, extent }, SessionOutput::Done { cookie, result: Ok(()) }]
    );
}

#[test]
fn payload_can_be_received_past_the_session() {
    for mode in MODES {
        let mut client = opened(mode);
        let (cookie, sent) = client.submit(read(0..10_000));
        assert_eq!(client.session.payload_expected(), None);
        let mut stream = match mode {
            ReplyMode::Simple => simple(sent.cookie, 0),
            _ => sent.header(true, DATA, 10_008),
        };
        if mode != ReplyMode::Simple {
            stream.extend_from_slice(&[0; 8]);
        }
        // A hundred bytes arrived together with the header.
        stream.extend_from_slice(&[7; 100]);
        client.feed(&stream);
        let seen = client.take_seen();
        assert_eq!(seen, [SessionOutput::Payload { cookie, start: 0, data: vec![7; 100] }]);
        let piece = |start_bytes, len_bytes| Some(Piece { cookie, start_bytes, len_bytes });
        assert_eq!(client.session.payload_expected(), piece(100, 9900));
        client.session.payload_received(9000);
        assert_eq!(client.session.payload_expected(), piece(9100, 900));
        client.session.payload_received(900);
        assert_eq!(client.session.payload_expected(), None);
        let step = client.session.on_bytes(&[], &mut client.out);
        assert_eq!((step.consumed, step.event), (0, Event::Done { cookie, result: Ok(()) }));
    }
}

#[test]
#[should_panic(expected = "more than the payload")]
fn payload_that_was_not_expected_is_the_callers_fault() {
    let mut client = opened(ReplyMode::Simple);
    let (_, sent) = client.submit(read(0..512));
    client.feed(&simple(sent.cookie, 0));
    client.session.payload_received(513);
}
