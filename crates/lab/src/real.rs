//! Runs an experiment's jobs on this machine. The variant selects the elevator; the rest of its
//! world is ignored. The rows have the same names, so published, simulated and real numbers can be
//! compared.
//!
//! A variant with a null device runs on the target `null` in place of memory. A stacked queue
//! becomes a multipath target over it, whose queue runs in the tasks' own threads, like the current
//! one ([`Stacking::TODAY`]). Variants that hand over to a worker or a softirq are left out and
//! reported.

use blockyard::bench::{NO_PAGE_CACHE, Outcome, PipelineChoice, Place, Scheduling, Target, Usage};
use blockyard_engine::dm::multipath::stacked::{CloneInsert, CompleteBy, RunBy, Stacking};
use blockyard_engine::time::Nanos;
use blockyard_report::{Experiment as Report, Listing};
use blockyard_sim::world::{DeviceConfig, IrqMode};
use blockyard_workload::program::Program;

use super::execute::{Done, JobDone, Key, Progress, Runner, Yielded, run_program};
use super::lines::result_lines;
use super::page::{Request, chosen};
use super::results::rows;
use super::spec::job::JobSpec;
use super::spec::{Experiment, Setup};
use crate::Error;

/// Reason for omitting a variant.
const NO_WORKER: &str = "real mode has no worker and no softirq between a task and its device; it \
    runs only stacked queues that need neither, and issues clones to the device directly";

/// Reason for refusing fs_mark.
const NO_FILE_SYSTEM: &str = "real mode has no file system in which fs_mark could create files: \
    run fs_mark itself, or leave out the job";

/// The real world.
struct Real<'a> {
    target: &'a Target,
    /// Variant and job, for error messages.
    job: String,
}

impl Runner for Real<'_> {
    type Out = Outcome;

    fn run<P: Program>(self, program: &mut P, lens_bytes: &[u64]) -> Result<Outcome, Error> {
        let failed = |source| Error::Run { job: self.job, source };
        self.target.run(lens_bytes, program).map_err(failed)
    }
}

/// Runs the jobs of each variant on this machine, one after the other, so that they do not disturb
/// each other. `may_destroy` permits overwriting data at the place.
///
/// # Errors
/// A variant is unknown, the place does not fit, or a call of a job fails.
pub fn run(
    experiment: &Experiment,
    request: &Request,
    place: &Place,
    may_destroy: bool,
    progress: Progress<'_>,
) -> Result<Report, Error> {
    let variants = chosen(experiment, &request.variants)?;
    let seeds = if request.seeds.is_empty() { &experiment.seeds } else { &request.seeds };
    let steps_all = variants.len() * seeds.len();
    progress(0, steps_all);
    let mut done = Done::new();
    let mut listings = Vec::new();
    let mut steps = 0;
    let mut left_out = Vec::new();
    let mut places = Vec::new();
    let mut conditions = Vec::new();
    for variant in &variants {
        let point = experiment.points(variant).into_iter().next().flatten();
        for &seed in seeds {
            let mut setup = experiment.setup(variant, point.as_ref(), &request.set, &[])?;
            if let Some(elevator) = &request.elevator {
                setup.config.elevator = elevator.clone();
            }
            let Some(place) = place_of(&setup, place) else {
                left_out.push(variant.name.clone());
                break;
            };
            note(&mut places, place.describe());
            let scheduling = scheduling(&setup);
            let pipeline = pipeline(&setup)?;
            let target = Target { place, may_destroy, scheduling, pipeline };
            let mut jobs = Vec::new();
            for (name, job) in &setup.jobs {
                let label = format!("{}, job {name}", variant.name);
                if let JobSpec::FsMark(_) = job {
                    return Err(Error::new(format!("{label}: {NO_FILE_SYSTEM}")));
                }
                let real = Real { target: &target, job: label };
                let (outcome, yielded) = run_program(job, seed, real)?;
                let title = format!("{}, {name}, seed {seed}: {}", variant.name, outcome.elevator);
                listings.push(Listing { title, text: yielded.listing.clone() });
                conditions.push(beside(&format!("{}, {name}", variant.name), &outcome.beside));
                jobs.push(job_done(name, yielded));
            }
            let control = String::new();
            done.insert(Key { variant: variant.name.clone(), point: 0, seed, control }, jobs);
            steps += 1;
            progress(steps, steps_all);
        }
    }
    let lines = result_lines(experiment, &variants, &done, &request.set)?;
    listings.extend(lines.listings);
    let on = [("on", places.join("; ")), ("beware", NO_PAGE_CACHE.into())];
    conditions.splice(0..0, on.map(|(name, text)| (name.into(), text)));
    if !left_out.is_empty() {
        let what = format!("{}: {NO_WORKER}", left_out.join(", "));
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

/// Adds a place once.
fn note(places: &mut Vec<String>, place: String) {
    if !places.contains(&place) {
        places.push(place);
    }
}

/// CPU use of the other threads during a job.
fn beside(job: &str, used: &Usage) -> (String, String) {
    let Usage { user, system, voluntary, involuntary } = *used;
    let ms = |time: Nanos| time.0 as f64 / 1e6;
    let text = format!(
        "{} context switches, {:.1} ms user, {:.1} ms system",
        voluntary + involuntary,
        ms(user),
        ms(system)
    );
    (format!("beside the tasks of {job}"), text)
}

/// The device of a variant; null devices discard the data. `None` if real mode cannot run the
/// variant.
fn place_of(setup: &Setup, place: &Place) -> Option<Place> {
    let stack = setup.config.stack.as_ref();
    let (Place::Memory { .. }, DeviceConfig::Null(null)) = (place, &setup.config.device) else {
        return stack.is_none().then(|| place.clone());
    };
    let hands_over = |stacking: &Stacking| {
        let Stacking { insert, run_on_completion, complete_by } = *stacking;
        let inserts = insert == CloneInsert::Queued(RunBy::Worker);
        inserts || run_on_completion || complete_by == CompleteBy::Softirq
    };
    if stack.is_some_and(|stack| hands_over(&stack.stacking)) {
        return None;
    }
    let args = match null.irqmode {
        IrqMode::None => "1 irqmode:none".into(),
        IrqMode::Softirq => "1 irqmode:softirq".into(),
        IrqMode::Timer => format!("2 irqmode:timer completion_nsec:{}", null.completion.0),
    };
    Some(Place::Null { args, is_stacked: stack.is_some() })
}

fn scheduling(setup: &Setup) -> Scheduling {
    let elevator = Some(setup.config.elevator.clone());
    Scheduling { elevator, ..Scheduling::default() }
}

/// The pipeline of the variant's crypt target, if it has one.
fn pipeline(setup: &Setup) -> Result<Option<PipelineChoice>, Error> {
    let name = Some(&setup.module).filter(|name| *name != "_");
    name.map(|name| PipelineChoice::parse(name).map_err(Error::new)).transpose()
}

fn job_done(name: &str, yielded: Yielded) -> JobDone {
    JobDone {
        job: name.into(),
        measured: yielded.measured,
        listing: yielded.listing,
        causes: blockyard_sim::world::Causes::default(),
        trace_hash: 0,
        plot_data: None,
    }
}
