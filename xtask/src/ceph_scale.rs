//! `cargo x ceph-scale`: the tables of docs/ceph-scale.md, from the experiment `ceph-2026`. It
//! compares them with the page, or writes them with `--write`.

use crate::lab::Lab;
use crate::markdown::{Section, short, table};
use crate::numbers::Numbers;
use anyhow::Result;

const PAGE: &str = "docs/ceph-scale.md";
const SECTION: Section = Section { command: "cargo x ceph-scale" };

/// Jobs of the measured part: heading and row.
const JOBS: [(&str, &str); 6] = [
    ("read q1", "r4q1 read"),
    ("read q32", "r4q32 read"),
    ("write q1", "w4q1 write"),
    ("write q32", "w4q32 write"),
    ("read 1 MiB", "r1m read"),
    ("write 1 MiB", "w1m write"),
];
/// Clusters of the measured part: OSDs and copies.
const CLUSTERS: [(u32, u32); 4] = [(1, 1), (3, 1), (3, 2), (3, 3)];
const MEASURED_VOLUMES: [u32; 3] = [1, 4, 16];
const LARGE: [u32; 2] = [10, 100];
const VOLUMES: [u32; 5] = [1, 16, 256, 1024, 10240];

/// Comparison with the page, or its update.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the tables to the page, instead of comparing them.
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let numbers = Numbers::run(&Lab::new()?, "ceph-2026")?;
    let text = format!(
        "### Measured, and simulated\n\nRequests per second: measured / simulated.\n\n{}\n{}\n\
         ### Large clusters\n\nThousand requests of 4 KiB per second, and p99 in\n\
         milliseconds.\n\n{}\n\
         ### After the loss of an OSD\n\n{}",
        measured(&numbers)?,
        error(&numbers)?,
        large(&numbers)?,
        lost(&numbers)?
    );
    SECTION.check_or_write(PAGE, &text, args.write)
}

fn measured(numbers: &Numbers) -> Result<String> {
    let mut lines = vec![heading("OSDs, copies, volumes", JOBS.iter().map(|(name, _)| *name))];
    for (osds, copies, volumes, variant) in variants() {
        let mut line = vec![format!("{osds}, {copies}, {volumes}")];
        for (_, row) in JOBS {
            let seen = numbers.published(&variant, row, "iops")?;
            let ours = numbers.ours(&variant, row, "iops")?;
            line.push(format!("{seen:.0} / {ours:.0}"));
        }
        lines.push(line);
    }
    Ok(table(&lines))
}

/// The median factor between measured and simulated rates, without the first row.
fn error(numbers: &Numbers) -> Result<String> {
    let mut factors = Vec::new();
    for (.., variant) in variants().skip(1) {
        for (_, row) in JOBS {
            let seen = numbers.published(&variant, row, "iops")?;
            let factor = numbers.ours(&variant, row, "iops")? / seen;
            factors.push(factor.max(1.0 / factor));
        }
    }
    factors.sort_by(f64::total_cmp);
    let count = factors.len();
    Ok(format!(
        "The simulated rate is wrong by a factor of {:.2} in the median of the {count} predicted\n\
         rows, and of {:.2} in the worst.\n",
        factors[count / 2],
        factors[count - 1]
    ))
}

fn variants() -> impl Iterator<Item = (u32, u32, u32, String)> {
    CLUSTERS.into_iter().flat_map(|(osds, copies)| {
        MEASURED_VOLUMES.into_iter().map(move |volumes| {
            let variant = format!("measured-osds{osds}copies{copies}-v{volumes}");
            (osds, copies, volumes, variant)
        })
    })
}

fn large(numbers: &Numbers) -> Result<String> {
    let columns = LARGE.iter().flat_map(|osds| {
        ["read", "write"].map(|job| [format!("{osds} OSDs: {job}"), "p99".into()])
    });
    let columns: Vec<String> = columns.flatten().collect();
    let mut lines = vec![heading("volumes", columns.iter().map(String::as_str))];
    for volumes in VOLUMES {
        let mut line = vec![volumes.to_string()];
        for osds in LARGE {
            line.extend(cells(numbers, &format!("large-osds{osds}-volumes{volumes}"))?);
        }
        lines.push(line);
    }
    Ok(table(&lines))
}

fn lost(numbers: &Numbers) -> Result<String> {
    let columns = ["read", "p99", "write", "p99"];
    let mut lines = vec![heading("OSDs, volumes, recovery", columns.into_iter())];
    for osds in LARGE {
        for volumes in [256, 10240] {
            for (grid, recovery) in [
                ("large", "no loss"),
                ("lost-only", "none"),
                ("lost", "three objects at a time"),
                ("gently", "one, pauses of 100 ms"),
            ] {
                let mut line = vec![format!("{osds}, {volumes}, {recovery}")];
                line.extend(cells(numbers, &format!("{grid}-osds{osds}-volumes{volumes}"))?);
                lines.push(line);
            }
        }
    }
    Ok(table(&lines))
}

/// Rate and p99 of reads and of writes.
fn cells(numbers: &Numbers, variant: &str) -> Result<Vec<String>> {
    let mut cells = Vec::new();
    for row in ["read read", "write write"] {
        cells.push(short(numbers.ours(variant, row, "iops")? / 1000.0));
        cells.push(short(numbers.ours(variant, row, "latency_p99")? * 1000.0));
    }
    Ok(cells)
}

fn heading<'a>(first: &'a str, rest: impl Iterator<Item = &'a str>) -> Vec<String> {
    [first].into_iter().chain(rest).map(str::to_owned).collect()
}
