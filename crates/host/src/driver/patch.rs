//! Read-modify-write: changes a part of a sector without a blocked thread.
//!
//! ```text
//! gate ─> waiting for its range ─> reading ─> bytes put in ─> writing ─> done
//! ```
//! It holds its sector exclusively from its read to the end of its write ([`crate::ranges`]). The
//! client's bytes are copied first, so that the front end's buffer is free at once.

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
/// The sector, followed by the client's bytes.
const SLOT_BYTES: usize = 2 * SECTOR_MAX_BYTES;
/// Limit of patches in flight per driver: half of a disk's default queue depth. Their memory, 128
/// KiB, is allocated on first use.
const PATCHES_MAX: usize = 16;
/// Patches of one request: its head and its tail.
const PATCHES_OF_REQUEST: usize = 2;

/// A change of a part of one sector.
pub(crate) struct Patch<'a> {
    /// Offset in the volume.
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: usize,
    /// New bytes; `None` means zeroes.
    pub(crate) bytes: Option<&'a [u8]>,
    /// The submitter waits for it.
    pub(crate) sync: bool,
    /// See [`Bio::user`].
    pub(crate) user: u64,
}

/// A patch in flight.
struct InFlight {
    user: u64,
    /// `None` until it is entered.
    entry: Option<EntryId>,
    /// The bio that reads, then the bio that writes the sector.
    bio: Bio,
    skip_bytes: usize,
    len_bytes: usize,
}

/// The read-modify-writes of a driver.
pub(super) struct Patches {
    region: Arc<Region>,
    /// Buffer slot of the region.
    buf_slot: u32,
    sector_bytes: u64,
    size_bytes: u64,
    slots: Vec<Option<InFlight>>,
    free: Vec<u32>,
    /// Ended bios of patches.
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

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn region(&self) -> Arc<Region> {
        Arc::clone(&self.region)
    }

    /// Notes the end of the bio of a patch.
    pub(super) fn ended(&mut self, number: u32, status: BlkStatus) {
        self.ended.push((number, status));
    }

    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Whether a patch has passed the gate.
    pub(super) fn has_begun(&self) -> bool {
        !self.is_idle() && self.slots.iter().flatten().any(|patch| patch.entry.is_some())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == PATCHES_MAX
    }

    /// Whether a range has bytes, all of one sector of the volume.
    fn is_in_sector(&self, offset_bytes: u64, len_bytes: usize) -> bool {
        let end = u64::try_from(len_bytes).ok().and_then(|len| offset_bytes.checked_add(len));
        end.filter(|end| *end > offset_bytes && *end <= self.size_bytes)
            .is_some_and(|end| offset_bytes / self.sector_bytes == (end - 1) / self.sector_bytes)
    }

    /// Takes a slot and copies the client's bytes; returns the number of the slot.
    fn begin(&mut self, patch: &Patch<'_>) -> u32 {
        assert!(
            self.is_in_sector(patch.offset_bytes, patch.len_bytes),
            "the front end has checked"
        );
        let number = self.free.pop().expect("the front end has asked whether there is room");
        let start = patch.offset_bytes / self.sector_bytes * self.sector_bytes;
        // The last sector of a volume may be cut off.
        let whole_bytes = self.sector_bytes.min(self.size_bytes - start);
        let place = number as usize * SLOT_BYTES;
        let offset_bytes = place as u32;
        let len_bytes = whole_bytes as u32;
        let buf = BufRef { slot: self.buf_slot, offset_bytes, len_bytes };
        let sector = Sector::holding(start);
        let len = Sector::holding(whole_bytes);
        let bio = Bio::new(Op::Read, sector, len, buf, UserData::of_patch(number).0);
        let bio = Bio { origin: Origin { sync: patch.sync, ..Origin::default() }, ..bio };
        let to = self.region.at(place + SECTOR_MAX_BYTES, patch.len_bytes);
        // SAFETY: the region has checked the range; its slot belongs to this patch, and no bio uses
        // this half of it. The client's buffer has the same length and does not overlap.
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
        let user = patch.user;
        let len_bytes = patch.len_bytes;
        let in_flight = InFlight { user, entry: None, bio, skip_bytes, len_bytes };
        self.slots[number as usize] = Some(in_flight);
        number
    }

    /// Notes that a patch has no range. Returns the bio that stands for it.
    pub(super) fn take_back(&mut self, number: u32) -> Bio {
        let patch = self.at(number);
        patch.entry = None;
        Bio { op: Op::Write, ..patch.bio }
    }

    fn at(&mut self, number: u32) -> &mut InFlight {
        self.slots[number as usize].as_mut().expect("it has not ended")
    }

    /// Puts the client's bytes into the sector, which has been read. Returns the bio that writes
    /// it.
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
    /// Whether there is room for the patches of one request.
    pub(crate) fn can_patch(&self) -> bool {
        self.patches.free.len() >= PATCHES_OF_REQUEST
    }

    /// Whether a range has bytes, all of one sector of the volume.
    pub(crate) fn is_in_sector(&self, offset_bytes: u64, len_bytes: usize) -> bool {
        self.patches.is_in_sector(offset_bytes, len_bytes)
    }

    /// Accepts a change of a part of a sector. It ends like a bio.
    ///
    /// # Panics
    /// Without room ([`Driver::can_patch`]), on a read-only volume ([`Driver::permits`]), or if the
    /// part is not in one sector ([`Driver::is_in_sector`]).
    pub(crate) fn patch(&mut self, patch: &Patch<'_>) {
        let number = self.patches.begin(patch);
        let bio = Bio { op: Op::Write, ..self.patches.at(number).bio };
        if self.throttle.as_mut().is_none_or(|throttle| throttle.admit(&bio)) {
            self.pass(bio);
            self.settle();
        }
    }

    /// Claims the range of a patch that has its tokens and has passed the gate.
    pub(super) fn start_patch(&mut self, number: u32) {
        let bio = self.patches.at(number).bio;
        let claims = self.claims.as_mut().expect("nothing is written to a read-only volume");
        let (entry, may_go) = claims.claim_alone(bio.sector.bytes(), bio.len.bytes(), number);
        self.patches.at(number).entry = Some(entry);
        self.go_on();
        if may_go {
            self.read_for_patch(number);
        }
    }

    /// Reads the sector, after its range was granted.
    pub(super) fn read_for_patch(&mut self, number: u32) {
        let bio = self.patches.at(number).bio;
        self.submit_for_patch(bio);
    }

    /// Submits a bio without a claim.
    fn submit_for_patch(&mut self, mut bio: Bio) {
        self.name(&mut bio);
        self.forget_long();
        self.submit_now(bio);
    }

    /// Continues patches whose bio has ended.
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
            // A patch that failed at the gate has no range.
            if let Some(entry) = entry {
                self.claims.as_mut().expect("it has a range").release_alone(entry);
            }
            self.done.push(Done { user, status });
        }
        // Bios that ended meanwhile follow.
        ended.append(&mut self.patches.ended);
        self.patches.ended = ended;
    }
}
