//! `cargo x keys`: the life of a key, on every LUKS volume of the corpus and on formats of our own.
//!
//! After each command of ours, each cryptsetup opens the volume with the passphrases that it has,
//! and with no removed one. Each cryptsetup does the same on a copy of the volume. Its `luksDump`
//! must print the same of both.

mod cryptsetup;
mod steps;

use crate::cases::Cases;
use crate::corpus::{Corpus, Entry};
use crate::interop::content;
use crate::lab::Lab;
use crate::tools;
use crate::volume::{noise, sparse};
use anyhow::{Context, Result, ensure};
use cryptsetup::Cryptsetup;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use steps::{CHEAP, STEPS, Step};

/// Selection of the volumes.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only volumes whose name contains this.
    only: Option<String>,
}

/// Options of `format` for volumes of our own.
const FORMATS: [(&str, &str); 12] = [
    ("ours-default", ""),
    ("ours-512", "--sector-size 512"),
    ("ours-xts-256", "--key-size 256"),
    ("ours-serpent", "--cipher serpent-xts-plain64"),
    ("ours-twofish", "--cipher twofish-xts-plain64 --key-size 256"),
    ("ours-camellia", "--cipher camellia-xts-plain64 --sector-size 1024"),
    ("ours-cbc-essiv", "--cipher aes-cbc-essiv:sha256 --key-size 256 --sector-size 512"),
    ("ours-adiantum", "--cipher xchacha12,aes-adiantum-plain64 --key-size 256"),
    ("ours-sha512", "--hash sha512 --label life --subsystem test"),
    ("ours-64k", "--luks2-metadata-size 64K --luks2-keyslots-size 4M --offset 32768"),
    ("ours-detached", "--header ours.header"),
    // Conversion makes a LUKS1 volume of it.
    ("ours-luks1", "--sector-size 512"),
];
/// Keyslots of volumes of the corpus that are removed first: room for a new one and a changed
/// one, and unbound ones, which cryptsetup does not erase.
const REMOVED: [(&str, [u32; 2]); 2] = [("l1-8slots", [6, 7]), ("l2-unbound", [5, 6])];
/// Length of such a volume's data.
const DATA_LEN_BYTES: u64 = 1 << 20;
/// The file whose header our commands change.
const HEADER: &str = "header";
/// A byte in the JSON of the first copy of a LUKS2 header.
const IN_FIRST_COPY: u64 = 5000;

pub(crate) fn run(args: &Args) -> Result<()> {
    let lab = Lab::new()?;
    lab.write("second", "the second passphrase")?;
    lab.write("third", "the third passphrase")?;
    lab.write("token.json", r#"{"type":"life","keyslots":["0"]}"#)?;
    let life = Life { lab: &lab, cryptsetups: Cryptsetup::all()? };
    for cryptsetup in &life.cryptsetups {
        println!("{}", cryptsetup.name());
    }
    let mut cases = Cases::new(args.only.as_deref());
    for (name, options) in FORMATS {
        cases.run(name, || life.of_own(name, options));
    }
    let (corpus, entries) = Corpus::open(&lab)?;
    for entry in entries.iter().map(Entry) {
        if entry.is(&["luks1", "luks2"]) {
            cases.run(entry.word("name"), || life.of_corpus(&corpus, &entry));
        }
    }
    cases.finish("keys")
}

/// A cryptsetup, and the file that it changes.
type Theirs<'a> = (&'a Cryptsetup, String);

/// The programs that observe the volumes.
struct Life<'a> {
    lab: &'a Lab,
    cryptsetups: Vec<Cryptsetup>,
}

/// A volume that the key file `old` opens.
struct Subject {
    /// Header and data.
    image: PathBuf,
    /// The file with the header.
    header: PathBuf,
    plaintext: Vec<u8>,
}

impl Life<'_> {
    fn of_own(&self, name: &str, options: &str) -> Result<String> {
        let image = self.lab.path("ours.img");
        fs::copy(self.lab.pass(), self.lab.path("old"))?;
        let is_detached = options.contains("--header");
        let header_len = if is_detached { 0 } else { 16 << 20 };
        sparse(&image, header_len + DATA_LEN_BYTES)?;
        self.lab.give(&image)?;
        self.ours(&format!("format ours.img -q -d old {CHEAP} {options}"))?;
        if name == "ours-luks1" {
            self.ours("header convert ours.img --type luks1 -q")?;
        }
        let header = if is_detached { self.lab.path("ours.header") } else { image.clone() };
        let plaintext = noise(9, usize::try_from(DATA_LEN_BYTES)?);
        self.lab.write("plaintext", &plaintext)?;
        let place = if is_detached { " --header ours.header" } else { "" };
        self.ours(&format!("load ours.img{place} -d old -i plaintext"))?;
        self.lead(&Subject { image, header, plaintext })
    }

    fn of_corpus(&self, corpus: &Corpus, entry: &Entry) -> Result<String> {
        let (image, header) = corpus.files(entry)?;
        fs::copy(corpus.key(entry.word("key_file")), self.lab.path("old"))?;
        let header = header.unwrap_or_else(|| image.clone());
        let plaintext = corpus.plaintext(entry)?;
        for (name, keyslots) in REMOVED {
            for number in keyslots.iter().filter(|_| name == entry.word("name")) {
                self.ours(&format!("key kill {} {number} -q", header.display()))?;
            }
        }
        self.lead(&Subject { image, header, plaintext })
    }

    /// All steps, and the data at their end.
    fn lead(&self, subject: &Subject) -> Result<String> {
        let version = version(&subject.header)?;
        self.copy(&subject.header, HEADER)?;
        let image = subject.image.display();
        let is_detached = subject.header != subject.image;
        let place = if is_detached { format!("{image} --header {HEADER}") } else { HEADER.into() };
        let mut theirs = Vec::new();
        for (number, cryptsetup) in self.cryptsetups.iter().enumerate() {
            if cryptsetup.can_open(self.lab, "old", HEADER)? {
                theirs.push((cryptsetup, format!("theirs-{number}")));
            }
        }
        for (_, copy) in &theirs {
            self.copy(&subject.header, copy)?;
        }
        let steps = STEPS.iter().filter(|step| step.version.is_none_or(|only| only == version));
        let mut count = 0;
        for step in steps {
            self.step(step, &place, &theirs).with_context(|| step.ours.to_owned())?;
            count += 1;
        }
        if version == 2 {
            self.repaired(&theirs).context("repair")?;
        }
        let converted = self.converted(&theirs, version).context("header convert")?;
        self.ours(&format!("dump {place} -d third --force -o out"))?;
        content::same(&fs::read(self.lab.path("out"))?, &subject.plaintext)
            .context("the data at the end")?;
        let unable = self.cryptsetups.len() - theirs.len();
        let unable =
            if unable == 0 { "" } else { "; cryptsetup lacks the cipher without dm-crypt" };
        Ok(format!("{count} commands{converted}{unable}"))
    }

    fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.lab.path(to);
        let _ = fs::remove_file(&to);
        fs::copy(from, &to)?;
        self.lab.give(&to)
    }

    /// Runs a command of ours in the lab.
    fn ours(&self, words: &str) -> Result<()> {
        let words: Vec<&str> = words.split_whitespace().collect();
        tools::run(&mut self.lab.blockyard(&words)).map(drop)
    }

    fn step(&self, step: &Step, place: &str, theirs: &[Theirs]) -> Result<()> {
        let file = HEADER;
        let words = step.ours.replace("VOLUME", file).replace("PLACE", place);
        self.ours(&words.replace("CHEAP", CHEAP))?;
        for (cryptsetup, copy) in theirs {
            let theirs = step.theirs.replace("VOLUME", copy).replace("CHEAP", CHEAP);
            if !theirs.is_empty() {
                let _ = fs::remove_file(self.lab.path("their-backup"));
                cryptsetup.run(self.lab, &theirs)?;
            }
            for key in step.opens {
                ensure!(cryptsetup.opens(self.lab, key, file)?, "{cryptsetup}: {key} is lost");
            }
            for key in step.closed {
                ensure!(!cryptsetup.opens(self.lab, key, file)?, "{cryptsetup}: {key} still opens");
            }
            let ours = cryptsetup.dump(self.lab, file, step.differs)?;
            let theirs = cryptsetup.dump(self.lab, copy, step.differs)?;
            ensure!(ours == theirs, "{cryptsetup} prints\n{ours}\nand of its own copy\n{theirs}");
            if step.ours.starts_with("header backup") {
                // Its own header has other salts: the backups of one header are compared.
                let _ = fs::remove_file(self.lab.path("their-backup"));
                cryptsetup.run(self.lab, &step.theirs.replace("VOLUME", file))?;
                let [ours, theirs] =
                    ["backup", "their-backup"].map(|name| fs::read(self.lab.path(name)));
                ensure!(ours? == theirs?, "{cryptsetup}: its backup has other bytes");
            }
        }
        Ok(())
    }

    fn third_opens(&self, theirs: &[Theirs]) -> Result<()> {
        for (cryptsetup, _) in theirs {
            ensure!(cryptsetup.opens(self.lab, "third", HEADER)?, "{cryptsetup}: third is lost");
        }
        Ok(())
    }

    /// Damages the first copy and repairs it.
    fn repaired(&self, theirs: &[Theirs]) -> Result<()> {
        let image = File::options().read(true).write(true).open(self.lab.path(HEADER))?;
        let mut byte = [0];
        image.read_exact_at(&mut byte, IN_FIRST_COPY)?;
        image.write_all_at(&[!byte[0]], IN_FIRST_COPY)?;
        self.ours(&format!("repair {HEADER} -q"))?;
        self.ours(&format!("header check {HEADER}"))?;
        self.third_opens(theirs)
    }

    /// Converts the volume to the other version and back, if that has all its features.
    fn converted(&self, theirs: &[Theirs], version: u16) -> Result<&'static str> {
        let [there, back] = if version == 1 { [2, 1] } else { [1, 2] };
        let before = fs::read(self.lab.path(HEADER))?;
        if self.ours(&format!("header convert {HEADER} --type luks{there} -q")).is_err() {
            ensure!(fs::read(self.lab.path(HEADER))? == before, "it is refused, and has written");
            return Ok("; no other version");
        }
        self.third_opens(theirs)?;
        self.ours(&format!("header convert {HEADER} --type luks{back} -q"))?;
        self.third_opens(theirs)?;
        Ok("; the other version and back")
    }
}

/// Version of the LUKS header.
fn version(header: &Path) -> Result<u16> {
    let mut bytes = [0; 8];
    File::open(header)?.read_exact_at(&mut bytes, 0)?;
    Ok(u16::from_be_bytes([bytes[6], bytes[7]]))
}
