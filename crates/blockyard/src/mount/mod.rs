//! A volume as a file, and as the files in it, by FUSE and without root.
//!
//! ```text
//! mount_file:   TARGET is the plaintext as one file           (host/fuse)
//! mount_files:  a private directory has that file; the driver of its file system, a program of its
//!               own, mounts it on TARGET                      (drivers.rs, driver.rs, fat/)
//! Mounted::run: until the mount, the driver, a signal or `umount` ends it; then in order: driver,
//!               file, flush                                   (door.rs, unmount.rs)
//! ```

mod door;
mod driver;
mod drivers;
mod fat;
mod places;
mod unmount;

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_host::broker::Broker;
use blockyard_host::fuse::{self, FileOptions, LastUse, Mounts, Target};
use blockyard_host::process::StopSignal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{getegid, geteuid};

use crate::error::contained;
use crate::part::Part;
use crate::sandbox::{self, Needs, Place, Reach};
use crate::{Error, Volume};

use door::{Asker, Door};
use driver::{Driver, Owner};
use places::PrivateDirectory;

pub use blockyard_host::fuse::LastUse as MountUse;
pub use drivers::FAT_DRIVER;
pub use fat::{FatOptions, drive_fat};
pub use unmount::unmount;

/// More threads gain nothing on any present machine by default.
const THREADS_USUAL_MAX: usize = 8;

/// Options of a mount.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Owner of the files; the default is the user of this process.
    pub uid: Option<u32>,
    /// Group of the files; the default is that of this process.
    pub gid: Option<u32>,
    /// Permissions that the files do not have; the default is 077: only the owner has access.
    pub umask: Option<u32>,
    /// Threads that serve the plaintext as a file.
    pub threads: Option<NonZeroUsize>,
    /// Name of the file in a directory, and in the list of mounts; the default is `volume`.
    pub name: Option<String>,
    /// Mounts this partition of the plaintext only: its number, UUID or name.
    pub inner_partition: Option<String>,
    /// The process that [`blockyard_host::fuse::fork_broker`] has made. It starts the driver, and
    /// [`Mounted::limit`] needs it. Without it, this process starts the driver.
    pub broker: Option<Arc<Broker>>,
}

/// A mounted volume. Dropping it ends the mount as [`Mounted::end`] does.
pub struct Mounted {
    /// `None` after the end.
    parts: Option<Parts>,
    place: PathBuf,
    shown: String,
    /// The process outside of the sandbox.
    broker: Option<Arc<Broker>>,
}

struct Parts {
    door: Door,
    driver: Option<Driver>,
    file: fuse::FileMount,
    /// The directory of the file below a driver. The last part to go.
    private: Option<PrivateDirectory>,
}

/// The reason of an end.
enum Cause {
    Signal,
    /// A program asks for it, or for the end even if the mount is in use.
    Asked(Asker),
    /// The driver or the broker has ended, or the file was unmounted.
    PartEnded,
}

impl Volume {
    /// Mounts the plaintext as one file: in an empty directory, or over a regular file, which may
    /// be the image of the volume. Only this user has access, unless the options say otherwise.
    ///
    /// # Errors
    /// The target is unsuitable, FUSE is not available, or there is no such partition.
    pub fn mount_file(&self, target: &Path, options: &MountOptions) -> Result<Mounted, Error> {
        contained(|| {
            let target = Target::check(target)?;
            let place = target.path().to_path_buf();
            let range = Part::find(self, options.inner_partition.as_deref())?.range;
            let file = self.file_mount(target, options, range, false)?;
            let shown = file.path().display().to_string();
            match Door::open(&place) {
                Ok(door) => {
                    let parts = Parts { door, driver: None, file, private: None };
                    Ok(Mounted::new(parts, place, shown, options))
                }
                Err(error) => {
                    // Nothing was written yet.
                    let _ = file.end();
                    Err(error)
                }
            }
        })
    }

    /// Mounts the files in the volume on an empty directory, by the driver of their file system. A
    /// signal of `stop` ends the wait for the driver. The driver ends with the calling thread.
    ///
    /// # Errors
    /// See [`Volume::mount_file`]; or the file system is unknown, its driver is missing or fails,
    /// or it has no such option.
    pub fn mount_files(
        &self,
        directory: &Path,
        options: &MountOptions,
        stop: &StopSignal,
    ) -> Result<Mounted, Error> {
        contained(|| {
            let target = match Target::check(directory)? {
                Target::Directory(path) => path,
                Target::File(path) => {
                    let problem = "the files of a volume need a directory; to mount the plaintext \
                                   as one file over this one, use `as_file`";
                    return Err(Error::mount(&path, problem));
                }
            };
            let part = Part::find(self, options.inner_partition.as_deref())?;
            let system = part.file_system()?;
            let (driver, program) = drivers::find(system, self)?;
            let owner = Owner { uid: options.uid, gid: options.gid, umask: options.umask };
            driver::check_owner(system, driver, self, owner)?;
            places::sweep();
            let private = PrivateDirectory::new(&target)?;
            let below = Target::check(&private.volume())?;
            let for_root = drivers::runs_as_root(&program);
            let own = MountOptions { uid: None, gid: None, umask: None, ..options.clone() };
            let file = self
                .file_mount(below, &own, part.range, for_root)
                .map_err(|error| if for_root { needs_others(&target, &program) } else { error })?;
            let order = driver::Order {
                driver,
                program: &program,
                file: &file.path(),
                directory: &target,
                said: &private.said(),
                read_only: self.is_read_only(),
                owner,
                broker: options.broker.as_ref(),
            };
            match driven(&order, stop) {
                Ok((driver, door)) => {
                    let shown =
                        format!("{} ({} by {})", target.display(), system.name(), driver.name());
                    let parts = Parts { door, driver: Some(driver), file, private: Some(private) };
                    Ok(Mounted::new(parts, target, shown, options))
                }
                Err(error) => {
                    // The error of the driver says more.
                    let _ = file.end();
                    Err(error)
                }
            }
        })
    }

    fn file_mount(
        &self,
        target: Target,
        options: &MountOptions,
        range: Range<u64>,
        for_root: bool,
    ) -> Result<fuse::FileMount, Error> {
        let own = (geteuid().as_raw(), getegid().as_raw());
        let uid = options.uid.unwrap_or(own.0);
        let gid = options.gid.unwrap_or(own.1);
        let umask = options.umask.unwrap_or(0o077);
        let cpus = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = options.threads.map_or(cpus.min(THREADS_USUAL_MAX), NonZeroUsize::get);
        let options = FileOptions {
            name: options.name.clone().unwrap_or_else(|| "volume".into()),
            uid,
            gid,
            umask,
            threads,
            range,
            others: for_root || (uid, gid) != own || umask & 0o077 != 0o077,
        };
        Ok(fuse::FileMount::new(&self.shared().host, target, &options)?)
    }
}

/// Starts the driver, and listens.
fn driven(order: &driver::Order<'_>, stop: &StopSignal) -> Result<(Driver, Door), Error> {
    let driver = Driver::start(order, stop)?;
    match Door::open(order.directory) {
        Ok(door) => Ok((driver, door)),
        Err(error) => {
            let _ = driver.end();
            Err(error)
        }
    }
}

/// The mount had to end, because its process may not do all in its sandbox.
fn without_broker(place: &Path) -> Error {
    let problem = format!(
        "the process outside of the sandbox has ended, and the mount with it; the volume is \
         flushed. `blockyard umount {}` removes what is left",
        place.display()
    );
    Error::mount(place, problem)
}

/// The plaintext cannot be shown to a driver that runs as root.
fn needs_others(target: &Path, program: &Path) -> Error {
    let problem = format!(
        "the driver {} runs as root, and root may read a mount of this user only if /etc/fuse.conf \
         has the line `user_allow_other`, which root can add",
        program.display()
    );
    Error::mount(target, problem)
}

impl Mounted {
    fn new(parts: Parts, place: PathBuf, shown: String, options: &MountOptions) -> Self {
        let broker = options.broker.clone();
        Self { parts: Some(parts), place, shown, broker }
    }

    /// The mount point.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Limits this process to what the mount needs until its end. [`MountOptions::broker`] does
    /// the rest: it unmounts, ends the driver, and removes the files of the mount.
    ///
    /// # Errors
    /// The kernel refuses, the broker has ended, or there is none. The process may be limited in
    /// part.
    pub fn limit(&mut self, volume: &Volume) -> Result<sandbox::Parts, Error> {
        let failed = |error| Error::file(Path::new("the process outside of the sandbox"), error);
        let broker = self.broker.as_ref().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let parts = self.parts.as_mut().expect("it has not ended");
        let mut needs = Needs::of_process();
        sandbox::add_volume(&mut needs, volume, false)?;
        // Its threads may be about to clone their descriptors.
        needs.add("/dev/fuse", Reach::Everything);
        needs.rings = if volume.uses_rings() { parts.file.threads() } else { 0 };
        let mut files = vec![parts.door.path().to_path_buf()];
        if let Some(private) = &parts.private {
            needs.places.push(Place::new(private.path(), Reach::Everything));
            files.push(private.path().to_path_buf());
        }
        let mounts = [parts.door.mount(), parts.file.mount()];
        fuse::unmount_outside(broker, &mounts).map_err(failed)?;
        let driver = parts.driver.as_ref().map(Driver::pidfd);
        broker.keep(&files).and_then(|()| broker.seal(driver)).map_err(failed)?;
        if let Some(driver) = &mut parts.driver {
            driver.signal_outside();
        }
        sandbox::start(&needs)
    }

    /// Waits until the mount is ended: by the signal, by [`unmount`], by another program that
    /// unmounts it, or by the death of its driver or of the broker. Ends the rest in order then.
    ///
    /// # Errors
    /// The flush failed, now or before: acknowledged writes may be lost. Or the driver failed, or
    /// the broker has ended early.
    pub fn run(mut self, stop: &StopSignal) -> Result<LastUse, Error> {
        contained(|| {
            let parts = self.parts.as_ref().expect("it has not ended");
            let cause = parts.wait(stop, &self.place, self.broker.as_deref())?;
            if matches!(cause, Cause::Signal) {
                stop.take();
                // Another signal ends the process at once.
                stop.restore_default();
            }
            let had_broker = self.broker.as_ref().is_none_or(|broker| !broker.has_ended());
            let mut outcome = self.finish();
            if !had_broker {
                outcome = outcome.and_then(|_| Err(without_broker(&self.place)));
            }
            if let Cause::Asked(asker) = cause {
                asker.tell(&outcome);
            }
            outcome
        })
    }

    /// Ends the mount: unmounts it, even if programs use it, and flushes the volume.
    ///
    /// # Errors
    /// See [`Mounted::run`].
    pub fn end(mut self) -> Result<LastUse, Error> {
        contained(|| self.finish())
    }

    fn finish(&mut self) -> Result<LastUse, Error> {
        let Some(Parts { door, driver, file, private }) = self.parts.take() else {
            return Ok(LastUse::Closed);
        };
        // A later umount must find no door to a mount that is about to go.
        drop(door);
        let driven = driver.map_or(Ok(()), Driver::end);
        let served = file.end();
        drop(private);
        // Files that the sandbox does not let this process remove.
        let _ = self.broker.as_ref().map(|broker| broker.remove());
        let last_use = served?;
        driven?;
        Ok(last_use)
    }
}

impl Parts {
    fn wait(
        &self,
        stop: &StopSignal,
        place: &Path,
        broker: Option<&Broker>,
    ) -> Result<Cause, Error> {
        let wrong = |error: rustix::io::Errno| Error::mount(place, error.to_string());
        loop {
            let mut fds = vec![
                PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.file.ended(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.door.as_fd(), PollFlags::IN),
            ];
            let driver = self.driver.as_ref().map(Driver::as_fd);
            fds.extend(driver.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let broker = broker.map(Broker::end);
            fds.extend(broker.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::empty())));
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(wrong(errno)),
            }
            let is_ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if is_ready[0] {
                return Ok(Cause::Signal);
            }
            // The driver, and the broker: without it, a later end would be without order.
            if is_ready[1] || is_ready[3..].contains(&true) {
                return Ok(Cause::PartEnded);
            }
            if is_ready[2]
                && let Some(asker) = self.door.asker()
            {
                return Ok(Cause::Asked(asker));
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl fmt::Display for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The topmost mount at a canonical path.
fn mount_at(place: &Path) -> Result<Option<fuse::Mount>, Error> {
    let mount = Mounts::open().and_then(|mut mounts| mounts.at(place));
    mount.map_err(|error| Error::file(Path::new("/proc/thread-self/mountinfo"), error))
}
