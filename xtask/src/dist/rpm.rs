//! The package for Fedora, openSUSE and their relatives.

use super::{ABOUT, Release, SUMMARY};
use crate::tools::{self, tool};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of zsh's completions.
const DEBIAN_ZSH: &str = "/usr/share/zsh/vendor-completions";
const RPM_ZSH: &str = "/usr/share/zsh/site-functions";

pub(super) fn make(release: &Release, root: &Path) -> Result<PathBuf> {
    let work = release.folder.join("rpmbuild");
    fs::create_dir_all(&work)?;
    let spec = work.join("blockyard.spec");
    fs::write(&spec, text(release, root)?)?;
    let mut build = tool("rpmbuild");
    build.env("SOURCE_DATE_EPOCH", release.time_s.to_string()).args(["-bb", "--quiet"]);
    for (name, value) in [
        ("_topdir", work.display().to_string()),
        ("_buildhost", "reproducible".into()),
        ("use_source_date_epoch_as_buildtime", "1".into()),
        ("clamp_mtime_to_source_date_epoch", "1".into()),
        // The files are as they shall be.
        ("__os_install_post", "%{nil}".into()),
        ("_build_id_links", "none".into()),
        ("debug_package", "%{nil}".into()),
    ] {
        build.arg("--define").arg(format!("{name} {value}"));
    }
    tools::run(build.arg(&spec))?;
    let name = format!("blockyard-{}-1.x86_64.rpm", release.version);
    let file = release.folder.join(&name);
    fs::rename(work.join("RPMS/x86_64").join(&name), &file).context(name)?;
    fs::remove_dir_all(&work)?;
    Ok(file)
}

fn text(release: &Release, root: &Path) -> Result<String> {
    let list = tools::read(tool("find").arg(root).args(["-type", "f", "-printf", "/%P\n"]))?;
    let mut files: Vec<&str> = list.lines().collect();
    files.sort_unstable();
    Ok(format!(
        "Name: blockyard\nVersion: {}\nRelease: 1\nSummary: {SUMMARY}\n\
         License: MIT OR Apache-2.0\nBuildArch: x86_64\nRecommends: fuse3\n\
         %description\n{ABOUT}\n%install\ncp -a {}/. %{{buildroot}}/\n\
         mv %{{buildroot}}{DEBIAN_ZSH} %{{buildroot}}{RPM_ZSH}\n\
         %post\n[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\n\
         %postun\n[ ! -d /run/systemd/system ] || systemctl daemon-reload || :\n\
         %files\n%defattr(-,root,root)\n{}\n",
        release.version,
        root.display(),
        files.join("\n").replace(DEBIAN_ZSH, RPM_ZSH)
    ))
}
