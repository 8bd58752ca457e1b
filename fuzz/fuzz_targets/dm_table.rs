//! The text of a dm table: what it lets through must be what a shard relies on.
#![no_main]

use blockyard_engine::dm::line::{LINES_MAX, LineTarget, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse(text) {
        Ok(lines) => {
            assert!(!lines.is_empty() && lines.len() <= LINES_MAX);
            let mut next = 0_u64;
            for line in &lines {
                assert_eq!(line.start, next, "lines follow each other");
                assert!(line.len > 0);
                next = next.checked_add(line.len).expect("sectors fit");
                assert!(next.checked_mul(512).is_some(), "bytes fit");
                if let LineTarget::Crypt { params, .. } = &line.target {
                    assert_eq!(params.len_sectors, Some(line.len));
                }
            }
        }
        Err(error) => assert!(!error.problem.is_empty()),
    }
});
