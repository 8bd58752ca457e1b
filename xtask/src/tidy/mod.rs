//! `cargo x tidy`: rules beyond the compiler. Lengths, banned words, the places of `unsafe`, habits
//! that cost reading, wide structs, the arrows between crates, knots within a crate, a reason for
//! every dependency, files named in pages.
//!
//! Long functions are a ratchet: those in `xtask/tidy.ratchet` may shrink and never grow, and the
//! list must not name functions that are short now.

mod arrows;
mod knots;
mod links;
mod rules;
mod shapes;
mod source;

use crate::tools::{self, root};
use anyhow::{Result, bail};
use source::Source;
use std::collections::BTreeMap;
use std::fs;

const RATCHET: &str = "xtask/tidy.ratchet";

/// One fault and its place.
pub(crate) struct Finding {
    path: String,
    line: usize,
    pub(crate) what: String,
    /// Name and size, for a ratchet rule.
    ratchet: Option<(String, usize)>,
}

impl Finding {
    pub(crate) fn new(source: &Source, line: usize, what: impl Into<String>) -> Finding {
        Finding::at(&source.path, line, what)
    }

    pub(crate) fn at(path: &str, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, what: what.into(), ratchet: None }
    }

    pub(crate) fn ratchet(self, key: String, size: usize) -> Finding {
        Finding { ratchet: Some((key, size)), ..self }
    }
}

pub(crate) fn run() -> Result<()> {
    let mut findings = arrows::check()?;
    findings.extend(links::check()?);
    let mut sources = Vec::new();
    for path in files()? {
        if let Ok(text) = fs::read_to_string(root().join(&path)) {
            sources.push(Source::new(&path, &text));
        }
    }
    let tests: Vec<_> = sources.iter().flat_map(Source::test_modules).collect();
    for source in &mut sources {
        source.declared_test = tests.contains(&source.path);
        findings.extend(rules::check(source));
        findings.extend(shapes::check(source));
    }
    findings.extend(knots::check(&sources));
    let (mut known, stale) = ratchet(&findings)?;
    findings.retain(|finding| match &finding.ratchet {
        Some((key, size)) => known.remove(key).is_none_or(|limit| *size > limit),
        None => true,
    });
    for key in stale {
        findings.push(Finding::at(RATCHET, 1, format!("{key}: fixed; remove it from the list")));
    }
    for finding in &findings {
        println!("{}:{}: {}", finding.path, finding.line, finding.what);
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: clean");
    Ok(())
}

/// Rust files that git tracks or would add.
fn files() -> Result<Vec<String>> {
    let mut git = tools::tool("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])
        .current_dir(root());
    Ok(tools::read(&mut git)?.lines().map(str::to_owned).collect())
}

/// The limits of the ratchet, and its lines without a remaining fault.
fn ratchet(findings: &[Finding]) -> Result<(BTreeMap<String, usize>, Vec<String>)> {
    let text = fs::read_to_string(root().join(RATCHET)).unwrap_or_default();
    let mut known = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let Some((size, key)) = line.split_once(' ') else { bail!("{RATCHET}: {line:?}") };
        known.insert(key.to_owned(), size.parse()?);
    }
    let found = |key: &String| {
        findings.iter().any(|f| f.ratchet.as_ref().is_some_and(|(found, _)| found == key))
    };
    let stale = known.keys().filter(|key| !found(key)).cloned().collect();
    Ok((known, stale))
}
