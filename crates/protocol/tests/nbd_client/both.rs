//! Client and server against each other: random requests, answered out of order and in pieces, over
//! a wire that splits at random places.

use std::collections::BTreeMap;
use std::sync::Arc;

use blockyard_protocol::nbd::client::{Cookie, Event, Piece, Request, Session, Settings};
use blockyard_protocol::nbd::{
    self, Command, Errno, Export, Extent, Pieces, READ_HEADER_MAX, ReadChunk, ReplyMode,
};

use crate::dice::Dice;
use crate::server::MODES;

const SIZE: u64 = 64 << 10;
const REQUESTS: usize = 60;

/// Whether a request fails; known to both sides.
fn fails(offset_bytes: u64, len_bytes: u64) -> bool {
    len_bytes > 0 && (offset_bytes ^ len_bytes) / 512 % 8 == 3
}

/// Whether the session refuses the request: allocated zeroes are no faster than a write.
fn is_refused(request: &Request) -> bool {
    request.command == Command::WriteZeroes && request.no_hole && request.fast_zero
}

/// State of each byte for BLOCK_STATUS; known to both sides.
fn state_at(at: u64) -> (bool, bool) {
    let block = at / 4096;
    (block.is_multiple_of(3), block.is_multiple_of(3) || block.is_multiple_of(5))
}

/// Effect of a successful request on a disk.
fn apply(command: Command, range: &mut [u8], payload: &[u8]) {
    match command {
        Command::Write => range.copy_from_slice(payload),
        Command::Trim | Command::WriteZeroes => range.fill(0),
        _ => {}
    }
}

/// The server's world.
struct Server {
    session: nbd::Session,
    inbox: Vec<u8>,
    out: Vec<u8>,
    disk: Vec<u8>,
    /// The WRITE whose payload is being received.
    write: Option<nbd::Request>,
    /// Pending replies, in any order.
    replies: Vec<Reply>,
    closed: bool,
}

/// A reply that is not or only partly sent.
struct Reply {
    request: nbd::Request,
    /// The content of a READ, and its remaining pieces.
    data: Vec<u8>,
    pieces: Vec<(u64, u64)>,
    started: bool,
}

impl Server {
    fn new(export: Export) -> Self {
        Self {
            disk: (0..SIZE).map(|at| (at / 700) as u8).collect(),
            session: nbd::Session::new(Arc::new([export]), Some(0)),
            inbox: Vec::new(),
            out: Vec::new(),
            write: None,
            replies: Vec::new(),
            closed: false,
        }
    }

    fn receive(&mut self, bytes: &[u8], dice: &mut Dice) {
        self.inbox.extend_from_slice(bytes);
        let inbox = std::mem::take(&mut self.inbox);
        let mut at = 0;
        loop {
            let step = self.session.on_bytes(&inbox[at..], &mut self.out);
            let bytes = &inbox[at..at + step.consumed];
            at += step.consumed;
            match step.event {
                nbd::Event::NeedMore => break,
                nbd::Event::Asked(_) => unreachable!("no export is closed"),
                nbd::Event::Continue | nbd::Event::StartTls | nbd::Event::Opened(_) => {}
                nbd::Event::Request(request) if request.command == Command::Write => {
                    self.write = Some(request);
                }
                nbd::Event::Request(request) => self.execute(request, dice),
                nbd::Event::Payload { offset_bytes, last, .. } => {
                    let write = self.write.expect("its request came first");
                    if !fails(write.offset_bytes, write.len_bytes) {
                        self.disk[offset_bytes as usize..][..bytes.len()].copy_from_slice(bytes);
                    }
                    if last {
                        self.execute(write, dice);
                    }
                }
                nbd::Event::Closed => {
                    self.closed = true;
                    break;
                }
                nbd::Event::Broken(violation) => panic!("the client broke it: {violation}"),
            }
        }
        self.inbox = inbox[at..].to_vec();
    }

    /// Executes a request at once; the reply is queued.
    fn execute(&mut self, request: nbd::Request, dice: &mut Dice) {
        let range =
            request.offset_bytes as usize..(request.offset_bytes + request.len_bytes) as usize;
        let failed = fails(request.offset_bytes, request.len_bytes);
        if !failed && request.command != Command::Write {
            apply(request.command, &mut self.disk[range.clone()], &[]);
        }
        let mut reply = Reply { request, data: Vec::new(), pieces: Vec::new(), started: false };
        if request.command == Command::Read {
            reply.data = self.disk[range].to_vec();
            let mut start = 0;
            while start < request.len_bytes {
                let len = (1 + dice.below(5000)).min(request.len_bytes - start);
                reply.pieces.push((start, len));
                start += len;
            }
            if self.session.pieces_allowed(&request) == Pieces::Chunks {
                for at in (1..reply.pieces.len()).rev() {
                    reply.pieces.swap(at, dice.index(at + 1));
                }
            }
        }
        self.replies.push(reply);
    }

    /// Sends a part of a pending reply.
    fn answer(&mut self, dice: &mut Dice) {
        if self.replies.is_empty() {
            return;
        }
        let index = dice.index(self.replies.len());
        let request = self.replies[index].request;
        let failed = fails(request.offset_bytes, request.len_bytes);
        let ended = match request.command {
            Command::Read => self.answer_read(index, failed && dice.one_in(2)),
            Command::BlockStatus if !failed => {
                self.session.block_status(&request, &extents(&request), &[], &mut self.out);
                true
            }
            _ => {
                let error = failed.then_some(Errno::Io);
                self.session.reply(&request, error, &mut self.out);
                true
            }
        };
        if ended {
            self.replies.swap_remove(index);
        }
    }

    /// Sends a piece, or all pieces of an ordered reply, or fails; returns whether the reply is
    /// complete.
    fn answer_read(&mut self, index: usize, fail_now: bool) -> bool {
        let reply = &mut self.replies[index];
        let request = reply.request;
        let failed = fails(request.offset_bytes, request.len_bytes);
        let ordered = self.session.pieces_allowed(&request) == Pieces::Ordered;
        if failed && (ordered || fail_now || reply.pieces.len() == 1) {
            let at = request.offset_bytes;
            let started = reply.started;
            let _ = self.session.read_failed(&request, at, started, Errno::Io, &mut self.out);
            return true;
        }
        while !reply.pieces.is_empty() {
            let (start, len_bytes) = reply.pieces.remove(0);
            let chunk = ReadChunk {
                request,
                offset_bytes: request.offset_bytes + start,
                len_bytes,
                first: !reply.started,
                last: reply.pieces.is_empty(),
            };
            reply.started = true;
            let data = &reply.data[start as usize..][..len_bytes as usize];
            let zero = data.iter().all(|byte| *byte == 0);
            if !(zero && self.session.reply_zero_hole(&chunk, &mut self.out)) {
                let mut header = [0; READ_HEADER_MAX];
                let header_bytes = self.session.read_header(&chunk, &mut header);
                self.out.extend_from_slice(&header[..header_bytes]);
                self.out.extend_from_slice(data);
                self.session.read_trailer(&chunk, &mut self.out);
            }
            if !ordered {
                break;
            }
        }
        reply.pieces.is_empty()
    }
}

/// State of a range; the last extent reaches past it.
fn extents(request: &nbd::Request) -> Vec<Extent> {
    let mut at = request.offset_bytes;
    let end = request.offset_bytes + request.len_bytes;
    let mut extents = Vec::new();
    while at < end {
        let next = (at / 4096 + 1) * 4096;
        let (hole, zero) = state_at(at);
        extents.push(Extent { len_bytes: next - at, hole, zero });
        at = next;
    }
    extents
}

/// A request of the client and its expected result.
struct Asked {
    request: Request,
    expected: Vec<u8>,
    told: Vec<Option<u8>>,
    /// Bytes covered by received extents of a BLOCK_STATUS.
    status_bytes: u64,
}

/// The client's world.
struct Caller {
    session: Session,
    inbox: Vec<u8>,
    out: Vec<u8>,
    /// The disk after all submitted requests.
    disk: Vec<u8>,
    asked: BTreeMap<Cookie, Asked>,
    submitted: usize,
    opened: bool,
}

impl Caller {
    /// Submits a random valid request.
    fn submit(&mut self, dice: &mut Dice) {
        const COMMANDS: [Command; 9] = [
            Command::Read,
            Command::Read,
            Command::Read,
            Command::Write,
            Command::Write,
            Command::Trim,
            Command::WriteZeroes,
            Command::Cache,
            Command::BlockStatus,
        ];
        let remote = self.session.remote().expect("it is open");
        let command = COMMANDS[dice.index(if remote.allocation { 9 } else { 8 })];
        let max = remote.len_max_bytes(command).min(SIZE) / 512;
        let len = 512 * (1 + dice.below(max.min(40)));
        let offset = 512 * dice.below((SIZE - len) / 512 + 1);
        let mut request = Request::new(command, offset..offset + len);
        if dice.one_in(12) {
            request = Request::FLUSH;
        }
        let zeroes = request.command == Command::WriteZeroes;
        request.fua = matches!(request.command, Command::Write | Command::Trim) && dice.one_in(4);
        request.no_hole = zeroes && dice.one_in(2);
        request.fast_zero = zeroes && dice.one_in(2);
        request.req_one = request.command == Command::BlockStatus && dice.one_in(2);
        let Ok(cookie) = self.session.submit(&request, &mut self.out) else {
            return; // the greatest number is in flight
        };
        self.submitted += 1;
        let range = &mut self.disk[offset as usize..][..request.len_bytes as usize];
        let expected = range.to_vec();
        let mut payload = Vec::new();
        if request.command == Command::Write {
            payload = (0..len).map(|_| dice.roll() as u8).collect();
            self.out.extend_from_slice(&payload);
        }
        if !fails(request.offset_bytes, request.len_bytes) && !is_refused(&request) {
            apply(request.command, range, &payload);
        }
        let told = vec![None; expected.len()];
        let asked = Asked { request, expected, told, status_bytes: 0 };
        assert!(self.asked.insert(cookie, asked).is_none());
    }

    fn receive(&mut self, bytes: &[u8], direct: bool) {
        let mut bytes = bytes;
        // Straight into the buffer, as in a world.
        if direct
            && self.inbox.is_empty()
            && let Some(piece) = self.session.payload_expected()
        {
            let len = piece.len_bytes.min(bytes.len() as u64);
            let (data, rest) = bytes.split_at(len as usize);
            self.tell(Piece { len_bytes: len, ..piece }, |at| data[at]);
            if len > 0 {
                self.session.payload_received(len);
            }
            bytes = rest;
        }
        self.inbox.extend_from_slice(bytes);
        let inbox = std::mem::take(&mut self.inbox);
        let mut at = 0;
        loop {
            let step = self.session.on_bytes(&inbox[at..], &mut self.out);
            let bytes = &inbox[at..at + step.consumed];
            at += step.consumed;
            match step.event {
                Event::NeedMore => break,
                Event::Continue | Event::StartTls => {}
                Event::Opened => self.opened = true,
                Event::Payload(piece) => self.tell(piece, |at| bytes[at]),
                Event::Zeroes(piece) => self.tell(piece, |_| 0),
                Event::Extent { cookie, extent } => self.learn(cookie, extent),
                Event::Done { cookie, result } => self.done(cookie, result),
                Event::Broken => panic!("the server broke it: {:?}", self.session.failure()),
            }
        }
        self.inbox = inbox[at..].to_vec();
    }

    fn tell(&mut self, piece: Piece, byte: impl Fn(usize) -> u8) {
        let asked = self.asked.get_mut(&piece.cookie).expect("it is in flight");
        let start = piece.start_bytes as usize;
        for at in 0..piece.len_bytes as usize {
            assert_eq!(asked.told[start + at].replace(byte(at)), None, "told twice");
        }
    }

    fn learn(&mut self, cookie: Cookie, extent: Extent) {
        let asked = self.asked.get_mut(&cookie).expect("it is in flight");
        let start = asked.request.offset_bytes + asked.status_bytes;
        for at in (start..start + extent.len_bytes).step_by(512) {
            assert_eq!((extent.hole, extent.zero), state_at(at));
        }
        assert!(asked.status_bytes == 0 || !asked.request.req_one);
        asked.status_bytes += extent.len_bytes;
        assert!(asked.status_bytes <= asked.request.len_bytes);
    }

    fn done(&mut self, cookie: Cookie, result: Result<(), Errno>) {
        let Asked { request, expected, told, status_bytes } =
            self.asked.remove(&cookie).expect("it was in flight");
        let error = if is_refused(&request) {
            Some(Errno::NotSup)
        } else if fails(request.offset_bytes, request.len_bytes) {
            Some(Errno::Io)
        } else {
            None
        };
        assert_eq!(result, error.map_or(Ok(()), Err), "{request:?}");
        let failed = error.is_some();
        match request.command {
            _ if failed => {}
            Command::Read => {
                let told: Option<Vec<u8>> = told.into_iter().collect();
                assert!(told.expect("every byte was told") == expected, "{request:?}");
            }
            Command::BlockStatus if !request.req_one => {
                assert_eq!(status_bytes, request.len_bytes);
            }
            Command::BlockStatus => assert!(status_bytes > 0),
            _ => {}
        }
    }
}

/// Moves a few bytes.
fn cut(from: &mut Vec<u8>, dice: &mut Dice) -> Vec<u8> {
    let max = [1, 40, 3000, 100_000][dice.index(4)];
    let len = (1 + dice.index(max)).min(from.len());
    from.drain(..len).collect()
}

fn run(seed: u64, mode: ReplyMode) {
    let mut dice = Dice(seed);
    let mut export = Export::new("disk", SIZE);
    (export.can_trim, export.can_fast_zero, export.block_min_bytes) = (true, true, 512);
    export.block_max_bytes = 16 << 10;
    let mut server = Server::new(export);
    server.session.greeting(&mut server.out);
    let settings = Settings {
        mode_max: mode,
        allocation: dice.one_in(2),
        in_flight_max: 1 + dice.below(12) as u16,
        ..Settings::new("disk")
    };
    let mut caller = Caller {
        session: Session::new(settings).expect("a short name"),
        inbox: Vec::new(),
        out: Vec::new(),
        disk: server.disk.clone(),
        asked: BTreeMap::new(),
        submitted: 0,
        opened: false,
    };
    while caller.submitted < REQUESTS || !caller.asked.is_empty() {
        match dice.below(4) {
            0 if caller.opened && caller.submitted < REQUESTS => caller.submit(&mut dice),
            1 => {
                let bytes = cut(&mut caller.out, &mut dice);
                server.receive(&bytes, &mut dice);
            }
            2 => {
                let bytes = cut(&mut server.out, &mut dice);
                caller.receive(&bytes, dice.one_in(2));
            }
            _ => server.answer(&mut dice),
        }
    }
    assert_eq!(caller.session.remote().map(|remote| remote.mode), Some(mode));
    assert!(server.disk == caller.disk, "the disks differ");
    caller.session.disconnect(&mut caller.out);
    server.receive(&caller.out, &mut dice);
    assert!(server.closed && server.out.is_empty() && caller.inbox.is_empty());
}

#[test]
fn client_and_server_understand_each_other_in_every_form() {
    for mode in MODES {
        for seed in 0..200 {
            let outcome = std::panic::catch_unwind(|| run(seed, mode));
            assert!(outcome.is_ok(), "seed {seed} in mode {mode:?}");
        }
    }
}
