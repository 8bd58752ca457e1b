//! An experiment, parsed from its file.
//!
//! ```text
//!   file ─> tree ─┬─> experiment: title, variants, published rows, fits, claims
//!                 └─ + settings, variant, fit point, --set, control ─> world, jobs
//! ```
//! Settings, variants, fit points, `--set` and negative controls are all overrides by path. They
//! change the tree first; the changed tree is then read as a world.

pub(crate) mod claim;
mod cluster;
mod crypt;
mod ensemble;
pub(crate) mod fit;
pub(crate) mod grid;
pub(crate) mod job;
pub(crate) mod measure;
pub(crate) mod metric;
mod null;
mod quick;
mod raid;
pub(crate) mod section;
pub(crate) mod traced;
pub(crate) mod tree;
pub(crate) mod world;

use std::collections::{BTreeMap, BTreeSet};

use blockyard_engine::time::Nanos;

use self::claim::ClaimSpec;
use self::fit::{Fit, Point};
use self::grid::Grid;
use self::job::{JobSpec, Yield};
use self::metric::{Cell, Yields, known_metric, metric_named};
use self::quick::Quick;
use self::section::{Section, fraction_of, listed, mistake, text_of};
use self::traced::Traces;
use self::tree::{Node, Override, Value};
use super::causes;
use crate::Error;

/// Keys of the world.
const WORLD_KEYS: [&str; 12] = [
    "machine",
    "page_cache",
    "write_back",
    "file_system",
    "crypt",
    "memory",
    "stack",
    "queue",
    "limit",
    "raid",
    "device",
    "jobs",
];
/// Keys that describe the experiment and judge its numbers.
const OWN_KEYS: [&str; 13] = [
    "name",
    "title",
    "about",
    "ours",
    "seeds",
    "settings",
    "variants",
    "grids",
    "published",
    "fits",
    "ensembles",
    "quick",
    "claims",
];
/// Lists name only the first and the last variant of a larger grid.
const GRID_NAMES_MAX: usize = 8;
/// Limit of seeds; each is a run.
const SEEDS_MAX: usize = 64;

/// An experiment, parsed from its file.
// 14 fields: one for each section of the file.
#[derive(Debug)]
pub struct Experiment {
    /// Name.
    pub name: String,
    /// Title: one line.
    pub title: String,
    /// Description: a list of paragraphs.
    pub about: Vec<String>,
    /// The author's own choices and their reasons, printed among the conditions.
    pub(crate) ours: Vec<(String, String)>,
    /// Seeds; each is a run of each variant.
    pub seeds: Vec<u64>,
    /// Variants, including those of grids.
    pub variants: Vec<Variant>,
    /// Grids.
    pub(crate) grids: Vec<Grid>,
    pub(crate) published: Vec<Published>,
    /// Fits.
    pub fits: Vec<Fit>,
    /// Worlds that the source leaves open, as fits without rows.
    pub(crate) ensembles: Vec<Fit>,
    /// Variants, points and seeds that only a run with `--full` includes.
    pub(crate) quick: Option<Quick>,
    pub(crate) claims: Vec<ClaimSpec>,
    /// The world and the jobs.
    tree: Node,
    /// Traces of the jobs.
    traces: Traces,
}

/// A variant of an experiment: other values of its world.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Name.
    pub name: String,
    /// Title: one line.
    pub title: String,
    /// Names of its jobs; each runs in a fresh world.
    pub jobs: Vec<String>,
    /// Name of its grid, and its settings there.
    pub(crate) grid: Option<(String, Vec<String>)>,
    set: Vec<Override>,
}

/// Whether a fit may use a published number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Calibrate,
    Predict,
}

/// A published number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Published {
    pub(crate) cell: Cell,
    pub(crate) value: f64,
    pub(crate) role: Role,
}

/// The world of a variant, and its jobs.
#[derive(Debug)]
pub struct Setup {
    /// World.
    pub config: blockyard_sim::world::Config,
    /// Name of its crypt target's pipeline; `_` without a target.
    pub module: String,
    /// Jobs by name.
    pub jobs: Vec<(String, JobSpec)>,
}

impl Experiment {
    /// Parses an experiment, and the accepted points of its fits if given. `file` is its name in
    /// error messages, and paths of traces are relative to it. The world of every variant is
    /// checked.
    ///
    /// # Errors
    /// The text is invalid; the message names the line.
    pub fn parse(file: &str, text: &str, fits: Option<&str>) -> Result<Self, Error> {
        Self::parse_with(file, text, fits, Traces::default())
    }

    /// Like [`Experiment::parse`], with traces that are in memory.
    pub(crate) fn parse_with(
        file: &str,
        text: &str,
        fits: Option<&str>,
        traces: Traces,
    ) -> Result<Self, Error> {
        let tree = Node::parse(file, text)?;
        // Refuse misspelled tables first; otherwise another error would hide them.
        let mut root = Section::of(&tree, "")?;
        for key in OWN_KEYS.into_iter().chain(WORLD_KEYS) {
            root.node(key);
        }
        root.finish()?;
        let mut root = Section::of(&tree, "")?;
        let mut experiment = Self::read(&mut root, &tree, traces)?;
        let yields = experiment.yields()?;
        experiment.read_judgement(&mut root, &yields)?;
        if let Some(points) = fits {
            let file = file.strip_suffix(".toml").unwrap_or(file);
            fit::read_points(&format!("{file}.fits.toml"), points, &mut experiment.fits)?;
        }
        for variant in &experiment.variants {
            for point in experiment.points(variant).iter().flatten() {
                experiment.setup(variant, Some(point), &[], &[])?;
            }
        }
        for claim in &experiment.claims {
            let whose = || format!("in the control of claim {}", claim.id);
            experiment.check_control(claim).map_err(|error| error.because(&whose()))?;
        }
        Ok(experiment)
    }

    /// Reads the world, the variants and the grids.
    fn read(root: &mut Section<'_>, tree: &Node, traces: Traces) -> Result<Self, Error> {
        let name = root.needed_text("name")?.to_owned();
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') || name.is_empty() {
            return Err(root.wrong_key("name", "takes letters, digits and \"-\""));
        }
        let title = root.needed_text("title")?.to_owned();
        let about = root.texts("about")?;
        let ours = texts_by_name(root, "ours")?;
        let seeds = seeds(root)?;
        let settings = settings(root)?;
        let jobs: Vec<String> = root.named("jobs")?.into_iter().map(|(name, _)| name).collect();
        if jobs.is_empty() {
            return Err(root.wrong_key("jobs", "takes at least one table"));
        }
        let mut variants = Vec::new();
        for (name, section) in root.named("variants")? {
            variants.push(Variant::read(name, section, &settings, &jobs)?);
        }
        let mut grids = Vec::new();
        for (name, section) in root.named("grids")? {
            let (grid, of_grid) = Grid::read(name, section, &settings, &jobs)?;
            grids.push(grid);
            variants.extend(of_grid);
        }
        if variants.is_empty() {
            return Err(root.wrong_key("variants", "takes at least one table, or a grid"));
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = variants.iter().find(|variant| !names.insert(&variant.name)) {
            return Err(root.wrong(&format!("has the variant {:?} twice", twice.name)));
        }
        let tree = tree.with_keys(&WORLD_KEYS);
        let quick = root.section("quick")?;
        let quick = quick.map(|quick| Quick::read(quick, &variants, &grids)).transpose()?;
        let published = Vec::new();
        let fits = Vec::new();
        let claims = Vec::new();
        let ensembles = Vec::new();
        Ok(Self {
            name,
            title,
            about,
            ours,
            seeds,
            variants,
            grids,
            published,
            fits,
            ensembles,
            quick,
            claims,
            tree,
            traces,
        })
    }

    /// The rows of each variant. Its world is read for that; an error that not all variants share
    /// names the variant.
    fn yields(&self) -> Result<Yields, Error> {
        let mut yields = BTreeMap::new();
        for variant in &self.variants {
            let setup = self.setup(variant, None, &[], &[]).map_err(|error| {
                let same = |other: &Variant| {
                    let found = self.setup(other, None, &[], &[]);
                    found.is_err_and(|found| found.to_string() == error.to_string())
                };
                if self.variants.iter().all(same) {
                    error
                } else {
                    error.because(&format!("in variant {}", variant.name))
                }
            })?;
            let has_user_time = setup.config.costs.user > Nanos(0);
            let own = setup.jobs.iter().map(|(name, job)| (name, job.yields(has_user_time)));
            let own: Vec<_> = own.collect();
            check_rows(&variant.name, &own)?;
            let own = own.into_iter().flat_map(|(_, rows)| rows);
            let rows = own.chain(causes::yields(&setup.config)).collect();
            yields.insert(variant.name.clone(), rows);
        }
        Ok(Yields(yields))
    }

    /// Reads published numbers, fits and claims.
    fn read_judgement(&mut self, root: &mut Section<'_>, yields: &Yields) -> Result<(), Error> {
        for (variant, section) in root.named("published")? {
            yields.check_variant(&variant).map_err(|what| section.wrong(&what))?;
            self.published.extend(published_of(&variant, section, yields)?);
        }
        for (name, section) in root.named("fits")? {
            let place = section.origin().clone();
            let fit = Fit::read(name, section, yields, &self.published)?;
            let has = |before: &&Fit| before.variants.iter().any(|one| fit.variants.contains(one));
            if let Some(before) = self.fits.iter().find(has) {
                let fit = fit.name;
                let before = &before.name;
                let what = format!("{place}: fits.{fit} has a variant of fits.{before}");
                return Err(Error::new(what));
            }
            self.fits.push(fit);
        }
        for (name, section) in root.named("ensembles")? {
            let place = section.origin().clone();
            let ensemble = ensemble::read(name, section, yields, &self.variants)?;
            let mut others = self.fits.iter().chain(&self.ensembles);
            let shared = |one: &&String| others.any(|other| other.variants.contains(*one));
            if let Some(twice) = ensemble.variants.iter().find(shared) {
                let name = &ensemble.name;
                let what =
                    format!("{place}: ensembles.{name} has {twice}, which has points already");
                return Err(Error::new(what));
            }
            self.ensembles.push(ensemble);
        }
        let mut ids = BTreeSet::new();
        for section in root.list("claims")? {
            let place = section.origin().clone();
            let claim = ClaimSpec::read(section, yields)?;
            if !ids.insert(claim.id.clone()) {
                let id = &claim.id;
                return Err(Error::new(format!("{place}: duplicate claim {id:?}")));
            }
            self.claims.push(claim);
        }
        Ok(())
    }

    fn check_control(&self, claim: &ClaimSpec) -> Result<(), Error> {
        let claim::Judge::Measures { measures, control: Some(control) } = &claim.judge else {
            return Ok(());
        };
        let measures = if control.measures.is_empty() { measures } else { &control.measures };
        for variant in variants_of(measures) {
            let variant = self.variant(&variant)?;
            let point = self.points(variant).into_iter().next().flatten();
            self.setup(variant, point.as_ref(), &[], &control.set)?;
        }
        Ok(())
    }

    /// The variant of this name.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn variant(&self, name: &str) -> Result<&Variant, Error> {
        self.variants.iter().find(|variant| variant.name == name).ok_or_else(|| {
            let names = listed(self.variant_names());
            Error::new(format!("{}: unknown variant {name:?}; variants are {names}", self.name))
        })
    }

    /// The variant of this name; without a name, the first variant.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn variant_or_first(&self, name: Option<&str>) -> Result<&Variant, Error> {
        match name {
            Some(name) => self.variant(name),
            None => self
                .variants
                .first()
                .ok_or_else(|| Error::new(format!("{} has no variant", self.name))),
        }
    }

    /// The names of all variants; only the first and the last of a large grid.
    #[must_use]
    pub fn variant_names(&self) -> Vec<String> {
        let alone = self.variants.iter().filter(|one| one.grid.is_none());
        let mut names: Vec<String> = alone.map(|one| one.name.clone()).collect();
        for grid in &self.grids {
            let of = |one: &&Variant| one.grid.as_ref().is_some_and(|of| of.0 == grid.name);
            let of_grid: Vec<&String> =
                self.variants.iter().filter(of).map(|one| &one.name).collect();
            match of_grid[..] {
                [first, _, _, .., last] if of_grid.len() > GRID_NAMES_MAX => {
                    names.push(format!("{first} to {last} ({})", of_grid.len()));
                }
                _ => names.extend(of_grid.into_iter().cloned()),
            }
        }
        names
    }

    /// The fit whose points a variant is run at.
    pub(crate) fn fit_of(&self, variant: &Variant) -> Option<&Fit> {
        self.fits.iter().chain(&self.ensembles).find(|fit| fit.variants.contains(&variant.name))
    }

    /// The points of its fit at which a variant runs: the accepted points, or the middle of the box
    /// before a search. `None` is the world of the file.
    #[must_use]
    pub fn points(&self, variant: &Variant) -> Vec<Option<Point>> {
        match self.fit_of(variant) {
            None => vec![None],
            Some(fit) if fit.points.is_empty() => vec![Some(fit.middle())],
            Some(fit) => fit.points.iter().cloned().map(Some).collect(),
        }
    }

    /// A variant's world at a point, changed by `set` and then by `control`.
    ///
    /// # Errors
    /// A path is unknown, or the world is invalid.
    pub fn setup(
        &self,
        variant: &Variant,
        point: Option<&Point>,
        set: &[Override],
        control: &[Override],
    ) -> Result<Setup, Error> {
        let tree = self.world_tree(variant, point, set, control)?;
        let mut root = Section::of(&tree, "")?;
        let config = world::read(&mut root)?;
        let module = module(&tree)?;
        let mut jobs = Vec::new();
        for (name, section) in root.named("jobs")? {
            let place = section.origin().clone();
            let job = JobSpec::read(section, &self.traces, &config)?;
            if variant.jobs.contains(&name) {
                let checked = job.check(&config);
                checked.map_err(|error| error.at(format!("{place}: job {name}")))?;
                jobs.push((name, job));
            }
        }
        Ok(Setup { config, module, jobs })
    }

    /// The tree of the file with the values of a run.
    fn world_tree(
        &self,
        variant: &Variant,
        point: Option<&Point>,
        set: &[Override],
        control: &[Override],
    ) -> Result<Node, Error> {
        let fitted = match (self.fit_of(variant), point) {
            (Some(fit), Some(point)) => fit.overrides(point),
            _ => Vec::new(),
        };
        let mut tree = self.tree.clone();
        for set in variant.set.iter().chain(&fitted).chain(set).chain(control) {
            self.check_path(set)?;
            tree.set(set)?;
        }
        Ok(tree)
    }

    /// The world and the jobs of a run as text. Runs with equal texts and equal seeds have equal
    /// results.
    pub(crate) fn world_text(
        &self,
        variant: &Variant,
        point: Option<&Point>,
        set: &[Override],
        control: &[Override],
    ) -> Result<String, Error> {
        let mut tree = self.world_tree(variant, point, set, control)?;
        if let Value::Table(root) = &mut tree.value
            && let Some(Node { value: Value::Table(jobs), .. }) = root.get_mut("jobs")
        {
            jobs.retain(|name, _| variant.jobs.contains(name));
        }
        let mut text = String::new();
        tree.write(&mut text);
        Ok(text)
    }

    /// Refuses paths outside the world, and paths of unknown jobs.
    fn check_path(&self, set: &Override) -> Result<(), Error> {
        let mut keys = set.path.split('.');
        let root = keys.next().unwrap_or_default();
        if !WORLD_KEYS.contains(&root) {
            let keys = listed(WORLD_KEYS);
            let what = format!("is no path into the world; such a path begins with {keys}");
            return Err(mistake(&set.node, &set.path, &what));
        }
        let jobs = Section::of(&self.tree, "")?.named("jobs")?;
        let job = keys.next().filter(|_| root == "jobs");
        if job.is_some_and(|job| jobs.iter().all(|(name, _)| name != job)) {
            let known = listed(jobs.iter().map(|job| &job.0));
            let what = format!("is of an unknown job; jobs are {known}");
            return Err(mistake(&set.node, &set.path, &what));
        }
        Ok(())
    }

    /// The settings of its world: paths for an [`Override`], and their values.
    #[must_use]
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        self.tree.paths("", &mut found);
        found
    }

    /// Returns warnings about cut-off traces that were read since the last call.
    pub fn take_warnings(&self) -> Vec<String> {
        self.traces.take_warnings()
    }

    /// The published number of a cell.
    pub(crate) fn published_at(&self, cell: &Cell) -> Option<&Published> {
        self.published.iter().find(|row| row.cell == *cell)
    }
}

/// The variants of these measures, in order of name.
pub(crate) fn variants_of(measures: &[measure::Measure]) -> BTreeSet<String> {
    let cells = measures.iter().flat_map(measure::Measure::cells);
    cells.map(|cell| cell.variant.clone()).collect()
}

impl Variant {
    /// Changes that replace settings of its own, or parts of them.
    pub(crate) fn replaced_by<'a>(
        &'a self,
        changes: &'a [Override],
    ) -> impl Iterator<Item = &'a Override> {
        let within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        changes.iter().filter(move |change| {
            let same =
                |own: &Override| within(&own.path, &change.path) || within(&change.path, &own.path);
            self.set.iter().any(same)
        })
    }

    fn read(
        name: String,
        mut section: Section<'_>,
        settings: &BTreeMap<String, Vec<Override>>,
        known_jobs: &[String],
    ) -> Result<Self, Error> {
        let title = section.text("title")?.unwrap_or(&name).to_owned();
        let mut set = Vec::new();
        for used in section.texts("settings")? {
            set.extend(overrides_of(&section, "settings", settings, &used)?);
        }
        set.extend(section.overrides("set")?);
        let jobs = jobs_of(&mut section, known_jobs)?;
        section.finish()?;
        Ok(Self { name, title, jobs, grid: None, set })
    }
}

/// The overrides of a setting, named by a key.
fn overrides_of(
    section: &Section<'_>,
    key: &str,
    settings: &BTreeMap<String, Vec<Override>>,
    used: &str,
) -> Result<Vec<Override>, Error> {
    settings.get(used).cloned().ok_or_else(|| {
        let known = listed(settings.keys());
        let what = format!("has the unknown setting {used:?}; settings are {known}");
        section.wrong_key(key, &what)
    })
}

/// The jobs of a variant; all if it names none.
fn jobs_of(section: &mut Section<'_>, known_jobs: &[String]) -> Result<Vec<String>, Error> {
    let jobs = section.texts("jobs")?;
    if let Some(unknown) = jobs.iter().find(|job| !known_jobs.contains(job)) {
        let what = format!("has the unknown job {unknown:?}; jobs are {}", listed(known_jobs));
        return Err(section.wrong_key("jobs", &what));
    }
    Ok(if jobs.is_empty() { known_jobs.to_vec() } else { jobs })
}

/// First word of result lines.
fn module(tree: &Node) -> Result<String, Error> {
    let crypt = Section::of(tree, "")?.section("crypt")?;
    let name = crypt.map(|mut crypt| crypt.text("pipeline")).transpose()?.flatten();
    Ok(name.filter(|name| *name != crypt::OFF).unwrap_or("_").into())
}

fn texts_by_name(
    root: &mut Section<'_>,
    key: &'static str,
) -> Result<Vec<(String, String)>, Error> {
    let Some(section) = root.section(key)? else { return Ok(Vec::new()) };
    let mut entries: Vec<_> = section.entries().collect();
    entries.sort_by_key(|(_, node)| node.origin.line());
    entries
        .into_iter()
        .map(|(name, node)| Ok((name.clone(), text_of(node, &section.path(name))?.to_owned())))
        .collect()
}

fn seeds(root: &mut Section<'_>) -> Result<Vec<u64>, Error> {
    let path = root.path("seeds");
    let Some(node) = root.node("seeds") else { return Ok(vec![1]) };
    let allowed =
        || mistake(node, &path, "takes a list of 1 to 64 whole numbers from 0 up, each once");
    let Value::List(list) = &node.value else { return Err(allowed()) };
    let number = |node: &Node| match node.value {
        Value::Number(number) => u64::try_from(number).map_err(|_| allowed()),
        _ => Err(allowed()),
    };
    let seeds = list.iter().map(number).collect::<Result<Vec<u64>, Error>>()?;
    let different: BTreeSet<&u64> = seeds.iter().collect();
    let is_allowed = (1..=SEEDS_MAX).contains(&seeds.len()) && different.len() == seeds.len();
    if is_allowed { Ok(seeds) } else { Err(allowed()) }
}

fn settings(root: &mut Section<'_>) -> Result<BTreeMap<String, Vec<Override>>, Error> {
    let mut settings = BTreeMap::new();
    for (name, mut section) in root.named("settings")? {
        let set = section.overrides("set")?;
        section.finish()?;
        settings.insert(name, set);
    }
    Ok(settings)
}

/// Refuses jobs of a variant that measure the same row: a report would have only one of them. The
/// CPU time of a section is that of its first job.
fn check_rows(variant: &str, jobs: &[(&String, Vec<Yield>)]) -> Result<(), Error> {
    let mut known: BTreeMap<(&str, &str), &String> = BTreeMap::new();
    for (name, rows) in jobs {
        for Yield { row, metrics } in rows.iter().filter(|rows| !rows.is_of_section()) {
            for metric in *metrics {
                let other = *known.entry((row, metric)).or_insert(name);
                if other != *name {
                    return Err(Error::new(format!(
                        "the jobs {other} and {name} of variant {variant} both measure the row \
                         {row:?}: give their sections other names, or run them in two variants"
                    )));
                }
            }
        }
    }
    Ok(())
}

fn published_of(
    variant: &str,
    mut section: Section<'_>,
    yields: &Yields,
) -> Result<Vec<Published>, Error> {
    let choices = [("predict", Role::Predict), ("calibrate", Role::Calibrate)];
    let role = section.choice("role", &choices)?;
    section.texts("source")?;
    let mut published = Vec::new();
    for (row, cells) in section.named("rows")? {
        yields.check_row(variant, &row).map_err(|what| cells.wrong(&what))?;
        for (name, node) in cells.entries() {
            let path = cells.path(name);
            let metric = known_metric(node, &path, name)?.name;
            let cell = Cell { variant: variant.into(), row: row.clone(), metric };
            published.push(Published { cell, value: fraction_of(node, &path)?, role });
        }
    }
    let path = section.path("fsync_samples");
    if let Some(node) = section.node("fsync_samples") {
        let Value::List(list) = &node.value else {
            return Err(mistake(node, &path, "takes a list of seconds"));
        };
        let samples =
            list.iter().map(|node| fraction_of(node, &path)).collect::<Result<Vec<_>, _>>()?;
        for (metric, value) in job::fsync_metrics(&samples) {
            let cell = Cell { variant: variant.into(), row: job::FSYNC_ROW.into(), metric };
            published.push(Published { cell, value, role });
        }
    }
    section.finish()?;
    debug_assert!(published.iter().all(|row| metric_named(row.cell.metric).is_some()));
    Ok(published)
}

#[cfg(test)]
mod tests;
