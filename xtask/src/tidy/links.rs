//! Paths and links of the pages: each names a file or folder that exists.

use super::Finding;
use crate::tools::{self, root};
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose files are named by a path from the root.
const ROOTS: &[&str] =
    &["crates/", "docs/", "xtask/", "examples/", "experiments/", "testdata/", "fuzz/"];

/// Characters of patterns and placeholders: `crates/*/tests`, `testdata/fuzz-seeds/TARGET`.
const NOT_IN_PATHS: &[char] = &['*', '<', ' ', '{'];

pub(crate) fn check() -> Result<Vec<Finding>> {
    let mut git = tools::tool("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "*.md"])
        .current_dir(root());
    let mut findings = Vec::new();
    for page in tools::read(&mut git)?.lines() {
        let Ok(text) = fs::read_to_string(root().join(page)) else { continue };
        for (line, named) in named(&text) {
            if !exists(page, &named) {
                findings.push(Finding::at(page, line, format!("{named} does not exist")));
            }
        }
    }
    Ok(findings)
}

/// Targets of links, and paths in backticks, with their lines, outside of code blocks.
fn named(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            in_block = !in_block;
        }
        if in_block || line.starts_with("    ") {
            continue;
        }
        let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let links = links.map(|link| link.split('#').next().unwrap_or_default());
        let links = links.filter(|link| !link.is_empty() && !link.contains("://"));
        let ticks = line.split('`').skip(1).step_by(2).filter(|path| is_path(path));
        found.extend(links.chain(ticks).map(|path| (index + 1, path.to_owned())));
    }
    found
}

fn is_path(word: &str) -> bool {
    let is_placeholder = |part: &str| part.len() > 1 && part == part.to_uppercase();
    ROOTS.iter().any(|root| word.starts_with(root))
        && !word.contains(NOT_IN_PATHS)
        && !word.split('/').any(|part| is_placeholder(part) && !part.contains('.'))
}

fn exists(page: &str, named: &str) -> bool {
    let beside = Path::new(page).parent().map_or(PathBuf::new(), |dir| dir.join(named));
    root().join(named).exists() || root().join(beside).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_links_are_found_with_their_lines() {
        let text = "A `crates/a.rs`, `x`.\n[b](../b.md#c), [d](https://d)\n```\n`docs/e`\n```\n";
        let found = named(text);
        assert_eq!(found, [(1, "crates/a.rs".to_owned()), (2, "../b.md".to_owned())]);
    }

    #[test]
    fn patterns_and_placeholders_are_no_paths() {
        assert!(is_path("docs/GLOSSARY.md") && is_path("crates/cli/src/"));
        assert!(!is_path("crates/*/tests") && !is_path("testdata/fuzz-seeds/TARGET"));
    }

    #[test]
    fn missing_file_does_not_exist() {
        assert!(exists("docs/lab.md", "trace.md") && exists("README.md", "docs/lab.md"));
        assert!(!exists("docs/lab.md", "no-such-page.md"));
    }
}
