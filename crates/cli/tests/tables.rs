//! `blockyard table`: the output is the kernel's for the same volume, and serves the same bytes.
//! The volumes are cryptsetup's and QEMU's (`testdata/volumes`).

mod lab;

use std::path::{Path, PathBuf};
use std::process::Command;

use lab::{Lab, noise, one_error, text};
use serde_json::Value;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/volumes")
}

/// Unpacks a file of the corpus into the lab.
fn unpack(lab: &Lab, packed: &str, name: &str) {
    let output = Command::new("xz").arg("-dc").arg(corpus().join(packed)).output().unwrap();
    assert!(output.status.success(), "xz -dc {packed}");
    lab.write(name, output.stdout);
}

/// A volume of the corpus as `vol`, and the words and standard input to open it.
fn opened(lab: &Lab, entry: &Value) -> (Vec<String>, Vec<u8>) {
    unpack(lab, entry["image"].as_str().unwrap(), "vol");
    let mut words = vec!["vol".to_owned()];
    let key = corpus().join(entry["key_file"].as_str().unwrap());
    if entry["type"] != "plain" {
        words.extend(["--key-file".into(), key.display().to_string()]);
        if let Some(header) = entry["header"].as_str() {
            unpack(lab, header, "header");
            words.extend(["--header".into(), "header".into()]);
        }
        return (words, Vec::new());
    }
    words.extend(["--type".into(), "plain".into()]);
    let mut stdin = Vec::new();
    let options = entry["format_options"].as_str().unwrap();
    for word in options.split_whitespace() {
        match word.strip_prefix("stdin=") {
            Some("/dev/null") => {}
            Some(file) => stdin = std::fs::read(corpus().join(file)).unwrap(),
            None if word.starts_with("keys/") => {
                words.push(corpus().join(word).display().to_string());
            }
            None => words.push(word.into()),
        }
    }
    (words, stdin)
}

fn run(lab: &Lab, command: &[&str], (words, stdin): &(Vec<String>, Vec<u8>)) -> Vec<u8> {
    let words: Vec<&str> =
        command.iter().copied().chain(words.iter().map(String::as_str)).collect();
    let output = lab.fed(&words, stdin);
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    output.stdout
}

#[test]
fn table_of_foreign_volumes_is_the_kernels_and_serves_the_same_bytes() {
    let manifest = std::fs::read(corpus().join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let mut compared = 0;
    for entry in manifest.as_array().unwrap() {
        let lab = Lab::new();
        let opened = opened(&lab, entry);
        let plaintext = run(&lab, &["dump"], &opened);
        let shown = run(&lab, &["table", "--show-keys"], &opened);
        lab.write("table", &shown);
        assert!(lab.ok(&["dump", "--table", "table"]).stdout == plaintext, "{}", entry["name"]);
        let device = std::fs::canonicalize(lab.path("vol")).unwrap().display().to_string();
        let words: Vec<String> = text(&shown).split(' ').map(str::to_owned).collect();
        if let Some(kernel) = entry["dm_table"].as_str() {
            let mut wanted: Vec<String> = kernel.split(' ').map(str::to_owned).collect();
            if let Some(key) = entry["volume_key_hex"].as_str() {
                // LUKS2 has it in the kernel's keyring.
                wanted[4] = key.into();
            }
            wanted[6] = device;
            assert_eq!(text(&shown), wanted.join(" ") + "\n", "{}", entry["name"]);
            compared += 1;
        }
        let key = &words[4];
        let hidden = text(&run(&lab, &["table"], &opened));
        assert_eq!(hidden, text(&shown).replace(key, &"0".repeat(key.len())), "{}", entry["name"]);
    }
    assert_eq!(compared, 6);
}

#[test]
fn table_file_is_printed_as_dmsetup_would() {
    let lab = Lab::new();
    lab.write("disk", vec![0; 64 << 10]);
    let key: String = noise(32, 1).iter().map(|byte| format!("{byte:02x}")).collect();
    let table = format!(
        "yard: 0 8 crypt capi:xts(aes)-plain64 {key} 0 disk 8 2 sector_size:4096 allow_discards\n\
         8 8 zero # nothing\n"
    );
    lab.write("table", &table);
    let shown = text(&lab.ok(&["table", "--table", "table", "--show-keys"]).stdout);
    assert_eq!(
        shown,
        format!(
            "yard: 0 8 crypt capi:xts(aes)-plain64 {key} 0 disk 8 2 allow_discards \
             sector_size:4096\n\
             yard: 8 8 zero\n"
        )
    );
    let hidden = text(&lab.ok(&["table", "--table", "table"]).stdout);
    assert_eq!(hidden, shown.replace(&key, &"0".repeat(64)));
}

#[test]
fn authenticated_encryption_is_refused_with_its_reason() {
    let lab = Lab::new();
    lab.write("disk", vec![0; 64 << 10]);
    let key = "0".repeat(128);
    lab.write(
        "table",
        format!(
            "0 64 crypt capi:authenc(hmac(sha256),xts(aes))-random {key} 0 disk 0 1 \
             integrity:48:aead\n"
        ),
    );
    for words in [&["table", "--table", "table"][..], &["dump", "--table", "table"]] {
        let said = one_error(&lab.run(words), 1);
        assert!(said.contains("line 1") && said.contains("dm-integrity"), "{said}");
    }
}

#[test]
fn volume_whose_name_no_table_can_hold_is_refused() {
    let lab = Lab::new();
    lab.volume("my disk");
    let said = lab.refused(&["table", "my disk", "-d", "pass"], 4);
    assert!(said.contains("' '") && said.contains("symbolic link"), "{said}");
}
