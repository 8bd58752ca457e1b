//! Text for standard output, whose reader may leave early (`blockyard info … | head -1`), and files
//! that are made and never written over.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::failure::Failure;

/// Writes `text`. A reader that has gone away has seen enough: that is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// A line on standard error that is no failure.
pub(crate) fn say(text: &str) {
    // Standard error may be closed; a message that nobody can read is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Writes a file that must not be there yet.
pub(crate) fn write_new(path: &Path, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => is_there(path),
        _ => Failure::failed(format!("cannot write {}: {error}", path.display())),
    })
}

/// What takes long must not find out at its end that its files are there already.
pub(crate) fn check_new<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    match paths.into_iter().find(|path| path.exists()) {
        Some(path) => Err(is_there(path)),
        None => Ok(()),
    }
}

fn is_there(path: &Path) -> Failure {
    Failure::busy(format!("{}: is there already; name another file", path.display()))
}
