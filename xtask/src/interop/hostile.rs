//! Malicious volumes: each must give one clear error, soon, with little memory, and without a
//! panic.

use super::headers::Luks2;
use crate::cases::Cases;
use crate::lab::{Lab, PASSPHRASE};
use crate::tools;
use crate::volume::{Maker, Recipe, Volume, noise};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

/// Limit of the address space: a header must not make the program reserve more.
const MEMORY_BYTES: u64 = 3 << 30;

/// Time limit of a refusal. No case needs a key derivation of more than a thousand rounds.
const TIME: Duration = Duration::from_secs(10);

/// Changes the parsed metadata of a good volume.
type Change = fn(&mut Value);

/// 32 zero bytes in base64.
const SALT: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// Changes to LUKS2 metadata, with alternative words for the error.
const CHANGES: &[(&str, Change, &[&str])] = &[
    ("KDF asks for 1 TiB", |j| argon2id(j, 4, 1 << 30, 1), &["memory", "TiB"]),
    (
        "KDF asks for 2^31 passes",
        |j| argon2id(j, 1 << 31, 65536, 1),
        &["iteration", "time", "pass", "cost"],
    ),
    ("KDF asks for 2^31 iterations", |j| pbkdf2(j, 1 << 31), &["iteration"]),
    ("KDF asks for 2^63 iterations", |j| pbkdf2(j, 1 << 63), &["iteration", "JSON"]),
    ("KDF with no lanes", |j| argon2id(j, 4, 32768, 0), &["cpus", "lane", "parallel", "thread"]),
    (
        "KDF with 2^20 lanes",
        |j| argon2id(j, 4, 32768, 1 << 20),
        &["cpus", "lane", "parallel", "thread", "memory"],
    ),
    ("unknown KDF", |j| j["keyslots"]["0"]["kdf"]["type"] = json!("scrypt"), &["scrypt", "kdf"]),
    ("no keyslot at all", |j| j["keyslots"] = json!({}), &["keyslot"]),
    ("keyslots of the wrong type", |j| j["keyslots"] = json!([1, 2]), &["keyslots", "JSON"]),
    ("keyslot of the wrong type", |j| j["keyslots"]["0"] = json!("x"), &["keyslot", "JSON"]),
    (
        "key size 0",
        |j| j["keyslots"]["0"]["key_size"] = json!(0),
        &["key_size", "key size", "keyslot"],
    ),
    (
        "key size 2^40",
        |j| j["keyslots"]["0"]["key_size"] = json!(1_u64 << 40),
        &["key_size", "key size", "keyslot"],
    ),
    ("negative number", |j| j["keyslots"]["0"]["key_size"] = json!(-64), &["key_size", "JSON"]),
    ("stripes 2^32", |j| j["keyslots"]["0"]["af"]["stripes"] = json!(1_u64 << 32), &["stripes"]),
    ("key area in the header", |j| area(j, "0", "4096", "258048"), &["area", "overlap"]),
    ("key area behind 2^64", |j| area(j, "0", "18446744073709547520", "258048"), &["area"]),
    ("key area over the data", |j| area(j, "0", "33554432", "258048"), &["area", "overlap"]),
    ("key area shorter than its key", |j| area(j, "0", "32768", "4096"), &["area"]),
    (
        "overlapping key areas",
        |j| {
            let slot = j["keyslots"]["0"].clone();
            j["keyslots"]["1"] = slot;
            j["digests"]["0"]["keyslots"] = json!(["0", "1"]);
        },
        &["overlap"],
    ),
    (
        "null cipher in the keyslot",
        |j| {
            j["keyslots"]["0"]["area"]["encryption"] = json!("cipher_null-ecb");
        },
        &["null"],
    ),
    (
        "null cipher in the segment",
        |j| segment(j, "encryption", &json!("cipher_null-ecb")),
        &["null"],
    ),
    ("unknown cipher", |j| segment(j, "encryption", &json!("rot13-xts-plain64")), &["rot13"]),
    ("sector size 513", |j| segment(j, "sector_size", &json!(513)), &["sector"]),
    ("sector size 2^30", |j| segment(j, "sector_size", &json!(1 << 30)), &["sector"]),
    (
        "segment past the end of the image",
        |j| segment(j, "offset", &json!("1099511627776")),
        &["short", "truncated", "end", "offset", "data"],
    ),
    ("segment in the header", |j| segment(j, "offset", &json!("4096")), &["overlap", "reach"]),
    (
        "segment of 2^64 bytes",
        |j| segment(j, "size", &json!("18446744073709551104")),
        &["size", "segment", "end", "short"],
    ),
    ("no segment", |j| j["segments"] = json!({}), &["segment"]),
    (
        "segment under reencryption",
        |j| {
            j["config"]["requirements"] = json!({"mandatory": ["online-reencrypt-v2"]});
        },
        &["reencrypt"],
    ),
    (
        "unknown requirement",
        |j| {
            j["config"]["requirements"] = json!({"mandatory": ["teleport"]});
        },
        &["teleport"],
    ),
    ("no digest", |j| j["digests"] = json!({}), &["digest"]),
    (
        "digest that is not base64",
        |j| j["digests"]["0"]["digest"] = json!("%%%"),
        &["digest", "base64"],
    ),
    (
        "digest asks for 2^31 iterations",
        |j| j["digests"]["0"]["iterations"] = json!(1_u64 << 31),
        &["iteration"],
    ),
    (
        "json_size beyond the area",
        |j| j["config"]["json_size"] = json!("1099511627776"),
        &["json_size"],
    ),
    ("config missing", |j| j["config"] = Value::Null, &["config"]),
];

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    for (name, change, words) in CHANGES {
        cases.run(&format!("refused: LUKS2 {name}"), || changed(lab, *change, words));
    }
    for (name, text, words) in texts() {
        cases.run(&format!("refused: LUKS2 {name}"), || {
            let volume = luks2(lab)?;
            let mut luks = Luks2::read(&volume.image)?;
            luks.set_text(&text);
            luks.write(&volume.image)?;
            refused(lab, &volume, words)
        });
    }
    for (name, at, bytes, words) in LUKS1 {
        cases.run(&format!("refused: LUKS1 {name}"), || patched(lab, *at, bytes, words));
    }
    cases.run("refused: wrong passphrase", || wrong_passphrase(lab));
    cases.run("refused: truncated files", || truncated(lab));
    cases.run("refused: not a volume", || not_a_volume(lab));
    cases.run("refused: invalid tables", || tables(lab));
}

fn argon2id(json: &mut Value, time: u64, memory_kib: u64, cpus: u64) {
    json["keyslots"]["0"]["kdf"] = json!({
        "type": "argon2id", "time": time, "memory": memory_kib, "cpus": cpus, "salt": SALT
    });
}

fn pbkdf2(json: &mut Value, iterations: u64) {
    json["keyslots"]["0"]["kdf"] =
        json!({"type": "pbkdf2", "hash": "sha256", "iterations": iterations, "salt": SALT});
}

fn area(json: &mut Value, slot: &str, offset: &str, size: &str) {
    json["keyslots"][slot]["area"]["offset"] = json!(offset);
    json["keyslots"][slot]["area"]["size"] = json!(size);
}

fn segment(json: &mut Value, field: &str, value: &Value) {
    json["segments"]["0"][field] = value.clone();
}

/// JSON texts that are not changes of a valid one.
fn texts() -> Vec<(&'static str, Vec<u8>, &'static [&'static str])> {
    let deep = |open: &str, count| open.repeat(count).into_bytes();
    let many: String = (0..700).map(|n| format!("\"{n}\":{{}},")).collect();
    vec![
        ("empty JSON", Vec::new(), &["JSON", "json"]),
        ("JSON that ends early", b"{\"keyslots\":{".to_vec(), &["JSON"]),
        ("JSON nested 10,000 arrays deep", deep("[", 10_000), &["JSON"]),
        ("JSON nested 1,700 objects deep", deep("{\"a\":", 1_700), &["JSON"]),
        ("JSON that is no text", noise(3, 12_000), &["JSON"]),
        (
            "JSON with 700 keyslots",
            format!("{{\"keyslots\":{{{many}\"x\":{{}}}}}}").into_bytes(),
            &["JSON", "keyslot"],
        ),
        (
            "JSON with a number of 10,000 digits",
            format!("{{\"keyslots\":{}}}", "9".repeat(10_000)).into_bytes(),
            &["JSON", "keyslot"],
        ),
        ("JSON that is a list", b"[]".to_vec(), &["JSON"]),
    ]
}

/// Offsets of the LUKS1 header: cipher name 8, mode 40, hash 72, payload 104, key bytes 108, the
/// digest's iterations 164, slot 0 at 208: active, iterations, salt, area, stripes.
const LUKS1: &[(&str, usize, &[u8], &[&str])] = &[
    ("KDF of 2^31 iterations", 212, &[0x80, 0, 0, 0], &["iteration"]),
    ("digest of 2^31 iterations", 164, &[0x80, 0, 0, 0], &["iteration"]),
    ("digest of no iterations", 164, &[0, 0, 0, 0], &["iteration"]),
    ("key of 2^32 bytes", 108, &[0xff, 0xff, 0xff, 0xff], &["key"]),
    ("key of no bytes", 108, &[0, 0, 0, 0], &["key"]),
    ("stripes of 2^32", 252, &[0xff, 0xff, 0xff, 0xff], &["stripes", "keyslot"]),
    ("key area past the image", 248, &[0x7f, 0, 0, 0], &["area", "keyslot", "key material"]),
    ("key area in the header", 248, &[0, 0, 0, 0], &["area", "keyslot", "key material"]),
    ("slot neither on nor off", 208, &[1, 2, 3, 4], &["keyslot", "slot"]),
    ("null cipher", 8, b"cipher_null\0", &["null"]),
    ("unknown hash", 72, b"rot13\0", &["rot13"]),
    ("unknown version", 6, &[0, 9], &["version"]),
    ("cipher name without a NUL", 8, &[b'a'; 32], &["cipher"]),
    (
        "payload past the end of the image",
        104,
        &[0x7f, 0, 0, 0],
        &["short", "truncated", "end", "payload", "data"],
    ),
];

fn luks2(lab: &Lab) -> Result<Volume> {
    Recipe { name: "hostile2", maker: Maker::Cryptsetup, options: "--type luks2" }.make(lab)
}

fn changed(lab: &Lab, change: Change, words: &[&str]) -> Result<String> {
    let volume = luks2(lab)?;
    let mut luks = Luks2::read(&volume.image)?;
    let mut json = luks.json()?;
    change(&mut json);
    luks.set_json(&json);
    luks.write(&volume.image)?;
    refused(lab, &volume, words)
}

fn patched(lab: &Lab, at: usize, bytes: &[u8], words: &[&str]) -> Result<String> {
    let volume = Recipe { name: "hostile1", maker: Maker::Cryptsetup, options: "--type luks1" };
    let volume = volume.make(lab)?;
    let mut image = fs::read(&volume.image)?;
    image[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(&volume.image, image)?;
    refused(lab, &volume, words)
}

/// Asserts that every command that opens the volume refuses it, with equal errors.
fn refused(lab: &Lab, volume: &Volume, words: &[&str]) -> Result<String> {
    let pass = lab.pass();
    let mut remark = String::new();
    for verb in ["serve", "dump"] {
        let mut words_of_verb = vec![verb.to_owned(), volume.image.display().to_string()];
        words_of_verb.extend(["--key-file".into(), pass.display().to_string()]);
        if verb == "serve" {
            words_of_verb.extend(["--socket".into(), lab.path("no.sock").display().to_string()]);
        }
        remark = refuses(lab, &words_of_verb, words).with_context(|| verb.to_owned())?;
    }
    Ok(remark)
}

/// Runs the command under a memory limit and expects one error text with one of the words.
fn refuses(lab: &Lab, args: &[String], words: &[&str]) -> Result<String> {
    let mut victim = lab.unprivileged(Path::new("timeout"));
    victim.arg("-k").arg("1").arg("20").args(["prlimit", &format!("--as={MEMORY_BYTES}")]);
    victim.arg(lab.binary()).args(args);
    let start = Instant::now();
    let ended = victim.output().context("prlimit does not start")?;
    one_error(&ended, words)?;
    ensure!(start.elapsed() < TIME, "it took {:?}", start.elapsed());
    Ok(tools::text(&ended.stderr).trim().to_owned())
}

fn one_error(ended: &Output, words: &[&str]) -> Result<()> {
    let said = tools::text(&ended.stderr);
    let said = said.trim();
    if let Some(signal) = ended.status.signal() {
        bail!("died of signal {signal}: {said}");
    }
    match ended.status.code() {
        Some(0) => bail!("it was accepted: {said}"),
        Some(101 | 134) => bail!("it panicked: {said}"),
        Some(124 | 137) => bail!("it had to be stopped after 20 s: {said}"),
        _ => {}
    }
    ensure!(!said.contains("panicked"), "it panicked: {said}");
    ensure!(!said.is_empty(), "the command failed without an error text");
    let errors = said.lines().filter(|line| line.starts_with("blockyard:")).count();
    let errors = errors.max(said.lines().filter(|line| line.starts_with("error")).count());
    ensure!(errors == 1, "{errors} error texts instead of one: {said}");
    ensure!(!said.contains(PASSPHRASE), "the error contains the passphrase");
    let low = said.to_lowercase();
    let named = words.iter().any(|word| low.contains(&word.to_lowercase()));
    ensure!(named, "the error names none of {words:?}: {said}");
    Ok(())
}

fn wrong_passphrase(lab: &Lab) -> Result<String> {
    let volume = luks2(lab)?;
    let wrong = lab.write("wrong", "not the passphrase")?.display().to_string();
    let image = volume.image.display().to_string();
    refuses(lab, &["dump".into(), image, "--key-file".into(), wrong], &["passphrase", "key"])
}

fn truncated(lab: &Lab) -> Result<String> {
    let mut lengths = 0;
    for (options, cuts) in [
        ("--type luks2", [0_u64, 1, 511, 4096, 20_000, 300_000, 16 << 20]),
        ("--type luks1", [0, 6, 207, 592, 5000, 100_000, 2 << 20]),
    ] {
        for cut in cuts {
            let volume = Recipe { name: "cut", maker: Maker::Cryptsetup, options }.make(lab)?;
            fs::File::options().write(true).open(&volume.image)?.set_len(cut)?;
            let words =
                ["short", "truncated", "end", "empty", "not a", "no LUKS", "header", "bytes"];
            refused(lab, &volume, &words)
                .with_context(|| format!("{options} cut to {cut} bytes"))?;
            lengths += 1;
        }
    }
    Ok(format!("{lengths} lengths"))
}

fn not_a_volume(lab: &Lab) -> Result<String> {
    let pass = lab.pass().display().to_string();
    for (name, bytes) in [("zeros", vec![0; 1 << 20]), ("noise", noise(4, 1 << 20))] {
        let image = lab.write(name, bytes)?.display().to_string();
        let args = ["dump".into(), image, "--key-file".into(), pass.clone()];
        refuses(lab, &args, &["LUKS"]).context(name)?;
    }
    let missing = ["dump".into(), "/no/such/volume".into(), "--key-file".into(), pass.clone()];
    refuses(lab, &missing, &["/no/such/volume"])?;
    let dir = ["dump".into(), lab.dir().display().to_string(), "--key-file".into(), pass];
    refuses(lab, &dir, &["directory", "regular file"])
}

fn tables(lab: &Lab) -> Result<String> {
    let image = lab.write("table.img", vec![0; 1 << 20])?.display().to_string();
    let key = "00".repeat(64);
    let mut count = 0;
    for (table, word) in [
        (String::new(), "empty"),
        ("0 8".into(), "line"),
        ("0 8 teleport".into(), "teleport"),
        ("8 8 zero".into(), "start"),
        ("0 8 zero\n16 8 zero".into(), "gap"),
        ("0 0 zero".into(), "length"),
        ("0 18446744073709551615 zero\n18446744073709551615 8 zero".into(), "sector"),
        (format!("0 8 linear {image} 99999999"), "end"),
        (format!("0 8 crypt aes-xts-plain64 {key} 0 /no/such/device 0"), "/no/such/device"),
        (format!("0 8 crypt aes-xts-plain64 zz{key} 0 {image} 0"), "key"),
        (format!("0 8 crypt rot13-xts-plain64 {key} 0 {image} 0"), "rot13"),
        (format!("0 8 crypt aes-xts-plain64 {key} 0 {image} 0 1 teleport"), "teleport"),
        (format!("0 8 crypt aes-xts-plain64 {key} 0 {image} 0 9 allow_discards"), "argument"),
    ] {
        let file = lab.write("bad.table", &table)?.display().to_string();
        let args = ["dump".to_owned(), "--table".into(), file];
        let said = refuses(lab, &args, &[word, "table", "sector"])
            .with_context(|| format!("table {:?}", table.replace(&key, "KEY")))?;
        ensure!(!said.contains(&key), "the error contains the key");
        count += 1;
    }
    Ok(format!("{count} tables"))
}
