//! `cargo x verdicts`: changed LUKS headers before Blockyard, cryptsetup and QEMU.
//!
//! A seed changes values of a good header, with a correct checksum for the most part. Nobody may
//! open what cryptsetup refuses, and what the others open, ours opens or names the unsupported
//! thing. Of a LUKS1 volume that both open, QEMU and ours read the same bytes.

use crate::cases::Cases;
use crate::interop::headers::Luks2;
use crate::lab::Lab;
use crate::random::Random;
use crate::tools;
use crate::totals::Totals;
use crate::volume::{luks_format, sparse};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Time limit of a program. A costly key derivation is no verdict.
const LIMIT_S: &str = "10";
/// Limit of the address space.
const MEMORY_BYTES: u64 = 3 << 30;
const IMAGE_BYTES: u64 = 3 << 20;
/// Length of a LUKS1 header.
const LUKS1_BYTES: u64 = 592;
/// Files of the lab.
const IMAGE: &str = "changed.img";
const PLAINTEXT: &str = "changed.raw";

/// Base volumes: name and options of `luksFormat`.
const BASES: &[(&str, &str)] = &[
    ("luks1", "--type luks1"),
    ("luks1-cbc", "--type luks1 -c aes-cbc-essiv:sha256 -s 256 --hash sha512"),
    ("luks2", "--type luks2 --luks2-metadata-size 16k --luks2-keyslots-size 512k"),
    (
        "luks2-512",
        "--type luks2 --luks2-metadata-size 16k --luks2-keyslots-size 512k --sector-size 512 \
         --label base",
    ),
];

/// Words of our errors about what a test of a passphrase does not look at (segments, data,
/// ciphers), or what is refused by design: limits, null ciphers, requirements, a key area that is
/// shorter than its key, and stripes other than the 4000 of the format's specification.
const EXPLAINED: &[&str] = &[
    "af.stripes",
    "the split of a key",
    "support",
    "segment",
    "data device",
    "cipher",
    "sector",
    "limit",
    "at most",
    "null",
    "iterations",
    "memory",
    "require",
    // Without the digest, cryptsetup takes any passphrase for the right one.
    "digest: it is missing",
];

/// Number and selection of the headers.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of headers.
    #[arg(long, default_value_t = 200)]
    count: u64,
    /// As many as fit into this time.
    #[arg(long, conflicts_with = "count")]
    seconds: Option<u64>,
    /// Seed of the first header; the next one has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    tools::need("qemu-img")?;
    let judges = Judges::new()?;
    let mut cases = Cases::new(None);
    let start = Instant::now();
    let limit = args.seconds.map(Duration::from_secs);
    let count = if limit.is_some() { u64::MAX } else { args.count };
    let mut sums: BTreeMap<Agreement, u64> = BTreeMap::new();
    totals.raise("first_seed", args.seed);
    for seed in args.seed..args.seed.saturating_add(count) {
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            break;
        }
        totals.add("changed_headers", 1);
        totals.raise("last_seed", seed);
        let changed = judges.change(seed)?;
        match judges.compare(&changed) {
            Ok(agreement) => *sums.entry(agreement).or_default() += 1,
            Err(why) => {
                let again = format!("again: cargo x verdicts --count 1 --seed {seed}");
                let why = why.context(changed.what).context(again);
                cases.verdict(&format!("header {seed}"), Err(why));
            }
        }
    }
    let words = sums.iter().map(|(agreement, count)| format!("{count} {}", agreement.words()));
    cases.verdict("verdicts", Ok(words.collect::<Vec<_>>().join(", ")));
    for (agreement, count) in sums {
        totals.add(agreement.words().replace(' ', "_").as_str(), count);
    }
    cases.finish("verdicts")
}

/// Kinds of equal or explained verdicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Agreement {
    Opened,
    Refused,
    Explained,
    /// A program took too long or too much memory.
    Undecided,
}

impl Agreement {
    fn words(self) -> &'static str {
        match self {
            Self::Opened => "opened by all",
            Self::Refused => "refused by all",
            Self::Explained => "refused by ours as documented",
            Self::Undecided => "too costly",
        }
    }
}

/// A changed header in the lab.
struct Changed {
    is_luks1: bool,
    what: String,
}

/// The programs and the base volumes.
struct Judges {
    lab: Lab,
    bases: Vec<(&'static str, Vec<u8>)>,
}

impl Judges {
    fn new() -> Result<Self> {
        let lab = Lab::new()?;
        let mut bases = Vec::new();
        for (name, options) in BASES {
            let image = lab.path("base.img");
            sparse(&image, IMAGE_BYTES)?;
            luks_format(&image, &lab.pass(), options)?;
            bases.push((*name, fs::read(&image)?));
        }
        Ok(Self { lab, bases })
    }

    /// Writes the image of a seed.
    fn change(&self, seed: u64) -> Result<Changed> {
        let mut random = Random::new(seed);
        let (name, image) = &self.bases[random.below(self.bases.len() as u64) as usize];
        let mut image = image.clone();
        let is_luks1 = name.starts_with("luks1");
        let mut what = format!("{name}:");
        for is_last in [false, true] {
            // Metadata are not found again behind a changed binary header.
            let change = match (is_luks1, random.below(4)) {
                (_, 0 | 1) if !is_last => continue,
                (true, _) => change_luks1(&mut image, &mut random),
                (false, 0) if is_last => change_binary(&mut image, &mut random)?,
                (false, _) => change_json(&mut image, &mut random)?,
            };
            what = format!("{what} {change}");
        }
        self.lab.write("original.img", &image)?;
        Ok(Changed { is_luks1, what })
    }

    /// A program on a fresh copy: cryptsetup repairs what it opens.
    fn judge(&self, mut command: Command) -> Result<Option<Output>> {
        fs::copy(self.lab.path("original.img"), self.lab.path(IMAGE))?;
        self.lab.give(&self.lab.path(IMAGE))?;
        let ended = tools::output(&mut command)?;
        let said = tools::text(&ended.stderr);
        let is_costly = matches!(ended.status.code(), Some(3 | 124 | 137))
            || said.contains("Not enough available memory")
            || said.contains("Cannot allocate");
        Ok((!is_costly).then_some(ended))
    }

    fn limited(&self, program: &Path) -> Command {
        let mut command = self.lab.unprivileged(Path::new("timeout"));
        command.args(["-k", "2", LIMIT_S, "prlimit", &format!("--as={MEMORY_BYTES}")]);
        command.arg(program).env("LC_ALL", "C");
        command
    }

    fn ours(&self) -> Result<Option<Output>> {
        let mut command = self.limited(self.lab.binary());
        command.args(["dump", IMAGE, "-d", "pass"]);
        let Some(ended) = self.judge(command)? else { return Ok(None) };
        let said = tools::text(&ended.stderr);
        ensure!(!said.contains("a defect in blockyard"), "a panic: {}", said.trim());
        if let Some(signal) = ended.status.signal() {
            bail!("ended by signal {signal}: {}", said.trim());
        }
        Ok(Some(ended))
    }

    fn theirs(&self) -> Result<Option<Output>> {
        let mut command = self.limited(Path::new("/usr/sbin/cryptsetup"));
        command.args(["open", "--test-passphrase", "--disable-locks", "-d", "pass", IMAGE]);
        self.judge(command)
    }

    fn qemu(&self) -> Result<Option<Output>> {
        let mut command = self.limited(Path::new("qemu-img"));
        command.args(["convert", "--object", "secret,id=s,file=pass", "--image-opts"]);
        command.arg(format!("driver=luks,key-secret=s,file.filename={IMAGE}"));
        self.judge({
            command.args(["-O", "raw", PLAINTEXT]);
            command
        })
    }

    fn compare(&self, changed: &Changed) -> Result<Agreement> {
        let (Some(ours), Some(theirs)) = (self.ours()?, self.theirs()?) else {
            return Ok(Agreement::Undecided);
        };
        let refusal = tools::text(&ours.stderr).trim().to_owned();
        let opens = ours.status.success();
        let is_explained = EXPLAINED.iter().any(|word| refusal.contains(word));
        let others = tools::text(&theirs.stderr);
        match (opens, theirs.status.success()) {
            (true, false) => bail!("ours opens it, cryptsetup refuses: {}", others.trim()),
            (false, true) if !is_explained => bail!("cryptsetup opens it, ours refuses: {refusal}"),
            (false, true) => return Ok(Agreement::Explained),
            (false, false) if !changed.is_luks1 => return Ok(Agreement::Refused),
            (true, true) if !changed.is_luks1 => return Ok(Agreement::Opened),
            _ => {}
        }
        let Some(qemu) = self.qemu()? else { return Ok(Agreement::Undecided) };
        match (opens, qemu.status.success()) {
            (false, true) if !is_explained => bail!("QEMU opens it, ours refuses: {refusal}"),
            (true, true) => {
                let bytes = fs::read(self.lab.path(PLAINTEXT)).context("QEMU's plaintext")?;
                ensure!(bytes == ours.stdout, "QEMU and ours read other bytes");
                Ok(Agreement::Opened)
            }
            (true, false) => Ok(Agreement::Opened),
            (false, _) => Ok(Agreement::Refused),
        }
    }
}

/// Puts a value into a field of 4 bytes, or into one byte.
fn change_luks1(image: &mut [u8], random: &mut Random) -> String {
    if random.below(2) == 0 {
        let at = random.below(LUKS1_BYTES) as usize;
        image[at] = random.next() as u8;
        return format!("byte {at} = {}", image[at]);
    }
    // Payload offset, key bytes, iterations, and the same fields of all keyslots.
    let fields = [104, 108, 164, 208, 212, 248, 252, 256, 260, 296, 300, 304];
    let at = fields[random.below(fields.len() as u64) as usize];
    let old = u32::from_be_bytes([image[at], image[at + 1], image[at + 2], image[at + 3]]);
    let values =
        [0, 1, 8, 16, 32, 64, 4000, 2048, u32::MAX, old ^ 1, old + 1, old * 2, 0x00ac_71f3];
    let value = values[random.below(values.len() as u64) as usize];
    image[at..at + 4].copy_from_slice(&value.to_be_bytes());
    format!("word {at} = {value}")
}

/// Changes a byte of the binary header of one copy or both, with or without a new checksum.
fn change_binary(image: &mut Vec<u8>, random: &mut Random) -> Result<String> {
    let at = random.below(512) as usize;
    let value = random.next() as u8;
    let copies = [&[0][..], &[1], &[0, 1]][random.below(3) as usize];
    let is_sealed = random.below(3) > 0;
    let mut luks = Luks2::parse(std::mem::take(image))?;
    for copy in copies {
        luks.set_byte(*copy, at, value, is_sealed);
    }
    *image = luks.image;
    Ok(format!("byte {at} of copies {copies:?} = {value}, checksum {is_sealed}"))
}

/// Changes a value of the metadata in both copies.
fn change_json(image: &mut Vec<u8>, random: &mut Random) -> Result<String> {
    let mut luks = Luks2::parse(std::mem::take(image))?;
    let mut json = luks.json()?;
    let mut paths = Vec::new();
    collect(&json, String::new(), &mut paths);
    let path = paths[random.below(paths.len() as u64) as usize].clone();
    let what = change_value(&mut json, &path, random)?;
    luks.set_json(&json);
    *image = luks.image;
    Ok(format!("{path} {what}"))
}

/// Pointers to all values below the top.
fn collect(json: &Value, path: String, paths: &mut Vec<String>) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                collect(value, format!("{path}/{name}"), paths);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                collect(value, format!("{path}/{index}"), paths);
            }
        }
        _ => {}
    }
    if !path.is_empty() {
        paths.push(path);
    }
}

fn change_value(json: &mut Value, path: &str, random: &mut Random) -> Result<String> {
    let (parent, name) = path.rsplit_once('/').context("a path")?;
    let parent = json.pointer_mut(parent).context("the parent")?;
    let value = match parent {
        Value::Object(fields) if random.below(4) == 0 => {
            fields.remove(name);
            return Ok("removed".to_owned());
        }
        Value::Object(fields) if random.below(4) == 0 => {
            let copy = fields[name].clone();
            let other = ["0", "1", "7", "31", "32", "01", "x"][random.below(7) as usize];
            fields.insert(other.to_owned(), copy);
            return Ok(format!("also as {other}"));
        }
        Value::Object(fields) => &mut fields[name],
        Value::Array(values) => &mut values[name.parse::<usize>()?],
        _ => bail!("{path} has no parent"),
    };
    *value = other_value(value, random);
    Ok(format!("= {value}"))
}

fn other_value(old: &Value, random: &mut Random) -> Value {
    if let Some(number) = old.as_u64() {
        let near = [number + 1, number.saturating_sub(1), number * 2, number / 2, 0, 1, 2, 4096];
        return json!(near[random.below(8) as usize]);
    }
    if let Some(number) = old.as_str().and_then(|text| text.parse::<u64>().ok()) {
        let near = [number + 1, number + 512, number + 4096, number.saturating_sub(4096), 0, 1];
        let number = near[random.below(6) as usize];
        return json!(
            [number.to_string(), format!("0{number}")][usize::from(random.below(8) == 0)]
        );
    }
    let words = ["", "0", "1", "x", "sha1", "sha256", "aes-xts-plain64", "aes-cbc-essiv:sha256"];
    match random.below(4) {
        0 => json!(words[random.below(words.len() as u64) as usize]),
        1 => [json!(null), json!(true), json!([]), json!({}), json!(-1)][random.below(5) as usize]
            .clone(),
        2 => old.as_str().map_or(json!("crypt"), |text| json!(text.to_uppercase())),
        _ => old.as_str().map_or(json!(["0"]), |text| json!(format!("{text}A"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_changes_one_value_and_always_the_same() {
        let good = json!({"keyslots": {"0": {"key_size": 64}}, "config": {"json_size": "12288"}});
        let changed = |seed| {
            let mut json = good.clone();
            let mut paths = Vec::new();
            collect(&json, String::new(), &mut paths);
            assert_eq!(paths.len(), 5);
            let mut random = Random::new(seed);
            let path = &paths[random.below(5) as usize];
            change_value(&mut json, path, &mut random).unwrap();
            json
        };
        let all: Vec<Value> = (0..50).map(changed).collect();
        assert!(all.iter().filter(|json| **json != good).count() > 40);
        assert_eq!(all[7], changed(7));
    }
}
