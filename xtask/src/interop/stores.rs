//! Volumes on other kinds of remote stores, by the programs that exist for them: iSCSI through
//! qemu-nbd, and S3 through s3backer. Others have files of their own. docs/remote.md has the
//! recipes.

use crate::cases::Cases;
use crate::lab::Lab;
use crate::process::until;
use crate::tools;
use crate::volume::noise;
use anyhow::{Context, Result, ensure};
use nix::unistd::Uid;
use std::fs::{self, File, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

const START_LIMIT: Duration = Duration::from_secs(20);
/// With the header, the size of each disk.
const SIZE_BYTES: u64 = 24 << 20;

pub(super) fn run(cases: &mut Cases, lab: &Lab) {
    cases.run("a volume on an iSCSI target, through qemu-nbd", || iscsi(lab));
    cases.run("a volume on S3, through s3backer", || s3(lab));
}

/// A program that runs until the value is dropped.
pub(super) struct Running(Child);

impl Running {
    pub(super) fn start(mut command: Command, log: &Path) -> Result<Self> {
        let log = File::create(log)?;
        command.stdout(log.try_clone()?).stderr(log);
        let program = command.get_program().to_string_lossy().into_owned();
        tools::need(&program)?;
        Ok(Self(command.spawn().context(program)?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount that is removed when the value is dropped.
pub(super) struct Mounted<'a>(pub(super) &'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = tools::run(tools::tool("umount").arg("--lazy").arg(self.0));
    }
}

/// Makes a volume, fills it, serves it, and compares what a client and `dump` read.
pub(super) fn holds(lab: &Lab, disk: &str) -> Result<()> {
    let pass = lab.pass().display().to_string();
    let cheap = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];
    let words = ["format", disk, "--key-file", &pass, "--force"];
    tools::run(&mut lab.blockyard(&[&words[..], &cheap].concat()))?;
    let bytes = noise(5, usize::try_from(SIZE_BYTES)? - (16 << 20));
    let plain = lab.write("store.plain", &bytes)?.display().to_string();
    tools::run(&mut lab.blockyard(&["load", disk, "--key-file", &pass, "--input", &plain]))?;
    let server = lab.serve("store", &[disk, "--key-file", &pass])?;
    super::content::same(&super::content::read(server.socket())?, &bytes)?;
    server.stop()?;
    let out = lab.path("store.dump");
    let _ = fs::remove_file(&out);
    let name = out.display().to_string();
    tools::run(&mut lab.blockyard(&["dump", disk, "--key-file", &pass, "--output", &name]))?;
    super::content::same(&fs::read(out)?, &bytes)
}

pub(super) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

pub(super) fn listens(port: u16) -> Result<()> {
    let opened = until(START_LIMIT, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    ensure!(opened, "nothing listens on port {port}");
    Ok(())
}

fn sized(path: &Path) -> Result<()> {
    File::create(path)?.set_len(SIZE_BYTES)?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o666))?)
}

fn iscsi(lab: &Lab) -> Result<String> {
    const TARGET: &str = "iqn.2026-11.example:disk";
    let port = free_port()?;
    // The name of its control socket, at most 32767.
    let control = (port / 2).to_string();
    let image = lab.path("lun.img");
    sized(&image)?;
    let mut tgtd = tools::daemon("tgtd");
    tgtd.args(["-f", "--control-port", &control, "--iscsi"]);
    tgtd.arg(format!("portal=127.0.0.1:{port}"));
    let _target = Running::start(tgtd, &lab.path("tgtd.log"))?;
    listens(port)?;
    let image = image.display().to_string();
    for words in [
        &["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET][..],
        &["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &image],
        &["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"],
    ] {
        let mut tgtadm = tools::tool("tgtadm");
        tgtadm.args(["--control-port", &control, "--lld", "iscsi"]).args(words);
        tools::run(&mut tgtadm)?;
    }
    let socket = lab.path("iscsi.sock");
    let mut qemu = tools::daemon("qemu-nbd");
    qemu.args(["--persistent", "--format", "raw", "--cache", "none", "--aio", "threads"]);
    qemu.arg("--socket").arg(&socket);
    qemu.arg(format!("iscsi://127.0.0.1:{port}/{TARGET}/1"));
    let _nbd = Running::start(qemu, &lab.path("iscsi.log"))?;
    let opened = until(START_LIMIT, || UnixStream::connect(&socket).is_ok());
    ensure!(opened, "{}", fs::read_to_string(lab.path("iscsi.log"))?.trim());
    fs::set_permissions(&socket, Permissions::from_mode(0o666))?;
    holds(lab, &format!("nbd+unix:///?socket={}", socket.display()))?;
    Ok("every byte".into())
}

pub(super) fn is_mounted(place: &Path) -> Result<()> {
    let name = place.display().to_string();
    let mounted = until(START_LIMIT, || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        mounts.lines().any(|line| line.split(' ').nth(1) == Some(&name))
    });
    ensure!(mounted, "{name} is not mounted");
    Ok(())
}

/// s3backer with a folder as the bucket (`--test`).
fn s3(lab: &Lab) -> Result<String> {
    let [bucket, place] = ["bucket", "s3"].map(|name| lab.path(name));
    fs::create_dir_all(&bucket)?;
    fs::create_dir_all(&place)?;
    let mut s3backer = tools::daemon("s3backer");
    s3backer.args(["-f", "--test", "--blockSize=1m", "--fileMode=0666", "--minWriteDelay=0"]);
    s3backer.arg(format!("--size={SIZE_BYTES}"));
    if Uid::effective().is_root() {
        s3backer.args(["-o", "allow_other"]);
    }
    s3backer.arg(&bucket).arg(&place);
    let _program = Running::start(s3backer, &lab.path("s3.log"))?;
    let _mounted = Mounted(&place);
    is_mounted(&place)?;
    holds(lab, &place.join("file").display().to_string())?;
    let objects = fs::read_dir(&bucket)?.count();
    ensure!(objects > 8, "{objects} objects of 1 MiB");
    Ok(format!("every byte, in {objects} objects"))
}
