//! The commands, one file each: options and implementation.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod control;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod elevators;
pub(crate) mod erase;
pub(crate) mod format;
pub(crate) mod header;
pub(crate) mod info;
pub(crate) mod keyslots;
#[cfg(feature = "lab")]
pub(crate) mod lab;
pub(crate) mod load;
pub(crate) mod man;
pub(crate) mod repair;
pub(crate) mod replay;
#[cfg(feature = "lab")]
pub(crate) mod report;
pub(crate) mod resize;
pub(crate) mod serve;
pub(crate) mod table;
pub(crate) mod top;
pub(crate) mod trace;
#[cfg(feature = "lab")]
pub(crate) mod tune;
