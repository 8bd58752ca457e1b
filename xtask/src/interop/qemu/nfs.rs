//! Volumes in files of an NFS mount. One guest exports a disk, and another one mounts that and runs
//! our program. Both have the kernel's own NFS. The exporting machine is killed and started again
//! under load; in the end the other one is cut off, and loses its lock.

use super::guest::Guest;
use super::program::Program;
use super::{PASSES, ended_load, parts, same_in_dump};
use crate::lab::Lab;
use crate::tools;
use crate::volume::{noise, sparse};
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::path::Path;

pub(super) const NAME: &str = "a volume on NFS, between two QEMU guests";

/// Parts of the script.
const PARTS: usize = 8;
const IMAGE_BYTES: u64 = 112 << 20;

pub(super) fn run(lab: &Lab, program: &Program) -> Result<String> {
    let image = lab.path("nfs.img");
    sparse(&image, IMAGE_BYTES)?;
    tools::run(tools::tool("mke2fs").args(["-q", "-F", "-m", "0", "-t", "ext4"]).arg(&image))?;
    let program = program.with_blockyard(lab, &["nfs.sh", "nfs-server.sh"])?;
    let mut client = start(lab, &program, "nfs", "nfs.sh", "server=on", &[])?;
    let server = export(lab, &program, "nfs-server", &image)?;
    let before = client.wait_for_passes(PASSES)?;
    // A kill loses the unflushed writes of the exporting machine. While that machine is away, each
    // writer may still end the pass that it has begun.
    drop(server);
    let mut server = export(lab, &program, "nfs-restarted", &image)?;
    let passes = client.wait_for_passes(before + 2 * PASSES)?;
    client.say("stop")?;
    client.wait_for("@ kept-lock")?;
    same_in_image(lab, &mut server, &image, &ended_load(&client.said())?)?;
    taken_over(&mut client, &mut server)?;
    let said = client.wait()?;
    let parts = parts(&said, PARTS)?;
    drop(server);
    let found = in_image(lab, &image)?;
    let len = 1 << 20;
    ensure!(found[..len] == noise(99, len), "the machine without the lock has overwritten it");
    Ok(format!("{parts}; {passes} passes of a MiB, the store has what was flushed"))
}

/// A machine at one end of the wire.
fn start(
    lab: &Lab,
    program: &Program,
    name: &str,
    script: &str,
    end: &str,
    more: &[&str],
) -> Result<Guest> {
    let path = lab.path("nfs.wire");
    let wire = format!("stream,id=wire,{end},addr.type=unix,addr.path={}", path.display());
    let words = ["-netdev", &wire, "-device", "virtio-net-pci,netdev=wire,id=port"];
    Guest::start_with(lab, program, name, script, &[&words, more].concat())
}

fn export(lab: &Lab, program: &Program, name: &str, image: &Path) -> Result<Guest> {
    let disk = format!("file={},format=raw,if=virtio", image.display());
    let end = "server=off,reconnect-ms=100";
    let mut guest = start(lab, program, name, "nfs-server.sh", end, &["-drive", &disk])?;
    guest.wait_for("@ exported")?;
    Ok(guest)
}

/// The server is cut off, and loses its lock to the machine of the store. Its next write is an
/// error.
fn taken_over(client: &mut Guest, server: &mut Guest) -> Result<()> {
    client.qmp()?.execute("set_link", &json!({"name": "port", "up": false}))?;
    server.say("take")?;
    server.wait_for("@ taken")?;
    ensure!(!server.said().contains("@ not locked"), "the store's own machine opened the volume");
    client.qmp()?.execute("set_link", &json!({"name": "port", "up": true}))?;
    client.wait_for("@ lost")
}

/// Compares what the guest has read with what a power cut leaves.
fn same_in_image(lab: &Lab, server: &mut Guest, image: &Path, seen: &str) -> Result<()> {
    let copy = lab.path("nfs-cut.img");
    server.qmp()?.execute("stop", &json!({}))?;
    fs::copy(image, &copy)?;
    server.qmp()?.execute("cont", &json!({}))?;
    extract(lab, &copy)?;
    same_in_dump(lab, dump(lab)?, seen).map(drop)
}

fn in_image(lab: &Lab, image: &Path) -> Result<Vec<u8>> {
    extract(lab, image)?;
    let plain = lab.path("nfs.plain");
    tools::run(dump(lab)?.arg("--force").arg("-o").arg(&plain))?;
    Ok(fs::read(plain)?)
}

/// Copies the volume out of the store.
fn extract(lab: &Lab, image: &Path) -> Result<()> {
    // The journal is replayed, which counts as a correction.
    let checked = tools::output(tools::tool("e2fsck").arg("-fy").arg(image))?;
    ensure!(matches!(checked.status.code(), Some(0 | 1)), "{}", tools::text(&checked.stdout));
    let out = lab.path("nfs.disk");
    let _ = fs::remove_file(&out);
    let request = format!("dump /export/disk {}", out.display());
    tools::run(tools::tool("debugfs").args(["-R", &request]).arg(image))?;
    lab.give(&out).context("the store has no volume")
}

fn dump(lab: &Lab) -> Result<std::process::Command> {
    let key = lab.write("nfs.key", noise(99, 32))?.display().to_string();
    let plain = ["--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "256"];
    let disk = lab.path("nfs.disk").display().to_string();
    Ok(lab.blockyard(&[&["dump", &disk, "--key-file", &key][..], &plain].concat()))
}
