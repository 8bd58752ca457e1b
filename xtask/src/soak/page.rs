//! docs/soak.md: the totals of a journal.

use super::CAMPAIGNS;
use super::journal::{self, Entry, Finding, Mend, Slice};
use crate::markdown::{Section, table};
use crate::tools;
use crate::totals::Totals;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

const PAGE: &str = "docs/soak.md";
/// The journal that is in the repository.
const JOURNAL: &str = "testdata/soak.jsonl";
const SECTION: Section = Section { command: "cargo x soak --page" };

pub(super) fn write() -> Result<()> {
    let journal = fs::read_to_string(tools::root().join(JOURNAL)).context(JOURNAL)?;
    SECTION.write(&tools::root().join(PAGE), &text(&journal)?)
}

/// Counts of random worlds, with their words.
const SIMULATED: &[(&str, &str)] = &[
    ("worlds", "random worlds, each twice"),
    ("requests", "requests in them"),
    ("faults", "faults of their disks"),
    ("power_cuts", "power cuts in them"),
    ("outages", "paths that failed in them"),
    ("disconnects", "connections that left in them"),
];
/// Counts of the real program.
const REAL: &[(&str, &str)] = &[
    ("power_cuts", "power cuts under the real program"),
    ("promises", "promises of flushes kept"),
    ("calls_failed", "failed system calls"),
    ("changed_headers", "changed LUKS headers"),
    ("disconnects", "abrupt disconnects"),
    ("requests_served", "requests under the watch of memory, or while clocks jump"),
    ("commands_between_jumps", "commands while clocks jump"),
    ("kills", "kills of the server under load"),
    ("key_rounds", "rounds of two programs that add keyslots"),
    ("descriptor_tables", "random tables of descriptors"),
];

fn text(journal: &str) -> Result<String> {
    let mut slices = Vec::new();
    let mut mends = Vec::new();
    for entry in journal::read(journal)? {
        match entry {
            Entry::Slice(slice) => slices.push(slice),
            Entry::Mend(mend) => mends.push(mend),
        }
    }
    let mut text = origin(&slices);
    let _ = write!(text, "\n### Totals\n\n{}", totals(&slices));
    let _ = write!(text, "\n### Campaigns\n\n{}", campaigns(&slices));
    let _ = write!(text, "\n### Fuzzing\n\n{}", targets(&slices));
    let _ = write!(text, "\n### Findings\n\n{}", findings(&slices, &mends));
    Ok(text)
}

/// Time, machines and commits.
fn origin(slices: &[Slice]) -> String {
    let hours = slices.iter().map(|slice| slice.seconds).sum::<f64>() / 3600.0;
    let mut machines: Vec<&str> = slices.iter().map(|slice| slice.machine.as_str()).collect();
    let mut commits: Vec<&str> = slices.iter().map(|slice| slice.commit.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    commits.sort_unstable();
    commits.dedup();
    let first = slices.first().map_or("", |slice| &slice.began);
    let last = slices.last().map_or("", |slice| &slice.began);
    format!(
        "{hours:.1} hours of campaigns, builds included, in {} slices, from {first} to {last}.\n\n\
         * Machine: {}\n\
         * Commits: {}\n",
        slices.len(),
        machines.join("; "),
        commits.join(", ")
    )
}

fn line<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn totals(slices: &[Slice]) -> String {
    let mut lines = vec![line(["", "total"])];
    let (worlds, real): (Vec<_>, Vec<_>) =
        slices.iter().partition(|slice| slice.totals.get("worlds") > 0);
    let sum = |of: &[&Slice], name| of.iter().map(|slice| slice.totals.get(name)).sum::<u64>();
    for (name, words) in [
        ("simulated_ms", "device-hours simulated under load"),
        ("long_ms", "device-hours simulated with long pauses"),
    ] {
        let hours = sum(&worlds, name) / 3_600_000;
        lines.push(vec![words.to_owned(), grouped(hours)]);
    }
    for (of, counts) in [(&worlds, SIMULATED), (&real, REAL)] {
        for (name, words) in counts {
            lines.push(vec![(*words).to_owned(), grouped(sum(of, name))]);
        }
    }
    let executions = slices.iter().flat_map(|slice| slice.totals.iter());
    let executions = executions.filter(|(name, _)| name.ends_with("/executions"));
    lines.push(vec!["inputs of fuzz targets".to_owned(), grouped(executions.map(|x| x.1).sum())]);
    let found: usize = slices.iter().map(|slice| slice.findings.len()).sum();
    lines.push(vec!["findings".to_owned(), found.to_string()]);
    table(&lines)
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn campaigns(slices: &[Slice]) -> String {
    let mut by_name: BTreeMap<&str, (f64, u32, usize, Totals)> = BTreeMap::new();
    for slice in slices {
        let (seconds, count, found, totals) = by_name.entry(&slice.campaign).or_default();
        *seconds += slice.seconds;
        *count += 1;
        *found += slice.findings.len();
        for (name, number) in slice.totals.iter() {
            totals.add(name, number);
        }
    }
    let mut lines = vec![line(["campaign", "minutes", "slices", "findings", "counted"])];
    for (name, (seconds, count, found, totals)) in by_name {
        let counted = totals.iter().filter(|(name, _)| !is_kept_elsewhere(name));
        let counted: Vec<_> =
            counted.map(|(name, number)| format!("{} {name}", grouped(number))).collect();
        lines.push(vec![
            name.to_owned(),
            format!("{:.0}", seconds / 60.0),
            count.to_string(),
            found.to_string(),
            counted.join(", ").replace('_', " "),
        ]);
    }
    let runs = |name: &str| slices.iter().any(|slice| slice.campaign == name);
    let names = CAMPAIGNS.iter().map(|campaign| campaign.name).filter(|name| !runs(name));
    let missing: Vec<_> = names.collect();
    let rest = if missing.is_empty() { "none".to_owned() } else { missing.join(", ") };
    format!("{}\nCampaigns without a slice in the journal: {rest}.\n", table(&lines))
}

/// Seeds are numbers of the journal only, and fuzz targets have a table.
fn is_kept_elsewhere(name: &str) -> bool {
    name.ends_with("_seed") || name.contains('/')
}

fn targets(slices: &[Slice]) -> String {
    let mut merged = Totals::default();
    for (name, number) in slices.iter().flat_map(|slice| slice.totals.iter()) {
        if name.ends_with("/executions") {
            merged.add(name, number);
        } else if name.contains('/') {
            merged.raise(name, number);
        }
    }
    let mut lines = vec![line(["target", "inputs", "kept in the corpus", "edges", "of"])];
    for (name, executions) in merged.iter() {
        let Some(target) = name.strip_suffix("/executions") else { continue };
        let number = |what: &str| grouped(merged.get(&format!("{target}/{what}")));
        lines.push(vec![
            target.to_owned(),
            grouped(executions),
            number("corpus"),
            number("edges"),
            number("edges_of"),
        ]);
    }
    table(&lines)
}

/// Findings with the same end, or the same command.
struct Group<'a> {
    key: &'a str,
    slice: &'a Slice,
    first: &'a Finding,
    end: &'a str,
    count: u32,
}

fn findings(slices: &[Slice], mends: &[Mend]) -> String {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for slice in slices {
        for first in &slice.findings {
            let mend = mends.iter().find(|mend| first.what.contains(&mend.of));
            let key = mend.map_or(&first.again, |mend| &mend.of);
            let end = mend.map_or("Open.", |mend| &mend.how);
            match groups.iter_mut().find(|group| group.key == key) {
                Some(group) => group.count += 1,
                None => groups.push(Group { key, slice, first, end, count: 1 }),
            }
        }
    }
    let mut text = String::new();
    for Group { slice, first, end, count, .. } in groups {
        let Slice { campaign, began, commit, .. } = slice;
        let what = first.what.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "* **{campaign}**, {began}, {commit}, {count} times: {what}\n");
        let _ = writeln!(text, "      {}\n\n  {end}", first.again);
    }
    if text.is_empty() { "None.\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_numbers_of_the_journal() {
        let path = tools::root().join(PAGE);
        let journal = fs::read_to_string(tools::root().join(JOURNAL)).unwrap();
        let page = SECTION.page(&path, &text(&journal).unwrap()).unwrap();
        let is_equal = fs::read_to_string(&path).unwrap() == page;
        assert!(is_equal, "{PAGE} is not of {JOURNAL}; to write it: {}", SECTION.command);
    }

    #[test]
    fn totals_are_sums_and_a_finding_is_open_until_it_has_a_mend() {
        let slice = |more: &str| {
            format!(
                "{{\"kind\":\"slice\",\"campaign\":\"sim\",\"command\":\"sim\",\"began\":\"b\",\
                 \"seconds\":60,\"commit\":\"c\",\"machine\":\"m\",{more}}}"
            )
        };
        let first = slice(r#""totals":{"worlds":1200,"simulated_ms":3600000}"#);
        let second = slice(
            r#""totals":{"worlds":34,"trace/executions":5},
            "findings":[{"what":"lost a bio","again":"cargo x sim --seed 7"}]"#,
        );
        let journal = format!("{first}\n{}", second.replace('\n', " "));
        let page = text(&journal).unwrap();
        assert!(page.contains("| random worlds, each twice "), "{page}");
        assert!(page.contains("1,234 |") && page.contains("Open."), "{page}");
        let mend = r#"{"kind":"mend","of":"lost a bio","how":"Mended, with a test."}"#;
        let page = text(&format!("{journal}\n{mend}")).unwrap();
        assert!(page.contains("  Mended, with a test.") && !page.contains("Open."), "{page}");
    }
}
