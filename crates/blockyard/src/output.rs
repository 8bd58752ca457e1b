//! Output files beside volumes: traces, images, pages.
//!
//! An existing file is replaced only with the caller's permission, and a file in use never.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use blockyard_host::canary::{Canary, is_planted};
use blockyard_host::file::{FileId, OutputLock, lock_output};
use rustix::fs::{Access, OFlags, access, syncfs};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::Volume;

/// Mode of a private file.
const PRIVATE_MODE: u32 = 0o600;

/// Error of writing a file.
#[derive(Debug)]
pub struct OutputError {
    /// File.
    pub path: PathBuf,
    /// Cause.
    pub problem: OutputProblem,
}

/// Cause of an [`OutputError`].
#[derive(Debug)]
#[non_exhaustive]
pub enum OutputProblem {
    /// The file exists, and `replace` is not set.
    Exists,
    /// The file belongs to a volume or is an input, or another program has locked it.
    InUse,
    /// The file belongs to another user, and the content is private.
    OtherUser,
    /// A trace needs a regular file.
    NotRegular,
    /// Another program has replaced the file meanwhile.
    Changed,
    /// The folder of the file is missing, or refuses files.
    Folder {
        /// Folder.
        folder: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The system cannot write the file.
    Io(io::Error),
}

impl std::fmt::Display for OutputError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path.display();
        let problem = match &self.problem {
            OutputProblem::Exists => "exists already; name another file, or set `replace`",
            OutputProblem::InUse => {
                "is in use: it is a volume, a header, a key or an input, or another program has \
                 locked it; name another file"
            }
            OutputProblem::OtherUser => {
                "belongs to another user, who could read what is written; name another file, or \
                 remove this one first"
            }
            OutputProblem::NotRegular => "a trace is written into a regular file; this is none",
            OutputProblem::Changed => "was replaced by another program",
            OutputProblem::Folder { folder, source } => {
                let folder = folder.display();
                return write!(f, "cannot write {path}: the folder {folder}: {source}");
            }
            OutputProblem::Io(source) => return write!(f, "cannot write {path}: {source}"),
        };
        write!(f, "{path}: {problem}")
    }
}

impl std::error::Error for OutputError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.problem {
            OutputProblem::Folder { source, .. } | OutputProblem::Io(source) => Some(source),
            _ => None,
        }
    }
}

impl OutputError {
    /// Whether the file is in use or would be overwritten.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        use OutputProblem::{Changed, Exists, InUse, OtherUser};
        matches!(self.problem, Exists | InUse | OtherUser | Changed)
    }
}

/// Files and devices in use as input or volume: no output may overwrite them.
#[derive(Clone, Debug, Default)]
pub struct InUse(BTreeSet<FileId>);

/// True if two names lead to one file.
#[must_use]
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => FileId::of(&one) == FileId::of(&other),
        _ => false,
    }
}

impl InUse {
    /// The existing files among these names.
    #[must_use]
    pub fn of_paths<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let known = paths.into_iter().filter_map(|path| path.metadata().ok());
        Self(known.map(|metadata| FileId::of(&metadata)).collect())
    }

    /// Adds other files in use.
    pub(crate) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Adds all files of the volume.
    pub fn add_volume(&mut self, volume: &Volume) {
        self.add(volume.shared().host.file_ids());
    }

    pub(crate) fn add(&mut self, files: &[FileId]) {
        self.0.extend(files);
    }

    pub(crate) fn has(&self, metadata: &Metadata) -> bool {
        self.0.contains(&FileId::of(metadata))
    }
}

/// An output file.
#[derive(Clone, Copy, Debug)]
pub struct Output<'a> {
    path: &'a Path,
    /// Permission to replace an existing file.
    replace: bool,
    /// Only the owner may read the file.
    is_private: bool,
    /// The file must be a regular file.
    is_recording: bool,
}

/// An open output file. Until the value is dropped, no volume uses it, nor what is under a loop
/// device.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    _lock: OutputLock,
}

impl OutputFile {
    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<'a> Output<'a> {
    /// A file that others may read.
    #[must_use]
    pub fn new(path: &'a Path, replace: bool) -> Self {
        Self { path, replace, is_private: false, is_recording: false }
    }

    /// A private file with plaintext, or information about it.
    #[must_use]
    pub fn private(path: &'a Path, replace: bool) -> Self {
        Self { path, replace, is_private: true, is_recording: false }
    }

    /// Like [`Output::private`], for a server or running jobs. Opening a FIFO waits for a reader,
    /// and writing to one waits for it to read; the end of the server would wait too.
    #[must_use]
    pub fn recording(path: &'a Path, replace: bool) -> Self {
        Self { is_recording: true, ..Self::private(path, replace) }
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Checks without changes whether the file can be written, so that a long run does not fail at
    /// its end.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn check(&self, in_use: &InUse) -> Result<(), OutputError> {
        match self.path.metadata() {
            Ok(metadata) if in_use.has(&metadata) => Err(self.refused(OutputProblem::InUse)),
            Ok(metadata) if !self.replace && holds_something(&metadata) => {
                Err(self.refused(OutputProblem::Exists))
            }
            Ok(metadata) if metadata.is_dir() => Err(self.failed(ErrorKind::IsADirectory)),
            Ok(metadata) if self.is_recording && !metadata.is_file() => {
                Err(self.refused(OutputProblem::NotRegular))
            }
            Ok(metadata) if self.is_of_another_user(&metadata) => {
                Err(self.refused(OutputProblem::OtherUser))
            }
            Ok(_) => access(self.path, Access::WRITE_OK).map_err(|errno| self.failed(errno)),
            // A dangling link.
            Err(_) if !self.replace && self.path.is_symlink() => {
                Err(self.refused(OutputProblem::Exists))
            }
            Err(_) => check_folder(self.path),
        }
    }

    /// Opens the file, empty. Pipes and character devices are used unchanged.
    ///
    /// # Errors
    /// The file cannot be opened, or its content would be destroyed.
    pub fn create(&self, in_use: &InUse) -> Result<OutputFile, OutputError> {
        self.create_seen(self.path.metadata().ok().as_ref(), in_use)
    }

    /// Like [`Output::create`], for a file whose metadata was read before, if it existed.
    fn create_seen(
        &self,
        seen: Option<&Metadata>,
        in_use: &InUse,
    ) -> Result<OutputFile, OutputError> {
        let (file, metadata) = self.open_seen(seen, in_use)?;
        if metadata.is_file() {
            self.empty(&file.file).map_err(|error| self.failed(error))?;
        }
        Ok(file)
    }

    /// Opens the file with its content, and checks that it may be replaced.
    fn open_seen(
        &self,
        seen: Option<&Metadata>,
        in_use: &InUse,
    ) -> Result<(OutputFile, Metadata), OutputError> {
        let is_stream = seen.is_some_and(|metadata| !holds_something(metadata));
        if is_stream && self.is_recording {
            return Err(self.refused(OutputProblem::NotRegular));
        }
        let (file, is_new) = self.open(is_stream)?;
        // The check uses the opened file, not its name; truncation follows it.
        let metadata = file.metadata().map_err(|error| self.failed(error))?;
        let lock = if holds_something(&metadata) {
            lock_output(&file, self.path)
        } else {
            Some(OutputLock::default())
        };
        let lock = lock.filter(|_| !in_use.has(&metadata));
        let lock = lock.ok_or_else(|| self.refused(OutputProblem::InUse))?;
        if self.is_recording && !metadata.is_file() {
            return Err(self.refused(OutputProblem::NotRegular));
        }
        if holds_something(&metadata) == is_stream {
            return Err(self.refused(OutputProblem::Changed));
        }
        // Some file systems determine the owner of a new file.
        if !is_new && self.is_of_another_user(&metadata) {
            return Err(self.refused(OutputProblem::OtherUser));
        }
        Ok((OutputFile { file, _lock: lock }, metadata))
    }

    fn empty(&self, file: &File) -> io::Result<()> {
        file.set_len(0)?;
        if self.is_private {
            file.set_permissions(Permissions::from_mode(PRIVATE_MODE))?;
        }
        sync_created(file, self.path)
    }

    /// Opens the file without truncation; returns whether it was created.
    fn open(&self, is_stream: bool) -> Result<(File, bool), OutputError> {
        let mut options = OpenOptions::new();
        options.write(true).mode(if self.is_private { PRIVATE_MODE } else { 0o666 });
        if !is_stream {
            // A FIFO may have taken its place, and opening one waits for a reader.
            options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        }
        match options.clone().create_new(true).open(self.path) {
            Ok(new) => Ok((new, true)),
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(self.failed(error)),
            Err(_) if !self.replace && !is_stream => Err(self.refused(OutputProblem::Exists)),
            Err(_) => {
                if is_block_device(self.path) {
                    // The kernel refuses the claim of a device that is mounted.
                    let flags = OFlags::NONBLOCK | OFlags::EXCL;
                    options.custom_flags(flags.bits().cast_signed());
                } else {
                    options.create(true);
                }
                match options.open(self.path) {
                    Ok(old) => Ok((old, false)),
                    Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                        Err(self.refused(OutputProblem::InUse))
                    }
                    Err(error) => Err(self.failed(error)),
                }
            }
        }
    }

    /// Writes the whole content. An own regular file keeps its old content until the new one is
    /// complete and durable: then a new file takes its name.
    ///
    /// # Errors
    /// See [`Output::create`]; or the system cannot write.
    pub fn write(&self, in_use: &InUse, content: impl AsRef<[u8]>) -> Result<(), OutputError> {
        // The old file stays open: its lock is held until it is replaced.
        let seen = self.path.metadata().ok();
        let (old, metadata) = self.open_seen(seen.as_ref(), in_use)?;
        let written = match self.replaceable(&metadata) {
            Some(target) => self.replace(&target, &metadata, content.as_ref()),
            None => self.overwrite(&old.file, &metadata, content.as_ref()),
        };
        written.map_err(|error| self.failed(error))
    }

    /// Name of the file behind links, if the file has one, has content and belongs to this user.
    fn replaceable(&self, metadata: &Metadata) -> Option<PathBuf> {
        let is_own = metadata.is_file() && metadata.uid() == geteuid().as_raw();
        let target = self.path.canonicalize().ok().filter(|_| is_own && metadata.len() > 0)?;
        is_same_file(&target, self.path).then_some(target)
    }

    fn overwrite(&self, mut file: &File, metadata: &Metadata, content: &[u8]) -> io::Result<()> {
        if metadata.is_file() {
            self.empty(file)?;
        }
        file.write_all(content)?;
        sync_created(file, self.path)
    }

    /// Writes a new file beside `target`, and gives it the name.
    fn replace(&self, target: &Path, old: &Metadata, content: &[u8]) -> io::Result<()> {
        let mode = if self.is_private { PRIVATE_MODE } else { old.mode() & 0o7777 };
        let (mut new, name) = create_beside(target)?;
        let written = new
            .write_all(content)
            .and_then(|()| new.set_permissions(Permissions::from_mode(mode)))
            .and_then(|()| new.sync_all())
            .and_then(|()| fs::rename(&name, target));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&name);
        }
        written.and_then(|()| sync_created(&new, target))
    }

    fn refused(&self, problem: OutputProblem) -> OutputError {
        OutputError { path: self.path.to_owned(), problem }
    }

    fn failed(&self, error: impl Into<io::Error>) -> OutputError {
        self.refused(OutputProblem::Io(error.into()))
    }

    /// Whether another user could read private content.
    fn is_of_another_user(&self, metadata: &Metadata) -> bool {
        self.is_private && metadata.is_file() && metadata.uid() != geteuid().as_raw()
    }
}

/// Whether writing destroys content, unlike for a pipe or a terminal.
fn holds_something(metadata: &Metadata) -> bool {
    metadata.is_file() || metadata.file_type().is_block_device()
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Makes a created file and its name in the folder durable.
///
/// # Errors
/// The system cannot do it.
pub fn sync_created(file: &File, path: &Path) -> io::Result<()> {
    let metadata = file.metadata()?;
    // A pipe or a character device has nothing to synchronise.
    if !holds_something(&metadata) {
        return Ok(());
    }
    file.sync_all()?;
    if !metadata.is_file() || is_planted(Canary::DirectorySync) {
        return Ok(());
    }
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        // Some folders cannot be opened or synchronised (shared folders of VirtualBox, /dev/fd):
        // then synchronise the whole file system.
        Err(error)
            if error.kind() == ErrorKind::PermissionDenied
                || error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) =>
        {
            Ok(syncfs(file)?)
        }
        synced => synced,
    }
}

fn folder_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Creates a private file with a free name in the folder of `path`.
pub(crate) fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut number = 0;
    loop {
        let name = folder_of(path).join(format!(".blockyard-{}-{number}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).mode(PRIVATE_MODE).open(&name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            outcome => return Ok((outcome?, name)),
        }
    }
}

/// Checks that a file of this name can be created: its folder exists and accepts files.
fn check_folder(path: &Path) -> Result<(), OutputError> {
    let folder = folder_of(path);
    let is_folder = folder.metadata().and_then(|metadata| {
        if metadata.is_dir() {
            Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
        } else {
            Err(ErrorKind::NotADirectory.into())
        }
    });
    is_folder.map_err(|source| OutputError {
        path: path.to_owned(),
        problem: OutputProblem::Folder { folder: folder.to_owned(), source },
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn file_that_is_there_is_overwritten_with_force_and_one_in_use_never() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("old"), "old").unwrap();
        fs::write(at("used"), "used").unwrap();
        fs::hard_link(at("used"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("used"), at("soft")).unwrap();
        let used = at("used");
        let in_use = InUse::of_paths([used.as_path(), Path::new("/no/such/file")]);
        for (name, force) in
            [("old", false), ("used", true), ("hard", true), ("soft", true), ("soft", false)]
        {
            let path = at(name);
            let output = Output::new(&path, force);
            assert!(output.check(&in_use).unwrap_err().is_busy(), "{name}");
            assert!(output.write(&in_use, "new").unwrap_err().is_busy(), "{name}");
        }
        assert_eq!(fs::read(at("old")).unwrap(), b"old");
        assert_eq!(fs::read(at("used")).unwrap(), b"used");
        for (name, force) in [("old", true), ("new", false)] {
            let path = at(name);
            let output = Output::private(&path, force);
            output.check(&in_use).unwrap();
            output.write(&in_use, "n").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"n");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
        Output::new(Path::new("/dev/null"), false).write(&in_use, "n").unwrap();
    }

    #[test]
    fn file_keeps_its_old_content_until_the_new_one_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("backup", &link).unwrap();
        for (output, mode) in
            [(Output::private(&link, true), 0o600), (Output::new(&path, true), 0o640)]
        {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            let reader = File::open(&path).unwrap();
            output.write(&InUse::default(), "new").unwrap();
            assert_eq!(io::read_to_string(reader).unwrap(), "old", "it was never shortened");
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode);
            assert!(link.is_symlink());
            assert_eq!(dir.path().read_dir().unwrap().count(), 2);
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn recording_is_refused_where_it_would_wait_for_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let reader = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let output = Output::recording(&path, true);
        let failure = output.create(&InUse::default()).unwrap_err();
        assert!(failure.to_string().contains("regular file"), "{failure}");
        assert!(output.check(&InUse::default()).is_err());
        drop(reader);
        let failure = output.create(&InUse::default()).unwrap_err();
        assert!(failure.to_string().contains("regular file"), "{failure}");
        assert!(Output::recording(Path::new("/dev/null"), true).create(&InUse::default()).is_err());
    }

    #[test]
    fn fifo_that_takes_the_place_of_a_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let seen = path.metadata().unwrap();
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let output = Output::private(&path, true);
        let without_reader = output.create_seen(Some(&seen), &InUse::default());
        assert!(without_reader.unwrap_err().to_string().contains("cannot write"));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let with_one = output.create_seen(Some(&seen), &InUse::default());
        assert!(with_one.unwrap_err().to_string().contains("replaced by another"));
        // Otherwise a file would be overwritten without --force.
        let seen = path.metadata().unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        let swapped = Output::new(&path, false).create_seen(Some(&seen), &InUse::default());
        assert!(swapped.unwrap_err().to_string().contains("replaced by another"));
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn plaintext_is_not_written_into_a_file_of_another_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        if std::os::unix::fs::chown(&path, Some(geteuid().as_raw() + 1), None).is_err() {
            // Only root can give a file to another user, so the test needs root.
            assert!(!geteuid().is_root());
            return;
        }
        let private = Output::private(&path, true);
        for refused in [
            private.check(&InUse::default()).map(drop),
            private.create(&InUse::default()).map(drop),
        ] {
            assert!(refused.unwrap_err().to_string().contains("another user"));
        }
        assert_eq!(fs::read(&path).unwrap(), b"old");
        Output::new(&path, true).write(&InUse::default(), "n").unwrap();
    }

    #[test]
    fn file_whose_folder_cannot_be_synchronised_is_written() {
        use std::os::fd::AsRawFd;

        let file = tempfile::tempfile().unwrap();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Output::new(Path::new(&path), true).write(&InUse::default(), "text").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4);
    }

    #[test]
    fn file_that_another_program_has_locked_is_not_overwritten() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "served").unwrap();
        let access = blockyard_host::file::Access::ReadOnly;
        let served = blockyard_host::file::DeviceFile::open(file.path(), access, false).unwrap();
        let output = Output::new(file.path(), true);
        assert!(output.create(&InUse::default()).unwrap_err().is_busy());
        drop(served);
        assert_eq!(fs::read(file.path()).unwrap(), b"served");
        output.create(&InUse::default()).unwrap();
    }
}
