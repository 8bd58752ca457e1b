//! Cost of a write's range in flight: announced and withdrawn, without conflicts.

use std::hint::black_box;
use std::time::Instant;

use blockyard_engine::ranges::{BLOCK_BYTES, Blocks, Ranges};

use crate::{BIOS, DEPTH, ROUNDS};

/// Prints the median round, in nanoseconds per write.
pub(crate) fn print(json: bool) {
    let mut announcer = Ranges::default().join();
    let mut slots = Vec::new();
    let mut round = || {
        let start = Instant::now();
        for batch in 0..BIOS / DEPTH {
            for index in 0..DEPTH {
                let at = black_box((batch * DEPTH + index) * BLOCK_BYTES);
                let (slot, may_go) =
                    announcer.announce(Blocks::around(at, BLOCK_BYTES)).expect("there is room");
                assert!(may_go);
                slots.push(slot);
            }
            for slot in slots.drain(..) {
                assert!(announcer.withdraw(black_box(slot)).is_none());
            }
        }
        start.elapsed().as_nanos() as f64 / (BIOS / DEPTH * DEPTH) as f64
    };
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    let ns = rounds[ROUNDS / 2];
    let name = "range of a write";
    if json {
        println!("{{\"bench\": \"engine\", \"case\": \"{name}\", \"ns_per_bio\": {ns:.1}}}");
    } else {
        println!("{name:<28} {ns:6.1} ns per 4 KiB bio, {DEPTH} at a time");
    }
}
