//! Real NBD clients, recorded and replayed: fio's request counts must match ours.

use std::collections::BTreeSet;
use std::process::Command;

use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools;
use crate::volume::{Maker, Recipe};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    cases.run("trace of fio over NBD has fio's requests, and replays completely", || fio(lab));
    cases.run("log of fio gives the same requests in fio's replay and in ours", || iolog(lab));
}

fn fio(lab: &Lab) -> Result<String> {
    let recipe = Recipe { name: "traced", maker: Maker::Blockyard, options: "" };
    let trace = lab.path("fio.trace").display().to_string();
    let server = recipe.make(lab)?.serve(lab, &["--trace", &trace])?;
    let mut fio = tools::tool("fio");
    fio.args(["--name=traced", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--iodepth=8"]);
    fio.args(["--numjobs=2", "--size=4m", "--offset_increment=4m", "--group_reporting"]);
    fio.arg(format!("--uri={}", server.uri())).arg("--output-format=json");
    let output = tools::run(fio.current_dir(lab.dir()))?;
    let job = crate::bench::fio::job(&tools::text(&output.stdout))?;
    server.stop()?;
    let summary = json(&mut lab.blockyard(&["trace", "summary", "--json", &trace]))?;
    ensure!(summary["lost"] == 0, "lost {}", summary["lost"]);
    let ops = summary["ops"].as_array().context("a summary has operations")?;
    for side in ["read", "write"] {
        let ours = ops.iter().find(|op| op["op"] == side).context("fio did both")?;
        let theirs = (&job[side]["total_ios"], &job[side]["io_bytes"]);
        ensure!((&ours["bios"], &ours["bytes"]) == theirs, "{side}: fio says {theirs:?}: {ours}");
    }
    let again = lab.path("again.trace").display().to_string();
    let in_lab = ["--lab", "dm-mq-2016", "--variant", "raw-none", "--output", &again];
    for words in [&["--null", "--fast"][..], &in_lab] {
        let played = json(lab.blockyard(&["replay", "--json", &trace]).args(words))?;
        ensure!(played["is_complete"] == true, "{played}");
        ensure!(played["bios"] == summary["bios"], "{} of {}", played["bios"], summary["bios"]);
    }
    let before = bios(lab, &trace)?;
    let after = bios(lab, &again)?;
    let submitters: BTreeSet<u64> = before.iter().map(|bio| bio.submitter).collect();
    for submitter in submitters {
        let of = |bios: &[Shown]| {
            bios.iter().filter(|bio| bio.submitter == submitter).cloned().collect::<Vec<_>>()
        };
        ensure!(of(&before) == of(&after), "submitter {submitter} asks for something else");
    }
    Ok(format!("{} bios, replayed on nothing and in the lab", summary["bios"]))
}

/// A bio in the form of `trace show`.
#[derive(Clone, Debug, PartialEq)]
struct Shown {
    submitter: u64,
    op: String,
    sector: u64,
    sectors: u64,
}

/// fio logs its requests and replays the log, which a server records. The queue of a simulated
/// device records our replay.
fn iolog(lab: &Lab) -> Result<String> {
    let log = lab.path("fio.iolog").display().to_string();
    let recipe = Recipe { name: "logged", maker: Maker::Blockyard, options: "" };
    let volume = recipe.make(lab)?;
    let server = volume.serve(lab, &[])?;
    let mut fio = tools::tool("fio");
    fio.args(["--name=logged", "--ioengine=nbd", "--rw=randrw", "--size=4m", "--number_ios=500"]);
    // A server may split reads that are not aligned like this.
    fio.args(["--bssplit=4k/60:16k/40", "--blockalign=16k", "--fsync=20"]);
    fio.arg(format!("--uri={}", server.uri()));
    tools::run(fio.arg(format!("--write_iolog={log}")).current_dir(lab.dir()))?;
    server.stop()?;
    let by_fio = lab.path("by-fio.trace").display().to_string();
    let server = volume.serve(lab, &["--trace", &by_fio])?;
    let mut fio = tools::tool("fio");
    fio.args(["--name=replayed", "--ioengine=nbd"]).arg(format!("--read_iolog={log}"));
    tools::run(fio.arg(format!("--uri={}", server.uri())).current_dir(lab.dir()))?;
    server.stop()?;
    let by_us = lab.path("by-us.trace").display().to_string();
    let mut replay = lab.blockyard(&["replay", "--json", &log, "--output", &by_us]);
    replay.args(["--fast", "--depth", "1", "--lab", "dm-mq-2016", "--variant", "raw-none"]);
    let played = json(&mut replay)?;
    ensure!(played["is_complete"] == true && played["errors"] == 0, "{played}");
    let wanted = bios(lab, &log)?;
    ensure!(wanted.len() > 300, "{} bios", wanted.len());
    for (who, trace) in [("fio", &by_fio), ("we", &by_us)] {
        let asked = bios(lab, trace)?;
        ensure!(asked.len() == wanted.len(), "{who}: {} bios of {}", asked.len(), wanted.len());
        for (at, (one, other)) in wanted.iter().zip(&asked).enumerate() {
            ensure!(one == other, "bio {at}: {one:?} in the log, {who} asked for {other:?}");
        }
    }
    Ok(format!("{} bios, the same in order, place and length", wanted.len()))
}

fn bios(lab: &Lab, trace: &str) -> Result<Vec<Shown>> {
    let lines = tools::read(lab.blockyard(&["trace", "show", "--json"]).arg(trace))?;
    let bio = |line: &str| {
        let bio: Value = serde_json::from_str(line)?;
        let number = |key: &str| bio[key].as_u64().unwrap_or(0);
        let op = bio["op"].as_str().context("a bio has an operation")?.to_owned();
        let sector = number("sector");
        let sectors = number("sectors");
        Ok(Shown { submitter: number("submitter"), op, sector, sectors })
    };
    lines.lines().map(bio).collect()
}

fn json(command: &mut Command) -> Result<Value> {
    Ok(serde_json::from_str(&tools::read(command)?)?)
}
