//! The data of a report: what was published, what we got, what was claimed, and why it came out so.
//!
//! Everything is in base units (seconds, bytes, a fraction of one); the printed forms scale.

use crate::quantity;

/// All that is known about one experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experiment {
    /// Short name, as on the command line: `deadline-2009`.
    pub name: String,
    /// One line for headings.
    pub title: String,
    /// What it is about, a string for each paragraph. On the page only.
    pub about: Vec<String>,
    /// Under which conditions it ran: machine, device, seeds, accepted fits.
    pub conditions: Vec<(String, String)>,
    /// Published numbers beside ours.
    pub rows: Vec<Row>,
    /// What was claimed, and whether it holds here.
    pub claims: Vec<Claim>,
    /// What was measured, where nothing was published: a column for each thing that is compared.
    pub tables: Vec<CauseTable>,
    /// Counters that explain the times.
    pub causes: Vec<CauseTable>,
    /// Drawn on the page only.
    pub plots: Vec<Plot>,
    /// The workload's own tables, in the format of the original tool.
    pub listings: Vec<Listing>,
}

/// One number: as published, and as we got it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which of the compared things: `deadline-patched`.
    pub variant: String,
    /// Which row of the published table: `Random Read`.
    pub row: String,
    /// What was measured: `latency_avg`.
    pub metric: String,
    /// Unit of all numbers of this row.
    pub unit: Unit,
    /// The published number, if there is one.
    pub published: Option<f64>,
    /// Our number, if we got one.
    pub ours: Option<Interval>,
    /// The model was fitted on this row, so it is no prediction.
    pub calibrated: bool,
    /// Published, but outside the model: shown, not judged.
    pub artefact: bool,
}

impl Row {
    /// Our median against the published number: 0.1 is ten percent more. None where one of the two
    /// is missing or the published number is zero.
    #[must_use]
    pub fn error(&self) -> Option<f64> {
        let (published, ours) = (self.published?, self.ours?.median);
        (published != 0.0).then(|| ours / published - 1.0).filter(|error| error.is_finite())
    }

    /// What the model may claim about this row.
    pub(crate) fn role(&self) -> Role {
        match self {
            Row { artefact: true, .. } => Role::Artefact,
            Row { calibrated: true, .. } => Role::Calibrated,
            Row { published: Some(_), .. } => Role::Predicted,
            Row { published: None, .. } => Role::Measured,
        }
    }

    /// The error for a reader; none for what is not judged.
    pub(crate) fn error_text(&self) -> String {
        let judged = self.error().filter(|_| !self.artefact);
        judged.map_or_else(|| "-".to_owned(), quantity::error)
    }
}

/// How a row came to be, as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// A fit may use it.
    Calibrated,
    /// The model had not seen it.
    Predicted,
    /// Outside the model.
    Artefact,
    /// There is nothing published to compare it with.
    Measured,
}

impl Role {
    /// One letter for a narrow column, and what it stands for.
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
    /// Smallest.
    pub low: f64,
    /// In the middle.
    pub median: f64,
    /// Largest.
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
    /// Something per second: requests, calls.
    PerSecond,
    /// A part of one; printed as percent.
    Fraction,
    /// A plain number.
    Count,
}

impl Unit {
    /// The word for it in JSON.
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

/// A statement that was tested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    /// Short name: `004-17`.
    pub id: String,
    /// The statement.
    pub text: String,
    /// What must be so for it to hold.
    pub threshold: String,
    /// What we found.
    pub ours: String,
    /// The verdict. None: no verdict is asked for.
    pub holds: Option<bool>,
    /// Negative control: the same test where the effect must be absent, and what came out.
    pub control: Option<String>,
    /// Whether the control came out as it must.
    pub control_holds: Option<bool>,
    /// What else a reader has to know: what was tried, what stays open.
    pub note: Option<String>,
}

/// How many claims came out which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) hold: usize,
    pub(crate) fail: usize,
    pub(crate) no_verdict: usize,
    pub(crate) controls_fail: usize,
}

impl Tally {
    pub(crate) fn of(claims: &[Claim]) -> Tally {
        let count = |holds: Option<bool>| claims.iter().filter(|c| c.holds == holds).count();
        Tally {
            hold: count(Some(true)),
            fail: count(Some(false)),
            no_verdict: count(None),
            controls_fail: claims.iter().filter(|c| c.control_holds == Some(false)).count(),
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { hold, fail, no_verdict, controls_fail } = self;
        write!(f, "{hold} hold, {fail} fail, {no_verdict} without a verdict")?;
        if *controls_fail > 0 {
            write!(f, "; failing negative controls: {controls_fail}")?;
        }
        Ok(())
    }
}

/// A table of text: counters that stand beside the times, or figures side by side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CauseTable {
    /// Heading.
    pub title: String,
    /// Headings of the columns behind the first.
    pub columns: Vec<String>,
    /// Name of the row, and its cells.
    pub rows: Vec<(String, Vec<String>)>,
}

/// Text that was laid out by whoever made it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    /// Heading.
    pub title: String,
    /// The text, with its line breaks.
    pub text: String,
}

/// A picture of numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// Heading.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// What is drawn, in this order.
    pub series: Vec<Series>,
}

/// One axis of a plot. Its range comes from the points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What it shows, with the unit: `time, s`.
    pub label: String,
    /// Logarithmic. What is zero or less is drawn at the edge.
    pub log: bool,
}

/// Points that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub style: Style,
    /// (x, y). Points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Straight from point to point, in the order of x.
    #[default]
    Line,
    /// Each value holds until the next point, in the order of x.
    Step,
    /// One mark a point.
    Points,
    /// Horizontal bars: points in pairs, `(from, y), (to, y)`. Who was served when.
    Spans,
}
