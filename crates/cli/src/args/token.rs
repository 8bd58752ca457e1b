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

/// Tokens that open the volume only because a person asks for them.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Key options")]
pub(crate) struct AskedTokenArgs {
    /// Open with a token of the LUKS2 header instead of an existing passphrase
    #[arg(long, conflicts_with_all = OTHER_OPENERS)]
    token_only: bool,

    /// Open with this token, even if the priority of its keyslot is "ignore"
    ///
    /// The token may run the program of any pin of clevis. Without this option only the pins tang,
    /// tpm2, and sss of these are tried.
    #[arg(long, value_name = "N", conflicts_with_all = OTHER_OPENERS)]
    token_id: Option<u32>,

    /// Open with a token of this type, for example clevis or systemd-tpm2
    #[arg(long, value_name = "TYPE", conflicts_with_all = OTHER_OPENERS)]
    token_type: Option<String>,
}

/// Options that open the volume in another way.
const OTHER_OPENERS: [&str; 6] =
    ["key_file", "key_fd", "key_command", "key_credential", "volume_key_file", "unbound"];

impl AskedTokenArgs {
    /// The tokens to try; `None`: none.
    pub(crate) fn choice(&self) -> Option<TokenChoice> {
        let asks = self.token_only || self.token_id.is_some() || self.token_type.is_some();
        asks.then(|| TokenChoice { number: self.token_id, kind: self.token_type.clone() })
    }
}

impl TokenArgs {
    /// The use of tokens that the options describe.
    pub(crate) fn token_use(&self) -> TokenUse {
        let choice = TokenChoice { number: self.token_id, kind: self.token_type.clone() };
        TokenUse { never: self.no_token, only: self.token_only, choice }
    }
}
