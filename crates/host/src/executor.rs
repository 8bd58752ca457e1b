//! Executes SQEs, each in the way that is cheapest for its file.
//!
//! What can be done at once is done at once and answered in the same call: ciphers inline, tmpfs
//! through its mapping, page cache hits, buffered writes. What would block goes to the ring, what
//! is large enough goes to a worker, and is answered by [`Executor::poll`].

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use blockyard_crypt::cipher::{Hints, SectorCipher};
use blockyard_engine::bio::{BlkStatus, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::crypt::ZEROS_MAX_BYTES;
use blockyard_engine::sq::{CipherId, Cqe, DevId, Direction, Place, Sqe, SqeOp, Token};

use crate::file::Kind;
use crate::memory::Region;
use crate::ring::{FileOp, FileOpKind, Ring, status_of};
use crate::volume::{Device, Volume};
use crate::workers::{Answers, Job};

/// A fused write that cannot go through the mapping is encrypted in pieces of this size: it stays
/// in L2 until `pwrite` has copied it.
const SCRATCH_BYTES: usize = 64 << 10;
/// From here on, stores that bypass the cache pay: the destination is read by nobody soon.
const STREAM_MIN_BYTES: usize = 16 << 10;

static ZEROS: [u8; ZEROS_MAX_BYTES as usize] = [0; ZEROS_MAX_BYTES as usize];

/// Addresses behind the handles of one shard.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Bounce slots, one after the other.
    pub(crate) bounce: Region,
    pub(crate) bounce_slot_bytes: usize,
    /// The front end's buffers: slot [`BufRef::FIRST_WORLD_SLOT`] and those after it.
    pub(crate) world: Vec<Arc<Region>>,
}

impl Buffers {
    fn at(&self, buf: BufRef) -> *mut u8 {
        let (offset, len) = (buf.offset_bytes as usize, buf.len_bytes as usize);
        match buf.slot {
            BufRef::ZEROS_SLOT => {
                assert!(len <= ZEROS.len());
                ZEROS.as_ptr().cast_mut()
            }
            slot if slot < BufRef::FIRST_WORLD_SLOT => {
                assert!(offset + len <= self.bounce_slot_bytes);
                self.bounce.at(slot as usize * self.bounce_slot_bytes + offset, len)
            }
            slot => self.world[(slot - BufRef::FIRST_WORLD_SLOT) as usize].at(offset, len),
        }
    }
}

/// The real world of one shard.
pub(crate) struct Executor {
    volume: Arc<Volume>,
    buffers: Buffers,
    scratch: Region,
    ring: Option<Ring>,
    /// The system refused a ring: everything is done with plain calls.
    without_ring: bool,
    answers: Option<Arc<Answers>>,
    with_workers: usize,
}

impl Executor {
    pub(crate) fn new(volume: Arc<Volume>, buffers: Buffers) -> io::Result<Self> {
        let answers = volume.workers.as_ref().map(|_| Answers::new()).transpose()?;
        let scratch = Region::new(SCRATCH_BYTES)?;
        let (ring, without_ring, with_workers) = (None, false, 0);
        Ok(Self { volume, buffers, scratch, ring, without_ring, answers, with_workers })
    }

    /// Executes `sqes`, and moves what was answered at once to the end of `cqes`.
    pub(crate) fn execute(&mut self, sqes: &[Sqe], cqes: &mut Vec<Cqe>) {
        let mut rest = sqes;
        while let [sqe, tail @ ..] = rest {
            let status = if sqe.linked {
                let [second, tail @ ..] = tail else { panic!("a linked SQE has a second half") };
                rest = tail;
                self.execute_pair(sqe, second)
            } else {
                rest = tail;
                self.execute_one(sqe)
            };
            if let Some(status) = status {
                cqes.push(Cqe { token: sqe.token, status });
            }
        }
        if let Some(ring) = &mut self.ring {
            ring.submit();
        }
    }

    fn execute_one(&mut self, sqe: &Sqe) -> Option<BlkStatus> {
        match sqe.op {
            SqeOp::Read { dev, sector, buf } => self.read(sqe.token, dev, sector, buf),
            SqeOp::Write { dev, sector, buf, fua } => self.write(sqe.token, dev, sector, buf, fua),
            SqeOp::Flush { dev } => self.flush(sqe.token, dev),
            SqeOp::Discard { dev, sector, len } => {
                let device = self.device(dev);
                if let Some(mapping) = &device.mapping {
                    mapping.forget(sector.bytes(), len.bytes());
                }
                Some(status(device.file.discard(sector.bytes(), len.bytes())))
            }
            SqeOp::WriteZeroes { dev, sector, len } => {
                let device = self.device(dev);
                if let Some(mapping) = &device.mapping {
                    mapping.forget(sector.bytes(), len.bytes());
                }
                Some(status(device.file.write_zeroes(sector.bytes(), len.bytes())))
            }
            SqeOp::Zero { buf } => {
                let base = self.buffers.at(buf);
                // SAFETY: `at` checked the range, and the part of the buffer belongs to this SQE.
                unsafe { base.write_bytes(0, buf.len_bytes as usize) };
                Some(BlkStatus::Ok)
            }
            SqeOp::Crypt { src, dst, .. } => {
                let (src, dst) = (self.buffers.at(src).cast_const(), self.buffers.at(dst));
                self.crypt(sqe, src, dst)
            }
        }
    }

    /// Runs a cipher between two buffers, here or on a worker.
    fn crypt(&mut self, sqe: &Sqe, src: *const u8, dst: *mut u8) -> Option<BlkStatus> {
        let SqeOp::Crypt { cipher, direction, iv_sector, src: buf, place, .. } = sqe.op else {
            unreachable!("the caller matched a cipher");
        };
        let run = Run { cipher, direction, iv_sector, len_bytes: buf.len_bytes as usize };
        match place {
            Place::Inline => {
                // SAFETY: both ranges were checked by `Buffers::at`, belong to this SQE, and are
                // the same or disjoint, as the engine promises.
                unsafe { run.between(&self.volume, src, dst, Hints::default()) };
                Some(BlkStatus::Ok)
            }
            Place::Unbound => {
                let (src, dst) = (Address(src.cast_mut()), Address(dst));
                self.hand_over(sqe.token, move |volume| {
                    // SAFETY: as above; the buffers outlive the job, because an executor waits for
                    // its workers before it is dropped.
                    unsafe { run.between(volume, src.get(), dst.get(), Hints::default()) };
                    BlkStatus::Ok
                });
                None
            }
        }
    }

    /// A cipher and the file's side of it as one.
    fn execute_pair(&mut self, first: &Sqe, second: &Sqe) -> Option<BlkStatus> {
        let (crypt, dev, sector, buf, fua) = match (first.op, second.op) {
            (SqeOp::Read { dev, sector, .. }, crypt @ SqeOp::Crypt { dst, .. }) => {
                (crypt, dev, sector, dst, false)
            }
            (crypt @ SqeOp::Crypt { src, .. }, SqeOp::Write { dev, sector, fua, .. }) => {
                (crypt, dev, sector, src, fua)
            }
            _ => unreachable!("the crypt target links a cipher with a read or a write"),
        };
        let SqeOp::Crypt { cipher, direction, iv_sector, place, .. } = crypt else {
            unreachable!("matched above");
        };
        let run = Run { cipher, direction, iv_sector, len_bytes: buf.len_bytes as usize };
        let fused = Fused { run, dev, sector, base: Address(self.buffers.at(buf)), fua };
        match place {
            // SAFETY: `Buffers::at` checked the buffer, which belongs to this pair; so does the
            // scratch memory, to this thread.
            Place::Inline => Some(unsafe { fused.execute(&self.volume, &mut self.scratch) }),
            Place::Unbound => {
                self.hand_over(first.token, move |volume| {
                    let Ok(mut scratch) = Region::new(SCRATCH_BYTES) else {
                        return BlkStatus::IoError;
                    };
                    // SAFETY: as above; the buffers outlive the job, because an executor waits for
                    // its workers before it is dropped.
                    unsafe { fused.execute(volume, &mut scratch) }
                });
                None
            }
        }
    }

    fn hand_over(&mut self, token: Token, run: impl FnOnce(&Volume) -> BlkStatus + Send + 'static) {
        let workers = self.volume.workers.as_ref().expect("only a volume with workers fans out");
        let answers = self.answers.as_ref().expect("made together with the workers");
        let volume = Arc::clone(&self.volume);
        self.with_workers += 1;
        workers.submit(Job {
            run: Box::new(move || Cqe { token, status: run(&volume) }),
            answer_to: Arc::clone(answers),
        });
    }

    fn device(&self, dev: DevId) -> &Device {
        &self.volume.devices[usize::from(dev.0)]
    }

    fn read(&mut self, token: Token, dev: DevId, sector: Sector, buf: BufRef) -> Option<BlkStatus> {
        let base = self.buffers.at(buf);
        let (offset_bytes, len_bytes) = (sector.bytes(), buf.len_bytes as usize);
        let device = self.device(dev);
        let fd = device.file.data_fd();
        let kind = FileOpKind::Read { offset_bytes, base, len_bytes };
        match device.file.kind() {
            Kind::Tmpfs => Some(read_all(fd, offset_bytes, base, len_bytes)),
            // What the page cache holds is copied at once; the rest would block.
            Kind::Cached => {
                let done = read_cached(fd, offset_bytes, base, len_bytes);
                if done == len_bytes {
                    return Some(BlkStatus::Ok);
                }
                let kind = FileOpKind::Read {
                    offset_bytes: offset_bytes + done as u64,
                    base: base.wrapping_add(done),
                    len_bytes: len_bytes - done,
                };
                self.push(FileOp { token, fd, kind })
            }
            Kind::Direct => self.push(FileOp { token, fd, kind }),
        }
    }

    fn write(
        &mut self,
        token: Token,
        dev: DevId,
        sector: Sector,
        buf: BufRef,
        fua: bool,
    ) -> Option<BlkStatus> {
        let base = self.buffers.at(buf).cast_const();
        let (offset_bytes, len_bytes) = (sector.bytes(), buf.len_bytes as usize);
        let device = self.device(dev);
        let fd = device.file.data_fd();
        match device.file.kind() {
            Kind::Tmpfs | Kind::Cached => Some(write_all(fd, offset_bytes, base, len_bytes, fua)),
            Kind::Direct => {
                let kind = FileOpKind::Write { offset_bytes, base, len_bytes, fua };
                self.push(FileOp { token, fd, kind })
            }
        }
    }

    fn flush(&mut self, token: Token, dev: DevId) -> Option<BlkStatus> {
        let device = self.device(dev);
        match device.file.kind() {
            Kind::Tmpfs => Some(status(device.file.flush())),
            Kind::Cached | Kind::Direct => {
                let fd = device.file.data_fd();
                self.push(FileOp { token, fd, kind: FileOpKind::Flush })
            }
        }
    }

    /// To the ring, or, without one, done here and now.
    fn push(&mut self, op: FileOp) -> Option<BlkStatus> {
        if self.ring.is_none() && !self.without_ring {
            self.ring = Ring::new().ok();
            self.without_ring = self.ring.is_none();
        }
        if let Some(ring) = &mut self.ring {
            // SAFETY: buffers live as long as the executor, which drops its ring, and with it waits
            // for every completion, before them; the engine gives a buffer to one SQE at a time.
            unsafe { ring.push(op) };
            return None;
        }
        Some(match op.kind {
            FileOpKind::Read { offset_bytes, base, len_bytes } => {
                read_all(op.fd, offset_bytes, base, len_bytes)
            }
            FileOpKind::Write { offset_bytes, base, len_bytes, fua } => {
                write_all(op.fd, offset_bytes, base, len_bytes, fua)
            }
            // SAFETY: fdatasync takes any descriptor; the file is open as long as the volume.
            FileOpKind::Flush => status(check(unsafe { libc::fdatasync(op.fd) } as isize)),
        })
    }

    /// Moves what has been answered meanwhile to the end of `cqes`.
    pub(crate) fn poll(&mut self, cqes: &mut Vec<Cqe>) {
        if let Some(ring) = &mut self.ring
            && ring.in_flight() > 0
        {
            ring.take(cqes);
        }
        if let Some(answers) = &self.answers
            && self.with_workers > 0
        {
            let before = cqes.len();
            answers.take(cqes);
            self.with_workers -= cqes.len() - before;
        }
    }

    /// How many SQEs are not answered.
    pub(crate) fn in_flight(&self) -> usize {
        self.with_workers + self.ring.as_ref().map_or(0, Ring::in_flight)
    }

    /// How many are with workers: they still use the front end's buffers.
    pub(crate) fn with_workers(&self) -> usize {
        self.with_workers
    }

    /// What becomes readable when [`Executor::poll`] has something.
    pub(crate) fn wake_sources(&self) -> [Option<BorrowedFd<'_>>; 2] {
        use std::os::fd::AsFd;
        let ring = self.ring.as_ref().filter(|ring| ring.in_flight() > 0).map(AsFd::as_fd);
        let answers = self.answers.as_ref().filter(|_| self.with_workers > 0);
        [ring, answers.map(|answers| answers.ready())]
    }

    /// Gives the memory of the buffers back while nothing is in flight.
    pub(crate) fn release_buffers(&self) {
        assert_eq!(self.in_flight(), 0);
        self.buffers.bounce.release();
        self.scratch.release();
        for region in &self.buffers.world {
            region.release();
        }
    }
}

impl Drop for Executor {
    /// The ring and the workers use the buffers until they have answered.
    fn drop(&mut self) {
        self.ring = None;
        let mut cqes = Vec::new();
        while self.with_workers > 0 {
            let _ = crate::poll::readable(&[self.wake_sources()[1]], None);
            self.poll(&mut cqes);
        }
    }
}

/// An address that goes to a worker.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: the memory behind it belongs to one SQE, and with it to whoever executes that.
unsafe impl Send for Address {}

impl Address {
    fn get(self) -> *mut u8 {
        self.0
    }
}

/// A cipher, its direction, its first IV and how far it runs.
#[derive(Clone, Copy)]
struct Run {
    cipher: CipherId,
    direction: Direction,
    iv_sector: u64,
    len_bytes: usize,
}

impl Run {
    /// # Safety
    /// `src` is readable and `dst` writable for `len_bytes`; they are the same or disjoint.
    unsafe fn between(self, volume: &Volume, src: *const u8, dst: *mut u8, hints: Hints) {
        let cipher: &SectorCipher = &volume.ciphers[usize::from(self.cipher.0)];
        // SAFETY: as the caller promises.
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

    /// The part of the run that starts `skip_bytes` in.
    fn part(self, skip_bytes: usize, len_bytes: usize) -> Self {
        let iv_sector = self.iv_sector.wrapping_add((skip_bytes >> 9) as u64);
        Self { iv_sector, len_bytes, ..self }
    }
}

/// A cipher between the client's buffer and the pages of a file.
struct Fused {
    run: Run,
    dev: DevId,
    sector: Sector,
    base: Address,
    fua: bool,
}

impl Fused {
    /// # Safety
    /// The buffer at `base` is valid for the length of the run and used by nobody else.
    unsafe fn execute(&self, volume: &Volume, scratch: &mut Region) -> BlkStatus {
        let device = &volume.devices[usize::from(self.dev.0)];
        // SAFETY: as the caller promises.
        unsafe {
            match self.run.direction {
                Direction::Decrypt => self.read(volume, device),
                Direction::Encrypt => self.write(volume, device, scratch),
            }
        }
    }

    /// # Safety
    /// As for `execute`.
    unsafe fn read(&self, volume: &Volume, device: &Device) -> BlkStatus {
        let (offset, len) = (self.sector.bytes(), self.run.len_bytes);
        let base = self.base.get();
        if let Some(mapping) = &device.mapping
            && let Some(pages) = mapping.readable(offset, len as u64)
        {
            let hints = Hints { prefetch_source: len > 4096, stream_dest: false };
            // SAFETY: the pages are mapped, the buffer is the caller's; they are disjoint.
            unsafe { self.run.between(volume, pages, base, hints) };
            if !mapping.is_broken() {
                return BlkStatus::Ok;
            }
        }
        let read = read_all(device.file.data_fd(), offset, base, len);
        if read == BlkStatus::Ok {
            // SAFETY: the buffer is the caller's.
            unsafe { self.run.between(volume, base, base, Hints::default()) };
        }
        read
    }

    /// # Safety
    /// As for `execute`.
    unsafe fn write(&self, volume: &Volume, device: &Device, scratch: &mut Region) -> BlkStatus {
        let (offset, len) = (self.sector.bytes(), self.run.len_bytes);
        let base = self.base.get().cast_const();
        if let Some(mapping) = &device.mapping
            && let Some(pages) = mapping.writable(offset, len as u64)
        {
            let hints = Hints { prefetch_source: false, stream_dest: len >= STREAM_MIN_BYTES };
            // SAFETY: the pages are mapped, the buffer is the caller's; they are disjoint.
            unsafe { self.run.between(volume, base, pages, hints) };
            if !mapping.is_broken() {
                return BlkStatus::Ok;
            }
        }
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(SCRATCH_BYTES);
            let ciphertext = scratch.at(0, piece);
            // SAFETY: `done + piece` is inside of the caller's buffer; the scratch memory is ours.
            let status = unsafe {
                let run = self.run.part(done, piece);
                run.between(volume, base.add(done), ciphertext, Hints::default());
                let at = offset + done as u64;
                write_all(device.file.data_fd(), at, ciphertext, piece, self.fua)
            };
            if status != BlkStatus::Ok {
                return status;
            }
            done += piece;
        }
        BlkStatus::Ok
    }
}

fn status(result: io::Result<()>) -> BlkStatus {
    match result {
        Ok(()) => BlkStatus::Ok,
        Err(error) => status_of(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

fn check(result: isize) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Copies what the page cache holds, without waiting; returns how much.
fn read_cached(fd: i32, offset_bytes: u64, base: *mut u8, len_bytes: usize) -> usize {
    let mut done = 0;
    while done < len_bytes {
        let vec =
            libc::iovec { iov_base: base.wrapping_add(done).cast(), iov_len: len_bytes - done };
        let at = (offset_bytes + done as u64) as i64;
        // SAFETY: the vector describes the rest of a buffer that belongs to the calling SQE.
        let read = unsafe { libc::preadv2(fd, &raw const vec, 1, at, libc::RWF_NOWAIT) };
        if read <= 0 {
            break;
        }
        done += read as usize;
    }
    done
}

fn read_all(fd: i32, offset_bytes: u64, base: *mut u8, len_bytes: usize) -> BlkStatus {
    let mut done = 0;
    while done < len_bytes {
        let at = (offset_bytes + done as u64) as i64;
        // SAFETY: the rest of a buffer that belongs to the calling SQE.
        let read = unsafe { libc::pread(fd, base.wrapping_add(done).cast(), len_bytes - done, at) };
        match read {
            0 => return BlkStatus::IoError,
            1.. => done += read as usize,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return status_of(errno.unwrap_or(libc::EIO)),
            },
        }
    }
    BlkStatus::Ok
}

fn write_all(
    fd: i32,
    offset_bytes: u64,
    base: *const u8,
    len_bytes: usize,
    fua: bool,
) -> BlkStatus {
    let flags = if fua { libc::RWF_DSYNC } else { 0 };
    let mut done = 0;
    while done < len_bytes {
        let vec = libc::iovec {
            iov_base: base.wrapping_add(done).cast_mut().cast(),
            iov_len: len_bytes - done,
        };
        let at = (offset_bytes + done as u64) as i64;
        // SAFETY: the vector describes the rest of a buffer that belongs to the calling SQE and is
        // only read.
        let written = unsafe { libc::pwritev2(fd, &raw const vec, 1, at, flags) };
        match written {
            0 => return BlkStatus::NoSpace,
            1.. => done += written as usize,
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return status_of(errno.unwrap_or(libc::EIO)),
            },
        }
    }
    BlkStatus::Ok
}
