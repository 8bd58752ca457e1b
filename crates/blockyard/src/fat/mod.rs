//! FAT12, FAT16 and FAT32, by the crate `hadris-fat`.
//!
//! ```text
//! files/fat.rs (ls, cp) ─┐
//! mount/fat (a mount) ───┴─ Fat: folders and files ─ hadris-fat ─ Disk: cache ─ volume or file
//! ```
//! The crate reads and writes a file from its start to its end only. Reads and writes in the middle
//! are done here, by the numbers of its clusters.

mod disk;
mod layout;
mod time;

use std::io::{self, ErrorKind};

use hadris_fat::{DirectoryEntry, FatDir, FatVolume, FatVolumeWriteExt};
use rustix::io::Errno;

pub(crate) use disk::{Disk, Storage};
pub(crate) use hadris_fat::FileEntry;
pub(crate) use time::{Moment, days_of, fat_time, moment};

use layout::Layout;
use time::CLOCK;

/// Longest file: its length has 32 bits.
pub(crate) const FILE_MAX_BYTES: u64 = u32::MAX as u64;
/// Limit of a directory's entries, so that a damaged one does not fill the memory: the format
/// allows 65,536.
const ENTRIES_MAX: usize = 1 << 16;

/// An open file system.
pub(crate) struct Fat {
    volume: FatVolume<Disk>,
    disk: Disk,
    layout: Layout,
}

/// A folder; the root has no entry.
pub(crate) type Folder<'a> = Option<&'a FileEntry>;

impl Fat {
    /// Opens a file system.
    pub(crate) fn open(disk: Disk) -> io::Result<Self> {
        let volume = FatVolume::builder(disk.clone()).time_provider(&CLOCK).open();
        let volume = volume.map_err(failed)?;
        let max_cluster = volume.fat().max_cluster();
        let layout = Layout::read(&disk, volume.fat_type(), max_cluster)?;
        Ok(Self { volume, disk, layout })
    }

    /// Bytes of a cluster.
    pub(crate) fn cluster_bytes(&self) -> u64 {
        self.layout.cluster_bytes
    }

    /// Number of clusters.
    pub(crate) fn clusters(&self) -> u64 {
        self.layout.clusters
    }

    /// Number of free clusters, counted in the table.
    pub(crate) fn free_clusters(&self) -> io::Result<u64> {
        self.layout.free_clusters(&self.disk)
    }

    /// The files and folders in a folder.
    pub(crate) fn entries(&self, folder: Folder<'_>) -> io::Result<Vec<FileEntry>> {
        let mut entries = Vec::new();
        for entry in self.folder(folder)?.entries() {
            let DirectoryEntry::Entry(entry) = entry.map_err(failed)?;
            if entry.name() == "." || entry.name() == ".." {
                continue;
            }
            if entries.len() == ENTRIES_MAX {
                let problem = format!("the directory has more than {ENTRIES_MAX} entries");
                return Err(io::Error::new(ErrorKind::InvalidData, problem));
            }
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The entry of this name, in any case.
    pub(crate) fn find(&self, folder: Folder<'_>, name: &str) -> io::Result<FileEntry> {
        let found = self.folder(folder)?.find(name).map_err(failed)?;
        found.ok_or_else(|| Errno::NOENT.into())
    }

    /// The clusters of a file or folder, in order.
    pub(crate) fn chain(&self, entry: &FileEntry) -> io::Result<Vec<u32>> {
        let first = entry.cluster().0 as u32;
        let mut chain = Vec::new();
        if first >= 2 {
            let fat = self.volume.fat();
            let visit = |cluster| chain.push(cluster);
            fat.walk_chain(&mut self.disk.clone(), first, fat.max_cluster(), visit)
                .map_err(failed)?;
        }
        Ok(chain)
    }

    /// Reads a range of a file, which must lie in its clusters.
    pub(crate) fn read(&self, chain: &[u32], buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let len = buffer.len();
        self.each_run(chain, offset, len, |place, range| {
            self.disk.read_exact_at(&mut buffer[range], place)
        })
    }

    /// Overwrites a range of a file, which must lie in its clusters.
    pub(crate) fn overwrite(&self, chain: &[u32], data: &[u8], offset: u64) -> io::Result<()> {
        self.each_run(chain, offset, data.len(), |place, range| {
            self.disk.write_all_at(&data[range], place)
        })
    }

    /// Calls with each contiguous place of a range on the disk.
    fn each_run(
        &self,
        chain: &[u32],
        offset: u64,
        len: usize,
        mut call: impl FnMut(u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let cluster_bytes = self.layout.cluster_bytes;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let index = (at / cluster_bytes) as usize;
            let within = at % cluster_bytes;
            let rest = chain.get(index..).filter(|rest| !rest.is_empty());
            let rest = rest.ok_or_else(|| {
                io::Error::new(ErrorKind::InvalidData, "the file has fewer clusters than bytes")
            })?;
            let joined = rest.array_windows().take_while(|[one, next]| one + 1 == *next);
            let run_bytes = (1 + joined.count() as u64) * cluster_bytes - within;
            let piece = (len - done).min(usize::try_from(run_bytes).unwrap_or(usize::MAX));
            call(self.layout.place(rest[0]) + within, done..done + piece)?;
            done += piece;
        }
        Ok(())
    }

    /// Appends to a file.
    pub(crate) fn append(&self, entry: &FileEntry, data: &[u8]) -> io::Result<()> {
        let mut writer =
            hadris_fat::sync::write::FileWriter::new_append(&self.volume, entry).map_err(failed)?;
        writer.write(data).map_err(failed)?;
        writer.finish().map_err(failed)
    }

    /// Makes a file shorter.
    pub(crate) fn truncate(&self, entry: &FileEntry, len_bytes: u64) -> io::Result<()> {
        self.volume.truncate(entry, len_bytes as usize).map_err(failed)
    }

    pub(crate) fn create_file(&self, folder: Folder<'_>, name: &str) -> io::Result<FileEntry> {
        check_name(name)?;
        self.volume.create_file(&self.folder(folder)?, name).map_err(failed)
    }

    pub(crate) fn create_folder(&self, folder: Folder<'_>, name: &str) -> io::Result<FileEntry> {
        check_name(name)?;
        self.volume.create_dir(&self.folder(folder)?, name).map_err(failed)?;
        self.find(folder, name)
    }

    /// Removes a file or an empty folder.
    pub(crate) fn remove(&self, entry: &FileEntry) -> io::Result<()> {
        self.volume.delete(entry).map_err(failed)
    }

    /// Moves a file or folder to a free name, with its times.
    pub(crate) fn rename(
        &self,
        entry: &FileEntry,
        folder: Folder<'_>,
        name: &str,
    ) -> io::Result<FileEntry> {
        check_name(name)?;
        let renamed = self.volume.rename(entry, &self.folder(folder)?, name).map_err(failed)?;
        self.volume.set_times(&renamed, Some(entry.modified()), None, None).map_err(failed)?;
        self.find(folder, name)
    }

    /// Changes the times of a file or folder.
    pub(crate) fn set_times(
        &self,
        entry: &FileEntry,
        modified: Option<Moment>,
        accessed: Option<Moment>,
    ) -> io::Result<()> {
        let modified = modified.map(fat_time);
        let accessed = accessed.map(|moment| fat_time(moment).date);
        self.volume.set_times(entry, modified, accessed, None).map_err(failed)
    }

    /// Whether the mark says that the file system was not unmounted.
    pub(crate) fn is_marked_in_use(&self) -> io::Result<bool> {
        self.layout.is_marked_in_use(&self.disk)
    }

    /// Sets or clears that mark.
    pub(crate) fn mark_in_use(&self, in_use: bool) -> io::Result<()> {
        self.layout.mark_in_use(&self.disk, in_use)
    }

    /// Ends an operation: writes what it has changed.
    pub(crate) fn commit(&self) -> io::Result<()> {
        self.disk.commit()
    }

    /// Makes all changes durable.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.disk.flush_storage()
    }

    fn folder(&self, folder: Folder<'_>) -> io::Result<FatDir<'_, Disk>> {
        match folder {
            None => Ok(self.volume.root_dir()),
            Some(entry) => self.volume.open_dir_entry(entry).map_err(failed),
        }
    }
}

impl std::fmt::Debug for Fat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fat").field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// Windows removes dots and spaces at the end of a name, and could not open such a file.
fn check_name(name: &str) -> io::Result<()> {
    if name.ends_with(['.', ' ']) { Err(Errno::INVAL.into()) } else { Ok(()) }
}

/// The system's error for one of the crate; a damaged file system keeps the crate's sentence.
fn failed(error: hadris_fat::Error) -> io::Error {
    use hadris_fat::Error as Fat;
    let errno = match error {
        Fat::EntryNotFound => Errno::NOENT,
        Fat::NotAFile => Errno::ISDIR,
        Fat::NotADirectory => Errno::NOTDIR,
        Fat::InvalidFilename | Fat::InvalidShortFilename | Fat::InvalidPath => Errno::INVAL,
        Fat::NoFreeSpace | Fat::DirectoryFull => Errno::NOSPC,
        Fat::AlreadyExists => Errno::EXIST,
        Fat::DirectoryNotEmpty => Errno::NOTEMPTY,
        error => return io::Error::new(ErrorKind::InvalidData, error.to_string()),
    };
    errno.into()
}
