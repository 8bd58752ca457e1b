//! The key of a volume by the tokens of its header.

use std::fmt;

use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::luks2::TokenChoice;
use blockyard_crypt::params::VolumePart;
use blockyard_crypt::secret::SecretBytes;

use super::{Locked, LockedKind, Luks, VolumeKey};
use crate::Error;
use crate::error::contained;
use crate::keys::{Attempt, by_token};

/// Result of [`Locked::unlock_by_token`].
#[derive(Debug, Default)]
pub struct ByToken {
    /// The key, if a token has opened the volume.
    pub key: Option<VolumeKey>,
    /// The tokens that did not open it. Those whose passphrase a person types are not among them.
    pub failures: Vec<TokenFailure>,
}

/// A token that did not open the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFailure {
    /// Its number.
    pub number: u32,
    /// Its type.
    pub kind: String,
    /// The reason.
    pub problem: String,
}

impl fmt::Display for TokenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} ({}): {}", self.number, self.kind, self.problem)
    }
}

impl Locked {
    /// Tries the tokens of a LUKS2 header, those of keyslots with a higher priority first. One that
    /// fails does not stop the next. Together they have 60 seconds.
    ///
    /// The header decides what happens: one request by HTTP to a host of its choice for each token
    /// of tang, and known programs (clevis with its pins tang, tpm2 and sss of these; tpm2-tools).
    /// Other programs run only for the token that [`TokenChoice::number`] chooses.
    ///
    /// # Errors
    /// The volume needs an unsupported feature.
    pub fn unlock_by_token(&self, choice: &TokenChoice) -> Result<ByToken, Error> {
        contained(|| {
            let LockedKind::Luks(luks) = &self.kind else { return Ok(ByToken::default()) };
            let Header::Luks2(header) = &luks.header else { return Ok(ByToken::default()) };
            let usable = header.usable_tokens(choice);
            let usable = usable.map_err(|error| Error::crypt(&self.path, error))?;
            let wanted = luks.options.keyslot;
            let attempt = Attempt::of(choice);
            let (key, failures) = by_token(usable, wanted, attempt, |keyslot, passphrase| {
                luks.key_of(keyslot, passphrase)
            });
            Ok(ByToken { key, failures })
        })
    }
}

impl Luks {
    fn key_of(
        &self,
        keyslot: u32,
        passphrase: &SecretBytes,
    ) -> Result<VolumeKey, blockyard_crypt::Error> {
        let options = UnlockOptions { keyslot: Some(keyslot), ..self.options };
        self.params_with(passphrase, &options)
            .map(|params| VolumeKey::of(vec![VolumePart::Crypt(params)]))
    }
}
