//! `cargo x python`: the tests of the Python package. They use the wheel as pip installs it, with
//! readers of file systems by others on top.

use crate::tools::{self, root, tool};
use crate::{dist, lab};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's: pytest belongs to it.
const PYTHON: &str = "/usr/bin/python3";

/// The readers, with their versions.
const READERS: &str = "python/tests/readers.txt";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build the library as `dist` does, which takes minutes.
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    for program in [PYTHON, "pip3", "/usr/lib/python3/dist-packages/pytest/__init__.py"] {
        tools::need(program)?;
    }
    let binary = lab::build()?;
    let folder = lab::target().join("python");
    let wheel = dist::wheel(&lab::build_python(args.release)?, &folder)?;
    let venv = folder.join("venv");
    let mut make = tool(PYTHON);
    make.args(["-m", "venv", "--without-pip", "--system-site-packages"]);
    tools::run(make.arg(&venv))?;
    let mut own = pip(&venv);
    tools::run(own.args(["--no-index", "--no-deps", "--force-reinstall"]).arg(&wheel))?;
    readers(&venv)?;
    let mut test = Command::new(venv.join("bin/python"));
    // In the folder `python`, Python would take the source for the package.
    test.current_dir(root().join("python/tests")).env("BLOCKYARD_BINARY", binary);
    test.args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp"]);
    tools::show(test.arg(folder.join("tmp")))
}

fn pip(venv: &Path) -> Command {
    let mut pip = tool("pip3");
    pip.arg("--python").arg(venv.join("bin/python"));
    pip.args(["--disable-pip-version-check", "install", "--quiet"]);
    pip
}

/// Installs the readers. Without a way to PyPI, their tests are skipped.
fn readers(venv: &Path) -> Result<()> {
    let mut install = pip(venv);
    install.args(["--retries", "2", "--only-binary", "pytsk3", "--requirement"]);
    let done = tools::output(install.arg(root().join(READERS)))?;
    if done.status.success() {
        return Ok(());
    }
    let said = tools::text(&done.stderr);
    // pip says so before each new try of a connection.
    if !said.contains("Retrying (Retry(") {
        bail!("pip cannot install {READERS}: {}", tools::tail(&said));
    }
    println!("PyPI cannot be reached, so the readers of others are left out");
    Ok(())
}

/// Files of the package, below `python`.
pub(crate) fn package_files() -> Result<Vec<PathBuf>> {
    let mut list = tool("git");
    list.current_dir(root().join("python")).args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
        "blockyard",
    ]);
    let files: Vec<PathBuf> = tools::read(&mut list)?.lines().map(PathBuf::from).collect();
    if files.is_empty() {
        bail!("git lists no file of the Python package");
    }
    Ok(files)
}
