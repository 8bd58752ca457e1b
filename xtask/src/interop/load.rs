//! Verified load: fio writes blocks with checksums over four connections at once, and reads them
//! back.

use crate::backing::{Backed, Backing};
use crate::cases::Cases;
use crate::lab::{Lab, Server};
use crate::process::until;
use crate::tools;
use crate::volume::{Maker, Recipe};
use anyhow::{Context, Result, bail, ensure};
use std::process::Stdio;
use std::time::Duration;

/// Size per job of four; small enough that it is written and verified many times.
const JOB_MIB: u32 = 6;

/// Greatest memory of a server after unlocking, for any load.
const RSS_MIB_MAX: f64 = 96.0;

/// Backing and sector options.
const PLACES: &[(Backing, &str)] = &[
    (Backing::Memory, ""),
    (Backing::Memory, "--sector-size 512"),
    (Backing::Disk, ""),
    (Backing::Direct, "--sector-size 512"),
    (Backing::Loop, ""),
];

pub(crate) fn run(cases: &mut Cases, lab: &Lab, seconds: u32) {
    let each = seconds.div_ceil(u32::try_from(PLACES.len()).expect("a few"));
    for (backing, options) in PLACES {
        let name = format!("fio verify=crc32c, four connections: {} {options}", backing.name());
        cases.run(name.trim_end(), || match place(lab, *backing, options)? {
            Some(volume) => verify(lab, volume.serve(lab)?, each),
            None => Ok("this machine has no loop device".into()),
        });
    }
    elevators(cases, lab, seconds);
    cases.run("memory under the load of 60 connections", || memory(lab));
}

/// Deep reads and writes of 1 MiB on nearly the greatest number of connections, after unlocking
/// took 256 MiB.
fn memory(lab: &Lab) -> Result<String> {
    let image = lab.path("crowd.img");
    let mut format = lab.blockyard(&["format", "--size", "80M", "--pbkdf-memory", "262144"]);
    format.args(["--pbkdf-force-iterations", "4", "--pbkdf-parallel", "2", "--key-file"]);
    tools::run(format.arg(lab.pass()).arg(&image))?;
    let words =
        [image.display().to_string(), "--key-file".into(), lab.pass().display().to_string()];
    let server = lab.serve("crowd", &words)?;
    let process = server.process();
    let unlocked_mib = process.rss_mib()?;
    let mut fio = tools::tool("fio");
    fio.args(["--name=crowd", "--ioengine=nbd", "--rw=randrw", "--bs=1m", "--iodepth=8"]);
    fio.args(["--numjobs=60", "--size=64m", "--runtime=3", "--time_based", "--group_reporting"]);
    fio.arg(format!("--uri={}", server.uri())).args(["--output-format=json", "--thread=0"]);
    let mut fio = fio.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut peak_mib = unlocked_mib;
    let mut threads = 0;
    let ended = until(Duration::from_secs(120), || {
        peak_mib = process.rss_mib().map_or(peak_mib, |now| peak_mib.max(now));
        threads = process.threads().map_or(threads, |now| threads.max(now));
        !matches!(fio.try_wait(), Ok(None))
    });
    ensure!(ended && fio.wait()?.success(), "fio failed");
    server.stop()?;
    ensure!(threads > 60, "only {threads} threads: the crowd never came");
    ensure!(peak_mib < RSS_MIB_MAX, "{peak_mib:.0} MiB resident");
    Ok(format!("{peak_mib:.0} MiB resident at most, {unlocked_mib:.0} after the unlock"))
}

/// This load under each elevator, with a short queue, so that requests wait and are merged.
fn elevators(cases: &mut Cases, lab: &Lab, seconds: u32) {
    const NAME: &str = "fio verify=crc32c under the elevator";
    if !cases.wants_some(NAME) {
        return;
    }
    let names = match lab.elevators() {
        Ok(names) => names,
        Err(error) => return cases.verdict("list of the elevators", Err(error)),
    };
    let each = seconds.div_ceil(10);
    for name in names {
        cases.run(&format!("{NAME} {name}"), || {
            let volume = place(lab, Backing::Disk, "")?.context("a file is always to be had")?;
            let words = ["--elevator", &name, "--queue-depth", "2", "--max-sectors", "512"];
            verify(lab, volume.serve_with(lab, &words)?, each)
        });
    }
}

fn place(lab: &Lab, backing: Backing, options: &'static str) -> Result<Option<Backed>> {
    backing.make(lab, &Recipe { name: "fio-verify", maker: Maker::Blockyard, options })
}

fn verify(lab: &Lab, server: Server, seconds: u32) -> Result<String> {
    // Alternately written and verified until the time is over: each pass ends with a read of every
    // block.
    let mut passes = 0_u32;
    let start = std::time::Instant::now();
    let mut written = 0.0;
    let mut read = 0.0;
    while start.elapsed().as_secs() < u64::from(seconds) {
        let mut fio = tools::tool("fio");
        let rw = ["--rw=randwrite", "--rw=randrw"][passes as usize % 2];
        fio.args(["--name=verify", "--ioengine=nbd", rw, "--iodepth=16"]);
        fio.args(["--bsrange=512-256k", "--bs_unaligned=0", "--blockalign=512"]);
        fio.args(["--numjobs=4", "--group_reporting", "--output-format=json"]);
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--verify_dump=0"]);
        fio.arg(format!("--uri={}", server.uri())).arg(format!("--randseed={}", passes + 1));
        fio.arg(format!("--size={JOB_MIB}m")).arg(format!("--offset_increment={JOB_MIB}m"));
        let output = tools::run(fio.current_dir(lab.dir()))?;
        let job = crate::bench::fio::job(&tools::text(&output.stdout))?;
        ensure!(job["error"] == 0, "fio error {}", job["error"]);
        for (total, side) in [(&mut written, "write"), (&mut read, "read")] {
            *total += job[side]["io_bytes"].as_f64().unwrap_or(0.0) / f64::from(1 << 20);
        }
        passes += 1;
    }
    if written < 1.0 || read < 1.0 {
        bail!("fio moved nothing: {written} MiB written, {read} MiB read");
    }
    server.stop()?;
    Ok(format!("{passes} passes, {written:.0} MiB written, {read:.0} MiB read and verified"))
}
