//! Cipher and file access in one pass: encrypts into the pages of a file, decrypts from them (RFD
//! 1, 3).

use blockyard_crypt::cipher::{Hints, SectorCipher};
use blockyard_engine::bio::{BlkStatus, Op, Sample, Sector};
use blockyard_engine::sq::{CipherId, DevId, Direction};
use blockyard_engine::time::Nanos;

use crate::backend::{Backend, Device};
use crate::memory::{Address, Memory, Region};
use crate::stages::{self, Span, Stage};
use crate::sync_io::{read_all, write_all};

/// Piece length of a fused write without mapping: a piece stays in L2 until `pwrite` has copied it.
const SCRATCH_BYTES: usize = 64 << 10;
/// From this length on, stores that bypass the cache pay off: the destination is not read soon.
const STREAM_MIN_BYTES: usize = 16 << 10;

/// A thread's memory for such pieces, allocated on first use.
#[derive(Default)]
pub(crate) struct Scratch(Option<Region>);

impl Scratch {
    fn region(&mut self) -> Option<&mut Region> {
        if self.0.is_none() {
            self.0 = Region::new(SCRATCH_BYTES).ok();
        }
        self.0.as_mut()
    }

    /// Releases the memory until the next use.
    pub(crate) fn release(&self) {
        self.0.iter().for_each(Region::release);
    }
}

/// A cipher run: cipher, direction, first IV and length.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) cipher: CipherId,
    pub(crate) direction: Direction,
    pub(crate) iv_sector: u64,
    pub(crate) len_bytes: usize,
}

impl Run {
    /// # Safety
    /// `src` is readable and `dst` writable for `len_bytes`; they are the same or disjoint.
    pub(crate) unsafe fn between(
        self,
        backend: &Backend,
        src: *const u8,
        dst: *mut u8,
        hints: Hints,
    ) {
        let cipher: &SectorCipher = backend.cipher(self.cipher);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.direction {
                Direction::Encrypt => {
                    cipher.encrypt_raw(src, dst, self.len_bytes, self.iv_sector, hints);
                }
                Direction::Decrypt => {
                    cipher.decrypt_raw(src, dst, self.len_bytes, self.iv_sector, hints);
                }
            }
        }
    }

    /// Like [`Run::between`], into memory in pieces of whole pages. No piece ends inside a sector,
    /// because a sector has at most 4 KiB.
    ///
    /// # Safety
    /// See [`Run::between`]; the operation of `dst` has not completed.
    pub(crate) unsafe fn into_memory(self, backend: &Backend, src: *const u8, dst: Memory) {
        let mut done = 0;
        let piece = |base, len_bytes| {
            let run = self.part(done, len_bytes);
            // SAFETY: guaranteed by the caller; `done` is inside the source.
            unsafe { run.between(backend, src.add(done), base, Hints::default()) };
            done += len_bytes;
        };
        // SAFETY: guaranteed by the caller.
        unsafe { dst.each(0, self.len_bytes, piece) };
    }

    /// The part of the run that starts at `skip_bytes`.
    fn part(self, skip_bytes: usize, len_bytes: usize) -> Self {
        let iv_sector = self.iv_sector.wrapping_add((skip_bytes >> 9) as u64);
        Self { iv_sector, len_bytes, ..self }
    }
}

/// Time of the system calls that read or wrote the file, if the bio is sampled.
pub(crate) enum Calls {
    Untimed,
    Took(Nanos),
}

impl Calls {
    pub(crate) fn of(sample: Sample) -> Self {
        if sample == Sample::NONE { Self::Untimed } else { Self::Took(Nanos(0)) }
    }

    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let Self::Took(took) = self else { return call() };
        let begun = stages::now();
        let result = call();
        *took = *took + stages::now().since(begun);
        result
    }

    /// The spans of an operation from `from` until now, mostly in the order of execution; `None` if
    /// the bio is not sampled.
    pub(crate) fn spans(&self, direction: Direction, from: Nanos) -> Option<[Span; 2]> {
        let Self::Took(took) = *self else { return None };
        let to = stages::now();
        let cipher = Nanos(to.since(from).0.saturating_sub(took.0));
        let (first, second, len) = match direction {
            Direction::Encrypt => (Stage::Cipher, Stage::Device, cipher),
            Direction::Decrypt => (Stage::Device, Stage::Cipher, took),
        };
        let middle = (from + len).min(to);
        let span = |stage, from, to| Span { stage, from, to };
        Some([span(first, from, middle), span(second, middle, to)])
    }
}

/// A cipher between the client's buffer and the pages of a file.
pub(crate) struct Fused {
    pub(crate) run: Run,
    pub(crate) dev: DevId,
    pub(crate) sector: Sector,
    pub(crate) base: Address,
    pub(crate) fua: bool,
}

impl Fused {
    /// # Safety
    /// The buffer at `base` is valid for the length of the run and used exclusively.
    pub(crate) unsafe fn execute(
        &self,
        backend: &Backend,
        scratch: &mut Scratch,
        calls: &mut Calls,
    ) -> BlkStatus {
        let device = backend.device(self.dev);
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.run.direction {
                Direction::Decrypt => self.read(backend, device, calls),
                Direction::Encrypt => self.write(backend, device, (scratch, calls)),
            }
        }
    }

    /// # Safety
    /// See `execute`.
    unsafe fn read(&self, backend: &Backend, device: &Device, calls: &mut Calls) -> BlkStatus {
        let offset = self.sector.bytes();
        let len = self.run.len_bytes;
        let base = self.base.get();
        if let Some(mapping) = &device.mapping
            && let Some(pages) = mapping.readable(offset, len as u64)
        {
            let hints = Hints { prefetch_source: len > 4096, stream_dest: false };
            // SAFETY: the pages are mapped, the buffer is the caller's; they are disjoint.
            unsafe { self.run.between(backend, pages, base, hints) };
            if !mapping.is_broken() {
                return BlkStatus::Ok;
            }
        }
        let read = calls.time(|| read_all(device.file.data_fd(), offset, base, len));
        let read = device.file.ended(Op::Read, self.sector, false, read);
        if read == BlkStatus::Ok {
            // SAFETY: the buffer is the caller's.
            unsafe { self.run.between(backend, base, base, Hints::default()) };
        }
        read
    }

    /// # Safety
    /// See `execute`.
    unsafe fn write(
        &self,
        backend: &Backend,
        device: &Device,
        (scratch, calls): (&mut Scratch, &mut Calls),
    ) -> BlkStatus {
        let offset = self.sector.bytes();
        let len = self.run.len_bytes;
        let base = self.base.get().cast_const();
        if let Some(mapping) = &device.mapping
            && let Some(pages) = mapping.writable(offset, len as u64)
        {
            let hints = Hints { prefetch_source: false, stream_dest: len >= STREAM_MIN_BYTES };
            // SAFETY: the pages are mapped, the buffer is the caller's; they are disjoint.
            unsafe { self.run.between(backend, base, pages, hints) };
            if !mapping.is_broken() {
                return BlkStatus::Ok;
            }
        }
        let Some(scratch) = scratch.region() else {
            return BlkStatus::IoError;
        };
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(SCRATCH_BYTES);
            let ciphertext = scratch.at(0, piece);
            // SAFETY: `done + piece` is inside the caller's buffer; the scratch memory is ours.
            let written = unsafe {
                let run = self.run.part(done, piece);
                run.between(backend, base.add(done), ciphertext, Hints::default());
                let at = offset + done as u64;
                let fd = device.file.data_fd();
                calls.time(|| write_all(fd, at, ciphertext, piece, self.fua))
            };
            let status = device.file.ended(Op::Write, self.sector, self.fua, written);
            if status != BlkStatus::Ok {
                return status;
            }
            done += piece;
        }
        BlkStatus::Ok
    }
}
