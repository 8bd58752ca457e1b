use super::*;
use alloc::string::ToString;
use alloc::vec;

/// Lines of a table of one device.
fn lines(text: &str) -> Vec<Line> {
    let mut mappings = parse(text).unwrap();
    assert_eq!(mappings.len(), 1);
    mappings.remove(0).lines
}

fn problem(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn table_of_every_target_is_parsed() {
    let text = "0 8 linear /dev/a 16\n8 8 zero # comment\n\n16 8 error\n\
                24 8 crypt aes-xts-plain64 00ff 8 /img 32 2 allow_discards sector_size:4096\n";
    let lines = lines(text);
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0].target, LineTarget::Linear { device: "/dev/a".into(), start: 16 });
    let LineTarget::Crypt { device, params } = &lines[3].target else { panic!("crypt") };
    assert_eq!(device, "/img");
    assert_eq!(params.key.as_slice(), [0x00, 0xff]);
    assert_eq!((params.iv_offset_sectors, params.data_offset_sectors), (8, 32));
    assert_eq!((params.sector_size_bytes, params.len_sectors), (4096, Some(8)));
    assert!(params.flags.allow_discards && !params.iv_large_sectors);
}

#[test]
fn targets_without_a_cipher_are_parsed() {
    let text = "0 8 ram\n8 8 null\n16 8 loop /f 4\n24 32 striped 2 8 /a 0 /b 100\n\
                56 8 delay /r 1 2 /w 3 4\n64 8 flakey /a 0 9 1 2 error_reads drop_writes\n\
                72 8 log-writes /a /log\n80 8 multipath 0 0 1 1 round-robin 0 2 1 /a 1 /b 1";
    let targets: Vec<_> = lines(text).into_iter().map(|line| line.target).collect();
    let leg = |dev: &str, start| Leg { dev: String::from(dev), start: Sector(start) };
    assert_eq!(targets[0], LineTarget::Ram);
    assert!(matches!(&targets[1], LineTarget::Null(options) if options.timer.is_none()));
    assert_eq!(targets[2], LineTarget::Loop(leg("/f", 4)));
    let legs = vec![leg("/a", 0), leg("/b", 100)];
    assert_eq!(targets[3], LineTarget::Striped(StripedSpec { chunk: Sector(8), legs }));
    let LineTarget::Delay(delay) = &targets[4] else { panic!("delay") };
    assert_eq!((&delay.read.leg, &delay.write.leg), (&leg("/r", 1), &leg("/w", 3)));
    assert_eq!(delay.write, delay.flush, "flushes go with the writes");
    let LineTarget::Flakey(flakey) = &targets[5] else { panic!("flakey") };
    assert_eq!((flakey.up_s, flakey.down_s), (9, 1));
    let (device, log) = ("/a".into(), "/log".into());
    assert_eq!(targets[6], LineTarget::LogWrites { device, log });
    assert!(matches!(&targets[7], LineTarget::Multipath(spec) if spec.paths().count() == 2));
}

#[test]
fn name_that_dmsetup_prints_first_belongs_to_the_device() {
    let mappings = parse("home: 0 8 zero\nhome: 8 8 error").unwrap();
    assert_eq!((mappings.len(), &*mappings[0].name, mappings[0].len()), (1, "home", 16));
    assert_eq!(mappings[0].lines, lines("0 8 zero\n8 8 error"));
}

#[test]
fn devices_on_devices_are_in_the_order_of_the_table() {
    let text = "a: 0 8 ram\na: 8 8 zero\nb: 0 16 striped 1 8 /dev/mapper/a 0\n\
                0 16 delay /dev/mapper/b 0 1 /dev/mapper/a 0 1";
    assert!(problem(text).contains("line 4: it starts at sector 0"), "it is a line of b still");
    let mappings = parse(&text.replace("\n0 16", "\nc: 0 16")).unwrap();
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
    assert!(problem("0 8 striped 0 8").contains("announces 0 devices"));
    assert!(problem("0 8 striped 1 7 /a 0").contains("it must have 8"));
    assert!(problem("0 24 striped 2 8 /a 0 /b 0").contains("not a multiple of 2 chunks"));
    assert!(problem("0 8 striped 1 18446744073709551615 /a 0").contains("not a multiple"));
    assert!(problem("0 8 loop /a 36028797018963964").contains("2^64 bytes"));
    assert!(problem("0 x zero").contains("length in sectors `x` is not a number"));
    assert!(problem("0 0 zero").contains("zero sectors"));
    let crypt = "0 8 crypt aes-xts-plain64 00 0 /a 0";
    assert!(problem(&format!("{crypt} 2 allow_discards")).contains("announces 2 options"));
    assert!(problem(&format!("{crypt} 1 fast")).contains("option `fast` is unknown"));
    assert!(problem(&format!("{crypt} 1 sector_size:3000")).contains("3000 is none of"));
    assert!(problem(&format!("{crypt} 1 integrity:28:aead")).contains("dm-integrity"));
    let unaligned = "0 9 crypt aes-xts-plain64 00 0 /a 0 1 sector_size:4096";
    assert!(problem(unaligned).contains("length 9 is not a multiple"));
    let across = "0 1 zero\n1 8 crypt aes-xts-plain64 00 0 /a 0 1 sector_size:4096";
    assert!(problem(across).contains("line 2: start 1 is not a multiple"));
}

#[test]
fn bad_key_is_refused_without_being_shown() {
    for key in ["abc", "zz11", "0g", ":64:logon:cryptsetup:x"] {
        let problem = problem(&format!("0 8 crypt aes-xts-plain64 {key} 0 /a 0"));
        assert!(problem.contains("key") && !problem.contains(key), "{problem}");
    }
}

/// The output can be parsed again; order and omissions are the kernel's.
#[test]
fn line_is_written_as_dmsetup_prints_it() {
    let crypt = "0 64 crypt capi:xts(aes)-plain64 00ff 8 /img 32";
    let all = "8 allow_discards same_cpu_crypt high_priority submit_from_crypt_cpus \
               no_read_workqueue no_write_workqueue sector_size:4096 iv_large_sectors";
    let scrambled = "8 iv_large_sectors sector_size:4096 no_write_workqueue no_read_workqueue \
                     submit_from_crypt_cpus high_priority same_cpu_crypt allow_discards";
    for (text, written) in [
        (format!("x: {crypt} 0"), crypt.into()),
        (format!("{crypt} {scrambled}"), format!("{crypt} {all}")),
        (format!("{crypt} 1 sector_size:512"), crypt.into()),
        ("0 8 crypt cipher_null-ecb - 0 /img 0".into(), String::new()),
        ("0 8 linear /dev/a 16".into(), String::new()),
        ("0 8 zero".into(), String::new()),
        ("0 8 ram # memory".into(), "0 8 ram".into()),
        ("0 8 null".into(), String::new()),
        (
            "0 8 null 2 irqmode:2 discard:1".into(),
            "0 8 null 3 irqmode:timer \
          completion_nsec:10000 discard:1"
                .into(),
        ),
        (
            "0 8 null 4 blocksize:4096 memory_backed:1 badblocks:1-2 stale_reads:1".into(),
            String::new(),
        ),
        ("0 8 loop /f 4".into(), String::new()),
        ("0 32 striped 2 8 /a 0 /b 100".into(), String::new()),
        ("0 8 delay /r 1 2".into(), String::new()),
        ("0 8 delay /r 1 2 /w 3 4".into(), String::new()),
        ("0 8 delay /r 1 2 /r 1 2 /f 5 6".into(), String::new()),
        ("0 8 flakey /a 0 9 1".into(), String::new()),
        ("0 8 flakey /a 0 9 1 6 corrupt_bio_byte 32 r 1 0 drop_writes".into(), String::new()),
        ("0 8 log-writes /a /log".into(), String::new()),
    ] {
        let line = lines(&text).remove(0);
        let mut shown = String::new();
        line.write(Keys::Shown, &mut shown).unwrap();
        assert_eq!(shown, if written.is_empty() { text } else { written });
        assert_eq!(lines(&shown), [line]);
    }
}

#[test]
fn hidden_key_has_its_length_in_zeros() {
    let mapping = parse("x: 0 8 crypt aes-xts-plain64 0123abcd 0 /a 0").unwrap().remove(0);
    assert_eq!(mapping.without_keys(), "x: 0 8 crypt aes-xts-plain64 00000000 0 /a 0\n");
}
