//! Error of reading or running an experiment.

use std::fmt::Display;

/// Error of reading or running an experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The experiment or the request is invalid, or a run failed. The message names the file and
    /// the line, or the variant and the job.
    #[error("{0}")]
    Experiment(String),
    /// A job failed on this machine.
    #[error("{job}: {source}")]
    Run {
        /// Variant and name of the job.
        job: String,
        /// Cause.
        source: blockyard::Error,
    },
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Experiment(message.into())
    }

    /// Prefixes the message with a place.
    pub(crate) fn at(self, place: impl Display) -> Self {
        match self {
            Self::Experiment(message) => Self::Experiment(format!("{place}: {message}")),
            Self::Run { job, source } => Self::Run { job: format!("{place}: {job}"), source },
        }
    }

    /// Appends a further condition of the mistake.
    pub(crate) fn because(self, reason: &str) -> Self {
        Self::Experiment(format!("{self} ({reason})"))
    }
}
