//! Text on standard output, whose reader may leave early (`blockyard info … | head -1`), and lines
//! on standard error.

use std::io::{self, ErrorKind, Write};

pub(crate) use blockyard::output::{InUse, Output};
use blockyard_host::log;

use crate::failure::Failure;

/// Writes `text`. A closed pipe is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_on(text).map(|_| ())
}

/// Like [`print`], for endless output: true while the reader remains.
pub(crate) fn print_on(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
    }
}

/// Writes one line on standard error, with control characters escaped: a file's name may contain
/// any. A server may have another form for its lines.
pub(crate) fn say(text: &str) {
    log::say(text);
}

/// Writes warnings on standard error.
#[cfg(feature = "lab")]
pub(crate) fn warn(warnings: &[String]) {
    warnings.iter().for_each(|warning| say(&format!("warning: {warning}")));
}
