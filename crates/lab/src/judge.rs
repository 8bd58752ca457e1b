//! Judges claims against the results of the runs.
//!
//! A claim holds if each of its measures lies within its threshold *at every accepted point and
//! seed*; the verdict shows the number of those runs. Its negative control must miss the threshold
//! in every run, or keep a threshold of its own. Published numbers play no part.

use std::collections::BTreeMap;

use blockyard_report::Claim;

use super::execute::Done;
use super::measured::measured;
use super::results::{Place, interval};
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
            let verdicts = verdicts(measures, done, "");
            let held = verdicts.values().filter(|held| **held).count();
            let claim = Claim {
                holds: (!verdicts.is_empty()).then_some(held == verdicts.len()),
                ours: counted(claim.ours, held, verdicts.len()),
                ..claim
            };
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
    let held = verdicts.iter().filter(|verdict| verdict.holds).count();
    let as_it_must = verdicts.iter().filter(|verdict| verdict.control_holds == Some(true)).count();
    let first = verdicts[0].clone();
    Claim {
        threshold: check.about.into(),
        ours: counted(first.ours, held, verdicts.len()),
        holds: Some(held == verdicts.len()),
        control: first.control.map(|control| counted(control, as_it_must, verdicts.len())),
        control_holds: first.control_holds.map(|_| as_it_must == verdicts.len()),
        ..claim
    }
}

fn controlled(claim: Claim, own: &[Measure], control: &Control, done: &Done) -> Claim {
    let key = control_key(&control.set);
    let measures = if control.measures.is_empty() { own } else { &control.measures };
    let verdicts = verdicts(measures, done, &key);
    if verdicts.is_empty() {
        return claim;
    }
    let must_hold = !control.measures.is_empty();
    let as_it_must = verdicts.values().filter(|held| **held == must_hold).count();
    let must = if must_hold { threshold(measures) } else { "must miss the threshold".into() };
    let found = counted(ours(measures, done, &key), as_it_must, verdicts.len());
    Claim {
        control: Some(format!("{key}: {must}; {found}")),
        control_holds: Some(as_it_must == verdicts.len()),
        ..claim
    }
}

fn counted(text: String, held: usize, all: usize) -> String {
    if all > 1 { format!("{text}; in {held} of {all} runs") } else { text }
}

/// Tells for each run with all measures whether all lie within their thresholds.
fn verdicts(measures: &[Measure], done: &Done, control: &str) -> BTreeMap<Place, bool> {
    let mut verdicts: Option<BTreeMap<Place, bool>> = None;
    for measure in measures {
        let found = measured(measure, done, control);
        let inside = |value: f64| measure.bounds.have(value);
        verdicts = Some(match verdicts {
            None => found.into_iter().map(|(place, value)| (place, inside(value))).collect(),
            Some(before) => before
                .into_iter()
                .filter_map(|(place, held)| {
                    found.get(&place).map(|value| (place, held && inside(*value)))
                })
                .collect(),
        });
    }
    verdicts.unwrap_or_default()
}

/// Results as text.
fn ours(measures: &[Measure], done: &Done, control: &str) -> String {
    let one = |measure: &Measure| {
        let places = measured(measure, done, control);
        let shown = match interval(places.values().copied()) {
            None => "not run".into(),
            Some(found) if places.len() == 1 => number(measure, found.median),
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
    let (over, name) = (&measure.over, quantity_name(&measure.quantity));
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
            let ((of_variant, of_rest), (to_variant, to_rest)) = (parts(of), parts(to));
            match of_rest == to_rest {
                true => format!("{of_rest}: {of_variant} / {to_variant}"),
                false => format!("{} / {}", of.pattern, to.pattern),
            }
        }
        Quantity::Ratio(of, to) => format!("{of} / {to}"),
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
        _ if value.abs() < 0.1 && value != 0.0 => format!("{value:.4}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests;
