//! Built-in experiments, and experiments in files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::spec::Experiment;
use crate::Error;

/// Length limit of a file; enough for thousands of rows.
const FILE_LEN_MAX_BYTES: u64 = 4 << 20;

/// Source of a built-in experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// One of the mails for which the lab was built.
    FiveMails,
    /// A publication for which nothing in the lab was built.
    Elsewhere,
    /// Our own question.
    Ours,
}

impl Group {
    /// All groups, in the order of a list.
    pub const ALL: [Self; 3] = [Self::FiveMails, Self::Elsewhere, Self::Ours];

    /// Heading of a list.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::FiveMails => "The five mails that the lab was built for",
            Self::Elsewhere => "Other publications: predictions only",
            Self::Ours => "Our own",
        }
    }
}

/// A built-in experiment.
#[derive(Debug)]
pub struct Builtin {
    /// Name.
    pub name: &'static str,
    /// Source.
    pub group: Group,
    /// Text of the file.
    pub text: &'static str,
    /// Text of the file with the accepted points of the fits.
    fits: Option<&'static str>,
}

/// All built-in experiments.
pub const BUILTIN: &[Builtin] = &[
    Builtin {
        name: "deadline-2009",
        group: Group::FiveMails,
        text: include_str!("../../../experiments/deadline-2009.toml"),
        fits: Some(include_str!("../../../experiments/deadline-2009.fits.toml")),
    },
    Builtin {
        name: "parallel-dm-crypt-2013",
        group: Group::FiveMails,
        text: include_str!("../../../experiments/parallel-dm-crypt-2013.toml"),
        fits: Some(include_str!("../../../experiments/parallel-dm-crypt-2013.fits.toml")),
    },
    Builtin {
        name: "dm-crypt-2015",
        group: Group::FiveMails,
        text: include_str!("../../../experiments/dm-crypt-2015.toml"),
        fits: None,
    },
    Builtin {
        name: "dm-mq-2016",
        group: Group::FiveMails,
        text: include_str!("../../../experiments/dm-mq-2016.toml"),
        fits: Some(include_str!("../../../experiments/dm-mq-2016.fits.toml")),
    },
    Builtin {
        name: "mempool-bulk-2023",
        group: Group::FiveMails,
        text: include_str!("../../../experiments/mempool-bulk-2023.toml"),
        fits: Some(include_str!("../../../experiments/mempool-bulk-2023.fits.toml")),
    },
    Builtin {
        name: "cfq-slices-2009",
        group: Group::Elsewhere,
        text: include_str!("../../../experiments/cfq-slices-2009.toml"),
        fits: Some(include_str!("../../../experiments/cfq-slices-2009.fits.toml")),
    },
    Builtin {
        name: "cloudflare-2020",
        group: Group::Elsewhere,
        text: include_str!("../../../experiments/cloudflare-2020.toml"),
        fits: Some(include_str!("../../../experiments/cloudflare-2020.fits.toml")),
    },
    Builtin {
        name: "ioscheds-null-2016",
        group: Group::Elsewhere,
        text: include_str!("../../../experiments/ioscheds-null-2016.toml"),
        fits: Some(include_str!("../../../experiments/ioscheds-null-2016.fits.toml")),
    },
    Builtin {
        name: "mq-deadline-2024",
        group: Group::Elsewhere,
        text: include_str!("../../../experiments/mq-deadline-2024.toml"),
        fits: Some(include_str!("../../../experiments/mq-deadline-2024.fits.toml")),
    },
    Builtin {
        name: "ceph-2026",
        group: Group::Ours,
        text: include_str!("../../../experiments/ceph-2026.toml"),
        fits: Some(include_str!("../../../experiments/ceph-2026.fits.toml")),
    },
    Builtin {
        name: "many-cpus-2026",
        group: Group::Ours,
        text: include_str!("../../../experiments/many-cpus-2026.toml"),
        fits: Some(include_str!("../../../experiments/many-cpus-2026.fits.toml")),
    },
    Builtin {
        name: "elevators-2026",
        group: Group::Ours,
        text: include_str!("../../../experiments/elevators-2026.toml"),
        fits: None,
    },
];

/// Commented start of a new experiment file.
pub const TEMPLATE: &str = include_str!("../../../experiments/template.toml");

/// Loads a built-in experiment by name, or an experiment file by path.
///
/// # Errors
/// The experiment is unknown, or the file is invalid.
pub fn load(name: &str) -> Result<Experiment, Error> {
    if let Some(builtin) = find(name) {
        return Experiment::parse(&format!("{name}.toml"), builtin.text, builtin.fits);
    }
    let path = file_of(name)?;
    let text = read(&path)?;
    let fits = fits_path(&path);
    let fits = if fits.exists() { Some(read(&fits)?) } else { None };
    Experiment::parse(&path.display().to_string(), &text, fits.as_deref())
}

/// Text of a built-in experiment, by name, or of an experiment file, by path.
///
/// # Errors
/// The experiment is unknown, or the file cannot be read.
pub fn text_of(name: &str) -> Result<String, Error> {
    match find(name) {
        Some(builtin) => Ok(builtin.text.into()),
        None => read(&file_of(name)?),
    }
}

/// The built-in experiment of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Builtin> {
    BUILTIN.iter().find(|builtin| builtin.name == name)
}

/// Path of an experiment's accepted points: `mine.fits.toml` beside `mine.toml`.
#[must_use]
pub fn fits_path(path: &Path) -> PathBuf {
    path.with_extension("fits.toml")
}

/// Refuses an unknown name. Names without a dot or a slash mean built-in experiments.
fn file_of(name: &str) -> Result<PathBuf, Error> {
    let path = PathBuf::from(name);
    if !path.exists() && !name.contains(['.', '/']) {
        let names: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
        let names = names.join(", ");
        return Err(Error::new(format!(
            "{name:?} is neither a built-in experiment ({names}; see blockyard lab list) nor a file"
        )));
    }
    Ok(path)
}

fn read(path: &Path) -> Result<String, Error> {
    let place = path.display();
    let refuse = |error| Error::new(format!("cannot read {place}: {error}"));
    let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_LEN_MAX_BYTES + 1).read_to_end(&mut bytes);
    let len = read.map_err(|error| refuse(error.to_string()))?;
    if len as u64 > FILE_LEN_MAX_BYTES {
        let largest = FILE_LEN_MAX_BYTES >> 20;
        return Err(refuse(format!("longer than {largest} MiB")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Error::new(format!("{place}, line {line}: not a TOML file: not UTF-8"))
    })
}
