//! The files in a volume, read without FUSE.
//!
//! ```text
//! Volume::files -> Files: list, entry, copy ─ Tree: ext.rs, fat.rs, iso.rs ─ crate ─ source.rs
//! ```
//! The bytes of a file system are foreign: they may be damaged, or made to do harm. A file system
//! is read, never written. Limits of entries, depth and links end a loop of directories, and a
//! panic of a crate is an error of the call.

mod copy;
mod ext;
mod fat;
mod iso;
mod source;

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::error::contained;
use crate::file_system::FileSystem;
use crate::part::{Part, name_of};
use crate::{Error, Volume};

pub use copy::{CopyOptions, Skipped};

use ext::ExtTree;
use fat::FatTree;
use iso::IsoTree;
use source::Source;

/// Limit of symbolic links in one path; that of Linux.
const LINKS_MAX: usize = 40;
/// Limit of a symbolic link's length; that of Linux.
const LINK_MAX_BYTES: u64 = 4096;
/// Limit of nested directories: real trees are far below, and each level of a copy has a
/// descriptor.
const DEPTH_MAX: usize = 256;
/// Limit of a directory's entries, so that a hostile one does not fill the memory.
const DIRECTORY_MAX: u64 = 4 << 20;
/// Bytes of the smallest directory entry of any format. Each entry of a sound file system is read
/// once in a copy, so the size of the volume limits their number.
const ENTRY_MIN_BYTES: u64 = 12;

/// The files in a volume.
pub struct Files {
    volume: PathBuf,
    system: FileSystem,
    tree: Box<dyn Tree>,
    /// Entries that may still be read.
    left: u64,
}

/// A file, directory, link or other entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Name in its directory; empty for the root.
    pub name: OsString,
    /// Kind.
    pub kind: Kind,
    /// Length of a file in bytes.
    pub len: u64,
    /// Permissions as in `chmod(1)`; `None` if the file system has none.
    pub mode: Option<u32>,
    /// Numbers of the owner and the group; `None` if the file system has none.
    pub owner: Option<(u32, u32)>,
    /// Time of the last change, if it is known.
    pub modified: Option<Time>,
    /// Time of the last access, if it is known.
    pub accessed: Option<Time>,
}

impl Entry {
    /// The root of a file system that keeps nothing about it.
    fn root() -> Self {
        Self {
            name: OsString::new(),
            kind: Kind::Directory,
            len: 0,
            mode: None,
            owner: None,
            modified: None,
            accessed: None,
        }
    }
}

/// Kind of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Link,
    /// Block device.
    BlockDevice,
    /// Character device.
    CharacterDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl Kind {
    /// Name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Link => "symbolic link",
            Self::BlockDevice => "block device",
            Self::CharacterDevice => "character device",
            Self::Fifo => "FIFO",
            Self::Socket => "socket",
        }
    }
}

/// A time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Seconds since 1970, in UTC.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
}

/// A directory.
#[derive(Debug)]
#[non_exhaustive]
pub struct Listing {
    /// Entries, sorted by name.
    pub entries: Vec<Entry>,
    /// Errors of entries that cannot be read, each with its path.
    pub damaged: Vec<Error>,
}

/// An entry whose facts cannot be read.
struct Damaged {
    name: OsString,
    error: io::Error,
}

/// A file system. All paths are absolute, and no part of them is a symbolic link, `.` or `..`.
trait Tree {
    /// The entry at a path, also if it is a symbolic link.
    fn entry(&mut self, path: &Path) -> io::Result<Entry>;

    /// The entries of a directory without `.` and `..`, at most `max` of them.
    fn entries(&mut self, path: &Path, max: u64) -> io::Result<Vec<Result<Entry, Damaged>>>;

    /// The target of a symbolic link.
    fn target(&mut self, path: &Path) -> io::Result<PathBuf>;

    /// The content of a file.
    fn open(&mut self, path: &Path) -> io::Result<Box<dyn Read + '_>>;
}

impl Volume {
    /// The files in the volume, or in a partition inside it, by its number, UUID or name.
    ///
    /// # Errors
    /// There is no such partition, or no file system that can be read.
    pub fn files(&self, inner_partition: Option<&str>) -> Result<Files, Error> {
        contained(|| {
            let part = Part::find(self, inner_partition)?;
            let system = part.file_system()?;
            let len_bytes = part.range.end - part.range.start;
            let source = Source::new(self, part.range.clone())?;
            let opened: io::Result<Box<dyn Tree>> = match system {
                FileSystem::Ext => ExtTree::open(source).map(|tree| Box::new(tree) as _),
                FileSystem::Fat => FatTree::open(source).map(|tree| Box::new(tree) as _),
                FileSystem::Iso9660 => IsoTree::open(source).map(|tree| Box::new(tree) as _),
                other => {
                    let problem = format!(
                        "the volume has {}, which Blockyard cannot read; `blockyard mount` may \
                         have a driver for it, and `blockyard mount --as-file` shows the \
                         plaintext as one file",
                        other.name()
                    );
                    return Err(Error::contents(self, problem));
                }
            };
            let tree = opened.map_err(|error| {
                Error::contents(self, format!("cannot read {}: {error}", system.name()))
            })?;
            let left = len_bytes / ENTRY_MIN_BYTES;
            Ok(Files { volume: name_of(self), system, tree, left })
        })
    }
}

impl Files {
    /// Name of the file system.
    #[must_use]
    pub fn system(&self) -> &'static str {
        self.system.name()
    }

    /// The entry at a path. Symbolic links in the path are followed inside the volume, the last
    /// one only if `follow` is set.
    ///
    /// # Errors
    /// There is no such file, or the file system is damaged.
    pub fn entry(&mut self, path: &Path, follow: bool) -> Result<Entry, Error> {
        contained(|| self.resolve(path, follow).map(|(_, entry)| entry))
    }

    /// The entries of a directory.
    ///
    /// # Errors
    /// There is no such directory, or it is damaged itself.
    pub fn list(&mut self, path: &Path) -> Result<Listing, Error> {
        contained(|| {
            let (place, entry) = self.resolve(path, true)?;
            if entry.kind != Kind::Directory {
                return Err(self.wrong(path, format!("this is a {}", entry.kind.name())));
            }
            let mut listing = Listing { entries: Vec::new(), damaged: Vec::new() };
            for found in self.entries(&place)? {
                match found {
                    Ok(entry) => listing.entries.push(entry),
                    Err(error) => listing.damaged.push(error),
                }
            }
            Ok(listing)
        })
    }

    /// The target of a symbolic link, as it is stored.
    ///
    /// # Errors
    /// There is no such link, or the file system is damaged.
    pub fn target(&mut self, path: &Path) -> Result<PathBuf, Error> {
        contained(|| {
            let (place, entry) = self.resolve(path, false)?;
            if entry.kind != Kind::Link {
                return Err(self.wrong(path, "this is no symbolic link"));
            }
            self.link(&place, &entry)
        })
    }

    /// The entries of a directory, sorted by name, and errors of those that cannot be read.
    fn entries(&mut self, place: &Path) -> Result<Vec<Result<Entry, Error>>, Error> {
        let max = self.left.min(DIRECTORY_MAX);
        let mut found =
            self.tree.entries(place, max).map_err(|error| self.failed(place, &error))?;
        self.left -= found.len() as u64;
        found.sort_by(|one, next| name_in(one).cmp(name_in(next)));
        let known = |found: Result<Entry, Damaged>| {
            found.map_err(|Damaged { name, error }| self.failed(&place.join(name), &error))
        };
        Ok(found.into_iter().map(known).collect())
    }

    fn link(&mut self, place: &Path, entry: &Entry) -> Result<PathBuf, Error> {
        if entry.len > LINK_MAX_BYTES {
            return Err(self.wrong(place, "the symbolic link is longer than 4096 bytes"));
        }
        self.tree.target(place).map_err(|error| self.failed(place, &error))
    }

    /// The place of a path without symbolic links, and its entry.
    fn resolve(&mut self, path: &Path, follow: bool) -> Result<(PathBuf, Entry), Error> {
        let parts = |path: &Path| {
            let parts = path.components().rev().filter_map(|part| match part {
                Component::Normal(name) => Some(Some(name.to_owned())),
                Component::ParentDir => Some(None),
                _ => None,
            });
            parts.collect::<Vec<Option<OsString>>>()
        };
        let mut place = PathBuf::from("/");
        let mut left = parts(path);
        let mut links = 0;
        let mut entry = self.tree.entry(&place).map_err(|error| self.failed(&place, &error))?;
        while let Some(part) = left.pop() {
            if entry.kind != Kind::Directory {
                let problem = format!("this is a {} and no directory", entry.kind.name());
                return Err(self.wrong(&place, problem));
            }
            let next = match part {
                Some(name) => place.join(name),
                None => place.parent().unwrap_or(Path::new("/")).to_owned(),
            };
            let found = self.tree.entry(&next).map_err(|error| self.failed(&next, &error))?;
            if found.kind == Kind::Link && (follow || !left.is_empty()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(self.wrong(path, "too many symbolic links; they may form a loop"));
                }
                let target = self.link(&next, &found)?;
                if target.is_absolute() {
                    place = PathBuf::from("/");
                    entry = self.tree.entry(&place).map_err(|error| self.failed(&place, &error))?;
                }
                left.extend(parts(&target));
                continue;
            }
            place = next;
            entry = found;
        }
        Ok((place, entry))
    }

    fn wrong(&self, path: &Path, problem: impl Into<String>) -> Error {
        let (volume, path) = (self.volume.clone(), path.to_owned());
        Error::InVolume { volume, path, problem: problem.into() }
    }

    fn failed(&self, path: &Path, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::NotFound => self.wrong(path, "there is no such file in the volume"),
            _ => self.wrong(path, format!("cannot read it: {error}")),
        }
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("system", &self.system).finish_non_exhaustive()
    }
}

fn name_in(found: &Result<Entry, Damaged>) -> &OsStr {
    match found {
        Ok(entry) => &entry.name,
        Err(damaged) => &damaged.name,
    }
}

/// More entries than a directory or a volume can have.
fn too_many(max: u64) -> io::Error {
    let problem = if max == DIRECTORY_MAX {
        format!("the directory has more than {max} entries")
    } else {
        "the directories have more entries than the volume has room for; they may form a loop"
            .to_owned()
    };
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

/// The last part of a path; empty for the root.
fn last_name(path: &Path) -> OsString {
    path.file_name().map_or_else(OsString::new, OsStr::to_owned)
}
