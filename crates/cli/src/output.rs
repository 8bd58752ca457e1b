//! Text for standard output, whose reader may leave early (`blockyard info … | head -1`), and files
//! that are made and never written over.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use rustix::fs::{Access, access};

use crate::failure::Failure;

/// Writes `text`. A reader that has gone away has seen enough: that is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_on(text).map(|_| ())
}

/// As [`print`], for what goes on without end: whether somebody still reads.
pub(crate) fn print_on(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write to standard output: {error}"))),
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

/// What takes long must not find out at its end that its files are there already, or cannot be
/// made.
pub(crate) fn check_new<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
    paths.into_iter().try_for_each(|path| match path.symlink_metadata() {
        Ok(_) => Err(is_there(path)),
        Err(_) => check_folder(path),
    })
}

/// Whether a file of this name can be made: its folder is there, and takes files.
pub(crate) fn check_folder(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(Path::new("."));
    let is_folder = folder.metadata().and_then(|metadata| match metadata.is_dir() {
        true => Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?),
        false => Err(ErrorKind::NotADirectory.into()),
    });
    is_folder.map_err(|error| {
        Failure::failed(format!(
            "cannot write {}: the folder {}: {error}",
            path.display(),
            folder.display()
        ))
    })
}

fn is_there(path: &Path) -> Failure {
    Failure::busy(format!("{}: is there already; name another file", path.display()))
}
