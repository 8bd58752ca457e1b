//! fio options with effects beyond the sequence of requests: the same job in fio and in `blockyard
//! bench`, with a comparison of reports and data.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Size of the file.
const FILE_BYTES: u64 = 16 << 20;
/// Tolerance between two random samples of the same distribution.
const LOTS: f64 = 0.05;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    for sleep_us in [0, 200] {
        let name = format!("fio's flow with a flow_sleep of {sleep_us} starts as many requests");
        cases.run(&name, || flow(lab, sleep_us));
    }
    for options in [
        &["buffer_compress_percentage=60"][..],
        &["buffer_compress_percentage=30", "buffer_compress_chunk=4k", "buffer_pattern=0xab"],
        &["dedupe_percentage=40"],
        &["dedupe_percentage=60", "buffer_compress_percentage=50"],
        &["dedupe_percentage=50", "dedupe_mode=working_set", "dedupe_working_set_percentage=2"],
        &["zero_buffers"],
    ] {
        let name = format!("data written with {} is like fio's", options.join(" "));
        cases.run(&name, || bytes(lab, options));
    }
    for rw in ["read", "write"] {
        cases.run(&format!("errors of {rw} are counted as in fio"), || errors(lab, rw));
    }
    cases.run("each option of fio is known", || known(lab));
    cases.run("JSON on searches and errors equals fio's", || names(lab));
    cases.run("JSON on fsync equals fio's", || syncs(lab));
    cases.run("JSON on priorities equals fio's", || priorities(lab));
    cases.run("histogram logs are fio's", || histograms(lab));
}

/// Runs the same job in both programs with these options; returns both reports.
fn both(lab: &Lab, image: &Path, job: &str) -> Result<[Value; 2]> {
    std::fs::write(image, vec![7; FILE_BYTES as usize])?;
    lab.give(image)?;
    let name = format!("filename={}\n", image.display());
    let file = lab.write("options.fio", format!("[global]\n{name}{job}"))?;
    let mut fio = tools::tool("fio");
    fio.current_dir(lab.dir()).arg("--output-format=json").arg(&file);
    let mut bench = lab.blockyard(&["bench", "--raw", "--destroy", "--json", "--force"]);
    bench.current_dir(lab.dir()).arg(image).arg("--job").arg(&file);
    Ok([report(&mut fio)?, report(&mut bench)?])
}

/// fio prints notes before its JSON.
fn report(command: &mut Command) -> Result<Value> {
    let text = tools::read(command)?;
    let start = text.find('{').context("it prints no JSON")?;
    Ok(serde_json::from_str(&text[start..])?)
}

fn is_close(one: f64, other: f64) -> bool {
    (one - other).abs() <= LOTS * one.max(other)
}

fn flow(lab: &Lab, sleep_us: u32) -> Result<String> {
    let job = format!(
        "size={FILE_BYTES}\nrw=randread\nioengine=libaio\niodepth=4\nnorandommap\nexitall\n\
         flow_sleep={sleep_us}\n[one]\nflow=1\nruntime=20\ntime_based\n\
         [three]\nflow=3\nnumber_ios=4000\n"
    );
    let ratio = |report: &Value| -> Result<f64> {
        let ios = |job: usize| report["jobs"][job]["read"]["total_ios"].as_f64();
        let (one, three) = ios(0).zip(ios(1)).context("there are two jobs")?;
        Ok(three / one)
    };
    let [fio, bench] = both(lab, &lab.path("flow.img"), &job)?;
    let fio = ratio(&fio)?;
    let bench = ratio(&bench)?;
    ensure!(is_close(fio, bench), "{fio:.2} to 1 in fio, {bench:.2} to 1 here");
    Ok(format!("{bench:.2} to 1, {fio:.2} to 1 in fio"))
}

/// Compressed share of the file, and share of distinct blocks.
fn entropy(image: &Path) -> Result<[f64; 2]> {
    let packed = tools::run(tools::tool("gzip").arg("-c").arg(image))?.stdout.len();
    let written = std::fs::read(image)?;
    let different: BTreeSet<&[u8]> = written.chunks(4096).collect();
    let share = |part: usize, whole: usize| part as f64 / whole as f64;
    Ok([share(packed, written.len()), share(different.len(), written.len() / 4096)])
}

fn bytes(lab: &Lab, options: &[&str]) -> Result<String> {
    let image = lab.path("bytes.img");
    let job = format!("size={FILE_BYTES}\nrw=write\nbs=4k\n{}\n[a]\n", options.join("\n"));
    // The second program overwrites the data of the first.
    let file = lab.write("bytes.fio", format!("[global]\nfilename={}\n{job}", image.display()))?;
    tools::run(tools::tool("fio").current_dir(lab.dir()).arg(&file))?;
    let fio = entropy(&image)?;
    both(lab, &image, &job)?;
    let bench = entropy(&image)?;
    for (what, fio, bench) in [("is left by gzip", fio[0], bench[0]), ("differs", fio[1], bench[1])]
    {
        let is_well = (fio - bench).abs() <= LOTS;
        ensure!(is_well, "of fio's bytes {fio:.3} {what}, of ours {bench:.3}");
    }
    Ok(format!("gzip leaves {:.3} of them, fio's {:.3}", bench[0], fio[0]))
}

/// A disk of which every fourth stretch of 64 KiB fails; fio reaches it over NBD.
fn errors(lab: &Lab, rw: &str) -> Result<String> {
    let image = lab.path("errors.img");
    std::fs::write(&image, vec![7; 1 << 20])?;
    lab.give(&image)?;
    let lines = (0..4).map(|at| {
        let start = at * 512;
        let image = image.display();
        format!("{start} 384 linear {image} {start}\n{} 128 error\n", start + 384)
    });
    let table = lab.write("errors.table", lines.collect::<String>())?;
    let table = table.display().to_string();
    let server = lab.serve("errors", &["--table".into(), table.clone()])?;
    let rw_option = format!("rw={rw}");
    let job = [&rw_option, "bs=16k", "size=1m", "continue_on_error=io"];
    let mut fio = tools::tool("fio");
    fio.args(["--output-format=json", "--name=a", "--ioengine=nbd"]);
    fio.arg(format!("--uri={}", server.uri()));
    let fio = report(fio.args(job.map(|option| format!("--{option}"))))?;
    server.stop()?;
    let mut bench = lab.blockyard(&["bench", "--json", "--destroy", "--table", &table, "--"]);
    let bench = report(bench.args(job))?;
    let counts = |report: &Value| {
        let job = &report["jobs"][0];
        let side = &report["jobs"][0][rw];
        let of_job = ["total_err", "first_error", "error"].map(|key| &job[key]);
        let requests = ["total_ios", "short_ios", "drop_ios", "io_bytes"].map(|key| &side[key]);
        let all = of_job.into_iter().chain(requests).chain([&side["clat_ns"]["N"]]);
        all.map(|count| count.as_u64().context("a figure is left out")).collect::<Result<Vec<_>>>()
    };
    let fio = counts(&fio)?;
    let bench = counts(&bench)?;
    ensure!(fio == bench && fio[0] == 16, "{fio:?} in fio, {bench:?} here");
    Ok(format!("{} of {}", fio[0], fio[3]))
}

/// Each option is supported, ignored with a note, or refused with a reason.
fn known(lab: &Lab) -> Result<String> {
    let help = tools::read(tools::tool("fio").arg("--cmdhelp=all"))?;
    let names: Vec<&str> = help.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    ensure!(names.len() > 200, "fio has {} options", names.len());
    for name in names.iter().map(|name| name.trim()) {
        let said = tools::output(&mut lab.blockyard(&["bench", "--null", "1M", "--", name]))?;
        let said = tools::text(&said.stderr);
        ensure!(!said.contains("is not a known option"), "{said}");
    }
    Ok(format!("{} of them", names.len()))
}

fn names(lab: &Lab) -> Result<String> {
    let job = format!(
        "size={FILE_BYTES}\nrw=randread\nioengine=libaio\niodepth=8\nruntime=1\ntime_based\n\
         continue_on_error=all\nlatency_target=10s\nlatency_window=50ms\nlatency_percentile=99.5\n\
         latency_run=1\nss=iops_slope:0.5%\nss_dur=30\n[a]\n"
    );
    let [fio, bench] = both(lab, &lab.path("names.img"), &job)?;
    let fio = &fio["jobs"][0];
    let bench = &bench["jobs"][0];
    let keys = ["total_err", "first_error", "latency_depth", "latency_target"];
    for key in keys.into_iter().chain(["latency_percentile", "latency_window"]) {
        ensure!(
            fio[key] == bench[key] && !fio[key].is_null(),
            "{key}: {} {}",
            fio[key],
            bench[key]
        );
    }
    let keys = |value: &Value| -> BTreeSet<String> {
        value.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
    };
    for unit in ["latency_ns", "latency_us", "latency_ms"] {
        let fio = keys(&fio[unit]);
        let bench = keys(&bench[unit]);
        ensure!(fio == bench && !fio.is_empty(), "{unit}: {fio:?} {bench:?}");
    }
    let fio = &fio["steadystate"];
    let bench = &bench["steadystate"];
    for key in ["ss", "duration", "attained", "criterion"] {
        ensure!(
            fio[key] == bench[key] && !fio[key].is_null(),
            "{key}: {} {}",
            fio[key],
            bench[key]
        );
    }
    ensure!(keys(fio) == keys(bench), "{:?} {:?}", keys(fio), keys(bench));
    ensure!(keys(&fio["data"]) == keys(&bench["data"]), "{fio} {bench}");
    Ok("errors, latency target, steady state".into())
}

/// The counts of syncs are equal; `end_fsync` after the last write is not counted.
fn syncs(lab: &Lab) -> Result<String> {
    let job = "size=1m\nbs=16k\nrw=write\nend_fsync=1\n[a]\n[b]\nstonewall\nfsync=10\n";
    let counts =
        |report: &Value| [0, 1].map(|job| report["jobs"][job]["sync"]["total_ios"].as_u64());
    let [fio, bench] = both(lab, &lab.path("syncs.img"), job)?.map(|report| counts(&report));
    ensure!(fio == bench && fio[1] > Some(0), "{fio:?} in fio, {bench:?} here");
    Ok(format!("{:?}", fio.map(|count| count.unwrap_or(0))))
}

fn priorities(lab: &Lab) -> Result<String> {
    let job = format!(
        "size={FILE_BYTES}\nrw=randrw\nbssplit=4k/60:16k/40\nioengine=libaio\niodepth=4\n\
         norandommap\nnumber_ios=8000\n[a]\nprioclass=2\nprio=6\ncmdprio_percentage=20,0\n\
         cmdprio=3\n[b]\nstonewall\ncmdprio_bssplit=4k/30/1/2:4k/50/2/7:16k/0\n\
         [c]\nstonewall\nprioclass=2\ncmdprio_percentage=30\ncmdprio_class=3\n"
    );
    let [fio, bench] = both(lab, &lab.path("priorities.img"), &job)?;
    let mut told = Vec::new();
    for (job, side) in (0..3).flat_map(|job| [(job, "read"), (job, "write")]) {
        let shares = |report: &Value| -> Vec<(u64, u64, f64)> {
            let side = &report["jobs"][job][side];
            let all = side["total_ios"].as_f64().unwrap_or(1.0);
            let of = |one: &Value| {
                let number = |key: &str| one[key].as_u64().unwrap_or(u64::MAX);
                let requests = one["clat_ns"]["N"].as_f64().unwrap_or(-1.0);
                (number("prioclass"), number("prio"), requests / all)
            };
            let mut all: Vec<_> = side["prios"].as_array().into_iter().flatten().map(of).collect();
            all.sort_by_key(|(class, level, _)| (*class, *level));
            all
        };
        let fio = shares(&fio);
        let bench = shares(&bench);
        let same = |(one, other): (&(u64, u64, f64), &(u64, u64, f64))| {
            (one.0, one.1) == (other.0, other.1) && (one.2 - other.2).abs() <= LOTS
        };
        let is_well = fio.len() == bench.len() && fio.iter().zip(&bench).all(same);
        ensure!(is_well, "{side} of job {job}: {fio:?} in fio, {bench:?} here");
        told.push(bench.len().to_string());
    }
    Ok(format!("{} priorities", told.join(", ")))
}

fn histograms(lab: &Lab) -> Result<String> {
    let mut fields = Vec::new();
    let folder = lab.path("hist");
    std::fs::create_dir_all(&folder)?;
    lab.give(&folder)?;
    let name = folder.join("x").display().to_string();
    let log = folder.join("x_clat_hist.1.log");
    for coarseness in [0, 3] {
        let job = format!(
            "size={FILE_BYTES}\nrw=randrw\nruntime=1\ntime_based\nlog_hist_msec=100\n\
             write_hist_log={name}\nlog_hist_coarseness={coarseness}\n[a]\n"
        );
        let lines = |text: &str| -> Result<BTreeSet<(String, String, usize)>> {
            let line = |line: &str| {
                let fields: Vec<&str> = line.split(", ").collect();
                let field = |at: usize| fields.get(at).map(|field| String::from(*field));
                let (direction, len) = field(1).zip(field(2)).context("a line has a length")?;
                ensure!(fields.iter().all(|field| field.parse::<u64>().is_ok()), "{line}");
                Ok((direction, len, fields.len()))
            };
            text.lines().map(line).collect()
        };
        // Owned by the user of our side; both programs overwrite it.
        std::fs::write(&log, "")?;
        lab.give(&log)?;
        let image = lab.path("hist.img");
        both(lab, &image, &job)?;
        let bench = lines(&std::fs::read_to_string(&log)?)?;
        let file = format!("[global]\nfilename={}\n{job}", image.display());
        let file = lab.write("hist.fio", file)?;
        tools::run(tools::tool("fio").current_dir(lab.dir()).arg(&file))?;
        let fio = lines(&std::fs::read_to_string(&log)?)?;
        ensure!(fio == bench && fio.len() == 2, "{fio:?} in fio, {bench:?} here");
        fields.extend(fio.iter().next().map(|(.., fields)| fields.to_string()));
    }
    Ok(format!("{} fields a line", fields.join(" and ")))
}
