//! The socket by which `umount` asks a serving process to end, and learns the outcome.
//!
//! The request is one byte. The answer is a line: `ok`, `in use`, `busy TEXT` (the mount goes on)
//! or `error TEXT`.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use blockyard_host::fuse::{self, LastUse};

use super::{mount_at, places};
use crate::Error;

/// Limit for the request of a program that has connected.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Request: unmount if no program uses the mount.
const IF_UNUSED: u8 = b'u';
/// Request: unmount in any case.
const LAZY: u8 = b'z';

/// EBUSY in the words of the system, which `fusermount3` has too.
const BUSY: &str = "resource busy";

/// The listening socket of a mount. The drop removes it.
#[derive(Debug)]
pub(super) struct Door {
    listener: UnixListener,
    path: PathBuf,
    /// Inode of the path: a later mount with the device number has another.
    inode: u64,
    mount: fuse::Mount,
}

/// A program that waits for the end of the mount.
pub(super) struct Asker(UnixStream);

impl Door {
    /// Listens for the mount at a canonical path.
    pub(super) fn open(place: &Path) -> Result<Self, Error> {
        let mount = mount_at(place)?;
        let mount = mount.ok_or_else(|| Error::mount(place, "the mount has gone already"))?;
        let path = places::socket(&mount.device)?;
        // The number was that of an earlier mount.
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|error| Error::file(&path, error))?;
        let inode = inode(&path).map_err(|error| Error::file(&path, error))?;
        Ok(Self { listener, path, inode, mount })
    }

    /// The mount.
    pub(super) fn mount(&self) -> &fuse::Mount {
        &self.mount
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts a request and unmounts the place; `None` if the mount goes on.
    pub(super) fn asker(&self) -> Option<Asker> {
        let (mut stream, _) = self.listener.accept().ok()?;
        stream.set_read_timeout(Some(REQUEST_LIMIT)).ok()?;
        let mut request = [0];
        stream.read_exact(&mut request).ok()?;
        match fuse::unmount(&self.mount, request == [LAZY]) {
            Ok(()) => Some(Asker(stream)),
            Err(error) => {
                let said = error.to_string();
                let kind = if said.contains(BUSY) { "busy" } else { "error" };
                answer(&stream, &format!("{kind} {said}"));
                None
            }
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> io::Result<u64> {
    fs::symlink_metadata(path).map(|found| found.ino())
}

impl Asker {
    /// Tells the outcome.
    pub(super) fn tell(self, outcome: &Result<LastUse, Error>) {
        answer(
            &self.0,
            &match outcome {
                Ok(LastUse::Closed) => "ok".to_owned(),
                Ok(LastUse::StillOpen) => "in use".to_owned(),
                Err(error) => format!("error {error}"),
            },
        );
    }
}

/// The other program may have gone.
fn answer(mut stream: &UnixStream, text: &str) {
    let _ = writeln!(stream, "{}", text.replace('\n', " "));
}

/// Asks the process that serves the mount with this device number; `None` if there is none.
pub(super) fn ask(place: &Path, device: &str, lazy: bool) -> Result<Option<LastUse>, Error> {
    let path = places::socket(device)?;
    let failed = |error: io::Error| Error::file(&path, error);
    let mut stream = match UnixStream::connect(&path) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            // A killed process has left its socket.
            let _ = fs::remove_file(&path);
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    stream.write_all(&[if lazy { LAZY } else { IF_UNUSED }]).map_err(failed)?;
    let mut said = String::new();
    stream.read_to_string(&mut said).map_err(failed)?;
    let (outcome, problem) = said.trim_end().split_once(' ').unwrap_or((said.trim_end(), ""));
    // Errors of a mount begin with its place.
    let problem = problem.strip_prefix(&format!("{}: ", place.display())).unwrap_or(problem);
    match (outcome, problem) {
        ("ok", _) => Ok(Some(LastUse::Closed)),
        ("in", _) => Ok(Some(LastUse::StillOpen)),
        ("busy", problem) => {
            Err(Error::MountBusy { path: place.to_path_buf(), problem: problem.to_owned() })
        }
        ("error", problem) => Err(Error::mount(place, problem)),
        _ => Err(Error::mount(place, "the process that serves the mount has ended early")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_the_next_mount_with_the_device_number_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mount-0:45");
        let listen = || {
            let _ = fs::remove_file(&path);
            let listener = UnixListener::bind(&path).unwrap();
            let inode = inode(&path).unwrap();
            let mount = fuse::Mount {
                device: "0:45".into(),
                point: "/mnt".into(),
                kind: "fuse.ext4".into(),
                source: "home".into(),
            };
            Door { listener, path: path.clone(), inode, mount }
        };
        let first = listen();
        // The descriptor keeps the inode of the first from the second.
        let second = listen();
        drop(first);
        UnixStream::connect(&path).unwrap();
        drop(second);
        assert!(!path.exists());
    }
}
