//! The static program, with musl: one file for any Linux on this processor, without libraries of
//! the system. It cannot load librbd, so `rbd:` needs the other one.

use super::{Release, sbom};
use crate::lab::{self, Lab};
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-musl";

/// Builds the program; returns its file.
pub(super) fn make(release: &Release) -> Result<PathBuf> {
    tools::need("musl-gcc")?;
    has_target()?;
    let mut build = tools::cargo();
    build.args(["build", "--quiet", "--locked", "--release", "--bin", "blockyard"]);
    tools::show(build.args(["--package", "blockyard-cli", "--target", TARGET]))?;
    let built = lab::target().join(TARGET).join("release/blockyard");
    let file = release.folder.join(format!("blockyard-{}-x86_64-static", release.version));
    super::strip(&built, &file, &[])?;
    println!("{}: {:.1} MB", file.display(), fs::metadata(&file)?.len() as f64 / 1e6);
    Ok(file)
}

/// Installs Rust's library for the target, if rustup is here and the library is not.
fn has_target() -> Result<()> {
    let folder = tools::read(Command::new("rustc").args(["--print", "sysroot"]))?;
    if Path::new(folder.trim()).join("lib/rustlib").join(TARGET).is_dir() {
        return Ok(());
    }
    let added = tools::run(Command::new("rustup").args(["-q", "target", "add", TARGET]));
    added.map(drop).with_context(|| format!("Rust has no {TARGET} here; --no-static does without"))
}

/// Uses the program in a root that has nothing else.
pub(super) fn check(lab: &Lab, program: &Path) -> Result<()> {
    sbom::is_found(program, TARGET)?;
    let root = lab.disk().join("empty");
    fs::create_dir(&root)?;
    fs::copy(program, root.join("blockyard"))?;
    fs::write(root.join("key"), "open sesame")?;
    fs::write(root.join("text"), "Some text of a file.\n")?;
    let plain = root.join("plain");
    tools::run(tool("mke2fs").args(["-q", "-t", "ext4"]).arg(&plain).arg("32M"))?;
    let write = format!("write {} name", root.join("text").display());
    tools::run(tool("debugfs").args(["-w", "-R", &write]).arg(&plain))?;
    let inside = |words: &str| {
        let mut run = tool("chroot");
        run.arg(&root).arg("/blockyard").args(words.split(' '));
        tools::read(&mut run).with_context(|| format!("the static program: {words}"))
    };
    inside(
        "format /disk --size 64M --key-file /key --batch-mode --pbkdf-force-iterations 4 \
         --pbkdf-memory 32",
    )?;
    inside("load /disk --key-file /key --allow-short --input /plain")?;
    inside("cp /disk:/name /copy --key-file /key")?;
    ensure!(fs::read(root.join("copy"))? == fs::read(root.join("text"))?, "the copy differs");
    println!("an empty root: the static program makes a volume, fills it, and reads a file");
    Ok(())
}
