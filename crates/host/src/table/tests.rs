use blockyard_engine::dm::line::Line;

use super::*;

fn parsed(text: &str) -> Result<Vec<MappedDevice>, TableError> {
    parse(&SecretBytes::copy_of(text.as_bytes()), &[])
}

fn line(text: &str) -> Line {
    parsed(text).unwrap().remove(0).lines.remove(0)
}

fn crypt(line: &Line) -> &CryptArguments {
    line.arguments.downcast().expect("a crypt line")
}

fn problem(text: &str) -> String {
    parsed(text).unwrap_err().to_string()
}

#[test]
fn crypt_line_is_parsed() {
    let line = line("0 8 crypt aes-xts-plain64 00ff 8 /img 32 2 allow_discards sector_size:4096");
    let CryptArguments { device, params } = crypt(&line);
    assert_eq!(device, "/img");
    assert_eq!(params.key.as_slice(), [0x00, 0xff]);
    assert_eq!((params.iv_offset_sectors, params.data_offset_sectors), (8, 32));
    assert_eq!((params.sector_size_bytes, params.len_sectors), (4096, Some(8)));
    assert!(params.flags.allow_discards && !params.iv_large_sectors);
}

#[test]
fn wrong_arguments_name_what_is_wrong() {
    let unknown = problem("0 8 stripe /a 0");
    assert!(unknown.ends_with("log-writes, multipath, crypt and protect"), "{unknown}");
    assert!(problem("0 8 crypt aes").contains("crypt takes `<cipher> <key> <iv_offset> <device>"));
    let crypt = "0 8 crypt aes-xts-plain64 00 0 /a 0";
    assert!(problem(&format!("{crypt} 2 allow_discards")).contains("announces 2 options"));
    assert!(problem(&format!("{crypt} 1 fast")).contains("option `fast` is unknown"));
    assert!(problem(&format!("{crypt} 1 sector_size:3000")).contains("3000 is none of"));
    assert!(problem(&format!("{crypt} 1 integrity:28:aead")).contains("dm-integrity"));
    let unaligned = "0 9 crypt aes-xts-plain64 00 0 /a 0 1 sector_size:4096";
    assert!(problem(unaligned).contains("length 9 is not a multiple"));
    let across = "0 1 zero\n1 8 crypt aes-xts-plain64 00 0 /a 0 1 sector_size:4096";
    assert!(problem(across).contains("line 2: start 1 is not a multiple"));
    let not_text = parse(&SecretBytes::copy_of(b"\xff"), &[]).unwrap_err().to_string();
    assert_eq!(not_text, "table: the table is not UTF-8 text");
}

#[test]
fn bad_key_is_refused_without_being_shown() {
    for key in ["abc", "zz11", "0g", ":64:logon:cryptsetup:x"] {
        let problem = problem(&format!("0 8 crypt aes-xts-plain64 {key} 0 /a 0"));
        assert!(problem.contains("key") && !problem.contains(key), "{problem}");
    }
}

#[test]
fn key_in_a_wrong_word_is_not_shown() {
    let digits = "00112233445566778899aabbccddeeff".repeat(2);
    for key in [&*digits, ":32:logon:cryptsetup:secret"] {
        for text in [
            format!("0 8 crypt {key} - 0 /a 0"),
            format!("0 8 crypt aes-xts-plain64 00 {key} /a 0"),
            format!("0 8 crypt aes-xts-plain64 - 0 {key} 0"),
            format!("0 8 crypt aes-xts-plain64 00 0 /a {key}"),
            format!("0 8 crypt aes-xts-plain64 00 0 /a 0 {key}"),
            format!("0 8 crypt aes-xts-plain64 00 0 /a 0 1 {key}"),
            format!("0 8 crypt aes-xts-plain64 00 0 /a 0 1 integrity:{key}"),
            format!("{key} 8 linear /a 0"),
            format!("0 {key} linear /a 0"),
            format!("0 8 {key} /a 0"),
            format!("0 8 linear {key} 0"),
            format!("0 8 linear /a {key}"),
            format!("0 8 striped 1 8 {key} 0"),
            format!("{key}: 0 8 zero\n0 8 zero"),
        ] {
            let problem = problem(&text);
            assert!(!problem.contains(&key[..16]), "{problem}");
        }
    }
    line(&format!("0 8 linear ./{digits} 0"));
}

/// The output can be parsed again; order and omissions are the kernel's.
#[test]
fn crypt_line_is_written_as_dmsetup_prints_it() {
    let crypt_line = "0 64 crypt capi:xts(aes)-plain64 00ff 8 /img 32";
    let all = "8 allow_discards same_cpu_crypt high_priority submit_from_crypt_cpus \
               no_read_workqueue no_write_workqueue sector_size:4096 iv_large_sectors";
    let scrambled = "8 iv_large_sectors sector_size:4096 no_write_workqueue no_read_workqueue \
                     submit_from_crypt_cpus high_priority same_cpu_crypt allow_discards";
    for (text, written) in [
        (format!("x: {crypt_line} 0"), crypt_line.into()),
        (format!("{crypt_line} {scrambled}"), format!("{crypt_line} {all}")),
        (format!("{crypt_line} 1 sector_size:512"), crypt_line.into()),
        ("0 8 crypt cipher_null-ecb - 0 /img 0".into(), String::new()),
    ] {
        let line = line(&text);
        let mut shown = String::new();
        line.write(Keys::Shown, &mut shown).unwrap();
        assert_eq!(shown, if written.is_empty() { text } else { written });
        assert_eq!(crypt(&self::line(&shown)), crypt(&line));
    }
}

#[test]
fn hidden_key_has_its_length_in_zeros() {
    let mapping = parsed("x: 0 8 crypt aes-xts-plain64 0123abcd 0 /a 0").unwrap().remove(0);
    assert_eq!(mapping.without_keys(), "x: 0 8 crypt aes-xts-plain64 00000000 0 /a 0\n");
}
