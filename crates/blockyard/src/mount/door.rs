//! The socket by which `umount` asks a serving process to end, and learns the outcome.
//!
//! The request is one byte. The answer is a line: `ok`, `in use`, `busy TEXT` (the mount goes on)
//! or `error TEXT`.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
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
        Ok(Self { listener, path, mount })
    }

    /// The mount.
    pub(super) fn mount(&self) -> &fuse::Mount {
        &self.mount
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts a request and unmounts the place; `None` if the mount goes on.
    pub(super) fn asker(&self, place: &Path) -> Option<Asker> {
        let (mut stream, _) = self.listener.accept().ok()?;
        stream.set_read_timeout(Some(REQUEST_LIMIT)).ok()?;
        let mut request = [0];
        stream.read_exact(&mut request).ok()?;
        match fuse::unmount(&self.mount, request == [LAZY]) {
            Ok(()) => Some(Asker(stream)),
            Err(error) => {
                let said = error.to_string();
                let kind = if said.contains(BUSY) { "busy" } else { "error" };
                // The other program names the place.
                let said = said.strip_prefix(&format!("{}: ", place.display())).unwrap_or(&said);
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
        let _ = fs::remove_file(&self.path);
    }
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
    match said.trim_end().split_once(' ').unwrap_or((said.trim_end(), "")) {
        ("ok", _) => Ok(Some(LastUse::Closed)),
        ("in", _) => Ok(Some(LastUse::StillOpen)),
        ("busy", problem) => {
            Err(Error::MountBusy { path: place.to_path_buf(), problem: problem.to_owned() })
        }
        ("error", problem) => Err(Error::mount(place, problem)),
        _ => Err(Error::mount(place, "the process that serves the mount has ended early")),
    }
}
