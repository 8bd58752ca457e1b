//! The native part of the Python package `blockyard`: volumes, servers and the lab of the Rust
//! library, without positions and without the classes of `io`. The folder `blockyard` has these.
//!
//! Every call that may wait releases Python's lock. An error is an exception of
//! `blockyard/_errors.py`.

mod buffer;
mod error;
mod lab;
mod owned;
mod server;
mod volume;

use pyo3::pymodule;

#[pymodule]
mod _blockyard {
    #[pymodule_export]
    use crate::lab::{experiments, run_experiment};
    #[pymodule_export]
    use crate::server::NativeServer;
    #[pymodule_export]
    use crate::volume::{NativeVolume, info};
}
