//! Memory for encrypted writes of a volume's shards: slots, or shared pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use blockyard_engine::dm::bounce::Bounce;
use blockyard_engine::dm::table::Table;
use blockyard_engine::pages::{BIO_PAGES_MAX, PAGE_BYTES, Sizes};

use super::SLOT_BYTES;
use crate::memory::BUDGET_BYTES;
use crate::pages::{BounceChoice, PagePool};

/// Division of a volume's bounce memory among its shards.
pub(crate) struct BounceBudget {
    choice: BounceChoice,
    /// Number of crypt lines that bounce, in all layers.
    lines: u32,
    /// Number of shards that take pages; they share a budget.
    pub(super) clients: AtomicU32,
}

impl BounceBudget {
    pub(crate) fn new(choice: BounceChoice, table: &Table) -> Self {
        let lines = table.layers().map(Table::bounce_users).sum();
        Self { choice, lines, clients: AtomicU32::new(0) }
    }

    /// Whether writes are encrypted into memory of the shards.
    pub(crate) fn is_used(&self) -> bool {
        self.lines > 0
    }

    /// Whether writes are encrypted into page lists.
    pub(super) fn has_pages(&self) -> bool {
        matches!(self.choice, BounceChoice::Pages(_))
    }

    /// The bounce memory of a shard, and its size in bytes.
    pub(super) fn bounce(&self, bounce_slots: usize) -> (Bounce, usize) {
        let slots = u32::try_from(bounce_slots).expect("a grant is small").max(self.lines);
        let BounceChoice::Pages(spec) = self.choice else {
            let bounce = Bounce::Slots { slots, slot_bytes: SLOT_BYTES as u32 };
            return (bounce, (slots as usize).max(1) * SLOT_BYTES);
        };
        let lines = self.lines.max(1);
        let slot_pages = SLOT_BYTES as u32 / PAGE_BYTES;
        let reserve_pages = (slots / lines).max(1).saturating_mul(slot_pages).min(BIO_PAGES_MAX);
        let limit_pages = self.page_limit(1).max(reserve_pages);
        let pool_bytes = (limit_pages * lines) as usize * PAGE_BYTES as usize;
        let source = Box::new(PagePool::of_bytes(pool_bytes));
        let sizes = Sizes { reserve_pages, limit_pages };
        (Bounce::Pages { spec, sizes, source }, pool_bytes)
    }

    /// Limit of pages for each crypt line of each of `clients` clients (RFD 4, 4).
    fn page_limit(&self, clients: u32) -> u32 {
        let all = (BUDGET_BYTES / 2 / PAGE_BYTES as usize) as u32;
        all / clients.max(1) / self.lines.max(1)
    }
}

/// A client's share of the volume's pages; the drop returns it.
pub(super) struct PageShare {
    budget: Arc<BounceBudget>,
    /// Number of clients when the limit was set.
    clients: u32,
}

impl PageShare {
    pub(super) fn join(budget: &Arc<BounceBudget>) -> Option<Self> {
        budget.has_pages().then(|| {
            budget.clients.fetch_add(1, Ordering::Relaxed);
            Self { budget: Arc::clone(budget), clients: 1 }
        })
    }

    /// The new limit, if the number of clients has changed.
    pub(super) fn changed(&mut self) -> Option<u32> {
        let clients = self.budget.clients.load(Ordering::Relaxed);
        let before = std::mem::replace(&mut self.clients, clients);
        (before != clients).then(|| self.budget.page_limit(clients))
    }
}

impl Drop for PageShare {
    fn drop(&mut self) {
        self.budget.clients.fetch_sub(1, Ordering::Relaxed);
    }
}
