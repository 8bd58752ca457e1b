//! The data of a report: published numbers, our numbers, claims, and causes.
//!
//! Everything is in base units (seconds, bytes, a fraction of one); the printed forms scale.

use crate::quantity;

/// All results of one experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experiment {
    /// Short name, as on the command line: `deadline-2009`.
    pub name: String,
    /// One line for headings.
    pub title: String,
    /// Description, a string for each paragraph. On the page only.
    pub about: Vec<String>,
    /// Conditions of the run: machine, device, seeds, accepted fits.
    pub conditions: Vec<(String, String)>,
    /// Published numbers beside ours.
    pub rows: Vec<Row>,
    /// Claims with their verdicts.
    pub claims: Vec<Claim>,
    /// Measurements without published numbers: a column for each variant.
    pub tables: Vec<CauseTable>,
    /// Counters that explain the times.
    pub causes: Vec<CauseTable>,
    /// Plots, on the page only.
    pub plots: Vec<Plot>,
    /// The workload's own tables, in the format of the original tool.
    pub listings: Vec<Listing>,
}

/// One number: the published one, and ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Variant: `deadline-patched`.
    pub variant: String,
    /// Row of the published table: `Random Read`.
    pub row: String,
    /// Metric: `latency_avg`.
    pub metric: String,
    /// Unit of all numbers of this row.
    pub unit: Unit,
    /// The published number, if there is one.
    pub published: Option<f64>,
    /// Our number, if there is one.
    pub ours: Option<Interval>,
    /// Whether a fit may use this row, so that it is no prediction.
    pub calibrated: bool,
    /// Whether the row lies outside the model: shown, not judged.
    pub artefact: bool,
}

impl Row {
    /// Relative error of our median: 0.1 is ten percent more than published. `None` if a number is
    /// missing or the published number is zero.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        let published = self.published?;
        let ours = self.ours?.median;
        (published != 0.0).then(|| ours / published - 1.0).filter(|error| error.is_finite())
    }

    /// Our median over the published number, or its reciprocal: at least one. `None` like
    /// [`Row::error`].
    pub(crate) fn factor(&self) -> Option<f64> {
        let ratio = self.error()? + 1.0;
        Some(ratio.max(ratio.recip()))
    }

    /// Role of this row.
    pub(crate) fn role(&self) -> Role {
        match self {
            Row { artefact: true, .. } => Role::Artefact,
            Row { calibrated: true, .. } => Role::Calibrated,
            Row { published: Some(_), .. } => Role::Predicted,
            Row { published: None, .. } => Role::Measured,
        }
    }

    /// The error as text; "-" for an unjudged row.
    pub(crate) fn error_text(&self) -> String {
        let judged = self.error().filter(|_| !self.artefact);
        judged.map_or_else(|| "-".to_owned(), quantity::error)
    }
}

/// Role of a row in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// A fit may use the row.
    Calibrated,
    /// The row is a prediction.
    Predicted,
    /// The row lies outside the model.
    Artefact,
    /// There is no published number.
    Measured,
}

impl Role {
    /// A letter for a narrow column, and its meaning.
    pub(crate) fn mark(self) -> (&'static str, &'static str) {
        match self {
            Role::Calibrated => ("C", "calibrated"),
            Role::Predicted => ("P", "predicted"),
            Role::Artefact => ("A", "artefact"),
            Role::Measured => ("", "measured"),
        }
    }
}

/// Our number over all accepted fits and seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Smallest value.
    pub low: f64,
    /// Median.
    pub median: f64,
    /// Largest value.
    pub high: f64,
}

/// Base unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes per second.
    BytesPerSecond,
    /// Bytes.
    Bytes,
    /// Events per second: requests, calls.
    PerSecond,
    /// A fraction of one; printed as percent.
    Fraction,
    /// A plain number.
    Count,
}

impl Unit {
    /// Name in JSON.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Unit::Seconds => "s",
            Unit::BytesPerSecond => "B/s",
            Unit::Bytes => "B",
            Unit::PerSecond => "1/s",
            Unit::Fraction => "fraction",
            Unit::Count => "count",
        }
    }
}

/// A tested statement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// Short name: `004-17`.
    pub id: String,
    /// The statement.
    pub text: String,
    /// Condition under which the claim holds.
    pub threshold: String,
    /// Our result.
    pub ours: String,
    /// Verdict: the points at which the claim holds. `None`: no verdict.
    pub held: Option<Held>,
    /// Points at which the size of the effect is that of the source; `None` without a size.
    pub size: Option<Held>,
    /// Negative control: result of the same test where the effect must be absent.
    pub control: Option<String>,
    /// Whether the control came out as expected.
    pub control_holds: Option<bool>,
    /// Remarks for the reader: attempts, open questions.
    pub note: Option<String>,
}

/// Points at which something holds: accepted points of a fit, worlds of an ensemble, seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Number of points at which it holds.
    pub at: usize,
    /// Number of all points; at least one.
    pub of: usize,
}

impl Held {
    /// Whether it holds at every point.
    #[must_use]
    pub fn everywhere(self) -> bool {
        self.at == self.of
    }

    /// Whether it holds at no point.
    #[must_use]
    pub fn nowhere(self) -> bool {
        self.at == 0
    }
}

/// Numbers of claims by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) hold: usize,
    /// Claims that hold at some points only.
    pub(crate) partly: usize,
    pub(crate) fail: usize,
    pub(crate) no_verdict: usize,
    pub(crate) controls_fail: usize,
    /// Claims whose size is reproduced at every point, and claims with a size.
    pub(crate) sizes: (usize, usize),
}

impl Tally {
    pub(crate) fn of(claims: &[Claim]) -> Tally {
        let verdicts = || claims.iter().filter_map(|claim| claim.held);
        let hold = verdicts().filter(|held| held.everywhere()).count();
        let fail = verdicts().filter(|held| held.nowhere()).count();
        let sizes = || claims.iter().filter_map(|claim| claim.size);
        Tally {
            hold,
            partly: verdicts().count() - hold - fail,
            fail,
            no_verdict: claims.len() - verdicts().count(),
            controls_fail: claims.iter().filter(|c| c.control_holds == Some(false)).count(),
            sizes: (sizes().filter(|size| size.everywhere()).count(), sizes().count()),
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { hold, partly, fail, no_verdict, controls_fail, sizes } = self;
        write!(f, "{hold} hold, ")?;
        if *partly > 0 {
            write!(f, "{partly} hold at some points, ")?;
        }
        write!(f, "{fail} fail, {no_verdict} without a verdict")?;
        if *controls_fail > 0 {
            write!(f, " ({controls_fail} because the negative control fails)")?;
        }
        let (same, all) = sizes;
        if *all > 0 {
            write!(f, "; {same} of {all} sizes reproduced")?;
        }
        Ok(())
    }
}

/// A table of text: counters beside the times, or figures side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CauseTable {
    /// Heading.
    pub title: String,
    /// Headings of the columns after the first.
    pub columns: Vec<String>,
    /// Rows: name and cells.
    pub rows: Vec<(String, Vec<String>)>,
}

/// Preformatted text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Heading.
    pub title: String,
    /// The text, with its line breaks.
    pub text: String,
}

/// A plot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Series in drawing order.
    pub series: Vec<Series>,
}

/// One axis of a plot. The points determine its range, with the part that it must show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Label with the unit: `time, s`.
    pub label: String,
    /// Logarithmic scale. Values of zero or less are drawn at the edge.
    pub log: bool,
    /// Range that the axis shows in any case, so that several plots have one scale.
    pub shows: Option<(f64, f64)>,
}

/// Points that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Drawing style.
    pub style: Style,
    /// (x, y). Non-finite points are left out.
    pub points: Vec<(f64, f64)>,
}

/// Drawing style of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Straight lines between the points, in the order of x.
    #[default]
    Line,
    /// Steps: each value holds until the next point, in the order of x.
    Step,
    /// One mark per point.
    Points,
    /// Vertical lines: points in pairs, `(x, low), (x, high)`. For example intervals of numbers.
    Intervals,
    /// Horizontal bars: points in pairs, `(from, y), (to, y)`. For example the service times of a
    /// queue.
    Spans,
}
