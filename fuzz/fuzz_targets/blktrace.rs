//! A file of blktrace, as both kinds of trace, which are written and read again.
#![no_main]

use blockyard_workload::trace::blktrace::{Action, Events};
use blockyard_workload::trace::{SECTORS_MAX, Trace, TracedBio, Writer};
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
        // A trace has times of 292 years at most: longer ones are cut.
        let longest = i64::MAX as u64;
        let is_short = |bio: &TracedBio| {
            let latency = bio.completion.map_or(0, |end| end.latency.0);
            bio.start.0 <= longest && latency <= longest
        };
        if trace.bios.iter().all(is_short) {
            let again = Trace::read(&written[..]).expect("it was written just now");
            assert_eq!(again.bios, trace.bios);
        }
    }
});
