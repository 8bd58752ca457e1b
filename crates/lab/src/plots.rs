//! Plots of the first run of each variant. Plots of one kind have the same scale in all variants of
//! a job, so that they can be compared by eye.

use blockyard_report::{Axis, Plot, Series, Style};

use super::observe::PlotData;

/// The series of a run.
pub(crate) struct Plotted<'a> {
    pub(crate) job: String,
    /// Name of the variant.
    pub(crate) label: String,
    pub(crate) series: &'a PlotData,
}

/// Plots for each job; variants share a plot if their series can be distinguished.
pub(crate) fn plots(all: &[Plotted<'_>]) -> Vec<Plot> {
    let mut jobs: Vec<&str> = all.iter().map(|one| &*one.job).collect();
    jobs.dedup();
    jobs.into_iter().flat_map(|job| of_job(job, all)).collect()
}

fn of_job(job: &str, all: &[Plotted<'_>]) -> Vec<Plot> {
    let group: Vec<&Plotted<'_>> = all.iter().filter(|one| one.job == job).collect();
    let mut plots = vec![
        Plot {
            title: format!("{job}: share of synchronous bios that take longer"),
            x: axis("latency, s", true, None),
            y: axis("share of bios above this latency", true, None),
            series: series(&group, Style::Step, |series| series.latency.clone()),
        },
        Plot {
            title: format!("{job}: bios in queue and device"),
            x: axis("time, s", false, None),
            y: axis("bios", false, None),
            series: series(&group, Style::Step, |series| series.depth.clone()),
        },
    ];
    let head = range(group.iter().flat_map(|one| &one.series.head).map(|(_, place)| *place));
    let served = || group.iter().flat_map(|one| &one.series.served);
    let threads = range(served().map(|(.., thread)| f64::from(*thread)));
    for one in &group {
        let alone = std::slice::from_ref(one);
        plots.push(Plot {
            title: format!("{}: position of the head", one.label),
            x: axis("time, s", false, None),
            y: axis("position, MiB", false, head),
            series: series(alone, Style::Points, |series| series.head.clone()),
        });
        plots.push(Plot {
            title: format!("{}: threads at the device, successive requests", one.label),
            x: axis("time, s", false, None),
            y: axis("thread", false, threads),
            series: series(alone, Style::Spans, |series| {
                let ends = |&(from, to, thread): &(f64, f64, u32)| {
                    [(from, f64::from(thread)), (to, f64::from(thread))]
                };
                series.served.iter().flat_map(ends).collect()
            }),
        });
    }
    plots
}

fn axis(label: &str, log: bool, shows: Option<(f64, f64)>) -> Axis {
    Axis { label: label.into(), log, shows }
}

fn range(numbers: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    numbers.clone().reduce(f64::min).zip(numbers.reduce(f64::max))
}

fn series(
    group: &[&Plotted<'_>],
    style: Style,
    points: impl Fn(&PlotData) -> Vec<(f64, f64)>,
) -> Vec<Series> {
    let one =
        |one: &&Plotted<'_>| Series { name: one.label.clone(), style, points: points(one.series) };
    group.iter().map(one).collect()
}
