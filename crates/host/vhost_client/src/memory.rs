//! Memory that is shared with a server.

use crate::Result;
use memmap2::MmapMut;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;

/// Memory of this length that others can map, for as long as the program runs.
pub(crate) fn shared(len_bytes: usize) -> Result<(File, &'static mut [u8])> {
    let file = File::from(memfd_create("buffers", MemfdFlags::CLOEXEC)?);
    file.set_len(len_bytes as u64)?;
    // SAFETY: the file is as long as it was until the program ends. The server changes bytes only
    // while a request is in flight, and nobody reads these bytes then.
    let mapping = Box::leak(Box::new(unsafe { MmapMut::map_mut(&file)? }));
    mapping.fill(1);
    Ok((file, mapping))
}
