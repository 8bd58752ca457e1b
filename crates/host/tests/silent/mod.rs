//! A file of FUSE whose process answers all but the flush before a close.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{Mode, OFlags};

const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
/// Requests without an answer: FORGET, INTERRUPT, BATCH_FORGET.
const NO_ANSWER: [u32; 3] = [2, 36, 42];
const NO_SUCH_CALL: i32 = -38;

/// The mounted file, and its process: a thread. The drop ends all calls that wait for an answer.
pub(crate) struct Silent {
    /// Open for reading and writing. The drop has ended the process before it is closed.
    pub(crate) file: File,
    place: tempfile::NamedTempFile,
    stop: OwnedFd,
    process: Option<JoinHandle<()>>,
}

impl Silent {
    /// `None` without the right to mount.
    pub(crate) fn mount() -> Option<Self> {
        let fuse = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let fuse = fuse.ok()?;
        let place = tempfile::NamedTempFile::new().unwrap();
        let target = CString::new(place.path().as_os_str().as_bytes()).unwrap();
        let options = format!("fd={},rootmode=100600,user_id=0,group_id=0", fuse.as_raw_fd());
        let options = CString::new(options).unwrap();
        // SAFETY: all strings end with a zero and live until the call returns.
        let mounted = unsafe {
            let kind = c"fuse.silent".as_ptr();
            libc::mount(kind, target.as_ptr(), kind, 0, options.as_ptr().cast())
        };
        if mounted != 0 {
            return None;
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let stopped = stop.try_clone().unwrap();
        let process = Some(std::thread::spawn(move || answer(&fuse, &stopped)));
        let file = File::options().read(true).write(true).open(place.path()).unwrap();
        Some(Self { file, place, stop, process })
    }

    /// Ends the process.
    pub(crate) fn end(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        self.process.take().into_iter().for_each(|process| process.join().unwrap());
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        if self.process.is_some() {
            self.end();
        }
        let target = CString::new(self.place.path().as_os_str().as_bytes()).unwrap();
        // SAFETY: the string ends with a zero and lives until the call returns.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Answers until the stop.
fn answer(fuse: &OwnedFd, stop: &OwnedFd) {
    loop {
        let mut polled = [fuse, stop].map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
        poll(&mut polled, None).unwrap();
        if !polled[1].revents().is_empty() {
            return;
        }
        let mut request = vec![0; 1 << 20];
        let Ok(_) = rustix::io::read(fuse, &mut request) else { continue };
        let kind = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        if kind == FLUSH || NO_ANSWER.contains(&kind) {
            continue;
        }
        let body = body(kind);
        let error = if body.is_none() { NO_SUCH_CALL } else { 0 };
        let body = body.unwrap_or_default();
        let mut reply = (16 + body.len() as u32).to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(&request[8..16]);
        reply.extend(body);
        // The caller may have gone.
        let _ = rustix::io::write(fuse, &reply);
    }
}

/// Contents of an answer; `None` for a request that is not known here.
fn body(kind: u32) -> Option<Vec<u8>> {
    let mut body = match kind {
        INIT => vec![0; 64],
        GETATTR => vec![0; 104],
        OPEN => vec![0; 16],
        RELEASE => Vec::new(),
        _ => return None,
    };
    let mut put = |at: usize, value: u32| body[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    match kind {
        INIT => [(0, 7), (4, 31), (20, 4096)].into_iter().for_each(|(at, value)| put(at, value)),
        // Its number, its length, its mode, its links.
        GETATTR => {
            let fields = [(16, 1), (24, 1 << 20), (76, 0o100_600), (80, 1)];
            fields.into_iter().for_each(|(at, value)| put(at, value));
        }
        _ => {}
    }
    Some(body)
}
