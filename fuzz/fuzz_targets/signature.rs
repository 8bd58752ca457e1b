//! Detection of a disk's content from its first bytes. The input is the start of a disk.
#![no_main]

use blockyard_crypt::signature;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some(signature) = signature::probe(&input) {
        assert!(signature.offset_bytes < input.len() as u64);
        let _ = signature.to_string();
    }
});
