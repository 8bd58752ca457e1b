//! The simulated world: a virtual clock, and models of the devices that the engine drives.
//!
//! Everything is a plain struct that is told the time. What is to happen lies on one heap, ordered
//! by time and then by the order in which it was put there, so that a run depends on its seed and
//! on nothing else.
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
pub mod oracle;
pub mod torture;
pub mod world;
