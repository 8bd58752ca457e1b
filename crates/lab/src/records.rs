//! `experiments/records.toml` lists every number that the five mails publish. Each is a row of a
//! built-in experiment, with the same number, or has a reason why it is none.

use std::collections::{BTreeMap, BTreeSet};

use super::builtin::{BUILTIN, load};
use super::spec::Experiment;
use super::spec::job::{FSYNC_ROW, fsync_metrics};
use super::spec::section::{Section, fraction_of, text_of};
use super::spec::tree::{Node, Value};

const LIST: &str = include_str!("../../../experiments/records.toml");

/// A mail prints some numbers twice, rounded in different ways.
const ROUNDING: f64 = 0.001;

/// Records that must be rows.
const ROWS_MIN: usize = 450;

#[test]
fn every_published_record_is_a_row_with_its_number_or_has_a_reason() {
    let tree = Node::parse("records.toml", LIST).unwrap();
    let mut root = Section::of(&tree, "").unwrap();
    let all: usize = root.maybe_number("records", 1..=100_000).unwrap().unwrap();
    let reasons = root.section("reasons").unwrap().unwrap();
    let reasons: BTreeSet<&String> = reasons.entries().map(|(name, _)| name).collect();
    let names = BUILTIN.iter().map(|builtin| builtin.name);
    let experiments: BTreeMap<&str, Experiment> =
        names.map(|name| (name, load(name).unwrap())).collect();
    let mut count = 0;
    let mut rows = 0;
    let mut used = BTreeSet::new();
    let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (_, mail) in root.named("mails").unwrap() {
        let (_, list) = mail.entries().next().unwrap();
        let Value::List(list) = &list.value else { panic!("a list") };
        for record in list {
            count += 1;
            let mut record = Section::of(record, "record").unwrap();
            let name = record.needed_text("record").unwrap();
            let value = fraction_of(record.node("value").unwrap(), "value").unwrap();
            let text =
                |node: Option<&Node>| node.map(|node| text_of(node, name).unwrap().to_owned());
            let cell = text(record.node("cell"));
            let of = text(record.node("samples"));
            match (cell, of) {
                (Some(cell), None) => {
                    let published = published(&experiments, &cell);
                    let published = published.unwrap_or_else(|| panic!("{name}: no row {cell}"));
                    let off = (published - value).abs();
                    assert!(off <= value.abs() * ROUNDING, "{name}: {value}, but {published}");
                    rows += 1;
                }
                (None, Some(of)) => {
                    samples.entry(of).or_default().push(value);
                    rows += 1;
                }
                (None, None) => {
                    let why = record.needed_text("why").unwrap().to_owned();
                    assert!(reasons.contains(&why), "{name}: {why}");
                    let claim = record.text("claim").unwrap();
                    assert_eq!(claim.is_some(), why == "claim", "{name}");
                    let has = |experiment: &Experiment, id: &str| {
                        experiment.claims.iter().any(|claim| claim.id == id)
                    };
                    let known = |id: &str| experiments.values().any(|one| has(one, id));
                    assert!(claim.is_none_or(known), "{name}: {claim:?}");
                    used.insert(why);
                }
                _ => panic!("{name} has a cell and samples"),
            }
            record.finish().unwrap();
        }
    }
    assert_eq!(count, all);
    assert_eq!(used.len(), reasons.len(), "each reason is needed");
    for (of, list) in samples {
        for (metric, value) in fsync_metrics(&list) {
            assert_eq!(published(&experiments, &format!("{of}/{FSYNC_ROW}/{metric}")), Some(value));
        }
    }
    assert!(rows >= ROWS_MIN, "{rows} of {count} records are rows");
}

/// The published number of `experiment:variant/row/metric`.
fn published(experiments: &BTreeMap<&str, Experiment>, cell: &str) -> Option<f64> {
    let (name, cell) = cell.split_once(':')?;
    let same = |row: &&super::spec::Published| row.cell.to_string() == cell;
    experiments.get(name)?.published.iter().find(same).map(|row| row.value)
}
