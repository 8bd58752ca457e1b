//! Runs one experiment and builds its report.

use blockyard_engine::elevator::ElevatorSpec;
use blockyard_report::{
    Axis, CauseTable, Experiment as Report, Listing, Plot, Series, Style, shown,
};
use blockyard_sim::world::Causes;

use super::causes::MACHINE;
use super::execute::{Done, JobDone, Key, Progress, Run, RunOptions, execute, spread};
use super::judge::{check_rules, control_key, judge};
use super::lines::result_lines;
use super::observe::PlotData;
use super::results::{rows, values};
use super::search::is_accepted;
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
    let variants = chosen(experiment, &request.variants)?;
    let seeds = if request.seeds.is_empty() { &experiment.seeds } else { &request.seeds };
    // Claims are about the complete, unchanged experiment.
    let is_changed = !request.set.is_empty() || request.elevator.is_some();
    let whole = request.variants.is_empty() && !is_changed;
    let mut runs = own_runs(experiment, &variants, seeds, request.plots);
    if whole {
        runs.extend(control_runs(experiment, seeds));
    }
    let Request { set, elevator, check, .. } = request;
    let (elevator, check) = (elevator.as_ref(), *check);
    let options = RunOptions { experiment, set, elevator, progress, check };
    let done = execute(options, &runs)?;
    let claims = if whole { &experiment.claims[..] } else { &[] };
    let claims = spread(claims, &|_, _| (), |claim| Ok(judge(claim, &done, seeds[0])))?;
    let (fits, mut warnings) = fits(experiment, &variants, &done, &request.set);
    let lines = result_lines(experiment, &variants, &done, &request.set)?;
    // Result lines replace the rows of large grids, except for variants selected by name.
    let lined = |variant: &&Variant| lines.variants.contains(&variant.name);
    let shown: Vec<&Variant> = match request.variants.is_empty() {
        true => variants.iter().copied().filter(|variant| !lined(variant)).collect(),
        false => variants.clone(),
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
        plots: if request.plots { plots(&shown, &done) } else { Vec::new() },
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
fn control_runs<'a>(experiment: &'a Experiment, seeds: &[u64]) -> Vec<Run<'a>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    for ClaimSpec { judge, .. } in &experiment.claims {
        let Judge::Measures { measures, control: Some(control) } = judge else { continue };
        let own = if control.measures.is_empty() { measures } else { &control.measures };
        let names = variants_of(own);
        let variants = experiment.variants.iter().filter(|variant| names.contains(&variant.name));
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
) -> (Vec<(String, String)>, Vec<String>) {
    let (mut said, mut warnings) = (Vec::new(), Vec::new());
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
        let points = fit.points.len();
        let Some(accepted) = still_accepted(experiment, fit, done) else {
            said.push((name, format!("{points} accepted points; their rows were not run")));
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
fn still_accepted(experiment: &Experiment, fit: &Fit, done: &Done) -> Option<usize> {
    let seed = experiment.seeds[0];
    let mut accepted = 0;
    for point in 0..fit.points.len() {
        let found: Option<Vec<f64>> = fit
            .accept
            .iter()
            .map(|accept| values(done, &accept.cell, "").get(&(point, seed)).copied())
            .collect();
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
            rows.map(|row| format!("{} within {} %", row.cell, row.error_max * 100.0)).collect();
        conditions.push((format!("accepted {}", fit.name), rows.join(", ")));
    }
    conditions.extend(fits);
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

fn listings(variants: &[&Variant], done: &Done) -> Vec<Listing> {
    let listing = |(variant, job): (&Variant, &JobDone)| Listing {
        title: format!("{} (first point and seed)", label(variant, job)),
        text: job.listing.clone(),
    };
    firsts(variants, done).map(listing).collect()
}

/// Plots for each job; variants share a plot if their series can be distinguished.
fn plots(variants: &[&Variant], done: &Done) -> Vec<Plot> {
    let mut groups: Vec<(String, Vec<(String, &PlotData)>)> = Vec::new();
    for (variant, job) in firsts(variants, done) {
        let Some(plot_data) = &job.plot_data else { continue };
        let one = (label(variant, job), plot_data);
        match groups.iter_mut().find(|(name, _)| *name == job.job) {
            Some((_, group)) => group.push(one),
            None => groups.push((job.job.clone(), vec![one])),
        }
    }
    let mut plots = Vec::new();
    for (job, group) in &groups {
        plots.push(Plot {
            title: format!("{job}: latency of synchronous bios"),
            x: Axis { label: "latency, s".into(), log: true },
            y: Axis { label: "share of bios up to this latency".into(), log: false },
            series: series(group, Style::Step, |plot_data| plot_data.latency.clone()),
        });
        plots.push(Plot {
            title: format!("{job}: bios in queue and device"),
            x: time(),
            y: Axis { label: "bios".into(), log: false },
            series: series(group, Style::Step, |plot_data| plot_data.depth.clone()),
        });
        for one in group {
            let alone = std::slice::from_ref(one);
            plots.push(Plot {
                title: format!("{}: position of the head", one.0),
                x: time(),
                y: Axis { label: "position, MiB".into(), log: false },
                series: series(alone, Style::Points, |plot_data| plot_data.head.clone()),
            });
            plots.push(Plot {
                title: format!("{}: threads at the device", one.0),
                x: time(),
                y: Axis { label: "thread".into(), log: false },
                series: series(alone, Style::Spans, |plot_data| {
                    let ends = |&(from, to, thread): &(f64, f64, u32)| {
                        [(from, f64::from(thread)), (to, f64::from(thread))]
                    };
                    plot_data.served.iter().flat_map(ends).collect()
                }),
            });
        }
    }
    plots
}

fn time() -> Axis {
    Axis { label: "time, s".into(), log: false }
}

fn series(
    group: &[(String, &PlotData)],
    style: Style,
    points: impl Fn(&PlotData) -> Vec<(f64, f64)>,
) -> Vec<Series> {
    let one = |(name, plot_data): &(String, &PlotData)| Series {
        name: name.clone(),
        style,
        points: points(plot_data),
    };
    group.iter().map(one).collect()
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
