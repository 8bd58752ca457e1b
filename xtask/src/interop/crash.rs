//! `kill -9` under write load, round after round: data acknowledged by a flush must be there.
//!
//! Each connection owns blocks with their number and a generation, and rewrites them repeatedly,
//! many in flight, with a flush between the batches. After the kill and a restart, every block must
//! have the generation of its last flushed write, or of a later write in flight.

use crate::backing::{Backed, Backing};
use crate::cases::Cases;
use crate::lab::{Lab, Server};
use crate::nbd::{FLUSH, Range, Raw, WRITE};
use crate::totals::Totals;
use crate::volume::{Maker, Recipe, noise};
use anyhow::{Result, bail, ensure};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const CONNECTIONS: usize = 4;
const BLOCKS: usize = 64;
const BLOCK_BYTES: usize = 64 << 10;
const SECTOR_BYTES: usize = 512;
const BATCH: usize = 16;

/// One block's history: the last flushed generation, and the last sent one.
#[derive(Clone, Copy, Default)]
struct History {
    flushed: u64,
    sent: u64,
}

/// Backing, sector options, and elevator.
const PLACES: &[(Backing, &str, &str)] = &[
    (Backing::Memory, "", ""),
    (Backing::Memory, "--sector-size 512", ""),
    (Backing::Disk, "", ""),
    (Backing::Direct, "--sector-size 512", ""),
    (Backing::Loop, "", ""),
    (Backing::Disk, "", "--elevator deadline --queue-depth 4"),
    (Backing::Disk, "--sector-size 512", "--elevator cfq"),
    (Backing::Loop, "", "--elevator mq-deadline --max-sectors 256"),
];

pub(crate) fn run(cases: &mut Cases, lab: &Lab, rounds: u32, totals: &mut Totals) {
    let each = rounds.div_ceil(u32::try_from(PLACES.len()).expect("a few"));
    for (backing, options, serve) in PLACES {
        let words = [backing.name(), options, serve].join(" ");
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        let name = format!("kill -9 under load, {each} rounds: {words}");
        cases.run(&name, || {
            let recipe = Recipe { name: "crash", maker: Maker::Blockyard, options };
            match backing.make(lab, &recipe)? {
                Some(volume) => {
                    let said = kill_rounds(lab, &volume, serve, each)?;
                    totals.add("kills", u64::from(each));
                    Ok(said)
                }
                None => Ok("this machine has no loop device".into()),
            }
        });
    }
}

fn kill_rounds(lab: &Lab, volume: &Backed, serve: &str, rounds: u32) -> Result<String> {
    let words: Vec<&str> = serve.split_whitespace().collect();
    let start = || volume.serve_with(lab, &words);
    let mut flushes = 0;
    let mut torn = 0;
    let mut histories = vec![[History::default(); BLOCKS]; CONNECTIONS];
    for round in 0..rounds {
        let (flushed, cut) = one_round(&start, round, &mut histories)?;
        flushes += flushed;
        torn += cut;
    }
    ensure!(flushes > 0, "no flush was ever acknowledged");
    Ok(format!("{flushes} flushes held; {torn} sectors in flight were cut in mid-write"))
}

/// Load, kill, restart, check. Returns the numbers of flushes and of torn sectors.
fn one_round(
    start: &dyn Fn() -> Result<Server>,
    round: u32,
    histories: &mut [[History; BLOCKS]],
) -> Result<(u64, u64)> {
    let server = start()?;
    let socket = server.socket().to_owned();
    let flushes = AtomicU64::new(0);
    thread::scope(|scope| {
        for (owner, history) in histories.iter_mut().enumerate() {
            let socket = &socket;
            let flushes = &flushes;
            scope.spawn(move || {
                // The load ends when the server is gone.
                let _ = write_until_killed(socket, owner, history, flushes);
            });
        }
        // The load itself is the clock: the kill comes after a number of flushes that differs by
        // round.
        let wanted = 20 + u64::from(round % 7) * 9;
        crate::process::until(Duration::from_secs(20), || flushes.load(Ordering::Acquire) > wanted);
        server.kill()
    })?;
    let server = start()?;
    let mut torn = 0;
    for (owner, history) in histories.iter_mut().enumerate() {
        torn += check(server.socket(), owner, history)?;
    }
    server.kill()?;
    Ok((flushes.into_inner(), torn))
}

fn offset(owner: usize, block: usize) -> u64 {
    ((owner * BLOCKS + block) * BLOCK_BYTES) as u64
}

/// Content of a sector in a generation; its head has both numbers, so that foreign data is
/// recognised.
fn sector(owner: usize, block: usize, generation: u64, index: usize) -> Vec<u8> {
    let mut bytes = generation.to_le_bytes().to_vec();
    let place = offset(owner, block) + (index * SECTOR_BYTES) as u64;
    bytes.extend(place.to_le_bytes());
    bytes.extend(noise(generation ^ place.rotate_left(32), SECTOR_BYTES - bytes.len()));
    bytes
}

fn content(owner: usize, block: usize, generation: u64) -> Vec<u8> {
    let sectors = BLOCK_BYTES / SECTOR_BYTES;
    (0..sectors).flat_map(|index| sector(owner, block, generation, index)).collect()
}

fn write_until_killed(
    socket: &Path,
    owner: usize,
    history: &mut [History; BLOCKS],
    flushes: &AtomicU64,
) -> Result<()> {
    let mut client = Raw::connect(socket)?;
    let mut turn = 0;
    loop {
        let batch: Vec<usize> = (0..BATCH).map(|step| (turn + step * 5) % BLOCKS).collect();
        turn += 7;
        for block in &batch {
            history[*block].sent += 1;
            let data = content(owner, *block, history[*block].sent);
            let at = Range { offset: offset(owner, *block), len: u32::try_from(BLOCK_BYTES)? };
            client.send(WRITE, *block as u64, at, &data)?;
        }
        for _ in &batch {
            let (_, error) = client.reply()?;
            ensure!(error == 0, "write failed: {error}");
        }
        client.send(FLUSH, 1, Range { offset: 0, len: 0 }, &[])?;
        let (_, error) = client.reply()?;
        ensure!(error == 0, "flush failed: {error}");
        for block in &batch {
            history[*block].flushed = history[*block].sent;
        }
        flushes.fetch_add(1, Ordering::Release);
    }
}

/// Checks that every sector has the flushed generation or a later sent one. Other content was torn,
/// which only a write in flight may be. Then the block is rewritten for the next round.
fn check(socket: &Path, owner: usize, history: &mut [History; BLOCKS]) -> Result<u64> {
    let mut client = Raw::connect(socket)?;
    let mut torn = 0;
    for (block, entry) in history.iter_mut().enumerate() {
        if entry.sent == 0 {
            continue;
        }
        let got = client.read(offset(owner, block), u32::try_from(BLOCK_BYTES)?)?;
        for (index, bytes) in got.chunks(SECTOR_BYTES).enumerate() {
            let known = (entry.flushed..=entry.sent).any(|generation| {
                let never_written = generation == 0;
                never_written || bytes == sector(owner, block, generation, index)
            });
            if !known && entry.flushed == entry.sent {
                let at = offset(owner, block) / SECTOR_BYTES as u64 + index as u64;
                bail!("flushed generation {} of sector {at} is lost", entry.flushed);
            }
            torn += u64::from(!known);
        }
        entry.sent += 1;
        client.write(offset(owner, block), &content(owner, block, entry.sent))?;
        entry.flushed = entry.sent;
    }
    client.flush()?;
    Ok(torn)
}
