//! Checks of the packages: equal bytes when made twice, an installation in a bare root that leaves
//! nothing behind, and a run of the image.

use super::{rpm, sbom, static_program};
use crate::bare;
use crate::lab::Lab;
use crate::tools::{self, tool};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Work of a user on the bare system, between the installation and the removal.
const USE: &str = r#"
set -eu
cd /root
umask 077
printf 'open sesame' >key
blockyard -V
cheap="--pbkdf-force-iterations 4 --pbkdf-memory 32"
blockyard format disk --size 64M --key-file key --batch-mode $cheap
mke2fs -q -t ext4 -E root_owner=0:0 plain 32M
debugfs -w -R "write /etc/hostname name" plain 2>/dev/null
blockyard load disk --key-file key --allow-short <plain
blockyard cp disk:/name name --key-file key
cmp name /etc/hostname
blockyard serve disk --key-file key --socket socket --run 'blockyard info "$uri"' >served
grep -q 50331648 served
mkdir files
blockyard mount disk files --key-file key
cmp files/name /etc/hostname
blockyard umount files
"#;

/// Time limit of the installation and all of `USE`.
const FIRST_FILE_MAX_S: f64 = 60.0;

/// Both lists of files have equal bytes.
pub(super) fn are_equal(first: &[PathBuf], second: &[PathBuf]) -> Result<()> {
    for (one, other) in first.iter().zip(second) {
        let equal = fs::read(one)? == fs::read(other)?;
        ensure!(equal, "{} differs when it is made again", one.display());
    }
    println!("the packages have equal bytes when they are made again");
    Ok(())
}

/// Installs, uses and removes the packages, and runs the image and the static program.
pub(super) fn works(
    program: &Path,
    files: &[PathBuf],
    static_program: Option<&Path>,
) -> Result<()> {
    let [deb, rpm, oci, ..] = files else { anyhow::bail!("a package is missing") };
    sbom::is_found(program, sbom::GNU)?;
    let lab = Lab::new()?;
    if let Some(program) = static_program {
        static_program::check(&lab, program)?;
    }
    debian(&lab, bare::BOOKWORM, deb)?;
    if bare::is_offered(bare::TRIXIE)? {
        debian(&lab, bare::TRIXIE, deb)?;
    } else {
        println!("the mirror has no {}: the package is not installed there", bare::TRIXIE);
    }
    rpm_system(&lab, rpm)?;
    image(&lab, oci)
}

fn debian(lab: &Lab, suite: &str, deb: &Path) -> Result<()> {
    let root = lab.disk().join(suite);
    bare::unpack(suite, &root)?;
    fs::copy(deb, root.join("blockyard.deb"))?;
    let install = || inside(&root, "dpkg -i /blockyard.deb");
    let remove = || inside(&root, "dpkg --purge blockyard");
    is_used(&format!("a bare {suite}"), &root, install, remove)?;
    Ok(fs::remove_dir_all(&root)?)
}

/// A bare Debian whose C library is a package of RPM too. No mirror of an RPM system is a mirror of
/// Debian's; but RPM resolves what the program needs, and runs the scripts, as there.
fn rpm_system(lab: &Lab, file: &Path) -> Result<()> {
    let list = tools::read(tool("rpm").args(["-qlp", "--nosignature"]).arg(file))?;
    for file in [
        "/usr/bin/blockyard",
        "/usr/share/man/man1/blockyard.1.gz",
        "/usr/share/zsh/site-functions/_blockyard",
    ] {
        ensure!(list.lines().any(|line| line == file), "{file} is not in the RPM");
    }
    let needs = tools::read(tool("rpm").args(["-qp", "--requires", "--nosignature"]).arg(file))?;
    let versions = needs.lines().filter_map(|line| line.strip_prefix("libc.so.6(GLIBC_2."));
    let minors = versions.filter_map(|rest| rest.split([')', '.']).next()?.parse::<u32>().ok());
    println!("the RPM needs glibc 2.{}", minors.max().context("it needs no glibc")?);
    let root = lab.disk().join("rpm");
    bare::unpack(bare::BOOKWORM, &root)?;
    let rpm = |words: &[&str], file: &Path| {
        let mut rpm = tool("rpm");
        tools::read(rpm.arg("--root").arg(&root).args(words).arg(file))
    };
    rpm(&["--initdb"], Path::new("--quiet"))?;
    let install = ["--install", "--nosignature"];
    let lacks = rpm(&install, file).map_err(|error| error.to_string());
    let is_named = lacks.is_err_and(|problem| problem.contains("libc.so.6"));
    ensure!(is_named, "the RPM does not ask for a C library");
    rpm(&install, &rpm::of_libraries(lab.disk(), &root)?)?;
    let remove = || rpm(&["--erase"], Path::new("blockyard"));
    is_used("a system with RPM", &root, || rpm(&install, file), remove)?;
    Ok(fs::remove_dir_all(&root)?)
}

/// Installs a package in a bare root, uses it, and removes it; then nothing is left.
fn is_used(
    name: &str,
    root: &Path,
    install: impl FnOnce() -> Result<String>,
    remove: impl FnOnce() -> Result<String>,
) -> Result<()> {
    let before = state(root)?;
    let begin = Instant::now();
    install()?;
    inside(root, USE)?;
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(seconds < FIRST_FILE_MAX_S, "the first file of a mount takes {seconds:.0} s");
    remove()?;
    inside(root, "rm -r /root && mkdir -m 700 /root")?;
    let after = state(root)?;
    let left: Vec<&str> = after.lines().filter(|line| !before.contains(*line)).collect();
    ensure!(left.is_empty(), "the removal leaves: {left:?}");
    println!("{name}: {seconds:.1} s from the package to a file of a mount, and nothing is left");
    Ok(())
}

/// All files of a root, without those that dpkg and RPM themselves write, and without `/run`, which
/// is empty after a start of the system.
fn state(root: &Path) -> Result<String> {
    let mut find = tool("find");
    find.arg(root).args(["-mindepth", "1", "-printf", "/%P %y %m\n"]);
    let all = tools::read(&mut find)?;
    let is_theirs = |line: &&str| {
        ["/var/lib/dpkg/", "/var/lib/rpm", "/var/log/", "/root/", "/proc/", "/dev/", "/run/"]
            .iter()
            .any(|folder| line.starts_with(folder))
    };
    let mut lines: Vec<&str> = all.lines().filter(|line| !is_theirs(line)).collect();
    lines.sort_unstable();
    Ok(lines.join("\n") + "\n")
}

/// Runs a script in a root with the devices and processes of this system.
fn inside(root: &Path, script: &str) -> Result<String> {
    let mut unshare = tool("unshare");
    unshare.args(["--mount", "--pid", "--fork", "sh", "-euc"]);
    unshare.arg(
        "mount --rbind /dev \"$1/dev\"; mount -t proc proc \"$1/proc\"; \
         exec chroot \"$1\" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh -c \"$2\"",
    );
    tools::read(unshare.arg("sh").arg(root).arg(script))
}

/// Unpacks the only layer of the image, and runs its program there.
fn image(lab: &Lab, oci: &Path) -> Result<()> {
    let work = lab.disk().join("image");
    let root = work.join("root");
    fs::create_dir_all(&root)?;
    let mut said = tool("skopeo");
    let config = tools::read(
        said.args(["inspect", "--config"]).arg(format!("oci-archive:{}", oci.display())),
    )?;
    ensure!(config.contains("/usr/bin/blockyard"), "the image has no program: {config}");
    let mut copy = tool("skopeo");
    copy.args(["--insecure-policy", "copy", "--quiet"]);
    copy.arg(format!("oci-archive:{}", oci.display()));
    tools::run(copy.arg(format!("dir:{}", work.join("dir").display())))?;
    let manifest = fs::read(work.join("dir/manifest.json"))?;
    let manifest: serde_json::Value = serde_json::from_slice(&manifest)?;
    let digest = manifest["layers"][0]["digest"].as_str().context("the image has no layer")?;
    let layer = work.join("dir").join(digest.trim_start_matches("sha256:"));
    tools::run(tool("tar").arg("-C").arg(&root).arg("-xzf").arg(layer))?;
    let mut run = tool("chroot");
    let version = tools::read(run.arg(&root).args(["/usr/bin/blockyard", "-V"]))?;
    println!("the image runs: {}", version.trim());
    Ok(())
}
