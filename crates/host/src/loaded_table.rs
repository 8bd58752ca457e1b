//! The table of a volume. A longer one may take its place while the volume is served.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use blockyard_engine::dm::table::Table;
use rustix::event::{EventfdFlags, eventfd};

/// The table for new connections. An open connection keeps the table of its start, so a new table
/// may only be longer, with the same targets.
pub(crate) struct LoadedTable {
    table: RwLock<Arc<Table>>,
    /// Copy for readers of each request.
    len_bytes: AtomicU64,
    watches: Mutex<Vec<Weak<OwnedFd>>>,
}

impl LoadedTable {
    pub(crate) fn new(table: Table) -> Self {
        let len_bytes = AtomicU64::new(table.len().bytes());
        Self { table: RwLock::new(Arc::new(table)), len_bytes, watches: Mutex::default() }
    }

    pub(crate) fn get(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Length of the table for new connections. A table that is taken afterwards has this length at
    /// least.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    /// A descriptor that becomes readable whenever the table is replaced.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn watch(&self) -> io::Result<Arc<OwnedFd>> {
        let watch = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(&watch));
        Ok(watch)
    }

    pub(crate) fn replace(&self, longer: Table) {
        let len_bytes = longer.len().bytes();
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(longer);
        self.len_bytes.store(len_bytes, Ordering::Release);
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        for watch in watches.iter().filter_map(Weak::upgrade) {
            let _ = rustix::io::write(&*watch, &1u64.to_ne_bytes());
        }
    }
}
