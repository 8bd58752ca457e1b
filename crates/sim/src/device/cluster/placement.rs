//! Places of objects: object → placement group → OSDs.
//!
//! An object belongs to the placement group of its hash. A group draws a length for each OSD, and
//! takes the longest ones on different hosts, as CRUSH's `straw2` buckets of equal weight do
//! (Weil et al., "CRUSH", 2006; `src/crush/mapper.c`). So the loss of an OSD moves its groups only.

/// Size of a cluster and the number of its copies.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Machines with OSDs.
    pub hosts: u32,
    /// OSDs of a host.
    pub osds_per_host: u32,
    /// Copies of each object. With fewer hosts than copies, a host may have several.
    pub copies: u32,
    /// The first OSDs are lost: groups have other OSDs instead.
    pub lost_osds: u32,
}

/// Placement groups of an OSD, counted with all copies; Ceph's documents recommend 100.
const GROUPS_OF_OSD: u32 = 100;

/// The OSDs of each placement group.
#[derive(Debug)]
pub(super) struct Placement {
    /// OSDs of all groups, one group after the other; the first OSD of a group is its primary.
    osds: Vec<u32>,
    /// OSDs of a group.
    width: usize,
    groups: u64,
}

impl Placement {
    pub(super) fn new(layout: &Layout) -> Self {
        let osds = layout.hosts * layout.osds_per_host;
        let groups = (osds * GROUPS_OF_OSD / layout.copies).next_power_of_two();
        let of_groups: Vec<Vec<u32>> = (0..groups).map(|group| draw(layout, group)).collect();
        let width = of_groups.first().map_or(0, Vec::len);
        Self { osds: of_groups.concat(), width, groups: groups.into() }
    }

    /// The OSDs of an object, the primary first.
    pub(super) fn osds(&self, object: u64) -> &[u32] {
        let group = (mix(object) % self.groups) as usize;
        &self.osds[group * self.width..][..self.width]
    }
}

/// The OSDs of a group: the longest draws on different hosts.
fn draw(layout: &Layout, group: u32) -> Vec<u32> {
    let osds = layout.lost_osds..layout.hosts * layout.osds_per_host;
    let mut drawn: Vec<u32> = osds.collect();
    drawn.sort_by_key(|osd| mix(u64::from(group) << 32 | u64::from(*osd) | 1 << 31));
    let is_of_hosts = layout.hosts >= layout.copies;
    let mut taken: Vec<u32> = Vec::new();
    for osd in drawn {
        let host = |osd: u32| osd / layout.osds_per_host;
        let is_free = !is_of_hosts || taken.iter().all(|other| host(*other) != host(osd));
        if is_free && taken.len() < layout.copies as usize {
            taken.push(osd);
        }
    }
    taken
}

/// A hash with the quality of a random number (the finaliser of `SplitMix64`).
pub(super) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { hosts: 10, osds_per_host: 4, copies: 3, lost_osds: 0 };

    #[test]
    fn copies_are_on_different_hosts_and_all_osds_have_about_as_many() {
        let placement = Placement::new(&LAYOUT);
        let mut copies = [0; 40];
        for object in 0..40_000 {
            let osds = placement.osds(object);
            let mut hosts: Vec<u32> = osds.iter().map(|osd| osd / 4).collect();
            hosts.sort_unstable();
            hosts.dedup();
            assert_eq!(hosts.len(), 3, "{osds:?}");
            osds.iter().for_each(|osd| copies[*osd as usize] += 1);
        }
        // 3000 each; 150 groups with a standard deviation of 12.
        assert!(copies.iter().all(|copies| (2_000..4_000).contains(copies)), "{copies:?}");
    }

    #[test]
    fn loss_of_an_osd_moves_its_copies_only() {
        let before = Placement::new(&LAYOUT);
        let after = Placement::new(&Layout { lost_osds: 1, ..LAYOUT });
        for object in 0..4_000 {
            let kept = before.osds(object).iter().filter(|osd| **osd != 0);
            assert!(kept.clone().all(|osd| after.osds(object).contains(osd)));
            assert!(!after.osds(object).contains(&0) && after.osds(object).len() == 3);
        }
    }

    #[test]
    fn one_host_has_all_copies_on_different_osds() {
        let layout = Layout { hosts: 1, osds_per_host: 3, copies: 2, lost_osds: 0 };
        let placement = Placement::new(&layout);
        for object in 0..100 {
            let osds = placement.osds(object);
            assert!(osds.len() == 2 && osds[0] != osds[1], "{osds:?}");
        }
    }
}
