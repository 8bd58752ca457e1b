//! Runs one experiment and builds its report.

use blockyard_engine::elevator::ElevatorSpec;
use blockyard_report::{CauseTable, Experiment as Report, Listing, shown};
use blockyard_sim::world::Causes;

use super::causes::MACHINE;
use super::execute::{Done, JobDone, Key, Progress, Run, RunOptions, execute, spread};
use super::judge::{check_rules, control_key, judge};
use super::lines::result_lines;
use super::plots::{Plotted, plots};
use super::results::rows;
use super::search::{decided, is_accepted, seeds_of};
use super::spec::claim::{ClaimSpec, Judge};
use super::spec::fit::Fit;
use super::spec::grid::Grid;
use super::spec::tree::Override;
use super::spec::{Experiment, Variant, variants_of};
use crate::Error;

/// Selection and changes of an experiment's runs. The default is the unchanged experiment.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Variants to run; empty means all.
    pub variants: Vec<String>,
    /// Seeds; empty means the experiment's own.
    pub seeds: Vec<u64>,
    /// Values of the world to change.
    pub set: Vec<Override>,
    /// An elevator in place of the world's; it need not be registered.
    pub elevator: Option<ElevatorSpec>,
    /// Make each run twice, and fail if the traces differ.
    pub check: bool,
    /// Record events for plots.
    pub plots: bool,
    /// Run all seeds, points and grids, where the experiment has a quick run.
    pub full: bool,
    /// Rows also of variants that result lines stand for.
    pub all_rows: bool,
}

/// Results of an experiment.
#[derive(Debug)]
pub struct Outcome {
    /// Rows, verdicts and plots.
    pub report: Report,
    /// Facts that a reader of the report must not overlook.
    pub warnings: Vec<String>,
}

/// Runs an experiment in the simulated world, on all cores. Judges the claims if the experiment is
/// complete and unchanged.
///
/// # Errors
/// A variant is unknown, a changed world is invalid, or a run fails.
pub fn run(
    experiment: &Experiment,
    request: &Request,
    progress: Progress<'_>,
) -> Result<Outcome, Error> {
    check_rules(&experiment.claims)?;
    let quick = experiment.quick.as_ref().filter(|_| !request.full);
    let mut variants = chosen(experiment, &request.variants)?;
    if let Some(quick) = quick.filter(|_| request.variants.is_empty()) {
        variants.retain(|variant| !quick.leaves_out(variant));
    }
    let seeds_max = quick.map_or(usize::MAX, |quick| quick.seeds);
    let points_max = quick.map_or(usize::MAX, |quick| quick.points);
    let seeds = match &request.seeds[..] {
        [] => &experiment.seeds[..seeds_max.min(experiment.seeds.len())],
        own => own,
    };
    // Claims are about the complete, unchanged experiment.
    let is_changed = !request.set.is_empty() || request.elevator.is_some();
    let whole = request.variants.is_empty() && !is_changed;
    let mut runs = own_runs(experiment, &variants, seeds, request.plots);
    if whole {
        runs.extend(control_runs(experiment, &variants, seeds));
    }
    runs.retain(|run| run.key.point < points_max);
    let Request { set, elevator, check, .. } = request;
    let elevator = elevator.as_ref();
    let check = *check;
    let options = RunOptions { experiment, set, elevator, progress, check };
    let done = execute(options, &runs)?;
    let claims = if whole { &experiment.claims[..] } else { &[] };
    let claims = spread(claims, &|_, _| (), |claim| Ok(judge(claim, &done, seeds[0])))?;
    let (fits, mut warnings) = fits(experiment, &variants, &done, &request.set, points_max);
    let lines = result_lines(experiment, &variants, &done, &request.set)?;
    // Result lines replace the rows of large grids, except for variants selected by name.
    let lined = |variant: &&Variant| {
        let is_published = experiment.published.iter().any(|row| row.cell.variant == variant.name);
        lines.variants.contains(&variant.name) && !is_published
    };
    let shown: Vec<&Variant> = if request.variants.is_empty() && !request.all_rows {
        variants.iter().copied().filter(|variant| !lined(variant)).collect()
    } else {
        variants.clone()
    };
    let report = Report {
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        about: experiment.about.clone(),
        conditions: conditions(experiment, &variants, seeds, fits, request),
        rows: rows(experiment, &shown, &done),
        claims,
        tables: Vec::new(),
        causes: if shown.is_empty() { Vec::new() } else { causes(&shown, &done) },
        plots: if request.plots { plots(&plotted(&shown, &done)) } else { Vec::new() },
        listings: lines.listings.into_iter().chain(listings(&shown, &done)).collect(),
    };
    warnings.extend(experiment.take_warnings());
    Ok(Outcome { report, warnings })
}

/// The variants of these names; all without names.
pub(crate) fn chosen<'a>(
    experiment: &'a Experiment,
    names: &[String],
) -> Result<Vec<&'a Variant>, Error> {
    if names.is_empty() {
        return Ok(experiment.variants.iter().collect());
    }
    names.iter().map(|name| experiment.variant(name)).collect()
}

/// Each variant at each of its points, with each seed.
pub(crate) fn own_runs<'a>(
    experiment: &Experiment,
    variants: &[&'a Variant],
    seeds: &[u64],
    record: bool,
) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    for variant in variants {
        for (number, point) in experiment.points(variant).into_iter().enumerate() {
            for seed in seeds {
                let key = Key {
                    variant: variant.name.clone(),
                    point: number,
                    seed: *seed,
                    control: String::new(),
                };
                let record = record
                    && runs.last().is_none_or(|run: &Run<'_>| run.key.variant != variant.name);
                runs.push(Run { key, variant, point: point.clone(), control: &[], record });
            }
        }
    }
    runs
}

/// Runs of the negative controls; controls with equal settings share runs.
fn control_runs<'a>(
    experiment: &'a Experiment,
    all: &[&'a Variant],
    seeds: &[u64],
) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    for ClaimSpec { judge, .. } in &experiment.claims {
        let Judge::Measures { measures, control: Some(control) } = judge else { continue };
        if control.set.is_empty() {
            continue; // other variants, which run anyway
        }
        let own = if control.measures.is_empty() { measures } else { &control.measures };
        let names = variants_of(own);
        let variants = all.iter().copied().filter(|variant| names.contains(&variant.name));
        let variants: Vec<&Variant> = variants.collect();
        for mut run in own_runs(experiment, &variants, seeds, false) {
            run.key.control = control_key(&control.set);
            run.control = &control.set;
            if runs.iter().all(|before| before.key != run.key) {
                runs.push(run);
            }
        }
    }
    runs
}

/// Still accepted points of each fit of these variants, and warnings.
fn fits(
    experiment: &Experiment,
    variants: &[&Variant],
    done: &Done,
    set: &[Override],
    points_max: usize,
) -> (Vec<(String, String)>, Vec<String>) {
    let mut said = Vec::new();
    let mut warnings = Vec::new();
    for fit in &experiment.fits {
        if !variants.iter().any(|variant| fit.variants.contains(&variant.name)) {
            continue;
        }
        let name = format!("fit {}", fit.name);
        if fit.points.is_empty() {
            let text = "NOT FITTED: runs use the middle of the box; the numbers are no results";
            warnings.push(format!("{}: {name}: {text}", experiment.name));
            said.push((name, text.into()));
            continue;
        }
        let points = fit.points.len().min(points_max);
        let Some(accepted) = still_accepted(experiment, fit, points, done) else {
            let seeds = match fit.seeds {
                1 => String::new(),
                seeds => format!(" with {seeds} seeds"),
            };
            said.push((name, format!("{points} accepted points; their rows were not run{seeds}")));
            continue;
        };
        let text = format!("{accepted} of {points} points meet the bound on the calibrated rows");
        if accepted < points && set.is_empty() {
            let text = format!("{name}: only {text}: fit again (blockyard lab fit)");
            warnings.push(format!("{}: {text}", experiment.name));
        }
        said.push((name, text));
    }
    (said, warnings)
}

/// `None` if a row of the fit was not run.
fn still_accepted(experiment: &Experiment, fit: &Fit, points: usize, done: &Done) -> Option<usize> {
    let seeds = seeds_of(experiment, fit);
    let mut accepted = 0;
    for point in 0..points {
        let decides = fit.accept.iter();
        let found: Option<Vec<f64>> =
            decides.map(|accept| decided(accept, done, point, seeds)).collect();
        accepted += usize::from(is_accepted(experiment, fit, &found?));
    }
    Some(accepted)
}

fn conditions(
    experiment: &Experiment,
    variants: &[&Variant],
    seeds: &[u64],
    fits: Vec<(String, String)>,
    request: &Request,
) -> Vec<(String, String)> {
    let titled = variants.iter().filter(|variant| variant.title != variant.name);
    let mut conditions: Vec<(String, String)> =
        titled.map(|variant| (variant.name.clone(), variant.title.clone())).collect();
    let has = |grid: &&Grid| {
        let of = |variant: &&Variant| variant.grid.as_ref().is_some_and(|of| of.0 == grid.name);
        variants.iter().any(of)
    };
    let grids = experiment.grids.iter().filter(has).filter(|grid| grid.title != grid.name);
    conditions.extend(grids.map(|grid| (format!("{}-...", grid.name), grid.title.clone())));
    conditions.extend(experiment.ours.iter().cloned());
    let has = |fit: &&Fit| variants.iter().any(|variant| fit.variants.contains(&variant.name));
    for fit in experiment.fits.iter().filter(has) {
        let sides: Vec<String> = fit.sides.iter().map(ToString::to_string).collect();
        conditions.push((format!("box {}", fit.name), sides.join(", ")));
        let rows = fit.accept.iter();
        let rows: Vec<String> =
            rows.map(|row| format!("{row} within {} %", row.error_max * 100.0)).collect();
        conditions.push((format!("accepted {}", fit.name), rows.join(", ")));
    }
    let has = |of: &&Fit| variants.iter().any(|variant| of.variants.contains(&variant.name));
    for ensemble in experiment.ensembles.iter().filter(has) {
        let sides: Vec<String> = ensemble.sides.iter().map(|side| side.path.clone()).collect();
        let text = format!("{} worlds: {}", ensemble.points.len(), sides.join(", "));
        conditions.push((format!("ensemble {}", ensemble.name), text));
    }
    conditions.extend(fits);
    if let Some(quick) = experiment.quick.as_ref().filter(|_| !request.full) {
        let left_out = experiment.variants.iter().filter(|one| quick.leaves_out(one)).count();
        let all = experiment.seeds.len();
        let text = format!("without --full: {left_out} variants left out, {all} seeds in all");
        conditions.push(("quick run".into(), text));
    }
    let seeds: Vec<String> = seeds.iter().map(ToString::to_string).collect();
    conditions.push(("seeds".into(), seeds.join(", ")));
    for set in &request.set {
        conditions.push(("changed".into(), set.to_string()));
    }
    if let Some(elevator) = &request.elevator {
        conditions.push(("changed".into(), format!("elevator {elevator}")));
    }
    conditions
}

/// The first run of each variant.
fn firsts<'a>(
    variants: &[&'a Variant],
    done: &'a Done,
) -> impl Iterator<Item = (&'a Variant, &'a JobDone)> {
    variants.iter().copied().flat_map(move |variant| {
        let own = |(key, _): &(&Key, _)| key.variant == variant.name && key.control.is_empty();
        let first = done.iter().find(own);
        first.into_iter().flat_map(move |(_, jobs)| jobs.iter().map(move |job| (variant, job)))
    })
}

fn label(variant: &Variant, job: &JobDone) -> String {
    let alone = variant.jobs.len() == 1;
    if alone { variant.name.clone() } else { format!("{}, {}", variant.name, job.job) }
}

fn causes(variants: &[&Variant], done: &Done) -> Vec<CauseTable> {
    let table = |title: &str, columns: &[&str], cells: fn(&Causes) -> Vec<String>| CauseTable {
        title: title.into(),
        columns: columns.iter().map(ToString::to_string).collect(),
        rows: firsts(variants, done)
            .map(|(variant, job)| (label(variant, job), cells(&job.causes)))
            .collect(),
    };
    vec![
        table(
            "Causes: the device (first point and seed of each variant)",
            &["requests", "mean KiB", "merges", "seek s", "rotate s", "transfer s", "idled s"],
            device_causes,
        ),
        table(
            "Causes: above the device",
            &[
                "sync bios",
                "KiB ahead of one",
                "waited for request",
                "wake-ups",
                "switches",
                "hits",
            ],
            host_causes,
        ),
    ]
}

fn seconds(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e9)
}

fn mean(sum: u64, count: u64) -> String {
    if count == 0 { "-".into() } else { format!("{:.1}", sum as f64 / count as f64) }
}

fn device_causes(causes: &Causes) -> Vec<String> {
    let queue = &causes.queue;
    let disk = |of: fn(&blockyard_sim::device::disk::DiskCounters) -> u64| {
        causes.disk.as_ref().map_or_else(|| "-".into(), |disk| seconds(of(disk)))
    };
    vec![
        queue.issued.to_string(),
        mean(causes.issued_sectors / 2, queue.issued),
        (queue.back_merges + queue.front_merges + queue.request_merges).to_string(),
        disk(|disk| disk.seeking.0),
        disk(|disk| disk.rotating.0),
        disk(|disk| disk.transferring.0),
        seconds(causes.idle_waiting.0),
    ]
}

fn host_causes(causes: &Causes) -> Vec<String> {
    let hits = causes.page_hits as f64 * 100.0 / causes.page_lookups.max(1) as f64;
    vec![
        causes.sync_bios.to_string(),
        mean(causes.bytes_ahead_of_sync / 1024, causes.sync_bios),
        causes.queue.parked.to_string(),
        causes.wake_ups.to_string(),
        causes.switches.to_string(),
        if causes.page_lookups == 0 { "-".into() } else { format!("{hits:.1} %") },
    ]
}

fn plotted<'a>(variants: &[&'a Variant], done: &'a Done) -> Vec<Plotted<'a>> {
    let one = |(variant, job): (&Variant, &'a JobDone)| {
        let series = job.plot_data.as_ref()?;
        Some(Plotted { job: job.job.clone(), label: label(variant, job), series })
    };
    firsts(variants, done).filter_map(one).collect()
}

fn listings(variants: &[&Variant], done: &Done) -> Vec<Listing> {
    let listing = |(variant, job): (&Variant, &JobDone)| Listing {
        title: format!("{} (first point and seed)", label(variant, job)),
        text: job.listing.clone(),
    };
    firsts(variants, done).map(listing).collect()
}

/// Medians of several reports side by side, with the changes from the first.
///
/// # Errors
/// No row is in several reports.
pub fn side_by_side(columns: &[(String, Report)]) -> Result<CauseTable, Error> {
    let Some(((_, base), others)) = columns.split_first() else { return Ok(CauseTable::default()) };
    let mut rows = Vec::new();
    let mut compared = false;
    for row in base.rows.iter().filter(|row| row.ours.is_some()) {
        let name = format!("{} / {} / {}", row.variant, row.row, row.metric);
        let of = |report: &Report| {
            let same = |other: &&blockyard_report::Row| {
                (&other.variant, &other.row, &other.metric) == (&row.variant, &row.row, &row.metric)
            };
            report.rows.iter().find(same).and_then(|row| row.ours).map(|ours| ours.median)
        };
        let mut cells = Vec::new();
        let before = of(base);
        let unit = row.unit;
        let number =
            |value: Option<f64>| value.map_or_else(|| "-".into(), |value| shown(unit, value));
        cells.push(number(before));
        for (_, report) in others {
            let after = of(report);
            // Every world has this row, so it does not count.
            compared |= after.is_some() && row.row != MACHINE;
            cells.push(number(after));
            let change = before.zip(after).filter(|(before, _)| *before != 0.0);
            cells.push(change.map_or_else(
                || "-".into(),
                |(before, after)| format!("{:+.1} %", (after / before - 1.0) * 100.0),
            ));
        }
        rows.push((name, cells));
    }
    let mut names = vec![columns[0].0.clone()];
    for (name, _) in others {
        names.extend([name.clone(), "change".into()]);
    }
    if !compared {
        let what = "no row is in several reports: variants and jobs must have the same names";
        return Err(Error::new(what));
    }
    Ok(CauseTable { title: "Medians side by side".into(), columns: names, rows })
}
