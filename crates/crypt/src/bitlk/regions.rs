//! The parts of an opened volume.
//!
//! ```text
//!   volume:  header | ciphertext ... | zeros | ciphertext ... | zeros | ...
//!   disk:    boot   | ciphertext ... | header, metadata | ciphertext ... | metadata | ...
//! ```
//!
//! The volume's first bytes are elsewhere on the disk, encrypted with the IVs of that place. That
//! place and the metadata read as zeros; writes to them are forgotten, as dm-zero does it below
//! cryptsetup's mapping.

use super::Header;
use super::metadata::{AREA_LEN_BYTES, VolumeHeader};
use crate::error::Error;
use crate::params::{CryptFlags, CryptParams, VolumePart};
use crate::secret::SecretBytes;

/// The parts of a volume on a device of `device_len_bytes`, in their order without gaps.
pub(super) fn parts(
    header: &Header,
    key: &SecretBytes,
    device_len_bytes: u64,
) -> Result<Vec<VolumePart>, Error> {
    let sector_size = u64::from(header.boot.sector_size_bytes);
    // With a longer device, what follows is not of this volume: another partition, for example.
    let end = device_len_bytes.min(header.metadata.volume_len_bytes) / sector_size * sector_size;
    let VolumeHeader { offset_bytes, len_bytes } = header.metadata.volume_header;
    let crypt = |offset_bytes: u64, len_bytes: u64| CryptParams {
        cipher: header.cipher.text().to_owned(),
        key: key.clone(),
        iv_offset_sectors: offset_bytes / 512,
        data_offset_sectors: offset_bytes / 512,
        len_sectors: Some(len_bytes / 512),
        sector_size_bytes: header.boot.sector_size_bytes,
        iv_large_sectors: header.boot.sector_size_bytes != 512,
        flags: CryptFlags::default(),
    };
    let first = crypt(offset_bytes, len_bytes);
    first.check_key().map_err(|problem| Error::header("BitLocker metadata", problem))?;
    let mut found = vec![VolumePart::Crypt(first)];
    let mut at = len_bytes;
    for (start, len) in header.hidden()? {
        let past = start.saturating_add(len);
        if past > end {
            return Err(Error::DataDevice(format!(
                "metadata of BitLocker ends at byte {past}, but the volume, the device or the file \
                 at byte {end}; it is truncated, or it is not the whole volume"
            )));
        }
        if start > at {
            found.push(VolumePart::Crypt(crypt(at, start - at)));
        }
        found.push(VolumePart::Zeros { len_sectors: len / 512 });
        at = past;
    }
    if end > at {
        found.push(VolumePart::Crypt(crypt(at, end - at)));
    }
    Ok(found)
}

impl Header {
    /// Start and length of the ranges that read as zeros, in their order.
    fn hidden(&self) -> Result<Vec<(u64, u64)>, Error> {
        let VolumeHeader { offset_bytes, len_bytes } = self.metadata.volume_header;
        let mut hidden: Vec<(u64, u64)> =
            self.metadata.offsets_bytes.map(|offset| (offset, AREA_LEN_BYTES)).to_vec();
        hidden.push((offset_bytes, len_bytes));
        hidden.sort_unstable();
        let mut at = len_bytes;
        for (start, len) in &hidden {
            let is_whole = [*start, *len]
                .iter()
                .all(|number| number.is_multiple_of(u64::from(self.boot.sector_size_bytes)));
            if *len == 0 || !is_whole || *start < at {
                let problem = format!(
                    "the {len} bytes from byte {start} on are no whole sectors, or overlap others"
                );
                return Err(Error::header("BitLocker metadata", problem));
            }
            at = start.saturating_add(*len);
        }
        Ok(hidden)
    }
}
