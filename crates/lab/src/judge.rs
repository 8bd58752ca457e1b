//! Judges claims against the results of the runs.
//!
//! At each point (an accepted point of a fit, or a world of an ensemble) a measure is the median
//! over the seeds. A claim holds if each of its measures lies within its threshold at *every*
//! point; the verdict has the number of points at which it does. Its negative control must miss the
//! threshold at every point, or keep a threshold of its own; without that the claim has no verdict.
//! The bands of sizes have a count of their own. Published numbers play no part.

use std::collections::BTreeMap;

use blockyard_report::{Claim, Held};

use super::execute::Done;
use super::measured::measured;
use super::results::interval;
use super::rules;
use super::spec::claim::{ClaimSpec, Control, Judge};
use super::spec::measure::{Bounds, Cells, Measure, Quantity, Side};
use super::spec::metric::Base;
use super::spec::tree::Override;
use crate::Error;

/// Number of seeds for a rule; near a threshold, a single seed proves nothing.
const RULE_SEEDS: u64 = 5;

/// The settings of a control as the key of its runs.
pub(crate) fn control_key(set: &[Override]) -> String {
    let words: Vec<String> = set.iter().map(ToString::to_string).collect();
    words.join(", ")
}

/// Refuses claims with unknown rules.
pub(crate) fn check_rules(claims: &[ClaimSpec]) -> Result<(), Error> {
    for claim in claims {
        if let Judge::Check(id) = &claim.judge
            && rules::find(id).is_none()
        {
            let ids: Vec<&str> = rules::all().map(|check| check.id).collect();
            let ids = ids.join(", ");
            return Err(Error::new(format!(
                "claim {}: unknown check {id:?}; known checks: {ids}",
                claim.id
            )));
        }
    }
    Ok(())
}

/// Judges a claim. Runs its rule, if it has one, in small worlds.
pub(crate) fn judge(spec: &ClaimSpec, done: &Done, seed: u64) -> Claim {
    let claim = Claim {
        id: spec.id.clone(),
        text: spec.text.clone(),
        threshold: threshold(spec.judge.measures()),
        ours: ours(spec.judge.measures(), done, ""),
        note: (!spec.note.is_empty()).then(|| spec.note.clone()),
        ..Claim::default()
    };
    match &spec.judge {
        Judge::Check(id) => rule(claim, id, seed),
        Judge::Unjudged { why, .. } => Claim { threshold: format!("no verdict: {why}"), ..claim },
        Judge::Measures { measures, control } => {
            let held = held(measures, done, "", |measure, value| measure.bounds.have(value));
            let sized: Vec<Measure> =
                measures.iter().filter(|measure| measure.size.is_some()).cloned().collect();
            let size = self::held(&sized, done, "", |measure, value| {
                measure.size.is_none_or(|(low, high)| (low..=high).contains(&value))
            });
            let claim = Claim { ours: counted(claim.ours, held), held, size, ..claim };
            match control {
                Some(control) => controlled(claim, measures, control, done),
                None => claim,
            }
        }
    }
}

/// A rule must hold with every seed; the text shows the results of the first seed.
fn rule(claim: Claim, id: &str, seed: u64) -> Claim {
    let Some(check) = rules::find(id) else { return claim };
    let verdicts: Vec<_> =
        (0..RULE_SEEDS).map(|more| (check.run)(seed.wrapping_add(more))).collect();
    let of = verdicts.len();
    let held = Held { at: verdicts.iter().filter(|verdict| verdict.holds).count(), of };
    let as_it_must = verdicts.iter().filter(|verdict| verdict.control_holds == Some(true)).count();
    let as_it_must = Held { at: as_it_must, of };
    let first = verdicts[0].clone();
    let claim = Claim {
        threshold: check.about.into(),
        ours: counted(first.ours, Some(held)),
        held: Some(held),
        ..claim
    };
    match first.control {
        None => claim,
        Some(control) => with_control(claim, counted(control, Some(as_it_must)), as_it_must),
    }
}

fn controlled(claim: Claim, own: &[Measure], control: &Control, done: &Done) -> Claim {
    let key = control_key(&control.set);
    let measures = if control.measures.is_empty() { own } else { &control.measures };
    let Some(kept) = held(measures, done, &key, |measure, value| measure.bounds.have(value)) else {
        return claim;
    };
    let must_hold = !control.measures.is_empty();
    let as_it_must = if must_hold { kept } else { Held { at: kept.of - kept.at, of: kept.of } };
    let must = if must_hold { threshold(measures) } else { "must miss the threshold".into() };
    let found = counted(ours(measures, done, &key), Some(as_it_must));
    let what = if key.is_empty() { "other variants" } else { &key };
    with_control(claim, format!("{what}: {must}; {found}"), as_it_must)
}

/// The claim with the outcome of its control: without a verdict if the control fails anywhere,
/// because then the mechanism does not explain the result.
fn with_control(claim: Claim, control: String, as_it_must: Held) -> Claim {
    let works = as_it_must.everywhere();
    Claim {
        control: Some(control),
        control_holds: Some(works),
        held: claim.held.filter(|_| works),
        size: claim.size.filter(|_| works),
        ..claim
    }
}

fn counted(text: String, held: Option<Held>) -> String {
    match held {
        Some(Held { at, of }) if of > 1 => format!("{text}; at {at} of {of} points"),
        _ => text,
    }
}

/// Number of the points at which the medians of all measures are inside; `None` without a point at
/// which all were measured.
fn held(
    measures: &[Measure],
    done: &Done,
    control: &str,
    inside: impl Fn(&Measure, f64) -> bool,
) -> Option<Held> {
    let mut points: Option<BTreeMap<usize, bool>> = None;
    for measure in measures {
        let found = medians(measure, done, control);
        let is_inside = |point: &usize| found.get(point).map(|value| inside(measure, *value));
        points = Some(match points {
            None => found.keys().filter_map(|point| Some((*point, is_inside(point)?))).collect(),
            Some(before) => before
                .into_iter()
                .filter_map(|(point, held)| Some((point, held && is_inside(&point)?)))
                .collect(),
        });
    }
    let points = points.filter(|points| !points.is_empty())?;
    Some(Held { at: points.values().filter(|held| **held).count(), of: points.len() })
}

/// The median over the seeds at each point.
fn medians(measure: &Measure, done: &Done, control: &str) -> BTreeMap<usize, f64> {
    let mut by_point: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for ((point, _), value) in measured(measure, done, control) {
        by_point.entry(point).or_default().push(value);
    }
    let median = |(point, values)| Some((point, interval(values)?.median));
    by_point.into_iter().filter_map(median).collect()
}

/// Results as text.
fn ours(measures: &[Measure], done: &Done, control: &str) -> String {
    let one = |measure: &Measure| {
        let points = medians(measure, done, control);
        let shown = match interval(points.values().copied()) {
            None => "not run".into(),
            Some(found) if points.len() == 1 => number(measure, found.median),
            Some(found) => {
                let [low, median, high] =
                    [found.low, found.median, found.high].map(|value| number(measure, value));
                format!("{median} ({low} to {high})")
            }
        };
        if measures.len() > 1 { format!("{}: {shown}", what(measure)) } else { shown }
    };
    measures.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Thresholds and published values as text.
fn threshold(measures: &[Measure]) -> String {
    let one = |measure: &Measure| {
        let Measure { bounds: Bounds { min, max }, size, published, .. } = measure;
        let what = what(measure);
        let [min, max] = [min, max].map(|bound| bound.map(|bound| number(measure, bound)));
        let bound = match (min, max) {
            (Some(min), Some(max)) => format!(" {min} to {max}"),
            (Some(min), None) => format!(" at least {min}"),
            (None, Some(max)) => format!(" at most {max}"),
            (None, None) => String::new(),
        };
        let size = size.map_or_else(String::new, |(low, high)| {
            let [low, high] = [low, high].map(|edge| number(measure, edge));
            format!(", same size {low} to {high}")
        });
        let published = published
            .map_or_else(String::new, |value| format!(" (published {})", number(measure, value)));
        format!("{what}{bound}{size}{published}")
    };
    measures.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Name of a measure as text.
fn what(measure: &Measure) -> String {
    let condition = measure.condition.as_ref().map(|(quantity, Bounds { min, max })| {
        let bound = |word: &str, bound: &Option<f64>| {
            bound.map_or_else(String::new, |bound| format!(" {word} {bound}"))
        };
        let what = quantity_name(quantity);
        format!(", where {what} is{}{}", bound("at least", min), bound("at most", max))
    });
    let over = &measure.over;
    let name = quantity_name(&measure.quantity);
    format!("{over}{name}{}", condition.unwrap_or_default())
}

fn quantity_name(quantity: &Quantity) -> String {
    match quantity {
        Quantity::Value(side) => side.to_string(),
        Quantity::Ratio(Side::Cells(of), Side::Cells(to)) => {
            let parts = |cells: &Cells| {
                let (variant, rest) = cells.pattern.split_once('/').unwrap_or((&cells.pattern, ""));
                (variant.to_owned(), rest.replacen('/', " ", 1))
            };
            let (of_variant, of_rest) = parts(of);
            let (to_variant, to_rest) = parts(to);
            if of_rest == to_rest {
                format!("{of_rest}: {of_variant} / {to_variant}")
            } else {
                format!("{} / {}", of.pattern, to.pattern)
            }
        }
        Quantity::Ratio(of, to) => format!("{of} / {to}"),
        Quantity::RatioOfRatios(sides) => {
            let [of, to, of_other, to_other] = &**sides;
            format!("({of} / {to}) / ({of_other} / {to_other})")
        }
        Quantity::Recovered(sides) => {
            let [loss, mended, without] = &**sides;
            format!("of {loss} less {without}, share recovered by {mended}")
        }
    }
}

/// Formats a value of a measure; ratios have no unit.
fn number(measure: &Measure, value: f64) -> String {
    match measure.base() {
        Some(Base::Seconds) => format!("{value:.3} s"),
        Some(Base::Fraction) => format!("{:.1} %", value * 100.0),
        Some(Base::BytesPerSecond) => format!("{:.2} MiB/s", value / 1_048_576.0),
        Some(Base::PerSecond) => format!("{value:.0}/s"),
        Some(Base::Bytes) => format!("{value:.0} B"),
        _ if value.abs() < 0.1 && value != 0.0 => format!("{value:.4}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests;
