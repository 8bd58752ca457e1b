//! `verify_pattern`: repeated bytes: `0xaabb`, `"text"`, numbers, and `%o`, the request's offset.

use super::Mismatch;

/// Greatest length of a pattern. Our choice.
const PARTS_MAX_BYTES: usize = 512;

/// A pattern, repeated from the start of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Bytes(Vec<u8>),
    /// The offset in eight bytes, little-endian.
    Offset,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// The valid forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted = "it must be 0xaabb, \"text\", a number or %o, or several of them";
        let mut parts = Vec::new();
        let mut left = text;
        let mut len = 0;
        while !left.is_empty() {
            let (part, rest) = next_part(left).ok_or(wanted)?;
            len += part.bytes(0).len();
            if len > PARTS_MAX_BYTES {
                return Err(format!("it is longer than {PARTS_MAX_BYTES} bytes"));
            }
            parts.push(part);
            left = rest;
        }
        if len == 0 { Err(wanted.into()) } else { Ok(Self(parts)) }
    }

    fn bytes(&self, offset_bytes: u64) -> Vec<u8> {
        self.0.iter().flat_map(|part| part.bytes(offset_bytes)).collect()
    }

    pub(in crate::fio) fn fill(&self, offset_bytes: u64, bytes: &mut [u8]) {
        let pattern = self.bytes(offset_bytes);
        for chunk in bytes.chunks_mut(pattern.len()) {
            chunk.copy_from_slice(&pattern[..chunk.len()]);
        }
    }

    pub(super) fn check(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let pattern = self.bytes(offset_bytes);
        let pairs = bytes.iter().zip(pattern.iter().cycle()).enumerate();
        let Some((at, (found, expected))) = pairs.into_iter().find(|(_, (one, two))| one != two)
        else {
            return Ok(());
        };
        Err(Mismatch {
            offset_bytes: offset_bytes + at as u64,
            what: "a byte of the pattern",
            expected: format!("{expected:#04x}"),
            found: format!("{found:#04x}"),
        })
    }
}

impl Part {
    fn bytes(&self, offset_bytes: u64) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Offset => offset_bytes.to_le_bytes().to_vec(),
        }
    }
}

/// Splits off the first part.
fn next_part(text: &str) -> Option<(Part, &str)> {
    if let Some(rest) = text.strip_prefix("%o") {
        return Some((Part::Offset, rest));
    }
    if let Some(rest) = text.strip_prefix('"') {
        let (inside, rest) = rest.split_once('"')?;
        return Some((Part::Bytes(inside.as_bytes().to_vec()), rest));
    }
    if let Some(rest) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let end = rest.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(rest.len());
        let digits = if end % 2 == 1 { format!("0{}", &rest[..end]) } else { rest[..end].into() };
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        };
        let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        return Some((Part::Bytes(bytes.filter(|bytes| !bytes.is_empty())?), &rest[end..]));
    }
    let digits = text.strip_prefix('-').unwrap_or(text);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let number: i64 = text[..text.len() - digits.len() + end].parse().ok()?;
    let bytes = number.to_le_bytes();
    // The length follows from the value; a negative number has four bytes.
    let len = match number {
        ..0 => 4,
        _ => 8 - (number.leading_zeros() as usize / 8).min(7),
    };
    Some((Part::Bytes(bytes[..len].to_vec()), &digits[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pattern is the output of fio 3.33 at offset 4096.
    #[test]
    fn patterns_are_those_of_fio() {
        for (text, head) in [
            ("0xaabbcc", &[0xaa, 0xbb, 0xcc, 0xaa, 0xbb][..]),
            ("1234", &[0xd2, 4, 0xd2, 4]),
            ("%o", &[0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10]),
            (
                "0xff%o\"abcd\"-12",
                &[
                    0xff, 0, 0x10, 0, 0, 0, 0, 0, 0, b'a', b'b', b'c', b'd', 0xf4, 0xff, 0xff,
                    0xff, 0xff,
                ],
            ),
        ] {
            let mut bytes = vec![0; head.len()];
            let pattern = Pattern::parse(text).unwrap();
            pattern.fill(4096, &mut bytes);
            assert_eq!(bytes, head, "{text}");
            assert_eq!(pattern.check(4096, &bytes), Ok(()));
        }
        for wrong in ["", "0x", "\"a", "%p", "x", "-", "99999999999999999999"] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
