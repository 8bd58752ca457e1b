//! Tokens of other programs: clevis with a tang server, systemd-cryptenroll with a software TPM.
//!
//! Each volume is served with its token alone, and refused without it.

use crate::cases::Cases;
use crate::interop::content;
use crate::lab::{Door, Lab, PASSPHRASE, Server};
use crate::process::until;
use crate::tools::{self, tool};
use crate::volume::{luks_format, sparse};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const CHEAP: &str = "--type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000";
const TANGD: &str = "/usr/libexec/tangd";
/// Time for the software TPM to start.
const PATIENCE: Duration = Duration::from_secs(15);
/// Handle of the storage root key.
const ROOT_KEY: &str = "0x81000001";

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    cases.run("the JSON of a token is cryptsetup's, both ways", || json(lab));
    cases.run("clevis with tang: served, then refused", || tang(lab));
    cases.run("clevis with another pin: served by its program", || other_pin(lab));
    cases.run("systemd-cryptenroll with a TPM: served, then refused", || tpm(lab));
    cases.run("an object below the storage root key of a TPM: served", || root_key(lab));
    cases.run("a token that fails does not stop the next", || next(lab));
}

fn volume(lab: &Lab, name: &str) -> Result<PathBuf> {
    let image = lab.path(&format!("{name}.img"));
    sparse(&image, 32 << 20)?;
    luks_format(&image, &lab.pass(), CHEAP)?;
    lab.give(&image)?;
    Ok(image)
}

fn json(lab: &Lab) -> Result<String> {
    let image = volume(lab, "token-json")?;
    let text = r#"{"type":"acme","keyslots":["0"],"list":[1,-2,null,true],"text":"a\/ß\n\u0001"}"#;
    let file = lab.write("token.json", text)?;
    let import = |command: &mut Command, number: &str| {
        command.arg("--token-id").arg(number).arg("--json-file").arg(&file).arg(&image);
        tools::run(command).map(drop)
    };
    import(tool("cryptsetup").args(["token", "import"]), "3")?;
    import(&mut lab.blockyard(&["token", "import"]), "5")?;
    let mut exports = Vec::new();
    for number in ["3", "5"] {
        let words = ["token", "export", "--token-id", number];
        exports.push(tools::read(tool("cryptsetup").args(words).arg(&image))?);
        exports.push(tools::read(lab.blockyard(&words).arg(&image))?);
    }
    ensure!(exports.iter().all(|export| *export == exports[0]), "they differ: {exports:?}");
    let words = ["token", "remove", "--token-id", "3"];
    tools::run(lab.blockyard(&words).arg(&image))?;
    let left =
        tools::output(tool("cryptsetup").args(["token", "export", "--token-id", "3"]).arg(&image))?;
    ensure!(!left.status.success(), "the removed token is still there");
    Ok(String::new())
}

/// A tang server: each connection gets a `tangd`.
struct Tang {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Tang {
    fn start(lab: &Lab) -> Result<Self> {
        tools::need(TANGD)?;
        let keys = lab.path("tang-keys");
        fs::create_dir_all(&keys)?;
        tools::run(tool("/usr/libexec/tangd-keygen").arg(&keys))?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            loop {
                let (stream, _) = listener.accept()?;
                if stopped.load(Ordering::SeqCst) {
                    return Ok(());
                }
                let input = OwnedFd::from(stream.try_clone()?);
                let mut tangd = Command::new(TANGD);
                tangd.arg(&keys).stdin(input).stdout(OwnedFd::from(stream)).stderr(Stdio::null());
                tangd.status()?;
            }
        });
        Ok(Self { port, stop, thread: Some(thread) })
    }

    /// Binds a volume with clevis.
    fn bind(&self, lab: &Lab, image: &Path, pin: &str, config: &str) -> Result<()> {
        let config = config.replace("URL", &format!("http://127.0.0.1:{}", self.port));
        let mut bind = tool("clevis");
        bind.args(["luks", "bind", "-y", "-k"]).arg(lab.pass()).arg("-d").arg(image);
        tools::run(bind.args([pin, &config])).map(drop)
    }
}

impl Drop for Tang {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves a volume with its tokens only, and reads it.
fn served(lab: &Lab, name: &str, image: &Path, tpm: Option<&Tpm>) -> Result<Server> {
    let socket = lab.path(&format!("{name}.sock"));
    let mut serve = lab.blockyard(&["serve", "--token-only"]);
    serve.arg(image).arg("--socket").arg(&socket);
    if let Some(tpm) = tpm {
        serve.env("TPM2TOOLS_TCTI", tpm.tcti());
    }
    let server = lab.start(name, serve, Door::Unix(socket))?;
    content::read(server.socket())?;
    Ok(server)
}

/// The message of a volume that no token opens.
fn refused(lab: &Lab, image: &Path, tpm: Option<&Tpm>) -> Result<String> {
    let mut dump = lab.blockyard(&["dump", "--token-only", "--force", "-o"]);
    dump.arg(lab.path("token.out")).arg(image);
    if let Some(tpm) = tpm {
        dump.env("TPM2TOOLS_TCTI", tpm.tcti());
    }
    let ended = tools::output(&mut dump)?;
    let said = tools::text(&ended.stderr);
    ensure!(ended.status.code() == Some(2), "it ended with {}: {said}", ended.status);
    Ok(said)
}

fn remove(lab: &Lab, image: &Path, number: &str) -> Result<()> {
    let mut remove = lab.blockyard(&["token", "remove", "--token-id", number]);
    tools::run(remove.arg(image)).map(drop)
}

fn tang(lab: &Lab) -> Result<String> {
    let image = volume(lab, "tang")?;
    let tang = Tang::start(lab)?;
    tang.bind(lab, &image, "tang", r#"{"url":"URL"}"#)?;
    served(lab, "tang", &image, None)?.stop()?;
    drop(tang);
    let without = refused(lab, &image, None)?;
    ensure!(without.contains("token 0 (clevis): the tang server http://127.0.0.1:"), "{without}");
    // The passphrase still opens it.
    let mut dump = lab.blockyard(&["dump", "--force", "-o"]);
    dump.arg(lab.path("token.out")).arg(&image).stdin(fs::File::open(lab.pass())?);
    tools::run(&mut dump)?;
    remove(lab, &image, "0")?;
    let without = refused(lab, &image, None)?;
    ensure!(!without.contains("token 0"), "the token is still there: {without}");
    Ok(String::new())
}

fn other_pin(lab: &Lab) -> Result<String> {
    let image = volume(lab, "sss")?;
    let tang = Tang::start(lab)?;
    let config = r#"{"t":1,"pins":{"tang":[{"url":"URL"}]}}"#;
    tang.bind(lab, &image, "sss", config)?;
    served(lab, "sss", &image, None)?.stop()?;
    drop(tang);
    let without = refused(lab, &image, None)?;
    ensure!(without.contains("pin sss: clevis: it ended with exit code"), "{without}");
    Ok(String::new())
}

/// A software TPM of the server's user.
struct Tpm {
    child: Child,
    socket: PathBuf,
}

impl Tpm {
    fn start(lab: &Lab, name: &str) -> Result<Self> {
        tools::need("swtpm")?;
        let state = lab.path(&format!("{name}.tpm"));
        fs::create_dir_all(&state)?;
        lab.give(&state)?;
        let socket = lab.path(&format!("{name}.tpm.sock"));
        let place = socket.display();
        let mut swtpm = lab.unprivileged(Path::new("swtpm"));
        swtpm.args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear", "--tpmstate"]);
        swtpm.arg(format!("dir={}", state.display()));
        swtpm.args(["--server".to_owned(), format!("type=unixio,path={place}")]);
        swtpm.args(["--ctrl".to_owned(), format!("type=unixio,path={place}.ctrl")]);
        let child = swtpm.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let tpm = Self { child, socket };
        ensure!(until(PATIENCE, || UnixStream::connect(&tpm.socket).is_ok()), "swtpm is silent");
        Ok(tpm)
    }

    fn tcti(&self) -> String {
        format!("swtpm:path={}", self.socket.display())
    }

    fn tool(&self, program: &str) -> Command {
        let mut command = tool(program);
        command.env("TPM2TOOLS_TCTI", self.tcti());
        command
    }

    fn enroll(&self, image: &Path) -> Result<()> {
        let mut enroll = self.tool("systemd-cryptenroll");
        enroll.env("PASSWORD", PASSPHRASE).arg("--tpm2-pcrs=7");
        enroll.arg(format!("--tpm2-device={}", self.tcti())).arg(image);
        tools::run(&mut enroll).map(drop)
    }

    /// Changes the PCR of the policy, as another boot loader would.
    fn change_pcr(&self) -> Result<()> {
        let digest = format!("7:sha256={}", "5a".repeat(32));
        tools::run(self.tool("tpm2_pcrextend").arg(digest)).map(drop)
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn tpm(lab: &Lab) -> Result<String> {
    let image = volume(lab, "tpm")?;
    let tpm = Tpm::start(lab, "enrolled")?;
    tpm.enroll(&image)?;
    served(lab, "tpm", &image, Some(&tpm))?.stop()?;
    tpm.change_pcr()?;
    let without = refused(lab, &image, Some(&tpm))?;
    ensure!(without.contains("token 0 (systemd-tpm2): tpm2_unseal: "), "{without}");
    drop(tpm);
    let without = refused(lab, &image, None)?;
    ensure!(without.contains("token 0 (systemd-tpm2): tpm2_"), "{without}");
    Ok(String::new())
}

/// A token in the form of newer versions of systemd than the one of this machine may have.
fn root_key(lab: &Lab) -> Result<String> {
    let image = volume(lab, "root-key")?;
    let tpm = Tpm::start(lab, "root-key")?;
    let path = |name: &str| lab.path(&format!("root-key.{name}")).display().to_string();
    let secret = lab.write("root-key.secret", b"thirty-two bytes of a new secret")?;
    let [key, policy, public, private] = ["key", "policy", "public", "private"].map(path);
    let secret = secret.display().to_string();
    for (program, arguments) in [
        ("tpm2_createprimary", vec!["-C", "o", "-G", "ecc", "-c", &key]),
        ("tpm2_evictcontrol", vec!["-C", "o", "-c", &key, ROOT_KEY]),
        ("tpm2_flushcontext", vec!["-t"]),
        ("tpm2_createpolicy", vec!["--policy-pcr", "-l", "sha256:7", "-L", &policy]),
        (
            "tpm2_create",
            vec!["-C", ROOT_KEY, "-i", &secret, "-L", &policy, "-u", &public, "-r", &private],
        ),
        ("tpm2_flushcontext", vec!["-t"]),
    ] {
        tools::run(tpm.tool(program).args(arguments))?;
    }
    let blob = [fs::read(&private)?, fs::read(&public)?].concat();
    let base64 = |name: &str, bytes: &[u8]| -> Result<String> {
        let file = lab.write(name, bytes)?;
        tools::read(tool("base64").arg("-w0").arg(file))
    };
    let passphrase = base64("root-key.bytes", &fs::read(&secret)?)?;
    let new = lab.write("root-key.pass", passphrase)?;
    let mut add = tool("cryptsetup");
    add.args(["luksAddKey", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "-d"]);
    tools::run(add.arg(lab.pass()).arg(&image).arg(new))?;
    let handle = base64("root-key.handle", &[0x81, 0, 0, 1, 0, 0])?;
    let token = format!(
        r#"{{"type":"systemd-tpm2","keyslots":["1"],"tpm2-blob":"{}","tpm2-pcrs":[7],
            "tpm2-pcr-bank":"sha256","tpm2-policy-hash":["00"],"tpm2_srk":"{handle}"}}"#,
        base64("root-key.blob", &blob)?
    );
    let file = lab.write("root-key.json", token)?;
    tools::run(lab.blockyard(&["token", "import", "--json-file"]).arg(file).arg(&image))?;
    served(lab, "root-key", &image, Some(&tpm))?.stop()?;
    Ok(String::new())
}

fn next(lab: &Lab) -> Result<String> {
    let image = volume(lab, "next")?;
    let other = lab.write("other.json", r#"{"type":"systemd-fido2","keyslots":["0"]}"#)?;
    let mut import = lab.blockyard(&["token", "import", "--json-file"]);
    tools::run(import.arg(other).arg(&image))?;
    let tpm = Tpm::start(lab, "next")?;
    tpm.enroll(&image)?;
    tpm.change_pcr()?;
    let tang = Tang::start(lab)?;
    tang.bind(lab, &image, "tang", r#"{"url":"URL"}"#)?;
    let server = served(lab, "next", &image, Some(&tpm))?;
    let log = server.log();
    server.stop()?;
    let list = tools::read(lab.blockyard(&["token", "list"]).arg(&image))?;
    ensure!(list.lines().count() == 3, "three tokens are in the list: {list}");
    for named in ["token 0 (systemd-fido2): ", "token 1 (systemd-tpm2): "] {
        ensure!(log.contains(named), "{named:?} is not in the log: {log}");
    }
    let last = list.lines().last().context("a line")?;
    ensure!(last == "2: clevis, keyslots 2", "{last}");
    Ok(String::new())
}
