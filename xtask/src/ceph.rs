//! A small Ceph cluster on the loopback interface: one monitor and some OSDs, as ordinary
//! processes, without root and systemd. The disk of an OSD is a sparse file.

use crate::lab::Lab;
use crate::process::{Watched, until};
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit of each step.
const LIMIT: Duration = Duration::from_secs(60);
const DISK_BYTES: u64 = 4 << 30;
/// The pool of the images.
pub(crate) const POOL: &str = "rbd";

/// A running cluster, killed on drop.
pub(crate) struct Cluster {
    dir: PathBuf,
    fsid: String,
    address: String,
    osds: u32,
    copies: u32,
    daemons: Vec<(String, Child)>,
}

impl Cluster {
    /// Makes and starts a cluster of one OSD, and waits until it serves requests.
    pub(crate) fn start(lab: &Lab) -> Result<Self> {
        Self::of(lab.disk().join("ceph"), 1, 1)
    }

    /// Makes and starts a cluster in a folder.
    pub(crate) fn of(dir: PathBuf, osds: u32, copies: u32) -> Result<Self> {
        for program in ["ceph-mon", "ceph-osd", "ceph", "rbd"] {
            tools::need(program)?;
        }
        let numbers = 0..osds;
        let disks = numbers.clone().map(|number| format!("osd.{number}"));
        for part in ["run", "log", "mon.a"].map(String::from).into_iter().chain(disks) {
            fs::create_dir_all(dir.join(part))?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("[v2:127.0.0.1:{port}]");
        let fsid = uuid()?;
        let mut cluster = Self { dir, fsid, address, osds, copies, daemons: Vec::new() };
        fs::write(cluster.conf(), cluster.configuration())?;
        cluster.make_monitor()?;
        cluster.launch("mon.a")?;
        for number in numbers {
            let id = uuid()?;
            let osd = number.to_string();
            let mut make = cluster.tool("ceph-osd");
            tools::run(make.args(["--mkfs", "-i", &osd, "--osd-uuid", &id]))?;
            cluster.ceph(&["osd", "new", &id, &osd])?;
            cluster.launch(&format!("osd.{osd}"))?;
        }
        cluster.await_osds()?;
        // As many placement groups for each OSD, whatever the number of OSDs.
        let groups = (8 * osds).next_power_of_two().to_string();
        cluster.ceph(&["osd", "pool", "create", POOL, &groups])?;
        cluster.ceph(&["osd", "pool", "application", "enable", POOL, "rbd"])?;
        cluster.await_pool()?;
        tools::run(cluster.tool("rbd").args(["pool", "init", POOL]))?;
        Ok(cluster)
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    fn configuration(&self) -> String {
        let dir = self.dir.display();
        let mut text = String::from("[global]\n");
        let mut set = |name: &str, value: &str| {
            let _ = writeln!(text, "{name} = {value}");
        };
        set("fsid", &self.fsid);
        set("mon initial members", "a");
        set("mon host", &self.address);
        set("public addr", "127.0.0.1");
        set("cluster addr", "127.0.0.1");
        set("ms bind msgr1", "false");
        for part in ["cluster", "service", "client"] {
            set(&format!("auth {part} required"), "none");
        }
        set("run dir", &format!("{dir}/run"));
        set("crash dir", &format!("{dir}/log"));
        set("admin socket", &format!("{dir}/run/$name.asok"));
        set("log file", &format!("{dir}/log/$name.log"));
        set("mon data", &format!("{dir}/$name"));
        set("osd data", &format!("{dir}/$name"));
        set("osd pool default size", &self.copies.to_string());
        set("osd pool default min size", "1");
        set("osd pool default pg autoscale mode", "off");
        set("osd crush chooseleaf type", "0");
        set("crush location", "root=default host=dev");
        set("mon allow pool size one", "true");
        set("mon warn on pool no redundancy", "false");
        set("mon data avail crit", "1");
        // A second for each change is the default.
        set("paxos propose interval", "0.05");
        set("mon osd min down reporters", "1");
        set("mon osd down out interval", "86400");
        set("osd objectstore", "bluestore");
        set("bluestore block size", &DISK_BYTES.to_string());
        set("bluestore cache autotune", "false");
        set("bluestore cache size", &(128 << 20).to_string());
        set("osd heartbeat interval", "1");
        set("osd heartbeat grace", "6");
        text.push_str("[client]\nadmin socket =\nlog file =\n");
        text
    }

    fn make_monitor(&self) -> Result<()> {
        let map = self.dir.join("monmap");
        let mut make = tool("monmaptool");
        make.args(["--create", "--fsid", &self.fsid, "--addv", "a", &self.address]).arg(&map);
        tools::run(&mut make)?;
        let mut make = self.tool("ceph-mon");
        tools::run(make.args(["--mkfs", "-i", "a", "--monmap"]).arg(&map))?;
        Ok(())
    }

    /// A program of Ceph with this cluster's configuration.
    pub(crate) fn tool(&self, program: &str) -> Command {
        let mut command = tool(program);
        command.arg("-c").arg(self.conf());
        command
    }

    pub(crate) fn ceph(&self, words: &[&str]) -> Result<String> {
        tools::read(self.tool("ceph").args(["--connect-timeout", "30"]).args(words))
    }

    /// A configuration of a client that answers questions on a socket.
    pub(crate) fn conf_of_client(&self, socket: &Path) -> Result<String> {
        let text = fs::read_to_string(self.conf())?;
        let named = format!("[client]\nadmin socket = {}\n", socket.display());
        Ok(text.replace("[client]\nadmin socket =\n", &named))
    }

    /// Makes an image of some MiB, and returns its name for us.
    pub(crate) fn image(&self, name: &str, size_mib: u32) -> Result<String> {
        let image = format!("{POOL}/{name}");
        let size = format!("{size_mib}M");
        tools::run(self.tool("rbd").args(["create", &image, "--size", &size]))?;
        Ok(self.name(name, ""))
    }

    /// The name of an image for us, with further settings.
    pub(crate) fn name(&self, image: &str, settings: &str) -> String {
        format!("rbd:{POOL}/{image}?conf={}{settings}", self.conf().display())
    }

    /// Starts a daemon, and waits until it runs.
    pub(crate) fn launch(&mut self, daemon: &str) -> Result<()> {
        let (program, id) = daemon.split_once('.').context("a daemon has a number")?;
        let socket = self.dir.join(format!("run/{daemon}.asok"));
        let _ = fs::remove_file(&socket);
        let out = File::create(self.dir.join(format!("log/{daemon}.out")))?;
        let mut command = tools::daemon(&format!("ceph-{program}"));
        command.arg("-c").arg(self.conf()).args(["-i", id, "-f"]).stdin(Stdio::null());
        command.stdout(out.try_clone()?).stderr(out);
        let mut child = command.spawn().with_context(|| format!("{daemon} does not start"))?;
        let started = until(LIMIT, || socket.exists() || !matches!(child.try_wait(), Ok(None)));
        self.daemons.push((daemon.to_owned(), child));
        ensure!(started && socket.exists(), "{daemon} does not run: {}", self.said(daemon));
        Ok(())
    }

    fn said(&self, daemon: &str) -> String {
        let out: &Path = &self.dir.join(format!("log/{daemon}.out"));
        tools::tail(&fs::read_to_string(out).unwrap_or_default())
    }

    /// Waits until the OSDs are up.
    pub(crate) fn await_osds(&self) -> Result<()> {
        let wanted = format!(" {} up", self.osds);
        let up =
            until(LIMIT, || self.ceph(&["osd", "stat"]).is_ok_and(|stat| stat.contains(&wanted)));
        ensure!(up, "the OSDs do not come up: {}", self.said("osd.0"));
        Ok(())
    }

    /// Waits until the pool serves requests: a list asks every placement group.
    pub(crate) fn await_pool(&self) -> Result<()> {
        tools::run(self.tool("rados").args(["-p", POOL, "ls"])).map(drop)
    }

    /// Whether a program of Ceph gets no answer from the OSD either.
    pub(crate) fn is_silent(&self) -> bool {
        let mut list = Command::new("timeout");
        list.args(["10", "rados", "-c"]).arg(self.conf()).args(["-p", POOL, "ls"]);
        !list.output().is_ok_and(|output| output.status.success())
    }

    /// Makes the cluster full by its limits, or ends that, and waits until the OSD has told it.
    pub(crate) fn set_full(&self, full: bool) -> Result<()> {
        // Each is below the next one. A new disk is more than 1 % full.
        let limits = if full { ["0.001", "0.002", "0.003"] } else { ["0.85", "0.90", "0.95"] };
        let names = ["set-nearfull-ratio", "set-backfillfull-ratio", "set-full-ratio"];
        for (name, limit) in names.iter().zip(limits) {
            self.ceph(&["osd", name, limit])?;
        }
        let told = until(LIMIT, || {
            self.ceph(&["health"]).is_ok_and(|health| health.contains(" full osd(s)") == full)
        });
        ensure!(told, "the cluster does not become full, or stays so: {}", self.ceph(&["health"])?);
        Ok(())
    }

    /// A running daemon.
    pub(crate) fn daemon(&self, daemon: &str) -> Result<Watched> {
        let child = self.daemons.iter().rev().find(|(name, _)| name == daemon);
        let (_, child) = child.with_context(|| format!("{daemon} does not run"))?;
        Ok(Watched(child.id()))
    }

    /// All running daemons.
    pub(crate) fn all(&self) -> Vec<Watched> {
        self.daemons.iter().map(|(_, child)| Watched(child.id())).collect()
    }

    /// Kills a daemon with SIGKILL.
    pub(crate) fn kill(&mut self, daemon: &str) -> Result<()> {
        let place = self.daemons.iter().position(|(name, _)| name == daemon);
        let (_, mut child) = self.daemons.remove(place.context("it does not run")?);
        child.kill()?;
        child.wait()?;
        Ok(())
    }
}

fn uuid() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (_, child) in &mut self.daemons {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
