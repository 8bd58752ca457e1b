//! The jobs of `blockyard bench` in a simulated world, and their figures as an HTML page.

use std::path::PathBuf;

use blockyard_lab::compare::{self, Run};
use blockyard_lab::sim::world;
use blockyard_lab::{FioRows, JobSpec};
use blockyard_report::{Experiment, Listing};
use blockyard_workload::fio::{Fio, Job, JobFile, print_all};
use clap::{Args, ValueHint};

use super::{BenchArgs, json, logs, note};
use crate::args::ForceArgs;
use crate::commands::lab::{load, set_up};
use crate::commands::report::write;
use crate::failure::Failure;
use crate::output::{InUse, Output};

/// Options for the page.
#[derive(Args, Debug)]
pub(super) struct PageArgs {
    /// Write an HTML page with plots to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with = "result_lines")]
    html: Option<PathBuf>,
}

impl PageArgs {
    fn output(&self, force: ForceArgs) -> Option<Output<'_>> {
        self.html.as_deref().map(|path| Output::new(path, force.force))
    }

    /// Refuses a page that cannot be written.
    pub(super) fn check(&self, force: ForceArgs, in_use: &InUse) -> Result<(), Failure> {
        self.output(force).map_or(Ok(()), |output| Ok(output.check(in_use)?))
    }

    /// Writes the page, if `--report` is given.
    pub(super) fn write(
        &self,
        force: ForceArgs,
        fio: &Fio,
        (description, conditions): (&str, &[(&str, String)]),
        in_use: &InUse,
    ) -> Result<(), Failure> {
        let Some(output) = self.output(force) else { return Ok(()) };
        let report = json::Report::of(fio, description);
        let report = serde_json::to_value(report).expect("all keys are strings");
        let run = Run::of("this run", &report).map_err(Failure::failed)?;
        let listing =
            Listing { title: "Output in fio's format".into(), text: print_all(&fio.listed()) };
        let mut page = compare::page(description, &[run]);
        page.conditions
            .extend(conditions.iter().map(|(name, text)| ((*name).into(), text.clone())));
        write(output, in_use, &Experiment { listings: vec![listing], ..page })
    }
}

/// Runs on the simulated machine and device of an experiment.
pub(super) fn run(
    args: &BenchArgs,
    name: &str,
    parse: impl Fn(u64) -> Result<JobFile, Failure>,
) -> Result<(), Failure> {
    let experiment = load(name)?;
    let variant = experiment.variant_or_first(args.target.world.variant.as_deref())?;
    let setup = set_up(&experiment, variant, &args.target.world.set)?;
    let JobFile { jobs, ignored, .. } = parse(setup.config.sectors().saturating_mul(512))?;
    note(&ignored);
    jobs.iter().try_for_each(check_for_lab)?;
    logs::check(&jobs, args.force.force, &args.in_use())?;
    JobSpec::Fio(jobs.clone(), FioRows::Usual).check(&setup.config)?;
    let mut fio = Fio::new(jobs).map_err(|error| Failure::failed(error.to_string()))?;
    let config = world::Config { seed: experiment.seeds[0], ..setup.config };
    world::run(&config, &mut fio, ()).map_err(Failure::failed)?;
    let description = format!("the world of {}, {}", experiment.name, variant.name);
    args.give(&fio, &description, None, &args.in_use())
}

/// Refuses jobs that a simulated machine cannot run: its devices do not trim.
fn check_for_lab(job: &Job) -> Result<(), Failure> {
    if job.shape.rw.trims() {
        let refused = "rw trims, which no simulated device supports; run it on a volume";
        return Err(Failure::failed(format!("job {}: {refused}", job.name)));
    }
    Ok(())
}
