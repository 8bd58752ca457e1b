//! The passphrase of a token, from a tang server, a TPM, a keyring or a program.
//!
//! | token | source |
//! |---|---|
//! | `clevis` with the pin `tang` | one exchange with the server |
//! | `clevis` with another pin | the program `clevis`; a pin that is not known only on request |
//! | `systemd-tpm2` | the programs of tpm2-tools |
//! | `luks2-keyring` | the keyrings of the kernel |
//!
//! No secret is in the arguments of a program: it gets data as its standard input, and its standard
//! output is the secret.
//!
//! The header is untrusted, and nothing has been typed yet. So one deadline holds for all tokens of
//! a volume, and no program runs whose name or options the header chooses, unless a person has
//! chosen the token by its number.

mod http;
mod tpm2;

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use blockyard_crypt::Error as CryptError;
use blockyard_crypt::luks2::{Jwe, TangExchange, Token, TokenChoice, TokenKind, UsableToken};
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::keyring;

use crate::TokenFailure;

use super::process::{Messages, ProcessError, output_of};

/// Time in which a program must end.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time for all tokens of a volume. A key derivation that has begun in it may end later.
const TIME_LIMIT_OF_ALL: Duration = Duration::from_secs(60);

/// How a token is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// A person has chosen this token, so it may run any program.
    pub(crate) is_chosen: bool,
    /// End of the time of all tokens of the volume.
    pub(crate) deadline: Instant,
}

impl Attempt {
    /// The attempt of all tokens that the choice permits, from now on.
    pub(crate) fn of(choice: &TokenChoice) -> Self {
        let deadline = Instant::now() + TIME_LIMIT_OF_ALL;
        Self { is_chosen: choice.number.is_some(), deadline }
    }

    /// Checks that the time of all tokens is not over.
    fn check_time(&self) -> Result<(), String> {
        left(self.deadline, TIME_LIMIT).map(drop)
    }
}

/// Passes the passphrases of tokens to `open`, each with the keyslots of its token, until one
/// opens. Tokens whose passphrase a person types are left out, and so are keyslots other than the
/// wanted one.
pub(crate) fn by_token<T>(
    usable: Vec<UsableToken>,
    wanted: Option<u32>,
    attempt: Attempt,
    mut open: impl FnMut(u32, &SecretBytes) -> Result<T, CryptError>,
) -> (Option<T>, Vec<TokenFailure>) {
    let mut failures = Vec::new();
    for UsableToken { number, token, mut keyslots, .. } in usable {
        keyslots.retain(|keyslot| wanted.is_none_or(|wanted| wanted == *keyslot));
        if keyslots.is_empty() {
            continue;
        }
        let opened = match passphrase_of(&token, attempt) {
            Ok(Some(passphrase)) => of_one(&keyslots, &passphrase, attempt, &mut open),
            Ok(None) => continue,
            Err(problem) => Err(problem),
        };
        match opened {
            Ok(opened) => return (Some(opened), failures),
            Err(problem) => {
                failures.push(TokenFailure { number, kind: token.kind().to_owned(), problem });
            }
        }
    }
    (None, failures)
}

/// The result for the first of these keyslots that the passphrase opens.
fn of_one<T>(
    keyslots: &[u32],
    passphrase: &SecretBytes,
    attempt: Attempt,
    open: &mut impl FnMut(u32, &SecretBytes) -> Result<T, CryptError>,
) -> Result<T, String> {
    let mut problem = "its passphrase opens none of its keyslots".to_owned();
    for &keyslot in keyslots {
        attempt.check_time()?;
        match open(keyslot, passphrase) {
            Ok(opened) => return Ok(opened),
            Err(CryptError::WrongPassphrase { .. }) => {}
            Err(error) => problem = error.to_string(),
        }
    }
    Err(problem)
}

/// Gets the passphrase. `None`: a person types it.
///
/// # Errors
/// The reason as a text.
fn passphrase_of(token: &Token, attempt: Attempt) -> Result<Option<SecretBytes>, String> {
    match token.understand().map_err(|error| error.to_string())? {
        TokenKind::Recovery => Ok(None),
        TokenKind::Tpm2(tpm2) => tpm2::unsealed(&tpm2, attempt.deadline).map(Some),
        TokenKind::Clevis(jwe) => clevis(&jwe, attempt).map(Some),
        TokenKind::Keyring(description) => keyring::user_key(&description)
            .map(Some)
            .map_err(|error| format!("the key \"{description}\" of the keyring: {error}")),
        TokenKind::Other => Err("tokens of this type are not supported".to_owned()),
    }
}

fn clevis(jwe: &Jwe, attempt: Attempt) -> Result<SecretBytes, String> {
    if jwe.pin() == "tang" {
        return tang(jwe, attempt.deadline);
    }
    if !attempt.is_chosen {
        jwe.check_known_pins().map_err(|problem| {
            format!(
                "{problem}; the program of the pin runs only if `TokenChoice::number` chooses this \
                 token"
            )
        })?;
    }
    run("clevis", &["decrypt"], jwe.compact().as_bytes(), attempt.deadline)
        .map_err(|problem| format!("pin {}: {problem}", jwe.pin()))
}

fn tang(jwe: &Jwe, deadline: Instant) -> Result<SecretBytes, String> {
    let exchange = TangExchange::new(jwe).map_err(|error| error.to_string())?;
    let answer = http::post(exchange.url(), &exchange.path(), &exchange.request(), deadline)
        .map_err(|problem| format!("the tang server {}: {problem}", exchange.url()))?;
    exchange.open(&answer).map_err(|error| format!("{}: {error}", exchange.url()))
}

/// Time until the deadline, at most `limit`.
fn left(deadline: Instant, limit: Duration) -> Result<Duration, String> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err("the time for all tokens of the volume is over".to_owned());
    }
    Ok(left.min(limit))
}

/// Runs a program, which is named in the error.
fn run(
    program: &str,
    arguments: &[&str],
    input: &[u8],
    deadline: Instant,
) -> Result<SecretBytes, String> {
    let limit = left(deadline, TIME_LIMIT)?;
    let mut command = Command::new(program);
    output_of(command.args(arguments), input, Messages::Kept, limit).map_err(|error| match error {
        ProcessError::Start(error) if error.kind() == io::ErrorKind::NotFound => {
            format!("the program {program} is needed, and is not installed")
        }
        error => format!("{program}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_derivation_begins_when_the_time_of_the_tokens_is_over() {
        let mut derived = 0;
        let mut open = |_, _: &SecretBytes| {
            derived += 1;
            Ok(())
        };
        let passphrase = SecretBytes::copy_of(b"secret");
        let attempt = Attempt::of(&TokenChoice::default());
        assert!(of_one(&[0], &passphrase, attempt, &mut open).is_ok());
        let over = Attempt { deadline: Instant::now(), ..attempt };
        let refused = of_one(&[0], &passphrase, over, &mut open).unwrap_err();
        assert_eq!(refused, "the time for all tokens of the volume is over");
        assert_eq!(derived, 1);
    }

    #[test]
    fn program_is_not_started_after_the_time_of_all_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("started");
        let arguments = [path.to_str().unwrap()];
        let over = run("touch", &arguments, b"", Instant::now()).unwrap_err();
        assert!(over.contains("time for all tokens"), "{over}");
        assert!(!path.exists());
        let short = Instant::now() + Duration::from_millis(50);
        assert!(run("sleep", &["1000"], b"", short).unwrap_err().contains("did not end"));
    }
}
