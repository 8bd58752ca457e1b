//! The binary `blockyard`: the command line.
//!
//! It parses arguments, asks for passphrases, connects `crypt` and `host`, and reports results.
//! Keys stay in [`blockyard_crypt::secret`]; tracing and core dumps of the process are disabled
//! first.

mod args;
mod bitmap_spec;
mod commands;
mod config;
mod disk_spec;
mod failure;
mod habits;
mod json;
mod key;
mod manual;
mod nbd;
mod output;
mod placement;
mod progress;
mod scheduling;
mod size;
mod stages;
mod terminal;
mod time;
mod traces;
#[cfg(feature = "lab")]
mod tune;
mod version;
mod volume_spec;

use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::{Cli, definition};
use crate::commands::{mount, serve};
use crate::failure::Exit;
use crate::output::say;

fn main() -> ExitCode {
    let warnings = blockyard_host::process::harden();
    report_panics_without_their_contents();
    let parsed = definition().try_get_matches().and_then(|words| Cli::from_arg_matches(&words));
    let cli = match parsed {
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
    if let Some(help) = asked_help(error) {
        let _ = help.print();
        return ExitCode::SUCCESS;
    }
    let words: Vec<_> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let sentence = match words.first().map(String::as_str) {
        Some("serve") => serve::foreign::explained(error),
        Some("mount") => mount::explained(error),
        _ => None,
    };
    let sentence = sentence.or_else(|| habits::explained(error, &words));
    if let Some(sentence) = sentence {
        say(&format!("error: {sentence}"));
        return ExitCode::from(Exit::Failed as u8);
    }
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(Exit::Failed as u8) } else { ExitCode::SUCCESS }
}

/// The short help, if the error is that of `-h` at the end, which lacks a hash.
fn asked_help(error: &clap::Error) -> Option<clap::Error> {
    let of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let is_hash = of(ContextKind::InvalidArg).starts_with("--hash");
    let mut words: Vec<_> = std::env::args_os().collect();
    if !is_hash || !of(ContextKind::InvalidValue).is_empty() || words.pop()? != "-h" {
        return None;
    }
    words.push("-?".into());
    let help = definition().try_get_matches_from(words).err()?;
    (help.kind() == ErrorKind::DisplayHelp).then_some(help)
}

/// A panic is a defect, and its text may contain secrets: only the place is printed.
fn report_panics_without_their_contents() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
        say(&format!("error: a defect in blockyard{place}; please report this"));
    }));
}
