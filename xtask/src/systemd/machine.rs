//! A system of its own, started by systemd as on a real machine, in a container of this one.

use crate::lab::Lab;
use crate::tools::{self, daemon, tool};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A start takes a second or two on an idle machine.
const START_LIMIT: Duration = Duration::from_secs(120);

/// A running system; killed on drop.
pub(super) struct Machine {
    nspawn: Child,
    /// Its systemd, as a process of this machine.
    leader: u32,
    /// Standard input of each command.
    input: PathBuf,
    /// Held while the system runs.
    _turn: File,
}

impl Machine {
    /// Starts the system of a root, and waits until all that starts with it has been started.
    /// Each command reads the lines of `input` as if they were typed.
    pub(super) fn start(lab: &Lab, root: &Path, input: &str) -> Result<Machine> {
        // Two systems at a time would share one control group.
        let turn = File::create("/run/blockyard-test-systemd.lock")?;
        turn.lock()?;
        let log = lab.path("machine.log");
        let place = lab.path("machine.notify");
        let _ = fs::remove_file(&place);
        let notify = UnixDatagram::bind(&place)?;
        tools::need("systemd-nspawn")?;
        // `systemd-machined` would need a systemd here. The network is its own, as are the users'
        // processes; the host's folders stay as they are.
        let mut nspawn = daemon("systemd-nspawn");
        nspawn.args(["--boot", "--notify-ready=yes", "--register=no", "--keep-unit", "--quiet"]);
        nspawn.args(["--private-network", "--settings=no", "--link-journal=no"]);
        nspawn.args(["--resolv-conf=off", "--timezone=off", "--console=pipe"]);
        nspawn.arg("--machine=blockyard").arg("--directory").arg(root);
        let said = File::create(&log)?;
        nspawn.env("NOTIFY_SOCKET", &place).stdout(said.try_clone()?).stderr(said);
        let nspawn = nspawn.spawn().context("systemd-nspawn does not start")?;
        let input = lab.write("machine.in", input)?;
        let mut machine = Machine { nspawn, leader: 0, input, _turn: turn };
        machine.wait_for_start(&notify).with_context(|| {
            let said = fs::read(&log).map(|bytes| tools::text(&bytes)).unwrap_or_default();
            format!("no system starts here: {}", tools::tail(&said))
        })?;
        Ok(machine)
    }

    fn wait_for_start(&mut self, notify: &UnixDatagram) -> Result<()> {
        let start = Instant::now();
        notify.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut message = [0; 4096];
        while start.elapsed() < START_LIMIT {
            let len = match notify.recv(&mut message) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error.into()),
            };
            for line in tools::text(&message[..len]).lines() {
                if let Some(pid) = line.strip_prefix("X_NSPAWN_LEADER_PID=") {
                    self.leader = pid.parse()?;
                } else if line == "READY=1" && self.leader > 0 {
                    return Ok(());
                }
            }
            if let Some(status) = self.nspawn.try_wait()? {
                bail!("systemd-nspawn ended with {status}");
            }
        }
        bail!("systemd is not ready after {START_LIMIT:?}")
    }

    /// Output of a script that root runs in the system.
    pub(super) fn read(&self, script: &str) -> Result<String> {
        let mut command = self.enter();
        command.args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]);
        self.run(command.args(["sh", "-euc"]).arg(format!("cd\n{script}")))
    }

    /// Output of a script that a user runs whose systemd is running.
    pub(super) fn read_as(&self, user: &str, script: &str) -> Result<String> {
        let id = self.read(&format!("id -u {user}"))?;
        let mut command = self.enter();
        command.args(["setpriv", "--reuid", user, "--regid", user, "--init-groups"]);
        command.args(["env", "-i", "PATH=/usr/bin:/bin", &format!("HOME=/home/{user}")]);
        command.arg(format!("XDG_RUNTIME_DIR=/run/user/{}", id.trim()));
        self.run(command.args(["sh", "-euc"]).arg(format!("cd\n{script}")))
    }

    /// Connects to a socket of the system.
    pub(super) fn connect(&self, socket: &str) -> Result<UnixStream> {
        let place = format!("/proc/{}/root{socket}", self.leader);
        UnixStream::connect(place).with_context(|| format!("{socket} does not accept"))
    }

    /// A script fails with the end of its output and of the journal.
    fn run(&self, command: &mut Command) -> Result<String> {
        let output = command.stdin(File::open(&self.input)?).output()?;
        if output.status.success() {
            return Ok(tools::text(&output.stdout));
        }
        let mut journal = self.enter();
        journal.args(["journalctl", "--no-pager", "--quiet", "--lines=12"]);
        let journal = journal.output().map(|journal| tools::text(&journal.stdout));
        let said = tools::text(&output.stdout) + &tools::text(&output.stderr);
        bail!("{}: {}\n{}", output.status, tools::tail(&said), journal.unwrap_or_default().trim())
    }

    /// The start of a command in the system.
    fn enter(&self) -> Command {
        let mut command = tool("nsenter");
        command.args(["--all", "--target", &self.leader.to_string()]);
        command
    }

    /// Stops all services and the system.
    pub(super) fn power_off(mut self) -> Result<()> {
        self.read("systemctl poweroff")?;
        let status = self.nspawn.wait()?;
        if !status.success() {
            bail!("the system ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.nspawn.kill();
        let _ = self.nspawn.wait();
    }
}
