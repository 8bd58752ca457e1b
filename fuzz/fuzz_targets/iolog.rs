//! A log of fio as a trace, which is written and read again.
#![no_main]

use blockyard_workload::trace::{SECTORS_MAX, Trace, Writer, iolog};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let trace = match iolog::read(bytes) {
        Ok(trace) => trace,
        Err(error) => {
            assert!(error.offset_bytes <= bytes.len() as u64, "{error}");
            assert!(error.problem.starts_with("line "), "{error}");
            return;
        }
    };
    assert!(trace.bios.is_sorted_by_key(|bio| bio.start));
    let mut writer = Writer::begin(Vec::new(), &trace.header).expect("memory takes all");
    for bio in &trace.bios {
        assert!(bio.end_sector() <= SECTORS_MAX);
        writer.push(bio).expect("memory takes all");
    }
    let written = writer.end(trace.end.length).expect("memory takes all");
    let again = Trace::read(&written[..]).expect("it was written just now");
    assert_eq!(again.bios, trace.bios);
});
