//! The text of a dm table: what it lets through must be what a shard relies on, and comes back when
//! it is written and read again.
#![no_main]

use blockyard_engine::dm::Leg;
use blockyard_engine::dm::line::{Keys, LINES_MAX, LineTarget, MappedDevice, parse};
use blockyard_engine::dm::multipath::line::PATHS_MAX;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse(text) {
        Ok(mappings) => {
            assert!(!mappings.is_empty());
            assert!(mappings.iter().map(|mapping| mapping.lines.len()).sum::<usize>() <= LINES_MAX);
            mappings.iter().for_each(check_mapping);
            assert_eq!(parse(&written(&mappings)).as_ref(), Ok(&mappings));
        }
        Err(error) => assert!(!error.problem.is_empty()),
    }
});

fn check_mapping(mapping: &MappedDevice) {
    let mut next = 0_u64;
    for line in &mapping.lines {
        assert_eq!(line.start, next, "lines follow each other");
        assert!(line.len > 0);
        next = next.checked_add(line.len).expect("sectors fit");
        assert!(next.checked_mul(512).is_some(), "bytes fit");
        check_target(&line.target, line.start, line.len);
    }
    assert!(next > 0 && next == mapping.len());
}

fn written(mappings: &[MappedDevice]) -> String {
    let mut text = String::new();
    for mapping in mappings {
        mapping.write(Keys::Shown, &mut text).expect("a string takes everything");
    }
    text
}

fn check_target(target: &LineTarget, start: u64, len: u64) {
    let fits = |leg: &Leg<String>, len: u64| {
        let end = leg.start.0.checked_add(len).expect("sectors fit");
        assert!(end.checked_mul(512).is_some(), "bytes fit");
    };
    match target {
        LineTarget::Crypt { params, .. } => assert_eq!(params.len_sectors, Some(len)),
        LineTarget::Striped(spec) => {
            assert!(spec.chunk.0 > 0 && !spec.legs.is_empty());
            let share = len / spec.legs.len() as u64;
            assert!(share.is_multiple_of(spec.chunk.0), "whole chunks on each device");
            spec.legs.iter().for_each(|leg| fits(leg, share));
        }
        LineTarget::Delay(spec) => {
            [&spec.read, &spec.write, &spec.flush].iter().for_each(|one| fits(&one.leg, len));
        }
        LineTarget::Flakey(spec) => {
            assert!(spec.up_s > 0 || spec.down_s > 0, "a cycle has a length");
            fits(&spec.leg, len);
        }
        LineTarget::Null(options) => {
            let block = u64::from(options.block_size_bytes / 512);
            assert!(block > 0 && (start | len).is_multiple_of(block));
        }
        LineTarget::Multipath(spec) => {
            assert!(spec.paths().count() <= PATHS_MAX);
            assert!(spec.groups.iter().all(|group| !group.paths.is_empty()));
            assert!(usize::from(spec.init_group) <= spec.groups.len());
        }
        LineTarget::Loop(leg) => fits(leg, len),
        LineTarget::LogWrites { device, log } => assert_ne!(device, log),
        LineTarget::Linear { .. } | LineTarget::Zero | LineTarget::Error | LineTarget::Ram => {}
    }
}
