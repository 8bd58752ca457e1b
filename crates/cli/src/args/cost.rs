//! Options for the cost of trying a passphrase.

use blockyard::format::Pbkdf;
use clap::{Args, ValueEnum};

/// Cost of trying a passphrase.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Key derivation options")]
pub(crate) struct CostArgs {
    /// Key derivation function; the default is argon2id, and pbkdf2 for a keyslot of LUKS1
    #[arg(long, value_enum)]
    pub(crate) pbkdf: Option<PbkdfName>,

    /// Duration of one try here, in milliseconds
    #[arg(short = 'i', long, value_name = "MS", default_value_t = 2000,
          value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) iter_time: u64,

    /// Limit of argon2's memory; the default is 1 GiB, and at most half of the machine's
    #[arg(long, value_name = "KIB")]
    pub(crate) pbkdf_memory: Option<u32>,

    /// Threads of argon2; the default is one for each CPU, at most 4
    #[arg(long, value_name = "N")]
    pub(crate) pbkdf_parallel: Option<u32>,

    /// Iterations of PBKDF2 or passes of argon2, instead of measuring
    #[arg(long, value_name = "N")]
    pub(crate) pbkdf_force_iterations: Option<u32>,
}

/// Values of `--pbkdf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PbkdfName {
    Argon2id,
    Argon2i,
    Pbkdf2,
}

impl From<PbkdfName> for Pbkdf {
    fn from(name: PbkdfName) -> Self {
        match name {
            PbkdfName::Argon2id => Self::Argon2id,
            PbkdfName::Argon2i => Self::Argon2i,
            PbkdfName::Pbkdf2 => Self::Pbkdf2,
        }
    }
}
