//! A test environment for the binary: a scratch directory in memory, a copy of the binary, and
//! servers that run as an ordinary user without capabilities, whichever user runs the tests.

use crate::process::{Watched, until};
use crate::tools;
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use nix::unistd::Uid;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// The user nobody: owns nothing outside the scratch directory, and can open no device node.
const NOBODY: u32 = 65534;

/// Time limit to unlock (argon2id takes seconds by design) and to listen.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Time limit to drain, flush and exit.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// Passphrase of all test volumes; the file contains exactly these bytes, without a newline.
pub(crate) const PASSPHRASE: &str = "correct-horse-battery-staple";

/// Scratch directory, binary, user.
pub(crate) struct Lab {
    dir: TempDir,
    /// Scratch directory on a disk.
    disk: TempDir,
    binary: PathBuf,
    drop_privileges: bool,
    /// Name and value of a variable of the environment for every command.
    variable: Option<(&'static str, String)>,
}

impl Lab {
    /// Builds the release binary and creates a fresh environment.
    pub(crate) fn new() -> Result<Lab> {
        Lab::with(&build()?)
    }

    /// Creates an environment for an existing binary.
    pub(crate) fn with(built: &Path) -> Result<Lab> {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("blockyard-").tempdir_in(base)?;
        let disk = tempfile::Builder::new().prefix("blockyard-").tempdir_in("/var/tmp")?;
        let lab = Lab {
            disk,
            binary: dir.path().join("blockyard"),
            drop_privileges: Uid::effective().is_root(),
            variable: None,
            dir,
        };
        // The checkout may be unreadable for other users.
        fs::copy(built, &lab.binary)?;
        for dir in [lab.dir.path(), lab.disk.path()] {
            fs::set_permissions(dir, Permissions::from_mode(0o755))?;
            lab.give(dir)?;
        }
        lab.write("pass", PASSPHRASE)?;
        Ok(lab)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The scratch directory on a disk, besides the one in memory.
    pub(crate) fn disk(&self) -> &Path {
        self.disk.path()
    }

    pub(crate) fn pass(&self) -> PathBuf {
        self.path("pass")
    }

    /// Gives a file to the server's user.
    pub(crate) fn give(&self, path: &Path) -> Result<()> {
        if self.drop_privileges {
            chown(path, Some(NOBODY), Some(NOBODY))
                .with_context(|| format!("chown {}", path.display()))?;
        }
        Ok(())
    }

    /// Writes a small file owned by the server's user.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, bytes)?;
        self.give(&path)?;
        Ok(path)
    }

    /// `blockyard` with these arguments, as an ordinary user without capabilities, in the scratch
    /// directory.
    pub(crate) fn blockyard<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = self.unprivileged(&self.binary);
        command.args(words);
        if let Some((name, value)) = &self.variable {
            command.env(name, value);
        }
        command
    }

    /// Activates this planted fault of a binary built with canaries.
    pub(crate) fn plant(&mut self, canary: &'static str) {
        self.set("BLOCKYARD_CANARY", canary);
    }

    /// Sets a variable of the environment of every command; only one can be set.
    pub(crate) fn set(&mut self, name: &'static str, value: impl Into<String>) {
        self.variable = Some((name, value.into()));
    }

    /// Any program as the server's user.
    pub(crate) fn unprivileged(&self, program: &Path) -> Command {
        let mut command = if self.drop_privileges {
            let mut command = Command::new("setpriv");
            let id = NOBODY.to_string();
            command.args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups"]);
            command.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]);
            command.arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.dir.path()).stdin(Stdio::null()).env_remove("RUST_BACKTRACE");
        command
    }

    /// All elevators, as listed by the binary.
    pub(crate) fn elevators(&self) -> Result<Vec<String>> {
        let list = tools::read(&mut self.blockyard(&["elevators", "--json"]))?;
        let list: Vec<Value> = serde_json::from_str(&list).context("blockyard elevators --json")?;
        let name = |elevator: &Value| elevator["name"].as_str().map(str::to_owned);
        list.iter().map(|elevator| name(elevator).context("an elevator without a name")).collect()
    }

    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Runs `serve` with these arguments on a socket of this name, and waits until it accepts.
    pub(crate) fn serve<S: AsRef<OsStr>>(&self, name: &str, words: &[S]) -> Result<Server> {
        let socket = self.path(&format!("{name}.sock"));
        let _ = fs::remove_file(&socket);
        let mut command = self.blockyard(&["serve"]);
        command.args(words).arg("--socket").arg(&socket);
        self.start(name, command, Door::Unix(socket))
    }

    /// Starts a prepared command and waits until it accepts.
    pub(crate) fn start(&self, name: &str, mut command: Command, door: Door) -> Result<Server> {
        let log = self.path(&format!("{name}.log"));
        let err = File::create(&log)?;
        command.stdout(err.try_clone()?).stderr(err);
        let child = command.spawn().context("blockyard serve does not start")?;
        let mut server = Server { child, door, log };
        let opened = until(START_LIMIT, || {
            server.door.open() || !matches!(server.child.try_wait(), Ok(None))
        });
        if let Some(status) = server.child.try_wait()? {
            bail!("blockyard serve ended with {status}: {}", server.log().trim());
        }
        if !opened {
            bail!("blockyard serve did not listen within {START_LIMIT:?}: {}", server.log().trim());
        }
        Ok(server)
    }
}

/// Socket of a server.
pub(crate) enum Door {
    Unix(PathBuf),
    Tcp(u16),
}

impl Door {
    fn open(&self) -> bool {
        match self {
            Door::Unix(path) => UnixStream::connect(path).is_ok(),
            Door::Tcp(port) => TcpStream::connect(("127.0.0.1", *port)).is_ok(),
        }
    }
}

/// A running `blockyard serve`; killed on drop.
pub(crate) struct Server {
    child: Child,
    door: Door,
    log: PathBuf,
}

impl Server {
    pub(crate) fn socket(&self) -> &Path {
        match &self.door {
            Door::Unix(path) => path,
            Door::Tcp(_) => unreachable!("asked a TCP server for its unix socket"),
        }
    }

    /// The URI of the default export.
    pub(crate) fn uri(&self) -> String {
        match &self.door {
            Door::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
            Door::Tcp(port) => format!("nbd://127.0.0.1:{port}"),
        }
    }

    pub(crate) fn process(&self) -> Watched {
        Watched(self.child.id())
    }

    pub(crate) fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| tools::text(&bytes)).unwrap_or_default()
    }

    /// Sends SIGTERM; the server must drain and exit 0.
    pub(crate) fn stop(self) -> Result<()> {
        self.process().signal(Signal::SIGTERM)?;
        self.stop_after_signal()
    }

    /// The second half of `stop`, after a signal by the caller.
    pub(crate) fn stop_after_signal(mut self) -> Result<()> {
        let status = self.wait()?;
        if !status.success() {
            bail!("after SIGTERM the server ended with {status}: {}", self.log().trim());
        }
        Ok(())
    }

    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        let ended = until(STOP_LIMIT, || !matches!(self.child.try_wait(), Ok(None)));
        match self.child.try_wait()? {
            Some(status) if ended => Ok(status),
            _ => bail!("the server did not end within {STOP_LIMIT:?}: {}", self.log().trim()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the release binary, quietly, and returns its path; `BLOCKYARD_BINARY` names an existing
/// one.
pub(crate) fn build() -> Result<PathBuf> {
    if let Some(built) = std::env::var_os("BLOCKYARD_BINARY") {
        return Ok(built.into());
    }
    cargo_build(&["--release", "--bin", "blockyard"])?;
    Ok(target().join("release/blockyard"))
}

/// Builds a debug binary with planted faults under another name, so that it is never mistaken for
/// the real one. Without the lab, which no power cut needs. `xtask` is selected too: with its
/// features, foreign crates and the crates below `host` are the tests' build.
pub(crate) fn build_with_canaries() -> Result<PathBuf> {
    let words = ["--package", "xtask", "--bin", "blockyard", "--no-default-features"];
    cargo_build(&[&words[..], &["--features", "blockyard-cli/canaries"]].concat())?;
    let built = target().join("debug/blockyard-canaries");
    // Both may be links to one file; rename then has no effect.
    if built.exists() {
        fs::remove_file(&built)?;
    }
    fs::rename(target().join("debug/blockyard"), &built).context("rename the binary")?;
    Ok(built)
}

/// Whether examples have the profile of the tests.
static HAS_TEST_EXAMPLES: AtomicBool = AtomicBool::new(false);

/// Lets [`build_example`] build in moments, for runs whose figures are not valid anyway.
pub(crate) fn build_examples_as_tests() {
    HAS_TEST_EXAMPLES.store(true, Ordering::Relaxed);
}

/// Builds an example for release, quietly, and returns its path. The command line is selected too:
/// with its features, most crates below both are built once.
pub(crate) fn build_example(package: &str, name: &str) -> Result<PathBuf> {
    let example = ["--package", package, "--example", name];
    if HAS_TEST_EXAMPLES.load(Ordering::Relaxed) {
        build_as_tests(&["--example", name])?;
        return Ok(target().join("debug/examples").join(name));
    }
    cargo_build(&[["--release"].as_slice(), &example].concat())?;
    Ok(target().join("release/examples").join(name))
}

/// Builds the native part of the Python package, quietly, and returns its path. For release it
/// takes minutes, because the optimiser sees the whole program once more.
pub(crate) fn build_python(is_release: bool) -> Result<PathBuf> {
    if is_release {
        cargo_build(&["--release", "--lib"])?;
        return Ok(target().join("release/lib_blockyard.so"));
    }
    // Any example: without one, foreign crates have other features than in the tests.
    build_as_tests(&["--lib", "--example", "own_target"])?;
    Ok(target().join("debug/lib_blockyard.so"))
}

/// Builds targets of the workspace. All its packages are selected, so the crates are those that the
/// unit tests have.
fn build_as_tests(words: &[&str]) -> Result<()> {
    let mut build = tools::cargo();
    tools::show(build.args(["build", "--quiet", "--locked", "--workspace"]).args(words))
}

/// Builds the load of `bench vhost`, a package outside of the workspace, and returns its path.
pub(crate) fn build_vhost_client() -> Result<PathBuf> {
    let mut build = tools::cargo();
    build.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]);
    build.arg("crates/host/vhost_client/Cargo.toml").arg("--target-dir").arg(target());
    tools::show(&mut build)?;
    Ok(target().join("release/vhost-client"))
}

/// Builds targets. The Python package is always selected, because cargo chooses the features of
/// foreign crates by the selected packages: with one choice, they are built once.
fn cargo_build(words: &[&str]) -> Result<()> {
    let mut build = tools::cargo();
    build.args(["build", "--quiet", "--locked", "--package", "blockyard-cli"]);
    build.args(["--package", "blockyard-python"]).args(words);
    tools::show(&mut build)
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    tools::root().join(target.unwrap_or_else(|| "target".into()))
}
