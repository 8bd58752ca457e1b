//! Sources and sinks of headers.
//!
//! The formats never open a file: they read from a [`HeaderSource`] and write to a [`HeaderSink`].
//! A world implements both for its files and disks; this file implements them for byte slices, for
//! tests and fuzzing. Only headers and keyslots pass here, never the volume's data.

use std::io;

/// A readable device or file.
pub trait HeaderSource {
    /// Fills `buf` from `offset_bytes`; a short read is an error.
    ///
    /// # Errors
    /// When the range does not exist or the device fails.
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError>;

    /// Length of the device or file.
    fn len_bytes(&self) -> u64;
}

/// A writable device or file.
pub trait HeaderSink {
    /// Writes all of `bytes` at `offset_bytes`. A file may grow, a device may not.
    ///
    /// # Errors
    /// When the range does not exist or the device fails.
    fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), SourceError>;

    /// Returns when all earlier writes are on stable storage.
    ///
    /// # Errors
    /// When the device fails.
    fn sync(&mut self) -> Result<(), SourceError>;
}

/// A readable and writable device, for everything that writes a header.
pub trait HeaderDevice: HeaderSource + HeaderSink {}

impl<T: HeaderSource + HeaderSink + ?Sized> HeaderDevice for T {}

/// The reason of a failed read or write.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The range lies partly or wholly past the end.
    #[error(
        "bytes {offset_bytes} to {end} are wanted, but the device or file ends at \
         {device_len_bytes}",
        end = .offset_bytes.saturating_add(*.len_bytes)
    )]
    BehindEnd {
        /// Start of the range.
        offset_bytes: u64,
        /// Length of the range.
        len_bytes: u64,
        /// Length of the device.
        device_len_bytes: u64,
    },
    /// The operating system's error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The part of a slice for a read or write of `len` bytes at `offset_bytes`.
fn range_in(
    offset_bytes: u64,
    len: usize,
    device_len: usize,
) -> Result<std::ops::Range<usize>, SourceError> {
    let behind_end = || SourceError::BehindEnd {
        offset_bytes,
        len_bytes: len as u64,
        device_len_bytes: device_len as u64,
    };
    let start = usize::try_from(offset_bytes).map_err(|_| behind_end())?;
    let end = start.checked_add(len).ok_or_else(behind_end)?;
    if end > device_len {
        return Err(behind_end());
    }
    Ok(start..end)
}

impl HeaderSource for [u8] {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        buf.copy_from_slice(&self[range_in(offset_bytes, buf.len(), self.len())?]);
        Ok(())
    }

    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }
}

impl HeaderSource for Vec<u8> {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.as_slice().read_at(offset_bytes, buf)
    }

    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }
}

impl<T: HeaderSource + ?Sized> HeaderSource for &T {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        (**self).read_at(offset_bytes, buf)
    }

    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }
}

/// A disk in memory of fixed length.
impl HeaderSink for Vec<u8> {
    fn write_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<(), SourceError> {
        let range = range_in(offset_bytes, bytes.len(), self.len())?;
        self[range].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_read_behind_end_names_the_range() {
        let mut buf = [0u8; 8];
        let error = vec![0u8; 10].read_at(4, &mut buf).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bytes 4 to 12 are wanted, but the device or file ends at 10"
        );
        assert!(vec![0u8; 10].read_at(u64::MAX, &mut buf).is_err());
        assert!(vec![0u8; 10].read_at(2, &mut buf).is_ok());
    }

    #[test]
    fn slice_write_behind_end_changes_nothing() {
        let mut disk = vec![0u8; 10];
        assert!(disk.write_at(8, &[1, 2, 3]).is_err());
        assert_eq!(disk, vec![0u8; 10]);
        disk.write_at(7, &[1, 2, 3]).unwrap();
        assert_eq!(&disk[7..], &[1, 2, 3]);
    }
}
