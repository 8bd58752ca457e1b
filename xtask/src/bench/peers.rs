//! The compared servers: their start on the same image, and their CPU time.

use crate::lab::{Lab, PASSPHRASE};
use crate::process::{Watched, until};
use crate::tools;
use crate::volume::{luks_format, sparse};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// Size of the largest header: 2 MiB for cryptsetup's LUKS1, 16 MiB for LUKS2.
const HEADER_MIB: u64 = 16;

const START_LIMIT: Duration = Duration::from_secs(30);

/// Name of the server that all others are compared with.
pub(crate) const PLAIN: &str = "nbdkit file, unencrypted";

/// Name of this build on a LUKS1 image.
pub(crate) const OURS: &str = "blockyard";

/// Name of an older build of ours, on a separate image.
pub(crate) const BEFORE: &str = "blockyard, before";

/// The images of one benchmark, all in memory.
pub(crate) struct Images {
    pub(crate) luks1: PathBuf,
    pub(crate) before: PathBuf,
    luks2: PathBuf,
    pub(crate) plain: PathBuf,
}

impl Images {
    pub(crate) fn make(lab: &Lab, size_mib: u32) -> Result<Images> {
        let images = Images {
            luks1: lab.path("luks1.img"),
            before: lab.path("before.img"),
            luks2: lab.path("luks2.img"),
            plain: lab.path("plain.img"),
        };
        let len_bytes = (u64::from(size_mib) + HEADER_MIB) << 20;
        for image in [&images.luks1, &images.before, &images.luks2, &images.plain] {
            sparse(image, len_bytes)?;
            lab.give(image)?;
        }
        let cipher = "--cipher aes-xts-plain64 --key-size 512";
        for image in [&images.luks1, &images.before] {
            luks_format(image, &lab.pass(), &format!("--type luks1 {cipher}"))?;
        }
        let options = format!("--type luks2 --sector-size 4096 {cipher}");
        luks_format(&images.luks2, &lab.pass(), &options)?;
        Ok(images)
    }
}

/// A server of the benchmark.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) uri: String,
    /// Socket for a virtual machine.
    pub(crate) vhost_user: Option<PathBuf>,
    pub(crate) process: Watched,
    child: Child,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts all servers, pinned to a CPU if one is given, and waits until each listens.
pub(crate) fn start_all(lab: &Lab, images: &Images, cpu: Option<usize>) -> Result<Vec<Peer>> {
    let pass = lab.pass().display().to_string();
    let luks1 = images.luks1.display().to_string();
    let mut peers = vec![
        ours(lab, OURS, lab.binary(), &images.luks1, cpu)?,
        ours(lab, "blockyard, LUKS2 4096", lab.binary(), &images.luks2, cpu)?,
    ];
    let socket = lab.path("nbdkit-luks.sock");
    let mut nbdkit = tools::daemon("nbdkit");
    nbdkit.args(["-f", "-U"]).arg(&socket).args(["--filter=luks", "file", &luks1]);
    nbdkit.arg(format!("passphrase={PASSPHRASE}"));
    peers.push(start("nbdkit luks", nbdkit, &socket, "", cpu)?);
    let socket = lab.path("qemu.sock");
    peers.push(start("qemu luks", qemu(&luks1, &pass, &socket), &socket, "disk", cpu)?);
    peers.push(plain(lab, images, cpu)?);
    Ok(peers)
}

/// Starts this build, an older one, and the unencrypted server.
pub(crate) fn start_both(
    lab: &Lab,
    images: &Images,
    before: &Path,
    cpu: Option<usize>,
) -> Result<Vec<Peer>> {
    Ok(vec![
        ours(lab, OURS, lab.binary(), &images.luks1, cpu)?,
        ours(lab, BEFORE, before, &images.before, cpu)?,
        plain(lab, images, cpu)?,
    ])
}

fn ours(
    lab: &Lab,
    name: &'static str,
    binary: &Path,
    image: &Path,
    cpu: Option<usize>,
) -> Result<Peer> {
    let socket = image.with_extension("sock");
    start(name, ours_command(lab, binary, image, &socket), &socket, "", cpu)
}

fn ours_command(lab: &Lab, binary: &Path, image: &Path, socket: &Path) -> Command {
    let mut serve = lab.unprivileged(binary);
    serve.arg("serve").arg(image).arg("--key-file").arg(lab.pass()).arg("--socket").arg(socket);
    serve
}

/// Starts the servers of vhost-user disks, pinned to a CPU if one is given: this build, also with
/// polled queues if it has them, and QEMU with and without encryption if it is installed.
pub(crate) fn start_vhost_user(
    lab: &Lab,
    images: &Images,
    cpu: Option<usize>,
) -> Result<Vec<Peer>> {
    let mut peers = vec![ours_vhost_user(lab, OURS, &images.luks1, &[], cpu)?];
    let help = tools::read(lab.unprivileged(lab.binary()).args(["serve", "--help"]))?;
    if help.contains("--poll") {
        let always = ["--poll", "always"];
        peers.push(ours_vhost_user(lab, "blockyard, polled", &images.before, &always, cpu)?);
    }
    if tools::need("qemu-storage-daemon").is_err() {
        return Ok(peers);
    }
    let luks1 = images.luks1.display().to_string();
    let mut encrypted = qemu_disk(&luks1, &lab.pass().display().to_string());
    let mut plain = tools::daemon("qemu-storage-daemon");
    let file = format!("driver=file,filename={},node-name=disk", images.plain.display());
    plain.args(["--blockdev", &file]);
    for (name, qemu, socket) in [
        ("qemu luks", &mut encrypted, lab.path("qemu-luks.vhost")),
        ("qemu plain", &mut plain, lab.path("qemu-plain.vhost")),
    ] {
        let place = format!("addr.type=unix,addr.path={}", socket.display());
        let export = "type=vhost-user-blk,id=disk,node-name=disk,writable=on,num-queues=2";
        qemu.args(["--export", &format!("{export},{place}")]);
        let mut peer = start(name, std::mem::replace(qemu, Command::new("")), &socket, "", cpu)?;
        peer.vhost_user = Some(socket);
        peers.push(peer);
    }
    Ok(peers)
}

/// Starts this build with a socket for NBD and one for a virtual machine.
fn ours_vhost_user(
    lab: &Lab,
    name: &'static str,
    image: &Path,
    more: &[&str],
    cpu: Option<usize>,
) -> Result<Peer> {
    let socket = image.with_extension("sock");
    let disk = image.with_extension("vhost");
    let mut serve = ours_command(lab, lab.binary(), image, &socket);
    serve.arg("--vhost-user").arg(&disk).args(more);
    let mut peer = start(name, serve, &socket, "", cpu)?;
    peer.vhost_user = Some(disk);
    Ok(peer)
}

fn plain(lab: &Lab, images: &Images, cpu: Option<usize>) -> Result<Peer> {
    let socket = lab.path("nbdkit-file.sock");
    let mut nbdkit = tools::daemon("nbdkit");
    nbdkit.args(["-f", "-U"]).arg(&socket).arg("file").arg(&images.plain);
    start(PLAIN, nbdkit, &socket, "", cpu)
}

fn qemu(image: &str, pass: &str, socket: &Path) -> Command {
    let mut qemu = qemu_disk(image, pass);
    qemu.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", socket.display())]);
    qemu.args(["--export", "nbd,id=nbd,node-name=disk,name=disk,writable=on"]);
    qemu
}

/// QEMU with an encrypted disk that nothing exports yet.
pub(crate) fn qemu_disk(image: &str, pass: &str) -> Command {
    let mut qemu = tools::daemon("qemu-storage-daemon");
    qemu.args(["--object", &format!("secret,id=pass,file={pass}")]);
    // Several servers have this image open at once; only one of them works at a time.
    let file = format!("driver=file,filename={image},node-name=file,locking=off");
    qemu.args(["--blockdev", &file]);
    qemu.args(["--blockdev", "driver=luks,file=file,key-secret=pass,node-name=disk"]);
    qemu
}

fn start(
    name: &'static str,
    command: Command,
    socket: &Path,
    export: &str,
    cpu: Option<usize>,
) -> Result<Peer> {
    tools::need(&command.get_program().to_string_lossy())?;
    let mut command = pinned(command, cpu);
    // Left by the same server in another placement.
    let _ = fs::remove_file(socket);
    let log = socket.with_extension("log");
    let err = File::create(&log)?;
    command.stdout(err.try_clone()?).stderr(err);
    let child = command.spawn().with_context(|| format!("{name} does not start"))?;
    let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
    let mut peer = Peer { name, uri, vhost_user: None, process: Watched(child.id()), child };
    let open = until(START_LIMIT, || {
        UnixStream::connect(socket).is_ok() || !matches!(peer.child.try_wait(), Ok(None))
    });
    if !open || peer.child.try_wait()?.is_some() {
        let said = fs::read_to_string(log).unwrap_or_default();
        bail!("{name} does not listen: {}", said.trim());
    }
    Ok(peer)
}

/// The command pinned to one CPU. taskset becomes the server: the pid stays.
fn pinned(command: Command, cpu: Option<usize>) -> Command {
    let Some(cpu) = cpu else { return command };
    let mut pinned = Command::new("taskset");
    pinned.args(["-c", &cpu.to_string()]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => pinned.env(name, value),
            None => pinned.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        pinned.current_dir(dir);
    }
    pinned.stdin(std::process::Stdio::null());
    pinned
}
