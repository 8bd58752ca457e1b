//! The handshake: order of the options, compatible servers, and the error for each refusal.

use blockyard_protocol::nbd::client::{Failure, RemoteError, Session, Settings, Violation};
use blockyard_protocol::nbd::{ExportError, ReplyMode};

use crate::server::*;

/// An option in a client's encoding.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn go() -> Vec<u8> {
    option(GO, b"\0\0\0\x04disk\0\x01\0\x03")
}

/// Plays a server that answers each option; returns what the client sent after each answer.
fn play(client: &mut Client, answers: &[Vec<u8>]) -> Vec<Vec<u8>> {
    answers
        .iter()
        .map(|answer| {
            client.feed(answer);
            client.take_out()
        })
        .collect()
}

#[test]
fn handshake_asks_for_the_best_first() {
    let mut client = Client::new(settings(ReplyMode::Extended));
    let go_reply = [info_export(SIZE, EVERYTHING), option_reply(GO, ACK, &[])].concat();
    let set_reply =
        [meta_context(7, b"base:allocation"), option_reply(SET_META, ACK, &[])].concat();
    let sent = play(
        &mut client,
        &[greeting(), option_reply(EXTENDED_HEADERS, ACK, &[]), set_reply, go_reply],
    );
    assert_eq!(sent[0], [&[0, 0, 0, 3][..], &option(EXTENDED_HEADERS, &[])].concat());
    let query = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation";
    assert_eq!(sent[1], option(SET_META, query));
    assert_eq!(sent[2], go());
    assert!(sent[3].is_empty());
    assert_eq!(client.seen, [SessionOutput::Opened]);
    let remote = client.session.remote().expect("it is open");
    assert_eq!(
        (remote.mode, remote.allocation, remote.size_bytes),
        (ReplyMode::Extended, true, SIZE)
    );
    assert!(remote.multi_conn && remote.rotational && !remote.read_only);
}

/// The behaviour of nbdkit 1.32 and QEMU 7: no extended headers, structured replies, GO.
#[test]
fn server_without_extended_headers_is_asked_for_structured_replies() {
    let mut client = Client::new(Settings::new("disk"));
    let sent = play(
        &mut client,
        &[
            greeting(),
            option_reply(EXTENDED_HEADERS, ERR_UNSUP, b"Unsupported option 11"),
            option_reply(STRUCTURED_REPLY, ACK, &[]),
            info_export(1 << 20, 0x0dad),
            info_block_size([1, 4096, 32 << 20]),
            option_reply(GO, ACK, &[]),
        ],
    );
    assert_eq!(sent[1], option(STRUCTURED_REPLY, &[]));
    assert_eq!(sent[2], go());
    let remote = client.session.remote().expect("it is open");
    assert_eq!((remote.mode, remote.allocation), (ReplyMode::Structured, false));
    assert!(remote.block_sizes_known);
}

/// The behaviour of servers of ten years ago: no structured replies, GO or NO_ZEROES.
#[test]
fn server_of_simple_replies_without_go_is_opened_by_name() {
    for (flags, zeroes) in [(3, 0), (1, 124)] {
        let mut client = Client::new(settings(ReplyMode::Extended));
        client.dribble = zeroes > 0;
        let mut hello = greeting();
        hello[17] = flags;
        let sent = play(
            &mut client,
            &[
                hello,
                option_reply(EXTENDED_HEADERS, ERR_UNSUP, &[]),
                option_reply(STRUCTURED_REPLY, ERR_UNSUP, &[]),
                // Information before the refusal is void.
                [info_block_size([512, 512, 512]), option_reply(GO, ERR_UNSUP, &[])].concat(),
                [&(1_u64 << 20).to_be_bytes()[..], &[0, 0x2d], &vec![0; zeroes]].concat(),
            ],
        );
        assert_eq!(sent[0][..4], [0, 0, 0, flags]);
        assert_eq!(sent[2], go());
        assert_eq!(sent[3], option(EXPORT_NAME, b"disk"));
        assert_eq!(client.take_seen(), [SessionOutput::Opened]);
        let remote = client.session.remote().expect("it is open");
        assert_eq!((remote.mode, remote.size_bytes), (ReplyMode::Simple, 1 << 20));
        assert!(remote.can_flush && remote.can_fua && remote.can_trim && !remote.can_write_zeroes);
        assert!(!remote.block_sizes_known);
        let sizes =
            (remote.block_min_bytes, remote.block_preferred_bytes, remote.payload_max_bytes);
        assert_eq!(sizes, (1, 4096, 32 << 20));
    }
}

#[test]
fn server_that_closes_instead_of_opening_by_name_may_not_know_the_name() {
    let mut client = Client::new(settings(ReplyMode::Simple));
    play(&mut client, &[greeting(), option_reply(GO, ERR_UNSUP, &[])]);
    assert_eq!(client.session.on_eof(), &Failure::ClosedOnExportName);
}

#[test]
fn refused_block_status_is_done_without() {
    let partly = [
        meta_context(CONTEXT, b"base:allocation"),
        option_reply(SET_META, ERR_POLICY, b"not today"),
    ];
    for answer in [option_reply(SET_META, ACK, &[]), partly.concat()] {
        let mut client = Client::new(settings(ReplyMode::Structured));
        let sent = play(
            &mut client,
            &[greeting(), option_reply(STRUCTURED_REPLY, ACK, &[]), answer, info_export(512, 1)],
        );
        assert_eq!(sent[2], go());
        client.feed(&option_reply(GO, ACK, &[]));
        assert!(!client.session.remote().expect("it is open").allocation);
    }
}

#[test]
fn information_that_nobody_asked_for_is_ignored() {
    let mut client = Client::new(settings(ReplyMode::Simple));
    client.dribble = true;
    let infos = [
        option_reply(GO, REP_INFO, b"\0\x01its name"),
        option_reply(GO, REP_INFO, b"\0\x02"),
        option_reply(GO, REP_INFO, &[0x77; 65536]),
        info_export(512, 1),
    ];
    play(&mut client, &[greeting(), infos.concat(), option_reply(GO, ACK, &[])]);
    assert_eq!(client.seen, [SessionOutput::Opened]);
}

/// The first failure of a session that is fed all these answers.
fn failure_of(settings: Settings, answers: &[Vec<u8>]) -> (Failure, Vec<u8>) {
    let mut client = Client::new(settings.clone());
    play(&mut client, answers);
    let mut dribbled = Client::new(settings);
    dribbled.dribble = true;
    let sent = play(&mut dribbled, answers);
    assert_eq!(client.failure(), dribbled.failure());
    (client.failure(), sent.last().cloned().unwrap_or_default())
}

#[test]
fn stranger_is_recognised_by_its_first_bytes() {
    let failure = |bytes: &[u8]| {
        let (failure, sent) = failure_of(settings(ReplyMode::Extended), &[bytes.to_vec()]);
        assert!(sent.is_empty(), "a stranger is told nothing");
        failure
    };
    assert_eq!(failure(b"SSH-2.0-"), Failure::NotNbd(0x5353_482d_322e_302d));
    assert_eq!(failure(b"NBDMAGICSSH-2.0-"), Failure::NotNbd(0x5353_482d_322e_302d));
    assert_eq!(failure(b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53"), Failure::Oldstyle);
    assert_eq!(failure(b"NBDMAGICIHAVEOPT\0\x02"), Failure::NotFixedNewstyle);
    assert!(Failure::Oldstyle.to_string().contains("oldstyle"));
}

#[test]
fn refusal_is_told_with_the_words_of_the_server() {
    for (error, text, told) in [
        (
            ERR_UNKNOWN,
            &b"no such\x1b[2J disk"[..],
            "no export of this name; it says: no such\\u{1b}[2J disk",
        ),
        (ERR_POLICY, b"", "the server does not open the export: its policy forbids it"),
        (ERR_SHUTDOWN, b"bye", "it is shutting down; it says: bye"),
        (
            ERR_TLS_REQD,
            b"use -o tls",
            "requires TLS: write nbds:// or nbds+unix:// in the URI; it says: use",
        ),
        (0x8000_0004, b"", "its platform does not support it"),
        (0x8000_0008, b"", "it requires clients that respect its block sizes"),
        (0x8000_0abc, b"", "error 0x80000abc"),
    ] {
        let answers = [greeting(), option_reply(GO, error, text)];
        let (failure, sent) = failure_of(settings(ReplyMode::Simple), &answers);
        assert!(failure.to_string().contains(told), "{failure}");
        assert_eq!(sent, option(ABORT, &[]), "a refused client says goodbye");
    }
}

#[test]
fn message_of_a_refusal_is_bounded() {
    let answers = [greeting(), option_reply(GO, ERR_UNKNOWN, &[b'x'; 4096])];
    let (failure, _) = failure_of(settings(ReplyMode::Simple), &answers);
    assert!(failure.to_string().len() < 400, "{failure}");
    let answers = [greeting(), option_reply_header(GO, ERR_UNKNOWN, 4097)];
    let (failure, _) = failure_of(settings(ReplyMode::Simple), &answers);
    let violation = Violation::OptionReplyLen { kind: ERR_UNKNOWN, len_bytes: 4097 };
    assert_eq!(failure, Failure::Violation(violation));
}

/// TLS and shutdown end the handshake after any option.
#[test]
fn server_that_wants_tls_or_ends_is_not_asked_further() {
    for error in [ERR_TLS_REQD, ERR_SHUTDOWN] {
        let steps: [&[Vec<u8>]; 3] = [
            &[option_reply(EXTENDED_HEADERS, error, &[])],
            &[
                option_reply(EXTENDED_HEADERS, ERR_UNSUP, &[]),
                option_reply(STRUCTURED_REPLY, error, &[]),
            ],
            &[option_reply(EXTENDED_HEADERS, ACK, &[]), option_reply(SET_META, error, &[])],
        ];
        for answers in steps {
            let answers = [&[greeting()], answers].concat();
            let (failure, sent) = failure_of(settings(ReplyMode::Extended), &answers);
            assert_eq!(matches!(failure, Failure::TlsRequired { .. }), error == ERR_TLS_REQD);
            assert_eq!(matches!(failure, Failure::Refused { .. }), error == ERR_SHUTDOWN);
            assert_eq!(sent, option(ABORT, &[]));
        }
    }
}

#[test]
fn go_that_is_unknown_after_extended_headers_cannot_be_replaced() {
    let answers =
        [greeting(), option_reply(EXTENDED_HEADERS, ACK, &[]), option_reply(GO, ERR_UNSUP, &[])];
    let settings = Settings::new("disk");
    let (failure, _) = failure_of(settings, &answers);
    assert!(matches!(failure, Failure::Refused { error: ERR_UNSUP, .. }));
}

#[test]
fn violation_of_the_handshake_ends_it() {
    let structured = || [greeting(), option_reply(STRUCTURED_REPLY, ACK, &[])].concat();
    let len = |kind, len_bytes| Violation::OptionReplyLen { kind, len_bytes };
    let cases: &[(ReplyMode, Vec<u8>, Violation)] = &[
        (ReplyMode::Simple, vec![b'x'; 8], Violation::OptionReplyMagic(0x7878_7878_7878_7878)),
        (
            ReplyMode::Simple,
            option_reply(SET_META, ACK, &[]),
            Violation::OptionReplyTo { asked: GO, answered: SET_META },
        ),
        (
            ReplyMode::Simple,
            option_reply_header(GO, 2, u32::MAX),
            Violation::OptionReplyType { option: GO, kind: 2 },
        ),
        (
            ReplyMode::Structured,
            info_export(1, 1),
            Violation::OptionReplyTo { asked: STRUCTURED_REPLY, answered: GO },
        ),
        (ReplyMode::Simple, option_reply_header(GO, ACK, 1), len(ACK, 1)),
        (
            ReplyMode::Simple,
            option_reply_header(GO, ERR_INVALID, u32::MAX),
            len(ERR_INVALID, u32::MAX),
        ),
        (ReplyMode::Simple, option_reply_header(GO, REP_INFO, u32::MAX), len(REP_INFO, u32::MAX)),
        (ReplyMode::Simple, option_reply_header(GO, REP_INFO, 1), len(REP_INFO, 1)),
        (ReplyMode::Simple, option_reply(GO, REP_INFO, &[0; 13]), len(REP_INFO, 13)),
        (ReplyMode::Simple, option_reply(GO, REP_INFO, &[0; 2]), len(REP_INFO, 2)),
        (ReplyMode::Simple, option_reply(GO, REP_INFO, b"\0\x03\0\0"), len(REP_INFO, 4)),
        (ReplyMode::Simple, option_reply(GO, ACK, &[]), Violation::NoExportInfo),
        (ReplyMode::Simple, info_block_size([1, 512, 512]).repeat(257), Violation::TooManyReplies),
    ];
    for (mode, bytes, violation) in cases {
        let (failure, _) = failure_of(settings(*mode), &[greeting(), bytes.clone()]);
        assert_eq!(failure, Failure::Violation(*violation));
    }
    let twice = meta_context(1, b"base:allocation").repeat(2);
    for bytes in [
        twice,
        meta_context(1, b"base:allocatiom"),
        meta_context(1, b"qemu:dirty-bitmap"),
        option_reply_header(SET_META, META_CONTEXT, u32::MAX),
    ] {
        let answers = [structured(), bytes];
        let (failure, _) = failure_of(settings(ReplyMode::Structured), &answers);
        assert_eq!(failure, Failure::Violation(Violation::MetaContext));
    }
    let nameless = option_reply_header(SET_META, META_CONTEXT, 4);
    let (failure, _) = failure_of(settings(ReplyMode::Structured), &[structured(), nameless]);
    assert_eq!(failure, Failure::Violation(len(META_CONTEXT, 4)));
}

#[test]
fn server_may_reply_256_times_to_an_option() {
    let mut client = Client::new(settings(ReplyMode::Simple));
    let infos = info_block_size([1, 512, 512]).repeat(254);
    play(&mut client, &[greeting(), infos, info_export(512, 1), option_reply(GO, ACK, &[])]);
    assert_eq!(client.seen, [SessionOutput::Opened]);
}

#[test]
fn export_that_is_no_disk_is_refused() {
    let failure = |infos: &[Vec<u8>]| {
        let bytes = [infos.concat(), option_reply(GO, ACK, &[])].concat();
        failure_of(settings(ReplyMode::Simple), &[greeting(), bytes]).0
    };
    let size = RemoteError::Size(u64::MAX);
    assert_eq!(failure(&[info_export(u64::MAX, 1)]), Failure::Remote(size));
    let sizes = RemoteError::BlockSizes { min: 3, preferred: 4096, max: 1 << 20 };
    let infos = [info_block_size([3, 4096, 1 << 20]), info_export(4096, 1)];
    assert_eq!(failure(&infos), Failure::Remote(sizes));
}

#[test]
fn name_beyond_the_protocol_is_refused_before_anything_is_sent() {
    let refused = |name: String| Session::new(Settings::new(name)).err();
    assert_eq!(refused("x".repeat(4096)), None);
    assert_eq!(refused("x".repeat(4097)), Some(ExportError::Text("name")));
    assert_eq!(refused("a\0b".into()), Some(ExportError::Text("name")));
}

#[test]
fn handshake_can_be_given_up() {
    let mut client = Client::new(settings(ReplyMode::Extended));
    client.feed(&greeting());
    client.out.clear();
    client.session.disconnect(&mut client.out);
    assert_eq!(client.take_out(), option(ABORT, &[]));
    client.feed(&option_reply(EXTENDED_HEADERS, ACK, &[]));
    assert_eq!(client.failure(), Failure::GivenUp);

    let mut silent = Client::new(settings(ReplyMode::Extended));
    silent.session.disconnect(&mut silent.out);
    assert!(silent.out.is_empty(), "nothing may come before the greeting");
    assert_eq!(silent.session.on_eof(), &Failure::GivenUp, "the first failure is the one");
    let mut closed = Client::new(settings(ReplyMode::Extended));
    assert_eq!(closed.session.on_eof(), &Failure::ClosedInHandshake);
}

fn settings_with_tls() -> Settings {
    Settings { tls: true, ..settings(ReplyMode::Structured) }
}

#[test]
fn client_that_wants_tls_asks_for_nothing_before_it() {
    let mut client = Client::new(settings_with_tls());
    client.feed(&greeting());
    assert_eq!(client.take_out(), [&[0, 0, 0, 3][..], &option(STARTTLS, &[])].concat());
    client.feed(&option_reply(STARTTLS, ACK, &[]));
    // `Client` gives the session the turn again, as a world does after the handshake of TLS.
    assert_eq!(client.seen, [SessionOutput::StartTls]);
    assert_eq!(client.take_out(), option(STRUCTURED_REPLY, &[]));
}

#[test]
fn client_that_wants_tls_ends_without_it() {
    for error in [ERR_UNSUP, ERR_TLS_REQD, ERR_SHUTDOWN, 0x8000_0002] {
        let mut client = Client::new(settings_with_tls());
        play(&mut client, &[greeting(), option_reply(STARTTLS, error, b"no")]);
        let failure = client.session.failure().expect("it failed");
        assert_eq!(*failure, Failure::NoTls { text: "no".into() });
    }
}

/// A man in the middle puts replies behind the ACK, to be taken for the server's.
#[test]
fn bytes_behind_the_ack_of_tls_end_the_connection() {
    let mut client = Client::new(settings_with_tls());
    let injected = [option_reply(STARTTLS, ACK, &[]), option_reply(GO, ACK, &[])].concat();
    play(&mut client, &[greeting(), injected]);
    let failure = client.session.failure().expect("it failed");
    assert_eq!(*failure, Failure::Violation(Violation::BytesBeforeTls));
}
