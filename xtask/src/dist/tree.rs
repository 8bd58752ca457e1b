//! The files of a package, in a folder as they lie on the system.

use super::Release;
use crate::tools::{self, tool};
use anyhow::Result;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// File of the project, its place, and whether it is a program.
const FILES: &[(&str, &str, bool)] = &[
    ("packaging/systemd/blockyard@.service", "usr/lib/systemd/system", false),
    ("packaging/systemd/blockyard@.socket", "usr/lib/systemd/system", false),
    ("packaging/systemd/user/blockyard@.service", "usr/lib/systemd/user", false),
    ("packaging/systemd/user/blockyard@.socket", "usr/lib/systemd/user", false),
    ("packaging/vhost-user/50-blockyard.json", "usr/share/qemu/vhost-user", false),
    ("packaging/vhost-user/blockyard-vhost-user-blk", "usr/libexec", true),
    ("README.md", "usr/share/doc/blockyard", false),
    ("CHANGELOG.md", "usr/share/doc/blockyard", false),
    ("LICENSE-APACHE", "usr/share/doc/blockyard", false),
    ("LICENSE-MIT", "usr/share/doc/blockyard", false),
];

/// Shell, place and name of its completions.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "usr/share/bash-completion/completions/blockyard"),
    ("zsh", "usr/share/zsh/vendor-completions/_blockyard"),
    ("fish", "usr/share/fish/vendor_completions.d/blockyard.fish"),
];

/// Makes the folder; all files have the time of the release.
pub(super) fn stage(release: &Release) -> Result<PathBuf> {
    let root = release.folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    copy(&release.program, &root.join("usr/bin/blockyard"), true)?;
    for (file, place, is_program) in FILES {
        let file = tools::root().join(file);
        let name = file.file_name().unwrap_or_default();
        copy(&file, &root.join(place).join(name), *is_program)?;
    }
    docs(&root)?;
    for (shell, place) in COMPLETIONS {
        let script = tools::read(Command::new(&release.program).args(["completions", shell]))?;
        write(&root.join(place), script.as_bytes())?;
    }
    man_pages(release, &root)?;
    set_times(&root, release.time_s)?;
    Ok(root)
}

/// The documentation for users, as Markdown.
fn docs(root: &Path) -> Result<()> {
    let place = root.join("usr/share/doc/blockyard/docs");
    let mut list = Command::new("git");
    list.current_dir(tools::root()).args(["ls-files", "docs/*.md"]);
    for file in tools::read(&mut list)?.lines() {
        let below = file.trim_start_matches("docs/");
        let is_internal = ["rfd/", "guide/"].iter().any(|folder| below.starts_with(folder));
        if !is_internal {
            copy(&tools::root().join(file), &place.join(below), false)?;
        }
    }
    Ok(())
}

/// All man pages, compressed as distributions have them.
fn man_pages(release: &Release, root: &Path) -> Result<()> {
    let pages = release.folder.join("man");
    tools::run(Command::new(&release.program).arg("man").arg(format!("{}/", pages.display())))?;
    for page in fs::read_dir(&pages)? {
        let page = page?.path();
        let section = page.extension().unwrap_or_default().to_string_lossy().into_owned();
        let name = page.file_name().unwrap_or_default();
        let place = root.join(format!("usr/share/man/man{section}")).join(name);
        copy(&page, &place, false)?;
        tools::run(tool("gzip").args(["-9", "-n"]).arg(&place))?;
    }
    fs::remove_dir_all(&pages)?;
    Ok(())
}

fn copy(from: &Path, to: &Path, is_program: bool) -> Result<()> {
    write(to, &fs::read(from)?)?;
    let mode = if is_program { 0o755 } else { 0o644 };
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, bytes)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o644))?)
}

/// Gives all files and folders the time, and folders their usual mode.
pub(super) fn set_times(root: &Path, time_s: u64) -> Result<()> {
    let mut modes = tool("find");
    tools::run(modes.arg(root).args(["-type", "d", "-exec", "chmod", "755", "{}", "+"]))?;
    let mut times = tool("find");
    let date = format!("@{time_s}");
    tools::run(times.arg(root).args(["-exec", "touch", "-h", "-d", &date, "{}", "+"])).map(drop)
}
