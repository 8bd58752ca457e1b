//! `zonemode=zbd`: writes fill zones from their start, as a zoned disk requires.
//!
//! A volume has no zones. As in fio 3.33 on a regular file, the zones are emulated and initially
//! empty. A write goes to the write pointer of the drawn zone. A full zone is reset at its next
//! write. A read covers written data only. With `max_open_zones`, a write that would exceed the
//! limit goes to one of the open zones. The jobs of one file share its zones.
//!
//! ```text
//!   |<------- zonesize ------->|
//!   |<-- zonecapacity -->|     |
//!   [written   ^         ]-----[           ]
//!              └ the next write
//! ```
//! A read in an empty zone goes to the nearest zone with data, later ones first. The clone ends
//! when no zone has data, or when other jobs hold all open zones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::job::Job;
use super::lens::Direction;
use super::offsets::Extent;
use super::options::{Set, set};
use super::value::{number, rate};

/// Options of this module, besides `zonemode` and `zonesize`.
pub(super) const OPTIONS: &[(&str, Set)] = &[
    ("zonecapacity", |job, text| {
        set(&mut job.shape.zoned.capacity_bytes, rate(text, job.kb_base).map(Some))
    }),
    ("max_open_zones", |job, text| {
        set(&mut job.shape.zoned.open_max, number(text, 0, u32::MAX.into()))
    }),
];

/// Emulated zones of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZoneRule {
    /// `zonemode=zbd`.
    pub is_on: bool,
    /// `zonecapacity`: writable bytes of a zone; `None`: all.
    pub capacity_bytes: Option<u64>,
    /// `max_open_zones`: greatest number of partly written zones, for all jobs; 0: no limit.
    pub open_max: u32,
}

/// The zones of a file.
#[derive(Debug, Default)]
pub(crate) struct Zones(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Written bytes of each zone, by number. Missing zones are empty.
    written: BTreeMap<u64, u64>,
    /// Open zones, with `max_open_zones`.
    open: Vec<u64>,
}

/// A clone's view of the zones.
#[derive(Debug)]
pub(super) struct Zoned {
    zones: Arc<Zones>,
    size_bytes: u64,
    capacity_bytes: u64,
    open_max: u32,
    /// The region, as numbers of zones.
    first: u64,
    end: u64,
    /// Length of the shortest request, by direction.
    min_bytes: [u64; 3],
    is_random: bool,
    reads_writes: bool,
    has_written: bool,
    /// Number of zones that the clone has reset.
    pub(super) resets: u64,
}

/// The first invalid option of a job's zones, and its problem.
pub(super) fn problem(job: &Job) -> Option<(&'static str, String)> {
    let rule = &job.shape.zoned;
    if !rule.is_on {
        let is_said = rule.capacity_bytes.is_some() || rule.open_max > 0;
        return is_said.then(|| ("max_open_zones", "and its options need zonemode=zbd".into()));
    }
    let size_bytes = job.shape.strides.size_bytes;
    let is_whole = |bytes: u64| bytes.is_multiple_of(size_bytes);
    let all = [job.region.offset_bytes, job.region_bytes(), job.region.offset_increment_bytes];
    let capacity_bytes = rule.capacity_bytes.unwrap_or(size_bytes);
    Some(match () {
        () if size_bytes == 0 => ("zonemode", "is zbd, and needs a zonesize, as in 1m".into()),
        () if job.shape.strides.range_bytes.is_some() || job.shape.strides.skip_bytes > 0 => {
            ("zonerange", "and zoneskip need zonemode=strided".into())
        }
        () if !all.into_iter().all(is_whole) => {
            ("zonesize", "must divide size, offset and offset_increment".into())
        }
        () if capacity_bytes > size_bytes || capacity_bytes < job.shape.max_bytes() => {
            let text = "must be one block at least, and no more than zonesize";
            ("zonecapacity", text.into())
        }
        () if job.shape.rw.trims() => ("zonemode", "is zbd: a volume has no zones to reset".into()),
        () if !job.shape.rw.writes() => {
            ("zonemode", "is zbd: its zones are empty, so the job must write".into())
        }
        () if job.shape.leap_bytes != 0 => ("zonemode", "is zbd, which excludes a leap".into()),
        () if job.verify.sum.is_some() => {
            ("zonemode", "is zbd, whose requests move, so they cannot be verified".into())
        }
        () => return None,
    })
}

impl Zoned {
    /// `None` for a job without zones.
    pub(super) fn of(job: &Job, clone: u32, zones: &Arc<Zones>) -> Option<Box<Self>> {
        let size_bytes = job.shape.strides.size_bytes;
        job.shape.zoned.is_on.then(|| {
            let start_bytes = job.start_bytes(clone);
            Box::new(Self {
                zones: Arc::clone(zones),
                size_bytes,
                capacity_bytes: job.shape.zoned.capacity_bytes.unwrap_or(size_bytes),
                open_max: job.shape.zoned.open_max,
                first: start_bytes / size_bytes,
                end: (start_bytes + job.region_bytes()) / size_bytes,
                min_bytes: Direction::ALL.map(|direction| job.shape.lens(direction).min_bytes()),
                is_random: job.shape.rw.is_random(),
                reads_writes: job.shape.rw.reads(),
                has_written: false,
                resets: 0,
            })
        })
    }

    /// The direction, but a mix begins with a write, because there is nothing to read before it.
    pub(super) fn direction(&self, drawn: Direction) -> Direction {
        let is_first = self.reads_writes && !self.has_written;
        if is_first { Direction::Write } else { drawn }
    }

    /// The range for a request that was drawn at this offset; `None` if no zone can take it.
    pub(super) fn place(&mut self, direction: Direction, drawn: Extent) -> Option<Extent> {
        let zones = Arc::clone(&self.zones);
        let mut state = zones.0.lock().unwrap_or_else(PoisonError::into_inner);
        let region_start = self.first * self.size_bytes;
        let at = Extent { offset_bytes: region_start + drawn.offset_bytes, ..drawn };
        let placed = match direction {
            Direction::Read => self.read(&state, at),
            Direction::Write | Direction::Trim => self.write(&mut state, at),
        }?;
        Some(Extent { offset_bytes: placed.offset_bytes - region_start, ..placed })
    }

    fn write(&mut self, state: &mut State, at: Extent) -> Option<Extent> {
        let min_bytes = self.min_bytes[Direction::Write.index()];
        let zone = self.open(state, at.offset_bytes / self.size_bytes, at.offset_bytes)?;
        let written = state.written.entry(zone).or_default();
        if self.capacity_bytes - *written < min_bytes {
            *written = 0;
            self.resets += 1;
        }
        let room_bytes = self.capacity_bytes - *written;
        let fitting = room_bytes / min_bytes * min_bytes;
        let len_bytes = if at.len_bytes <= room_bytes { at.len_bytes } else { fitting };
        let offset_bytes = zone * self.size_bytes + *written;
        *written += len_bytes;
        if self.capacity_bytes - *written < min_bytes {
            state.open.retain(|open| *open != zone);
        }
        self.has_written = true;
        Some(Extent { offset_bytes, len_bytes })
    }

    /// The zone itself, or one of the open zones if the limit is reached.
    fn open(&self, state: &mut State, zone: u64, offset_bytes: u64) -> Option<u64> {
        if self.open_max == 0 || state.open.contains(&zone) {
            return Some(zone);
        }
        if state.open.len() < self.open_max as usize {
            state.open.push(zone);
            return Some(zone);
        }
        let own = |zone: &&u64| (self.first..self.end).contains(*zone);
        let open: Vec<u64> = state.open.iter().filter(own).copied().collect();
        let region = u128::from((self.end - self.first) * self.size_bytes);
        let inside = u128::from(offset_bytes - self.first * self.size_bytes);
        open.get((inside * open.len() as u128 / region.max(1)) as usize).copied()
    }

    fn read(&self, state: &State, at: Extent) -> Option<Extent> {
        let min_bytes = self.min_bytes[Direction::Read.index()];
        let wanted = at.offset_bytes / self.size_bytes;
        let written = |zone: u64| state.written.get(&zone).copied().unwrap_or(0);
        let inside = at.offset_bytes - wanted * self.size_bytes;
        let has_it = |zone: u64| {
            if self.is_random || zone != wanted {
                written(zone) >= min_bytes
            } else {
                written(zone) >= inside + min_bytes
            }
        };
        let near = (0..self.end - self.first).flat_map(|far| {
            let behind = Some(wanted + far).filter(|zone| *zone < self.end);
            let before = wanted.checked_sub(far).filter(|zone| *zone >= self.first && far > 0);
            [behind, before].into_iter().flatten()
        });
        let zone = near.into_iter().find(|zone| has_it(*zone))?;
        let written = written(zone);
        let inside = match () {
            () if inside + min_bytes <= written && zone == wanted => inside,
            () if !self.is_random => 0,
            () => inside % (written - min_bytes + 1) / min_bytes * min_bytes,
        };
        let len_bytes = at.len_bytes.min((written - inside) / min_bytes * min_bytes);
        Some(Extent { offset_bytes: zone * self.size_bytes + inside, len_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fio::JobResult;
    use crate::fio::tests::{World, run};
    use crate::program::{Call, DirectOp};

    /// Four zones of four blocks.
    fn zoned(options: &[(&str, &str)]) -> Job {
        let mut job = Job::new("a").with(|job| {
            job.submission.direct = true;
            job.region.size_bytes = 16 * 4096;
        });
        let usual = [("zonemode", "zbd"), ("zonesize", "16k"), ("rw", "randwrite")];
        usual.iter().chain(options).for_each(|(key, value)| job.set(key, value).unwrap());
        job
    }

    /// Zone and block of each request, and whether it reads.
    fn requests(job: Job) -> (JobResult, Vec<(u64, u64, bool)>) {
        let mut world = World::new(1, 1);
        let result = run(&mut world, job);
        let place = |call: &Call| match *call {
            Call::Submit { op, offset_bytes, .. } => {
                let block = offset_bytes / 4096;
                Some((block / 4, block % 4, op == DirectOp::Read))
            }
            _ => None,
        };
        (result, world.calls.iter().filter_map(place).collect())
    }

    #[test]
    fn writes_fill_each_zone_in_order_and_a_full_one_is_reset() {
        let (result, written) = requests(zoned(&[("loops", "2")]));
        assert_eq!((written.len(), result.zone_resets), (32, 4));
        let mut next = [0; 4];
        for (zone, block, _) in written {
            assert_eq!(block, next[zone as usize] % 4);
            next[zone as usize] += 1;
        }
        let (result, written) = requests(zoned(&[("rw", "write")]));
        assert!((0..16).map(|block| (block / 4, block % 4, false)).eq(written));
        assert_eq!(result.zone_resets, 0);
    }

    #[test]
    fn no_more_zones_than_that_are_partly_written() {
        let (_, written) = requests(zoned(&[("max_open_zones", "2"), ("loops", "3")]));
        let mut filled = [0; 4];
        for (zone, ..) in written {
            filled[zone as usize] = (filled[zone as usize] + 1) % 4;
            assert!(filled.iter().filter(|blocks| **blocks > 0).count() <= 2, "{filled:?}");
        }
    }

    #[test]
    fn reads_take_what_has_been_written_and_a_mix_writes_first() {
        for rw in ["randrw", "rw"] {
            let (_, all) = requests(zoned(&[("rw", rw), ("loops", "4"), ("rwmixread", "70")]));
            let mut written = [0; 4];
            for (zone, block, is_read) in all {
                if is_read {
                    assert!(block < written[zone as usize], "{rw}: {zone} {block}");
                } else {
                    written[zone as usize] = block + 1;
                }
            }
        }
    }

    #[test]
    fn sectors_behind_the_capacity_are_never_written() {
        let (_, written) = requests(zoned(&[("zonecapacity", "12k"), ("loops", "2")]));
        assert!(written.iter().all(|(_, block, _)| *block < 3));
        assert!(written.iter().any(|(_, block, _)| *block == 2));
    }

    #[test]
    fn clones_share_the_zones_of_their_file() {
        let mut job = zoned(&[("rw", "write"), ("numjobs", "2"), ("filename", "x")]);
        job.region.io_size_bytes = Some(8 * 4096);
        let (_, written) = requests(job);
        assert!((0..16).all(|at| written[at].1 == at as u64 % 4), "{written:?}");
        assert_eq!(written.iter().filter(|(zone, ..)| *zone < 2).count(), 16, "the second resets");
    }

    #[test]
    fn zones_that_cannot_be_are_refused() {
        for (options, wanted) in [
            (&[("zonesize", "12k")][..], "must divide size"),
            (&[("rw", "randread")], "the job must write"),
            (&[("rw", "trim")], "no zones to reset"),
            (&[("zonecapacity", "2k")], "one block at least"),
            (&[("zoneskip", "4k")], "need zonemode=strided"),
            (&[("verify", "crc32c")], "cannot be verified"),
            (&[("zonemode", "none")], "need zonemode"),
        ] {
            let error = zoned(options).check().unwrap_err().to_string();
            assert!(error.contains(wanted), "{options:?}: {error}");
        }
        let mut job = Job::new("a").with(|job| job.region.size_bytes = 4096);
        job.set("max_open_zones", "3").unwrap();
        assert!(job.check().unwrap_err().to_string().contains("need zonemode=zbd"));
    }
}
