//! File operations as blocking system calls: for files on which a ring is slower, and for systems
//! without rings.

use std::io;

use crate::file_op::{FileOpKind, PIECES_MAX, PUNCH_HOLE, advance, behind_end, iovec};
use crate::memory::Memory;

/// Error of a write that wrote nothing.
fn no_space() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOSPC)
}

/// Whether a failed call must be repeated.
fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

/// Executes an operation. Consumes `memory`.
///
/// # Safety
/// The memory of a transfer is valid and, for a read, used exclusively.
pub(crate) unsafe fn execute(
    fd: i32,
    kind: FileOpKind,
    memory: &mut Vec<libc::iovec>,
) -> io::Result<()> {
    match kind {
        // SAFETY: guaranteed by the caller.
        FileOpKind::Read { .. } | FileOpKind::Write { .. } => unsafe { transfer(fd, kind, memory) },
        FileOpKind::Flush => sync_data(fd),
        FileOpKind::PunchHole { offset_bytes, len_bytes } => {
            let at = offset_bytes as i64;
            let len = len_bytes as i64;
            // SAFETY: fallocate takes any descriptor and touches no memory of ours.
            uninterrupted(|| unsafe { libc::fallocate(fd, PUNCH_HOLE, at, len) })
        }
    }
}

/// Waits until written data is on stable storage. Repeats a call interrupted by a signal, because
/// the interruption tells nothing about the data.
pub(crate) fn sync_data(fd: i32) -> io::Result<()> {
    // SAFETY: fdatasync takes any descriptor and touches no memory of ours.
    uninterrupted(|| unsafe { libc::fdatasync(fd) })
}

/// Repeats a call while signals interrupt it.
fn uninterrupted(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    loop {
        if call() >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if !is_interrupted(&error) {
            return Err(error);
        }
    }
}

/// # Safety
/// See [`execute`].
unsafe fn transfer(fd: i32, mut kind: FileOpKind, memory: &mut Vec<libc::iovec>) -> io::Result<()> {
    if let [vec] = memory[..] {
        let base = vec.iov_base.cast();
        let len_bytes = vec.iov_len;
        match kind {
            FileOpKind::Read { offset_bytes } => {
                return read_all(fd, offset_bytes, base, len_bytes);
            }
            FileOpKind::Write { offset_bytes, fua } => {
                return write_all(fd, offset_bytes, base, len_bytes, fua);
            }
            FileOpKind::Flush | FileOpKind::PunchHole { .. } => {}
        }
    }
    while !memory.is_empty() {
        let count = memory.len().min(PIECES_MAX) as i32;
        // SAFETY: the vectors describe the rest of the operation's memory, which a write only
        // reads.
        let (done, at_end) = unsafe {
            match kind {
                FileOpKind::Write { offset_bytes, fua } => {
                    let flags = if fua { libc::RWF_DSYNC } else { 0 };
                    let at = offset_bytes as i64;
                    (
                        libc::pwritev2(fd, memory.as_ptr(), count, at, flags),
                        no_space as fn() -> io::Error,
                    )
                }
                FileOpKind::Read { offset_bytes } => {
                    let at = offset_bytes as i64;
                    (libc::preadv(fd, memory.as_ptr(), count, at), behind_end as fn() -> io::Error)
                }
                FileOpKind::Flush | FileOpKind::PunchHole { .. } => {
                    unreachable!("the caller matched a transfer")
                }
            }
        };
        match done {
            0 => return Err(at_end()),
            1.. => {
                kind = kind.after(done as usize);
                advance(memory, done as usize);
            }
            _ => match io::Error::last_os_error() {
                error if is_interrupted(&error) => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Copies cached bytes without waiting; returns the length.
pub(crate) fn read_cached(fd: i32, offset_bytes: u64, base: *mut u8, len_bytes: usize) -> usize {
    let mut done = 0;
    while done < len_bytes {
        let vec = iovec(base.wrapping_add(done), len_bytes - done);
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

/// Reads a whole range.
pub(crate) fn read_all(
    fd: i32,
    offset_bytes: u64,
    base: *mut u8,
    len_bytes: usize,
) -> io::Result<()> {
    let mut done = 0;
    while done < len_bytes {
        let at = (offset_bytes + done as u64) as i64;
        // SAFETY: the rest of a buffer that belongs to the calling SQE.
        let read = unsafe { libc::pread(fd, base.wrapping_add(done).cast(), len_bytes - done, at) };
        match read {
            0 => return Err(behind_end()),
            1.. => done += read as usize,
            _ => match io::Error::last_os_error() {
                error if is_interrupted(&error) => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Writes a whole range.
pub(crate) fn write_all(
    fd: i32,
    offset_bytes: u64,
    base: *const u8,
    len_bytes: usize,
    fua: bool,
) -> io::Result<()> {
    let flags = if fua { libc::RWF_DSYNC } else { 0 };
    let mut done = 0;
    while done < len_bytes {
        let rest = base.wrapping_add(done);
        let left_bytes = len_bytes - done;
        let vec = iovec(rest.cast_mut(), left_bytes);
        let at = (offset_bytes + done as u64) as i64;
        // SAFETY: it is the rest of a buffer that belongs to the calling SQE and is only read.
        let written = unsafe {
            match flags {
                // Some percent faster for a short write than a vector.
                0 => libc::pwrite(fd, rest.cast(), left_bytes, at),
                _ => libc::pwritev2(fd, &raw const vec, 1, at, flags),
            }
        };
        match written {
            0 => return Err(no_space()),
            1.. => done += written as usize,
            _ => match io::Error::last_os_error() {
                error if is_interrupted(&error) => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Writes a whole range from an operation's memory.
///
/// # Safety
/// The operation of the memory has not completed.
pub(crate) unsafe fn write_memory(
    fd: i32,
    offset_bytes: u64,
    memory: Memory,
    len_bytes: usize,
    fua: bool,
) -> io::Result<()> {
    if let Memory::Whole(base) = memory {
        return write_all(fd, offset_bytes, base.get().cast_const(), len_bytes, fua);
    }
    let mut vectors = Vec::new();
    // SAFETY: guaranteed by the caller.
    unsafe {
        memory.each(0, len_bytes, |base, len_bytes| vectors.push(iovec(base, len_bytes)));
        transfer(fd, FileOpKind::Write { offset_bytes, fua }, &mut vectors)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Number of calls of this thread to interrupt.
        static INTERRUPTIONS: Cell<u32> = const { Cell::new(0) };
    }

    /// Replaces the C library's function in this test binary.
    // SAFETY: it has the C library's signature, and does the same or fails.
    #[unsafe(no_mangle)]
    extern "C" fn fdatasync(fd: libc::c_int) -> libc::c_int {
        let left = INTERRUPTIONS.get();
        if left > 0 {
            INTERRUPTIONS.set(left - 1);
            // SAFETY: the place is this thread's, without other references.
            unsafe { *libc::__errno_location() = libc::EINTR };
            return -1;
        }
        // SAFETY: fdatasync takes any descriptor and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_fdatasync, fd) as libc::c_int }
    }

    #[test]
    fn flush_that_a_signal_interrupts_is_made_again_and_loses_nothing() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&path, [0; 4096]).unwrap();
        let file = crate::file::DeviceFile::open(&path, crate::file::Access::ReadWrite, false);
        let file = file.unwrap();
        INTERRUPTIONS.set(2);
        // SAFETY: a flush has no memory.
        unsafe { execute(file.data_fd(), FileOpKind::Flush, &mut Vec::new()) }.unwrap();
        assert_eq!(INTERRUPTIONS.get(), 0, "the call was made a third time");
        INTERRUPTIONS.set(2);
        file.flush().unwrap();
        assert_eq!(INTERRUPTIONS.get(), 0, "also at the end of the server");
        assert_eq!(sync_data(-1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn discarded_range_reads_as_zeros_and_the_length_stays() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&path, [7; 8192]).unwrap();
        let file = crate::file::DeviceFile::open(&path, crate::file::Access::ReadWrite, false);
        let end = FileOpKind::PunchHole { offset_bytes: 4096, len_bytes: 4096 };
        // SAFETY: a hole has no memory.
        unsafe { execute(file.unwrap().data_fd(), end, &mut Vec::new()) }.unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [[7; 4096], [0; 4096]].concat());
    }
}
