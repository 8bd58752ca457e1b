//! An open volume.

use std::io::{self, Read, Write};
use std::iter;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use blockyard_engine::priority::Priority;
use blockyard_host::calls::Calls;
use blockyard_host::copy;
use blockyard_host::file::DeviceFile;
use blockyard_host::local::Client;
use blockyard_host::log::{Event, Kind};
use blockyard_host::volume as host;
use rustix::io::Errno;

use crate::error::{contained, contained_with, defect};
use crate::output::InUse;
use crate::recorder::{Recorded, Recorder, TraceFile};
use crate::resize::{Resized, SizeFrom, say_resized};
use crate::sandbox;
use crate::status::Activity;
use crate::{Backing, Cursor, Error, Options};

/// Limit of idle clients; with more concurrent threads, calls create new ones.
const IDLE_CLIENTS_MAX: usize = 16;

/// An open volume: its plaintext as a disk.
///
/// All methods take `&self` and may be called from any number of threads. A call takes any offset
/// and length; whole sectors cost least. Calls of different threads on overlapping ranges have no
/// order, as on a disk.
///
/// Later reads see a write that has returned, and it survives the end of the process. It survives a
/// power cut after a later [`Volume::flush`] has returned.
///
/// A defect of the library does not unwind into the caller: the call fails with
/// [`io::ErrorKind::Other`].
pub struct Volume {
    shared: Arc<Shared>,
    /// Idle clients.
    idle: Mutex<Vec<Client>>,
}

/// Parts that a volume shares with its servers.
pub(crate) struct Shared {
    pub(crate) host: Arc<host::Volume>,
    size_from: SizeFrom,
    /// The program's own targets that the volume may use.
    pub(crate) targets: Vec<&'static str>,
    /// The detached header. Its lock prevents its replacement and destruction while the volume is
    /// open.
    _header: Option<DeviceFile>,
    /// Growth of the image below is followed.
    follows_growth: Once,
    /// The recording of the volume, if any.
    recorder: Mutex<Option<Recorder>>,
}

impl Shared {
    /// Starts a recording; replaces one that has ended.
    pub(crate) fn record(&self, export: &str, to: &TraceFile, in_use: &InUse) -> Result<(), Error> {
        contained(|| {
            let mut recorder = self.recorder();
            if recorder.as_ref().is_some_and(Recorder::has_ended) {
                *recorder = None;
            }
            let started = Recorder::start(&self.host, export, to, in_use);
            *recorder = Some(started.map_err(|error| sandbox::explained(&to.path, error))?);
            Ok(())
        })
    }

    /// Stops the recording; `None` without one.
    pub(crate) fn stop_recording(&self) -> Result<Option<Recorded>, Error> {
        contained(|| {
            let recorder = self.recorder().take();
            recorder.map(Recorder::stop).transpose()
        })
    }

    /// Follows the header and the file.
    pub(crate) fn resize(&self) -> Result<Resized, Error> {
        contained(|| self.size_from.follow(&self.host))
    }

    /// From now on, lets the volume grow with an image of a cluster, as the export of this name.
    pub(crate) fn follow_growth(self: &Arc<Self>, export: &str) {
        if self.followed().is_empty() {
            return;
        }
        self.follows_growth.call_once(|| {
            let volume = Arc::downgrade(self);
            let name = export.to_owned();
            let follow = move || {
                let Some(volume) = volume.upgrade() else { return };
                let event = |kind| Event::new(kind).export(&name);
                match volume.resize() {
                    Ok(resized) if resized.to_bytes > resized.from_bytes => {
                        say_resized(event(Kind::Resized), &name, &resized);
                    }
                    Ok(_) => {}
                    Err(error) => event(Kind::Remote).say(format_args!(
                        "the image of export {name:?} has grown, and the volume does not follow: \
                         {error}"
                    )),
                }
            };
            if let Err(error) = self.host.on_growth(follow) {
                Event::new(Kind::Remote).export(export).say(format_args!(
                    "growth of the image of export {export:?} will not be noticed: {error}"
                ));
            }
        });
    }

    /// The files that are opened again to follow them.
    pub(crate) fn followed(&self) -> Vec<&Path> {
        self.size_from.paths()
    }

    fn recorder(&self) -> MutexGuard<'_, Option<Recorder>> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volume {
    /// Options for opening a volume.
    #[must_use]
    pub fn options() -> Options {
        Options::default()
    }

    /// A volume that keeps its size, for this reason.
    pub(crate) fn of_fixed_size(host: host::Volume, reason: &'static str) -> Self {
        Self::with(host, SizeFrom::Fixed(reason), Vec::new(), None)
    }

    /// A volume that may use these targets of the program, with its detached header.
    pub(crate) fn with(
        host: host::Volume,
        size_from: SizeFrom,
        targets: Vec<&'static str>,
        header: Option<DeviceFile>,
    ) -> Self {
        let host = Arc::new(host);
        let shared = Shared {
            host,
            size_from,
            targets,
            _header: header,
            follows_growth: Once::new(),
            recorder: Mutex::default(),
        };
        Self { shared: Arc::new(shared), idle: Mutex::default() }
    }

    /// Size of the disk in bytes. It changes in [`Volume::resize`]. While the volume is served, it
    /// also changes with the image of a Ceph cluster below.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a volume has a sector at least")]
    pub fn len(&self) -> u64 {
        self.shared.host.size_bytes()
    }

    /// Size of an encryption sector in bytes, 512 to 4096: the unit of least cost.
    #[must_use]
    pub fn sector_size(&self) -> u32 {
        self.shared.host.sector_size_bytes()
    }

    /// One-line description: the length, and the cipher with the sizes of its key and sectors.
    #[must_use]
    pub fn describe(&self) -> String {
        self.shared.host.describe()
    }

    /// Extends the volume to the size that its header and its file or device have now. Calls from
    /// then on see the new size. Connections that clients of a server have open, and values of
    /// [`Volume::client`], keep the old size.
    ///
    /// # Errors
    /// The volume would shrink; its size is fixed by a table, an option or a foreign header; it is
    /// an NBD export; or its file was replaced.
    pub fn resize(&self) -> Result<Resized, Error> {
        self.shared.resize()
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.shared.host.read_only()
    }

    /// Whether [`Volume::discard`] reaches the file or device below.
    #[must_use]
    pub fn can_discard(&self) -> bool {
        self.shared.host.can_discard()
    }

    /// Reads from `offset` on; returns the number of bytes, which is less than the buffer only at
    /// the end of the volume.
    ///
    /// # Errors
    /// The error of the system or the remote server.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.room(buffer.len(), offset);
        if len > 0 {
            self.call(|calls| calls.read(&mut buffer[..len], offset))?;
        }
        Ok(len)
    }

    /// Fills the buffer from `offset` on.
    ///
    /// # Errors
    /// See [`Volume::read_at`]; [`io::ErrorKind::UnexpectedEof`] if the volume ends earlier.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buffer, offset)? {
            len if len == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Writes from `offset` on; returns the number of bytes, which is less than `data` only at the
    /// end of the volume. A failed call may have written a part.
    ///
    /// # Errors
    /// [`io::ErrorKind::ReadOnlyFilesystem`] on a read-only volume, [`io::ErrorKind::StorageFull`]
    /// at the end of the volume, otherwise the error of the system or the remote server.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        self.check_writable()?;
        let len = self.room(data.len(), offset);
        if len == 0 && !data.is_empty() {
            return Err(Errno::NOSPC.into());
        }
        if len > 0 {
            self.call(|calls| calls.write(&data[..len], offset))?;
        }
        Ok(len)
    }

    /// Writes all of `data` from `offset` on, or nothing if it does not fit.
    ///
    /// # Errors
    /// See [`Volume::write_at`].
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.check_writable()?;
        if self.room(data.len(), offset) < data.len() {
            return Err(Errno::NOSPC.into());
        }
        self.write_at(data, offset).map(|_| ())
    }

    /// Puts all writes that have returned on stable storage.
    ///
    /// # Errors
    /// A device below fails: acknowledged writes may be lost, and all later flushes fail too.
    pub fn flush(&self) -> io::Result<()> {
        self.call(|calls| calls.flush())
    }

    /// Makes a range read as zeroes. May free the storage below.
    ///
    /// # Errors
    /// See [`Volume::write_all_at`].
    pub fn zero(&self, range: Range<u64>) -> io::Result<()> {
        self.change(&range, |calls| calls.zero(&range))
    }

    /// Discards a range: its content is undefined afterwards. Partial sectors at its ends keep
    /// their content.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] unless [`Volume::can_discard`]; otherwise see
    /// [`Volume::write_all_at`].
    pub fn discard(&self, range: Range<u64>) -> io::Result<()> {
        if !self.can_discard() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.change(&range, |calls| calls.discard(&range))
    }

    /// Copies the plaintext of the whole volume to a writer, with many reads in flight, and returns
    /// its length. `progress` receives the number of completed bytes.
    ///
    /// ```
    /// use blockyard::Volume;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let file = tempfile::NamedTempFile::new()?;
    /// # file.as_file().set_len(1 << 20)?;
    /// # let path = file.path();
    /// let volume = Volume::options().raw().open(path)?;
    /// let mut copy = Vec::new();
    /// assert_eq!(volume.copy_out(&mut copy, &mut |_| ())?, volume.len());
    /// # assert_eq!(copy.len() as u64, volume.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Writer`] if the writer fails, [`Error::Host`] if the volume fails.
    pub fn copy_out(
        &self,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        use blockyard_host::Error as Host;
        self.contained(|| match copy::dump(&self.shared.host, to, progress) {
            Err(Host::Output(error)) => Err(Error::Writer(error)),
            result => Ok(result?),
        })
    }

    /// Fills the volume from its start with all data of a reader, with many writes in flight, and
    /// flushes it. Returns the length. `progress` receives the number of completed bytes. The rest
    /// of the volume is unchanged.
    ///
    /// ```
    /// use blockyard::Volume;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let file = tempfile::NamedTempFile::new()?;
    /// # file.as_file().set_len(1 << 20)?;
    /// # let path = file.path();
    /// let volume = Volume::options().raw().open(path)?;
    /// volume.copy_in(&mut &b"plaintext"[..], &mut |_| ())?;
    /// let mut first = [0; 9];
    /// volume.read_exact_at(&mut first, 0)?;
    /// assert_eq!(&first, b"plaintext");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The volume is read-only or fails, or the reader fails or has too much data. The copied part
    /// remains.
    pub fn copy_in(
        &self,
        from: &mut dyn Read,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        self.contained(|| Ok(copy::load(&self.shared.host, from, progress)?))
    }

    /// The files, devices and exports below the volume, in the order of its table.
    #[must_use]
    pub fn backings(&self) -> Vec<Backing> {
        self.shared.host.backings()
    }

    /// A position on the volume, for [`std::io::Read`], [`std::io::Write`] and [`std::io::Seek`].
    #[must_use]
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self)
    }

    /// A separate queue with many requests in flight. It belongs to one thread at a time.
    ///
    /// # Errors
    /// The system has not enough memory or descriptors.
    pub fn client(&self, priority: Priority) -> Result<Client, Error> {
        self.contained(|| Ok(Client::new(&self.shared.host, priority)?))
    }

    /// The elevator of the devices below, with its tunables; `none` without one.
    #[must_use]
    pub fn elevator(&self) -> String {
        self.shared.host.elevator()
    }

    /// Minimum block in bytes for NBD clients.
    #[must_use]
    pub fn minimum_block(&self) -> u32 {
        self.shared.host.minimum_block_bytes()
    }

    /// Times of requests, use of threads, and the resulting limit, since the volume was opened.
    /// Numbers of requests are estimated from the samples.
    #[must_use]
    pub fn activity(&self) -> Activity {
        Activity::estimated(&self.shared.host)
    }

    /// Whether connections to the volume use rings of the kernel.
    #[must_use]
    pub fn uses_rings(&self) -> bool {
        self.shared.host.uses_rings()
    }

    /// Records the I/O of the volume into a trace, with `export` as the name of the volume. The
    /// recording ends with [`Volume::stop_recording`], at its limit, or with the volume.
    ///
    /// # Errors
    /// A recording is running, or the file cannot be written or is one of `in_use`.
    pub fn record(&self, export: &str, to: &TraceFile, in_use: &InUse) -> Result<(), Error> {
        self.shared.record(export, to, in_use)
    }

    /// Stops the recording; `None` without one.
    ///
    /// # Errors
    /// The trace could not be written completely.
    pub fn stop_recording(&self) -> Result<Option<Recorded>, Error> {
        self.shared.stop_recording()
    }

    /// Turns a panic into an error.
    pub(crate) fn contained<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        contained_with(&self.shared.targets, call)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Number of the `len` bytes before the end of the volume.
    fn room(&self, len: usize, offset: u64) -> usize {
        let left = self.len().saturating_sub(offset);
        usize::try_from(left).map_or(len, |left| len.min(left))
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.is_read_only() { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    fn change(
        &self,
        range: &Range<u64>,
        change: impl FnOnce(Calls<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check_writable()?;
        if range.start > range.end {
            return Err(Errno::INVAL.into());
        }
        if range.end > self.len() {
            return Err(Errno::NOSPC.into());
        }
        if range.is_empty() { Ok(()) } else { self.call(change) }
    }

    /// Runs a call with an idle client, which it uses exclusively.
    fn call(&self, call: impl FnOnce(Calls<'_>) -> io::Result<()>) -> io::Result<()> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let size = self.len();
        // A client from before a resize ends where the volume ended then.
        let kept = iter::from_fn(|| idle().pop()).find(|client| client.size_bytes() >= size);
        let mut client = match kept {
            Some(client) => client,
            None => self.client(Priority::default()).map_err(io::Error::other)?,
        };
        let sector = self.sector_size();
        let outcome =
            catch_unwind(AssertUnwindSafe(|| call(Calls::new(&mut client, sector, size))));
        let Ok(outcome) = outcome else {
            return Err(io::Error::other(defect(&self.shared.targets)));
        };
        let mut idle = idle();
        if idle.len() < IDLE_CLIENTS_MAX {
            idle.push(client);
        }
        outcome
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("is", &self.shared.host.describe()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use blockyard_host::file::DeviceFile;
    use blockyard_host::volume::VolumeOptions;

    use super::*;

    #[test]
    fn panic_in_a_call_is_an_error_and_the_next_call_works() {
        let file = DeviceFile::in_memory(1 << 20).unwrap();
        let volume = host::Volume::from_file(file, &VolumeOptions::default()).unwrap();
        let volume = Volume::of_fixed_size(volume, "it is in memory");
        volume.write_all_at(&[7; 600], 100).unwrap();
        let failed = volume.call(|_| panic!("a defect")).unwrap_err();
        assert!(failed.to_string().contains("a defect in blockyard"), "{failed}");
        let mut read = [0; 600];
        volume.read_exact_at(&mut read, 100).unwrap();
        assert_eq!(read, [7; 600]);
    }
}
