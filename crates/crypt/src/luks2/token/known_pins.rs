//! Pins whose programs may run without a question: tang, tpm2, and sss of these.
//!
//! clevis runs the program `clevis-decrypt-PIN` with values of the JWE, so a header decides what
//! runs. Pins that load modules (`pkcs11`) would run code of the header's choice. The known ones
//! pass some values on as arguments, to curl and tpm2-tools; those values must be plain words.

use serde_json::Value;

use super::super::tree::{Node, TreeError, parse_text};
use super::jwe::{Jwe, decoded};

/// Parts of one secret, with all nesting: each becomes a process.
const PARTS_MAX: usize = 32;
/// Deepest nesting of sss in sss.
const DEPTH_MAX: usize = 4;
/// Values that `clevis-decrypt-tpm2` passes on as arguments.
const TPM2_ARGUMENTS: [&str; 4] = ["hash", "key", "pcr_bank", "pcr_ids"];

impl Jwe {
    /// Checks that `clevis decrypt` would run programs of known pins only, with harmless arguments.
    ///
    /// # Errors
    /// The reason as a text.
    pub fn check_known_pins(&self) -> Result<(), String> {
        let mut parts_left = PARTS_MAX;
        check_header(&self.header, 0, &mut parts_left)
    }
}

fn check_header(header: &Value, depth: usize, parts_left: &mut usize) -> Result<(), String> {
    let clevis = Node::root(header).get("clevis").map_err(text)?;
    let pin = clevis.get("pin").map_err(text)?;
    match pin.name().map_err(text)? {
        "tang" => check_tang(&clevis).map_err(text),
        "tpm2" => check_tpm2(&clevis).map_err(text),
        "sss" => check_sss(&clevis, depth, parts_left),
        other => Err(format!("the pin {other} is not one of tang, tpm2 and sss")),
    }
}

/// The URL becomes an argument of curl, which takes options and many protocols.
fn check_tang(clevis: &Node<'_>) -> Result<(), TreeError> {
    let url = clevis.get("tang")?.get("url")?;
    let rest = url.name()?;
    let rest = rest.strip_prefix("http://").or_else(|| rest.strip_prefix("https://"));
    let host = rest.unwrap_or(url.name()?);
    if host.contains("://")
        || !host.starts_with(|first: char| first.is_alphanumeric() || first == '[')
    {
        return Err(url.error("it is no URL of the form http://HOST:PORT"));
    }
    Ok(())
}

fn check_tpm2(clevis: &Node<'_>) -> Result<(), TreeError> {
    let tpm2 = clevis.get("tpm2")?;
    for key in TPM2_ARGUMENTS {
        let Some(value) = tpm2.find(key)? else { continue };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b",:_".contains(&byte);
        if !value.text()?.bytes().all(is_plain) {
            return Err(value.error("it is no plain word"));
        }
    }
    Ok(())
}

fn check_sss(clevis: &Node<'_>, depth: usize, parts_left: &mut usize) -> Result<(), String> {
    if depth == DEPTH_MAX {
        return Err(format!("sss is nested deeper than {DEPTH_MAX} levels"));
    }
    let parts = clevis.get("sss").and_then(|sss| sss.get("jwe")?.array()).map_err(text)?;
    for part in parts {
        *parts_left = parts_left
            .checked_sub(1)
            .ok_or_else(|| format!("sss has more than {PARTS_MAX} parts"))?;
        let protected = part.text().map_err(text)?.split('.').next().unwrap_or_default();
        let header = decoded(protected)
            .ok_or_else(|| text(part.error("its header is no base64url")))
            .and_then(|header| parse_text(&header))?;
        check_header(&header, depth + 1, parts_left)?;
    }
    Ok(())
}

fn text(TreeError { path, problem, .. }: TreeError) -> String {
    format!("{path}: {problem}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::jwe::encoded;
    use super::super::{Token, TokenKind};
    use super::*;

    fn checked(clevis: &Value) -> Result<(), String> {
        let protected = encoded(json!({ "clevis": clevis }).to_string().as_bytes());
        let jwe = json!({"protected": protected, "iv": "YWI", "ciphertext": "YWI", "tag": "YWI"});
        let token = json!({"type": "clevis", "keyslots": ["0"], "jwe": jwe}).to_string();
        match Token::parse(token.as_bytes()).unwrap().understand().unwrap() {
            TokenKind::Clevis(jwe) => jwe.check_known_pins(),
            other => panic!("{other:?}"),
        }
    }

    /// A part of sss in the compact form.
    fn part(clevis: &Value) -> String {
        let header = json!({ "clevis": clevis }).to_string();
        format!("{}..YWI.YWI.YWI", encoded(header.as_bytes()))
    }

    fn sss(parts: &[Value]) -> Value {
        let parts: Vec<String> = parts.iter().map(part).collect();
        json!({"pin": "sss", "sss": {"t": 1, "p": "YWI", "jwe": parts}})
    }

    fn tang(url: &str) -> Value {
        json!({"pin": "tang", "tang": {"url": url, "adv": {}}})
    }

    fn tpm2(key: &str, value: &str) -> Value {
        json!({"pin": "tpm2", "tpm2": {"hash": "sha256", "key": "ecc", key: value}})
    }

    #[test]
    fn pins_of_clevis_without_code_of_the_header_are_known() {
        for clevis in [
            tang("http://tang.example:7500/a"),
            tang("https://tang.example"),
            tang("tang.example"),
            tang("http://[::1]:80"),
            tpm2("pcr_ids", "0,1,16"),
            tpm2("key", "rsa2048:aes128cfb"),
            sss(&[tang("http://a"), tpm2("pcr_bank", "sha1")]),
            sss(&[tang("http://a"), sss(&[tpm2("pcr_ids", "7")])]),
        ] {
            assert_eq!(checked(&clevis), Ok(()), "{clevis}");
        }
    }

    #[test]
    fn other_pins_are_named_also_within_a_shared_secret() {
        let evil = json!({"pin": "evil"});
        let pkcs11 = json!({"pin": "pkcs11", "pkcs11": {"uri": "pkcs11:module-path=/x.so"}});
        for (clevis, named) in [
            (evil.clone(), "the pin evil"),
            (json!({"pin": "../tang"}), "the pin ../tang"),
            (sss(&[tang("http://a"), evil.clone()]), "the pin evil"),
            (sss(&[sss(&[pkcs11])]), "the pin pkcs11"),
            (json!({"pin": "sss", "sss": {"jwe": ["!"]}}), "no base64url"),
            (json!({"pin": "sss", "sss": {"jwe": [7]}}), "must be a string"),
            (json!({"pin": "sss"}), "it is missing"),
        ] {
            let error = checked(&clevis).unwrap_err();
            assert!(error.contains(named), "{clevis}: {error}");
        }
        let deep = (0..5).fold(tang("http://a"), |inner, _| sss(&[inner]));
        assert!(checked(&deep).unwrap_err().contains("deeper than 4"));
        let many = sss(&vec![tang("http://a"); 33]);
        assert!(checked(&many).unwrap_err().contains("more than 32"));
        let many = sss(&vec![sss(&vec![tang("http://a"); 8]); 4]);
        assert!(checked(&many).unwrap_err().contains("more than 32"));
    }

    #[test]
    fn values_that_a_program_would_take_as_options_are_refused() {
        for clevis in [
            tang("-K/tmp/curl"),
            tang("http://-a"),
            tang("file:///etc"),
            tang("http://http://a"),
            tang("@a"),
            tpm2("pcr_ids", "7 -o /tmp/a"),
            tpm2("pcr_bank", "sha1=/etc"),
            tpm2("key", "-x"),
            tpm2("hash", ""),
        ] {
            assert!(checked(&clevis).is_err(), "{clevis}");
            assert!(checked(&sss(std::slice::from_ref(&clevis))).is_err(), "{clevis}");
        }
    }
}
