//! The table of a volume. A longer one may take its place while the volume is served.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use blockyard_engine::dm::table::Table;

/// The table for new connections. An open connection keeps the table of its start, so a new table
/// may only be longer, with the same targets.
pub(crate) struct LoadedTable {
    table: RwLock<Arc<Table>>,
    /// Copy for readers of each request.
    len_bytes: AtomicU64,
}

impl LoadedTable {
    pub(crate) fn new(table: Table) -> Self {
        let len_bytes = AtomicU64::new(table.len().bytes());
        Self { table: RwLock::new(Arc::new(table)), len_bytes }
    }

    pub(crate) fn get(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Length of the table for new connections. A table that is taken afterwards has this length at
    /// least.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn replace(&self, longer: Table) {
        let len_bytes = longer.len().bytes();
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(longer);
        self.len_bytes.store(len_bytes, Ordering::Release);
    }
}
