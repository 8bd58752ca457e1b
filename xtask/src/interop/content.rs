//! Content of a served disk: fill, read, compare.

use crate::nbd::Raw;
use crate::volume::noise;
use anyhow::{Result, bail};
use std::path::Path;

/// Length of a request: not a multiple of the server's pieces.
const STEP_BYTES: usize = 192 * 1024;

/// Fills a served disk with noise of this seed and flushes; returns the content.
pub(crate) fn fill(socket: &Path, seed: u64) -> Result<Vec<u8>> {
    let mut raw = Raw::connect(socket)?;
    let bytes = noise(seed, usize::try_from(raw.len_bytes)?);
    let mut offset = 0;
    for step in bytes.chunks(STEP_BYTES) {
        raw.write(offset, step)?;
        offset += u64::try_from(step.len())?;
    }
    raw.flush()?;
    Ok(bytes)
}

/// Reads a whole served disk.
pub(crate) fn read(socket: &Path) -> Result<Vec<u8>> {
    let mut raw = Raw::connect(socket)?;
    let mut bytes = Vec::with_capacity(usize::try_from(raw.len_bytes)?);
    while u64::try_from(bytes.len())? < raw.len_bytes {
        let at = u64::try_from(bytes.len())?;
        let len = (raw.len_bytes - at).min(STEP_BYTES as u64);
        bytes.extend(raw.read(at, u32::try_from(len)?)?);
    }
    Ok(bytes)
}

/// Asserts that two disks are equal; the error names the first difference.
pub(crate) fn same(got: &[u8], want: &[u8]) -> Result<()> {
    if got.len() != want.len() {
        bail!("{} bytes instead of {}", got.len(), want.len());
    }
    if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
        let bad = got.chunks(512).zip(want.chunks(512)).filter(|(a, b)| a != b).count();
        bail!("differs from byte {at} (sector {}), {bad} sectors in all", at / 512);
    }
    Ok(())
}
