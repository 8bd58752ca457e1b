//! The terminal: passphrases without echo, and confirmations.
//!
//! The line is read with `ECHO`, `ICANON` and `ISIG` off (`termios(3)`), byte by byte, into a
//! [`SecretBytes`]: no buffer of the standard library and no line buffer of the kernel keeps a
//! copy. Ctrl-C arrives as a byte, so the terminal is restored then too; after other signals the
//! shell restores it. Questions go to standard error, or to the terminal itself if standard error
//! is redirected; standard output may be a pipe with data.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use blockyard_crypt::secret::SecretBytes;
use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

use crate::failure::{Failure, printable};

/// Limit of a typed passphrase; cryptsetup's too.
const TYPED_PASSPHRASE_LEN_MAX: usize = 512;

/// A terminal for questions.
pub(crate) struct Terminal {
    input: OwnedFd,
}

impl Terminal {
    /// Standard input, if it is a terminal.
    pub(crate) fn on_stdin() -> Option<Self> {
        let stdin = rustix::stdio::stdin();
        if !termios::isatty(stdin) {
            return None;
        }
        Some(Self { input: stdin.try_clone_to_owned().ok()? })
    }

    /// The terminal of this process, even if standard input is a pipe.
    pub(crate) fn controlling() -> Option<Self> {
        let tty: File = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { input: tty.into() })
    }

    /// Asks for a passphrase without showing it.
    pub(crate) fn ask_passphrase(&self, prompt: &str) -> Result<SecretBytes, Failure> {
        let failed = |error: io::Error| {
            Failure::failed(format!("cannot read the passphrase from the terminal: {error}"))
        };
        // First without echo, then the question: an early answer is not shown either.
        let quiet = Quiet::set(&self.input).map_err(|errno| failed(errno.into()))?;
        self.say(&printable(prompt)).map_err(failed)?;
        let line = self.read_line();
        drop(quiet);
        self.say("\n").map_err(failed)?;
        line.map_err(failed)?
    }

    /// Asks at the terminal. Without one, only `--batch-mode` confirms.
    pub(crate) fn confirm(warning: &str) -> Result<(), Failure> {
        match Self::on_stdin() {
            Some(terminal) => terminal.confirmed(&format!("{warning}.")),
            None => Err(Failure::busy(format!("{warning}; to proceed, use --batch-mode"))),
        }
    }

    /// Continues only if the user types `YES`, in capitals.
    pub(crate) fn confirmed(&self, warning: &str) -> Result<(), Failure> {
        let failed =
            |error: io::Error| Failure::failed(format!("cannot read from the terminal: {error}"));
        let warning = printable(warning);
        let question =
            format!("WARNING: {warning}\nAre you sure? (Type 'YES' in capital letters): ");
        self.say(&question).map_err(failed)?;
        let answer = self.line().map_err(failed)?;
        if answer == "YES" {
            return Ok(());
        }
        Err(Failure::failed("not confirmed, so nothing was changed"))
    }

    /// A typed line without its newline; invalid UTF-8 is replaced.
    pub(crate) fn line(&self) -> io::Result<String> {
        let mut line = Vec::new();
        let mut byte = [0u8; 1];
        // In line mode a long line ends only at its newline.
        loop {
            let is_end = rustix::io::read(&self.input, &mut byte)? == 0;
            if is_end || byte[0] == b'\n' {
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            line.push(byte[0]);
        }
    }

    /// Shows a text.
    pub(crate) fn say(&self, text: &str) -> io::Result<()> {
        if termios::isatty(rustix::stdio::stderr()) {
            return io::stderr().write_all(text.as_bytes());
        }
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let written = rustix::io::write(&self.input, left)?;
            left = &left[written..];
        }
        Ok(())
    }

    fn read_line(&self) -> io::Result<Result<SecretBytes, Failure>> {
        let mut line = Line::new();
        let mut byte = [0u8; 1];
        loop {
            match rustix::io::read(&self.input, &mut byte) {
                Ok(0) => return Ok(Err(cancelled())),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let typed = line.type_byte(byte[0]);
            byte[0] = 0;
            match typed {
                Typed::More => {}
                Typed::Done => return Ok(Ok(line.into_secret())),
                Typed::Cancelled => return Ok(Err(cancelled())),
                Typed::TooLong => {
                    return Ok(Err(Failure::failed(format!(
                        "a typed passphrase has at most {TYPED_PASSPHRASE_LEN_MAX} bytes; put a \
                         longer one into a file and use --key-file"
                    ))));
                }
            }
        }
    }
}

fn cancelled() -> Failure {
    Failure::failed("no passphrase was given: cancelled at the terminal")
}

/// Echo, line editing and signal keys off until dropped.
struct Quiet<'a> {
    terminal: &'a OwnedFd,
    before: Termios,
}

impl<'a> Quiet<'a> {
    fn set(terminal: &'a OwnedFd) -> rustix::io::Result<Self> {
        let before = termios::tcgetattr(terminal.as_fd())?;
        let mut quiet = before.clone();
        quiet.local_modes -=
            LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN;
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        termios::tcsetattr(terminal.as_fd(), OptionalActions::Drain, &quiet)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // A closed terminal needs no restoring.
        let _ = termios::tcsetattr(self.terminal.as_fd(), OptionalActions::Drain, &self.before);
    }
}

/// Effect of a typed byte on the line.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    More,
    Done,
    Cancelled,
    TooLong,
}

/// The typed line.
struct Line {
    bytes: SecretBytes,
    len_bytes: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: SecretBytes::zeroed(TYPED_PASSPHRASE_LEN_MAX), len_bytes: 0 }
    }

    fn type_byte(&mut self, byte: u8) -> Typed {
        const CTRL_C: u8 = 0x03;
        const CTRL_D: u8 = 0x04;
        const BACKSPACE: u8 = 0x08;
        const CTRL_U: u8 = 0x15;
        const DELETE: u8 = 0x7f;
        match byte {
            b'\n' | b'\r' => return Typed::Done,
            CTRL_C => return Typed::Cancelled,
            CTRL_D if self.len_bytes == 0 => return Typed::Cancelled,
            CTRL_D => return Typed::Done,
            BACKSPACE | DELETE => self.delete_character(),
            CTRL_U => self.len_bytes = 0,
            _ if self.len_bytes == TYPED_PASSPHRASE_LEN_MAX => return Typed::TooLong,
            _ => {
                self.bytes.as_mut_slice()[self.len_bytes] = byte;
                self.len_bytes += 1;
            }
        }
        Typed::More
    }

    /// Removes one character, of several bytes in UTF-8.
    fn delete_character(&mut self) {
        const CONTINUATION_MASK: u8 = 0b1100_0000;
        const CONTINUATION: u8 = 0b1000_0000;
        while self.len_bytes > 0 {
            self.len_bytes -= 1;
            if self.bytes.as_slice()[self.len_bytes] & CONTINUATION_MASK != CONTINUATION {
                break;
            }
        }
    }

    fn into_secret(self) -> SecretBytes {
        SecretBytes::copy_of(&self.bytes.as_slice()[..self.len_bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(bytes: &[u8]) -> (Typed, Vec<u8>) {
        let mut line = Line::new();
        let mut last = Typed::More;
        for &byte in bytes {
            last = line.type_byte(byte);
            if last != Typed::More {
                break;
            }
        }
        (last, line.into_secret().as_slice().to_vec())
    }

    #[test]
    fn line_with_corrections_is_what_the_person_meant() {
        assert_eq!(typed(b"sesame\n"), (Typed::Done, b"sesame".to_vec()));
        assert_eq!(typed(b"sesamx\x7fe\r"), (Typed::Done, b"sesame".to_vec()));
        assert_eq!(typed(b"wrong\x15right\n"), (Typed::Done, b"right".to_vec()));
        assert_eq!(typed("Tü\u{8}ür\n".as_bytes()), (Typed::Done, "Tür".as_bytes().to_vec()));
        assert_eq!(typed(b"\x7f\x7fa\n"), (Typed::Done, b"a".to_vec()));
    }

    #[test]
    fn line_with_ctrl_c_or_an_empty_ctrl_d_is_cancelled() {
        assert_eq!(typed(b"ses\x03").0, Typed::Cancelled);
        assert_eq!(typed(b"\x04").0, Typed::Cancelled);
        assert_eq!(typed(b"ses\x04"), (Typed::Done, b"ses".to_vec()));
    }

    #[test]
    fn line_longer_than_the_limit_is_refused_not_cut() {
        let mut bytes = vec![b'x'; TYPED_PASSPHRASE_LEN_MAX];
        assert_eq!(typed(&bytes).0, Typed::More);
        bytes.push(b'y');
        assert_eq!(typed(&bytes).0, Typed::TooLong);
    }
}
