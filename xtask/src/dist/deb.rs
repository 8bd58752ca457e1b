//! The package for Debian and Ubuntu.

use super::{ABOUT, Release, SUMMARY};
use crate::tools::{self, tool};
use anyhow::Result;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// systemd reads the units anew; they start nothing by themselves.
const RELOAD: &str = "\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
";

pub(super) fn make(release: &Release, root: &Path) -> Result<PathBuf> {
    let control = root.join("DEBIAN");
    fs::create_dir(&control)?;
    fs::write(control.join("control"), fields(release, root)?)?;
    for script in ["postinst", "postrm"] {
        let path = control.join(script);
        fs::write(&path, RELOAD)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    super::tree::set_times(root, release.time_s)?;
    let file = release.folder.join(format!("blockyard_{}_amd64.deb", release.version));
    let mut build = tool("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", release.time_s.to_string());
    tools::run(build.args(["--root-owner-group", "-Zxz", "--build"]).arg(root).arg(&file))?;
    fs::remove_dir_all(&control)?;
    Ok(file)
}

fn fields(release: &Release, root: &Path) -> Result<String> {
    let size =
        tools::read(tool("du").args(["-sk", "--apparent-size", "--exclude=DEBIAN"]).arg(root))?;
    let size_kib = size.split_whitespace().next().unwrap_or("0");
    let mut text = String::new();
    for (name, value) in [
        ("Package", "blockyard"),
        ("Version", &release.version),
        ("Architecture", "amd64"),
        ("Maintainer", "The Blockyard authors <blockyard@localhost>"),
        ("Section", "utils"),
        ("Priority", "optional"),
        ("Installed-Size", size_kib),
        ("Depends", "libc6 (>= 2.36), libgcc-s1"),
        ("Recommends", "fuse3"),
        ("Suggests", "librbd1, qemu-utils, clevis-luks, tpm2-tools, ntfs-3g, fuse2fs, squashfuse"),
        ("Description", SUMMARY),
    ] {
        let _ = writeln!(text, "{name}: {value}");
    }
    ABOUT.lines().for_each(|line| {
        let _ = writeln!(text, " {line}");
    });
    Ok(text)
}
