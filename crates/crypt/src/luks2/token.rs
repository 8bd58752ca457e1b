//! Tokens: where the passphrase of a keyslot comes from, as JSON in the header.
//!
//! | type | passphrase | source |
//! |---|---|---|
//! | `systemd-recovery` | typed | `systemd-cryptenroll(1)` |
//! | `systemd-tpm2` | base64 text of a secret that a TPM unseals | systemd's `tpm2-util.c` |
//! | `clevis` | plaintext of a JWE | clevis' `src/luks/` |
//! | `luks2-keyring` | a key of the kernel's keyring | LUKS2 specification, 3.6 |
//!
//! The values are untrusted. Nothing is computed with them here; they are checked for their form.

mod jwe;
mod known_pins;
mod tang;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use super::Header;
use super::metadata::Priority;
use super::tree::{Node, TreeError, parse_text};
use crate::error::Error;

pub use jwe::Jwe;
pub use tang::TangExchange;

/// Longest text of a token: it must fit into the JSON area of a header.
const TEXT_LEN_MAX_BYTES: usize = 4 << 20;
/// PCRs of a TPM.
const PCRS: u32 = 24;
/// Longest blob of a TPM: two structures of at most 64 KiB.
const BLOB_LEN_MAX_BYTES: usize = 128 << 10;
/// First byte of handles of persistent objects in a TPM.
const PERSISTENT: u32 = 0x81;
/// Prefix of cryptsetup's own types.
const BUILT_IN: &str = "luks2-";
const KEYRING: &str = "luks2-keyring";

/// A token, in its form checked: an object with a type and an array of keyslots.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    document: Value,
    kind: String,
}

/// A token by its type, with the parts that its passphrase needs.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenKind {
    /// `systemd-recovery`: a person types the passphrase.
    Recovery,
    /// `systemd-tpm2`: a TPM unseals it.
    Tpm2(Tpm2Token),
    /// `clevis`: it is encrypted.
    Clevis(Box<Jwe>),
    /// `luks2-keyring`: it is the key of type `user` with this description.
    Keyring(String),
    /// Another type.
    Other,
}

/// Fields of `systemd-tpm2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tpm2Token {
    /// The sealed object: a TPM2B_PRIVATE.
    pub private: Vec<u8>,
    /// Its public part: a TPM2B_PUBLIC.
    pub public: Vec<u8>,
    /// PCRs of the policy.
    pub pcrs: BTreeSet<u32>,
    /// Hash of the PCRs.
    pub pcr_bank: PcrBank,
    /// The key under which the object is sealed.
    pub primary: PrimaryKey,
}

/// Hash of a bank of PCRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcrBank {
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl fmt::Display for PcrBank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        })
    }
}

/// The key of a TPM under which the object is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimaryKey {
    /// Derived from the owner's seed: ECC on NIST P-256.
    Ecc,
    /// Derived from the owner's seed: RSA of 2048 bits.
    Rsa,
    /// Kept in the TPM under this handle: the storage root key.
    Persistent(u32),
}

/// The tokens that may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenChoice {
    /// Only this one, even if the priority of its keyslots is "ignore".
    pub number: Option<u32>,
    /// Only those of this type.
    pub kind: Option<String>,
}

/// A token of keyslots that hold the key of the data.
#[derive(Clone, Debug, PartialEq)]
pub struct UsableToken {
    /// Its number.
    pub number: u32,
    /// The token.
    pub token: Token,
    /// The keyslots to try, those of the highest priority first.
    pub keyslots: Vec<u32>,
}

impl Token {
    /// Reads the JSON of a token, as of `cryptsetup token export`.
    ///
    /// # Errors
    /// It is longer than 4 MiB, no JSON, nested too deep, has no type or no keyslots, or has a type
    /// that cryptsetup keeps for itself.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let whole = |problem: String| Error::field("json", problem);
        if text.len() > TEXT_LEN_MAX_BYTES {
            return Err(whole("it is longer than 4 MiB".to_owned()));
        }
        let document = parse_text(text).map_err(whole)?;
        Self::of(&document).map_err(|error| {
            let place = if error.path.is_empty() { "" } else { ": " };
            whole(format!("{}{place}{}", error.path, error.problem))
        })
    }

    fn of(document: &Value) -> Result<Self, TreeError> {
        let node = Node::root(document);
        let kind = node.get("type")?.name()?.to_owned();
        for keyslot in node.get("keyslots")?.array()? {
            keyslot.text()?;
        }
        if kind == KEYRING {
            node.get("key_description")?.text()?;
            if node.object()?.len() != 3 {
                return Err(node.error("a keyring token has three fields"));
            }
        } else if kind.starts_with(BUILT_IN) {
            let problem = format!("types that begin with {BUILT_IN} are cryptsetup's own");
            return Err(node.get("type")?.error(problem));
        }
        Ok(Self { document: document.clone(), kind })
    }

    /// The type.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The keyslots, as they are written.
    #[must_use]
    pub fn keyslots(&self) -> Vec<&str> {
        let keyslots = self.document["keyslots"].as_array().expect("checked: an array");
        keyslots.iter().filter_map(Value::as_str).collect()
    }

    pub(super) fn document(&self) -> &Value {
        &self.document
    }

    /// The parts that the token needs for its passphrase.
    ///
    /// # Errors
    /// A field is missing or of the wrong type, or a value has a meaning that is not supported.
    pub fn understand(&self) -> Result<TokenKind, Error> {
        let node = Node::root(&self.document);
        let understood = match self.kind.as_str() {
            "systemd-recovery" => Ok(TokenKind::Recovery),
            "systemd-tpm2" => Tpm2Token::of(&node).map(TokenKind::Tpm2),
            "clevis" => node
                .get("jwe")
                .and_then(|jwe| Jwe::of(&jwe))
                .map(|jwe| TokenKind::Clevis(Box::new(jwe))),
            KEYRING => node
                .get("key_description")
                .and_then(|node| Ok(TokenKind::Keyring(node.text()?.to_owned()))),
            _ => Ok(TokenKind::Other),
        };
        understood.map_err(|error| Error::header(error.path, error.problem))
    }
}

impl fmt::Display for Token {
    /// The JSON, in the bytes of `cryptsetup token export`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.document.fmt(f)
    }
}

impl Tpm2Token {
    fn of(node: &Node<'_>) -> Result<Self, TreeError> {
        if node.flag("tpm2-pin")? {
            return Err(node.get("tpm2-pin")?.error("a PIN is not supported"));
        }
        for key in ["tpm2_pubkey", "tpm2_pubkey_pcrs", "tpm2_pcrlock", "tpm2_pcrlock_nv"] {
            // systemd writes an empty list where it means none.
            let is_used = |value: &Value| match value {
                Value::Null | Value::Bool(false) => false,
                Value::Array(list) => !list.is_empty(),
                _ => true,
            };
            if node.object()?.get(key).is_some_and(is_used) {
                return Err(node.get(key)?.error("this policy or key is not supported"));
            }
        }
        let (private, public) = split_blob(&node.get("tpm2-blob")?)?;
        let pcrs = node.get("tpm2-pcrs")?.array()?;
        let pcrs = pcrs.iter().map(|pcr| match pcr.u32()? {
            number if number < PCRS => Ok(number),
            _ => Err(pcr.error(format!("a TPM has PCRs 0 to {}", PCRS - 1))),
        });
        let bank = node.find("tpm2-pcr-bank")?;
        let pcr_bank = match bank.as_ref().map(|bank| bank.text()).transpose()? {
            None | Some("sha256") => PcrBank::Sha256,
            Some("sha1") => PcrBank::Sha1,
            Some("sha384") => PcrBank::Sha384,
            Some("sha512") => PcrBank::Sha512,
            Some(_) => return Err(node.get("tpm2-pcr-bank")?.error("this hash is not supported")),
        };
        let primary = primary_key(node)?;
        Ok(Self { private, public, pcrs: pcrs.collect::<Result<_, _>>()?, pcr_bank, primary })
    }
}

fn primary_key(node: &Node<'_>) -> Result<PrimaryKey, TreeError> {
    if let Some(srk) = node.find("tpm2_srk")? {
        // A serialised ESYS_TR begins with the handle.
        let handle = srk.base64()?.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        let persistent = handle.filter(|handle| handle >> 24 == PERSISTENT);
        return persistent
            .map(PrimaryKey::Persistent)
            .ok_or_else(|| srk.error("it is no persistent key"));
    }
    let kind = node.find("tpm2-primary-alg")?;
    match kind.as_ref().map(|kind| kind.text()).transpose()? {
        None | Some("ecc") => Ok(PrimaryKey::Ecc),
        Some("rsa") => Ok(PrimaryKey::Rsa),
        Some(_) => Err(node.get("tpm2-primary-alg")?.error("it is neither ecc nor rsa")),
    }
}

/// Splits `TPM2B_PRIVATE ‖ TPM2B_PUBLIC`, each with its length in front as two bytes.
fn split_blob(node: &Node<'_>) -> Result<(Vec<u8>, Vec<u8>), TreeError> {
    let blob = node.base64()?;
    if blob.len() > BLOB_LEN_MAX_BYTES {
        return Err(node.error("it is longer than 128 KiB"));
    }
    let first = |bytes: &[u8]| {
        let len = u16::from_be_bytes(*bytes.first_chunk()?);
        bytes
            .split_at_checked(2 + usize::from(len))
            .map(|(one, rest)| (one.to_vec(), rest.to_vec()))
    };
    let parts = first(&blob).and_then(|(private, rest)| Some((private, first(&rest)?)));
    match parts {
        Some((private, (public, rest))) if rest.is_empty() => Ok((private, public)),
        Some(_) => Err(node.error("it has a third part, which is not supported")),
        None => Err(node.error("it ends within a part")),
    }
}

impl Header {
    /// The tokens, in the order of their numbers.
    ///
    /// # Errors
    /// A token violates its format.
    pub fn tokens(&self) -> Result<Vec<(u32, Token)>, Error> {
        let numbers = self.metadata.tokens.keys();
        numbers.map(|number| Ok((*number, self.token(*number)?))).collect()
    }

    /// A token.
    ///
    /// # Errors
    /// There is none with this number, or it violates its format.
    pub fn token(&self, number: u32) -> Result<Token, Error> {
        let tokens: Option<&Map<String, Value>> = self.metadata.document["tokens"].as_object();
        let document = tokens.and_then(|tokens| tokens.get(&number.to_string()));
        let missing = || Error::field("token", format!("there is no token {number}"));
        let document = document.ok_or_else(missing)?;
        Token::of(document).map_err(|error| {
            Error::header(format!("tokens.{number}.{}", error.path), error.problem)
        })
    }

    /// The tokens that may open the volume: first those of a keyslot with priority "prefer", then
    /// those of normal ones, each by number.
    ///
    /// # Errors
    /// The volume needs an unsupported feature.
    pub fn usable_tokens(&self, choice: &TokenChoice) -> Result<Vec<UsableToken>, Error> {
        let (segment, ..) = self.data_segment()?;
        let lowest = match choice.number {
            Some(_) => Priority::Ignore,
            None => Priority::Normal,
        };
        let priority = |keyslot: &u32| self.metadata.keyslots[keyslot].priority;
        let mut usable = Vec::new();
        for (number, token) in &self.metadata.tokens {
            if choice.number.is_some_and(|wanted| wanted != *number)
                || choice.kind.as_ref().is_some_and(|wanted| *wanted != token.kind)
            {
                continue;
            }
            let Ok(body) = self.token(*number) else { continue };
            let mut keyslots: Vec<u32> = token.keyslots.iter().copied().collect();
            keyslots.retain(|keyslot| {
                priority(keyslot) >= lowest && self.metadata.digest_of(*keyslot, segment).is_some()
            });
            keyslots.sort_by_key(|keyslot| Reverse(priority(keyslot)));
            if !keyslots.is_empty() {
                usable.push(UsableToken { number: *number, token: body, keyslots });
            }
        }
        usable.sort_by_key(|token| Reverse(priority(&token.keyslots[0])));
        Ok(usable)
    }
}
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TPM2: &str = include_str!("../../../../testdata/tokens/systemd-tpm2.json");

    fn understood(document: &Value) -> Result<TokenKind, String> {
        Token::parse(document.to_string().as_bytes())
            .and_then(|token| token.understand())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn token_without_type_or_keyslots_is_refused() {
        for (text, named) in [
            ("", "no JSON"),
            ("[]", "it is an array, must be an object"),
            ("{}", "type: it is missing"),
            (r#"{"type":"a"}"#, "keyslots: it is missing"),
            (r#"{"type":1,"keyslots":[]}"#, "type: it is a number"),
            (r#"{"type":"a\u001b[2J","keyslots":[]}"#, "type: it is not printable"),
            (r#"{"type":"a","keyslots":[1]}"#, "keyslots[0]: it is a number"),
            (r#"{"type":"a","keyslots":"1"}"#, "keyslots: it is a string"),
            (r#"{"type":"luks2-other","keyslots":[]}"#, "cryptsetup's own"),
            (r#"{"type":"luks2-keyring","keyslots":[]}"#, "key_description: it is missing"),
            (
                r#"{"type":"luks2-keyring","keyslots":[],"key_description":"a","b":1}"#,
                "three fields",
            ),
            (r#"{"type":"a","keyslots":[]} {}"#, "no JSON"),
        ] {
            let error = Token::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        let deep = format!("{{\"a\":{}", "[".repeat(40));
        assert!(Token::parse(deep.as_bytes()).unwrap_err().to_string().contains("deeper"));
        let long = vec![b' '; TEXT_LEN_MAX_BYTES + 1];
        assert!(Token::parse(&long).unwrap_err().to_string().contains("4 MiB"));
    }

    #[test]
    fn token_of_systemd_names_object_and_policy() {
        let Ok(TokenKind::Tpm2(tpm2)) = understood(&serde_json::from_str(TPM2).unwrap()) else {
            panic!("it is not understood")
        };
        assert_eq!((tpm2.private.len(), tpm2.public.len()), (160, 80));
        assert_eq!(tpm2.pcrs, BTreeSet::from([7]));
        assert_eq!((tpm2.pcr_bank, tpm2.primary), (PcrBank::Sha256, PrimaryKey::Ecc));
    }

    #[test]
    fn token_of_systemd_with_other_fields_is_judged_by_them() {
        let with = |key: &str, value: Value| {
            let mut document: Value = serde_json::from_str(TPM2).unwrap();
            document[key] = value;
            understood(&document)
        };
        for (key, value, named) in [
            ("tpm2-blob", json!("AAEA"), "tpm2-blob: it ends within a part"),
            ("tpm2-blob", json!("AAAAAAAA"), "third part"),
            ("tpm2-blob", json!("?"), "no base64"),
            ("tpm2-blob", json!(7), "tpm2-blob: it is a number"),
            ("tpm2-pin", json!(true), "a PIN is not supported"),
            ("tpm2-pin", json!("yes"), "tpm2-pin: it is a string"),
            ("tpm2-pcrs", json!([24]), "tpm2-pcrs[0]: a TPM has PCRs 0 to 23"),
            ("tpm2-pcrs", json!(["7"]), "tpm2-pcrs[0]: it is a string"),
            ("tpm2-pcr-bank", json!("sha256:0+sha1"), "this hash is not supported"),
            ("tpm2-primary-alg", json!("dsa"), "neither ecc nor rsa"),
            ("tpm2_pubkey", json!("AAAA"), "tpm2_pubkey: this policy or key is not supported"),
            ("tpm2_srk", json!("gAAAAA=="), "tpm2_srk: it is no persistent key"),
            ("tpm2_srk", json!("gQ=="), "tpm2_srk: it is no persistent key"),
        ] {
            let error = with(key, value.clone()).unwrap_err();
            assert!(error.contains(named), "{key} {value}: {error}");
        }
        assert!(with("tpm2_pubkey_pcrs", json!([])).is_ok());
        let Ok(TokenKind::Tpm2(tpm2)) = with("tpm2_srk", json!("gQAAAQAi")) else {
            panic!("it is not understood")
        };
        assert_eq!(tpm2.primary, PrimaryKey::Persistent(0x8100_0001));
    }
}
