//! Mounting and unmounting by `fusermount3`, which an ordinary user may do.
//!
//! The crate `fuser` can mount too, but its drop unmounts whatever is at the path by then.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock, Weak};

use rustix::mount::UnmountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::{Mount, Mounts, SOURCE};
use crate::Error;
use crate::broker::{Broker, MountedPlace};

/// The program, and its package on Debian.
const PROGRAM: &str = "fusermount3";

/// Checks that this machine has FUSE.
///
/// # Errors
/// `/dev/fuse` is missing or refused.
pub fn check_machine() -> Result<(), Error> {
    let device = Path::new("/dev/fuse");
    match OpenOptions::new().read(true).write(true).open(device) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound) || is_no_device(&error) => {
            Err(Error::parameter(
                device.display(),
                "the device is missing, and a mount needs FUSE: `modprobe fuse` loads it; a \
                 container needs the device (--device /dev/fuse --cap-add SYS_ADMIN)",
            ))
        }
        Err(error) => Err(Error::parameter(
            device.display(),
            format!("{error}: this user may not use FUSE; its usual mode is 0666"),
        )),
    }
}

fn is_no_device(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

/// A mount in the list of mounts, and its access.
#[derive(Clone, Copy, Debug)]
pub struct Appearance<'a> {
    /// Name behind [`SOURCE`].
    pub name: &'a str,
    /// No writes.
    pub read_only: bool,
    /// Lets the kernel pass requests of other users; the permissions still hold.
    pub others: bool,
}

/// A mount and its channel to the kernel.
#[derive(Debug)]
pub struct Channel {
    /// The descriptor of `/dev/fuse`.
    pub device: OwnedFd,
    /// The mount.
    pub mount: Mount,
}

/// Mounts.
///
/// # Errors
/// FUSE is not available, or the place is refused.
pub fn mount(place: &Path, appearance: Appearance<'_>) -> Result<Channel, Error> {
    check_machine()?;
    let failed = |error: io::Error| Error::io(place, "mount a volume", error);
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|errno| failed(errno.into()))?;
    let access = if appearance.read_only { "ro" } else { "rw" };
    let others = if appearance.others { ",allow_other" } else { "" };
    let words = format!(
        "{access},nosuid,nodev,default_permissions,subtype=blockyard,fsname={SOURCE}{}{others}",
        plain_name(appearance.name)
    );
    // Its standard input is the socket, so that no other program inherits it.
    let output = Command::new(PROGRAM)
        .env("_FUSE_COMMFD", "0")
        .args(["-o", &words, "--"])
        .arg(place)
        .stdin(Stdio::from(theirs))
        .output()
        .map_err(|error| not_started(place, error))?;
    if !output.status.success() {
        return Err(refused(place, &output));
    }
    let device = receive(&ours).map_err(failed)?;
    let mount = mount_at(place)?;
    let mount =
        mount.ok_or_else(|| Error::parameter(place.display(), "the mount has gone already"))?;
    Ok(Channel { device, mount })
}

/// Receives the descriptor that `fusermount3` has sent.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let channel = received.find_map(|mut descriptors| descriptors.next());
    channel.ok_or_else(|| io::Error::other("fusermount3 sent no channel"))
}

/// The name without characters that have a meaning in mount options or in the list of mounts.
pub(super) fn plain_name(name: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-+".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// The topmost mount at a place.
///
/// # Errors
/// A folder above is missing, or there is no list of mounts.
pub fn mount_at(place: &Path) -> Result<Option<Mount>, Error> {
    let place = real(place).map_err(|error| Error::io(place, "find it", error))?;
    let mount = Mounts::open().and_then(|mut mounts| mounts.at(&place));
    mount.map_err(|error| Error::io(&place, "read the mounts", error))
}

/// Unmounts a mount, if it still is the topmost one at its place. A lazy unmount succeeds while
/// programs use the mount.
///
/// # Errors
/// Another mount is at the place, the mount is not of FUSE or of another user, or it is in use.
pub fn unmount(mount: &Mount, lazy: bool) -> Result<(), Error> {
    match OUTSIDE.get() {
        None => unmount_here(&mount.place(), lazy),
        Some(outside) => outside.unmount(&mount.place(), lazy),
    }
}

/// The process outside of the sandbox that unmounts for this one.
static OUTSIDE: OnceLock<Outside> = OnceLock::new();

struct Outside {
    broker: Weak<Broker>,
    /// By their numbers.
    places: Vec<MountedPlace>,
}

impl Outside {
    fn unmount(&self, place: &MountedPlace, lazy: bool) -> Result<(), Error> {
        let number = self.places.iter().position(|known| known == place);
        let place = &place.point;
        let (Some(number), Some(broker)) = (number, self.broker.upgrade()) else {
            return Err(Error::parameter(place.display(), "the sandbox permits no unmount of it"));
        };
        broker.unmount(number as u32, lazy).map_err(|error| {
            let said = error.to_string();
            let problem = said.strip_prefix(&format!("{}: ", place.display())).unwrap_or(&said);
            Error::parameter(place.display(), problem)
        })
    }
}

/// Lets a process outside of the sandbox unmount these mounts, and lets this one unmount no others.
/// Call it before the broker is sealed, and once in a process.
///
/// # Errors
/// The broker has ended.
pub fn unmount_outside(broker: &Arc<Broker>, mounts: &[&Mount]) -> io::Result<()> {
    let places: Vec<_> = mounts.iter().map(|mount| mount.place()).collect();
    places.iter().try_for_each(|place| broker.add_mount(place))?;
    OUTSIDE.get_or_init(|| Outside { broker: Arc::downgrade(broker), places });
    Ok(())
}

/// Forks the process that unmounts for this one.
///
/// # Errors
/// See [`Broker::fork`].
pub fn fork_broker() -> io::Result<Broker> {
    Broker::fork_for_mount(|mount, lazy| unmount_here(mount, lazy).map_err(io::Error::other))
}

fn unmount_here(wanted: &MountedPlace, lazy: bool) -> Result<(), Error> {
    let MountedPlace { device, point } = wanted;
    let place = &real(point).map_err(|error| Error::io(point, "unmount it", error))?;
    // A folder above may have been replaced since the mount, by another user who owns it. Or a
    // mount of another program lies on this one.
    match mount_at(place)? {
        Some(mount) if mount.device == *device && mount.kind.starts_with("fuse") => {}
        Some(Mount { kind, .. }) => {
            let problem = format!("another file system ({kind}) is mounted here now");
            return Err(Error::parameter(place.display(), problem));
        }
        None => return Err(Error::parameter(place.display(), "nothing is mounted here")),
    }
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let flags = flags | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(place, flags) {
        Ok(()) => return Ok(()),
        // `fusermount3` unmounts what its user has mounted.
        Err(rustix::io::Errno::PERM) => {}
        Err(errno) => return Err(Error::io(place, "unmount it", errno)),
    }
    let output = Command::new(PROGRAM)
        .args(if lazy { &["-u", "-z", "--"][..] } else { &["-u", "--"] })
        .arg(place)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| not_started(place, error))?;
    if output.status.success() { Ok(()) } else { Err(refused(place, &output)) }
}

/// The path without links, except in its last part: the mount point itself is not touched, because
/// its process may be this one, or have ended.
pub(super) fn real(place: &Path) -> io::Result<PathBuf> {
    match (place.parent(), place.file_name()) {
        (Some(folder), Some(name)) if !folder.as_os_str().is_empty() => {
            Ok(folder.canonicalize()?.join(name))
        }
        (_, Some(name)) => Ok(std::env::current_dir()?.join(name)),
        _ => Ok(place.to_path_buf()),
    }
}

fn not_started(place: &Path, error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::parameter(
            place.display(),
            "the program fusermount3 is missing; it is in the package fuse3",
        ),
        _ => Error::io(place, "start fusermount3", error),
    }
}

/// The error message of `fusermount3`.
fn refused(place: &Path, output: &Output) -> Error {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("it said nothing");
    let said = said.strip_prefix("fusermount3: ").unwrap_or(said).trim_end();
    let remedy = if said.contains("user_allow_other") {
        "; a file that other users may read or write needs it, by its owner, group or mode"
    } else {
        ""
    };
    Error::parameter(place.display(), format!("fusermount3 refused: {said}{remedy}"))
}
