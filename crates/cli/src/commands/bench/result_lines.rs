//! The result lines of the 2015 mail: the jobs run several times, and each job has one line for all
//! its runs ([`ResultLine`]).
//!
//! The first field, the module, is the pipeline: the mail's `A`, `D`, `E`, `F` and `G`, or `_` for
//! a device without a cipher.

use blockyard::Volume;
use blockyard::bench::{self, Tally};
use blockyard_host::volume::PipelineChoice;
use blockyard_workload::fio::{Fio, Job};
use blockyard_workload::result_line::ResultLine;

use super::{judge, logs, watch};
use crate::failure::Failure;
use crate::output::{InUse, print};

/// The letter of a pipeline, its name, or its fields.
pub(super) fn module(pipeline: PipelineChoice) -> String {
    pipeline.to_string()
}

/// Runs the jobs this many times, and prints their lines.
pub(super) fn run(
    volume: &Volume,
    jobs: &[Job],
    module: &str,
    times: u32,
    in_use: &InUse,
) -> Result<(), Failure> {
    let mut sums = vec![Vec::new(); jobs.len()];
    for _ in 0..times {
        let mut fio =
            Fio::new(jobs.to_vec()).map_err(|error| Failure::failed(error.to_string()))?;
        let tally = Tally::default();
        watch::watched(jobs, &tally, || bench::run(volume, &mut fio, &tally))?;
        logs::write(fio.logs(), in_use)?;
        for (result, sums) in fio.results().iter().zip(&mut sums) {
            judge(result)?;
            sums.push(result.sums(|clone| clone.read).1 + result.sums(|clone| clone.write).1);
        }
    }
    let line = |(job, sums): (&Job, &Vec<f64>)| {
        ResultLine::of(
            module,
            (job.submission.iodepth, job.shape.block_bytes),
            job.shape.rw.name(),
            sums,
        )
    };
    let lines: Vec<String> =
        jobs.iter().zip(&sums).filter_map(line).map(|line| format!("{line}\n")).collect();
    print(&lines.concat())
}
