//! Foreign programs: their invocation, and the Debian packages of missing ones.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The list from which `./x test` installs.
const PACKAGES: &str = include_str!("../../tests/packages.txt");

/// Every lock file of the project has its manifest here: the workspace, and packages outside of it.
pub(crate) const WORKSPACES: &[&str] =
    &["Cargo.toml", "fuzz/Cargo.toml", "crates/host/vhost_client/Cargo.toml"];

/// Time limit of a foreign program in a test run.
const LIMIT_S: u32 = 180;

/// The workspace's root: two levels above this file's crate.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").to_owned()
}

/// A foreign program under a time limit. Programs of `/usr/sbin` are found even if it is not in
/// PATH.
pub(crate) fn tool(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", &LIMIT_S.to_string(), program]).stdin(Stdio::null());
    command.env("PATH", search_path()).env("LC_ALL", "C");
    command
}

/// A foreign server: without a time limit and an intermediate parent, so that its pid is the
/// child's.
pub(crate) fn daemon(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).env("PATH", search_path()).env("LC_ALL", "C");
    command
}

fn search_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")
}

/// Fails with the package's name if a program is missing: a missing tool never skips a test.
pub(crate) fn need(program: &str) -> Result<()> {
    let found = search_path().split(':').any(|dir| Path::new(dir).join(program).is_file());
    if found || (program.starts_with('/') && Path::new(program).exists()) {
        return Ok(());
    }
    match package(program) {
        Some(package) => {
            bail!("{program} is missing: apt-get install {package} (./x test installs it)")
        }
        None => bail!("{program} is missing"),
    }
}

fn package(program: &str) -> Option<&'static str> {
    PACKAGES.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut words = line.split_whitespace();
        let package = words.next()?;
        words.any(|word| word == program).then_some(package)
    })
}

/// Runs a command to its end and requires success; the error shows its output.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let output = output(command)?;
    if !output.status.success() {
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        bail!("{} ended with {}: {}", shown(command), output.status, tail(&said));
    }
    Ok(output)
}

/// Runs a command to its end, with any result.
pub(crate) fn output(command: &mut Command) -> Result<Output> {
    if command.get_program() == OsStr::new("timeout")
        && let Some(program) = command.get_args().nth(3)
    {
        need(&program.to_string_lossy())?;
    }
    command.output().with_context(|| format!("{} does not start", shown(command)))
}

/// Standard output of a successful command, as text.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    Ok(text(&run(command)?.stdout))
}

/// Runs a command with the terminal's streams and requires success.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{} does not start", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The end of a long text, where programs report errors.
pub(crate) fn tail(text: &str) -> String {
    let lines: Vec<_> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

fn shown(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let skip = if words[0] == "timeout" { 4 } else { 0 };
    words[skip..].join(" ")
}

/// The target triple of this machine. A build for it by name leaves build scripts and macros, which
/// run during the build, without the flags of the target.
pub(crate) fn host_triple() -> Result<String> {
    let rustc = read(Command::new("rustc").arg("-vV").current_dir(root()))?;
    let triple = rustc.lines().find_map(|line| line.strip_prefix("host: "));
    triple.map(str::to_owned).context("rustc names no host")
}

/// The `cargo` that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_error_names_its_package() {
        let error = need("no-such-program").expect_err("it does not exist");
        assert_eq!(error.to_string(), "no-such-program is missing");
        assert_eq!(package("qemu-img"), Some("qemu-utils"));
        assert_eq!(package("linux.uml"), Some("user-mode-linux"));
    }
}
