//! Files whose unsynced changes a power cut may drop.
//!
//! Each file has a stable image, the image that programs see, and the list of changes between the
//! two. A sync makes all earlier changes stable. A power cut drops any of the others, in units of
//! 512 bytes: each sector keeps its stable bytes or those of any later change. Directory entries
//! follow the same rule: they are stable after `fsyncdir`.

use crate::random::Random;
use std::collections::BTreeMap;

/// Unit that a disk writes atomically.
pub(super) const SECTOR_BYTES: usize = 512;

/// Number of a file, which is also its FUSE node.
pub(super) type Ino = u64;

/// The root directory's node, as FUSE fixes it.
pub(super) const ROOT: Ino = 1;

/// A change of a file that no sync has covered.
#[derive(Debug)]
struct Change {
    /// Number among all changes of the disk.
    number: u64,
    kind: ChangeKind,
}

#[derive(Debug)]
enum ChangeKind {
    Write { offset: usize, bytes: Vec<u8> },
    Zeroes { offset: usize, len: usize },
    Length(usize),
}

impl ChangeKind {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*offset..end].copy_from_slice(bytes);
            }
            Self::Zeroes { offset, len } => {
                let end = (offset + len).min(image.len());
                if *offset < end {
                    image[*offset..end].fill(0);
                }
            }
            Self::Length(len) => image.resize(*len, 0),
        }
    }

    /// Overwrites the overlapping part of this change with these bytes.
    fn overlay(&mut self, offset: usize, bytes: &[u8]) {
        let own = self.range();
        let start = own.start.max(offset);
        let end = own.end.min(offset + bytes.len());
        if start >= end {
            return;
        }
        if let Self::Zeroes { offset, len } = *self {
            *self = Self::Write { offset, bytes: vec![0; len] };
        }
        if let Self::Write { bytes: own_bytes, .. } = self {
            own_bytes[start - own.start..end - own.start]
                .copy_from_slice(&bytes[start - offset..end - offset]);
        }
    }

    /// The changed range of bytes.
    fn range(&self) -> std::ops::Range<usize> {
        match self {
            Self::Write { offset, bytes } => *offset..offset + bytes.len(),
            Self::Zeroes { offset, len } => *offset..offset + len,
            Self::Length(_) => 0..0,
        }
    }
}

/// A file.
#[derive(Debug, Default)]
pub(super) struct DiskFile {
    stable: Vec<u8>,
    now: Vec<u8>,
    unsynced: Vec<Change>,
}

/// All files, and the single directory.
#[derive(Debug, Default)]
pub(super) struct Disk {
    files: BTreeMap<Ino, DiskFile>,
    entries: BTreeMap<String, Ino>,
    stable_entries: BTreeMap<String, Ino>,
    changes: u64,
    last_ino: Ino,
}

/// Changes dropped by a cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Dropped {
    /// Number of sectors with unstable changes.
    pub(super) unsynced_sectors: u64,
    /// Number of them that lost at least the newest change.
    pub(super) lost_sectors: u64,
}

impl Disk {
    /// Creates or replaces a stable file.
    pub(super) fn put(&mut self, name: &str, image: Vec<u8>) {
        if let Some(old) = self.entries.get(name) {
            self.files.remove(old);
        }
        let ino = self.create(name);
        let file = self.files.get_mut(&ino).expect("just created");
        (file.stable, file.now) = (image.clone(), image);
        self.sync_directory();
    }

    /// The content of a file, as programs see it.
    #[cfg(test)]
    pub(super) fn image(&self, name: &str) -> Option<&[u8]> {
        self.entries.get(name).map(|ino| self.files[ino].now.as_slice())
    }

    pub(super) fn lookup(&self, name: &str) -> Option<Ino> {
        self.entries.get(name).copied()
    }

    pub(super) fn len_bytes(&self, ino: Ino) -> Option<u64> {
        self.files.get(&ino).map(|file| file.now.len() as u64)
    }

    /// Creates an empty file; its directory entry is not stable yet.
    pub(super) fn create(&mut self, name: &str) -> Ino {
        self.last_ino = self.last_ino.max(ROOT) + 1;
        self.files.insert(self.last_ino, DiskFile::default());
        self.entries.insert(name.to_owned(), self.last_ino);
        self.last_ino
    }

    pub(super) fn unlink(&mut self, name: &str) -> bool {
        self.entries.remove(name).is_some()
    }

    pub(super) fn rename(&mut self, old: &str, new: &str) -> bool {
        let Some(ino) = self.entries.remove(old) else { return false };
        self.entries.insert(new.to_owned(), ino);
        true
    }

    /// Makes the directory entries stable.
    pub(super) fn sync_directory(&mut self) {
        self.stable_entries = self.entries.clone();
    }

    pub(super) fn read(&self, ino: Ino, offset: usize, len: usize) -> &[u8] {
        let now = &self.files[&ino].now;
        let end = (offset + len).min(now.len());
        &now[offset.min(end)..end]
    }

    pub(super) fn write(&mut self, ino: Ino, offset: usize, bytes: &[u8]) {
        self.change(ino, ChangeKind::Write { offset, bytes: bytes.to_vec() });
    }

    /// Writes with immediate stability. Earlier unstable changes stay unstable.
    pub(super) fn write_stable(&mut self, ino: Ino, offset: usize, bytes: &[u8]) {
        let file = self.files.get_mut(&ino).expect("an open file is kept");
        let write = ChangeKind::Write { offset, bytes: bytes.to_vec() };
        // A surviving older change must not undo the write.
        file.unsynced.iter_mut().for_each(|change| change.kind.overlay(offset, bytes));
        write.apply(&mut file.now);
        write.apply(&mut file.stable);
    }

    pub(super) fn zero(&mut self, ino: Ino, offset: usize, len: usize) {
        self.change(ino, ChangeKind::Zeroes { offset, len });
    }

    pub(super) fn set_len(&mut self, ino: Ino, len: usize) {
        self.change(ino, ChangeKind::Length(len));
    }

    fn change(&mut self, ino: Ino, kind: ChangeKind) {
        self.changes += 1;
        let file = self.files.get_mut(&ino).expect("an open file is kept");
        kind.apply(&mut file.now);
        file.unsynced.push(Change { number: self.changes, kind });
    }

    /// The changes that a sync started now must cover: pass the result to [`Disk::sync`] at its
    /// end.
    pub(super) fn newest_change(&self) -> u64 {
        self.changes
    }

    /// Makes the changes of the file up to `up_to` stable.
    pub(super) fn sync(&mut self, ino: Ino, up_to: u64) {
        let Some(file) = self.files.get_mut(&ino) else { return };
        let covered = file.unsynced.partition_point(|change| change.number <= up_to);
        for change in file.unsynced.drain(..covered) {
            change.kind.apply(&mut file.stable);
        }
    }

    /// Cuts the power: from now on programs see what the disk has kept.
    pub(super) fn cut(&mut self, random: &mut Random) -> Dropped {
        let mut dropped = Dropped::default();
        let taste = Taste::draw(random);
        self.entries
            .retain(|name, ino| self.stable_entries.get(name) == Some(ino) || taste.keeps(random));
        for (name, ino) in &self.stable_entries {
            if !self.entries.contains_key(name) && !taste.keeps(random) {
                self.entries.insert(name.clone(), *ino);
            }
        }
        self.stable_entries = self.entries.clone();
        let inos: Vec<_> = self.entries.values().copied().collect();
        self.files.retain(|ino, _| inos.contains(ino));
        for file in self.files.values_mut() {
            file.cut(taste, random, &mut dropped);
        }
        dropped
    }
}

/// Share of unstable changes that a cut drops.
#[derive(Clone, Copy, Debug)]
enum Taste {
    /// All: the write cache was never emptied.
    Everything,
    /// Each sector separately; this number of 16 is kept.
    Some(u64),
    /// None: the cut came at a lucky time.
    Nothing,
}

impl Taste {
    /// Usually all or some: a cut that drops none finds only missing writes.
    fn draw(random: &mut Random) -> Self {
        match random.below(16) {
            0..7 => Self::Everything,
            7..15 => Self::Some(1 + random.below(15)),
            _ => Self::Nothing,
        }
    }

    fn keeps(self, random: &mut Random) -> bool {
        match self {
            Self::Everything => false,
            Self::Some(of_16) => random.below(16) < of_16,
            Self::Nothing => true,
        }
    }
}

impl DiskFile {
    fn cut(&mut self, taste: Taste, random: &mut Random, dropped: &mut Dropped) {
        let mut running = self.stable.clone();
        // The bytes of each sector after each change of it.
        let mut versions: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        let mut kept_len = running.len();
        for change in self.unsynced.drain(..) {
            change.kind.apply(&mut running);
            if taste.keeps(random) {
                kept_len = running.len();
            }
            let range = change.kind.range();
            for sector in range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES) {
                let start = (sector * SECTOR_BYTES).min(running.len());
                let bytes = running[start..running.len().min(start + SECTOR_BYTES)].to_vec();
                versions.entry(sector).or_default().push(bytes);
            }
        }
        let mut kept = self.stable.clone();
        kept.resize(running.len().max(kept.len()), 0);
        for (sector, versions) in versions {
            dropped.unsynced_sectors += 1;
            let newest = versions.len() - 1;
            let version = match taste {
                Taste::Everything => None,
                Taste::Nothing => Some(newest),
                // Usually the newest or the stable version, sometimes any of the others.
                Taste::Some(_) if !taste.keeps(random) => None,
                Taste::Some(_) if random.below(2) == 0 => Some(newest),
                Taste::Some(_) => Some(random.below(versions.len() as u64) as usize),
            };
            if version != Some(newest) {
                dropped.lost_sectors += 1;
            }
            if let Some(version) = version {
                let start = sector * SECTOR_BYTES;
                let bytes = &versions[version];
                kept[start..start + bytes.len()].copy_from_slice(bytes);
            }
        }
        kept.truncate(kept_len);
        (self.stable, self.now) = (kept.clone(), kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (Disk, Ino) {
        let mut disk = Disk::default();
        disk.put("a", vec![0; 4 * SECTOR_BYTES]);
        let ino = disk.lookup("a").unwrap();
        (disk, ino)
    }

    #[test]
    fn synced_write_survives_every_cut_and_an_unsynced_one_does_not() {
        let mut lost = 0;
        for seed in 0..200 {
            let (mut disk, ino) = disk();
            disk.write(ino, 0, &[1; SECTOR_BYTES]);
            let up_to = disk.newest_change();
            disk.write(ino, SECTOR_BYTES, &[2; SECTOR_BYTES]);
            disk.sync(ino, up_to);
            disk.cut(&mut Random::new(seed));
            let image = disk.image("a").unwrap();
            assert_eq!(image[..SECTOR_BYTES], [1; SECTOR_BYTES]);
            lost += u32::from(image[SECTOR_BYTES] == 0);
        }
        assert!((50..190).contains(&lost), "{lost} of 200 unsynced writes were lost");
    }

    #[test]
    fn write_is_torn_between_sectors_and_never_inside_one() {
        let mut torn = 0;
        for seed in 0..200 {
            let (mut disk, ino) = disk();
            disk.write(ino, 100, &[7; 2 * SECTOR_BYTES]);
            disk.cut(&mut Random::new(seed));
            let image = disk.image("a").unwrap();
            let whole = |sector: usize, range: std::ops::Range<usize>| {
                let bytes = &image[sector * SECTOR_BYTES..][range];
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "sector {sector} is torn");
                bytes[0] == 7
            };
            let kept = [whole(0, 100..512), whole(1, 0..512), whole(2, 0..100)];
            torn += u32::from(kept.contains(&true) && kept.contains(&false));
        }
        assert!(torn > 20, "{torn} of 200 writes were torn");
    }

    #[test]
    fn sector_may_keep_the_first_of_two_unsynced_writes() {
        let mut seen = [0; 3];
        for seed in 0..400 {
            let (mut disk, ino) = disk();
            disk.write(ino, 0, &[1; SECTOR_BYTES]);
            disk.write(ino, 0, &[2; SECTOR_BYTES]);
            disk.cut(&mut Random::new(seed));
            seen[usize::from(disk.image("a").unwrap()[0])] += 1;
        }
        assert!(seen.iter().all(|count| *count > 0), "old, first, second: {seen:?}");
    }

    #[test]
    fn stable_write_survives_though_older_ones_of_its_sectors_are_kept_or_lost() {
        for seed in 0..200 {
            let (mut disk, ino) = disk();
            disk.write(ino, 0, &[1; 2 * SECTOR_BYTES]);
            disk.zero(ino, SECTOR_BYTES, 2 * SECTOR_BYTES);
            disk.write_stable(ino, SECTOR_BYTES, &[3; SECTOR_BYTES]);
            disk.cut(&mut Random::new(seed));
            let image = disk.image("a").unwrap();
            assert_eq!(image[SECTOR_BYTES..2 * SECTOR_BYTES], [3; SECTOR_BYTES]);
        }
    }

    #[test]
    fn created_file_is_there_for_certain_only_after_its_directory_was_synced() {
        let mut gone = 0;
        for seed in 0..100 {
            let (mut disk, _) = disk();
            disk.create("kept");
            disk.sync_directory();
            let ino = disk.create("new");
            disk.sync(ino, disk.newest_change());
            disk.cut(&mut Random::new(seed));
            assert!(disk.lookup("kept").is_some());
            gone += u32::from(disk.lookup("new").is_none());
        }
        assert!(gone > 20, "{gone} of 100 new files were lost");
    }
}
