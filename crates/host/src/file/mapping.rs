//! A tmpfs file as memory: the cipher reads and writes its pages directly.
//!
//! The mapping is used only for pages that are known to exist and to be in the page table; a bitmap
//! records them. The first write to a range populates it with `MADV_POPULATE_WRITE`, which reports
//! a full file system as an error. A read never populates a hole, because that would allocate it.
//! Unpopulated ranges use `pread` and `pwrite`. `sigbus` handles a truncation by another
//! program.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::sigbus;

const PAGE_SHIFT: u32 = 12;
const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// A short request populates the whole aligned chunk around it, if it is all data: one system call
/// for 16 pages, like the kernel's fault-around. A short write into a hole populates only its own
/// pages: that costs no more than `pwrite`, and the next write there takes half the time.
const POPULATE_CHUNK_BYTES: u64 = 64 << 10;

/// Pages per `mincore` call.
const RESIDENT_PAGES: usize = 128;

/// The mapping of one file.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len_bytes: u64,
    writable: bool,
    /// A bit per page: it exists and is in the page table.
    populated: Box<[AtomicU64]>,
    broken: Arc<AtomicBool>,
    /// `Some` until the drop.
    guard: Option<sigbus::Guard>,
}

// SAFETY: the mapping lives as long as the value. All accesses use raw pointers whose users
// tolerate concurrent writers, like the contents of a disk.
unsafe impl Send for Mapping {}
// SAFETY: the mapping lives as long as the value; its users tolerate concurrent writers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the whole file; `None` where the system refuses.
    pub(crate) fn new(file: &File, len_bytes: u64, writable: bool) -> Option<Self> {
        let len = usize::try_from(len_bytes).ok()?.checked_next_multiple_of(PAGE_BYTES as usize)?;
        let protection =
            if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        if len == 0 {
            return None;
        }
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of Rust's.
        let base = unsafe {
            mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file.as_fd(), 0).ok()?
        };
        let broken = Arc::new(AtomicBool::new(false));
        let start = base as usize;
        // SAFETY: `Drop` drops the guard before it unmaps, and `broken` is dropped after that.
        let guard = unsafe { sigbus::guard(start, start + len, Arc::as_ptr(&broken)) };
        if guard.is_none() {
            // SAFETY: the mapping was made above, and its address has not been shared.
            unsafe { munmap(base, len).ok()? };
            return None;
        }
        let words = len_bytes.div_ceil(PAGE_BYTES).div_ceil(64);
        let populated = (0..words).map(|_| AtomicU64::new(0)).collect();
        Some(Self { base: base.cast(), len_bytes, writable, populated, broken, guard })
    }

    /// Address of a range that may be read through the mapping now.
    pub(crate) fn readable(&self, offset_bytes: u64, len_bytes: u64) -> Option<*const u8> {
        let address = self.address(offset_bytes, len_bytes)?;
        if self.is_populated(offset_bytes, len_bytes) {
            return Some(address);
        }
        self.populate_around(offset_bytes, len_bytes).then_some(address)
    }

    /// Address of a range that may be written through the mapping now.
    pub(crate) fn writable(&self, offset_bytes: u64, len_bytes: u64) -> Option<*mut u8> {
        if let Some(address) = self.rewritable(offset_bytes, len_bytes) {
            return Some(address);
        }
        let address = self.address(offset_bytes, len_bytes)?;
        let start = offset_bytes & !(PAGE_BYTES - 1);
        let end = offset_bytes + len_bytes;
        self.populate(start, end, Advice::LinuxPopulateWrite).then_some(address)
    }

    /// Address of a range for bytes that are only copied: through a hole `pwrite` avoids zeroing,
    /// and a long write avoids page table entries.
    pub(crate) fn rewritable(&self, offset_bytes: u64, len_bytes: u64) -> Option<*mut u8> {
        let address = self.address(offset_bytes, len_bytes).filter(|_| self.writable)?;
        let is_short = len_bytes < POPULATE_CHUNK_BYTES;
        let is_there = self.is_populated(offset_bytes, len_bytes)
            || is_short && self.populate_around(offset_bytes, len_bytes);
        is_there.then_some(address)
    }

    /// Forgets the pages of a range in which a hole is about to be made.
    pub(crate) fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        for page in pages(offset_bytes, len_bytes) {
            let bit = 1 << (page % 64);
            self.populated[(page / 64) as usize].fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Whether the file was truncated under the mapping. The results of the last access are then
    /// invalid, and the mapping is no longer used.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    fn address(&self, offset_bytes: u64, len_bytes: u64) -> Option<*mut u8> {
        let end = offset_bytes.checked_add(len_bytes)?;
        if end > self.len_bytes || self.is_broken() {
            return None;
        }
        // SAFETY: the offset is inside of the mapping, as just checked.
        Some(unsafe { self.base.add(offset_bytes as usize) })
    }

    fn is_populated(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        pages(offset_bytes, len_bytes).all(|page| {
            self.populated[(page / 64) as usize].load(Ordering::Relaxed) & (1 << (page % 64)) != 0
        })
    }

    /// Whether every page of a page-aligned range exists. (`lseek` would tell too, but it walks to
    /// the next hole, which may be at the end of the file.)
    fn exists(&self, start: u64, end: u64) -> bool {
        let step_bytes = RESIDENT_PAGES * PAGE_BYTES as usize;
        (start..end).step_by(step_bytes).all(|at| {
            let len_bytes = ((end - at) as usize).min(step_bytes);
            let mut resident = [0u8; RESIDENT_PAGES];
            // SAFETY: the range is inside of our mapping, and `resident` has a byte for each of its
            // pages.
            let asked = unsafe {
                let base = self.base.add(at as usize);
                libc::mincore(base.cast(), len_bytes, resident.as_mut_ptr())
            };
            let pages = len_bytes.div_ceil(PAGE_BYTES as usize);
            asked == 0 && resident[..pages].iter().all(|page| page & 1 == 1)
        })
    }

    /// Populates a range, for a short one its chunk, unless it has a hole.
    fn populate_around(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let mut start = offset_bytes & !(PAGE_BYTES - 1);
        let mut end = offset_bytes + len_bytes;
        if len_bytes < POPULATE_CHUNK_BYTES {
            start = offset_bytes & !(POPULATE_CHUNK_BYTES - 1);
            end = end.next_multiple_of(POPULATE_CHUNK_BYTES).min(self.len_bytes);
        }
        let advice =
            if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        self.exists(start, end) && self.populate(start, end, advice)
    }

    fn populate(&self, start: u64, end: u64, advice: Advice) -> bool {
        // SAFETY: the range is inside of our mapping; populating changes no contents.
        let populated = unsafe {
            madvise(self.base.add(start as usize).cast(), (end - start) as usize, advice)
        };
        if populated.is_err() {
            return false;
        }
        for page in pages(start, end - start) {
            self.populated[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
        true
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        drop(self.guard.take());
        let len = (self.len_bytes as usize).next_multiple_of(PAGE_BYTES as usize);
        // SAFETY: the mapping is ours, and no operation on it outlives its owner.
        let unmapped = unsafe { munmap(self.base.cast(), len) };
        debug_assert!(unmapped.is_ok());
    }
}

fn pages(offset_bytes: u64, len_bytes: u64) -> std::ops::Range<u64> {
    offset_bytes >> PAGE_SHIFT..(offset_bytes + len_bytes).div_ceil(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn sparse(len_bytes: u64) -> (File, Mapping) {
        let file = tempfile::tempfile_in("/dev/shm").expect("tmpfs at /dev/shm");
        file.set_len(len_bytes).unwrap();
        let mapping = Mapping::new(&file, len_bytes, true).unwrap();
        (file, mapping)
    }

    #[test]
    fn hole_is_not_allocated_by_reading_it() {
        let (file, mapping) = sparse(1 << 20);
        assert!(mapping.readable(0, 64 << 10).is_none());
        assert_eq!(file.metadata().unwrap().blocks(), 0);
    }

    #[test]
    fn long_read_goes_through_the_mapping_if_all_of_it_is_data() {
        let (file, mapping) = sparse(4 << 20);
        file.write_all_at(&vec![7; 2 << 20], 0).unwrap();
        assert!(mapping.readable(0, (2 << 20) + 4096).is_none(), "a hole at its end");
        assert!(mapping.readable(0, 2 << 20).is_some());
        assert_eq!(file.metadata().unwrap().blocks() * 512, 2 << 20);
    }

    #[test]
    fn large_write_populates_exactly_its_pages() {
        let (file, mapping) = sparse(1 << 20);
        let address = mapping.writable(64 << 10, 64 << 10).unwrap();
        // SAFETY: 64 KiB from `address` on are inside of the mapping.
        unsafe { address.write_bytes(7, 64 << 10) };
        assert_eq!(file.metadata().unwrap().blocks() * 512, 64 << 10);
        let mut byte = [0];
        file.read_exact_at(&mut byte, (128 << 10) - 1).unwrap();
        assert_eq!(byte, [7]);
        assert!(mapping.readable(64 << 10, 4096).is_some());
    }

    #[test]
    fn short_write_populates_its_page_of_a_hole_and_the_chunk_of_data() {
        let (file, mapping) = sparse(1 << 20);
        assert!(mapping.writable(4096, 4096).is_some());
        assert_eq!(file.metadata().unwrap().blocks() * 512, 4096);
        file.write_all_at(&[1; 64 << 10], 64 << 10).unwrap();
        assert!(mapping.writable(96 << 10, 4096).is_some());
        assert!(mapping.is_populated(64 << 10, 64 << 10));
    }

    #[test]
    fn copy_needs_no_pages_that_are_not_there() {
        let (file, mapping) = sparse(1 << 20);
        assert!(mapping.rewritable(0, 4096).is_none(), "a hole");
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        file.write_all_at(&[1; 64 << 10], 0).unwrap();
        assert!(mapping.rewritable(0, 64 << 10).is_none(), "once is cheaper without");
        assert!(mapping.rewritable(0, 4096).is_some());
        assert!(mapping.rewritable(0, 64 << 10).is_some(), "populated by the short one");
    }

    #[test]
    fn forgotten_range_is_not_used_until_it_exists_again() {
        let (_file, mapping) = sparse(1 << 20);
        mapping.writable(0, 64 << 10).unwrap();
        mapping.forget(4096, 4096);
        assert!(!mapping.is_populated(4096, 512));
        assert!(mapping.writable(4096, 512).is_some());
        assert!(mapping.readable(0, 8192).is_some());
    }

    #[test]
    fn truncation_by_somebody_else_breaks_the_mapping_and_not_the_process() {
        let (file, mapping) = sparse(1 << 20);
        let address = mapping.writable(512 << 10, 64 << 10).unwrap();
        file.set_len(4096).unwrap();
        // SAFETY: the address is inside of the mapping; its page is gone, which is the test.
        let byte = unsafe { address.read_volatile() };
        assert_eq!(byte, 0);
        assert!(mapping.is_broken());
        assert!(mapping.writable(0, 4096).is_none());
    }
}
