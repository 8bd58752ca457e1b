//! `cargo x bench engine`: cost of the engine above the cipher, in three parts.
//!
//! *Pipelines*: the real path of a volume in memory, every pipeline beside the bare cipher, on one
//! core and on two. *Stages*: the cost of timing requests. *Shard*: the engine alone, without
//! cipher and system calls, and the request queue with each elevator.

use super::{example, machine};
use anyhow::Result;
use clap::ValueEnum;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Pipelines,
    Stages,
    Shard,
}

/// Extent of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// One short round of the pipelines: too short for valid figures.
    #[arg(long)]
    smoke: bool,
    /// Only JSON: a line for each figure.
    #[arg(long)]
    json: bool,
    /// Arguments for the pipelines: `--rounds N`; `--job`, `--pipeline` and `--placement` with a
    /// part of a name.
    #[arg(last = true)]
    words: Vec<String>,
}

impl Args {
    pub(crate) fn smoke() -> Args {
        Args { only: Some(Part::Pipelines), smoke: true, json: false, words: Vec::new() }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let flag = |is_given: bool, word: &str| is_given.then(|| word.to_owned());
    let json = flag(args.json, "--json");
    if !args.json {
        machine::print(&machine::describe());
    }
    if args.only.is_none_or(|part| part == Part::Pipelines) {
        let mut words = args.words.clone();
        words.extend(json.iter().cloned().chain(flag(args.smoke, "--smoke")));
        example("blockyard-host", "pipeline_bench", &words)?;
    }
    if args.only.is_none_or(|part| part == Part::Stages) {
        let own = if args.only.is_some() { args.words.clone() } else { Vec::new() };
        let words: Vec<String> = own.into_iter().chain(json.clone()).collect();
        example("blockyard-host", "stages_bench", &words)?;
    }
    if args.only.is_none_or(|part| part == Part::Shard) {
        let words: Vec<String> = json.into_iter().collect();
        example("blockyard-host", "engine_bench", &words)?;
    }
    Ok(())
}
