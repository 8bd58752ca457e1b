//! Result lines in the format of the 2015 mail: one for each variant, over all seeds.
//!
//! The line has module, depth and block size. A heading has the other settings of the variant in
//! its grid.

use std::collections::BTreeSet;

use blockyard_report::Listing;
use blockyard_workload::fio::Job;
use blockyard_workload::result_line::ResultLine;

use super::execute::Done;
use super::results::values;
use super::spec::job::JobSpec;
use super::spec::metric::Cell;
use super::spec::tree::Override;
use super::spec::{Experiment, Variant};
use crate::Error;

/// Result lines and their variants.
pub(crate) struct Lines {
    pub(crate) listings: Vec<Listing>,
    pub(crate) variants: BTreeSet<String>,
}

/// The lines of all variants whose job has result lines, a listing for each grid.
pub(crate) fn result_lines(
    experiment: &Experiment,
    variants: &[&Variant],
    done: &Done,
    set: &[Override],
) -> Result<Lines, Error> {
    let mut lines = Lines { listings: Vec::new(), variants: BTreeSet::new() };
    let mut last_heading = None;
    for variant in variants {
        let point = experiment.points(variant).into_iter().next().flatten();
        let setup = experiment.setup(variant, point.as_ref(), set, &[])?;
        for (_, job) in setup.jobs.iter().filter(|(_, job)| job.has_result_line()) {
            let JobSpec::Fio(jobs, _) = job else { continue };
            let found = jobs.iter().filter_map(|job| line(variant, &setup.module, job, done));
            let found: Vec<String> = found.map(|line| line.to_string()).collect();
            let (grid, heading) = heading(variant, &setup.module, jobs);
            if lines.listings.last().is_none_or(|listing| listing.title != grid) {
                lines.listings.push(Listing { title: grid, text: String::new() });
                last_heading = None;
            }
            let listing = lines.listings.last_mut().expect("there is one now");
            if last_heading.as_ref() != Some(&heading) && !heading.is_empty() {
                listing.text += &format!("{heading}:\n");
            }
            last_heading = Some(heading);
            found.iter().for_each(|line| listing.text += &format!("{line}\n"));
            lines.variants.insert(variant.name.clone());
        }
    }
    Ok(lines)
}

fn line(variant: &Variant, module: &str, job: &Job, done: &Done) -> Option<ResultLine> {
    let row = if job.shape.rw.writes() { "write" } else { "read" };
    let row = format!("{} {row}", job.name);
    let cell = Cell { variant: variant.name.clone(), row, metric: "rate_sum" };
    let of_first_point = values(done, &cell, "").into_iter().filter(|((point, _), _)| *point == 0);
    let sums: Vec<f64> = of_first_point.map(|(_, sum)| sum).collect();
    ResultLine::of(
        module,
        (job.submission.iodepth, job.shape.block_bytes),
        job.shape.rw.name(),
        &sums,
    )
}

/// The grid, and the settings that are missing in the line.
fn heading(variant: &Variant, module: &str, jobs: &[Job]) -> (String, String) {
    let Some((grid, words)) = &variant.grid else {
        return ("result lines".into(), variant.name.clone());
    };
    let in_line = |word: &String| {
        let of_job = |job: &Job| {
            let block = format!("{}k", job.shape.block_bytes / 1024);
            *word == block || *word == format!("q{}", job.submission.iodepth)
        };
        word == module || jobs.iter().any(of_job)
    };
    let rest = words.iter().filter(|word| !in_line(word)).cloned().collect::<Vec<_>>();
    (format!("{grid}: result lines"), rest.join(" "))
}
