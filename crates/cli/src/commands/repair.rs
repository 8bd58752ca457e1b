//! `blockyard repair`: makes the two copies of a LUKS2 header equal again, on request and never by
//! itself.

use std::path::PathBuf;

use blockyard::Header;
use blockyard::header::Repair;
use clap::{Args, ValueHint};

use crate::args::ShortHelpArgs;
use crate::failure::{Failure, printable};
use crate::output::say;
use crate::terminal::Terminal;
use crate::volume_spec::warn_of_lock;

/// Rewrite a damaged copy of a LUKS2 header from the intact one
///
/// LUKS2 keeps its header twice. If one copy is damaged or outdated, the volume opens with the
/// other, and this command rewrites the bad one. It asks before it writes; without a terminal it
/// writes only with --batch-mode. A disk that has another use now is never written to.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct RepairArgs {
    /// Image file, block device or detached header
    #[arg(value_name = "VOLUME", value_hint = ValueHint::FilePath)]
    volume: PathBuf,

    /// Do not ask
    #[arg(short = 'q', long)]
    batch_mode: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Looks, asks, repairs.
pub(crate) fn run(args: &RepairArgs) -> Result<(), Failure> {
    let place = args.volume.display();
    let repair = Repair::open(&args.volume)?;
    warn_of_lock(&args.volume, repair.lock_warning());
    let (header, notices) = repair.inspect()?;
    if notices.is_empty() && matches!(header, Header::Luks2(_)) {
        say(&format!("{place}: both copies of the LUKS2 header are intact; nothing to repair"));
        return Ok(());
    }
    if !notices.is_empty() {
        let notices: Vec<_> = notices.iter().map(|notice| printable(&notice.to_string())).collect();
        ask(&format!("{place}: {}", notices.join("; ")), args.batch_mode)?;
    }
    for copy in repair.run()? {
        say(&format!("{place}: the {copy} LUKS2 header was rewritten"));
    }
    Ok(())
}

/// Asks a person, unless the command line says that all is decided.
fn ask(notices: &str, batch_mode: bool) -> Result<(), Failure> {
    match Terminal::on_stdin() {
        _ if batch_mode => Ok(()),
        Some(terminal) => {
            terminal.confirmed(&format!("{notices}. The bad copy will be overwritten."))
        }
        None => Err(Failure::busy(format!(
            "{notices}; to overwrite the bad copy without being asked, use --batch-mode"
        ))),
    }
}
