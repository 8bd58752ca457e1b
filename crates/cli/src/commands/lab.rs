//! `blockyard lab`: experiments on a simulated machine.

mod fit_device;

use std::path::{Path, PathBuf};

use blockyard::bench::Place;
use blockyard_engine::time::Nanos;
use blockyard_lab::builtin::{self, BUILTIN, Group, TEMPLATE, find, fits_path, text_of};
use blockyard_lab::{
    Experiment, Outcome, Override, Request, Setup, Tracer, Variant, Window, real, relabel,
    run as run_lab, run_job, search, side_by_side, sim,
};
use blockyard_report::{Experiment as Report, html, json, text};
use clap::{Args, Subcommand, ValueHint};

use crate::args::{ForceArgs, ShortHelpArgs};
use crate::failure::Failure;
use crate::output::{InUse, Output, print, say, warn};
use crate::progress::{Progress, Steps};

/// Run experiments with I/O schedulers on a simulated machine
///
/// An experiment is a TOML file: machine, device, file system, queue, jobs, their variants, and
/// published results and claims. `lab template` prints a commented template; docs/lab.md explains
/// all settings.
#[derive(Args, Debug)]
#[command(disable_help_flag = true, disable_help_subcommand = true)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,

    #[command(flatten)]
    help: ShortHelpArgs,
}

#[derive(Subcommand, Debug)]
#[command(disable_help_flag = true)]
enum LabCommand {
    List(ListArgs),
    Run(RunArgs),
    Compare(CompareArgs),
    Trace(TraceArgs),
    Report(ReportArgs),
    Fit(FitArgs),
    FitDevice(fit_device::FitDeviceArgs),
    Show(ShowArgs),
    Template(TemplateArgs),
}

/// List blockyard's experiments
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ListArgs {
    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Common options of all runs.
#[derive(Args, Debug)]
struct SelectArgs {
    /// Run this variant only; may be repeated
    #[arg(long = "variant", value_name = "NAME")]
    variants: Vec<String>,

    /// Run with this seed instead of the experiment's; may be repeated
    #[arg(
        long = "seed",
        value_name = "N",
        value_parser = parse_seed,
        allow_negative_numbers = true
    )]
    seeds: Vec<u64>,

    /// Run everything twice, and check that the traces agree
    #[arg(long)]
    check: bool,

    /// Run all seeds, points and grids; large experiments run a part of them by default
    #[arg(long)]
    full: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Run an experiment: published and own results side by side, and verdicts of claims
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct RunArgs {
    /// Name (see `lab list`) or TOML file
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    experiment: String,

    /// Change a setting of the machine: queue.elevator=cfq, jobs.tio.threads=8
    #[arg(long, value_name = "PATH=VALUE", value_parser = Override::parse)]
    set: Vec<Override>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    real: RealArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Options of a run of the jobs on this machine.
#[derive(Args, Debug)]
#[command(next_help_heading = "On this machine")]
struct RealArgs {
    /// Run the jobs on this machine: `memory`, or a file or block device for their files
    ///
    /// They use blockyard's queue and the variant's elevator, without a page cache and a file
    /// system. The other settings of the simulated machine have no effect.
    #[arg(
        long,
        value_name = "memory|PATH",
        value_hint = ValueHint::FilePath,
        conflicts_with = "check"
    )]
    real: Option<PathBuf>,

    /// Permit overwriting the data of the file or device
    #[arg(long, requires = "real", conflicts_with = "check")]
    destroy: bool,
}

/// Run an experiment with several settings, or several experiments, side by side
///
/// The first column is the unchanged experiment; each --set adds a column.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct CompareArgs {
    /// Names or TOML files
    #[arg(value_name = "NAME|FILE", required = true, value_hint = ValueHint::FilePath)]
    experiments: Vec<String>,

    /// Add a column with these settings, separated by `;`
    #[arg(long, value_name = "PATH=VALUE[;...]")]
    set: Vec<String>,

    #[command(flatten)]
    select: SelectArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Show the order of threads at the device, and the history of each request
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct TraceArgs {
    /// Name (see `lab list`) or TOML file
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    experiment: String,

    /// Variant; not needed if there is only one
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,

    /// Run with this seed instead of the experiment's first
    #[arg(long, value_name = "N", value_parser = parse_seed, allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Change a setting of the machine
    #[arg(long, value_name = "PATH=VALUE", value_parser = Override::parse)]
    set: Vec<Override>,

    /// Start at this second of simulated time
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "0",
        value_parser = parse_seconds,
        allow_negative_numbers = true
    )]
    from: Nanos,

    /// End at this second
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "1",
        value_parser = parse_seconds,
        allow_negative_numbers = true
    )]
    until: Nanos,

    /// Maximum length of each list
    #[arg(
        long,
        value_name = "N",
        default_value = "200",
        value_parser = parse_limit,
        allow_negative_numbers = true
    )]
    limit: u32,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Run experiments and write one self-contained HTML page
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ReportArgs {
    /// Names or TOML files; the default is all of blockyard's experiments
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    experiments: Vec<String>,

    /// HTML page to write; `-` is standard output
    #[arg(short, long, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    output: PathBuf,

    #[command(flatten)]
    force: ForceArgs,

    /// Run everything twice, and check that the traces agree
    #[arg(long)]
    check: bool,

    /// Run all seeds, points and grids; large experiments run a part of them by default
    #[arg(long)]
    full: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Search the parameter ranges of an experiment's fits, and write the accepted points
///
/// Only the rows for fitting are run. The points go into a file beside the experiment:
/// mine.fits.toml for mine.toml.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct FitArgs {
    /// Name (see `lab list`) or TOML file
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    experiment: String,

    /// File for the points; needed for blockyard's own experiments
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Print the file of an experiment
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ShowArgs {
    /// Name (see `lab list`) or TOML file
    #[arg(value_name = "NAME|FILE", value_hint = ValueHint::FilePath)]
    experiment: String,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Print a commented template of an experiment
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct TemplateArgs {
    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Runs the subcommand.
pub(crate) fn run(args: &LabArgs) -> Result<(), Failure> {
    match &args.command {
        LabCommand::List(_) => list(),
        LabCommand::Run(args) => run_one(args),
        LabCommand::Compare(args) => compare(args),
        LabCommand::Trace(args) => trace(args),
        LabCommand::Report(args) => report(args),
        LabCommand::Fit(args) => fit(args),
        LabCommand::FitDevice(args) => fit_device::run(args),
        LabCommand::Show(args) => print(&text_of(&args.experiment)?),
        LabCommand::Template(_) => print(TEMPLATE),
    }
}

/// The experiment of this name or file; reports on standard error missing parts of its traces.
pub(crate) fn load(name: &str) -> Result<Experiment, Failure> {
    let experiment = builtin::load(name)?;
    warn(&experiment.take_warnings());
    Ok(experiment)
}

/// Prepares a run of a variant at its first point; reports on standard error missing parts of the
/// traces that `set` names.
pub(crate) fn set_up(
    experiment: &Experiment,
    variant: &Variant,
    set: &[Override],
) -> Result<Setup, Failure> {
    let point = experiment.points(variant).into_iter().next().flatten();
    let setup = experiment.setup(variant, point.as_ref(), set, &[])?;
    warn(&experiment.take_warnings());
    Ok(setup)
}

fn list() -> Result<(), Failure> {
    let mut lines = String::new();
    for group in Group::ALL {
        lines += &format!("{}:\n\n", group.title());
        for builtin in BUILTIN.iter().filter(|builtin| builtin.group == group) {
            let experiment = load(builtin.name)?;
            lines += &format!("{}  {}\n", experiment.name, experiment.title);
            lines += &format!("    variants: {}\n", experiment.variant_names().join(", "));
        }
        lines += "\n";
    }
    lines += "`blockyard lab template` prints the start of yours.\n";
    print(&lines)
}

fn run_one(args: &RunArgs) -> Result<(), Failure> {
    let experiment = load(&args.experiment)?;
    let request = args.select.request(&args.set);
    if let Some(path) = &args.real.real {
        let place = match path.to_str() {
            Some("memory") => Place::Memory { len_bytes: None },
            _ => Place::Path(path.clone()),
        };
        let steps = Steps::default();
        let progress = |done, all| steps.at(done, all);
        let report = real::run(&experiment, &request, &place, args.real.destroy, &progress)?;
        warn(&experiment.take_warnings());
        return show_changed(report, &experiment, args);
    }
    let outcome = with_bar(&experiment, &request)?;
    warn(&outcome.warnings);
    show_changed(outcome.report, &experiment, args)
}

/// Shows a report whose settings the command line may have changed.
fn show_changed(
    mut report: Report,
    experiment: &Experiment,
    args: &RunArgs,
) -> Result<(), Failure> {
    if !args.select.json {
        relabel(&mut report, experiment, &args.set);
    }
    show(&report, args.select.json)
}

/// Runs an experiment, with a progress bar at a terminal.
fn with_bar(experiment: &Experiment, request: &Request) -> Result<Outcome, Failure> {
    let steps = Steps::default();
    Ok(run_lab(experiment, request, &|done, all| steps.at(done, all))?)
}

impl SelectArgs {
    /// Removes repetitions.
    fn request(&self, set: &[Override]) -> Request {
        let mut variants = Vec::new();
        let mut seeds = Vec::new();
        for variant in &self.variants {
            if !variants.contains(variant) {
                variants.push(variant.clone());
            }
        }
        for seed in &self.seeds {
            if !seeds.contains(seed) {
                seeds.push(*seed);
            }
        }
        Request {
            variants,
            seeds,
            set: set.to_vec(),
            check: self.check,
            full: self.full,
            all_rows: self.json,
            ..Request::default()
        }
    }
}

fn show(report: &Report, as_json: bool) -> Result<(), Failure> {
    print(&if as_json { json(report) + "\n" } else { text(report) })
}

fn compare(args: &CompareArgs) -> Result<(), Failure> {
    if args.experiments.len() == 1 && args.set.is_empty() {
        return Err(Failure::failed("nothing to compare: give --set, or a second experiment"));
    }
    let mut columns = Vec::new();
    let mut warnings = Vec::new();
    for name in &args.experiments {
        let experiment = load(name)?;
        let own = [String::new()];
        for words in own.iter().chain(&args.set) {
            let set = parse_several(words)?;
            let outcome = with_bar(&experiment, &args.select.request(&set))?;
            let mut title = if words.is_empty() { "as it is".into() } else { words.clone() };
            if args.experiments.len() > 1 {
                title = format!("{}: {title}", experiment.name);
            }
            columns.push((title, outcome.report));
            warnings.extend(outcome.warnings);
        }
    }
    warnings.sort();
    warnings.dedup();
    warn(&warnings);
    if args.select.json {
        let mut all = Report { name: "compare".into(), ..Report::default() };
        for (title, report) in columns {
            let rows = report.rows.into_iter();
            all.rows.extend(rows.map(|mut row| {
                row.variant = format!("{} [{title}]", row.variant);
                row
            }));
        }
        return print(&(json(&all) + "\n"));
    }
    let title = "side by side".into();
    let causes = vec![side_by_side(&columns)?];
    let name = args.experiments.join(", ");
    print(&text(&Report { name, title, causes, ..Report::default() }))
}

fn parse_several(words: &str) -> Result<Vec<Override>, Failure> {
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let parse = |word: &str| {
        Override::parse(word).map_err(|problem| Failure::failed(format!("--set: {problem}")))
    };
    words.split(';').map(parse).collect()
}

fn trace(args: &TraceArgs) -> Result<(), Failure> {
    let experiment = load(&args.experiment)?;
    let variant = match (&args.variant, &experiment.variants[..]) {
        (Some(name), _) => experiment.variant(name)?,
        (None, [only]) => only,
        (None, several) => {
            let names: Vec<&str> = several.iter().map(|one| one.name.as_str()).collect();
            let names = names.join(", ");
            return Err(Failure::failed(format!("choose a --variant: {names}")));
        }
    };
    if args.from >= args.until {
        return Err(Failure::failed("--from must be before --until"));
    }
    let setup = set_up(&experiment, variant, &args.set)?;
    let seed = args.seed.unwrap_or(experiment.seeds[0]);
    let config = sim::world::Config { seed, ..setup.config };
    let window = Window { from: args.from, until: args.until, limit: args.limit as usize };
    for (name, job) in &setup.jobs {
        let (_, tracer) = run_job(&config, name, job, Tracer::new(window))?;
        let threads = threads(config.write_back.flushers, tracer.first_task());
        let variant = &variant.name;
        let listing = tracer.print();
        print(&format!("{variant}, job {name}, seed {seed}. {threads}{listing}\n"))?;
    }
    Ok(())
}

/// Numbers of the simulated machine's own threads, which precede the job's.
fn threads(flushers: u32, first: u32) -> String {
    let own = match flushers {
        1 => "Thread 0 is the flusher".to_owned(),
        many => format!("Threads 0 to {} are flushers", many - 1),
    };
    format!("{own}, {flushers} the journal; the job's begin with {first}.\n")
}

fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

fn parse_limit(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("not a whole number from 0 to {}", u32::MAX))
}

fn parse_seconds(text: &str) -> Result<Nanos, String> {
    let refuse = || format!("{text:?} is no time: give seconds, for example 1.5");
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if part.len() > 9 || !part.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(refuse());
    }
    let whole: u64 = whole.parse().map_err(|_| refuse())?;
    let part: u64 = format!("{part:0<9}").parse().map_err(|_| refuse())?;
    let nanos = whole.checked_mul(1_000_000_000).and_then(|whole| whole.checked_add(part));
    nanos.map(Nanos).ok_or_else(refuse)
}

fn report(args: &ReportArgs) -> Result<(), Failure> {
    let names: Vec<&str> = if args.experiments.is_empty() {
        BUILTIN.iter().map(|builtin| builtin.name).collect()
    } else {
        args.experiments.iter().map(String::as_str).collect()
    };
    let in_use = InUse::of_paths(names.iter().map(Path::new));
    let is_stdout = args.output.as_os_str() == "-";
    let output = (!is_stdout).then(|| Output::new(&args.output, args.force.force));
    if let Some(output) = &output {
        output.check(&in_use)?;
    }
    let mut reports = Vec::new();
    for name in names {
        let check = args.check;
        let full = args.full;
        let request = Request { check, full, plots: true, ..Request::default() };
        let outcome = with_bar(&load(name)?, &request)?;
        warn(&outcome.warnings);
        reports.push(outcome.report);
    }
    let page = html("Blockyard: the lab", &reports);
    let Some(output) = output else { return print(&page) };
    output.write(&in_use, &page)?;
    say(&format!("wrote {}", args.output.display()));
    Ok(())
}

fn fit(args: &FitArgs) -> Result<(), Failure> {
    let mut experiment = load(&args.experiment)?;
    let output = match (&args.output, find(&args.experiment)) {
        (Some(output), _) => output.clone(),
        (None, None) => fits_path(Path::new(&args.experiment)),
        (None, Some(_)) => {
            return Err(Failure::failed(
                "this is an experiment of blockyard: give a file for the points with -o",
            ));
        }
    };
    if experiment.fits.is_empty() {
        let name = &experiment.name;
        return Err(Failure::failed(format!("{name} has no fits: add a [fits.NAME] table")));
    }
    let in_use = InUse::of_paths([Path::new(&args.experiment)]);
    let file = Output::new(&output, args.force.force);
    file.check(&in_use)?;
    let mut text =
        "# Written by `blockyard lab fit`: the accepted points of each box.\n".to_owned();
    let mut without = Vec::new();
    let mut fits = std::mem::take(&mut experiment.fits);
    for fit in &mut fits {
        fit.points.clear();
    }
    experiment.fits = fits.clone();
    for fit in &mut fits {
        let bar = Progress::points(u64::from(fit.draws));
        let searched = |drawn, accepted| {
            bar.at(u64::from(drawn));
            bar.say(format!("fit {}: {accepted} of {} accepted", fit.name, fit.keep));
        };
        let found = search(&experiment, fit, searched, &|_, _| ())?;
        drop(bar);
        found.summary(fit).iter().for_each(|line| say(line));
        if found.accepted.is_empty() {
            without.push(fit.name.clone());
            continue;
        }
        let drawn = found.drawn;
        fit.points = found.accepted;
        text += &format!("\n{}", fit.print(drawn));
    }
    if without.len() < fits.len() {
        file.write(&in_use, &text)?;
        say(&format!("wrote {}", output.display()));
    }
    match without[..] {
        [] => Ok(()),
        _ => Err(Failure::failed(format!(
            "no point was accepted for {}: the model cannot do these rows within this box; widen \
             the box, or say why a larger error_max is near enough",
            without.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_with_up_to_nine_digits_behind_the_dot() {
        assert_eq!(parse_seconds("1.5"), Ok(Nanos(1_500_000_000)));
        assert_eq!(parse_seconds("0.000000001"), Ok(Nanos(1)));
        assert_eq!(parse_seconds("3"), Ok(Nanos(3_000_000_000)));
        for text in ["", "-1", "1,5", "1.0000000001", "99999999999999", "1.-5", "+1.5e3"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn several_settings_of_a_column_are_separated_by_semicolons() {
        let set =
            parse_several("queue.elevator=deadline,fifo_batch=4; queue.nr_requests=8").unwrap();
        let paths: Vec<&str> = set.iter().map(Override::path).collect();
        assert_eq!(paths, ["queue.elevator", "queue.nr_requests"]);
        for words in ["queue.elevator", ";", "queue.elevator=cfq;", "=1"] {
            assert!(parse_several(words).is_err(), "{words}");
        }
        assert!(parse_several("").unwrap().is_empty(), "the experiment as it is");
    }
}
