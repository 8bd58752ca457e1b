//! The measure of a claim: a number, a ratio, or one number over many cells.
//!
//! ```toml
//! ratio = ["disk-G-{16k,32k}-{q8,q256}/w write/rate", "disk-F-{16k,32k}-{q8,q256}/w write/rate"]
//! over = "median"                      # of the four ratios, cell by cell
//! min = 1.1
//! ```
//! Braces expand to each of their words; the last braces change first. Two sides with equal braces
//! pair cell by cell; a side without braces pairs with every cell.

use std::fmt;

use super::metric::{Base, Cell, Yields, metric_named};
use super::section::{Section, fraction_of, mistake, text_of};
use super::tree::{Node, Value};
use crate::Error;

/// Limit of cells; the largest grid has as many.
const CELLS_MAX: usize = 4096;

/// Bounds of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
}

impl Bounds {
    pub(crate) fn have(&self, value: f64) -> bool {
        self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }

    fn read(section: &mut Section<'_>) -> Result<Self, Error> {
        let min = section.fraction("min")?;
        let max = section.fraction("max")?;
        if min.zip(max).is_some_and(|(min, max)| min > max) {
            return Err(section.wrong_key("min", "is above \"max\""));
        }
        Ok(Self { min, max })
    }

    fn read_needed(section: &mut Section<'_>) -> Result<Self, Error> {
        let bounds = Self::read(section)?;
        if bounds == Self::default() {
            Err(section.wrong("takes \"min\", \"max\" or both"))
        } else {
            Ok(bounds)
        }
    }
}

/// Cells of a pattern, in the order of its braces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cells {
    pub(crate) pattern: String,
    pub(crate) cells: Vec<Cell>,
    /// Number of words in each of its braces.
    pub(crate) braces: Vec<usize>,
}

/// A side of a ratio.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Side {
    /// The cells themselves.
    Cells(Cells),
    /// The largest of all cells.
    Largest(Cells),
    /// Cell by cell the largest of several patterns.
    Best(Vec<Cells>),
    /// Cell by cell the smallest of several patterns.
    Worst(Vec<Cells>),
}

/// A number for each cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Quantity {
    Value(Side),
    /// First side divided by second.
    Ratio(Side, Side),
    /// Ratio of the first two sides, divided by that of the last two: an interaction.
    RatioOfRatios(Box<[Side; 4]>),
    /// Share of the loss, from the third side to the first, that the second recovers.
    Recovered(Box<[Side; 3]>),
}

/// Reduction of many cells to one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Over {
    /// A single cell.
    One,
    Median,
    Smallest,
    Largest,
    /// Share of the cells within these bounds.
    Share(Bounds),
    /// Place of the largest cell in the only braces, counted from 1.
    PlaceOfLargest,
    /// Number of different places of the largest cell in the last braces, over the words of the
    /// others.
    DifferentPlaces,
    /// Spearman's rank correlation with the place in these braces, counted from 0.
    RankCorrelation(usize),
}

/// A measure and its threshold.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measure {
    pub(crate) quantity: Quantity,
    pub(crate) over: Over,
    /// Keeps only the cells in which this quantity is within these bounds.
    pub(crate) condition: Option<(Quantity, Bounds)>,
    /// Threshold.
    pub(crate) bounds: Bounds,
    /// Range of a reproduced size; never decides.
    pub(crate) size: Option<(f64, f64)>,
    /// Published value.
    pub(crate) published: Option<f64>,
}

impl Measure {
    pub(super) fn read_all(section: &mut Section<'_>, yields: &Yields) -> Result<Vec<Self>, Error> {
        let measures = section.list("measure")?.into_iter();
        measures.map(|measure| Self::read(measure, yields)).collect()
    }

    fn read(mut section: Section<'_>, yields: &Yields) -> Result<Self, Error> {
        let quantity = Quantity::read(&mut section, yields)?;
        let over = Over::read(&mut section, &quantity)?;
        let condition = match section.section("where")? {
            None => None,
            Some(mut condition) => {
                let other = Quantity::read(&mut condition, yields)?;
                if other.braces() != quantity.braces() {
                    return Err(condition.wrong("takes the same braces as the measure has"));
                }
                let bounds = Bounds::read_needed(&mut condition)?;
                condition.finish()?;
                Some((other, bounds))
            }
        };
        let bounds = Bounds::read(&mut section)?;
        let published = section.fraction("published")?;
        let path = section.path("size");
        let size = section.node("size").map(|node| band(node, &path)).transpose()?;
        section.finish()?;
        Ok(Self { quantity, over, condition, bounds, size, published })
    }

    /// All cells of the measure.
    pub(crate) fn cells(&self) -> impl Iterator<Item = &Cell> {
        let condition = self.condition.iter().flat_map(|(quantity, _)| quantity.sides());
        let sides = self.quantity.sides().into_iter().chain(condition);
        sides.flat_map(Side::lists).flat_map(|list| &list.cells)
    }

    /// Unit; a ratio has none.
    pub(crate) fn base(&self) -> Option<Base> {
        match (&self.quantity, self.over) {
            (_, Over::Share(_)) | (Quantity::Recovered(_), _) => Some(Base::Fraction),
            (Quantity::Value(side), Over::One | Over::Median | Over::Smallest | Over::Largest) => {
                metric_named(side.lists()[0].cells[0].metric).map(|metric| metric.base)
            }
            _ => None,
        }
    }
}

impl Quantity {
    fn read(section: &mut Section<'_>, yields: &Yields) -> Result<Self, Error> {
        let path = section.path("ratio");
        let ratio =
            section.node("ratio").map(|node| sides::<2>(node, &path, yields)).transpose()?;
        let path = section.path("value");
        let value =
            section.node("value").map(|node| Side::read(node, &path, yields)).transpose()?;
        let path = section.path("recovered");
        let recovered =
            section.node("recovered").map(|node| sides::<3>(node, &path, yields)).transpose()?;
        let path = section.path("ratio_of_ratios");
        let ratios = section.node("ratio_of_ratios");
        let ratios = ratios.map(|node| sides::<4>(node, &path, yields)).transpose()?;
        let quantity = match (ratio, value, recovered, ratios) {
            (Some([of, to]), None, None, None) => Self::Ratio(of, to),
            (None, Some(side), None, None) => Self::Value(side),
            (None, None, Some(sides), None) => Self::Recovered(Box::new(sides)),
            (None, None, None, Some(sides)) => Self::RatioOfRatios(Box::new(sides)),
            _ => {
                let what = "takes one of \"ratio\", \"value\", \"recovered\", \"ratio_of_ratios\"";
                return Err(section.wrong(what));
            }
        };
        let braces = quantity.braces();
        let differs = |list: &&Cells| list.cells.len() > 1 && list.braces != braces;
        let sides = quantity.sides();
        let aligned = sides.iter().filter(|side| !matches!(side, Side::Largest(_)));
        if let Some(other) = aligned.flat_map(|side| side.lists()).find(differs) {
            let what = format!("has sides with other braces: {}", other.pattern);
            return Err(section.wrong(&what));
        }
        Ok(quantity)
    }

    pub(crate) fn sides(&self) -> Vec<&Side> {
        match self {
            Self::Value(side) => vec![side],
            Self::Ratio(of, to) => vec![of, to],
            Self::Recovered(sides) => sides.iter().collect(),
            Self::RatioOfRatios(sides) => sides.iter().collect(),
        }
    }

    /// Braces of the side with the most cells.
    pub(crate) fn braces(&self) -> Vec<usize> {
        let sides = self.sides().into_iter().filter(|side| !matches!(side, Side::Largest(_)));
        let lists = sides.flat_map(|side| side.lists());
        lists.max_by_key(|list| list.cells.len()).map_or_else(Vec::new, |list| list.braces.clone())
    }
}

impl Side {
    fn read(node: &Node, path: &str, yields: &Yields) -> Result<Self, Error> {
        if matches!(node.value, Value::Text(_)) {
            return Cells::read(node, path, yields).map(Self::Cells);
        }
        let mut section = Section::of(node, path)?;
        let largest = section.node("largest");
        let best = section.node("best").map(|node| lists(node, path, yields)).transpose()?;
        let worst = section.node("worst").map(|node| lists(node, path, yields)).transpose()?;
        let side = match (largest, best, worst) {
            (Some(node), None, None) => Self::Largest(Cells::read(node, path, yields)?),
            (None, Some(lists), None) => Self::Best(lists),
            (None, None, Some(lists)) => Self::Worst(lists),
            _ => return Err(section.wrong("takes one of \"largest\", \"best\", \"worst\"")),
        };
        section.finish()?;
        Ok(side)
    }

    /// Its patterns; at least one.
    pub(crate) fn lists(&self) -> &[Cells] {
        match self {
            Self::Cells(list) | Self::Largest(list) => std::slice::from_ref(list),
            Self::Best(lists) | Self::Worst(lists) => lists,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patterns: Vec<&str> = self.lists().iter().map(|list| list.pattern.as_str()).collect();
        let patterns = patterns.join(", ");
        match self {
            Self::Cells(_) => f.write_str(&patterns),
            Self::Largest(_) => write!(f, "the largest of {patterns}"),
            Self::Best(_) => write!(f, "the best of ({patterns})"),
            Self::Worst(_) => write!(f, "the worst of ({patterns})"),
        }
    }
}

impl Over {
    const NAMES: [&str; 7] = [
        "median",
        "smallest",
        "largest",
        "share",
        "place of largest",
        "different places",
        "rank correlation",
    ];

    fn read(section: &mut Section<'_>, quantity: &Quantity) -> Result<Self, Error> {
        let braces = quantity.braces();
        let along = section.maybe_number("along", 1..=braces.len().max(1) as u32)?;
        let cell = section.section("cell")?.map(|mut cell| {
            let bounds = Bounds::read_needed(&mut cell)?;
            cell.finish().map(|()| bounds)
        });
        let cell = cell.transpose()?;
        let text = section.text("over")?;
        let is_one = braces.iter().all(|words| *words == 1);
        let over = match (text, cell, along) {
            (None, None, None) if is_one => Self::One,
            (Some("median"), None, None) => Self::Median,
            (Some("smallest"), None, None) => Self::Smallest,
            (Some("largest"), None, None) => Self::Largest,
            (Some("share"), Some(bounds), None) => Self::Share(bounds),
            (Some("place of largest"), None, None) if braces.len() == 1 => Self::PlaceOfLargest,
            (Some("different places"), None, None) if braces.len() > 1 => Self::DifferentPlaces,
            (Some("rank correlation"), None, Some(along)) => {
                Self::RankCorrelation(along as usize - 1)
            }
            _ => {
                let names = Self::NAMES.map(|name| format!("{name:?}")).join(", ");
                let what = format!(
                    "with several cells takes one of {names}; a share needs \"cell\" with bounds, \
                     a rank correlation \"along\" with the number of the braces, a place one pair \
                     of braces, different places two or more"
                );
                return Err(section.wrong_key("over", &what));
            }
        };
        Ok(over)
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One => Ok(()),
            Self::Median => f.write_str("median of "),
            Self::Smallest => f.write_str("smallest of "),
            Self::Largest => f.write_str("largest of "),
            Self::Share(Bounds { min: Some(min), max: None }) => {
                write!(f, "share at least {min} of ")
            }
            Self::Share(Bounds { min: None, max: Some(max) }) => {
                write!(f, "share at most {max} of ")
            }
            Self::Share(_) => f.write_str("share within bounds of "),
            Self::PlaceOfLargest => f.write_str("place of the largest of "),
            Self::DifferentPlaces => f.write_str("different places of the largest of "),
            Self::RankCorrelation(along) => {
                write!(f, "rank correlation with braces {} of ", along + 1)
            }
        }
    }
}

impl Cells {
    fn read(node: &Node, path: &str, yields: &Yields) -> Result<Self, Error> {
        let pattern = text_of(node, path)?;
        let Some((texts, braces)) = expand(pattern) else {
            let what = format!(
                "is {pattern:?}, but takes \"variant/row/metric\", in which {{a,b}} stands for \
                 each word, for {CELLS_MAX} cells at most"
            );
            return Err(mistake(node, path, &what));
        };
        let cell = |text: &String| Cell::parse(node, path, text, yields);
        let cells = texts.iter().map(cell).collect::<Result<_, _>>()?;
        Ok(Self { pattern: pattern.into(), cells, braces })
    }
}

/// The expanded texts of a pattern, the last braces changing first, and the number of words in each
/// of its braces.
fn expand(pattern: &str) -> Option<(Vec<String>, Vec<usize>)> {
    let mut texts = vec![String::new()];
    let mut braces = Vec::new();
    let mut rest = pattern;
    while let Some((before, behind)) = rest.split_once('{') {
        let (words, after) = behind.split_once('}')?;
        let words: Vec<&str> = words.split(',').collect();
        if words.iter().any(|word| word.contains('{')) || texts.len() * words.len() > CELLS_MAX {
            return None;
        }
        let longer = |text: &String| -> Vec<String> {
            words.iter().map(|word| format!("{text}{before}{word}")).collect()
        };
        texts = texts.iter().flat_map(longer).collect();
        braces.push(words.len());
        rest = after;
    }
    if rest.contains('}') {
        return None;
    }
    texts.iter_mut().for_each(|text| text.push_str(rest));
    Some((texts, braces))
}

fn lists(node: &Node, path: &str, yields: &Yields) -> Result<Vec<Cells>, Error> {
    let refuse = || mistake(node, path, "takes a list of patterns with the same braces");
    let Value::List(list) = &node.value else { return Err(refuse()) };
    let lists: Vec<Cells> =
        list.iter().map(|node| Cells::read(node, path, yields)).collect::<Result<_, _>>()?;
    let is_even =
        lists.first().is_some_and(|first| lists.iter().all(|list| list.braces == first.braces));
    if is_even { Ok(lists) } else { Err(refuse()) }
}

fn sides<const N: usize>(node: &Node, path: &str, yields: &Yields) -> Result<[Side; N], Error> {
    let refuse = || {
        let what = match N {
            2 => "takes two of \"variant/row/metric\": dividend and divisor",
            3 => "takes three of \"variant/row/metric\": loss, partial recovery, no loss",
            _ => "takes four of \"variant/row/metric\": two ratios",
        };
        mistake(node, path, what)
    };
    let Value::List(list) = &node.value else { return Err(refuse()) };
    let read = list.iter().map(|node| Side::read(node, path, yields));
    let sides = read.collect::<Result<Vec<Side>, Error>>()?;
    sides.try_into().map_err(|_| refuse())
}

fn band(node: &Node, path: &str) -> Result<(f64, f64), Error> {
    match &node.value {
        Value::List(list) if list.len() == 2 => {
            let low = fraction_of(&list[0], path)?;
            Ok((low, fraction_of(&list[1], path)?))
        }
        _ => Err(mistake(node, path, "takes two numbers: from, to")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_expand_to_each_word_and_the_last_change_first() {
        let (texts, braces) = expand("a-{x,y}-{1,2}/r").unwrap();
        assert_eq!(texts, ["a-x-1/r", "a-x-2/r", "a-y-1/r", "a-y-2/r"]);
        assert_eq!(braces, [2, 2]);
        assert_eq!(expand("a{,-b}").unwrap().0, ["a", "a-b"]);
        assert_eq!(expand("plain"), Some((vec!["plain".into()], vec![])));
        for bad in ["a{x", "a}", "a{x{y}}", &"{1,2,3,4,5,6,7,8}".repeat(5)] {
            assert_eq!(expand(bad), None, "{bad}");
        }
    }
}
