//! `crypt`: the encryption target (`drivers/md/dm-crypt.c`). Table line: see [`super::line`].
//!
//! State is per I/O and none is per CPU. A write never touches the submitter's buffer: it is
//! encrypted into a bounce slot, or, on a device that fuses, straight into its final place. A read
//! is decrypted in place, or straight out of the device's pages.
//!
//! ```text
//! write  map ─ slot? ──no──> parked                      fused  map ─> Crypt+Write ─> end
//!          └─yes─> Encrypting ─> Writing ─> end          fused  map ─> Read+Crypt  ─> end
//! read   map ─> Reading ─> Decrypting ─> end
//! ```
//!
//! Zeroes are written as encrypted zeros: what a hole of the device decrypts to is noise.

use core::ops::Range;

use super::{Mapped, Part, Target, TargetCx};
use crate::bio::{BlkStatus, Op, Sector};
use crate::buf::BufRef;
use crate::mempool::Mempool;
use crate::slab::Slab;
use crate::sq::{CipherId, DevId, Direction, Owner, Place, Sqe, SqeOp, Token};

/// Longest write of zeros in one go; the world's zeros are this long at least.
pub const ZEROS_MAX_BYTES: u32 = 64 << 10;

/// What one crypt line says, with its device opened and its key turned into a cipher by the world.
#[derive(Clone, Copy, Debug)]
pub struct CryptSpec {
    /// The device below.
    pub dev: DevId,
    /// Where the ciphertext starts on it.
    pub start: Sector,
    /// Added to the sector before the IV is made.
    pub iv_offset: u64,
    /// Encryption sector size.
    pub sector_size_bytes: u32,
    /// The keyed cipher.
    pub cipher: CipherId,
    /// Pass discards down.
    pub allow_discards: bool,
    /// The device runs the cipher straight into and out of its pages.
    pub fuses_cipher: bool,
    /// Parts of at least this many bytes are encrypted by a worker; `None` is never.
    pub fan_out_min_bytes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A linked pair, read or write: one answer ends it.
    Fused,
    Reading,
    Decrypting,
    Encrypting,
    Writing,
}

/// One part in flight (`struct dm_crypt_io`).
#[derive(Debug)]
struct CryptIo {
    part: Part,
    phase: Phase,
    /// The bounce slot that a write holds.
    slot: Option<u32>,
}

/// The target.
#[derive(Debug)]
pub struct Crypt {
    spec: CryptSpec,
    /// Its number in the table.
    number: u16,
    /// First of the slots that the pool hands out, counted from zero.
    first_slot: u32,
    slot_bytes: u32,
    ios: Slab<CryptIo>,
    /// Bounce slots for ciphertext, and the writes that wait for one.
    pool: Mempool<Part>,
}

impl Crypt {
    /// A target with `slots` as its reserve.
    #[must_use]
    pub fn new(spec: CryptSpec, number: u16, slots: Range<u32>, slot_bytes: u32) -> Self {
        assert!(slot_bytes.is_multiple_of(spec.sector_size_bytes));
        Self {
            spec,
            number,
            first_slot: slots.start,
            slot_bytes,
            ios: Slab::default(),
            pool: Mempool::new(slots.end - slots.start),
        }
    }

    fn is_aligned(&self, part: &Part) -> bool {
        let sectors = u64::from(self.spec.sector_size_bytes >> crate::bio::SECTOR_SHIFT);
        (part.sector.0 | part.len.0).is_multiple_of(sectors)
    }

    /// The write without the encryption offset: to the device's sector.
    fn lower(&self, sector: Sector) -> Sector {
        self.spec.start + sector
    }

    /// Inline, unless the part is large enough to pay for two hand-overs.
    fn place(&self, len_bytes: u32) -> Place {
        match self.spec.fan_out_min_bytes {
            Some(min_bytes) if len_bytes >= min_bytes => Place::Unbound,
            _ => Place::Inline,
        }
    }

    fn crypt(&self, direction: Direction, sector: Sector, src: BufRef, dst: BufRef) -> SqeOp {
        SqeOp::Crypt {
            cipher: self.spec.cipher,
            direction,
            iv_sector: sector.0.wrapping_add(self.spec.iv_offset),
            src,
            dst,
            place: self.place(src.len_bytes),
        }
    }

    fn push(&mut self, index: u32, op: SqeOp, linked: bool, cx: &mut TargetCx<'_>) {
        let origin = self.ios.get(index).part.origin;
        let token = Token { owner: Owner::Target(self.number), index };
        cx.push(Sqe { token, op, linked, origin });
    }

    fn submit_read(&mut self, part: Part, cx: &mut TargetCx<'_>) {
        let (dev, sector, buf) = (self.spec.dev, self.lower(part.sector), part.buf);
        if !self.spec.fuses_cipher {
            let index = self.ios.insert(CryptIo { part, phase: Phase::Reading, slot: None });
            self.push(index, SqeOp::Read { dev, sector, buf }, false, cx);
            return;
        }
        let index = self.ios.insert(CryptIo { part, phase: Phase::Fused, slot: None });
        let linked = BufRef::linked(buf.len_bytes);
        self.push(index, SqeOp::Read { dev, sector, buf: linked }, true, cx);
        let decrypt = self.crypt(Direction::Decrypt, part.sector, linked, buf);
        self.push(index, decrypt, false, cx);
    }

    fn submit_write(&mut self, part: Part, cx: &mut TargetCx<'_>) {
        if self.spec.fuses_cipher {
            let (dev, sector, fua) = (self.spec.dev, self.lower(part.sector), part.fua);
            let index = self.ios.insert(CryptIo { part, phase: Phase::Fused, slot: None });
            let buf = BufRef::linked(part.buf.len_bytes);
            let encrypt = self.crypt(Direction::Encrypt, part.sector, part.buf, buf);
            self.push(index, encrypt, true, cx);
            self.push(index, SqeOp::Write { dev, sector, buf, fua }, false, cx);
            return;
        }
        match self.pool.get() {
            Some(slot) => self.encrypt_into(part, slot, cx),
            None => self.pool.park(part),
        }
    }

    fn encrypt_into(&mut self, part: Part, slot: u32, cx: &mut TargetCx<'_>) {
        let index = self.ios.insert(CryptIo { part, phase: Phase::Encrypting, slot: Some(slot) });
        let bounce = self.bounce(slot, part.buf.len_bytes);
        let encrypt = self.crypt(Direction::Encrypt, part.sector, part.buf, bounce);
        self.push(index, encrypt, false, cx);
    }

    fn bounce(&self, slot: u32, len_bytes: u32) -> BufRef {
        assert!(len_bytes <= self.slot_bytes, "parts are cut to the slot size");
        BufRef { slot: self.first_slot + slot, offset_bytes: 0, len_bytes }
    }

    /// The part has been through the cipher, or through the device: what comes next.
    fn advance(&mut self, index: u32, cx: &mut TargetCx<'_>) -> Option<BlkStatus> {
        let io = self.ios.at(index);
        let (part, phase, slot) = (io.part, io.phase, io.slot);
        match phase {
            Phase::Reading => {
                io.phase = Phase::Decrypting;
                let decrypt = self.crypt(Direction::Decrypt, part.sector, part.buf, part.buf);
                self.push(index, decrypt, false, cx);
                None
            }
            Phase::Encrypting => {
                io.phase = Phase::Writing;
                let slot = slot.expect("an encrypting write holds a slot");
                let (dev, sector, fua) = (self.spec.dev, self.lower(part.sector), part.fua);
                let buf = self.bounce(slot, part.buf.len_bytes);
                self.push(index, SqeOp::Write { dev, sector, buf, fua }, false, cx);
                None
            }
            Phase::Fused | Phase::Decrypting | Phase::Writing => Some(BlkStatus::Ok),
        }
    }

    fn finish(&mut self, index: u32, status: BlkStatus, cx: &mut TargetCx<'_>) {
        let io = self.ios.remove(index);
        cx.end(io.part.index, status);
        if let Some(slot) = io.slot
            && let Some((waiting, slot)) = self.pool.put(slot)
        {
            self.encrypt_into(waiting, slot, cx);
        }
    }
}

impl Target for Crypt {
    fn map(&mut self, mut part: Part, cx: &mut TargetCx<'_>) -> Mapped {
        if part.op == Op::Discard {
            return match self.spec.allow_discards {
                true => Mapped::Remapped { dev: self.spec.dev, sector: self.lower(part.sector) },
                false => Mapped::Ended(BlkStatus::NotSupported),
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
        let ended = match status {
            BlkStatus::Ok => self.advance(index, cx),
            failed => Some(failed),
        };
        if let Some(status) = ended {
            self.finish(index, status, cx);
        }
    }

    fn max_io(&self, op: Op, _: Sector) -> Sector {
        let bytes = match op {
            Op::Write if !self.spec.fuses_cipher => self.slot_bytes,
            Op::WriteZeroes => ZEROS_MAX_BYTES.min(self.slot_bytes),
            // A buffer has a 32-bit length.
            Op::Read | Op::Write => 1 << 30,
            Op::Discard | Op::Flush => return Sector(u64::MAX),
        };
        Sector::holding(u64::from(bytes))
    }

    fn parked(&self) -> usize {
        self.pool.parked()
    }

    fn is_idle(&self) -> bool {
        self.ios.is_empty() && self.pool.is_idle()
    }
}

#[cfg(test)]
mod tests;
