//! Guests of QEMU (without KVM: slow and everywhere) whose disk is our vhost-user socket: a file
//! system, servers that are killed under load, and migration under load. One guest has our server
//! inside of it, as a disk of its own kernel, and another one on a mount of NFS. The guest verifies
//! what it reads, and `dump` must read what the guest read last.

mod guest;
mod nfs;
mod program;
mod qmp;

use super::kernel::{has_tree, hex, make_tree, verdict};
use crate::backing::Backing;
use crate::cases::Cases;
use crate::lab::{Lab, Server};
use crate::process::until;
use crate::tools;
use crate::volume::{Maker, Recipe, Volume};
use anyhow::{Context, Result, bail, ensure};
use guest::Guest;
use program::Program;
use qmp::Qmp;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time limit of a state that a guest or a server reaches. The limit ends a guest that hangs, and
/// is no measure of speed: an emulated guest with 14 checks takes 83 s alone, and 121 s and more
/// beside the other lane of CI.
const LIMIT: Duration = Duration::from_secs(300);

/// Looks of QEMU at the dirty memory after which all memory has been copied.
const COPIES: u64 = 3;

/// Parts of the script of nodes and CPUs.
const CPUS_PARTS: usize = 7;

/// Parts of the script of ublk.
const UBLK_PARTS: usize = 14;

/// Passes of all writers between two kills, and before and after a migration.
const PASSES: usize = 6;

pub(crate) fn run(cases: &mut Cases, lab: &Lab, rounds: u32) {
    const NAME: &str = "QEMU guest on a vhost-user disk";
    const UBLK: &str = "QEMU guest whose kernel has our server as a disk (ublk)";
    const CPUS: &str = "QEMU guest with two NUMA nodes, and CPUs that come and go";
    if ![NAME, UBLK, CPUS, nfs::NAME].iter().any(|name| cases.wants_some(name)) {
        return;
    }
    let program = program::get(lab);
    let mut case = |name: &str, case: &dyn Fn(&Program) -> Result<String>| {
        cases.run(&format!("{NAME}: {name}"), || match &program {
            Ok(program) => case(program),
            Err(error) => Ok(skipped(&format!("{error:#}"))),
        });
    };
    case("files", &|program| files(lab, program));
    case("killed servers", &|program| kills(lab, program, rounds.div_ceil(2)));
    case("migration", &|program| migration(lab, program));
    cases.run(UBLK, || match &program {
        Ok(program) => ublk(lab, program),
        Err(error) => Ok(skipped(&format!("{error:#}"))),
    });
    cases.run(CPUS, || match &program {
        Ok(program) => cpus(lab, program),
        Err(error) => Ok(skipped(&format!("{error:#}"))),
    });
    cases.run(nfs::NAME, || match &program {
        Ok(program) => nfs::run(lab, program),
        Err(error) => Ok(skipped(&format!("{error:#}"))),
    });
}

/// One line for a machine without QEMU's packages: their last complaint.
fn skipped(why: &str) -> String {
    format!("skipped, QEMU is not to be had here: {}", why.lines().next_back().unwrap_or_default())
}

/// A file system is made, files are copied into it, and it is checked.
fn files(lab: &Lab, program: &Program) -> Result<String> {
    let volume = volume(lab, "qemu-files")?;
    make_tree(lab)?;
    let server = serve(lab, &volume)?;
    let mut guest = Guest::start(lab, program, "files", "disk.sh", &vhost_user(lab, &volume), &[])?;
    let seen = ended(&mut guest)?;
    healthy(&server)?;
    server.stop()?;
    let plain = same_in_dump(lab, volume.command(lab, "dump")?, &seen)?;
    has_tree(lab, &plain)?;
    Ok("dump reads what the guest read, e2fsck finds nothing, every file is equal".into())
}

/// Servers are killed while writes and reads are in flight. The guest sees no error. The volume is
/// on a disk, past the page cache and with a short queue: requests are in flight for a while, and
/// end in another order.
fn kills(lab: &Lab, program: &Program, kills: u32) -> Result<String> {
    const NAME: &str = "qemu-kills";
    let recipe = Recipe { name: NAME, maker: Maker::Blockyard, options: "--sector-size 512" };
    let volume = Backing::Direct.make(lab, &recipe)?.context("a file is always to be had")?;
    let disk = lab.path(NAME).with_extension("vhost");
    let words = ["--vhost-user", &disk.display().to_string()];
    let slow = ["--elevator", "mq-deadline", "--queue-depth", "1", "--max-sectors", "8"];
    let serve = || volume.serve_with(lab, &[&words[..], &slow].concat());
    let mut server = serve()?;
    let mut guest = Guest::start(lab, program, "kills", "load.sh", &disk, &[])?;
    let mut passes = 0;
    for _ in 0..kills {
        passes = guest.wait_for_passes(passes + PASSES)?;
        server.kill()?;
        server = serve()?;
    }
    passes = guest.wait_for_passes(passes + PASSES)?;
    guest.say("stop")?;
    let seen = ended(&mut guest)?;
    healthy(&server)?;
    server.stop()?;
    same_in_dump(lab, volume.command(lab, "dump")?, &seen)?;
    Ok(format!("{kills} kills in {passes} passes of a MiB, dump reads what the guest read"))
}

/// A machine moves to another QEMU, with another server, while it writes and reads. The disk below
/// both servers is one NBD server, as hosts share it.
fn migration(lab: &Lab, program: &Program) -> Result<String> {
    let volume = volume(lab, "qemu-migration")?;
    let store = Store::start(lab, &volume)?;
    let here = store.serve(lab, "migration-here")?;
    let there = store.serve(lab, "migration-there")?;
    let disk = |name: &str| lab.path(name).with_extension("vhost");
    let mut source = Guest::start(lab, program, "source", "load.sh", &disk("migration-here"), &[])?;
    let before = source.wait_for_passes(PASSES)?;
    let way = format!("unix:{}", lab.path("migration.sock").display());
    let incoming = ["-incoming", &way];
    let mut target =
        Guest::start(lab, program, "target", "load.sh", &disk("migration-there"), &incoming)?;
    target.wait_for_file(&lab.path("migration.sock"))?;
    let moved = migrate(&mut source, &way)?;
    let during = source.passes() - before;
    source.end()?;
    let after = target.wait_for_passes(PASSES)?;
    target.say("stop")?;
    let seen = ended(&mut target)?;
    for server in [here, there] {
        healthy(&server)?;
        server.stop()?;
    }
    drop(store);
    same_in_dump(lab, volume.command(lab, "dump")?, &seen)?;
    Ok(format!(
        "{moved}, {during} passes of a MiB meanwhile, {after} afterwards, dump reads what the \
         guest read"
    ))
}

/// Moves the machine; returns QEMU's figures. When all memory has been copied once, the disk fills
/// pages of the guest: only the log of the server tells QEMU to copy these again.
fn migrate(source: &mut Guest, way: &str) -> Result<String> {
    source.say("busy")?;
    let mut qmp = source.qmp()?;
    // A busy guest never meets this limit. Without "busy", a guest whose disk stalls does.
    let limits = json!({"max-bandwidth": 32 << 20, "downtime-limit": 1});
    qmp.execute("migrate-set-parameters", &limits)?;
    qmp.execute("migrate", &json!({"uri": way}))?;
    let mut state = json!(null);
    let mut reaches = |qmp: &mut Qmp, copies: u64| {
        until(LIMIT, || {
            state = qmp.execute("query-migrate", &json!({})).unwrap_or_default();
            let is_ended = matches!(state["status"].as_str(), None | Some("completed" | "failed"));
            is_ended || state["ram"]["dirty-sync-count"].as_u64() >= Some(copies)
        });
        state.take()
    };
    let state = reaches(&mut qmp, COPIES);
    ensure!(state["status"] == "active", "the machine moved too early: {state}");
    source.say("keep")?;
    source.wait_for("@ kept")?;
    qmp.execute("migrate-set-parameters", &json!({"downtime-limit": 3000}))?;
    let state = reaches(&mut qmp, u64::MAX);
    ensure!(state["status"] == "completed", "the migration did not complete: {state}");
    Ok(format!("moved in {} ms, stopped for {} ms", state["total-time"], state["downtime"]))
}

/// Our server is in the guest and makes its disk a disk of the guest's kernel. The script says what
/// it has tried.
fn ublk(lab: &Lab, program: &Program) -> Result<String> {
    let recipe = Recipe { name: "qemu-ublk", maker: Maker::Blockyard, options: "" };
    let volume = recipe.make(lab)?;
    let program = program.with_blockyard(lab, &["ublk.sh"])?;
    let mut guest = Guest::start_on_image(lab, &program, "ublk", "ublk.sh", &volume.image)?;
    let said = guest.wait()?;
    ensure!(said.contains("@ done"), "the guest did not finish: {}", tools::tail(&said));
    let parts = parts(&said, UBLK_PARTS)?;
    same_in_dump(lab, volume.command(lab, "dump")?, &verdict(&said, "disk")?)?;
    Ok(format!("{parts}; dump reads what the guest read"))
}

/// Our server on chosen nodes and CPUs of a machine that has several, and with CPUs and a quota
/// that change.
fn cpus(lab: &Lab, program: &Program) -> Result<String> {
    let recipe = Recipe { name: "qemu-cpus", maker: Maker::Blockyard, options: "" };
    let volume = recipe.make(lab)?;
    let program = program.with_blockyard(lab, &["cpus.sh"])?.with_two_nodes();
    let mut guest = Guest::start_on_image(lab, &program, "cpus", "cpus.sh", &volume.image)?;
    let said = guest.wait()?;
    ensure!(said.contains("@ done"), "the guest did not finish: {}", tools::tail(&said));
    parts(&said, CPUS_PARTS)
}

/// The names of the parts that a script has tried; all of them must be ok.
fn parts(said: &str, number: usize) -> Result<String> {
    let failed: Vec<_> = said.lines().filter(|line| line.contains(" failed ")).collect();
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    let parts = said.lines().filter_map(|line| line.strip_prefix("@ ")?.strip_suffix(" ok"));
    let parts: Vec<_> = parts.collect();
    ensure!(parts.len() == number, "only {} were tried", parts.join(", "));
    Ok(parts.join(", "))
}

fn volume(lab: &Lab, name: &'static str) -> Result<Volume> {
    Recipe { name, maker: Maker::Blockyard, options: "--sector-size 512" }.make(lab)
}

fn vhost_user(lab: &Lab, volume: &Volume) -> PathBuf {
    lab.path(volume.name).with_extension("vhost")
}

fn serve(lab: &Lab, volume: &Volume) -> Result<Server> {
    volume.serve(lab, &["--vhost-user", &vhost_user(lab, volume).display().to_string()])
}

fn healthy(server: &Server) -> Result<()> {
    ensure!(!server.log().contains("is stopped"), "{}", server.log());
    Ok(())
}

/// The checksum that a guest reports when it has ended.
fn ended(guest: &mut Guest) -> Result<String> {
    ended_load(&guest.wait()?)
}

fn ended_load(said: &str) -> Result<String> {
    ensure!(!said.contains("I/O error"), "the guest saw an error: {}", tools::tail(said));
    if !said.contains("@ done") {
        bail!("the guest did not finish: {}", tools::tail(said));
    }
    verdict(said, "disk")
}

/// Compares the plaintext with the guest's checksum; returns the plaintext's file.
fn same_in_dump(lab: &Lab, mut dump: Command, seen: &str) -> Result<PathBuf> {
    let plain = lab.path("qemu.plain");
    tools::run(dump.arg("--force").arg("-o").arg(&plain))?;
    let ours = hex(&Sha256::digest(fs::read(&plain)?));
    ensure!(seen == ours, "the guest read {seen}, dump reads {ours}");
    Ok(plain)
}

/// An NBD server of an image, below two servers of ours.
struct Store {
    nbdkit: Child,
    uri: String,
    key: String,
}

impl Store {
    fn start(lab: &Lab, volume: &Volume) -> Result<Store> {
        tools::need("nbdkit")?;
        let socket = lab.path("store.sock");
        let mut nbdkit = tools::daemon("nbdkit");
        nbdkit.args(["-f", "-U"]).arg(&socket).arg("file").arg(&volume.image);
        let nbdkit = nbdkit.stderr(Stdio::null()).spawn().context("nbdkit does not start")?;
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let store = Store { nbdkit, uri, key: lab.pass().display().to_string() };
        ensure!(until(LIMIT, || UnixStream::connect(&socket).is_ok()), "nbdkit does not listen");
        // The server runs as another user.
        lab.give(&socket)?;
        Ok(store)
    }

    fn serve(&self, lab: &Lab, name: &str) -> Result<Server> {
        let disk = lab.path(name).with_extension("vhost").display().to_string();
        lab.serve(name, &[&self.uri, "--key-file", &self.key, "--vhost-user", &disk])
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.nbdkit.kill();
        let _ = self.nbdkit.wait();
    }
}
