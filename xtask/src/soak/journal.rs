//! The journal of `cargo x soak`: one JSON object a line, for each slice of a campaign and for each
//! mended finding. The page is made of nothing else.

use crate::totals::Totals;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum Entry {
    Slice(Slice),
    Mend(Mend),
}

/// A campaign's run of some minutes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Slice {
    pub(super) campaign: String,
    /// Words of `cargo x`.
    pub(super) command: String,
    /// Time of its begin: `2026-11-28 15:02:48 UTC`.
    pub(super) began: String,
    pub(super) seconds: f64,
    pub(super) commit: String,
    pub(super) machine: String,
    pub(super) totals: Totals,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) findings: Vec<Finding>,
}

/// A check that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) what: String,
    /// The command that repeats it.
    pub(super) again: String,
}

/// The end of a finding; a person writes this line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Mend {
    /// A part of the finding's text that no other finding has.
    pub(super) of: String,
    /// The cause, and the test that now fails without the mend.
    pub(super) how: String,
}

pub(super) fn append(path: &Path, entry: &Entry) -> Result<()> {
    let place = || path.display().to_string();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(place)?;
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path).with_context(place)?;
    // One call: two lanes append to one file.
    let line = format!("{}\n", serde_json::to_string(entry)?);
    file.write_all(line.as_bytes()).with_context(place)
}

pub(super) fn read(text: &str) -> Result<Vec<Entry>> {
    let entry = |(index, line)| {
        serde_json::from_str(line).with_context(|| format!("line {} of the journal", index + 1))
    };
    text.lines().enumerate().map(entry).collect()
}

/// The findings in the output of a command that failed: one for each failed case, or its last
/// lines.
pub(super) fn findings(said: &str, command: &str) -> Vec<Finding> {
    let mut texts: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in said.lines() {
        if let Some(case) = line.strip_prefix("  FAIL ") {
            texts.push(case.to_owned());
            is_open = true;
        } else if let (true, Some(more), Some(text)) =
            (is_open, line.strip_prefix("         "), texts.last_mut())
        {
            text.push('\n');
            text.push_str(more);
        } else {
            is_open = false;
        }
    }
    if texts.is_empty() {
        texts.push(crate::tools::tail(said));
    }
    let finding = |what: String| Finding { again: again(&what, command), what };
    texts.into_iter().map(finding).collect()
}

/// The first command in the text of a finding, or that of the whole slice.
fn again(what: &str, command: &str) -> String {
    let from = what.find("cargo x ").map(|at| &what[at..]);
    let line = from.and_then(|rest| rest.split(['\n', '`', ';', ')']).next());
    let words = line.and_then(|line| line.split(": ").next());
    words.map_or_else(
        || format!("cargo x {command}"),
        |words| words.trim().trim_end_matches(':').to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_case_is_a_finding_with_the_command_that_repeats_it() {
        let said = "  ok   one\n  \
                    FAIL two (3.0 s): cargo x syscalls load write:EIO:5: a promise\n         \
                    was broken\n  FAIL three: no answer\nx: 1 passed, 2 failed\n";
        let found = findings(said, "interop two");
        let again: Vec<&str> = found.iter().map(|finding| finding.again.as_str()).collect();
        assert_eq!(again, ["cargo x syscalls load write:EIO:5", "cargo x interop two"]);
        assert!(found[0].what.ends_with("a promise\nwas broken"), "{found:?}");
    }

    #[test]
    fn output_without_cases_is_a_finding_too() {
        let said = "oracle: lost\n  cargo x sim --seed 7\n";
        let [finding] = &findings(said, "sim --seeds 9")[..] else { panic!("one finding") };
        assert_eq!(finding.again, "cargo x sim --seed 7");
    }

    #[test]
    fn what_was_appended_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/journal.jsonl");
        let mut totals = Totals::default();
        totals.add("worlds", 7);
        let slice = Slice { campaign: "sim".into(), totals, ..Slice::default() };
        append(&path, &Entry::Slice(slice)).unwrap();
        append(&path, &Entry::Mend(Mend { of: "x".into(), how: "y".into() })).unwrap();
        let entries = read(&fs::read_to_string(&path).unwrap()).unwrap();
        let [Entry::Slice(slice), Entry::Mend(_)] = &entries[..] else { panic!("{entries:?}") };
        assert_eq!((slice.campaign.as_str(), slice.totals.get("worlds")), ("sim", 7));
    }
}
