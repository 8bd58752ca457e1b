//! Arbitrary client data: no panic, no step without progress, no unlimited answer.

use blockyard_protocol::nbd::{Event, Session};

use crate::client::*;

/// A local generator, so that the number of a failing case reproduces it.
struct Dice(u64);

impl Dice {
    /// splitmix64
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    /// Boundary values, more often than a uniform distribution has them.
    fn length(&mut self) -> u64 {
        match self.below(8) {
            0 => self.roll(),
            1 => u64::MAX - self.below(3),
            2 => u64::from(u32::MAX) - 1 + self.below(3),
            3 => (1 << 20) - 1 + self.below(3),
            4 => 0,
            _ => self.below(600),
        }
    }

    fn noise(&mut self, max: u64) -> Vec<u8> {
        (0..self.below(max)).map(|_| self.roll() as u8).collect()
    }
}

/// Client flags, options and requests with arbitrary fields, and noise.
fn stream(dice: &mut Dice) -> Vec<u8> {
    let mut bytes = match dice.below(8) {
        0 => dice.noise(200),
        _ => client_flags(),
    };
    for _ in 0..dice.below(4) {
        let number = dice.below(14) as u32;
        let data = match dice.below(4) {
            0 => dice.noise(80),
            1 => meta_data("disk", &["base:allocation"]),
            _ => vec![],
        };
        bytes.extend(option_header(
            number,
            if dice.below(6) == 0 { dice.length() as u32 } else { data.len() as u32 },
        ));
        bytes.extend(data);
    }
    let mode = MODES[dice.below(3) as usize];
    match mode {
        Mode::Simple => {}
        Mode::Structured => bytes.extend(option(STRUCTURED_REPLY, &[])),
        Mode::Extended => bytes.extend(option(EXTENDED_HEADERS, &[])),
    }
    if dice.below(2) == 0 {
        bytes.extend(option(SET_META, &meta_data("disk", &["base:allocation"])));
    }
    bytes.extend(option(GO, &info_data("disk", &[dice.below(4) as u16])));
    for _ in 0..dice.below(6) {
        let flags = if dice.below(2) == 0 { 0 } else { dice.below(64) as u16 };
        let offset = dice.length();
        let len = dice.length();
        let len = if mode == Mode::Extended { len } else { len & u64::from(u32::MAX) };
        let ask = Ask { command: dice.below(10) as u16, flags, cookie: dice.roll(), offset, len };
        bytes.extend(ask.raw(mode));
        if dice.below(2) == 0 {
            bytes.extend(dice.noise(700));
        }
    }
    // One case in four is damaged.
    if dice.below(4) == 0 {
        let at = dice.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << dice.below(8);
    }
    bytes
}

/// Plays a stream against a fresh session, in receives of random size. Returns whether it reached
/// the transmission phase.
fn play(session: &mut Session, stream: &[u8], dice: &mut Dice) -> bool {
    let mut out = Vec::new();
    let mut at = 0;
    let mut end = 0;
    loop {
        let step = session.on_bytes(&stream[at..end], &mut out);
        assert!(step.consumed <= end - at);
        at += step.consumed;
        match step.event {
            Event::NeedMore if end == stream.len() => break,
            Event::NeedMore => end = (end + 1 + dice.below(300) as usize).min(stream.len()),
            Event::Closed | Event::Broken(_) => {
                let again = session.on_bytes(&stream[at..], &mut out);
                assert_eq!((again.consumed, again.event), (0, step.event));
                break;
            }
            Event::Request(request) => {
                assert!(step.consumed > 0);
                assert!(request.offset_bytes + request.len_bytes <= 1 << 20);
                session.reply(&request, None, &mut out);
            }
            _ => assert!(step.consumed > 0, "no progress: {:?}", step.event),
        }
    }
    // A limit for the answers to a few options of a few hundred bytes and a handful of requests.
    assert!(out.len() < 16 << 10, "{} bytes sent", out.len());
    session.is_transmission()
}

#[test]
fn hundred_thousand_hostile_streams_are_survived() {
    let exports = std::sync::Arc::from(vec![small_export()]);
    let mut deep = 0;
    for case in 0..100_000 {
        let mut dice = Dice(case);
        let stream = stream(&mut dice);
        let mut session = Session::new(std::sync::Arc::clone(&exports), Some(0));
        let outcome = std::panic::AssertUnwindSafe(|| play(&mut session, &stream, &mut dice));
        match std::panic::catch_unwind(outcome) {
            Ok(reached) => deep += u32::from(reached),
            Err(_) => panic!("case {case} failed: {stream:02x?}"),
        }
    }
    assert!(deep > 30_000, "only {deep} streams got past the handshake: the test has gone blind");
}
