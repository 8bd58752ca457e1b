//! Several devices below one: RAID 0, RAID 1 and RAID 10 of `drivers/md`.
//!
//! The layout is raid10's "near" one, whose cases of one copy, and of as many as members, are
//! RAID 0 and RAID 1. Copies of a chunk follow each other over the members:
//!
//! ```text
//!   4 members, 2 copies     3 members, 2 copies     2 members, 1 copy
//!     0  0  1  1              0  0  1                 0  1
//!     2  2  3  3              1  2  2                 2  3
//! ```

use blockyard_engine::bio::Sector;

/// Members of a RAID; each is a device of its own with its own queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaidConfig {
    /// Number of members.
    pub members: u16,
    /// Copies of each chunk, on different members (`near_copies`); 1: RAID 0.
    pub copies: u16,
    /// Sectors of a chunk.
    pub chunk_sectors: u32,
}

/// Place of a sector on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::world) struct Place {
    pub(in crate::world) member: u16,
    pub(in crate::world) sector: u64,
}

impl RaidConfig {
    /// Size of the array on members of this size (`raid10_size`).
    pub(super) fn sectors(&self, member_sectors: u64) -> u64 {
        let chunk = u64::from(self.chunk_sectors);
        let chunks = member_sectors / chunk * u64::from(self.members) / u64::from(self.copies);
        chunks * chunk
    }

    /// The part of a range from its start to the end of the chunk; all of it if every member has
    /// every chunk.
    pub(in crate::world) fn part(&self, start: Sector, len: Sector) -> Sector {
        let chunk = u64::from(self.chunk_sectors);
        if self.copies == self.members {
            return len;
        }
        Sector(len.0.min(chunk - start.0 % chunk))
    }

    /// Places of a sector's copies (`raid10_find_phys`).
    pub(in crate::world) fn places(self, sector: Sector) -> impl Iterator<Item = Place> {
        let members = u64::from(self.members);
        let chunk_sectors = u64::from(self.chunk_sectors);
        let first = sector.0 / chunk_sectors * u64::from(self.copies);
        let in_chunk = sector.0 % chunk_sectors;
        (first..first + u64::from(self.copies)).map(move |copy| Place {
            member: u16::try_from(copy % members).expect("it is below the number of members"),
            sector: copy / members * chunk_sectors + in_chunk,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of the copies of each chunk, with their rows.
    fn layout(members: u16, copies: u16) -> Vec<Vec<(u16, u64)>> {
        let raid = RaidConfig { members, copies, chunk_sectors: 8 };
        let chunk = |chunk: u64| {
            let places = raid.places(Sector(chunk * 8 + 3));
            places.map(|place| (place.member, (place.sector - 3) / 8)).collect()
        };
        (0..4).map(chunk).collect()
    }

    #[test]
    fn copies_of_a_chunk_follow_each_other_over_the_members() {
        let four = [[(0, 0), (1, 0)], [(2, 0), (3, 0)], [(0, 1), (1, 1)], [(2, 1), (3, 1)]];
        assert_eq!(layout(4, 2), four.map(Vec::from));
        let three = [[(0, 0), (1, 0)], [(2, 0), (0, 1)], [(1, 1), (2, 1)], [(0, 2), (1, 2)]];
        assert_eq!(layout(3, 2), three.map(Vec::from));
        let striped = [[(0, 0)], [(1, 0)], [(0, 1)], [(1, 1)]];
        assert_eq!(layout(2, 1), striped.map(Vec::from));
    }

    #[test]
    fn size_is_that_of_whole_chunks_less_the_copies_and_a_mirror_cuts_nothing() {
        let size =
            |members, copies| RaidConfig { members, copies, chunk_sectors: 128 }.sectors(1_000);
        assert_eq!([size(4, 1), size(4, 2), size(2, 2), size(3, 2)], [3_584, 1_792, 896, 1_280]);
        let part = |copies| {
            let raid = RaidConfig { members: 2, copies, chunk_sectors: 128 };
            raid.part(Sector(120), Sector(64)).0
        };
        assert_eq!([part(1), part(2)], [8, 64]);
    }
}
