//! Options for the tokens of a LUKS2 header.

use blockyard::keys::TokenChoice;
use clap::Args;

use crate::volume_spec::TokenUse;

/// Options with which a person asks for tokens.
const ASKING: [&str; 3] = ["token_only", "token_id", "token_type"];

/// Tokens that may open the volume.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Key options")]
pub(crate) struct TokenArgs {
    /// Do not try the tokens of the LUKS2 header: contact no server and start no program
    ///
    /// A header can name any server. Use this for images from others.
    #[arg(long, conflicts_with_all = ASKING)]
    pub(crate) no_token: bool,

    /// Open with a token of the LUKS2 header, and ask for no passphrase
    ///
    /// Without a key option the tokens are tried first, and then the passphrase is asked for.
    #[arg(long, conflicts_with_all = ["key_file", "key_fd", "key_command", "key_credential"])]
    pub(crate) token_only: bool,

    /// Try only this token, even if the priority of its keyslot is "ignore"
    ///
    /// The token may run the program of any pin of clevis. Without this option only the pins tang,
    /// tpm2, and sss of these are tried.
    #[arg(long, value_name = "N",
          conflicts_with_all = ["key_file", "key_fd", "key_command", "key_credential"])]
    pub(crate) token_id: Option<u32>,

    /// Try only tokens of this type, for example clevis or systemd-tpm2
    #[arg(long, value_name = "TYPE",
          conflicts_with_all = ["key_file", "key_fd", "key_command", "key_credential"])]
    pub(crate) token_type: Option<String>,
}

impl TokenArgs {
    /// The use of tokens that the options describe.
    pub(crate) fn token_use(&self) -> TokenUse {
        let choice = TokenChoice { number: self.token_id, kind: self.token_type.clone() };
        TokenUse { never: self.no_token, only: self.token_only, choice }
    }
}
