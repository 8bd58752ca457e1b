//! An open image: its size, its lock, and one request at a time, before and beside the device's
//! thread.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use super::changes::{self, Changes, note_change};
use super::cluster::{self, Cluster, Pool};
use super::library::{
    FEATURE_EXCLUSIVE_LOCK, ImageHandle, ImageInfo, Images, LOCK_EXCLUSIVE, Library,
};
use super::name::RbdName;
use super::{c_text, device, errno_of};
use crate::access::Access;
use crate::device_thread::DeviceThread;
use crate::durability::Durability;
use crate::process::with_signals_blocked;
use crate::{Error, log};

/// Most owners of a lock that are asked for; an exclusive lock has one.
const OWNERS_MAX: usize = 8;

/// Metadata of an image that counts the takeovers by gateways.
const TAKEOVERS: &CStr = c"blockyard_takeovers";
/// Longest decimal number, with a zero.
const TAKEOVERS_LEN: usize = 21;
/// Attempts to take the lock from its owner: another client may take it between the two steps.
const TAKE_ATTEMPTS: usize = 3;

/// An image of a cluster.
pub(crate) struct Image {
    name: RbdName,
    access: Access,
    library: &'static Library,
    /// A gateway that was fenced opens the image again.
    opened: RwLock<Opened>,
    changes: Arc<Changes>,
    len_bytes: u64,
    stripe_period_bytes: u64,
    is_path: AtomicBool,
    /// Of a gateway: the number of takeovers before its own; `None`: it may not write yet.
    taken_after: Mutex<Option<u64>>,
    /// Last reported failure.
    said: Mutex<String>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Image").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // The thread that waits for changes finds no image any more.
        self.changes.tell();
    }
}

/// A handle of the library.
struct Opened {
    handle: ImageHandle,
    /// The watch of its changes, which librbd tells only for images that are open for writing.
    watch: Option<u64>,
    /// The argument of the watch.
    changes: Arc<Changes>,
    /// After the handle in drops.
    pool: Pool,
}

// SAFETY: librbd may be called from any thread at the same time.
unsafe impl Send for Opened {}
// SAFETY: librbd may be called from any thread at the same time.
unsafe impl Sync for Opened {}

impl Opened {
    /// Connects to the cluster and opens an image.
    fn new(name: &RbdName, access: Access, changes: &Arc<Changes>) -> Result<Self, String> {
        let is_gateway = is_gateway(name, access);
        let cluster = if is_gateway { Cluster::alone(name)? } else { Cluster::of(name)? };
        let pool = cluster.pool(name)?;
        let functions = &pool.library().images;
        let image_name = c_text(&name.image)?;
        let snapshot = name.snapshot.as_deref().map(c_text).transpose()?;
        let snapshot = snapshot.as_ref().map_or(ptr::null(), |snapshot| snapshot.as_ptr());
        let mut handle: ImageHandle = ptr::null_mut();
        let open = if access.writes() { functions.rbd_open } else { functions.rbd_open_read_only };
        let to = &raw mut handle;
        // SAFETY: the pool is open; the pointers live until the call returns.
        let opened = with_signals_blocked(|| unsafe {
            open(pool.handle, image_name.as_ptr(), to, snapshot)
        });
        errno_of(opened).map_err(|error| open_problem(&error, name))?;
        let mut opened = Self { handle, watch: None, changes: Arc::clone(changes), pool };
        if access.writes() {
            opened.watch().map_err(|error| format!("cannot watch the image: {error}"))?;
        }
        Ok(opened)
    }

    fn watch(&mut self) -> io::Result<()> {
        let mut watch = 0;
        let changes = Arc::as_ptr(&self.changes).cast_mut().cast();
        let functions = &self.pool.library().images;
        // SAFETY: the image is open, and `changes` lives until the watch has ended.
        errno_of(unsafe {
            (functions.rbd_update_watch)(self.handle, &raw mut watch, note_change, changes)
        })?;
        self.watch = Some(watch);
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let functions = &self.pool.library().images;
        if let Some(watch) = self.watch {
            // SAFETY: the image is open; the call waits for callbacks.
            unsafe { (functions.rbd_update_unwatch)(self.handle, watch) };
        }
        // The lock goes with the image.
        // SAFETY: the image is open and has no operation: the device's thread has ended, or has
        // none in flight.
        unsafe { (functions.rbd_close)(self.handle) };
    }
}

/// Whether a server of this name is one of several, of which one writes at a time.
fn is_gateway(name: &RbdName, access: Access) -> bool {
    access == Access::Shared && name.breaks_lock
}

impl Image {
    /// Connects to the cluster and opens the image. For [`Access::ReadWrite`] it takes the
    /// exclusive lock. With [`Access::Shared`] and `break-lock=true` it is a gateway, which takes
    /// the lock before its first write.
    ///
    /// # Errors
    /// The name is wrong, the cluster or the image cannot be reached, or the lock is another
    /// client's.
    pub(crate) fn open(text: &str, access: Access) -> Result<Self, Error> {
        let name = RbdName::parse(text).map_err(Error::Uri)?;
        let path = name.to_string();
        let problem = |problem| Error::Volume { path: path.clone(), problem };
        if access.writes() && name.snapshot.is_some() {
            return Err(problem("a snapshot cannot be written; open it with `read_only`".into()));
        }
        Self::opened(name, access).map_err(problem)
    }

    fn opened(name: RbdName, access: Access) -> Result<Self, String> {
        let changes = Changes::new().map_err(|error| format!("no descriptor is left: {error}"))?;
        let changes = Arc::new(changes);
        let opened = Opened::new(&name, access, &changes)?;
        let is_gateway = is_gateway(&name, access);
        let mut image = Self {
            name,
            access,
            library: opened.pool.library(),
            opened: RwLock::new(opened),
            changes,
            len_bytes: 0,
            stripe_period_bytes: 0,
            is_path: AtomicBool::new(false),
            taken_after: Mutex::default(),
            said: Mutex::default(),
        };
        let failed = |error: io::Error| format!("cannot look at the image: {error}");
        image.len_bytes = image.present_len_bytes().map_err(failed)?;
        image.stripe_period_bytes = image.stripe_period().map_err(failed)?;
        if access == Access::ReadWrite || is_gateway {
            image.require_lock_feature()?;
        }
        if access == Access::ReadWrite {
            with_signals_blocked(|| image.lock())?;
        }
        Ok(image)
    }

    /// Opens the image again, without the lock, after another gateway has fenced this one. No
    /// operation is in flight.
    ///
    /// # Errors
    /// The cluster or the image cannot be reached.
    pub(super) fn reopen(&self) -> Result<(), String> {
        let opened = Opened::new(&self.name, self.access, &self.changes)?;
        *self.taken_after.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = opened;
        // It may have grown meanwhile.
        self.changes.tell();
        Ok(())
    }

    fn functions(&self) -> &'static Images {
        &self.library().images
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    /// The handle, for calls of the device's thread, which alone replaces it.
    pub(super) fn handle(&self) -> ImageHandle {
        self.open_handle().handle
    }

    fn open_handle(&self) -> RwLockReadGuard<'_, Opened> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Name for messages.
    pub(super) fn name(&self) -> &RbdName {
        &self.name
    }

    /// Changes of its header.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Time limit of a request.
    pub(super) fn limit(&self) -> Duration {
        self.name.reconnect_delay
    }

    /// Length when the image was opened.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Bytes after which the same objects are used again: data that librbd's own encryption opens
    /// begin at a multiple of it.
    pub(crate) fn stripe_period_bytes(&self) -> u64 {
        self.stripe_period_bytes
    }

    /// The image is one of several ways to a disk.
    pub(crate) fn set_path(&self) {
        self.is_path.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_path(&self) -> bool {
        self.is_path.load(Ordering::Relaxed)
    }

    /// Whether another server of the image may go on in place of this one.
    pub(crate) fn is_gateway(&self) -> bool {
        is_gateway(&self.name, self.access)
    }

    /// The present length.
    pub(crate) fn present_len_bytes(&self) -> io::Result<u64> {
        let opened = self.open_handle();
        let mut len_bytes = 0;
        // SAFETY: the image is open; the pointer lives until the call returns.
        errno_of(unsafe { (self.functions().rbd_get_size)(opened.handle, &raw mut len_bytes) })?;
        Ok(len_bytes)
    }

    /// Whether the image is shorter now than when it was opened.
    pub(super) fn is_shorter(&self) -> bool {
        self.present_len_bytes().is_ok_and(|present| present < self.len_bytes)
    }

    fn stripe_period(&self) -> io::Result<u64> {
        let opened = self.open_handle();
        let mut info = ImageInfo::EMPTY;
        let len = size_of::<ImageInfo>();
        // SAFETY: the image is open; the pointers live until the calls return.
        unsafe {
            errno_of((self.functions().rbd_stat)(opened.handle, &raw mut info, len))?;
            let mut count = 1;
            errno_of((self.functions().rbd_get_stripe_count)(opened.handle, &raw mut count))?;
            Ok(info.object_bytes.saturating_mul(count.max(1)))
        }
    }

    /// Checks that the image can have a lock.
    fn require_lock_feature(&self) -> Result<(), String> {
        let opened = self.open_handle();
        let mut features = 0;
        // SAFETY: the image is open; the pointer lives until the call returns.
        let asked =
            unsafe { (self.functions().rbd_get_features)(opened.handle, &raw mut features) };
        errno_of(asked).map_err(|error| format!("cannot look at the image: {error}"))?;
        if features & FEATURE_EXCLUSIVE_LOCK == 0 {
            return Err(format!(
                "the image has no feature exclusive-lock, so another client could write it too; \
                 run `rbd feature enable {}/{} exclusive-lock`, or open it with `shared` if nobody \
                 else writes",
                self.name.pool, self.name.image
            ));
        }
        Ok(())
    }

    /// Takes the exclusive lock.
    fn lock(&self) -> Result<(), String> {
        let Err(error) = self.take_lock() else { return Ok(()) };
        if error.raw_os_error() != Some(libc::EROFS) {
            return Err(format!("cannot take the image's lock: {error}"));
        }
        Err(format!(
            "another client has the image's lock ({}); end it, or open the image read-only. If \
             that client is dead, add break-lock=true to the name, which fences it",
            self.owner().unwrap_or_default()
        ))
    }

    /// Number of times that a gateway has taken the image over so far.
    pub(super) fn takeovers(&self) -> io::Result<u64> {
        let mut value = [0; TAKEOVERS_LEN];
        let mut len = value.len();
        let opened = self.open_handle();
        // SAFETY: the image is open; `value` has `len` bytes.
        let got = errno_of(unsafe {
            let value = value.as_mut_ptr().cast();
            (self.functions().rbd_metadata_get)(
                opened.handle,
                TAKEOVERS.as_ptr(),
                value,
                &raw mut len,
            )
        });
        match got {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(0),
            outcome => outcome?,
        }
        let text = CStr::from_bytes_until_nul(&value).ok().and_then(|text| text.to_str().ok());
        text.and_then(|text| text.parse().ok()).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn set_takeovers(&self, count: u64) -> io::Result<()> {
        let value = c_text(&count.to_string()).map_err(io::Error::other)?;
        let opened = self.open_handle();
        // SAFETY: the image is open; the texts live until the call returns.
        errno_of(unsafe {
            (self.functions().rbd_metadata_set)(opened.handle, TAKEOVERS.as_ptr(), value.as_ptr())
        })
    }

    /// Lets a gateway write for a connection that was made after `seen` takeovers. The first such
    /// write takes the lock from its owner, which is fenced. `ESTALE`: another gateway has taken
    /// the image over since the connection was made, and the client may have sent the write again
    /// there.
    pub(super) fn admit(&self, seen: u64) -> io::Result<()> {
        let mut taken_after = self.taken_after.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match *taken_after {
            Some(before) => before,
            None => {
                self.take_over(seen)?;
                *taken_after.insert(seen)
            }
        };
        if seen < before { Err(stale()) } else { Ok(()) }
    }

    fn take_over(&self, seen: u64) -> io::Result<()> {
        // A late write fences nobody.
        if self.takeovers()? != seen {
            return Err(stale());
        }
        self.take_lock()?;
        // Another gateway may have come and gone before the lock was taken.
        if self.takeovers()? != seen {
            return Err(stale());
        }
        self.set_takeovers(seen + 1)
    }

    /// Takes the lock, with `break-lock` also from another client. `EROFS`: another one has it.
    fn take_lock(&self) -> io::Result<()> {
        let mut attempts = if self.name.breaks_lock { TAKE_ATTEMPTS } else { 1 };
        loop {
            if self.name.breaks_lock && !self.has_lock()? {
                match self.owner() {
                    Ok(owner) if cluster::is_ours(&owner) => {
                        let what = "this program has the image open already, as another volume";
                        return Err(io::Error::other(what));
                    }
                    Ok(owner) => {
                        self.say_once(&format!("fences {owner}, the owner of the lock"));
                        self.fence(&owner)?;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                    // librbd would fence a dead owner too, but only for an hour.
                    Err(error) => return Err(error),
                }
            }
            // Even an owner asks: from then on librbd passes the lock to nobody.
            let acquired = self.acquire();
            attempts -= 1;
            let is_anothers =
                acquired.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EROFS));
            if !is_anothers || attempts == 0 {
                return acquired;
            }
        }
    }

    fn has_lock(&self) -> io::Result<bool> {
        let mut is_owner: c_int = 0;
        let opened = self.open_handle();
        // SAFETY: the image is open; the pointer lives until the call returns.
        errno_of(unsafe {
            (self.functions().rbd_is_exclusive_lock_owner)(opened.handle, &raw mut is_owner)
        })?;
        Ok(is_owner != 0)
    }

    fn acquire(&self) -> io::Result<()> {
        let opened = self.open_handle();
        // SAFETY: the image is open.
        errno_of(unsafe { (self.functions().rbd_lock_acquire)(opened.handle, LOCK_EXCLUSIVE) })
    }

    /// The address of the lock's owner.
    fn owner(&self) -> io::Result<String> {
        let opened = self.open_handle();
        let mut mode: c_int = 0;
        let mut count = OWNERS_MAX;
        let mut owners: [*mut c_char; OWNERS_MAX] = [ptr::null_mut(); OWNERS_MAX];
        let functions = self.functions();
        // SAFETY: the image is open; `owners` has `count` places.
        errno_of(unsafe {
            let owners = owners.as_mut_ptr();
            (functions.rbd_lock_get_owners)(opened.handle, &raw mut mode, owners, &raw mut count)
        })?;
        let texts: Vec<String> = owners[..count.min(OWNERS_MAX)]
            .iter()
            .filter(|owner| !owner.is_null())
            // SAFETY: the library's texts end with a zero.
            .map(|owner| unsafe { CStr::from_ptr(*owner) }.to_string_lossy().into_owned())
            .collect();
        // SAFETY: these are the texts of the call above.
        unsafe { (functions.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        texts.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// Blocklists the owner's address, and takes its lock away. The cluster refuses its late writes
    /// from then on.
    fn fence(&self, owner: &str) -> io::Result<()> {
        let opened = self.open_handle();
        // librbd blocklists too, but only for an hour; a second entry does not prolong the first.
        opened.pool.blocklist(owner).map_err(io::Error::other)?;
        let owner = c_text(owner).map_err(io::Error::other)?;
        // SAFETY: the image is open; the text lives until the call returns.
        let broken = errno_of(unsafe {
            let functions = self.functions();
            (functions.rbd_lock_break)(opened.handle, LOCK_EXCLUSIVE, owner.as_ptr())
        });
        match broken {
            // It has ended meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }

    /// Reads; the range is in the image.
    pub(crate) fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        let opened = self.open_handle();
        let to = buf.as_mut_ptr().cast();
        let len = buf.len();
        // SAFETY: the image is open; the buffer lives until the call returns.
        let read = unsafe { (self.functions().rbd_read)(opened.handle, offset_bytes, len, to) };
        all_of(read, len)
    }

    /// Writes, and waits until all copies have it.
    pub(crate) fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let opened = self.open_handle();
        if self.is_gateway() {
            self.admit(self.takeovers()?)?;
        }
        let from = bytes.as_ptr().cast();
        let len = bytes.len();
        // SAFETY: the image is open; the bytes live until the call returns.
        let written =
            unsafe { (self.functions().rbd_write)(opened.handle, offset_bytes, len, from) };
        all_of(written, len)
    }

    /// Whether this gateway has written nothing since the image was opened, so that nothing is to
    /// be flushed. librbd would want the lock for a flush.
    pub(super) fn is_idle_gateway(&self) -> bool {
        let taken_after = self.taken_after.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_gateway() && taken_after.is_none()
    }

    /// Flushes: all completed writes are on stable storage when this returns.
    pub(crate) fn flush(&self) -> io::Result<()> {
        if self.is_idle_gateway() {
            return Ok(());
        }
        let opened = self.open_handle();
        // SAFETY: the image is open.
        errno_of(unsafe { (self.functions().rbd_flush)(opened.handle) })
    }

    /// The cluster's knowledge of a range, from its start on: lengths, and whether they read as
    /// zeroes. Objects that exist count as data. Empty if the cluster does not tell.
    pub(crate) fn runs_at(&self, offset_bytes: u64, len_bytes: u64) -> Vec<(u64, bool)> {
        let opened = self.open_handle();
        let len_bytes = len_bytes.min(self.len_bytes.saturating_sub(offset_bytes));
        let mut data: Vec<(u64, u64)> = Vec::new();
        let argument: *mut Vec<(u64, u64)> = &raw mut data;
        // SAFETY: the image is open; `data` lives until the call returns.
        let asked = errno_of(unsafe {
            (self.functions().rbd_diff_iterate2)(
                opened.handle,
                ptr::null(),
                offset_bytes,
                len_bytes,
                1,
                1,
                note_extent,
                argument.cast(),
            )
        });
        if asked.is_err() {
            return Vec::new();
        }
        runs(offset_bytes, len_bytes, data)
    }

    /// Starts the thread of the device, for the volume with this latch.
    ///
    /// # Errors
    /// The system has no more descriptors or threads.
    pub(crate) fn start(
        self: &Arc<Self>,
        number: usize,
        durability: Arc<Durability>,
    ) -> io::Result<DeviceThread> {
        device::start(number, Arc::clone(self), durability)
    }

    /// Calls a function when the image has grown, on a thread of its own, until the image is
    /// closed. librbd tells it only to those who may write.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(crate) fn on_growth(self: &Arc<Self>, call: impl Fn() + Send + 'static) -> io::Result<()> {
        let changes = Arc::clone(&self.changes);
        changes::on_growth(Arc::downgrade(self), changes, self.len_bytes, call)
    }

    /// Reports to the operator, unless it repeats the last report.
    pub(super) fn say_once(&self, what: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != what {
            what.clone_into(&mut said);
            let name = self.name.to_string();
            let fields = [("device", log::Value::Text(&name))];
            let event = log::Event::new(log::Kind::Remote).fields(&fields);
            event.say(format_args!("{name}: {what}"));
        }
    }
}

fn open_problem(error: &io::Error, name: &RbdName) -> String {
    match (error.raw_os_error(), &name.snapshot) {
        (Some(libc::ENOENT), None) => {
            format!("the pool {} has no image {}", name.pool, name.image)
        }
        (Some(libc::ENOENT), Some(snapshot)) => {
            format!("there is no image {}, or no snapshot {snapshot} of it", name.image)
        }
        (Some(libc::EROFS), _) => "the image is read-only; open it with `read_only`".into(),
        (Some(libc::EPERM | libc::EACCES), _) => {
            format!("client.{} may not open the image", name.id)
        }
        _ => format!("cannot open the image: {error}"),
    }
}

fn stale() -> io::Error {
    io::Error::from_raw_os_error(libc::ESTALE)
}

fn all_of(result: isize, len: usize) -> io::Result<()> {
    match usize::try_from(result) {
        Ok(moved) if moved == len => Ok(()),
        // The image was made shorter.
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::from_raw_os_error(result.unsigned_abs() as i32)),
    }
}

/// Adds an extent to the list behind `argument`.
///
/// # Safety
/// `argument` is a `Vec<(u64, u64)>` that nothing else uses.
unsafe extern "C" fn note_extent(
    offset_bytes: u64,
    len: usize,
    exists: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let data = unsafe { &mut *argument.cast::<Vec<(u64, u64)>>() };
    if exists != 0 {
        data.push((offset_bytes, offset_bytes + len as u64));
    }
    0
}

/// Alternating runs of zeroes and data in a range, from extents of data.
fn runs(offset_bytes: u64, len_bytes: u64, mut data: Vec<(u64, u64)>) -> Vec<(u64, bool)> {
    data.sort_unstable();
    let end = offset_bytes + len_bytes;
    let mut at = offset_bytes;
    let mut runs: Vec<(u64, bool)> = Vec::new();
    let mut add = |len: u64, zero: bool| match runs.last_mut() {
        _ if len == 0 => {}
        Some(last) if last.1 == zero => last.0 += len,
        _ => runs.push((len, zero)),
    };
    for (from, to) in data {
        let (from, to) = (from.clamp(at, end), to.clamp(at, end));
        add(from - at, true);
        add(to - from, false);
        at = to;
    }
    add(end - at, true);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_of_data_become_runs_of_the_whole_range() {
        assert_eq!(runs(0, 10, vec![]), [(10, true)]);
        assert_eq!(
            runs(4, 10, vec![(8, 12), (0, 6)]),
            [(2, false), (2, true), (4, false), (2, true)]
        );
        assert_eq!(runs(0, 10, vec![(0, 5), (5, 99)]), [(10, false)]);
        assert_eq!(runs(0, 0, vec![]), []);
    }
}
