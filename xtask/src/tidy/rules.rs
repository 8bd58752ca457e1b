//! The rules for one source file.

use super::Finding;
use super::source::{Source, words};

const LINE_CHARS_MAX: usize = 100;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 800;
const TEST_LINES_MAX: usize = 400;
const TRAIT_METHODS_MAX: usize = 8;

/// Module names without a meaning.
const EMPTY_NAMES: &[&str] = &["manager", "helper", "helpers", "util", "utils", "common", "misc"];

/// Permitted places of `unsafe`.
const UNSAFE_HOMES: &[&str] = &[
    "crates/host/",
    "crates/crypt/src/adiantum/",
    "crates/crypt/src/block/",
    "crates/crypt/src/cipher/",
    "python/src/buffer.rs",
];

/// All findings in one file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    lines(source, &mut findings);
    lengths(source, &mut findings);
    banned(source, &mut findings);
    if source.lines_before_tests() > FILE_LINES_MAX && !source.is_test() {
        let lines = source.lines_before_tests();
        findings.push(Finding::new(source, 1, format!("{lines} lines before its tests")));
    }
    let tests = source.code.lines().count() - source.lines_before_tests();
    if tests > TEST_LINES_MAX && !source.is_test() {
        let what = format!("{tests} lines of tests: move them to a separate file");
        findings.push(Finding::new(source, source.lines_before_tests() + 1, what));
    }
    let stem = source.path.rsplit('/').next().unwrap_or("").trim_end_matches(".rs");
    if EMPTY_NAMES.contains(&stem) {
        findings.push(Finding::new(source, 1, format!("{stem} is no name for a module")));
    }
    findings
}

fn lines(source: &Source, findings: &mut Vec<Finding>) {
    let told = source.text.trim_start().starts_with("//!") || source.is_test();
    if !told {
        findings.push(Finding::new(source, 1, "the file does not begin with its story (//!)"));
    }
    for (index, line) in source.text.lines().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX {
            findings.push(Finding::new(source, index + 1, format!("{chars} characters in a line")));
        }
    }
}

fn lengths(source: &Source, findings: &mut Vec<Finding>) {
    for span in source.spans("fn") {
        if span.lines > FUNCTION_LINES_MAX {
            let what = format!("fn {} has {} lines", span.name, span.lines);
            let key = format!("{} fn {}", source.path, span.name);
            findings.push(Finding::new(source, span.line, what).ratchet(key, span.lines));
        }
    }
    for span in source.spans("trait") {
        if span.methods > TRAIT_METHODS_MAX {
            let what = format!("trait {} has {} methods", span.name, span.methods);
            findings.push(Finding::new(source, span.line, what));
        }
    }
}

fn banned(source: &Source, findings: &mut Vec<Finding>) {
    // Split strings, because this file is checked as well.
    for word in [concat!("TO", "DO"), concat!("FIX", "ME")] {
        for at in words(&source.text, word) {
            findings.push(Finding::new(source, source.line_of(at), format!("{word} never merges")));
        }
    }
    for name in ["dbg", "todo", "unimplemented"] {
        for at in words(&source.code, name) {
            if source.code[at + name.len()..].starts_with('!') {
                findings.push(Finding::new(source, source.line_of(at), format!("{name}!")));
            }
        }
    }
    if !UNSAFE_HOMES.iter().any(|home| source.path.starts_with(home)) {
        for at in words(&source.code, "unsafe") {
            let what = "unsafe outside crates/host, the cipher kernels and Python's buffers";
            findings.push(Finding::new(source, source.line_of(at), what));
        }
    }
    if !source.is_test() {
        for (at, _) in source.code.match_indices(".unwrap()") {
            let line = source.line_of(at);
            if line <= source.lines_before_tests() {
                let what = "unwrap: expect(\"why this cannot fail\") or an error";
                findings.push(Finding::new(source, line, what));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Source::new(path, text)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn clean_file_has_no_finding() {
        assert!(found("crates/a/src/lib.rs", "//! Story.\nfn f() { \"unsafe\"; }\n").is_empty());
    }

    #[test]
    fn each_rule_finds_its_fault() {
        let long = format!("//! Story.\nfn f() {{\n{}}}\n", "    g();\n".repeat(70));
        assert_eq!(found("a.rs", &long), ["fn f has 72 lines"]);
        assert_eq!(found("a.rs", "fn f() {}\n").len(), 1);
        assert_eq!(found("a.rs", &format!("//! {}\n", "x".repeat(97))).len(), 1);
        assert_eq!(found("a.rs", "//! S.\nfn f() { unsafe { g() } }\n").len(), 1);
        assert_eq!(found("a.rs", "//! S.\nfn f() { dbg!(1).unwrap(); }\n").len(), 2);
        assert_eq!(found("src/util.rs", "//! S.\n").len(), 1);
        assert_eq!(found("a.rs", concat!("//! S. TO", "DO: more\n")).len(), 1);
        let methods = (0..9).map(|n| format!("fn f{n}();\n")).collect::<String>();
        assert_eq!(found("a.rs", &format!("//! S.\ntrait T {{\n{methods}}}\n")).len(), 1);
        assert!(found("crates/host/src/a.rs", "//! S.\nfn f() { unsafe { g() } }\n").is_empty());
    }

    #[test]
    fn unwrap_in_the_tests_of_a_file_is_allowed() {
        let text = "//! S.\n#[cfg(test)]\nmod tests {\n    fn f() { g().unwrap(); }\n}\n";
        assert!(found("a.rs", text).is_empty());
    }
}
