//! Requests of one client: parse in place, submit bios, reply.
//!
//! ```text
//!        ┌─ parse ──> submit ──> (done at once?) ──> reply gathered
//!   loop ┤  collect completions of the ring and the workers
//!        │  send the gathered replies, once nothing more can be parsed
//!        └─ wait: in `recv` while nothing is in flight, else for socket, ring and workers
//! ```
//! A volume whose operations all complete immediately (tmpfs, no workers) streams its reads through
//! the outbox; any other uses read slots, with many reads in flight ([`super::reads`]).

use std::sync::Arc;
use std::time::Duration;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::slab::Slab;
use blockyard_protocol::nbd::{Command, DirtyExtent, Errno, Event, Extent, Request, Session};

use super::exports::ServedExport;
use super::inbox::Inbox;
use super::outbox::Outbox;
use super::pace::Pace;
use super::reads::Reads;
use super::socket::Socket;
use crate::canary::{Canary, is_planted};
use crate::driver::{Driver, Patch, SLOT_BYTES};
use crate::memory::{GRANT_MAX_BYTES, Grant, Region};
use crate::poll;
use crate::volume::Volume;

/// Buffers of the front end in the shard's numbering.
pub(super) const INBOX_SLOT: u32 = BufRef::FIRST_WORLD_SLOT;
pub(super) const OUTBOX_SLOT: u32 = BufRef::FIRST_WORLD_SLOT + 1;
pub(super) const READS_SLOT: u32 = BufRef::FIRST_WORLD_SLOT + 2;
/// Zeroes for WRITE_ZEROES without holes.
const ZEROS_SLOT: u32 = BufRef::FIRST_WORLD_SLOT + 3;
/// Its length: that of a payload piece. It is never written, so all its pages are the kernel's zero
/// page.
const ZEROS_BYTES: u64 = 128 << 10;
/// Length of a portion of zeroes, so that other requests get their turn.
const ZEROES_PORTION_BYTES: u64 = 1 << 20;
/// Limit of requests in flight; more stay in the socket. Twice the usual depth of clients.
const REQUESTS_MAX: usize = 256;
/// Idle time after which a connection releases its buffers.
const IDLE: Duration = Duration::from_secs(5);
/// Limit of runs in a BLOCK_STATUS reply; the client asks again for the rest.
const EXTENTS_MAX: usize = 1024;

/// Requests of a connection so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) reads: u64,
    pub(super) bytes_read: u64,
    pub(super) writes: u64,
    pub(super) bytes_written: u64,
    /// Flushes, trims, zeroes and questions.
    pub(super) others: u64,
    pub(super) errors: u64,
}

impl Totals {
    #[inline]
    fn count(&mut self, request: &Request) {
        match request.command {
            Command::Read => {
                self.reads += 1;
                self.bytes_read += request.len_bytes;
            }
            Command::Write => {
                self.writes += 1;
                self.bytes_written += request.len_bytes;
            }
            Command::Flush
            | Command::Trim
            | Command::WriteZeroes
            | Command::BlockStatus
            | Command::Cache => self.others += 1,
        }
    }
}

/// The connection has ended, for any reason.
#[derive(Debug)]
pub(super) struct Ended;

/// A request in flight.
pub(super) struct InFlight {
    pub(super) request: Request,
    /// Number of bios in flight.
    pub(super) pending: u32,
    pub(super) error: Option<Errno>,
    /// All bios were submitted.
    pub(super) complete: bool,
    /// WRITE_ZEROES: whole sectors that were not submitted.
    portions: std::ops::Range<u64>,
    /// A split FUA request: its flush was submitted.
    flushed: bool,
}

/// Purpose of a bio.
pub(super) enum Piece {
    /// Part of a patched write, a flush, a trim or zeroes, of the request with this index.
    Plain(u32),
    /// Payload of the write with this index, in this part of the inbox.
    Payload(u32, u8),
    /// A portion of zeroes; the next one follows it.
    Portion(u32),
    /// Part of a read.
    Read(super::reads::ReadPiece),
}

/// The transmission phase of one connection.
// 18 fields: the protocol, the volume, and the state between the two.
pub(super) struct Transmission {
    pub(super) socket: Arc<Socket>,
    pub(super) session: Session,
    pub(super) volume: Arc<Volume>,
    pub(super) driver: Driver,
    inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) requests: Slab<InFlight>,
    pub(super) pieces: Slab<Piece>,
    pub(super) reads: Reads,
    /// The request whose payload is being received.
    writing: Option<u32>,
    /// Replies from the session to the outbox.
    pub(super) reply: Vec<u8>,
    done: Vec<Done>,
    /// The client sends no more requests.
    closing: bool,
    /// The buffers are released, and the wait for a request or an order has no limit.
    is_at_rest: bool,
    /// The inbox holds no complete request.
    needs_more: bool,
    pace: Pace,
    pub(super) totals: Totals,
    _grant: Grant,
}

impl Transmission {
    /// Starts the phase; `received` came directly after the handshake.
    pub(super) fn new(
        socket: Arc<Socket>,
        mut session: Session,
        served: &ServedExport,
        grant: Grant,
        received: &[u8],
    ) -> Result<Self, Ended> {
        let volume = Arc::clone(&served.volume);
        let layout = Layout::of(grant.len_bytes(), &volume);
        let inbox = Arc::new(Region::new(layout.inbox_parts * layout.part_bytes)?);
        let outbox = Arc::new(Region::new(layout.outbox_bytes)?);
        let read_region = Arc::new(Region::new(layout.reads_bytes)?);
        let zeros = Arc::new(Region::new(ZEROS_BYTES as usize)?);
        let world = vec![&inbox, &outbox, &read_region, &zeros].into_iter().cloned().collect();
        let mut driver = Driver::new(
            &volume.parts,
            layout.bounce_slots,
            world,
            served.priority,
            socket.accepted_at,
        )?;
        driver.set_throttle(served.throttle.as_ref());
        driver.log_slow_requests(&served.name);
        if !volume.fans_out_pieces() {
            driver.stay_inline();
        }
        let reads = Reads::new(&volume, read_region);
        session.set_piece(volume.sector_size_bytes() as usize, layout.part_bytes);
        socket.set_receive_timeout(IDLE);
        let mut transmission = Self {
            outbox: Outbox::new(outbox),
            inbox: Inbox::new(inbox, layout.part_bytes),
            requests: Slab::default(),
            pieces: Slab::default(),
            writing: None,
            reply: Vec::new(),
            done: Vec::new(),
            closing: false,
            is_at_rest: false,
            needs_more: false,
            pace: Pace::new(socket.is_unix),
            totals: Totals::default(),
            _grant: grant,
            socket,
            session,
            volume,
            driver,
            reads,
        };
        transmission.take_over(received);
        Ok(transmission)
    }

    /// Limit of useful memory.
    pub(super) fn useful_bytes(volume: &Volume) -> usize {
        if volume.is_synchronous() { Layout::SYNCHRONOUS_BYTES } else { GRANT_MAX_BYTES }
    }

    fn take_over(&mut self, received: &[u8]) {
        let (room, len) = self.inbox.make_room(false);
        assert!(received.len() <= len, "the handshake's buffer is smaller than the inbox");
        // SAFETY: the destination is at least as long as `received`, and disjoint from it.
        unsafe { std::ptr::copy_nonoverlapping(received.as_ptr(), room, received.len()) };
        self.inbox.received(received.len());
    }

    /// Serves until the client leaves or the server stops.
    pub(super) fn run(&mut self) -> Result<(), Ended> {
        loop {
            self.parse()?;
            self.collect()?;
            self.issue_reads()?;
            self.driver.unplug();
            self.send()?;
            if self.closing && self.open_requests() == 0 {
                return Ok(());
            }
            if !self.has_work() && !self.driver.help() {
                self.wait()?;
            }
        }
    }

    fn open_requests(&self) -> usize {
        self.requests.len() + self.reads.len()
    }

    /// Whether there is work without waiting: requests in the inbox, a free slot for a read, or a
    /// completed bio.
    fn has_work(&self) -> bool {
        let parses = !self.needs_more && self.takes_requests();
        parses || self.reads.can_issue() || self.driver.has_done()
    }

    /// Whether there is room for another request.
    fn takes_requests(&self) -> bool {
        !self.closing && self.open_requests() < REQUESTS_MAX && self.driver.can_patch()
    }

    /// Handles all complete requests in the inbox.
    fn parse(&mut self) -> Result<(), Ended> {
        self.needs_more = false;
        while self.takes_requests() {
            let step = self.session.on_bytes(self.inbox.bytes(), &mut self.reply);
            let at = self.inbox.consume(step.consumed);
            if !self.reply.is_empty() {
                self.send_reply()?;
            }
            match step.event {
                Event::NeedMore => {
                    self.needs_more = true;
                    break;
                }
                Event::Continue => {}
                Event::Request(request) => self.on_request(request)?,
                Event::Payload { offset_bytes, len_bytes, last } => {
                    self.on_payload(offset_bytes, at, len_bytes, last)?;
                }
                Event::Closed => self.closing = true,
                Event::Broken(_) => {
                    self.send()?;
                    return Err(Ended);
                }
                Event::Opened(_) | Event::Asked(_) | Event::StartTls => {
                    unreachable!("an export is open")
                }
            }
            self.collect_done()?;
            if self.outbox.is_full() {
                self.driver.unplug();
                self.send()?;
            }
        }
        Ok(())
    }

    fn on_request(&mut self, request: Request) -> Result<(), Ended> {
        self.pace.on_request(request.len_bytes);
        self.totals.count(&request);
        match request.command {
            Command::Read => return self.on_read(request),
            Command::BlockStatus => return self.on_block_status(&request),
            Command::Cache => {
                self.volume.will_need(request.offset_bytes, request.len_bytes);
                self.session.reply(&request, None, &mut self.reply);
                return self.send_reply();
            }
            Command::Write | Command::Flush | Command::Trim | Command::WriteZeroes => {}
        }
        let index = self.requests.insert(InFlight {
            request,
            pending: 0,
            error: None,
            complete: false,
            portions: 0..0,
            flushed: false,
        });
        if matches!(request.command, Command::Write | Command::WriteZeroes) {
            self.driver.count_request();
        }
        match request.command {
            Command::Write => self.writing = Some(index),
            Command::Flush => self.submit_last(index, Op::Flush, 0, 0),
            Command::Trim => {
                // Partial sectors stay: a trim is a hint.
                let sector = u64::from(self.volume.sector_size_bytes());
                let start = request.offset_bytes.next_multiple_of(sector);
                let end = (request.offset_bytes + request.len_bytes) / sector * sector;
                if start < end {
                    self.driver.count_request();
                    self.submit_last(index, Op::Discard, start, end - start);
                } else {
                    self.requests.at(index).complete = true;
                    self.end_if_complete(index)?;
                }
            }
            _ => self.begin_zeroes(index)?,
        }
        Ok(())
    }

    fn submit_last(&mut self, index: u32, op: Op, offset_bytes: u64, len_bytes: u64) {
        self.requests.at(index).complete = true;
        let sector = Sector::holding(offset_bytes);
        let len = Sector::holding(len_bytes);
        self.submit(Piece::Plain(index), Bio::new(op, sector, len, BufRef::NONE, 0));
    }

    /// Submits the bio of a piece that is no read.
    fn submit(&mut self, piece: Piece, bio: Bio) {
        let (sync, user) = self.piece(piece);
        self.driver.submit(Bio { user, origin: Origin { sync, ..Origin::default() }, ..bio });
    }

    /// Adds a piece to a request in flight; returns whether the client waits for it, and its
    /// number.
    fn piece(&mut self, piece: Piece) -> (bool, u64) {
        let (Piece::Plain(index) | Piece::Payload(index, _) | Piece::Portion(index)) = piece else {
            unreachable!("reads count their own pieces")
        };
        let request = self.requests.at(index);
        request.pending += 1;
        // Even if a later flush makes it stable, because the client waits for the parts.
        (request.request.fua, u64::from(self.pieces.insert(piece)))
    }

    /// Handles a piece of the current write, at `at` in the inbox.
    fn on_payload(
        &mut self,
        offset_bytes: u64,
        at: usize,
        len_bytes: usize,
        last: bool,
    ) -> Result<(), Ended> {
        let index = self.writing.expect("payload follows its WRITE");
        let sector = u64::from(self.volume.sector_size_bytes());
        let mut piece = Range { offset_bytes, at, len_bytes };
        let head = piece.take_head(sector);
        let tail = piece.take_tail(sector);
        if piece.len_bytes > 0 {
            let request = &self.requests.at(index).request;
            let fua = request.fua && !is_cut(request, sector);
            let start = Sector::holding(piece.offset_bytes);
            let len = Sector::holding(piece.len_bytes as u64);
            let bio = Bio::new(Op::Write, start, len, inbox_buf(piece.at, piece.len_bytes), 0);
            let part = self.inbox.write_begins(piece.at);
            self.submit(Piece::Payload(index, part), Bio { fua, ..bio });
        }
        head.into_iter().chain(tail).for_each(|part| self.patch(index, part));
        if last {
            self.writing = None;
            self.requests.at(index).complete = true;
            self.end_if_complete(index)?;
        }
        Ok(())
    }

    /// Changes a part of a sector.
    fn patch(&mut self, index: u32, part: Range) {
        let (sync, user) = self.piece(Piece::Plain(index));
        let Range { offset_bytes, at, len_bytes } = part;
        let bytes = (at != Range::ZEROS).then(|| self.inbox.consumed(at, len_bytes));
        self.driver.patch(&Patch { offset_bytes, len_bytes, bytes, sync, user });
    }

    /// Starts a WRITE_ZEROES: partial sectors now, the rest in portions.
    fn begin_zeroes(&mut self, index: u32) -> Result<(), Ended> {
        let sector = u64::from(self.volume.sector_size_bytes());
        let Request { offset_bytes, len_bytes, .. } = self.requests.at(index).request;
        let mut whole = Range { offset_bytes, at: Range::ZEROS, len_bytes: len_bytes as usize };
        let head = whole.take_head(sector);
        let tail = whole.take_tail(sector);
        self.requests.at(index).portions =
            whole.offset_bytes..whole.offset_bytes + whole.len_bytes as u64;
        head.into_iter().chain(tail).for_each(|part| self.patch(index, part));
        self.submit_zeroes(index)
    }

    /// Submits the next portion of zeroes, or ends the request.
    fn submit_zeroes(&mut self, index: u32) -> Result<(), Ended> {
        let InFlight { request, portions, error, .. } = self.requests.at(index);
        let no_hole = request.no_hole;
        if portions.is_empty() || error.is_some() {
            self.requests.at(index).complete = true;
            return self.end_if_complete(index);
        }
        let portion_bytes = if no_hole { ZEROS_BYTES } else { ZEROES_PORTION_BYTES };
        let border = (portions.start + portion_bytes) & !(portion_bytes - 1);
        let portion = portions.start..border.min(portions.end);
        portions.start = portion.end;
        let len = Sector::holding(portion.end - portion.start);
        let start = Sector::holding(portion.start);
        // Only a write allocates storage on every kind of file, device and server.
        let (op, buf) = if no_hole {
            let len_bytes = len.bytes() as u32;
            (Op::Write, BufRef { slot: ZEROS_SLOT, offset_bytes: 0, len_bytes })
        } else {
            (Op::WriteZeroes, BufRef::NONE)
        };
        self.submit(Piece::Portion(index), Bio::new(op, start, len, buf, 0));
        Ok(())
    }

    fn on_block_status(&mut self, request: &Request) -> Result<(), Ended> {
        let Request { offset_bytes, len_bytes: asked_bytes, contexts, .. } = *request;
        let mut extents = Vec::new();
        let mut done = 0;
        while contexts.allocation && done < asked_bytes && extents.len() < EXTENTS_MAX {
            let (len_bytes, hole) = self.volume.run_at(offset_bytes + done, asked_bytes - done);
            extents.push(Extent { len_bytes, hole, zero: hole });
            done += len_bytes;
        }
        let mut dirty = Vec::new();
        if contexts.dirty {
            let runs = self.volume.dirty_runs(offset_bytes, asked_bytes, EXTENTS_MAX);
            let extent = |(len_bytes, is_dirty)| DirtyExtent { len_bytes, is_dirty };
            dirty.extend(runs.into_iter().map(extent));
        }
        self.session.block_status(request, &extents, &dirty, &mut self.reply);
        self.send_reply()
    }

    /// Collects completions of the ring and the workers.
    fn collect(&mut self) -> Result<(), Ended> {
        self.driver.poll();
        self.collect_done()
    }

    /// Continues requests whose bios have ended, until no further bio ends.
    pub(super) fn collect_done(&mut self) -> Result<(), Ended> {
        loop {
            let mut done = std::mem::take(&mut self.done);
            self.driver.take_done(&mut done);
            if done.is_empty() {
                self.done = done;
                return Ok(());
            }
            for done in done.drain(..) {
                let piece = u32::try_from(done.user).expect("an index of `pieces`");
                match self.pieces.remove(piece) {
                    Piece::Plain(index) => {
                        self.end_piece(index, done.status);
                        self.end_if_complete(index)?;
                    }
                    Piece::Payload(index, part) => {
                        self.inbox.write_ends(part);
                        self.end_piece(index, done.status);
                        self.end_if_complete(index)?;
                    }
                    Piece::Portion(index) => {
                        self.end_piece(index, done.status);
                        self.submit_zeroes(index)?;
                    }
                    Piece::Read(piece) => self.on_read_done(&piece, done.status)?,
                }
            }
            self.done = done;
        }
    }

    fn end_piece(&mut self, index: u32, status: BlkStatus) {
        let request = self.requests.at(index);
        request.pending -= 1;
        if status != BlkStatus::Ok {
            request.error = Some(errno(status, &self.volume));
        }
    }

    /// Replies if the request is complete; flushes a split FUA request first.
    fn end_if_complete(&mut self, index: u32) -> Result<(), Ended> {
        let sector = u64::from(self.volume.sector_size_bytes());
        let InFlight { request, pending, error, complete, flushed, .. } = self.requests.at(index);
        if !*complete || *pending > 0 {
            return Ok(());
        }
        let is_owed = request.fua && is_cut(request, sector) && !is_planted(Canary::CutFua);
        if is_owed && error.is_none() && !*flushed {
            *flushed = true;
            self.submit_last(index, Op::Flush, 0, 0);
            return Ok(());
        }
        let InFlight { request, error, .. } = self.requests.remove(index);
        self.totals.errors += u64::from(error.is_some());
        self.session.reply(&request, error, &mut self.reply);
        self.send_reply()
    }

    /// Moves the session's reply to the outbox, or behind the read that is partly sent.
    pub(super) fn send_reply(&mut self) -> Result<(), Ended> {
        if self.reads.in_the_middle() {
            self.reads.put_behind(&mut self.reply);
        } else {
            self.append_reply()?;
        }
        Ok(())
    }

    /// Moves the session's reply to the outbox.
    pub(super) fn append_reply(&mut self) -> Result<(), Ended> {
        let mut reply = std::mem::take(&mut self.reply);
        self.append(&reply)?;
        reply.clear();
        self.reply = reply;
        Ok(())
    }

    /// Copies small replies to the outbox.
    pub(super) fn append(&mut self, mut bytes: &[u8]) -> Result<(), Ended> {
        loop {
            bytes = &bytes[self.outbox.append(bytes)..];
            if bytes.is_empty() {
                return Ok(());
            }
            self.send()?;
        }
    }

    /// Sends all gathered replies. While the client does not read, bios continue, because other
    /// clients and a suspend may wait for their resources.
    pub(super) fn send(&mut self) -> Result<(), Ended> {
        while !self.outbox.send(&self.socket)? {
            self.driver.unplug();
            if !self.driver.help() {
                self.driver.on_sleep();
                let socket = std::os::fd::AsFd::as_fd(&*self.socket);
                poll::writable(socket, &self.driver.wake_sources(), self.driver.wake_after())?;
                self.driver.poll();
            }
            // Perhaps nothing else comes before the thread waits.
            self.driver.unplug();
        }
        self.free_sent_reads();
        Ok(())
    }

    /// Waits for work.
    fn wait(&mut self) -> Result<(), Ended> {
        self.driver.on_sleep();
        let has_room = self.inbox.has_room(self.driver.reads_client_buffer());
        let can_receive = self.takes_requests() && has_room;
        if self.driver.is_idle() {
            // A request without anything in flight, parked or held would wait forever.
            assert!(can_receive, "every request waits for a completion");
            if !self.is_at_rest {
                return self.receive(Socket::receive);
            }
        }
        if can_receive && self.socket.has_received() {
            return self.receive(Socket::receive_reported);
        }
        let [ring, workers, gate, ranges] = self.driver.wake_sources();
        // Orders of a control socket come at rest too.
        let gate = gate.or_else(|| self.driver.resumed().filter(|_| self.is_at_rest));
        let socket = can_receive.then(|| std::os::fd::AsFd::as_fd(&*self.socket));
        let sources = [socket, ring, workers, gate, ranges];
        let [socket, ..] = poll::readable(&sources, self.driver.wake_after())?;
        if socket { self.receive(Socket::receive_reported) } else { Ok(()) }
    }

    fn receive(
        &mut self,
        from: fn(&Socket, *mut u8, usize) -> std::io::Result<Option<usize>>,
    ) -> Result<(), Ended> {
        let (room, len) = self.inbox.make_room(self.driver.reads_client_buffer());
        match from(&self.socket, room, len)? {
            Some(0) => return self.on_end_of_stream(),
            Some(len) => {
                self.inbox.received(len);
                self.driver.on_received();
                self.is_at_rest = false;
            }
            None if self.inbox.is_empty() && self.driver.is_idle() => {
                self.driver.release_buffers();
                self.is_at_rest = true;
            }
            None => {}
        }
        Ok(())
    }

    /// Handles the end of the stream: the client has left, or the server stops. A write with a
    /// cut-off payload fails; other requests complete.
    fn on_end_of_stream(&mut self) -> Result<(), Ended> {
        self.closing = true;
        self.driver.abandon_held();
        let Some(index) = self.writing.take() else { return Ok(()) };
        let write = self.requests.at(index);
        (write.complete, write.error) = (true, Some(Errno::Io));
        self.end_if_complete(index)
    }
}

/// A range of the volume, and the offset of its data in the inbox.
#[derive(Clone, Copy)]
struct Range {
    offset_bytes: u64,
    at: usize,
    len_bytes: usize,
}

impl Range {
    /// Stands for zeroes in place of an offset.
    const ZEROS: usize = usize::MAX;

    /// Splits off the part before the first whole sector.
    fn take_head(&mut self, sector_bytes: u64) -> Option<Self> {
        let past = self.offset_bytes % sector_bytes;
        if past == 0 || self.len_bytes == 0 {
            return None;
        }
        let len_bytes = ((sector_bytes - past) as usize).min(self.len_bytes);
        let head = Self { len_bytes, ..*self };
        self.offset_bytes += len_bytes as u64;
        self.len_bytes -= len_bytes;
        if self.at != Self::ZEROS {
            self.at += len_bytes;
        }
        Some(head)
    }

    /// Splits off the part after the last whole sector; the start is aligned.
    fn take_tail(&mut self, sector_bytes: u64) -> Option<Self> {
        let len_bytes = self.len_bytes % sector_bytes as usize;
        if len_bytes == 0 {
            return None;
        }
        self.len_bytes -= len_bytes;
        let offset_bytes = self.offset_bytes + self.len_bytes as u64;
        let at = if self.at == Self::ZEROS { self.at } else { self.at + self.len_bytes };
        Some(Self { offset_bytes, at, len_bytes })
    }
}

fn inbox_buf(at: usize, len_bytes: usize) -> BufRef {
    BufRef { slot: INBOX_SLOT, offset_bytes: at as u32, len_bytes: len_bytes as u32 }
}

/// Whether a FUA request may become several writes, so that one flush after them is cheaper. An
/// unaligned request does, because its ends are patched.
fn is_cut(request: &Request, sector_bytes: u64) -> bool {
    request.command != Command::Write
        || request.len_bytes > SLOT_BYTES as u64
        || !(request.offset_bytes | request.len_bytes).is_multiple_of(sector_bytes)
}

/// NBD's error for a status. A client of several gateways goes on at another one when this one has
/// lost the disk.
pub(super) fn errno(status: BlkStatus, volume: &Volume) -> Errno {
    match status {
        BlkStatus::Transport if volume.is_gateway() => Errno::Shutdown,
        BlkStatus::NoSpace => Errno::NoSpc,
        BlkStatus::Invalid => Errno::Inval,
        BlkStatus::NotSupported => Errno::NotSup,
        BlkStatus::Transport | BlkStatus::Medium | BlkStatus::IoError | BlkStatus::Ok => Errno::Io,
    }
}

/// Division of a grant.
struct Layout {
    inbox_parts: usize,
    /// Length of a part of the inbox.
    part_bytes: usize,
    outbox_bytes: usize,
    reads_bytes: usize,
    bounce_slots: usize,
}

impl Layout {
    const SYNCHRONOUS_BYTES: usize = 448 << 10;

    fn of(grant_bytes: usize, volume: &Volume) -> Self {
        if volume.is_synchronous() {
            return Self::synchronous();
        }
        Self::queued(grant_bytes, volume.parts.bounce.is_used())
    }

    /// A synchronous volume needs an inbox and an outbox only.
    fn synchronous() -> Self {
        let part_bytes = 256 << 10;
        let outbox_bytes = 192 << 10;
        Self { inbox_parts: 1, part_bytes, outbox_bytes, reads_bytes: 4096, bounce_slots: 0 }
    }

    /// Any other volume also needs memory for its reads and writes in flight. A write is in a slot
    /// if it is encrypted there (`bounces`), and soon out of the inbox. Any other one is in the
    /// inbox until its end.
    fn queued(grant_bytes: usize, bounces: bool) -> Self {
        let part_bytes = 128 << 10;
        let outbox_bytes = 64 << 10;
        let left = grant_bytes - outbox_bytes;
        let share = if bounces { left / 8 } else { left / 2 };
        let inbox_parts = (share / part_bytes).max(1);
        let left = left - inbox_parts * part_bytes;
        let bounce_slots = if bounces { left / 2 / SLOT_BYTES } else { 0 };
        let reads_bytes = left - bounce_slots * SLOT_BYTES;
        Self { inbox_parts, part_bytes, outbox_bytes, reads_bytes, bounce_slots }
    }
}

#[cfg(test)]
mod blocked;
#[cfg(test)]
mod held;

#[cfg(test)]
mod tests {
    use blockyard_protocol::nbd::Contexts;

    use super::*;

    fn write(offset_bytes: u64, len_bytes: u64) -> Request {
        Request {
            cookie: 0,
            command: Command::Write,
            offset_bytes,
            len_bytes,
            fua: true,
            no_hole: false,
            fast_zero: false,
            dont_fragment: false,
            req_one: false,
            contexts: Contexts::NONE,
        }
    }

    #[test]
    fn fua_write_with_patched_ends_is_flushed_as_a_whole() {
        assert!(!is_cut(&write(4096, 8192), 4096));
        assert!(is_cut(&write(4096, 8191), 4096));
        assert!(is_cut(&write(512, 4096), 4096));
        assert!(!is_cut(&write(512, 4096), 512));
        assert!(is_cut(&write(0, SLOT_BYTES as u64 + 4096), 4096));
    }
}
