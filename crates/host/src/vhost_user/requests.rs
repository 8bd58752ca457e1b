//! Requests of a queue in flight: from a chain to bios, and from their ends to a status.
//!
//! ```text
//! chain ─ begin ─> command ─ feed ─> pieces of at most 64 KiB ─ bios ─> on_done ─> ended
//!                   │                 └ wait here for memory
//!                   └ discard, zeroes, flush: a bio without memory
//! ```
//! Data of a write is copied out of guest memory once, when its bio is submitted; data of a read is
//! copied into it when its bio has ended. So ciphertext never lies in guest memory.

use std::collections::VecDeque;
use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::slab::Slab;
use blockyard_protocol::virtio_blk::{
    Command, Disk, HEADER_BYTES, Header, Lengths, NAME_BYTES, Range, SEGMENT_BYTES, Status,
};
use blockyard_protocol::virtio_queue::{Chain, Span};

use super::memory::{Cursor, Data, GuestMemory};
use super::pieces::Pieces;
use super::virtqueue::RingFault;
use super::write_back::WriteBack;
use crate::driver::{Driver, SLOT_BYTES};

/// Buffer slot of [`Pieces`] in the shard's numbering.
const PIECES_SLOT: u32 = BufRef::FIRST_WORLD_SLOT;
/// Length of a portion of zeroes, so that other requests get their turn.
const ZEROES_PORTION_BYTES: u64 = 1 << 20;

/// A request in flight.
#[derive(Debug, Default)]
struct InFlight {
    head: u16,
    chain: Chain,
    /// `None` if only the status is left.
    command: Option<Command>,
    /// Place of the data that was not submitted.
    cursor: Cursor,
    /// Length of the range that was submitted.
    submitted_bytes: u64,
    /// Number of bios in flight.
    pending: u32,
    /// Whether the request is in [`Requests::feeding`].
    is_feeding: bool,
    status: Option<Status>,
    /// Its change is stable before it ends.
    must_be_stable: bool,
    /// A flush was submitted for a request that must be stable.
    is_flushed: bool,
}

impl InFlight {
    fn range(&self) -> Option<Range> {
        match self.command? {
            Command::Read(range)
            | Command::Write(range)
            | Command::Discard(range)
            | Command::WriteZeroes(range) => Some(range),
            Command::Flush | Command::Name(_) => None,
        }
    }

    /// Bytes of the range that were not submitted; none after an error.
    fn left_bytes(&self) -> u64 {
        let range = self.range().filter(|_| self.status.is_none());
        range.map_or(0, |range| range.len_bytes - self.submitted_bytes)
    }

    fn changes_data(&self) -> bool {
        matches!(
            self.command,
            Some(Command::Write(_) | Command::Discard(_) | Command::WriteZeroes(_))
        )
    }
}

/// Purpose of a bio.
#[derive(Clone, Copy, Debug)]
struct Piece {
    request: u32,
    /// Memory of a read or write.
    memory: Option<Memory>,
}

#[derive(Clone, Copy, Debug)]
struct Memory {
    offset_bytes: usize,
    len_bytes: u32,
    /// Place of the data in a read's buffers.
    read_to: Option<Cursor>,
}

/// A request that has ended; its status byte is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) head: u16,
    pub(super) written_bytes: u32,
}

/// The requests of a queue.
pub(super) struct Requests {
    disk: Disk,
    name: [u8; NAME_BYTES],
    /// The front end does not flush: every change is stable before it ends. Read when a request
    /// begins.
    write_back: Arc<WriteBack>,
    memory: Arc<GuestMemory>,
    pieces: Pieces,
    in_flight: Slab<InFlight>,
    bios: Slab<Piece>,
    /// Reads and writes with data that was not submitted, in order.
    feeding: VecDeque<u32>,
    ended: Vec<Ended>,
    /// Chains of ended requests, kept for their memory.
    chains: Vec<Chain>,
    /// Emptied after each use; kept for its memory.
    done: Vec<Done>,
}

impl Requests {
    pub(super) fn new(
        disk: Disk,
        name: [u8; NAME_BYTES],
        write_back: Arc<WriteBack>,
        memory: Arc<GuestMemory>,
        pieces: Pieces,
    ) -> Self {
        Self {
            disk,
            name,
            write_back,
            memory,
            pieces,
            in_flight: Slab::default(),
            bios: Slab::default(),
            feeding: VecDeque::new(),
            ended: Vec::new(),
            chains: Vec::new(),
            done: Vec::new(),
        }
    }

    /// Number of requests that have not ended.
    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether requests wait for memory.
    pub(super) fn waits_for_memory(&self) -> bool {
        !self.feeding.is_empty()
    }

    /// A chain for the next request.
    pub(super) fn chain(&mut self) -> Chain {
        self.chains.pop().unwrap_or_default()
    }

    /// The ended requests, in the order of their ends.
    pub(super) fn take_ended(&mut self) -> std::vec::Drain<'_, Ended> {
        self.ended.drain(..)
    }

    /// Starts a request that was fetched, and submits what fits into memory.
    pub(super) fn begin(
        &mut self,
        head: u16,
        chain: Chain,
        driver: &mut Driver,
    ) -> Result<(), RingFault> {
        let checked = self.check(&chain)?;
        let mut cursor = Cursor::default();
        let mut status = None;
        let command = match checked {
            Ok(command) => Some(command),
            Err(refused) => {
                status = Some(refused);
                None
            }
        };
        if let Some(Command::Write(_)) = command {
            cursor.advance(&chain.readable, HEADER_BYTES as u32);
        }
        if command == Some(Command::Flush) {
            self.write_back.prove();
        }
        let must_be_stable = !self.write_back.is_obeyed();
        let request = InFlight {
            head,
            chain,
            command,
            cursor,
            status,
            must_be_stable,
            ..InFlight::default()
        };
        let index = self.in_flight.insert(request);
        if let Some(
            Command::Read(_) | Command::Write(_) | Command::Discard(_) | Command::WriteZeroes(_),
        ) = command
        {
            driver.count_request();
        }
        match command {
            Some(Command::Read(_) | Command::Write(_)) => {
                self.in_flight.at(index).is_feeding = true;
                self.feeding.push_back(index);
                self.feed(driver)?;
            }
            Some(Command::Flush) => self.submit_flush(index, driver),
            Some(Command::Discard(range)) => self.submit_discard(index, range, driver),
            Some(Command::WriteZeroes(_)) => self.submit_zeroes(index, driver),
            Some(Command::Name(_)) | None => self.end_if_complete(index, driver),
        }
        Ok(())
    }

    fn check(&self, chain: &Chain) -> Result<Result<Command, Status>, RingFault> {
        let lengths = Lengths::of(chain)?;
        let mut bytes = [0; HEADER_BYTES + SEGMENT_BYTES];
        self.load(&chain.readable, 0, &mut bytes[..HEADER_BYTES]);
        let (first, second) = bytes.split_at_mut(HEADER_BYTES);
        let header = Header::of(first.try_into().expect("16 bytes"));
        let has_segment = header.has_segment() && lengths.readable_bytes >= SEGMENT_BYTES as u64;
        let segment = has_segment.then(|| {
            self.load(&chain.readable, HEADER_BYTES as u32, second);
            (&*second).try_into().expect("16 bytes")
        });
        if self.memory.is_broken() {
            return Err(RingFault::MemoryTaken);
        }
        Ok(self.disk.check(header, segment, lengths))
    }

    /// Copies a few bytes from these buffers.
    fn load(&self, spans: &[Span], skip_bytes: u32, to: &mut [u8]) {
        let mut at = Cursor::default();
        at.advance(spans, skip_bytes);
        let data = Data { spans, at, len_bytes: to.len() as u32 };
        // SAFETY: `to` is ours and as long as the data.
        unsafe { self.memory.load_data(&data, to.as_mut_ptr()) };
    }

    /// Submits data of reads and writes while there is memory.
    pub(super) fn feed(&mut self, driver: &mut Driver) -> Result<(), RingFault> {
        while let Some(&index) = self.feeding.front() {
            let left_bytes = self.in_flight.get(index).left_bytes();
            let len_bytes = left_bytes.min(SLOT_BYTES as u64);
            let mut offset_bytes = None;
            if len_bytes > 0 {
                offset_bytes = self.pieces.take(len_bytes as usize);
                if offset_bytes.is_none() {
                    return Ok(());
                }
            }
            // Before the last piece is submitted, because it may end the request at once.
            if len_bytes == left_bytes {
                self.feeding.pop_front();
                self.in_flight.at(index).is_feeding = false;
            }
            match offset_bytes {
                Some(offset) => self.submit_data(index, offset, len_bytes as u32, driver)?,
                None => self.end_if_complete(index, driver),
            }
            // Its memory may be free again.
            self.collect(driver);
        }
        Ok(())
    }

    /// Submits the next piece of a read or write in this memory.
    fn submit_data(
        &mut self,
        index: u32,
        offset_bytes: usize,
        len_bytes: u32,
        driver: &mut Driver,
    ) -> Result<(), RingFault> {
        let request = self.in_flight.at(index);
        let range = request.range().expect("it has data");
        let is_read = matches!(request.command, Some(Command::Read(_)));
        let at = request.cursor;
        let chain = &request.chain;
        let spans = if is_read { &chain.writable } else { &chain.readable };
        if !is_read {
            let to = self.pieces.at(offset_bytes, len_bytes as usize);
            // SAFETY: the memory belongs to this piece, and `at` has checked its length.
            unsafe { self.memory.load_data(&Data { spans, at, len_bytes }, to) };
            // Memory that the guest took away reads as zeros, which the guest did not write.
            if self.memory.is_broken() {
                return Err(RingFault::MemoryTaken);
            }
        }
        request.cursor.advance(spans, len_bytes);
        let sector = Sector::holding(range.offset_bytes + request.submitted_bytes);
        request.submitted_bytes += u64::from(len_bytes);
        let fua = request.must_be_stable && !is_read && !is_cut(range);
        let buf = BufRef { slot: PIECES_SLOT, offset_bytes: offset_bytes as u32, len_bytes };
        let op = if is_read { Op::Read } else { Op::Write };
        let bio = Bio::new(op, sector, Sector::holding(len_bytes.into()), buf, 0);
        let read_to = is_read.then_some(at);
        let memory = Some(Memory { offset_bytes, len_bytes, read_to });
        self.submit(Piece { request: index, memory }, Bio { fua, ..bio }, driver);
        Ok(())
    }

    fn submit_discard(&mut self, index: u32, range: Range, driver: &mut Driver) {
        self.in_flight.at(index).submitted_bytes = range.len_bytes;
        let sector = Sector::holding(range.offset_bytes);
        let len = Sector::holding(range.len_bytes);
        let bio = Bio::new(Op::Discard, sector, len, BufRef::NONE, 0);
        self.submit(Piece { request: index, memory: None }, bio, driver);
    }

    fn submit_flush(&mut self, index: u32, driver: &mut Driver) {
        let bio = Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 0);
        self.submit(Piece { request: index, memory: None }, bio, driver);
    }

    /// Submits the next portion of zeroes.
    fn submit_zeroes(&mut self, index: u32, driver: &mut Driver) {
        let request = self.in_flight.at(index);
        let range = request.range().expect("it has a range");
        let start = range.offset_bytes + request.submitted_bytes;
        let border = (start + ZEROES_PORTION_BYTES) & !(ZEROES_PORTION_BYTES - 1);
        let end = border.min(range.offset_bytes + range.len_bytes);
        request.submitted_bytes = end - range.offset_bytes;
        let sector = Sector::holding(start);
        let len = Sector::holding(end - start);
        let bio = Bio::new(Op::WriteZeroes, sector, len, BufRef::NONE, 0);
        self.submit(Piece { request: index, memory: None }, bio, driver);
    }

    fn submit(&mut self, piece: Piece, bio: Bio, driver: &mut Driver) {
        let request = self.in_flight.at(piece.request);
        request.pending += 1;
        // The guest waits for what must be stable.
        let origin = Origin { sync: request.must_be_stable, ..Origin::default() };
        let user = u64::from(self.bios.insert(piece));
        driver.submit(Bio { user, origin, ..bio });
    }

    /// Continues requests whose bios have ended, until no further bio ends.
    pub(super) fn collect(&mut self, driver: &mut Driver) {
        loop {
            let mut done = std::mem::take(&mut self.done);
            driver.take_done(&mut done);
            let is_empty = done.is_empty();
            done.drain(..).for_each(|done| self.on_done(done, driver));
            self.done = done;
            if is_empty {
                return;
            }
        }
    }

    fn on_done(&mut self, done: Done, driver: &mut Driver) {
        let number = u32::try_from(done.user).expect("an index of `bios`");
        let Piece { request: index, memory } = self.bios.remove(number);
        let request = self.in_flight.at(index);
        request.pending -= 1;
        let is_ok = done.status == BlkStatus::Ok;
        if !is_ok {
            request.status.get_or_insert(status_of(done.status));
        }
        if let Some(Memory { offset_bytes, len_bytes, read_to }) = memory {
            if let Some(at) = read_to.filter(|_| is_ok) {
                let data = Data { spans: &request.chain.writable, at, len_bytes };
                let from = self.pieces.at(offset_bytes, len_bytes as usize).cast_const();
                // SAFETY: the memory belongs to this piece, whose bio has ended.
                unsafe { self.memory.store_data(&data, from) };
            }
            self.pieces.free(offset_bytes, len_bytes as usize);
        }
        self.end_if_complete(index, driver);
    }

    /// Goes on with zeroes, flushes what must be stable, or ends the request.
    fn end_if_complete(&mut self, index: u32, driver: &mut Driver) {
        let request = self.in_flight.at(index);
        if request.pending > 0 || request.is_feeding {
            return;
        }
        if request.left_bytes() > 0 && matches!(request.command, Some(Command::WriteZeroes(_))) {
            return self.submit_zeroes(index, driver);
        }
        let is_stable = match request.command {
            Some(Command::Write(range)) => !is_cut(range),
            _ => !request.changes_data(),
        };
        let is_owed = request.must_be_stable && !is_stable && !request.is_flushed;
        if is_owed && request.status.is_none() {
            request.is_flushed = true;
            return self.submit_flush(index, driver);
        }
        let InFlight { head, chain, command, status, .. } = self.in_flight.remove(index);
        let status = status.unwrap_or(Status::Ok);
        let data_bytes = match command.filter(|_| status == Status::Ok) {
            Some(Command::Read(range)) => range.len_bytes,
            Some(Command::Name(len)) => {
                self.put_name(&chain, len);
                len as u64
            }
            _ => 0,
        };
        self.put_status(&chain, status);
        self.chains.push(chain);
        let written_bytes = u32::try_from(data_bytes + 1).unwrap_or(u32::MAX);
        self.ended.push(Ended { head, written_bytes });
    }

    fn put_name(&self, chain: &Chain, len: usize) {
        let spans = &chain.writable;
        let mut at = Cursor::default();
        at.advance(spans, 0);
        let data = Data { spans, at, len_bytes: len as u32 };
        // SAFETY: the name has at least `len` bytes.
        unsafe { self.memory.store_data(&data, self.name.as_ptr()) };
    }

    /// The last writable byte.
    fn put_status(&self, chain: &Chain, status: Status) {
        let last = chain.writable.iter().rev().find(|span| span.len_bytes > 0);
        let last = last.expect("the chain has room for a status");
        let addr = last.addr + u64::from(last.len_bytes) - 1;
        self.memory.store(addr, &[status as u8]).expect("it was checked when it was fetched");
    }
}

/// Whether a write becomes several, so that one flush after them is cheaper than FUA.
fn is_cut(range: Range) -> bool {
    range.len_bytes > SLOT_BYTES as u64
}

fn status_of(status: BlkStatus) -> Status {
    match status {
        BlkStatus::NotSupported => Status::Unsupported,
        BlkStatus::Ok
        | BlkStatus::NoSpace
        | BlkStatus::Invalid
        | BlkStatus::Transport
        | BlkStatus::Medium
        | BlkStatus::IoError => Status::IoError,
    }
}
