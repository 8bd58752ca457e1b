//! `cargo x deny`: licences, sources and duplicates of every crate, by the rules of `deny.toml`.
//!
//! `cargo x check` judges them from `Cargo.lock` and `cargo metadata`, which every machine has.
//! cargo-deny uses the same rules and checks more (yanked crates, texts of licences).

use crate::tools::{self, WORKSPACES, root};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use toml::Table;

/// The rules, for cargo-deny and for this module.
const RULES: &str = "deny.toml";

/// The rules of `deny.toml` that need no tool.
struct Rules {
    licences: Vec<String>,
    /// Crates with a licence of their own.
    exceptions: Vec<(String, Vec<String>)>,
    registries: Vec<String>,
    /// Crates with two accepted versions.
    duplicates: Vec<String>,
}

pub(crate) fn run() -> Result<()> {
    check()?;
    tools::need("cargo-deny").context("install it with: cargo install --locked cargo-deny")?;
    for manifest in WORKSPACES {
        let mut deny = tools::cargo();
        deny.args(["deny", "--locked", "--manifest-path", manifest, "--config"]);
        // Advisories belong to `cargo x audit`, because their data comes from elsewhere.
        tools::show(deny.arg(root().join(RULES)).args(["check", "bans", "licenses", "sources"]))?;
    }
    Ok(())
}

/// The checks that need neither a tool nor the network.
pub(crate) fn check() -> Result<()> {
    let rules = Rules::read()?;
    let mut faults = Vec::new();
    let mut count = 0;
    for manifest in WORKSPACES {
        let path = manifest.replace(".toml", ".lock");
        let lock: Table = fs::read_to_string(root().join(&path))
            .context(path.clone())?
            .parse()
            .context(path.clone())?;
        count += lock["package"].as_array().map_or(0, Vec::len);
        faults.extend(rules.judge_lock(&lock).into_iter().map(|fault| format!("{path}: {fault}")));
    }
    faults.extend(rules.judge_licences(&metadata()?));
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        bail!("deny: {} findings ({RULES} has the rules)", faults.len());
    }
    println!("deny: {count} crates, clean");
    Ok(())
}

/// Packages for this platform. Those of other platforms may be missing here.
fn metadata() -> Result<Value> {
    let version = tools::read(std::process::Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let mut metadata = tools::cargo();
    metadata.args(["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
    let text = tools::read(metadata.arg(host.context("rustc -vV names no host")?))?;
    Ok(serde_json::from_str(&text)?)
}

impl Rules {
    fn read() -> Result<Rules> {
        let text = fs::read_to_string(root().join(RULES)).context(RULES)?;
        Rules::parse(&text).context(RULES)
    }

    fn parse(text: &str) -> Result<Rules> {
        let rules: Table = text.parse()?;
        let list = |section: &str, key: &str| -> Result<Vec<toml::Value>> {
            let list = rules.get(section).and_then(|section| section.get(key));
            Ok(list.and_then(|list| list.as_array()).with_context(|| key.to_owned())?.clone())
        };
        let words = |list: Vec<toml::Value>| -> Vec<String> {
            list.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let skipped = |entry: &toml::Value| {
            let name = entry.get("crate")?.as_str()?;
            Some(name.split('@').next()?.to_owned())
        };
        let excepted = |entry: &toml::Value| {
            let licences = entry.get("allow")?.as_array()?.clone();
            Some((entry.get("crate")?.as_str()?.to_owned(), words(licences)))
        };
        Ok(Rules {
            licences: words(list("licenses", "allow")?),
            exceptions: list("licenses", "exceptions")?.iter().filter_map(excepted).collect(),
            registries: words(list("sources", "allow-registry")?),
            duplicates: list("bans", "skip")?.iter().filter_map(skipped).collect(),
        })
    }

    /// Checks sources, checksums and duplicates.
    fn judge_lock(&self, lock: &Table) -> Vec<String> {
        let mut faults = Vec::new();
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for package in lock["package"].as_array().into_iter().flatten() {
            let text = |key: &str| package.get(key).and_then(|value| value.as_str());
            let name = text("name").unwrap_or_default();
            let version = text("version").unwrap_or_default();
            versions.entry(name).or_default().push(version);
            // A crate of this project has no source.
            let Some(source) = text("source") else { continue };
            let known = source
                .strip_prefix("registry+")
                .is_some_and(|registry| self.registries.iter().any(|allowed| allowed == registry));
            if !known {
                faults.push(format!("{name} {version} comes from {source}"));
            } else if text("checksum").is_none() {
                faults.push(format!("{name} {version} has no checksum"));
            }
        }
        for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
            if !self.duplicates.iter().any(|known| known == name) {
                faults.push(format!("{name} is there in versions {}", versions.join(", ")));
            }
        }
        faults
    }

    fn judge_licences(&self, metadata: &Value) -> Vec<String> {
        let packages = metadata["packages"].as_array().into_iter().flatten();
        let foreign = packages.filter(|package| !package["source"].is_null());
        let faults = foreign.filter_map(|package| {
            let name = package["name"].as_str()?;
            let version = package["version"].as_str()?;
            match package["license"].as_str() {
                Some(licence) if self.permits(licence) || self.excepts(name, licence) => None,
                Some(licence) => Some(format!("{name} {version}: licence {licence}")),
                None => Some(format!("{name} {version} names no licence")),
            }
        });
        faults.collect()
    }

    fn excepts(&self, name: &str, licence: &str) -> bool {
        let named = self.exceptions.iter().filter(|(excepted, _)| excepted == name);
        named.flat_map(|(_, licences)| licences).any(|permitted| permitted == licence)
    }

    /// Whether an SPDX expression is permitted. Old crates write `/` for OR.
    fn permits(&self, expression: &str) -> bool {
        let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let mut at = 0;
        let met = self.either(&words, &mut at);
        met && at == words.len()
    }

    fn either(&self, words: &[&str], at: &mut usize) -> bool {
        let mut met = self.all(words, at);
        while words.get(*at) == Some(&"OR") {
            *at += 1;
            met |= self.all(words, at);
        }
        met
    }

    fn all(&self, words: &[&str], at: &mut usize) -> bool {
        let mut met = self.term(words, at);
        while words.get(*at) == Some(&"AND") {
            *at += 1;
            met &= self.term(words, at);
        }
        met
    }

    fn term(&self, words: &[&str], at: &mut usize) -> bool {
        let Some(word) = words.get(*at) else { return false };
        *at += 1;
        if *word == "(" {
            let met = self.either(words, at);
            let closed = words.get(*at) == Some(&")");
            *at += 1;
            return met && closed;
        }
        // With an exception it is a different licence, which the list must name.
        if words.get(*at) == Some(&"WITH") {
            *at += 2;
            return false;
        }
        self.licences.iter().any(|licence| licence == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::parse(
            "[licenses]\nallow = [\"MIT\", \"Zlib\"]\n\
             exceptions = [{ crate = \"odd\", allow = [\"X WITH Y\"] }]\n\
             [sources]\nallow-registry = [\"https://r\"]\n\
             [bans]\nskip = [{ crate = \"old@1\", reason = \"r\" }]\n",
        )
        .unwrap()
    }

    #[test]
    fn licence_expressions_are_met_or_not() {
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(GPL-3.0 OR MIT) AND Zlib", true),
            ("GPL-3.0 OR MIT AND X11", false),
            ("MIT WITH X-exception", false),
            ("GPL-3.0 WITH X-exception OR MIT", true),
            ("(MIT", false),
            ("MIT Zlib", false),
            ("MIT)", false),
            ("", false),
        ] {
            assert_eq!(rules().permits(expression), expected, "{expression}");
        }
    }

    #[test]
    fn crates_of_foreign_sources_and_second_versions_are_found() {
        let package = |name: &str, version: &str, rest: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n{rest}")
        };
        let good = "source = \"registry+https://r\"\nchecksum = \"c\"\n";
        let lock: Table = [
            package("ours", "1", ""),
            package("old", "1", good),
            package("old", "2", good),
            package("two", "1", good),
            package("two", "2", good),
            package("forked", "1", "source = \"git+https://g\"\n"),
            package("bare", "1", "source = \"registry+https://r\"\n"),
        ]
        .concat()
        .parse()
        .unwrap();
        assert_eq!(
            rules().judge_lock(&lock),
            [
                "forked 1 comes from git+https://g",
                "bare 1 has no checksum",
                "two is there in versions 1, 2",
            ]
        );
    }

    #[test]
    fn crate_without_a_permitted_licence_is_found() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "ours", "version": "1", "source": null, "license": null },
            { "name": "good", "version": "1", "source": "r", "license": "MIT" },
            { "name": "bad", "version": "1", "source": "r", "license": "GPL-3.0" },
            { "name": "odd", "version": "1", "source": "r", "license": "X WITH Y" },
            { "name": "odder", "version": "1", "source": "r", "license": "X WITH Y" },
            { "name": "mute", "version": "1", "source": "r", "license": null },
        ]});
        assert_eq!(
            rules().judge_licences(&metadata),
            ["bad 1: licence GPL-3.0", "odder 1: licence X WITH Y", "mute 1 names no licence"]
        );
    }
}
