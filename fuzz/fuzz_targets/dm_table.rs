//! The text of a dm table: what it lets through must be what a shard relies on, and comes back when
//! it is written and read again.
#![no_main]

use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::dm::DeviceArea;
use blockyard_engine::dm::delay::DelaySpec;
use blockyard_engine::dm::flakey::FlakeySpec;
use blockyard_engine::dm::line::{LINES_MAX, Line, MappedDevice, TableError};
use blockyard_engine::dm::log_writes::LogWritesLine;
use blockyard_engine::dm::loop_file::Loop;
use blockyard_engine::dm::multipath::line::{MultipathSpec, PATHS_MAX};
use blockyard_engine::dm::null::NullOptions;
use blockyard_engine::dm::registry::{Arguments, Keys};
use blockyard_engine::dm::striped::StripedSpec;
use blockyard_host::table::{self, CryptArguments};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse(text) {
        Ok(mappings) => {
            assert!(!mappings.is_empty());
            assert!(mappings.iter().map(|mapping| mapping.lines.len()).sum::<usize>() <= LINES_MAX);
            mappings.iter().for_each(check_mapping);
            check_again(&mappings);
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
        check_target(line);
    }
    assert!(next > 0 && next == mapping.len());
}

fn parse(text: &str) -> Result<Vec<MappedDevice>, TableError> {
    table::parse(&SecretBytes::copy_of(text.as_bytes()), &[])
}

/// A written table is parsed into an equal table. The debug text has all fields but the keys; the
/// written text has the keys.
fn check_again(mappings: &[MappedDevice]) {
    let text = written(mappings);
    let again = parse(&text).expect("it was parsed before");
    assert_eq!(written(&again), text);
    assert_eq!(format!("{again:?}"), format!("{mappings:?}"));
}

fn written(mappings: &[MappedDevice]) -> String {
    let mut text = String::new();
    for mapping in mappings {
        mapping.write(Keys::Shown, &mut text).expect("a string takes everything");
    }
    text
}

fn check_target(line: &Line) {
    let start = line.start;
    let len = line.len;
    let fits = |area: &DeviceArea<String>, len: u64| {
        let end = area.start.0.checked_add(len).expect("sectors fit");
        assert!(end.checked_mul(512).is_some(), "bytes fit");
    };
    match line.target.name {
        "crypt" => assert_eq!(of::<CryptArguments>(line).params.len_sectors, Some(len)),
        "striped" => {
            let spec: &StripedSpec<String> = of(line);
            assert!(spec.chunk.0 > 0 && !spec.areas.is_empty());
            let share = len / spec.areas.len() as u64;
            assert!(share.is_multiple_of(spec.chunk.0), "whole chunks on each device");
            spec.areas.iter().for_each(|area| fits(area, share));
        }
        "delay" => {
            let spec: &DelaySpec<String> = of(line);
            [&spec.read, &spec.write, &spec.flush].iter().for_each(|one| fits(&one.area, len));
        }
        "flakey" => {
            let spec: &FlakeySpec<String> = of(line);
            assert!(spec.up_s > 0 || spec.down_s > 0, "a cycle has a length");
            fits(&spec.area, len);
        }
        "null" => {
            let block = u64::from(of::<NullOptions>(line).block_size_bytes / 512);
            assert!(block > 0 && (start | len).is_multiple_of(block));
        }
        "multipath" => {
            let spec: &MultipathSpec = of(line);
            assert!(spec.paths().count() <= PATHS_MAX);
            assert!(spec.groups.iter().all(|group| !group.paths.is_empty()));
            assert!(usize::from(spec.init_group) <= spec.groups.len());
        }
        "loop" => fits(&of::<Loop<String>>(line).area, len),
        "log-writes" => {
            let LogWritesLine { device, log } = of(line);
            assert_ne!(device, log);
        }
        _ => {}
    }
}

fn of<T: Arguments>(line: &Line) -> &T {
    line.arguments.downcast().expect("the target has these arguments")
}
