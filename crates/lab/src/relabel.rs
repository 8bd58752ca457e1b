//! Labels of variants whose own settings the command line changes.
//!
//! A variant has the name of its settings, as `mq-deadline`. With `--set queue.elevator=cfq` this
//! name is false, so the label says what was set instead.

use blockyard_report::Experiment as Report;

use super::spec::Experiment;
use super::spec::tree::Override;

/// Adds to each variant's label the changes that replace settings of its own. Text for people; in
/// JSON the names stay, and `conditions` has the changes.
pub fn relabel(report: &mut Report, experiment: &Experiment, set: &[Override]) {
    for variant in &experiment.variants {
        let replaced: Vec<String> = variant.replaced_by(set).map(ToString::to_string).collect();
        if replaced.is_empty() {
            continue;
        }
        let (name, label) = (&variant.name, format!("{} [{}]", variant.name, replaced.join(", ")));
        let labels = report.rows.iter_mut().map(|row| &mut row.variant);
        let causes = report.causes.iter_mut().flat_map(|table| &mut table.rows);
        let labels = labels.chain(causes.map(|(row, _)| row));
        let titles = report.listings.iter_mut().map(|listing| &mut listing.title);
        for text in labels.chain(titles) {
            // A row of the causes names its job too, a listing the point.
            let rest = text.strip_prefix(name.as_str());
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with([',', ' ']))
            {
                *text = format!("{label}{rest}");
            }
        }
    }
}
