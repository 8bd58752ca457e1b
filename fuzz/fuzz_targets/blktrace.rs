//! A file of blktrace, as both kinds of trace, which are written and read again.
#![no_main]

use blockyard_load::trace::blktrace::{Action, Events};
use blockyard_load::trace::{SECTORS_MAX, Trace, Writer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for action in [Action::Queue, Action::Issue] {
        let mut events = Events::default();
        if let Err(error) = events.add(bytes) {
            assert!(error.offset_bytes <= bytes.len() as u64, "{error}");
            return;
        }
        let trace = events.into_trace(action);
        let mut writer = Writer::begin(Vec::new(), &trace.header).expect("memory takes all");
        for bio in &trace.bios {
            assert!(bio.end_sector() <= SECTORS_MAX);
            writer.push(bio).expect("memory takes all");
        }
        let written = writer.end(trace.end.length).expect("memory takes all");
        if trace.bios.iter().all(|bio| bio.start.0 <= i64::MAX as u64) {
            let again = Trace::read(&written[..]).expect("it was written just now");
            assert_eq!(again.bios, trace.bios);
        }
    }
});
