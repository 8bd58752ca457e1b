//! Copies out of a volume, never to a place outside of the target.
//!
//! A hostile file system may hold a symbolic link and, with the same name, a directory. So each
//! directory is entered by a descriptor, never through a link; each file and link is new; and no
//! name has a `/`.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, futimens, mkdirat, openat,
    renameat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use super::{DEPTH_MAX, Entry, Files, Kind, Time};
use crate::error::contained;
use crate::output::{InUse, OutputError, OutputProblem};
use crate::{Error, SparseFile};

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;
/// Mode of a file from a file system without permissions: only its owner may read plaintext.
const PRIVATE_MODE: u32 = 0o600;
/// Mode of a directory from such a file system, and of each directory while it is filled.
const PRIVATE_DIRECTORY_MODE: u32 = 0o700;
/// Permissions that are kept. The others, such as set-user-ID, are meant for the file's owner, and
/// a copy has another one.
const KEPT_MODE: u32 = 0o777;

/// Options of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Copies directories with all that is in them, and symbolic links as links.
    pub recursive: bool,
    /// Replaces files that exist, and fills directories that exist.
    pub replace: bool,
}

/// An entry that cannot be copied.
#[derive(Clone, Debug)]
pub struct Skipped {
    /// Path in the volume.
    pub path: PathBuf,
    /// Its kind: a device, a FIFO or a socket.
    pub kind: Kind,
}

/// An open directory of the copy.
struct Target {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// A running copy.
struct Copy<'a> {
    files: &'a mut Files,
    options: &'a CopyOptions,
    in_use: &'a InUse,
    skip: &'a mut dyn FnMut(&Skipped),
    piece: Vec<u8>,
}

impl Files {
    /// Copies a file, or a directory with all that is in it, with permissions and times. A target
    /// that is a directory gets the copy in it; the root of the volume has no name, so its entries
    /// go into the target. Zeroes become holes. The file is replaced only with `replace`, and never
    /// if it is in use.
    ///
    /// # Errors
    /// The file is missing, or the file system is damaged; the target cannot be written.
    pub fn copy(
        &mut self,
        path: &Path,
        target: &Path,
        options: &CopyOptions,
        in_use: &InUse,
        skip: &mut dyn FnMut(&Skipped),
    ) -> Result<(), Error> {
        contained(|| {
            let (place, entry) = self.resolve(path, !options.recursive)?;
            match entry.kind {
                Kind::Directory if !options.recursive => {
                    return Err(self.wrong(path, "this is a directory; `recursive` copies it"));
                }
                Kind::File | Kind::Directory | Kind::Link => {}
                other => {
                    let problem = format!("this is a {}, which cannot be copied", other.name());
                    return Err(self.wrong(path, problem));
                }
            }
            let name = path.file_name().or(place.file_name()).map(OsStr::to_owned);
            let (folder, name, may_exist) = placed(target, name)?;
            let piece = vec![0; PIECE_BYTES];
            let mut copy = Copy { files: self, options, in_use, skip, piece };
            copy.entry(&place, &entry, &folder, &name, Depth { level: 0, may_exist })
        })
    }

    /// Writes the content of a file; returns its length.
    ///
    /// # Errors
    /// The file is missing, or the file system is damaged; or [`Error::Writer`].
    pub fn copy_to(&mut self, path: &Path, to: &mut dyn Write) -> Result<u64, Error> {
        contained(|| {
            let (place, entry) = self.resolve(path, true)?;
            if entry.kind != Kind::File {
                return Err(self.wrong(path, format!("this is a {}", entry.kind.name())));
            }
            self.content(&place, &entry, to, &mut vec![0; PIECE_BYTES])?;
            Ok(entry.len)
        })
    }

    fn content(
        &mut self,
        place: &Path,
        entry: &Entry,
        to: &mut dyn Write,
        piece: &mut [u8],
    ) -> Result<(), Error> {
        let mut done = 0;
        let outcome = self.tree.open(place).and_then(|mut file| {
            loop {
                let len = read_full(&mut *file, piece)?;
                if len == 0 {
                    return Ok(Ok(()));
                }
                done += len as u64;
                if let Err(error) = to.write_all(&piece[..len]) {
                    return Ok(Err(Error::Writer(error)));
                }
            }
        });
        outcome.map_err(|error| self.failed(place, &error))??;
        if done != entry.len {
            let problem = format!("it ends after {done} of its {} bytes", entry.len);
            return Err(self.wrong(place, problem));
        }
        Ok(())
    }
}

/// Fills the buffer as far as the file has bytes: the crates return a block at a time.
fn read_full(file: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..])? {
            0 => break,
            len => done += len,
        }
    }
    Ok(done)
}

/// The directory and the name of a copy, and whether a directory of this name may exist.
fn placed(target: &Path, name: Option<OsString>) -> Result<(Target, OsString, bool), Error> {
    let is_folder = target.metadata().is_ok_and(|metadata| metadata.is_dir());
    match (is_folder, name) {
        (true, Some(name)) => Ok((Target::open(target)?, name, false)),
        // The entries of the root go into the directory itself.
        (true, None) => Ok((Target::open(target)?, ".".into(), true)),
        (false, _) => {
            let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
            let name = target.file_name().ok_or_else(|| failed(target, Errno::NOENT))?;
            Ok((Target::open(parent.unwrap_or(Path::new(".")))?, name.to_owned(), false))
        }
    }
}

/// Place of an entry in the copy.
#[derive(Clone, Copy)]
struct Depth {
    level: usize,
    /// A directory that exists is filled.
    may_exist: bool,
}

impl Copy<'_> {
    fn entry(
        &mut self,
        place: &Path,
        entry: &Entry,
        folder: &Target,
        name: &OsStr,
        depth: Depth,
    ) -> Result<(), Error> {
        match entry.kind {
            Kind::File => self.file(place, entry, folder, name),
            Kind::Directory => self.directory(place, entry, folder, name, depth),
            Kind::Link => self.link(place, entry, folder, name),
            kind => {
                (self.skip)(&Skipped { path: place.to_owned(), kind });
                Ok(())
            }
        }
    }

    fn file(
        &mut self,
        place: &Path,
        entry: &Entry,
        folder: &Target,
        name: &OsStr,
    ) -> Result<(), Error> {
        let path = folder.path.join(name);
        let is_replaced = self.check_room(folder, name)?;
        // The old file stays until the new one is whole.
        let temporary = is_replaced.then(temporary_name);
        let written = temporary.as_deref().unwrap_or(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(PRIVATE_MODE);
        let file = openat(&folder.descriptor, written, flags | OFlags::NOFOLLOW, mode);
        let file = File::from(file.map_err(|errno| refused(&path, errno))?);
        let copied = self.fill(place, entry, &file, &path);
        let Some(temporary) = temporary else { return copied };
        let renamed = copied.and_then(|()| {
            renameat(&folder.descriptor, &temporary, &folder.descriptor, name)
                .map_err(|errno| failed(&path, errno))
        });
        renamed.inspect_err(|_| {
            let _ = unlinkat(&folder.descriptor, &temporary, AtFlags::empty());
        })
    }

    /// Copies the content, the permissions and the times.
    fn fill(&mut self, place: &Path, entry: &Entry, file: &File, path: &Path) -> Result<(), Error> {
        let mut sparse = SparseFile::new(file);
        self.files.content(place, entry, &mut sparse, &mut self.piece).map_err(
            |error| match error {
                Error::Writer(error) => failed(path, error),
                error => error,
            },
        )?;
        sparse.end().map_err(|error| failed(path, error))?;
        finish(file, entry, PRIVATE_MODE).map_err(|error| failed(path, error))
    }

    fn link(
        &mut self,
        place: &Path,
        entry: &Entry,
        folder: &Target,
        name: &OsStr,
    ) -> Result<(), Error> {
        let path = folder.path.join(name);
        let target = self.files.link(place, entry)?;
        if self.check_room(folder, name)? {
            unlinkat(&folder.descriptor, name, AtFlags::empty())
                .map_err(|errno| failed(&path, errno))?;
        }
        symlinkat(&target, &folder.descriptor, name).map_err(|errno| refused(&path, errno))?;
        utimensat(&folder.descriptor, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| failed(&path, errno))
    }

    fn directory(
        &mut self,
        place: &Path,
        entry: &Entry,
        folder: &Target,
        name: &OsStr,
        depth: Depth,
    ) -> Result<(), Error> {
        if depth.level == DEPTH_MAX {
            let problem = format!("more than {DEPTH_MAX} directories are nested in each other");
            return Err(self.files.wrong(place, problem));
        }
        let path = folder.path.join(name);
        let mode = Mode::from_raw_mode(PRIVATE_DIRECTORY_MODE);
        let is_new = match mkdirat(&folder.descriptor, name, mode) {
            Ok(()) => true,
            Err(Errno::EXIST) if self.options.replace || depth.may_exist => false,
            Err(errno) => return Err(refused(&path, errno)),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(&folder.descriptor, name, flags, Mode::empty());
        let descriptor = descriptor.map_err(|errno| match errno {
            // A file or link of this name.
            Errno::NOTDIR | Errno::LOOP => refused(&path, Errno::EXIST),
            errno => failed(&path, errno),
        })?;
        let inner = Target { descriptor, path };
        for child in self.files.entries(place)? {
            let child = child?;
            if !is_name(&child.name) {
                let problem =
                    format!("the directory has an entry {:?}, which is no name", child.name);
                return Err(self.files.wrong(place, problem));
            }
            let below = Depth { level: depth.level + 1, may_exist: false };
            self.entry(&place.join(&child.name), &child, &inner, &child.name, below)?;
        }
        if is_new {
            let directory = File::from(inner.descriptor);
            finish(&directory, entry, PRIVATE_DIRECTORY_MODE)
                .map_err(|error| failed(&inner.path, error))?;
        }
        Ok(())
    }

    /// Whether a file or link has this name, and may be replaced.
    fn check_room(&self, folder: &Target, name: &OsStr) -> Result<bool, Error> {
        let path = folder.path.join(name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = match openat(&folder.descriptor, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(false),
            found => File::from(found.map_err(|errno| failed(&path, errno))?),
        };
        let metadata = found.metadata().map_err(|error| failed(&path, error))?;
        let refuse = |problem| Err(OutputError { path: path.clone(), problem }.into());
        if self.in_use.has(&metadata) {
            return refuse(OutputProblem::InUse);
        }
        if metadata.is_dir() {
            return refuse(OutputProblem::Io(Errno::ISDIR.into()));
        }
        if !self.options.replace {
            return refuse(OutputProblem::Exists);
        }
        if !metadata.is_file() && !metadata.is_symlink() {
            let problem = "this is neither a file nor a link, and nothing else is replaced";
            return refuse(OutputProblem::Io(io::Error::other(problem)));
        }
        Ok(true)
    }
}

/// A name that no other copy has.
fn temporary_name() -> OsString {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!(".blockyard-{}-{number}", std::process::id()).into()
}

impl Target {
    fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = openat(CWD, path, flags, Mode::empty());
        let descriptor = descriptor.map_err(|errno| failed(path, errno))?;
        Ok(Self { descriptor, path: path.to_owned() })
    }
}

/// Gives a copy its permissions and times.
fn finish(file: &File, entry: &Entry, default_mode: u32) -> io::Result<()> {
    let mode = entry.mode.map_or(default_mode, |mode| mode & KEPT_MODE);
    file.set_permissions(Permissions::from_mode(mode))?;
    Ok(futimens(file.as_fd(), &times(entry))?)
}

fn times(entry: &Entry) -> Timestamps {
    let time = |time: Option<Time>| match time {
        Some(time) => {
            Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999).into() }
        }
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    };
    Timestamps { last_access: time(entry.accessed), last_modification: time(entry.modified) }
}

/// Whether an entry's name can be that of a file.
fn is_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes != b"."
        && bytes != b".."
        && !bytes.contains(&b'/')
        && !bytes.contains(&0)
}

fn failed(path: &Path, error: impl Into<io::Error>) -> Error {
    OutputError { path: path.to_owned(), problem: OutputProblem::Io(error.into()) }.into()
}

fn refused(path: &Path, errno: Errno) -> Error {
    let problem = match errno {
        Errno::EXIST => OutputProblem::Exists,
        errno => OutputProblem::Io(errno.into()),
    };
    OutputError { path: path.to_owned(), problem }.into()
}
