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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wipe_overwrites_its_range_and_nothing_beside_it() {
        let (start, end, len) = (1000, 2 * CHUNK_LEN_BYTES + 3000, 3 * CHUNK_LEN_BYTES);
        let mut device = vec![7; len];
        wipe_zero(&mut device, start as u64, end as u64).unwrap();
        assert!(device[start..end].iter().all(|byte| *byte == 0));
        wipe_random(&mut device, start as u64, end as u64).unwrap();
        // Of 512 random bytes about two are zeros.
        let is_random = |piece: &[u8]| piece.iter().filter(|byte| **byte == 0).count() < 64;
        assert!(device[start..end].chunks_exact(512).all(is_random));
        assert!(device[..start].iter().chain(&device[end..]).all(|byte| *byte == 7));
    }
}
