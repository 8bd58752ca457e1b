//! Requests of a disk's queue in flight: from a command to bios, and from their ends to a status.
//!
//! ```text
//! command ─ begin ─> feed ─> pieces of at most 64 KiB ─ bios ─> on_done ─> ended
//!             │       └ wait here for memory
//!             └ discard, zeroes, flush: a bio without memory
//! ```
//! The front end owns the data of a request ([`Buffers`]): a virtual machine or the kernel.

use std::collections::VecDeque;
use std::fmt::Debug;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::slab::Slab;
use blockyard_protocol::virtio_blk::{Command, Range};

use crate::driver::{Driver, SLOT_BYTES};

/// Slot of [`Buffers`] in the shard's numbering.
const BUFFERS_SLOT: u32 = BufRef::FIRST_WORLD_SLOT;
/// Length of a portion of zeroes, so that other requests get their turn.
const ZEROES_PORTION_BYTES: u64 = 1 << 20;

/// Memory for the data of reads and writes: the first region of the driver's world.
pub(crate) trait Buffers {
    /// The front end's part of a request.
    type Request: Debug + Default;
    /// Place of a piece in the front end's memory.
    type Place: Copy + Debug;
    /// An error that ends the queue.
    type Fault;

    /// Takes memory for the next piece of a request, and fills it for a write. `None` if there is
    /// no memory until another piece ends.
    ///
    /// # Errors
    /// The data of a write is lost.
    fn take(
        &mut self,
        request: &mut Self::Request,
        piece: Piece,
    ) -> Result<Option<Taken<Self::Place>>, Self::Fault>;

    /// The bio of a piece has ended. Its memory is free now.
    fn end(
        &mut self,
        request: &Self::Request,
        piece: Piece,
        taken: Taken<Self::Place>,
        is_ok: bool,
    );
}

/// A part of the data of a read or write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) is_read: bool,
    /// Place in the data of the request.
    pub(crate) at_bytes: u64,
    /// Length, at most [`SLOT_BYTES`].
    pub(crate) len_bytes: u32,
}

/// Memory of a piece.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<P> {
    /// Offset in the first region of the driver's world.
    pub(crate) offset_bytes: usize,
    pub(crate) place: P,
}

/// A request in flight.
#[derive(Debug, Default)]
struct InFlight<R> {
    own: R,
    /// `None` if it was refused.
    command: Option<Command>,
    /// Length of the range that was submitted.
    submitted_bytes: u64,
    /// Number of bios in flight.
    pending: u32,
    /// Whether the request is in [`Requests::feeding`].
    is_feeding: bool,
    status: Option<BlkStatus>,
    /// Its change is stable before it ends.
    must_be_stable: bool,
    /// A flush was submitted for a request that must be stable.
    is_flushed: bool,
}

impl<R> InFlight<R> {
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

    /// The next piece of its data; `None` if nothing is left.
    fn next_piece(&self) -> Option<Piece> {
        let len_bytes = self.left_bytes().min(SLOT_BYTES as u64) as u32;
        let is_read = matches!(self.command, Some(Command::Read(_)));
        (len_bytes > 0).then_some(Piece { is_read, at_bytes: self.submitted_bytes, len_bytes })
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
struct Purpose<P> {
    request: u32,
    /// Data of a read or write.
    data: Option<(Piece, Taken<P>)>,
}

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct Ended<R> {
    pub(crate) own: R,
    /// `None` if it was refused.
    pub(crate) command: Option<Command>,
    pub(crate) status: BlkStatus,
}

/// The requests of a queue.
pub(crate) struct Requests<B: Buffers> {
    pub(crate) buffers: B,
    in_flight: Slab<InFlight<B::Request>>,
    bios: Slab<Purpose<B::Place>>,
    /// Reads and writes with data that was not submitted, in order.
    feeding: VecDeque<u32>,
    /// In the order of their ends.
    ended: VecDeque<Ended<B::Request>>,
    /// Emptied after each use; kept for its memory.
    done: Vec<Done>,
}

impl<B: Buffers> Requests<B> {
    pub(crate) fn new(buffers: B) -> Self {
        Self {
            buffers,
            in_flight: Slab::default(),
            bios: Slab::default(),
            feeding: VecDeque::new(),
            ended: VecDeque::new(),
            done: Vec::new(),
        }
    }

    /// Number of requests that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether requests wait for memory.
    pub(crate) fn waits_for_memory(&self) -> bool {
        !self.feeding.is_empty()
    }

    /// The request that has ended first among those that were not taken.
    pub(crate) fn take_ended(&mut self) -> Option<Ended<B::Request>> {
        self.ended.pop_front()
    }

    /// Starts a request, and submits what fits into memory. A refused one ends with its status.
    pub(crate) fn begin(
        &mut self,
        own: B::Request,
        checked: Result<Command, BlkStatus>,
        must_be_stable: bool,
        driver: &mut Driver,
    ) -> Result<(), B::Fault> {
        let command = checked.ok();
        let status = checked.err();
        let request = InFlight { own, command, status, must_be_stable, ..InFlight::default() };
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

    /// Submits data of reads and writes while there is memory.
    pub(crate) fn feed(&mut self, driver: &mut Driver) -> Result<(), B::Fault> {
        while let Some(&index) = self.feeding.front() {
            let request = self.in_flight.at(index);
            let mut data = None;
            if let Some(piece) = request.next_piece() {
                let taken = self.buffers.take(&mut request.own, piece)?;
                let Some(taken) = taken else { return Ok(()) };
                data = Some((piece, taken));
            }
            // Before the last piece is submitted, because it may end the request at once.
            let submitted_bytes = data.map_or(0, |(piece, _)| u64::from(piece.len_bytes));
            if submitted_bytes == request.left_bytes() {
                self.feeding.pop_front();
                request.is_feeding = false;
            }
            match data {
                Some((piece, taken)) => self.submit_data(index, piece, taken, driver),
                None => self.end_if_complete(index, driver),
            }
            // Its memory may be free again.
            self.collect(driver);
        }
        Ok(())
    }

    /// Submits a piece of a read or write in this memory.
    fn submit_data(
        &mut self,
        index: u32,
        piece: Piece,
        taken: Taken<B::Place>,
        driver: &mut Driver,
    ) {
        let Piece { is_read, at_bytes, len_bytes } = piece;
        let request = self.in_flight.at(index);
        let range = request.range().expect("it has data");
        let sector = Sector::holding(range.offset_bytes + at_bytes);
        request.submitted_bytes += u64::from(len_bytes);
        let fua = request.must_be_stable && !is_read && !is_cut(range);
        let buf = BufRef { slot: BUFFERS_SLOT, offset_bytes: taken.offset_bytes as u32, len_bytes };
        let op = if is_read { Op::Read } else { Op::Write };
        let bio = Bio::new(op, sector, Sector::holding(len_bytes.into()), buf, 0);
        let data = Some((piece, taken));
        self.submit(Purpose { request: index, data }, Bio { fua, ..bio }, driver);
    }

    fn submit_discard(&mut self, index: u32, range: Range, driver: &mut Driver) {
        self.in_flight.at(index).submitted_bytes = range.len_bytes;
        let sector = Sector::holding(range.offset_bytes);
        let len = Sector::holding(range.len_bytes);
        let bio = Bio::new(Op::Discard, sector, len, BufRef::NONE, 0);
        self.submit(Purpose { request: index, data: None }, bio, driver);
    }

    fn submit_flush(&mut self, index: u32, driver: &mut Driver) {
        let bio = Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 0);
        self.submit(Purpose { request: index, data: None }, bio, driver);
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
        self.submit(Purpose { request: index, data: None }, bio, driver);
    }

    fn submit(&mut self, purpose: Purpose<B::Place>, bio: Bio, driver: &mut Driver) {
        let request = self.in_flight.at(purpose.request);
        request.pending += 1;
        // The client waits for what must be stable.
        let origin = Origin { sync: request.must_be_stable, ..Origin::default() };
        let user = u64::from(self.bios.insert(purpose));
        driver.submit(Bio { user, origin, ..bio });
    }

    /// Continues requests whose bios have ended, until no further bio ends.
    pub(crate) fn collect(&mut self, driver: &mut Driver) {
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
        let Purpose { request: index, data } = self.bios.remove(number);
        let request = self.in_flight.at(index);
        request.pending -= 1;
        let is_ok = done.status == BlkStatus::Ok;
        if !is_ok {
            request.status.get_or_insert(done.status);
        }
        if let Some((piece, taken)) = data {
            self.buffers.end(&request.own, piece, taken, is_ok);
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
        let InFlight { own, command, status, .. } = self.in_flight.remove(index);
        self.ended.push_back(Ended { own, command, status: status.unwrap_or(BlkStatus::Ok) });
    }
}

/// Whether a write becomes several, so that one flush after them is cheaper than FUA.
fn is_cut(range: Range) -> bool {
    range.len_bytes > SLOT_BYTES as u64
}
