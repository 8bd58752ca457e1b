//! The division of a stream into receives has no effect on answers and actions.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::client::*;

/// All results of a connection.
#[derive(PartialEq)]
struct Outcome {
    seen: Vec<SessionOutput>,
    out: Vec<u8>,
    disk: Vec<u8>,
}

fn play(stream: &[u8], cuts: &[usize], piece: (usize, usize)) -> Outcome {
    let mut other = small_export();
    other.name = "ro".into();
    other.read_only = true;
    let mut peer = serve(vec![small_export(), other]);
    peer.disk = Some((0..1 << 20).map(|i: u32| (i >> 3) as u8).collect());
    peer.session.set_piece(piece.0, piece.1);
    let mut at = 0;
    for &cut in cuts.iter().cycle() {
        let end = (at + cut).min(stream.len());
        peer.feed(&stream[at..end]);
        at = end;
        if at == stream.len() {
            break;
        }
    }
    Outcome { seen: peer.seen, out: peer.out, disk: peer.disk.expect("set above") }
}

fn an_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![Just("disk"), Just("ro"), Just(""), Just("nothing")];
    let query = prop_oneof![Just("base:"), Just("base:allocation"), Just("x-y:z"), Just("bad")];
    prop_oneof![
        Just(option(LIST, &[])),
        Just(option(STARTTLS, &[])),
        (name.clone(), vec(0..5_u16, 0..4))
            .prop_map(|(name, infos)| option(INFO, &info_data(name, &infos))),
        (name, prop_oneof![Just(LIST_META), Just(SET_META)], vec(query, 0..4))
            .prop_map(|(name, number, queries)| option(number, &meta_data(name, &queries))),
        (12..99_u32, vec(any::<u8>(), 0..300)).prop_map(|(number, data)| option(number, &data)),
        Just(option(77, &vec![1; 70_000])),
        Just(option(GO, &info_data("nothing", &[]))),
    ]
}

fn a_request(mode: Mode) -> impl Strategy<Value = Vec<u8>> {
    let command = prop_oneof![4 => 0..8_u16, 1 => 8..20_u16];
    let flags = prop_oneof![4 => Just(0), 1 => Just(FUA), 1 => 0..64_u16];
    let offset = prop_oneof![4 => 0..(1_u64 << 20), 1 => any::<u64>()];
    (command, flags, any::<u64>(), offset, 0..9000_u64, any::<u8>()).prop_map(
        move |(command, flags, cookie, offset, len, fill)| {
            let command = if command == DISC { READ } else { command };
            let ask = Ask { command, flags, cookie, offset, len };
            let mut bytes = ask.bytes(mode);
            let payload = match mode {
                Mode::Extended => command == WRITE || flags & PAYLOAD_LEN != 0,
                _ => command == WRITE,
            };
            if payload {
                bytes.extend((0..len).map(|i| fill ^ i as u8));
            }
            bytes
        },
    )
}

fn a_stream() -> impl Strategy<Value = Vec<u8>> {
    let mode = prop_oneof![Just(Mode::Simple), Just(Mode::Structured), Just(Mode::Extended)];
    let name = prop_oneof![3 => Just("disk"), 1 => Just("ro")];
    (mode, name, vec(an_option(), 0..4)).prop_flat_map(|(mode, name, options)| {
        vec(a_request(mode), 0..12).prop_map(move |requests| {
            let mut stream = client_flags();
            match mode {
                Mode::Simple => {}
                Mode::Structured => stream.extend(option(STRUCTURED_REPLY, &[])),
                Mode::Extended => stream.extend(option(EXTENDED_HEADERS, &[])),
            }
            stream.extend(options.concat());
            stream.extend(option(SET_META, &meta_data(name, &["base:allocation"])));
            stream.extend(option(GO, &info_data(name, &[3])));
            stream.extend(requests.concat());
            stream.extend(Ask::new(DISC, 0, 0).bytes(mode));
            stream
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_splits_equal_all_at_once(
        stream in a_stream(),
        cuts in vec(1..5000_usize, 1..20),
        align_log in 0..13_u32,
        extra in 0..10_000_usize,
    ) {
        let align = 1_usize << align_log;
        let whole = play(&stream, &[stream.len()], (1, usize::MAX));
        let last = whole.seen.last();
        prop_assert_eq!(last, Some(&SessionOutput::Closed), "the stream is valid to its end");
        let split = play(&stream, &cuts, (align, align + extra));
        prop_assert!(whole == split, "{:?} is not {:?}", whole.seen, split.seen);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn one_byte_at_a_time_equals_all_at_once(stream in a_stream()) {
        let whole = play(&stream, &[stream.len()], (1, usize::MAX));
        let split = play(&stream, &[1], (1, usize::MAX));
        prop_assert!(whole == split, "{:?} is not {:?}", whole.seen, split.seen);
    }
}
