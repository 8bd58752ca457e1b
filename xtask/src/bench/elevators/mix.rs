//! Clients that disturb each other: each is a job of one fio with its own connection.

use crate::bench::table::middle;
use crate::tools;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Least size of the served disk: each client has a separate part of it.
pub(crate) const SIZE_MIB_MIN: u32 = 64;

/// Workload of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// Sequential writes of 128 KiB, eight in flight: a copy.
    Stream,
    /// Random reads of 4 KiB, one at a time: an interactive user.
    Read,
    /// Writes of 4 KiB with a flush after each: a database's log.
    Log,
}

impl Client {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Client::Stream => "stream",
            Client::Read => "read",
            Client::Log => "log",
        }
    }

    fn job(self) -> &'static [&'static str] {
        match self {
            Client::Stream => &["--rw=write", "--bs=128k", "--iodepth=8"],
            Client::Read => &["--rw=randread", "--bs=4k", "--iodepth=1"],
            Client::Log => &["--rw=randwrite", "--bs=4k", "--iodepth=1", "--fsync=1"],
        }
    }

    /// Start and length of the client's part of the disk: a half, nearly a half, a sixteenth.
    fn area(self, size_mib: u32) -> (u32, u32) {
        let half = size_mib / 2;
        let sixteenth = size_mib / 16;
        match self {
            Client::Stream => (0, half),
            Client::Read => (half, half - sixteenth),
            Client::Log => (2 * half - sixteenth, sixteenth),
        }
    }
}

/// Percentiles of a latency in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
}

impl Latency {
    /// Parses a `clat_ns` or `lat_ns` of fio; `None` without completions.
    fn of(value: &Value) -> Option<Latency> {
        let ms = |value: &Value| value.as_f64().map(|ns| ns / 1e6);
        let percentile = |name: &str| ms(&value["percentile"][name]);
        Some(Latency {
            p50_ms: percentile("50.000000")?,
            p99_ms: percentile("99.000000")?,
            max_ms: ms(&value["max"])?,
        })
    }

    /// Medians of the percentiles, and the greatest maximum.
    fn over(rounds: &[Latency]) -> Option<Latency> {
        let all = |field: fn(&Latency) -> f64| rounds.iter().map(field).collect::<Vec<f64>>();
        (!rounds.is_empty()).then(|| Latency {
            p50_ms: middle(all(|latency| latency.p50_ms)),
            p99_ms: middle(all(|latency| latency.p99_ms)),
            max_ms: all(|latency| latency.max_ms).into_iter().fold(0.0, f64::max),
        })
    }

    fn json(&self) -> Value {
        json!({"p50_ms": self.p50_ms, "p99_ms": self.p99_ms, "max_ms": self.max_ms})
    }
}

/// Measurements of one client.
#[derive(Clone)]
pub(crate) struct ClientResult {
    pub(crate) client: Client,
    /// MiB per second.
    pub(crate) mib_s: f64,
    /// Requests per second.
    pub(crate) iops: f64,
    /// Latency from a request's start to its end.
    pub(crate) request: Option<Latency>,
    /// Latency of the flushes, if the client flushes.
    pub(crate) flush: Option<Latency>,
}

impl ClientResult {
    fn of(client: Client, job: &Value) -> Result<ClientResult> {
        ensure!(job["error"] == 0, "fio error {} of {}", job["error"], client.name());
        let side = &job[if client == Client::Read { "read" } else { "write" }];
        let number = |value: &Value| value.as_f64().context("a number is missing in fio's JSON");
        Ok(ClientResult {
            client,
            mib_s: number(&side["bw_bytes"])? / f64::from(1 << 20),
            iops: number(&side["iops"])?,
            request: Latency::of(&side["clat_ns"]),
            flush: Latency::of(&job["sync"]["lat_ns"]),
        })
    }

    /// Summary of one client over all rounds.
    pub(crate) fn over(rounds: &[&ClientResult]) -> Option<ClientResult> {
        let first = rounds.first()?;
        let latencies = |field: fn(&ClientResult) -> Option<Latency>| {
            Latency::over(&rounds.iter().filter_map(|seen| field(seen)).collect::<Vec<_>>())
        };
        Some(ClientResult {
            client: first.client,
            mib_s: middle(rounds.iter().map(|seen| seen.mib_s).collect()),
            iops: middle(rounds.iter().map(|seen| seen.iops).collect()),
            request: latencies(|seen| seen.request),
            flush: latencies(|seen| seen.flush),
        })
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "client": self.client.name(),
            "mib_s": self.mib_s,
            "iops": self.iops,
            "request": self.request.as_ref().map(Latency::json),
            "flush": self.flush.as_ref().map(Latency::json),
        })
    }
}

/// Duration and size of the disk.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) millis: u32,
    pub(crate) size_mib: u32,
}

/// Runs the clients at once, each on its URI; returns their measurements in order.
pub(crate) fn run(clients: &[(Client, String)], run: Run) -> Result<Vec<ClientResult>> {
    let mut fio = tools::tool("fio");
    fio.args(["--output-format=json", "--name=global", "--ioengine=nbd", "--time_based"]);
    fio.args(["--randrepeat=0", "--norandommap"]).arg(format!("--runtime={}ms", run.millis));
    for (client, uri) in clients {
        let (start, len) = client.area(run.size_mib);
        fio.arg(format!("--name={}", client.name())).arg(format!("--uri={uri}"));
        fio.args(client.job()).arg(format!("--offset={start}m")).arg(format!("--size={len}m"));
    }
    let jobs = crate::bench::fio::jobs(&tools::text(&tools::run(&mut fio)?.stdout))?;
    ensure!(jobs.len() == clients.len(), "fio ran {} jobs of {}", jobs.len(), clients.len());
    clients.iter().zip(&jobs).map(|((client, _), job)| ClientResult::of(*client, job)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_disk_do_not_overlap() {
        for size_mib in [SIZE_MIB_MIN, 100, 2048] {
            let mut end = 0;
            for client in [Client::Stream, Client::Read, Client::Log] {
                let (start, len) = client.area(size_mib);
                assert!(start >= end && len > 0, "{}", client.name());
                end = start + len;
            }
            assert!(end <= size_mib);
        }
    }

    #[test]
    fn client_that_completed_nothing_has_no_latency() {
        assert!(Latency::of(&json!({"max": 0, "mean": 0.0})).is_none());
        let percentile = json!({"50.000000": 1_000_000, "99.000000": 2_000_000});
        let latency = Latency::of(&json!({"max": 3_000_000, "percentile": percentile}));
        let latency = latency.expect("all is there");
        assert_eq!((latency.p50_ms, latency.p99_ms, latency.max_ms), (1.0, 2.0, 3.0));
    }
}
