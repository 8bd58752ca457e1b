//! The reduced run of a large experiment, which is the usual one: fewer seeds and points, and
//! without some grids. `--full` runs everything.
//!
//! ```toml
//! [quick]
//! seeds = 1                            # the first of "seeds"
//! points = 3                           # the first of each fit and each ensemble
//! without = ["disk-full"]              # variants and grids
//! ```

use super::section::Section;
use super::{Grid, Variant};
use crate::Error;

/// Variants, points and seeds that only a run with `--full` includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quick {
    pub(crate) seeds: usize,
    pub(crate) points: usize,
    /// Variants and grids.
    without: Vec<String>,
}

impl Quick {
    pub(super) fn read(
        mut section: Section<'_>,
        variants: &[Variant],
        grids: &[Grid],
    ) -> Result<Self, Error> {
        let seeds = section.number("seeds", 1..=64, usize::MAX)?;
        let points = section.number("points", 1..=256, usize::MAX)?;
        let without = section.texts("without")?;
        let is_known = |name: &String| {
            variants.iter().any(|one| one.name == *name)
                || grids.iter().any(|one| one.name == *name)
        };
        if let Some(unknown) = without.iter().find(|name| !is_known(name)) {
            let what = format!("has {unknown:?}, which is neither a variant nor a grid");
            return Err(section.wrong_key("without", &what));
        }
        section.finish()?;
        Ok(Self { seeds, points, without })
    }

    /// Whether a variant is left out.
    pub(crate) fn leaves_out(&self, variant: &Variant) -> bool {
        let grid = variant.grid.as_ref().map(|grid| &grid.0);
        self.without.iter().any(|name| *name == variant.name || Some(name) == grid)
    }
}
