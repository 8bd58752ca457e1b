//! Escapes text for HTML.

/// Writes all characters that could end a text or an attribute as entities. Control characters,
/// which no document may contain, become the replacement character.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\n' | '\t' => out.push(character),
            control if control.is_control() => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_a_text_or_an_attribute() {
        let said = escape("<script>alert('a' & \"b\")</script>\x1b[0m\r\n");
        let expected = "&lt;script&gt;alert(&#39;a&#39; &amp; &quot;b&quot;)&lt;/script&gt;\
                        \u{fffd}[0m\u{fffd}\n";
        assert_eq!(said, expected);
    }
}
