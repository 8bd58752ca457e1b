//! A failing NBD server below: qemu-nbd on a disk that refuses one kind of request forever (its
//! driver blkdebug), and a stopped qemu-nbd. Affected requests must fail soon, and all others must
//! succeed.

use super::paths::Far;
use crate::cases::Cases;
use crate::lab::{Lab, Server};
use crate::nbd::{FLUSH, READ, Range, Raw, TRIM, WRITE, WRITE_ZEROES};
use crate::tools;
use crate::volume::noise;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 16 << 20;
/// A refused range, and an accepted one.
const BAD: Range = Range { offset: 4 << 20, len: 65536 };
const GOOD: Range = Range { offset: 1 << 20, len: 65536 };

const EIO: u32 = 5;
/// Time limit: three connections that are lost at once, with growing pauses up to 2 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// `timeout=` of the stopped server. The last flush tries to connect for 10 s more.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A request, and its name in blkdebug.
struct Kind {
    name: &'static str,
    command: u16,
    iotype: &'static str,
}

const fn kind(name: &'static str, command: u16, iotype: &'static str) -> Kind {
    Kind { name, command, iotype }
}

const KINDS: &[Kind] = &[
    kind("READ", READ, "read"),
    kind("WRITE", WRITE, "write"),
    kind("FLUSH", FLUSH, "flush"),
    kind("TRIM", TRIM, "discard"),
    kind("WRITE_ZEROES", WRITE_ZEROES, "write-zeroes"),
];

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    for kind in KINDS {
        let name = format!("qemu-nbd whose disk fails each {} gives an error, soon", kind.name);
        cases.run(&name, || refused(lab, kind));
    }
    cases.run("SIGTERM while requests wait for a qemu-nbd that is stopped", || stopped(lab));
}

impl Kind {
    /// Sends the request without waiting for the reply.
    fn send(&self, client: &mut Raw, cookie: u64, at: Range) -> Result<()> {
        let payload = if self.command == WRITE { vec![0x5a; at.len as usize] } else { Vec::new() };
        let at = if self.command == FLUSH { Range { offset: 0, len: 0 } } else { at };
        client.send(self.command, cookie, at, &payload)
    }
}

/// qemu-nbd with a fresh disk.
struct Below {
    far: Far,
    socket: PathBuf,
}

impl Below {
    /// Starts a server whose disk fails the kinds of request in this blkdebug rule.
    fn start(lab: &Lab, rule: &str) -> Result<Self> {
        let image = lab.path("failing.img");
        let socket = lab.path("failing.sock");
        // qemu-nbd does not read holes from the disk.
        fs::write(&image, noise(7, usize::try_from(DISK_BYTES)?))?;
        tools::need("qemu-nbd")?;
        let mut command = tools::daemon("qemu-nbd");
        let disk = format!("file.driver=blkdebug,file.image.driver=file{rule}");
        let file = format!("file.image.filename={},file.image.discard=unmap", image.display());
        command.args(["-t", "-e", "8", "--discard=unmap", "-k"]).arg(&socket);
        command.arg("--image-opts").arg(format!("driver=raw,discard=unmap,{disk},{file}"));
        let far = Far::spawn(lab, command, &socket)?;
        // The server above runs as another user.
        lab.give(&socket)?;
        Ok(Self { far, socket })
    }

    /// Serves it through our server.
    fn serve(&self, lab: &Lab, parameters: &str) -> Result<Server> {
        let sectors = DISK_BYTES / 512;
        let uri = format!("nbd+unix:///?socket={}{parameters}", self.socket.display());
        let table = lab.write("failing.table", format!("0 {sectors} linear {uri} 0\n"))?;
        lab.serve("failing-near", &["--table".into(), table.display().to_string()])
    }
}

fn refused(lab: &Lab, kind: &Kind) -> Result<String> {
    let sector = match kind.command {
        FLUSH => String::new(),
        _ => format!(",file.inject-error.0.sector={}", BAD.offset / 512),
    };
    let rule = format!(
        ",file.inject-error.0.event=none,file.inject-error.0.iotype={}\
         ,file.inject-error.0.errno={EIO},file.inject-error.0.once=off{sector}",
        kind.iotype
    );
    let below = Below::start(lab, &rule)?;
    let mut near = below.serve(lab, "")?;
    let mut client = Raw::connect(near.socket())?;
    // qemu flushes a disk only after a write.
    client.write(GOOD.offset, &vec![0xa5; GOOD.len as usize]).context("a good write")?;
    if kind.command != FLUSH {
        client.flush().context("a good flush")?;
    }
    let mut longest = Duration::ZERO;
    for round in 0..3 {
        let start = Instant::now();
        kind.send(&mut client, 1, BAD)?;
        let (_, error) = client.reply().with_context(|| format!("round {round}"))?;
        longest = longest.max(start.elapsed());
        ensure!(error == EIO, "round {round}: error {error} instead of {EIO}");
    }
    ensure!(longest < ANSWER_LIMIT, "the error came after {longest:?}");
    // Other requests succeed; after a failed flush that is reads.
    client.read(GOOD.offset, GOOD.len).context("a good read")?;
    if kind.command == FLUSH {
        near.process().signal(Signal::SIGTERM)?;
        let status = near.wait()?;
        ensure!(!status.success(), "a failed flush, and the server ends with {status}");
    } else {
        client.write(GOOD.offset, &vec![0x3c; GOOD.len as usize]).context("a later write")?;
        client.flush().context("a later flush")?;
        near.stop()?;
    }
    Ok(format!("after {} ms at most", longest.as_millis()))
}

fn stopped(lab: &Lab) -> Result<String> {
    let below = Below::start(lab, "")?;
    let mut near = below.serve(lab, &format!("&timeout={}", TIMEOUT.as_secs()))?;
    let mut client = Raw::connect(near.socket())?;
    client.read(GOOD.offset, GOOD.len).context("before it is stopped")?;
    below.far.process().pause()?;
    for (cookie, kind) in (0..).zip(KINDS) {
        kind.send(&mut client, cookie, Range { offset: cookie << 20, ..GOOD })?;
        if cookie == 0 {
            // The request has arrived once the next one is refused. The others are received by the
            // end at the latest.
            client.send(u16::MAX, u64::MAX, GOOD, &[])?;
            let (cookie, error) = client.reply()?;
            ensure!(cookie == u64::MAX && error != 0, "reply to {cookie} with error {error}");
        }
    }
    let start = Instant::now();
    near.process().signal(Signal::SIGTERM)?;
    let mut failed = BTreeSet::new();
    for _ in KINDS {
        let (cookie, error) = client.reply()?;
        ensure!(error == EIO, "reply to {cookie} with error {error}");
        failed.insert(cookie);
    }
    let answered = start.elapsed();
    ensure!(failed.len() == KINDS.len(), "two replies of one request: {failed:?}");
    ensure!(answered < TIMEOUT + ANSWER_LIMIT, "the errors came after {answered:?}");
    near.wait()?;
    let answered = answered.as_secs_f64();
    let ended = start.elapsed().as_secs_f64();
    Ok(format!("{} errors after {answered:.1} s, ended after {ended:.1} s", failed.len()))
}
