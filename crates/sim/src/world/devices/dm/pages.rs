//! Pages for ciphertext from a modelled memory; the requesting context pays their cost.

use blockyard_engine::dm::bounce::Bounce;
use blockyard_engine::time::Nanos;

use super::super::super::config::PagesConfig;
use crate::cpu::CpuId;
use crate::memory::{MemoryCounters, PhysicalMemory, SharedMemory};

/// The memory of the mapped device.
pub(super) struct Pages {
    memory: SharedMemory,
    fragmented: Option<(u8, u32)>,
    usable_pages: Option<u32>,
    seed: u64,
    /// Time in calls of the allocator.
    pub(super) busy: Nanos,
    /// The unpaid part of it.
    deferred: Nanos,
}

impl Pages {
    pub(super) fn new(config: &PagesConfig, seed: u64) -> Self {
        let memory = SharedMemory::new(PhysicalMemory::new(config.memory.clone()));
        let PagesConfig { fragmented, usable_pages, .. } = *config;
        Self { memory, fragmented, usable_pages, seed, busy: Nanos(0), deferred: Nanos(0) }
    }

    /// The shard's source of pages.
    pub(super) fn bounce(&self, config: &PagesConfig) -> Bounce {
        let PagesConfig { allocator: spec, sizes, .. } = *config;
        Bounce::Pages { spec, sizes, source: Box::new(self.memory.clone()) }
    }

    /// A bio arrives on a CPU. The reserve is filled before other users fragment memory.
    pub(super) fn before_bio(&mut self, cpu: CpuId) {
        self.note_spent();
        let mut memory = self.memory.lock();
        memory.run_on(usize::from(cpu.0));
        if let Some((order, per_mille)) = self.fragmented.take() {
            memory.fragment(order, per_mille, self.seed);
            memory.take_spent();
        }
        if let Some(usable_pages) = self.usable_pages {
            memory.squeeze(usable_pages);
            memory.take_spent();
        }
    }

    pub(super) fn run_on(&self, cpu: CpuId) {
        self.memory.lock().run_on(usize::from(cpu.0));
    }

    pub(super) fn take_deferred(&mut self) -> Nanos {
        self.note_spent();
        std::mem::take(&mut self.deferred)
    }

    fn note_spent(&mut self) {
        let spent = self.memory.lock().take_spent();
        (self.busy, self.deferred) = (self.busy + spent, self.deferred + spent);
    }

    pub(super) fn counters(&self) -> MemoryCounters {
        *self.memory.lock().counters()
    }
}
