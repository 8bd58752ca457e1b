//! Options for the source of the passphrase or key.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use crate::key::{KeyInput, KeySource};
use crate::size::parse_size;

/// Source of the passphrase or key; the default is to ask at the terminal.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Key options")]
pub(crate) struct KeyArgs {
    /// Read the key from a file, byte for byte; `-` is standard input to its end
    ///
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
}

impl KeyArgs {
    /// The source that the options describe.
    pub(crate) fn input(&self) -> KeyInput {
        let source = match (&self.key_file, self.key_fd) {
            (Some(path), _) if path.as_os_str() == "-" => KeySource::Stdin,
            (Some(path), _) => KeySource::File(path.clone()),
            (None, Some(number)) => KeySource::Descriptor(number),
            (None, None) => KeySource::Ask,
        };
        KeyInput { source, offset_bytes: self.keyfile_offset, len_bytes: self.keyfile_size }
    }
}
