//! Real NBD clients, recorded and replayed: fio counts what it asks for, and so do we.

use std::process::Command;

use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools;
use crate::volume::{Maker, Recipe};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    cases.run("trace of fio over NBD has fio's requests, and replays whole", || fio(lab));
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
    let mut replayed = 0;
    for words in [&["--null", "--fast"][..], &["--lab", "dm-mq-2016", "--variant", "raw-none"]] {
        let played = json(lab.blockyard(&["replay", "--json", &trace]).args(words))?;
        ensure!(played["is_complete"] == true, "{played}");
        ensure!(played["bios"] == summary["bios"], "{} of {}", played["bios"], summary["bios"]);
        replayed += 1;
    }
    Ok(format!("{} bios, replayed {replayed} times", summary["bios"]))
}

fn json(command: &mut Command) -> Result<Value> {
    Ok(serde_json::from_str(&tools::read(command)?)?)
}
