//! A fio job file for a volume of 1 GiB.
#![no_main]

use blockyard_workload::fio::{Fio, JobFile, Surroundings};
use libfuzzer_sys::fuzz_target;

const DEVICE_BYTES: u64 = 1 << 30;

fuzz_target!(|text: &str| {
    match JobFile::parse(Some(text), &[], &Surroundings::of_device(DEVICE_BYTES)) {
        Ok(file) => {
            assert!(!file.jobs.is_empty());
            for job in &file.jobs {
                assert!(
                    job.region.offset_bytes.saturating_add(job.region.size_bytes) <= DEVICE_BYTES
                );
            }
            // Thousands of clones would be memory of the workload, not of the parser.
            let clones = file.jobs.iter().map(|job| u64::from(job.clones.count())).sum::<u64>();
            if clones <= 64 && file.jobs.iter().all(|job| job.submission.iodepth <= 64) {
                match Fio::new(file.jobs) {
                    Ok(fio) => {
                        assert!(fio.file_lens_bytes().iter().all(|len| *len <= DEVICE_BYTES));
                    }
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
