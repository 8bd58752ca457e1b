//! `zonemode=strided`: requests stay in a zone until so much has been moved, and then go to the
//! next.
//!
//! ```text
//!   |<- zonerange ->|<- zoneskip ->|<- zonerange ->|<- zoneskip ->|
//!   [zonesize moved ...]           [zonesize moved ...]
//! ```
//! Seen with fio 3.33: behind the last zone that begins inside the region comes the first again;
//! of one that ends behind it only what is inside is used; a zone that is shorter than `zonesize`
//! is gone through again. Offsets are of the zone, and who asks for them adds its start.

/// As a job says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strides {
    /// `zonemode=strided`.
    pub is_on: bool,
    /// `zonesize`: what is moved in a zone.
    pub size_bytes: u64,
    /// `zonerange`: how long a zone is; without it, as `zonesize`.
    pub range_bytes: Option<u64>,
    /// `zoneskip`: from the end of a zone to the next.
    pub skip_bytes: u64,
}

impl Strides {
    /// How long a zone is.
    pub(super) fn range_bytes(&self) -> u64 {
        self.range_bytes.unwrap_or(self.size_bytes)
    }
}

/// The zone that a clone is in.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    strides: Strides,
    region_bytes: u64,
    start_bytes: u64,
    moved_bytes: u64,
}

impl Zone {
    /// The first of a region; none without zones.
    pub(super) fn first(strides: &Strides, region_bytes: u64) -> Option<Self> {
        let (start_bytes, moved_bytes) = (0, 0);
        let strides = strides.clone();
        strides.is_on.then_some(Self { strides, region_bytes, start_bytes, moved_bytes })
    }

    pub(super) fn start_bytes(&self) -> u64 {
        self.start_bytes
    }

    /// What of it is inside the region.
    pub(super) fn len_bytes(&self) -> u64 {
        self.strides.range_bytes().min(self.region_bytes - self.start_bytes)
    }

    /// Whether the zone has had enough: then it is the next.
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
