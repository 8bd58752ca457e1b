//! Holes of a regular file (`lseek`, `SEEK_DATA` and `SEEK_HOLE`).

use std::fs::File;

use rustix::fs::{SeekFrom, seek};

/// Length of the run at `offset_bytes` that is all data or all hole, at most `len_bytes`, and
/// whether it is a hole. Files without this information are all data.
pub(crate) fn run_at(file: &File, offset_bytes: u64, len_bytes: u64) -> (u64, bool) {
    let data = match seek(file, SeekFrom::Data(offset_bytes)) {
        Ok(data) => data,
        // No data past this offset.
        Err(rustix::io::Errno::NXIO) => return (len_bytes, true),
        Err(_) => return (len_bytes, false),
    };
    if data > offset_bytes {
        return ((data - offset_bytes).min(len_bytes), true);
    }
    match seek(file, SeekFrom::Hole(offset_bytes)) {
        Ok(hole) if hole > offset_bytes => ((hole - offset_bytes).min(len_bytes), false),
        _ => (len_bytes, false),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn runs_of_a_sparse_file_are_told_apart() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(64 << 10).unwrap();
        file.write_all_at(&[1; 4096], 16 << 10).unwrap();
        assert_eq!(run_at(&file, 0, 64 << 10), (16 << 10, true));
        assert_eq!(run_at(&file, 16 << 10, 48 << 10), (4096, false));
        assert_eq!(run_at(&file, 20 << 10, 44 << 10), (44 << 10, true));
        assert_eq!(run_at(&file, 18 << 10, 1024), (1024, false));
    }
}
