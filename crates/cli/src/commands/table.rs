//! `blockyard table`: prints the device-mapper table of a volume.

use std::fmt::{self, Write};

use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::dm::line::MappedDevice;
use blockyard_engine::dm::registry::Keys;
use blockyard_host::volume::VolumeOptions;
use clap::Args;

use crate::args::{HelpArgs, VolumeArgs};
use crate::failure::Failure;
use crate::key::StdinUse;
use crate::output::print;
use crate::volume_spec::Unlocked;

/// Print the device-mapper table of a volume
///
/// The output is that of `dmsetup table` after `cryptsetup open`, with the volume's path as the
/// device. `serve --table` reads it, and so does `dmsetup create` with a block device.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct TableArgs {
    /// Print the volume key in hex instead of zeros: it gives access to the volume for ever
    #[arg(long, alias = "showkeys")]
    show_keys: bool,

    #[command(flatten)]
    volume: VolumeArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Prints the table.
pub(crate) fn run(args: &TableArgs) -> Result<(), Failure> {
    let spec = args.volume.spec()?;
    let settings = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let Unlocked { locked, key, .. } = spec.prepare(settings, StdinUse::Free)?.unlock()?;
    let mappings = locked.mappings(&key)?;
    let keys = if args.show_keys { Keys::Shown } else { Keys::Hidden };
    let text = secret_text(&mappings, keys);
    print(std::str::from_utf8(text.as_slice()).expect("written as text"))
}

/// The tables in memory that is wiped: written twice, first to count the length.
fn secret_text(mappings: &[MappedDevice], keys: Keys) -> SecretBytes {
    let write =
        |out: &mut dyn Write| mappings.iter().try_for_each(|mapping| mapping.write(keys, out));
    let mut length = Length(0);
    write(&mut length).expect("counting never fails");
    let mut text = SecretBytes::zeroed(length.0);
    write(&mut Filled { rest: text.as_mut_slice() }).expect("it has this length");
    text
}

/// Counts written bytes.
struct Length(usize);

impl Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Memory that is filled from its start.
struct Filled<'a> {
    rest: &'a mut [u8],
}

impl Write for Filled<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let rest = std::mem::take(&mut self.rest);
        let (here, rest) = rest.split_at_mut_checked(text.len()).ok_or(fmt::Error)?;
        here.copy_from_slice(text.as_bytes());
        self.rest = rest;
        Ok(())
    }
}
