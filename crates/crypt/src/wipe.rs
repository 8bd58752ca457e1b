//! Overwrites the space before a new volume's data, so that no old header or keyslot survives.

use crate::error::Error;
use crate::source::HeaderDevice;

/// Bytes per write.
const CHUNK_LEN_BYTES: usize = 256 * 1024;

/// Writes zeros.
pub(crate) fn wipe_zero(
    device: &mut dyn HeaderDevice,
    start_bytes: u64,
    end_bytes: u64,
) -> Result<(), Error> {
    wipe(device, start_bytes, end_bytes, |_| Ok(()))
}

/// Writes random bytes, so that an unused keyslot area looks like a used one.
pub(crate) fn wipe_random(
    device: &mut dyn HeaderDevice,
    start_bytes: u64,
    end_bytes: u64,
) -> Result<(), Error> {
    wipe(device, start_bytes, end_bytes, |chunk| Ok(getrandom::fill(chunk)?))
}

fn wipe(
    device: &mut dyn HeaderDevice,
    start_bytes: u64,
    end_bytes: u64,
    mut fill: impl FnMut(&mut [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut chunk = vec![0u8; CHUNK_LEN_BYTES];
    let mut offset = start_bytes;
    while offset < end_bytes {
        let left = end_bytes - offset;
        let len = usize::try_from(left).map_or(CHUNK_LEN_BYTES, |left| left.min(CHUNK_LEN_BYTES));
        fill(&mut chunk[..len])?;
        device.write_at(offset, &chunk[..len]).map_err(|error| Error::Write {
            what: "over the old contents of the header area".to_owned(),
            error,
        })?;
        offset += len as u64;
    }
    Ok(())
}
