//! A running QEMU: its disk, its console, its monitor.

use super::LIMIT;
use super::program::Program;
use super::qmp::Qmp;
use crate::lab::Lab;
use crate::process::until;
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};

/// A machine; killed on drop.
pub(super) struct Guest {
    qemu: Child,
    keyboard: ChildStdin,
    console: PathBuf,
    monitor: PathBuf,
}

impl Guest {
    /// Starts a machine that runs this script, with the disk of a vhost-user socket.
    pub(super) fn start(
        lab: &Lab,
        program: &Program,
        name: &str,
        script: &str,
        disk: &Path,
        more: &[&str],
    ) -> Result<Guest> {
        let disk = format!("socket,id=disk,path={},reconnect-ms=100", disk.display());
        let device = "vhost-user-blk-pci,chardev=disk,num-queues=2";
        let words = ["-chardev", &disk, "-device", device];
        Guest::start_with(lab, program, name, script, &[&words, more].concat())
    }

    /// Like [`Guest::start`], with an image as the disk, whose discarded ranges are dropped.
    pub(super) fn start_on_image(
        lab: &Lab,
        program: &Program,
        name: &str,
        script: &str,
        image: &Path,
    ) -> Result<Guest> {
        let disk = format!("file={},format=raw,if=virtio,discard=unmap", image.display());
        Guest::start_with(lab, program, name, script, &["-drive", &disk])
    }

    /// Starts a machine that runs this script, with these devices.
    pub(super) fn start_with(
        lab: &Lab,
        program: &Program,
        name: &str,
        script: &str,
        more: &[&str],
    ) -> Result<Guest> {
        let console = lab.path(&format!("{name}.console"));
        let monitor = lab.path(&format!("{name}.qmp"));
        let mut qemu = program.command(script)?;
        qemu.args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())]);
        qemu.args(["-serial", "stdio"]).args(more);
        let out = File::create(&console)?;
        qemu.stderr(out.try_clone()?).stdout(out).stdin(Stdio::piped());
        let mut qemu = qemu.spawn().context("QEMU does not start")?;
        let keyboard = qemu.stdin.take().context("QEMU has no standard input")?;
        Ok(Guest { qemu, keyboard, console, monitor })
    }

    pub(super) fn said(&self) -> String {
        fs::read(&self.console)
            .map(|bytes| tools::text(&bytes))
            .unwrap_or_default()
            .replace('\r', "")
    }

    /// Passes that the writers have reported.
    pub(super) fn passes(&self) -> usize {
        self.said().lines().filter(|line| line.starts_with("@ round ")).count()
    }

    /// Waits for this number of passes; returns the number that is reached.
    pub(super) fn wait_for_passes(&mut self, wanted: usize) -> Result<usize> {
        let mut ended = false;
        until(LIMIT, || {
            ended = !matches!(self.qemu.try_wait(), Ok(None));
            ended || self.passes() >= wanted || self.said().contains("@ disk failed")
        });
        let passes = self.passes();
        ensure!(passes >= wanted && !ended, "{passes} passes: {}", tools::tail(&self.said()));
        Ok(passes)
    }

    /// Waits until the console has said this.
    pub(super) fn wait_for(&mut self, words: &str) -> Result<()> {
        let is_said = until(LIMIT, || self.said().contains(words));
        ensure!(is_said, "the guest does not say {words:?}: {}", tools::tail(&self.said()));
        Ok(())
    }

    /// Waits until QEMU has made a file.
    pub(super) fn wait_for_file(&mut self, path: &Path) -> Result<()> {
        until(LIMIT, || path.exists() || !matches!(self.qemu.try_wait(), Ok(None)));
        ensure!(path.exists(), "QEMU has not made {}: {}", path.display(), self.said());
        Ok(())
    }

    /// Types a line.
    pub(super) fn say(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.keyboard, "{line}")?)
    }

    /// Waits until the machine is off; returns what the console said.
    pub(super) fn wait(&mut self) -> Result<String> {
        if !until(LIMIT, || !matches!(self.qemu.try_wait(), Ok(None))) {
            bail!("the guest does not end: {}", tools::tail(&self.said()));
        }
        let status = self.qemu.wait()?;
        ensure!(status.success(), "QEMU ended with {status}: {}", tools::tail(&self.said()));
        Ok(self.said())
    }

    pub(super) fn qmp(&self) -> Result<Qmp> {
        Qmp::connect(&self.monitor)
    }

    /// Ends QEMU as its user does, without the guest.
    pub(super) fn end(mut self) -> Result<()> {
        // The answer may not come any more.
        let _ = self.qmp()?.execute("quit", &serde_json::json!({}));
        self.wait().map(drop)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
