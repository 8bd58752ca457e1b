//! Text for standard output, whose reader may leave early (`blockyard info … | head -1`), and the
//! files that commands write. One rule for all of these: a file that is there is overwritten with
//! `--force` only, and one that is in use never.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use blockyard_host::canary::{Canary, is_planted};
use blockyard_host::file::{FileId, lock_output};
use blockyard_host::volume::Volume;
use rustix::fs::{Access, OFlags, access, syncfs};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::failure::{Failure, printable};

/// Of a file that only its owner may read.
const PRIVATE_MODE: u32 = 0o600;

/// Writes `text`. A reader that has gone away has seen enough: that is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_on(text).map(|_| ())
}

/// As [`print`], for what goes on without end: whether somebody still reads.
pub(crate) fn print_on(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}

/// A line on standard error. It is one line, and shows control characters: the name of a file in it
/// may hold any.
pub(crate) fn say(text: &str) {
    // Standard error may be closed; a message that nobody can read is no reason to stop.
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Files and devices that a command reads or works on: no output may overwrite one of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct InUse(Vec<FileId>);

impl InUse {
    /// Those of these names that lead to something.
    pub(crate) fn of_paths<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let known = paths.into_iter().filter_map(|path| path.metadata().ok());
        Self(known.map(|metadata| FileId::of(&metadata)).collect())
    }

    /// And all that the volume lies on.
    pub(crate) fn add_volume(&mut self, volume: &Volume) {
        self.0.extend(volume.file_ids());
    }

    fn has(&self, metadata: &Metadata) -> bool {
        self.0.contains(&FileId::of(metadata))
    }
}

/// A file that a command is to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output<'a> {
    path: &'a Path,
    /// A file that is there may be overwritten.
    force: bool,
    /// Only the owner may read it.
    is_private: bool,
    /// Nothing but a regular file will do.
    is_recording: bool,
}

impl<'a> Output<'a> {
    /// A file that others may read.
    pub(crate) fn new(path: &'a Path, force: bool) -> Self {
        Self { path, force, is_private: false, is_recording: false }
    }

    /// A file that holds plaintext, or tells of it.
    pub(crate) fn private(path: &'a Path, force: bool) -> Self {
        Self { path, force, is_private: true, is_recording: false }
    }

    /// As [`Output::private`], of a server or of jobs that run. To open a FIFO is to wait for a
    /// reader, and to write to one is to wait while it does not read: the end of the server would
    /// wait as well.
    pub(crate) fn recording(path: &'a Path, force: bool) -> Self {
        Self { is_recording: true, ..Self::private(path, force) }
    }

    /// Its name.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Whether it can be written, as far as can be told without a change: what takes long must not
    /// find that out at its end.
    pub(crate) fn check(&self, in_use: &InUse) -> Result<(), Failure> {
        match self.path.metadata() {
            Ok(metadata) if in_use.has(&metadata) => Err(self.is_in_use()),
            Ok(metadata) if !self.force && holds_something(&metadata) => Err(self.is_there()),
            Ok(metadata) if metadata.is_dir() => Err(self.failed(&ErrorKind::IsADirectory.into())),
            Ok(metadata) if self.is_recording && !metadata.is_file() => Err(self.is_no_file()),
            Ok(metadata) if self.is_of_another_user(&metadata) => Err(self.is_foreign()),
            Ok(_) => {
                Ok(access(self.path, Access::WRITE_OK)
                    .map_err(|errno| self.failed(&errno.into()))?)
            }
            // A link that leads nowhere.
            Err(_) if !self.force && self.path.is_symlink() => Err(self.is_there()),
            Err(_) => check_folder(self.path),
        }
    }

    /// Opens it, empty. A pipe or a character device is taken as it is.
    pub(crate) fn create(&self, in_use: &InUse) -> Result<File, Failure> {
        self.create_seen(self.path.metadata().ok().as_ref(), in_use)
    }

    /// As [`Output::create`], of something that was looked at before, if it was there.
    fn create_seen(&self, seen: Option<&Metadata>, in_use: &InUse) -> Result<File, Failure> {
        let is_stream = seen.is_some_and(|metadata| !holds_something(metadata));
        if is_stream && self.is_recording {
            return Err(self.is_no_file());
        }
        let (file, is_new) = self.open(is_stream)?;
        // What has been opened is looked at, and not the name: only then is anything lost.
        let metadata = file.metadata().map_err(|error| self.failed(&error))?;
        if in_use.has(&metadata) || (holds_something(&metadata) && !lock_output(&file)) {
            return Err(self.is_in_use());
        }
        if self.is_recording && !metadata.is_file() {
            return Err(self.is_no_file());
        }
        if holds_something(&metadata) == is_stream {
            let path = self.path.display();
            return Err(Failure::busy(format!("{path}: has just become something else")));
        }
        // Some file systems say whose a new file is.
        if !is_new && self.is_of_another_user(&metadata) {
            return Err(self.is_foreign());
        }
        if metadata.is_file() {
            let emptied = file.set_len(0).and_then(|()| match self.is_private {
                true => file.set_permissions(Permissions::from_mode(PRIVATE_MODE)),
                false => Ok(()),
            });
            let kept = emptied.and_then(|()| sync_created(&file, self.path));
            kept.map_err(|error| self.failed(&error))?;
        }
        Ok(file)
    }

    /// The file, which is not empty yet, and whether it was made here.
    fn open(&self, is_stream: bool) -> Result<(File, bool), Failure> {
        let mut options = OpenOptions::new();
        options.write(true).mode(if self.is_private { PRIVATE_MODE } else { 0o666 });
        if !is_stream {
            // A FIFO may have taken its place, and to open one is to wait for a reader.
            options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        }
        match options.clone().create_new(true).open(self.path) {
            Ok(new) => Ok((new, true)),
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(self.failed(&error)),
            Err(_) if !self.force && !is_stream => Err(self.is_there()),
            Err(_) => {
                let old = options.create(true).open(self.path);
                old.map(|old| (old, false)).map_err(|error| self.failed(&error))
            }
        }
    }

    /// Writes all of it.
    pub(crate) fn write(&self, in_use: &InUse, text: &str) -> Result<(), Failure> {
        let mut file = self.create(in_use)?;
        let written = file.write_all(text.as_bytes());
        written.and_then(|()| sync_created(&file, self.path)).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::failed(format!("cannot write {}: {error}", self.path.display()))
    }

    fn is_there(&self) -> Failure {
        let path = self.path.display();
        Failure::busy(format!("{path}: is there already; name another file, or say --force"))
    }

    /// Whether somebody else could read what is for the owner only.
    fn is_of_another_user(&self, metadata: &Metadata) -> bool {
        self.is_private && metadata.is_file() && metadata.uid() != geteuid().as_raw()
    }

    fn is_foreign(&self) -> Failure {
        let path = self.path.display();
        Failure::busy(format!(
            "{path}: belongs to another user, who could read what is written; name another file, \
             or remove this one first"
        ))
    }

    fn is_no_file(&self) -> Failure {
        let path = self.path.display();
        Failure::failed(format!("{path}: a trace is written into a regular file; this is none"))
    }

    fn is_in_use(&self) -> Failure {
        Failure::busy(format!(
            "{}: is in use: it is a volume, a header, a key or an input, or another program has \
             locked it; name another file",
            self.path.display()
        ))
    }
}

/// Not a pipe, a terminal or the like, of which nothing is lost when it is written to.
fn holds_something(metadata: &Metadata) -> bool {
    metadata.is_file() || metadata.file_type().is_block_device()
}

/// Makes a file that was created, and its name in its folder, survive a power cut.
pub(crate) fn sync_created(file: &File, path: &Path) -> io::Result<()> {
    // A pipe or a character device has nothing to synchronise.
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    file.sync_all()?;
    if is_planted(Canary::DirectorySync) {
        return Ok(());
    }
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        // A folder that takes files and does not show them, or one that cannot be synchronised
        // (shared folders of VirtualBox, /dev/fd): the whole file system of the file, then.
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

/// Whether a file of this name can be made: its folder is there, and takes files.
fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = folder_of(path);
    let is_folder = folder.metadata().and_then(|metadata| match metadata.is_dir() {
        true => Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?),
        false => Err(ErrorKind::NotADirectory.into()),
    });
    is_folder.map_err(|error| {
        Failure::failed(format!(
            "cannot write {}: the folder {}: {error}",
            path.display(),
            folder.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;
    use crate::failure::Exit;

    #[test]
    fn file_that_is_there_is_overwritten_with_force_and_one_in_use_never() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("old"), "old").unwrap();
        std::fs::write(at("used"), "used").unwrap();
        std::fs::hard_link(at("used"), at("hard")).unwrap();
        std::os::unix::fs::symlink(at("used"), at("soft")).unwrap();
        let used = at("used");
        let in_use = InUse::of_paths([used.as_path(), Path::new("/no/such/file")]);
        for (name, force) in
            [("old", false), ("used", true), ("hard", true), ("soft", true), ("soft", false)]
        {
            let path = at(name);
            let output = Output::new(&path, force);
            assert_eq!(output.check(&in_use).unwrap_err().exit, Exit::Busy, "{name}");
            assert_eq!(output.write(&in_use, "new").unwrap_err().exit, Exit::Busy, "{name}");
        }
        assert_eq!(std::fs::read(at("old")).unwrap(), b"old");
        assert_eq!(std::fs::read(at("used")).unwrap(), b"used");
        for (name, force) in [("old", true), ("new", false)] {
            let path = at(name);
            let output = Output::private(&path, force);
            output.check(&in_use).unwrap();
            output.write(&in_use, "n").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"n");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
        Output::new(Path::new("/dev/null"), false).write(&in_use, "n").unwrap();
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
        assert!(failure.message.contains("regular file"), "{failure}");
        assert!(output.check(&InUse::default()).is_err());
        drop(reader);
        let failure = output.create(&InUse::default()).unwrap_err();
        assert!(failure.message.contains("regular file"), "{failure}");
        assert!(Output::recording(Path::new("/dev/null"), true).create(&InUse::default()).is_err());
    }

    #[test]
    fn fifo_that_takes_the_place_of_a_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "old").unwrap();
        let seen = path.metadata().unwrap();
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let output = Output::private(&path, true);
        let without_reader = output.create_seen(Some(&seen), &InUse::default());
        assert!(without_reader.unwrap_err().message.contains("cannot write"));
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        let with_one = output.create_seen(Some(&seen), &InUse::default());
        assert!(with_one.unwrap_err().message.contains("something else"));
        // The other way round a file would be overwritten that nobody said --force for.
        let seen = path.metadata().unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let swapped = Output::new(&path, false).create_seen(Some(&seen), &InUse::default());
        assert!(swapped.unwrap_err().message.contains("something else"));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn plaintext_is_not_written_into_a_file_of_another_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "old").unwrap();
        if std::os::unix::fs::chown(&path, Some(geteuid().as_raw() + 1), None).is_err() {
            // Only root can give a file to another user, so there is nothing to test without root.
            assert!(!geteuid().is_root());
            return;
        }
        let private = Output::private(&path, true);
        for refused in [
            private.check(&InUse::default()).map(drop),
            private.create(&InUse::default()).map(drop),
        ] {
            assert!(refused.unwrap_err().message.contains("another user"));
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
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
        std::fs::write(file.path(), "served").unwrap();
        let access = blockyard_host::file::Access::ReadOnly;
        let served = blockyard_host::file::DeviceFile::open(file.path(), access, false).unwrap();
        let output = Output::new(file.path(), true);
        assert_eq!(output.create(&InUse::default()).unwrap_err().exit, Exit::Busy);
        drop(served);
        assert_eq!(std::fs::read(file.path()).unwrap(), b"served");
        output.create(&InUse::default()).unwrap();
    }
}
