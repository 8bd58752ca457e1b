//! Several devices below one volume: a table of linear and striped lines over two to four of them.
//!
//! ```text
//!   bios ─> shard with the table ─> queue of the device ─> its model, with faults of its own
//! ```
//! Each device has its own volatile cache, and a flush of one does not cover the others. The layout
//! is computed independently here: the oracles do not trust the targets.

use std::fmt;
use std::fmt::Write;

use blockyard_engine::bio::{Bio, Sector};
use blockyard_engine::dm::line::{Line, parse};
use blockyard_engine::dm::registry::Opened;
use blockyard_engine::dm::table::{Table, TableExtent};
use blockyard_engine::sq::DevId;
use blockyard_workload::random::Random;

use super::plan::{SECTORS, one_of};
use crate::oracle::{Finding, must};

/// The devices of a world, and the volume's layout on them.
#[derive(Clone)]
pub(super) struct Devices {
    pub(super) count: u16,
    /// The table; its devices are d0, d1, ...
    text: String,
    /// By device: the volume's sectors on it, in order.
    held: Vec<Vec<u64>>,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text.trim_end().replace('\n', "; "))
    }
}

impl Devices {
    pub(super) fn draw(random: &mut Random) -> Self {
        let count = 2 + random.below(3) as u16;
        let held = vec![Vec::new(); usize::from(count)];
        let mut devices = Self { count, text: String::new(), held };
        let mut start = 0;
        while start < SECTORS {
            let left = (128 * (1 + random.below(6))).min(SECTORS - start);
            let first = random.below(count.into()) as usize;
            let stripes = 2 + random.below(u64::from(count) - 1) as usize;
            let chunk = one_of(random, &[8, 16, 64]);
            let row = chunk * stripes as u64;
            start += if random.below(2) == 0 && left >= row {
                devices.stripes(start, left / row * row, chunk, first, stripes)
            } else {
                devices.linear(start, left, first)
            };
        }
        devices
    }

    /// Adds a linear line; returns its length.
    fn linear(&mut self, start: u64, len: u64, device: usize) -> u64 {
        let held = &mut self.held[device];
        writeln!(self.text, "{start} {len} linear d{device} {}", held.len()).expect("memory");
        held.extend(start..start + len);
        len
    }

    /// Adds a striped line over several devices from `first` on.
    fn stripes(&mut self, start: u64, len: u64, chunk: u64, first: usize, stripes: usize) -> u64 {
        let devices: Vec<_> =
            (first..first + stripes).map(|device| device % self.held.len()).collect();
        self.text += &format!("{start} {len} striped {stripes} {chunk}");
        for &device in &devices {
            self.text += &format!(" d{device} {}", self.held[device].len());
        }
        self.text += "\n";
        for (number, chunk_start) in (start..start + len).step_by(chunk as usize).enumerate() {
            self.held[devices[number % stripes]].extend(chunk_start..chunk_start + chunk);
        }
        len
    }

    /// The parsed table.
    pub(super) fn table(&self) -> Table {
        let mapped = parse(&self.text, &[]).expect("the lines are well-formed").remove(0);
        Table::new(mapped.lines.iter().map(extent).collect())
    }

    /// The device of each sector of the volume.
    pub(super) fn owners(&self) -> Vec<u16> {
        let mut owners = vec![0; SECTORS as usize];
        for (device, held) in (0..).zip(&self.held) {
            held.iter().for_each(|&sector| owners[sector as usize] = device);
        }
        owners
    }

    /// A device's part of a bio, in the volume's positions.
    pub(super) fn of_volume(&self, device: u16, piece: Bio) -> Result<Bio, Finding> {
        let start = piece.sector.0 as usize;
        let len = piece.len.0 as usize;
        let there = self.held[usize::from(device)].get(start..start + len).unwrap_or_default();
        let is_one = there.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        must!(ExactlyOnce, !there.is_empty() && is_one, "not of the volume: {piece:?}");
        Ok(Bio { sector: Sector(there[0]), ..piece })
    }
}

fn extent(line: &Line) -> TableExtent {
    let dev = |name: &str| DevId(name[1..].parse().expect("d and a number"));
    let devs = line.needs().devices.iter().map(|need| dev(need.path)).collect();
    let target = line.arguments.open(Opened::devices(devs)).expect("its devices are there");
    TableExtent::new(Sector(line.start), Sector(line.len), target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sector_of_the_volume_is_on_one_device() {
        for seed in 0..100 {
            let devices = Devices::draw(&mut Random::new(seed, 0));
            let mut all: Vec<u64> = devices.held.iter().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..SECTORS).collect::<Vec<_>>(), "{devices:?}");
            devices.table();
        }
    }
}
