//! An experiment file as a tree of values with their places. An override replaces any value by its
//! path, and an error names the line or the override.
//!
//! `queue.elevator = "cfq"` means one value at one path: in a file, in a variant's `set`, and as
//! argument of `--set`. Numbers are whole; the names of keys contain the units.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use blockyard::text::printable;

use crate::Error;

/// Place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A line of a file.
    Line { file: Arc<str>, line: usize },
    /// Text of an override, with its owner.
    Set(Arc<str>),
}

impl Origin {
    /// Line number; overrides sort after all lines.
    pub(super) fn line(&self) -> usize {
        match self {
            Self::Line { line, .. } => *line,
            Self::Set(_) => usize::MAX,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line } => write!(f, "{file}, line {line}"),
            Self::Set(text) => f.write_str(text),
        }
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
    Fraction(f64),
    Flag(bool),
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

impl Value {
    /// Type of the value for error messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Number(_) => "a whole number",
            Self::Fraction(_) => "a number with a fraction",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Fraction(number) => write!(f, "{number:?}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::List(_) => f.write_str("[...]"),
            Self::Table(_) => f.write_str("{...}"),
        }
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) origin: Origin,
    pub(crate) value: Value,
}

/// A value for a path of the world.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    /// Keys separated by dots.
    pub(crate) path: String,
    pub(crate) node: Node,
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.path, self.node.value)
    }
}

impl Override {
    /// Keys separated by dots.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Parses `PATH=VALUE`, for example `queue.elevator=cfq`. A value that is no TOML is text.
    ///
    /// # Errors
    /// The text does not have this form; the message says why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (path, value) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not of the form PATH=VALUE"))?;
        let path = path.trim();
        let value = value.trim();
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err(format!("{path:?} is no path: keys separated by dots"));
        }
        let origin = Origin::Set(format!("--set {path}={value}").into());
        let read = DeValue::parse(value).ok().map(|value| value.into_inner());
        let node = match read {
            Some(value) => {
                let spanned = Spanned::new(0..0, value);
                convert(&spanned, &|_| origin.clone()).map_err(|error| error.to_string())?
            }
            None => Node { origin, value: Value::Text(value.into()) },
        };
        Ok(Self { path: path.into(), node })
    }

    /// The value that a point of a fit has at a path.
    pub(crate) fn of(path: &str, value: Value, whose: &str) -> Self {
        let origin = Origin::Set(format!("{whose}: {path} = {value}").into());
        Self { path: path.into(), node: Node { origin, value } }
    }
}

impl Node {
    /// Parses the text of a file.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self, Error> {
        let file: Arc<str> = printable(file).into();
        let ends: Vec<usize> = text.match_indices('\n').map(|(end, _)| end).collect();
        let line_at = |offset: usize| 1 + ends.partition_point(|end| *end < offset);
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_at(span.start));
            let said = printable(error.message());
            Error::new(format!("{file}, line {line}: not a TOML file: {said}"))
        })?;
        let origin = |offset| Origin::Line { file: Arc::clone(&file), line: line_at(offset) };
        let start = table.span().start;
        let value = table_of(table.get_ref(), &origin)?;
        Ok(Self { origin: origin(start), value })
    }

    /// A copy of a table with these keys only.
    pub(super) fn with_keys(&self, keys: &[&str]) -> Self {
        let Value::Table(table) = &self.value else { return self.clone() };
        let kept = keys.iter().filter_map(|key| table.get_key_value(*key));
        let kept = kept.map(|(key, node)| (key.clone(), node.clone())).collect();
        Self { origin: self.origin.clone(), value: Value::Table(kept) }
    }

    /// Sets the value at a path; creates missing tables.
    pub(crate) fn set(&mut self, set: &Override) -> Result<(), Error> {
        let mut node = self;
        let (way, last) = set.path.rsplit_once('.').unwrap_or(("", &set.path));
        for key in way.split('.').filter(|key| !key.is_empty()) {
            node = node.table_mut(set)?.entry(key.into()).or_insert_with(|| Self {
                origin: set.node.origin.clone(),
                value: Value::Table(BTreeMap::new()),
            });
        }
        node.table_mut(set)?.insert(last.into(), set.node.clone());
        Ok(())
    }

    /// Appends the value as text without its places. Tables have the order in which sections are
    /// read, so that equal texts mean equal worlds.
    pub(super) fn write(&self, text: &mut String) {
        match &self.value {
            Value::List(list) => {
                text.push_str("[\n");
                list.iter().for_each(|node| node.write(text));
                text.push_str("]\n");
            }
            Value::Table(table) => {
                text.push_str("{\n");
                let mut entries: Vec<_> = table.iter().collect();
                entries.sort_by_key(|(_, node)| node.origin.line());
                for (key, node) in entries {
                    let _ = write!(text, "{key:?} = ");
                    node.write(text);
                }
                text.push_str("}\n");
            }
            other => {
                let _ = writeln!(text, "{other}");
            }
        }
    }

    /// Appends the paths of all values below, which are no tables, with their text.
    pub(super) fn paths(&self, path: &str, found: &mut Vec<(String, String)>) {
        match &self.value {
            Value::Table(table) => {
                for (key, node) in table {
                    let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    node.paths(&below, found);
                }
            }
            other => found.push((path.to_owned(), other.to_string())),
        }
    }

    fn table_mut(&mut self, set: &Override) -> Result<&mut BTreeMap<String, Self>, Error> {
        let Self { origin, value } = self;
        match value {
            Value::Table(table) => Ok(table),
            other => Err(Error::new(format!(
                "{}: the path {} passes through {} ({origin})",
                set.node.origin,
                set.path,
                other.kind()
            ))),
        }
    }
}

fn convert<'a>(
    value: &Spanned<DeValue<'a>>,
    origin: &impl Fn(usize) -> Origin,
) -> Result<Node, Error> {
    let at = origin(value.span().start);
    let refuse = |what: String| Err(Error::new(format!("{at}: {what}")));
    let read = match value.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(digits) => match i64::from_str_radix(digits.as_str(), digits.radix()) {
            Ok(number) => Value::Number(number),
            Err(_) => return refuse(format!("{digits} is too large")),
        },
        DeValue::Float(digits) => match digits.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Value::Fraction(number),
            _ => return refuse(format!("{digits} is no finite number")),
        },
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Datetime(time) => return refuse(format!("{time}: no key takes a date or time")),
        DeValue::Array(list) => Value::List(list_of(list, origin)?),
        DeValue::Table(table) => table_of(table, origin)?,
    };
    Ok(Node { origin: at, value: read })
}

fn list_of(list: &DeArray<'_>, origin: &impl Fn(usize) -> Origin) -> Result<Vec<Node>, Error> {
    list.iter().map(|value| convert(value, origin)).collect()
}

fn table_of(table: &DeTable<'_>, origin: &impl Fn(usize) -> Origin) -> Result<Value, Error> {
    let mut read = BTreeMap::new();
    for (key, value) in table {
        // A value has the line of its key.
        let mut node = convert(value, origin)?;
        node.origin = origin(key.span().start);
        read.insert(key.get_ref().clone().into_owned(), node);
    }
    Ok(Value::Table(read))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_at<'a>(node: &'a Node, path: &str) -> &'a Node {
        path.split('.').fold(node, |node, key| match &node.value {
            Value::Table(table) => &table[key],
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn value_knows_its_line_and_an_override_its_text() {
        let mut tree = Node::parse("x.toml", "a = 1\n[b]\nc = \"d\"\n").unwrap();
        assert_eq!(text_at(&tree, "b.c").origin.to_string(), "x.toml, line 3");
        tree.set(&Override::parse("b.c = 7").unwrap()).unwrap();
        tree.set(&Override::parse("n.e.w=cfq,quantum=4").unwrap()).unwrap();
        assert_eq!(text_at(&tree, "b.c").value, Value::Number(7));
        assert_eq!(text_at(&tree, "b.c").origin.to_string(), "--set b.c=7");
        assert_eq!(text_at(&tree, "n.e.w").value, Value::Text("cfq,quantum=4".into()));
    }

    #[test]
    fn override_through_a_number_or_without_a_path_is_refused() {
        let mut tree = Node::parse("x.toml", "a = 1\n").unwrap();
        let refused = tree.set(&Override::parse("a.b = 2").unwrap()).unwrap_err();
        assert!(refused.to_string().contains("a whole number"), "{refused}");
        assert!(refused.to_string().contains("x.toml, line 1"), "{refused}");
        for text in ["a", "=1", ".a=1", "a..b=1"] {
            assert!(Override::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn equal_texts_have_equal_values_in_the_order_of_reading() {
        let tree = || Node::parse("x.toml", "a = [1, \"b\"]\n[j.one]\nd = 1\n[j.two]\n").unwrap();
        let text = |tree: &Node| {
            let mut text = String::new();
            tree.write(&mut text);
            text
        };
        let with = |set: &str| {
            let mut tree = tree();
            tree.set(&Override::parse(set).unwrap()).unwrap();
            text(&tree)
        };
        assert_eq!(with("j.one.d = 1"), text(&tree()));
        assert_eq!(with("j.one.d = 2"), with("j.one.d=2"));
        // Another value, list or type; and a table of the command line is read after the others.
        for other in ["j.one.d = 2", "j.one.d = \"1\"", "a = [1, \"c\"]", "j.one = { d = 1 }"] {
            assert_ne!(with(other), text(&tree()), "{other}");
        }
    }

    #[test]
    fn text_that_is_no_toml_is_refused_with_its_line() {
        for (text, line) in [("a = 1\nb = = 2\n", 2), ("a = 1\na = 2\n", 2), ("[a\n", 1)] {
            let refused = Node::parse("x.toml", text).unwrap_err().to_string();
            assert!(refused.contains(&format!("x.toml, line {line}:")), "{text:?}: {refused}");
        }
        let large = Node::parse("x.toml", "a = 99999999999999999999\n").unwrap_err().to_string();
        assert!(large.contains("too large"), "{large}");
        assert!(Node::parse("x.toml", "a = 1979-05-27\n").is_err());
        assert!(Node::parse("x.toml", "a = nan\n").is_err());
    }
}
