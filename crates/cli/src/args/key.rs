//! Options for the source of the passphrase or key.

use std::path::PathBuf;

use blockyard::keys::KeyCommand;
use clap::{Args, ValueHint};

use crate::failure::Failure;
use crate::key::{KeyInput, KeySource};
use crate::size::parse_size;

/// Source of the passphrase or key; the default is to ask at the terminal.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Key options")]
pub(crate) struct KeyArgs {
    /// Read the key from a file; `-` is standard input
    ///
    /// The file is read byte for byte, and standard input to its end.
    /// A passphrase typed at the terminal, or piped into standard input without this option, ends
    /// at its newline. A key file is used exactly as it is, including newlines, and has at most 8
    /// MiB.
    #[arg(short = 'd', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) key_file: Option<PathBuf>,

    /// Skip the first bytes of the key file
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0",
          hide_default_value = true)]
    pub(crate) keyfile_offset: u64,

    /// Read only this many bytes of the key file
    #[arg(short = 'l', long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) keyfile_size: Option<u64>,

    /// Read the key from an open file descriptor, like a key file
    #[arg(long, value_name = "N", conflicts_with = "key_file")]
    pub(crate) key_fd: Option<i32>,

    /// Run a command whose output is the passphrase
    ///
    /// One newline at the end of the output is removed. The command is split into words as a shell
    /// does, with quotes, but no shell runs it: use `sh -c '…'` for pipes and variables. It must
    /// end within 120 seconds.
    #[arg(long, value_name = "COMMAND", value_parser = parse_command,
          conflicts_with_all = ["key_file", "key_fd", "keyfile_offset", "keyfile_size"])]
    pub(crate) key_command: Option<KeyCommand>,

    /// Read the key from a credential of the systemd service, like a key file
    ///
    /// The name is that of LoadCredential= or LoadCredentialEncrypted= in the unit.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["key_file", "key_fd", "key_command"])]
    pub(crate) key_credential: Option<String>,
}

fn parse_command(text: &str) -> Result<KeyCommand, String> {
    KeyCommand::parse(text).map_err(|error| Failure::from(error).message)
}

impl KeyArgs {
    /// The source that the options describe.
    pub(crate) fn input(&self) -> KeyInput {
        // At most one of them is given.
        let file = self.key_file.as_ref().map(|path| match path.as_os_str() {
            name if name == "-" => KeySource::Stdin,
            _ => KeySource::File(path.clone()),
        });
        let source = file
            .or_else(|| self.key_fd.map(KeySource::Descriptor))
            .or_else(|| self.key_command.clone().map(KeySource::Command))
            .or_else(|| self.key_credential.clone().map(KeySource::Credential))
            .unwrap_or(KeySource::Ask);
        KeyInput { source, offset_bytes: self.keyfile_offset, len_bytes: self.keyfile_size }
    }
}
