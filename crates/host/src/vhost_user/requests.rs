//! Requests of a virtual machine: their chains, and the data in guest memory.
//!
//! Data of a write is copied out of guest memory once, when its bio is submitted; data of a read is
//! copied into it when its bio has ended. So ciphertext never lies in guest memory.

use std::sync::Arc;

use blockyard_engine::bio::BlkStatus;
use blockyard_protocol::virtio_blk::{
    Command, Disk, HEADER_BYTES, Header, Lengths, NAME_BYTES, SEGMENT_BYTES, Status,
};
use blockyard_protocol::virtio_queue::{Chain, Span};

use super::memory::{Cursor, Data, GuestMemory};
use super::pieces::Pieces;
use super::virtqueue::RingFault;
use crate::requests::{Buffers, Ended, Piece, Taken};

/// A request of a guest.
#[derive(Debug, Default)]
pub(super) struct GuestRequest {
    head: u16,
    chain: Chain,
    /// Place of the data that was not submitted.
    cursor: Cursor,
}

impl GuestRequest {
    /// A chain that was fetched, and its command.
    pub(super) fn new(head: u16, chain: Chain, command: Result<Command, BlkStatus>) -> Self {
        let mut cursor = Cursor::default();
        if let Ok(Command::Write(_)) = command {
            cursor.advance(&chain.readable, HEADER_BYTES as u32);
        }
        Self { head, chain, cursor }
    }
}

/// Guest memory, and memory of the queue for the copies.
pub(super) struct GuestBuffers {
    disk: Disk,
    name: [u8; NAME_BYTES],
    memory: Arc<GuestMemory>,
    pieces: Pieces,
    /// Chains of ended requests, kept for their memory.
    chains: Vec<Chain>,
}

impl GuestBuffers {
    pub(super) fn new(
        disk: Disk,
        name: [u8; NAME_BYTES],
        memory: Arc<GuestMemory>,
        pieces: Pieces,
    ) -> Self {
        Self { disk, name, memory, pieces, chains: Vec::new() }
    }

    /// A chain for the next request.
    pub(super) fn chain(&mut self) -> Chain {
        self.chains.pop().unwrap_or_default()
    }

    /// The command of a chain, or the status of one that cannot be done.
    pub(super) fn check(&self, chain: &Chain) -> Result<Result<Command, BlkStatus>, RingFault> {
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
        Ok(self.disk.check(header, segment, lengths).map_err(|refused| match refused {
            Status::Unsupported => BlkStatus::NotSupported,
            Status::Ok | Status::IoError => BlkStatus::IoError,
        }))
    }

    /// Copies a few bytes from these buffers.
    fn load(&self, spans: &[Span], skip_bytes: u32, to: &mut [u8]) {
        let mut at = Cursor::default();
        at.advance(spans, skip_bytes);
        let data = Data { spans, at, len_bytes: to.len() as u32 };
        // SAFETY: `to` is ours and as long as the data.
        unsafe { self.memory.load_data(&data, to.as_mut_ptr()) };
    }

    /// Writes the status of a request; returns its head and the number of written bytes.
    pub(super) fn finish(&mut self, ended: Ended<GuestRequest>) -> (u16, u32) {
        let Ended { own: GuestRequest { head, chain, .. }, command, status } = ended;
        let status = status_of(status);
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
        (head, u32::try_from(data_bytes + 1).unwrap_or(u32::MAX))
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

impl Buffers for GuestBuffers {
    type Request = GuestRequest;
    type Place = Cursor;
    type Fault = RingFault;

    fn take(
        &mut self,
        request: &mut GuestRequest,
        piece: Piece,
    ) -> Result<Option<Taken<Cursor>>, RingFault> {
        let Piece { is_read, len_bytes, .. } = piece;
        let Some(offset_bytes) = self.pieces.take(len_bytes as usize) else { return Ok(None) };
        let GuestRequest { chain, cursor, .. } = request;
        let place = *cursor;
        let spans = if is_read { &chain.writable } else { &chain.readable };
        if !is_read {
            let to = self.pieces.at(offset_bytes, len_bytes as usize);
            // SAFETY: the memory belongs to this piece, and `at` has checked its length.
            unsafe { self.memory.load_data(&Data { spans, at: place, len_bytes }, to) };
            // Memory that the guest took away reads as zeros, which the guest did not write.
            if self.memory.is_broken() {
                return Err(RingFault::MemoryTaken);
            }
        }
        cursor.advance(spans, len_bytes);
        Ok(Some(Taken { offset_bytes, place }))
    }

    fn end(&mut self, request: &GuestRequest, piece: Piece, taken: Taken<Cursor>, is_ok: bool) {
        let Piece { is_read, len_bytes, .. } = piece;
        let Taken { offset_bytes, place } = taken;
        if is_read && is_ok {
            let data = Data { spans: &request.chain.writable, at: place, len_bytes };
            let from = self.pieces.at(offset_bytes, len_bytes as usize).cast_const();
            // SAFETY: the memory belongs to this piece, whose bio has ended.
            unsafe { self.memory.store_data(&data, from) };
        }
        self.pieces.free(offset_bytes, len_bytes as usize);
    }
}

fn status_of(status: BlkStatus) -> Status {
    match status {
        BlkStatus::Ok => Status::Ok,
        BlkStatus::NotSupported => Status::Unsupported,
        BlkStatus::NoSpace
        | BlkStatus::Invalid
        | BlkStatus::Transport
        | BlkStatus::Medium
        | BlkStatus::IoError => Status::IoError,
    }
}
