//! The compared servers: their start on the same image, and their CPU time.

use crate::certificates::Pki;
use crate::lab::{Lab, PASSPHRASE};
use crate::process::{Watched, until};
use crate::tools;
use crate::volume::{luks_format, sparse};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::available_parallelism;
use std::time::Duration;

/// Size of the largest header: 2 MiB for cryptsetup's LUKS1, 16 MiB for LUKS2.
const HEADER_MIB: u64 = 16;

const START_LIMIT: Duration = Duration::from_secs(30);

/// Name of the server that all others are compared with.
pub(crate) const PLAIN: &str = "nbdkit file, unencrypted";

/// Name of the unencrypted server of virtual machines.
pub(crate) const PLAIN_DISK: &str = "qemu plain";

/// Name of this build on a LUKS1 image.
pub(crate) const OURS: &str = "blockyard";

/// Name of an older build of ours, on a separate image.
pub(crate) const BEFORE: &str = "blockyard, before";

/// Name of this build with queues that always poll.
pub(crate) const POLLED: &str = "blockyard, polled";

/// Name of this build without its sandbox, on a separate image.
pub(crate) const OPEN: &str = "blockyard, no sandbox";

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

/// The conditions that all servers of a run have in common.
#[derive(Clone, Copy, Default)]
pub(crate) struct Conditions<'a> {
    /// The CPU of the servers.
    pub(crate) cpu: Option<usize>,
    /// Certificates of servers that serve over TLS.
    pub(crate) tls: Option<&'a Pki>,
}

/// Starts all servers, and waits until each listens.
pub(crate) fn start_all(lab: &Lab, images: &Images, on: Conditions) -> Result<Vec<Peer>> {
    let pass = lab.pass().display().to_string();
    let luks1 = images.luks1.display().to_string();
    let mut peers = vec![
        ours(lab, OURS, (lab.binary(), &[]), &images.luks1, on)?,
        ours(lab, "blockyard, LUKS2 4096", (lab.binary(), &[]), &images.luks2, on)?,
    ];
    let socket = lab.path("nbdkit-luks.sock");
    let mut nbdkit = tools::daemon("nbdkit");
    nbdkit.args(["-f", "-U"]).arg(&socket).args(nbdkit_tls(on.tls));
    nbdkit.args(["--filter=luks", "file", &luks1]).arg(format!("passphrase={PASSPHRASE}"));
    peers.push(start("nbdkit luks", nbdkit, &socket, "", on)?);
    let socket = lab.path("qemu.sock");
    let qemu = qemu(&luks1, &pass, &socket, on.tls);
    peers.push(start("qemu luks", qemu, &socket, "disk", on)?);
    peers.push(plain(lab, images, on)?);
    Ok(peers)
}

/// Starts this build, an older one, and the unencrypted server.
pub(crate) fn start_both(
    lab: &Lab,
    images: &Images,
    before: &Path,
    on: Conditions,
) -> Result<Vec<Peer>> {
    Ok(vec![
        ours(lab, OURS, (lab.binary(), &[]), &images.luks1, on)?,
        ours(lab, BEFORE, (before, &[]), &images.before, on)?,
        plain(lab, images, on)?,
    ])
}

/// Starts this build with and without its sandbox, and the unencrypted server.
pub(crate) fn start_sandboxed(lab: &Lab, images: &Images, on: Conditions) -> Result<Vec<Peer>> {
    let with = |mode| ["--sandbox", mode];
    Ok(vec![
        ours(lab, OURS, (lab.binary(), &with("require")), &images.luks1, on)?,
        ours(lab, OPEN, (lab.binary(), &with("off")), &images.before, on)?,
        plain(lab, images, on)?,
    ])
}

/// Starts a build of ours with further options.
fn ours(
    lab: &Lab,
    name: &'static str,
    (binary, more): (&Path, &[&str]),
    image: &Path,
    on: Conditions,
) -> Result<Peer> {
    let socket = image.with_extension("sock");
    let mut serve = ours_command(lab, binary, image, &socket);
    serve.args(more);
    if let Some(pki) = on.tls {
        serve.args(["--tls-certificates", &pki.server]);
    }
    start(name, serve, &socket, "", on)
}

fn ours_command(lab: &Lab, binary: &Path, image: &Path, socket: &Path) -> Command {
    let mut serve = lab.unprivileged(binary);
    serve.arg("serve").arg(image).arg("--key-file").arg(lab.pass()).arg("--socket").arg(socket);
    serve
}

/// Starts the servers of vhost-user disks: this build, also with polled queues if it has them, and
/// QEMU with and without encryption if it is installed.
pub(crate) fn start_vhost_user(lab: &Lab, images: &Images, on: Conditions) -> Result<Vec<Peer>> {
    let mut peers = vec![ours_vhost_user(lab, OURS, &images.luks1, &[], on)?];
    let help = tools::read(lab.unprivileged(lab.binary()).args(["serve", "--help"]))?;
    if help.contains("--poll") {
        let always = ["--poll", "always"];
        peers.push(ours_vhost_user(lab, POLLED, &images.before, &always, on)?);
    }
    if tools::need("qemu-storage-daemon").is_err() {
        return Ok(peers);
    }
    let luks1 = images.luks1.display().to_string();
    let queues = available_parallelism()?.get().max(2);
    let mut encrypted = qemu_disk(&luks1, &lab.pass().display().to_string());
    let mut plain = tools::daemon("qemu-storage-daemon");
    let file = format!("driver=file,filename={},node-name=disk", images.plain.display());
    plain.args(["--blockdev", &file]);
    for (name, qemu, socket) in [
        ("qemu luks", &mut encrypted, lab.path("qemu-luks.vhost")),
        (PLAIN_DISK, &mut plain, lab.path("qemu-plain.vhost")),
    ] {
        let place = format!("addr.type=unix,addr.path={}", socket.display());
        let export = "type=vhost-user-blk,id=disk,node-name=disk,writable=on";
        qemu.args(["--export", &format!("{export},num-queues={queues},{place}")]);
        let mut peer = start(name, std::mem::replace(qemu, Command::new("")), &socket, "", on)?;
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
    on: Conditions,
) -> Result<Peer> {
    let socket = image.with_extension("sock");
    let disk = image.with_extension("vhost");
    let mut serve = ours_command(lab, lab.binary(), image, &socket);
    serve.arg("--vhost-user").arg(&disk).args(more);
    let mut peer = start(name, serve, &socket, "", on)?;
    peer.vhost_user = Some(disk);
    Ok(peer)
}

fn plain(lab: &Lab, images: &Images, on: Conditions) -> Result<Peer> {
    let socket = lab.path("nbdkit-file.sock");
    let mut nbdkit = tools::daemon("nbdkit");
    nbdkit.args(["-f", "-U"]).arg(&socket).args(nbdkit_tls(on.tls));
    nbdkit.arg("file").arg(&images.plain);
    start(PLAIN, nbdkit, &socket, "", on)
}

fn nbdkit_tls(tls: Option<&Pki>) -> Vec<String> {
    let Some(pki) = tls else { return Vec::new() };
    let certificates = format!("--tls-certificates={}", pki.server);
    vec!["--tls=require".into(), certificates]
}

fn qemu(image: &str, pass: &str, socket: &Path, tls: Option<&Pki>) -> Command {
    let mut qemu = qemu_disk(image, pass);
    let mut server = format!("addr.type=unix,addr.path={}", socket.display());
    if let Some(pki) = tls {
        qemu.args(["--object", &pki.qemu_server(false)]);
        server.push_str(",tls-creds=tls");
    }
    qemu.args(["--nbd-server", &server]);
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
    on: Conditions,
) -> Result<Peer> {
    tools::need(&command.get_program().to_string_lossy())?;
    let mut command = pinned(command, on.cpu);
    // Left by the same server in another placement.
    let _ = fs::remove_file(socket);
    let log = socket.with_extension("log");
    let err = File::create(&log)?;
    command.stdout(err.try_clone()?).stderr(err);
    let child = command.spawn().with_context(|| format!("{name} does not start"))?;
    let uri = match on.tls {
        Some(_) => Pki::uri_for_fio(socket, export),
        None => format!("nbd+unix:///{export}?socket={}", socket.display()),
    };
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
