use alloc::string::ToString;
use alloc::vec;

use super::*;
use crate::dm::DeviceArea;
use crate::dm::delay::DelaySpec;
use crate::dm::error::Error;
use crate::dm::flakey::FlakeySpec;
use crate::dm::linear::Linear;
use crate::dm::log_writes::LogWritesLine;
use crate::dm::loop_file::Loop;
use crate::dm::multipath::line::MultipathSpec;
use crate::dm::null::NullOptions;
use crate::dm::ram::RamLine;
use crate::dm::striped::StripedSpec;
use crate::dm::zero::{ZERO, ZeroSpec};

/// Lines of a table of one device.
fn lines(text: &str) -> Vec<Line> {
    let mut mappings = parse(text, &[]).unwrap();
    assert_eq!(mappings.len(), 1);
    mappings.remove(0).lines
}

fn problem(text: &str) -> String {
    parse(text, &[]).unwrap_err().to_string()
}

/// The arguments of a line.
fn of<T: Arguments + Clone>(line: &Line) -> T {
    line.arguments.downcast::<T>().expect("the target has these arguments").clone()
}

fn area(dev: &str, start: u64) -> DeviceArea<String> {
    DeviceArea { dev: dev.into(), start: Sector(start) }
}

#[test]
fn line_of_every_target_is_parsed() {
    let text = "0 8 ram # memory\n8 8 null\n\n16 8 loop /f 4\n24 32 striped 2 8 /a 0 /b 100\n\
                56 8 delay /r 1 2 /w 3 4\n64 8 flakey /a 0 9 1 2 error_reads drop_writes\n\
                72 8 log-writes /a /log\n80 8 multipath 0 0 1 1 round-robin 0 2 1 /a 1 /b 1\n\
                88 8 linear /dev/a 16\n96 8 zero\n104 8 error";
    let lines = lines(text);
    assert_eq!(of::<RamLine>(&lines[0]), RamLine);
    assert_eq!(of::<NullOptions>(&lines[1]).timer, None);
    assert_eq!(of::<Loop<String>>(&lines[2]), Loop { area: area("/f", 4) });
    let areas = vec![area("/a", 0), area("/b", 100)];
    assert_eq!(of::<StripedSpec<String>>(&lines[3]), StripedSpec { chunk: Sector(8), areas });
    let delay: DelaySpec<String> = of(&lines[4]);
    assert_eq!((&delay.read.area, &delay.write.area), (&area("/r", 1), &area("/w", 3)));
    assert_eq!(delay.write, delay.flush, "flushes go with the writes");
    let flakey: FlakeySpec<String> = of(&lines[5]);
    assert_eq!((flakey.up_s, flakey.down_s), (9, 1));
    let device = "/a".into();
    let log = "/log".into();
    assert_eq!(of::<LogWritesLine>(&lines[6]), LogWritesLine { device, log });
    assert_eq!(of::<MultipathSpec>(&lines[7]).paths().count(), 2);
    assert_eq!(of::<Linear<String>>(&lines[8]), Linear { area: area("/dev/a", 16) });
    assert_eq!((of::<ZeroSpec>(&lines[9]), of::<Error>(&lines[10])), (ZeroSpec, Error));
}

static OWN: TargetType = TargetType { name: "own", ..ZERO };

#[test]
fn target_of_the_world_is_found_and_named_last() {
    let mappings = parse("0 8 own", &[&OWN]).unwrap();
    assert!(core::ptr::eq(mappings[0].lines[0].target, &OWN));
    let problem = parse("0 8 stripe", &[&OWN]).unwrap_err().problem;
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let names = format!("there are {} and own", names.join(", "));
    assert!(problem.ends_with(&names), "{problem}");
}

#[test]
fn two_targets_with_one_name_are_refused() {
    for own in [&[&ZERO][..], &[&OWN, &OWN]] {
        let problem = parse("0 8 zero", own).unwrap_err().to_string();
        assert!(problem.starts_with("table: two targets have the name"), "{problem}");
    }
}

#[test]
fn name_that_dmsetup_prints_first_belongs_to_the_device() {
    let mappings = parse("home: 0 8 zero\nhome: 8 8 error", &[]).unwrap();
    assert_eq!((mappings.len(), &*mappings[0].name, mappings[0].len()), (1, "home", 16));
    assert_eq!(mappings[0].targets(), "home: 0 8 zero\nhome: 8 8 error\n");
}

#[test]
fn devices_on_devices_are_in_the_order_of_the_table() {
    let text = "a: 0 8 ram\na: 8 8 zero\nb: 0 16 striped 1 8 /dev/mapper/a 0\n\
                0 16 delay /dev/mapper/b 0 1 /dev/mapper/a 0 1";
    assert!(problem(text).contains("line 4: it starts at sector 0"), "it is a line of b still");
    let mappings = parse(&text.replace("\n0 16", "\nc: 0 16"), &[]).unwrap();
    let names: Vec<&str> = mappings.iter().map(|mapping| &*mapping.name).collect();
    assert_eq!((names, mappings[0].len()), (vec!["a", "b", "c"], 16));
}

#[test]
fn device_that_nothing_is_on_or_that_is_torn_apart_is_refused() {
    assert!(problem("a: 0 8 zero\nb: 0 8 zero").contains("nothing after device `a` names"));
    assert!(problem("0 8 zero\nb: 0 8 linear /dev/mapper/ 0").contains("nothing after device ``"));
    let apart = "a: 0 8 zero\nb: 0 8 linear /dev/mapper/a 0\na: 8 8 zero";
    assert!(problem(apart).contains("line 3: the lines of device `a` are in two places"));
    assert!(problem("a: 0 8 zero\nb: 1 8 linear /dev/mapper/a 0").contains("line 2: it starts at"));
}

#[test]
fn gap_overlap_and_overflow_are_refused_with_their_line() {
    assert!(problem("0 8 zero\n9 8 zero").contains("line 2: it starts at sector 9"));
    assert!(problem("0 8 zero\n7 8 zero").contains("line 2"));
    assert!(problem("0 36028797018963968 zero").contains("exceed 2^64 bytes"));
    assert!(problem("\n# nothing\n").contains("the table is empty"));
}

#[test]
fn wrong_arguments_name_what_is_wrong() {
    assert!(problem("0 8 stripe /a 0").contains("target `stripe` is not supported"));
    assert!(problem("0 8 linear /a").contains("linear takes"));
    assert!(problem("0 8 loop /a").contains("loop takes"));
    assert!(problem("0 8 multipath 0 1 alua 1 1").contains("line 1: hardware handler `alua`"));
    assert!(problem("0 8 ram 1").contains("takes no arguments"));
    assert!(problem("0 8 delay /a 0").contains("one, two or three times"));
    assert!(problem("0 8 delay /a 0 x").contains("milliseconds `x`"));
    assert!(problem("0 8 striped 2 8 /a 0").contains("announces 2 devices, but 2 words follow"));
    assert!(
        problem("0 8 striped 0 8").ends_with("announces 0 devices; the line needs one at least")
    );
    assert!(problem("0 8 striped 1 7 /a 0").contains("it must have 8"));
    assert!(problem("0 24 striped 2 8 /a 0 /b 0").contains("not a multiple of 2 chunks"));
    assert!(problem("0 8 striped 1 18446744073709551615 /a 0").contains("not a multiple"));
    assert!(problem("0 8 loop /a 36028797018963964").contains("2^64 bytes"));
    assert!(problem("0 x zero").contains("length in sectors `x` is not a number"));
    assert!(problem("0 0 zero").contains("zero sectors"));
}

/// The output can be parsed again; order and omissions are the kernel's.
#[test]
fn line_is_written_as_dmsetup_prints_it() {
    for (text, written) in [
        ("0 8 linear /dev/a 16", ""),
        ("0 8 zero", ""),
        ("0 8 ram # memory", "0 8 ram"),
        ("0 8 null", ""),
        (
            "0 8 null 2 irqmode:2 discard:1",
            "0 8 null 3 irqmode:timer completion_nsec:10000 discard:1",
        ),
        ("0 8 null 4 blocksize:4096 memory_backed:1 badblocks:1-2 stale_reads:1", ""),
        ("0 8 loop /f 4", ""),
        ("0 32 striped 2 8 /a 0 /b 100", ""),
        ("0 8 delay /r 1 2", ""),
        ("0 8 delay /r 1 2 /w 3 4", ""),
        ("0 8 delay /r 1 2 /r 1 2 /f 5 6", ""),
        ("0 8 flakey /a 0 9 1", ""),
        ("0 8 flakey /a 0 9 1 6 corrupt_bio_byte 32 r 1 0 drop_writes", ""),
        ("0 8 log-writes /a /log", ""),
        (
            "0 8 multipath 0 0 1 1 round-robin 0 2 1 /a 1 /b 1",
            "0 8 multipath 0 0 1 1 round-robin 0 2 1 /a 1 /b 1 ",
        ),
    ] {
        let line = lines(text).remove(0);
        let mut shown = String::new();
        line.write(Keys::Shown, &mut shown).unwrap();
        assert_eq!(shown, if written.is_empty() { text } else { written });
        let again = lines(&shown).remove(0);
        assert_eq!(format!("{again:?}"), format!("{line:?}"));
    }
}
