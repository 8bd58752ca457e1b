//! The Linux block layer and device mapper as a sans-IO engine.
//!
//! A [`shard::Shard`] owns all state of one core: a dm table, its targets, their mempools. A
//! [`stack::Stack`] has one shard for each of several stacked mapped devices. A front end submits
//! [`bio::Bio`]s; a world takes [`sq::Sqe`]s, executes them and returns [`sq::Cqe`]s; finished bios
//! come out as [`bio::Done`]. Handlers run once to completion. There are no threads, no clock, no
//! locks and no bytes here: buffers are [`buf::BufRef`]s of the world.
//!
//! ```text
//!   front end --submit_bio--> Shard --take_sq--> world (files, rings, ciphers, workers)
//!   front end <--take_done--- Shard <--on_cqe---
//! ```
//!
//! # Order of calls
//!
//! 1. [`dm::line::parse`] reads a table, a world opens the needs of its lines, and
//!    [`dm::table::Table`] holds the open targets. [`shard::Shard::new`] builds the targets of one
//!    core; [`stack::Stack::new`] does so for a table on other tables. The calls of both are equal.
//! 2. [`submit_bio`](shard::Shard::submit_bio) starts a bio. The bio may end in this call.
//! 3. [`take_sq`](shard::Shard::take_sq) follows every call with a time: `submit_bio`, `on_cqe`,
//!    `message`, `suspend`, `resume_targets`, `set_page_limit`. Nothing else starts an SQE. A world
//!    starts SQEs in their order. A linked SQE and the next one run on one thread and have one CQE.
//! 4. [`on_cqe`](shard::Shard::on_cqe) returns each SQE's completion exactly once, in any order.
//!    The call may push SQEs: go back to step 3 until `take_sq` returns none.
//! 5. [`take_done`](shard::Shard::take_done) returns ended bios. A buffer belongs to the engine
//!    until the end of its bio.
//!
//! Times never decrease. The load ([`set_load`](shard::Shard::set_load)) is set before the call
//! that it is about.
//!
//! A [`mq::RequestQueue`] lies between a world's SQEs and a disk. `submit_bio` adds a bio,
//! [`dispatch`](mq::RequestQueue::dispatch) returns requests for the device, and
//! [`complete`](mq::RequestQueue::complete) ends one. Dispatch follows every event, and the time
//! [`wake_at`](mq::RequestQueue::wake_at). A submitter that has called
//! [`plug`](mq::RequestQueue::plug) calls [`unplug`](mq::RequestQueue::unplug) before it sleeps:
//! the device does not see requests in a plug, so a sleeper with a plug waits for itself.
//!
//! The driver of the real world (`Driver` in `blockyard-host`) has the same order: submit, go on,
//! unplug before it waits, poll, take what is done.
//!
//! ```
//! use std::sync::Arc;
//!
//! use blockyard_engine::bio::{Bio, BlkStatus, Op, Sector};
//! use blockyard_engine::buf::BufRef;
//! use blockyard_engine::dm::bounce::Bounce;
//! use blockyard_engine::dm::DeviceArea;
//! use blockyard_engine::dm::linear::Linear;
//! use blockyard_engine::dm::table::{Table, TableExtent};
//! use blockyard_engine::shard::Shard;
//! use blockyard_engine::sq::{Cqe, DevId, SqeOp};
//! use blockyard_engine::time::Nanos;
//!
//! let linear = Linear { area: DeviceArea { dev: DevId(0), start: Sector(100) } };
//! let table = Table::new(vec![TableExtent::new(Sector(0), Sector(64), Arc::new(linear))]);
//! let mut shard = Shard::new(&table, Bounce::Slots { slots: 0, slot_bytes: 4096 })?;
//!
//! let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes: 4096 };
//! shard.submit_bio(Nanos(0), Bio::new(Op::Read, Sector(8), Sector(8), buf, 7));
//! let mut sqes = Vec::new();
//! shard.take_sq(&mut sqes);
//! assert_eq!(sqes[0].op, SqeOp::Read { dev: DevId(0), sector: Sector(108), buf });
//!
//! shard.on_cqe(Nanos(1), Cqe { token: sqes[0].token, status: BlkStatus::Ok });
//! let mut done = Vec::new();
//! shard.take_done(&mut done);
//! assert_eq!((done[0].user, done[0].status), (7, BlkStatus::Ok));
//! # Ok::<(), blockyard_engine::pages::OutOfPages>(())
//! ```
//!
//! # Extending it
//!
//! A target is one file and one line ([`dm::registry`], `docs/targets/adding.md`); so is an
//! elevator ([`elevator`], `docs/elevators/adding.md`).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod bio;
pub mod buf;
pub mod dm;
pub mod elevator;
pub mod histogram;
pub mod mempool;
pub mod mq;
pub mod pages;
pub mod priority;
pub mod ranges;
pub mod request;
pub mod shard;
pub mod slab;
pub mod sq;
pub mod stack;
pub mod throttle;
pub mod time;
pub mod visits;
