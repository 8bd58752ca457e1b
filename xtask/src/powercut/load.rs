//! Clients that write, flush and use FUA until the power is cut, and note each promise.

use super::fuse::PowerDisk;
use super::ledger::{Ledger, UNIT_BYTES, Write};
use crate::nbd::{FLAG_FUA, FLAG_NO_HOLE, FLUSH, Range, Raw, WRITE, WRITE_ZEROES};
use crate::random::Random;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Greatest number of requests before a client waits for replies; more would fill its socket.
const BURST_MAX: u64 = 6;
/// Length of a large write. The server splits a FUA write of more than 64 KiB, and flushes after
/// its parts.
const LARGE_BYTES: u64 = 160 << 10;

/// One load on one server.
pub(super) struct Load<'a> {
    pub(super) socket: &'a Path,
    pub(super) power: &'a PowerDisk,
    pub(super) ledger: &'a Mutex<Ledger>,
    pub(super) sector_bytes: usize,
    /// Number of replies to flushes and FUA writes, of all clients, after which the power is cut.
    pub(super) cut_after_answers: Option<u64>,
    pub(super) answers: AtomicU64,
    /// Number of bursts after which a client leaves.
    pub(super) bursts: Option<u64>,
}

/// A request without a reply.
enum Sent {
    Flush { began: u64 },
    Write { write: Write, is_stable: bool },
}

impl Load<'_> {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one client, until the power is off or its bursts are over.
    ///
    /// # Errors
    /// When a request fails while the power is on.
    pub(super) fn client(&self, mut random: Random) -> Result<()> {
        let outcome = self.bursts(&mut random);
        if self.power.is_off() { Ok(()) } else { outcome.context("while the power was on") }
    }

    fn bursts(&self, random: &mut Random) -> Result<()> {
        let mut client = Raw::connect(self.socket)?;
        let mut count = 0;
        while !self.power.is_off() && self.bursts.is_none_or(|bursts| count < bursts) {
            let mut sent = BTreeMap::new();
            for cookie in 0..1 + random.below(BURST_MAX) {
                if let Some(request) = self.send(&mut client, cookie, random)? {
                    sent.insert(cookie, request);
                }
            }
            while !sent.is_empty() {
                let (cookie, error) = client.reply()?;
                let request = sent.remove(&cookie).context("an answer that nothing asked for")?;
                ensure!(error == 0, "a request failed with error {error}");
                self.answered(&request);
            }
            count += 1;
        }
        Ok(())
    }

    fn send(&self, client: &mut Raw, cookie: u64, random: &mut Random) -> Result<Option<Sent>> {
        let flush = random.below(6);
        let zeroes = random.below(8);
        let fua = random.below(4);
        if flush == 0 {
            let began = self.ledger().flush_begins();
            client.send(FLUSH, cookie, Range { offset: 0, len: 0 }, &[])?;
            return Ok(Some(Sent::Flush { began }));
        }
        let is_zero = zeroes == 0;
        let is_stable = fua == 0;
        let (first, count) = self.place(random);
        let begun = self.ledger().begin(first, count, is_zero, self.sector_bytes);
        let Some(write) = begun else { return Ok(None) };
        let mut flags = if is_stable { FLAG_FUA } else { 0 };
        let at = Range { offset: write.offset_bytes(), len: write.len_bytes() };
        if is_zero {
            flags |= if random.below(2) == 0 { FLAG_NO_HOLE } else { 0 };
            client.send_flagged(WRITE_ZEROES, flags, cookie, at, &[])?;
        } else {
            client.send_flagged(WRITE, flags, cookie, at, &write.bytes())?;
        }
        Ok(Some(Sent::Write { write, is_stable }))
    }

    /// First unit and number of units of the next write: whole sectors, a part of one, or many.
    fn place(&self, random: &mut Random) -> (usize, usize) {
        let units = self.ledger().len_units() as u64;
        let per_sector = (self.sector_bytes / UNIT_BYTES) as u64;
        let (first, count) = match random.below(10) {
            0 | 1 => {
                let first = random.below(units);
                (first, 1 + random.below(2 * per_sector))
            }
            2 => {
                let first = random.below(units) / per_sector * per_sector;
                (first, LARGE_BYTES / UNIT_BYTES as u64)
            }
            _ => {
                let first = random.below(units) / per_sector * per_sector;
                (first, per_sector * (1 + random.below(4)))
            }
        };
        (first as usize, count.min(units - first) as usize)
    }

    fn answered(&self, request: &Sent) {
        let is_promise = match request {
            Sent::Flush { began } => {
                self.ledger().flushed(*began);
                true
            }
            Sent::Write { write, is_stable } => {
                self.ledger().acknowledge(write, *is_stable);
                *is_stable
            }
        };
        if is_promise {
            let answers = 1 + self.answers.fetch_add(1, Ordering::Relaxed);
            if Some(answers) == self.cut_after_answers {
                self.power.cut();
            }
        }
    }
}

/// Writes the ledger's first image, and flushes it.
pub(super) fn fill(socket: &Path, ledger: &Ledger) -> Result<()> {
    let mut client = Raw::connect(socket)?;
    let image = ledger.first_image();
    if client.len_bytes != image.len() as u64 {
        bail!("the volume has {} bytes instead of {}", client.len_bytes, image.len());
    }
    for (chunk, index) in image.chunks(128 << 10).zip(0..) {
        client.write(index * (128 << 10), chunk)?;
    }
    client.flush()
}

/// Reads the whole volume.
pub(super) fn read(socket: &Path, len_bytes: u64) -> Result<Vec<u8>> {
    Raw::connect(socket)?.read(0, u32::try_from(len_bytes)?)
}
