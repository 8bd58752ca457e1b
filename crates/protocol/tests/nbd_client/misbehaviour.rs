//! Servers that violate the rules: each violation is detected as one error before any harm.

use blockyard_protocol::nbd::client::{Request, Violation};
use blockyard_protocol::nbd::{Command, ReplyMode};

use crate::server::*;

const START: u64 = 4096;
const LEN: u64 = 1000;

fn request(command: Command) -> Request {
    match command {
        Command::Flush => Request::FLUSH,
        _ => Request::new(command, START..START + LEN),
    }
}

/// The violation of a server that answers one request with these bytes, passed at once or one by
/// one. No event may come before it.
fn caught(mode: ReplyMode, asked: Request, answer: impl Fn(Sent) -> Vec<u8>) -> Violation {
    let violations = [false, true].map(|dribble| {
        let mut client = opened(mode);
        client.dribble = dribble;
        let (cookie, sent) = client.submit(asked);
        client.feed(&answer(sent));
        assert!(!client.seen.iter().any(|seen| matches!(seen, SessionOutput::Done { .. })));
        let waiting: Vec<_> = client.session.in_flight().map(|(cookie, _)| cookie).collect();
        assert_eq!(waiting, [cookie], "what was not answered can be asked elsewhere");
        client.violation()
    });
    assert_eq!(violations[0], violations[1]);
    violations[0]
}

fn caught_in_chunks(command: Command, answer: impl Fn(Sent) -> Vec<u8>) -> Violation {
    let [structured, extended] = CHUNKS.map(|mode| caught(mode, request(command), &answer));
    assert_eq!(structured, extended);
    structured
}

#[test]
fn magic_of_another_form_is_found() {
    let ask = request(Command::Write);
    for (mode, magic) in [
        (ReplyMode::Simple, 0x668e_33ef_u32),
        (ReplyMode::Simple, 0x6e8a_278c),
        (ReplyMode::Structured, 0x6e8a_278c),
        (ReplyMode::Extended, 0x6744_6698),
        (ReplyMode::Extended, 0x668e_33ef),
        (ReplyMode::Simple, 0),
        (ReplyMode::Structured, u32::MAX),
        (ReplyMode::Extended, 0x21e4_1c71),
    ] {
        let violation = caught(mode, ask, |_| magic.to_be_bytes().to_vec());
        assert_eq!(violation, Violation::ReplyMagic(magic));
    }
}

#[test]
fn cookie_that_nobody_has_is_found() {
    for wrong in [1 << 32, 1, 127, 128, 0xffff_ffff, u64::MAX] {
        let found = caught_in_chunks(Command::Read, |sent| {
            Sent { cookie: sent.cookie ^ wrong, ..sent }.none()
        });
        assert_eq!(found, Violation::Cookie(wrong));
        let found = caught(ReplyMode::Simple, request(Command::Read), |sent| {
            simple(sent.cookie ^ wrong, 0)
        });
        assert_eq!(found, Violation::Cookie(wrong));
    }
}

#[test]
fn second_reply_to_a_request_is_found() {
    for mode in MODES {
        let mut client = opened(mode);
        let (cookie, sent) = client.submit(Request::FLUSH);
        let reply = match mode {
            ReplyMode::Simple => simple(sent.cookie, 0),
            _ => sent.none(),
        };
        client.feed(&reply);
        assert_eq!(client.take_seen(), [SessionOutput::Done { cookie, result: Ok(()) }]);
        // Even if the slot has its next request.
        let (next, _) = client.submit(Request::FLUSH);
        assert_eq!(next.slot(), cookie.slot());
        client.feed(&reply);
        assert_eq!(client.violation(), Violation::Cookie(sent.cookie));
    }
}

#[test]
fn chunk_after_the_final_one_is_found() {
    for mode in CHUNKS {
        let mut client = opened(mode);
        let (_, sent) = client.submit(request(Command::Read));
        client.feed(&sent.hole(true, START, LEN as u32));
        client.take_seen();
        client.feed(&sent.hole(false, START, LEN as u32));
        assert_eq!(client.violation(), Violation::Cookie(sent.cookie));
    }
}

#[test]
fn content_outside_its_request_is_found() {
    for (offset, len) in [
        (START - 1, 1),
        (START - 1, 2),
        (START + LEN, 1),
        (START + LEN - 1, 2),
        (0, LEN),
        (u64::MAX, 1),
        (u64::MAX - LEN + 1, LEN),
    ] {
        let range = Violation::ChunkRange { offset_bytes: offset, len_bytes: len };
        let data = vec![1; len as usize];
        let found = caught_in_chunks(Command::Read, |sent| sent.data(false, offset, &data));
        assert_eq!(found, range);
        let found = caught_in_chunks(Command::Read, |sent| sent.hole(false, offset, len as u32));
        assert_eq!(found, range);
    }
    let found = caught_in_chunks(Command::Read, |sent| sent.hole(true, START, 0));
    assert_eq!(found, Violation::ChunkRange { offset_bytes: START, len_bytes: 0 });
    let found = caught_in_chunks(Command::Read, |sent| sent.hole(true, START, u32::MAX));
    assert!(matches!(found, Violation::ChunkRange { .. }));
}

#[test]
fn length_that_is_a_lie_is_found_before_it_is_read() {
    for (kind, len) in [
        (DATA, 0),
        (DATA, 8),
        (DATA, LEN + 9),
        (DATA, u64::from(u32::MAX)),
        (HOLE, 11),
        (HOLE, 13),
        (NONE, 1),
        (ERROR, 5),
        (ERROR, 8193),
        (ERROR, u64::from(u32::MAX)),
        (ERROR_OFFSET, 13),
        (0x8777, 5),
    ] {
        let found = caught_in_chunks(Command::Read, |sent| sent.header(true, kind, len));
        assert_eq!(found, Violation::ChunkLen { kind, len_bytes: len });
    }
    let extended = |kind, len| {
        caught(ReplyMode::Extended, request(Command::Read), |sent| sent.header(true, kind, len))
    };
    for len in [1 << 32, u64::MAX, u64::MAX - 7] {
        for kind in [DATA, HOLE, NONE, ERROR] {
            assert_eq!(extended(kind, len), Violation::ChunkLen { kind, len_bytes: len });
        }
    }
    for (mode, kind, lens) in [
        (ReplyMode::Structured, STATUS, [0, 4, 11, 13, u64::from(u32::MAX)]),
        (ReplyMode::Extended, STATUS_EXT, [0, 8, 23, 25, u64::MAX - 7]),
    ] {
        for len in lens {
            let found =
                caught(mode, request(Command::BlockStatus), |sent| sent.header(true, kind, len));
            assert_eq!(found, Violation::ChunkLen { kind, len_bytes: len });
        }
    }
}

#[test]
fn type_that_does_not_answer_the_command_is_found() {
    for kind in [DATA, HOLE, STATUS, STATUS_EXT, 3, 4, 7, 0x7fff] {
        for command in [Command::Write, Command::Flush, Command::Trim, Command::WriteZeroes] {
            let found = caught_in_chunks(command, |sent| sent.header(true, kind, 12));
            assert_eq!(found, Violation::ChunkType(kind));
        }
    }
    for kind in [STATUS, STATUS_EXT, 3] {
        let found = caught_in_chunks(Command::Read, |sent| sent.header(true, kind, 24));
        assert_eq!(found, Violation::ChunkType(kind));
    }
    let status = request(Command::BlockStatus);
    for (mode, kind) in [(ReplyMode::Structured, STATUS_EXT), (ReplyMode::Extended, STATUS)] {
        let found = caught(mode, status, |sent| sent.header(true, kind, 24));
        assert_eq!(found, Violation::ChunkType(kind));
    }
}

#[test]
fn overlap_is_found() {
    let found = caught_in_chunks(Command::Read, |sent| {
        [sent.data(false, START, &[1; 600]), sent.data(true, START + 599, &[2; 401])].concat()
    });
    assert_eq!(found, Violation::Overlap);
    let found = caught_in_chunks(Command::Read, |sent| {
        [sent.hole(false, START + 500, 10), sent.data(false, START, &[2; 501])].concat()
    });
    assert_eq!(found, Violation::Overlap);
}

#[test]
fn success_without_all_data_is_found_before_the_last_data_is_told() {
    let found = caught_in_chunks(Command::Read, Sent::none);
    assert_eq!(found, Violation::MissingData);
    for mode in CHUNKS {
        let mut client = opened(mode);
        let (cookie, sent) = client.submit(request(Command::Read));
        client.feed(&sent.data(false, START, &[1; 10]));
        client.feed(&sent.data(true, START + 11, &[1; 989]));
        assert_eq!(client.violation(), Violation::MissingData);
        let first = SessionOutput::Payload { cookie, start: 0, data: vec![1; 10] };
        assert_eq!(client.seen[..client.seen.len() - 1], [first]);
    }
    let found = caught_in_chunks(Command::Read, |sent| sent.hole(true, START, 999));
    assert_eq!(found, Violation::MissingData);
}

#[test]
fn read_in_a_million_places_is_given_up() {
    for mode in CHUNKS {
        let mut client = opened(mode);
        let (_, sent) = client.submit(Request::new(Command::Read, 0..1 << 20));
        for place in 0..1 << 13 {
            client.feed(&sent.hole(false, 2 * place + 1, 1));
            client.seen.retain(|seen| matches!(seen, SessionOutput::Broken(_)));
        }
        assert_eq!(client.violation(), Violation::TooScattered);
    }
}

#[test]
fn form_that_does_not_fit_the_request_is_found() {
    let read = request(Command::Read);
    for error in [0, 5] {
        let found = caught(ReplyMode::Structured, read, |sent| simple(sent.cookie, error));
        assert_eq!(found, Violation::SimpleReplyToRead);
    }
    let found = caught(ReplyMode::Structured, request(Command::Write), |sent| {
        [sent.error(false, 5, b""), simple(sent.cookie, 0)].concat()
    });
    assert_eq!(found, Violation::SimpleReplyToChunks);
    let found = caught_in_chunks(Command::Write, |sent| sent.header(false, NONE, 0));
    assert_eq!(found, Violation::NoneWithoutDone);
    let found = caught(ReplyMode::Extended, read, |sent| Sent { offset: 0, ..sent }.none());
    assert_eq!(found, Violation::ReplyOffset(0));
}

#[test]
fn error_that_is_none_or_does_not_fit_is_found() {
    for command in [Command::Read, Command::Write, Command::Flush, Command::BlockStatus] {
        let found = caught_in_chunks(command, |sent| sent.error(true, 0, b"fine"));
        assert_eq!(found, Violation::ErrorZero);
    }
    let message = |kind, len: u16, room: usize| {
        let body = [&error_body(5, b"")[..4], &len.to_be_bytes(), &vec![b'x'; room]].concat();
        caught_in_chunks(Command::Read, |sent| sent.chunk(true, kind, &body))
    };
    assert_eq!(message(ERROR, 11, 10), Violation::MessageLen(11));
    assert_eq!(message(ERROR, u16::MAX, 10), Violation::MessageLen(u16::MAX));
    assert_eq!(message(ERROR, 4097, 4097), Violation::MessageLen(4097));
    assert_eq!(message(ERROR_OFFSET, 3, 10), Violation::MessageLen(3));
    assert_eq!(message(0x8777, 11, 10), Violation::MessageLen(11));
    for offset in [START - 1, START + LEN, u64::MAX] {
        let found = caught_in_chunks(Command::Write, |sent| sent.error_at(true, 5, offset));
        assert_eq!(found, Violation::ChunkRange { offset_bytes: offset, len_bytes: 1 });
    }
    let found = caught_in_chunks(Command::Flush, |sent| sent.error_at(true, 5, 0));
    assert!(matches!(found, Violation::ChunkRange { .. }), "a flush has no place");
}

#[test]
fn block_status_that_makes_no_sense_is_found() {
    let status = |answer: &dyn Fn(Sent) -> Vec<u8>| caught_in_chunks(Command::BlockStatus, answer);
    assert_eq!(status(&Sent::none), Violation::StatusCount);
    let found =
        caught(ReplyMode::Structured, request(Command::BlockStatus), |sent| simple(sent.cookie, 0));
    assert_eq!(found, Violation::StatusCount);
    let found = status(&|sent| sent.status(false, CONTEXT, &[(10, 0)]).repeat(2));
    assert_eq!(found, Violation::StatusCount);
    let found = status(&|sent| sent.status(true, CONTEXT ^ 1, &[(10, 0)]));
    assert_eq!(found, Violation::ContextId(CONTEXT ^ 1));
    for extents in [&[(0, 0)][..], &[(10, 0), (0, 0)], &[(LEN, 0), (1, 0)]] {
        let found = status(&|sent| sent.status(true, CONTEXT, extents));
        assert_eq!(found, Violation::ExtentRange);
    }
    let one = Request { req_one: true, ..request(Command::BlockStatus) };
    for mode in CHUNKS {
        let found = caught(mode, one, |sent| sent.status(true, CONTEXT, &[(1, 0), (1, 0)]));
        assert_eq!(found, Violation::DescriptorCount(2));
    }
    for count in [0, 2, u32::MAX] {
        let found = caught(ReplyMode::Extended, request(Command::BlockStatus), |sent| {
            let mut bytes = sent.status(true, CONTEXT, &[(10, 0)]);
            bytes[36..40].copy_from_slice(&count.to_be_bytes());
            bytes
        });
        assert_eq!(found, Violation::DescriptorCount(count));
    }
}
