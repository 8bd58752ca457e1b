//! A claim of an experiment: a sentence, its measures with thresholds, and a negative control.
//!
//! ```toml
//! [[claims]]
//! id = "004-2"
//! text = "The patch lowers latency of synchronous writes."
//! measure = [{ ratio = ["fsync-patched/fsync/fsync_median", "fsync-original/fsync/fsync_median"],
//!              max = 0.30, size = [0.01, 0.10], published = 0.027 }]
//! [claims.control]                     # only the mechanism is switched off;
//! set = { "write_back.sync_flags" = false }       # the claim's threshold must then be missed
//! ```

use super::measure::{Bounds, Measure};
use super::metric::Yields;
use super::section::Section;
use super::tree::Override;
use crate::Error;

/// Judgement of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Judge {
    /// Every measure lies within its threshold, at every accepted point.
    Measures { measures: Vec<Measure>, control: Option<Control> },
    /// Name of a rule in code, which has its own negative control.
    Check(String),
    /// Printed without a verdict, with the reason.
    Unjudged { why: String, measures: Vec<Measure> },
}

/// A negative control: a world without the mechanism.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Control {
    /// Empty if other variants are without the mechanism; their measures are below.
    pub(crate) set: Vec<Override>,
    /// Measures that must hold there; without any, the claim's own threshold must be missed.
    pub(crate) measures: Vec<Measure>,
}

/// A claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimSpec {
    pub(crate) id: String,
    pub(crate) text: String,
    /// Printed beside the verdict.
    pub(crate) note: String,
    pub(crate) judge: Judge,
}

impl ClaimSpec {
    pub(super) fn read(mut section: Section<'_>, yields: &Yields) -> Result<Self, Error> {
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
            (None, Some(why), _) if control.is_none() => Judge::Unjudged { why, measures },
            (None, None, false) => Judge::Measures { measures, control },
            _ => {
                return Err(section.wrong(
                    "takes one of \"measure\" (with or without \"control\"), \"check\", or \
                     \"unjudged\" with the reason",
                ));
            }
        };
        let judged = matches!(judge, Judge::Measures { .. });
        if judged && judge.measures().iter().any(|one| one.bounds == Bounds::default()) {
            return Err(section.wrong_key("measure", "takes \"min\", \"max\" or both"));
        }
        section.finish()?;
        Ok(Self { id, text, note, judge })
    }
}

impl Judge {
    /// Measures of the claim.
    pub(crate) fn measures(&self) -> &[Measure] {
        match self {
            Self::Measures { measures, .. } | Self::Unjudged { measures, .. } => measures,
            Self::Check(_) => &[],
        }
    }
}

impl Control {
    fn read(mut section: Section<'_>, yields: &Yields) -> Result<Self, Error> {
        let set = section.overrides("set")?;
        let measures = Measure::read_all(&mut section, yields)?;
        if set.is_empty() && measures.is_empty() {
            let what = "needs \"set\", the paths that switch the mechanism off, or \"measure\" of \
                        variants without it";
            return Err(section.wrong(what));
        }
        section.finish()?;
        Ok(Self { set, measures })
    }
}
