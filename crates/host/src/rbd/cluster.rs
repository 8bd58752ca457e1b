//! A connection to a cluster, shared by the images that have the same one.

use std::ffi::{CStr, CString, c_char};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::library::{ClusterHandle, Library, PoolHandle};
use super::name::RbdName;
use super::{c_text, errno_of};
use crate::process::with_signals_blocked;

/// Time limit for the first answer of a monitor. Ours: a user waits for it.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// Time for which a fenced client is refused. Ours: a year, because a suspended machine may wake up
/// after the default of one hour, with writes that it has not sent yet.
const FENCED_S: u32 = 31_536_000;

/// The properties that images of one connection share.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    conf: Option<String>,
    id: String,
    op_limit: Duration,
}

impl Key {
    fn of(name: &RbdName) -> Self {
        Self { conf: name.conf.clone(), id: name.id.clone(), op_limit: name.reconnect_delay }
    }
}

/// A connected cluster.
pub(super) struct Cluster {
    library: &'static Library,
    handle: ClusterHandle,
    /// Its addresses, as the cluster sees them: `[v2:10.0.0.1:0/17,v1:10.0.0.1:0/17]`.
    addresses: String,
}

/// Addresses of the connections of this process.
static ADDRESSES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Whether an owner of a lock is a connection of this process.
pub(super) fn is_ours(owner: &str) -> bool {
    let addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
    addresses.iter().any(|one| names(one, owner))
}

/// Whether addresses contain the address of a lock's owner, with or without its protocol.
fn names(addresses: &str, owner: &str) -> bool {
    let bare = |address: &str| {
        let address = address.trim_matches(['[', ']']);
        address.trim_start_matches("v1:").trim_start_matches("v2:").to_owned()
    };
    !owner.is_empty() && addresses.split(',').any(|one| bare(one) == bare(owner))
}

// SAFETY: librados may be called from any thread at the same time.
unsafe impl Send for Cluster {}
// SAFETY: librados may be called from any thread at the same time.
unsafe impl Sync for Cluster {}

/// Connections in use. Each has several threads and sockets, so images share them.
static CONNECTED: Mutex<Vec<(Key, Weak<Cluster>)>> = Mutex::new(Vec::new());

impl Cluster {
    /// The connection of an image, which is made if there is none.
    ///
    /// # Errors
    /// The library or the configuration is missing, or no monitor accepts this user.
    pub(super) fn of(name: &RbdName) -> Result<Arc<Self>, String> {
        let key = Key::of(name);
        let mut connected = CONNECTED.lock().unwrap_or_else(PoisonError::into_inner);
        connected.retain(|(_, cluster)| cluster.strong_count() > 0);
        let known = connected.iter().find(|(known, _)| *known == key);
        if let Some(cluster) = known.and_then(|(_, cluster)| cluster.upgrade()) {
            return Ok(cluster);
        }
        // Threads of librados inherit the mask of signals.
        let cluster = Arc::new(with_signals_blocked(|| Self::connect(&key, "true"))?);
        connected.push((key, Arc::downgrade(&cluster)));
        Ok(cluster)
    }

    /// A connection of one gateway: a client that is fenced loses all images of its connection.
    /// librbd never takes the image's lock by itself.
    ///
    /// # Errors
    /// See [`Cluster::of`].
    pub(super) fn alone(name: &RbdName) -> Result<Arc<Self>, String> {
        with_signals_blocked(|| Self::connect(&Key::of(name), "false")).map(Arc::new)
    }

    fn connect(key: &Key, takes_locks: &str) -> Result<Self, String> {
        let library = Library::get()?;
        let functions = &library.clusters;
        let mut handle: ClusterHandle = ptr::null_mut();
        let id = c_text(&key.id)?;
        // SAFETY: the pointers live until the call returns.
        let created = unsafe { (functions.rados_create)(&raw mut handle, id.as_ptr()) };
        errno_of(created).map_err(|error| format!("librados does not start: {error}"))?;
        // Its drop shuts the handle down, connected or not.
        let mut cluster = Self { library, handle, addresses: String::new() };
        let conf = key.conf.as_deref().map(c_text).transpose()?;
        let path = conf.as_ref().map_or(ptr::null(), |conf| conf.as_ptr());
        // SAFETY: the text lives until the call returns; without one the default files are read.
        let read = unsafe { (functions.rados_conf_read_file)(handle, path) };
        errno_of(read).map_err(|error| match &key.conf {
            Some(conf) => format!("cannot read the cluster's configuration {conf}: {error}"),
            None => format!(
                "cannot read the cluster's configuration: {error}; name it as in \
                 rbd:POOL/IMAGE?conf=/etc/ceph/ceph.conf"
            ),
        })?;
        let op_limit = key.op_limit.as_secs().to_string();
        let connect_limit = CONNECT_LIMIT.min(key.op_limit).as_secs().to_string();
        for (option, value) in [
            ("rbd_cache", "false"),
            ("rados_osd_op_timeout", op_limit.as_str()),
            ("rados_mon_op_timeout", op_limit.as_str()),
            ("client_mount_timeout", connect_limit.as_str()),
            // Otherwise a write or a flush takes the lock from another gateway without fencing it.
            ("rbd_auto_exclusive_lock_until_manual_request", takes_locks),
            ("rbd_blocklist_on_break_lock", "true"),
            // Monitors refuse the form in which librados 16 sends any other value.
            ("rbd_blocklist_expire_seconds", "0"),
            ("log_to_stderr", "false"),
            ("err_to_stderr", "false"),
        ] {
            let (option, value) = (c_text(option)?, c_text(value)?);
            // SAFETY: the texts live until the call returns.
            let set =
                unsafe { (functions.rados_conf_set)(handle, option.as_ptr(), value.as_ptr()) };
            errno_of(set).map_err(|error| format!("librados has no option {option:?}: {error}"))?;
        }
        // SAFETY: the handle is configured.
        let connected = unsafe { (functions.rados_connect)(handle) };
        errno_of(connected).map_err(|error| cluster_problem(&error, &key.id))?;
        cluster.learn_addresses();
        Ok(cluster)
    }

    fn learn_addresses(&mut self) {
        let functions = &self.library.clusters;
        let mut text: *mut c_char = ptr::null_mut();
        // SAFETY: the cluster is connected; the pointer lives until the call returns.
        let told = unsafe { (functions.rados_getaddrs)(self.handle, &raw mut text) };
        if told < 0 || text.is_null() {
            return;
        }
        // SAFETY: the call has made the text, which ends with a zero and is freed once.
        unsafe {
            self.addresses = CStr::from_ptr(text).to_string_lossy().into_owned();
            (functions.rados_buffer_free)(text);
        }
        let mut addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.push(self.addresses.clone());
    }

    /// Refuses the requests of a client for [`FENCED_S`], by its address.
    ///
    /// # Errors
    /// No monitor answers, or this user may not do that.
    fn blocklist(&self, address: &str) -> Result<(), String> {
        let command =
            format!(r#"{{"prefix": "osd blocklist", "blocklistop": "add", "addr": "{address}", "#,)
                + &format!(r#""expire": {FENCED_S}.0}}"#);
        let command = c_text(&command)?;
        let functions = &self.library.clusters;
        let mut commands = [command.as_ptr()];
        let no_input = ptr::null();
        let mut out: *mut c_char = ptr::null_mut();
        let mut status: *mut c_char = ptr::null_mut();
        let mut lens = [0usize; 2];
        let [out_len, status_len] = lens.each_mut();
        // SAFETY: the cluster is connected; the pointers live until the call returns.
        let done = errno_of(unsafe {
            (functions.rados_mon_command)(
                self.handle,
                commands.as_mut_ptr(),
                commands.len(),
                no_input,
                0,
                &raw mut out,
                out_len,
                &raw mut status,
                status_len,
            )
        });
        for text in [out, status] {
            // SAFETY: the call above has made the texts; null is allowed.
            unsafe { (functions.rados_buffer_free)(text) };
        }
        done.map_err(|error| format!("cannot keep {address} fenced: {error}"))
    }

    /// Opens a pool.
    pub(super) fn pool(self: &Arc<Self>, name: &RbdName) -> Result<Pool, String> {
        let functions = &self.library.clusters;
        let mut handle: PoolHandle = ptr::null_mut();
        let pool = c_text(&name.pool)?;
        // SAFETY: the cluster is connected; the pointers live until the call returns.
        let opened =
            unsafe { (functions.rados_ioctx_create)(self.handle, pool.as_ptr(), &raw mut handle) };
        errno_of(opened).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => format!("the cluster has no pool {}", name.pool),
            _ => format!("cannot open the pool {}: {error}", name.pool),
        })?;
        let pool = Pool { cluster: Arc::clone(self), handle };
        if !name.namespace.is_empty() {
            let namespace: CString = c_text(&name.namespace)?;
            // SAFETY: the pool is open; the text is copied.
            unsafe { (functions.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        }
        Ok(pool)
    }
}

fn cluster_problem(error: &std::io::Error, id: &str) -> String {
    match error.raw_os_error() {
        Some(libc::ETIMEDOUT) => {
            "no monitor of the cluster answers; check `mon_host` in its configuration".into()
        }
        Some(libc::EACCES | libc::EPERM | libc::EOPNOTSUPP | libc::ENOENT) => format!(
            "the cluster refuses client.{id}, or its key is not found ({error}); check `keyring` \
             in the configuration, or name another user with `id`"
        ),
        _ => format!("cannot connect to the cluster: {error}"),
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut addresses = ADDRESSES.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.retain(|one| *one != self.addresses);
        drop(addresses);
        // SAFETY: no pool of it is open, because each holds the cluster.
        unsafe { (self.library.clusters.rados_shutdown)(self.handle) };
    }
}

/// An open pool.
pub(super) struct Pool {
    cluster: Arc<Cluster>,
    pub(super) handle: PoolHandle,
}

// SAFETY: librados may be called from any thread at the same time.
unsafe impl Send for Pool {}
// SAFETY: librados may be called from any thread at the same time.
unsafe impl Sync for Pool {}

impl Pool {
    pub(super) fn library(&self) -> &'static Library {
        self.cluster.library
    }

    /// Refuses the requests of a client for a year, by its address.
    pub(super) fn blocklist(&self, address: &str) -> Result<(), String> {
        self.cluster.blocklist(address)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: no image of it is open, because each holds the pool.
        unsafe { (self.cluster.library.clusters.rados_ioctx_destroy)(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_of_a_lock_is_found_among_the_addresses_of_a_connection() {
        let ours = "[v2:10.0.0.1:0/17,v1:10.0.0.1:0/17]";
        assert!(names(ours, "10.0.0.1:0/17") && names(ours, "v1:10.0.0.1:0/17"));
        assert!(names("10.0.0.1:0/17", "10.0.0.1:0/17"));
        assert!(!names(ours, "10.0.0.1:0/1") && !names(ours, "10.0.0.1:0/171"));
        assert!(!names(ours, "") && !names("", ""));
    }
}
