//! The files of a mounted FAT file system, by the numbers that the kernel knows them by.
//!
//! An appended file is written in large pieces: bytes at its end wait in memory until the file is
//! closed, synchronised or forgotten, has many of them, or a few seconds are over. Their clusters
//! are promised before, so that an acknowledged write finds its room.
//!
//! A file whose waiting bytes could not be written keeps them and the error until it is removed.
//! Its calls and the end of the mount report the error; calls for other files do not.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use crate::fat::{FILE_MAX_BYTES, Fat, FileEntry, Moment, moment};

/// Number of the root.
pub(super) const ROOT: u64 = 1;
/// Waiting bytes of a file: each piece walks its chain of clusters once.
const PENDING_MAX_BYTES: usize = 4 << 20;
/// Clusters that a new name may need: its folder grows by two at most, and a new folder has one.
const NAME_CLUSTERS: u64 = 3;
/// Start of the names of removed files that programs have open.
const HIDDEN: &str = ".fuse_hidden";

/// All known files.
pub(super) struct Nodes {
    fat: Fat,
    nodes: HashMap<u64, Node>,
    /// By folder, and name as it is stored; the entries of a folder are neighbours.
    names: BTreeMap<(u64, String), u64>,
    next: u64,
    next_hidden: u64,
    /// Free clusters that are promised to no file; there may be more.
    free: u64,
    access: Access,
    has_ended: bool,
}

/// Permission to write, and the mark that says so on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadOnly,
    /// Nothing was written yet.
    Clean,
    /// Written, and marked as in use.
    Marked,
    /// The mark was there before: an earlier mount did not end in order.
    MarkedBefore,
}

struct Node {
    folder: u64,
    name: String,
    /// `None` for the root, and for a removed file.
    entry: Option<FileEntry>,
    /// Length with the waiting bytes.
    len: u64,
    pending: Vec<u8>,
    /// Changed in the middle since its time was set.
    is_touched: bool,
    /// The clusters, once they were needed.
    chain: Option<Vec<u32>>,
    lookups: u64,
    opens: u64,
    /// Removed while a program had it open.
    is_hidden: bool,
    /// Error of writing the waiting bytes or the time. A second attempt could append twice.
    failure: Option<Errno>,
}

/// Attributes of a file, for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) number: u64,
    pub(super) is_folder: bool,
    pub(super) is_read_only: bool,
    pub(super) len: u64,
    pub(super) modified: Moment,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) is_folder: bool,
}

/// A new time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewTimes {
    pub(super) modified: Option<Moment>,
    pub(super) accessed: Option<Moment>,
}

impl Node {
    fn new(folder: u64, entry: Option<FileEntry>) -> Self {
        Self {
            folder,
            name: entry.as_ref().map_or_else(String::new, |entry| entry.name().into_owned()),
            len: entry.as_ref().map_or(0, FileEntry::len),
            entry,
            pending: Vec::new(),
            is_touched: false,
            chain: None,
            lookups: 0,
            opens: 0,
            is_hidden: false,
            failure: None,
        }
    }

    /// Length without the waiting bytes.
    fn written(&self) -> u64 {
        self.len - self.pending.len() as u64
    }

    /// Whether bytes or a time have to be written.
    fn is_waiting(&self) -> bool {
        self.failure.is_none() && (!self.pending.is_empty() || self.is_touched)
    }

    /// Reports an earlier failure.
    fn check(&self) -> io::Result<()> {
        self.failure.map_or(Ok(()), |errno| Err(errno.into()))
    }
}

impl Nodes {
    pub(super) fn new(fat: Fat, read_only: bool) -> io::Result<Self> {
        let access = match (read_only, fat.is_marked_in_use()?) {
            (true, _) => Access::ReadOnly,
            (false, false) => Access::Clean,
            (false, true) => Access::MarkedBefore,
        };
        Ok(Self {
            fat,
            nodes: HashMap::from([(ROOT, Node::new(ROOT, None))]),
            names: BTreeMap::new(),
            next: ROOT + 1,
            next_hidden: 0,
            free: 0,
            access,
            has_ended: false,
        })
    }

    pub(super) fn lookup(&mut self, folder: u64, name: &str) -> io::Result<Attributes> {
        let entry = self.find(folder, name)?;
        let number = self.number(folder, entry);
        self.node(number)?.lookups += 1;
        self.attributes(number)
    }

    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && node.opens == 0 {
            // The node keeps a failure, and stays known with it.
            let _ = self.settle(number);
        }
        self.drop_unused(number);
    }

    pub(super) fn attributes(&mut self, number: u64) -> io::Result<Attributes> {
        let node = self.node(number)?;
        let entry = node.entry.as_ref();
        if entry.is_none() && number != ROOT {
            return Err(Errno::STALE.into());
        }
        let attributes = entry.map(FileEntry::attributes);
        Ok(Attributes {
            number,
            is_folder: entry.is_none_or(FileEntry::is_directory),
            is_read_only: attributes.is_some_and(|found| found.bits() & 1 != 0),
            len: node.len,
            modified: entry.map_or(0, |entry| moment(entry.modified())),
        })
    }

    pub(super) fn list(&mut self, folder: u64) -> io::Result<Vec<Listed>> {
        let entry = self.folder(folder)?;
        let entries = self.fat.entries(entry.as_ref())?;
        let listed = |entry: &FileEntry| Listed {
            name: entry.name().into_owned(),
            is_folder: entry.is_directory(),
        };
        Ok(entries.iter().map(listed).collect())
    }

    pub(super) fn open(&mut self, number: u64) -> io::Result<()> {
        self.node(number)?.opens += 1;
        Ok(())
    }

    /// Ends a use of [`Nodes::open`].
    pub(super) fn close(&mut self, number: u64) -> io::Result<()> {
        let settled = self.settle(number);
        let node = self.node(number)?;
        node.opens = node.opens.saturating_sub(1);
        if node.opens == 0 && node.is_hidden {
            self.remove(number)?;
        }
        self.drop_unused(number);
        settled
    }

    pub(super) fn read(&mut self, number: u64, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let node = self.node(number)?;
        let left = node.len.saturating_sub(offset);
        let mut bytes = vec![0; len.min(usize::try_from(left).unwrap_or(usize::MAX))];
        let written = node.written();
        let from_disk = bytes.len().min(written.saturating_sub(offset) as usize);
        let (on_disk, waiting) = bytes.split_at_mut(from_disk);
        if !waiting.is_empty() {
            let start = (offset + from_disk as u64 - written) as usize;
            waiting.copy_from_slice(&node.pending[start..start + waiting.len()]);
        }
        if !on_disk.is_empty() {
            self.walk(number)?;
            self.fat.read(self.chain(number), on_disk, offset)?;
        }
        Ok(bytes)
    }

    pub(super) fn write(&mut self, number: u64, data: &[u8], offset: u64) -> io::Result<()> {
        self.start_change()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_MAX_BYTES);
        let end = end.ok_or(Errno::FBIG)?;
        self.node(number)?.check()?;
        self.promise(number, end)?;
        self.fill(number, offset)?;
        let node = self.node(number)?;
        let inside = data.len().min(node.written().saturating_sub(offset) as usize);
        let (inside, behind) = data.split_at(inside);
        if !behind.is_empty() {
            let start = (offset + inside.len() as u64 - node.written()) as usize;
            let known = behind.len().min(node.pending.len() - start);
            node.pending[start..start + known].copy_from_slice(&behind[..known]);
            node.pending.extend_from_slice(&behind[known..]);
            node.len = node.len.max(end);
        }
        if !inside.is_empty() {
            node.is_touched = true;
            self.walk(number)?;
            self.fat.overwrite(self.chain(number), inside, offset)?;
        }
        if self.node(number)?.pending.len() >= PENDING_MAX_BYTES {
            self.settle(number)?;
        }
        Ok(())
    }

    /// Changes the length of a file.
    pub(super) fn resize(&mut self, number: u64, len: u64) -> io::Result<()> {
        self.start_change()?;
        if len > FILE_MAX_BYTES {
            return Err(Errno::FBIG.into());
        }
        self.settle(number)?;
        let node = self.node(number)?;
        if len >= node.len {
            self.promise(number, len)?;
            self.fill(number, len)?;
            // No close follows that would write the zeroes.
            let is_open = self.node(number)?.opens > 0;
            return if is_open { Ok(()) } else { self.settle(number) };
        }
        let entry = node.entry.clone().ok_or(Errno::STALE)?;
        node.chain = None;
        self.fat.truncate(&entry, len)?;
        self.refresh(number)
    }

    pub(super) fn set_times(&mut self, number: u64, times: NewTimes) -> io::Result<()> {
        self.start_change()?;
        self.settle(number)?;
        // The root has no times.
        let Some(entry) = self.node(number)?.entry.clone() else { return Ok(()) };
        self.fat.set_times(&entry, times.modified, times.accessed)?;
        self.refresh(number)
    }

    /// Makes a file or a folder, which counts as looked up.
    pub(super) fn create(
        &mut self,
        folder: u64,
        name: &str,
        is_folder: bool,
    ) -> io::Result<Attributes> {
        self.start_change()?;
        self.promise_name()?;
        let parent = self.folder(folder)?;
        let entry = if is_folder {
            self.fat.create_folder(parent.as_ref(), name)?
        } else {
            self.fat.create_file(parent.as_ref(), name)?
        };
        let number = self.number(folder, entry);
        self.node(number)?.lookups += 1;
        self.attributes(number)
    }

    /// Removes a file or an empty folder. A file that a program has open gets another name until it
    /// is closed.
    pub(super) fn unlink(&mut self, folder: u64, name: &str, is_folder: bool) -> io::Result<()> {
        self.start_change()?;
        let entry = self.find(folder, name)?;
        match (is_folder, entry.is_directory()) {
            (true, false) => return Err(Errno::NOTDIR.into()),
            (false, true) => return Err(Errno::ISDIR.into()),
            _ => {}
        }
        let number = self.number(folder, entry);
        if self.node(number)?.opens > 0 && !is_folder {
            return self.hide(number);
        }
        let removed = self.remove(number);
        self.drop_unused(number);
        removed
    }

    /// Moves a file or folder; one with the new name is replaced, if that is permitted.
    pub(super) fn rename(
        &mut self,
        from: (u64, &str),
        to: (u64, &str),
        may_replace: bool,
    ) -> io::Result<()> {
        self.start_change()?;
        self.promise_name()?;
        let source = self.find(from.0, from.1)?;
        let is_folder = source.is_directory();
        let number = self.number(from.0, source);
        self.settle(number)?;
        let replaced = match self.find(to.0, to.1) {
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => None,
            found => {
                let found = found?;
                let other = self.number(to.0, found);
                // The name may differ in its case only.
                (other != number).then_some(other)
            }
        };
        if let Some(other) = replaced {
            self.check_replacement(other, is_folder, may_replace)?;
            self.hide(other)?;
        }
        if let Err(error) = self.move_to(number, to.0, to.1) {
            if let Some(other) = replaced {
                // The first error is the one to report.
                let _ = self.move_to(other, to.0, to.1);
                self.node(other)?.is_hidden = false;
            }
            return Err(error);
        }
        if let Some(other) = replaced.filter(|other| self.nodes[other].opens == 0) {
            self.remove(other)?;
            self.drop_unused(other);
        }
        Ok(())
    }

    /// Clusters of the file system, those that are free, and their size.
    pub(super) fn space(&mut self) -> io::Result<(u64, u64, u64)> {
        let free = self.fat.free_clusters()?.saturating_sub(self.promised());
        Ok((self.fat.clusters(), free, self.fat.cluster_bytes()))
    }

    /// Writes the waiting bytes of a file, and its time. A failure is that of all later calls too.
    pub(super) fn settle(&mut self, number: u64) -> io::Result<()> {
        let node = self.node(number)?;
        node.check()?;
        if !node.is_waiting() {
            return Ok(());
        }
        let outcome = self.write_out(number);
        if let Err(error) = &outcome {
            // A damaged file system has no number of its own.
            let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
            self.node(number)?.failure = Some(errno);
        }
        outcome
    }

    fn write_out(&mut self, number: u64) -> io::Result<()> {
        let node = self.node(number)?;
        let is_touched = std::mem::take(&mut node.is_touched);
        let pending = std::mem::take(&mut node.pending);
        let Some(entry) = node.entry.clone() else { return Ok(()) };
        if !pending.is_empty() {
            node.chain = None;
            if let Err(error) = self.fat.append(&entry, &pending) {
                // Reads still find the bytes.
                self.node(number)?.pending = pending;
                return Err(error);
            }
        } else if is_touched {
            self.fat.set_times(&entry, Some(now()), None)?;
        }
        self.refresh(number)
    }

    /// Writes all waiting bytes, and makes all changes durable. Only failures of this file are
    /// reported: each other file keeps its own.
    pub(super) fn sync(&mut self, number: u64) -> io::Result<()> {
        self.settle_all();
        self.fat.flush()?;
        self.node(number)?.check()
    }

    /// Ends an operation: its changes go to the disk.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        self.fat.commit()
    }

    /// Ends the mount; later operations fail.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if std::mem::replace(&mut self.has_ended, true) || self.access == Access::ReadOnly {
            return Ok(());
        }
        self.settle_all();
        let hidden = self.nodes.iter().filter(|(_, node)| node.is_hidden);
        for number in hidden.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.remove(number)?;
        }
        self.fat.flush()?;
        if let Some((errno, node)) = self.nodes.values().find_map(|it| Some((it.failure?, it))) {
            // The mark stays, so that fsck.fat looks for what the failure has left.
            let error = io::Error::from(errno);
            let problem = format!("the end of the file {:?} was not written: {error}", node.name);
            return Err(io::Error::new(error.kind(), problem));
        }
        if self.access == Access::Marked {
            self.fat.mark_in_use(false)?;
            self.fat.flush()?;
        }
        Ok(())
    }

    /// Writes all waiting bytes; each file keeps its failure.
    pub(super) fn settle_all(&mut self) {
        let waiting = self.nodes.iter().filter(|(_, node)| node.is_waiting());
        for number in waiting.map(|(number, _)| *number).collect::<Vec<_>>() {
            let _ = self.settle(number);
        }
    }

    /// Before the first change, the disk is marked as in use.
    fn start_change(&mut self) -> io::Result<()> {
        if self.has_ended {
            return Err(Errno::IO.into());
        }
        match self.access {
            Access::ReadOnly => Err(Errno::ROFS.into()),
            // After a failed write of the disk, no bytes are accepted that could only be kept.
            Access::Marked | Access::MarkedBefore => self.fat.commit(),
            Access::Clean => {
                self.fat.mark_in_use(true)?;
                self.fat.commit()?;
                self.access = Access::Marked;
                Ok(())
            }
        }
    }

    /// Fails if a folder of this name is not replaceable.
    fn check_replacement(
        &mut self,
        number: u64,
        by_folder: bool,
        may_replace: bool,
    ) -> io::Result<()> {
        if !may_replace {
            return Err(Errno::EXIST.into());
        }
        let entry = self.node(number)?.entry.clone().ok_or(Errno::STALE)?;
        match (by_folder, entry.is_directory()) {
            (true, false) => Err(Errno::NOTDIR.into()),
            (false, true) => Err(Errno::ISDIR.into()),
            (true, true) if !self.fat.entries(Some(&entry))?.is_empty() => {
                Err(Errno::NOTEMPTY.into())
            }
            _ => Ok(()),
        }
    }

    /// Gives a file a name that only this driver uses.
    fn hide(&mut self, number: u64) -> io::Result<()> {
        // A file that could not be written can still be removed.
        let _ = self.settle(number);
        let folder = self.node(number)?.folder;
        let name = loop {
            let name = format!("{HIDDEN}{:08x}", self.next_hidden);
            self.next_hidden += 1;
            if self.find(folder, &name).is_err() {
                break name;
            }
        };
        self.promise_name()?;
        self.move_to(number, folder, &name)?;
        self.node(number)?.is_hidden = true;
        Ok(())
    }

    fn move_to(&mut self, number: u64, folder: u64, name: &str) -> io::Result<()> {
        let parent = self.folder(folder)?;
        let node = self.node(number)?;
        let entry = node.entry.clone().ok_or(Errno::STALE)?;
        let old = (node.folder, node.name.clone());
        let renamed = self.fat.rename(&entry, parent.as_ref(), name)?;
        let node = self.node(number)?;
        node.folder = folder;
        node.name = renamed.name().into_owned();
        node.entry = Some(renamed);
        let new = (folder, node.name.clone());
        self.names.remove(&old);
        self.names.insert(new, number);
        Ok(())
    }

    fn remove(&mut self, number: u64) -> io::Result<()> {
        let Some(entry) = self.node(number)?.entry.clone() else { return Ok(()) };
        // A folder may not be empty.
        self.fat.remove(&entry)?;
        let node = self.node(number)?;
        node.entry = None;
        node.pending = Vec::new();
        node.is_touched = false;
        node.failure = None;
        node.chain = None;
        node.is_hidden = false;
        let name = (node.folder, node.name.clone());
        self.names.remove(&name);
        Ok(())
    }

    /// Forgets a file that neither the kernel nor a program knows, and its folder if this was the
    /// last known file there. A folder with known files keeps its number: with another one, the
    /// files would get second nodes.
    fn drop_unused(&mut self, mut number: u64) {
        while number != ROOT && self.is_unused(number) {
            let Some(node) = self.nodes.remove(&number) else { return };
            number = node.folder;
            if node.entry.is_some() {
                self.names.remove(&(node.folder, node.name));
            }
        }
    }

    fn is_unused(&self, number: u64) -> bool {
        let Some(node) = self.nodes.get(&number) else { return false };
        let mut names = self.names.range((number, String::new())..);
        let has_known_files = names.next().is_some_and(|((folder, _), _)| *folder == number);
        let is_known = node.lookups > 0 || node.opens > 0 || node.is_hidden || has_known_files;
        !is_known && node.pending.is_empty() && node.failure.is_none()
    }

    /// Fills a file with zeroes up to this length.
    fn fill(&mut self, number: u64, len: u64) -> io::Result<()> {
        loop {
            let node = self.node(number)?;
            let missing = len.saturating_sub(node.len);
            if missing == 0 {
                return Ok(());
            }
            let room = PENDING_MAX_BYTES - node.pending.len().min(PENDING_MAX_BYTES - 1);
            let piece = room.min(usize::try_from(missing).unwrap_or(usize::MAX));
            node.pending.resize(node.pending.len() + piece, 0);
            node.len += piece as u64;
            if node.pending.len() >= PENDING_MAX_BYTES {
                self.settle(number)?;
            }
        }
    }

    /// Reserves the clusters of a file of this length.
    fn promise(&mut self, number: u64, len: u64) -> io::Result<()> {
        let cluster = self.fat.cluster_bytes();
        let has = self.node(number)?.len.div_ceil(cluster);
        let more = len.div_ceil(cluster).saturating_sub(has);
        if self.free < more {
            self.free = self.fat.free_clusters()?.saturating_sub(self.promised());
        }
        self.free = self.free.checked_sub(more).ok_or(Errno::NOSPC)?;
        Ok(())
    }

    /// Reserves the clusters of a new name. Without enough of them nothing may stay promised: the
    /// name gets what is there.
    fn promise_name(&mut self) -> io::Result<()> {
        if self.free < NAME_CLUSTERS {
            self.free = self.fat.free_clusters()?.saturating_sub(self.promised());
        }
        if self.free < NAME_CLUSTERS {
            self.settle_all();
        }
        self.free = self.free.saturating_sub(NAME_CLUSTERS);
        Ok(())
    }

    /// Clusters of waiting bytes that are still to be written.
    fn promised(&self) -> u64 {
        let cluster = self.fat.cluster_bytes();
        let of_node = |node: &Node| node.len.div_ceil(cluster) - node.written().div_ceil(cluster);
        self.nodes.values().filter(|node| node.is_waiting()).map(of_node).sum()
    }

    /// The entry of a name in a folder.
    fn find(&mut self, folder: u64, name: &str) -> io::Result<FileEntry> {
        let parent = self.folder(folder)?;
        self.fat.find(parent.as_ref(), name)
    }

    /// The entry of a folder; that of the root is `None`.
    fn folder(&mut self, number: u64) -> io::Result<Option<FileEntry>> {
        let entry = self.node(number)?.entry.clone();
        match entry {
            None if number != ROOT => Err(Errno::STALE.into()),
            entry => Ok(entry),
        }
    }

    /// The number of an entry, a new one if it has none.
    fn number(&mut self, folder: u64, entry: FileEntry) -> u64 {
        let name = entry.name().into_owned();
        *self.names.entry((folder, name)).or_insert_with(|| {
            let number = self.next;
            self.next += 1;
            self.nodes.insert(number, Node::new(folder, Some(entry)));
            number
        })
    }

    /// Reads the entry of a file again.
    fn refresh(&mut self, number: u64) -> io::Result<()> {
        let node = self.node(number)?;
        let folder = node.folder;
        let name = node.name.clone();
        let entry = self.find(folder, &name)?;
        let node = self.node(number)?;
        node.len = entry.len();
        node.entry = Some(entry);
        Ok(())
    }

    /// Reads the chain of a file, if it was not read before.
    fn walk(&mut self, number: u64) -> io::Result<()> {
        let node = self.node(number)?;
        if node.chain.is_none() {
            let entry = node.entry.clone().ok_or(Errno::STALE)?;
            let chain = self.fat.chain(&entry)?;
            self.node(number)?.chain = Some(chain);
        }
        Ok(())
    }

    fn chain(&self, number: u64) -> &[u32] {
        self.nodes.get(&number).and_then(|node| node.chain.as_deref()).unwrap_or_default()
    }

    fn node(&mut self, number: u64) -> io::Result<&mut Node> {
        self.nodes.get_mut(&number).ok_or_else(|| Errno::STALE.into())
    }
}

fn now() -> Moment {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs().cast_signed())
}
