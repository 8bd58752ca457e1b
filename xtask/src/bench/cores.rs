//! `cargo x bench cores`: one volume and many on 1 to all CPUs, beside the bare cipher and a copy
//! in memory; then the doors, beside other programs. The example `cores_bench` measures volumes,
//! [`doors`] the doors; here are their tables, plot and page.

mod doors;

use super::peers::{PLAIN, PLAIN_DISK};
use super::{example_text, machine, progress};
use crate::markdown::{Section, table};
use crate::tools;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

const PAGE: &str = "docs/cores.md";
const PLOT: &str = "docs/images/cores.svg";
const SECTION: Section = Section { command: "cargo x bench cores --page" };

/// The subject whose rate is the limit of all others.
const CIPHER: &str = "cipher";
const OURS: &str = "adaptive";

/// Part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Layer {
    /// Volumes in memory, without sockets.
    Volumes,
    /// NBD and FUSE, beside other programs.
    Doors,
}

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of CPUs: 1,2,4,8 [default: 1, 2, 4 … all]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<Layer>,
    /// Only shapes with this in their name: one, submitter, volume, connection.
    #[arg(long, value_name = "TEXT")]
    shape: Option<String>,
    /// Rounds over all subjects; the tables show medians.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Write the machine and all cells to this file, a line for each.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Show the results in this file, which `--json` wrote, without a measurement.
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["cpus", "only", "shape", "rounds", "json"])]
    from: Option<PathBuf>,
    /// Write the tables and the plot of docs/cores.md.
    #[arg(long)]
    page: bool,
    #[arg(skip)]
    is_smoke: bool,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        Args {
            cpus: None,
            only: None,
            shape: None,
            rounds: 1,
            json: None,
            from: None,
            page: false,
            is_smoke: true,
        }
    }

    fn has(&self, layer: Layer) -> bool {
        self.only.is_none_or(|only| only == layer)
    }

    /// Seconds of each run at a door.
    fn seconds(&self) -> f64 {
        if self.is_smoke { 0.1 } else { 1.0 }
    }

    /// Jobs of each shape at a door.
    fn jobs_at_doors(&self) -> usize {
        if self.is_smoke { 1 } else { usize::MAX }
    }

    /// Numbers of CPUs, of so many.
    fn counts(&self, all: usize) -> Result<Vec<usize>> {
        let Some(list) = &self.cpus else {
            let powers = std::iter::successors(Some(1), |count| Some(count * 2));
            let fewer = powers.take_while(|count| *count < all && !self.is_smoke);
            return Ok(fewer.chain([all]).collect());
        };
        let counts: Vec<usize> =
            list.split(',').map(str::parse).collect::<Result<_, _>>().context("--cpus")?;
        let is_there = |count: &usize| (1..=all).contains(count);
        ensure!(counts.iter().all(is_there), "--cpus {list}: this process has {all} CPUs");
        Ok(counts)
    }
}

/// Medians of one subject and one job on so many CPUs.
#[derive(Deserialize, Serialize)]
struct Cell {
    cpus: usize,
    shape: String,
    job: String,
    subject: String,
    mib_s: f64,
    cpu_ns_per_kib: f64,
    /// Not at doors, where the threads of a connection end with it.
    switches_per_request: Option<f64>,
}

/// A run.
struct Run {
    machine: Value,
    cells: Vec<Cell>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let run = match &args.from {
        Some(path) => {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            Run::parse(&text).with_context(|| path.display().to_string())?
        }
        None => measure(args)?,
    };
    if args.page {
        let plot = tools::root().join(PLOT);
        fs::write(&plot, run.plot()).with_context(|| plot.display().to_string())?;
        return SECTION.write(&tools::root().join(PAGE), &run.page());
    }
    machine::print(&run.machine);
    println!("\nMiB/s, and % of the cipher on as many CPUs; CPU ns/KiB; switches a request.");
    println!("At doors: % of the unencrypted server; CPU of the server; switches are not counted.");
    print!("{}", run.text());
    Ok(())
}

fn measure(args: &Args) -> Result<Run> {
    ensure!(args.rounds > 0, "nothing to measure");
    let rounds = args.rounds.to_string();
    let mut words = vec!["--rounds", &rounds];
    words.extend(args.cpus.iter().flat_map(|list| ["--cpus", list]));
    words.extend(args.shape.iter().flat_map(|shape| ["--shape", shape]));
    words.extend(args.is_smoke.then_some("--smoke"));
    let machine = machine::describe();
    let mut text = format!("{machine}\n");
    if args.has(Layer::Volumes) {
        progress("one volume and many, on growing numbers of CPUs");
        text += &example_text("blockyard-host", "cores_bench", &words)?;
        progress("");
    }
    if args.has(Layer::Doors) {
        for cell in doors::measure(args)? {
            text += &format!("{}\n", serde_json::to_string(&cell)?);
        }
    }
    if let Some(path) = &args.json {
        fs::write(path, &text).with_context(|| path.display().to_string())?;
    }
    Run::parse(&text)
}

impl Run {
    /// The machine, and a cell in each line.
    fn parse(text: &str) -> Result<Run> {
        let (machine, cells) = text.split_once('\n').context("no lines")?;
        let cells = cells.lines().map(serde_json::from_str).collect::<Result<Vec<Cell>, _>>()?;
        ensure!(!cells.is_empty(), "no measurement");
        Ok(Run { machine: serde_json::from_str(machine)?, cells })
    }

    /// Different values of the cells, in the order of their first one.
    fn all<'a, T: PartialEq>(&'a self, of: impl Fn(&'a Cell) -> T) -> Vec<T> {
        let mut all = Vec::new();
        for value in self.cells.iter().map(of) {
            if !all.contains(&value) {
                all.push(value);
            }
        }
        all
    }

    fn cell(&self, job: (&str, &str), subject: &str, cpus: usize) -> Option<&Cell> {
        self.cells.iter().find(|cell| {
            (cell.shape.as_str(), cell.job.as_str()) == job
                && cell.subject == subject
                && cell.cpus == cpus
        })
    }

    /// Rate of a cell, of that of the cipher or of the unencrypted server on as many CPUs.
    fn share(&self, cell: &Cell) -> Option<f64> {
        let limit = |name| self.cell((&cell.shape, &cell.job), name, cell.cpus);
        let limit = limit(CIPHER).or_else(|| limit(PLAIN)).or_else(|| limit(PLAIN_DISK));
        limit.map(|limit| cell.mib_s / limit.mib_s)
    }

    /// The subjects of a job.
    fn subjects(&self, job: (&str, &str)) -> Vec<&str> {
        let all = self.all(|cell| (cell.shape.as_str(), cell.job.as_str(), cell.subject.as_str()));
        all.into_iter().filter(|(shape, name, _)| (*shape, *name) == job).map(|all| all.2).collect()
    }

    fn jobs(&self) -> Vec<(&str, &str)> {
        self.all(|cell| (cell.shape.as_str(), cell.job.as_str()))
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let counts = self.all(|cell| cell.cpus);
        for job in self.jobs() {
            let _ = write!(text, "\n{}, {}\n{:<26}", job.1, job.0, "CPUs");
            counts.iter().for_each(|count| text += &format!("{count:>26}"));
            text += "\n";
            for subject in self.subjects(job) {
                let _ = write!(text, "{subject:<26}");
                for cell in counts.iter().filter_map(|count| self.cell(job, subject, *count)) {
                    let share = self.share(cell).map(|share| format!("{:.0} %", share * 100.0));
                    let switches = cell.switches_per_request.map(|all| format!("{all:.2}"));
                    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
                    let _ = write!(
                        text,
                        "{:>8.0}{:>7}{:>6.0}{:>5}",
                        cell.mib_s,
                        or_none(share),
                        cell.cpu_ns_per_kib,
                        or_none(switches)
                    );
                }
                text += "\n";
            }
        }
        text
    }

    /// The rates as tables, and the machine.
    fn page(&self) -> String {
        let field = |name: &str| self.machine[name].as_str().unwrap_or_default();
        let mut text = format!(
            "{}, {} CPUs, {}, Linux {}, {}, Blockyard {}.\nRates in MiB/s; in brackets CPU ns \
             a KiB.\n\n![Rate of one volume by the number of CPUs](images/cores.svg)\n",
            field("cpu"),
            self.machine["cpus"],
            field("machine"),
            field("kernel"),
            field("date"),
            field("blockyard"),
        );
        let counts = self.all(|cell| cell.cpus);
        for job in self.jobs() {
            let mut lines = vec![vec!["CPUs".to_owned()]];
            lines[0].extend(counts.iter().map(ToString::to_string));
            for subject in self.subjects(job) {
                let of = |count: &usize| match self.cell(job, subject, *count) {
                    Some(cell) => format!("{:.0} ({:.0})", cell.mib_s, cell.cpu_ns_per_kib),
                    None => "-".into(),
                };
                let cells = counts.iter().map(of);
                lines.push(std::iter::once(subject.to_owned()).chain(cells).collect());
            }
            let _ = write!(text, "\n**{}, {}**\n\n{}", job.1, job.0, table(&lines));
        }
        text
    }

    /// The rate of each job with our default pipeline, of that on one CPU, by the number of CPUs.
    fn plot(&self) -> String {
        let counts = self.all(|cell| cell.cpus);
        let most = counts.iter().copied().max().unwrap_or(1) as f64;
        let x = |cpus: f64| 50.0 + (cpus - 1.0) / (most - 1.0).max(1.0) * 430.0;
        let y = |gain: f64| 330.0 - (gain - 1.0) / (most - 1.0).max(1.0) * 290.0;
        let mut lines = String::new();
        for (share, name) in [(1.0, "100 %"), (0.9, "90 %")] {
            let end = 1.0 + (most - 1.0) * share;
            let _ = writeln!(
                lines,
                "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"e\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
                x(1.0),
                y(1.0),
                x(most),
                y(end),
                x(most) + 4.0,
                y(end) + 4.0
            );
        }
        for count in &counts {
            let _ = writeln!(
                lines,
                "<text x=\"{:.1}\" y=\"350\" text-anchor=\"middle\">{count}</text>",
                x(*count as f64)
            );
        }
        let is_volume = |job: &(&str, &str)| self.subjects(*job).contains(&OURS);
        for (index, job) in self.jobs().into_iter().filter(is_volume).enumerate() {
            let one = self.cell(job, OURS, 1).map_or(f64::NAN, |cell| cell.mib_s);
            let points: Vec<String> = counts
                .iter()
                .filter_map(|count| self.cell(job, OURS, *count))
                .map(|cell| format!("{:.1},{:.1}", x(cell.cpus as f64), y(cell.mib_s / one)))
                .collect();
            let colour = format!("hsl({} 70% 45%)", index * 30);
            let row = 30 + index * 16;
            let _ = writeln!(
                lines,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
                 <rect x=\"540\" y=\"{}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
                 <text x=\"556\" y=\"{row}\">{}, {}</text>",
                points.join(" "),
                row - 9,
                job.1,
                job.0
            );
        }
        format!(
            "<!-- written by `{}` -->\n<svg xmlns=\"http://www.w3.org/2000/svg\" \
             viewBox=\"0 0 800 370\" width=\"800\" height=\"370\" role=\"img\" \
             aria-label=\"Gain of the default pipeline by the number of CPUs\">\n<style>\
             text{{font:12px system-ui,sans-serif;fill:#57606a}}\
             .e{{stroke:#8c959f;stroke-dasharray:4 3}}</style>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
             <text x=\"50\" y=\"20\">rate, of that on one CPU</text>\
             <text x=\"265\" y=\"366\" text-anchor=\"middle\">CPUs</text>\n{lines}</svg>\n",
            SECTION.command
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_shown_beside_those_of_the_cipher() {
        let cell = |cpus: u32, subject: &str, mib_s: u32| {
            format!(
                "{{\"cpus\":{cpus},\"shape\":\"one submitter\",\"job\":\"4 KiB\",\
                 \"subject\":\"{subject}\",\"mib_s\":{mib_s},\"cpu_ns_per_kib\":9.6,\
                 \"switches_per_request\":0.5}}\n"
            )
        };
        let cells = [(1, CIPHER, 1000), (1, OURS, 500), (2, CIPHER, 2000), (2, OURS, 800)];
        let cells: String = cells.map(|(cpus, subject, rate)| cell(cpus, subject, rate)).concat();
        let run = Run::parse(&format!("{{\"cpu\": \"A CPU\", \"cpus\": 2}}\n{cells}"));
        let run = run.expect("the lines of a run");
        assert!(run.text().contains("     500   50 %    10 0.50     800   40 %"), "{}", run.text());
        assert!(run.page().contains("| adaptive |  500 (10) |  800 (10) |"), "{}", run.page());
        assert!(run.page().starts_with("A CPU, 2 CPUs, "), "{}", run.page());
        assert_eq!(run.plot().matches("<polyline").count(), 1);
        assert!(Run::parse("{}\n").is_err());
    }

    #[test]
    fn page_has_the_numbers_of_its_run() {
        let run = include_str!("../../../testdata/cores-16.jsonl");
        let run = Run::parse(run).expect("the lines of a run");
        let page = tools::root().join(PAGE);
        let now = fs::read_to_string(&page).expect("it is there");
        let text = run.page();
        let again = "cargo x bench cores --from testdata/cores-16.jsonl --page";
        assert!(now == SECTION.page(&page, &text).expect("it has the marks"), "{again}");
    }
}
