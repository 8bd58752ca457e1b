//! `cargo x bench sharing`: atomic instructions, shared cache lines and system calls of a request,
//! and a bound of each.
//!
//! `ptrace` steps all threads of `cores_bench` through the requests of a job, in turns of one
//! instruction, and every instruction is decoded. So the counts depend neither on the load of the
//! machine nor on its number of CPUs.

mod code;
mod lines;
mod steps;

use super::{example_command, line_numbers, machine};
use crate::markdown::{Section, table};
use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use lines::{Chain, Shared};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::available_parallelism;
use steps::{Counts, Steps};

/// CPUs that the process may use.
const CPUS: usize = 2;
/// Functions of the cipher crate run as a whole, except those that choose the cipher's function.
const CIPHERS: &str = "blockyard_crypt::";
const CHOOSERS: &str = "SectorCipher";
/// Places shown of each case.
const PLACES: usize = 12;

const PAGE: &str = "docs/performance.md";
const SECTION: Section = Section { command: "cargo x bench sharing --page" };
const HEADING: [&str; 7] = ["atomic", "at most", "lines", "at most", "false", "calls", "instr."];

/// Extent of the count.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only cases with this in their name.
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    /// Show the lines of the source that make the counts.
    #[arg(long)]
    places: bool,
    /// Write the table of docs/performance.md.
    #[arg(long, conflicts_with = "case")]
    page: bool,
}

/// A job, and the bounds of its counts.
struct Case {
    job: &'static str,
    pipeline: &'static str,
    shape: &'static str,
    submitters: usize,
    /// Requests of each submitter.
    requests: usize,
    bounds: Option<Bounds>,
}

/// Most atomic instructions and shared lines of a request. Lines that are shared falsely have no
/// bound: the allocator of the machine places them.
#[derive(Clone, Copy)]
struct Bounds {
    atomics: f64,
    lines: f64,
}

const fn one(
    job: &'static str,
    pipeline: &'static str,
    requests: usize,
    bounds: Option<Bounds>,
) -> Case {
    Case { job, pipeline, shape: "one submitter", submitters: 1, requests, bounds }
}

const fn two(
    job: &'static str,
    pipeline: &'static str,
    requests: usize,
    bounds: Option<Bounds>,
) -> Case {
    let shape = "a submitter for each CPU";
    Case { job, pipeline, shape, submitters: CPUS, requests, bounds }
}

const fn at_most(atomics: f64, lines: f64) -> Option<Bounds> {
    Some(Bounds { atomics, lines })
}

/// A bound is the most of eight runs, and half a use of each cipher call: a counter that each of
/// them changes adds a whole one. `adaptive` measures a hand-over when it opens a volume, and its
/// number of hand-overs depends on that. So its cases with idle CPUs have no bound. With one
/// submitter, `linux-today` sleeps and wakes up as often as the machine lets it (138 to 165 atomic
/// instructions in five runs on one machine). With two it makes eight hand-overs for each request
/// of 1 MiB, on the same path.
const CASES: [Case; 14] = [
    one("4 KiB read q32", "inline", 64, at_most(0.5, 0.5)),
    one("4 KiB write q32", "inline", 64, at_most(2.5, 0.5)),
    two("4 KiB read q32", "adaptive", 64, at_most(0.6, 0.5)),
    two("4 KiB write q32", "adaptive", 64, at_most(2.6, 0.5)),
    one("1 MiB read q1", "linux-today", 8, None),
    one("1 MiB write q1", "linux-today", 8, None),
    two("1 MiB read q8", "linux-today", 8, at_most(129.1, 56.0)),
    two("1 MiB write q8", "linux-today", 8, at_most(131.3, 57.4)),
    one("4 KiB read q32", "adaptive", 512, None),
    one("4 KiB write q32", "adaptive", 512, None),
    one("1 MiB read q1", "adaptive", 4, None),
    one("1 MiB write q1", "adaptive", 4, None),
    two("1 MiB read q8", "adaptive", 4, None),
    two("1 MiB write q8", "adaptive", 4, None),
];

impl Case {
    fn name(&self) -> String {
        let submitters = if self.submitters == 1 { "one submitter" } else { "two submitters" };
        format!("{}, {}, {submitters}", self.job, self.pipeline)
    }

    fn all_requests(&self) -> f64 {
        (self.submitters * self.requests) as f64
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    tools::need("nm").context("it finds the ciphers: apt-get install binutils")?;
    let cpus = available_parallelism()?.get();
    ensure!(cpus >= CPUS, "two submitters need {CPUS} CPUs");
    let program = PathBuf::from(example_command("blockyard-host", "cores_bench")?.get_program());
    let ciphers = ciphers(&program)?;
    let machine = machine::describe();
    machine::print(&machine);
    println!("\nOf a request: atomic read-modify-writes; cache lines with a byte that one thread");
    println!("writes and another one uses, and falsely shared lines; system calls; instructions");
    println!("outside of the cipher.\n");
    println!("{}", HEADING.map(|word| format!("{word:>9}")).concat());
    let mut lines =
        vec![[&["job"], &HEADING[..]].concat().into_iter().map(str::to_owned).collect()];
    let mut faults = Vec::new();
    let is_wanted = |case: &&Case| args.case.as_ref().is_none_or(|part| case.name().contains(part));
    for case in CASES.iter().filter(is_wanted) {
        let found = found(case, &program, &ciphers).with_context(|| case.name())?;
        let cells = found.cells(case);
        println!("{}  {}", cells.each_ref().map(|cell| format!("{cell:>9}")).concat(), case.name());
        if args.places {
            found.print_places(case, &program)?;
        }
        faults.extend(found.faults(case));
        lines.push([&[case.name()], &cells[..]].concat());
    }
    if args.page {
        SECTION.write(&tools::root().join(PAGE), &page(&machine, &lines))?;
    }
    if !faults.is_empty() {
        bail!("more than the bounds in {}:\n{}", file!(), faults.join("\n"));
    }
    Ok(())
}

/// The counts of a case. Above a bound, a second count decides: waits for locks add a few.
fn found(case: &Case, program: &Path, ciphers: &[u64]) -> Result<Found> {
    let found = Found::of(case, program, ciphers)?;
    if found.faults(case).is_empty() { Ok(found) } else { Found::of(case, program, ciphers) }
}

/// The machine, and the counts as a table.
fn page(machine: &Value, lines: &[Vec<String>]) -> String {
    let field = |name: &str| machine[name].as_str().unwrap_or_default();
    format!(
        "{}, {} CPUs, Linux {}, {}, Blockyard {}:\n\n{}",
        field("cpu"),
        machine["cpus"],
        field("kernel"),
        field("date"),
        field("blockyard"),
        table(lines)
    )
}

/// Offsets of the functions of ciphers in the program.
fn ciphers(program: &Path) -> Result<Vec<u64>> {
    let mut nm = tools::tool("nm");
    let names = tools::read(nm.args(["--defined-only", "--demangle"]).arg(program))?;
    let offset = |line: &str| {
        let (offset, name) = line.split_once(' ')?;
        let (_, name) = name.split_once(' ')?;
        let is_cipher = name.starts_with(CIPHERS) && !name.contains(CHOOSERS);
        is_cipher.then(|| u64::from_str_radix(offset, 16).ok()).flatten()
    };
    let ciphers: Vec<u64> = names.lines().filter_map(offset).collect();
    ensure!(!ciphers.is_empty(), "{} has no cipher", program.display());
    Ok(ciphers)
}

/// A process of the program, killed on drop.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where the program lies in the memory of a process.
struct Place {
    begin: u64,
    end: u64,
}

impl Place {
    fn of(process: u32, program: &Path) -> Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
        let program = program.to_string_lossy();
        let ours = maps.lines().filter(|line| line.ends_with(&*program));
        let range = |line: &str| {
            let (begin, end) = line.split(' ').next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some((number(begin)?, number(end)?))
        };
        let ranges: Vec<(u64, u64)> = ours.filter_map(range).collect();
        let begin = ranges.iter().map(|range| range.0).min();
        let end = ranges.iter().map(|range| range.1).max();
        Ok(Self { begin: begin.context("the program is not mapped")?, end: end.unwrap_or(0) })
    }

    /// Offset of an address in the program; `None` in a library.
    fn offset(&self, address: u64) -> Option<u64> {
        (self.begin..self.end).contains(&address).then(|| address - self.begin)
    }
}

/// The counts of a case.
struct Found {
    place: Place,
    instructions: u64,
    system_calls: BTreeMap<u64, u64>,
    atomics: HashMap<Chain, u64>,
    lines: Vec<Shared>,
}

impl Found {
    fn of(case: &Case, program: &Path, ciphers: &[u64]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["--cpus", &CPUS.to_string(), "--shape", case.shape, "--held"]);
        command.args([case.pipeline, case.job, &case.requests.to_string()]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut held = Held(child);
        let mut said = String::new();
        BufReader::new(held.0.stdout.take().expect("it is piped")).read_line(&mut said)?;
        ensure!(said == "ready\n", "cores_bench said {said:?}");
        let place = Place::of(held.0.id(), program)?;
        let whole: HashSet<u64> = ciphers.iter().map(|offset| place.begin + offset).collect();
        let process = Pid::from_raw(held.0.id().try_into()?);
        let mut stdin = held.0.stdin.take().expect("it is piped");
        // A thread of its own, because it stays on one CPU.
        let counted = std::thread::scope(|scope| {
            let steps = scope.spawn(|| {
                let steps = Steps::attach(process, &whole)?;
                stdin.write_all(b"\n")?;
                steps.run(case.submitters)
            });
            steps.join().expect("steps do not panic")
        });
        let Counts { instructions, system_calls, atomics, lines } = counted?;
        Ok(Self { place, instructions, system_calls, atomics, lines: lines.shared() })
    }

    /// Atomic instructions of a request.
    fn atomics(&self, case: &Case) -> f64 {
        self.atomics.values().sum::<u64>() as f64 / case.all_requests()
    }

    /// Shared lines of a request, or falsely shared ones.
    fn lines(&self, case: &Case, is_false: bool) -> f64 {
        let lines = self.lines.iter().filter(|line| line.is_false == is_false);
        lines.fold(0.0, |sum, line| sum + uses(line, case))
    }

    /// Counts of a request, in the order of the heading.
    fn cells(&self, case: &Case) -> [String; HEADING.len()] {
        let of_request = |count: u64| count as f64 / case.all_requests();
        let most = |most: fn(Bounds) -> f64| match case.bounds {
            Some(bounds) => format!("{:.1}", most(bounds)),
            None => "-".into(),
        };
        [
            format!("{:.2}", self.atomics(case)),
            most(|bounds| bounds.atomics),
            format!("{:.2}", self.lines(case, false)),
            most(|bounds| bounds.lines),
            format!("{:.2}", self.lines(case, true)),
            format!("{:.2}", of_request(self.system_calls.values().sum())),
            format!("{:.0}", of_request(self.instructions)),
        ]
    }

    fn faults(&self, case: &Case) -> Vec<String> {
        let Some(bounds) = case.bounds else { return Vec::new() };
        let fault = |what: &str, count: f64, max: f64| {
            (count > max).then(|| format!("{}: {count:.2} {what}, at most {max:.1}", case.name()))
        };
        let atomics = fault("atomic instructions", self.atomics(case), bounds.atomics);
        let lines = fault("shared lines", self.lines(case, false), bounds.lines);
        atomics.into_iter().chain(lines).collect()
    }

    /// Prints the most frequent atomic instructions, and the lines that most requests use.
    fn print_places(&self, case: &Case, program: &Path) -> Result<()> {
        let names = self.names(program)?;
        let name = |chain: &Chain| {
            let offsets = chain.iter().filter_map(|address| self.place.offset(*address));
            offsets.filter_map(|offset| names.get(&offset)).next().map_or("?", String::as_str)
        };
        let mut atomics: BTreeMap<String, f64> = BTreeMap::new();
        for (chain, count) in &self.atomics {
            *atomics.entry(name(chain).to_owned()).or_default() += *count as f64;
        }
        atomics.values_mut().for_each(|count| *count /= case.all_requests());
        print_most("atomic", atomics);
        let mut lines: BTreeMap<String, f64> = BTreeMap::new();
        for line in &self.lines {
            let users: BTreeSet<&str> = line.executions.keys().map(name).collect();
            let users: Vec<&str> = users.into_iter().collect();
            let kind = if line.is_false { "falsely: " } else { "" };
            *lines.entry(format!("{kind}{}", users.join(" "))).or_default() += uses(line, case);
        }
        print_most("line", lines);
        println!("  calls: {:?}", self.system_calls);
        Ok(())
    }

    /// The line of our source for each offset in the program that has one.
    fn names(&self, program: &Path) -> Result<HashMap<u64, String>> {
        let lines = self.lines.iter().flat_map(|line| line.executions.keys());
        let addresses = lines.chain(self.atomics.keys()).flatten();
        let offsets: BTreeSet<u64> =
            addresses.filter_map(|address| self.place.offset(*address)).collect();
        let offsets: Vec<u64> = offsets.into_iter().collect();
        let crates = tools::root().join("crates/");
        let crates = crates.to_string_lossy();
        let ours = |block: &String| {
            block.lines().find_map(|line| line.strip_prefix(&*crates).map(str::to_owned))
        };
        let names = line_numbers::of(program, &offsets)?;
        let named = offsets.iter().zip(&names);
        Ok(named.filter_map(|(offset, block)| Some((*offset, ours(block)?))).collect())
    }
}

/// The part of all requests that uses a line.
fn uses(line: &Shared, case: &Case) -> f64 {
    (line.requests as f64 / case.all_requests()).min(1.0)
}

fn print_most(what: &str, counts: BTreeMap<String, f64>) {
    let mut counts: Vec<(String, f64)> = counts.into_iter().collect();
    counts.sort_by(|one, other| other.1.total_cmp(&one.1));
    for (name, count) in counts.iter().take(PLACES) {
        println!("  {what} {count:>7.2} {name}");
    }
}
