//! A claim of an experiment: a sentence, what is measured for it, its threshold, and a negative
//! control.
//!
//! ```toml
//! [[claims]]
//! id = "004-2"
//! text = "The patch lowers latency of synchronous writes."
//! measure = [{ ratio = ["fsync-patched/fsync/fsync_median", "fsync-original/fsync/fsync_median"],
//!              max = 0.30, size = [0.01, 0.10], published = 0.027 }]
//! [claims.control]                     # the mechanism is switched off, and nothing else changes:
//! set = { "write_back.sync_flags" = false }       # the claim's own threshold must then be missed
//! ```

use super::metric::{Cell, Yields};
use super::section::{Section, mistake, text_of};
use super::tree::{Node, Override, Value};
use crate::failure::Failure;

/// What is measured, and where it must lie.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measure {
    pub(crate) of: Cell,
    /// Divided by this one.
    pub(crate) to: Option<Cell>,
    /// The threshold.
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    /// Where it lies if the size is reproduced as well; never decides.
    pub(crate) size: Option<(f64, f64)>,
    /// What the source has.
    pub(crate) published: Option<f64>,
}

/// How a claim is judged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Judge {
    /// Every measure lies within its threshold, at every accepted fit.
    Measures { measures: Vec<Measure>, control: Option<Control> },
    /// A rule of the code itself, with its own negative control.
    Check(String),
    /// Shown, and not judged: why.
    Nobody { why: String, measures: Vec<Measure> },
}

/// A world in which the mechanism is missing.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Control {
    pub(crate) set: Vec<Override>,
    /// What must hold there; without any, the claim's own threshold must be missed.
    pub(crate) measures: Vec<Measure>,
}

/// A claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimSpec {
    pub(crate) id: String,
    pub(crate) text: String,
    /// Said beside the verdict.
    pub(crate) note: String,
    pub(crate) judge: Judge,
}

impl ClaimSpec {
    pub(super) fn read(mut section: Section<'_>, yields: &Yields) -> Result<Self, Failure> {
        let id = section.needed_text("id")?.to_owned();
        let text = section.needed_text("text")?.to_owned();
        let note = section.texts("note")?.join(" ");
        let check = section.text("check")?.map(str::to_owned);
        let unjudged = section.text("unjudged")?.map(str::to_owned);
        let measures = Measure::read_all(&mut section, yields)?;
        let control = section.section("control")?;
        let control = control.map(|control| Control::read(control, yields)).transpose()?;
        let judge = match (check, unjudged, measures.is_empty()) {
            (Some(check), None, true) if control.is_none() => Judge::Check(check),
            (None, Some(why), _) if control.is_none() => Judge::Nobody { why, measures },
            (None, None, false) => Judge::Measures { measures, control },
            _ => {
                return Err(section.wrong(
                    "takes one of \"measure\" (with or without \"control\"), \"check\", or \
                     \"unjudged\" with the reason",
                ));
            }
        };
        let judged = matches!(judge, Judge::Measures { .. });
        if judged && judge.measures().iter().any(|one| one.min.is_none() && one.max.is_none()) {
            return Err(section.wrong_key("measure", "takes \"min\", \"max\" or both"));
        }
        section.finish()?;
        Ok(Self { id, text, note, judge })
    }
}

impl Judge {
    /// What is measured for it.
    pub(crate) fn measures(&self) -> &[Measure] {
        match self {
            Self::Measures { measures, .. } | Self::Nobody { measures, .. } => measures,
            Self::Check(_) => &[],
        }
    }
}

impl Control {
    fn read(mut section: Section<'_>, yields: &Yields) -> Result<Self, Failure> {
        let set = section.overrides("set")?;
        if set.is_empty() {
            return Err(section.wrong("needs \"set\": the paths that switch the mechanism off"));
        }
        let measures = Measure::read_all(&mut section, yields)?;
        section.finish()?;
        Ok(Self { set, measures })
    }
}

impl Measure {
    fn read_all(section: &mut Section<'_>, yields: &Yields) -> Result<Vec<Self>, Failure> {
        let measures = section.list("measure")?.into_iter();
        measures.map(|measure| Self::read(measure, yields)).collect()
    }

    fn read(mut section: Section<'_>, yields: &Yields) -> Result<Self, Failure> {
        let path = section.path("ratio");
        let ratio = section.node("ratio").map(|node| pair(node, &path, yields)).transpose()?;
        let path = section.path("value");
        let value = section.node("value").map(|node| cell(node, &path, yields)).transpose()?;
        let (of, to) = match (ratio, value) {
            (Some((of, to)), None) => (of, Some(to)),
            (None, Some(of)) => (of, None),
            _ => return Err(section.wrong("takes either \"ratio\" or \"value\"")),
        };
        let (min, max) = (section.fraction("min")?, section.fraction("max")?);
        if min.zip(max).is_some_and(|(min, max)| min > max) {
            return Err(section.wrong_key("min", "is above \"max\""));
        }
        let published = section.fraction("published")?;
        let path = section.path("size");
        let size = section.node("size").map(|node| band(node, &path)).transpose()?;
        section.finish()?;
        Ok(Self { of, to, min, max, size, published })
    }
}

fn cell(node: &Node, path: &str, yields: &Yields) -> Result<Cell, Failure> {
    Cell::parse(node, path, text_of(node, path)?, yields)
}

fn pair(node: &Node, path: &str, yields: &Yields) -> Result<(Cell, Cell), Failure> {
    match &node.value {
        Value::List(list) if list.len() == 2 => {
            Ok((cell(&list[0], path, yields)?, cell(&list[1], path, yields)?))
        }
        _ => Err(mistake(node, path, "takes two of \"variant/row/metric\": this, divided by that")),
    }
}

fn band(node: &Node, path: &str) -> Result<(f64, f64), Failure> {
    match &node.value {
        Value::List(list) if list.len() == 2 => {
            let low = super::section::fraction_of(&list[0], path)?;
            Ok((low, super::section::fraction_of(&list[1], path)?))
        }
        _ => Err(mistake(node, path, "takes two numbers: from, to")),
    }
}
