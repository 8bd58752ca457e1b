//! The part of a data device that a volume occupies.
//!
//! All sums of numbers from a header or the command line are checked. A volume that ends past the
//! end of its device is refused here with a clear error, not by the first failing read.

use crate::error::Error;

/// Place of a volume's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Start on the data device; a multiple of 512.
    pub(crate) offset_bytes: u64,
    /// Length; `None`: the rest of the device.
    pub(crate) len_bytes: Option<u64>,
    /// Encryption sector size.
    pub(crate) sector_size_bytes: u32,
}

impl Extent {
    /// Length in 512-byte sectors on a device of `device_len_bytes`. The rest of a device is
    /// rounded down to whole encryption sectors, because a partial sector cannot be mapped.
    pub(crate) fn len_sectors(&self, device_len_bytes: u64) -> Result<u64, Error> {
        let sector_size = u64::from(self.sector_size_bytes);
        let start = self.offset_bytes;
        if start >= device_len_bytes {
            return Err(Error::DataDevice(format!(
                "the data starts at byte {start}, but the device or file ends at byte \
                 {device_len_bytes}; it is truncated, or it is not the device of this header"
            )));
        }
        let rest = device_len_bytes - start;
        let len_bytes = match self.len_bytes {
            Some(len) if len > rest => {
                return Err(Error::DataDevice(format!(
                    "the data is {len} bytes from byte {start} on, but the device or file ends at \
                     byte {device_len_bytes}; it is truncated, or it is not the device of this \
                     header"
                )));
            }
            Some(len) => len,
            None => rest - rest % sector_size,
        };
        if len_bytes == 0 {
            return Err(Error::DataDevice(format!(
                "after byte {start}, where the data starts, it has {rest} bytes: less than one \
                 sector of {sector_size} bytes"
            )));
        }
        Ok(len_bytes / 512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn len(offset_bytes: u64, len_bytes: Option<u64>, device: u64) -> Result<u64, String> {
        Extent { offset_bytes, len_bytes, sector_size_bytes: 4096 }
            .len_sectors(device)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn extent_to_the_end_is_rounded_down_to_whole_sectors() {
        assert_eq!(len(4096, None, 4096 + 8192 + 4095), Ok(16));
        assert!(len(4096, None, 4096 + 4095).unwrap_err().contains("less than one sector"));
    }

    #[test]
    fn extent_behind_the_end_is_refused() {
        assert!(len(8192, None, 8192).unwrap_err().contains("truncated"));
        assert!(len(0, Some(8192), 8191).unwrap_err().contains("truncated"));
        assert!(len(u64::MAX, Some(u64::MAX), 1).unwrap_err().contains("truncated"));
        assert_eq!(len(0, Some(8192), 8192), Ok(16));
    }
}
