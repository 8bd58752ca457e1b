//! JSON Web Encryption (RFC 7516) as clevis uses it: AES-256-GCM under a key that a pin gives.

use std::fmt;

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use super::super::tree::{Node, TreeError, parse_text};
use crate::error::Error;
use crate::secret::SecretBytes;

/// Length of the key of A256GCM.
pub(super) const KEY_LEN_BYTES: usize = 32;
const NONCE_LEN_BYTES: usize = 12;
const TAG_LEN_BYTES: usize = 16;

/// An encrypted text. Its parts are in base64url.
#[derive(Clone, PartialEq)]
pub struct Jwe {
    protected: String,
    encrypted_key: String,
    iv: String,
    ciphertext: String,
    tag: String,
    /// The decoded protected header.
    pub(super) header: Value,
    pin: String,
}

impl fmt::Debug for Jwe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Jwe({})", self.pin)
    }
}

impl Jwe {
    pub(super) fn of(node: &Node<'_>) -> Result<Self, TreeError> {
        let part = |key: &str| Ok(node.get(key)?.text()?.to_owned());
        let protected = part("protected")?;
        let of_protected = |problem: String| match node.get("protected") {
            Ok(node) => node.error(problem),
            Err(error) => error,
        };
        let header = decoded(&protected).ok_or_else(|| of_protected("no base64url".to_owned()))?;
        let header = parse_text(&header).map_err(of_protected)?;
        let pin = Node::root(&header).get("clevis").and_then(|clevis| {
            let pin = clevis.get("pin")?;
            Ok(pin.name()?.to_owned())
        });
        let pin =
            pin.map_err(|error| of_protected(format!("{}: {}", error.path, error.problem)))?;
        let encrypted_key = match node.object()?.get("encrypted_key") {
            None => String::new(),
            Some(key) => key.as_str().unwrap_or_default().to_owned(),
        };
        let iv = part("iv")?;
        let ciphertext = part("ciphertext")?;
        let tag = part("tag")?;
        Ok(Self { protected, encrypted_key, iv, ciphertext, tag, header, pin })
    }

    /// The pin: `tang`, `tpm2`, `sss` or another.
    #[must_use]
    pub fn pin(&self) -> &str {
        &self.pin
    }

    /// The compact form, which `clevis decrypt` reads.
    #[must_use]
    pub fn compact(&self) -> String {
        let parts = [&self.protected, &self.encrypted_key, &self.iv, &self.ciphertext, &self.tag];
        parts.map(String::as_str).join(".")
    }

    /// Decrypts the text.
    ///
    /// # Errors
    /// A part is malformed, or the key is wrong.
    pub(super) fn decrypt(&self, key: &SecretBytes) -> Result<SecretBytes, Error> {
        let part = |name: &'static str, text: &str| {
            decoded(text).ok_or_else(|| Error::header(format!("jwe.{name}"), "no base64url"))
        };
        let sized = |name: &'static str, text: &str, len: usize| match part(name, text)? {
            bytes if bytes.len() == len => Ok(bytes),
            _ => Err(Error::header(format!("jwe.{name}"), format!("it must have {len} bytes"))),
        };
        let iv = sized("iv", &self.iv, NONCE_LEN_BYTES)?;
        let tag = sized("tag", &self.tag, TAG_LEN_BYTES)?;
        let mut text = SecretBytes::copy_of(&part("ciphertext", &self.ciphertext)?);
        let key: &[u8; KEY_LEN_BYTES] = key.as_slice().try_into().expect("a derived key");
        let nonce = Nonce::try_from(iv.as_slice()).expect("checked: its length");
        let tag = Tag::try_from(tag.as_slice()).expect("checked: its length");
        Aes256Gcm::new(key.into())
            .decrypt_inout_detached(
                &nonce,
                self.protected.as_bytes(),
                text.as_mut_slice().into(),
                &tag,
            )
            .map_err(|_| Error::header("jwe", "the key of the pin does not decrypt it"))?;
        Ok(text)
    }
}

pub(super) fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

pub(super) fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
