//! An ensemble: worlds that a source leaves open, all of which are run. The share of the worlds in
//! which a claim holds is the result.
//!
//! ```toml
//! [ensembles.drives]
//! grids = ["disk"]                     # or variants = ["..."]
//! worlds = [
//!     { "device.queue_depth" = 1 },
//!     { "device.queue_depth" = 31 },
//! ]
//! ```

use std::collections::BTreeSet;

use super::Variant;
use super::fit::{Fit, Point, Side, Values};
use super::metric::Yields;
use super::section::{Section, listed};
use super::tree::Value;
use crate::Error;

/// Reads an ensemble: a fit without rows, whose points are the worlds.
pub(super) fn read(
    name: String,
    mut section: Section<'_>,
    yields: &Yields,
    all: &[Variant],
) -> Result<Fit, Error> {
    let mut variants = section.texts("variants")?;
    for variant in &variants {
        let known = yields.check_variant(variant);
        known.map_err(|what| section.wrong_key("variants", &what))?;
    }
    for grid in section.texts("grids")? {
        let of = |one: &&Variant| one.grid.as_ref().is_some_and(|of| of.0 == grid);
        let before = variants.len();
        variants.extend(all.iter().filter(of).map(|one| one.name.clone()));
        if variants.len() == before {
            return Err(section.wrong_key("grids", &format!("has the unknown grid {grid:?}")));
        }
    }
    let worlds = section.list("worlds")?;
    let (Some(first), false) = (worlds.first(), variants.is_empty()) else {
        return Err(section.wrong("needs \"worlds\", and \"variants\" or \"grids\""));
    };
    let paths: BTreeSet<String> = first.entries().map(|(path, _)| path.clone()).collect();
    let mut points = Vec::new();
    for world in &worlds {
        let own: BTreeSet<String> = world.entries().map(|(path, _)| path.clone()).collect();
        if own != paths {
            let what = format!("must set the paths of the first world: {}", listed(&paths));
            return Err(world.wrong(&what));
        }
        let mut values: Vec<(&String, Value)> =
            world.entries().map(|(path, node)| (path, node.value.clone())).collect();
        values.sort_by(|a, b| a.0.cmp(b.0));
        points.push(Point { values: values.into_iter().map(|(_, value)| value).collect() });
    }
    let side = |(at, path): (usize, &String)| {
        let values = points.iter().map(|point: &Point| point.values[at].clone()).collect();
        Side { origin: section.origin().clone(), path: path.clone(), values: Values::OneOf(values) }
    };
    let sides = paths.iter().enumerate().map(side).collect();
    section.finish()?;
    let accept = Vec::new();
    Ok(Fit { name, variants, sides, accept, draws: 0, keep: 0, seeds: 1, seed: 0, points })
}
