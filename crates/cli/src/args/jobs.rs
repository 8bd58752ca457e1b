//! Options that choose fio jobs.

use std::path::PathBuf;

use blockyard_workload::fio::JobFile;
use clap::{Args, ValueHint};

use crate::failure::Failure;

/// A job file, options, or both.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = None::<&str>)]
pub(crate) struct JobArgs {
    /// Job file; without one, the options form one job
    #[arg(short = 'j', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) job: Option<PathBuf>,

    /// Options for all jobs, after `--`; a switch needs no value
    #[arg(value_name = "KEY[=VALUE]", last = true)]
    pub(crate) options: Vec<String>,
}

impl JobArgs {
    /// True without a job file and options.
    pub(crate) fn is_empty(&self) -> bool {
        self.job.is_none() && self.options.is_empty()
    }

    /// The text of the job file, if one is named.
    pub(crate) fn text(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.job else { return Ok(None) };
        let failed = |error| Failure::failed(format!("cannot read {}: {error}", path.display()));
        std::fs::read_to_string(path).map(Some).map_err(failed)
    }

    /// The jobs for a volume of this length; `text` is the text of the job file.
    pub(crate) fn parse(&self, text: Option<&str>, device_bytes: u64) -> Result<JobFile, Failure> {
        let split = |option: &'_ String| {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            (key.trim_start_matches("--").to_owned(), value.to_owned())
        };
        let options: Vec<(String, String)> = self.options.iter().map(split).collect();
        let options: Vec<(&str, &str)> =
            options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let here = blockyard::bench::surroundings(device_bytes);
        JobFile::parse(text, &options, &here).map_err(|error| {
            let place = match (&self.job, error.line) {
                (Some(path), Some(_)) => format!("{}, ", path.display()),
                (Some(path), None) if options.is_empty() => format!("{}: ", path.display()),
                _ => String::new(),
            };
            Failure::failed(format!("{place}{error}"))
        })
    }
}
