//! Operations on files, executed by a ring or a blocking system call, and the conversion of their
//! results to block layer statuses.

use std::io;

use blockyard_engine::bio::BlkStatus;

/// Frees the storage of a range and keeps the length.
pub(crate) const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
/// Limit of pieces per call (`UIO_MAXIOV`); the rest follows like after a short transfer.
pub(crate) const PIECES_MAX: usize = 1024;
/// An operation on a file. The memory of a transfer is passed separately.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOp<T> {
    /// Returned with the completion.
    pub(crate) user: T,
    pub(crate) fd: i32,
    pub(crate) kind: FileOpKind,
}

/// The operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileOpKind {
    Read { offset_bytes: u64 },
    Write { offset_bytes: u64, fua: bool },
    Flush,
    PunchHole { offset_bytes: u64, len_bytes: u64 },
}

impl FileOpKind {
    /// The rest of the operation after `done_bytes`.
    pub(crate) fn after(self, done_bytes: usize) -> Self {
        let done_bytes = done_bytes as u64;
        match self {
            Self::Read { offset_bytes } => Self::Read { offset_bytes: offset_bytes + done_bytes },
            Self::Write { offset_bytes, fua } => {
                Self::Write { offset_bytes: offset_bytes + done_bytes, fua }
            }
            Self::Flush | Self::PunchHole { .. } => self,
        }
    }
}

/// A message of these vectors, without an address and without control data.
pub(crate) fn message(vecs: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: a header of zeroes is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vecs.as_mut_ptr();
    // C libraries have different types for it.
    header.msg_iovlen = vecs.len().min(libc::UIO_MAXIOV as usize) as _;
    header
}

/// A piece of memory as an `iovec`.
pub(crate) fn iovec(base: *mut u8, len_bytes: usize) -> libc::iovec {
    libc::iovec { iov_base: base.cast(), iov_len: len_bytes }
}

/// Removes the first `done_bytes` from a transfer's memory.
pub(crate) fn advance(memory: &mut Vec<libc::iovec>, mut done_bytes: usize) {
    let mut whole = 0;
    while memory.get(whole).is_some_and(|vec| vec.iov_len <= done_bytes) {
        done_bytes -= memory[whole].iov_len;
        whole += 1;
    }
    memory.drain(..whole);
    if let Some(first) = memory.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(done_bytes);
        first.iov_len -= done_bytes;
    }
}

/// The status of a result.
pub(crate) fn status(result: io::Result<()>) -> BlkStatus {
    result.map_or_else(|error| status_of(errno(&error)), |()| BlkStatus::Ok)
}

/// The error number of a failed operation.
pub(crate) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Error of a read past the end of a file that was longer before.
pub(crate) fn behind_end() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

/// The status of an error number (`errno_to_blk_status`).
pub(crate) fn status_of(errno: i32) -> BlkStatus {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => BlkStatus::NoSpace,
        libc::EOPNOTSUPP => BlkStatus::NotSupported,
        libc::EINVAL => BlkStatus::Invalid,
        libc::ENOLINK | libc::ETIMEDOUT => BlkStatus::Transport,
        libc::ENODATA | libc::EREMOTEIO => BlkStatus::Medium,
        _ => BlkStatus::IoError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_of_a_write_has_its_fua() {
        for mark in [false, true] {
            let rest = FileOpKind::Write { offset_bytes: 512, fua: mark }.after(100);
            let FileOpKind::Write { offset_bytes, fua } = rest else { panic!("{rest:?}") };
            assert_eq!((offset_bytes, fua), (612, mark));
        }
        let rest = FileOpKind::Read { offset_bytes: 512 }.after(100);
        assert!(matches!(rest, FileOpKind::Read { offset_bytes: 612 }), "{rest:?}");
    }

    #[test]
    fn client_is_told_the_kind_of_a_failure() {
        for (number, expected) in [
            (libc::ENOSPC, BlkStatus::NoSpace),
            (libc::EDQUOT, BlkStatus::NoSpace),
            (libc::EFBIG, BlkStatus::NoSpace),
            (libc::EOPNOTSUPP, BlkStatus::NotSupported),
            (libc::EINVAL, BlkStatus::Invalid),
            (libc::ENOLINK, BlkStatus::Transport),
            (libc::ETIMEDOUT, BlkStatus::Transport),
            (libc::ENODATA, BlkStatus::Medium),
            (libc::EREMOTEIO, BlkStatus::Medium),
            (libc::EIO, BlkStatus::IoError),
        ] {
            assert_eq!(status(Err(io::Error::from_raw_os_error(number))), expected);
        }
        assert_eq!(status(Err(behind_end())), BlkStatus::IoError);
        assert_eq!(status(Ok(())), BlkStatus::Ok);
    }

    #[test]
    fn transfer_goes_on_where_a_short_one_ended() {
        let mut bytes = [0u8; 24];
        let base = bytes.as_mut_ptr();
        let at = |memory: &[libc::iovec]| -> Vec<(usize, usize)> {
            let place = |vec: &libc::iovec| (vec.iov_base as usize - base as usize, vec.iov_len);
            memory.iter().map(place).collect()
        };
        let all = || vec![iovec(base, 8), iovec(base.wrapping_add(16), 8)];
        for (done_bytes, left) in [
            (0, vec![(0, 8), (16, 8)]),
            (3, vec![(3, 5), (16, 8)]),
            (8, vec![(16, 8)]),
            (15, vec![(23, 1)]),
        ] {
            let mut memory = all();
            advance(&mut memory, done_bytes);
            assert_eq!(at(&memory), left, "{done_bytes} of 16 bytes were done");
        }
    }
}
