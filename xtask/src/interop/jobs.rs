//! Everyday job files, run by fio and by `blockyard bench` on the same file: equal numbers of
//! requests, bytes and flushes, and the same kind of order. fio logs its requests (`write_iolog`),
//! our server records a trace. Random choices follow the same distributions with different random
//! numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools::{self, root};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// File size, enough for all jobs.
const FILE_BYTES: u64 = 64 << 20;
/// Tolerance: a half share of a few thousand random draws lies within a few percent of its mean.
const LOTS: f64 = 0.06;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    let Ok(folder) = std::fs::read_dir(root().join("testdata/fio")) else { return };
    let mut files: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).collect();
    files.sort();
    for file in &files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        cases.run(&format!("job file {name} gives the same requests as in fio"), || one(lab, file));
    }
}

/// Requests of one direction.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    requests: u64,
    bytes: u64,
    /// Number of requests that begin where the one before ended.
    sequential: u64,
    /// Number of requests per offset.
    places: BTreeMap<u64, u64>,
    end: u64,
}

impl Asked {
    fn add(&mut self, offset: u64, bytes: u64) {
        self.sequential += u64::from(self.requests > 0 && self.end == offset);
        self.requests += 1;
        self.bytes += bytes;
        *self.places.entry(offset).or_default() += 1;
        self.end = offset + bytes;
    }

    /// Share of the requests at the most used tenth of the offsets.
    fn hot_share(&self) -> f64 {
        let mut counts: Vec<u64> = self.places.values().copied().collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let tenth = counts.len().div_ceil(10);
        counts[..tenth].iter().sum::<u64>() as f64 / self.requests.max(1) as f64
    }

    fn share(&self, part: u64) -> f64 {
        part as f64 / self.requests.max(1) as f64
    }
}

/// Reads, writes, and flushes.
type RequestCounts = [Asked; 3];

fn one(lab: &Lab, job_file: &Path) -> Result<String> {
    let image = lab.path("jobs.img");
    std::fs::write(&image, vec![7; FILE_BYTES as usize])?;
    lab.give(&image)?;
    let (theirs, their_mib_s) = by_fio(lab, job_file, &image)?;
    let (ours, our_mib_s) = by_bench(lab, job_file, &image)?;
    let all = |seen: &RequestCounts| seen[0].requests + seen[1].requests;
    ensure!(all(&theirs) == all(&ours), "{} requests in fio, {} here", all(&theirs), all(&ours));
    ensure!(all(&theirs) > 0, "fio did nothing");
    for (side, (theirs, ours)) in ["read", "write", "flush"].iter().zip(theirs.iter().zip(&ours)) {
        for (what, one, other) in [
            ("requests", theirs.requests as f64, ours.requests as f64),
            ("bytes", theirs.bytes as f64, ours.bytes as f64),
            ("places", theirs.places.len() as f64, ours.places.len() as f64),
        ] {
            let differs = (one - other).abs() > LOTS * one.max(other);
            ensure!(!differs, "{side}: {what}: {one} in fio, {other} here");
        }
        for (what, one, other) in [
            ("in order", theirs.share(theirs.sequential), ours.share(ours.sequential)),
            ("to a tenth of the places", theirs.hot_share(), ours.hot_share()),
        ] {
            let differs = (one - other).abs() > LOTS;
            ensure!(!differs, "{side}: {what}: {one:.3} of all in fio, {other:.3} here");
        }
    }
    let [read, write, flush] = ours.map(|asked| asked.requests);
    let done = format!("{read} reads, {write} writes, {flush} flushes");
    Ok(format!("{done}; fio {their_mib_s:.0}, bench {our_mib_s:.0} MiB/s"))
}

/// Rate of the only job in MiB per second, both directions together.
fn mib_s(job: &Value) -> f64 {
    let of = |side: &str| job[side]["bw_bytes"].as_f64().unwrap_or(0.0);
    (of("read") + of("write")) / f64::from(1 << 20)
}

fn by_fio(lab: &Lab, job_file: &Path, image: &Path) -> Result<(RequestCounts, f64)> {
    let log = lab.path("fio.iolog");
    let _ = std::fs::remove_file(&log);
    let mut fio = tools::tool("fio");
    fio.env("BENCH_FILE", image).arg("--output-format=json").arg(job_file);
    let speed = mib_s(&crate::bench::fio::job(&tools::text(&tools::run(&mut fio)?.stdout))?);
    // A log takes time, so it is of a separate run.
    let copy = lab.path("logged.fio");
    let mut text = std::fs::read_to_string(job_file)?;
    text += &format!("write_iolog={}\n", log.display());
    std::fs::write(&copy, text)?;
    let mut fio = tools::tool("fio");
    tools::run(fio.env("BENCH_FILE", image).current_dir(lab.dir()).arg(&copy))?;
    let mut seen = RequestCounts::default();
    for line in std::fs::read_to_string(&log)?.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        // Time, file, action, offset, length; a flush may lack the last two.
        let (Some(action), number) = (words.get(2), |at: usize| words.get(at)?.parse().ok()) else {
            continue;
        };
        let side = match *action {
            "read" => 0,
            "write" => 1,
            "sync" | "datasync" => 2,
            _ => continue,
        };
        match side {
            2 => seen[2].requests += 1,
            _ => seen[side].add(
                number(3).context("a line of fio's log has an offset")?,
                number(4).context("a line of fio's log has a length")?,
            ),
        }
    }
    Ok((seen, speed))
}

fn by_bench(lab: &Lab, job_file: &Path, image: &Path) -> Result<(RequestCounts, f64)> {
    let trace = lab.path("bench.trace");
    let _ = std::fs::remove_file(&trace);
    let mut bench = lab.blockyard(&["bench", "--raw", "--destroy", "--json"]);
    bench.arg(image).arg("--job").arg(job_file).arg("--trace").arg(&trace);
    let report: Value = serde_json::from_str(&tools::read(bench.env("BENCH_FILE", image))?)?;
    let mut show = lab.blockyard(&["trace", "show", "--json"]);
    let lines = tools::read(show.arg(&trace))?;
    let mut seen = RequestCounts::default();
    for line in lines.lines() {
        let bio: Value = serde_json::from_str(line)?;
        let bytes = |key: &str| anyhow::Ok(512 * bio[key].as_u64().context("a bio has a place")?);
        match bio["op"].as_str() {
            Some("read") => seen[0].add(bytes("sector")?, bytes("sectors")?),
            Some("write") => seen[1].add(bytes("sector")?, bytes("sectors")?),
            Some("flush") => seen[2].requests += 1,
            other => anyhow::bail!("a bio of kind {other:?}"),
        }
    }
    Ok((seen, mib_s(&report["jobs"][0])))
}
