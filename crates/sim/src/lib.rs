//! The simulated world: a virtual clock, and models of the devices that the engine drives.
//!
//! All parts are plain structs that receive the time as an argument. Events are on one heap,
//! ordered by time and then by scheduling, so that a run depends only on its seed.
#![forbid(unsafe_code)]

pub mod block;
pub mod cache;
pub mod checks;
pub mod cpu;
pub mod device;
pub mod fault;
pub mod fs;
pub mod heap;
pub mod memory;
#[cfg(any(test, feature = "torture"))]
pub mod oracle;
#[cfg(any(test, feature = "torture"))]
pub mod torture;
pub mod world;
