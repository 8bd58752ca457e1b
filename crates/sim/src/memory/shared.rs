//! A handle to memory shared by several shards and the world that charges its costs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockyard_engine::pages::{Consumer, Effort, Page, PageSource};

use super::PhysicalMemory;

/// A handle to the memory of a machine.
#[derive(Clone, Debug)]
pub struct SharedMemory(Arc<Mutex<PhysicalMemory>>);

impl SharedMemory {
    /// The first handle; the others are clones.
    #[must_use]
    pub fn new(memory: PhysicalMemory) -> Self {
        Self(Arc::new(Mutex::new(memory)))
    }

    /// The memory itself: to charge costs, to squeeze it, to read its counters. Must not be held
    /// while a shard runs.
    pub fn lock(&self) -> MutexGuard<'_, PhysicalMemory> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageSource for SharedMemory {
    fn alloc(&mut self, order: u8, effort: Effort) -> Option<Page> {
        self.lock().alloc(order, effort)
    }

    fn alloc_bulk(&mut self, count: u32, effort: Effort, consumer: &mut Consumer<'_>) -> u32 {
        self.lock().alloc_bulk(count, effort, consumer)
    }

    fn is_shared(&self) -> bool {
        self.lock().is_shared()
    }

    fn free(&mut self, first: Page, order: u8) {
        self.lock().free(first, order);
    }
}
