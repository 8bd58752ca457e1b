//! The NBD client's session under a server that sends anything. The first byte of the input says
//! how the rest is cut into packets, the second what the client wants; once the export is open,
//! requests of every kind wait for their replies.
#![no_main]

use std::collections::BTreeMap;

use blockyard_protocol::nbd::client::{Cookie, Event, Piece, Request, Session, Settings};
use blockyard_protocol::nbd::{Command, ReplyMode};
use libfuzzer_sys::fuzz_target;

/// Every request is for these bytes of the export.
const START: u64 = 4096;
const LEN: u64 = 2048;
const OUT_MAX_BYTES: usize = 16 << 10;

const COMMANDS: [Command; 8] = [
    Command::Read,
    Command::Read,
    Command::BlockStatus,
    Command::Write,
    Command::Flush,
    Command::Trim,
    Command::WriteZeroes,
    Command::Cache,
];

fuzz_target!(|input: &[u8]| {
    let [cut, wish, bytes @ ..] = input else { return };
    let modes = [ReplyMode::Simple, ReplyMode::Structured, ReplyMode::Extended];
    let settings = Settings {
        mode_max: modes[usize::from(wish % 3)],
        allocation: wish & 0x80 == 0,
        tls: wish & 0x20 != 0,
        in_flight_max: 8,
        ..Settings::new("disk")
    };
    let mut world = World {
        session: Session::new(settings).expect("a short name"),
        direct: wish & 0x40 != 0,
        sent: Vec::new(),
        told: BTreeMap::new(),
    };
    // As a world does: what was not consumed is passed again with more behind.
    let packet = usize::from(*cut).max(1);
    let mut start = 0;
    let mut end = 0;
    while end < bytes.len() {
        start += world.receive_past(&bytes[start..]);
        end = (end + packet).min(bytes.len()).max(start);
        match world.drain(&bytes[start..end]) {
            Some(consumed) => start += consumed,
            None => break,
        }
        assert!(end - start < 134, "it leaves too much lying about");
    }
    assert!(world.sent.len() < OUT_MAX_BYTES, "it sends without end");
    let _ = world.session.on_eof().to_string();
    assert!(world.session.in_flight().count() == world.session.in_flight_count());
});

struct World {
    session: Session,
    /// Payload is received past the session where that can be done.
    direct: bool,
    sent: Vec<u8>,
    /// For each READ, which of its bytes were told.
    told: BTreeMap<Cookie, Vec<bool>>,
}

impl World {
    /// Takes events until the session wants more; nothing when the connection is over.
    fn drain(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            let step = self.session.on_bytes(&bytes[at..], &mut self.sent);
            at += step.consumed;
            assert!(at <= bytes.len(), "it consumed more than there was");
            match step.event {
                Event::NeedMore => return Some(at),
                Event::Broken => {
                    let failure = self.session.failure().expect("it broke").to_string();
                    assert!(!failure.chars().any(char::is_control) && failure.len() < 4096);
                    return None;
                }
                Event::Done { cookie, result } => {
                    let told = self.told.remove(&cookie);
                    assert!(result.is_err() || told.is_none_or(|told| !told.contains(&false)));
                    let _ = self.session.message();
                }
                _ => assert!(step.consumed > 0, "it does not move"),
            }
            match step.event {
                Event::Opened => COMMANDS.iter().for_each(|command| self.submit(*command)),
                Event::Payload(piece) => {
                    assert_eq!(piece.len_bytes, step.consumed as u64);
                    self.tell(piece);
                }
                Event::Zeroes(piece) => self.tell(piece),
                Event::Extent { extent, .. } => assert!((1..=LEN).contains(&extent.len_bytes)),
                _ => {}
            }
        }
    }

    fn receive_past(&mut self, bytes: &[u8]) -> usize {
        match self.session.payload_expected() {
            Some(piece) if self.direct && !bytes.is_empty() => {
                let len_bytes = piece.len_bytes.min(bytes.len() as u64);
                self.tell(Piece { len_bytes, ..piece });
                self.session.payload_received(len_bytes);
                len_bytes as usize
            }
            _ => 0,
        }
    }

    fn submit(&mut self, command: Command) {
        let request = match command {
            Command::Flush => Request::FLUSH,
            _ => Request::new(command, START..START + LEN),
        };
        if let Ok(cookie) = self.session.submit(&request, &mut self.sent)
            && command == Command::Read
        {
            self.told.insert(cookie, vec![false; LEN as usize]);
        }
    }

    fn tell(&mut self, piece: Piece) {
        let told = self.told.get_mut(&piece.cookie).expect("a READ in flight");
        let range = &mut told[piece.start_bytes as usize..][..piece.len_bytes as usize];
        assert!(!range.is_empty() && !range.contains(&true), "told twice");
        range.fill(true);
    }
}
