//! A bare root of Debian, in which the package is installed.
//!
//! Mirrors are slow at times, so the root is kept for a day, as an archive in `target`: the two
//! parts that need one make it once.

use crate::lab;
use crate::tools::{self, tool};
use anyhow::Result;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// For mounts, and for a start of systemd with users and clients.
const PACKAGES: &str = "e2fsprogs,fuse3,fuse2fs,mount,systemd,dbus,libpam-systemd,libnbd-bin";

/// A root that is older is made again, with the present packages.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Unpacks a bare root to a new folder.
pub(crate) fn unpack(root: &Path) -> Result<()> {
    let archive = archive();
    if !is_fresh(&archive) {
        make(&archive)?;
    }
    fs::create_dir(root)?;
    tools::run(tool("tar").arg("-C").arg(root).arg("-xpf").arg(&archive)).map(drop)
}

/// Its name depends on the packages.
fn archive() -> PathBuf {
    let sum = Sha256::digest(PACKAGES);
    lab::target().join(format!("bare-root-{:02x}{:02x}.tar", sum[0], sum[1]))
}

fn is_fresh(archive: &Path) -> bool {
    let age = fs::metadata(archive).and_then(|data| data.modified()).map(|time| time.elapsed());
    matches!(age, Ok(Ok(age)) if age < KEPT)
}

fn make(archive: &Path) -> Result<()> {
    tools::need("mmdebstrap")?;
    let part = archive.with_extension("part.tar");
    let mut make = Command::new("timeout");
    make.args(["-k", "5", "900", "mmdebstrap", "--quiet", "--variant=essential"]);
    make.arg(format!("--include={PACKAGES}"));
    tools::run(make.arg("bookworm").arg(&part))?;
    Ok(fs::rename(part, archive)?)
}
