//! The real world: files, rings, threads, sockets and memory for the engine.
//!
//! `unsafe` is used here (system calls, mappings, buffers shared with the kernel) and in the cipher
//! kernels of `crypt`, nowhere else. The path of a request: [`server`] accepts a connection; its
//! thread parses requests (`protocol`), submits bios to its shard (`engine`), and executes the
//! resulting SQEs (`executor`).

mod access;
mod backend;
pub mod broker;
pub mod calls;
pub mod canary;
mod completions;
pub mod copy;
pub mod cpus;
mod device_thread;
pub mod dirty_bitmap;
mod disk;
mod driver;
pub mod durability;
mod error;
mod executor;
pub mod file;
mod file_op;
pub mod footprint;
pub mod fuse;
mod fused;
mod gate;
pub mod keyring;
mod loaded_table;
pub mod local;
pub mod log;
pub mod memory;
pub mod nbd;
pub mod pages;
mod poll;
pub mod process;
pub mod protect;
mod ranges;
pub mod rbd;
pub mod recording;
pub mod remote;
mod requests;
mod ring;
pub mod sandbox;
pub mod server;
pub mod stages;
mod submitter;
mod sync_io;
pub mod table;
pub mod threads;
pub mod throttle;
mod timers;
pub mod tls;
mod ublk;
pub mod usage;
mod user_data;
mod vhost_user;
pub mod volume;
mod workers;
pub mod write_log;

pub use error::Error;
pub use ring::{RingKind, ring_kind};

/// Whether faults can be planted, which no release has.
pub const HAS_CANARIES: bool = cfg!(feature = "canaries");
