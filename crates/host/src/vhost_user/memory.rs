//! Guest memory: mapped regions, and the loads and stores in them.
//!
//! The guest changes its memory at any time, so nothing here
//! returns a reference to it: bytes are copied, ring words are atomics. A page that the front end
//! has taken away raises SIGBUS; [`crate::file::sigbus`] then replaces the memory by zeroes and
//! marks it, and [`GuestMemory::is_broken`] tells.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use blockyard_protocol::vhost_user::MemoryRegion;
use blockyard_protocol::virtio_queue::Span;
use rustix::fs::FileType;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::dirty_log::DirtyLog;
use crate::file::sigbus;

const PAGE_BYTES: u64 = 4096;

/// A mapped region.
#[derive(Debug)]
struct Region {
    of: MemoryRegion,
    /// Start of the mapping, which is that of the file: files of huge pages need aligned offsets.
    base: *mut u8,
    mapped_bytes: usize,
    /// `Some` until the drop.
    guard: Option<sigbus::Guard>,
    /// The guard sets it when the memory is taken away.
    broken: Arc<AtomicBool>,
}

// SAFETY: the mapping lives as long as the value, and all accesses copy or are atomic.
unsafe impl Send for Region {}
// SAFETY: the mapping lives as long as the value, and all accesses copy or are atomic.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region of a file.
    fn map(of: MemoryRegion, file: &OwnedFd) -> Result<Self, String> {
        let failed = |error: rustix::io::Errno| format!("guest memory cannot be mapped: {error}");
        let facts = rustix::fs::fstat(file).map_err(failed)?;
        // The sum was checked by the session.
        let end_bytes = of.file_offset_bytes + of.len_bytes;
        let file_bytes = u64::try_from(facts.st_size).unwrap_or(0);
        if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile || end_bytes > file_bytes
        {
            return Err("guest memory is no file, or shorter than its region".into());
        }
        let unit_bytes = u64::try_from(facts.st_blksize).unwrap_or(0).max(PAGE_BYTES);
        let mapped = end_bytes.checked_next_multiple_of(unit_bytes).map(usize::try_from);
        let Some(Ok(mapped_bytes)) = mapped else {
            return Err("guest memory is longer than the address space".into());
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of Rust's.
        let base = unsafe { mmap(std::ptr::null_mut(), mapped_bytes, protection, flags, file, 0) };
        let base = base.map_err(failed)?.cast::<u8>();
        let start = base as usize;
        let broken = Arc::new(AtomicBool::new(false));
        // SAFETY: `Drop` drops the guard before it unmaps, and `broken` is dropped after that.
        let guard = unsafe { sigbus::guard(start, start + mapped_bytes, Arc::as_ptr(&broken)) };
        let region = Self { of, base, mapped_bytes, guard, broken };
        if region.guard.is_none() {
            return Err("guest memory cannot be guarded: too many files are mapped".into());
        }
        // SAFETY: the mapping was made above. Nothing depends on the advice but core dumps.
        let _ = unsafe { madvise(base.cast(), mapped_bytes, Advice::LinuxDontDump) };
        Ok(region)
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Address of a byte of the region, and the number of bytes from there on.
    fn at(&self, skip_bytes: u64) -> (*mut u8, u64) {
        assert!(skip_bytes < self.of.len_bytes);
        // SAFETY: the offset is inside of the mapping.
        let base = unsafe { self.base.add((self.of.file_offset_bytes + skip_bytes) as usize) };
        (base, self.of.len_bytes - skip_bytes)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        drop(self.guard.take());
        // SAFETY: the mapping is ours, and no access outlives its owner.
        let unmapped = unsafe { munmap(self.base.cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The memory of one front end at one time. A change makes a new value, which shares the regions
/// that stay.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestMemory {
    /// In the order of their guest addresses; they do not overlap.
    regions: Vec<Arc<Region>>,
    /// Pages that are written are noted in it.
    log: Option<Arc<DirtyLog>>,
}

impl GuestMemory {
    /// This memory, and another region.
    pub(super) fn with(&self, of: MemoryRegion, file: &OwnedFd) -> Result<Self, String> {
        let mut more = self.clone();
        let region = Arc::new(Region::map(of, file)?);
        let place = more.regions.partition_point(|other| other.of.guest_addr < of.guest_addr);
        more.regions.insert(place, region);
        Ok(more)
    }

    /// This memory without a region.
    pub(super) fn without(&self, of: &MemoryRegion) -> Self {
        let mut less = self.clone();
        less.regions.retain(|region| region.of != *of);
        less
    }

    /// This memory, with this log or none.
    pub(super) fn logged(self, log: Option<Arc<DirtyLog>>) -> Self {
        Self { log, ..self }
    }

    pub(super) fn log(&self) -> Option<&Arc<DirtyLog>> {
        self.log.as_ref()
    }

    /// Whether the front end has taken memory away, or the log. Bytes that were read since
    /// then may be zeroes.
    pub(super) fn is_broken(&self) -> bool {
        self.regions.iter().any(|region| region.is_broken())
            || self.log.as_ref().is_some_and(|log| log.is_broken())
    }

    /// The longest run of bytes from a guest address on.
    #[inline]
    fn run(&self, addr: u64) -> Option<(*mut u8, u64)> {
        let behind = self.regions.partition_point(|region| region.of.guest_addr <= addr);
        let region = self.regions.get(behind.checked_sub(1)?)?;
        let skip_bytes = addr - region.of.guest_addr;
        (skip_bytes < region.of.len_bytes).then(|| region.at(skip_bytes))
    }

    /// Whether a range of guest addresses exists. It may cross adjacent regions.
    pub(super) fn has(&self, span: Span) -> bool {
        self.each(span, |_, _| ()).is_some()
    }

    /// Calls `each` for each contiguous part of a range; `None` if a part does not exist.
    #[inline]
    fn each(&self, span: Span, mut each: impl FnMut(*mut u8, usize)) -> Option<()> {
        let Span { mut addr, len_bytes } = span;
        let mut left = u64::from(len_bytes);
        while left > 0 {
            let (base, run_bytes) = self.run(addr)?;
            let len = left.min(run_bytes);
            each(base, len as usize);
            left -= len;
            // The last byte of the range does not wrap, but its end may be 2^64.
            addr = addr.wrapping_add(len);
        }
        Some(())
    }

    /// Copies a header from guest memory; `None` if it does not exist.
    pub(super) fn load(&self, addr: u64, to: &mut [u8]) -> Option<()> {
        let mut to = to;
        let len_bytes = u32::try_from(to.len()).expect("a header is short");
        self.each(Span { addr, len_bytes }, |base, len| {
            let (head, tail) = std::mem::take(&mut to).split_at_mut(len);
            for (place, byte) in head.iter_mut().enumerate() {
                // SAFETY: the run is mapped for `len` bytes. The guest, and by its order another
                // queue, may change them meanwhile, hence the atomic access.
                *byte = unsafe { AtomicU8::from_ptr(base.add(place)) }.load(Ordering::Relaxed);
            }
            to = tail;
        })
    }

    /// Copies a status to guest memory; `None` if it does not exist.
    pub(super) fn store(&self, addr: u64, from: &[u8]) -> Option<()> {
        let mut from = from;
        let len_bytes = u32::try_from(from.len()).expect("a status is short");
        self.each(Span { addr, len_bytes }, |base, len| {
            let (head, tail) = from.split_at(len);
            for (place, byte) in head.iter().enumerate() {
                // SAFETY: the run is mapped for `len` bytes. The guest, and by its order another
                // queue, may use them meanwhile, hence the atomic access.
                unsafe { AtomicU8::from_ptr(base.add(place)) }.store(*byte, Ordering::Relaxed);
            }
            from = tail;
        })?;
        self.log.iter().for_each(|log| log.mark(addr, len_bytes.into()));
        Some(())
    }

    /// Copies the bytes of `data` from guest memory to `to`.
    ///
    /// # Safety
    /// `to` is valid for the length of `data` and used by nobody else.
    pub(super) unsafe fn load_data(&self, data: &Data<'_>, to: *mut u8) {
        let mut done = 0;
        self.each_of(data, |base, len| {
            // SAFETY: the run is mapped; guaranteed by the caller for the destination.
            unsafe { std::ptr::copy_nonoverlapping(base, to.add(done), len) };
            done += len;
        });
    }

    /// Copies the bytes of `data` from `from` to guest memory.
    ///
    /// # Safety
    /// `from` is valid for the length of `data`, and nobody writes to it.
    pub(super) unsafe fn store_data(&self, data: &Data<'_>, from: *const u8) {
        let mut done = 0;
        self.each_of(data, |base, len| {
            // SAFETY: the run is mapped; guaranteed by the caller for the source.
            unsafe { std::ptr::copy_nonoverlapping(from.add(done), base, len) };
            done += len;
        });
        if let Some(log) = &self.log {
            data.each_span(|span| log.mark(span.addr, span.len_bytes.into()));
        }
    }

    fn each_of(&self, data: &Data<'_>, mut each: impl FnMut(*mut u8, usize)) {
        data.each_span(|span| {
            self.each(span, &mut each).expect("buffers were checked when they were fetched");
        });
    }

    /// A part of one region by its address in the front end, as rings are named. `None` also if it
    /// is not aligned in our memory: the region may be anywhere in its file.
    pub(super) fn window(
        &self,
        front_end_addr: u64,
        len_bytes: usize,
        align_bytes: usize,
    ) -> Option<Window> {
        let holds = |region: &&Arc<Region>| {
            let skip_bytes = front_end_addr.checked_sub(region.of.front_end_addr);
            skip_bytes.is_some_and(|skip| {
                skip < region.of.len_bytes && len_bytes as u64 <= region.of.len_bytes - skip
            })
        };
        let region = self.regions.iter().find(holds)?;
        let (base, _) = region.at(front_end_addr - region.of.front_end_addr);
        let is_aligned = (base as usize).is_multiple_of(align_bytes);
        is_aligned.then(|| Window { base, len_bytes, region: Arc::clone(region) })
    }
}

/// A place in the bytes of several spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    span: usize,
    skip_bytes: u32,
}

impl Cursor {
    /// The part of the span here, at most `max_bytes` long.
    fn part(self, spans: &[Span], max_bytes: u32) -> Span {
        let Span { addr, len_bytes } = spans[self.span];
        let len_bytes = (len_bytes - self.skip_bytes).min(max_bytes);
        Span { addr: addr.wrapping_add(self.skip_bytes.into()), len_bytes }
    }

    /// Moves forward, over empty spans too.
    pub(super) fn advance(&mut self, spans: &[Span], mut len_bytes: u32) {
        while let Some(span) = spans.get(self.span) {
            let here = span.len_bytes - self.skip_bytes;
            if len_bytes < here {
                self.skip_bytes += len_bytes;
                return;
            }
            len_bytes -= here;
            *self = Self { span: self.span + 1, skip_bytes: 0 };
        }
        assert!(len_bytes == 0, "a request has as many bytes as its buffers");
    }
}

/// Bytes in the buffers of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Data<'a> {
    pub(super) spans: &'a [Span],
    pub(super) at: Cursor,
    pub(super) len_bytes: u32,
}

impl Data<'_> {
    /// Calls `each` for the part of each span.
    #[inline]
    fn each_span(&self, mut each: impl FnMut(Span)) {
        let Data { spans, mut at, len_bytes } = *self;
        let mut left = len_bytes;
        while left > 0 {
            let part = at.part(spans, left);
            each(part);
            at.advance(spans, part.len_bytes);
            left -= part.len_bytes;
        }
    }
}

/// A contiguous part of guest memory for a ring.
#[derive(Debug)]
pub(super) struct Window {
    base: *mut u8,
    len_bytes: usize,
    region: Arc<Region>,
}

// SAFETY: the window keeps its region mapped, and all accesses copy or are atomic.
unsafe impl Send for Window {}
// SAFETY: the window keeps its region mapped, and all accesses copy or are atomic.
unsafe impl Sync for Window {}

impl Window {
    /// Address of a value of `N` bytes.
    #[inline]
    fn at<const N: usize>(&self, offset_bytes: usize) -> *mut u8 {
        assert!(offset_bytes <= self.len_bytes && N <= self.len_bytes - offset_bytes);
        // SAFETY: the offset is inside of the window, as just checked.
        unsafe { self.base.add(offset_bytes) }
    }

    #[inline]
    fn word_u16(&self, offset_bytes: usize) -> &AtomicU16 {
        let base = self.at::<2>(offset_bytes).cast::<u16>();
        assert!(base.is_aligned());
        // SAFETY: the word is mapped as long as the window, aligned, and only accessed atomically.
        unsafe { AtomicU16::from_ptr(base) }
    }

    #[inline]
    pub(super) fn load_u16(&self, offset_bytes: usize, order: Ordering) -> u16 {
        u16::from_le(self.word_u16(offset_bytes).load(order))
    }

    #[inline]
    pub(super) fn store_u16(&self, offset_bytes: usize, value: u16, order: Ordering) {
        self.word_u16(offset_bytes).store(value.to_le(), order);
    }

    #[inline]
    pub(super) fn store_u32(&self, offset_bytes: usize, value: u32) {
        let base = self.at::<4>(offset_bytes).cast::<u32>();
        assert!(base.is_aligned());
        // SAFETY: the word is mapped as long as the window, aligned, and only accessed atomically.
        unsafe { AtomicU32::from_ptr(base) }.store(value.to_le(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn store_u8(&self, offset_bytes: usize, value: u8) {
        let base = self.at::<1>(offset_bytes);
        // SAFETY: the byte is mapped as long as the window, and only accessed atomically.
        unsafe { AtomicU8::from_ptr(base) }.store(value, Ordering::Release);
    }

    /// Whether the front end has taken its memory away.
    pub(super) fn is_broken(&self) -> bool {
        self.region.is_broken()
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Sets bits of a byte, after all stores before.
    #[inline]
    pub(super) fn set_bits(&self, offset_bytes: usize, bits: u8) {
        let base = self.at::<1>(offset_bytes);
        // SAFETY: the byte is mapped as long as the window, and only accessed atomically.
        unsafe { AtomicU8::from_ptr(base) }.fetch_or(bits, Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn store_u64(&self, offset_bytes: usize, value: u64) {
        let base = self.at::<8>(offset_bytes).cast::<u64>();
        assert!(base.is_aligned());
        // SAFETY: the word is mapped as long as the window, aligned, and only accessed atomically.
        unsafe { AtomicU64::from_ptr(base) }.store(value.to_le(), Ordering::Release);
    }

    /// A copy of `N` bytes.
    #[inline]
    pub(super) fn load<const N: usize>(&self, offset_bytes: usize) -> [u8; N] {
        let base = self.at::<N>(offset_bytes);
        let mut bytes = [0; N];
        // SAFETY: the bytes are mapped as long as the window; the copy is ours.
        unsafe { std::ptr::copy_nonoverlapping(base, bytes.as_mut_ptr(), N) };
        bytes
    }
}
