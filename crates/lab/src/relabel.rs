//! Labels of variants whose own settings the command line changes.
//!
//! A variant is named for its settings, for example `mq-deadline`. With `--set queue.elevator=cfq`
//! this name is wrong, so the label adds the change.

use blockyard_report::Experiment as Report;

use super::spec::Experiment;
use super::spec::tree::Override;

/// Adds to each variant's label the changes that replace its own settings, for text output. JSON
/// keeps the names, and `conditions` lists the changes.
pub fn relabel(report: &mut Report, experiment: &Experiment, set: &[Override]) {
    for variant in &experiment.variants {
        let replaced: Vec<String> = variant.replaced_by(set).map(ToString::to_string).collect();
        if replaced.is_empty() {
            continue;
        }
        let name = &variant.name;
        let label = format!("{} [{}]", variant.name, replaced.join(", "));
        let labels = report.rows.iter_mut().map(|row| &mut row.variant);
        let causes = report.causes.iter_mut().flat_map(|table| &mut table.rows);
        let labels = labels.chain(causes.map(|(row, _)| row));
        let titles = report.listings.iter_mut().map(|listing| &mut listing.title);
        for text in labels.chain(titles) {
            // Rows of the causes add the job to the name, listings the point.
            let rest = text.strip_prefix(name.as_str());
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with([',', ' ']))
            {
                *text = format!("{label}{rest}");
            }
        }
    }
}
