//! fio as an NBD client: its command line and its JSON.

use crate::tools;
use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A job of the table.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) rw: &'static str,
    pub(crate) block: &'static str,
    pub(crate) depth: u32,
    pub(crate) connections: u32,
}

/// Measurements of fio.
pub(crate) struct FioResult {
    pub(crate) requests: f64,
    pub(crate) bytes: f64,
    pub(crate) mib_s: f64,
    pub(crate) iops: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// CPU use of the client itself, in cores.
    pub(crate) cores: f64,
}

/// CPU of the client and duration.
pub(crate) struct Run<'a> {
    pub(crate) uri: &'a str,
    pub(crate) cpu: Option<usize>,
    pub(crate) millis: u32,
    pub(crate) size_mib: u32,
}

impl Job {
    pub(crate) fn run(&self, run: &Run) -> Result<FioResult> {
        let mut fio = match run.cpu {
            Some(cpu) => {
                let mut fio = tools::tool("taskset");
                fio.args(["-c", &cpu.to_string(), "fio"]);
                fio
            }
            None => tools::tool("fio"),
        };
        tools::need("fio")?;
        fio.args(["--name=job", "--ioengine=nbd", "--output-format=json", "--group_reporting"]);
        fio.args(["--time_based", "--randrepeat=0", "--norandommap"]);
        fio.arg(format!("--runtime={}ms", run.millis)).arg(format!("--uri={}", run.uri));
        fio.arg(format!("--size={}m", run.size_mib)).arg(format!("--rw={}", self.rw));
        fio.arg(format!("--bs={}", self.block)).arg(format!("--iodepth={}", self.depth));
        fio.arg(format!("--numjobs={}", self.connections));
        let job = job(&tools::text(&tools::run(&mut fio)?.stdout))?;
        self.seen(&job)
    }

    /// The figures in fio's JSON of this job.
    pub(crate) fn seen(&self, job: &Value) -> Result<FioResult> {
        ensure!(job["error"] == 0, "fio error {}", job["error"]);
        let side = &job[if self.rw.contains("read") { "read" } else { "write" }];
        let number = |value: &Value| value.as_f64().context("a number is missing in fio's JSON");
        let percentile = |name: &str| number(&side["clat_ns"]["percentile"][name]);
        let percent = number(&job["usr_cpu"])? + number(&job["sys_cpu"])?;
        Ok(FioResult {
            requests: number(&side["total_ios"])?,
            bytes: number(&side["io_bytes"])?,
            mib_s: number(&side["bw_bytes"])? / f64::from(1 << 20),
            iops: number(&side["iops"])?,
            p50_us: percentile("50.000000")? / 1000.0,
            p99_us: percentile("99.000000")? / 1000.0,
            cores: percent / 100.0 * f64::from(self.connections),
        })
    }

    /// Whether the unit of work is a MiB instead of a request.
    pub(crate) fn counts_mib(&self) -> bool {
        self.block == "1m"
    }
}

/// The only job of fio's JSON.
pub(crate) fn job(text: &str) -> Result<Value> {
    jobs(text)?.into_iter().next().context("fio ran no job")
}

/// All jobs of fio's JSON; fio's nbd engine prints lines before it.
pub(crate) fn jobs(text: &str) -> Result<Vec<Value>> {
    let start = text.find("\n{").map_or(0, |at| at + 1);
    let json: Value = serde_json::from_str(&text[start..])
        .with_context(|| format!("fio's JSON: {}", tools::tail(text)))?;
    Ok(json["jobs"].as_array().cloned().unwrap_or_default())
}

/// Writes the whole disk once, so that no run has the cost of newly touched pages.
pub(crate) fn warm(uri: &str, size_mib: u32) -> Result<()> {
    for rw in ["write", "read"] {
        let mut fio = tools::tool("fio");
        fio.args(["--name=warm", "--ioengine=nbd", "--bs=1m", "--iodepth=4"]);
        fio.arg(format!("--rw={rw}")).arg(format!("--uri={uri}"));
        tools::run(fio.arg(format!("--size={size_mib}m")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_behind_a_line_of_the_engine_is_found() {
        let found = job("nbd: connected\n{ \"jobs\": [ { \"error\": 0 } ] }").expect("JSON");
        assert_eq!(found["error"], 0);
        assert!(job("nbd: connected\n").is_err());
    }
}
