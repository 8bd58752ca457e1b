//! `blockyard resize`: the size of a volume, by its header, or of one that is served.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use blockyard::resize::{Resized, Sizing};
use blockyard::{Control, Place};
use clap::{Args, ValueHint};

use crate::args::{HeaderArgs, PartitionArgs, ShortHelpArgs};
use crate::failure::Failure;
use crate::output::say;
use crate::size::parse_size;
use crate::terminal::Terminal;
use crate::volume_spec::warn_without_lock;

/// Bring the size of a volume up to date with its file or device
///
/// With the control socket of a server (`serve --control`), the served volume takes the size that
/// its file or device and its header have now. Clients that connect from then on see it; NBD cannot
/// tell the others. A served volume does not become smaller.
///
/// With a volume, the header is changed. A LUKS volume usually ends with its file or device, and
/// the header needs no change when that grows. A LUKS2 header may also fix the size: without an
/// option the volume ends with its file or device again, and with one the header fixes this size.
/// If the volume becomes smaller, shrink its file system first: nothing can read the bytes behind
/// the end then.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ResizeArgs {
    /// Image file, block device, or control socket of a server
    #[arg(value_name = "VOLUME|SOCKET", value_hint = ValueHint::FilePath)]
    target: PathBuf,

    /// The served volume with this export name; not needed if there is only one
    #[arg(long, value_name = "NAME")]
    export: Option<String>,

    #[command(flatten)]
    partition: PartitionArgs,

    #[command(flatten)]
    header: HeaderArgs,

    /// Fix this size in a LUKS2 header, in sectors of 512 bytes
    #[arg(short = 'b', long, value_name = "SECTORS", conflicts_with = "device_size")]
    size: Option<u64>,

    /// Fix this size in a LUKS2 header
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    device_size: Option<u64>,

    /// Do not ask for confirmation
    #[arg(short = 'q', long)]
    batch_mode: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Resizes a served volume, or changes the header of another one.
pub(crate) fn run(args: &ResizeArgs) -> Result<(), Failure> {
    let is_socket = fs::metadata(&args.target).is_ok_and(|file| file.file_type().is_socket());
    if is_socket { served(args) } else { by_header(args) }
}

fn served(args: &ResizeArgs) -> Result<(), Failure> {
    let place = args.target.display();
    let of_header = args.partition.partition.is_some()
        || args.header.header.is_some()
        || args.size.is_some()
        || args.device_size.is_some();
    if of_header {
        return Err(Failure::failed(
            "a served volume has the size of its file and its header; --size, --device-size, \
             --partition and --header are for `blockyard resize VOLUME`, which comes first",
        )
        .at(place));
    }
    let export = args.export.as_deref().unwrap_or_default();
    let Resized { from_bytes, to_bytes } = Control::at(&args.target).resize(export)?;
    if from_bytes == to_bytes {
        say(&format!("{place}: the volume has {to_bytes} bytes, as before"));
    } else {
        say(&format!(
            "{place}: the volume has {to_bytes} bytes now, and had {from_bytes}; clients see it \
             when they connect again"
        ));
    }
    Ok(())
}

fn by_header(args: &ResizeArgs) -> Result<(), Failure> {
    let place = args.target.display();
    if args.export.is_some() {
        return Err(Failure::failed("--export is for the control socket of a server").at(place));
    }
    let wanted = match args.size {
        Some(sectors) => Some(sectors.checked_mul(512).ok_or_else(|| {
            Failure::failed("--size: the volume would have more than 2^64 bytes").at(&place)
        })?),
        None => args.device_size,
    };
    let in_disk = args.partition.place();
    let sizing = Sizing::of(&args.target).place(in_disk.clone());
    let sizing = sizing.header(args.header.header.clone());
    let sizes = sizing.sizes()?;
    let now_bytes = sizes.present_bytes();
    if (wanted, sizes.fixed_bytes) == (None, None) {
        say(&format!("{place}: the volume has {now_bytes} bytes: it ends with its file or device"));
        return Ok(());
    }
    match &args.header.header {
        Some(header) => warn_without_lock(header, &Place::Whole),
        None => warn_without_lock(&args.target, &in_disk),
    }
    let to_bytes = wanted.unwrap_or(sizes.room_bytes);
    if to_bytes < now_bytes && !args.batch_mode {
        Terminal::confirm(&format!(
            "the volume in {place} will lose its last {} bytes; a file system that uses them must \
             be made smaller first",
            now_bytes - to_bytes
        ))?;
    }
    sizing.set(wanted, &sizes)?;
    let end = if wanted.is_some() { "its header fixes this" } else { "it ends with its file" };
    say(&format!("{place}: the volume has {to_bytes} bytes now, and had {now_bytes}; {end}"));
    Ok(())
}
