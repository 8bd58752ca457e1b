//! `blockyard erase`: destroys all keyslots of a volume.

use blockyard::header;
use clap::Args;

use crate::args::{HeaderPlaceArgs, ShortHelpArgs};
use crate::failure::Failure;
use crate::output::say;
use crate::terminal::Terminal;
use crate::volume_spec::warn_without_lock;

/// Destroy all keyslots of a volume, and so its data
///
/// The header stays. The data is lost, unless there is a backup of the header or of the volume key.
/// The keyslots are overwritten with random bytes. On flash (SSD, SD card) the old bytes may
/// survive in spare blocks: to be sure, erase the disk with its own command too.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct EraseArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// Do not ask for confirmation
    #[arg(short = 'q', long)]
    batch_mode: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Asks and erases.
pub(crate) fn run(args: &EraseArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let place = path.display();
    let in_disk = args.place.in_disk();
    warn_without_lock(path, &in_disk);
    let (shown, _) = header::read(path, &in_disk, None)?;
    if !args.batch_mode {
        Terminal::confirm(&format!("all keyslots of {place} will be destroyed, and so its data"))?;
    }
    header::erase(path, &in_disk, &shown)?;
    say(&format!("{place}: all keyslots were destroyed"));
    Ok(())
}
