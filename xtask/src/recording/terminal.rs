//! A command in a terminal of its own, which answers the command's prompts.

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use super::svg::COLUMNS;
use crate::process::until;
use std::time::Duration;

/// Time limit of a program between its prompt and its input.
const PROMPT_LIMIT: Duration = Duration::from_secs(10);

/// A prompt of a program, and the keys typed at it.
pub(super) struct Prompt {
    pub(super) text: &'static str,
    pub(super) answer: &'static str,
}

/// Runs a command line by bash, with `programs` in front of `PATH`, and returns the output.
pub(super) fn run(home: &Path, programs: &Path, line: &str, prompts: &[Prompt]) -> Result<String> {
    let (mut keys, screen) = pair()?;
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let mut setsid = Command::new("setsid");
    setsid.args(["--ctty", "--wait", "timeout", "--foreground", "60", "bash", "-c", line]);
    setsid.env("PATH", path).env("LC_ALL", "C.UTF-8").current_dir(home);
    setsid.stdin(Stdio::from(screen.try_clone()?)).stdout(Stdio::from(screen.try_clone()?));
    let mut child = setsid.stderr(Stdio::from(screen)).spawn()?;
    // The command has its own copies of the terminal, which this one must not keep open.
    drop(setsid);
    let mut seen = Vec::new();
    let mut prompts = prompts.iter();
    let mut next = prompts.next();
    let mut from = 0;
    let mut piece = [0; 4096];
    // The terminal reports an error when its last program has ended.
    while let Ok(count @ 1..) = keys.read(&mut piece) {
        seen.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&seen[from..]);
        if let Some(prompt) = next.filter(|prompt| text.ends_with(prompt.text)) {
            // A program drops keys that come before it has switched the echo off.
            let hides =
                || tcgetattr(&keys).is_ok_and(|mode| !mode.local_modes.contains(LocalModes::ECHO));
            ensure!(until(PROMPT_LIMIT, hides), "{:?} would show the passphrase", prompt.text);
            keys.write_all(prompt.answer.as_bytes())?;
            from = seen.len();
            next = prompts.next();
        }
    }
    let output = String::from_utf8_lossy(&seen).replace("\r\n", "\n");
    let status = child.wait()?;
    ensure!(status.success(), "{status}: {output}");
    if let Some(prompt) = next {
        bail!("no prompt {:?}: {output}", prompt.text);
    }
    Ok(output)
}

/// Both ends of a new terminal.
fn pair() -> Result<(File, OwnedFd)> {
    let keys = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&keys)?;
    unlockpt(&keys)?;
    let name = ptsname(&keys, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let screen = open(&*name, flags, Mode::empty()).context("the terminal")?;
    let columns = u16::try_from(COLUMNS)?;
    tcsetwinsize(&screen, Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok((File::from(keys), screen))
}
