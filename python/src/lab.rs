//! Experiments with I/O schedulers.

use blockyard_lab::builtin::{self, BUILTIN};
use blockyard_lab::{Override, Request, report, run};
use pyo3::prelude::*;

use crate::error::{failed_experiment, raised_lab};

/// Name, title and source of each built-in experiment.
#[pyfunction]
pub(crate) fn experiments() -> PyResult<Vec<(&'static str, String, &'static str)>> {
    let facts = BUILTIN.iter().map(|one| {
        let title = builtin::load(one.name)?.title;
        Ok((one.name, title, one.group.title()))
    });
    facts.collect::<Result<_, _>>().map_err(raised_lab)
}

/// Runs an experiment on all cores; returns its report as JSON, and its warnings.
#[pyfunction]
pub(crate) fn run_experiment(
    py: Python<'_>,
    experiment: &str,
    variants: Vec<String>,
    seeds: Vec<u64>,
    set: Vec<String>,
    full: bool,
) -> PyResult<(String, Vec<String>)> {
    let set: Result<_, _> = set.into_iter().map(|text| Override::parse(&text)).collect();
    let set = set.map_err(failed_experiment)?;
    let request = Request { variants, seeds, set, full, ..Request::default() };
    let outcome = py.detach(|| {
        let experiment = builtin::load(experiment)?;
        run(&experiment, &request, &|_, _| ())
    });
    let outcome = outcome.map_err(raised_lab)?;
    Ok((report::json(&outcome.report), outcome.warnings))
}
