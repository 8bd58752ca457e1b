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
pub mod time;
