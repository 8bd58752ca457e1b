//! Verified load: fio writes blocks that carry their own checksum over four connections at once,
//! and reads them back.

use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools;
use crate::volume::{Maker, Recipe};
use anyhow::{Result, bail, ensure};

/// Of each of the four jobs; small enough that it is written and verified many times.
const JOB_MIB: u32 = 6;

pub(crate) fn run(cases: &mut Cases, lab: &Lab, seconds: u32) {
    for (name, options) in [("4096", ""), ("512", "--sector-size 512")] {
        cases.run(&format!("fio verify=crc32c, four connections, sectors of {name}"), || {
            verify(lab, options, seconds.div_ceil(2))
        });
    }
}

fn verify(lab: &Lab, options: &'static str, seconds: u32) -> Result<String> {
    let volume = Recipe { name: "fio-verify", maker: Maker::Blockyard, options }.make(lab)?;
    let server = volume.serve(lab, &[])?;
    // Written and verified in turn until the time is over: each pass ends with every block read
    // again.
    let mut passes = 0_u32;
    let start = std::time::Instant::now();
    let (mut written, mut read) = (0.0, 0.0);
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
