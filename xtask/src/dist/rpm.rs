//! The package for Fedora, openSUSE and their relatives.

use super::{ABOUT, Release, SUMMARY};
use crate::tools::{self, tool};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders of zsh's completions.
const DEBIAN_ZSH: &str = "/usr/share/zsh/vendor-completions";
const RPM_ZSH: &str = "/usr/share/zsh/site-functions";

/// Folders that a removal takes away, with those below. Other packages may have them too.
const FOLDERS: &[&str] =
    &["/usr/share/doc/blockyard", "/usr/share/fish", "/usr/share/qemu", "/usr/share/zsh"];

pub(super) fn make(release: &Release, root: &Path) -> Result<PathBuf> {
    let name = format!("blockyard-{}-1.x86_64.rpm", release.version);
    build(&release.folder, release.time_s, &text(release, root)?, &name)
}

/// A package with the C library of a root of Debian, as an RPM system has it.
pub(super) fn of_libraries(folder: &Path, root: &Path) -> Result<PathBuf> {
    let libraries = ["ld-linux-x86-64.so.2", "libc.so.6", "libgcc_s.so.1", "libm.so.6"];
    let place = "/lib/x86_64-linux-gnu";
    let from = root.join(&place[1..]);
    let files = libraries.map(|library| format!("{place}/{library}")).join("\n");
    let copies = libraries.map(|library| {
        format!("install -D {} %{{buildroot}}{place}/{library}", from.join(library).display())
    });
    let spec = format!(
        "Name: libraries\nVersion: 1\nRelease: 1\nSummary: The C library\nLicense: LGPL\n\
         BuildArch: x86_64\nProvides: /bin/sh, rtld(GNU_HASH)\n\
         %description\nThe C library.\n%install\n{}\n\
         %files\n{files}\n",
        copies.join("\n")
    );
    build(folder, 0, &spec, "libraries-1-1.x86_64.rpm")
}

/// Builds the package of a specification, which has this name, in a folder.
fn build(folder: &Path, time_s: u64, spec: &str, name: &str) -> Result<PathBuf> {
    let work = folder.join("rpmbuild");
    fs::create_dir_all(&work)?;
    let file = work.join("package.spec");
    fs::write(&file, spec)?;
    let mut build = tool("rpmbuild");
    build.env("SOURCE_DATE_EPOCH", time_s.to_string()).args(["-bb", "--quiet"]);
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
    tools::run(build.arg(&file))?;
    let built = folder.join(name);
    fs::rename(work.join("RPMS/x86_64").join(name), &built).with_context(|| name.to_owned())?;
    fs::remove_dir_all(&work)?;
    Ok(built)
}

fn text(release: &Release, root: &Path) -> Result<String> {
    let find = |kind: &str| {
        let mut find = tool("find");
        tools::read(find.arg(root).args(["-type", kind, "-printf", "/%P\n"]))
    };
    let is_ours = |folder: &&str| FOLDERS.iter().any(|ours| Path::new(folder).starts_with(ours));
    let folders = find("d")?;
    let folders = folders.lines().filter(is_ours).map(|folder| format!("%dir {folder}"));
    let files = find("f")?;
    let mut files: Vec<String> = files.lines().map(str::to_owned).chain(folders).collect();
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
