//! The disk of a FAT file system: a cache of blocks between the crate `hadris-fat`, which asks for
//! single table entries, and a volume or a file, where each request costs microseconds.
//!
//! Changes of single entries stay in the cache until [`Disk::commit`], at the end of each
//! operation. Whole blocks, which are data of files, are written at once, and so before them.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Unit of the cache: a page, and no smaller than any sector.
const BLOCK_BYTES: u64 = 4096;
/// Limit of blocks that are kept: 16 MiB, a table of four million clusters.
const BLOCKS_MAX: usize = 4096;

/// Storage below a cache.
pub(crate) trait Storage: Send {
    /// Length in bytes.
    fn len_bytes(&self) -> u64;

    /// Reads exactly this range.
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes exactly this range.
    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()>;

    /// Makes completed writes durable.
    fn flush(&mut self) -> io::Result<()>;
}

/// A handle with a position; its clones share the cache.
#[derive(Clone)]
pub(crate) struct Disk {
    shared: Arc<Mutex<Cache>>,
    position: u64,
}

struct Cache {
    storage: Box<dyn Storage>,
    len_bytes: u64,
    blocks: HashMap<u64, Vec<u8>>,
    dirty: BTreeSet<u64>,
    /// A write has failed: the state of the disk is unknown, and later changes would rely on it.
    has_failed: bool,
}

impl Disk {
    pub(crate) fn new(storage: Box<dyn Storage>) -> Self {
        let len_bytes = storage.len_bytes();
        let cache = Cache {
            storage,
            len_bytes,
            blocks: HashMap::new(),
            dirty: BTreeSet::new(),
            has_failed: false,
        };
        Self { shared: Arc::new(Mutex::new(cache)), position: 0 }
    }

    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.lock().read(buffer, offset)
    }

    pub(crate) fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.lock().write(data, offset)
    }

    /// Writes the changed blocks to the storage.
    pub(crate) fn commit(&self) -> io::Result<()> {
        self.lock().commit()
    }

    /// Writes the changed blocks, and makes all writes durable.
    pub(crate) fn flush_storage(&self) -> io::Result<()> {
        let mut cache = self.lock();
        cache.commit()?;
        cache.storage.flush()
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The blocks of a range: number, place in the block, place in the caller's buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % BLOCK_BYTES) as usize;
        let piece = (len - done).min(BLOCK_BYTES as usize - within);
        let range = done..done + piece;
        done += piece;
        (piece > 0).then_some((at / BLOCK_BYTES, within, range))
    })
}

impl Cache {
    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len_bytes => Ok(()),
            _ => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                format!("byte {offset} is behind the end of the file system"),
            )),
        }
    }

    fn read(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(offset, buffer.len())?;
        if buffer.len() as u64 >= BLOCK_BYTES {
            self.storage.read_at(buffer, offset)?;
            // The cache may be newer.
            for (number, within, range) in pieces(offset, buffer.len()) {
                if self.dirty.contains(&number) {
                    let len = range.len();
                    buffer[range].copy_from_slice(&self.blocks[&number][within..within + len]);
                }
            }
            return Ok(());
        }
        for (number, within, range) in pieces(offset, buffer.len()) {
            let len = range.len();
            buffer[range].copy_from_slice(&self.block(number)?[within..within + len]);
        }
        Ok(())
    }

    fn write(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check(offset, data.len())?;
        if self.has_failed {
            return Err(io::Error::other("a write has failed before"));
        }
        if data.len() as u64 >= BLOCK_BYTES {
            for (number, within, range) in pieces(offset, data.len()) {
                if let Some(block) = self.blocks.get_mut(&number) {
                    block[within..within + range.len()].copy_from_slice(&data[range]);
                }
            }
            let outcome = self.storage.write_at(data, offset);
            self.has_failed |= outcome.is_err();
            return outcome;
        }
        for (number, within, range) in pieces(offset, data.len()) {
            self.block(number)?[within..within + range.len()].copy_from_slice(&data[range]);
            self.dirty.insert(number);
        }
        Ok(())
    }

    /// The cached block, read if it is missing; the last one may be short.
    fn block(&mut self, number: u64) -> io::Result<&mut Vec<u8>> {
        if self.blocks.len() >= BLOCKS_MAX && !self.blocks.contains_key(&number) {
            let dirty = &self.dirty;
            self.blocks.retain(|number, _| dirty.contains(number));
        }
        match self.blocks.entry(number) {
            std::collections::hash_map::Entry::Occupied(found) => Ok(found.into_mut()),
            std::collections::hash_map::Entry::Vacant(place) => {
                let start = number * BLOCK_BYTES;
                let mut block = vec![0; BLOCK_BYTES.min(self.len_bytes - start) as usize];
                self.storage.read_at(&mut block, start)?;
                Ok(place.insert(block))
            }
        }
    }

    fn commit(&mut self) -> io::Result<()> {
        if self.has_failed {
            return Err(io::Error::other("a write has failed before"));
        }
        // Neighbours are one write.
        let numbers: Vec<u64> = self.dirty.iter().copied().collect();
        for run in numbers.chunk_by(|one, next| *next == one + 1) {
            let data: Vec<u8> =
                run.iter().flat_map(|number| &self.blocks[number]).copied().collect();
            if let Err(error) = self.storage.write_at(&data, run[0] * BLOCK_BYTES) {
                self.has_failed = true;
                return Err(error);
            }
        }
        self.dirty.clear();
        Ok(())
    }
}

impl Read for Disk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_exact_at(buffer, self.position)?;
        self.position += buffer.len() as u64;
        Ok(buffer.len())
    }
}

impl Write for Disk {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_all_at(data, self.position)?;
        self.position += data.len() as u64;
        Ok(data.len())
    }

    /// The crate asks for it after each entry; [`Disk::commit`] does it for an operation.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, delta) = match to {
            SeekFrom::Start(offset) => (offset, 0),
            SeekFrom::Current(delta) => (self.position, delta),
            SeekFrom::End(delta) => (self.lock().len_bytes, delta),
        };
        let position = base.checked_add_signed(delta);
        self.position = position.ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("position", &self.position).finish_non_exhaustive()
    }
}
