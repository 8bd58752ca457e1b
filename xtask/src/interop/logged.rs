//! A real file system on a volume that logs its writes. A replay of the log to each flush and each
//! FUA write gives a device after a power cut. The kernel must mount it, e2fsck must find no errors
//! after that, and each file that was synced until then must be intact.
//!
//! The kernel of this machine has ext4 on a loop device over the file of `nbdfuse`, which passes
//! `fsync` on as a flush. User-Mode Linux cannot do that: its ubd disk drops flushes (seen in 6.1).

use crate::backing::LoopDevice;
use crate::cases::Cases;
use crate::lab::{Door, Lab, Server};
use crate::nbd::{FLAG_FUA, Range, Raw, WRITE};
use crate::process::until;
use crate::tools;
use crate::volume::noise;
use anyhow::{Context, Result, anyhow, ensure};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread;
use std::time::Duration;

/// Size of the file system: the smallest with a journal and room for all files.
const FS_BYTES: usize = 8 << 20;
/// Number of threads that write and sync at the same time, each in a directory of its own.
const CLIENTS: usize = 3;
/// Rounds of each thread; a round syncs a few files and writes a promise.
const ROUNDS: usize = 6;
/// Size of a promise: a block after the file system, written when a round's syncs have ended.
const PROMISE_BYTES: usize = 4096;
/// Number of promises: one for each round of each thread, and the first for the new file system.
const PROMISES: usize = 1 + CLIENTS * ROUNDS;
const DEVICE_BYTES: usize = FS_BYTES + PROMISES * PROMISE_BYTES;

/// Flags of a log entry, as in `drivers/md/dm-log-writes.c`.
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const SECTOR_BYTES: usize = 512;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    let name = "ext4 recovers from its log at every flush, and every synced file is there";
    cases.run(name, || {
        if !LoopDevice::available() {
            return Ok("this machine has no loop device".into());
        }
        let log = write(lab)?;
        replay(lab, &log)
    });
}

/// Runs the clients; returns the log.
fn write(lab: &Lab) -> Result<Vec<u8>> {
    lab.write("logged.img", vec![0; DEVICE_BYTES])?;
    let log = lab.write("logged.writes", [])?;
    let sectors = DEVICE_BYTES / SECTOR_BYTES;
    let table = format!("0 {sectors} log-writes logged.img logged.writes\n");
    let table = lab.write("logged.table", table)?;
    let socket = lab.path("logged.sock");
    let mut serve = lab.blockyard(&["serve", "--table"]);
    serve.arg(table).arg("--socket").arg(&socket);
    let server = lab.start("logged", serve, Door::Unix(socket))?;
    let shown = Shown::start(lab, &server)?;
    let device = LoopDevice::attach(&shown.file, &[])?;
    make_ext4(&device)?;
    let mounted = Mounted::mount(&device, lab.path("logged.fs"))?;
    for client in 0..CLIENTS {
        fs::create_dir(mounted.directory(client))?;
    }
    File::open(&mounted.at)?.sync_all()?;
    promise(&mut Raw::connect(server.socket())?, 0)?;
    thread::scope(|scope| {
        let start = |client| {
            let dir = mounted.directory(client);
            let socket = server.socket();
            scope.spawn(move || sync_often(&dir, socket, client))
        };
        let clients: Vec<_> = (0..CLIENTS).map(start).collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    mounted.unmount()?;
    drop(device);
    drop(shown);
    server.stop()?;
    Ok(fs::read(log)?)
}

fn make_ext4(device: &LoopDevice) -> Result<()> {
    let mut make = tools::tool("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1"]);
    make.args(["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]);
    make.arg(&device.path).arg(format!("{}K", FS_BYTES >> 10));
    tools::run(&mut make).map(drop)
}

fn content(client: usize, round: usize) -> Vec<u8> {
    noise((client * ROUNDS + round) as u64, 7001 * round)
}

/// Syncs a new file, a replaced one and a growing one, among files without a sync.
fn sync_often(dir: &Path, socket: &Path, client: usize) -> Result<()> {
    let mut raw = Raw::connect(socket)?;
    for round in 1..=ROUNDS {
        let bytes = content(client, round);
        fs::write(dir.join(format!("unsynced-{round}")), &bytes)?;
        if round > 2 {
            fs::remove_file(dir.join(format!("unsynced-{}", round - 2)))?;
        }
        synced(File::create(dir.join(format!("new-{round}")))?, &bytes)?;
        synced(File::create(dir.join("latest.new"))?, &bytes)?;
        fs::rename(dir.join("latest.new"), dir.join("latest"))?;
        File::open(dir)?.sync_all()?;
        synced(File::options().create(true).append(true).open(dir.join("grown"))?, &bytes)?;
        promise(&mut raw, client * ROUNDS + round)?;
    }
    Ok(())
}

fn synced(mut file: File, bytes: &[u8]) -> Result<()> {
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

/// Writes the promise's block with FUA, so that it follows the synced data in the log.
fn promise(raw: &mut Raw, number: usize) -> Result<()> {
    let offset = (FS_BYTES + number * PROMISE_BYTES) as u64;
    let at = Range { offset, len: u32::try_from(PROMISE_BYTES)? };
    raw.send_flagged(WRITE, FLAG_FUA, 1, at, &noise(offset, PROMISE_BYTES))?;
    let (_, error) = raw.reply()?;
    ensure!(error == 0, "a promise was not written: error {error}");
    Ok(())
}

/// Checks the state of the device after every possible power cut.
fn replay(lab: &Lab, log: &[u8]) -> Result<String> {
    let mut device = vec![0; DEVICE_BYTES];
    // Rounds that each thread has promised; `None` before the file system is made.
    let mut promised: Option<[usize; CLIENTS]> = None;
    let mut states = 0;
    let mut flushes = 0;
    let mut is_changed = false;
    let entries = entries(log)?;
    for (index, entry) in entries.iter().enumerate() {
        let range = entry.at..entry.at + entry.len;
        ensure!(range.end <= DEVICE_BYTES, "entry {index} is behind the end of the device");
        match entry.bytes {
            Some(bytes) => device[range].copy_from_slice(bytes),
            None => device[range].fill(0),
        }
        is_changed |= entry.len > 0;
        flushes += u32::from(entry.flags & FLUSH != 0);
        if let Some(number) = entry.promise() {
            ensure!(entry.flags & FUA != 0, "entry {index}, a FUA write, has no flag for it");
            let promised = promised.get_or_insert_default();
            if number > 0 {
                promised[(number - 1) / ROUNDS] = (number - 1) % ROUNDS + 1;
            }
        }
        if let Some(promised) = promised
            && is_changed
            && entry.flags & (FLUSH | FUA) != 0
        {
            check(lab, &device[..FS_BYTES], &promised).with_context(|| {
                format!("replayed to entry {index} of {}: {promised:?} promised", entries.len())
            })?;
            (states, is_changed) = (states + 1, false);
        }
    }
    ensure!(promised == Some([ROUNDS; CLIENTS]), "the log has not all promises: {promised:?}");
    Ok(format!("{states} states of {} entries with {flushes} flushes", entries.len()))
}

/// Mounts the state, checks the promised files, and runs e2fsck.
fn check(lab: &Lab, state: &[u8], promised: &[usize]) -> Result<()> {
    let image = lab.path("state.img");
    fs::write(&image, state)?;
    let device = LoopDevice::attach(&image, &[])?;
    let mounted = Mounted::mount(&device, lab.path("state.fs"))?;
    for (client, rounds) in promised.iter().enumerate() {
        check_files(&mounted.directory(client), client, *rounds)
            .with_context(|| format!("client {client}"))?;
    }
    mounted.unmount()?;
    drop(device);
    tools::run(tools::tool("e2fsck").arg("-fn").arg(&image)).map(drop)
}

fn check_files(dir: &Path, client: usize, rounds: usize) -> Result<()> {
    let read = |name: &str| fs::read(dir.join(name)).with_context(|| name.to_owned());
    let mut grown = Vec::new();
    for round in 1..=rounds {
        let bytes = content(client, round);
        let new = format!("new-{round}");
        ensure!(read(&new)? == bytes, "{new} holds other bytes");
        grown.extend(bytes);
    }
    if rounds > 0 {
        ensure!(read("grown")?.starts_with(&grown), "grown has lost bytes");
        let latest = read("latest")?;
        let is_whole = (rounds..=ROUNDS).any(|round| latest == content(client, round));
        ensure!(is_whole, "latest is older than promised, or not whole");
    }
    Ok(())
}

/// An entry of the log.
struct Entry<'a> {
    /// Offset in bytes, as the length.
    at: usize,
    len: usize,
    flags: u64,
    /// `None` for a discard.
    bytes: Option<&'a [u8]>,
}

impl Entry<'_> {
    /// Number of the promise that the entry writes.
    fn promise(&self) -> Option<usize> {
        let behind = self.at.checked_sub(FS_BYTES)?;
        (self.len > 0).then_some(behind / PROMISE_BYTES)
    }
}

/// Parses the log by the kernel's description, independently of our own reader.
fn entries(log: &[u8]) -> Result<Vec<Entry<'_>>> {
    let word = |at: usize| -> Result<usize> {
        let bytes = log.get(at..at + 8).context("the log ends early")?;
        Ok(usize::try_from(u64::from_le_bytes(bytes.try_into()?))?)
    };
    let mut entries = Vec::new();
    let mut next = SECTOR_BYTES;
    for _ in 0..word(16)? {
        let at = word(next)? * SECTOR_BYTES;
        let len = word(next + 8)? * SECTOR_BYTES;
        let flags = word(next + 16)? as u64;
        next += SECTOR_BYTES;
        let bytes = match flags & DISCARD {
            0 => Some(log.get(next..next + len).context("the log ends early")?),
            _ => None,
        };
        next += bytes.map_or(0, <[u8]>::len);
        entries.push(Entry { at, len, flags, bytes });
    }
    Ok(entries)
}

/// A server's export as a file; removed on drop.
struct Shown {
    process: Child,
    dir: PathBuf,
    file: PathBuf,
}

impl Shown {
    fn start(lab: &Lab, server: &Server) -> Result<Shown> {
        tools::need("nbdfuse")?;
        tools::need("fusermount3")?;
        let dir = lab.path("logged.shown");
        fs::create_dir_all(&dir)?;
        let file = dir.join("volume");
        let mut command = tools::daemon("nbdfuse");
        command.arg("--connections=4").arg(&file).arg("--unix").arg(server.socket());
        let shown = Shown { process: command.spawn()?, dir, file };
        ensure!(until(Duration::from_secs(10), || shown.file.exists()), "nbdfuse shows nothing");
        Ok(shown)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let _ = tools::run(tools::tool("fusermount3").args(["-u", "-z", "-q"]).arg(&self.dir));
        let _ = self.process.wait();
    }
}

/// A mounted file system; unmounted on drop.
struct Mounted {
    at: PathBuf,
}

impl Mounted {
    fn mount(device: &LoopDevice, at: PathBuf) -> Result<Mounted> {
        fs::create_dir_all(&at)?;
        tools::run(tools::tool("mount").args(["-t", "ext4"]).arg(&device.path).arg(&at))?;
        Ok(Mounted { at })
    }

    fn directory(&self, client: usize) -> PathBuf {
        self.at.join(format!("client-{client}"))
    }

    fn unmount(self) -> Result<()> {
        tools::run(tools::tool("umount").arg(&self.at)).map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // After `unmount` this has no effect.
        let _ = tools::output(tools::tool("umount").args(["-q", "-l"]).arg(&self.at));
    }
}
