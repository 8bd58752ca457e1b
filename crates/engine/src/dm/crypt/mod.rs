//! `crypt`: the encryption target (`drivers/md/dm-crypt.c`). Its table line has the key, so the
//! world parses it.
//!
//! State is per I/O, not per CPU. A write never touches the submitter's buffer: it is encrypted
//! into a slot or into pages ([`super::bounce`]), or, on a device that fuses, straight into its
//! final place. A read is decrypted in place, or straight out of the device's pages. A [`pipeline`]
//! determines where the cipher runs and which thread submits.
//!
//! ```text
//! write  map ─ bounce? ─no─> parked
//!          └─yes─┬─> Encrypting ─> batch ─ Wake ─> Writing ─> end       a thread submits
//!                └─> Crypt+Write ─> end                                 the encrypting CPU submits
//! read   map ─> Reading ─> Decrypting ─> end
//! fused  map ─> Crypt+Write, Read+Crypt ─> end
//! ```
//!
//! Write zeroes become writes of encrypted zeroes, because a hole of the device decrypts to noise.

pub mod flags;
pub mod hand_over;
mod order;
pub mod pipeline;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use self::order::Batch;
use self::pipeline::{Choice, Context, Decisions, Facts, Load, Order, Pipeline, Submit};
use super::table::{Flushes, Reserve, TargetFacts, TargetSpec};
use super::{DeviceArea, Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Origin, Sector};
use crate::buf::BufRef;
use crate::mempool::Mempool;
use crate::slab::Slab;
use crate::sq::{CipherId, DevId, Direction, Owner, Place, Sqe, SqeOp, Token};

/// Longest single write of zeroes; the world's zeroes are at least this long.
pub const ZEROS_MAX_BYTES: u32 = 64 << 10;

/// A crypt line with an open device and a keyed cipher.
#[derive(Clone, Copy, Debug)]
pub struct CryptSpec {
    /// The device below.
    pub dev: DevId,
    /// Start of the ciphertext on the device.
    pub start: Sector,
    /// Addend of the sector number for the IV.
    pub iv_offset: u64,
    /// Encryption sector size.
    pub sector_size_bytes: u32,
    /// The keyed cipher.
    pub cipher: CipherId,
    /// Whether discards are passed down.
    pub allow_discards: bool,
    /// Whether the device runs the cipher straight into and out of its pages.
    pub fuses_cipher: bool,
    /// Where the cipher runs, and which thread submits.
    pub pipeline: Choice,
}

impl TargetSpec for CryptSpec {
    fn facts(&self) -> TargetFacts {
        let &Self { dev, start, cipher, .. } = self;
        TargetFacts {
            bounces: !self.fuses_cipher,
            refuses_discards: !self.allow_discards,
            window: Some(DeviceArea { dev, start }),
            cipher: Some(cipher),
            sector_size_bytes: self.sector_size_bytes,
            ..TargetFacts::new(Flushes::To(vec![dev]))
        }
    }

    fn build(&self, number: u16, reserve: Reserve) -> Box<dyn Target> {
        Box::new(Crypt::new(*self, number, reserve.slots, reserve.slot_bytes))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A linked pair, read or write: one CQE ends it.
    Pair,
    Reading,
    Decrypting,
    /// Encryption; order and context of the later write are fixed.
    Encrypting(Order, Context),
    /// Encrypted, and in the batch.
    Queued(Context),
    Writing,
}

/// Index of [`SqeOp::Wake`], which belongs to no part.
const WAKE: u32 = u32::MAX;

/// One part in flight (`struct dm_crypt_io`).
#[derive(Debug)]
struct CryptIo {
    part: Part,
    phase: Phase,
    /// The slot or list of a write, by the world's number.
    slot: Option<u32>,
}

/// The crypt target.
#[derive(Debug)]
pub struct Crypt {
    spec: CryptSpec,
    /// Its number in the table.
    number: u16,
    /// First slot of the pool.
    first_slot: u32,
    /// Length of the longest write.
    slot_bytes: u32,
    ios: Slab<CryptIo>,
    /// Bounce slots for ciphertext, and the writes that wait for one. Unused if the shard has
    /// pages.
    pool: Mempool<Part>,
    /// Encrypted writes that wait for the writing thread.
    batch: Batch,
    /// Scratch buffer, kept for its memory.
    taken: Vec<u32>,
    decisions: Decisions,
}

impl Crypt {
    /// Creates a target with `slots` as its reserve, empty if the shard has pages.
    #[must_use]
    pub fn new(spec: CryptSpec, number: u16, slots: Range<u32>, slot_bytes: u32) -> Self {
        assert!(spec.sector_size_bytes.is_power_of_two() && spec.sector_size_bytes >= 512);
        assert!(slot_bytes.is_multiple_of(spec.sector_size_bytes));
        Self {
            spec,
            number,
            first_slot: slots.start,
            slot_bytes,
            ios: Slab::default(),
            pool: Mempool::new(slots.end - slots.start),
            batch: Batch::default(),
            taken: Vec::new(),
            decisions: Decisions::default(),
        }
    }

    /// Numbers of the pipeline decisions so far.
    pub(crate) fn decisions(&self) -> Decisions {
        self.decisions
    }

    /// Estimate of the bytes that go to the cipher after the CQE of the SQE `index`.
    pub(crate) fn arriving_bytes(&self, index: u32) -> u32 {
        if index == WAKE {
            return 0;
        }
        let io = self.ios.get(index);
        // A returned slot lets another write continue.
        let is_followed = matches!(io.phase, Phase::Pair | Phase::Writing)
            && io.slot.is_some()
            && self.pool.parked() > 0;
        let arrives = io.phase == Phase::Reading || is_followed;
        if arrives { io.part.buf.len_bytes } else { 0 }
    }

    fn is_aligned(&self, part: &Part) -> bool {
        // Mask instead of division: the sector size is a power of two, and every part passes here.
        let sectors = u64::from(self.spec.sector_size_bytes >> crate::bio::SECTOR_SHIFT);
        (part.sector.0 | part.len.0) & (sectors - 1) == 0
    }

    /// The sector on the device.
    fn lower(&self, sector: Sector) -> Sector {
        self.spec.start + sector
    }

    /// The pipeline of a part that goes to the cipher now. A call would cost each request two dozen
    /// instructions.
    #[inline(always)]
    fn decide(&mut self, direction: Direction, len_bytes: u32, load: &mut Load) -> Pipeline {
        let pipeline = self.spec.pipeline.decide(&Facts { len_bytes, load });
        self.decisions.count(&pipeline, direction, len_bytes);
        let place = match direction {
            Direction::Decrypt => pipeline.read,
            Direction::Encrypt => pipeline.write,
        };
        if place != Place::Inline {
            load.fanned_out_bytes += u64::from(len_bytes);
        }
        pipeline
    }

    #[inline]
    fn encrypt(&self, pipeline: &Pipeline, sector: Sector, src: BufRef, dst: BufRef) -> SqeOp {
        self.crypt(Direction::Encrypt, sector, src, dst, pipeline.write)
    }

    #[inline]
    fn decrypt(&mut self, sector: Sector, src: BufRef, dst: BufRef, load: &mut Load) -> SqeOp {
        let place = self.decide(Direction::Decrypt, src.len_bytes, load).read;
        self.crypt(Direction::Decrypt, sector, src, dst, place)
    }

    #[inline]
    fn crypt(
        &self,
        direction: Direction,
        sector: Sector,
        src: BufRef,
        dst: BufRef,
        place: Place,
    ) -> SqeOp {
        let cipher = self.spec.cipher;
        let iv_offset = self.spec.iv_offset;
        let iv_sector = sector.0.wrapping_add(iv_offset);
        SqeOp::Crypt { cipher, direction, iv_sector, src, dst, place }
    }

    fn push(&self, index: u32, op: SqeOp, linked: bool, origin: Origin, cx: &mut TargetCx<'_>) {
        let token = Token { owner: Owner::Target(self.number), index };
        cx.push(Sqe { token, op, linked, origin });
    }

    /// Pushes the write of a part's ciphertext, with the io-context of the pipeline.
    fn push_write(
        &self,
        index: u32,
        part: &Part,
        buf: BufRef,
        context: Context,
        cx: &mut TargetCx<'_>,
    ) {
        let Part { sector, fua, mut origin, .. } = *part;
        let dev = self.spec.dev;
        let sector = self.lower(sector);
        origin.io_context = context.of(origin.io_context);
        self.push(index, SqeOp::Write { dev, sector, buf, fua }, false, origin, cx);
    }

    #[inline]
    fn submit_read(&mut self, part: Part, cx: &mut TargetCx<'_>) {
        let dev = self.spec.dev;
        let sector = self.lower(part.sector);
        let buf = part.buf;
        if !self.spec.fuses_cipher {
            let index = self.ios.insert(CryptIo { part, phase: Phase::Reading, slot: None });
            self.push(index, SqeOp::Read { dev, sector, buf }, false, part.origin, cx);
            return;
        }
        let index = self.ios.insert(CryptIo { part, phase: Phase::Pair, slot: None });
        let linked = BufRef::linked(buf.len_bytes);
        self.push(index, SqeOp::Read { dev, sector, buf: linked }, true, part.origin, cx);
        let decrypt = self.decrypt(part.sector, linked, buf, cx.load);
        self.push(index, decrypt, false, part.origin, cx);
    }

    #[inline]
    fn submit_write(&mut self, part: Part, cx: &mut TargetCx<'_>) {
        if self.spec.fuses_cipher {
            let index = self.ios.insert(CryptIo { part, phase: Phase::Pair, slot: None });
            let buf = BufRef::linked(part.buf.len_bytes);
            let pipeline = self.decide(Direction::Encrypt, buf.len_bytes, cx.load);
            let encrypt = self.encrypt(&pipeline, part.sector, part.buf, buf);
            self.push(index, encrypt, true, part.origin, cx);
            self.push_write(index, &part, buf, pipeline.context, cx);
            return;
        }
        if let Some(pages) = &mut cx.pages {
            if let Some(slot) = pages.get(self.number, part, cx.sq) {
                self.encrypt_into(part, slot, cx);
            }
            return;
        }
        match self.pool.get() {
            Some(slot) => self.encrypt_into(part, self.first_slot + slot, cx),
            None => self.pool.park(part),
        }
    }

    fn encrypt_into(&mut self, part: Part, slot: u32, cx: &mut TargetCx<'_>) {
        let bounce = self.bounce(slot, part.buf.len_bytes);
        let pipeline = self.decide(Direction::Encrypt, bounce.len_bytes, cx.load);
        let slot = Some(slot);
        let context = pipeline.context;
        let encrypt = self.encrypt(&pipeline, part.sector, part.buf, bounce);
        match pipeline.submit {
            Submit::WhereEncrypted => {
                let index = self.ios.insert(CryptIo { part, phase: Phase::Pair, slot });
                self.push(index, encrypt, true, part.origin, cx);
                self.push_write(index, &part, bounce, context, cx);
            }
            Submit::Thread(order) => {
                let phase = Phase::Encrypting(order, context);
                let index = self.ios.insert(CryptIo { part, phase, slot });
                self.push(index, encrypt, false, part.origin, cx);
            }
        }
    }

    /// Adds an encrypted write to the batch of the writing thread, which is woken if the batch was
    /// empty.
    fn queue_write(&mut self, index: u32, order: Order, cx: &mut TargetCx<'_>) {
        let part = self.ios.get(index).part;
        if self.batch.add(order, part.sector, index) {
            let token = Token { owner: Owner::Target(self.number), index: WAKE };
            cx.push(Sqe { token, op: SqeOp::Wake, linked: false, origin: part.origin });
        }
    }

    /// Handles the wake-up of the writing thread: submits the whole batch.
    fn submit_batch(&mut self, cx: &mut TargetCx<'_>) {
        let mut taken = core::mem::take(&mut self.taken);
        self.batch.take(&mut taken);
        for index in taken.drain(..) {
            let io = self.ios.at(index);
            let Phase::Queued(context) = io.phase else {
                unreachable!("in the batch is what is queued");
            };
            io.phase = Phase::Writing;
            let slot = io.slot.expect("an encrypted write holds a slot");
            let part = io.part;
            self.push_write(index, &part, self.bounce(slot, part.buf.len_bytes), context, cx);
        }
        self.taken = taken;
    }

    fn bounce(&self, slot: u32, len_bytes: u32) -> BufRef {
        assert!(len_bytes <= self.slot_bytes, "parts are cut to the slot size");
        BufRef { slot, offset_bytes: 0, len_bytes }
    }

    /// Continues a part after its cipher or its device I/O.
    #[inline]
    fn advance(&mut self, index: u32, cx: &mut TargetCx<'_>) -> Option<BlkStatus> {
        let io = self.ios.at(index);
        match io.phase {
            Phase::Reading => {
                io.phase = Phase::Decrypting;
                let part = io.part;
                let decrypt = self.decrypt(part.sector, part.buf, part.buf, cx.load);
                self.push(index, decrypt, false, part.origin, cx);
                None
            }
            Phase::Encrypting(order, context) => {
                io.phase = Phase::Queued(context);
                self.queue_write(index, order, cx);
                None
            }
            Phase::Pair | Phase::Decrypting | Phase::Writing => Some(BlkStatus::Ok),
            Phase::Queued(_) => unreachable!("only the thread goes on with it"),
        }
    }

    #[inline]
    fn finish(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let io = self.ios.get(index);
        let part_index = io.part.index;
        let slot = io.slot;
        self.ios.remove(index);
        cx.end(part_index, status);
        let Some(slot) = slot else { return };
        if let Some(pages) = &mut cx.pages {
            pages.put(self.number, slot);
            self.resume(cx);
        } else if let Some((waiting, slot)) = self.pool.put(slot - self.first_slot) {
            self.encrypt_into(waiting, self.first_slot + slot, cx);
        }
    }
}

impl Target for Crypt {
    fn map(&mut self, mut part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        if part.op == Op::Discard {
            return if self.spec.allow_discards {
                Mapped::Remapped { dev: self.spec.dev, sector: self.lower(part.sector) }
            } else {
                Mapped::Ended(BlkStatus::NotSupported)
            };
        }
        if !self.is_aligned(&part) {
            return Mapped::Ended(BlkStatus::Invalid);
        }
        match part.op {
            Op::Read => self.submit_read(part, cx),
            Op::Write => self.submit_write(part, cx),
            Op::WriteZeroes => {
                let len_bytes = part.len.bytes().try_into().expect("cut to ZEROS_MAX_BYTES");
                part.buf = BufRef::zeros(len_bytes);
                self.submit_write(part, cx);
            }
            Op::Flush | Op::Discard => unreachable!("a flush goes past the targets"),
        }
        Mapped::Submitted
    }

    fn on_cqe(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        if index == WAKE {
            return self.submit_batch(cx);
        }
        let ended = match status {
            BlkStatus::Ok => self.advance(index, cx),
            failed => Some(failed),
        };
        if let Some(status) = ended {
            self.finish(index, status, cx);
        }
    }

    fn resume(&mut self, cx: &mut TargetCx<'_>) {
        while let Some(pages) = &mut cx.pages
            && let Some((part, slot)) = pages.take_resumed(self.number)
        {
            self.encrypt_into(part, slot, cx);
        }
    }

    fn max_io(&self, op: Op, _: Sector) -> Sector {
        let bytes = match op {
            Op::Write if !self.spec.fuses_cipher => self.slot_bytes,
            Op::WriteZeroes => ZEROS_MAX_BYTES.min(self.slot_bytes),
            // The limit of a buffer's 32-bit length.
            Op::Read | Op::Write => 1 << 30,
            Op::Discard | Op::Flush => return Sector(u64::MAX),
        };
        let split = self.spec.pipeline.max_bytes(op).unwrap_or(u32::MAX);
        Sector::holding(u64::from(bytes.min(split).max(self.spec.sector_size_bytes)))
    }

    fn parked(&self) -> usize {
        self.pool.parked()
    }

    fn crypt(&self) -> Option<&Crypt> {
        Some(self)
    }

    fn is_idle(&self) -> bool {
        self.ios.is_empty() && self.pool.is_idle() && self.batch.is_empty()
    }
}

#[cfg(test)]
mod tests;
