//! Medians, and the table of them.

use super::fio::Job;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// One run of one job on one server.
#[derive(Clone)]
pub(crate) struct Sample {
    pub(crate) server: &'static str,
    pub(crate) job: &'static str,
    pub(crate) placement: &'static str,
    pub(crate) mib_s: f64,
    pub(crate) iops: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Server CPU time in microseconds per MiB or request.
    pub(crate) cpu_us: f64,
    pub(crate) server_cores: f64,
    pub(crate) client_cores: f64,
}

impl Sample {
    fn fields(&self) -> [f64; 7] {
        [
            self.mib_s,
            self.iops,
            self.p50_us,
            self.p99_us,
            self.cpu_us,
            self.server_cores,
            self.client_cores,
        ]
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "server": self.server, "job": self.job, "placement": self.placement,
            "mib_s": self.mib_s, "iops": self.iops, "p50_us": self.p50_us, "p99_us": self.p99_us,
            "server_cpu_us": self.cpu_us, "server_cores": self.server_cores,
            "client_cores": self.client_cores,
        })
    }
}

/// The median of each field, over the rounds of one job on one server.
pub(crate) fn median(samples: &[&Sample]) -> Option<Sample> {
    let first = samples.first()?;
    let column =
        |index: usize| middle(samples.iter().map(|sample| sample.fields()[index]).collect());
    Some(Sample {
        server: first.server,
        job: first.job,
        placement: first.placement,
        mib_s: column(0),
        iops: column(1),
        p50_us: column(2),
        p99_us: column(3),
        cpu_us: column(4),
        server_cores: column(5),
        client_cores: column(6),
    })
}

/// Medians of one job, servers in the order of their runs.
pub(crate) fn rows(samples: &[Sample], job: &Job) -> Vec<Sample> {
    let mut servers: Vec<&str> = Vec::new();
    for sample in samples {
        if !servers.contains(&sample.server) {
            servers.push(sample.server);
        }
    }
    servers
        .into_iter()
        .filter_map(|server| {
            let of_server = |sample: &&Sample| sample.server == server && sample.job == job.name;
            median(&samples.iter().filter(of_server).collect::<Vec<_>>())
        })
        .collect()
}

/// Writes the facts of a run, its medians and all samples.
pub(crate) fn write_json(
    path: &Path,
    mut run: Value,
    medians: &[Sample],
    samples: &[Sample],
) -> Result<()> {
    for (name, samples) in [("medians", medians), ("samples", samples)] {
        run[name] = samples.iter().map(Sample::json).collect();
    }
    fs::write(path, format!("{run:#}\n")).with_context(|| path.display().to_string())
}

/// The median of a non-empty list.
pub(crate) fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2])
}

/// Prints one job: a line for each server, with its ratio to the plain one.
pub(crate) fn print(job: &Job, rows: &[Sample], plain: &str) {
    let unit = if job.counts_mib() { "MiB" } else { "request" };
    let share = rows.iter().find(|row| row.server == plain);
    println!("\n{}", job.name);
    println!(
        "  {:<26}{:>8}{:>9}{:>10}{:>10}{:>16}  {:>7} {:>7}  cores",
        "",
        "MiB/s",
        "IOPS",
        "p50 us",
        "p99 us",
        format!("CPU us/{unit}"),
        "x speed",
        "x CPU"
    );
    for row in rows {
        let (speed, cpu) = share.map_or((f64::NAN, f64::NAN), |plain| {
            (row.mib_s / plain.mib_s, row.cpu_us / plain.cpu_us)
        });
        println!(
            "  {:<26}{:>8.0}{:>9.0}{:>10.1}{:>10.1}{:>16.2}  {speed:>7.2} {cpu:>7.2}  \
             {:.2}+{:.2}{}",
            row.server,
            row.mib_s,
            row.iops,
            row.p50_us,
            row.p99_us,
            row.cpu_us,
            row.server_cores,
            row.client_cores,
            shared(row),
        );
    }
}

/// Placement of an unpinned run, which determines half of the number.
fn shared(row: &Sample) -> &'static str {
    match row.placement {
        "free" if row.server_cores + row.client_cores < 1.05 => " shared a CPU",
        "free" => " on two CPUs",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_takes_the_middle_of_each_column() {
        let sample = |mib_s, cpu_us| Sample {
            server: "a",
            job: "j",
            placement: "free",
            mib_s,
            iops: 0.0,
            p50_us: 0.0,
            p99_us: 0.0,
            cpu_us,
            server_cores: 0.0,
            client_cores: 0.0,
        };
        let a = sample(1.0, 9.0);
        let b = sample(5.0, 1.0);
        let c = sample(2.0, 3.0);
        let middle = median(&[&a, &b, &c]).expect("three samples");
        assert_eq!((middle.mib_s, middle.cpu_us), (2.0, 3.0));
        assert_eq!(median(&[&a, &b]).expect("two samples").mib_s, 3.0);
        assert!(median(&[]).is_none());
    }
}
