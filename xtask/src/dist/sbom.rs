//! The libraries in the program: as a `CycloneDX` 1.5 list beside it, and as the section of
//! `cargo auditable` in it, which `cargo audit bin` and scanners of images read.

use super::Release;
use crate::tools;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Section of the program with the list.
pub(super) const SECTION: &str = ".dep-v0";

/// The target of the program in the packages.
pub(super) const GNU: &str = "x86_64-unknown-linux-gnu";

/// Level of zlib: the highest.
const COMPRESSION: u8 = 9;

/// Packages in the program, by name and version.
struct Program(Vec<Package>);

/// A package whose code is in the program.
struct Package {
    name: String,
    version: String,
    license: Value,
    /// The package is of this workspace.
    is_ours: bool,
    is_root: bool,
    /// Places of the packages that it needs.
    needs: Vec<usize>,
}

/// Writes the list beside the packages; returns its file.
pub(super) fn make(release: &Release) -> Result<PathBuf> {
    let Program(packages) = Program::read()?;
    let foreign = packages.iter().filter(|package| !package.is_ours);
    let components: Vec<Value> = foreign.map(Package::component).collect();
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

/// The content of the section: JSON, compressed.
pub(super) fn section() -> Result<Vec<u8>> {
    let Program(packages) = Program::read()?;
    let packages: Vec<Value> = packages.iter().map(Package::entry).collect();
    let text = json!({ "packages": packages }).to_string();
    Ok(miniz_oxide::deflate::compress_to_vec_zlib(text.as_bytes(), COMPRESSION))
}

/// The reader of `cargo audit` finds the packages in the section that cargo compiles into a program
/// of this target.
pub(super) fn is_found(program: &Path, target: &str) -> Result<()> {
    let found = auditable_info::audit_info_from_file(program, Default::default());
    let found = found.with_context(|| format!("{} has no list", program.display()))?.packages;
    let found: BTreeSet<(String, String)> =
        found.into_iter().map(|one| (one.name, one.version.to_string())).collect();
    ensure!(found == compiled(target)?, "{}: its list is another one", program.display());
    println!("{}: its section {SECTION} names {} packages", program.display(), found.len());
    Ok(())
}

/// Names and versions of the packages in a program for this target: without macros, which only its
/// build needs. `cargo metadata` has the features of the whole workspace, and so more packages.
fn compiled(target: &str) -> Result<BTreeSet<(String, String)>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(tools::root()).args(["tree", "--offline", "--locked", "--target", target]);
    cargo.args(["--package", "blockyard-cli", "--edges", "normal,no-proc-macro"]);
    let lines = tools::read(cargo.args(["--prefix", "none", "--format", "{p}"]))?;
    let package = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?;
        let version = words.next()?;
        Some((name.to_owned(), version.strip_prefix('v')?.to_owned()))
    };
    Ok(lines.lines().filter_map(package).collect())
}

impl Program {
    fn read() -> Result<Program> {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(tools::root()).args(["metadata", "--format-version", "1", "--offline"]);
        cargo.args(["--locked", "--filter-platform", GNU]);
        Self::of(&serde_json::from_str(&tools::read(&mut cargo)?)?, &compiled(GNU)?)
    }

    fn of(metadata: &Value, compiled: &BTreeSet<(String, String)>) -> Result<Program> {
        let nodes = list(&metadata["resolve"]["nodes"]);
        let needs: BTreeMap<String, Vec<String>> =
            nodes.iter().map(|node| (word(&node["id"]), needs(node))).collect();
        let packages = list(&metadata["packages"]);
        let root = packages.iter().find(|one| one["name"] == "blockyard-cli");
        let root = word(&root.context("the program is missing")?["id"]);
        let is_in = |one: &&Value| compiled.contains(&(word(&one["name"]), word(&one["version"])));
        let mut packages: Vec<&Value> = packages.iter().filter(is_in).collect();
        packages.sort_by_key(|one| (word(&one["name"]), word(&one["version"])));
        let places: BTreeMap<String, usize> =
            packages.iter().enumerate().map(|(place, one)| (word(&one["id"]), place)).collect();
        let package = |one: &&Value| {
            let id = word(&one["id"]);
            let needs = needs.get(&id).into_iter().flatten();
            Package {
                name: word(&one["name"]),
                version: word(&one["version"]),
                license: one["license"].clone(),
                is_ours: one["source"].is_null(),
                is_root: id == root,
                needs: needs.filter_map(|id| places.get(id).copied()).collect(),
            }
        };
        Ok(Program(packages.iter().map(package).collect()))
    }
}

impl Package {
    fn component(&self) -> Value {
        let Package { name, version, license, .. } = self;
        json!({
            "type": "library",
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
            "licenses": [{ "expression": license }],
        })
    }

    /// The package in the section's format.
    fn entry(&self) -> Value {
        let source = if self.is_ours { "local" } else { "crates.io" };
        let mut entry = json!({ "name": self.name, "version": self.version, "source": source });
        if !self.needs.is_empty() {
            entry["dependencies"] = json!(self.needs);
        }
        if self.is_root {
            entry["root"] = json!(true);
        }
        entry
    }
}

/// Ids of the packages that a node needs to run.
fn needs(node: &Value) -> Vec<String> {
    let is_normal =
        |one: &&Value| list(&one["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
    list(&node["deps"]).iter().filter(is_normal).map(|one| word(&one["pkg"])).collect()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
