//! The log of `serve`: its options.

use std::time::Duration;

use blockyard_host::log::{self, Format, Level};
use clap::{Args, ValueEnum};
use serde::Deserialize;

/// Form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Sentences
    Text,
    /// Sentences behind the journal's levels, as in <4>
    Journal,
    /// JSON objects
    Json,
}

/// Least important lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// Failed I/O, reloads and flushes
    Error,
    /// Also lost paths, refused clients and slow requests
    Warning,
    /// Also changes of state by request
    Notice,
    /// Also clients that come and go
    Info,
}

/// Options of the log, also in the configuration.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogArgs {
    /// Form of the lines on standard error [default: journal if it is connected to the journal, or
    /// else text]: see docs/log.md
    #[arg(long, value_name = "FORM", value_enum)]
    pub(crate) log_format: Option<LogFormat>,

    /// Least important lines to print [default: info, with --run warning]
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub(crate) log_level: Option<LogLevel>,

    /// Log requests that take longer than this, with their stages; costs some readings of the clock
    #[arg(long, value_name = "MILLISECONDS", value_parser = parse_milliseconds)]
    pub(crate) slow_request: Option<u64>,
}

fn parse_milliseconds(text: &str) -> Result<u64, &'static str> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.ok_or("this is no whole number of milliseconds, at least 1")
}

impl LogArgs {
    /// These options, or those of the configuration.
    pub(crate) fn or(self, config: Self) -> Self {
        Self {
            log_format: self.log_format.or(config.log_format),
            log_level: self.log_level.or(config.log_level),
            slow_request: self.slow_request.or(config.slow_request),
        }
    }

    /// Applies the options to all later lines, and to later connections.
    pub(super) fn apply(self, runs_command: bool) {
        let format = match self.log_format {
            Some(LogFormat::Text) => Format::Text,
            Some(LogFormat::Journal) => Format::Journal,
            Some(LogFormat::Json) => Format::Json,
            None if log::is_journal() => Format::Journal,
            None => Format::Text,
        };
        let level = match self.log_level {
            Some(LogLevel::Error) => Level::Error,
            Some(LogLevel::Warning) => Level::Warning,
            Some(LogLevel::Notice) => Level::Notice,
            Some(LogLevel::Info) => Level::Info,
            // The lines would mix with those of the command.
            None if runs_command => Level::Warning,
            None => Level::Info,
        };
        log::configure(format, level);
        log::log_slow_requests(self.slow_request.map(Duration::from_millis));
    }
}
