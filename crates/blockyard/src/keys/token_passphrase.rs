//! The passphrase of a token, from a tang server, a TPM, a keyring or a program.
//!
//! | token | source |
//! |---|---|
//! | `clevis` with the pin `tang` | one exchange with the server |
//! | `clevis` with another pin | the program `clevis` |
//! | `systemd-tpm2` | the programs of tpm2-tools |
//! | `luks2-keyring` | the keyrings of the kernel |
//!
//! No secret is in the arguments of a program: it gets data as its standard input, and its standard
//! output is the secret.

mod http;
mod tpm2;

use std::io;
use std::process::Command;
use std::time::Duration;

use blockyard_crypt::luks2::{Jwe, TangExchange, Token, TokenKind};
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::keyring;

use super::process::{Messages, ProcessError, output_of};

/// Time in which a program must end.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Gets the passphrase. `None`: a person types it.
///
/// # Errors
/// The reason as a text.
pub(crate) fn passphrase_of(token: &Token) -> Result<Option<SecretBytes>, String> {
    match token.understand().map_err(|error| error.to_string())? {
        TokenKind::Recovery => Ok(None),
        TokenKind::Tpm2(tpm2) => tpm2::unsealed(&tpm2).map(Some),
        TokenKind::Clevis(jwe) => clevis(&jwe).map(Some),
        TokenKind::Keyring(description) => keyring::user_key(&description)
            .map(Some)
            .map_err(|error| format!("the key \"{description}\" of the keyring: {error}")),
        TokenKind::Other => Err("tokens of this type are not supported".to_owned()),
    }
}

fn clevis(jwe: &Jwe) -> Result<SecretBytes, String> {
    if jwe.pin() == "tang" {
        return tang(jwe);
    }
    run("clevis", &["decrypt"], jwe.compact().as_bytes())
        .map_err(|problem| format!("pin {}: {problem}", jwe.pin()))
}

fn tang(jwe: &Jwe) -> Result<SecretBytes, String> {
    let exchange = TangExchange::new(jwe).map_err(|error| error.to_string())?;
    let answer = http::post(exchange.url(), &exchange.path(), &exchange.request())
        .map_err(|problem| format!("the tang server {}: {problem}", exchange.url()))?;
    exchange.open(&answer).map_err(|error| format!("{}: {error}", exchange.url()))
}

/// Runs a program, which is named in the error.
fn run(program: &str, arguments: &[&str], input: &[u8]) -> Result<SecretBytes, String> {
    let mut command = Command::new(program);
    output_of(command.args(arguments), input, Messages::Kept, TIME_LIMIT).map_err(|error| {
        match error {
            ProcessError::Start(error) if error.kind() == io::ErrorKind::NotFound => {
                format!("the program {program} is needed, and is not installed")
            }
            error => format!("{program}: {error}"),
        }
    })
}
