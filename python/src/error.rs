//! Errors of the library as Python's exceptions.

use std::error::Error as StdError;
use std::fs::OpenOptions;
use std::io;
use std::iter;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use blockyard::Error;
use pyo3::prelude::*;

mod python {
    use pyo3::import_exception;

    import_exception!(blockyard._errors, BusyError);
    import_exception!(blockyard._errors, DeviceAccessError);
    import_exception!(blockyard._errors, DeviceError);
    import_exception!(blockyard._errors, DeviceNotFoundError);
    import_exception!(blockyard._errors, ExperimentError);
    import_exception!(blockyard._errors, VolumeError);
    import_exception!(blockyard._errors, WrongPassphraseError);
}

/// Numbers of errors in the exceptions that have no error of the system.
const EIO: i32 = 5;
const EBUSY: i32 = 16;
/// Flag of an open, from asm-generic/fcntl.h.
const O_NONBLOCK: i32 = 0o4000;

/// The exception of an error of the library.
#[expect(clippy::needless_pass_by_value, reason = "an argument of `map_err`")]
pub(crate) fn raised(error: Error) -> PyErr {
    let text = error.to_string();
    if error.is_wrong_key() {
        return python::WrongPassphraseError::new_err(text);
    }
    if error.is_busy() {
        return python::BusyError::new_err((EBUSY, text));
    }
    match of_system(&error) {
        Some(cause) => device(cause, text),
        None => python::VolumeError::new_err(text),
    }
}

/// The exception of a failed look at a file.
pub(crate) fn raised_at(path: &Path, error: Error) -> PyErr {
    if !matches!(error, Error::Place { .. }) {
        return raised(error);
    }
    // The error has the system's only as a text. A FIFO must not wait for its other end.
    match OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path) {
        Err(cause) => device(&cause, error.to_string()),
        Ok(_) => raised(error),
    }
}

/// The exception of a failed read, write or flush.
#[expect(clippy::needless_pass_by_value, reason = "an argument of `map_err`")]
pub(crate) fn raised_io(error: io::Error) -> PyErr {
    device(&error, error.to_string())
}

/// The exception of arguments that do not fit the volume.
pub(crate) fn argument(problem: impl Into<String>) -> PyErr {
    python::VolumeError::new_err(problem.into())
}

/// The exception of a failed experiment.
#[expect(clippy::needless_pass_by_value, reason = "an argument of `map_err`")]
pub(crate) fn raised_lab(error: blockyard_lab::Error) -> PyErr {
    failed_experiment(error.to_string())
}

/// The exception of an experiment that cannot run.
pub(crate) fn failed_experiment(problem: String) -> PyErr {
    python::ExperimentError::new_err(problem)
}

/// The error of the system that is the cause of another one.
fn of_system(error: &Error) -> Option<&io::Error> {
    let first: &(dyn StdError + 'static) = error;
    iter::successors(Some(first), |&error| error.source()).find_map(|error| error.downcast_ref())
}

fn device(cause: &io::Error, text: String) -> PyErr {
    let arguments = (cause.raw_os_error().unwrap_or(EIO), text);
    match cause.kind() {
        io::ErrorKind::NotFound => python::DeviceNotFoundError::new_err(arguments),
        io::ErrorKind::PermissionDenied => python::DeviceAccessError::new_err(arguments),
        _ => python::DeviceError::new_err(arguments),
    }
}
