//! Rules for habits of code that cost reading, and for wide structs.
//!
//! - A `let` of a tuple from a tuple, which only saves a line. Allowed where a value on the right
//!   mentions a name on the left, for example in a swap.
//! - A `match` on a bool.
//! - A safety comment that refers to another one by its place in the file.
//! - A struct of more than 20 fields. Allowed with `#[serde(deny_unknown_fields)]`, because serde
//!   cannot flatten parts into such a struct.
//! - A struct of more than 12 fields without its reason: a comment `// N fields: REASON` above its
//!   attributes, with the right number.

use super::Finding;
use super::source::{Source, body_end, body_start, words};

const FIELDS_MAX: usize = 20;
const FIELDS_WITHOUT_REASON_MAX: usize = 12;

/// All findings in one file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    tuple_lets(source, &mut findings);
    matches_on_bools(source, &mut findings);
    safety_comments(source, &mut findings);
    structs(source, &mut findings);
    findings
}

fn tuple_lets(source: &Source, findings: &mut Vec<Finding>) {
    for at in words(&source.code, "let") {
        if let Some(names) = tuple_let(source, at + "let".len()) {
            let what = format!("let of a tuple from a tuple: one let for each of {names}");
            findings.push(Finding::new(source, source.line_of(at), what));
        }
    }
}

/// The names of a `let` of a tuple from a tuple, if it can be split.
fn tuple_let(source: &Source, after_let: usize) -> Option<&str> {
    let code = source.code.as_bytes();
    let left = parentheses(code, after_let)?;
    let equals = left.1 + source.code[left.1..].find('=')?;
    let is_type = source.code[left.1 + 1..equals].trim_start().starts_with(':');
    if !is_type && !source.code[left.1 + 1..equals].trim().is_empty() {
        return None;
    }
    let right = parentheses(code, equals + 1)?;
    let ends = source.code[right.1 + 1..].trim_start().starts_with(';');
    let names = &source.text[left.0 + 1..left.1];
    let values = right.0 + 1..right.1;
    let is_mentioned = |name: &str| {
        words(&source.text[values.clone()], name).iter().any(|at| {
            let at = values.start + at;
            let before = &source.text[..at];
            let is_field = before.ends_with('.') && !before.ends_with("..");
            let is_path =
                before.ends_with("::") || source.code[at..].starts_with(&[name, "::"].concat());
            let is_code = code[at] != b' ';
            (is_code && !is_field && !is_path) || before.ends_with('{')
        })
    };
    let names_alone = names.split(|c: char| !c.is_alphanumeric() && c != '_');
    let mut variables = names_alone.filter(|name| !name.is_empty() && *name != "mut");
    (ends && !variables.any(is_mentioned)).then_some(names)
}

/// The next parentheses, if only blanks are before them.
fn parentheses(code: &[u8], from: usize) -> Option<(usize, usize)> {
    let open = from + code[from..].iter().position(|byte| !byte.is_ascii_whitespace())?;
    if code[open] != b'(' {
        return None;
    }
    let mut depth = 0_i32;
    for (index, byte) in code.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((open, index));
        }
    }
    None
}

fn matches_on_bools(source: &Source, findings: &mut Vec<Finding>) {
    for name in ["true", "false"] {
        for at in words(&source.code, name) {
            let begins = source.code[..at].trim_end().ends_with(['{', ',', '}']);
            if begins && source.code[at + name.len()..].trim_start().starts_with("=>") {
                let what = "match on a bool: if and else";
                findings.push(Finding::new(source, source.line_of(at), what));
            }
        }
    }
}

fn safety_comments(source: &Source, findings: &mut Vec<Finding>) {
    for (at, _) in source.text.match_indices("SAFETY: ") {
        let reason = source.text[at + "SAFETY: ".len()..].to_ascii_lowercase();
        let places = ["as above", "as below", "as before", "see above", "see below", "the same"];
        if places.iter().any(|place| reason.starts_with(place)) {
            let what = "a safety comment names its reason, or the function that has it";
            findings.push(Finding::new(source, source.line_of(at), what));
        }
    }
}

fn structs(source: &Source, findings: &mut Vec<Finding>) {
    for at in words(&source.code, "struct") {
        let code = source.code.as_bytes();
        let Some(open) = body_start(code, at) else { continue };
        let Some(close) = body_end(code, open) else { continue };
        let count = fields(&code[open + 1..close]);
        let name = source.code[at..open].split([' ', '<']).nth(1).unwrap_or_default();
        let above = above(source, source.line_of(at));
        let is_whole = above.iter().any(|line| line.contains("deny_unknown_fields"));
        let reason = format!("// {count} fields: ");
        if count > FIELDS_MAX && !is_whole {
            let what = format!("struct {name} has {count} fields, more than {FIELDS_MAX}");
            findings.push(Finding::new(source, source.line_of(at), what));
        }
        let has_reason = above.iter().any(|line| line.starts_with(&reason));
        if count > FIELDS_WITHOUT_REASON_MAX && !has_reason {
            let what = format!("struct {name} needs `{reason}REASON` above its attributes");
            findings.push(Finding::new(source, source.line_of(at), what));
        }
    }
}

/// The number of fields in the body of a struct: each has the only single colon outside brackets.
fn fields(body: &[u8]) -> usize {
    let mut count = 0;
    let mut depth = 0_i32;
    for (index, byte) in body.iter().enumerate() {
        let before = index.checked_sub(1).map_or(b' ', |before| body[before]);
        let is_path = before == b':' || body.get(index + 1) == Some(&b':');
        match byte {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b'>' if before != b'-' => depth -= 1,
            b':' if depth == 0 && !is_path => count += 1,
            _ => {}
        }
    }
    count
}

/// Comments and attributes directly above a line.
fn above(source: &Source, line: usize) -> Vec<&str> {
    let mut above: Vec<_> = source.text.lines().take(line - 1).map(str::trim).collect();
    let is_far =
        |line: &&str| line.is_empty() || (!line.starts_with("//") && line.ends_with([';', '}']));
    let count = above.iter().rposition(is_far).map_or(0, |last| last + 1);
    above.split_off(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        check(&Source::new("a.rs", text)).into_iter().map(|finding| finding.what).collect()
    }

    fn fields_in_lines(count: usize) -> String {
        (0..count).map(|n| format!("    pub f{n}: BTreeMap<A::B, fn(u8) -> C>,\n")).collect()
    }

    #[test]
    fn tuple_let_is_found_unless_a_value_mentions_a_name() {
        for text in [
            "let (a, mut b) = (1, 2);",
            "let (a, b): (u8, Vec<u8>) = (1, f(2, 3));",
            "let (\n    first,\n    second,\n) = (\n    f(),\n    g(),\n);",
            "let (a, b) =\n    (c.a, \"a\".len());",
            "let (a, b) = (c.a, b::d());",
        ] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
        for text in [
            "let (a, b) = (b, a);",
            "let (a, b) = (a + 1, c);",
            "let (a, b) = f(1, 2);",
            "let (a, b) = (f(), g()).into();",
            "let (Some(a), Some(b)) = (c, d) else { return };",
            "if let (Some(a), Some(b)) = (c, d) { f() }",
            "let (a, b) = (1, format!(\"{a}\"));",
            "// let (a, b) = (1, 2);",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn match_on_a_bool_is_found() {
        assert_eq!(found("match a {\n    true => b,\n    false => c,\n}").len(), 2);
        assert_eq!(found("match a {\n    _ if b => {}\n    true => c,\n    _ => d,\n}").len(), 1);
        let text = "match a {\n    Some(true) => b,\n    (false, true) => c,\n    _ => true,\n}";
        assert_eq!(found(text), [""; 0]);
    }

    #[test]
    fn safety_comment_that_refers_to_a_place_is_found() {
        assert_eq!(found(concat!("// SAFETY: as ", "above.")).len(), 1);
        assert_eq!(found(concat!("// SAFETY: See ", "above.")).len(), 1);
        assert_eq!(found("// SAFETY: as in `load`.\n// SAFETY: see `store`."), [""; 0]);
    }

    #[test]
    fn wide_struct_needs_its_reason_with_the_right_number() {
        let text =
            |above: &str, count| format!("{above}struct A {{\n{}}}\n", fields_in_lines(count));
        assert_eq!(found(&text("", 12)), [""; 0]);
        assert_eq!(found(&text("", 13)).len(), 1);
        assert_eq!(found(&text("// 12 fields: parts.\n", 13)).len(), 1);
        assert_eq!(found(&text("/// A.\n// 13 fields: parts.\n#[derive(Debug)]\n", 13)), [""; 0]);
        assert_eq!(found(&text("// 13 fields: parts.\nstruct B;\n", 13)).len(), 1);
    }

    #[test]
    fn struct_of_more_than_20_fields_is_found_unless_serde_needs_it_whole() {
        let text = |above: &str| {
            format!("// 21 fields: keys.\n{above}struct A {{\n{}}}\n", fields_in_lines(21))
        };
        assert_eq!(
            found(&text("#[derive(Serialize)]\n")),
            ["struct A has 21 fields, more than 20"]
        );
        assert_eq!(found(&text("#[serde(deny_unknown_fields)]\n")), [""; 0]);
    }
}
