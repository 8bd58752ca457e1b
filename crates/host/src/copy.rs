//! Copies the plaintext of a whole volume to a writer or from a reader.
//!
//! Several portions are in flight, so that the disk and the ciphers work while the other end is
//! read or written. Portions stay in order.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::priority::Priority;

use crate::Error;
use crate::driver::{Driver, SLOT_BYTES};
use crate::memory::Region;
use crate::user_data::UserData;
use crate::volume::Volume;

/// Length of a portion; together with its ciphertext it fits into L2.
const PORTION_BYTES: usize = 256 << 10;
/// Number of portions in flight and of bounce slots; enough to keep a fast disk busy.
const PORTIONS: usize = 16;

/// Writes the plaintext of the whole volume to `to`. `progress` receives the number of bytes done.
///
/// # Errors
/// The volume cannot be read, or `to` cannot be written.
pub fn dump(
    volume: &Arc<Volume>,
    to: &mut dyn Write,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Error> {
    // First: a volume may grow, and a client takes at least this size.
    let size = volume.size_bytes();
    let mut copy = Copy::new(volume)?;
    let mut issued = 0;
    let mut done = 0;
    while done < size {
        while issued < size && copy.in_flight.len() < PORTIONS {
            let len_bytes = (size - issued).min(PORTION_BYTES as u64) as usize;
            copy.submit(Op::Read, issued, len_bytes);
            issued += len_bytes as u64;
        }
        let portion = copy.wait_for_oldest(done, "read")?;
        to.write_all(copy.bytes(portion)).map_err(Error::Output)?;
        copy.free.push(portion.number);
        done += portion.len_bytes as u64;
        progress(done);
    }
    Ok(done)
}

/// Writes all of `from` to the start of the volume, and flushes. `progress` receives the number of
/// bytes done. Data past the end of `from` stays unchanged.
///
/// # Errors
/// The volume is read-only or cannot be written, or `from` cannot be read or is too long. Data
/// copied before the error stays.
pub fn load(
    volume: &Arc<Volume>,
    from: &mut dyn Read,
    progress: &mut dyn FnMut(u64),
) -> Result<u64, Error> {
    if volume.read_only() {
        return Err(Error::Copy("the volume is read-only".into()));
    }
    let size = volume.size_bytes();
    let mut copy = Copy::new(volume)?;
    let sector = u64::from(volume.sector_size_bytes());
    let mut issued = 0;
    let mut done = 0;
    let mut at_end = false;
    while !at_end || done < issued {
        if at_end || copy.free.is_empty() {
            let portion = copy.wait_for_oldest(done, "write")?;
            copy.free.push(portion.number);
            done += portion.len_bytes as u64;
            progress(done);
            continue;
        }
        let number = copy.free.pop().expect("just looked");
        let got = fill(from, copy.portion_mut(number))
            .map_err(|error| Error::Copy(format!("cannot read the input: {error}")))?;
        at_end = got < PORTION_BYTES;
        if issued + got as u64 > size {
            return Err(Error::Copy(format!(
                "the input is longer than the volume, which has {size} bytes; the first {issued} \
                 bytes were copied"
            )));
        }
        if got > 0 {
            let whole = (got as u64).next_multiple_of(sector) as usize;
            copy.complete_sector(number, issued, got, whole)?;
            copy.submit_at(number, Op::Write, issued, whole, got);
            issued += got as u64;
        } else {
            copy.free.push(number);
        }
    }
    copy.flush()?;
    Ok(done)
}

/// A portion in flight.
#[derive(Clone, Copy)]
struct Portion {
    number: usize,
    len_bytes: usize,
    status: Option<BlkStatus>,
}

struct Copy {
    driver: Driver,
    region: Arc<Region>,
    /// Oldest first.
    in_flight: VecDeque<Portion>,
    free: Vec<usize>,
}

impl Copy {
    fn new(volume: &Arc<Volume>) -> Result<Self, Error> {
        let out_of_memory =
            |error: io::Error| Error::Copy(format!("cannot get memory for buffers: {error}"));
        let region = Arc::new(Region::new(PORTIONS * PORTION_BYTES).map_err(out_of_memory)?);
        let slots = PORTIONS * PORTION_BYTES / SLOT_BYTES;
        let driver = Driver::new(
            &volume.parts,
            slots,
            vec![Arc::clone(&region)],
            Priority::default(),
            Instant::now(),
        )
        .map_err(out_of_memory)?;
        let free = (0..PORTIONS).rev().collect();
        Ok(Self { driver, region, in_flight: VecDeque::new(), free })
    }

    fn submit(&mut self, op: Op, offset_bytes: u64, len_bytes: usize) {
        let number = self.free.pop().expect("fewer are in flight than there are");
        self.submit_at(number, op, offset_bytes, len_bytes, len_bytes);
    }

    /// Submits `len_bytes`, of which `counted` belong to the copy.
    fn submit_at(&mut self, number: usize, op: Op, at: u64, len_bytes: usize, counted: usize) {
        self.in_flight.push_back(Portion { number, len_bytes: counted, status: None });
        self.driver.submit(self.bio(number, op, at, len_bytes));
        // The other end may block.
        self.driver.unplug();
    }

    fn bio(&self, number: usize, op: Op, offset_bytes: u64, len_bytes: usize) -> Bio {
        let buf = BufRef {
            slot: BufRef::FIRST_WORLD_SLOT,
            offset_bytes: (number * PORTION_BYTES) as u32,
            len_bytes: len_bytes as u32,
        };
        let sector = Sector::holding(offset_bytes);
        let len = Sector::holding(len_bytes as u64);
        Bio::new(op, sector, len, buf, number as u64)
    }

    /// Reads the rest of the last sector if the input ends inside it.
    fn complete_sector(
        &mut self,
        number: usize,
        at: u64,
        got: usize,
        whole: usize,
    ) -> Result<(), Error> {
        if got == whole {
            return Ok(());
        }
        let saved = self.portion_mut(number)[..got].to_vec();
        let bio = Bio { user: UserData::WAITED_FOR, ..self.bio(number, Op::Read, at, whole) };
        let status = self.driver.submit_and_wait(bio);
        self.portion_mut(number)[..got].copy_from_slice(&saved);
        check(status, at, "read")
    }

    /// Flushes with a bio, so that the volume's targets see it.
    fn flush(&mut self) -> Result<(), Error> {
        let flush = Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, UserData::WAITED_FOR);
        match self.driver.submit_and_wait(flush) {
            BlkStatus::Ok => Ok(()),
            failed => Err(Error::Copy(format!("cannot flush the volume: {failed}"))),
        }
    }

    fn wait_for_oldest(&mut self, at: u64, verb: &str) -> Result<Portion, Error> {
        let number = self.in_flight.front().expect("something is in flight").number;
        loop {
            let mut done = Vec::new();
            self.driver.take_done(&mut done);
            for done in done {
                let of = |portion: &&mut Portion| portion.number as u64 == done.user;
                let portion = self.in_flight.iter_mut().find(of);
                portion.expect("every bio is of a portion").status = Some(done.status);
            }
            let oldest = self.in_flight.front().expect("as before");
            if let Some(status) = oldest.status {
                assert_eq!(oldest.number, number);
                check(status, at, verb)?;
                return Ok(self.in_flight.pop_front().expect("as before"));
            }
            self.driver.wait();
        }
    }

    fn bytes(&self, portion: Portion) -> &[u8] {
        let base = self.region.at(portion.number * PORTION_BYTES, portion.len_bytes);
        // SAFETY: the portion's bio has ended, and its buffer is not reused before it is in `free`.
        unsafe { std::slice::from_raw_parts(base, portion.len_bytes) }
    }

    fn portion_mut(&mut self, number: usize) -> &mut [u8] {
        let base = self.region.at(number * PORTION_BYTES, PORTION_BYTES);
        // SAFETY: the portion was taken from `free`, so no bio uses its buffer.
        unsafe { std::slice::from_raw_parts_mut(base, PORTION_BYTES) }
    }
}

fn check(status: BlkStatus, at: u64, verb: &str) -> Result<(), Error> {
    if status == BlkStatus::Ok {
        return Ok(());
    }
    let portion = PORTION_BYTES >> 10;
    Err(Error::Copy(format!(
        "cannot {verb} the volume within {portion} KiB of byte {at}: {status}"
    )))
}

/// Reads until the buffer is full or the input ends.
fn fill(from: &mut dyn Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match from.read(&mut buf[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
