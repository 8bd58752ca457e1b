//! An experiment, as its file says it.
//!
//! ```text
//!   file ─> tree ─┬─> experiment: title, variants, published rows, fits, claims
//!                 └─ + settings, variant, fit point, --set, control ─> world, jobs
//! ```
//! Everything that varies is an override by path on the tree, which is read into a world only
//! afterwards; so variants, fit points, `--set` and negative controls are one thing.

pub(crate) mod claim;
pub(crate) mod fit;
pub(crate) mod job;
pub(crate) mod metric;
pub(crate) mod section;
pub(crate) mod tree;
pub(crate) mod world;

use std::collections::{BTreeMap, BTreeSet};

use self::claim::ClaimSpec;
use self::fit::{Fit, Point};
use self::job::JobSpec;
use self::metric::{Cell, known_metric, metric_named};
use self::section::{Section, fraction_of, mistake, text_of};
use self::tree::{Node, Override, Value};
use crate::failure::Failure;

/// An experiment's own keys; the others are its world.
const WORLD_KEYS: [&str; 7] =
    ["machine", "page_cache", "write_back", "file_system", "queue", "device", "jobs"];
/// Seeds at most: each is a run.
const SEEDS_MAX: usize = 64;

/// An experiment.
#[derive(Debug)]
pub(crate) struct Experiment {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Paragraphs.
    pub(crate) about: Vec<String>,
    /// What was chosen by us, and why: printed among the conditions.
    pub(crate) ours: Vec<(String, String)>,
    pub(crate) seeds: Vec<u64>,
    pub(crate) variants: Vec<Variant>,
    pub(crate) published: Vec<Published>,
    pub(crate) fits: Vec<Fit>,
    pub(crate) claims: Vec<ClaimSpec>,
    tree: Node,
}

/// One of the things that are compared.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Which jobs it runs, each in a fresh world.
    pub(crate) jobs: Vec<String>,
    set: Vec<Override>,
}

/// Whether a published number may be fitted on.
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

/// A variant's world and what runs in it.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: blockyard_sim::world::Config,
    pub(crate) jobs: Vec<(String, JobSpec)>,
}

impl Experiment {
    /// Reads an experiment, and the points of its fits if there are any. Every variant's world is
    /// read as well: what is wrong is found before anything runs.
    pub(crate) fn parse(file: &str, text: &str, fits: Option<&str>) -> Result<Self, Failure> {
        let mut experiment = Self::read(Node::parse(file, text)?)?;
        if let Some(points) = fits {
            let file = format!("{}.fits.toml", experiment.name);
            fit::read_points(&file, points, &mut experiment.fits)?;
        }
        experiment.check_names()?;
        for variant in &experiment.variants {
            for point in experiment.points(variant) {
                experiment.setup(variant, point.as_ref(), &[], &[])?;
            }
        }
        for claim in &experiment.claims {
            experiment.check_control(claim)?;
        }
        Ok(experiment)
    }

    fn read(tree: Node) -> Result<Self, Failure> {
        let mut root = Section::of(&tree, "")?;
        let name = root.needed_text("name")?.to_owned();
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') || name.is_empty() {
            return Err(root.wrong_key("name", "takes letters, digits and \"-\""));
        }
        let title = root.needed_text("title")?.to_owned();
        let about = root.texts("about")?;
        let ours = texts_by_name(&mut root, "ours")?;
        let seeds = seeds(&mut root)?;
        for key in WORLD_KEYS {
            root.node(key);
        }
        let settings = settings(&mut root)?;
        let jobs: Vec<String> = root.named("jobs")?.into_iter().map(|(name, _)| name).collect();
        let mut variants = Vec::new();
        for (name, section) in root.named("variants")? {
            variants.push(Variant::read(name, section, &settings, &jobs)?);
        }
        if variants.is_empty() {
            return Err(root.wrong_key("variants", "takes at least one table"));
        }
        let mut published = Vec::new();
        for (variant, section) in root.named("published")? {
            published.extend(published_of(&variant, section)?);
        }
        let mut fits = Vec::new();
        for (name, section) in root.named("fits")? {
            fits.push(Fit::read(name, section)?);
        }
        let claims =
            root.list("claims")?.into_iter().map(ClaimSpec::read).collect::<Result<_, _>>()?;
        root.finish()?;
        Ok(Self { name, title, about, ours, seeds, variants, published, fits, claims, tree })
    }

    /// Everything that is named is there, and nothing that is fitted on is a prediction.
    fn check_names(&self) -> Result<(), Failure> {
        let wrong = |what: String| Err(Failure::failed(format!("{}: {what}", self.name)));
        let names: Vec<&str> = self.variants.iter().map(|variant| variant.name.as_str()).collect();
        let known = |name: &str| names.contains(&name);
        for fit in &self.fits {
            if let Some(unknown) = fit.variants.iter().find(|name| !known(name)) {
                let all = names.join(", ");
                return wrong(format!("fit {}: no variant {unknown:?}; there are {all}", fit.name));
            }
            for accept in &fit.accept {
                match self.published.iter().find(|row| row.cell == accept.cell) {
                    Some(row) if row.role == Role::Calibrate && row.value > 0.0 => {}
                    Some(_) => {
                        return wrong(format!(
                            "fit {}: {} is no row to fit on: its role must be \"calibrate\", and \
                             its value above zero",
                            fit.name, accept.cell
                        ));
                    }
                    None => {
                        return wrong(format!(
                            "fit {}: nobody published {}",
                            fit.name, accept.cell
                        ));
                    }
                }
                if !fit.variants.contains(&accept.cell.variant) {
                    return wrong(format!(
                        "fit {}: {} is of a variant that the fit does not have",
                        fit.name, accept.cell
                    ));
                }
            }
        }
        let published = self.published.iter().map(|row| &row.cell);
        let measured = self.claims.iter().flat_map(|claim| {
            let control = match &claim.judge {
                claim::Judge::Measures { control: Some(control), .. } => &control.measures[..],
                _ => &[],
            };
            let measures = claim.judge.measures().iter().chain(control);
            measures.flat_map(|measure| std::iter::once(&measure.of).chain(&measure.to))
        });
        for cell in published.chain(measured) {
            if !known(&cell.variant) {
                let all = names.join(", ");
                return wrong(format!("{cell}: no variant {:?}; there are {all}", cell.variant));
            }
        }
        let mut ids = BTreeSet::new();
        match self.claims.iter().find(|claim| !ids.insert(&claim.id)) {
            Some(claim) => wrong(format!("the claim {:?} is there twice", claim.id)),
            None => Ok(()),
        }
    }

    fn check_control(&self, claim: &ClaimSpec) -> Result<(), Failure> {
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
    pub(crate) fn variant(&self, name: &str) -> Result<&Variant, Failure> {
        self.variants.iter().find(|variant| variant.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.variants.iter().map(|one| one.name.as_str()).collect();
            let names = names.join(", ");
            Failure::failed(format!("{}: no variant {name:?}; there are {names}", self.name))
        })
    }

    /// The fit whose points a variant is run at.
    pub(crate) fn fit_of(&self, variant: &Variant) -> Option<&Fit> {
        self.fits.iter().find(|fit| fit.variants.contains(&variant.name))
    }

    /// The points that a variant is run at: those accepted, or the middle of the box before a
    /// search, or just what the file says.
    pub(crate) fn points(&self, variant: &Variant) -> Vec<Option<Point>> {
        match self.fit_of(variant) {
            None => vec![None],
            Some(fit) if fit.points.is_empty() => vec![Some(fit.middle())],
            Some(fit) => fit.points.iter().cloned().map(Some).collect(),
        }
    }

    /// A variant's world at a point, under what the user sets and a control sets.
    pub(crate) fn setup(
        &self,
        variant: &Variant,
        point: Option<&Point>,
        set: &[Override],
        control: &[Override],
    ) -> Result<Setup, Failure> {
        let fitted = match (self.fit_of(variant), point) {
            (Some(fit), Some(point)) => fit.overrides(point),
            _ => Vec::new(),
        };
        let mut tree = self.tree.clone();
        for set in variant.set.iter().chain(&fitted).chain(set).chain(control) {
            let root = set.path.split('.').next().unwrap_or_default();
            if !WORLD_KEYS.contains(&root) {
                let keys = WORLD_KEYS.join(", ");
                let what = format!("can set what begins with one of {keys}");
                return Err(mistake(&set.node, &set.path, &what));
            }
            tree.set(set)?;
        }
        let mut root = Section::of(&tree, "")?;
        let config = world::read(&mut root)?;
        let mut jobs = Vec::new();
        for (name, section) in root.named("jobs")? {
            let job = JobSpec::read(section)?;
            if variant.jobs.contains(&name) {
                job.check(&config).map_err(|failure| {
                    failure.at(format!("variant {}, job {name}", variant.name))
                })?;
                jobs.push((name, job));
            }
        }
        Ok(Setup { config, jobs })
    }

    /// The published number of a cell.
    pub(crate) fn published_at(&self, cell: &Cell) -> Option<&Published> {
        self.published.iter().find(|row| row.cell == *cell)
    }
}

/// The variants that these measures look at, in order of name.
pub(crate) fn variants_of(measures: &[claim::Measure]) -> BTreeSet<String> {
    let cells = measures.iter().flat_map(|one| std::iter::once(&one.of).chain(&one.to));
    cells.map(|cell| cell.variant.clone()).collect()
}

impl Variant {
    fn read(
        name: String,
        mut section: Section<'_>,
        settings: &BTreeMap<String, Vec<Override>>,
        known_jobs: &[String],
    ) -> Result<Self, Failure> {
        let title = section.text("title")?.unwrap_or(&name).to_owned();
        let mut set = Vec::new();
        for used in section.texts("settings")? {
            let Some(overrides) = settings.get(&used) else {
                let names: Vec<&str> = settings.keys().map(String::as_str).collect();
                let what = format!("names {used:?}; there are {}", names.join(", "));
                return Err(section.wrong_key("settings", &what));
            };
            set.extend(overrides.iter().cloned());
        }
        set.extend(section.overrides("set")?);
        let mut jobs = section.texts("jobs")?;
        if let Some(unknown) = jobs.iter().find(|job| !known_jobs.contains(job)) {
            let what = format!("names {unknown:?}; there are {}", known_jobs.join(", "));
            return Err(section.wrong_key("jobs", &what));
        }
        if jobs.is_empty() {
            jobs = known_jobs.to_vec();
        }
        section.finish()?;
        Ok(Self { name, title, jobs, set })
    }
}

fn texts_by_name(
    root: &mut Section<'_>,
    key: &'static str,
) -> Result<Vec<(String, String)>, Failure> {
    let Some(section) = root.section(key)? else { return Ok(Vec::new()) };
    let mut entries: Vec<_> = section.entries().collect();
    entries.sort_by_key(|(_, node)| node.origin.line());
    entries
        .into_iter()
        .map(|(name, node)| Ok((name.clone(), text_of(node, &section.path(name))?.to_owned())))
        .collect()
}

fn seeds(root: &mut Section<'_>) -> Result<Vec<u64>, Failure> {
    let path = root.path("seeds");
    let Some(node) = root.node("seeds") else { return Ok(vec![1]) };
    let allowed = || mistake(node, &path, "takes a list of 1 to 64 whole numbers from 0 up");
    let Value::List(list) = &node.value else { return Err(allowed()) };
    let number = |node: &Node| match node.value {
        Value::Number(number) => u64::try_from(number).map_err(|_| allowed()),
        _ => Err(allowed()),
    };
    let seeds = list.iter().map(number).collect::<Result<Vec<u64>, Failure>>()?;
    if (1..=SEEDS_MAX).contains(&seeds.len()) { Ok(seeds) } else { Err(allowed()) }
}

fn settings(root: &mut Section<'_>) -> Result<BTreeMap<String, Vec<Override>>, Failure> {
    let mut settings = BTreeMap::new();
    for (name, mut section) in root.named("settings")? {
        let set = section.overrides("set")?;
        section.finish()?;
        settings.insert(name, set);
    }
    Ok(settings)
}

fn published_of(variant: &str, mut section: Section<'_>) -> Result<Vec<Published>, Failure> {
    let choices = [("predict", Role::Predict), ("calibrate", Role::Calibrate)];
    let role = section.choice("role", &choices)?;
    section.texts("source")?;
    let mut published = Vec::new();
    for (row, cells) in section.named("rows")? {
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
