//! Bytes of Python objects, without a copy.
//!
//! PyO3's `PyBuffer` needs Python 3.11, and its `PyByteArray` is one class of many. So the bytes
//! come from two functions of the old buffer protocol. They are in the stable ABI of every
//! Python 3, also where the headers do not declare them any more. Here is the only `unsafe` of the
//! package.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;

use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

type Get<P> = unsafe extern "C" fn(*mut PyObject, *mut P, *mut Py_ssize_t) -> c_int;

unsafe extern "C" {
    fn PyObject_AsReadBuffer(
        object: *mut PyObject,
        bytes: *mut *const c_void,
        len: *mut Py_ssize_t,
    ) -> c_int;
    fn PyObject_AsWriteBuffer(
        object: *mut PyObject,
        bytes: *mut *mut c_void,
        len: *mut Py_ssize_t,
    ) -> c_int;
}

/// An object whose bytes stay where they are: a view of our own exports them, so Python refuses to
/// move or free them.
///
/// Other threads of Python may change the bytes while a call reads or fills them. They get mixed
/// data then, as with any file of Python.
pub(crate) struct Pinned<'py>(Bound<'py, PyMemoryView>);

impl<'py> Pinned<'py> {
    /// Pins an object with contiguous bytes.
    ///
    /// # Errors
    /// `TypeError`: the object has no bytes.
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        PyMemoryView::from(object).map(Self)
    }

    /// The bytes.
    ///
    /// # Errors
    /// `BufferError`: they are not contiguous.
    pub(crate) fn bytes(&self) -> PyResult<&[u8]> {
        let (bytes, len) = self.get(PyObject_AsReadBuffer, ptr::null())?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: the view has this many bytes there, and lives as long as the slice.
        Ok(unsafe { slice::from_raw_parts(bytes.cast(), len) })
    }

    /// The bytes, to be filled.
    ///
    /// # Errors
    /// `TypeError`: they cannot be written, or are not contiguous.
    pub(crate) fn bytes_mut(&mut self) -> PyResult<&mut [u8]> {
        let (bytes, len) = self.get(PyObject_AsWriteBuffer, ptr::null_mut())?;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the view has this many writable bytes there, and lives as long as the slice. No
        // other slice of this program is made of it, because `self` is borrowed exclusively.
        Ok(unsafe { slice::from_raw_parts_mut(bytes.cast(), len) })
    }

    fn get<P>(&self, get: Get<P>, mut bytes: P) -> PyResult<(P, usize)> {
        let mut len: Py_ssize_t = 0;
        // SAFETY: the object is alive, the places are valid, and this thread holds Python's lock.
        let answer = unsafe { get(self.0.as_ptr(), &raw mut bytes, &raw mut len) };
        match usize::try_from(len) {
            Ok(len) if answer == 0 => Ok((bytes, len)),
            _ => Err(PyErr::fetch(self.0.py())),
        }
    }
}
