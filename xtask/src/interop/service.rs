//! The server as a service: signals, systemd's two protocols, the socket's mode, passphrases,
//! several volumes.

use super::content;
use crate::cases::Cases;
use crate::lab::{Door, Lab, PASSPHRASE, Server};
use crate::nbd::{READ, Range, Raw, WRITE};
use crate::process::until;
use crate::tools;
use crate::volume::{Maker, Recipe, Volume};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    cases.run("SIGTERM drains and exits 0", || sigterm(lab));
    cases.run("SIGINT stops the server as well", || sigint(lab));
    cases.run("socket activation serves on the passed socket", || activation(lab));
    cases.run("readiness is reported to NOTIFY_SOCKET", || readiness(lab));
    cases.run("the unix socket has mode 0600", || socket_mode(lab));
    cases.run("passphrase by --key-fd", || key_fd(lab));
    cases.run("key file with offset and size", || key_file_part(lab));
    cases.run("several volumes from one --config", || config(lab));
    cases.run("further names with a priority, from --config and --alias", || aliases(lab));
    cases.run("unavailable elevators are refused", || no_elevator(lab));
    cases.run("the server holds no capability and no device", || privileges(lab));
    cases.run("an ordinary user needs no home and no environment", || bare_environment(lab));
}

fn volume(lab: &Lab) -> Result<Volume> {
    Recipe { name: "service", maker: Maker::Blockyard, options: "" }.make(lab)
}

fn sigterm(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let mut server = volume.serve(lab, &[])?;
    let mut client = Raw::connect(server.socket())?;
    let block = vec![0xc3; 1 << 20];
    // These requests are in flight when the signal comes; the acknowledged ones must be there
    // afterwards.
    for index in 0..8 {
        let at = Range { offset: index << 20, len: 1 << 20 };
        client.send(WRITE, index, at, &block)?;
    }
    server.process().signal(Signal::SIGTERM)?;
    let mut answered = Vec::new();
    while let Ok((cookie, error)) = client.reply() {
        if error == 0 {
            answered.push(cookie);
        }
    }
    let status = server.wait()?;
    ensure!(status.success(), "ended with {status}: {}", server.log());
    ensure!(!server.socket().exists(), "the socket is left behind");
    let server = volume.serve(lab, &["--read-only"])?;
    let disk = content::read(server.socket())?;
    for cookie in &answered {
        let at = usize::try_from(*cookie)? << 20;
        ensure!(disk[at..][..1 << 20] == block[..], "answered write {cookie} is lost");
    }
    server.stop()?;
    Ok(format!("{} of 8 writes were answered, all of them are there", answered.len()))
}

fn sigint(lab: &Lab) -> Result<String> {
    let mut server = volume(lab)?.serve(lab, &[])?;
    server.process().signal(Signal::SIGINT)?;
    let status = server.wait()?;
    ensure!(status.success(), "ended with {status}: {}", server.log());
    Ok(String::new())
}

/// Passes an open socket on descriptor 3, as systemd does.
fn activation(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let socket = lab.path("activated.sock");
    let listener = UnixListener::bind(&socket)?;
    let script = "exec 3<&0 0</dev/null; \
                  LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    let mut serve = lab.unprivileged(Path::new("/bin/sh"));
    serve.args(["-c", script]).arg(lab.binary()).arg("serve").arg(&volume.image);
    serve.args(&volume.ours).stdin(OwnedFd::from(listener));
    let server = lab.start("activated", serve, Door::Unix(socket))?;
    let disk = content::read(server.socket())?;
    server.stop()?;
    Ok(format!("{} MiB read", disk.len() >> 20))
}

fn readiness(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let path = lab.path("notify.sock");
    let notify = UnixDatagram::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    notify.set_read_timeout(Some(Duration::from_secs(20)))?;
    let socket = lab.path("notifying.sock");
    let mut serve = volume.command(lab, "serve")?;
    serve.arg("--socket").arg(&socket).env("NOTIFY_SOCKET", &path);
    let server = lab.start("notifying", serve, Door::Unix(socket))?;
    let mut message = [0; 512];
    let len = notify.recv(&mut message).context("no datagram came")?;
    let said = tools::text(&message[..len]);
    ensure!(said.lines().any(|line| line == "READY=1"), "it said {said:?}");
    server.process().signal(Signal::SIGTERM)?;
    let len = notify.recv(&mut message).context("no message at the end")?;
    let last = tools::text(&message[..len]);
    ensure!(last.lines().any(|line| line == "STOPPING=1"), "the last message is {last:?}");
    server.stop_after_signal()?;
    Ok(String::new())
}

fn socket_mode(lab: &Lab) -> Result<String> {
    let server = volume(lab)?.serve(lab, &[])?;
    let mode = fs::metadata(server.socket())?.permissions().mode() & 0o777;
    ensure!(mode == 0o600, "mode {mode:o}");
    server.stop()?;
    Ok(String::new())
}

fn key_fd(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let socket = lab.path("keyfd.sock");
    let mut serve = lab.blockyard(&["serve"]);
    serve.arg(&volume.image).args(["--key-fd", "0", "--socket"]).arg(&socket);
    serve.stdin(File::open(lab.pass())?);
    lab.start("keyfd", serve, Door::Unix(socket))?.stop()?;
    Ok(String::new())
}

fn key_file_part(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let file = lab.write("keyring", format!("junk before{PASSPHRASE}junk behind"))?;
    let offset = "junk before".len().to_string();
    let size = PASSPHRASE.len().to_string();
    let words = [&volume.image.display().to_string(), "--key-file", &file.display().to_string()]
        .map(str::to_owned);
    let mut words = words.to_vec();
    words.extend(["--keyfile-offset".into(), offset, "--keyfile-size".into(), size]);
    lab.serve("keypart", &words)?.stop()?;
    Ok(String::new())
}

fn config(lab: &Lab) -> Result<String> {
    let one = Recipe { name: "config-one", maker: Maker::Blockyard, options: "" }.make(lab)?;
    let two = Recipe { name: "config-two", maker: Maker::Cryptsetup, options: "--type luks1" };
    let two = two.make(lab)?;
    let socket = lab.path("config.sock");
    let pass = lab.pass();
    let mut text = format!("socket = {socket:?}\n");
    for (name, volume) in [("one", &one), ("two", &two)] {
        let image = &volume.image;
        text += &format!("\n[exports.{name}]\nvolume = {image:?}\nkey_file = {pass:?}\n");
    }
    let file = lab.write("config.toml", text)?;
    let mut serve = lab.blockyard(&["serve", "--config"]);
    serve.arg(file);
    let server = lab.start("config", serve, Door::Unix(socket))?;
    let list = tools::read(tools::tool("nbdinfo").args(["--list", &server.uri()]))?;
    for name in ["one", "two"] {
        ensure!(list.contains(&format!("export=\"{name}\"")), "no export {name} in {list}");
        let uri = format!("nbd+unix:///{name}?socket={}", server.socket().display());
        let size = tools::read(tools::tool("nbdinfo").args(["--size", &uri]))?;
        ensure!(size.trim().parse::<u64>()? > 0, "{name} has size {size}");
    }
    server.stop()?;
    Ok(String::new())
}

/// libnbd lists every name, and opens the same disk by each of them.
fn aliases(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let socket = lab.path("aliases.sock");
    let image = &volume.image;
    let pass = lab.pass();
    let text = format!(
        "socket = {socket:?}\n[exports.home]\nvolume = {image:?}\nkey_file = {pass:?}\n\
         ioprio = \"be:6\"\n[exports.home.aliases]\nhome-rt = \"rt:0\"\nhome-idle = \"idle\"\n"
    );
    let mut serve = lab.blockyard(&["serve", "--config"]);
    serve.arg(lab.write("aliases.toml", text)?);
    let server = lab.start("aliases", serve, Door::Unix(socket))?;
    same_disk(&server, &["home", "home-rt", "home-idle"])?;
    server.stop()?;
    let server = volume.serve(lab, &["--ioprio", "be:6", "--alias", "rt=rt:0"])?;
    same_disk(&server, &["", "rt"])?;
    server.stop()?;
    Ok(String::new())
}

/// A write by one name is read by the next, and the list has all names.
fn same_disk(server: &Server, names: &[&str]) -> Result<()> {
    let list = tools::read(tools::tool("nbdinfo").args(["--list", &server.uri()]))?;
    let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", server.socket().display());
    for (turn, name) in names.iter().enumerate() {
        ensure!(list.contains(&format!("export=\"{name}\":")), "no export {name:?} in {list}");
        let reader = uri(names[(turn + 1) % names.len()]);
        let pattern = format!("0x{:x}", 0x21 + turn);
        for (uri, command) in [(uri(name), "write"), (reader, "read")] {
            let mut io = tools::tool("qemu-io");
            io.args(["-f", "raw", "-c", &format!("{command} -P {pattern} 1M 64k"), &uri]);
            let said = tools::read(&mut io)?;
            ensure!(!said.contains("failed"), "{name:?}, {command}: {said}");
        }
    }
    Ok(())
}

/// Each case gives one error that names the valid choices.
fn no_elevator(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    for (words, named) in [
        (["--elevator", "lift"], "mq-deadline"),
        (["--elevator", "deadline,read_expires=1"], "read_expire="),
        (["--elevator", "deadline,writes_starved=many"], "writes_starved="),
        (["--alias", "home=urgent"], "rt:0 to rt:7"),
        (["--queue-depth", "100000"], "1 to 1024"),
        // A volume in memory has no queue to order.
        (["--elevator", "deadline"], "memory"),
    ] {
        let mut serve = volume.command(lab, "serve")?;
        serve.args(words).arg("--socket").arg(lab.path("none.sock"));
        let output = tools::output(&mut serve)?;
        let said = tools::text(&output.stderr);
        ensure!(!output.status.success(), "{words:?}: it serves");
        ensure!(said.matches("error: ").count() == 1 && said.contains(named), "{words:?}: {said}");
    }
    Ok(String::new())
}

fn privileges(lab: &Lab) -> Result<String> {
    let server = volume(lab)?.serve(lab, &[])?;
    let pid = server.process().0;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).unwrap_or_default().to_owned()
    };
    let uid = field("Uid:");
    ensure!(!uid.split_whitespace().any(|id| id == "0"), "it runs as root: {uid}");
    ensure!(field("CapEff:").trim_start_matches('0').is_empty(), "it holds capabilities");
    let kept = field("CapBnd:");
    let devices = open_files(pid)?.into_iter().filter(|file| {
        let harmless = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/shm/"];
        file.starts_with("/dev/") && !harmless.iter().any(|known| file.starts_with(known))
    });
    let devices: Vec<_> = devices.collect();
    ensure!(devices.is_empty(), "it holds {devices:?}");
    server.stop()?;
    Ok(format!("uid {}, bounding set {kept}", uid.split_whitespace().next().unwrap_or("?")))
}

/// Targets of the server's descriptors; those of a non-dumpable server are visible to root only.
fn open_files(pid: u32) -> Result<Vec<String>> {
    let dir = format!("/proc/{pid}/fd");
    let mut list = if nix::unistd::Uid::effective().is_root() {
        Command::new("find")
    } else {
        let mut sudo = tools::tool("sudo");
        sudo.args(["-n", "find"]);
        sudo
    };
    let text = tools::read(list.args([&dir, "-type", "l", "-printf", "%l\\n"]))?;
    Ok(text.lines().map(str::to_owned).collect())
}

fn bare_environment(lab: &Lab) -> Result<String> {
    let volume = volume(lab)?;
    let socket = lab.path("bare.sock");
    let mut serve = lab.unprivileged(Path::new("/usr/bin/env"));
    serve.arg("-i").arg(lab.binary()).arg("serve").arg(&volume.image).args(&volume.ours);
    serve.arg("--socket").arg(&socket);
    let server = lab.start("bare", serve, Door::Unix(socket))?;
    let mut client = Raw::connect(server.socket())?;
    client.call(READ, Range { offset: 0, len: 4096 }, &[])?;
    // An idle connected client does not delay the server's end.
    server.process().signal(Signal::SIGTERM)?;
    let process = server.process();
    let ended = until(Duration::from_secs(10), || !process.alive());
    ensure!(ended, "an idle client kept the server from ending");
    server.stop_after_signal()?;
    Ok(String::new())
}
