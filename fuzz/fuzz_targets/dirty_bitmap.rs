//! The header of the file of a dirty bitmap: all numbers that come out are within their limits.
#![no_main]

use blockyard_host::dirty_bitmap::{DirtyBitmapOptions, HEADER_BYTES, Header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    let Ok(header) = Header::parse(header) else { return };
    assert!(DirtyBitmapOptions::is_granularity(header.granularity_bytes));
    assert!(header.size_bytes.div_ceil(header.granularity_bytes.into()) <= 1 << 30);
    assert!(header.identity.len() <= 256);
});
