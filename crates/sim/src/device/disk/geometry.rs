//! Positions of sectors on a spinning disk, and seek times of the arm.
//!
//! ```text
//!   zone 0 (outside): many sectors a track │ zone 1 │ …  │ last zone (inside): few
//!   within a cylinder, tracks follow each other head by head; each track starts `skew` later than
//!   the one before, so that a head switch or a step to the next cylinder costs that and no turn
//! ```
//! Sources of the form of the curve: Ruemmler and Wilkes, "An introduction to disk drive modeling",
//! IEEE Computer 27(3), 1994: square root for short seeks, linear for long ones.

use blockyard_engine::time::Nanos;

/// A range of cylinders with equally long tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Number of cylinders.
    pub cylinders: u32,
    /// Sectors of 512 bytes on each track.
    pub sectors_per_track: u32,
}

/// Seek times of the arm, without rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeekTimes {
    /// To the next cylinder, including settling.
    pub track_to_track: Nanos,
    /// Over a third of all cylinders: the average of manuals.
    pub average: Nanos,
    /// From the first cylinder to the last.
    pub full_stroke: Nanos,
    /// Switch to another head of the cylinder.
    pub head_switch: Nanos,
    /// Extra settling of a write: the head must be nearer to the middle of its track.
    pub write_settle: Nanos,
}

/// Platters and arm.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Time of one revolution.
    pub revolution: Nanos,
    /// Recorded surfaces.
    pub heads: u32,
    /// Zones from the outside in.
    pub zones: Vec<Zone>,
    /// The arm.
    pub seek: SeekTimes,
    /// First sector and first cylinder of each zone.
    starts: Vec<(u64, u32)>,
    cylinders: u32,
    sectors: u64,
    /// Angle of the platters at time zero.
    turned: Nanos,
}

/// Position of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Cylinder, counted from the outside.
    pub cylinder: u32,
    /// Surface.
    pub head: u32,
    /// Angle of its start, as the time after a mark that passes at time zero.
    pub angle: Nanos,
    /// Number of sectors from it to the end of its track.
    pub left_in_track: u32,
    /// Time of one sector of this track under the head, times 2^16.
    sector_time_x65536: u64,
}

impl Place {
    /// Time of `sectors` of this track under the head; rounded down.
    #[must_use]
    pub fn transfer(&self, sectors: u32) -> Nanos {
        Nanos((u64::from(sectors) * self.sector_time_x65536) >> 16)
    }
}

impl Geometry {
    /// A disk with these zones.
    ///
    /// # Panics
    /// The disk has no sectors, or its seek times do not grow with the distance.
    #[must_use]
    pub fn new(revolution: Nanos, heads: u32, zones: Vec<Zone>, seek: SeekTimes) -> Self {
        assert!(heads > 0 && !zones.is_empty() && revolution.0 > 0);
        assert!(seek.track_to_track <= seek.average && seek.average <= seek.full_stroke);
        let mut sectors = 0;
        let mut cylinders = 0;
        let mut starts = Vec::new();
        for zone in &zones {
            assert!(zone.cylinders > 0 && zone.sectors_per_track > 0);
            starts.push((sectors, cylinders));
            cylinders += zone.cylinders;
            sectors +=
                u64::from(zone.cylinders) * u64::from(zone.sectors_per_track) * u64::from(heads);
        }
        Self { revolution, heads, zones, seek, starts, cylinders, sectors, turned: Nanos(0) }
    }

    /// A disk of about `sectors` sectors whose tracks shrink evenly from `outer` to `inner` sectors
    /// in 16 zones, like most disks.
    #[must_use]
    pub fn even(
        revolution: Nanos,
        heads: u32,
        sectors: u64,
        (outer, inner): (u32, u32),
        seek: SeekTimes,
    ) -> Self {
        const ZONES: u32 = 16;
        assert!(outer >= inner && inner > 0);
        let mean = u64::from(outer + inner) / 2 * u64::from(heads);
        let cylinders = (sectors.div_ceil(mean * u64::from(ZONES))).max(1) as u32;
        let zone = |number: u32| Zone {
            cylinders,
            sectors_per_track: outer - (outer - inner) * number / (ZONES - 1),
        };
        Self::new(revolution, heads, (0..ZONES).map(zone).collect(), seek)
    }

    /// Turns the platters: all angles are larger by this.
    pub fn turn(&mut self, by: Nanos) {
        self.turned = self.turned + by;
    }

    /// Number of sectors.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Number of cylinders.
    #[must_use]
    pub fn cylinders(&self) -> u32 {
        self.cylinders
    }

    /// The first sector of a cylinder.
    ///
    /// # Panics
    /// The cylinder does not exist.
    #[must_use]
    pub fn first_sector(&self, cylinder: u32) -> u64 {
        assert!(cylinder < self.cylinders);
        let number = self.starts.partition_point(|(_, first)| *first <= cylinder) - 1;
        let (start, first_cylinder) = self.starts[number];
        let tracks = u64::from(cylinder - first_cylinder) * u64::from(self.heads);
        start + tracks * u64::from(self.zones[number].sectors_per_track)
    }

    /// Position of a sector.
    ///
    /// # Panics
    /// The sector is not on the disk.
    #[must_use]
    pub fn place(&self, sector: u64) -> Place {
        assert!(sector < self.sectors, "the sector is on the disk");
        let number = self.starts.partition_point(|(start, _)| *start <= sector) - 1;
        let zone = self.zones[number];
        let (start, first_cylinder) = self.starts[number];
        let per_track = u64::from(zone.sectors_per_track);
        let track = (sector - start) / per_track;
        let in_track = (sector - start) % per_track;
        let sector_time_x65536 = (self.revolution.0 << 16) / per_track;
        let tracks_before = u64::from(first_cylinder) * u64::from(self.heads) + track;
        let angle = tracks_before * self.skew().0 + ((in_track * sector_time_x65536) >> 16);
        let angle = angle + self.turned.0;
        Place {
            cylinder: first_cylinder + (track / u64::from(self.heads)) as u32,
            head: (track % u64::from(self.heads)) as u32,
            angle: Nanos(angle % self.revolution.0),
            left_in_track: (per_track - in_track) as u32,
            sector_time_x65536,
        }
    }

    /// Offset of a track's start from the previous one: the longer of the two steps between tracks,
    /// so that neither loses a revolution.
    fn skew(&self) -> Nanos {
        self.seek.head_switch.max(self.seek.track_to_track)
    }

    /// Seek time from one position to another.
    #[must_use]
    pub fn seek_time(&self, from: (u32, u32), to: (u32, u32), write: bool) -> Nanos {
        let distance = from.0.abs_diff(to.0);
        let settle = if write { self.seek.write_settle } else { Nanos(0) };
        match distance {
            0 if from.1 == to.1 => Nanos(0),
            0 => self.seek.head_switch + settle,
            _ => self.curve(distance).max(self.seek.head_switch) + settle,
        }
    }

    /// Upper bound of positioning times.
    #[must_use]
    pub fn longest_positioning(&self) -> Nanos {
        self.seek.full_stroke.max(self.seek.head_switch) + self.seek.write_settle + self.revolution
    }

    /// Seek time by distance: a square root up to a third of the cylinders, then a line, through
    /// three known times.
    fn curve(&self, distance: u32) -> Nanos {
        let SeekTimes { track_to_track, average, full_stroke, .. } = self.seek;
        let distance = u64::from(distance);
        let last = u64::from(self.cylinders - 1);
        let knee = (last / 3).max(2);
        if distance <= knee {
            // In units of 2^-16: integers, so that every machine computes the same disk.
            let share = ((distance - 1) << 32) / (knee - 1);
            return track_to_track + Nanos(((average - track_to_track).0 * share.isqrt()) >> 16);
        }
        let beyond = distance - knee;
        let rest = last - knee;
        average + Nanos((full_stroke - average).0 * beyond / rest.max(1))
    }
}
