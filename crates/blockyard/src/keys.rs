//! Passphrases and keys: their sources (files, pipes and descriptors), and the keyslots of a volume
//! ([`Keyslots`]).
//!
//! ```
//! use blockyard::keys::{KeyFile, KeySource};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("stick");
//! std::fs::write(&path, "0123456789")?;
//! let file = KeyFile { offset_bytes: 3, len_bytes: Some(4), ..KeyFile::from(path) };
//! assert_eq!(file.read()?.as_slice(), b"3456");
//! # Ok(())
//! # }
//! ```
//!
//! The rules are cryptsetup's (`cryptsetup(8)`, "NOTES ON PASSPHRASE PROCESSING"). A typed or piped
//! passphrase ends at its newline ([`KeyFile::read_line`]). A key file is used exactly as it is,
//! including newlines and NULs ([`KeyFile::read`]). Both may be empty, but a pipe that ends without
//! a byte is an error. The output of a command ([`KeyCommand`]) is a passphrase without the newline
//! at its end. Memory with a part of a secret is wiped when it is dropped.
//!
//! [`Control::wipe_key`](crate::Control::wipe_key) and
//! [`Control::set_key`](crate::Control::set_key) wipe and set the key of a running volume.

mod command;
mod keyslots;
mod process;
mod token_passphrase;
mod tokens;

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::process::lock_secrets;
use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

pub use blockyard_crypt::luks2::{Token, TokenChoice};
pub use command::KeyCommand;
pub use keyslots::{Keyslots, Last, NewKeyslot, Opener, Planned, Priority};
pub use process::stop_programs;
pub(crate) use token_passphrase::{Attempt, by_token};
pub use tokens::Tokens;

/// cryptsetup's compiled-in limit of a key file.
const KEY_LEN_MAX_BYTES: usize = 8 << 20;
/// First allocation, before the length is known: nearly every key fits.
const KEY_FIRST_ALLOCATION_BYTES: usize = 4096;
const STDIN: &str = "standard input";
/// The folder of a service's credentials, which systemd sets.
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";

/// The secret that opens a volume.
///
/// A LUKS keyslot treats a passphrase and the content of a key file alike. A plain volume hashes a
/// passphrase, and uses a key file directly as the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A passphrase, without a newline at its end.
    Passphrase(SecretBytes),
    /// The content of a key file.
    File(SecretBytes),
}

impl Key {
    /// A passphrase. Its bytes are copied into locked memory; the caller wipes its own copy.
    #[must_use]
    pub fn passphrase(passphrase: impl AsRef<[u8]>) -> Self {
        lock_secrets();
        Self::Passphrase(SecretBytes::copy_of(passphrase.as_ref()))
    }

    /// The content of a key file, including newlines and NULs; at most 8 MiB.
    ///
    /// # Errors
    /// [`Error::Key`](crate::Error::Key) if the file cannot be read or is longer.
    pub fn file(path: impl AsRef<Path>) -> Result<Self, crate::Error> {
        Ok(Self::File(KeyFile::from(path.as_ref().to_owned()).read()?))
    }

    pub(crate) fn secret(&self) -> &SecretBytes {
        match self {
            Self::Passphrase(secret) | Self::File(secret) => secret,
        }
    }
}

/// A source of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file or a named pipe.
    File(PathBuf),
    /// An open file descriptor of this process. The descriptor stays open.
    Descriptor(i32),
    /// Standard input.
    Stdin,
    /// A credential of the service, by its name: `LoadCredential=` and `LoadCredentialEncrypted=`
    /// of systemd. It is a file in the folder that the variable `CREDENTIALS_DIRECTORY` names.
    Credential(String),
}

/// A key file: a source, and the range of bytes with the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    /// The source.
    pub source: KeySource,
    /// Number of skipped bytes.
    pub offset_bytes: u64,
    /// The length of the key; `None`: to the end of the source, at most 8 MiB.
    pub len_bytes: Option<u64>,
}

/// Error of reading a key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The source cannot be opened.
    #[error("cannot open {place}: {source}")]
    Open {
        /// Name of the source, for example `key file home.key`.
        place: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The source cannot be read.
    #[error("cannot read {place}: {source}")]
    Read {
        /// Name of the source.
        place: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A descriptor is not open.
    #[error("`Descriptor` {0}: this descriptor is not open")]
    NotOpen(i32),
    /// A descriptor is negative.
    #[error("`Descriptor` {0}: a descriptor is not negative")]
    Negative(i32),
    /// The text of a command cannot be split into words.
    #[error("`KeyCommand`: {0}")]
    Command(&'static str),
    /// A command has not printed a passphrase.
    #[error("cannot get a passphrase from {place}: {problem}")]
    Failed {
        /// Name of the source, for example `command pass`.
        place: String,
        /// The problem.
        problem: String,
    },
    /// The name of a credential cannot be a file name.
    #[error("`Credential` {0:?}: a credential's name is not empty and has no slash")]
    CredentialName(String),
    /// There are no credentials.
    #[error(
        "`Credential` {0:?}: the variable CREDENTIALS_DIRECTORY is not set; LoadCredential= or \
         LoadCredentialEncrypted= of a systemd unit sets it"
    )]
    NoCredentials(String),
    /// [`KeyFile::len_bytes`] is over the limit.
    #[error("`len_bytes` {0}: a key has at most {max} MiB", max = KEY_LEN_MAX_BYTES >> 20)]
    Limit(u64),
    /// The source has no byte at [`KeyFile::offset_bytes`].
    #[error("{place} has no byte at `offset_bytes` {offset_bytes}")]
    Offset {
        /// Name of the source.
        place: String,
        /// The offset.
        offset_bytes: u64,
    },
    /// The source ends before the key does.
    #[error("{place} ends after {found_bytes} bytes, but `len_bytes` asks for {wanted_bytes}")]
    Short {
        /// Name of the source.
        place: String,
        /// Bytes after the offset.
        found_bytes: usize,
        /// [`KeyFile::len_bytes`].
        wanted_bytes: usize,
    },
    /// The source is longer than a key can be.
    #[error(
        "{place} is longer than {max} MiB, the most that is read; `len_bytes` reads a part of a \
         key file",
        max = KEY_LEN_MAX_BYTES >> 20
    )]
    Long {
        /// Name of the source.
        place: String,
    },
    /// A pipe ends without a byte.
    #[error("{place} has no passphrase or key")]
    Nothing {
        /// Name of the source.
        place: String,
    },
}

impl From<PathBuf> for KeyFile {
    fn from(path: PathBuf) -> Self {
        KeySource::File(path).into()
    }
}

impl From<KeySource> for KeyFile {
    /// The whole source.
    fn from(source: KeySource) -> Self {
        Self { source, offset_bytes: 0, len_bytes: None }
    }
}

impl KeyFile {
    /// Reads the key, byte for byte.
    ///
    /// # Errors
    /// The source cannot be read, ends early, or is longer than 8 MiB.
    pub fn read(&self) -> Result<SecretBytes, KeyError> {
        let opened = self.open()?;
        collect(&opened, self.offset_bytes, self.length()?, false)
    }

    /// Reads the key, at most `len_bytes_max` bytes and 8 MiB unless [`KeyFile::len_bytes`] is set:
    /// the source may be endless, such as `/dev/urandom` or a disk.
    ///
    /// # Errors
    /// See [`KeyFile::read`].
    pub fn read_at_most(&self, len_bytes_max: usize) -> Result<SecretBytes, KeyError> {
        if self.len_bytes.is_some() {
            return self.read();
        }
        let length = Length::AtMost(len_bytes_max.min(KEY_LEN_MAX_BYTES));
        collect(&self.open()?, self.offset_bytes, length, false)
    }

    /// Reads a passphrase up to its newline. Later bytes stay in the source for other readers.
    ///
    /// # Errors
    /// See [`KeyFile::read`].
    pub fn read_line(&self) -> Result<SecretBytes, KeyError> {
        let opened = self.open()?;
        collect(&opened, self.offset_bytes, self.length()?, true)
    }

    fn open(&self) -> Result<Opened, KeyError> {
        match &self.source {
            KeySource::File(path) => Opened::file(path, "key file"),
            KeySource::Descriptor(number) => {
                let place = format!("descriptor {number}");
                Ok(Opened { fd: Some(duplicate(*number)?), place })
            }
            KeySource::Stdin => Ok(Opened { fd: None, place: STDIN.into() }),
            KeySource::Credential(name) => Opened::file(&credential(name)?, "credential"),
        }
    }

    fn length(&self) -> Result<Length, KeyError> {
        let Some(len_bytes) = self.len_bytes else {
            return Ok(Length::ToEnd);
        };
        match usize::try_from(len_bytes) {
            Ok(len) if len <= KEY_LEN_MAX_BYTES => Ok(Length::Exactly(len)),
            _ => Err(KeyError::Limit(len_bytes)),
        }
    }
}

/// Reads all of a file with secrets, at most 8 MiB. `kind` names it in messages, for example
/// `table`.
///
/// # Errors
/// The file cannot be read or is longer.
pub fn read_secret(path: &Path, kind: &str) -> Result<SecretBytes, KeyError> {
    collect(&Opened::file(path, kind)?, 0, Length::ToEnd, false)
}

/// An open source.
struct Opened {
    /// `None`: standard input.
    fd: Option<OwnedFd>,
    /// Name for messages.
    place: String,
}

impl Opened {
    fn file(path: &Path, kind: &str) -> Result<Self, KeyError> {
        let place = format!("{kind} {}", path.display());
        match File::open(path) {
            Ok(file) => Ok(Self { fd: Some(file.into()), place }),
            Err(source) => Err(KeyError::Open { place, source }),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => rustix::stdio::stdin(),
        }
    }

    /// Moves `offset_bytes` on, by seeking, or by reading where there is no seeking.
    fn skip(&self, offset_bytes: u64) -> Result<(), KeyError> {
        if offset_bytes == 0 {
            return Ok(());
        }
        if let Ok(offset) = i64::try_from(offset_bytes)
            && rustix::fs::seek(self.fd(), SeekFrom::Current(offset)).is_ok()
        {
            return Ok(());
        }
        let mut skipped = SecretBytes::zeroed(KEY_FIRST_ALLOCATION_BYTES);
        let mut left = offset_bytes;
        while left > 0 {
            let chunk_len = usize::try_from(left).unwrap_or(usize::MAX).min(skipped.len());
            let count = self.read(&mut skipped.as_mut_slice()[..chunk_len])?;
            if count == 0 {
                return Err(KeyError::Offset { place: self.place.clone(), offset_bytes });
            }
            left -= count as u64;
        }
        Ok(())
    }

    fn read(&self, into: &mut [u8]) -> Result<usize, KeyError> {
        loop {
            match rustix::io::read(self.fd(), &mut *into) {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(KeyError::Read { place: self.place.clone(), source: errno.into() });
                }
            }
        }
    }

    /// Whether an end without a byte is a value, and not a failure of the program at the other end
    /// of a pipe.
    fn is_regular_file(&self) -> bool {
        rustix::fs::fstat(self.fd())
            .is_ok_and(|status| FileType::from_raw_mode(status.st_mode).is_file())
    }
}

/// Wanted length.
#[derive(Clone, Copy)]
enum Length {
    /// A shorter source is an error.
    Exactly(usize),
    /// A shorter source is accepted.
    AtMost(usize),
    /// All of it, up to the limit of a key.
    ToEnd,
}

fn collect(
    from: &Opened,
    offset_bytes: u64,
    length: Length,
    stop_at_newline: bool,
) -> Result<SecretBytes, KeyError> {
    lock_secrets();
    from.skip(offset_bytes)?;
    let (first_len, len_max) = match length {
        Length::Exactly(len) | Length::AtMost(len) => (len, len),
        Length::ToEnd => (KEY_FIRST_ALLOCATION_BYTES, usize::MAX),
    };
    let place = || from.place.clone();
    let mut collected = Collected::of(first_len);
    let mut has_newline = false;
    while collected.len_bytes < len_max {
        // One byte at a time where a newline ends it: the bytes behind it belong to other readers.
        let room = collected.room().ok_or_else(|| KeyError::Long { place: place() })?;
        let chunk = if stop_at_newline { &mut room[..1] } else { room };
        let count = from.read(chunk)?;
        has_newline = stop_at_newline && count > 0 && chunk[0] == b'\n';
        if count == 0 || has_newline {
            break;
        }
        collected.len_bytes += count;
    }
    let found_bytes = collected.len_bytes;
    match length {
        Length::Exactly(wanted_bytes) if found_bytes < wanted_bytes => {
            Err(KeyError::Short { place: place(), found_bytes, wanted_bytes })
        }
        // Without an offset, an empty file is an empty key.
        Length::ToEnd | Length::AtMost(1..)
            if found_bytes == 0 && !has_newline && offset_bytes > 0 =>
        {
            Err(KeyError::Offset { place: place(), offset_bytes })
        }
        _ if found_bytes == 0 && !has_newline && !from.is_regular_file() => {
            Err(KeyError::Nothing { place: place() })
        }
        _ => Ok(collected.into_secret()),
    }
}

/// A secret that grows while it is read; outgrown copies are wiped.
struct Collected {
    bytes: SecretBytes,
    len_bytes: usize,
}

impl Collected {
    fn new() -> Self {
        Self::of(KEY_FIRST_ALLOCATION_BYTES)
    }

    fn of(first_len: usize) -> Self {
        Self { bytes: SecretBytes::zeroed(first_len), len_bytes: 0 }
    }

    fn into_secret(self) -> SecretBytes {
        SecretBytes::copy_of(&self.bytes.as_slice()[..self.len_bytes])
    }

    /// Memory for at least one more byte; `None` over the limit.
    fn room(&mut self) -> Option<&mut [u8]> {
        if self.len_bytes == self.bytes.len() {
            if self.len_bytes > KEY_LEN_MAX_BYTES {
                return None;
            }
            // One byte more than the limit, to detect that it is exceeded.
            let grown = self.bytes.len().saturating_mul(8).min(KEY_LEN_MAX_BYTES + 1);
            let mut larger = SecretBytes::zeroed(grown);
            larger.as_mut_slice()[..self.len_bytes].copy_from_slice(self.bytes.as_slice());
            self.bytes = larger;
        }
        Some(&mut self.bytes.as_mut_slice()[self.len_bytes..])
    }
}

/// The file of a credential.
fn credential(name: &str) -> Result<PathBuf, KeyError> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        return Err(KeyError::CredentialName(name.to_owned()));
    }
    let folder = env::var_os(CREDENTIALS_VARIABLE).filter(|folder| !folder.is_empty());
    let folder = folder.ok_or_else(|| KeyError::NoCredentials(name.to_owned()))?;
    Ok(PathBuf::from(folder).join(name))
}

/// A descriptor of our own for one that the program has open.
fn duplicate(number: i32) -> Result<OwnedFd, KeyError> {
    if number < 0 {
        return Err(KeyError::Negative(number));
    }
    let taken = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .and_then(|this| rustix::process::pidfd_getfd(this, number, PidfdGetfdFlags::empty()));
    match taken {
        Ok(fd) => Ok(fd),
        Err(Errno::BADF) => Err(KeyError::NotOpen(number)),
        // Sandboxes forbid pidfd_getfd(2), older kernels lack it; /proc opens files and pipes anew.
        Err(_) => File::open(format!("/proc/self/fd/{number}"))
            .map(OwnedFd::from)
            .map_err(|_| KeyError::NotOpen(number)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    fn read_file(
        bytes: &[u8],
        offset_bytes: u64,
        len_bytes: Option<u64>,
    ) -> Result<Vec<u8>, KeyError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let source = KeySource::File(file.path().to_path_buf());
        let key = KeyFile { source, offset_bytes, len_bytes }.read()?;
        Ok(key.as_slice().to_vec())
    }

    fn pipe_with(bytes: &[u8]) -> (OwnedFd, KeySource) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, bytes).unwrap();
        let source = KeySource::Descriptor(reader.as_raw_fd());
        (reader, source)
    }

    fn read_line(bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), KeyError> {
        let (reader, source) = pipe_with(bytes);
        let line = KeyFile::from(source).read_line()?.as_slice().to_vec();
        let mut rest = vec![0u8; 100];
        let count = rustix::io::read(&reader, &mut rest).unwrap();
        rest.truncate(count);
        Ok((line, rest))
    }

    #[test]
    fn key_file_with_newlines_and_nuls_is_taken_exactly() {
        assert_eq!(read_file(b"a\nb\0c\n", 0, None).unwrap(), b"a\nb\0c\n");
    }

    #[test]
    fn key_file_offset_and_size_cut_out_the_key() {
        assert_eq!(read_file(b"0123456789", 3, Some(4)).unwrap(), b"3456");
        assert_eq!(read_file(b"0123456789", 8, None).unwrap(), b"89");
        let short = read_file(b"0123456789", 8, Some(4)).unwrap_err().to_string();
        assert!(short.contains("ends after 2 bytes, but `len_bytes` asks for 4"), "{short}");
    }

    #[test]
    fn key_file_of_eight_mebibytes_is_the_longest() {
        let longest = vec![7u8; KEY_LEN_MAX_BYTES];
        assert_eq!(read_file(&longest, 0, None).unwrap().len(), KEY_LEN_MAX_BYTES);
        let mut longer = longest;
        longer.push(7);
        assert!(read_file(&longer, 0, None).unwrap_err().to_string().contains("8 MiB"));
        assert_eq!(read_file(&longer, 1, None).unwrap().len(), KEY_LEN_MAX_BYTES);
        assert!(read_file(&longer, 0, Some(9 << 20)).unwrap_err().to_string().contains("8 MiB"));
    }

    #[test]
    fn key_files_around_the_first_allocation_are_read_whole() {
        for len_bytes in [1, 4095, 4096, 4097, 100_000] {
            let bytes: Vec<u8> = (0..len_bytes).map(|byte| (byte % 251) as u8).collect();
            assert_eq!(read_file(&bytes, 0, None).unwrap(), bytes);
        }
    }

    #[test]
    fn empty_key_file_is_an_empty_passphrase_and_an_offset_behind_its_end_is_none() {
        assert_eq!(read_file(b"", 0, None).unwrap(), b"");
        for offset_bytes in [3, 4, 100] {
            let read = read_file(b"abc", offset_bytes, None);
            assert!(matches!(read, Err(KeyError::Offset { .. })), "{offset_bytes}");
        }
    }

    #[test]
    fn piped_passphrase_ends_at_its_newline_and_leaves_the_rest() {
        assert_eq!(read_line(b"one\ntwo\n").unwrap(), (b"one".to_vec(), b"two\n".to_vec()));
        assert_eq!(read_line(b"\nx").unwrap(), (Vec::new(), b"x".to_vec()));
    }

    #[test]
    fn pipe_that_ends_without_a_newline_is_a_passphrase_and_one_without_a_byte_is_none() {
        for (bytes, wanted) in [(&b"no newline"[..], Some("no newline")), (b"", None)] {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&writer, bytes).unwrap();
            drop(writer);
            let line = KeyFile::from(KeySource::Descriptor(reader.as_raw_fd())).read_line();
            match wanted {
                Some(wanted) => assert_eq!(line.unwrap().as_slice(), wanted.as_bytes()),
                None => assert!(matches!(line, Err(KeyError::Nothing { .. }))),
            }
        }
    }

    #[test]
    fn offset_in_a_pipe_is_read_past() {
        let (_reader, source) = pipe_with(b"0123456789");
        let file = KeyFile { source, offset_bytes: 4, len_bytes: Some(2) };
        assert_eq!(file.read().unwrap().as_slice(), b"45");
    }

    #[test]
    fn source_without_an_end_is_read_as_far_as_the_key_needs() {
        let file = KeyFile::from(PathBuf::from("/dev/urandom"));
        assert_eq!(file.read_at_most(64).unwrap().len(), 64);
        assert_eq!(file.read_at_most(usize::MAX).unwrap().len(), KEY_LEN_MAX_BYTES);
    }

    #[test]
    fn credential_with_a_path_as_its_name_is_refused() {
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0"] {
            assert!(matches!(credential(name), Err(KeyError::CredentialName(_))), "{name:?}");
        }
    }

    #[test]
    fn descriptor_that_is_not_open_is_named() {
        assert!(duplicate(777).unwrap_err().to_string().contains("777"));
        assert!(matches!(duplicate(-1), Err(KeyError::Negative(-1))));
    }
}
