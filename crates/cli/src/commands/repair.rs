//! `blockyard repair`: makes the two copies of a LUKS2 header equal again, only on request.

use std::path::PathBuf;

use blockyard::Header;
use blockyard::header::Writer;
use clap::{Args, ValueHint};

use crate::args::{PartitionArgs, ShortHelpArgs};
use crate::failure::{Failure, printable};
use crate::output::say;
use crate::terminal::Terminal;
use crate::volume_spec::warn_of_lock;

/// Rewrite a damaged copy of a LUKS2 header from the intact one
///
/// LUKS2 keeps two copies of its header. If one is damaged or outdated, the volume opens with the
/// other, and this command rewrites the bad one after a confirmation; without a terminal it needs
/// --batch-mode. It never writes to a disk that has another use now.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct RepairArgs {
    /// Image file, block device or detached header
    #[arg(value_name = "VOLUME", value_hint = ValueHint::FilePath)]
    volume: PathBuf,

    #[command(flatten)]
    partition: PartitionArgs,

    /// Do not ask for confirmation
    #[arg(short = 'q', long)]
    batch_mode: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Checks, asks, repairs.
pub(crate) fn run(args: &RepairArgs) -> Result<(), Failure> {
    let place = args.volume.display();
    let mut writer = Writer::open(&args.volume, &args.partition.place())?;
    warn_of_lock(&args.volume, writer.lock_warning());
    let (header, notices) = writer.inspect()?;
    if notices.is_empty() && matches!(header, Header::Luks2(_)) {
        say(&format!("{place}: both copies of the LUKS2 header are intact; nothing to repair"));
        return Ok(());
    }
    if !notices.is_empty() && !args.batch_mode {
        let notices: Vec<_> = notices.iter().map(|notice| printable(&notice.to_string())).collect();
        // Without the locks: other programs need not wait for the person.
        let released = writer.released();
        ask(&format!("{place}: {}", notices.join("; ")))?;
        writer = released.reopened()?;
    }
    for copy in writer.repair()? {
        say(&format!("{place}: the {copy} LUKS2 header was rewritten"));
    }
    Ok(())
}

/// Asks for confirmation.
fn ask(notices: &str) -> Result<(), Failure> {
    match Terminal::on_stdin() {
        Some(terminal) => {
            terminal.confirmed(&format!("{notices}. The bad copy will be overwritten."))
        }
        None => Err(Failure::busy(format!(
            "{notices}; to overwrite the bad copy without being asked, use --batch-mode"
        ))),
    }
}
