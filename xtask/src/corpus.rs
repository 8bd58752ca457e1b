//! `cargo x corpus`: volumes made by other programs, each with known plaintext. Each is served and
//! dumped, and both must match.
//!
//! The large corpus lies beside the checkout (or in `BLOCKYARD_CORPUS`); without it the small one
//! of `testdata/volumes` is used. Both have a `manifest.json` of the same form.

use crate::cases::Cases;
use crate::interop::content;
use crate::lab::Lab;
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Volumes with further passphrases: `keys/p1` up to this number.
const MULTISLOT: &[(&str, u32)] = &[("l1-8slots", 7), ("l2-multislot", 3)];

/// A volume, and passphrase and number of a slot that is tried only by number.
const IGNORED_SLOT: (&str, u32, u32) = ("l2-multislot", 4, 9);

/// Volumes that open only by their table: no header, and no equivalent options of plain mode.
const BY_TABLE: &[&str] = &["rawdm"];

/// Selection of the corpus.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only volumes whose name contains this.
    only: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let lab = Lab::new()?;
    let (corpus, manifest) = Corpus::open(&lab)?;
    let mut cases = Cases::new(args.only.as_deref());
    for entry in &manifest {
        let volume = Entry(entry);
        cases.run(volume.word("name"), || corpus.opens(&volume));
    }
    cases.finish("corpus")
}

fn find() -> Result<PathBuf> {
    let beside = tools::root().join("../shared/corpus");
    let given = std::env::var_os("BLOCKYARD_CORPUS").map(PathBuf::from);
    for dir in [given, Some(beside)].into_iter().flatten() {
        if dir.join("manifest.json").is_file() {
            return Ok(dir);
        }
    }
    let small = tools::root().join("testdata/volumes");
    ensure!(small.join("manifest.json").is_file(), "no corpus: {} is missing", small.display());
    println!("the large corpus is not here (BLOCKYARD_CORPUS names it); using testdata/volumes");
    Ok(small)
}

/// One line of the manifest.
pub(crate) struct Entry<'a>(pub(crate) &'a Value);

impl Entry<'_> {
    pub(crate) fn word(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    fn options(&self) -> Vec<&str> {
        self.word("format_options").split_whitespace().collect()
    }

    /// Whether its name or its type is one of these.
    pub(crate) fn is(&self, names: &[&str]) -> bool {
        names.contains(&self.word("name")) || names.contains(&self.word("type"))
    }
}

/// The corpus, unpacked into the lab on demand.
pub(crate) struct Corpus<'a> {
    lab: &'a Lab,
    dir: PathBuf,
}

impl<'a> Corpus<'a> {
    /// The corpus, and the lines of its manifest.
    pub(crate) fn open(lab: &'a Lab) -> Result<(Self, Vec<Value>)> {
        let dir = find()?;
        tools::need("xz")?;
        let text =
            fs::read_to_string(dir.join("manifest.json")).context("the corpus's manifest")?;
        let manifest = serde_json::from_str(&text).context("the corpus's manifest")?;
        let corpus = Corpus { lab, dir };
        corpus.keys()?;
        Ok((corpus, manifest))
    }

    /// Copies the key files, because the server's user cannot read the checkout.
    fn keys(&self) -> Result<()> {
        let keys = self.dir.join("keys");
        for entry in fs::read_dir(&keys).with_context(|| keys.display().to_string())? {
            let entry = entry?;
            let name = format!("key-{}", entry.file_name().to_string_lossy());
            self.lab.write(&name, fs::read(entry.path())?)?;
        }
        Ok(())
    }

    pub(crate) fn key(&self, path: &str) -> PathBuf {
        match path.strip_prefix("keys/") {
            Some(name) => self.lab.path(&format!("key-{name}")),
            None => PathBuf::from(path),
        }
    }

    fn unpack(&self, packed: &str, sha256: &str, as_name: &str) -> Result<PathBuf> {
        let bytes = tools::run(tool("xz").arg("-dc").arg(self.dir.join(packed)))?.stdout;
        let got = sum(&bytes);
        ensure!(got == sha256, "{packed} unpacks to sha256 {got} instead of {sha256}");
        self.lab.write(as_name, bytes)
    }

    /// The image of a volume, and its detached header.
    pub(crate) fn files(&self, volume: &Entry) -> Result<(PathBuf, Option<PathBuf>)> {
        let image = self.unpack(volume.word("image"), volume.word("image_sha256"), "corpus.img")?;
        let header = volume.0["header"]
            .as_str()
            .map(|header| self.unpack(header, volume.word("header_sha256"), "corpus.hdr"));
        Ok((image, header.transpose()?))
    }

    /// The content of a volume.
    pub(crate) fn plaintext(&self, volume: &Entry) -> Result<Vec<u8>> {
        let mut plain = fs::read(self.dir.join("plaintext.bin"))?;
        let len = usize::try_from(volume.0["plaintext_bytes"].as_u64().unwrap_or(0))?;
        ensure!(len <= plain.len(), "plaintext.bin is too short");
        plain.truncate(len);
        Ok(plain)
    }

    /// The arguments that open this volume, and the file for standard input.
    fn words(&self, volume: &Entry) -> Result<(Vec<String>, Option<PathBuf>)> {
        let (image, header) = self.files(volume)?;
        let image = image.display().to_string();
        if volume.is(BY_TABLE) || volume.word("name") == "pl-xts-size" {
            let table = volume.word("dm_table").replace("DEV", &image);
            let table = self.lab.write("corpus.table", table + "\n")?;
            return Ok((vec!["--table".into(), table.display().to_string()], None));
        }
        let mut words = vec![image];
        if volume.word("type") == "plain" {
            words.extend(["--type".into(), "plain".into()]);
            let mut stdin = None;
            let mut options = volume.options().into_iter();
            while let Some(option) = options.next() {
                match option.split_once('=') {
                    Some(("stdin", path)) => stdin = Some(self.key(path)),
                    _ if option == "--key-file" => {
                        let path = self.key(options.next().unwrap_or_default());
                        words.extend([option.into(), path.display().to_string()]);
                    }
                    _ => words.push(option.into()),
                }
            }
            return Ok((words, stdin.filter(|path| path != Path::new("/dev/null"))));
        }
        if let Some(header) = header {
            words.extend(["--header".into(), header.display().to_string()]);
        }
        let key = self.key(volume.word("key_file"));
        words.extend(["--key-file".into(), key.display().to_string()]);
        Ok((words, None))
    }

    fn command(&self, verb: &str, words: &[String], stdin: Option<&Path>) -> Result<Command> {
        let mut command = self.lab.blockyard(&[verb]);
        command.args(words);
        if let Some(stdin) = stdin {
            command.stdin(File::open(stdin)?);
        }
        Ok(command)
    }

    fn opens(&self, volume: &Entry) -> Result<String> {
        let (words, stdin) = self.words(volume)?;
        self.dumps(volume, &words, stdin.as_deref()).context("dump")?;
        let socket = self.lab.path("corpus.sock");
        let mut serve = self.command("serve", &words, stdin.as_deref())?;
        serve.args(["--read-only", "--socket"]).arg(&socket);
        let server = self.lab.start("corpus", serve, crate::lab::Door::Unix(socket))?;
        let served = content::read(server.socket())?;
        server.stop()?;
        self.compare(volume, &served).context("serve")?;
        let slots = self.further_slots(volume, &words)?;
        Ok(if slots > 0 { format!("and {slots} further passphrases") } else { String::new() })
    }

    /// Opens the same volume by the passphrases of its other slots.
    fn further_slots(&self, volume: &Entry, words: &[String]) -> Result<u32> {
        let name = volume.word("name");
        let with_key = |slot: u32| {
            let mut words = words.to_vec();
            let key = self.key(&format!("keys/p{slot}"));
            *words.last_mut().expect("the key file is last") = key.display().to_string();
            words
        };
        let last = MULTISLOT.iter().find(|(known, _)| *known == name).map_or(0, |(_, last)| *last);
        for slot in 1..=last {
            self.dumps(volume, &with_key(slot), None).with_context(|| format!("keys/p{slot}"))?;
        }
        if name == IGNORED_SLOT.0 {
            let mut words = with_key(IGNORED_SLOT.1);
            ensure!(self.dumps(volume, &words, None).is_err(), "an ignored slot opened unasked");
            words.extend(["--key-slot".into(), IGNORED_SLOT.2.to_string()]);
            self.dumps(volume, &words, None).context("the ignored slot by its number")?;
        }
        Ok(last)
    }

    fn dumps(&self, volume: &Entry, words: &[String], stdin: Option<&Path>) -> Result<()> {
        let out = self.lab.path("corpus.out");
        let _ = fs::remove_file(&out);
        tools::run(self.command("dump", words, stdin)?.arg("-o").arg(&out))?;
        self.compare(volume, &fs::read(out)?)
    }

    fn compare(&self, volume: &Entry, got: &[u8]) -> Result<()> {
        if sum(got) == volume.word("plaintext_sha256") {
            return Ok(());
        }
        content::same(got, &self.plaintext(volume)?)
    }
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
