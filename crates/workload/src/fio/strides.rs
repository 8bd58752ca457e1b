//! `zonemode=strided`: requests stay in a zone until `zonesize` bytes have been transferred, and
//! then go to the next zone.
//!
//! ```text
//!   |<- zonerange ->|<- zoneskip ->|<- zonerange ->|<- zoneskip ->|
//!   [zonesize moved ...]           [zonesize moved ...]
//! ```
//! Seen with fio 3.33: after the last zone that begins inside the region comes the first again. Of
//! a zone that crosses the region's end only the part inside is used. A zone shorter than
//! `zonesize` is repeated. Offsets are relative to the zone; the caller adds its start.

/// Strided zones of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// `zonemode=strided`.
    pub is_on: bool,
    /// `zonesize`: bytes transferred in a zone.
    pub size_bytes: u64,
    /// `zonerange`: length of a zone; `None`: `zonesize`.
    pub range_bytes: Option<u64>,
    /// `zoneskip`: distance from the end of a zone to the next.
    pub skip_bytes: u64,
}

impl Strides {
    /// Length of a zone.
    pub(super) fn range_bytes(&self) -> u64 {
        self.range_bytes.unwrap_or(self.size_bytes)
    }
}

/// The current zone of a clone.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    strides: Strides,
    region_bytes: u64,
    start_bytes: u64,
    moved_bytes: u64,
}

impl Zone {
    /// The first zone of a region; `None` without zones.
    pub(super) fn first(strides: &Strides, region_bytes: u64) -> Option<Self> {
        let start_bytes = 0;
        let moved_bytes = 0;
        let strides = strides.clone();
        strides.is_on.then_some(Self { strides, region_bytes, start_bytes, moved_bytes })
    }

    pub(super) fn start_bytes(&self) -> u64 {
        self.start_bytes
    }

    /// Length of the part inside the region.
    pub(super) fn len_bytes(&self) -> u64 {
        self.strides.range_bytes().min(self.region_bytes - self.start_bytes)
    }

    /// Moves to the next zone if the current one is complete.
    pub(super) fn advance(&mut self) -> bool {
        let is_done = self.moved_bytes >= self.strides.size_bytes;
        if is_done {
            let step = self.strides.range_bytes().saturating_add(self.strides.skip_bytes);
            let next = self.start_bytes.saturating_add(step);
            self.start_bytes = if next < self.region_bytes { next } else { 0 };
            self.moved_bytes = 0;
        }
        is_done
    }

    pub(super) fn moved(&mut self, bytes: u64) {
        self.moved_bytes += bytes;
    }
}
