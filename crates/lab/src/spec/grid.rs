//! A grid: variants that combine one setting of each axis.
//!
//! ```toml
//! [grids.disk]                         # disk-F-4k, disk-F-32k, disk-G-4k, disk-G-32k
//! axes = [["F", "G"], ["4k", "32k"]]   # names of settings
//! ```
//! Settings of a later axis override those of earlier axes.

use std::collections::BTreeMap;

use super::section::{Section, mistake, text_of};
use super::tree::{Node, Override, Value};
use super::{Variant, jobs_of, overrides_of};
use crate::Error;

/// Limit of variants.
const VARIANTS_MAX: usize = 4096;

/// A grid; the experiment's variants include its variants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) name: String,
    pub(crate) title: String,
}

impl Grid {
    pub(super) fn read(
        name: String,
        mut section: Section<'_>,
        settings: &BTreeMap<String, Vec<Override>>,
        known_jobs: &[String],
    ) -> Result<(Self, Vec<Variant>), Error> {
        let title = section.text("title")?.unwrap_or(&name).to_owned();
        let mut set = Vec::new();
        for used in section.texts("settings")? {
            set.extend(overrides_of(&section, "settings", settings, &used)?);
        }
        set.extend(section.overrides("set")?);
        let jobs = jobs_of(&mut section, known_jobs)?;
        let path = section.path("axes");
        let axes = section.node("axes").map(|node| axes(node, &path)).transpose()?;
        let Some(axes) = axes else {
            return Err(section.wrong_key("axes", "takes lists of names of settings"));
        };
        let all = Variant { title: name.clone(), name: name.clone(), jobs, grid: None, set };
        let mut variants = vec![(all, Vec::new())];
        for axis in axes {
            if variants.len() * axis.len() > VARIANTS_MAX {
                let what = format!("stand for more than {VARIANTS_MAX} variants");
                return Err(section.wrong_key("axes", &what));
            }
            let mut longer = Vec::new();
            for (variant, words) in variants {
                for word in &axis {
                    let more = overrides_of(&section, "axes", settings, word)?;
                    let mut next: (Variant, Vec<String>) = (variant.clone(), words.clone());
                    next.0.name += &format!("-{word}");
                    next.0.title.clone_from(&next.0.name);
                    next.0.set.extend(more);
                    next.1.push(word.clone());
                    longer.push(next);
                }
            }
            variants = longer;
        }
        section.finish()?;
        let of_grid = |(variant, words)| Variant { grid: Some((name.clone(), words)), ..variant };
        let variants = variants.into_iter().map(of_grid).collect();
        Ok((Self { name, title }, variants))
    }
}

fn axes(node: &Node, path: &str) -> Result<Vec<Vec<String>>, Error> {
    let refuse =
        || mistake(node, path, "takes lists of names of settings, like [[\"F\", \"G\"], [\"4k\"]]");
    let list = |node: &Node| match &node.value {
        Value::List(list) if !list.is_empty() => Some(list.clone()),
        _ => None,
    };
    let axis = |node: &Node| -> Result<Vec<String>, Error> {
        let words = list(node).ok_or_else(refuse)?;
        words.iter().map(|word| text_of(word, path).map(String::from)).collect()
    };
    list(node).ok_or_else(refuse)?.iter().map(axis).collect()
}
