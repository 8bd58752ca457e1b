//! A mapped device of the world: the engine's shard with a crypt target, its workers and its
//! writing thread.
//!
//! ```text
//!   task ── bio, cut ──> shard ── SQEs ──> whoever executes them:
//!      │                   ^  ^              cipher inline ─ runs as long as it takes
//!      │                CQEs  └ ended bios   cipher on a worker ─ pool ─ wakes one
//!      v                   │                 write, read ─ queue ─ may have to wait for a request
//!   worker, writing thread ┴─ interrupt      wake ─ the writing thread takes the batch
//! ```
//! A *context* executes SQEs, each at the end of a burst ([`super::super::actions`]): a thread,
//! which waits where it has to, or an interrupt, which does not. The shard's answer is executed
//! next.

mod adaptive;
mod execute;
mod pages;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Done, IoContext, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::bounce::Bounce;
use blockyard_engine::dm::crypt::CryptSpec;
use blockyard_engine::dm::crypt::pipeline::Choice;
use blockyard_engine::dm::table::{Table, TableExtent};
use blockyard_engine::shard::Shard;
use blockyard_engine::slab::Slab;
use blockyard_engine::sq::{CipherId, Cqe, DevId, Sqe, Token};
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use crate::cpu::{CpuId, ThreadId, Topology};

use super::super::actions::{Step, Via};
use super::super::causes::CryptCauses;
use super::super::config::{Config, Cryptd, MappedConfig};
use super::super::pools::Pools;
use super::super::threads::Threads;
use adaptive::HostWorkers;
use pages::Pages;

/// Limit of writes encrypted at once, beyond every experiment; more wait.
const SLOTS: u32 = 1 << 15;
/// Numbers of bios as those of their buffers.
const WORLD_SLOTS: Range<u32> = BufRef::FIRST_WORLD_SLOT..BufRef::FIRST_LIST_SLOT;
/// Longest part: longer bios are split.
const SLOT_BYTES: u32 = 1 << 20;

/// A bio submitted to the device, possibly split.
#[derive(Debug)]
struct Whole {
    /// Its number in the world.
    user: u64,
    thread: ThreadId,
    pieces_left: u32,
    status: BlkStatus,
    workers: BTreeSet<Option<ThreadId>>,
    contexts: BTreeSet<IoContext>,
    /// Offsets of its encrypted pieces, in the order of encryption.
    encrypted: Vec<u64>,
}

/// A bio in the queue below.
#[derive(Debug)]
struct Lower {
    token: Token,
    bytes: u64,
}

/// The device.
// 15 fields: the shard, what its SQEs refer to, and the threads that execute them.
pub(in crate::world) struct Mapped {
    config: MappedConfig,
    topology: Topology,
    shard: Shard,
    pages: Option<Pages>,
    wholes: Slab<Whole>,
    lowers: Slab<Lower>,
    /// The bio of each bounce slot or page list.
    slot_of: BTreeMap<u32, u32>,
    pools: Pools,
    /// The workers of `adaptive`, which use no pool.
    host_workers: Option<HostWorkers>,
    /// The writing thread and its wake-ups.
    writer: Option<ThreadId>,
    wake: Option<Token>,
    random: Random,
    causes: CryptCauses,
    /// Emptied after each use; kept for their memory.
    sqes: Vec<Sqe>,
    done: Vec<Done>,
}

impl Mapped {
    pub(super) fn new(config: &MappedConfig, world: &Config) -> Self {
        let Config { topology, costs, seed, .. } = *world;
        let sectors = world.sectors();
        let cpus_per_core = if costs.shared_core_percent.is_some() { 2 } else { 1 };
        let target = CryptSpec {
            dev: DevId(0),
            start: Sector(0),
            iv_offset: 0,
            sector_size_bytes: config.sector_bytes,
            cipher: CipherId(0),
            allow_discards: true,
            fuses_cipher: false,
            pipeline: config.pipeline,
        };
        let extent = TableExtent::new(Sector(0), Sector(sectors), Arc::new(target));
        let table = Table::new(vec![extent]);
        let (bounce, pages) = match &config.pages {
            None => (Bounce::Slots { slots: SLOTS, slot_bytes: SLOT_BYTES }, None),
            Some(config) => {
                let pages = Pages::new(config, seed);
                (pages.bounce(config), Some(pages))
            }
        };
        let shard = Shard::new(&table, bounce).expect("the memory was made to hold the reserve");
        Self {
            config: config.clone(),
            topology,
            shard,
            pages,
            wholes: Slab::default(),
            lowers: Slab::default(),
            slot_of: BTreeMap::new(),
            pools: Pools::new(config.workqueue, topology, cpus_per_core),
            host_workers: match &config.pipeline {
                Choice::Fixed(_) => None,
                Choice::Adaptive(adaptive) => {
                    HostWorkers::new(adaptive, config.hand_over, topology.cpus())
                }
            },
            writer: None,
            wake: None,
            random: Random::new(seed, 0xc17),
            causes: CryptCauses::default(),
            sqes: Vec::new(),
            done: Vec::new(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.shard.is_idle()
            && self.wholes.is_empty()
            && self.lowers.is_empty()
            && self.pools.is_empty()
            && self.host_workers.as_ref().is_none_or(HostWorkers::is_idle)
    }

    pub(super) fn causes(&self) -> CryptCauses {
        let pages = self.shard.page_allocators().next().map(|allocator| *allocator.counters());
        let memory = self.pages.as_ref().map(Pages::counters);
        let allocation_busy = self.pages.as_ref().map_or(Nanos(0), |pages| pages.busy);
        CryptCauses { pages, memory, allocation_busy, ..self.causes.clone() }
    }

    /// Allocation costs since the last call.
    fn take_deferred(&mut self) -> Nanos {
        self.pages.as_mut().map_or(Nanos(0), Pages::take_deferred)
    }

    /// Passes a bio to the shard, in pieces. Its own `user` returns after the end of all.
    fn submit(&mut self, now: Nanos, cpu: CpuId, bio: Bio, thread: ThreadId) {
        if let Some(pages) = &mut self.pages {
            pages.before_bio(cpu);
        }
        let most = self.config.bio_sectors.map_or(u64::MAX, u64::from);
        let pieces = bio.len.0.div_ceil(most).max(1);
        let whole = self.wholes.insert(Whole {
            user: bio.user,
            thread,
            pieces_left: u32::try_from(pieces).expect("bios are short"),
            status: BlkStatus::Ok,
            workers: BTreeSet::new(),
            contexts: BTreeSet::new(),
            encrypted: Vec::new(),
        });
        let context =
            if self.config.keeps_context { bio.origin.io_context } else { IoContext::OF_TASK };
        let origin = Origin { io_context: context, ..bio.origin };
        for piece in 0..pieces {
            let skip = piece * most.min(bio.len.0);
            let len = Sector(most.min(bio.len.0 - skip));
            // Every bio has a buffer of its own, which identifies its parts.
            let buf = match bio.buf.len_bytes {
                0 => BufRef::NONE,
                _ => BufRef {
                    slot: BufRef::FIRST_WORLD_SLOT + whole,
                    offset_bytes: u32::try_from(skip * 512).expect("bios are short"),
                    len_bytes: u32::try_from(len.bytes()).expect("bios are short"),
                },
            };
            let sector = bio.sector + Sector(skip);
            let user = u64::from(whole);
            self.shard.submit_bio(now, Bio { sector, len, buf, origin, user, ..bio });
        }
    }

    /// Tells the shard the load for the next requests of a submitter.
    fn set_load(&mut self, threads: &Threads<'_>, thread: ThreadId) {
        if let Some(workers) = &self.host_workers {
            let is_awake = |thread: &ThreadId| threads[*thread].waits.is_none();
            let awake = workers.submitters().filter(is_awake).count();
            self.shard.set_load(workers.load(thread, awake));
        }
    }

    /// Completes an SQE.
    fn answer(&mut self, now: Nanos, cpu: CpuId, token: Token, status: BlkStatus) {
        if let Some(pages) = &self.pages {
            pages.run_on(cpu);
        }
        self.shard.on_cqe(now, Cqe { token, status });
    }

    /// Takes the steps to execute now.
    fn take_steps(&mut self, cpu: CpuId, mut take: impl FnMut(Step)) {
        self.shard.take_sq(&mut self.sqes);
        let mut sqes = self.sqes.drain(..);
        while let Some(sqe) = sqes.next() {
            let then = if sqe.linked { sqes.next() } else { None };
            let via = if self.config.cryptd == Cryptd::Always { Via::Cryptd } else { Via::Own };
            take(Step { sqe, then, queued_on: cpu, is_taken: false, via });
        }
    }

    /// Takes the ended bios, by their numbers in the world.
    fn take_done(&mut self, mut take: impl FnMut(u64, BlkStatus)) {
        self.shard.take_done(&mut self.done);
        for Done { user, status } in self.done.drain(..) {
            let index = u32::try_from(user).expect("it was one");
            let whole = self.wholes.at(index);
            if status != BlkStatus::Ok {
                whole.status = status;
            }
            whole.pieces_left -= 1;
            if whole.pieces_left == 0 {
                let whole = self.wholes.remove(index);
                if !whole.encrypted.is_empty() {
                    self.causes.workers_per_write.add(whole.workers.len());
                    self.causes.contexts_per_write.add(whole.contexts.len());
                    self.causes.note_order(&whole.encrypted);
                }
                take(whole.user, whole.status);
            }
        }
    }

    /// Length of a bio below.
    pub(super) fn lower_bytes(&self, user: u64) -> u64 {
        self.lowers.get(u32::try_from(user).expect("the queue was given such a number")).bytes
    }

    /// The bio of a buffer.
    fn whole_of(&mut self, buf: BufRef) -> Option<&mut Whole> {
        let index = match buf.slot {
            BufRef::ZEROS_SLOT | BufRef::LINKED_SLOT => return None,
            slot if WORLD_SLOTS.contains(&slot) => slot - BufRef::FIRST_WORLD_SLOT,
            slot => *self.slot_of.get(&slot)?,
        };
        Some(self.wholes.at(index))
    }
}
