//! Several paths to one disk: two servers of one image, ours or others, under a multipath line.
//! They are killed with `kill -9` and restarted, one by one and both at once, while fio writes and
//! verifies; fio must see no error and no wrong byte. The page cache outlives the servers, as
//! `unflushed=trust` declares.

use crate::cases::Cases;
use crate::lab::Lab;
use crate::process::{Watched, until};
use crate::tools;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const IMAGE_MIB: u32 = 24;
const OPEN_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two changes of a path.
const PAUSE: Duration = Duration::from_millis(150);

/// Program behind a path.
#[derive(Clone, Copy)]
enum Kind {
    Blockyard,
    Nbdkit,
    QemuNbd,
    QemuStorageDaemon,
}

/// Server and path selector of each case.
const KINDS: &[(&str, Kind, &str)] = &[
    ("blockyard, bios", Kind::Blockyard, "queue_mode bio"),
    ("blockyard, requests", Kind::Blockyard, "queue_mode mq"),
    ("nbdkit, bios", Kind::Nbdkit, "queue_mode bio"),
    ("nbdkit, requests", Kind::Nbdkit, "queue_mode mq"),
    ("qemu-nbd, requests", Kind::QemuNbd, "queue_mode mq"),
    ("qemu-storage-daemon, requests", Kind::QemuStorageDaemon, "queue_mode mq"),
];

pub(crate) fn run(cases: &mut Cases, lab: &Lab, seconds: u32) {
    let each = seconds.div_ceil(KINDS.len() as u32);
    for (name, kind, mode) in KINDS {
        let name = format!("multipath over two servers that are killed: {name}");
        cases.run(&name, || flapping(lab, *kind, mode, each));
    }
}

/// A server of the image, killed on drop.
pub(super) struct Far {
    child: Child,
}

impl Far {
    fn start(lab: &Lab, kind: Kind, image: &Path, socket: &Path) -> Result<Self> {
        Self::spawn(lab, command(lab, kind, image, socket)?, socket)
    }

    /// Starts a server, and waits until it listens on the socket.
    pub(super) fn spawn(lab: &Lab, mut command: Command, socket: &Path) -> Result<Self> {
        let _ = fs::remove_file(socket);
        let log = File::create(lab.path("far.log"))?;
        command.stdout(Stdio::null()).stderr(log);
        let mut far = Self { child: command.spawn().context("a server does not start")? };
        let opened = until(OPEN_LIMIT, || {
            UnixStream::connect(socket).is_ok() || !matches!(far.child.try_wait(), Ok(None))
        });
        ensure!(
            opened && far.child.try_wait()?.is_none(),
            "a server does not listen: {}",
            fs::read_to_string(lab.path("far.log"))?.trim()
        );
        Ok(far)
    }

    pub(super) fn process(&self) -> Watched {
        Watched(self.child.id())
    }
}

impl Drop for Far {
    /// Sends SIGKILL.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(lab: &Lab, kind: Kind, image: &Path, socket: &Path) -> Result<Command> {
    let image = image.display();
    let door = socket.display().to_string();
    Ok(match kind {
        Kind::Blockyard => {
            let sectors = u64::from(IMAGE_MIB) << 11;
            let table = lab.write("far.table", format!("0 {sectors} linear {image} 0\n"))?;
            let mut command = lab.blockyard(&["serve", "--shared", "--socket", &door, "--table"]);
            command.arg(table);
            command
        }
        Kind::Nbdkit => {
            tools::need("nbdkit")?;
            let mut command = tools::daemon("nbdkit");
            command.args(["-f", "-U", &door, "file", &image.to_string()]);
            command
        }
        Kind::QemuNbd => {
            tools::need("qemu-nbd")?;
            let mut command = tools::daemon("qemu-nbd");
            let file = format!("driver=raw,file.driver=file,file.filename={image}");
            command.args(["-t", "-e", "8", "-k", &door, "--image-opts"]);
            command.arg(format!("{file},file.locking=off"));
            command
        }
        Kind::QemuStorageDaemon => {
            tools::need("qemu-storage-daemon")?;
            let mut command = tools::daemon("qemu-storage-daemon");
            let file = format!("driver=file,node-name=disk,filename={image},locking=off");
            command.args(["--blockdev", &file, "--nbd-server"]);
            command.arg(format!("addr.type=unix,addr.path={door}"));
            command.args(["--export", "type=nbd,id=e,node-name=disk,writable=on"]);
            command
        }
    })
}

fn flapping(lab: &Lab, kind: Kind, mode: &str, seconds: u32) -> Result<String> {
    tools::need("fio")?;
    let image = lab.path("paths.img");
    File::create(&image)?.set_len(u64::from(IMAGE_MIB) << 20)?;
    lab.give(&image)?;
    let sockets: [PathBuf; 2] = ["a", "b"].map(|name| lab.path(&format!("path-{name}.sock")));
    let start = |path: usize| {
        let far = Far::start(lab, kind, &image, &sockets[path])?;
        // The server above runs as another user.
        lab.give(&sockets[path])?;
        anyhow::Ok(far)
    };
    let mut servers = [Some(start(0)?), Some(start(1)?)];
    let export = if matches!(kind, Kind::QemuStorageDaemon) { "disk" } else { "" };
    let uri = |socket: &PathBuf| {
        format!("nbd+unix:///{export}?socket={}&unflushed=trust", socket.display())
    };
    let a = uri(&sockets[0]);
    let b = uri(&sockets[1]);
    let sectors = u64::from(IMAGE_MIB) << 11;
    let features = format!("3 queue_if_no_path {mode}");
    let line = format!("0 {sectors} multipath {features} 0 1 1 service-time 0 2 0 {a} {b}");
    let table = lab.write("paths.table", format!("{line}\n"))?;
    let near = lab.serve("near", &["--table".into(), table.display().to_string()])?;

    // This thread starts the servers and outlives them: nbdkit ends with the thread that started it
    // (`PR_SET_PDEATHSIG`).
    let uri = near.uri();
    let (kills, passes) = thread::scope(|scope| {
        let verifier = scope.spawn(|| verify(lab, &uri, seconds));
        let mut kills = 0;
        while !verifier.is_finished() {
            // One, the other, both.
            for which in [&[0][..], &[1], &[0, 1]] {
                thread::sleep(PAUSE);
                for &path in which {
                    servers[path] = None;
                    kills += 1;
                }
                thread::sleep(PAUSE);
                for &path in which {
                    servers[path] = Some(start(path)?);
                }
            }
        }
        anyhow::Ok((kills, verifier.join().expect("it does not panic")?))
    })?;
    near.stop()?;
    Ok(format!("{passes} passes of fio, {kills} kills"))
}

fn verify(lab: &Lab, uri: &str, seconds: u32) -> Result<u32> {
    let start = Instant::now();
    let mut passes = 0;
    while start.elapsed().as_secs() < u64::from(seconds) {
        let mut fio = tools::tool("fio");
        fio.args(["--name=paths", "--ioengine=nbd", "--rw=randwrite", "--iodepth=16"]);
        fio.args(["--bsrange=512-256k", "--bs_unaligned=0", "--blockalign=512", "--numjobs=4"]);
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--fsync=50"]);
        fio.args(["--verify_dump=0", "--size=6m", "--offset_increment=6m", "--group_reporting"]);
        fio.args(["--output-format=json"]);
        fio.arg(format!("--uri={uri}")).arg(format!("--randseed={}", passes + 1));
        let output = tools::run(fio.current_dir(lab.dir()))?;
        let job = crate::bench::fio::job(&tools::text(&output.stdout))?;
        ensure!(job["error"] == 0, "fio error {}", job["error"]);
        passes += 1;
    }
    Ok(passes)
}
