//! Why an experiment cannot be read or run.

use std::fmt::Display;

/// Why an experiment cannot be read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The experiment, or what the program asks of it, is wrong, or a run of it failed. The message
    /// names the file and the line, or the variant and the job.
    #[error("{0}")]
    Experiment(String),
    /// A job failed on this machine.
    #[error("{job}: {source}")]
    Run {
        /// Its variant and name.
        job: String,
        /// The cause.
        source: blockyard::Error,
    },
}

impl Error {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Experiment(message.into())
    }

    /// Puts the place in front of the message.
    pub(crate) fn at(self, place: impl Display) -> Self {
        match self {
            Self::Experiment(message) => Self::Experiment(format!("{place}: {message}")),
            Self::Run { job, source } => Self::Run { job: format!("{place}: {job}"), source },
        }
    }

    /// Says what else a mistake depends on; its place stays in front.
    pub(crate) fn because(self, reason: &str) -> Self {
        Self::Experiment(format!("{self} ({reason})"))
    }
}
