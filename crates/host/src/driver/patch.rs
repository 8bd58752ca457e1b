//! Read-modify-write: a part of a sector is changed without a thread that waits for it.
//!
//! ```text
//! waiting for its range ─> reading ─> bytes put in ─> writing ─> done
//! ```
//! It has its sector alone from its read to the end of its write ([`crate::ranges`]). The
//! client's bytes are copied when it comes, so that the front end's buffer is free at once.

use std::io;
use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::table::Table;
use blockyard_engine::ranges::EntryId;

use super::Driver;
use crate::memory::Region;
use crate::user_data::UserData;

/// Largest sector.
const SECTOR_MAX_BYTES: usize = 4096;
/// The sector, and behind it the client's bytes.
const SLOT_BYTES: usize = 2 * SECTOR_MAX_BYTES;
/// Of one driver in flight: half of what a disk has at a time by default. Their memory, 128 KiB, is
/// there only once it is used.
const PATCHES_MAX: usize = 16;
/// What one request needs: its head and its tail.
const PATCHES_OF_REQUEST: usize = 2;

/// A change of a part of one sector.
pub(crate) struct Patch<'a> {
    /// Of the volume.
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: usize,
    /// `None` is zeros.
    pub(crate) bytes: Option<&'a [u8]>,
    /// Somebody waits for it.
    pub(crate) sync: bool,
    /// As [`Bio::user`].
    pub(crate) user: u64,
}

/// One in flight.
struct InFlight {
    user: u64,
    /// `None` while it is being entered.
    entry: Option<EntryId>,
    /// The read, and then the write, of the sector.
    bio: Bio,
    skip_bytes: usize,
    len_bytes: usize,
}

/// The read-modify-writes of a driver.
pub(super) struct Patches {
    region: Arc<Region>,
    /// That of the region.
    buf_slot: u32,
    sector_bytes: u64,
    size_bytes: u64,
    slots: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// Their bios that have ended.
    ended: Vec<(u32, BlkStatus)>,
}

impl Patches {
    pub(super) fn new(table: &Table, buf_slot: u32) -> io::Result<Self> {
        let region = Arc::new(Region::new(PATCHES_MAX * SLOT_BYTES)?);
        Ok(Self {
            region,
            buf_slot,
            sector_bytes: u64::from(table.sector_size_bytes()),
            size_bytes: table.len().bytes(),
            slots: (0..PATCHES_MAX).map(|_| None).collect(),
            free: (0..PATCHES_MAX as u32).rev().collect(),
            ended: Vec::new(),
        })
    }

    pub(super) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// The bio of the patch with this number has ended.
    pub(super) fn ended(&mut self, number: u32, status: BlkStatus) {
        self.ended.push((number, status));
    }

    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == PATCHES_MAX
    }

    /// Takes a slot, and copies the client's bytes: the number.
    fn begin(&mut self, patch: &Patch<'_>) -> u32 {
        let number = self.free.pop().expect("the front end has asked whether there is room");
        let start = patch.offset_bytes / self.sector_bytes * self.sector_bytes;
        // The last sector of a volume may be cut.
        let whole_bytes = self.sector_bytes.min(self.size_bytes - start);
        let place = number as usize * SLOT_BYTES;
        let (offset_bytes, len_bytes) = (place as u32, whole_bytes as u32);
        let buf = BufRef { slot: self.buf_slot, offset_bytes, len_bytes };
        let (sector, len) = (Sector::holding(start), Sector::holding(whole_bytes));
        let bio = Bio::new(Op::Read, sector, len, buf, UserData::of_patch(number).0);
        let bio = Bio { origin: Origin { sync: patch.sync, ..Origin::default() }, ..bio };
        let to = self.region.at(place + SECTOR_MAX_BYTES, patch.len_bytes);
        // SAFETY: the region has checked the range; its slot belongs to this patch, and no bio uses
        // this half of it. The client's bytes are as many, and lie elsewhere.
        unsafe {
            match patch.bytes {
                None => to.write_bytes(0, patch.len_bytes),
                Some(bytes) => {
                    assert_eq!(bytes.len(), patch.len_bytes);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
                }
            }
        }
        let skip_bytes = (patch.offset_bytes - start) as usize;
        let (user, len_bytes) = (patch.user, patch.len_bytes);
        let in_flight = InFlight { user, entry: None, bio, skip_bytes, len_bytes };
        self.slots[number as usize] = Some(in_flight);
        number
    }

    fn at(&mut self, number: u32) -> &mut InFlight {
        self.slots[number as usize].as_mut().expect("it has not ended")
    }

    /// The sector has been read: puts the client's bytes in. The bio that writes it.
    fn put_in(&mut self, number: u32) -> Bio {
        let place = number as usize * SLOT_BYTES;
        let in_flight = self.slots[number as usize].as_mut().expect("it has not ended");
        let len_bytes = in_flight.len_bytes;
        let from = self.region.at(place + SECTOR_MAX_BYTES, len_bytes);
        let to = self.region.at(place + in_flight.skip_bytes, len_bytes);
        // SAFETY: the region has checked both ranges, which lie in different halves of the slot;
        // the bio that read the sector has ended.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len_bytes) };
        in_flight.bio.op = Op::Write;
        in_flight.bio
    }

    /// Frees the slot.
    fn remove(&mut self, number: u32) -> InFlight {
        self.free.push(number);
        self.slots[number as usize].take().expect("it ends once")
    }
}

impl Driver {
    /// Whether there is room for what one request needs.
    pub(crate) fn can_patch(&self) -> bool {
        self.patches.free.len() >= PATCHES_OF_REQUEST
    }

    /// Accepts a change of a part of a sector. It ends as a bio does.
    ///
    /// # Panics
    /// When there is no room ([`Driver::can_patch`]), or the volume is read-only.
    pub(crate) fn patch(&mut self, patch: &Patch<'_>) {
        let number = self.patches.begin(patch);
        let bio = self.patches.at(number).bio;
        let claims = self.claims.as_mut().expect("nothing is written to a read-only volume");
        let (entry, may_go) = claims.claim_alone(bio.sector.bytes(), bio.len.bytes(), number);
        self.patches.at(number).entry = Some(entry);
        self.go_on();
        if may_go {
            self.read_for_patch(number);
        }
        self.settle();
    }

    /// It has its range.
    pub(super) fn read_for_patch(&mut self, number: u32) {
        let bio = self.patches.at(number).bio;
        self.submit_for_patch(bio);
    }

    /// Past the ranges.
    fn submit_for_patch(&mut self, bio: Bio) {
        let bio = self.named(bio);
        self.long = None;
        self.pass(bio);
    }

    /// Goes on with those whose bio has ended.
    pub(super) fn advance_patches(&mut self) {
        let mut ended = std::mem::take(&mut self.patches.ended);
        for (number, status) in ended.drain(..) {
            let was_read = self.patches.at(number).bio.op == Op::Read;
            if was_read && status == BlkStatus::Ok {
                let bio = self.patches.put_in(number);
                self.submit_for_patch(bio);
                continue;
            }
            let InFlight { user, entry, .. } = self.patches.remove(number);
            let entry = entry.expect("it was entered before it was read");
            self.claims.as_mut().expect("it has a range").release_alone(entry);
            self.done.push(Done { user, status });
        }
        // What has ended at once meanwhile is behind it.
        ended.append(&mut self.patches.ended);
        self.patches.ended = ended;
    }
}
