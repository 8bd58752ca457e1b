//! Reads the known answers of `testdata/vectors/kdf`: words on lines, `#` for remarks.

/// The lines as words.
pub(crate) fn lines(text: &str) -> Vec<Vec<&str>> {
    let is_vector = |line: &&str| !line.is_empty() && !line.starts_with('#');
    text.lines().filter(is_vector).map(|line| line.split(' ').collect()).collect()
}

/// Bytes from hexadecimal; `-` is empty.
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    if text == "-" {
        return Vec::new();
    }
    assert!(text.len().is_multiple_of(2), "{text}");
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}
