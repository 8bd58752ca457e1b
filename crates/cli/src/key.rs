//! Where a passphrase or a key comes from: a terminal, standard input, a key file, a descriptor.
//!
//! cryptsetup's rules (`cryptsetup(8)`, "NOTES ON PASSPHRASE PROCESSING"): a typed or piped
//! passphrase ends at its newline; a key file is taken byte for byte, newlines and NULs included;
//! either may be empty, but a pipe that ends without a byte has said nothing;
//! and `--key-file -` is standard input read like a key file. A descriptor (`--key-fd`) is read
//! like a key file. Arguments and the environment are no source: other users can read them.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use blockyard_crypt::secret::SecretBytes;
use rustix::fs::{FileType, SeekFrom};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags};

use crate::failure::Failure;
use crate::terminal::Terminal;

/// cryptsetup's compiled-in limit of a key file.
const KEY_LEN_MAX_BYTES: usize = 8 << 20;
/// What is allocated before the length is known: nearly every key fits.
const KEY_FIRST_ALLOCATION_BYTES: usize = 4096;

/// Which bytes of which source are the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyInput {
    /// Where they come from.
    pub(crate) source: KeySource,
    /// `--keyfile-offset`.
    pub(crate) offset_bytes: u64,
    /// `--keyfile-size`; a source that holds less is an error.
    pub(crate) len_bytes: Option<u64>,
}

/// Where a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// No option: the terminal, or the first line of standard input.
    Ask,
    /// `--key-file -`: all of standard input.
    Stdin,
    /// `--key-file FILE`.
    File(PathBuf),
    /// `--key-fd N`.
    Descriptor(i32),
}

/// What may already be spoken for when a passphrase is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StdinUse {
    /// A passphrase may come from there.
    Free,
    /// It carries the data of `load`.
    Data,
}

impl KeyInput {
    /// Whether a person is asked, so that a wrong passphrase can be tried again.
    pub(crate) fn asks_a_person(&self, stdin_use: StdinUse) -> bool {
        self.source == KeySource::Ask
            && (stdin_use == StdinUse::Data || Terminal::on_stdin().is_some())
    }

    /// Reads the passphrase or key of `what`, a name for the prompt and for errors.
    pub(crate) fn read(&self, what: &str, stdin_use: StdinUse) -> Result<SecretBytes, Failure> {
        match &self.source {
            KeySource::Ask => self.ask(what, stdin_use),
            KeySource::Stdin if stdin_use == StdinUse::Data => Err(stdin_is_taken(what)),
            KeySource::Descriptor(0) if stdin_use == StdinUse::Data => Err(stdin_is_taken(what)),
            KeySource::Stdin => {
                self.read_bytes(rustix::stdio::stdin(), "standard input", self.length()?)
            }
            KeySource::File(path) => {
                let file = open_secret_file(path, "key file")?;
                let place = format!("key file {}", path.display());
                self.read_bytes(file.as_fd(), &place, self.length()?)
            }
            KeySource::Descriptor(number) => {
                let fd = duplicate(*number)?;
                self.read_bytes(fd.as_fd(), &format!("descriptor {number}"), self.length()?)
            }
        }
    }

    /// As [`KeyInput::read`], but from a file or descriptor no more than the key needs: it may be
    /// `/dev/urandom` or a disk, and have no end.
    pub(crate) fn read_at_most(
        &self,
        what: &str,
        stdin_use: StdinUse,
        len_bytes_max: usize,
    ) -> Result<SecretBytes, Failure> {
        if self.len_bytes.is_some() {
            return self.read(what, stdin_use);
        }
        match &self.source {
            KeySource::File(path) => {
                let place = format!("key file {}", path.display());
                let file = open_secret_file(path, "key file")?;
                self.read_bytes(file.as_fd(), &place, Length::AtMost(len_bytes_max))
            }
            KeySource::Descriptor(number) if *number != 0 || stdin_use == StdinUse::Free => {
                let fd = duplicate(*number)?;
                let place = format!("descriptor {number}");
                self.read_bytes(fd.as_fd(), &place, Length::AtMost(len_bytes_max))
            }
            _ => self.read(what, stdin_use),
        }
    }

    /// Asks twice, for a passphrase that is about to be set.
    pub(crate) fn read_new(&self, what: &str) -> Result<SecretBytes, Failure> {
        let (KeySource::Ask, Some(terminal)) = (&self.source, Terminal::on_stdin()) else {
            return self.read(what, StdinUse::Free);
        };
        let first = terminal.ask_passphrase(&format!("Enter passphrase for {what}: "))?;
        let second = terminal.ask_passphrase("Verify passphrase: ")?;
        if first != second {
            return Err(Failure::no_permission("the two passphrases are not the same"));
        }
        Ok(first)
    }

    fn ask(&self, what: &str, stdin_use: StdinUse) -> Result<SecretBytes, Failure> {
        let terminal = match stdin_use {
            StdinUse::Free => Terminal::on_stdin(),
            StdinUse::Data => Some(Terminal::controlling().ok_or_else(|| stdin_is_taken(what))?),
        };
        match terminal {
            Some(terminal) => terminal.ask_passphrase(&format!("Enter passphrase for {what}: ")),
            None => self.read_line(rustix::stdio::stdin()),
        }
    }

    /// What `--keyfile-size` says.
    fn length(&self) -> Result<Length, Failure> {
        let Some(len_bytes) = self.len_bytes else {
            return Ok(Length::ToEnd);
        };
        match usize::try_from(len_bytes) {
            Ok(len) if len <= KEY_LEN_MAX_BYTES => Ok(Length::Exactly(len)),
            _ => Err(Failure::failed(format!(
                "--keyfile-size {len_bytes}: a key has at most {} MiB",
                KEY_LEN_MAX_BYTES >> 20
            ))),
        }
    }

    /// The bytes from the offset on.
    fn read_bytes(
        &self,
        from: BorrowedFd<'_>,
        place: &str,
        length: Length,
    ) -> Result<SecretBytes, Failure> {
        skip(from, self.offset_bytes, place)?;
        collect(from, place, length, false)
    }

    /// The bytes up to a newline, which belongs to nobody.
    fn read_line(&self, from: BorrowedFd<'_>) -> Result<SecretBytes, Failure> {
        let place = "standard input";
        skip(from, self.offset_bytes, place)?;
        collect(from, place, self.length()?, true)
    }
}

/// How much of a source is wanted.
#[derive(Clone, Copy)]
enum Length {
    /// Less is an error.
    Exactly(usize),
    /// Less will do.
    AtMost(usize),
    /// All of it, up to the limit of a key.
    ToEnd,
}

fn collect(
    from: BorrowedFd<'_>,
    place: &str,
    length: Length,
    stop_at_newline: bool,
) -> Result<SecretBytes, Failure> {
    let (first_len, len_max) = match length {
        Length::Exactly(len) | Length::AtMost(len) => (len, len),
        Length::ToEnd => (KEY_FIRST_ALLOCATION_BYTES, usize::MAX),
    };
    let mut collected = Collected { bytes: SecretBytes::zeroed(first_len), len_bytes: 0 };
    let mut has_newline = false;
    while collected.len_bytes < len_max {
        // One byte at a time where a newline ends it: what follows belongs to somebody else.
        let room = collected.room(place)?;
        let chunk = if stop_at_newline { &mut room[..1] } else { room };
        let count = read(from, chunk, place)?;
        has_newline = stop_at_newline && count > 0 && chunk[0] == b'\n';
        if count == 0 || has_newline {
            break;
        }
        collected.len_bytes += count;
    }
    match length {
        Length::Exactly(wanted) if collected.len_bytes < wanted => Err(Failure::failed(format!(
            "{place} ends after {} bytes, but --keyfile-size asks for {wanted}",
            collected.len_bytes
        ))),
        _ if collected.len_bytes == 0 && !has_newline && !is_regular_file(from) => {
            Err(Failure::failed(format!("{place}: there is no passphrase or key to read")))
        }
        _ => Ok(SecretBytes::copy_of(&collected.bytes.as_slice()[..collected.len_bytes])),
    }
}

/// Whether an end without a byte is a value and no breakdown of what feeds a pipe.
fn is_regular_file(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|status| FileType::from_raw_mode(status.st_mode).is_file())
}

/// A secret that grows while it is read; each copy left behind is wiped when it is dropped.
struct Collected {
    bytes: SecretBytes,
    len_bytes: usize,
}

impl Collected {
    /// Memory for at least one more byte.
    fn room(&mut self, place: &str) -> Result<&mut [u8], Failure> {
        if self.len_bytes == self.bytes.len() {
            if self.len_bytes > KEY_LEN_MAX_BYTES {
                return Err(too_long(place));
            }
            // One byte more than the limit is room to see that the limit is passed.
            let grown = self.bytes.len().saturating_mul(8).min(KEY_LEN_MAX_BYTES + 1);
            let mut larger = SecretBytes::zeroed(grown);
            larger.as_mut_slice()[..self.len_bytes].copy_from_slice(self.bytes.as_slice());
            self.bytes = larger;
        }
        Ok(&mut self.bytes.as_mut_slice()[self.len_bytes..])
    }
}

fn too_long(place: &str) -> Failure {
    Failure::failed(format!(
        "{place} is longer than {} MiB, the most that is read; --keyfile-size reads a part of a \
         key file",
        KEY_LEN_MAX_BYTES >> 20
    ))
}

fn stdin_is_taken(what: &str) -> Failure {
    Failure::failed(format!(
        "standard input carries the data, so the passphrase for {what} cannot come from there; \
         use --key-file FILE or --key-fd N"
    ))
}

/// All of a file that holds secrets; `kind` is what it is called in messages.
pub(crate) fn read_secret_file(path: &Path, kind: &str) -> Result<SecretBytes, Failure> {
    let file = open_secret_file(path, kind)?;
    collect(file.as_fd(), &format!("{kind} {}", path.display()), Length::ToEnd, false)
}

fn open_secret_file(path: &Path, kind: &str) -> Result<File, Failure> {
    File::open(path)
        .map_err(|error| Failure::failed(format!("cannot open {kind} {}: {error}", path.display())))
}

/// A descriptor of our own for one that the caller's shell opened.
fn duplicate(number: i32) -> Result<OwnedFd, Failure> {
    let not_open = || {
        Failure::failed(format!(
            "--key-fd {number}: this descriptor is not open; in a shell, \
             `--key-fd {number} {number}<FILE` opens it"
        ))
    };
    if number < 0 {
        return Err(Failure::failed(format!("--key-fd {number}: a descriptor is not negative")));
    }
    let taken = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
        .and_then(|this| rustix::process::pidfd_getfd(this, number, PidfdGetfdFlags::empty()));
    match taken {
        Ok(fd) => Ok(fd),
        Err(Errno::BADF) => Err(not_open()),
        // Sandboxes forbid pidfd_getfd(2), older kernels lack it; /proc opens files and pipes anew.
        Err(_) => {
            File::open(format!("/proc/self/fd/{number}")).map(OwnedFd::from).map_err(|_| not_open())
        }
    }
}

/// Moves `offset_bytes` on, by seeking where that works and by reading where it does not.
fn skip(from: BorrowedFd<'_>, offset_bytes: u64, place: &str) -> Result<(), Failure> {
    if offset_bytes == 0 {
        return Ok(());
    }
    if let Ok(offset) = i64::try_from(offset_bytes)
        && rustix::fs::seek(from, SeekFrom::Current(offset)).is_ok()
    {
        return Ok(());
    }
    let mut skipped = SecretBytes::zeroed(KEY_FIRST_ALLOCATION_BYTES);
    let mut left = offset_bytes;
    while left > 0 {
        let chunk_len = usize::try_from(left).unwrap_or(usize::MAX).min(skipped.len());
        let count = read(from, &mut skipped.as_mut_slice()[..chunk_len], place)?;
        if count == 0 {
            return Err(Failure::failed(format!(
                "{place} ends before --keyfile-offset {offset_bytes}"
            )));
        }
        left -= count as u64;
    }
    Ok(())
}

fn read(from: BorrowedFd<'_>, into: &mut [u8], place: &str) -> Result<usize, Failure> {
    loop {
        match rustix::io::read(from, &mut *into) {
            Ok(count) => return Ok(count),
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(Failure::failed(format!(
                    "cannot read {place}: {}",
                    std::io::Error::from(errno)
                )));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file_with(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn read_file(bytes: &[u8], offset_bytes: u64, len: Option<u64>) -> Result<Vec<u8>, Failure> {
        let file = file_with(bytes);
        let input = KeyInput {
            source: KeySource::File(file.path().to_path_buf()),
            offset_bytes,
            len_bytes: len,
        };
        input.read("test", StdinUse::Free).map(|key| key.as_slice().to_vec())
    }

    fn read_line(bytes: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, bytes).unwrap();
        drop(writer);
        let input = KeyInput { source: KeySource::Ask, offset_bytes: 0, len_bytes: None };
        let line = input.read_line(reader.as_fd())?.as_slice().to_vec();
        let mut rest = vec![0u8; 100];
        let count = rustix::io::read(&reader, &mut rest).unwrap();
        rest.truncate(count);
        Ok((line, rest))
    }

    #[test]
    fn key_file_with_newlines_and_nuls_is_taken_exactly() {
        assert_eq!(read_file(b"a\nb\0c\n", 0, None), Ok(b"a\nb\0c\n".to_vec()));
    }

    #[test]
    fn key_file_offset_and_size_cut_out_the_key() {
        assert_eq!(read_file(b"0123456789", 3, Some(4)), Ok(b"3456".to_vec()));
        assert_eq!(read_file(b"0123456789", 8, None), Ok(b"89".to_vec()));
        let short = read_file(b"0123456789", 8, Some(4)).unwrap_err();
        assert!(short.message.contains("ends after 2 bytes"), "{short}");
    }

    #[test]
    fn key_file_of_eight_mebibytes_is_the_longest() {
        let longest = vec![7u8; KEY_LEN_MAX_BYTES];
        assert_eq!(read_file(&longest, 0, None).unwrap().len(), KEY_LEN_MAX_BYTES);
        let mut longer = longest;
        longer.push(7);
        assert!(read_file(&longer, 0, None).unwrap_err().message.contains("8 MiB"));
        assert_eq!(read_file(&longer, 1, None).unwrap().len(), KEY_LEN_MAX_BYTES);
    }

    #[test]
    fn empty_key_file_is_an_empty_passphrase() {
        assert_eq!(read_file(b"", 0, None), Ok(Vec::new()));
        assert_eq!(read_file(b"abc", 3, None), Ok(Vec::new()));
    }

    #[test]
    fn piped_passphrase_ends_at_its_newline_and_leaves_the_rest() {
        assert_eq!(read_line(b"one\ntwo\n"), Ok((b"one".to_vec(), b"two\n".to_vec())));
        assert_eq!(read_line(b"no newline"), Ok((b"no newline".to_vec(), Vec::new())));
        assert_eq!(read_line(b"\n"), Ok((Vec::new(), Vec::new())));
        assert!(read_line(b"").unwrap_err().message.contains("no passphrase"));
    }

    #[test]
    fn offset_in_a_pipe_is_read_past() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writer, b"0123456789").unwrap();
        drop(writer);
        let input = KeyInput { source: KeySource::Stdin, offset_bytes: 4, len_bytes: Some(2) };
        assert_eq!(
            input.read_bytes(reader.as_fd(), "pipe", Length::Exactly(2)).unwrap().as_slice(),
            b"45"
        );
    }

    #[test]
    fn descriptor_that_is_not_open_is_named() {
        let failure = duplicate(777).unwrap_err();
        assert!(failure.message.contains("--key-fd 777"), "{failure}");
        assert!(duplicate(-1).is_err());
    }
}
