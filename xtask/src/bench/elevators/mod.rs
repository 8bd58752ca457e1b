//! `cargo x bench elevators`: three clients on one encrypted disk, under every elevator, and under
//! the kernel's own schedulers for comparison.
//!
//! One client streams writes, one reads 4 KiB at random, one writes 4 KiB and flushes each. All
//! I/O is direct; the volume is written whole beforehand. Rounds are interleaved: every row gets
//! its turn in each round, on the same blocks of the same file.

mod disk;
mod mix;
mod page;

use crate::bench::{machine, progress};
use crate::lab::{Lab, Server};
use crate::markdown::Section;
use crate::tools;
use anyhow::{Context, Result, ensure};
use disk::{Disk, Place};
use mix::{Client, ClientResult, Run};
use page::{Row, section};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// Place of the tables on a page.
const SECTION: Section = Section { command: "cargo x bench elevators" };

/// Kernel schedulers in the comparison.
const KERNEL: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];

/// Elevators that respect priorities.
const WITH_PRIORITIES: [&str; 4] = ["deadline-prio", "cfq", "mq-deadline", "bfq"];

/// Aliases of the volume for its reader, and their priorities.
const ALIASES: [(&str, &str); 3] = [("urgent", "rt:0"), ("normal", "be:4"), ("idle", "idle")];

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds over all rows; the tables show medians.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Size of the disk in MiB.
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    size: u32,
    /// Requests at the device at a time under an elevator; `none` has its default. A deeper device
    /// queue leaves more decisions to the device.
    #[arg(long, default_value_t = 1, value_name = "N")]
    queue_depth: u32,
    /// Folder on a disk for the volume.
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Only elevators whose name contains this, including the kernel's.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Also write every run and the medians to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Put the tables into this page, between its marks.
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        Args {
            rounds: 1,
            seconds: 0.3,
            size: mix::SIZE_MIB_MIN,
            queue_depth: 1,
            dir: "/var/tmp".into(),
            only: Some("mq-deadline".into()),
            json: None,
            write: None,
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    fn run(&self) -> Run {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds")]
        let millis = (self.seconds * 1000.0) as u32;
        Run { millis, size_mib: self.size }
    }
}

/// Table of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Table {
    File,
    Loop,
    Priorities,
}

/// A row of a table: the server's options, and the aliases for the clients.
struct Variant {
    table: Table,
    name: String,
    elevator: String,
    /// Scheduler of the loop device.
    kernel: &'static str,
    /// Alias for the reader.
    alias: Option<&'static str>,
}

impl Variant {
    fn place(&self) -> Place {
        if self.table == Table::Loop { Place::Loop } else { Place::File }
    }

    fn words(&self, queue_depth: u32) -> Vec<String> {
        let mut words = vec!["--elevator".to_owned(), self.elevator.clone()];
        if self.elevator == "none" {
            words.push("--direct".into());
        } else {
            words.extend(["--queue-depth".into(), queue_depth.to_string()]);
        }
        if self.alias.is_some() {
            for (name, priority) in ALIASES {
                words.extend(["--alias".into(), format!("{name}={priority}")]);
            }
        }
        words
    }

    fn clients(&self, server: &Server) -> Vec<(Client, String)> {
        let stream = (Client::Stream, server.uri());
        match self.alias {
            Some(alias) => {
                let socket = server.socket().display();
                vec![stream, (Client::Read, format!("nbd+unix:///{alias}?socket={socket}"))]
            }
            None => vec![stream, (Client::Read, server.uri()), (Client::Log, server.uri())],
        }
    }

    fn run(&self, lab: &Lab, disk: &Disk, args: &Args) -> Result<Vec<ClientResult>> {
        disk.set_kernel_scheduler(self.kernel)?;
        let words = self.words(args.queue_depth);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let server = disk.serve(lab, self.place(), &words)?;
        let seen = mix::run(&self.clients(&server), args.run())?;
        server.stop()?;
        Ok(seen)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0 && args.seconds > 0.0, "nothing to measure");
    ensure!(args.size >= mix::SIZE_MIB_MIN, "--size: at least {} MiB", mix::SIZE_MIB_MIN);
    tools::need("fio")?;
    let lab = Lab::new()?;
    let names = lab.elevators()?;
    let disk = Disk::make(&lab, &args.dir, args.size)?;
    let variants = variants(&disk, &names, args)?;
    ensure!(!variants.is_empty(), "no elevator of that name; there are {}", names.join(", "));
    let machine = machine::describe();
    let below = disk.below();
    machine::print(&machine);
    if let Some(why) = &disk.no_device {
        println!("no loop device, so no kernel schedulers beside ours: {why}");
    }
    let mut samples: Vec<(usize, Vec<ClientResult>)> = Vec::new();
    for round in 0..args.rounds {
        for (index, variant) in variants.iter().enumerate() {
            progress(&format!("round {} of {}: {}", round + 1, args.rounds, variant.name));
            let seen = variant.run(&lab, &disk, args).with_context(|| variant.name.clone())?;
            samples.push((index, seen));
        }
    }
    progress("");
    let text = conditions(&machine, &below, args) + &tables(&variants, &samples, args);
    println!("{text}");
    if let Some(path) = &args.write {
        SECTION.write(path, &text)?;
    }
    if let Some(path) = &args.json {
        let run = |(index, seen): &(usize, Vec<ClientResult>)| {
            let seen: Vec<Value> = seen.iter().map(ClientResult::json).collect();
            json!({"row": variants[*index].name, "seen": seen})
        };
        let text = json!({
            "machine": machine,
            "disk": below,
            "rounds": args.rounds,
            "seconds": args.seconds,
            "size_mib": args.size,
            "queue_depth": args.queue_depth,
            "samples": samples.iter().map(run).collect::<Vec<_>>(),
        });
        fs::write(path, format!("{text:#}\n")).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn variants(disk: &Disk, elevators: &[String], args: &Args) -> Result<Vec<Variant>> {
    let ours = elevators.iter().filter(|name| args.wants(name));
    let row = |table, name: &str, elevator: &str| Variant {
        table,
        name: name.to_owned(),
        elevator: elevator.to_owned(),
        kernel: "none",
        alias: None,
    };
    let mut rows: Vec<Variant> = ours.clone().map(|name| row(Table::File, name, name)).collect();
    if disk.has_device() {
        rows.extend(ours.clone().map(|name| row(Table::Loop, name, name)));
        for kernel in disk.kernel_schedulers(&KERNEL)? {
            // The row with `none` at both levels exists already.
            if kernel != "none" && args.wants(kernel) {
                let name = format!("the kernel's {kernel}");
                rows.push(Variant { kernel, ..row(Table::Loop, &name, "none") });
            }
        }
    }
    for name in ours.filter(|name| WITH_PRIORITIES.contains(&name.as_str())) {
        for (alias, priority) in ALIASES {
            let title = format!("{name}, reader {priority}");
            rows.push(Variant { alias: Some(alias), ..row(Table::Priorities, &title, name) });
        }
    }
    Ok(rows)
}

/// Conditions of the run, as a list.
fn conditions(machine: &Value, below: &Value, args: &Args) -> String {
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let name = word(&machine["machine"]);
    let cpu = word(&machine["cpu"]);
    let load = word(&machine["load"]);
    let kernel = word(&machine["kernel"]);
    let fio = word(&machine["fio"]);
    let commit = word(&machine["blockyard"]);
    let date = word(&machine["date"]);
    let filesystem = word(&below["filesystem"]);
    let device = word(&below["device"]);
    let scheduler = word(&below["scheduler"]);
    let cache = word(&below["write_cache"]);
    let disk = if below["virtual"] == true { "a virtual disk" } else { "a disk" };
    let seeks = if below["rotational"] == "1" { "says that it seeks" } else { "does not seek" };
    let Args { rounds, seconds, size, queue_depth, .. } = args;
    let lines = [
        format!("{name}, {} CPUs ({cpu}), load {load} at the start", machine["cpus"]),
        format!("Linux {kernel}, {fio}, blockyard {commit}, {date}"),
        format!("{filesystem} on {device}, {disk} that {seeks}; its cache: {cache}"),
        format!("the kernel's scheduler below the file, for all rows: {scheduler}"),
        format!("LUKS2, sectors of 4096 bytes, {size} MiB, written whole before"),
        "direct I/O everywhere, on the loop device too".to_owned(),
        format!("{rounds} rounds of {seconds} s for each row, interleaved"),
        format!("an elevator has {queue_depth} of its requests with the device, none all of them"),
        "the kernel's schedulers: ours is none, and the loop device takes 128 requests".to_owned(),
    ];
    lines.iter().map(|line| format!("* {line}\n")).collect()
}

fn tables(variants: &[Variant], samples: &[(usize, Vec<ClientResult>)], args: &Args) -> String {
    let rows = |table: Table| -> Vec<Row> {
        let rows = variants.iter().enumerate().filter(|(_, variant)| variant.table == table);
        rows.map(|(index, variant)| Row {
            name: variant.name.clone(),
            seen: medians(samples.iter().filter(|(of, _)| *of == index).map(|(_, seen)| seen)),
        })
        .collect()
    };
    let how = format!("Milliseconds: p50 / p99 / max; medians of {} rounds", args.rounds);
    let about = format!("{how}, and the longest of all.");
    let sections = [
        (Table::File, "A file on a disk"),
        (Table::Loop, "A loop device over the same file, and the kernel's schedulers for it"),
        (Table::Priorities, "Priorities: the reader against the stream, on the file"),
    ];
    let sections = sections.iter().map(|(table, heading)| (heading, rows(*table)));
    let there = sections.filter(|(_, rows)| !rows.is_empty());
    there.map(|(heading, rows)| section(heading, &about, &rows)).collect()
}

/// Summary of each client over all rounds.
fn medians<'a>(rounds: impl Iterator<Item = &'a Vec<ClientResult>>) -> Vec<ClientResult> {
    let rounds: Vec<_> = rounds.collect();
    let clients = rounds.first().map_or(0, |seen| seen.len());
    let client = |index: usize| {
        let seen: Vec<&ClientResult> = rounds.iter().map(|seen| &seen[index]).collect();
        ClientResult::over(&seen)
    };
    (0..clients).filter_map(client).collect()
}
