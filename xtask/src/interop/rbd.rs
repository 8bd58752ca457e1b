//! Volumes on images of a Ceph cluster.

use super::content;
use crate::cases::Cases;
use crate::ceph::{Cluster, POOL};
use crate::lab::{Lab, Server};
use crate::process::until;
use crate::tools::{self, tool};
use crate::volume::noise;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIZE_MIB: u32 = 64;
/// The data of a volume with a header of 16 MiB.
const DATA_BYTES: usize = ((SIZE_MIB - 16) as usize) << 20;
/// A short time limit of requests.
const SHORT: &str = "&reconnect-delay=3";

type Case = fn(&Lab, &mut Cluster) -> Result<String>;

const CASES: &[(&str, Case)] = &[
    ("RBD: a volume is formatted, loaded, served and dumped", whole),
    ("RBD: librbd's encryption, both ways", librbd),
    ("RBD: a second writer is refused, and a dead one fenced", lock),
    ("RBD: a paused server writes nothing after it was fenced", fenced),
    ("RBD: kill -9 of the only OSD under verified load", osd_dies),
    ("RBD: a cluster that is away longer than the limit", away),
    ("RBD: an image made shorter, longer, or removed", resized),
    ("RBD: names that lead nowhere", nowhere),
];

pub(super) fn run(cases: &mut Cases, lab: &Lab) {
    if !cases.wants_some("RBD: ") {
        return;
    }
    let mut cluster = match Cluster::start(lab) {
        Ok(cluster) => cluster,
        Err(error) => return cases.verdict("RBD: a cluster", Err(error)),
    };
    for (name, case) in CASES {
        cases.run(name, || case(lab, &mut cluster));
    }
}

/// Formats an image, and returns its name.
fn volume(lab: &Lab, cluster: &Cluster, image: &str) -> Result<String> {
    let name = cluster.image(image, SIZE_MIB)?;
    format(lab, &name)?;
    Ok(name)
}

fn format(lab: &Lab, name: &str) -> Result<()> {
    let pass = lab.pass().display().to_string();
    let words = ["format", name, "--key-file", &pass, "--force"];
    let cheap = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];
    tools::run(&mut lab.blockyard(&[&words[..], &cheap].concat()))?;
    Ok(())
}

/// A command on a volume, with its passphrase.
fn with_pass(lab: &Lab, verb: &str, name: &str) -> Command {
    let mut command = lab.blockyard(&[verb, name, "--key-file"]);
    command.arg(lab.pass());
    command
}

fn serve(lab: &Lab, name: &str, socket: &str) -> Result<Server> {
    let pass = lab.pass().display().to_string();
    lab.serve(socket, &[name, "--key-file", &pass])
}

/// The error of a command that must fail, in one line.
fn refused(command: &mut Command) -> Result<String> {
    let output = tools::output(command)?;
    let said = tools::text(&output.stderr);
    ensure!(!output.status.success(), "it succeeded");
    ensure!(said.trim().lines().count() == 1, "not one line: {said}");
    Ok(said)
}

fn load(lab: &Lab, name: &str, bytes: &[u8]) -> Result<()> {
    let file = lab.write("rbd.plain", bytes)?;
    tools::run(with_pass(lab, "load", name).arg("--input").arg(file))?;
    Ok(())
}

fn dump(lab: &Lab, name: &str) -> Result<Vec<u8>> {
    let out = lab.path("rbd.dump");
    let _ = fs::remove_file(&out);
    tools::run(with_pass(lab, "dump", name).arg("--output").arg(&out))?;
    Ok(fs::read(out)?)
}

fn whole(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let name = volume(lab, cluster, "whole")?;
    let info = tools::read(&mut lab.blockyard(&["info", &name]))?;
    ensure!(info.contains("LUKS2"), "{info}");
    let want = noise(1, DATA_BYTES);
    load(lab, &name, &want)?;
    content::same(&dump(lab, &name)?, &want)?;
    let server = serve(lab, &name, "whole")?;
    let want = content::fill(server.socket(), 2)?;
    server.stop()?;
    content::same(&dump(lab, &name)?, &want)?;
    // A snapshot keeps its content, and is read-only.
    tools::run(cluster.tool("rbd").args(["snap", "create", &format!("{POOL}/whole@one")]))?;
    load(lab, &name, &noise(3, DATA_BYTES))?;
    let snapshot = cluster.name("whole@one", "");
    content::same(&dump(lab, &snapshot)?, &want)?;
    let plain = lab.path("rbd.plain");
    let error = refused(with_pass(lab, "load", &snapshot).arg("--input").arg(plain))?;
    ensure!(error.contains("snapshot"), "{error}");
    Ok("dump, load, serve, snapshot".into())
}

/// Reads or writes an image through librbd's own encryption: format, image, file, `read` or
/// `write`.
const LIBRBD: &str = "
import rados, rbd, sys
conf, image, form, passfile, path, verb = sys.argv[1:]
with rados.Rados(conffile=conf) as cluster, cluster.open_ioctx('rbd') as pool:
    with rbd.Image(pool, image) as disk:
        form = getattr(rbd, 'RBD_ENCRYPTION_FORMAT_' + form.upper())
        disk.encryption_load(form, open(passfile).read())
        if verb == 'read':
            open(path, 'wb').write(disk.read(0, disk.size()))
        else:
            disk.write(open(path, 'rb').read(), 0)
            disk.flush()
";

fn by_librbd(lab: &Lab, cluster: &Cluster, words: [&str; 4]) -> Result<()> {
    let [image, form, path, verb] = words;
    let conf = cluster.conf().display().to_string();
    let pass = lab.pass().display().to_string();
    // Debian's own, whose modules the package has.
    let mut python = tool("/usr/bin/python3");
    tools::run(python.args(["-c", LIBRBD, &conf, image, form, &pass, path, verb]))?;
    Ok(())
}

fn librbd(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let file = lab.path("rbd.librbd").display().to_string();
    for form in ["luks1", "luks2"] {
        let image = format!("theirs-{form}");
        let name = cluster.image(&image, SIZE_MIB)?;
        let pass = lab.pass().display().to_string();
        let words = ["encryption", "format", &format!("{POOL}/{image}"), form, &pass];
        tools::run(cluster.tool("rbd").args(words))?;
        let len = dump(lab, &name)?.len();
        let want = noise(4, len);
        load(lab, &name, &want)?;
        by_librbd(lab, cluster, [&image, form, &file, "read"])?;
        content::same(&fs::read(&file)?, &want)?;
        let want = noise(5, len);
        fs::write(&file, &want)?;
        by_librbd(lab, cluster, [&image, form, &file, "write"])?;
        content::same(&dump(lab, &name)?, &want)?;
    }
    // Objects of 32 MiB move the start of the data: librbd wants a multiple of them.
    for (image, object) in [("ours", "4M"), ("ours-large", "32M")] {
        let path = format!("{POOL}/{image}");
        let words = ["create", &path, "--size", "96M", "--object-size", object];
        tools::run(cluster.tool("rbd").args(words))?;
        let name = cluster.name(image, "");
        format(lab, &name)?;
        let want = noise(6, dump(lab, &name)?.len());
        load(lab, &name, &want)?;
        by_librbd(lab, cluster, [image, "luks2", &file, "read"])?;
        content::same(&fs::read(&file)?, &want)?;
    }
    Ok("luks1 and luks2 of librbd, LUKS2 of ours".into())
}

fn lock(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let name = volume(lab, cluster, "locked")?;
    let server = serve(lab, &name, "locked")?;
    let want = content::fill(server.socket(), 7)?;
    let plain = lab.write("rbd.plain", &want)?;
    let error = refused(with_pass(lab, "load", &name).arg("--input").arg(plain))?;
    ensure!(error.contains("lock") && error.contains("127.0.0.1"), "{error}");
    // Reading needs no lock.
    content::same(&dump(lab, &name)?, &want)?;
    server.kill()?;
    let fencing = cluster.name("locked", "&break-lock=true");
    let server = serve(lab, &fencing, "locked")?;
    content::same(&content::read(server.socket())?, &want)?;
    let want = content::fill(server.socket(), 8)?;
    server.stop()?;
    content::same(&dump(lab, &name)?, &want)?;
    // After an orderly end nothing is left to break.
    serve(lab, &name, "locked")?.stop()?;
    Ok("refused, then fenced".into())
}

/// Starts a write of a pattern to a whole served disk, which may never end.
fn writing(server: &Server, pattern: &str) -> Result<Child> {
    let mut fio = tool("fio");
    fio.args(["--name=w", "--ioengine=nbd", "--rw=write", "--bs=64k", "--iodepth=16"]);
    fio.args(["--time_based", "--runtime=600", "--size=32m"]);
    fio.arg(format!("--buffer_pattern={pattern}")).arg(format!("--uri={}", server.uri()));
    fio.stdout(Stdio::null()).stderr(Stdio::null());
    fio.spawn().context("fio does not start")
}

fn fenced(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let name = volume(lab, cluster, "paused")?;
    let old = serve(lab, &name, "old")?;
    let mut load = writing(&old, "0x11")?;
    let begun = until(Duration::from_secs(20), || {
        dump(lab, &name).is_ok_and(|bytes| bytes[..1 << 20].iter().all(|byte| *byte == 0x11))
    });
    ensure!(begun, "the first server writes nothing");
    old.process().signal(Signal::SIGSTOP)?;
    let new = serve(lab, &cluster.name("paused", "&break-lock=true"), "new")?;
    let want = content::fill(new.socket(), 9)?;
    old.process().signal(Signal::SIGCONT)?;
    let told = until(Duration::from_secs(30), || old.log().contains("fenced"));
    ensure!(told, "the old server does not report it: {}", old.log());
    load.kill()?;
    load.wait()?;
    content::same(&content::read(new.socket())?, &want)?;
    new.stop()?;
    content::same(&dump(lab, &name)?, &want)?;
    old.kill()?;
    Ok("no late write".into())
}

/// Verified load on a served disk.
fn verified(server: &Server) -> Result<Child> {
    let mut fio = tool("fio");
    fio.args(["--name=v", "--ioengine=nbd", "--rw=randwrite", "--bs=16k", "--iodepth=16"]);
    fio.args(["--size=48m", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"]);
    // A file of state would be left in the working directory.
    fio.arg("--verify_state_save=0");
    fio.args(["--rate_iops=400", "--loops=2"]).arg(format!("--uri={}", server.uri()));
    fio.stdout(Stdio::null());
    fio.spawn().context("fio does not start")
}

fn osd_dies(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let name = volume(lab, cluster, "osd")?;
    let server = serve(lab, &name, "osd")?;
    let mut load = verified(&server)?;
    let before = server.process().cpu_ns()?;
    // Some megabytes have gone through the cipher.
    until(Duration::from_secs(10), || {
        server.process().cpu_ns().is_ok_and(|now| now > before + 50_000_000)
    });
    ensure!(load.try_wait()?.is_none(), "the load has ended before the OSD dies");
    cluster.kill("osd.0")?;
    cluster.launch("osd.0")?;
    cluster.await_osd()?;
    let status = load.wait()?;
    ensure!(status.success(), "fio: {status}; {}", server.log());
    server.stop()?;
    Ok("every byte verified".into())
}

fn away(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    volume(lab, cluster, "away")?;
    let server = serve(lab, &cluster.name("away", SHORT), "away")?;
    let want = content::fill(server.socket(), 10)?;
    cluster.signal("osd.0", Signal::SIGSTOP)?;
    let failed = content::read(server.socket());
    cluster.signal("osd.0", Signal::SIGCONT)?;
    ensure!(failed.is_err(), "a read succeeded without its OSD");
    ensure!(server.log().contains("did not answer within 3 s"), "{}", server.log());
    let again = until(Duration::from_secs(30), || {
        content::read(server.socket()).is_ok_and(|bytes| content::same(&bytes, &want).is_ok())
    });
    ensure!(again, "it does not come back: {}", server.log());
    server.stop()?;
    Ok("an error after the limit, and then the data".into())
}

fn resized(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let name = volume(lab, cluster, "resized")?;
    let pass = lab.pass().display().to_string();
    let control = lab.path("resized.control").display().to_string();
    let server =
        lab.serve("resized", &[&name, "--key-file", &pass, "--control", control.as_str()])?;
    let image = format!("{POOL}/resized");
    tools::run(cluster.tool("rbd").args(["resize", &image, "--size", "80M"]))?;
    tools::run(&mut lab.blockyard(&["resize", &control]))?;
    let len = content::fill(server.socket(), 11)?.len();
    ensure!(len == DATA_BYTES + (16 << 20), "after the image has grown: {len} bytes");
    let shrink = ["resize", &image, "--size", "32M", "--allow-shrink"];
    tools::run(cluster.tool("rbd").args(shrink))?;
    let failed = content::read(server.socket());
    ensure!(failed.is_err(), "a read behind the end succeeded");
    ensure!(server.log().contains("made shorter"), "{}", server.log());
    server.stop()?;
    tools::run(cluster.tool("rbd").args(["rm", &image]))?;
    let error = refused(with_pass(lab, "dump", &name).args(["--output", "/dev/null"]))?;
    ensure!(error.contains("has no image resized"), "{error}");
    Ok("each a sentence".into())
}

fn nowhere(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let conf = cluster.conf().display().to_string();
    for (name, problem) in [
        (format!("rbd:none/x?conf={conf}"), "has no pool none"),
        (cluster.name("none", ""), "has no image none"),
        ("rbd:rbd/x?conf=/nonexistent.conf".into(), "/nonexistent.conf"),
        (format!("rbd:rbd/x?conf={conf}&colour=red"), "conf, id, reconnect-delay"),
        ("rbd:alone".into(), "rbd:POOL/IMAGE"),
    ] {
        let error = refused(&mut lab.blockyard(&["info", &name]))?;
        ensure!(error.contains(problem), "{name}: {error}");
    }
    Ok("each a sentence".into())
}
