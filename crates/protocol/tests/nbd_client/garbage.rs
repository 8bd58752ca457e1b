//! Arbitrary server data: no panic, no step without progress, no unlimited answer, and a READ
//! succeeds only with every byte delivered once.

use std::collections::BTreeMap;

use blockyard_protocol::nbd::client::{Cookie, Event, Piece, Request, Session};
use blockyard_protocol::nbd::{Command, ReplyMode};

use crate::dice::Dice;
use crate::server::*;

const LEN: u64 = 600;

impl Dice {
    /// Boundary values, more often than a uniform distribution has them.
    fn length(&mut self) -> u64 {
        match self.below(10) {
            0 => self.roll(),
            1 => u64::MAX - self.below(3),
            2 => u64::from(u32::MAX) - 1 + self.below(3),
            3 => LEN - 1 + self.below(12),
            4 => 0,
            5 => 12,
            _ => self.below(600),
        }
    }
}

/// A chunk, usually a plausible one.
fn chunk(dice: &mut Dice, sent: Sent) -> Vec<u8> {
    let done = dice.one_in(3);
    let shift = if dice.one_in(8) { dice.length() } else { dice.below(4) * 150 };
    let offset = sent.offset.wrapping_add(shift);
    match dice.below(9) {
        0 => sent.none(),
        1 => sent.error(done, dice.below(200) as u32, &vec![b'?'; dice.below(40) as usize]),
        2 => sent.error_at(done, 5, offset),
        3 => sent.status(done, CONTEXT, &[(1 + dice.below(600), dice.roll()), (7, 1)]),
        4 | 5 => sent.hole(done, offset, 150),
        6 => sent.header(done, dice.below(9) as u16, dice.length()),
        7 => simple(sent.cookie, dice.below(2) as u32),
        _ => sent.data(done, offset, &[1; 150]),
    }
}

/// A server's stream; `sents` are the cookies and offsets of the future requests.
fn stream(dice: &mut Dice, mode: ReplyMode, sents: &[Sent]) -> (Vec<u8>, Vec<u8>) {
    let mut handshake = opening(mode).concat();
    let mut replies = Vec::new();
    for _ in 0..dice.below(30) {
        let sent = sents[dice.index(sents.len())];
        if mode == ReplyMode::Simple {
            replies.extend(simple(sent.cookie, dice.below(2) as u32));
            replies.extend(vec![3; if dice.one_in(2) { LEN as usize } else { 0 }]);
        } else {
            replies.extend(chunk(dice, sent));
        }
    }
    // One handshake in eight is damaged, and one stream of replies in four.
    for (bytes, chance) in [(&mut handshake, 8), (&mut replies, 4)] {
        if dice.one_in(chance) && !bytes.is_empty() {
            let at = dice.index(bytes.len());
            bytes[at] ^= 1 << dice.below(8);
        }
    }
    (handshake, replies)
}

/// Bytes of each READ, and whether they were delivered.
struct Told(BTreeMap<Cookie, Vec<bool>>);

impl Told {
    fn tell(&mut self, piece: Piece) {
        let Piece { cookie, start_bytes, len_bytes } = piece;
        let told = self.0.get_mut(&cookie).expect("a READ that is in flight");
        let range = &mut told[start_bytes as usize..][..len_bytes as usize];
        assert!(!range.is_empty() && !range.contains(&true), "told twice: {piece:?}");
        range.fill(true);
    }
}

fn play(session: &mut Session, dice: &mut Dice, stream: &[u8], told: &mut Told) -> usize {
    let mut out = Vec::new();
    let mut at = 0;
    let mut end = 0;
    let mut answered = 0;
    loop {
        let step = session.on_bytes(&stream[at..end], &mut out);
        assert!(step.consumed <= end - at);
        at += step.consumed;
        match step.event {
            Event::NeedMore if end == stream.len() => break,
            Event::NeedMore => end = (end + 1 + dice.index(300)).min(stream.len()),
            Event::Broken => {
                assert!(session.failure().is_some());
                assert_eq!(session.on_bytes(&stream[at..], &mut out).event, Event::Broken);
                break;
            }
            Event::Payload(piece) => {
                assert_eq!(piece.len_bytes, step.consumed as u64);
                told.tell(piece);
            }
            Event::Zeroes(piece) => told.tell(piece),
            Event::Done { cookie, result } => {
                answered += 1;
                if let Some(told) = told.0.remove(&cookie) {
                    assert!(result.is_err() || !told.contains(&false), "a gap");
                }
            }
            _ => assert!(step.consumed > 0, "no progress: {:?}", step.event),
        }
    }
    assert!(out.len() < 1024, "{} bytes sent", out.len());
    answered
}

fn case(number: u64) -> (bool, usize) {
    let mut dice = Dice(number);
    let mode = MODES[dice.index(3)];
    let mut client = Client::new(settings(mode));
    // Slots and generations begin at 0, so the cookies are known in advance.
    let sents = [0, 1, 2, 3].map(|slot| Sent { mode, cookie: slot, offset: 1024 });
    let (handshake, replies) = stream(&mut dice, mode, &sents);
    let mut told = Told(BTreeMap::new());
    play(&mut client.session, &mut dice, &handshake, &mut told);
    if client.session.remote().is_none() {
        return (false, 0);
    }
    for command in [Command::Read, Command::Read, Command::Write, Command::BlockStatus] {
        let request = Request::new(command, 1024..1024 + LEN);
        if let Ok(cookie) = client.session.submit(&request, &mut Vec::new())
            && command == Command::Read
        {
            told.0.insert(cookie, vec![false; LEN as usize]);
        }
    }
    (true, play(&mut client.session, &mut dice, &replies, &mut told))
}

#[test]
fn hundred_thousand_hostile_streams_are_survived() {
    let mut deep = 0;
    let mut answered = 0;
    for number in 0..100_000 {
        match std::panic::catch_unwind(|| case(number)) {
            Ok((reached, answers)) => {
                deep += u32::from(reached);
                answered += answers;
            }
            Err(_) => panic!("case {number} failed"),
        }
    }
    assert!(deep > 80_000, "only {deep} streams got past the handshake: the test has gone blind");
    assert!(answered > 30_000, "only {answered} requests were answered");
}
