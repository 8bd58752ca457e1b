//! Fits: constants, their box, the rows to fit on, and the error bound.
//!
//! The box and the bound are part of the experiment file, fixed before the first run. The command
//! `blockyard lab fit` writes the accepted points into a file beside it.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::metric::{Cell, Yields};
use super::section::{Section, listed, mistake};
use super::tree::{Node, Origin, Override, Value};
use super::{Published, Role};
use crate::Error;

/// Limits of the edges of a box, so that arithmetic on them cannot overflow.
const EDGES: std::ops::RangeInclusive<i64> = -1_000_000_000_000..=1_000_000_000_000;
/// Limit of drawn points; a longer search would find accidents.
const DRAWS_MAX: u32 = 100_000;
/// Limit of kept points; each is run for each variant.
const KEEP_MAX: u32 = 256;

/// One side of the box.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Side {
    /// Place in the file.
    pub(crate) origin: Origin,
    pub(crate) path: String,
    pub(crate) values: Values,
}

/// The values of a side.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Values {
    /// Uniform over all whole numbers.
    Even { low: i64, high: i64 },
    /// Uniform in the logarithm.
    Log { low: i64, high: i64 },
    /// Each of these numbers, names or flags as likely.
    OneOf(Vec<Value>),
}

/// A row, or a ratio of two rows, that decides about a point.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Accept {
    pub(crate) cell: Cell,
    /// Divisor of a ratio.
    pub(crate) to: Option<Cell>,
    /// Ours and the published value differ by at most the factor 1 + `error_max`.
    pub(crate) error_max: f64,
}

/// Constants of the world that are fitted to published numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Name.
    pub name: String,
    /// Variants that run at its points.
    pub(crate) variants: Vec<String>,
    pub(crate) sides: Vec<Side>,
    pub(crate) accept: Vec<Accept>,
    /// Points that are run at most.
    pub draws: u32,
    /// Points to accept.
    pub keep: u32,
    /// Number of seeds: a row of a point is the median over them.
    pub(crate) seeds: usize,
    pub(crate) seed: u64,
    /// The accepted points; empty before the search.
    pub points: Vec<Point>,
}

/// A point of the box: a value for each side, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    pub(crate) values: Vec<Value>,
}

impl Fit {
    pub(super) fn read(
        name: String,
        mut section: Section<'_>,
        yields: &Yields,
        published: &[Published],
    ) -> Result<Self, Error> {
        let variants = section.texts("variants")?;
        for variant in &variants {
            let known = yields.check_variant(variant);
            known.map_err(|what| section.wrong_key("variants", &what))?;
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = variants.iter().find(|name| !names.insert(*name)) {
            return Err(section.wrong_key("variants", &format!("has {twice:?} twice")));
        }
        let sides: Vec<Side> =
            section.list("box")?.into_iter().map(Side::read).collect::<Result<_, _>>()?;
        let mut paths = BTreeSet::new();
        if let Some(twice) = sides.iter().find(|side| !paths.insert(&side.path)) {
            let what = format!("has the path {:?} twice", twice.path);
            return Err(section.wrong_key("box", &what));
        }
        let mut accept = Vec::new();
        for row in section.list("accept")? {
            accept.push(Accept::read(row, yields, published, &variants)?);
        }
        let draws = section.number("draws", 1..=DRAWS_MAX, 400)?;
        let keep = section.number("keep", 1..=KEEP_MAX, 8)?;
        let seeds = section.number("seeds", 1..=64, 1)?;
        let seed = section.number("seed", 0..=u64::from(u32::MAX), 1)?;
        for (key, missing) in [
            ("variants", variants.is_empty()),
            ("box", sides.is_empty()),
            ("accept", accept.is_empty()),
        ] {
            if missing {
                return Err(section.wrong_key(key, "takes at least one entry"));
            }
        }
        section.finish()?;
        let points = Vec::new();
        Ok(Self { name, variants, sides, accept, draws, keep, seeds, seed, points })
    }

    /// A point as overrides.
    pub(crate) fn overrides(&self, point: &Point) -> Vec<Override> {
        let whose = |side: &Side| format!("{}: fit {}", side.origin, self.name);
        let pairs = self.sides.iter().zip(&point.values);
        pairs.map(|(side, value)| Override::of(&side.path, value.clone(), &whose(side))).collect()
    }

    /// The middle of the box, for an experiment without accepted points.
    pub(crate) fn middle(&self) -> Point {
        let middle = |side: &Side| side.at(1 << 31);
        Point { values: self.sides.iter().map(middle).collect() }
    }

    /// The accepted points as text of their file. `drawn` is the number of points that were run.
    #[must_use]
    pub fn print(&self, drawn: u32) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let name = if self.name.chars().all(is_plain) {
            self.name.clone()
        } else {
            format!("{:?}", self.name)
        };
        let mut text = format!("[{name}]\ndrawn = {drawn}\npoints = [\n");
        for point in &self.points {
            let pairs = self.sides.iter().zip(&point.values);
            let pairs: Vec<String> =
                pairs.map(|(side, value)| format!("{:?} = {value}", side.path)).collect();
            let _ = writeln!(text, "    {{ {} }},", pairs.join(", "));
        }
        text + "]\n"
    }

    /// Reads the points from its section of that file.
    pub(super) fn read_points(&mut self, mut section: Section<'_>) -> Result<(), Error> {
        section.maybe_number("drawn", 0..=DRAWS_MAX)?;
        for point in section.list("points")? {
            let mut values = vec![None; self.sides.len()];
            for (path, node) in point.entries() {
                let Some(place) = self.sides.iter().position(|side| side.path == *path) else {
                    let sides = listed(self.sides.iter().map(|side| &side.path));
                    let what = format!("is no side of the experiment's box; the sides are {sides}");
                    return Err(mistake(node, path, &what));
                };
                let side = &self.sides[place];
                if !side.contains(&node.value) {
                    let what = format!("is {}, and the box has {side}", node.value);
                    return Err(mistake(node, path, &what));
                }
                values[place] = Some(node.value.clone());
            }
            if let Some(lacking) = values.iter().position(Option::is_none) {
                let side = &self.sides[lacking];
                return Err(point.wrong(&format!("lacks a side of the box: {side}")));
            }
            self.points.push(Point { values: values.into_iter().flatten().collect() });
        }
        section.finish()
    }
}

impl Side {
    fn read(mut section: Section<'_>) -> Result<Self, Error> {
        let path = section.needed_text("path")?.to_owned();
        let low = section.maybe_number("low", EDGES)?;
        let high = section.maybe_number("high", EDGES)?;
        let log = section.flag("log", false)?;
        let one_of = section.scalars("one_of")?;
        let values = match (low.zip(high), &one_of[..]) {
            (Some((low, high)), []) if low > high || (log && low <= 0) => {
                return Err(section.wrong("takes low <= high, and low > 0 with log = true"));
            }
            (Some((low, high)), []) if log => Values::Log { low, high },
            (Some((low, high)), []) => Values::Even { low, high },
            (None, [_, ..]) if low.or(high).is_none() && !log => Values::OneOf(one_of),
            _ => return Err(section.wrong("needs \"low\" and \"high\", or \"one_of\"")),
        };
        let origin = section.origin().clone();
        section.finish()?;
        Ok(Self { origin, path, values })
    }

    /// The value at a share of 2^32: any of them as likely, where the share is drawn evenly.
    pub(crate) fn at(&self, share: u32) -> Value {
        let of = |count: u64| ((u128::from(count) * u128::from(share)) >> 32) as u64;
        match &self.values {
            Values::Even { low, high } => {
                Value::Number(low.saturating_add_unsigned(of(high.abs_diff(*low) + 1)))
            }
            Values::Log { low, high } => {
                let share = f64::from(share) / f64::from(u32::MAX);
                let value = *low as f64 * (*high as f64 / *low as f64).powf(share);
                Value::Number((value.round() as i64).clamp(*low, *high))
            }
            Values::OneOf(values) => values[of(values.len() as u64) as usize].clone(),
        }
    }

    /// Whether the values are a list, without a distance between them.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.values, Values::OneOf(_))
    }

    fn contains(&self, value: &Value) -> bool {
        match (&self.values, value) {
            (Values::Even { low, high } | Values::Log { low, high }, Value::Number(number)) => {
                (low..=high).contains(&number)
            }
            (Values::OneOf(values), value) => values.contains(value),
            _ => false,
        }
    }

    /// The part of the side that these values span: "7000..9000 of 7000..16000 (22 %)", or
    /// "2, 4 of 1, 2, 4". `None` without values.
    pub(crate) fn span(&self, values: &[&Value]) -> Option<String> {
        let numbers = values.iter().filter_map(|value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        });
        let first = numbers.clone().min();
        let last = numbers.max();
        let (low, high, width) = match &self.values {
            Values::Even { low, high } => {
                let width = first?.abs_diff(last?) as f64 / low.abs_diff(*high).max(1) as f64;
                (low, high, width)
            }
            Values::Log { low, high } => {
                let part = last? as f64 / first? as f64;
                let whole = *high as f64 / *low as f64;
                (low, high, if low == high { 0.0 } else { part.ln() / whole.ln() })
            }
            Values::OneOf(all) => {
                let met = all.iter().filter(|value| values.contains(value));
                return Some(format!("{} of {}", listed_values(met), listed_values(all)));
            }
        };
        let percent = width * 100.0;
        Some(format!("{}..{} of {low}..{high} ({percent:.0} % of the side)", first?, last?))
    }
}

fn listed_values<'a>(values: impl IntoIterator<Item = &'a Value>) -> String {
    let values: Vec<String> = values.into_iter().map(ToString::to_string).collect();
    values.join(", ")
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.values {
            Values::Even { low, high } => write!(f, "{} {low}..{high}", self.path),
            Values::Log { low, high } => write!(f, "{} {low}..{high} (log)", self.path),
            Values::OneOf(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                write!(f, "{} {}", self.path, values.join(" or "))
            }
        }
    }
}

impl Accept {
    /// Whether a factor between ours and the published value is within the bound.
    pub(crate) fn admits(&self, factor: f64) -> bool {
        factor <= 1.0 + self.error_max
    }

    fn read(
        mut section: Section<'_>,
        yields: &Yields,
        published: &[Published],
        variants: &[String],
    ) -> Result<Self, Error> {
        let row = section.node("row").map(|node| ("row", std::slice::from_ref(node)));
        let ratio = match section.node("ratio").map(|node| &node.value) {
            Some(Value::List(list)) if list.len() == 2 => Some(("ratio", &list[..])),
            None => None,
            Some(_) => {
                return Err(section.wrong_key("ratio", "takes two of \"variant/row/metric\""));
            }
        };
        let ((Some((key, nodes)), None) | (None, Some((key, nodes)))) = (row, ratio) else {
            let what = "needs \"row\" (\"variant/row/metric\"), or \"ratio\" with two of them";
            return Err(section.wrong(what));
        };
        let path = section.path(key);
        let cell = |node| Self::cell(node, &path, yields, published, variants);
        let mut cells = nodes.iter().map(cell).collect::<Result<Vec<Cell>, Error>>()?.into_iter();
        let first = cells.next();
        let to = cells.next();
        let cell = first.expect("there is one node at least");
        let error_max = section.fraction("error_max")?.filter(|error| *error > 0.0);
        let Some(error_max) = error_max else {
            return Err(section.wrong_key("error_max", "takes a number above 0, for example 0.15"));
        };
        section.finish()?;
        Ok(Self { cell, to, error_max })
    }

    /// A cell with a published number that may be fitted.
    fn cell(
        node: &Node,
        path: &str,
        yields: &Yields,
        published: &[Published],
        variants: &[String],
    ) -> Result<Cell, Error> {
        let cell = Cell::parse(node, path, super::section::text_of(node, path)?, yields)?;
        let wrong = match published.iter().find(|row| row.cell == cell) {
            _ if !variants.contains(&cell.variant) => {
                Some("is of a variant outside the fit's \"variants\"")
            }
            None => Some("needs a number under [published]"),
            Some(row) if row.role != Role::Calibrate || row.value <= 0.0 => {
                Some("needs the role \"calibrate\" and a value above 0")
            }
            Some(_) => None,
        };
        match wrong {
            Some(what) => Err(mistake(node, path, &format!("{cell} {what}"))),
            None => Ok(cell),
        }
    }

    /// The cells of the row or of the ratio.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        std::iter::once(&self.cell).chain(&self.to)
    }
}

impl fmt::Display for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            None => self.cell.fmt(f),
            Some(to) => write!(f, "{} / {to}", self.cell),
        }
    }
}

/// Reads the points of all fits from the text of their file.
pub(super) fn read_points(file: &str, text: &str, fits: &mut [Fit]) -> Result<(), Error> {
    let tree = Node::parse(file, text)?;
    let root = Section::of(&tree, "")?;
    for (name, node) in root.entries() {
        let Some(fit) = fits.iter_mut().find(|fit| fit.name == *name) else {
            return Err(mistake(node, name, "is no fit of the experiment"));
        };
        fit.read_points(Section::of(node, name)?)?;
    }
    Ok(())
}
