//! Reads a table: the caller requests each key once, with its type and range. A key that was never
//! requested is an error that lists the known keys.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use super::tree::{Node, Origin, Override, Value};
use blockyard::text::printable;

use crate::Error;

/// A table during reading.
pub(crate) struct Section<'a> {
    path: String,
    origin: &'a Origin,
    table: &'a BTreeMap<String, Node>,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// Starts to read a node, which must be a table; error messages show its path.
    pub(crate) fn of(node: &'a Node, path: &str) -> Result<Self, Error> {
        match &node.value {
            Value::Table(table) => {
                Ok(Self { path: path.into(), origin: &node.origin, table, asked: Vec::new() })
            }
            other => Err(mistake(node, path, &format!("is {other}, but takes a table"))),
        }
    }

    /// The path of a key of this table.
    pub(crate) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) }
    }

    /// Place of the table in the file.
    pub(super) fn origin(&self) -> &'a Origin {
        self.origin
    }

    /// Node of a key, if present.
    pub(crate) fn node(&mut self, key: &'static str) -> Option<&'a Node> {
        self.asked.push(key);
        self.table.get(key)
    }

    /// An error about the table as a whole.
    pub(crate) fn wrong(&self, what: &str) -> Error {
        let path = if self.path.is_empty() { "the file".into() } else { self.path.clone() };
        Error::new(format!("{}: {path} {what}", self.origin))
    }

    /// An error about the value of a key.
    pub(crate) fn wrong_key(&self, key: &str, what: &str) -> Error {
        match self.table.get(key) {
            Some(node) => mistake(node, &self.path(key), what),
            None => self.wrong(&format!("needs the key {key:?}: {what}")),
        }
    }

    /// Text, if present.
    pub(crate) fn text(&mut self, key: &'static str) -> Result<Option<&'a str>, Error> {
        let path = self.path(key);
        self.node(key).map(|node| text_of(node, &path)).transpose()
    }

    /// Required text.
    pub(crate) fn needed_text(&mut self, key: &'static str) -> Result<&'a str, Error> {
        self.text(key)?.ok_or_else(|| self.wrong(&format!("needs the key {key:?} (text)")))
    }

    /// One text or a list of texts.
    pub(crate) fn texts(&mut self, key: &'static str) -> Result<Vec<String>, Error> {
        let path = self.path(key);
        match self.node(key) {
            None => Ok(Vec::new()),
            Some(Node { value: Value::List(list), .. }) => {
                list.iter().map(|node| text_of(node, &path).map(String::from)).collect()
            }
            Some(node) => Ok(vec![text_of(node, &path)?.into()]),
        }
    }

    /// A whole number in a range, if present.
    pub(crate) fn maybe_number<T>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, Error>
    where
        T: TryFrom<i64> + PartialOrd + std::fmt::Display + Copy,
    {
        let path = self.path(key);
        let Some(node) = self.node(key) else { return Ok(None) };
        let number = match node.value {
            Value::Number(number) => T::try_from(number).ok(),
            _ => None,
        };
        number.filter(|number| range.contains(number)).map(Some).ok_or_else(|| {
            let low = range.start();
            let high = range.end();
            let what = format!(
                "is {}, but takes a whole number from {low} to {high}",
                printable(&node.value.to_string())
            );
            mistake(node, &path, &what)
        })
    }

    /// A whole number in a range, or the default.
    pub(crate) fn number<T>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
        usual: T,
    ) -> Result<T, Error>
    where
        T: TryFrom<i64> + PartialOrd + std::fmt::Display + Copy,
    {
        Ok(self.maybe_number(key, range)?.unwrap_or(usual))
    }

    /// Whether the value of a key is a list.
    pub(crate) fn is_list(&mut self, key: &'static str) -> bool {
        self.node(key).is_some_and(|node| matches!(node.value, Value::List(_)))
    }

    /// A list of numbers, texts or flags; empty without the key.
    pub(crate) fn scalars(&mut self, key: &'static str) -> Result<Vec<Value>, Error> {
        let path = self.path(key);
        let Some(node) = self.node(key) else { return Ok(Vec::new()) };
        let refuse = || {
            let what = "takes a list of whole numbers, of texts, or of true and false";
            mistake(node, &path, what)
        };
        let Value::List(list) = &node.value else { return Err(refuse()) };
        let scalar = |node: &Node| match &node.value {
            Value::Number(_) | Value::Text(_) | Value::Flag(_) => Ok(node.value.clone()),
            _ => Err(refuse()),
        };
        list.iter().map(scalar).collect()
    }

    /// A number, whole or with a fraction, if present.
    pub(crate) fn fraction(&mut self, key: &'static str) -> Result<Option<f64>, Error> {
        let path = self.path(key);
        self.node(key).map(|node| fraction_of(node, &path)).transpose()
    }

    /// A flag, or the default.
    pub(crate) fn flag(&mut self, key: &'static str, usual: bool) -> Result<bool, Error> {
        let path = self.path(key);
        match self.node(key) {
            None => Ok(usual),
            Some(Node { value: Value::Flag(flag), .. }) => Ok(*flag),
            Some(node) => {
                let what = format!("is {}, but takes true or false", node.value);
                Err(mistake(node, &path, &what))
            }
        }
    }

    /// One of several words; the first is the default.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<T, Error> {
        let path = self.path(key);
        let Some(node) = self.node(key) else { return Ok(choices[0].1) };
        let found = match &node.value {
            Value::Text(text) => choices.iter().find(|(word, _)| word == text),
            _ => None,
        };
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
            let said = printable(&node.value.to_string());
            mistake(node, &path, &format!("is {said}, but takes one of {}", words.join(", ")))
        })
    }

    /// A nested table, if present.
    pub(crate) fn section(&mut self, key: &'static str) -> Result<Option<Section<'a>>, Error> {
        let path = self.path(key);
        self.node(key).map(|node| Section::of(node, &path)).transpose()
    }

    /// A nested table; without the key an empty one, so that all its keys have defaults.
    pub(crate) fn part(&mut self, key: &'static str) -> Result<Section<'a>, Error> {
        static EMPTY: LazyLock<Node> = LazyLock::new(|| Node {
            origin: Origin::Set("default values".into()),
            value: Value::Table(BTreeMap::new()),
        });
        let path = self.path(key);
        Section::of(self.node(key).unwrap_or(&EMPTY), &path)
    }

    /// A table of named tables, in the order of the file.
    pub(crate) fn named(&mut self, key: &'static str) -> Result<Vec<(String, Section<'a>)>, Error> {
        let Some(named) = self.section(key)? else { return Ok(Vec::new()) };
        let mut entries: Vec<_> = named.table.iter().collect();
        entries.sort_by_key(|(_, node)| node.origin.line());
        let one = |(name, node): (&String, &'a Node)| {
            Ok((name.clone(), Section::of(node, &named.path(name))?))
        };
        entries.into_iter().map(one).collect()
    }

    /// A list of tables.
    pub(crate) fn list(&mut self, key: &'static str) -> Result<Vec<Section<'a>>, Error> {
        let path = self.path(key);
        match self.node(key) {
            None => Ok(Vec::new()),
            Some(Node { value: Value::List(list), .. }) => {
                let one = |(n, node)| Section::of(node, &format!("{path}[{n}]"));
                list.iter().enumerate().map(one).collect()
            }
            Some(node) => Err(mistake(node, &path, "takes a list of tables")),
        }
    }

    /// A table of paths and their values.
    pub(crate) fn overrides(&mut self, key: &'static str) -> Result<Vec<Override>, Error> {
        let Some(set) = self.section(key)? else { return Ok(Vec::new()) };
        let one = |(path, node): (&String, &Node)| {
            if path.split('.').any(str::is_empty) {
                return Err(mistake(node, &set.path, "takes paths: keys separated by dots"));
            }
            Ok(Override { path: path.clone(), node: node.clone() })
        };
        set.table.iter().map(one).collect()
    }

    /// All keys and their nodes.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Node)> + use<'a> {
        self.table.iter()
    }

    /// Ends the reading; a key that was not requested is an error.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        let unknown = self.table.iter().find(|(key, _)| !self.asked.contains(&key.as_str()));
        let Some((key, node)) = unknown else { return Ok(()) };
        self.asked.sort_unstable();
        self.asked.dedup();
        let path = printable(&self.path(key));
        let what = format!("is not a known key; there are {}", listed(&self.asked));
        Err(mistake(node, &path, &what))
    }
}

/// Names for an error message.
pub(crate) fn listed<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| printable(name.as_ref())).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// An error with the place of a node.
pub(crate) fn mistake(node: &Node, path: &str, what: &str) -> Error {
    Error::new(format!("{}: {path} {what}", node.origin))
}

/// Text, or an error.
pub(crate) fn text_of<'a>(node: &'a Node, path: &str) -> Result<&'a str, Error> {
    match &node.value {
        Value::Text(text) => Ok(text),
        other => Err(mistake(node, path, &format!("is {other}, but takes text"))),
    }
}

/// A number, or an error.
pub(crate) fn fraction_of(node: &Node, path: &str) -> Result<f64, Error> {
    match &node.value {
        Value::Number(number) => Ok(*number as f64),
        Value::Fraction(number) => Ok(*number),
        other => Err(mistake(node, path, &format!("is {other}, but takes a number"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str, read: impl Fn(&mut Section<'_>) -> Result<(), Error>) -> String {
        let tree = Node::parse("x.toml", text).unwrap();
        let mut section = Section::of(&tree, "").unwrap();
        let result = read(&mut section).and_then(|()| section.finish());
        result.expect_err(text).to_string()
    }

    #[test]
    fn mistakes_name_line_key_and_what_is_allowed() {
        let number = |section: &mut Section<'_>| section.number("n", 1..=9u32, 4).map(drop);
        for text in ["n = 0", "n = 10", "n = -1", "n = \"4\"", "n = 1.5", "n = [1]"] {
            let said = refusal(&format!("\n{text}\n"), number);
            assert!(said.starts_with("x.toml, line 2: n is "), "{said}");
            assert!(said.contains("from 1 to 9"), "{said}");
        }
        let choice = |section: &mut Section<'_>| {
            section.choice("kind", &[("disk", 1), ("flash", 2)]).map(drop)
        };
        let said = refusal("kind = \"dsik\"", choice);
        assert!(said.contains("\"dsik\"") && said.contains("\"disk\", \"flash\""), "{said}");
        let said = refusal("n = 3\nm = 4", number);
        assert_eq!(said, "x.toml, line 2: m is not a known key; there are n");
        let flag = |section: &mut Section<'_>| section.flag("on", true).map(drop);
        assert!(refusal("on = 1", flag).contains("true or false"));
        let needed = |section: &mut Section<'_>| section.needed_text("name").map(drop);
        assert!(refusal("", needed).contains("needs the key \"name\""));
    }

    #[test]
    fn mistake_of_an_override_names_the_override() {
        let mut tree = Node::parse("x.toml", "[queue]\nn = 1\n").unwrap();
        tree.set(&Override::parse("queue.n=12").unwrap()).unwrap();
        let mut root = Section::of(&tree, "").unwrap();
        let mut queue = root.section("queue").unwrap().unwrap();
        let said = queue.number("n", 1..=9u8, 1).unwrap_err().to_string();
        assert_eq!(said, "--set queue.n=12: queue.n is 12, but takes a whole number from 1 to 9");
    }
}
