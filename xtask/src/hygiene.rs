//! `cargo x hygiene`: searches passphrase and volume key where they must not be.
//!
//! The test chooses the volume's key, so it can search it: in the server's memory, while it serves,
//! after its key was wiped, and just before it ends; in its output, arguments and environment, and
//! in a core file. A key in use may be only in pages that are locked and kept out of core dumps.

mod commands;
mod memory;
mod wiped;

use crate::cases::Cases;
use crate::interop::content;
use crate::lab::{Door, Lab, PASSPHRASE, Server};
use crate::process::until;
use crate::tools::{self, tool};
use crate::volume::{luks_format, noise, sparse};
use anyhow::{Context, Result, bail, ensure};
use memory::{Hit, Needle};
use nix::sys::signal::Signal;
use nix::unistd::Uid;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit for strace to attach, and for the server to reach its last system call.
const PATIENCE: Duration = Duration::from_secs(60);

/// Selection of the checks.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Only cases whose name contains this.
    only: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !Uid::effective().is_root() {
        return as_root(args);
    }
    let lab = Lab::new()?;
    let subject = Subject::make(&lab)?;
    let mut cases = Cases::new(args.only.as_deref());
    cases.run("the alarm works: a passphrase in the heap is found", || canary(&subject));
    cases.run("nothing secret in arguments, environment, log or output", || subject.words());
    cases.run("while serving: the passphrase is nowhere in memory", || subject.passphrase());
    cases.run("while serving: the key is only in locked pages", || subject.key());
    cases.run("suspended and wiped: neither passphrase nor key in memory", || subject.wiped());
    cases.run("suspended and wiped: no round key of any cipher", || wiped::ciphers(&lab));
    cases.run("core dumps are switched off", || subject.no_core());
    cases.run("an abort leaves no core file", || subject.abort());
    cases.run("a core file taken by a debugger holds no secret", || subject.gcore());
    cases.run("at its end the server's memory holds no secret", || subject.at_exit("serve"));
    cases.run("at its end the memory of dump holds no secret", || subject.at_exit("dump"));
    cases.run("a passphrase from a command leaves no trace", || subject.command());
    cases.run("a passphrase from a token leaves no trace", || subject.token());
    commands::run(&mut cases, &subject);
    cases.run("errors of a wrong passphrase do not repeat it", || subject.wrong());
    cases.finish("hygiene")
}

/// Requires root, which alone can read the memory of a non-dumpable process.
fn as_root(args: &Args) -> Result<()> {
    let binary = crate::lab::build()?;
    let mut sudo = Command::new("sudo");
    sudo.arg(format!("BLOCKYARD_BINARY={}", binary.display()));
    sudo.arg(std::env::current_exe()?).arg("hygiene").args(&args.only);
    tools::show(&mut sudo).context("only root can read the server's memory")
}

/// A volume with known key and passphrase.
struct Subject<'a> {
    lab: &'a Lab,
    image: PathBuf,
    key: Vec<u8>,
}

impl Subject<'_> {
    fn make(lab: &Lab) -> Result<Subject<'_>> {
        let key = noise(0x5eed_b10c, 64);
        let key_file = lab.write("volume.key", &key)?;
        let image = lab.path("hygiene.img");
        sparse(&image, 32 << 20)?;
        let options = format!(
            "--type luks2 --pbkdf argon2id --pbkdf-force-iterations 4 --pbkdf-memory 65536 \
             --pbkdf-parallel 2 --key-size 512 --volume-key-file {}",
            key_file.display()
        );
        luks_format(&image, &lab.pass(), &options)?;
        fs::remove_file(key_file)?;
        lab.give(&image)?;
        Ok(Subject { lab, image, key })
    }

    /// Both halves of the passphrase, and each 16 bytes of the key: an expanded key begins with
    /// them.
    fn needles(&self) -> Vec<Needle> {
        let halves = [PASSPHRASE, commands::SECOND, commands::THIRD]
            .map(|pass| pass.as_bytes().split_at(pass.len() / 2));
        let halves = halves.into_iter().flat_map(|(one, other)| [one, other]);
        let mut needles: Vec<_> = halves.map(|half| Needle::new("passphrase", half)).collect();
        needles.extend(self.key.chunks(16).map(|part| Needle::new("key", part)));
        needles.extend(self.written_keys().iter().map(|text| Needle::new("key as text", text)));
        needles
    }

    /// The beginning of the key in printed forms.
    fn written_keys(&self) -> Vec<Vec<u8>> {
        let hex = self.key[..12].iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        vec![hex.clone().into_bytes(), hex.to_uppercase().into_bytes()]
    }

    fn words_for(&self, verb: &str) -> Vec<String> {
        let image = self.image.display().to_string();
        let pass = self.lab.pass();
        vec![verb.into(), image, "--key-file".into(), pass.display().to_string()]
    }

    /// A server after some use: both directions, several connections.
    fn served(&self, name: &str) -> Result<Server> {
        let words = self.words_for("serve");
        let server = self.lab.serve(name, &words[1..])?;
        content::fill(server.socket(), 3)?;
        content::read(server.socket())?;
        Ok(server)
    }

    fn hits(&self, pid: u32, kind: &str) -> Result<Vec<Hit>> {
        let mut hits = memory::scan(pid, &self.needles())?;
        hits.retain(|hit| hit.what.starts_with(kind));
        Ok(hits)
    }

    fn tells(&self, text: &[u8]) -> Option<&'static str> {
        let found = |needle: &Needle| text.windows(needle.bytes.len()).any(|w| w == needle.bytes);
        self.needles().iter().find(|needle| found(needle)).map(|needle| needle.what)
    }

    fn words(&self) -> Result<String> {
        let server = self.served("words")?;
        let proc = PathBuf::from(format!("/proc/{}", server.process().0));
        let mut said = vec![
            ("arguments", fs::read(proc.join("cmdline"))?),
            ("environment", fs::read(proc.join("environ"))?),
        ];
        let log = server.log().into_bytes();
        server.stop()?;
        said.push(("log", log));
        let mut info = self.lab.blockyard(&["info", "--json"]);
        let told = tools::output(info.arg(&self.image))?;
        said.push(("info", [told.stdout, told.stderr].concat()));
        for (place, text) in said {
            if let Some(what) = self.tells(&text) {
                bail!("the {place} holds the {what}");
            }
        }
        Ok(String::new())
    }

    fn passphrase(&self) -> Result<String> {
        let server = self.served("passphrase")?;
        let hits = self.hits(server.process().0, "passphrase")?;
        ensure!(hits.is_empty(), "{} hits: {}", hits.len(), memory::list(&hits));
        server.stop()?;
        Ok(String::new())
    }

    fn key(&self) -> Result<String> {
        let server = self.served("key")?;
        let hits = self.hits(server.process().0, "key")?;
        let (safe, loose): (Vec<_>, Vec<_>) = hits.into_iter().partition(Hit::is_guarded);
        ensure!(loose.is_empty(), "{} hits elsewhere: {}", loose.len(), memory::list(&loose));
        ensure!(!safe.is_empty(), "the key was not found at all: this check sees nothing");
        server.stop()?;
        Ok(format!("{} places, all locked and kept out of core dumps", safe.len()))
    }

    fn wiped(&self) -> Result<String> {
        let control = self.lab.path("wiped.ctl").display().to_string();
        let mut words = self.words_for("serve");
        words.extend(["--control".into(), control.clone()]);
        let server = self.lab.serve("wiped", &words[1..])?;
        content::fill(server.socket(), 3)?;
        content::read(server.socket())?;
        let mut needles = self.needles();
        needles.extend(wiped::round_keys("aes-xts-plain64", &self.key, 512)?);
        wiped::wipe(self.lab, &control)?;
        let hits = memory::scan(server.process().0, &needles)?;
        ensure!(hits.is_empty(), "{} hits: {}", hits.len(), memory::list(&hits));
        server.stop()?;
        Ok(String::new())
    }

    fn no_core(&self) -> Result<String> {
        let server = self.served("nocore")?;
        check_no_core(server.process().0)?;
        server.stop()?;
        Ok(String::new())
    }

    fn abort(&self) -> Result<String> {
        let words = self.words_for("serve");
        let socket = self.lab.path("abort.sock");
        let mut serve = self.lab.unprivileged(Path::new("prlimit"));
        serve.arg("--core=unlimited:unlimited").arg(self.lab.binary()).args(words);
        serve.arg("--socket").arg(&socket);
        let mut server = self.lab.start("abort", serve, Door::Unix(socket))?;
        content::read(server.socket())?;
        server.process().signal(Signal::SIGABRT)?;
        server.wait()?;
        let left = self.cores()?;
        ensure!(left.is_empty(), "it left {}", left[0].display());
        // Check that this machine would have written one.
        let mut other = self.lab.unprivileged(Path::new("prlimit"));
        other.args(["--core=unlimited:unlimited", "sh", "-c", "kill -ABRT $$"]);
        tools::output(&mut other)?;
        let written = self.cores()?;
        for core in &written {
            fs::remove_file(core)?;
        }
        let told = ["this machine sends core files elsewhere", "another program leaves one here"];
        Ok(told[usize::from(!written.is_empty())].to_owned())
    }

    /// Core files in the server's working directory.
    fn cores(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.lab.dir())? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("core") {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    fn gcore(&self) -> Result<String> {
        let server = self.served("gcore")?;
        let base = self.lab.path("taken");
        let pid = server.process().0.to_string();
        tools::run(tool("gcore").arg("-o").arg(&base).arg(&pid))?;
        server.stop()?;
        let file = self.lab.path(&format!("taken.{pid}"));
        let core = fs::read(&file)?;
        fs::remove_file(file)?;
        ensure!(core.len() > 100_000, "the core file is empty");
        let found: Vec<_> = memory::search(&core, &self.needles());
        ensure!(found.is_empty(), "{} hits, first the {}", found.len(), found[0].0);
        Ok(format!("{} MiB searched", core.len() >> 20))
    }

    /// A program that prints the passphrase. It ends by `exit` (60 on x86-64): strace delays every
    /// `exit_group`, also those of other programs than Blockyard.
    fn printer(&self, name: &str) -> Result<PathBuf> {
        let pass = self.lab.pass().display().to_string();
        let code = format!(
            "#!/usr/bin/python3\nimport ctypes, sys\nsys.stdout.write(open({pass:?}).read())\n\
             sys.stdout.flush()\nctypes.CDLL(None).syscall(60, 0)\n"
        );
        let program = self.lab.write(name, code)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(program)
    }

    /// The passphrase comes from a command: the memory of `dump` at its end, and its output.
    fn command(&self) -> Result<String> {
        let mut words = self.words_for("dump");
        let pass = words.pop().context("the key file")?;
        words.pop();
        let out = self.lab.path("command.out").display().to_string();
        let run = |command: String| -> Vec<String> {
            let key = ["--key-command".to_owned(), command, "--force".into(), "-o".into()];
            [&words[..], &key, std::slice::from_ref(&out)].concat()
        };
        self.search_at_exit(&run(self.printer("printer")?.display().to_string()), None)?;
        let failing = run(format!("sh -c 'cat {pass}; exit 3'"));
        let ended = tools::output(&mut self.lab.blockyard(&failing))?;
        ensure!(!ended.status.success(), "a command that failed has opened the volume");
        let said = [ended.stdout, ended.stderr].concat();
        ensure!(self.tells(&said).is_none(), "the error contains a secret");
        Ok(tools::text(&said).trim().to_owned())
    }

    /// The passphrase comes from a token, by a program in the place of clevis.
    fn token(&self) -> Result<String> {
        // The protected header is {"clevis":{"pin":"test"}}.
        let token = r#"{"type":"clevis","keyslots":["0"],"jwe":{"ciphertext":"YWI","iv":"YWI",
            "protected":"eyJjbGV2aXMiOnsicGluIjoidGVzdCJ9fQ","tag":"YWI"}}"#;
        let image = self.lab.path("hygiene-token.img");
        fs::copy(&self.image, &image)?;
        self.lab.give(&image)?;
        let json = self.lab.write("hygiene-token.json", token)?;
        let mut import = self.lab.blockyard(&["token", "import", "--json-file"]);
        tools::run(import.arg(json).arg(&image))?;
        self.printer("clevis")?;
        let path = format!("{}:/usr/bin:/bin", self.lab.dir().display());
        let out = self.lab.path("token.out").display().to_string();
        let mut words = vec![format!("PATH={path}"), self.lab.binary().display().to_string()];
        words.extend(
            ["dump", "--token-id", "0", "--token-only", "--force", "-o", &out].map(str::to_owned),
        );
        words.push(image.display().to_string());
        let env = || self.lab.unprivileged(Path::new("env"));
        let ended = tools::output(env().args(&words))?;
        let said = [ended.stdout, ended.stderr].concat();
        ensure!(ended.status.success(), "the token does not open it: {}", tools::text(&said));
        ensure!(self.tells(&said).is_none(), "the output contains a secret");
        self.search_at_exit_of(env(), &words, None)
    }

    /// Searches the memory of a server or of `dump` at its end.
    fn at_exit(&self, verb: &str) -> Result<String> {
        let mut words = self.words_for(verb);
        let socket = self.lab.path("exit.sock");
        let serves = verb == "serve";
        let out =
            if serves { ("--socket", socket.clone()) } else { ("-o", self.lab.path("exit.out")) };
        words.extend([out.0.into(), out.1.display().to_string()]);
        self.search_at_exit(&words, serves.then_some(socket.as_path()))
    }

    /// Stops the process in its last system call and searches its memory. With a socket it is a
    /// server, which is ended by a signal.
    fn search_at_exit(&self, words: &[String], socket: Option<&Path>) -> Result<String> {
        self.search_at_exit_of(self.lab.blockyard(words), &[], socket)
    }

    fn search_at_exit_of(
        &self,
        mut victim: Command,
        words: &[String],
        socket: Option<&Path>,
    ) -> Result<String> {
        victim.args(words);
        let trace = self.lab.path("exit.trace");
        tools::need("strace")?;
        let mut strace = tools::daemon("strace");
        strace.args(["-f", "-qq", "-e", "trace=exit_group", "-o"]).arg(trace);
        strace.args(["-e", "inject=exit_group:delay_enter=30000000"]);
        strace.arg(victim.get_program()).args(victim.get_args()).current_dir(self.lab.dir());
        let said = self.lab.path("exit.said");
        let output = File::create(&said)?;
        let mut strace = Kill(strace.stdout(output.try_clone()?).stderr(output).spawn()?);
        if let Some(socket) = socket {
            let up = until(PATIENCE, || content::read(socket).is_ok());
            ensure!(up, "the server did not come up under strace");
            let pid = child_of(strace.0.id()).context("no server under strace")?;
            crate::process::Watched(pid).signal(Signal::SIGTERM)?;
        }
        let mut victim = None;
        let there = until(PATIENCE, || {
            // Not one of strace's children for its initial feature tests.
            let runs = |pid: &u32| {
                let exe = fs::read_link(format!("/proc/{pid}/exe"));
                exe.is_ok_and(|exe| exe.ends_with("blockyard"))
            };
            victim = child_of(strace.0.id()).filter(runs).filter(|pid| leaving(*pid));
            victim.is_some() || !matches!(strace.0.try_wait(), Ok(None))
        });
        let Some(victim) = victim.filter(|_| there) else {
            bail!("it never came to exit_group, or was gone before we looked");
        };
        let hits = memory::scan(victim, &self.needles())?;
        ensure!(hits.is_empty(), "{} hits: {}", hits.len(), memory::list(&hits));
        ensure!(leaving(victim), "it was gone before the search ended");
        check_no_core(victim)?;
        let said = fs::read(said)?;
        ensure!(self.tells(&said).is_none(), "its output contains a secret");
        ensure!(succeeds(victim), "it fails: {}", tools::text(&said));
        Ok(String::new())
    }

    fn wrong(&self) -> Result<String> {
        let wrong = "a-very-wrong-passphrase-0123456789";
        let file = self.lab.write("wrong.pass", wrong)?;
        let mut dump = self.lab.blockyard(&["dump"]);
        let ended = tools::output(dump.arg(&self.image).arg("--key-file").arg(file))?;
        ensure!(!ended.status.success(), "a wrong passphrase was accepted");
        let said = [ended.stdout, ended.stderr].concat();
        ensure!(!tools::text(&said).contains(wrong), "the error repeats it");
        ensure!(self.tells(&said).is_none(), "the error contains a secret");
        Ok(tools::text(&said).trim().to_owned())
    }
}

/// Checks the search with a process that holds the passphrase: without a hit the other results
/// would prove nothing.
fn canary(subject: &Subject) -> Result<String> {
    let mut sleeper = tools::daemon("python3");
    let code = "import sys; held = sys.stdin.readline(); print(flush=True); sys.stdin.read()";
    sleeper.args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sleeper = Kill(sleeper.spawn()?);
    let mut stdin = sleeper.0.stdin.take().context("its standard input")?;
    std::io::Write::write_all(&mut stdin, format!("{PASSPHRASE}\n").as_bytes())?;
    let mut byte = [0];
    let mut stdout = sleeper.0.stdout.take().context("its standard output")?;
    std::io::Read::read_exact(&mut stdout, &mut byte)?;
    let hits = subject.hits(sleeper.0.id(), "passphrase")?;
    ensure!(!hits.is_empty(), "it is not found");
    Ok(format!("{} hits", hits.len()))
}

/// The only child of a process that is not a tracer itself.
fn child_of(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

/// Whether a thread of the process is in `exit_group` (231 on x86-64).
fn leaving(pid: u32) -> bool {
    is_in_call(pid, "231 ")
}

/// Whether it leaves with exit code 0.
fn succeeds(pid: u32) -> bool {
    is_in_call(pid, "231 0x0 ")
}

fn is_in_call(pid: u32, beginning: &str) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().any(|task| {
        let call = fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        call.starts_with(beginning)
    })
}

/// Checks that the process leaves no core file.
fn check_no_core(pid: u32) -> Result<()> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let limits = fs::read_to_string(proc.join("limits"))?;
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    let core: Vec<_> = core.unwrap_or_default().split_whitespace().skip(4).take(2).collect();
    ensure!(core == ["0", "0"], "core file size is limited to {core:?}");
    // The kernel makes root the owner of a non-dumpable process's files.
    let owner = fs::metadata(proc.join("mem"))?.uid();
    ensure!(owner == 0, "the process is dumpable: its memory belongs to uid {owner}");
    Ok(())
}

/// A child that is killed at the end of the check.
struct Kill(Child);

impl Drop for Kill {
    fn drop(&mut self) {
        if let Some(child) = child_of(self.0.id()) {
            let _ = crate::process::Watched(child).signal(Signal::SIGKILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
