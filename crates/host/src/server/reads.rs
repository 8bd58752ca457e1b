//! READ, in one of two modes.
//!
//! *Streaming*, for a volume without blocking reads: each piece is decrypted into the outbox and
//! sent while it is in the cache. The socket copies it: pages that a socket only references
//! (`vmsplice`) cannot be reused, because no call reports their last use.
//!
//! *Slots*, for other volumes: pieces of many requests are in flight, each in its own slot with its
//! header before its data. Pieces of a structured reply are sent on arrival. Pieces of an ordered
//! reply (simple replies, DF) are sent in order, one request at a time, oldest first; other replies
//! wait behind it. Slots are assigned in the order of requests, so the request being sent never
//! waits for a slot of a later one.

use std::collections::VecDeque;
use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::slab::Slab;
use blockyard_protocol::nbd::{Pieces, READ_HEADER_MAX, ReadChunk, ReadFailure, Request};

use super::transmission::{Ended, OUTBOX_SLOT, Piece, READS_SLOT, Transmission, errno};
use crate::memory::Region;
use crate::user_data::UserData;
use crate::volume::Volume;

/// Data length of a slot, after a page whose end holds the header.
const SLOT_DATA_BYTES: usize = 64 << 10;
const SLOT_STRIDE_BYTES: usize = SLOT_DATA_BYTES + 4096;
/// Data length of a streamed piece: the longest that fits the outbox of a streaming volume. Each
/// piece is a `sendmsg`; with 96 KiB, reads of 128 KiB were 10 % slower.
const STREAM_PIECE_BYTES: u64 = 128 << 10;

/// A piece in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadPiece {
    read: u32,
    slot: u32,
    offset_bytes: u64,
    len_bytes: usize,
    /// Bytes of the first sector before the requested range.
    skip_bytes: usize,
}

/// A READ that uses slots.
#[derive(Debug)]
struct SlotRead {
    request: Request,
    /// Start of the next piece.
    next: u64,
    /// Number of pieces in flight.
    pending: u32,
    sent_bytes: u64,
    failed: bool,
    /// Pieces of an ordered reply that wait for earlier ones.
    ready: Vec<ReadPiece>,
}

/// READs of one connection.
pub(super) struct Reads {
    region: Arc<Region>,
    streaming: bool,
    free_slots: Vec<u32>,
    /// Slots with data in the outbox.
    unsent_slots: Vec<u32>,
    open: Slab<SlotRead>,
    /// Reads with pieces to issue, oldest first.
    queue: VecDeque<u32>,
    /// Ordered reads that are not completely sent, oldest first.
    ordered: VecDeque<u32>,
    /// The first ordered read is partly sent.
    in_the_middle: bool,
    /// Replies that wait for its rest.
    behind: Vec<u8>,
}

impl Reads {
    pub(super) fn new(volume: &Volume, region: Arc<Region>) -> Self {
        let streaming = volume.is_synchronous();
        let slots = if streaming { 0 } else { region.len_bytes() / SLOT_STRIDE_BYTES };
        Self {
            streaming,
            free_slots: (0..slots as u32).rev().collect(),
            unsent_slots: Vec::new(),
            open: Slab::default(),
            queue: VecDeque::new(),
            ordered: VecDeque::new(),
            in_the_middle: false,
            behind: Vec::new(),
            region,
        }
    }

    /// Number of reads in flight.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether a piece could be issued now.
    pub(super) fn can_issue(&self) -> bool {
        !self.queue.is_empty() && !self.free_slots.is_empty()
    }

    /// Whether a reply is partly sent, so that other replies must wait.
    pub(super) fn in_the_middle(&self) -> bool {
        self.in_the_middle
    }

    /// Keeps replies until then.
    pub(super) fn put_behind(&mut self, reply: &mut Vec<u8>) {
        self.behind.append(reply);
    }

    /// The next piece of an ordered reply: the next one of the read being sent, else a complete
    /// read, else the first piece of the oldest.
    fn next_ordered(&mut self) -> Option<ReadPiece> {
        let oldest = *self.ordered.front()?;
        if !self.in_the_middle {
            for place in 0..self.ordered.len() {
                let read = self.open.at(self.ordered[place]);
                if let [piece] = read.ready[..]
                    && piece.len_bytes as u64 == read.request.len_bytes
                {
                    read.ready.clear();
                    return Some(piece);
                }
            }
        }
        let read = self.open.at(oldest);
        let next = read.request.offset_bytes + read.sent_bytes;
        let place = read.ready.iter().position(|piece| piece.offset_bytes == next)?;
        Some(read.ready.swap_remove(place))
    }

    /// Removes a completed read without pieces in flight.
    fn remove_if_ended(&mut self, index: u32) {
        let read = self.open.at(index);
        let answered = read.failed || read.sent_bytes == read.request.len_bytes;
        if answered && read.pending == 0 {
            self.open.remove(index);
        }
    }
}

fn data_offset(slot: u32) -> usize {
    slot as usize * SLOT_STRIDE_BYTES + 4096
}

impl Transmission {
    pub(super) fn on_read(&mut self, request: Request) -> Result<(), Ended> {
        if self.reads.streaming {
            self.driver.count_request();
            return self.stream(&request);
        }
        let next = request.offset_bytes;
        let read =
            SlotRead { request, next, pending: 0, sent_bytes: 0, failed: false, ready: vec![] };
        let index = self.reads.open.insert(read);
        self.reads.queue.push_back(index);
        if self.session.pieces_allowed(&request) == Pieces::Ordered {
            self.reads.ordered.push_back(index);
        }
        self.issue_reads()
    }

    /// Serves a whole READ now.
    fn stream(&mut self, request: &Request) -> Result<(), Ended> {
        let end = request.offset_bytes + request.len_bytes;
        let mut offset_bytes = request.offset_bytes;
        while offset_bytes < end {
            // A thread that waits for tokens sends nothing.
            if self.driver.would_wait() {
                self.send()?;
            }
            let max = STREAM_PIECE_BYTES;
            // Split at multiples, so that only the first and the last piece can be unaligned.
            let len_bytes = ((offset_bytes / max + 1) * max).min(end) - offset_bytes;
            let chunk = ReadChunk {
                request: *request,
                offset_bytes,
                len_bytes,
                first: offset_bytes == request.offset_bytes,
                last: offset_bytes + len_bytes == end,
            };
            let status = self.stream_piece(&chunk)?;
            if status != BlkStatus::Ok {
                return self.fail(request, offset_bytes, !chunk.first, status);
            }
            self.trail(&chunk)?;
            offset_bytes += len_bytes;
        }
        Ok(())
    }

    /// Reads a piece through the outbox.
    fn stream_piece(&mut self, chunk: &ReadChunk) -> Result<BlkStatus, Ended> {
        let (span_bytes, skip_bytes) = self.span(chunk.offset_bytes, chunk.len_bytes);
        let place = loop {
            if let Some(place) = self.outbox.reserve(READ_HEADER_MAX, span_bytes) {
                break place;
            }
            self.send()?;
        };
        let status = self.read_now(chunk.offset_bytes, span_bytes, OUTBOX_SLOT, place);
        if status == BlkStatus::Ok {
            let (base, len) = self.put_header(chunk, self.outbox.at(place + skip_bytes));
            self.outbox.push(base, len);
        }
        Ok(status)
    }

    /// The aligned range around a piece: its length, and the part before the piece.
    fn span(&self, offset_bytes: u64, len_bytes: u64) -> (usize, usize) {
        let sector = u64::from(self.volume.sector_size_bytes());
        let start = offset_bytes / sector * sector;
        let end = (offset_bytes + len_bytes).next_multiple_of(sector).min(self.volume.size_bytes());
        ((end - start) as usize, (offset_bytes - start) as usize)
    }

    fn read_bio(
        &self,
        offset_bytes: u64,
        span_bytes: usize,
        slot: u32,
        place: usize,
        user: u64,
    ) -> Bio {
        let sector = u64::from(self.volume.sector_size_bytes());
        let offset = place as u32;
        let len_bytes = span_bytes as u32;
        let start = Sector::holding(offset_bytes / sector * sector);
        let buf = BufRef { slot, offset_bytes: offset, len_bytes };
        Bio::new(Op::Read, start, Sector::holding(span_bytes as u64), buf, user)
    }

    fn read_now(&mut self, offset: u64, span_bytes: usize, slot: u32, place: usize) -> BlkStatus {
        let bio = self.read_bio(offset, span_bytes, slot, place, UserData::WAITED_FOR);
        self.driver.submit_and_wait(bio)
    }

    /// Writes the header of a piece directly before its data, where the buffer has room for one.
    /// Returns the start and length of both together.
    fn put_header(&self, chunk: &ReadChunk, data: *mut u8) -> (*const u8, usize) {
        let mut header = [0; READ_HEADER_MAX];
        let len = self.session.read_header(chunk, &mut header);
        let base = data.wrapping_sub(len);
        // SAFETY: `READ_HEADER_MAX` bytes before `data` belong to the same place in the buffer, and
        // hold at most the unrequested part of the first sector.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), base, len) };
        (base, len + chunk.len_bytes as usize)
    }

    fn trail(&mut self, chunk: &ReadChunk) -> Result<(), Ended> {
        self.session.read_trailer(chunk, &mut self.reply);
        self.append_reply()
    }

    fn fail(
        &mut self,
        request: &Request,
        offset_bytes: u64,
        started: bool,
        status: BlkStatus,
    ) -> Result<(), Ended> {
        let error = errno(status, &self.volume);
        self.totals.errors += 1;
        match self.session.read_failed(request, offset_bytes, started, error, &mut self.reply) {
            ReadFailure::Replied => self.send_reply(),
            ReadFailure::MustDisconnect => Err(Ended),
        }
    }

    /// Issues pieces while slots are free.
    pub(super) fn issue_reads(&mut self) -> Result<(), Ended> {
        while self.reads.can_issue() {
            let index = self.reads.queue[0];
            let slot = self.reads.free_slots.pop().expect("just looked");
            let read = self.reads.open.at(index);
            let end = read.request.offset_bytes + read.request.len_bytes;
            let offset_bytes = read.next;
            if offset_bytes == read.request.offset_bytes {
                self.driver.count_request();
            }
            let max = SLOT_DATA_BYTES as u64;
            let len_bytes = ((offset_bytes / max + 1) * max).min(end) - offset_bytes;
            read.next += len_bytes;
            read.pending += 1;
            if read.next == end {
                self.reads.queue.pop_front();
            }
            let (span_bytes, skip_bytes) = self.span(offset_bytes, len_bytes);
            let len_bytes = len_bytes as usize;
            let piece = ReadPiece { read: index, slot, offset_bytes, len_bytes, skip_bytes };
            let user = u64::from(self.pieces.insert(Piece::Read(piece)));
            let place = data_offset(slot);
            let bio = self.read_bio(offset_bytes, span_bytes, READS_SLOT, place, user);
            self.driver.submit(bio);
        }
        self.collect_done()
    }

    pub(super) fn on_read_done(
        &mut self,
        piece: &ReadPiece,
        status: BlkStatus,
    ) -> Result<(), Ended> {
        let read = self.reads.open.at(piece.read);
        read.pending -= 1;
        if read.failed {
            self.reads.free_slots.push(piece.slot);
        } else if status != BlkStatus::Ok {
            self.reads.free_slots.push(piece.slot);
            self.fail_slot_read(piece, status)?;
        } else if self.session.pieces_allowed(&read.request) == Pieces::Chunks {
            self.emit(piece)?;
        } else {
            read.ready.push(*piece);
            return self.send_ordered();
        }
        self.reads.remove_if_ended(piece.read);
        Ok(())
    }

    fn fail_slot_read(&mut self, piece: &ReadPiece, status: BlkStatus) -> Result<(), Ended> {
        let read = self.reads.open.at(piece.read);
        read.failed = true;
        let request = read.request;
        let started = read.sent_bytes > 0;
        let ready = std::mem::take(&mut read.ready);
        self.reads.free_slots.extend(ready.iter().map(|piece| piece.slot));
        self.reads.queue.retain(|index| *index != piece.read);
        self.reads.ordered.retain(|index| *index != piece.read);
        self.fail(&request, piece.offset_bytes, started, status)
    }

    /// Sends pieces of ordered replies whose turn has come.
    fn send_ordered(&mut self) -> Result<(), Ended> {
        while let Some(piece) = self.reads.next_ordered() {
            self.emit(&piece)?;
            let read = self.reads.open.at(piece.read);
            let whole = read.sent_bytes == read.request.len_bytes;
            self.reads.in_the_middle = !whole;
            if whole {
                self.reads.ordered.retain(|index| *index != piece.read);
                self.reads.remove_if_ended(piece.read);
                let behind = std::mem::take(&mut self.reads.behind);
                self.append(&behind)?;
            }
        }
        Ok(())
    }

    /// Queues a piece after its read.
    fn emit(&mut self, piece: &ReadPiece) -> Result<(), Ended> {
        let read = self.reads.open.at(piece.read);
        let request = read.request;
        let len_bytes = piece.len_bytes as u64;
        let first = read.sent_bytes == 0;
        read.sent_bytes += len_bytes;
        let last = read.sent_bytes == request.len_bytes;
        let chunk = ReadChunk { request, offset_bytes: piece.offset_bytes, len_bytes, first, last };
        let data = data_offset(piece.slot) + piece.skip_bytes;
        let (base, len) = self.put_header(&chunk, self.reads.region.at(data, piece.len_bytes));
        self.outbox.push(base, len);
        self.reads.unsent_slots.push(piece.slot);
        self.trail(&chunk)
    }

    /// Frees the slots of sent pieces.
    pub(super) fn free_sent_reads(&mut self) {
        let reads = &mut self.reads;
        reads.free_slots.append(&mut reads.unsent_slots);
    }
}
