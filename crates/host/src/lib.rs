//! The real world: files, rings, threads, sockets and memory for the engine.
//!
//! `unsafe` lives here (system calls, mappings, buffers shared with the kernel) and in the cipher
//! kernels of `crypt`, nowhere else. The journey of a request: [`server`] accepts a connection, its
//! thread parses (`protocol`), submits bios to its shard (`engine`), and executes the SQEs that
//! come out (`executor`).

mod answers;
pub mod canary;
pub mod copy;
mod disk;
mod driver;
mod error;
mod executor;
pub mod file;
mod fused;
pub mod local;
mod log;
pub mod memory;
pub mod nbd;
pub mod pages;
mod plain;
mod poll;
pub mod process;
pub mod recording;
mod ring;
pub mod server;
pub mod stages;
mod submitter;
pub mod threads;
mod timers;
pub mod usage;
pub mod volume;
mod workers;
pub mod write_log;

pub use error::Error;
pub use ring::{RingKind, ring_kind};
