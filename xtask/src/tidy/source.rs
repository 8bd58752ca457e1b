//! Rust source without its comments and literals, so that rules see code only. A lexer, not a
//! parser.

/// A source file in the form for the rules.
pub(crate) struct Source {
    /// Path from the workspace's root.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The code with the same length and lines; comments and the insides of literals are blanks.
    pub(crate) code: String,
    /// Whether its parent declares it for tests only.
    pub(crate) declared_test: bool,
}

/// A function or trait body.
pub(crate) struct Span {
    pub(crate) name: String,
    /// First line, counted from 1.
    pub(crate) line: usize,
    pub(crate) lines: usize,
    /// Number of functions directly inside.
    pub(crate) methods: usize,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Source {
        let code = mask(text);
        Source { path: path.to_owned(), text: text.to_owned(), code, declared_test: false }
    }

    /// Number of lines before the unit tests at the end of the file.
    pub(crate) fn lines_before_tests(&self) -> usize {
        let lines: Vec<_> = self.code.lines().collect();
        let starts = |pair: &[&str]| {
            let inner = pair[1].trim_start_matches("pub(crate) ");
            pair[0] == "#[cfg(test)]" && inner.starts_with("mod ") && inner.ends_with('{')
        };
        lines.windows(2).position(starts).unwrap_or(lines.len())
    }

    /// Files that this one declares as test modules.
    pub(crate) fn test_modules(&self) -> Vec<String> {
        let lines: Vec<_> = self.code.lines().collect();
        let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
        let names = declared.filter_map(|pair| {
            let private =
                pair[1].trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
            let name = private.strip_prefix("mod ")?;
            name.strip_suffix(';')
        });
        let (dir, file) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let dir = match file {
            "lib.rs" | "main.rs" | "mod.rs" => dir.to_owned(),
            _ => format!("{dir}/{}", file.trim_end_matches(".rs")),
        };
        names.flat_map(|n| [format!("{dir}/{n}.rs"), format!("{dir}/{n}/mod.rs")]).collect()
    }

    /// Whether the whole file is test, example or benchmark code.
    pub(crate) fn is_test(&self) -> bool {
        let parts = ["/tests/", "/tests.rs", "/examples/", "/benches/"];
        self.declared_test || parts.iter().any(|part| self.path.contains(part))
    }

    /// Every item of a keyword with a body.
    pub(crate) fn spans(&self, keyword: &str) -> Vec<Span> {
        let code = self.code.as_bytes();
        words(&self.code, keyword)
            .into_iter()
            .filter_map(|at| self.span(code, keyword, at))
            .collect()
    }

    fn span(&self, code: &[u8], keyword: &str, at: usize) -> Option<Span> {
        let after = &self.code[at + keyword.len()..];
        let name: String = after.trim_start().chars().take_while(|c| is_word(*c)).collect();
        if name.is_empty() {
            return None;
        }
        let open = body_start(code, at)?;
        let close = body_end(code, open)?;
        let line = self.line_of(at);
        let methods = words(&self.code[open..close], "fn").into_iter();
        let methods = methods.filter(|inner| depth(&code[open..open + inner]) == 1).count();
        Some(Span { name, line, lines: self.line_of(close) - line + 1, methods })
    }

    /// The line of a byte, counted from 1.
    pub(crate) fn line_of(&self, at: usize) -> usize {
        self.code.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Offsets of a word as a whole word.
pub(crate) fn words(code: &str, word: &str) -> Vec<usize> {
    let free = |c: Option<char>| c.is_none_or(|c| !is_word(c));
    let starts = code.match_indices(word).map(|(at, _)| at);
    starts
        .filter(|at| {
            let behind = code[at + word.len()..].chars().next();
            free(code[..*at].chars().next_back()) && free(behind)
        })
        .collect()
}

/// The opening brace of an item's body; `None` for a declaration.
pub(crate) fn body_start(code: &[u8], at: usize) -> Option<usize> {
    let mut brackets = 0_i32;
    for (index, byte) in code.iter().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b'{' if brackets == 0 => return Some(index),
            b';' if brackets == 0 => return None,
            _ => {}
        }
        if brackets < 0 {
            return None;
        }
    }
    None
}

pub(crate) fn body_end(code: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (index, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(index);
        }
    }
    None
}

fn depth(code: &[u8]) -> i32 {
    code.iter().fold(0, |depth, byte| match byte {
        b'{' => depth + 1,
        b'}' => depth - 1,
        _ => depth,
    })
}

/// Blanks out comments, strings and characters; newlines stay.
fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match &bytes[at..] {
            [b'/', b'/', ..] => line_end(bytes, at),
            [b'/', b'*', ..] => comment_end(bytes, at),
            [b'"', ..] => string_end(bytes, at),
            [b'r', b'"' | b'#', ..] if starts_word(bytes, at) => raw_end(bytes, at),
            [b'\'', ..] => char_end(bytes, at),
            _ => at + 1,
        };
        if end > at + 1 {
            blank(&mut out[at..end]);
        }
        at = end.max(at + 1);
    }
    String::from_utf8(out).expect("blanks replace whole literals")
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

/// Whether `r` can begin a raw string: it must not end a name; `br` and `cr` do begin one.
fn starts_word(bytes: &[u8], at: usize) -> bool {
    let before = |back: usize| at.checked_sub(back).map_or(' ', |at| char::from(bytes[at]));
    !is_word(before(1)) || (matches!(before(1), 'b' | 'c') && !is_word(before(2)))
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |len| at + len)
}

fn comment_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    let mut depth = 0;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// End of a raw string; `r#name` is none, so only its first byte is skipped.
fn raw_end(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|byte| **byte == b'#').count();
    let quote = start + 1 + hashes;
    if bytes.get(quote) != Some(&b'"') {
        return start + 1;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let rest = &bytes[quote + 1..];
    let found = rest.windows(close.len()).position(|window| window == close);
    found.map_or(bytes.len(), |len| quote + 1 + len + close.len())
}

/// End of a character literal, or of the tick of a lifetime.
fn char_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        let rest = &bytes[(at + 3).min(bytes.len())..];
        return rest.iter().position(|b| *b == b'\'').map_or(bytes.len(), |len| at + 4 + len);
    }
    // One character of up to four bytes between two ticks.
    let close = (2..=5).find(|len| bytes.get(at + len) == Some(&b'\''));
    let ends = |len: &usize| std::str::from_utf8(&bytes[at + 1..at + len]);
    match close.filter(|len| ends(len).is_ok_and(|inner| inner.chars().count() == 1)) {
        Some(len) => at + len + 1,
        None => at + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_blank_and_lines_stay() {
        let text =
            "let a = \"fn x {\"; // fn y {\nlet b = r#\"fn \"z\" {\"#; /* fn /* q */ { */ 'a' \\\n";
        let source = Source::new("a.rs", text);
        assert_eq!(source.code.lines().count(), text.lines().count());
        assert_eq!(source.code.len(), text.len());
        assert!(words(&source.code, "fn").is_empty(), "{}", source.code);
    }

    #[test]
    fn module_declared_for_tests_is_known_and_does_not_begin_the_tests() {
        let text = "#[cfg(test)]\nmod vectors;\n#[cfg(test)]\npub(super) mod by_hand;\n\
                    #[cfg(test)]\nmod tests {\n}\n";
        let source = Source::new("crates/a/src/lib.rs", text);
        let modules = source.test_modules();
        assert_eq!(modules[0], "crates/a/src/vectors.rs");
        assert!(modules.contains(&"crates/a/src/by_hand.rs".to_owned()), "{modules:?}");
        assert_eq!(source.lines_before_tests(), 4);
        let source = Source::new("crates/a/src/b.rs", text);
        assert_eq!(source.test_modules()[0], "crates/a/src/b/vectors.rs");
    }

    #[test]
    fn lifetimes_are_no_characters() {
        let source = Source::new("a.rs", "fn f<'a>(x: &'a str) -> char { '{' }\nfn g() {}\n");
        let names: Vec<_> = source.spans("fn").into_iter().map(|span| span.name).collect();
        assert_eq!(names, ["f", "g"]);
    }

    #[test]
    fn spans_count_lines_and_methods() {
        let text = "trait T {\n    fn a();\n    fn b() {\n        fn inner() {}\n    }\n}\n\
                    fn c(\n) {\n}\n";
        let source = Source::new("a.rs", text);
        let of_trait = &source.spans("trait")[0];
        assert_eq!((of_trait.lines, of_trait.methods), (6, 2));
        let last = source.spans("fn").pop().expect("c");
        assert_eq!((last.name.as_str(), last.line, last.lines), ("c", 7, 3));
    }
}
