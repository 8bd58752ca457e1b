//! Commands that write headers and data, with one failed system call.

use super::{Calls, Fault, Met, counted};
use crate::lab::Lab;
use crate::tools;
use crate::volume::noise;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The volume that a command changes.
const VOLUME: &str = "volume.img";
const CHEAP: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
const SMALL: &str = "--luks2-metadata-size 16K --luks2-keyslots-size 512K";
/// Seconds after which a command hangs; they take a tenth of one.
const LIMIT_S: &str = "30";

/// State of the volume before a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Missing,
    /// The passphrase `pass` opens it.
    Pass,
    /// `pass` and `new` open it.
    Both,
    /// As `Pass`, and the second copy of the header is damaged.
    Damaged,
}

/// A command, and the keys that open the volume afterwards.
pub(crate) struct Job {
    pub(super) name: &'static str,
    before: Before,
    words: &'static str,
    opens: &'static [&'static str],
    closed: &'static [&'static str],
    /// After a failure, one of these opens the volume; without any, no volume need be there.
    one_of: &'static [&'static str],
    /// The command replaces the data, by that in the file `data`.
    is_load: bool,
}

impl Job {
    /// Its words, with options that make it quick.
    fn all_words(&self) -> Vec<&'static str> {
        let is_new = self.before == Before::Missing;
        let hashes = is_new || ["--new-keyfile", "convert"].iter().any(|w| self.words.contains(w));
        let cheap = if hashes { CHEAP } else { "" };
        let small = if is_new { SMALL } else { "" };
        [self.words, cheap, small].iter().flat_map(|words| words.split_whitespace()).collect()
    }
}

const BASE: Job = Job {
    name: "",
    before: Before::Pass,
    words: "",
    opens: &["pass"],
    closed: &[],
    one_of: &["pass"],
    is_load: false,
};

pub(crate) const JOBS: &[Job] = &[
    Job {
        name: "format",
        before: Before::Missing,
        words: "format volume.img -q --size 2M -d pass",
        one_of: &[],
        ..BASE
    },
    Job {
        name: "key-add",
        words: "key add volume.img -d pass --new-keyfile new",
        opens: &["pass", "new"],
        ..BASE
    },
    Job {
        name: "key-change",
        words: "key change volume.img -d pass --new-keyfile new",
        opens: &["new"],
        closed: &["pass"],
        one_of: &["pass", "new"],
        ..BASE
    },
    Job {
        name: "key-remove",
        before: Before::Both,
        words: "key remove volume.img -d new",
        closed: &["new"],
        ..BASE
    },
    Job { name: "key-convert", words: "key convert volume.img -d pass", ..BASE },
    Job { name: "resize", words: "resize volume.img -q --device-size 1M", ..BASE },
    Job { name: "repair", before: Before::Damaged, words: "repair volume.img -q", ..BASE },
    Job { name: "label", words: "header label volume.img --label soak", ..BASE },
    Job { name: "restore", words: "header restore volume.img -q --input header.backup", ..BASE },
    Job { name: "backup", words: "header backup volume.img --output fresh.backup", ..BASE },
    Job { name: "load", words: "load volume.img -d pass -i data", is_load: true, ..BASE },
];

/// The commands' files.
pub(crate) struct Bench<'a> {
    pub(super) lab: &'a Lab,
    strace: PathBuf,
    pass: Vec<u8>,
    both: Vec<u8>,
    /// Plaintext of the volume, and the one that `load` writes.
    plaintext: Vec<u8>,
    data: Vec<u8>,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(lab: &'a Lab) -> Result<Self> {
        lab.write("new", "another passphrase")?;
        let words = format!("format {VOLUME} -q --size 2M -d pass {CHEAP} {SMALL}");
        ours(lab, &words)?;
        let len_bytes =
            tools::run(&mut lab.blockyard(&["dump", VOLUME, "-d", "pass"]))?.stdout.len();
        let plaintext = noise(11, len_bytes);
        let data = noise(12, len_bytes);
        lab.write("plaintext", &plaintext)?;
        lab.write("data", &data)?;
        ours(lab, &format!("load {VOLUME} -d pass -i plaintext"))?;
        ours(lab, &format!("header backup {VOLUME} --output header.backup"))?;
        let pass = fs::read(lab.path(VOLUME))?;
        ours(lab, &format!("key add {VOLUME} -d pass --new-keyfile new {CHEAP}"))?;
        let both = fs::read(lab.path(VOLUME))?;
        let strace = PathBuf::from("strace");
        Ok(Self { lab, strace, pass, both, plaintext, data })
    }

    /// Puts the state before a command in place.
    fn prepare(&self, before: Before) -> Result<()> {
        for name in [VOLUME, "fresh.backup"] {
            let path = self.lab.path(name);
            if path.exists() {
                fs::remove_file(path)?;
            }
        }
        let bytes = match before {
            Before::Missing => return Ok(()),
            Before::Pass | Before::Damaged => &self.pass,
            Before::Both => &self.both,
        };
        let mut bytes = bytes.clone();
        if before == Before::Damaged {
            bytes[(16 << 10) + 600..][..512].copy_from_slice(&noise(1, 512));
        }
        self.lab.write(VOLUME, bytes)?;
        Ok(())
    }

    /// A fresh volume that `pass` opens.
    pub(super) fn volume(&self) -> Result<PathBuf> {
        self.prepare(Before::Pass)?;
        Ok(self.lab.path(VOLUME))
    }

    /// The job under strace with these options.
    fn traced(&self, job: &Job, log: &Path, options: &[String]) -> Command {
        let mut command = self.lab.unprivileged(Path::new("timeout"));
        command
            .args(["-k", "5", LIMIT_S])
            .arg(&self.strace)
            .args(["-f", "-y", "-qq", "-o"])
            .arg(log);
        command.args(options).arg(self.lab.binary()).args(job.all_words());
        command.env("LC_ALL", "C");
        command
    }

    /// Runs each job once, with the lab's environment and without a fault.
    pub(crate) fn run_all(&self) -> Result<()> {
        for job in JOBS {
            self.prepare(job.before)?;
            let done = tools::run(&mut self.lab.blockyard(&job.all_words()));
            done.and_then(|_| self.is_done(job)).context(job.name)?;
        }
        Ok(())
    }

    pub(super) fn calls(&self, job: &Job) -> Result<Calls> {
        self.prepare(job.before)?;
        let log = self.lab.write("calls.log", "")?;
        tools::run(&mut self.traced(job, &log, &[]))?;
        self.is_done(job)?;
        counted(&log, true)
    }

    /// Runs a job with a fault, and judges it and the volume.
    pub(super) fn check(&self, job: &Job, fault: &Fault) -> Result<Met> {
        self.prepare(job.before)?;
        let log = self.lab.write("fault.log", "")?;
        let ended = tools::output(&mut self.traced(job, &log, &fault.options()))?;
        let is_success = ended_well(&ended)?;
        if is_success {
            self.is_done(job)?;
        } else {
            self.is_whole(job)?;
        }
        let is_met = tools::text(&fs::read(&log)?).contains("(INJECTED)");
        Ok(match (is_met, is_success) {
            (false, _) => Met::Nothing,
            (true, true) => Met::Success,
            (true, false) => Met::Error,
        })
    }

    fn is_done(&self, job: &Job) -> Result<()> {
        for key in job.opens {
            ensure!(self.opens(key)?, "the command succeeded, and {key} does not open the volume");
        }
        for key in job.closed {
            ensure!(!self.opens(key)?, "the command succeeded, and {key} still opens the volume");
        }
        if job.before == Before::Missing {
            return Ok(());
        }
        if job.name == "backup" {
            let backup = fs::read(self.lab.path("fresh.backup"))?;
            ensure!(self.pass.starts_with(&backup), "the backup has other bytes");
        }
        let expected = if job.is_load { &self.data } else { &self.plaintext };
        self.has_data(job.opens[0], expected)
    }

    fn is_whole(&self, job: &Job) -> Result<()> {
        if job.one_of.is_empty() {
            return Ok(());
        }
        let mut opening = None;
        for key in job.one_of {
            if self.opens(key)? {
                opening = Some(*key);
            }
        }
        let Some(key) = opening else { bail!("the command failed, and no key opens the volume") };
        if job.is_load { Ok(()) } else { self.has_data(key, &self.plaintext) }
    }

    /// Whether a key opens the volume; both programs must agree.
    pub(super) fn opens(&self, key: &str) -> Result<bool> {
        let ours = tools::output(&mut self.lab.blockyard(&["table", VOLUME, "-d", key]))?;
        let mut theirs = tools::tool("cryptsetup");
        theirs.args(["open", "--test-passphrase", "-d"]).arg(self.lab.path(key));
        let theirs = tools::output(theirs.arg(self.lab.path(VOLUME)))?;
        let [ours, theirs] = [ours, theirs].map(|ended| ended.status.success());
        ensure!(ours == theirs, "{key} opens the volume for us: {ours}, for cryptsetup: {theirs}");
        Ok(ours)
    }

    fn has_data(&self, key: &str, expected: &[u8]) -> Result<()> {
        let plaintext = tools::run(&mut self.lab.blockyard(&["dump", VOLUME, "-d", key]))?.stdout;
        // `resize` makes it shorter.
        ensure!(expected.starts_with(&plaintext) && !plaintext.is_empty(), "the data is lost");
        Ok(())
    }
}

fn ours(lab: &Lab, words: &str) -> Result<()> {
    let words: Vec<_> = words.split(' ').collect();
    tools::run(&mut lab.blockyard(&words)).map(drop)
}

/// Whether the program succeeded; an error if it ended in any other way than with one error line.
fn ended_well(ended: &Output) -> Result<bool> {
    let said = tools::text(&ended.stderr);
    let said = said.trim();
    ensure!(!said.contains("a defect in blockyard"), "a panic: {said}");
    if let Some(signal) = ended.status.signal() {
        bail!("ended by signal {signal}: {said}");
    }
    let code = ended.status.code().context("no exit code")?;
    match code {
        0 => Ok(true),
        124 | 137 => bail!("hangs: no end within {LIMIT_S} s: {said}"),
        // The loader, before `main`.
        127 => Ok(false),
        1..=5 => {
            let errors = said.lines().filter(|line| line.starts_with("error: ")).count();
            ensure!(errors == 1, "exit code {code} with {errors} error lines: {said:?}");
            Ok(false)
        }
        code => bail!("exit code {code}: {said}"),
    }
}
