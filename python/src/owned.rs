//! A thing with threads, which a forked child must not touch.

use std::mem;
use std::process;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// A thing of this process until it is taken. Its threads do not exist in a forked child, which
/// would wait for them for ever, or stop those of its parent.
pub(crate) struct Owned<T> {
    value: Mutex<Option<T>>,
    process: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(Some(value)), process: process::id() }
    }

    /// Looks at the thing.
    ///
    /// # Errors
    /// `ValueError`: it was taken. `RuntimeError`: this is a forked child.
    pub(crate) fn get<R>(&self, look: impl FnOnce(&T) -> R) -> PyResult<R> {
        if !self.is_at_home() {
            return Err(PyRuntimeError::new_err(
                "a forked child cannot use the volumes and servers of its parent; open them in the \
                 child, or use the start method \"spawn\" of multiprocessing",
            ));
        }
        let value = self.value();
        let value = value.as_ref();
        value.map(look).ok_or_else(|| PyValueError::new_err("I/O operation on closed volume"))
    }

    /// Takes the thing; `None` if it was taken before, and in a forked child.
    pub(crate) fn take(&self) -> Option<T> {
        let value = self.value().take();
        if self.is_at_home() {
            return value;
        }
        mem::forget(value);
        None
    }

    fn is_at_home(&self) -> bool {
        self.process == process::id()
    }

    fn value(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
