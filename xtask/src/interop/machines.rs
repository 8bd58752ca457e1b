//! A real kernel whose disk is our vhost-user socket, as the disk of a virtual machine.

use super::kernel::{boot_with, has_tree, hex, make_tree, verdict};
use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools;
use crate::volume::{Maker, Recipe};
use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};
use std::fs;

/// Volumes with sectors of both sizes, and access without the page cache.
const DISKS: &[(&str, &str, &[&str])] = &[
    ("sectors of 512 bytes", "--sector-size 512", &[]),
    ("sectors of 4096 bytes", "--sector-size 4096", &[]),
    ("direct access", "--sector-size 512", &["--direct"]),
];

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    for (name, format, serve) in DISKS {
        cases.run(&format!("kernel on a vhost-user disk: {name}"), || disk(lab, format, serve));
    }
}

fn disk(lab: &Lab, format: &'static str, serve: &[&str]) -> Result<String> {
    let recipe = Recipe { name: "machine", maker: Maker::Blockyard, options: format };
    let volume = recipe.make(lab)?;
    make_tree(lab)?;
    let socket = lab.path("machine.vhost");
    let path = socket.display().to_string();
    let server = volume.serve(lab, &[&["--vhost-user", &path], serve].concat())?;
    let said = boot_with(lab, "disk.sh", &[&socket])?;
    let seen = verdict(&said, "disk")?;
    ensure!(!server.log().contains("is stopped"), "{}", server.log());
    server.stop()?;
    let plain = lab.path("machine.plain");
    let mut dump = volume.command(lab, "dump")?;
    tools::run(dump.arg("--force").arg("-o").arg(&plain))?;
    let ours = hex(&Sha256::digest(fs::read(&plain)?));
    ensure!(seen == ours, "the guest read {seen}, dump reads {ours}");
    has_tree(lab, &plain)?;
    Ok("dump reads what the guest read, e2fsck finds nothing, every file is equal".into())
}
