//! The arrows between crates, and a reason for every dependency.

use super::Finding;
use crate::tools::{WORKSPACES, root};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;

/// Permitted imports of each crate. A new crate needs an entry here.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("crypt", &[]),
    ("engine", &[]),
    ("workload", &["engine"]),
    ("protocol", &[]),
    ("host", &["crypt", "engine", "protocol"]),
    ("sim", &["engine", "workload"]),
    ("report", &[]),
    ("blockyard", &["crypt", "engine", "host", "protocol", "workload"]),
    ("lab", &["blockyard", "engine", "workload", "sim", "report"]),
    (
        "cli",
        &["blockyard", "lab", "crypt", "engine", "workload", "protocol", "host", "sim", "report"],
    ),
];

/// Attributes of the engine's root, which keep threads, clocks and bytes out of reach.
const ENGINE_SAYS: &[&str] = &["#![no_std]", "#![forbid(unsafe_code)]"];

pub(crate) fn check() -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for entry in fs::read_dir(root().join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let path = format!("crates/{name}/Cargo.toml");
        let Ok(manifest) = fs::read_to_string(root().join(&path)) else { continue };
        imports(&name, &path, &manifest, &mut findings);
    }
    let engine = "crates/engine/src/lib.rs";
    let text = fs::read_to_string(root().join(engine)).context(engine)?;
    for line in ENGINE_SAYS {
        if !text.lines().any(|found| found == *line) {
            findings.push(Finding::at(engine, 1, format!("{line} is missing")));
        }
    }
    reasons(&mut findings)?;
    Ok(findings)
}

fn imports(name: &str, path: &str, manifest: &str, findings: &mut Vec<Finding>) {
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(known, _)| *known == name) else {
        findings.push(Finding::at(path, 1, format!("{name}: no rule for its imports")));
        return;
    };
    for (line, dependency) in dependencies(manifest, "dependencies") {
        let facade = (dependency == "blockyard").then_some("blockyard");
        let ours = dependency.strip_prefix("blockyard-").or(facade);
        if let Some(ours) = ours.filter(|ours| !allowed.contains(ours)) {
            findings.push(Finding::at(path, line, format!("{name} may not import {ours}")));
        }
    }
}

/// Names in the tables of a manifest whose header ends with `table`; dev-dependencies are another
/// table.
fn dependencies(manifest: &str, table: &str) -> Vec<(usize, String)> {
    let mut inside = false;
    let mut names = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            inside = header == table || header.ends_with(&format!(".{table}"));
        } else if inside
            && let Some((name, _)) = line.split_once('=')
            && !line.starts_with([' ', '#'])
        {
            let name = name.trim().split('.').next().unwrap_or_default();
            names.push((index + 1, name.to_owned()));
        }
    }
    names
}

/// Checks that every dependency of the workspace has its line in docs/dependencies.md, and that
/// every line has its dependency.
fn reasons(findings: &mut Vec<Finding>) -> Result<()> {
    let document = "docs/dependencies.md";
    let text = fs::read_to_string(root().join(document)).context(document)?;
    let mut reasoned = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        if let Some((name, reason)) = line.strip_prefix("| `").and_then(|row| row.split_once("` |"))
        {
            reasoned.insert(name.to_owned());
            if reason.trim_matches([' ', '|']).len() < 10 {
                findings.push(Finding::at(document, index + 1, format!("{name}: no reason")));
            }
        }
    }
    let mut used = BTreeSet::new();
    for manifest in WORKSPACES {
        let Ok(text) = fs::read_to_string(root().join(manifest)) else { continue };
        for (line, name) in dependencies(&text, "dependencies") {
            if !name.starts_with("blockyard") && !reasoned.contains(&name) {
                let what = format!("{name} has no line in {document}");
                findings.push(Finding::at(manifest, line, what));
            }
            used.insert(name);
        }
    }
    for name in reasoned.difference(&used) {
        findings.push(Finding::at(document, 1, format!("{name} is no dependency any more")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_the_named_table_only() {
        let text = "[dependencies]\na = \"1\"\nblockyard-b.workspace = true\n\
                    [dev-dependencies]\nc = \"1\"\n";
        let names: Vec<_> =
            dependencies(text, "dependencies").into_iter().map(|(_, n)| n).collect();
        assert_eq!(names, ["a", "blockyard-b"]);
    }

    #[test]
    fn arrow_that_points_up_is_found() {
        let mut findings = Vec::new();
        imports("engine", "x", "[dependencies]\nblockyard-host.workspace = true\n", &mut findings);
        imports("host", "x", "[dependencies]\nblockyard-engine.workspace = true\n", &mut findings);
        imports("attic", "x", "", &mut findings);
        let said: Vec<_> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(said, ["engine may not import host", "attic: no rule for its imports"]);
    }
}
