//! Promises of a server, unit by unit: the versions that may be there after a power cut.
//!
//! A unit is 64 bytes. Its list has each version that was sent; when a flush or FUA has promised a
//! version, all older ones are removed. After a cut the unit must hold a version of the list.

use super::Broken;
use crate::volume::noise;

/// Tracked unit: smaller than a disk's atomic unit, so that unaligned writes have units too.
pub(super) const UNIT_BYTES: usize = 64;

/// One write of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    /// Number among all writes, from which its content is made. `None`: zeroes.
    generation: Option<u64>,
    /// Time of its acknowledgement, in ticks of the ledger.
    acknowledged: Option<u64>,
}

#[derive(Clone, Debug)]
struct Unit {
    /// Oldest first. The first is promised, the others may be lost.
    versions: Vec<Version>,
    is_busy: bool,
}

/// The promises for the whole volume.
pub(super) struct Ledger {
    units: Vec<Unit>,
    /// Number of acknowledgements.
    ticks: u64,
    generations: u64,
}

/// A write in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    first: usize,
    count: usize,
    generation: Option<u64>,
    /// Its units, and those that share an encryption sector with it.
    busy: (usize, usize),
}

impl Write {
    pub(super) fn offset_bytes(&self) -> u64 {
        (self.first * UNIT_BYTES) as u64
    }

    pub(super) fn len_bytes(&self) -> u32 {
        u32::try_from(self.count * UNIT_BYTES).expect("a request is short")
    }

    /// The bytes of the write.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let units = self.first..self.first + self.count;
        units.flat_map(|unit| content(unit, self.generation)).collect()
    }
}

/// Content of a unit in a version: place and generation, then noise made from both.
fn content(unit: usize, generation: Option<u64>) -> Vec<u8> {
    let Some(generation) = generation else { return vec![0; UNIT_BYTES] };
    let place = unit as u64;
    let mut bytes = [place.to_le_bytes(), generation.to_le_bytes()].concat();
    bytes.extend(noise(generation ^ place.rotate_left(40), UNIT_BYTES - bytes.len()));
    bytes
}

impl Ledger {
    /// The ledger of a volume whose content is [`Ledger::first_image`], promised.
    pub(super) fn new(len_bytes: u64) -> Self {
        let units = usize::try_from(len_bytes).expect("a small volume") / UNIT_BYTES;
        let first = Version { generation: Some(0), acknowledged: Some(0) };
        let unit = Unit { versions: vec![first], is_busy: false };
        Self { units: vec![unit; units], ticks: 0, generations: 0 }
    }

    /// The volume's content before the first write.
    pub(super) fn first_image(&self) -> Vec<u8> {
        (0..self.units.len()).flat_map(|unit| content(unit, Some(0))).collect()
    }

    pub(super) fn len_units(&self) -> usize {
        self.units.len()
    }

    /// Notes a write that is about to be sent. `None` if another write has some of its sectors in
    /// flight, because the order of the two is not guaranteed.
    pub(super) fn begin(
        &mut self,
        first: usize,
        count: usize,
        is_zero: bool,
        sector_bytes: usize,
    ) -> Option<Write> {
        let per_sector = sector_bytes / UNIT_BYTES;
        let busy_start = first / per_sector * per_sector;
        let busy_end = (first + count).next_multiple_of(per_sector).min(self.units.len());
        let busy = &mut self.units[busy_start..busy_end];
        if busy.iter().any(|unit| unit.is_busy) {
            return None;
        }
        busy.iter_mut().for_each(|unit| unit.is_busy = true);
        self.generations += 1;
        let generation = (!is_zero).then_some(self.generations);
        for unit in &mut self.units[first..first + count] {
            unit.versions.push(Version { generation, acknowledged: None });
        }
        Some(Write { first, count, generation, busy: (busy_start, busy_end) })
    }

    /// Notes an acknowledged write; with `is_stable` (FUA) it is promised.
    pub(super) fn acknowledge(&mut self, write: &Write, is_stable: bool) {
        self.ticks += 1;
        self.units[write.busy.0..write.busy.1].iter_mut().for_each(|unit| unit.is_busy = false);
        for unit in &mut self.units[write.first..write.first + write.count] {
            let newest = unit.versions.last_mut().expect("pushed when it began");
            newest.acknowledged = Some(self.ticks);
            if is_stable {
                unit.versions.drain(..unit.versions.len() - 1);
            }
        }
    }

    /// Notes a flush that is about to be sent: pass the result to [`Ledger::flushed`].
    pub(super) fn flush_begins(&self) -> u64 {
        self.ticks
    }

    /// Notes an acknowledged flush: writes acknowledged before its start are promised.
    pub(super) fn flushed(&mut self, began: u64) {
        for unit in &mut self.units {
            let is_covered =
                |version: &Version| version.acknowledged.is_some_and(|tick| tick <= began);
            let promised = unit.versions.iter().rposition(is_covered).unwrap_or(0);
            unit.versions.drain(..promised);
        }
    }

    /// Compares the volume with the promises; its content is promised from now on. Returns the
    /// number of units with several possible versions.
    pub(super) fn check(&mut self, image: &[u8]) -> Result<usize, Broken> {
        let mut open = 0;
        for (index, (unit, bytes)) in
            self.units.iter_mut().zip(image.chunks(UNIT_BYTES)).enumerate()
        {
            unit.is_busy = false;
            open += usize::from(unit.versions.len() > 1);
            let is_it = |version: &&Version| bytes == content(index, version.generation);
            let Some(found) = unit.versions.iter().rev().find(is_it).copied() else {
                return Err(Broken(format!(
                    "bytes {} to {} hold {}, and may hold {}",
                    index * UNIT_BYTES,
                    (index + 1) * UNIT_BYTES,
                    described(index, bytes),
                    possible(&unit.versions)
                )));
            };
            unit.versions = vec![Version { acknowledged: Some(0), ..found }];
        }
        Ok(open)
    }
}

fn described(unit: usize, bytes: &[u8]) -> String {
    if bytes.iter().all(|byte| *byte == 0) {
        return "zeros".into();
    }
    let generation = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    if bytes == content(unit, Some(generation)) {
        format!("generation {generation}")
    } else {
        "what was never written there".into()
    }
}

fn possible(versions: &[Version]) -> String {
    let name = |version: &Version| match version.generation {
        Some(generation) => format!("generation {generation}"),
        None => "zeros".into(),
    };
    let names: Vec<_> = versions.iter().map(name).collect();
    match &names[..] {
        [promised] => format!("only {promised}, which was promised"),
        [promised, later @ ..] => {
            format!("{promised}, which was promised, or later {}", later.join(", "))
        }
        [] => "nothing".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(ledger: &Ledger, changes: &[(usize, Option<u64>)]) -> Vec<u8> {
        let mut image = ledger.first_image();
        for (unit, generation) in changes {
            image[unit * UNIT_BYTES..][..UNIT_BYTES].copy_from_slice(&content(*unit, *generation));
        }
        image
    }

    #[test]
    fn acknowledged_write_may_be_lost_until_a_flush_that_began_later() {
        let mut ledger = Ledger::new(4096);
        let early = ledger.flush_begins();
        let write = ledger.begin(3, 1, false, 512).unwrap();
        ledger.acknowledge(&write, false);
        ledger.flushed(early);
        assert_eq!(ledger.check(&image(&ledger, &[])).unwrap(), 1);
        let write = ledger.begin(3, 1, false, 512).unwrap();
        ledger.acknowledge(&write, false);
        ledger.flushed(ledger.flush_begins());
        assert!(ledger.check(&image(&ledger, &[])).is_err());
        assert_eq!(ledger.check(&image(&ledger, &[(3, Some(2))])).unwrap(), 0);
    }

    #[test]
    fn fua_write_of_zeros_is_promised_at_once_and_one_in_flight_may_be_either() {
        let mut ledger = Ledger::new(4096);
        let zeros = ledger.begin(8, 1, true, 512).unwrap();
        assert!(ledger.begin(9, 1, false, 512).is_none(), "its sector is in flight");
        ledger.acknowledge(&zeros, true);
        assert!(ledger.check(&image(&ledger, &[])).is_err());
        ledger.begin(9, 1, false, 512).unwrap();
        let old = image(&ledger, &[(8, None)]);
        let new = image(&ledger, &[(8, None), (9, Some(2))]);
        assert!(ledger.check(&new).is_ok());
        assert!(ledger.check(&old).is_err(), "what was seen stays");
    }
}
