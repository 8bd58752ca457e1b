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
            Err(Errno::INVAL | Errno::NOSYS) => match fs::hard_link(from, to) {
                Ok(()) => fs::remove_file(from),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
                // One without links either, such as many of FUSE.
                Err(_) => replace_claim(from, to),
            },
            renamed => Ok(renamed?),
        }
    }
}

/// Gives a file a free name: an empty file claims the name first, and is replaced.
fn replace_claim(from: &Path, to: &Path) -> io::Result<()> {
    File::create_new(to)?;
    fs::rename(from, to).inspect_err(|_| drop(fs::remove_file(to)))
}

impl Drop for Created {
    fn drop(&mut self) {
        for new in &self.0 {
            let _ = fs::remove_file(&new.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_takes_a_free_name_and_no_name_of_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let [new, other, free] = ["new", "other", "free"].map(|name| dir.path().join(name));
        fs::write(&new, "volume").unwrap();
        fs::write(&other, "letter").unwrap();
        let refused = replace_claim(&new, &other).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&other).unwrap(), b"letter");
        replace_claim(&new, &free).unwrap();
        assert_eq!(fs::read(&free).unwrap(), b"volume");
        assert!(!new.exists());
        // Nothing of a failed rename is left.
        let name = dir.path().join("name");
        assert!(replace_claim(&new, &name).is_err() && !name.exists());
    }
}
