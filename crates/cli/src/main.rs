//! The binary `blockyard`: the command line.
//!
//! It parses arguments, asks for passphrases, connects `crypt` and `host`, and reports results.
//! Keys stay in [`blockyard_crypt::secret`]; tracing and core dumps of the process are disabled
//! first.

mod args;
mod commands;
mod config;
mod disk_spec;
mod failure;
mod json;
mod key;
mod nbd;
mod output;
mod progress;
mod scheduling;
mod size;
mod stages;
mod terminal;
mod time;
mod traces;
#[cfg(feature = "lab")]
mod tune;
mod volume_spec;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Cli;
use crate::commands::{mount, serve};
use crate::failure::Exit;
use crate::output::say;

fn main() -> ExitCode {
    let warnings = blockyard_host::process::harden();
    report_panics_without_their_contents();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    for warning in warnings {
        say(&format!("warning: {warning}"));
    }
    match cli.command.run() {
        Ok(code) => code,
        Err(failure) => {
            say(&format!("error: {failure}"));
            failure.exit_code()
        }
    }
}

/// Help and version on standard output, an error on standard error. A closed pipe is no error.
fn usage(error: &clap::Error) -> ExitCode {
    let command = std::env::args_os().nth(1).unwrap_or_default();
    let sentence = match command.to_str() {
        Some("serve") => serve::foreign::explained(error),
        Some("mount") => mount::explained(error),
        _ => None,
    };
    if let Some(sentence) = sentence {
        say(&format!("error: {sentence}"));
        return ExitCode::from(Exit::Failed as u8);
    }
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(Exit::Failed as u8) } else { ExitCode::SUCCESS }
}

/// A panic is a defect, and its text may contain secrets: only the place is printed.
fn report_panics_without_their_contents() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
        say(&format!("error: a defect in blockyard{place}; please report this"));
    }));
}
