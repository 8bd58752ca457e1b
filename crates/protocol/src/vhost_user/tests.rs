//! A front end's messages, and the answers.

use std::vec;
use std::vec::Vec;

use super::message::request::*;
use super::*;

const NEED_REPLY: u32 = 8;
const REPLY_ACK: u64 = 1 << 3;

fn session() -> Session {
    let offer = Offer { device_features: 1 << 9, queues: 2, ring_len_max: 256 };
    Session::new(offer, &(1..=60).collect::<Vec<u8>>())
}

/// A session in which the front end may ask for the outcome of a message.
fn negotiated() -> Session {
    let mut session = session();
    let features = (FEATURE_PROTOCOL | FEATURE_VERSION_1).to_le_bytes();
    assert_eq!(say(&mut session, SET_FEATURES, &features, 0), Ok((Action::SetFeatures, vec![])));
    let protocol = REPLY_ACK.to_le_bytes();
    assert!(say(&mut session, SET_PROTOCOL_FEATURES, &protocol, 0).is_ok());
    session
}

/// Sends a message, and says that its action is done.
fn say(
    session: &mut Session,
    request: u32,
    body: &[u8],
    descriptors: usize,
) -> Result<(Action, Vec<u8>), Violation> {
    say_with(session, (request, 0), body, descriptors, Outcome::Done)
}

fn say_with(
    session: &mut Session,
    (request, flags): (u32, u32),
    body: &[u8],
    descriptors: usize,
    outcome: Outcome,
) -> Result<(Action, Vec<u8>), Violation> {
    let mut header = [0; HEADER_BYTES];
    let words = [request, 1 | flags, body.len() as u32];
    for (bytes, word) in header.chunks_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let header = session.on_header(header)?;
    let mut out = Vec::new();
    let action = session.on_message(header, body, descriptors, &mut out)?;
    session.finish(outcome, &mut out)?;
    Ok((action, out))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn region(guest: u64, len: u64) -> [u64; 4] {
    [guest, len, guest + (1 << 40), 0]
}

fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut body = words(&[regions.len() as u32, 0]);
    body.extend(regions.iter().flatten().flat_map(|word| word.to_le_bytes()));
    body
}

fn one(region: [u64; 4]) -> Vec<u8> {
    [0].iter().chain(&region).flat_map(|word| word.to_le_bytes()).collect()
}

fn addresses(queue: u32, flags: u32, descriptors: u64, used: u64, available: u64) -> Vec<u8> {
    let mut body = words(&[queue, flags]);
    [descriptors, used, available, 0].iter().for_each(|word| body.extend(word.to_le_bytes()));
    body
}

/// The refusal of a message for whose outcome nobody asked.
fn refusal(said: Result<(Action, Vec<u8>), Violation>) -> Refusal {
    match said.unwrap_err() {
        Violation::Refused { refusal, .. } => refusal,
        other => panic!("{other}"),
    }
}

#[test]
fn questions_are_answered_with_what_is_offered() {
    let mut session = session();
    let mut ask = |request| {
        let (action, reply) = say(&mut session, request, &[], 0).unwrap();
        assert_eq!(action, Action::Nothing);
        assert_eq!(reply[..12], words(&[request, 5, 8]));
        u64::from_le_bytes(reply[12..].try_into().unwrap())
    };
    let ring = FEATURE_INDIRECT | FEATURE_EVENT_INDEX | FEATURE_PROTOCOL | FEATURE_VERSION_1;
    assert_eq!(ask(GET_FEATURES), 1 << 9 | FEATURE_LOG_ALL | ring);
    let protocol = [0, 1, 3, 5, 9, 12, 13, 15, 16].iter().fold(0, |all, bit| all | 1 << bit);
    assert_eq!(ask(GET_PROTOCOL_FEATURES), protocol);
    assert_eq!(ask(GET_QUEUE_NUM), 2);
    assert_eq!(ask(GET_MAX_MEM_SLOTS), 128);
    assert_eq!(ask(GET_STATUS), 0);
}

#[test]
fn configuration_is_read_in_pieces_and_ends_in_zeroes() {
    let mut session = session();
    let mut get = |offset: u32, len: u32| {
        let mut body = words(&[offset, len, 0]);
        body.resize(12 + len as usize, 0xff);
        say(&mut session, GET_CONFIG, &body, 0)
    };
    let (_, reply) = get(20, 4).unwrap();
    assert_eq!(reply[12..], [words(&[20, 4, 0]), vec![21, 22, 23, 24]].concat());
    let (_, reply) = get(0, 256).unwrap();
    assert_eq!((reply.len(), reply[24 + 59], reply[24 + 60]), (12 + 12 + 256, 60, 0));
    for (offset, len) in [(256, 1), (0, 257), (u32::MAX, 2)] {
        assert!(matches!(get(offset, len), Err(Violation::Length { .. })), "{offset} {len}");
    }
    let short = [words(&[0, 4, 0]), vec![0; 3]].concat();
    assert!(say(&mut session, GET_CONFIG, &short, 0).is_err());
}

fn change(offset: u32, flags: u32, bytes: &[u8]) -> Vec<u8> {
    [words(&[offset, bytes.len() as u32, flags]), bytes.to_vec()].concat()
}

const FLUSH: u64 = 1 << 9;
const CONFIG_WCE: u64 = 1 << 11;

/// A session whose driver has these features of the device.
fn disk_session(features: u64) -> Session {
    let offer = Offer { device_features: FLUSH | CONFIG_WCE, queues: 2, ring_len_max: 256 };
    let mut config = [0; 60];
    config[32] = 1;
    let mut session = Session::new(offer, &config);
    say(&mut session, SET_FEATURES, &features.to_le_bytes(), 0).unwrap();
    session
}

#[test]
fn driver_that_may_switches_write_back_caching_and_changes_nothing_else() {
    let mut session = disk_session(FLUSH | CONFIG_WCE);
    assert!(session.writes_back());
    for (value, flags) in [(0, 0), (1, 1), (0, 1)] {
        let said = say(&mut session, SET_CONFIG, &change(32, flags, &[value]), 0).unwrap();
        assert_eq!(said, (Action::SetWriteback(value == 1), vec![]));
        assert_eq!((session.writes_back(), session.has_writeback()), (value == 1, value == 1));
        let (_, reply) = say(&mut session, GET_CONFIG, &change(32, 0, &[9]), 0).unwrap();
        assert_eq!(reply[24], value);
    }
    let mut refused = |body: &[u8]| refusal(say(&mut session, SET_CONFIG, body, 0));
    assert_eq!(refused(&change(32, 0, &[2])), Refusal::Switch(2));
    assert_eq!(refused(&change(32, 2, &[1])), Refusal::NotOffered);
    for (offset, len_bytes) in [(0, 8), (31, 1), (33, 1), (32, 2), (32, 0), (256, 1), (u32::MAX, 1)]
    {
        let body = change(offset, 0, &vec![1; len_bytes as usize]);
        assert_eq!(refused(&body), Refusal::Config { offset, len_bytes });
    }
    for (value, outcome, shown) in [
        (1, Outcome::Done, 1),
        (0, Outcome::Failed, 1),
        (0, Outcome::Done, 0),
        (1, Outcome::Failed, 0),
    ] {
        let said = say_with(&mut session, (SET_CONFIG, 0), &change(32, 0, &[value]), 0, outcome);
        assert_eq!(said.is_ok(), outcome == Outcome::Done);
        assert_eq!(session.has_writeback(), shown == 1, "{value} {outcome:?}");
    }
    let short = change(32, 0, &[1, 1])[..13].to_vec();
    let said = say(&mut session, SET_CONFIG, &short, 0);
    assert!(matches!(said, Err(Violation::Length { .. })));
    let mut without = disk_session(FLUSH);
    let said = refusal(say(&mut without, SET_CONFIG, &change(32, 0, &[0]), 0));
    assert_eq!((said, without.writes_back()), (Refusal::NotOffered, true));
}

#[test]
fn device_that_grows_shows_its_size_and_keeps_the_byte_of_the_driver() {
    let mut session = disk_session(FLUSH | CONFIG_WCE);
    say(&mut session, SET_CONFIG, &change(32, 0, &[0]), 0).unwrap();
    session.set_device_config(&[7; 60]);
    let (_, reply) = say(&mut session, GET_CONFIG, &change(0, 0, &[0; 61]), 0).unwrap();
    assert_eq!(reply[24..], [vec![7; 32], vec![0], vec![7; 27], vec![0]].concat());
    assert_eq!(config_change()[..], words(&[2, 1, 0]));
    let set = |session: &mut Session, descriptors| {
        say(session, SET_BACKEND_REQ_FD, &[], descriptors).map(|(action, _)| action)
    };
    let without = set(&mut session, 1).map(|action| (action, vec![]));
    assert_eq!(refusal(without), Refusal::NotOffered);
    say(&mut session, SET_PROTOCOL_FEATURES, &(1u64 << 5).to_le_bytes(), 0).unwrap();
    assert_eq!(set(&mut session, 1), Ok(Action::Channel));
    let none = set(&mut session, 0).map(|action| (action, vec![]));
    assert_eq!(refusal(none), Refusal::Descriptors { came: 0, expected: 1 });
}

#[test]
fn driver_that_cannot_flush_has_no_write_back_cache() {
    assert!(!disk_session(0).writes_back());
    let mut session = disk_session(CONFIG_WCE);
    assert_eq!((session.writes_back(), session.has_writeback()), (false, false));
    say(&mut session, SET_CONFIG, &change(32, 0, &[1]), 0).unwrap();
    assert!(!session.writes_back(), "the driver cannot flush still");
}

#[test]
fn outcome_is_told_to_those_who_asked_and_ends_the_connection_of_others() {
    let mut session = negotiated();
    let wrong = words(&[7, 64]);
    let asked = (SET_VRING_NUM, NEED_REPLY);
    let said = say_with(&mut session, asked, &wrong, 0, Outcome::Done).unwrap();
    assert_eq!(said, (Action::Nothing, [words(&[8, 5, 8]), vec![1, 0, 0, 0, 0, 0, 0, 0]].concat()));
    let (action, reply) =
        say_with(&mut session, asked, &words(&[1, 64]), 0, Outcome::Done).unwrap();
    assert_eq!((action, &reply[12..]), (Action::Configure(1), [0; 8].as_slice()));
    assert_eq!(refusal(say(&mut session, SET_VRING_NUM, &wrong, 0)), Refusal::NoSuchQueue(7));
    let unknown = say_with(&mut session, (99, NEED_REPLY), &[1, 2, 3], 0, Outcome::Done).unwrap();
    assert_eq!(unknown.1[12], 1);
    let body = one(region(0, 4096));
    let failed = say_with(&mut session, (ADD_MEM_REG, NEED_REPLY), &body, 1, Outcome::Failed);
    assert_eq!(failed.unwrap().1[12], 1);
    let again = say(&mut session, ADD_MEM_REG, &body, 1).unwrap().0;
    assert!(matches!(again, Action::AddMemory(_)), "the failed one takes no place");
    let kick = 1u64.to_le_bytes();
    let failed = say_with(&mut session, (SET_VRING_KICK, NEED_REPLY), &kick, 1, Outcome::Failed);
    assert_eq!(failed.unwrap().1[12], 1);
    say(&mut session, SET_VRING_NUM, &words(&[1, 64]), 0).expect("the queue has no kick yet");
    // Without the feature the flag means nothing.
    let mut session = self::session();
    let said = say_with(&mut session, (SET_OWNER, NEED_REPLY), &[], 0, Outcome::Done).unwrap();
    assert_eq!(said, (Action::Nothing, vec![]));
    assert!(say_with(&mut session, asked, &wrong, 0, Outcome::Done).is_err());
}

#[test]
fn messages_that_break_the_protocol_end_the_connection() {
    let header = |words: [u32; 3]| session().on_header(self::words(&words).try_into().unwrap());
    for flags in [0, 2, 3, 5] {
        assert_eq!(header([1, flags, 0]), Err(Violation::Flags(1)), "{flags}");
    }
    let too_long = Violation::TooLong { request: 1, len_bytes: 513 };
    assert_eq!(header([1, 1, 513]), Err(too_long));
    assert!(header([1, 1, 512]).is_ok());
    let mut session = negotiated();
    for request in 1..=40 {
        let known = !matches!(request, 7 | 19..=20 | 22..=23 | 26..=30 | 33 | 35);
        for len in [1, 7, 9, 13, 41, 77] {
            let body = vec![0; len];
            let said = say_with(&mut session, (request, NEED_REPLY), &body, 0, Outcome::Done);
            let wrong = matches!(said, Err(Violation::Length { .. }));
            // A table may be longer than its regions.
            let is_table = request == SET_MEM_TABLE && len > 8;
            assert_eq!(wrong, known && !is_table, "{request} {len}: {said:?}");
        }
    }
}

#[test]
fn queue_runs_when_it_is_set_up_has_a_kick_and_is_enabled() {
    let mut session = negotiated();
    let messages = [
        (SET_VRING_NUM, words(&[0, 128]), 0),
        (SET_VRING_BASE, words(&[0, 65535]), 0),
        (SET_VRING_ADDR, addresses(0, 0, 4096, 8192, 12288), 0),
        (SET_VRING_KICK, 0u64.to_le_bytes().to_vec(), 1),
        (SET_VRING_ENABLE, words(&[0, 1]), 0),
    ];
    for (request, body, descriptors) in messages {
        assert!(!session.may_run(0));
        say(&mut session, request, &body, descriptors).unwrap();
    }
    assert!(session.may_run(0) && !session.may_run(1));
    let expected = Addresses { descriptors: 4096, used: 8192, available: 12288 };
    let Queue { ring_len, addresses, base, .. } = *session.queue(0);
    assert_eq!((ring_len, addresses, base), (128, Some(expected), 65535));
    let running = say(&mut session, SET_VRING_NUM, &words(&[0, 64]), 0);
    assert_eq!(refusal(running), Refusal::Running(0));
    let stopped = Outcome::Stopped { queue: 0, base: 7 };
    let said = say_with(&mut session, (GET_VRING_BASE, 0), &words(&[0, 0]), 0, stopped).unwrap();
    assert_eq!(said, (Action::Stop(0), words(&[11, 5, 8, 0, 7])));
    assert!(!session.may_run(0));
    assert_eq!(session.queue(0).base, 7);
    say(&mut session, SET_VRING_NUM, &words(&[0, 64]), 0).unwrap();
}

#[test]
fn queue_of_a_front_end_without_protocol_features_needs_no_enable() {
    let mut session = session();
    say(&mut session, SET_VRING_NUM, &words(&[1, 128]), 0).unwrap();
    say(&mut session, SET_VRING_ADDR, &addresses(1, 0, 0, 0, 0), 0).unwrap();
    say(&mut session, SET_VRING_KICK, &1u64.to_le_bytes(), 1).unwrap();
    assert!(session.may_run(1));
    let enable = say(&mut session, SET_VRING_ENABLE, &words(&[1, 1]), 0);
    assert_eq!(refusal(enable), Refusal::NotOffered);
}

#[test]
fn values_that_were_not_offered_are_refused() {
    let mut session = negotiated();
    let mut refused =
        |request, body: &[u8], descriptors| refusal(say(&mut session, request, body, descriptors));
    let bit = |bit: u32| (1u64 << bit).to_le_bytes();
    assert_eq!(refused(SET_FEATURES, &bit(34), 0), Refusal::NotOffered);
    assert_eq!(refused(SET_PROTOCOL_FEATURES, &bit(2), 0), Refusal::NotOffered);
    assert_eq!(refused(SET_STATUS, &bit(8), 0), Refusal::NotOffered);
    for len in [0, 3, 512, u32::MAX] {
        assert_eq!(refused(SET_VRING_NUM, &words(&[0, len]), 0), Refusal::RingSize(len));
    }
    assert_eq!(refused(SET_VRING_BASE, &words(&[0, 65536]), 0), Refusal::RingIndex(65536));
    assert_eq!(refused(SET_VRING_ENABLE, &words(&[0, 2]), 0), Refusal::Switch(2));
    assert_eq!(refused(SET_VRING_ENABLE, &words(&[2, 1]), 0), Refusal::NoSuchQueue(2));
    for (flags, descriptors, used, available) in
        [(2, 0, 0, 0), (0, 8, 0, 0), (0, 0, 2, 0), (0, 0, 0, 1)]
    {
        let body = addresses(0, flags, descriptors, used, available);
        assert_eq!(refused(SET_VRING_ADDR, &body, 0), Refusal::RingAddresses);
    }
    assert_eq!(refused(SET_VRING_KICK, &bit(8), 0), Refusal::NoKick);
    assert_eq!(refused(SET_VRING_KICK, &bit(9), 1), Refusal::NotOffered);
    assert_eq!(refused(SET_VRING_CALL, &2u64.to_le_bytes(), 1), Refusal::NoSuchQueue(2));
    let none = Refusal::Descriptors { came: 0, expected: 1 };
    assert_eq!(refused(SET_VRING_ERR, &[0; 8], 0), none);
    assert_eq!(refused(99, &[], 0), Refusal::NotOffered);
}

#[test]
fn memory_is_checked_before_it_is_mapped() {
    let mut session = negotiated();
    let good = [region(0, 4096), region(4096, 4096)];
    let (action, _) = say(&mut session, SET_MEM_TABLE, &table(&good), 2).unwrap();
    assert!(matches!(action, Action::SetMemory(regions) if regions.len() == 2));
    // UML's message has room for two.
    let mut padded = table(&good[..1]);
    padded.resize(72, 0);
    assert!(say(&mut session, SET_MEM_TABLE, &padded, 1).is_ok());
    let nine: Vec<_> = (0..9).map(|at| region(at * 4096, 4096)).collect();
    assert!(matches!(
        say(&mut session, SET_MEM_TABLE, &table(&nine), 8),
        Err(Violation::Length { .. })
    ));
    let came = Refusal::Descriptors { came: 1, expected: 2 };
    assert_eq!(refusal(say(&mut session, SET_MEM_TABLE, &table(&good), 1)), came);
    let bad = [
        region(0, 0),
        [u64::MAX - 4095, 8192, 0, 0],
        [0, 8192, u64::MAX - 4095, 0],
        [0, 8192, 0, i64::MAX as u64],
    ];
    for region in bad {
        assert_eq!(refusal(say(&mut session, ADD_MEM_REG, &one(region), 1)), Refusal::Memory);
    }
    let overlaps = [region(2048, 4096), [1 << 30, 4096, (1 << 40) + 4095, 0]];
    for region in overlaps {
        assert_eq!(refusal(say(&mut session, ADD_MEM_REG, &one(region), 1)), Refusal::Memory);
    }
}

#[test]
fn memory_comes_and_goes_by_its_addresses_within_the_slots() {
    let mut session = negotiated();
    for at in 0..128 {
        say(&mut session, ADD_MEM_REG, &one(region(at << 12, 4096)), 1).unwrap();
    }
    let more = one(region(1 << 30, 4096));
    assert_eq!(refusal(say(&mut session, ADD_MEM_REG, &more, 1)), Refusal::MemorySlots);
    // The offset in the file is not part of the name.
    let (action, _) = say(&mut session, REM_MEM_REG, &one([0, 4096, 1 << 40, 77]), 0).unwrap();
    assert!(matches!(action, Action::RemoveMemory(region) if region.file_offset_bytes == 0));
    assert!(say(&mut session, ADD_MEM_REG, &more, 1).is_ok());
    let gone = say(&mut session, REM_MEM_REG, &one(region(0, 4096)), 0);
    assert_eq!(refusal(gone), Refusal::NoSuchMemory);
}

fn inflight(len: u64, offset: u64, queues: u16, ring_len: u16) -> Vec<u8> {
    let mut body = [len, offset].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    body.extend([queues, ring_len, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    body
}

#[test]
fn memory_for_requests_in_flight_is_as_long_as_its_queues_need() {
    let mut session = negotiated();
    let (action, reply) = say(&mut session, GET_INFLIGHT_FD, &inflight(0, 0, 2, 128), 0).unwrap();
    // A header and 128 entries of 16 bytes, rounded up to 64.
    let area = InflightArea { len_bytes: 2 * 2112, file_offset_bytes: 0, queues: 2, ring_len: 128 };
    assert_eq!(action, Action::MakeInflight(area));
    assert_eq!(reply[12..], inflight(2 * 2112, 0, 2, 128));
    let (action, _) =
        say(&mut session, SET_INFLIGHT_FD, &inflight(2 * 2112, 4096, 2, 128), 1).unwrap();
    assert_eq!(action, Action::SetInflight(InflightArea { file_offset_bytes: 4096, ..area }));
    let bad = [
        (2 * 2112 - 1, 0, 2, 128),
        (0, 0, 1, 1),
        (1 << 40, 0, 3, 128),
        (1 << 40, 0, 0, 128),
        (1 << 40, 0, 2, 257),
        (1 << 40, 0, 2, 0),
        (1 << 40, i64::MAX as u64, 2, 128),
    ];
    for (len, offset, queues, ring_len) in bad {
        let body = inflight(len, offset, queues, ring_len);
        let said = refusal(say(&mut session, SET_INFLIGHT_FD, &body, 1));
        assert_eq!(said, Refusal::Inflight { queues, ring_len });
    }
    let without = say(&mut session, SET_INFLIGHT_FD, &inflight(4224, 0, 2, 128), 0);
    assert_eq!(refusal(without), Refusal::Descriptors { came: 0, expected: 1 });
}

#[test]
fn queue_that_must_log_waits_for_its_log() {
    let mut session = session();
    let set = |session: &mut Session, request, value: u64| {
        say(session, request, &value.to_le_bytes(), 0).unwrap();
    };
    let log = |len: u64, offset: u64| [len.to_le_bytes(), offset.to_le_bytes()].concat();
    set(&mut session, SET_FEATURES, FEATURE_LOG_ALL);
    say(&mut session, SET_VRING_NUM, &words(&[0, 128]), 0).unwrap();
    let mut body = addresses(0, 1, 0, 0, 0);
    body[32..].copy_from_slice(&77u64.to_le_bytes());
    say(&mut session, SET_VRING_ADDR, &body, 0).unwrap();
    say(&mut session, SET_VRING_KICK, &0u64.to_le_bytes(), 1).unwrap();
    assert_eq!((session.may_run(0), session.queue(0).used_log_addr), (false, Some(77)));
    let without = say(&mut session, SET_LOG_BASE, &log(4096, 0), 1);
    assert_eq!(refusal(without), Refusal::NotOffered);
    set(&mut session, SET_PROTOCOL_FEATURES, 1 << 1 | REPLY_ACK);
    for (body, descriptors) in
        [(log(0, 4096), 1), (log(u64::MAX, 1), 1), (log(1 << 63, 0), 1), (log(4096, 0), 0)]
    {
        // A front end takes any answer for success.
        let asked = (SET_LOG_BASE, NEED_REPLY);
        let said = say_with(&mut session, asked, &body, descriptors, Outcome::Done);
        assert!(matches!(said, Err(Violation::Refused { .. })), "{body:?}");
    }
    let failed = say_with(&mut session, (SET_LOG_BASE, 0), &log(1, 0), 1, Outcome::Failed);
    assert_eq!(refusal(failed), Refusal::Failed);
    let said = say(&mut session, SET_LOG_BASE, &log(4096, 8192), 1).unwrap();
    let area = LogArea { len_bytes: 4096, file_offset_bytes: 8192 };
    assert_eq!(said, (Action::SetLog(area), [words(&[6, 5, 8]), vec![0; 8]].concat()));
    assert!(session.may_run(0) && session.logs());
    say(&mut session, SET_VRING_ADDR, &addresses(0, 0, 0, 0, 0), 0).unwrap();
    assert_eq!(session.queue(0).used_log_addr, None);
    // The next migration does not write to the log of this one.
    set(&mut session, SET_FEATURES, 0);
    assert!(session.may_run(0));
    set(&mut session, SET_FEATURES, FEATURE_LOG_ALL);
    assert!(!session.may_run(0));
}

#[test]
fn reset_forgets_queues_and_status_and_keeps_memory() {
    for (request, body) in [(RESET_DEVICE, vec![]), (SET_STATUS, vec![0; 8])] {
        let mut session = negotiated();
        say(&mut session, SET_STATUS, &[11, 0, 0, 0, 0, 0, 0, 0], 0).unwrap();
        say(&mut session, ADD_MEM_REG, &one(region(0, 4096)), 1).unwrap();
        say(&mut session, SET_VRING_NUM, &words(&[0, 128]), 0).unwrap();
        assert_eq!(say(&mut session, request, &body, 0).unwrap().0, Action::Reset);
        assert_eq!(*session.queue(0), Queue::default());
        let (_, reply) = say(&mut session, GET_STATUS, &[], 0).unwrap();
        assert_eq!(reply[12..], [0; 8]);
        assert!(say(&mut session, REM_MEM_REG, &one(region(0, 4096)), 0).is_ok());
    }
}
