//! Cipher strings: what a LUKS header, a dm table or `--cipher` names, and what this version does.
//!
//! The two forms are the kernel's (`drivers/md/dm-crypt.c`, `crypt_ctr_cipher_old` and `_new`):
//!
//! ```text
//! cipher[:keycount][-chainmode-ivmode[:ivopts]]       aes-xts-plain64, aes-cbc-essiv:sha256, aes
//! capi:<crypto API name>-ivmode[:ivopts]              capi:xts(aes)-plain64
//! ```
//!
//! Parsing tells two things apart that a user wants told apart: a text that no kernel accepts
//! ([`CipherError::BadSpec`]) and one that means something but not to this version
//! ([`CipherError::Unsupported`], which names the part). A cipher that does not encrypt is refused
//! whatever else the text says.

use super::CipherError;

/// A parsed cipher string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CipherSpec {
    /// The text as it was given.
    text: String,
    /// How blocks are chained within a sector.
    pub(super) mode: Mode,
    /// How the IV of a sector is made.
    pub(super) iv: IvMode,
}

/// How the blocks of a sector are chained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// IEEE 1619; the key is two keys of equal length.
    Xts,
    /// NIST SP 800-38A.
    Cbc,
}

/// How the IV of a sector is made from its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IvMode {
    /// The low 32 bits, little endian.
    Plain,
    /// All 64 bits, little endian.
    Plain64,
    /// `Plain64`, encrypted with AES-256 under the SHA-256 of the volume key.
    EssivSha256,
}

/// The text cut into parts, none of them understood yet.
struct Parts<'a> {
    cipher: &'a str,
    mode: &'a str,
    iv: &'a str,
    iv_options: Option<&'a str>,
}

impl CipherSpec {
    /// Understands a cipher string.
    ///
    /// # Errors
    ///
    /// [`CipherError::BadSpec`], [`CipherError::Unsupported`] or [`CipherError::NullCipher`].
    pub fn parse(text: &str) -> Result<Self, CipherError> {
        let parts = match text.strip_prefix("capi:") {
            Some(rest) => capi_parts(text, rest)?,
            None => plain_parts(text)?,
        };
        if matches!(parts.cipher, "cipher_null" | "null") {
            return Err(CipherError::NullCipher { spec: text.to_owned() });
        }
        if parts.cipher != "aes" {
            return Err(unsupported(text, format!("cipher `{}`", parts.cipher)));
        }
        let mode = match parts.mode {
            "xts" => Mode::Xts,
            "cbc" => Mode::Cbc,
            other => return Err(unsupported(text, format!("mode `{other}`"))),
        };
        let iv = match (parts.iv, parts.iv_options) {
            ("plain", None) => IvMode::Plain,
            ("plain64", None) => IvMode::Plain64,
            ("essiv", Some("sha256")) => IvMode::EssivSha256,
            ("essiv", None | Some("")) => {
                return Err(bad(text, "essiv needs a digest: `essiv:sha256`"));
            }
            ("essiv", Some(digest)) => {
                return Err(unsupported(text, format!("essiv digest `{digest}`")));
            }
            (name, None) => return Err(unsupported(text, format!("IV mode `{name}`"))),
            (name, Some(options)) => {
                return Err(unsupported(text, format!("IV mode `{name}:{options}`")));
            }
        };
        if mode == Mode::Xts && iv == IvMode::EssivSha256 {
            return Err(unsupported(text, "IV mode `essiv` with mode `xts`".to_owned()));
        }
        Ok(Self { text: text.to_owned(), mode, iv })
    }

    /// The text as it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// `cipher[:keycount][-chainmode-ivmode[:ivopts]]`.
fn plain_parts(text: &str) -> Result<Parts<'_>, CipherError> {
    if text.contains('(') {
        return Err(bad(text, "a crypto API name needs the prefix `capi:`"));
    }
    let mut fields = text.splitn(3, '-');
    let cipher_and_count = fields.next().unwrap_or_default();
    let mode = fields.next();
    let iv_and_options = fields.next();

    let (cipher, key_count) = match cipher_and_count.split_once(':') {
        Some((cipher, count)) => (cipher, Some(count)),
        None => (cipher_and_count, None),
    };
    if cipher.is_empty() {
        return Err(bad(text, "it names no cipher"));
    }
    if let Some(count) = key_count {
        match count.parse::<u32>() {
            Ok(1) => {}
            Ok(count) if count.is_power_of_two() => {
                return Err(unsupported(text, format!("a key count of {count}")));
            }
            _ => return Err(bad(text, "the key count is not a power of two")),
        }
    }
    let (mode, iv_and_options) = match (mode, iv_and_options) {
        // The kernel's compatibility rule: the first volumes were cbc-plain and did not say so.
        (None | Some("plain"), None) => ("cbc", "plain"),
        (Some("ecb"), None) => ("ecb", ""),
        (Some(""), _) => return Err(bad(text, "it names no mode")),
        (_, None | Some("")) => return Err(bad(text, "it names no IV mode")),
        (Some(mode), Some(iv)) => (mode, iv),
        (None, Some(_)) => unreachable!("a third field follows a second"),
    };
    let (iv, iv_options) = split_options(iv_and_options);
    Ok(Parts { cipher, mode, iv, iv_options })
}

/// `mode(cipher)-ivmode[:ivopts]`, after `capi:`. The last `:` starts the options and the last `-`
/// before it the IV mode, because crypto API names may hold both.
fn capi_parts<'a>(text: &str, rest: &'a str) -> Result<Parts<'a>, CipherError> {
    let (name_and_iv, iv_options) = match rest.rsplit_once(':') {
        Some((before, options)) => (before, Some(options)),
        None => (rest, None),
    };
    let Some((name, iv)) = name_and_iv.rsplit_once('-') else {
        return Err(bad(text, "it names no IV mode"));
    };
    if iv.is_empty() {
        return Err(bad(text, "it names no IV mode"));
    }
    if name.is_empty() {
        return Err(bad(text, "it names no cipher"));
    }
    let Some((mode, inner)) = name.split_once('(') else {
        return Err(unsupported(text, format!("crypto API name `{name}`")));
    };
    let Some(cipher) = inner.strip_suffix(')') else {
        return Err(bad(text, "a parenthesis is not closed"));
    };
    if mode.is_empty() || cipher.is_empty() {
        return Err(bad(text, "the crypto API name is not `mode(cipher)`"));
    }
    if cipher.contains(['(', ')', ',']) {
        return Err(unsupported(text, format!("crypto API name `{name}`")));
    }
    Ok(Parts { cipher, mode, iv, iv_options })
}

fn split_options(iv: &str) -> (&str, Option<&str>) {
    match iv.split_once(':') {
        Some((name, options)) => (name, Some(options)),
        None => (iv, None),
    }
}

fn bad(text: &str, reason: &'static str) -> CipherError {
    CipherError::BadSpec { spec: text.to_owned(), reason }
}

fn unsupported(text: &str, part: String) -> CipherError {
    CipherError::Unsupported { spec: text.to_owned(), part }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Mode, IvMode) {
        let spec = CipherSpec::parse(text).unwrap();
        assert_eq!(spec.as_str(), text);
        (spec.mode, spec.iv)
    }

    fn error(text: &str) -> String {
        CipherSpec::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn spec_supported_forms_mean_what_the_kernel_says() {
        assert_eq!(parse("aes-xts-plain64"), (Mode::Xts, IvMode::Plain64));
        assert_eq!(parse("aes-xts-plain"), (Mode::Xts, IvMode::Plain));
        assert_eq!(parse("aes-cbc-essiv:sha256"), (Mode::Cbc, IvMode::EssivSha256));
        assert_eq!(parse("aes-cbc-plain"), (Mode::Cbc, IvMode::Plain));
        assert_eq!(parse("aes-cbc-plain64"), (Mode::Cbc, IvMode::Plain64));
        assert_eq!(parse("aes:1-cbc-plain64"), (Mode::Cbc, IvMode::Plain64));
        assert_eq!(parse("aes"), (Mode::Cbc, IvMode::Plain));
        assert_eq!(parse("aes-plain"), (Mode::Cbc, IvMode::Plain));
        assert_eq!(parse("capi:xts(aes)-plain64"), (Mode::Xts, IvMode::Plain64));
        assert_eq!(parse("capi:cbc(aes)-plain64"), (Mode::Cbc, IvMode::Plain64));
        assert_eq!(parse("capi:cbc(aes)-essiv:sha256"), (Mode::Cbc, IvMode::EssivSha256));
    }

    #[test]
    fn spec_malformed_text_is_told_apart_from_unsupported() {
        for text in [
            "",
            "-",
            "-xts-plain64",
            "aes-xts",
            "aes-xts-",
            "aes-cbc",
            "aes--plain64",
            "aes:3-cbc-plain",
            "aes:x-cbc-plain",
            "xts(aes)-plain64",
            "capi:",
            "capi:xts(aes)",
            "capi:xts(aes)-",
            "capi:-plain64",
            "capi:xts(aes-plain64",
            "capi:(aes)-plain64",
            "aes-cbc-essiv",
            "aes-cbc-essiv:",
            "capi:cbc(aes)-essiv",
        ] {
            let error = CipherSpec::parse(text).unwrap_err();
            assert!(matches!(error, CipherError::BadSpec { .. }), "{text}: {error:?}");
        }
    }

    #[test]
    fn spec_unsupported_part_is_named() {
        for (text, part) in [
            ("serpent-xts-plain64", "cipher `serpent` is not supported yet"),
            ("capi:xts(twofish)-plain64", "cipher `twofish` is not supported yet"),
            ("aes-lrw-benbi", "mode `lrw` is not supported yet"),
            ("aes-ecb", "mode `ecb` is not supported yet"),
            ("aes-xts-plain64be", "IV mode `plain64be` is not supported yet"),
            ("aes-cbc-essiv:sha1", "essiv digest `sha1` is not supported yet"),
            ("aes-xts-essiv:sha256", "IV mode `essiv` with mode `xts` is not supported yet"),
            ("aes:64-cbc-lmk", "a key count of 64 is not supported yet"),
            ("aes-xts-plain64:7", "IV mode `plain64:7` is not supported yet"),
            ("capi:gcm(aes)-random", "mode `gcm` is not supported yet"),
            ("capi:authenc(hmac(sha256),xts(aes))-random", "crypto API name"),
            ("xchacha12,aes-adiantum-plain64", "cipher `xchacha12,aes` is not supported yet"),
        ] {
            let error = error(text);
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn spec_null_cipher_is_refused_in_every_form() {
        for text in [
            "cipher_null",
            "cipher_null-ecb",
            "cipher_null-cbc-plain64",
            "null",
            "capi:ecb(cipher_null)-plain64",
        ] {
            let error = CipherSpec::parse(text).unwrap_err();
            assert!(matches!(error, CipherError::NullCipher { .. }), "{text}: {error:?}");
        }
    }
}
