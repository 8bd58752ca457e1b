//! NBD clients of other projects: qemu-img and qemu-io, nbdcopy and nbdinfo, and libnbd with every
//! command.

use super::content;
use crate::cases::Cases;
use crate::lab::{Door, Lab, Server};
use crate::nbd;
use crate::tools::{self, tool};
use crate::volume::{Maker, Recipe, Volume, noise};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs;
use std::net::TcpListener;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    let recipe = Recipe { name: "clients", maker: Maker::Blockyard, options: "" };
    let volume = recipe.make(lab);
    let volume = match volume {
        Ok(volume) => volume,
        Err(error) => return cases.verdict("a volume for the clients", Err(error)),
    };
    for (name, case) in CASES {
        cases.run(name, || case(lab, &volume));
    }
    if cases.wants_some("libnbd") {
        libnbd(cases, lab, &volume);
    }
}

/// A check on a volume that it serves.
type Case = fn(&Lab, &Volume) -> Result<String>;

const CASES: &[(&str, Case)] = &[
    ("nbdinfo reports size, flags and block sizes", info),
    ("nbdinfo lists exports and maps", list_and_map),
    ("nbdcopy in and out", nbdcopy),
    ("nbdcopy over TCP", tcp),
    ("nbd-client lists exports", nbd_client),
    ("qemu-img info, convert and compare", qemu_img),
    ("qemu-io writes patterns and reads them", qemu_io),
    ("qemu-io pipelines zeroes and writes of parts of sectors", qemu_io_parts),
    ("nbdinfo and qemu-img read a dirty bitmap", dirty_bitmap),
    ("info URI shows a served disk", info_uri),
    ("load and dump agree with a client", load_and_dump),
];

fn info(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = volume.serve(lab, &[])?;
    let text = tools::read(tool("nbdinfo").args(["--json", &server.uri()]))?;
    let json: serde_json::Value = serde_json::from_str(&text).context("nbdinfo --json")?;
    let export = &json["exports"][0];
    ensure!(json["protocol"] == "newstyle-fixed", "protocol {}", json["protocol"]);
    ensure!(json["structured"] == true, "structured replies are not offered");
    let plain_bytes = content::read(server.socket())?.len();
    ensure!(export["export-size"] == plain_bytes, "size {}", export["export-size"]);
    for (flag, want) in [
        ("is_read_only", false),
        ("can_cache", true),
        ("can_df", true),
        ("can_flush", true),
        ("can_fua", true),
        ("can_multi_conn", true),
        ("can_trim", false),
        ("can_zero", true),
    ] {
        ensure!(export[flag] == want, "{flag} is {}", export[flag]);
    }
    let contexts = export["contexts"].to_string();
    ensure!(contexts.contains("base:allocation"), "contexts {contexts}");
    server.stop()?;
    let server = volume.serve(lab, &["--read-only", "--allow-discards"])?;
    let text = tools::read(tool("nbdinfo").args(["--json", &server.uri()]))?;
    let json: serde_json::Value = serde_json::from_str(&text).context("nbdinfo --json")?;
    ensure!(json["exports"][0]["is_read_only"] == true, "--read-only is not reported");
    server.stop()?;
    Ok(String::new())
}

fn list_and_map(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = volume.serve(lab, &["--export-name", "disk-7"])?;
    let list = tools::read(tool("nbdinfo").args(["--list", &server.uri()]))?;
    ensure!(list.contains("export=\"disk-7\""), "the list: {list}");
    let named = format!("nbd+unix:///disk-7?socket={}", server.socket().display());
    let map = tools::read(tool("nbdinfo").args(["--map", &named]))?;
    ensure!(map.split_whitespace().next() == Some("0"), "the map: {map}");
    let size: usize = tools::read(tool("nbdinfo").args(["--size", &named]))?.trim().parse()?;
    ensure!(size == content::read(server.socket())?.len(), "size {size}");
    let other = format!("nbd+unix:///nothing?socket={}", server.socket().display());
    let refused = tools::output(tool("nbdinfo").arg(other))?;
    ensure!(!refused.status.success(), "an export that does not exist was served");
    server.stop()?;
    Ok(String::new())
}

/// Copies noise of the disk's size in with nbdcopy, and out again.
fn copy_both_ways(lab: &Lab, server: &Server, len_bytes: usize) -> Result<()> {
    let want = noise(11, len_bytes);
    let into = lab.write("copy.in", &want)?;
    let out = lab.path("copy.out");
    let _ = fs::remove_file(&out);
    tools::run(tool("nbdcopy").args(["--flush"]).arg(into).arg(server.uri()))?;
    tools::run(tool("nbdcopy").arg(server.uri()).arg(&out))?;
    content::same(&fs::read(out)?, &want)
}

fn nbdcopy(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = volume.serve(lab, &[])?;
    let len_bytes = content::read(server.socket())?.len();
    copy_both_ways(lab, &server, len_bytes)?;
    server.stop()?;
    Ok(format!("{} MiB", len_bytes >> 20))
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn tcp(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = volume.serve(lab, &[])?;
    let len_bytes = content::read(server.socket())?.len();
    server.stop()?;
    let port = free_port()?;
    let mut serve = volume.command(lab, "serve")?;
    serve.arg("--listen").arg(format!("127.0.0.1:{port}"));
    let server = lab.start("tcp", serve, Door::Tcp(port))?;
    copy_both_ways(lab, &server, len_bytes)?;
    server.stop()?;
    Ok(String::new())
}

/// nbd-client, the tool of the kernel's client; only its list works without a kernel.
fn nbd_client(lab: &Lab, volume: &Volume) -> Result<String> {
    let port = free_port()?;
    let mut serve = volume.command(lab, "serve")?;
    serve.args(["--export-name", "disk-9", "--listen"]).arg(format!("127.0.0.1:{port}"));
    let server = lab.start("nbd-client", serve, Door::Tcp(port))?;
    let mut list = tool("nbd-client");
    let said = tools::read(list.args(["-l", "127.0.0.1", &port.to_string()]))?;
    ensure!(said.lines().any(|line| line.starts_with("disk-9")), "it lists {said:?}");
    server.stop()?;
    Ok(String::new())
}

fn qemu_img(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = volume.serve(lab, &[])?;
    let uri = server.uri();
    let len_bytes = content::read(server.socket())?.len();
    let want = noise(12, len_bytes);
    let plain = lab.write("qemu.in", &want)?;
    let told = tools::read(tool("qemu-img").args(["info", &uri]))?;
    ensure!(told.contains(&format!("({len_bytes} bytes)")), "qemu-img info: {told}");
    let mut convert = tool("qemu-img");
    convert.args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&plain).arg(&uri);
    tools::run(&mut convert)?;
    let mut compare = tool("qemu-img");
    compare.args(["compare", "-f", "raw", "-F", "raw"]).arg(&plain).arg(&uri);
    tools::run(&mut compare)?;
    let out = lab.path("qemu.qcow2");
    tools::run(tool("qemu-img").args(["convert", "-f", "raw", "-O", "qcow2", &uri]).arg(&out))?;
    let mut compare = tool("qemu-img");
    compare.args(["compare", "-f", "qcow2", "-F", "raw"]).arg(&out).arg(&plain);
    tools::run(&mut compare)?;
    server.stop()?;
    Ok(String::new())
}

fn qemu_io(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = volume.serve(lab, &[])?;
    let mut io = tool("qemu-io");
    io.args(["-f", "raw"]);
    for command in [
        "write -P 0xa5 0 1M",
        "write -P 0x5a 513 1000",
        "read -P 0x5a 513 1000",
        "read -P 0xa5 1513 100000",
        "write -z 64k 128k",
        "read -P 0 64k 128k",
        "writev -P 0x11 2M 4k 8k 512",
        "readv -P 0x11 2M 512 8k 4k",
        "aio_write -P 0x22 3M 1M",
        "aio_flush",
        "flush",
        "read -P 0x22 3M 1M",
    ] {
        io.args(["-c", command]);
    }
    let said = tools::read(io.arg(server.uri()))?;
    if let Some(line) = said.lines().find(|line| line.contains("fail") || line.contains("rror")) {
        bail!("{line}");
    }
    server.stop()?;
    Ok(String::new())
}

/// Unaligned WRITE_ZEROES over a multiple of 1 MiB, and an unaligned WRITE right after it in the
/// same sector, both in flight at once: two such requests once hung the volume. The ranges do not
/// overlap, so both must be there in any order.
fn qemu_io_parts(lab: &Lab, volume: &Volume) -> Result<String> {
    let mut commands = vec!["write -P 0xa5 0 4M".to_owned()];
    for round in 0..20u64 {
        let start = ((round % 2 + 1) << 20) - 8000 - round;
        let end = start + 16_896;
        commands.push(format!("aio_write -z {start} {}", end - start));
        commands.push(format!("aio_write -P 0x5a {end} 100"));
        commands.push(format!("aio_write -P 0x3c {} 100", start - 100));
        commands.push("aio_flush".to_owned());
        commands.push(format!("read -P 0 {start} {}", end - start));
        commands.push(format!("read -P 0x5a {end} 100"));
        commands.push(format!("read -P 0x3c {} 100", start - 100));
    }
    for more in [&[][..], &["--direct"]] {
        let server = volume.serve(lab, more)?;
        let mut io = tool("qemu-io");
        io.args(["-f", "raw"]);
        for command in &commands {
            io.args(["-c", command]);
        }
        let said = tools::read(io.arg(server.uri()))?;
        if let Some(line) = said.lines().find(|line| line.contains("fail") || line.contains("rror"))
        {
            bail!("{more:?}: {line}");
        }
        server.stop()?;
    }
    Ok(String::new())
}

/// The context of the bitmap in the cases below.
const BITMAP: &str = "qemu:dirty-bitmap:daily";

/// Serves the volume with a bitmap, whose last backup has all blocks.
fn serve_tracked(lab: &Lab, volume: &Volume) -> Result<Server> {
    let server = volume.serve(lab, &["--control", "ctl", "--dirty-bitmap", "daily=bitmap"])?;
    let id = tools::read(&mut lab.blockyard(&["backup", "ctl", "freeze"]))?;
    tools::run(&mut lab.blockyard(&["backup", "ctl", "done", id.trim_end()]))?;
    Ok(server)
}

/// The options of QEMU's client that show the bitmap in place of the allocation.
fn image_with_bitmap(server: &Server) -> String {
    let path = server.socket().display();
    format!("driver=nbd,server.type=unix,server.path={path},x-dirty-bitmap={BITMAP}")
}

fn dirty_bitmap(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = serve_tracked(lab, volume)?;
    let listed = tools::read(tool("nbdinfo").args(["--json", &server.uri()]))?;
    ensure!(listed.contains(BITMAP) && listed.contains("base:allocation"), "{listed}");
    ensure!(
        nbd::dirty_ranges(&server.uri(), "daily")?.is_empty(),
        "there is no write since the backup"
    );
    let mut io = tool("qemu-io");
    io.args(["-f", "raw", "-c", "write -P 1 1M 64k", "-c", "write -z 2M 100k"]);
    tools::run(io.args(["-c", "write -P 2 3000k 512"]).arg(server.uri()))?;
    let want = [(1 << 20, 65_536), (2 << 20, 131_072), (3_014_656, 65_536)];
    ensure!(
        nbd::dirty_ranges(&server.uri(), "daily")? == want,
        "nbdinfo: {:?}",
        nbd::dirty_ranges(&server.uri(), "daily")?
    );
    let mut map = tool("qemu-img");
    map.args(["map", "--output=json", "--image-opts", &image_with_bitmap(&server)]);
    let text = tools::read(&mut map)?;
    let json: Vec<serde_json::Value> = serde_json::from_str(&text).context("qemu-img map")?;
    // QEMU's client takes the flag for a hole.
    let dirty = json.iter().filter(|run| run["data"] == false);
    let found: Vec<_> = dirty.map(|run| (run["start"].as_u64(), run["length"].as_u64())).collect();
    let want: Vec<_> = want.map(|(start, len)| (Some(start), Some(len))).to_vec();
    ensure!(found == want, "qemu-img: {text}");
    server.kill()?;
    let server = volume.serve(lab, &["--dirty-bitmap", "daily=bitmap"])?;
    let len_bytes = content::read(server.socket())?.len() as u64;
    ensure!(
        nbd::dirty_ranges(&server.uri(), "daily")? == [(0, len_bytes)],
        "a killed server leaves all dirty"
    );
    server.stop()?;
    Ok(String::new())
}

fn info_uri(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = volume.serve(lab, &[])?;
    let mut info = lab.blockyard(&["info", &server.uri()]);
    let text = tools::read(info.arg("--json"))?;
    let json: serde_json::Value = serde_json::from_str(&text).context("info --json")?;
    let size = content::read(server.socket())?.len().to_string();
    ensure!(json.to_string().contains(&size), "no size {size} in {json}");
    server.stop()?;
    Ok(String::new())
}

fn load_and_dump(lab: &Lab, volume: &Volume) -> Result<String> {
    let server = volume.serve(lab, &[])?;
    let len_bytes = content::read(server.socket())?.len();
    server.stop()?;
    let want = noise(13, len_bytes);
    let plain = lab.write("load.in", &want)?;
    let out = lab.path("dump.out");
    tools::run(volume.command(lab, "load")?.arg("-i").arg(plain))?;
    let server = volume.serve(lab, &["--read-only"])?;
    content::same(&content::read(server.socket())?, &want)
        .context("loaded, then read by a client")?;
    server.stop()?;
    let _ = fs::remove_file(&out);
    tools::run(volume.command(lab, "dump")?.arg("-o").arg(&out))?;
    content::same(&fs::read(&out)?, &want).context("dump to a file")?;
    let piped = tools::run(&mut volume.command(lab, "dump")?)?.stdout;
    content::same(&piped, &want).context("dump to a pipe")?;
    Ok(String::new())
}

/// Runs the script of `tests/interop` with a case for each of its lines.
fn libnbd(cases: &mut Cases, lab: &Lab, volume: &Volume) {
    let said = (|| {
        let other =
            Recipe { name: "clients-ro", maker: Maker::Cryptsetup, options: "--type luks1" };
        let discard = Recipe { name: "clients-trim", maker: Maker::Blockyard, options: "" };
        let server = volume.serve(lab, &[])?;
        let discards = discard.make(lab)?.serve(lab, &["--allow-discards"])?;
        let read_only = other.make(lab)?.serve(lab, &["--read-only"])?;
        let sockets = [server.socket(), discards.socket(), read_only.socket()];
        let script = tools::root().join("tests/interop/libnbd_commands.py");
        let mut python = tool("/usr/bin/python3");
        let said = tools::read(python.arg(script).args(sockets))?;
        for server in [server, discards, read_only] {
            server.stop()?;
        }
        Ok(said)
    })();
    let said: String = match said {
        Ok(said) => said,
        Err(error) => return cases.verdict("libnbd script", Err(error)),
    };
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("ok ") {
            cases.verdict(&format!("libnbd: {name}"), Ok(String::new()));
        } else if let Some((name, why)) =
            line.strip_prefix("not ok ").and_then(|rest| rest.split_once(": "))
        {
            cases.verdict(&format!("libnbd: {name}"), Err(anyhow!("{why}")));
        }
    }
}
