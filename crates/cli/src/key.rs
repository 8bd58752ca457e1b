//! Sources of a passphrase or a key: a terminal, standard input, a key file, a descriptor, a
//! command, a credential of systemd.
//!
//! cryptsetup's rules (`cryptsetup(8)`, "NOTES ON PASSPHRASE PROCESSING"): a typed or piped
//! passphrase ends at its newline; a key file is used exactly as it is, including newlines and
//! NULs; both may be empty, but a pipe that ends without a byte is an error; `--key-file -` reads
//! standard input like a key file. A descriptor (`--key-fd`) and a credential (`--key-credential`)
//! are read like a key file. The output of a command (`--key-command`) is a passphrase without the
//! newline at its end. Arguments and the environment are no sources: other users can read them.

use std::path::{Path, PathBuf};

use blockyard::keys::{self, KeyCommand, KeyError, KeyFile};
use blockyard_crypt::secret::SecretBytes;

use crate::failure::Failure;
use crate::terminal::Terminal;

/// A source, and the key's range of bytes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyInput {
    /// The source.
    pub(crate) source: KeySource,
    /// `--keyfile-offset`.
    pub(crate) offset_bytes: u64,
    /// `--keyfile-size`; a shorter source is an error.
    pub(crate) len_bytes: Option<u64>,
}

/// Source of a key.
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
    /// `--key-command COMMAND`.
    Command(KeyCommand),
    /// `--key-credential NAME`.
    Credential(String),
}

/// Use of standard input when a passphrase is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StdinUse {
    /// It may carry a passphrase.
    Free,
    /// It carries the data of `load`.
    Data,
    /// A server runs already: nobody is asked, and inherited descriptors are closed.
    Closed,
}

impl KeyInput {
    /// The key file.
    pub(crate) fn path(&self) -> Option<&Path> {
        match &self.source {
            KeySource::File(path) => Some(path),
            _ => None,
        }
    }

    /// True if the user is asked, and so may try again after a wrong passphrase.
    pub(crate) fn asks_a_person(&self, stdin_use: StdinUse) -> bool {
        self.source == KeySource::Ask
            && match stdin_use {
                StdinUse::Free => Terminal::on_stdin().is_some(),
                StdinUse::Data => true,
                StdinUse::Closed => false,
            }
    }

    /// Whether the passphrase would come from a standard input that carries data.
    pub(crate) fn has_no_source(&self, stdin_use: StdinUse) -> bool {
        match (stdin_use, &self.source) {
            (StdinUse::Free, _) => false,
            (StdinUse::Data, KeySource::Ask) => Terminal::controlling().is_none(),
            (StdinUse::Data, source) => {
                matches!(source, KeySource::Stdin | KeySource::Descriptor(0))
            }
            (StdinUse::Closed, _) => false,
        }
    }

    /// Reads the passphrase or key of `what`, a name for the prompt and for errors.
    pub(crate) fn read(&self, what: &str, stdin_use: StdinUse) -> Result<SecretBytes, Failure> {
        self.check_running(what, stdin_use)?;
        match (&self.source, self.file(what, stdin_use)?) {
            (KeySource::Command(command), _) => Ok(command.read()?),
            (_, None) => self.ask(what, stdin_use),
            (_, Some(file)) => Ok(file.read()?),
        }
    }

    /// Like [`KeyInput::read`], but reads no more than the key needs from a file or descriptor,
    /// which may be endless (`/dev/urandom`, a disk).
    pub(crate) fn read_at_most(
        &self,
        what: &str,
        stdin_use: StdinUse,
        len_bytes_max: usize,
    ) -> Result<SecretBytes, Failure> {
        self.check_running(what, stdin_use)?;
        match self.file(what, stdin_use)? {
            Some(file) if file.source != keys::KeySource::Stdin => {
                Ok(file.read_at_most(len_bytes_max)?)
            }
            _ => self.read(what, stdin_use),
        }
    }

    /// A running server has no terminal, and the number of an inherited descriptor may be that of
    /// another file by now.
    fn check_running(&self, what: &str, stdin_use: StdinUse) -> Result<(), Failure> {
        let asks =
            matches!(self.source, KeySource::Ask | KeySource::Stdin | KeySource::Descriptor(_));
        if !asks || stdin_use != StdinUse::Closed {
            return Ok(());
        }
        Err(Failure::failed(format!(
            "the passphrase for {what} cannot be asked for while the server runs; name its source \
             in the configuration: key_file, key_command or key_credential"
        )))
    }

    /// The key file; `None` if a passphrase is asked for, or a command prints it.
    fn file(&self, what: &str, stdin_use: StdinUse) -> Result<Option<KeyFile>, Failure> {
        let source = match &self.source {
            KeySource::Ask | KeySource::Command(_) => return Ok(None),
            KeySource::Stdin | KeySource::Descriptor(0) if stdin_use == StdinUse::Data => {
                return Err(stdin_is_taken(what, SOURCES));
            }
            KeySource::Stdin => keys::KeySource::Stdin,
            KeySource::File(path) => keys::KeySource::File(path.clone()),
            KeySource::Descriptor(number) => keys::KeySource::Descriptor(*number),
            KeySource::Credential(name) => keys::KeySource::Credential(name.clone()),
        };
        Ok(Some(self.part_of(source)))
    }

    fn part_of(&self, source: keys::KeySource) -> KeyFile {
        KeyFile { source, offset_bytes: self.offset_bytes, len_bytes: self.len_bytes }
    }

    /// Asks twice, for a new passphrase.
    pub(crate) fn read_new(&self, what: &str) -> Result<SecretBytes, Failure> {
        let (KeySource::Ask, Some(terminal)) = (&self.source, Terminal::on_stdin()) else {
            return self.read(what, StdinUse::Free);
        };
        let first = terminal.ask_passphrase(&format!("Enter passphrase for {what}: "))?;
        let second = terminal.ask_passphrase("Verify passphrase: ")?;
        if first != second {
            return Err(Failure::no_permission("the two passphrases differ"));
        }
        Ok(first)
    }

    fn ask(&self, what: &str, stdin_use: StdinUse) -> Result<SecretBytes, Failure> {
        let terminal = match stdin_use {
            StdinUse::Free | StdinUse::Closed => Terminal::on_stdin(),
            StdinUse::Data => {
                Some(Terminal::controlling().ok_or_else(|| stdin_is_taken(what, SOURCES))?)
            }
        };
        match terminal {
            Some(terminal) => terminal.ask_passphrase(&format!("Enter passphrase for {what}: ")),
            None => match self.part_of(keys::KeySource::Stdin).read_line() {
                Err(KeyError::Nothing { .. }) => Err(Failure::failed(format!(
                    "standard input has no passphrase for {what}; type it at a terminal, or \
                         use --key-file or --key-command (in a configuration, `key_file` or \
                         `key_command`)"
                ))),
                line => Ok(line?),
            },
        }
    }
}

/// Options for a passphrase that neither a person nor standard input gives.
const SOURCES: &str = "--key-file FILE, --key-fd N or --key-command COMMAND";

/// The error of a passphrase that cannot be read, with the options that give it another way.
pub(crate) fn stdin_is_taken(what: &str, options: &str) -> Failure {
    Failure::failed(format!(
        "standard input carries the data, so the passphrase for {what} cannot come from there; \
         use {options}"
    ))
}
