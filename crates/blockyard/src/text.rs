//! Untrusted text for a terminal.

/// Escapes untrusted text so that it can neither control the terminal nor start a new line.
#[must_use]
pub fn printable(text: &str) -> String {
    // These change the direction of the following text, and so can disguise a name.
    let turns_text = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || turns_text(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_control_characters_are_shown_not_obeyed() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable("Größe 4 €"), "Größe 4 €");
        assert_eq!(printable("gpj.\u{202e}exe\u{9b}"), "gpj.\\u{202e}exe\\u{9b}");
    }
}
