//! User data of bios between a front end, its driver and its shard ([`Bio::user`]).
//!
//! ```text
//!    63     62 ........................ 32    31 ................................. 0
//! patch  the range that the bio holds      the front end's number, or a patch's number
//! ```
//! A *patch* is a read-modify-write of the driver, which submits its own bios.
//!
//! [`Bio::user`]: blockyard_engine::bio::Bio::user

use blockyard_engine::ranges::Slot;

/// User data of a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserData(pub(crate) u64);

/// The way in which a bio holds its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Announced, without an entry.
    Announced(Slot),
    /// With an entry, at this index among the parked bios.
    Parked(u32),
}

impl UserData {
    /// The front end's number of a bio with a waiting caller, one at a time; other numbers are
    /// below.
    pub(crate) const WAITED_FOR: u64 = u32::MAX as u64;
    const PATCH: u64 = 1 << 63;
    /// Flag in the half with the range.
    const PARKED: u32 = 1 << 30;

    /// Whether it has only the front end's number.
    pub(crate) fn is_plain(self) -> bool {
        self.0 <= Self::WAITED_FOR
    }

    /// The front end's number.
    pub(crate) fn of_front_end(self) -> u64 {
        self.0 & Self::WAITED_FOR
    }

    /// User data for bios of a patch.
    pub(crate) fn of_patch(number: u32) -> Self {
        Self(Self::PATCH | u64::from(number))
    }

    /// The number of the bio's patch.
    pub(crate) fn patch(self) -> Option<u32> {
        (self.0 & Self::PATCH != 0).then_some(self.0 as u32)
    }

    /// This number, with the range that the bio holds.
    pub(crate) fn holding(self, hold: Hold) -> Self {
        let hold = match hold {
            Hold::Announced(slot) => u32::from(slot.0) + 1,
            Hold::Parked(place) => place | Self::PARKED,
        };
        Self(self.0 | u64::from(hold) << 32)
    }

    /// The range that a bio of the front end holds.
    pub(crate) fn hold(self) -> Option<Hold> {
        match (self.0 >> 32) as u32 {
            0 => None,
            hold if hold & Self::PARKED != 0 => Some(Hold::Parked(hold & !Self::PARKED)),
            hold => Some(Hold::Announced(Slot((hold - 1) as u16))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_the_front_end_survives_every_range_that_its_bio_holds() {
        let holds = [
            Hold::Announced(Slot(0)),
            Hold::Announced(Slot(u16::MAX)),
            Hold::Parked(0),
            Hold::Parked(9),
        ];
        for word in [0, 7, UserData::WAITED_FOR] {
            let plain = UserData(word);
            assert!(plain.is_plain() && plain.hold().is_none() && plain.patch().is_none());
            for hold in holds {
                let held = plain.holding(hold);
                assert_eq!((held.hold(), held.of_front_end()), (Some(hold), word));
                assert!(!held.is_plain() && held.patch().is_none());
            }
        }
        let patch = UserData::of_patch(3);
        assert_eq!((patch.patch(), patch.is_plain()), (Some(3), false));
    }
}
