//! The figures of the front page, `cargo x bench nbd --readme`: a table in README.md and a plot
//! beside it, both of the medians of one run.

use super::peers::{OURS, PLAIN};
use super::table::Sample;
use crate::markdown::{Section, short, table};
use crate::tools;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;

const PAGE: &str = "README.md";
const PLOT: &str = "docs/images/beside-others.svg";
const SECTION: Section = Section { command: "cargo x bench nbd --readme" };

/// Servers of the front page, and their names there.
const SERVERS: [(&str, &str); 4] = [
    (OURS, "Blockyard, encrypted"),
    ("nbdkit luks", "nbdkit, encrypted"),
    ("qemu luks", "QEMU, encrypted"),
    (PLAIN, "nbdkit, not encrypted"),
];

const COLOURS: [&str; 4] = ["#0969da", "#9a6700", "#bc4c00", "#8c959f"];

/// Jobs of the front page.
const JOBS: [&str; 6] = [
    "read 1 MiB q8",
    "write 1 MiB q8",
    "read 4 KiB q1",
    "write 4 KiB q1",
    "read 4 KiB q32",
    "write 4 KiB q32",
];

/// Writes the table and the plot.
pub(super) fn write(machine: &Value, conditions: &str, medians: &[Sample]) -> Result<()> {
    let rows = rows(medians);
    let plot = tools::root().join(PLOT);
    fs::write(&plot, draw(&rows)).with_context(|| plot.display().to_string())?;
    let page = tools::root().join(PAGE);
    SECTION.write(&page, &text(machine, conditions, &rows))?;
    println!("{}\n{}", plot.display(), page.display());
    Ok(())
}

/// A job: MiB/s and server CPU of each server.
struct Row {
    job: &'static str,
    servers: [Option<(f64, f64)>; SERVERS.len()],
}

fn rows(medians: &[Sample]) -> Vec<Row> {
    let of = |job: &str, server: &str| {
        let found = medians.iter().find(|sample| sample.job == job && sample.server == server);
        found.map(|sample| (sample.mib_s, sample.cpu_us))
    };
    let row = |job| Row { job, servers: SERVERS.map(|(server, _)| of(job, server)) };
    let is_measured = |row: &Row| row.servers.iter().any(Option::is_some);
    JOBS.into_iter().map(row).filter(is_measured).collect()
}

fn text(machine: &Value, conditions: &str, rows: &[Row]) -> String {
    let mut lines = vec![vec!["MiB/s (server CPU, us)".to_owned()]];
    lines[0].extend(SERVERS.map(|(_, name)| name.to_owned()));
    for row in rows {
        let mut line = vec![row.job.replace(" q", ", depth ")];
        line.extend(row.servers.map(|found| match found {
            Some((mib_s, cpu_us)) => format!("{} ({})", short(mib_s), short(cpu_us)),
            None => "-".into(),
        }));
        lines.push(line);
    }
    let field = |name: &str| machine[name].as_str().unwrap_or_default();
    let mut text = format!("![Speed beside other servers]({PLOT})\n\n{}", table(&lines));
    let facts = format!(
        "Server CPU is for one MiB, or for one request of 4 KiB. {conditions}, medians. {}: {}, \
         {} CPUs, Linux {}, {}, {}, Blockyard {}.",
        field("date"),
        field("cpu"),
        machine["cpus"],
        short_version(field("kernel"), '-'),
        field("nbdkit"),
        short_version(field("qemu"), '(').replace("qemu-storage-daemon version", "QEMU"),
        field("blockyard"),
    );
    let _ = write!(text, "\n{}", filled(&facts));
    text
}

/// A version without its distribution's additions.
fn short_version(text: &str, until: char) -> &str {
    text.split(until).next().unwrap_or_default().trim()
}

/// The words in lines of at most 100 characters.
fn filled(words: &str) -> String {
    let mut lines = String::new();
    let mut used = 0;
    for word in words.split_whitespace() {
        let is_first = used == 0;
        if !is_first && used + 1 + word.len() > 100 {
            lines.push('\n');
            used = 0;
        } else if !is_first {
            lines.push(' ');
            used += 1;
        }
        lines += word;
        used += word.len();
    }
    lines + "\n"
}

const LEFT_PX: usize = 130;
const BAR_PX: usize = 13;
const GROUP_PX: usize = SERVERS.len() * BAR_PX + 14;
const FULL_PX: f64 = 420.0;
const WIDTH_PX: usize = 720;
const TOP_PX: usize = 44;

/// Bars of speed, each job in units of the unencrypted server.
fn draw(rows: &[Row]) -> String {
    let shares =
        rows.iter().flat_map(|row| row.servers.iter().enumerate().map(|(at, _)| share(row, at)));
    let most = shares.flatten().fold(1.0, f64::max);
    let height = TOP_PX + rows.len() * GROUP_PX + 10;
    let mut picture = format!(
        "<!-- written by `{}` -->\n<svg xmlns=\"http://www.w3.org/2000/svg\" \
         viewBox=\"0 0 {WIDTH_PX} {height}\" width=\"{WIDTH_PX}\" height=\"{height}\" role=\"img\" \
         aria-label=\"Speed of each server, of an unencrypted file served by nbdkit\">\n<style>\
         text{{font:12px system-ui,sans-serif;fill:#57606a}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        SECTION.command
    );
    for (at, (_, name)) in SERVERS.iter().enumerate() {
        let x = 16 + at * 172;
        let colour = COLOURS[at];
        let _ = writeln!(
            picture,
            "<rect x=\"{x}\" y=\"10\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"20\">{name}</text>",
            x + 16
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let top = TOP_PX + index * GROUP_PX;
        let middle = top + SERVERS.len() * BAR_PX / 2 + 4;
        let job = row.job.replace(" q", ", depth ");
        let _ = writeln!(picture, "<text x=\"16\" y=\"{middle}\">{job}</text>");
        for (at, colour) in COLOURS.iter().enumerate() {
            let Some(share) = share(row, at) else { continue };
            let width = share / most * FULL_PX;
            let y = top + at * BAR_PX;
            let _ = writeln!(
                picture,
                "<rect x=\"{LEFT_PX}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" \
                 fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{}\">{share:.2}</text>",
                BAR_PX - 2,
                LEFT_PX as f64 + width + 5.0,
                y + 10,
            );
        }
    }
    picture + "</svg>\n"
}

/// Speed of a server, of the unencrypted one.
fn share(row: &Row, at: usize) -> Option<f64> {
    let [.., plain] = row.servers;
    Some(row.servers[at]?.0 / plain?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(server: &'static str, mib_s: f64) -> Sample {
        Sample {
            server,
            job: JOBS[0],
            placement: "apart",
            mib_s,
            iops: 0.0,
            p50_us: 0.0,
            p99_us: 0.0,
            cpu_us: 140.0,
            server_cores: 0.0,
            client_cores: 0.0,
        }
    }

    #[test]
    fn speeds_are_shares_of_the_unencrypted_server() {
        let rows = rows(&[sample(OURS, 3000.0), sample(PLAIN, 2000.0)]);
        assert_eq!(rows.len(), 1, "a job without a measurement has no row");
        assert_eq!(share(&rows[0], 0), Some(1.5));
        assert_eq!(share(&rows[0], 1), None);
        let picture = draw(&rows);
        assert!(picture.contains(">1.50<") && picture.contains(">1.00<"), "{picture}");
        let machine = serde_json::json!({ "cpus": 2, "cpu": "A CPU", "kernel": "6.18.4-x7" });
        let text = text(&machine, "5 rounds of 2 s", &rows);
        assert!(text.contains("| read 1 MiB, depth 8 "), "{text}");
        assert!(text.contains("Linux 6.18.4,"), "{text}");
        assert!(text.contains("3000 (140)") && text.contains(" - |"), "{text}");
        assert!(text.lines().all(|line| line.starts_with('|') || line.len() <= 100), "{text}");
    }
}
