//! An experiment's jobs on this machine: the variant says which elevator, the rest of its world
//! does not matter. The rows are the same, so published, simulated and real numbers can be
//! compared.
//!
//! A variant with a null device has the target `null` in place of memory. One with a queue stacked
//! on that is left out, and named: here no world runs such a queue.

use blockyard_host::volume::{PipelineChoice, Scheduling};
use blockyard_load::program::Program;
use blockyard_report::{Experiment as Report, Listing};
use blockyard_sim::world::{DeviceConfig, IrqMode};

use super::execute::{Done, JobDone, Key, Runner, Yielded, run_program};
use super::lines::result_lines;
use super::page::{Request, chosen};
use super::results::rows;
use super::spec::{Experiment, Setup};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::real::{self, NO_PAGE_CACHE, Place, RealOutcome, Target};

/// The real world.
struct Real<'a> {
    target: &'a Target,
}

impl Runner for Real<'_> {
    type Out = RealOutcome;

    fn run<P: Program>(self, program: &mut P, lens_bytes: &[u64]) -> Result<RealOutcome, Failure> {
        real::run(self.target, lens_bytes, program)
    }
}

/// Runs the jobs of each variant, one after the other: they would disturb each other.
pub(crate) fn run(
    experiment: &Experiment,
    request: &Request,
    place: &Place,
    may_destroy: bool,
) -> Result<Report, Failure> {
    let variants = chosen(experiment, &request.variants)?;
    let seeds = if request.seeds.is_empty() { &experiment.seeds } else { &request.seeds };
    let progress = Progress::steps((variants.len() * seeds.len()) as u64);
    let (mut done, mut listings, mut steps) = (Done::new(), Vec::new(), 0);
    let mut left_out = Vec::new();
    for variant in &variants {
        let point = experiment.points(variant).into_iter().next().flatten();
        for &seed in seeds {
            let setup = experiment.setup(variant, point.as_ref(), &request.set, &[])?;
            if setup.config.stack.is_some() {
                left_out.push(variant.name.clone());
                break;
            }
            let place = place_of(&setup, place);
            let (scheduling, pipeline) = (scheduling(&setup), pipeline(&setup)?);
            let target = Target { place, may_destroy, scheduling, pipeline };
            let mut jobs = Vec::new();
            for (name, job) in &setup.jobs {
                let (outcome, yielded) = run_program(job, seed, Real { target: &target })
                    .map_err(|failure| failure.at(format!("{}, job {name}", variant.name)))?;
                let title = format!("{}, {name}, seed {seed}: {}", variant.name, outcome.elevator);
                listings.push(Listing { title, text: yielded.listing.clone() });
                jobs.push(job_done(name, yielded));
            }
            let control = String::new();
            done.insert(Key { variant: variant.name.clone(), point: 0, seed, control }, jobs);
            steps += 1;
            progress.at(steps);
        }
    }
    drop(progress);
    let lines = result_lines(experiment, &variants, &done, &request.set)?;
    listings.extend(lines.listings);
    let place = match place {
        Place::Memory { .. } => "memory".into(),
        Place::Null { args } => format!("null {args}"),
        Place::Path(path) => path.display().to_string(),
    };
    let mut conditions = vec![("on".into(), place), ("beware".into(), NO_PAGE_CACHE.into())];
    if !left_out.is_empty() {
        let what = format!("{}: a queue on a queue does not run here", left_out.join(", "));
        conditions.push(("left out".into(), what));
    }
    Ok(Report {
        name: experiment.name.clone(),
        title: format!("{}, on this machine", experiment.title),
        about: experiment.about.clone(),
        conditions,
        rows: rows(experiment, &variants, &done),
        listings,
        ..Report::default()
    })
}

/// Where its bytes go: those of a null device nowhere.
fn place_of(setup: &Setup, place: &Place) -> Place {
    match (place, &setup.config.device) {
        (Place::Memory { .. }, DeviceConfig::Null(null)) => Place::Null {
            args: match null.irqmode {
                IrqMode::None => "1 irqmode:none".into(),
                IrqMode::Softirq => "1 irqmode:softirq".into(),
                IrqMode::Timer => format!("2 irqmode:timer completion_nsec:{}", null.completion.0),
            },
        },
        _ => place.clone(),
    }
}

fn scheduling(setup: &Setup) -> Scheduling {
    let elevator = Some(setup.config.elevator.clone());
    Scheduling { elevator, ..Scheduling::default() }
}

/// That of the variant's crypt target, if it has one.
fn pipeline(setup: &Setup) -> Result<Option<PipelineChoice>, Failure> {
    let name = Some(&setup.module).filter(|name| *name != "_");
    name.map(|name| PipelineChoice::parse(name).map_err(Failure::failed)).transpose()
}

fn job_done(name: &str, yielded: Yielded) -> JobDone {
    JobDone {
        job: name.into(),
        measured: yielded.measured,
        listing: yielded.listing,
        causes: blockyard_sim::world::Causes::default(),
        trace_hash: 0,
        seen: None,
    }
}
