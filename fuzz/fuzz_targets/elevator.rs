//! An elevator with its tunables, and an I/O priority: from the command line or a configuration.
#![no_main]

use blockyard_engine::elevator::{ElevatorSpec, Facts};
use blockyard_engine::priority::Priority;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    // No sensible line is longer; what is longer is refused or taken in time linear in its length.
    let text: String = text.chars().take(4096).collect();
    match ElevatorSpec::parse(&text) {
        Ok(spec) => {
            let shown = spec.to_string();
            let again = ElevatorSpec::parse(&shown).expect("what is shown is understood");
            assert_eq!(again, spec);
            // Every value in range makes an elevator, and nothing waits in a new one.
            for rotational in [false, true] {
                let facts = Facts { rotational, nr_requests: 64, queue_depth: 32 };
                let _ = spec.attach(facts);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match Priority::parse(&text) {
        Ok(priority) => {
            assert!(priority.level <= Priority::LEVEL_MAX);
            let again =
                Priority::parse(&priority.to_string()).expect("what is shown is understood");
            assert_eq!(again, priority);
        }
        Err(error) => assert!(error.to_string().contains("idle"), "the allowed values are said"),
    }
});
