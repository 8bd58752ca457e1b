//! The folder of an ordinary user who mounts, and mounts in the foreground.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::process::{Child, Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, geteuid};

use super::{Lab, SMALL, refused, text};

/// The user `nobody`, who owns nothing.
pub(crate) const NOBODY: u32 = 65534;
pub(crate) const IMAGE_BYTES: u64 = 16 << 20;
/// Start of the plaintext in the image.
pub(crate) const HEADER_BYTES: u64 = 512 << 10;

/// A folder of an ordinary user, with a place for runtime files.
pub(crate) struct Home {
    pub(crate) lab: Lab,
}

impl Home {
    pub(crate) fn new() -> Self {
        let home = Self { lab: Lab::new() };
        for folder in ["run", "dir"] {
            fs::create_dir(home.lab.path(folder)).unwrap();
        }
        home.give();
        home
    }

    /// Gives all files in the folder to the user.
    pub(crate) fn give(&self) {
        if !geteuid().is_root() {
            return;
        }
        let give = |path| chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        fs::read_dir(self.lab.path("")).unwrap().for_each(|entry| give(entry.unwrap().path()));
        give(self.lab.path(""));
    }

    /// The command as the user.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = if geteuid().is_root() {
            let id = NOBODY.to_string();
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &id, "--regid", &id, "--clear-groups", program]);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.lab.path("")).env("XDG_RUNTIME_DIR", self.lab.path("run"));
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn blockyard(&self, words: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_blockyard"));
        command.args(words);
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.blockyard(words).output().unwrap()
    }

    pub(crate) fn ok(&self, words: &[&str]) {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    }

    pub(crate) fn refused(&self, words: &[&str], code: i32) -> String {
        refused(self.blockyard(words), code)
    }

    /// The output of a script that must succeed.
    pub(crate) fn sh(&self, script: &str) -> String {
        let output = self.command("sh").args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Whether a script fails, and its errors.
    pub(crate) fn sh_fails(&self, script: &str) -> String {
        let output = self.command("sh").args(["-ec", script]).output().unwrap();
        assert!(!output.status.success(), "{script}");
        text(&output.stderr)
    }

    /// Mounts in the background; false where this machine refuses FUSE.
    pub(crate) fn mount(&self, words: &[&str]) -> bool {
        let output = self.run(&[&["mount"][..], words, &["-d", "pass"]].concat());
        let said = text(&output.stderr);
        if output.status.success() {
            assert!(said.starts_with("mounted "), "{said}");
            return true;
        }
        assert!(said.contains("/dev/fuse") || said.contains("fusermount3"), "{said}");
        println!("skipped, because this machine refuses FUSE: {said}");
        false
    }

    /// Mounts in the foreground; `None` where this machine refuses FUSE.
    pub(crate) fn foreground(&self, words: &[&str]) -> Option<Foreground> {
        if !self.mount(words) {
            return None;
        }
        self.ok(&["umount", words[1]]);
        let mut command = self.blockyard(&["mount", "-f", "-d", "pass"]);
        let mut child = command.args(words).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("mounted "), "{line}");
        Some(Foreground { child, said })
    }

    /// A volume whose plaintext begins with these bytes.
    pub(crate) fn volume(&self, name: &str, plaintext: &[u8]) {
        let size = IMAGE_BYTES.to_string();
        let mut words = vec!["format", name, "--size", &size, "--key-file", "pass"];
        words.extend(SMALL);
        self.lab.ok(&words);
        self.lab.write("plain", plaintext);
        self.lab.ok(&["load", name, "-d", "pass", "-i", "plain", "--allow-short"]);
        self.give();
    }

    /// A volume with a file system that a program makes in the file `plain`; false without the
    /// program.
    pub(crate) fn file_system(&self, name: &str, program: &str, words: &[&str]) -> bool {
        let plain = self.lab.path("plain");
        fs::File::create(&plain).unwrap().set_len(IMAGE_BYTES - HEADER_BYTES).unwrap();
        let mut command = Command::new(program);
        command.current_dir(self.lab.path("")).args(words).stdout(Stdio::null());
        let Ok(status) = command.status() else {
            println!("skipped: {program} is missing");
            return false;
        };
        assert!(status.success(), "{program}");
        let bytes = fs::read(&plain).unwrap();
        self.volume(name, &bytes);
        true
    }

    pub(crate) fn ext4(&self) -> bool {
        self.file_system("vol", "mke2fs", &["-q", "-t", "ext4", "plain"]) && has("fuse2fs")
    }

    /// Mounts and files that are left in the folder.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let folder = self.lab.path("").display().to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mounts = mounts.lines().filter(|line| line.contains(folder.trim_end_matches('/')));
        let files = fs::read_dir(self.lab.path("run/blockyard")).into_iter().flatten();
        let files = files.map(|entry| entry.unwrap().path().display().to_string());
        mounts.map(str::to_owned).chain(files).collect()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        for target in ["dir", "vol.img"] {
            // After a failure only.
            if self.leftovers().iter().any(|line| line.contains(&format!("/{target} "))) {
                let _ = self.run(&["umount", "--lazy", target]);
            }
        }
    }
}

pub(crate) fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: {program} is missing");
    }
    found
}

/// The only child of a process.
pub(crate) fn child_of(pid: Pid) -> Option<Pid> {
    let pid = pid.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let mut children = children.split_whitespace();
    let child = children.next()?.parse().unwrap();
    assert_eq!(children.next(), None);
    Pid::from_raw(child)
}

/// Waits for the end of a process, which need not be a child.
pub(crate) fn wait_for_end(process: &OwnedFd) {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ended, None).unwrap();
}

/// A mount in the foreground, which is killed at the end of a failed test.
pub(crate) struct Foreground {
    child: Child,
    said: BufReader<std::process::ChildStderr>,
}

impl Foreground {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The driver, which is a child of the broker; or the broker of a mount without a driver.
    pub(crate) fn child_pid(&self) -> Pid {
        let broker = child_of(self.pid()).unwrap();
        child_of(broker).unwrap_or(broker)
    }

    /// Waits for the end; returns the exit code and the rest of the output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut self.said, &mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
