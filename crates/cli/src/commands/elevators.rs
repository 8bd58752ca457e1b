//! `blockyard elevators`: lists the schedulers and their tunables.

use std::fmt::Write as _;

use blockyard_engine::elevator::{ELEVATORS, ElevatorType, Generation, Tunable};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;

use crate::args::ShortHelpArgs;
use crate::failure::Failure;
use crate::json::pretty;
use crate::output::print;

/// Width of the lists on a terminal.
const WIDTH: usize = 100;

/// List the elevators (I/O schedulers) and their tunables
///
/// Use them with `serve --elevator NAME[,TUNABLE=VALUE...]`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ElevatorsArgs {
    /// List this elevator only
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(names()))]
    name: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

fn names() -> impl Iterator<Item = &'static str> {
    ELEVATORS.iter().map(|elevator| elevator.name)
}

/// Prints the list.
pub(crate) fn run(args: &ElevatorsArgs) -> Result<(), Failure> {
    let wanted = ELEVATORS.iter().copied();
    let wanted: Vec<_> = wanted
        .filter(|elevator| args.name.as_ref().is_none_or(|name| name == elevator.name))
        .collect();
    if args.json {
        let all: Vec<_> = wanted.iter().map(|elevator| ElevatorReport::of(elevator)).collect();
        return print(&pretty(&all));
    }
    print(&listing(&wanted))
}

fn generation(elevator: &ElevatorType) -> &'static str {
    match elevator.generation {
        Generation::Single => "single",
        Generation::Multi => "multi",
    }
}

/// The JSON of an elevator.
#[derive(Serialize)]
struct ElevatorReport {
    name: &'static str,
    about: &'static str,
    generation: &'static str,
    tunables: Vec<TunableReport>,
}

/// The JSON of a tunable.
#[derive(Serialize)]
struct TunableReport {
    name: &'static str,
    default: u64,
    min: u64,
    max: u64,
    unit: &'static str,
    about: &'static str,
}

impl ElevatorReport {
    fn of(elevator: &ElevatorType) -> Self {
        Self {
            name: elevator.name,
            about: elevator.about,
            generation: generation(elevator),
            tunables: elevator.tunables.iter().map(TunableReport::of).collect(),
        }
    }
}

impl TunableReport {
    fn of(tunable: &Tunable) -> Self {
        let Tunable { name, default, min, max, unit, about } = *tunable;
        Self { name, default, min, max, unit, about }
    }
}

/// Widths of the columns, over all shown elevators.
struct Columns {
    name: usize,
    default: usize,
    range: usize,
}

impl Columns {
    fn of(elevators: &[&ElevatorType]) -> Self {
        let widest = |width: fn(&Tunable) -> usize| {
            let tunables = elevators.iter().flat_map(|elevator| elevator.tunables);
            tunables.map(width).max().unwrap_or(0)
        };
        Self {
            name: widest(|tunable| tunable.name.len()),
            default: widest(|tunable| default(tunable).len()),
            range: widest(|tunable| range(tunable).len()),
        }
    }
}

fn default(tunable: &Tunable) -> String {
    format!("{} {}", tunable.default, tunable.unit).trim_end().into()
}

fn range(tunable: &Tunable) -> String {
    format!("{}..{}", tunable.min, tunable.max)
}

fn listing(elevators: &[&ElevatorType]) -> String {
    let columns = Columns::of(elevators);
    let width = elevators.iter().map(|elevator| elevator.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for elevator in elevators {
        let has_tunables = !elevator.tunables.is_empty();
        if has_tunables && !text.is_empty() && !text.ends_with("\n\n") {
            text.push('\n');
        }
        append(&mut text, &format!("{:<width$}  ", elevator.name), elevator.about);
        for tunable in elevator.tunables {
            let start = format!(
                "    {:<name$}  {:<default$}  {:<range$}  ",
                tunable.name,
                default(tunable),
                range(tunable),
                name = columns.name,
                default = columns.default,
                range = columns.range
            );
            append(&mut text, &start, tunable.about);
        }
        if has_tunables {
            text.push('\n');
        }
    }
    // A blank line between elevators, none at the end.
    text.truncate(text.trim_end().len() + 1);
    text
}

/// Appends words after `start`; further lines are indented to the first word.
fn append(text: &mut String, start: &str, words: &str) {
    let indent = " ".repeat(start.len());
    let mut line = start.to_owned();
    for word in words.split_whitespace() {
        let begun = line.len() > indent.len();
        if begun && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            line.clone_from(&indent);
        } else if begun {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_explanations_go_on_below_their_first_word() {
        let mut text = String::new();
        append(&mut text, "name  ", &"word ".repeat(40));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() > 1 && lines.iter().all(|line| line.chars().count() <= WIDTH));
        assert!(lines[1].starts_with("      word"), "{text}");
        assert_eq!(text.split_whitespace().count(), 41);
    }
}
