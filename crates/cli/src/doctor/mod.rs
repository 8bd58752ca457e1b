//! What is slow or risky about a machine, a volume or a configuration, and what mends it.
//!
//! Each file looks at one thing and knows its rules: what was seen is text of `/proc`, `/sys`,
//! headers and statuses, so that every rule can be shown a machine that is not there. No passphrase
//! is asked for, nothing is locked, nothing is changed.

pub(crate) mod configuration;
pub(crate) mod header;
pub(crate) mod machine;
pub(crate) mod place;
pub(crate) mod server;

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::failure::printable;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Grade {
    /// Data or secrets can be lost
    Risky,
    /// It costs time
    Slow,
    /// A choice that others make differently
    Note,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) grade: Grade,
    /// The machine, a file, an export.
    pub(crate) place: String,
    /// What was seen, and what it means.
    pub(crate) seen: String,
    /// A command, or what to write where.
    pub(crate) mend: String,
}

impl Finding {
    pub(crate) fn new(
        grade: Grade,
        place: impl Into<String>,
        seen: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { grade, place: place.into(), seen: seen.into(), mend: mend.into() }
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "grade": self.grade.name(),
            "place": self.place,
            "seen": self.seen,
            "mend": self.mend,
        })
    }
}

impl Grade {
    /// In one word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Risky => "risky",
            Self::Slow => "slow",
            Self::Note => "note",
        }
    }
}

/// Findings as text, the worst first.
pub(crate) fn print(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return "nothing that is slow or risky\n".into();
    }
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.grade);
    let block = |finding: &&Finding| {
        let Finding { grade, place, seen, mend } = finding;
        let (place, seen, mend) = (printable(place), printable(seen), printable(mend));
        format!("{:<5}  {place}: {seen}\n       {mend}\n", grade.name())
    };
    sorted.iter().map(block).collect::<Vec<_>>().join("\n")
}

/// A path for a command line: in quotes if it needs them.
pub(crate) fn quoted(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@".contains(c);
    match text.chars().all(is_plain) && !text.is_empty() {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_comes_first_with_its_remedy() {
        let finding = |grade, seen: &str| Finding::new(grade, "a.img", seen, "do this");
        let findings = [finding(Grade::Note, "one"), finding(Grade::Risky, "two")];
        let text = print(&findings);
        let wanted = "risky  a.img: two\n       do this\n\nnote   a.img: one\n       do this\n";
        assert_eq!(text, wanted);
        assert!(print(&[]).contains("nothing"));
        let hostile = Finding::new(Grade::Note, "a\u{1b}[2J", "seen", "do this");
        assert!(print(&[hostile]).contains("a\\u{1b}[2J"));
    }

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted("/srv/a-1.img".as_ref()), "/srv/a-1.img");
        assert_eq!(quoted("it's $x".as_ref()), r"'it'\''s $x'");
    }
}
