//! Bare roots of Debian, in which the package is installed.
//!
//! Mirrors are slow at times, so a root is kept for a day, as an archive in `target`: the two parts
//! that need one make it once.

use crate::lab;
use crate::tools::{self, tool};
use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// For mounts, and for a start of systemd with users and clients.
const PACKAGES: &str = "e2fsprogs,fuse3,fuse2fs,mount,systemd,dbus,libpam-systemd,libnbd-bin";

/// A root that is older is made again, with the present packages.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Debian 12.
pub(crate) const BOOKWORM: &str = "bookworm";

/// Debian 13.
pub(crate) const TRIXIE: &str = "trixie";

/// Unpacks a bare root of a suite to a new folder.
pub(crate) fn unpack(suite: &str, root: &Path) -> Result<()> {
    ensure!(is_offered(suite)?, "the mirror has no {suite}");
    fs::create_dir(root)?;
    tools::run(tool("tar").arg("-C").arg(root).arg("-xpf").arg(archive(suite))).map(drop)
}

/// Makes the archive of a suite; false: the mirror does not have this suite.
pub(crate) fn is_offered(suite: &str) -> Result<bool> {
    let archive = archive(suite);
    if is_fresh(&archive) {
        return Ok(true);
    }
    let made = make(suite, &archive);
    if made.as_ref().is_err_and(|error| error.to_string().contains("not have a Release file")) {
        return Ok(false);
    }
    made.map(|()| true)
}

/// Its name depends on the packages.
fn archive(suite: &str) -> PathBuf {
    let sum = Sha256::digest(PACKAGES);
    lab::target().join(format!("bare-root-{suite}-{:02x}{:02x}.tar", sum[0], sum[1]))
}

fn is_fresh(archive: &Path) -> bool {
    let age = fs::metadata(archive).and_then(|data| data.modified()).map(|time| time.elapsed());
    matches!(age, Ok(Ok(age)) if age < KEPT)
}

fn make(suite: &str, archive: &Path) -> Result<()> {
    tools::need("mmdebstrap")?;
    let part = archive.with_extension("part.tar");
    let mut make = Command::new("timeout");
    make.args(["-k", "5", "900", "mmdebstrap", "--variant=essential"]);
    make.arg(format!("--include={PACKAGES}"));
    tools::run(make.arg(suite).arg(&part))?;
    Ok(fs::rename(part, archive)?)
}
