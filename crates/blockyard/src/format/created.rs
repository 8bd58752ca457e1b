//! New files of a volume.
//!
//! A file has a temporary name until the volume is complete, so its name never leads to a part of a
//! volume: not after a crash, and not for another program. Two programs that make the same file
//! exclude each other by the name: the second one fails, and neither removes a file of the other.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::FormatError;
use crate::output::{create_beside, sync_created};

/// The new files, in the order in which they get their names. When dropped, it removes those that
/// have none.
#[derive(Debug, Default)]
pub(super) struct Created(Vec<New>);

#[derive(Debug)]
struct New {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    size_bytes: u64,
}

impl Created {
    /// Makes a file of zeros for the user only; returns its temporary name.
    pub(super) fn add(&mut self, path: &Path, size_bytes: u64) -> Result<PathBuf, FormatError> {
        let failed = |source| FormatError::Create { path: path.to_owned(), size_bytes, source };
        // A link that leads nowhere.
        if path.symlink_metadata().is_ok() {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        }
        let (file, temporary) = create_beside(path).map_err(failed)?;
        let new = New { file, temporary: temporary.clone(), path: path.to_owned(), size_bytes };
        self.0.push(new);
        self.0[self.0.len() - 1].file.set_len(size_bytes).map_err(failed)?;
        Ok(temporary)
    }

    /// Gives all files their names, durably.
    pub(super) fn complete(&mut self) -> Result<(), FormatError> {
        while let Some(new) = self.0.first() {
            let named = new.take_name();
            let synced = named.and_then(|()| sync_created(&new.file, &new.path));
            if let Err(source) = synced {
                let path = new.path.clone();
                return Err(FormatError::Create { path, size_bytes: new.size_bytes, source });
            }
            self.0.remove(0);
        }
        Ok(())
    }
}

impl New {
    fn take_name(&self) -> io::Result<()> {
        let [from, to] = [&self.temporary, &self.path];
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // A file system without this kind of rename, such as NFS.
            Err(Errno::INVAL | Errno::NOSYS) => {
                fs::hard_link(from, to)?;
                fs::remove_file(from)
            }
            renamed => Ok(renamed?),
        }
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for new in &self.0 {
            let _ = fs::remove_file(&new.temporary);
        }
    }
}
