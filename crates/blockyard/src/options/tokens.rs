//! The key of a volume by the tokens of its header.

use std::fmt;

use blockyard_crypt::luks::{Header, UnlockOptions};
use blockyard_crypt::luks2::{TokenChoice, UsableToken};
use blockyard_crypt::params::VolumePart;
use blockyard_crypt::secret::SecretBytes;

use super::{Locked, LockedKind, Luks, VolumeKey};
use crate::Error;
use crate::error::contained;
use crate::keys::{Attempt, passphrase_of};

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
            let attempt = Attempt::of(choice);
            let mut failures = Vec::new();
            for token in usable {
                let kind = token.token.kind().to_owned();
                match luks.opened_by(&token, attempt) {
                    Ok(Some(key)) => return Ok(ByToken { key: Some(key), failures }),
                    Ok(None) => {}
                    Err(problem) => {
                        failures.push(TokenFailure { number: token.number, kind, problem });
                    }
                }
            }
            Ok(ByToken { key: None, failures })
        })
    }
}

impl Luks {
    /// The key; `None` if a person types the passphrase, or the keyslots are not to be tried.
    fn opened_by(
        &self,
        token: &UsableToken,
        attempt: Attempt,
    ) -> Result<Option<VolumeKey>, String> {
        let wanted = self.options.keyslot;
        let mut keyslots = token.keyslots.clone();
        keyslots.retain(|keyslot| wanted.is_none_or(|wanted| wanted == *keyslot));
        if keyslots.is_empty() {
            return Ok(None);
        }
        let Some(passphrase) = passphrase_of(&token.token, attempt)? else { return Ok(None) };
        self.key_of_one(&keyslots, &passphrase, attempt).map(Some)
    }

    /// The key, by the first of these keyslots that the passphrase opens.
    fn key_of_one(
        &self,
        keyslots: &[u32],
        passphrase: &SecretBytes,
        attempt: Attempt,
    ) -> Result<VolumeKey, String> {
        let mut problem = "its passphrase opens none of its keyslots".to_owned();
        for &keyslot in keyslots {
            attempt.check_time()?;
            match self.key_of(keyslot, passphrase) {
                Ok(key) => return Ok(key),
                Err(blockyard_crypt::Error::WrongPassphrase { .. }) => {}
                Err(error) => problem = error.to_string(),
            }
        }
        Err(problem)
    }

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

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::{Key, Volume, format::FormatOptions};

    #[test]
    fn no_key_derivation_begins_when_the_time_of_the_tokens_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let cheap = FormatOptions {
            size_bytes: Some(20 << 20),
            pbkdf_iterations: Some(4),
            pbkdf_memory_kib: Some(32),
            ..FormatOptions::default()
        };
        cheap.format(&image, &Key::passphrase("secret")).unwrap();
        let locked = Volume::options().read(&image).unwrap();
        let LockedKind::Luks(luks) = &locked.kind else { panic!("a LUKS volume") };
        let passphrase = SecretBytes::copy_of(b"secret");
        let key = |attempt| luks.key_of_one(&[0], &passphrase, attempt);
        let attempt = Attempt::of(&TokenChoice::default());
        assert!(key(attempt).is_ok());
        let over = Attempt { deadline: Instant::now(), ..attempt };
        assert_eq!(key(over).err().unwrap(), "the time for all tokens of the volume is over");
    }
}
