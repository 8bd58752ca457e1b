//! Parses untrusted JSON: limits before parsing, and a path in every error.
//!
//! The limits hold before any tree is built. Nesting is bounded as in json-c (32), which cryptsetup
//! uses. The number of values is bounded too, because a few bytes of text can become a hundred
//! bytes of tree. A [`Node`] knows its path, so that an error reads `keyslots.0.area.offset: ...`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// Deepest nesting; json-c's default.
const DEPTH_MAX: usize = 32;
/// Most values in one header. 32 keyslots, tokens and segments use some 2,000.
const VALUES_MAX: usize = 65_536;
/// Longest name of a cipher, hash, type or flag.
const NAME_LEN_MAX_BYTES: usize = 256;

/// An error, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeError {
    pub(crate) path: String,
    pub(crate) problem: String,
    /// Whether a field is missing or has the wrong type: then the header as a whole is invalid.
    pub(crate) breaks_form: bool,
}

impl TreeError {
    pub(crate) fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { path: path.into(), problem: problem.into(), breaks_form: false }
    }

    /// Marks the error as one that makes the whole header invalid.
    pub(crate) fn of_form(self) -> Self {
        Self { breaks_form: true, ..self }
    }
}

/// Path of errors about the text as a whole.
pub(crate) const JSON_AREA: &str = "JSON area";

/// Parses the text before the first NUL of a JSON area; after it all bytes must be NUL.
pub(crate) fn parse(area: &[u8]) -> Result<Value, TreeError> {
    let whole = |problem: String| TreeError::new(JSON_AREA, problem);
    let len = area
        .iter()
        .position(|byte| *byte == 0)
        .ok_or_else(|| whole("the text has no terminating NUL".to_owned()))?;
    if area[len..].iter().any(|byte| *byte != 0) {
        return Err(whole(format!("the text ends at byte {len}, but data follows")));
    }
    let text = &area[..len];
    if text.first() != Some(&b'{') {
        return Err(whole("it does not start with an object".to_owned()));
    }
    parse_text(text).map_err(whole)
}

/// Parses a text of its own, for example a token.
pub(crate) fn parse_text(text: &[u8]) -> Result<Value, String> {
    check_limits(text)?;
    serde_json::from_slice(text).map_err(|error| format!("it is no JSON: {error}"))
}

/// Counts nesting and values without building a tree. The counts mean nothing for invalid JSON,
/// which the parser reports.
fn check_limits(text: &[u8]) -> Result<(), String> {
    let mut depth = 0usize;
    let mut values = 1usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in text {
        if in_string {
            match (escaped, byte) {
                (true, _) => escaped = false,
                (false, b'\\') => escaped = true,
                (false, b'"') => in_string = false,
                (false, _) => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => {
                depth += 1;
                values += 1;
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(format!("it is nested deeper than {DEPTH_MAX} levels"));
        }
        if values > VALUES_MAX {
            return Err(format!("it holds more than {VALUES_MAX} values"));
        }
    }
    Ok(())
}

/// A value and its path.
#[derive(Clone)]
pub(crate) struct Node<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Node<'a> {
    pub(crate) fn root(value: &'a Value) -> Self {
        Self { value, path: String::new() }
    }

    /// The path: `keyslots.0.area`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn error(&self, problem: impl Into<String>) -> TreeError {
        TreeError::new(self.path.clone(), problem)
    }

    fn child_path(&self, key: &str) -> String {
        let mut path = self.path.clone();
        if !path.is_empty() {
            path.push('.');
        }
        path.extend(key.chars().take(64).flat_map(char::escape_default));
        path
    }

    /// A required field.
    pub(crate) fn get(&self, key: &str) -> Result<Self, TreeError> {
        self.find(key)?
            .ok_or_else(|| TreeError::new(self.child_path(key), "it is missing").of_form())
    }

    /// An optional field.
    pub(crate) fn find(&self, key: &str) -> Result<Option<Self>, TreeError> {
        let found = self.object()?.get(key);
        Ok(found.map(|value| Self { value, path: self.child_path(key) }))
    }

    pub(crate) fn object(&self) -> Result<&'a Map<String, Value>, TreeError> {
        self.value.as_object().ok_or_else(|| self.wrong_type("an object"))
    }

    /// The fields of an object with numbers as keys, by key.
    pub(crate) fn numbered(&self) -> Result<Vec<(&'a str, Self)>, TreeError> {
        let entries = self.object()?.iter().map(|(key, value)| {
            let node = Self { value, path: self.child_path(key) };
            if key.bytes().all(|byte| byte.is_ascii_digit()) {
                Ok((key.as_str(), node))
            } else {
                Err(node.error("its key is not a number"))
            }
        });
        entries.collect()
    }

    pub(crate) fn array(&self) -> Result<Vec<Self>, TreeError> {
        let array = self.value.as_array().ok_or_else(|| self.wrong_type("an array"))?;
        let element = |(index, value): (usize, &'a Value)| Self {
            value,
            path: format!("{}[{index}]", self.path),
        };
        Ok(array.iter().enumerate().map(element).collect())
    }

    /// A non-empty text.
    pub(crate) fn text(&self) -> Result<&'a str, TreeError> {
        match self.value.as_str() {
            Some("") => Err(self.error("it is empty").of_form()),
            Some(text) => Ok(text),
            None => Err(self.wrong_type("a string")),
        }
    }

    /// A short printable text, safe for a terminal.
    pub(crate) fn name(&self) -> Result<&'a str, TreeError> {
        let text = self.text()?;
        if text.len() > NAME_LEN_MAX_BYTES || !text.bytes().all(|b| (b' '..=b'~').contains(&b)) {
            return Err(self.error(format!(
                "it is not printable ASCII of at most {NAME_LEN_MAX_BYTES} characters"
            )));
        }
        Ok(text)
    }

    /// An array of names.
    pub(crate) fn names(&self) -> Result<Vec<String>, TreeError> {
        self.array()?.iter().map(|element| Ok(element.name()?.to_owned())).collect()
    }

    /// A 64-bit number, which LUKS2 writes as a string because JSON has none.
    pub(crate) fn u64_text(&self) -> Result<u64, TreeError> {
        decimal(self.text()?).ok_or_else(|| {
            self.error(format!("{} is not a number from 0 to 2^64 - 1", self.shown()))
        })
    }

    /// A plain JSON number of 32 bits.
    pub(crate) fn u32(&self) -> Result<u32, TreeError> {
        if !self.value.is_number() {
            return Err(self.wrong_type("a number"));
        }
        let number = self.value.as_u64().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| {
            self.error(format!("{} is not a whole number from 0 to 2^32 - 1", self.shown()))
        })
    }

    /// Whether a field is set; one that is missing is not.
    pub(crate) fn flag(&self, key: &str) -> Result<bool, TreeError> {
        match self.find(key)? {
            None => Ok(false),
            Some(node) => node.value.as_bool().ok_or_else(|| node.wrong_type("a boolean")),
        }
    }

    /// Bytes in base64.
    pub(crate) fn base64(&self) -> Result<Vec<u8>, TreeError> {
        STANDARD.decode(self.text()?).map_err(|error| self.error(format!("no base64: {error}")))
    }

    fn wrong_type(&self, wanted: &str) -> TreeError {
        let found = match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "an array",
            Value::Object(_) => "an object",
        };
        self.error(format!("it is {found}, must be {wanted}")).of_form()
    }

    /// The value for a message, limited to a line.
    fn shown(&self) -> String {
        let text = self.value.to_string();
        if text.chars().count() <= 48 {
            return text;
        }
        text.chars().take(45).chain("...".chars()).collect()
    }
}

/// A number in decimal digits only; no sign, no space, no overflow.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// The number of a keyslot, token, segment or digest in its only valid form: `7`, not `07`.
pub(crate) fn plain_number(text: &str) -> Option<u32> {
    let number: u32 = decimal(text)?.try_into().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let mut area = text.as_bytes().to_vec();
        area.resize(area.len() + 16, 0);
        parse(&area).unwrap_err().problem
    }

    #[test]
    fn json_nested_too_deep_is_refused_before_parsing() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(32), "]".repeat(32));
        assert_eq!(problem(&deep), "it is nested deeper than 32 levels");
        let endless = format!("{{{}", "[".repeat(4 << 20));
        assert_eq!(problem(&endless), "it is nested deeper than 32 levels");
        let brackets_in_text = format!("{{\"a\":\"\\\"{}\"}}\0", "[".repeat(1000));
        assert!(parse(brackets_in_text.as_bytes()).is_ok());
    }

    #[test]
    fn json_with_too_many_values_is_refused_before_parsing() {
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(70_000));
        assert_eq!(problem(&many), "it holds more than 65536 values");
    }

    #[test]
    fn json_at_the_limits_is_read() {
        let array = |element: &str, count: usize| {
            format!("{{\"a\":[{}{element}]}}\0", format!("{element},").repeat(count - 1))
        };
        let deepest = format!("{{\"a\":{}{}}}\0", "[".repeat(31), "]".repeat(31));
        // The document, two containers, and all but the first of their values.
        for text in [deepest, array("[]", 100), array("0", 65_534)] {
            parse(text.as_bytes()).unwrap();
        }
        for text in [array("0", 65_535), array("[]", 40_000)] {
            assert_eq!(problem(&text), "it holds more than 65536 values");
        }
        let tree = serde_json::json!(["n".repeat(256), "n".repeat(257)]);
        let names = Node::root(&tree).array().unwrap();
        assert!(names[0].name().is_ok() && names[1].name().is_err());
    }

    #[test]
    fn json_area_without_end_or_with_a_tail_is_refused() {
        assert_eq!(parse(b"{}").unwrap_err().problem, "the text has no terminating NUL");
        assert!(parse(b"{}\0x\0").unwrap_err().problem.contains("but data follows"));
        assert!(parse(b" {}\0").unwrap_err().problem.contains("does not start"));
        assert!(parse(b"\0\0").unwrap_err().problem.contains("does not start"));
        assert!(parse(b"{\"a\":\xff}\0").unwrap_err().problem.contains("no JSON"));
        assert!(parse(b"{\"a\":1\0").unwrap_err().problem.contains("no JSON"));
    }

    #[test]
    fn numbers_with_sign_space_fraction_or_overflow_are_refused() {
        for text in ["", "-1", "+1", " 1", "1 ", "0x10", "1.0", "18446744073709551616"] {
            assert_eq!(decimal(text), None, "{text:?}");
        }
        assert_eq!(decimal("18446744073709551615"), Some(u64::MAX));
        let tree = serde_json::json!({ "a": -1, "b": 1.5, "c": 4_294_967_296u64, "d": "1" });
        let root = Node::root(&tree);
        for key in ["a", "b", "c", "d"] {
            let error = root.get(key).unwrap().u32().unwrap_err();
            assert_eq!(error.path, key);
        }
    }
}
