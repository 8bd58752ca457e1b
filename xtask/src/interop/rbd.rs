//! Volumes on images of a Ceph cluster.

use super::content;
use crate::cases::Cases;
use crate::ceph::{Cluster, POOL};
use crate::lab::{Door, Lab, Server};
use crate::nbd::{FLAG_FUA, OPT_EXPORT_NAME, Range, Raw, WRITE};
use crate::process::until;
use crate::tools::{self, tool};
use crate::volume::noise;
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIZE_MIB: u32 = 64;
/// The data of a volume with a header of 16 MiB.
const DATA_BYTES: usize = ((SIZE_MIB - 16) as usize) << 20;
/// The data of a volume whose content librbd encrypts too.
const SMALL_MIB: u32 = 4;
const SMALL_BYTES: usize = (SMALL_MIB as usize) << 20;
/// A short time limit of requests.
const SHORT: &str = "&reconnect-delay=3";

/// CPU time after which a gateway has passed some megabytes on.
const LOADED_NS: u64 = 50_000_000;
/// NBD's error of a server that is going away.
const ESHUTDOWN: u32 = 108;

type Case = fn(&Lab, &mut Cluster) -> Result<String>;

const CASES: &[(&str, Case)] = &[
    ("RBD: a volume is formatted, loaded, served and dumped", whole),
    ("RBD: librbd's encryption, both ways", librbd),
    ("RBD: an encrypted clone of librbd is named", clone_of_encrypted),
    ("RBD: a FUA write is flushed", fua),
    ("RBD: signals stay with the program", signals),
    ("RBD: a second writer is refused, and a dead one fenced", lock),
    ("RBD: a reload that renames an export fences nobody", renamed),
    ("RBD: exports that are opened at their first use, and closed when idle", first_use),
    ("RBD: a paused server writes nothing after it was fenced", fenced),
    ("RBD: a paused gateway writes nothing after another one took over", paused_gateway),
    ("RBD: a gateway's flush takes no lock", gateway_flush),
    ("RBD: a client that waits for room at a gateway while another one takes over", waits_for_room),
    ("RBD: gateways that are killed under verified load", gateways_die),
    ("RBD: kill -9 of the only OSD under verified load", osd_dies),
    ("RBD: kill -9 of the monitor under verified load", monitor_dies),
    ("RBD: a full cluster", full),
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

/// Gives both headers of a LUKS2 volume the magic of an encrypted clone: configuration, image.
const MARK_CLONE: &str = "
import rados, rbd, sys
conf, image = sys.argv[1:]
with rados.Rados(conffile=conf) as cluster, cluster.open_ioctx('rbd') as pool:
    with rbd.Image(pool, image) as disk:
        second = int.from_bytes(disk.read(8, 8), 'big')
        disk.write(b'RBDL', 0)
        disk.write(b'LDBR', second)
";

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
    let pass = lab.pass().display().to_string();
    let theirs = |form: &str| format!("theirs-{form}");
    // librbd's headers have 4 and 16 MiB. It measures the KDF for seconds, beside the rest.
    let forms = [("luks1", 4), ("luks2", 16)];
    let formatting = forms.map(|(form, header_mib)| -> Result<Child> {
        cluster.image(&theirs(form), header_mib + SMALL_MIB)?;
        let words = ["encryption", "format", &format!("{POOL}/{}", theirs(form)), form, &pass];
        cluster.tool("rbd").args(words).spawn().context("rbd does not start")
    });
    // Objects of 32 MiB move the start of the data: librbd wants a multiple of them.
    for (image, object, start_mib) in [("ours", "4M", 16), ("ours-large", "32M", 32)] {
        let path = format!("{POOL}/{image}");
        let size = format!("{}M", start_mib + SMALL_MIB);
        let words = ["create", &path, "--size", &size, "--object-size", object];
        tools::run(cluster.tool("rbd").args(words))?;
        let name = cluster.name(image, "");
        format(lab, &name)?;
        let want = noise(6, SMALL_BYTES);
        load(lab, &name, &want)?;
        by_librbd(lab, cluster, [image, "luks2", &file, "read"])?;
        content::same(&fs::read(&file)?, &want)?;
    }
    for ((form, _), formatted) in forms.iter().zip(formatting) {
        ensure!(formatted?.wait()?.success(), "rbd encryption format {form}");
        let name = cluster.name(&theirs(form), "");
        // librbd's keyslot takes seconds to open; the next ones would too.
        let mut change = lab.blockyard(&["key", "change", &name, "--key-file", &pass]);
        change.args(["--new-keyfile", &pass, "--force", "--pbkdf-force-iterations"]);
        change.args(if *form == "luks1" { &["1000"] } else { &["4", "--pbkdf-memory", "32"][..] });
        tools::run(&mut change)?;
        let want = noise(4, SMALL_BYTES);
        fs::write(&file, &want)?;
        by_librbd(lab, cluster, [&theirs(form), form, &file, "write"])?;
        content::same(&dump(lab, &name)?, &want)?;
        let want = noise(5, SMALL_BYTES);
        load(lab, &name, &want)?;
        by_librbd(lab, cluster, [&theirs(form), form, &file, "read"])?;
        content::same(&fs::read(&file)?, &want)?;
    }
    Ok("luks1 and luks2 of librbd, LUKS2 of ours".into())
}

/// An encrypted clone by its magic; Ceph 16 cannot make one.
fn clone_of_encrypted(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let name = volume(lab, cluster, "clone")?;
    let mut mark = tool("/usr/bin/python3");
    tools::run(mark.args(["-c", MARK_CLONE]).arg(cluster.conf()).arg("clone"))?;
    for command in [&mut with_pass(lab, "dump", &name), &mut lab.blockyard(&["info", &name])] {
        let error = refused(command)?;
        ensure!(error.contains("encrypted clone") && error.contains("rbd flatten"), "{error}");
    }
    Ok("named, with the remedy".into())
}

/// librbd counts the flushes that it was asked for.
fn fua(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let name = volume(lab, cluster, "fua")?;
    let socket = lab.path("fua.asok");
    let conf = lab.write("fua.conf", cluster.conf_of_client(&socket)?)?;
    let name = name.replace(&cluster.conf().display().to_string(), &conf.display().to_string());
    let server = serve(lab, &name, "fua")?;
    let mut raw = Raw::connect(server.socket())?;
    let mut write = |flags: u16| -> Result<u64> {
        let before = flushes(cluster, &socket)?;
        raw.send_flagged(WRITE, flags, 1, Range { offset: 4096, len: 4096 }, &[7; 4096])?;
        let (_, error) = raw.reply()?;
        ensure!(error == 0, "a write failed with error {error}");
        Ok(flushes(cluster, &socket)? - before)
    };
    let plain = write(0)?;
    let fua = write(FLAG_FUA)?;
    ensure!((plain, fua) == (0, 1), "{plain} flushes for a write, {fua} for one with FUA");
    server.stop()?;
    Ok("a flush behind it".into())
}

/// The flushes of the only image of a client, by its admin socket.
fn flushes(cluster: &Cluster, socket: &Path) -> Result<u64> {
    let mut ask = cluster.tool("ceph");
    let said = tools::read(ask.arg("--admin-daemon").arg(socket).args(["perf", "dump"]))?;
    let counters: Value = serde_json::from_str(&said)?;
    let counters = counters.as_object().context("no counters")?;
    let image = counters.iter().find(|(name, _)| name.starts_with("librbd-"));
    image.and_then(|(_, image)| image["flush"].as_u64()).context("no counter of flushes")
}

fn signals(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let name = volume(lab, cluster, "signals")?;
    let server = serve(lab, &name, "signals")?;
    let stops: u64 = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]
        .map(|signal| 1 << (signal as i32 - 1))
        .iter()
        .sum();
    let mut count = 0;
    for task in fs::read_dir(format!("/proc/{}/task", server.process().0))? {
        let status = fs::read_to_string(task?.path().join("status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::trim).with_context(|| format!("no field {name}"))
        };
        let name = field("Name:")?;
        let blocked = u64::from_str_radix(field("SigBlk:")?, 16)?;
        // Threads of librados and librbd.
        if ["msgr-worker", "ms_dispatch", "io_context_pool", "safe_timer", "log", "service"]
            .iter()
            .any(|start| name.starts_with(start))
        {
            count += 1;
            ensure!(blocked & stops == stops, "thread {name} takes signals: {blocked:x}");
        }
    }
    ensure!(count >= 4, "{count} threads of librados");
    server.stop()?;
    Ok(format!("{count} threads"))
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

fn renamed(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    cluster.image("renamed", SIZE_MIB)?;
    let name = cluster.name("renamed", "&break-lock=true");
    format(lab, &name)?;
    let socket = lab.path("renamed.sock");
    let control = lab.path("renamed.ctl");
    let config = |export: &str| {
        let pass = lab.pass();
        lab.write(
            "renamed.toml",
            format!(
                "socket = {socket:?}\ncontrol = {control:?}\n[exports.{export}]\n\
                 volume = {name:?}\nkey_file = {pass:?}\n"
            ),
        )
    };
    let path = config("before")?.display().to_string();
    let mut command = lab.blockyard(&["serve", "--config", &path]);
    let server = lab.start("renamed", command, Door::Unix(socket.clone()))?;
    let mut client = Raw::connect(&socket)?;
    client.write(0, &[0x11; 4096])?;
    config("after")?;
    command = lab.blockyard(&["reload"]);
    let said = refused(command.arg(&control))?;
    ensure!(said.contains("has the image open already"), "{said}");
    client.write(0, &[0x22; 4096])?;
    ensure!(client.read(0, 4096)? == [0x22; 4096], "the export does not write any more");
    server.stop()?;
    Ok("refused, and the export writes on".into())
}

fn first_use(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let tenant = volume(lab, cluster, "tenant")?;
    load(lab, &tenant, &noise(8, DATA_BYTES))?;
    let raw = cluster.image("raw-tenant", SMALL_MIB)?;
    let table = lab.write("raw.table", format!("0 {} linear {raw} 0\n", SMALL_BYTES >> 9))?;
    let socket = lab.path("tenants.sock");
    let control = lab.path("tenants.ctl");
    let pass = lab.pass();
    let config = format!(
        "socket = {socket:?}\ncontrol = {control:?}\n\
         [exports.encrypted]\nvolume = {tenant:?}\nkey_file = {pass:?}\nopen = 'first-use'\n\
         idle_close = 1\n[exports.raw]\ntable = {table:?}\nopen = 'first-use'\n"
    );
    let path = lab.write("tenants.toml", config)?.display().to_string();
    let command = lab.blockyard(&["serve", "--config", &path]);
    let server = lab.start("tenants", command, Door::Unix(socket.clone()))?;
    let closed = || -> Result<Value> {
        let json = tools::read(lab.blockyard(&["status", "--json"]).arg(&control))?;
        Ok(serde_json::from_str::<Value>(&json)?["closed"].take())
    };
    ensure!(closed()? == json!(["encrypted", "raw"]), "{}", closed()?);
    let mut client = Raw::connect(&socket)?;
    ensure!(client.read(0, 4096)? == noise(8, DATA_BYTES)[..4096], "another content");
    client.write(0, &[0x33; 4096])?;
    ensure!(closed()? == json!(["raw"]), "{}", closed()?);
    drop(client);
    let is_closed = until(Duration::from_secs(20), || {
        closed().is_ok_and(|names| names == json!(["encrypted", "raw"]))
    });
    ensure!(is_closed, "it stays open: {}", server.log());
    // The lock is free, and the next opening finds what others wrote.
    let mut want = dump(lab, &tenant)?;
    ensure!(want[..4096] == [0x33; 4096], "the write is lost");
    want[..4096].fill(0x44);
    load(lab, &tenant, &want)?;
    content::same(&content::read(&socket)?, &want)?;
    let uri = format!("nbd+unix:///raw?socket={}", socket.display());
    let size = tools::read(tool("nbdinfo").args(["--size", &uri]))?;
    ensure!(size.trim() == SMALL_BYTES.to_string(), "raw has {size}");
    server.stop()?;
    Ok("an encrypted image and a table; the lock of an idle image is free".into())
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
    old.process().pause()?;
    let new = serve(lab, &cluster.name("paused", "&break-lock=true"), "new")?;
    let want = content::fill(new.socket(), 9)?;
    // A machine that is suspended may wake up after the hour that the cluster has as default.
    let month = tools::read(tool("date").args(["-u", "-d", "30 days", "+%F"]))?;
    let blocked = cluster.ceph(&["osd", "blocklist", "ls"])?;
    let ends = blocked.lines().filter_map(|line| line.split_whitespace().nth(1));
    ensure!(ends.max() > Some(month.trim()), "fenced for a short time only: {blocked}");
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

/// A server of an image's ciphertext, one of several; it takes over with its first write.
fn gateway(lab: &Lab, cluster: &Cluster, image: &str, place: &Place) -> Result<Server> {
    let sectors = u64::from(SIZE_MIB) << 11;
    let name = cluster.name(image, "&break-lock=true");
    let table = lab.write("gateway.table", format!("0 {sectors} linear {name} 0\n"))?;
    let table = table.display().to_string();
    let listen = format!("127.0.0.1:{}", place.port);
    let mut words = vec!["--shared", "--table", &table, "--listen", &listen];
    if place.is_narrow {
        words.extend(["--max-connections", "1"]);
    }
    lab.serve(place.name, &words)
}

/// Where a gateway listens, beside the socket of its name.
struct Place {
    name: &'static str,
    port: u16,
    /// One connection at a time; others wait.
    is_narrow: bool,
}

fn places() -> Result<[Place; 2]> {
    let ports = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let [one, two] = ports.map(|port| port.local_addr());
    let place = |name, port| Place { name, port, is_narrow: false };
    Ok([place("one", one?.port()), place("two", two?.port())])
}

/// A client of both gateways, which uses the second one while the first one is away.
fn client_of(lab: &Lab, places: &[Place; 2]) -> Result<Server> {
    let sectors = u64::from(SIZE_MIB) << 11;
    let [one, two] = places.each_ref().map(|place| {
        format!("round-robin 0 1 0 nbd://127.0.0.1:{}?timeout=2&unflushed=trust", place.port)
    });
    let line = format!("0 {sectors} multipath 1 queue_if_no_path 0 2 1 {one} {two}\n");
    let table = lab.write("client.table", line)?.display().to_string();
    lab.serve("client", &["--table", &table])
}

fn paused_gateway(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    cluster.image("gateways", SIZE_MIB)?;
    let places = places()?;
    let one = gateway(lab, cluster, "gateways", &places[0])?;
    let two = gateway(lab, cluster, "gateways", &places[1])?;
    let mut late = Raw::connect(one.socket())?;
    let client = client_of(lab, &places)?;
    let mut disk = Raw::connect(client.socket())?;
    // A late write at a gateway that never had the lock must not fence the one that has it.
    let mut standby = Raw::connect(two.socket())?;
    // After its first reply, the gateway has noted the takeovers for this connection.
    standby.read(0, 4096)?;
    two.process().pause()?;
    standby.send(WRITE, 4, Range { offset: 0, len: 65536 }, &[0x10; 65536])?;
    disk.write(0, &[0x11; 65536])?;
    two.process().signal(Signal::SIGCONT)?;
    let (_, error) = standby.reply()?;
    ensure!(error == ESHUTDOWN, "the late write of a standby got {error}: {}", two.log());
    ensure!(disk.read(0, 65536)? == [0x11; 65536], "a late write of a standby");
    // Another connection of the first gateway writes too, as long as no other one took over.
    late.write(0, &[0x22; 65536])?;
    ensure!(disk.read(0, 65536)? == [0x22; 65536], "two clients of one gateway");
    one.process().pause()?;
    late.send(WRITE, 5, Range { offset: 0, len: 65536 }, &[0x33; 65536])?;
    disk.write(0, &[0x44; 65536])?;
    ensure!(two.log().contains("fences"), "the second gateway fences nobody: {}", two.log());
    one.process().signal(Signal::SIGCONT)?;
    let (_, error) = late.reply()?;
    ensure!(error == ESHUTDOWN, "the late write got {error}: {}", one.log());
    ensure!(disk.read(0, 65536)? == [0x44; 65536], "a late write");
    // The first one is open again, and the client goes back to it. Its old connection stays mute.
    disk.write(65536, &[0x55; 65536])?;
    let back = until(Duration::from_secs(30), || {
        disk.write(65536, &[0x66; 65536]).is_ok() && one.log().matches("fences").count() == 1
    });
    ensure!(back, "the first gateway does not take over again: {}{}", one.log(), client.log());
    late.send(WRITE, 6, Range { offset: 0, len: 65536 }, &[0x77; 65536])?;
    ensure!(late.reply()?.1 == ESHUTDOWN, "an old connection of an open gateway writes");
    ensure!(disk.read(0, 65536)? == [0x44; 65536], "a late write of an old connection");
    client.stop()?;
    one.stop()?;
    two.stop()?;
    Ok("fenced, open again, and back".into())
}

/// The owners of an image's lock.
fn lock_of(cluster: &Cluster, image: &str) -> Result<String> {
    let image = format!("{}/{image}", POOL);
    Ok(tools::read(cluster.tool("rbd").args(["lock", "ls", &image]))?.trim().to_owned())
}

fn gateway_flush(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    cluster.image("flushed", SIZE_MIB)?;
    let places = places()?;
    let one = gateway(lab, cluster, "flushed", &places[0])?;
    let mut client = Raw::connect(one.socket())?;
    client.flush()?;
    let owners = lock_of(cluster, "flushed")?;
    ensure!(owners.is_empty(), "a flush took the lock: {owners}");
    client.write(0, &[0x11; 4096])?;
    client.flush()?;
    ensure!(!lock_of(cluster, "flushed")?.is_empty(), "a write took no lock");
    // The owner passes the lock to nobody who only asks for it.
    let two = gateway(lab, cluster, "flushed", &places[1])?;
    Raw::connect(two.socket())?.flush()?;
    two.stop()?;
    client.write(4096, &[0x22; 4096])?;
    one.stop()?;
    Ok("the first write takes it".into())
}

fn waits_for_room(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    cluster.image("waiting", SIZE_MIB)?;
    let [mut one, two] = places()?;
    one.is_narrow = true;
    let one = gateway(lab, cluster, "waiting", &one)?;
    let two = gateway(lab, cluster, "waiting", &two)?;
    let mut served = Raw::connect(one.socket())?;
    served.read(0, 4096)?;
    // A request that comes before the answer stands for one whose answer was on its way.
    let mut waiting = Raw::negotiate(one.socket())?;
    waiting.option(OPT_EXPORT_NAME, &[])?;
    waiting.send(WRITE, 1, Range { offset: 0, len: 4096 }, &[0x11; 4096])?;
    let mut disk = Raw::connect(two.socket())?;
    disk.write(0, &[0x22; 4096])?;
    drop(served);
    waiting.export()?;
    let (_, error) = waiting.reply()?;
    ensure!(error == ESHUTDOWN, "the late write got {error}: {}", one.log());
    ensure!(disk.read(0, 4096)? == [0x22; 4096], "a late write");
    drop((waiting, disk));
    // Clients that only write make a fenced gateway open the image again.
    for (server, at, byte) in [(&one, 4096, 0x33), (&two, 8192, 0x44)] {
        let write = || Raw::connect(server.socket())?.write(at, &[byte; 4096]);
        let written = until(Duration::from_secs(20), || write().is_ok());
        ensure!(written, "a gateway refuses every new client");
        let read = Raw::connect(server.socket())?.read(at, 4096)?;
        ensure!(read == [byte; 4096], "a lost write");
    }
    one.stop()?;
    two.stop()?;
    Ok("its write is refused, and the gateway opens the image again".into())
}

fn gateways_die(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    cluster.image("mortal", SIZE_MIB)?;
    let places = places()?;
    let one = gateway(lab, cluster, "mortal", &places[0])?;
    let two = gateway(lab, cluster, "mortal", &places[1])?;
    let client = client_of(lab, &places)?;
    let mut load = verified(&client)?;
    let far = |server: &Server, ns: u64| -> Result<()> {
        let before = server.process().cpu_ns()?;
        let passed = until(Duration::from_secs(20), || {
            server.process().cpu_ns().is_ok_and(|now| now > before + ns)
        });
        ensure!(passed, "{} has no load: {}", server.log(), client.log());
        Ok(())
    };
    far(&one, LOADED_NS)?;
    one.kill()?;
    far(&two, LOADED_NS)?;
    let one = gateway(lab, cluster, "mortal", &places[0])?;
    far(&one, LOADED_NS)?;
    two.kill()?;
    let status = load.wait()?;
    ensure!(status.success(), "fio: {status}; {}", client.log());
    client.stop()?;
    one.stop()?;
    Ok("every byte verified".into())
}

/// Verified load on a served disk.
fn verified(server: &Server) -> Result<Child> {
    let mut fio = tool("fio");
    fio.args(["--name=v", "--ioengine=nbd", "--rw=randwrite", "--bs=16k", "--iodepth=16"]);
    fio.args(["--size=24m", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"]);
    // A file of state would be left in the working directory.
    fio.arg("--verify_state_save=0");
    fio.args(["--rate_iops=400", "--loops=2"]).arg(format!("--uri={}", server.uri()));
    fio.stdout(Stdio::null());
    fio.spawn().context("fio does not start")
}

/// Starts verified load on an image, and waits until some megabytes went through the cipher.
fn loaded(lab: &Lab, cluster: &Cluster, image: &str) -> Result<(Server, Child)> {
    let server = serve(lab, &volume(lab, cluster, image)?, image)?;
    let mut load = verified(&server)?;
    let before = server.process().cpu_ns()?;
    until(Duration::from_secs(10), || {
        server.process().cpu_ns().is_ok_and(|now| now > before + LOADED_NS)
    });
    ensure!(load.try_wait()?.is_none(), "the load has ended too early: {}", server.log());
    Ok((server, load))
}

fn osd_dies(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let (server, mut load) = loaded(lab, cluster, "osd")?;
    cluster.kill("osd.0")?;
    cluster.launch("osd.0")?;
    cluster.await_osds()?;
    cluster.await_pool()?;
    let status = load.wait()?;
    ensure!(status.success(), "fio: {status}; {}", server.log());
    server.stop()?;
    Ok("every byte verified".into())
}

fn monitor_dies(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    let (server, mut load) = loaded(lab, cluster, "monitor")?;
    cluster.kill("mon.a")?;
    let before = server.process().cpu_ns()?;
    let goes_on = until(Duration::from_secs(10), || {
        server.process().cpu_ns().is_ok_and(|now| now > before + LOADED_NS)
    });
    ensure!(goes_on, "no I/O without a monitor: {}", server.log());
    cluster.launch("mon.a")?;
    cluster.await_osds()?;
    cluster.await_pool()?;
    let status = load.wait()?;
    ensure!(status.success(), "fio: {status}; {}", server.log());
    server.stop()?;
    Ok("every byte verified".into())
}

fn full(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    volume(lab, cluster, "full")?;
    let server = serve(lab, &cluster.name("full", SHORT), "full")?;
    let want = content::fill(server.socket(), 12)?;
    cluster.set_full(true)?;
    let mut raw = Raw::connect(server.socket())?;
    let failed = raw.write(0, &[9; 65536]);
    ensure!(failed.is_err(), "a write succeeded in a full cluster");
    ensure!(server.log().contains("or is full"), "{}", server.log());
    content::same(&content::read(server.socket())?, &want)?;
    cluster.set_full(false)?;
    let again = until(Duration::from_secs(30), || raw.write(0, &want[..65536]).is_ok());
    ensure!(again, "it does not come back: {}", server.log());
    raw.flush()?;
    content::same(&content::read(server.socket())?, &want)?;
    server.stop()?;
    Ok("an error after the limit, and nothing lost".into())
}

fn away(lab: &Lab, cluster: &mut Cluster) -> Result<String> {
    volume(lab, cluster, "away")?;
    let server = serve(lab, &cluster.name("away", SHORT), "away")?;
    let want = content::fill(server.socket(), 10)?;
    let mut raw = Raw::connect(server.socket())?;
    cluster.daemon("osd.0")?.pause()?;
    raw.send(WRITE, 1, Range { offset: 0, len: 4096 }, &want[..4096])?;
    let failed = content::read(server.socket());
    let written = raw.reply();
    cluster.daemon("osd.0")?.signal(Signal::SIGCONT)?;
    ensure!(failed.is_err(), "a read succeeded without its OSD");
    // No cache of librbd answers it.
    ensure!(written?.1 != 0, "a write was answered without its OSD");
    ensure!(server.log().contains("did not answer within 3 s"), "{}", server.log());
    let is_back = || {
        until(Duration::from_secs(30), || {
            content::read(server.socket()).is_ok_and(|bytes| content::same(&bytes, &want).is_ok())
        })
    };
    let mut again = is_back();
    if !again && cluster.is_silent() {
        // On a busy machine the OSD sometimes answers no program after the pause.
        cluster.kill("osd.0")?;
        cluster.launch("osd.0")?;
        cluster.await_osds()?;
        cluster.await_pool()?;
        again = is_back();
    }
    ensure!(again, "the data does not come back within 30 s: {}", server.log());
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
    // The server notices it; the command is for disks that do not tell.
    let want = DATA_BYTES as u64 + (16 << 20);
    let grown = until(Duration::from_secs(20), || {
        Raw::connect(server.socket()).is_ok_and(|raw| raw.len_bytes == want)
    });
    ensure!(grown, "after the image has grown: {}", server.log());
    // The size is served before it is said.
    let said = until(Duration::from_secs(20), || server.log().contains("bytes now"));
    ensure!(said, "the new size is not said: {}", server.log());
    content::fill(server.socket(), 11)?;
    tools::run(&mut lab.blockyard(&["resize", &control]))?;
    let shrink = ["resize", &image, "--size", "32M", "--allow-shrink"];
    tools::run(cluster.tool("rbd").args(shrink))?;
    // The image ends at 16 MiB of the data, in the first read.
    for offset in [(16 << 20) - 4096, 16 << 20] {
        let failed = Raw::connect(server.socket())?.read(offset, 8192);
        ensure!(failed.is_err(), "a read at {offset} behind the end succeeded");
    }
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
