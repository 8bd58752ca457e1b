//! A bitmap of the blocks of a volume that were written since the last backup.
//!
//! ```text
//! write ─> its range is announced ─> its bits are set ─> device ─> the range is free
//!
//! live ── freeze ──> frozen, and a new live one ── done ────> forgotten
//!                                               └─ failed ──> added to the live one
//! ```
//! A bit is set before the write reaches a device. So each block that differs from the last backup
//! is dirty, also if its write fails. The driver loads the word first, and changes it only if a bit
//! is missing: blocks that are written often cost a load.
//!
//! A freeze takes the bits word by word, without a pause of the writes. A write in flight may have
//! set its bit before, and change its block after a backup has read it. So the freeze then sets the
//! bits of all announced ranges in the new live bitmap. None is missed: the writer announces, then
//! loads the bit; the freeze clears the bit, then loads the announcements. All four are `SeqCst`,
//! so one of the two sees the other (as in [`blockyard_engine::ranges`]).
//!
//! The file is marked as in use when the volume is opened, and gets the bits when the last user of
//! the volume has gone. After a crash it is in use still, and the whole volume counts as dirty. So
//! it does if another program has written an image file since.

mod file;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::durability::Durability;
use crate::file::FileId;
use crate::log::{Event, Kind};
use crate::ranges::VolumeRanges;

use file::{BLOCKS_MAX, BitmapFile, Found, IDENTITY_MAX_BYTES, content_state, words};
pub use file::{GRANULARITY_MAX_BYTES, GRANULARITY_MIN_BYTES, HEADER_BYTES, Header};

/// Granularity of a new bitmap.
pub const GRANULARITY_USUAL_BYTES: u32 = 64 << 10;
/// Longest name.
const NAME_MAX_BYTES: usize = 255;

/// A bitmap to open with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirtyBitmapOptions {
    name: String,
    path: PathBuf,
    granularity_bytes: Option<u32>,
    /// Identity of the volume; may be empty.
    identity: String,
}

impl DirtyBitmapOptions {
    /// A bitmap with this name for clients, and its file, which is made if it does not exist.
    #[must_use]
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        let identity = String::new();
        Self { name: name.into(), path: path.into(), granularity_bytes: None, identity }
    }

    /// Length of a block. `None`, the default: that of the file, or 64 KiB in a new one.
    #[must_use]
    pub fn granularity(mut self, bytes: Option<u32>) -> Self {
        self.granularity_bytes = bytes;
        self
    }

    /// Identity of the volume: a file is refused that has another one.
    #[must_use]
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = identity.into();
        self
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a bitmap may have this name: 1 to 255 letters, digits, `.`, `_` and `-`.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=NAME_MAX_BYTES).contains(&name.len()) && name.bytes().all(is_valid)
    }

    /// Whether a bitmap may have this granularity.
    #[must_use]
    pub fn is_granularity(bytes: u32) -> bool {
        file::is_granularity(bytes)
    }

    /// Describes an invalid value.
    fn problem(&self) -> Option<String> {
        if !Self::is_name(&self.name) {
            return Some(format!("a dirty bitmap cannot have the name {:?}", self.name));
        }
        let wrong = self.granularity_bytes.filter(|bytes| !Self::is_granularity(*bytes));
        wrong.map(|bytes| format!("a dirty bitmap cannot have blocks of {bytes} bytes"))
    }
}

/// Number of a backup, chosen at random at its start: the script of a backup that has ended cannot
/// end a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupId(u64);

impl BackupId {
    fn new() -> io::Result<Self> {
        let mut bytes = [0; 8];
        // So few bytes come in one piece.
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(u64::from_le_bytes(bytes)))
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for BackupId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let is_valid = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_valid.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number
            .map(Self)
            .ok_or("the ID of a backup has 16 hexadecimal digits, as `freeze` prints it")
    }
}

/// A step of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupStep {
    /// A backup begins: clients see the present bits until it ends, and a new bitmap begins.
    Freeze,
    /// The backup has succeeded.
    Done(BackupId),
    /// The backup has failed: its blocks are dirty still.
    Failed(BackupId),
}

impl BackupStep {
    /// Names of all steps in commands.
    pub const NAMES: [&'static str; 3] = ["freeze", "done", "failed"];

    /// A step by its name. `freeze` has no ID, the others need one.
    #[must_use]
    pub fn named(name: &str, id: Option<BackupId>) -> Option<Self> {
        match (name, id) {
            ("freeze", None) => Some(Self::Freeze),
            ("done", Some(id)) => Some(Self::Done(id)),
            ("failed", Some(id)) => Some(Self::Failed(id)),
            _ => None,
        }
    }

    /// Name in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        let [freeze, done, failed] = Self::NAMES;
        match self {
            Self::Freeze => freeze,
            Self::Done(_) => done,
            Self::Failed(_) => failed,
        }
    }
}

/// A backup that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupStatus {
    /// Its number.
    pub id: BackupId,
    /// Bytes of its blocks.
    pub bytes: u64,
}

/// State of a bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirtyBitmapStatus {
    /// Name for clients.
    pub name: String,
    /// Length of a block.
    pub granularity_bytes: u32,
    /// Bytes written since the last freeze, in whole blocks.
    pub dirty_bytes: u64,
    /// The backup that runs, if any.
    pub backup: Option<BackupStatus>,
}

/// The dirty bitmap of an open volume.
pub(crate) struct DirtyBitmap {
    name: String,
    header: Header,
    /// Logarithm of the granularity.
    shift: u32,
    live: Box<[AtomicU64]>,
    /// The backup that runs.
    frozen: Mutex<Option<Frozen>>,
    /// Ranges of writes in flight; `None` for read-only volumes.
    ranges: Option<Arc<VolumeRanges>>,
    durability: Arc<Durability>,
    /// Image files of the volume.
    content: Vec<File>,
    file: BitmapFile,
}

/// A backup that runs, and its bits.
struct Frozen {
    id: BackupId,
    bits: Box<[u64]>,
}

/// The volume of a bitmap.
pub(crate) struct Tracked {
    pub(crate) size_bytes: u64,
    /// Ranges of writes in flight; `None` for read-only volumes.
    pub(crate) ranges: Option<Arc<VolumeRanges>>,
    pub(crate) durability: Arc<Durability>,
    /// Its image files.
    pub(crate) content: Vec<File>,
}

impl DirtyBitmap {
    /// Opens the bitmap of a volume, and marks its file as in use.
    pub(crate) fn open(options: &DirtyBitmapOptions, tracked: Tracked) -> Result<Self, Error> {
        if let Some(problem) = options.problem() {
            return Err(Error::parameter(options.path.display(), problem));
        }
        let file = BitmapFile::open(&options.path)?;
        Self::in_file(file, options, tracked)
    }

    fn in_file(
        file: BitmapFile,
        options: &DirtyBitmapOptions,
        tracked: Tracked,
    ) -> Result<Self, Error> {
        let Tracked { size_bytes, ranges, durability, content } = tracked;
        let identity = options.identity.as_bytes();
        let identity = &identity[..identity.len().min(IDENTITY_MAX_BYTES)];
        let before = file.header()?;
        before.iter().try_for_each(|before| check(options, before, identity))?;
        let usual = options.granularity_bytes.unwrap_or(GRANULARITY_USUAL_BYTES);
        let granularity_bytes = before.as_ref().map_or(usual, |before| before.granularity_bytes);
        let blocks = size_bytes.div_ceil(granularity_bytes.into());
        if blocks > BLOCKS_MAX {
            return Err(Error::volume(
                &options.path,
                format!(
                    "a dirty bitmap with blocks of {granularity_bytes} bytes would have {blocks} \
                     bits for this volume, more than {BLOCKS_MAX}; choose longer blocks for a new \
                     file"
                ),
            ));
        }
        let identity = identity.to_vec();
        let state = content_state(&content)
            .map_err(|error| Error::io(&options.path, "look at the image of the bitmap", error))?;
        let header =
            Header { is_clean: false, size_bytes, granularity_bytes, identity, content: state };
        let bits = (0..words(size_bytes, granularity_bytes)).map(|_| AtomicU64::new(0));
        let live: Box<[AtomicU64]> = bits.collect();
        // Before the bitmap exists: its drop saves the bits, which a failed read leaves wrong.
        let found = match &before {
            Some(before) => file.read_bits(before, &state, &live)?,
            None => Found::Nothing,
        };
        let shift = granularity_bytes.trailing_zeros();
        let name = options.name.clone();
        let frozen = Mutex::default();
        let bitmap = Self { name, header, shift, live, frozen, ranges, durability, content, file };
        bitmap.take_over(found, before.as_ref());
        let begun = bitmap.file.begin(&bitmap.header);
        begun.map_err(|error| Error::io(&options.path, "write the dirty bitmap", error))?;
        Ok(bitmap)
    }

    /// Keeps the bits of the last session, or marks the whole volume.
    fn take_over(&self, found: Found, before: Option<&Header>) {
        let why = match found {
            Found::Bits => {
                let before = before.expect("it has bits");
                // Bits behind the former end mean nothing. The block of the end may have grown.
                if self.header.size_bytes > before.size_bytes {
                    self.mark(before.size_bytes, u64::MAX - before.size_bytes);
                }
                return self.cut();
            }
            Found::Nothing => return self.mark_all(),
            Found::Changed => "the image was changed without it",
            Found::InUse => "its last server has not ended in order",
            Found::Damaged => "the file is damaged",
        };
        self.mark_all();
        Event::new(Kind::BitmapLost).say(format_args!(
            "{}: the whole volume counts as dirty, because {why}; the next backup is a full one",
            self.file.path().display()
        ));
    }

    /// Identity of the file.
    pub(crate) fn file_id(&self) -> Option<FileId> {
        self.file.id().ok()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Marks a range as dirty. Called before a write of the range reaches a device, and after the
    /// range was announced.
    #[inline]
    pub(crate) fn mark(&self, start_bytes: u64, len_bytes: u64) {
        if len_bytes == 0 {
            return;
        }
        let first = start_bytes >> self.shift;
        let last = start_bytes.saturating_add(len_bytes - 1) >> self.shift;
        let words = self.live.len() as u64;
        // Bytes behind the end, after the volume has grown, count as dirty without a bit.
        for place in first / 64..(last / 64 + 1).min(words) {
            let from = if place == first / 64 { first % 64 } else { 0 };
            let to = if place == last / 64 { last % 64 } else { 63 };
            let bits = u64::MAX << from & u64::MAX >> (63 - to);
            let word = &self.live[place as usize];
            if word.load(Ordering::SeqCst) & bits != bits {
                word.fetch_or(bits, Ordering::SeqCst);
            }
        }
    }

    /// Marks the whole volume as dirty.
    pub(crate) fn mark_all(&self) {
        self.mark(0, u64::MAX);
        self.cut();
    }

    /// Clears the bits behind the last block.
    fn cut(&self) {
        let rest = self.blocks() % 64;
        if let Some(last) = self.live.last().filter(|_| rest > 0) {
            last.fetch_and(u64::MAX >> (64 - rest), Ordering::SeqCst);
        }
    }

    fn blocks(&self) -> u64 {
        self.header.size_bytes.div_ceil(self.header.granularity_bytes.into())
    }

    fn frozen(&self) -> MutexGuard<'_, Option<Frozen>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a backup runs.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen().is_some()
    }

    /// Takes a step of a backup; returns its number, or the problem.
    pub(crate) fn step(&self, step: BackupStep) -> Result<BackupId, String> {
        let mut frozen = self.frozen();
        let (id, is_done) = match step {
            BackupStep::Freeze => {
                if let Some(Frozen { id, .. }) = &*frozen {
                    return Err(format!(
                        "the bitmap is frozen for the backup {id} already; end it with `done {id}` \
                         or `failed {id}`"
                    ));
                }
                let id = BackupId::new().map_err(|error| format!("no random number: {error}"))?;
                *frozen = Some(Frozen { id, bits: self.freeze() });
                return Ok(id);
            }
            BackupStep::Done(id) => (id, true),
            BackupStep::Failed(id) => (id, false),
        };
        match frozen.take_if(|frozen| frozen.id == id) {
            None => {
                let now =
                    frozen.as_ref().map_or("none runs".into(), |it| format!("{} runs", it.id));
                return Err(format!("there is no backup {id}: {now}; it has ended, or the server"));
            }
            Some(_) if is_done => {}
            Some(frozen) => self.merge(&frozen.bits),
        }
        Ok(id)
    }

    /// Takes the bits; see the description of this module.
    fn freeze(&self) -> Box<[u64]> {
        let taken = self.live.iter().map(|word| word.swap(0, Ordering::SeqCst)).collect();
        if let Some(ranges) = &self.ranges {
            ranges.each_in_flight(|range| self.mark(range.start, range.end - range.start));
        }
        taken
    }

    fn merge(&self, bits: &[u64]) {
        for (word, bits) in self.live.iter().zip(bits) {
            word.fetch_or(*bits, Ordering::SeqCst);
        }
    }

    /// Runs of clean and dirty bytes from `offset_bytes` on, at most `count_max`: of the backup
    /// that runs, or else of the live bitmap.
    pub(crate) fn runs(&self, offset_bytes: u64, len_bytes: u64, count_max: usize) -> Runs {
        let frozen = self.frozen();
        let word = |place: usize| match &*frozen {
            Some(frozen) => frozen.bits[place],
            None => self.live[place].load(Ordering::Relaxed),
        };
        let end = offset_bytes + len_bytes;
        let mut runs = Vec::new();
        let mut at = offset_bytes;
        while at < end && runs.len() < count_max {
            let (is_dirty, until) = self.run_at(at, word);
            let until = until.min(end);
            runs.push((until - at, is_dirty));
            at = until;
        }
        runs
    }

    /// Whether a byte is dirty, and the end of the run with it.
    fn run_at(&self, at_bytes: u64, word: impl Fn(usize) -> u64) -> (bool, u64) {
        if at_bytes >= self.header.size_bytes {
            return (true, u64::MAX);
        }
        let block = at_bytes >> self.shift;
        let mut place = (block / 64) as usize;
        let is_dirty = word(place) >> (block % 64) & 1 == 1;
        let others = |place: usize| if is_dirty { !word(place) } else { word(place) };
        let mut found = others(place) & u64::MAX << (block % 64);
        while found == 0 {
            place += 1;
            if place == self.live.len() {
                return (is_dirty, self.header.size_bytes);
            }
            found = others(place);
        }
        let next = place as u64 * 64 + u64::from(found.trailing_zeros());
        (is_dirty, (next << self.shift).min(self.header.size_bytes))
    }

    pub(crate) fn status(&self) -> DirtyBitmapStatus {
        let frozen = self.frozen();
        let bytes = |blocks: u64| (blocks << self.shift).min(self.header.size_bytes);
        let live = self.live.iter().map(|word| word.load(Ordering::Relaxed));
        let dirty: u64 = live.map(|word| u64::from(word.count_ones())).sum();
        let backup = frozen.as_ref().map(|Frozen { id, bits }| {
            let blocks = bits.iter().map(|word| u64::from(word.count_ones())).sum();
            BackupStatus { id: *id, bytes: bytes(blocks) }
        });
        DirtyBitmapStatus {
            name: self.name.clone(),
            granularity_bytes: self.header.granularity_bytes,
            dirty_bytes: bytes(dirty),
            backup,
        }
    }
}

/// Runs: their lengths, and whether they are dirty.
pub(crate) type Runs = Vec<(u64, bool)>;

impl Drop for DirtyBitmap {
    /// Saves the bits. All drivers have gone, because each holds the bitmap.
    fn drop(&mut self) {
        // A backup that was not confirmed has failed.
        if let Some(frozen) = self.frozen().take() {
            self.merge(&frozen.bits);
        }
        // Blocks may have lost what the last backup has.
        if self.durability.loss().is_some() {
            return;
        }
        let bits: Vec<u64> = self.live.iter().map(|word| word.load(Ordering::SeqCst)).collect();
        if let Err(error) = self.file.end(&self.header, &self.content, &bits) {
            Event::new(Kind::BitmapLost).say(format_args!(
                "{}: cannot write the dirty bitmap: {error}; the whole volume counts as dirty from \
                 now on",
                self.file.path().display()
            ));
        }
    }
}

/// Whether a file may be the bitmap of this volume.
fn check(options: &DirtyBitmapOptions, before: &Header, identity: &[u8]) -> Result<(), Error> {
    let refused = |problem: String| Err(Error::volume(&options.path, problem));
    if before.identity != identity {
        let [of_file, of_volume] = [&before.identity[..], identity]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        return refused(format!(
            "this is the dirty bitmap of another volume ({of_file:?}, not {of_volume:?}); name \
             another file"
        ));
    }
    match options.granularity_bytes {
        Some(wanted) if wanted != before.granularity_bytes => refused(format!(
            "the dirty bitmap has blocks of {} bytes, not {wanted}; the granularity is chosen when \
             the file is made",
            before.granularity_bytes
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
