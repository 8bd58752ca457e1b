//! JSON of fio or of `blockyard bench`, as measurements of a device.
#![no_main]

use blockyard_lab::fit_device::measurements;
use libfuzzer_sys::fuzz_target;

/// Limit of the jobs of a file.
const JOBS_MAX: usize = 64;

fuzz_target!(|text: &str| {
    match measurements("fuzz.json", text, 300) {
        Ok(labels) => {
            assert!((1..=JOBS_MAX).contains(&labels.len()));
            assert!(labels.iter().all(|label| label.starts_with("fuzz.json: ")));
        }
        Err(error) => assert!(error.to_string().starts_with("fuzz.json")),
    }
});
