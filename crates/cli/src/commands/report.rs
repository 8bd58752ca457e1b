//! `blockyard report`: shows runs of jobs side by side, as text and as one HTML page.

use std::io::Read;
use std::path::{Path, PathBuf};

use blockyard_lab::compare::{Run, page};
use blockyard_report::{Experiment, html, text};
use clap::{Args, ValueHint};

use crate::args::{ForceArgs, ShortHelpArgs};
use crate::failure::{Failure, printable};
use crate::output::{InUse, Output, print, say};

/// Limit of a report's length: thousands of jobs.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// Show runs of fio jobs side by side
///
/// Reads the output of `blockyard bench --json` and `fio --output-format=json`; the others are
/// compared with the first file.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ReportArgs {
    /// Reports in JSON
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,

    /// Write an HTML page with plots to this file
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Shows the reports.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let in_use = InUse::of_paths(args.files.iter().map(PathBuf::as_path));
    let output = args.output.as_deref().map(|path| Output::new(path, args.force.force));
    if let Some(output) = &output {
        output.check(&in_use)?;
    }
    let runs: Result<Vec<Run>, Failure> = args.files.iter().map(|path| read(path)).collect();
    let runs = runs?;
    let title = if runs.len() == 1 { "A run of jobs" } else { "Runs of jobs, side by side" };
    let page = page(title, &runs);
    match output {
        Some(output) => write(output, &in_use, &page),
        None => print(&text(&page)),
    }
}

fn read(path: &Path) -> Result<Run, Failure> {
    let failed = |problem: String| Failure::failed(printable(&problem)).at(path.display());
    let cannot = |error: std::io::Error| failed(format!("cannot be read: {error}"));
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(cannot)?;
    file.take(REPORT_BYTES_MAX + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() as u64 > REPORT_BYTES_MAX {
        return Err(failed(format!("is longer than {} MiB", REPORT_BYTES_MAX >> 20)));
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    Run::parse(&name, &text).map_err(failed)
}

/// Writes a page to a file.
pub(crate) fn write(output: Output<'_>, in_use: &InUse, page: &Experiment) -> Result<(), Failure> {
    let html = html(&page.title, std::slice::from_ref(page));
    output.write(in_use, &html)?;
    say(&format!("the page is in {}", output.path().display()));
    Ok(())
}
