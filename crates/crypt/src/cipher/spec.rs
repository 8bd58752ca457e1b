//! Cipher strings of LUKS headers, dm tables and `--cipher`, and their support in this version.
//!
//! The two forms are the kernel's (`drivers/md/dm-crypt.c`, `crypt_ctr_cipher_old` and `_new`):
//!
//! ```text
//! cipher[:keycount][-chainmode-ivmode[:ivopts]]       aes-xts-plain64, aes-cbc-essiv:sha256, aes
//! capi:<crypto API name>-ivmode[:ivopts]              capi:xts(aes)-plain64
//! ```
//!
//! The first form becomes a crypto API name as well, `chainmode(cipher)`. So one parser serves
//! both: `mode(cipher)`, `adiantum(xchacha12,aes)` and `essiv(mode(cipher),digest)`.
//!
//! Parsing distinguishes three errors. A text that no kernel accepts is [`CipherError::BadSpec`].
//! Known parts that exclude each other are [`CipherError::BadCombination`], from [`super::rules`].
//! A valid text without support in this version is [`CipherError::Unsupported`], which names the
//! part. The null cipher is always refused.

use super::{CipherError, rules};
use crate::adiantum::Rounds;
use crate::block;
use crate::hash::HashAlgorithm;

/// A parsed cipher string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CipherSpec {
    /// The original text.
    text: String,
    /// Name of the block cipher, known to [`block::key_lengths`].
    pub(super) cipher: String,
    /// Chaining mode of the blocks within a sector.
    pub(super) mode: Mode,
    /// Source of a sector's IV.
    pub(super) iv: IvMode,
    /// Digest of the volume key that encrypts the IV, if any.
    pub(super) essiv: Option<Digest>,
    /// Number of volume keys, which alternate by sector: a power of two.
    pub(super) key_count: u32,
    /// The further ciphers of a cascade.
    pub(super) then: Vec<CipherSpec>,
}

/// Chaining mode of a sector's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Electronic code book: equal blocks encrypt to equal blocks. For old volumes.
    Ecb,
    /// NIST SP 800-38A.
    Cbc,
    /// NIST SP 800-38A. The IV is the first counter.
    Ctr,
    /// Liskov, Rivest and Wagner; IEEE 1619 before it became XTS.
    Lrw,
    /// IEEE 1619; the key is two keys of equal length.
    Xts,
    /// One block as wide as the sector, for CPUs without AES instructions.
    Adiantum(Rounds),
}

/// Source of a sector's IV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IvMode {
    /// The low 32 bits of the number, little endian.
    Plain,
    /// All 64 bits of the number, little endian.
    Plain64,
    /// All 64 bits of the number, big endian, at the end.
    Plain64be,
    /// The number of the sector's first block, counted from one, big endian, at the end.
    Benbi,
    /// Zeros. Also where the mode has no IV.
    Null,
    /// The encrypted byte offset.
    Eboiv,
    /// `Eboiv`, and a diffuser over the plaintext.
    Elephant,
    /// A hash of the sector's plaintext; loop-AES.
    Lmk,
    /// A secret combined with the number, and whitening; TrueCrypt before 4.1.
    Tcw,
}

/// Digest of an `essiv` cipher string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Digest {
    /// MD5, valid in `essiv` only.
    Md5,
    /// Any hash that volumes use elsewhere.
    Hash(HashAlgorithm),
}

/// The text split into parts, not interpreted yet.
struct Parts<'a> {
    /// Digest of an `essiv(..)` around the rest.
    template_digest: Option<&'a str>,
    mode: &'a str,
    cipher: &'a str,
    /// Empty if absent, which only `ecb` permits.
    iv: &'a str,
    iv_options: Option<&'a str>,
    key_count: u32,
}

impl CipherSpec {
    /// Parses a cipher string.
    ///
    /// # Errors
    ///
    /// [`CipherError::BadSpec`], [`CipherError::BadCombination`], [`CipherError::Unsupported`] or
    /// [`CipherError::NullCipher`].
    pub fn parse(text: &str) -> Result<Self, CipherError> {
        let parts = match text.strip_prefix("capi:") {
            Some(rest) => capi_parts(text, rest)?,
            None => plain_parts(text)?,
        };
        if parts.cipher.split(',').any(|name| matches!(name, "cipher_null" | "null")) {
            return Err(CipherError::NullCipher { spec: text.to_owned() });
        }
        let (mode, cipher) = parts.cipher_mode(text)?;
        let (iv, essiv) = parts.iv_mode(text)?;
        let mut spec = Self {
            text: text.to_owned(),
            cipher: cipher.to_owned(),
            mode,
            iv,
            essiv,
            key_count: parts.key_count,
            then: Vec::new(),
        };
        rules::check(&spec)?;
        if mode == Mode::Ecb {
            // The kernel says "does not support IVs" and continues without.
            spec.iv = IvMode::Null;
        }
        Ok(spec)
    }

    /// Parses the cipher of a table line: also a cascade, `cascade:CIPHER+CIPHER-MODE-IV`, which
    /// dm-crypt does not have. TrueCrypt and VeraCrypt volumes have cascades; the first cipher
    /// encrypts first. The key is their keys, one after the other, in equal lengths.
    ///
    /// # Errors
    /// As [`CipherSpec::parse`].
    pub fn parse_line(text: &str) -> Result<Self, CipherError> {
        let Some(rest) = text.strip_prefix("cascade:") else { return Self::parse(text) };
        let Some((names, mode)) = rest.split_once('-') else {
            return Err(bad(text, "it names no mode"));
        };
        let stage = |name: &str| Self::parse(&format!("{name}-{mode}"));
        let mut stages = names.split('+').map(stage).collect::<Result<Vec<_>, _>>()?;
        if !(2..=3).contains(&stages.len()) {
            return Err(bad(text, "a cascade has two or three ciphers"));
        }
        let mut first = stages.remove(0);
        (first.text, first.then) = (text.to_owned(), stages);
        Ok(first)
    }

    /// Whether cryptsetup can encrypt a keyslot with the cipher without the kernel's help: one key,
    /// no crypto API name, and an IV from the sector number alone (its `crypto_storage.c`).
    pub(crate) fn fits_keyslots(&self) -> bool {
        let iv_fits = match self.iv {
            IvMode::Plain | IvMode::Plain64 | IvMode::Plain64be => true,
            IvMode::Benbi | IvMode::Null | IvMode::Eboiv => true,
            IvMode::Elephant | IvMode::Lmk | IvMode::Tcw => false,
        };
        iv_fits && self.key_count == 1 && !self.text.starts_with("capi:")
    }

    /// Whether the cipher uses look-up tables at indices that depend on key and data. Then another
    /// program on the same CPU may learn the key by cache timing.
    #[must_use]
    pub fn is_table_based(&self) -> bool {
        block::is_table_based(&self.cipher) || self.then.iter().any(Self::is_table_based)
    }

    /// [`CipherSpec::is_table_based`] for a text; `None` if this version has no such cipher.
    pub(crate) fn text_is_table_based(text: &str) -> Option<bool> {
        Self::parse(text).ok().map(|spec| spec.is_table_based())
    }

    /// The original text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<'a> Parts<'a> {
    /// The mode and its block cipher.
    fn cipher_mode(&self, text: &str) -> Result<(Mode, &'a str), CipherError> {
        if self.mode == "adiantum" {
            return match self.cipher {
                "xchacha12,aes" => Ok((Mode::Adiantum(Rounds::Twelve), "aes")),
                "xchacha20,aes" => Ok((Mode::Adiantum(Rounds::Twenty), "aes")),
                other => Err(unsupported(text, format!("adiantum of `{other}`"))),
            };
        }
        let mode = match self.mode {
            "ecb" => Mode::Ecb,
            "cbc" => Mode::Cbc,
            "ctr" => Mode::Ctr,
            "lrw" => Mode::Lrw,
            "xts" => Mode::Xts,
            other => return Err(unsupported(text, format!("mode `{other}`"))),
        };
        if block::key_lengths(self.cipher).is_none() {
            return Err(unsupported(text, format!("cipher `{}`", self.cipher)));
        }
        Ok((mode, self.cipher))
    }

    /// The IV mode, and the digest of `essiv`, written as a mode or as a template.
    fn iv_mode(&self, text: &str) -> Result<(IvMode, Option<Digest>), CipherError> {
        let template = self.template_digest.map(|name| digest(text, name)).transpose()?;
        let iv = match (self.iv, self.iv_options) {
            ("" | "null", None) => IvMode::Null,
            ("plain", None) => IvMode::Plain,
            ("plain64", None) => IvMode::Plain64,
            ("plain64be", None) => IvMode::Plain64be,
            ("benbi", None) => IvMode::Benbi,
            ("eboiv", None) => IvMode::Eboiv,
            ("elephant", None) => IvMode::Elephant,
            ("lmk", None) => IvMode::Lmk,
            ("tcw", None) => IvMode::Tcw,
            ("random", None) => {
                let reason = "IV mode `random` keeps each sector's IV in its integrity tag, and \
                              volumes with integrity protection are not supported";
                return Err(CipherError::BadCombination {
                    spec: text.to_owned(),
                    reason: reason.to_owned(),
                });
            }
            ("essiv", None | Some("")) => {
                return Err(bad(text, "essiv needs a digest: `essiv:sha256`"));
            }
            ("essiv", Some(name)) if template.is_none() => {
                return Ok((IvMode::Plain64, Some(digest(text, name)?)));
            }
            (name, None) => return Err(unsupported(text, format!("IV mode `{name}`"))),
            (name, Some(options)) => {
                return Err(unsupported(text, format!("IV mode `{name}:{options}`")));
            }
        };
        if template.is_some() && !matches!(iv, IvMode::Plain | IvMode::Plain64) {
            return Err(unsupported(text, format!("IV mode `{}` within `essiv(..)`", self.iv)));
        }
        Ok((iv, template))
    }
}

fn digest(text: &str, name: &str) -> Result<Digest, CipherError> {
    if name == "md5" {
        return Ok(Digest::Md5);
    }
    HashAlgorithm::parse(name)
        .map(Digest::Hash)
        .map_err(|_| unsupported(text, format!("essiv digest `{name}`")))
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
        Some((cipher, count)) => (cipher, count.parse::<u32>().unwrap_or(0)),
        None => (cipher_and_count, 1),
    };
    if cipher.is_empty() {
        return Err(bad(text, "it names no cipher"));
    }
    if !key_count.is_power_of_two() {
        return Err(bad(text, "the key count is not a power of two"));
    }
    let (mode, iv_and_options) = match (mode, iv_and_options) {
        // The kernel's compatibility rule: the first volumes were cbc-plain without saying so.
        (None | Some("plain"), None) => ("cbc", "plain"),
        (Some("ecb"), None) => ("ecb", ""),
        (Some(""), _) => return Err(bad(text, "it names no mode")),
        (_, None | Some("")) => return Err(bad(text, "it names no IV mode")),
        (Some(mode), Some(iv)) => (mode, iv),
        (None, Some(_)) => unreachable!("a third field follows a second"),
    };
    let (iv, iv_options) = match iv_and_options.split_once(':') {
        Some((name, options)) => (name, Some(options)),
        None => (iv_and_options, None),
    };
    Ok(Parts { template_digest: None, mode, cipher, iv, iv_options, key_count })
}

/// Splits `NAME-ivmode[:ivopts]`, the text after `capi:`. The last `:` starts the options and the
/// last `-` before it the IV mode, because crypto API names may contain both.
fn capi_parts<'a>(text: &str, rest: &'a str) -> Result<Parts<'a>, CipherError> {
    let (name_and_iv, iv_options) = match rest.rsplit_once(':') {
        Some((before, options)) => (before, Some(options)),
        None => (rest, None),
    };
    let (name, iv) = match name_and_iv.rsplit_once('-') {
        Some(("", _)) => return Err(bad(text, "it names no cipher")),
        Some((_, "")) => return Err(bad(text, "it names no IV mode")),
        Some(name_and_iv) => name_and_iv,
        None if name_and_iv.starts_with("ecb(") => (name_and_iv, ""),
        None => return Err(bad(text, "it names no IV mode")),
    };
    let (mut mode, mut inner) = api_name(text, name)?;
    let mut template_digest = None;
    if mode == "essiv" {
        let Some((wrapped, digest)) = inner.rsplit_once(',') else {
            return Err(bad(text, "essiv needs a digest: `essiv(cbc(aes),sha256)`"));
        };
        template_digest = Some(digest);
        (mode, inner) = api_name(text, wrapped)?;
    }
    if inner.contains(['(', ')']) {
        return Err(unsupported(text, format!("crypto API name `{name}`")));
    }
    // Loop-AES has 64 keys, and this form has no field for the number.
    let key_count = if iv == "lmk" { 64 } else { 1 };
    Ok(Parts { template_digest, mode, cipher: inner, iv, iv_options, key_count })
}

/// Splits `mode(inner)`.
fn api_name<'a>(text: &str, name: &'a str) -> Result<(&'a str, &'a str), CipherError> {
    let Some((mode, inner)) = name.split_once('(') else {
        return Err(unsupported(text, format!("crypto API name `{name}`")));
    };
    let Some(inner) = inner.strip_suffix(')') else {
        return Err(bad(text, "a parenthesis is not closed"));
    };
    if mode.is_empty() || inner.is_empty() {
        return Err(bad(text, "the crypto API name is not `mode(cipher)`"));
    }
    Ok((mode, inner))
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
    use crate::cipher::SectorCipher;
    use proptest::prelude::*;

    fn parse(text: &str) -> (String, Mode, IvMode, Option<Digest>, u32) {
        let spec = CipherSpec::parse(text).unwrap();
        assert_eq!(spec.as_str(), text);
        (spec.cipher, spec.mode, spec.iv, spec.essiv, spec.key_count)
    }

    fn is(text: &str, cipher: &str, mode: Mode, iv: IvMode) {
        assert_eq!(parse(text), (cipher.to_owned(), mode, iv, None, 1), "{text}");
    }

    fn error(text: &str) -> String {
        CipherSpec::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn spec_supported_forms_mean_what_the_kernel_says() {
        is("aes-xts-plain64", "aes", Mode::Xts, IvMode::Plain64);
        is("serpent-xts-plain", "serpent", Mode::Xts, IvMode::Plain);
        is("twofish-cbc-plain64be", "twofish", Mode::Cbc, IvMode::Plain64be);
        is("aes:1-cbc-plain64", "aes", Mode::Cbc, IvMode::Plain64);
        is("aes", "aes", Mode::Cbc, IvMode::Plain);
        is("camellia-plain", "camellia", Mode::Cbc, IvMode::Plain);
        is("cast6-lrw-benbi", "cast6", Mode::Lrw, IvMode::Benbi);
        is("cast5-ctr-null", "cast5", Mode::Ctr, IvMode::Null);
        is("aes-cbc-eboiv", "aes", Mode::Cbc, IvMode::Eboiv);
        is("aes-cbc-elephant", "aes", Mode::Cbc, IvMode::Elephant);
        is("aes-cbc-tcw", "aes", Mode::Cbc, IvMode::Tcw);
        let wide = Mode::Adiantum(Rounds::Twelve);
        is("xchacha12,aes-adiantum-plain64", "aes", wide, IvMode::Plain64);
        let wide = Mode::Adiantum(Rounds::Twenty);
        is("capi:adiantum(xchacha20,aes)-plain64", "aes", wide, IvMode::Plain64);
        is("capi:xts(aes)-plain64", "aes", Mode::Xts, IvMode::Plain64);
        is("capi:cbc(aes)-plain64", "aes", Mode::Cbc, IvMode::Plain64);
    }

    #[test]
    fn spec_ecb_has_no_iv_whatever_is_named() {
        for text in ["aes-ecb", "aes-ecb-plain64", "capi:ecb(aes)", "capi:ecb(aes)-null"] {
            is(text, "aes", Mode::Ecb, IvMode::Null);
        }
    }

    #[test]
    fn spec_essiv_is_a_mode_or_a_template() {
        let sha256 = Some(Digest::Hash(HashAlgorithm::Sha256));
        for text in [
            "aes-cbc-essiv:sha256",
            "capi:cbc(aes)-essiv:sha256",
            "capi:essiv(cbc(aes),sha256)-plain64",
        ] {
            let parsed = ("aes".to_owned(), Mode::Cbc, IvMode::Plain64, sha256, 1);
            assert_eq!(parse(text), parsed, "{text}");
        }
        let sha3 = Some(Digest::Hash(HashAlgorithm::Sha3_256));
        assert_eq!(parse("capi:essiv(xts(aes),sha3-256)-plain").3, sha3);
        assert_eq!(parse("cast5-cbc-essiv:md5").3, Some(Digest::Md5));
    }

    #[test]
    fn spec_keys_that_take_turns_are_counted() {
        let lmk = |count| ("aes".to_owned(), Mode::Cbc, IvMode::Lmk, None, count);
        assert_eq!(parse("aes:64-cbc-lmk"), lmk(64));
        assert_eq!(parse("aes-cbc-lmk"), lmk(1));
        assert_eq!(parse("capi:cbc(aes)-lmk"), lmk(64));
        assert_eq!(parse("serpent:4-xts-plain64").4, 4);
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
            "aes:0-cbc-plain",
            "aes:4294967296-cbc-plain",
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
            "capi:cbc(aes)",
            "capi:essiv(cbc(aes))-plain64",
            "capi:essiv(cbc(aes,sha256)-plain64",
            "capi:ecb()",
        ] {
            let error = CipherSpec::parse(text).unwrap_err();
            assert!(matches!(error, CipherError::BadSpec { .. }), "{text}: {error:?}");
        }
    }

    #[test]
    fn spec_unsupported_part_is_named() {
        for (text, part) in [
            ("blowfish-cbc-plain64", "cipher `blowfish` is not supported yet"),
            ("capi:xts(anubis)-plain64", "cipher `anubis` is not supported yet"),
            ("aes-pcbc-plain64", "mode `pcbc` is not supported yet"),
            ("aes-cbc-essiv:md4", "essiv digest `md4` is not supported yet"),
            ("aes-xts-plain64:7", "IV mode `plain64:7` is not supported yet"),
            ("aes-xts-bogus", "IV mode `bogus` is not supported yet"),
            ("capi:gcm(aes)-random", "mode `gcm` is not supported yet"),
            ("capi:authenc(hmac(sha256),xts(aes))-random", "crypto API name"),
            ("capi:essiv(cbc(aes),sha256)-benbi", "IV mode `benbi` within `essiv(..)`"),
            ("capi:essiv(cbc(aes),sha256)-essiv:sha1", "IV mode `essiv:sha1`"),
            ("xchacha8,aes-adiantum-plain64", "adiantum of `xchacha8,aes` is not supported yet"),
            ("capi:adiantum(xchacha12,serpent)-plain64", "adiantum of `xchacha12,serpent`"),
            ("capi:xts(xchacha12,aes)-plain64", "cipher `xchacha12,aes`"),
        ] {
            let error = error(text);
            assert!(error.contains(part) && error.contains(text), "{text}: {error}");
        }
    }

    #[test]
    fn table_based_ciphers_are_told_whatever_their_mode() {
        for (text, expected) in [
            ("twofish-xts-plain64", Some(true)),
            ("camellia-cbc-essiv:sha256", Some(true)),
            ("cast5-cbc-plain", Some(true)),
            ("capi:xts(cast6)-plain64", Some(true)),
            ("aes-xts-plain64", Some(false)),
            ("serpent-lrw-benbi", Some(false)),
            ("xchacha12,aes-adiantum-plain64", Some(false)),
            ("anubis-xts-plain64", None),
        ] {
            assert_eq!(CipherSpec::text_is_table_based(text), expected, "{text}");
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
            "capi:ecb(cipher_null)",
            "capi:essiv(cbc(cipher_null),sha256)-plain64",
            "cipher_null:64-cbc-lmk",
            "capi:adiantum(xchacha12,cipher_null)-plain64",
        ] {
            let error = CipherSpec::parse(text).unwrap_err();
            assert!(matches!(error, CipherError::NullCipher { .. }), "{text}: {error:?}");
        }
    }

    proptest! {
        #[test]
        fn spec_no_text_breaks_the_parser(
            text in "(capi:)?[a-z:,()-]{0,12}(aes|serpent|cast5|adiantum|xchacha12)?\\PC{0,24}",
            key_len in any::<usize>(),
        ) {
            if let Ok(spec) = CipherSpec::parse(&text) {
                let _ = spec.key_layout(key_len);
            }
        }

        #[test]
        fn spec_parts_in_any_order_are_no_panic(
            parts in prop::collection::vec(prop::sample::select(vec![
                "capi:", "essiv(", "cbc(", "ecb", "adiantum(", "aes", "cast5", "xchacha12,aes", ")",
                ",sha256", "-", ":", "64", "4294967295", "cbc", "lrw", "xts", "lmk", "tcw", "eboiv",
                "elephant", "essiv", "random", "plain64", "null", "cipher_null", "\u{e9}",
            ]), 0..9),
            key_len in 0usize..3000,
        ) {
            let text = parts.concat();
            if let Ok(spec) = CipherSpec::parse(&text)
                && let Ok(cipher) = SectorCipher::new(&spec, &vec![7; key_len], 512, false)
            {
                let mut data = vec![3; 1024];
                cipher.encrypt_in_place(&mut data, 5);
                cipher.decrypt_in_place(&mut data, 5);
                prop_assert_eq!(data, vec![3; 1024]);
            }
        }
    }
}
