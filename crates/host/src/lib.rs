//! The real world: files, rings, threads, sockets and memory for the engine.
//!
//! `unsafe` lives here (system calls, mappings, buffers shared with the kernel) and in the cipher
//! kernels of `crypt`, nowhere else. The journey of a request: [`server`] accepts a connection, its
//! thread parses (`export`), submits bios to its shard (`engine`), and executes the SQEs that come
//! out (`executor`).

pub mod copy;
mod driver;
mod error;
mod executor;
pub mod file;
pub mod memory;
mod poll;
pub mod process;
mod ring;
pub mod server;
pub mod volume;
mod workers;

pub use error::Error;
