//! Volumes in files of GlusterFS: one brick and two of its mounts, on this machine, by volume files
//! that are written by hand. docs/remote.md has the recipe.

use super::content::{fill, read, same};
use super::stores::{Mounted, Running, free_port, holds, is_mounted, listens};
use crate::cases::Cases;
use crate::lab::{Lab, Server};
use crate::nbd::{Range, Raw, TRIM};
use crate::process::until;
use crate::tools;
use crate::volume::{noise, sparse};
use anyhow::{Result, ensure};
use nix::unistd::Uid;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::scope;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const SIZE_BYTES: u64 = 24 << 20;
/// Length of a write, of which each is flushed.
const STEP_BYTES: usize = 64 << 10;
/// Flushed writes before the brick is killed.
const STEPS: usize = 40;

pub(super) fn run(cases: &mut Cases, lab: &Lab) {
    for (name, case) in [
        ("a volume on GlusterFS", stored as fn(&Lab) -> Result<String>),
        ("a volume on GlusterFS whose brick is killed under load", lost),
    ] {
        cases.run(name, || {
            if Uid::effective().is_root() {
                return case(lab);
            }
            Ok("skipped, a brick needs root for its extended attributes".into())
        });
    }
}

/// The top of a brick, as the `gluster` command makes it but for what needs the other daemons.
fn brick_file(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    format!(
        "volume files\ntype storage/posix\noption directory {folder}\nend-volume\n\
         volume brick\ntype features/locks\nsubvolumes files\nend-volume\n\
         volume server\ntype protocol/server\noption transport-type tcp\n\
         option transport.socket.listen-port {port}\n\
         option transport.socket.bind-address 127.0.0.1\n\
         option auth.addr.brick.allow 127.0.0.1\nsubvolumes brick\nend-volume\n"
    )
}

fn mount_file(port: u16) -> String {
    format!(
        "volume mount\ntype protocol/client\noption transport-type tcp\n\
         option remote-host 127.0.0.1\noption remote-port {port}\n\
         option remote-subvolume brick\noption strict-locks on\nend-volume\n"
    )
}

/// A brick and its port.
struct Brick<'a> {
    lab: &'a Lab,
    folder: PathBuf,
    port: u16,
    _running: Running,
}

impl<'a> Brick<'a> {
    fn start(lab: &'a Lab, folder: PathBuf, port: u16) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        let graph = lab.path("brick.vol");
        fs::write(&graph, brick_file(&folder, port))?;
        let mut daemon = tools::daemon("glusterfsd");
        daemon.arg("-N").arg("-f").arg(graph).arg("-l").arg(lab.path("brick.log"));
        let running = Running::start(daemon, &lab.path("brick.out"))?;
        listens(port)?;
        Ok(Self { lab, folder, port, _running: running })
    }

    fn new(lab: &'a Lab, name: &str) -> Result<Self> {
        Self::start(lab, lab.disk().join(name), free_port()?)
    }

    /// Kills the brick.
    fn kill(self) -> impl FnOnce() -> Result<Self> {
        let Self { lab, folder, port, _running } = self;
        drop(_running);
        move || Self::start(lab, folder, port)
    }

    /// Mounts it at this place.
    fn mount(&self, place: &Path) -> Result<Running> {
        fs::create_dir_all(place)?;
        let graph = self.lab.path("mount.vol");
        fs::write(&graph, mount_file(self.port))?;
        let mut daemon = tools::daemon("glusterfs");
        daemon.arg("-N").arg("-f").arg(graph).arg("-l").arg(place.with_extension("log"));
        daemon.arg(place);
        let running = Running::start(daemon, &place.with_extension("out"))?;
        is_mounted(place)?;
        Ok(running)
    }
}

/// A file for a volume; returns its name.
fn file(mount: &Path, name: &str) -> Result<String> {
    let path = mount.join(name);
    sparse(&path, SIZE_BYTES)?;
    fs::set_permissions(&path, Permissions::from_mode(0o666))?;
    Ok(path.display().to_string())
}

/// Serves a volume without a header.
fn serve(lab: &Lab, name: &str, disk: &str, more: &[&str]) -> Result<Server> {
    let key = lab.write("gluster.key", noise(3, 32))?.display().to_string();
    let plain = ["--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "256"];
    let sectors = ["--sector-size", "4096", "--key-file", &key];
    lab.serve(name, &[&[disk][..], &plain, &sectors, more].concat())
}

fn refused(outcome: Result<Server>) -> Result<()> {
    let Err(error) = outcome else { anyhow::bail!("a second server has opened it for writing") };
    ensure!(format!("{error:#}").contains("another program"), "{error:#}");
    Ok(())
}

/// A second server of a LUKS volume is refused: the first one has read the header, and released its
/// lock. A resize that shrinks holds the lock of the volume and that of the header, which are one
/// here.
fn keeps_lock(lab: &Lab, luks: &str, same: &str) -> Result<()> {
    let pass = lab.pass().display().to_string();
    let server = lab.serve("luks-first", &[luks, "--key-file", &pass])?;
    refused(lab.serve("luks-second", &[same, "--key-file", &pass]))?;
    server.stop()?;
    tools::run(&mut lab.blockyard(&["resize", luks, "--size", "2048", "-q"])).map(drop)
}

/// Bytes, past the page cache too; the lock through another mount; and blocks that are dropped.
fn stored(lab: &Lab) -> Result<String> {
    let brick = Brick::new(lab, "brick")?;
    let [one, two] = ["gluster-one", "gluster-two"].map(|name| lab.path(name));
    let _programs = [brick.mount(&one)?, brick.mount(&two)?];
    let _mounts = [Mounted(&one), Mounted(&two)];
    let luks = file(&one, "luks")?;
    holds(lab, &luks)?;
    keeps_lock(lab, &luks, &two.join("luks").display().to_string())?;
    let disk = file(&one, "disk")?;
    let same_disk = two.join("disk").display().to_string();
    let options = ["--elevator", "mq-deadline", "--allow-discards"];
    let server = serve(lab, "first", &disk, &options)?;
    let bytes = fill(server.socket(), 4)?;
    refused(serve(lab, "second", &same_disk, &[]))?;
    let blocks = || Ok::<_, std::io::Error>(fs::metadata(brick.folder.join("disk"))?.blocks());
    let before = blocks()?;
    let at = Range { offset: 0, len: 8 << 20 };
    Raw::connect(server.socket())?.call(TRIM, at, &[])?;
    let dropped = (before - blocks()?) * 512;
    ensure!(dropped == 8 << 20, "the brick has dropped {dropped} bytes of 8 MiB");
    server.stop()?;
    let server = serve(lab, "second", &same_disk, &[])?;
    same(&read(server.socket())?[8 << 20..], &bytes[8 << 20..])?;
    server.stop()?;
    Ok("every byte, with O_DIRECT too; the lock is seen by another mount, and discards go on"
        .into())
}

/// Writes and flushes until an error; returns the number of flushed writes.
fn load(server: &Server, bytes: &[u8], is_warm: impl Fn()) -> Result<usize> {
    let mut client = Raw::connect(server.socket())?;
    for (at, step) in bytes.chunks(STEP_BYTES).enumerate() {
        if client.write((at * STEP_BYTES) as u64, step).and_then(|()| client.flush()).is_err() {
            return Ok(at);
        }
        if at == STEPS {
            is_warm();
        }
    }
    anyhow::bail!("no write has failed")
}

/// The writes of the lost brick fail, and its lock goes with it: the first server never writes
/// again, and a second one has what was flushed.
fn lost(lab: &Lab) -> Result<String> {
    let brick = Brick::new(lab, "lost")?;
    let [one, two] = ["lost-one", "lost-two"].map(|name| lab.path(name));
    let _programs = [brick.mount(&one)?, brick.mount(&two)?];
    let _mounts = [Mounted(&one), Mounted(&two)];
    let first = serve(lab, "first", &file(&one, "disk")?, &[])?;
    let bytes = noise(8, usize::try_from(SIZE_BYTES)?);
    let (warm, is_warm) = std::sync::mpsc::channel();
    let (flushed, again) = scope(|threads| {
        let load = threads.spawn(|| load(&first, &bytes, || warm.send(()).unwrap_or_default()));
        is_warm.recv_timeout(LIMIT)?;
        let again = brick.kill();
        anyhow::Ok((load.join().expect("the load does not panic")?, again))
    })?;
    let _brick = again()?;
    let same_disk = two.join("disk");
    for mount in [&one, &two] {
        let opens = until(LIMIT, || fs::File::open(mount.join("disk")).is_ok());
        ensure!(opens, "{} does not come back", mount.display());
    }
    let second = serve(lab, "second", &same_disk.display().to_string(), &[])?;
    let len = flushed * STEP_BYTES;
    same(&read(second.socket())?[..len], &bytes[..len])?;
    let mut client = Raw::connect(first.socket())?;
    ensure!(client.write(0, &noise(9, STEP_BYTES)).is_err(), "a write without the lock");
    ensure!(client.flush().is_err(), "a flush after lost writes");
    ensure!(first.stop().is_err(), "the first server ends as if nothing had happened");
    same(&read(second.socket())?[..len], &bytes[..len])?;
    second.stop()?;
    Ok(format!("{flushed} flushed writes are there, and the first server writes nothing more"))
}
