//! The list of all libraries in the program, as `CycloneDX` 1.5.

use super::Release;
use crate::tools;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

pub(super) fn make(release: &Release) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(tools::root()).args(["metadata", "--format-version", "1", "--offline"]);
    cargo.args(["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"]);
    let metadata: Value = serde_json::from_str(&tools::read(&mut cargo)?)?;
    let components: Vec<Value> = of_program(&metadata)?.into_iter().map(component).collect();
    let text = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "name": "blockyard",
            "version": release.version,
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        }},
        "components": components,
    });
    let file = release.folder.join(format!("blockyard-{}.cdx.json", release.version));
    fs::write(&file, format!("{text:#}\n"))?;
    Ok(file)
}

/// Packages in the program: those that it needs to run, without ours, and without those for builds
/// and tests.
fn of_program(metadata: &Value) -> Result<Vec<&Value>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let nodes = list(&metadata["resolve"]["nodes"]);
    let needs: BTreeMap<String, Vec<String>> = nodes
        .iter()
        .map(|node| {
            let is_normal =
                |one: &&Value| list(&one["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let deps = list(&node["deps"]);
            (
                word(&node["id"]),
                deps.iter().filter(is_normal).map(|one| word(&one["pkg"])).collect(),
            )
        })
        .collect();
    let packages = metadata["packages"].as_array().context("cargo lists no packages")?;
    let program = packages.iter().find(|one| one["name"] == "blockyard-cli");
    let mut open = vec![word(&program.context("the program is missing")?["id"])];
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if found.insert(id.clone()) {
            open.extend(needs.get(&id).into_iter().flatten().cloned());
        }
    }
    let is_foreign = |one: &&Value| !one["source"].is_null() && found.contains(&word(&one["id"]));
    Ok(packages.iter().filter(is_foreign).collect())
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn component(package: &Value) -> Value {
    let name = word(&package["name"]);
    let version = word(&package["version"]);
    json!({
        "type": "library",
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        "licenses": [{ "expression": package["license"] }],
    })
}
