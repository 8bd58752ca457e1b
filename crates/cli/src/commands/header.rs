//! `blockyard header`: backs up, restores, checks and wipes a header, and sets its fields.

use std::path::PathBuf;

use blockyard::header::{self, Difference, FLAGS, Version, Wiped, Writer};
use blockyard_crypt::luks::HeaderInfo;
use clap::{Args, Subcommand, ValueEnum, ValueHint};

use crate::args::{ForceArgs, HeaderPlaceArgs, ShortHelpArgs};
use crate::failure::{Failure, printable, shown};
use crate::output::{print, say};
use crate::terminal::Terminal;
use crate::volume_spec::{warn_of_lock, warn_without_lock};

/// Back up, restore, check or wipe a LUKS header, or set its fields
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct HeaderCommand {
    #[command(subcommand)]
    action: Action,

    #[command(flatten)]
    help: ShortHelpArgs,
}

#[derive(Subcommand, Debug)]
#[command(disable_help_flag = true)]
enum Action {
    Backup(BackupArgs),
    Restore(RestoreArgs),
    Check(CheckArgs),
    Convert(ConvertArgs),
    Wipe(WipeArgs),
    Label(LabelArgs),
    Uuid(UuidArgs),
    Flags(FlagsArgs),
}

/// Write the header with its keyslots into a file
///
/// The bytes are those of `cryptsetup luksHeaderBackup`. The backup opens the volume with the
/// passphrases of today, even after they are removed: keep it as safe as a key.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct BackupArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// File of the backup, with mode 0600
    #[arg(short = 'o', long, alias = "header-backup-file", value_name = "FILE",
          value_hint = ValueHint::FilePath)]
    output: PathBuf,

    #[command(flatten)]
    force: ForceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Replace the header and its keyslots by a backup
///
/// The differences are shown before the confirmation. The backup of another volume, or of another
/// version of LUKS, makes the data unreadable.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct RestoreArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// File of the backup
    #[arg(short = 'i', long, alias = "header-backup-file", value_name = "FILE",
          value_hint = ValueHint::FilePath)]
    input: PathBuf,

    /// Do not ask for confirmation
    #[arg(short = 'q', long)]
    batch_mode: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Check the header; exit code 1 if a copy of it is damaged or outdated
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct CheckArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Convert a LUKS1 volume to LUKS2, or the other way
///
/// The data, the volume key and the passphrases stay. No passphrase is needed. LUKS1 has only
/// 512-byte sectors, PBKDF2 and one cipher for data and keyslots: a volume with more is refused.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct ConvertArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// The new version
    #[arg(long = "type", value_name = "VERSION")]
    version: VersionName,

    /// Do not ask for confirmation
    #[arg(short = 'q', long)]
    batch_mode: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Values of `--type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VersionName {
    Luks1,
    Luks2,
}

/// Destroy the header and its keyslots, and so the data
///
/// The data is lost, unless there is a backup of the header. On flash (SSD, SD card) old bytes may
/// survive in spare blocks.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct WipeArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// Do not ask for confirmation
    #[arg(short = 'q', long)]
    batch_mode: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Set the label or the subsystem label of a LUKS2 volume
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct LabelArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// Label, as `blkid` shows it; an empty one removes it
    #[arg(long, required_unless_present = "subsystem")]
    label: Option<String>,

    /// Subsystem label; an empty one removes it
    #[arg(long)]
    subsystem: Option<String>,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Print the UUID of a volume, or set it
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct UuidArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// The new UUID
    #[arg(long)]
    uuid: Option<String>,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Print the persistent flags of a LUKS2 volume, or replace them
///
/// Every program that opens the volume observes them, as if they had been given as options.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct FlagsArgs {
    #[command(flatten)]
    place: HeaderPlaceArgs,

    /// The new flags, which replace the present ones
    #[arg(value_name = "FLAG", value_parser = FLAGS, conflicts_with = "none")]
    flags: Vec<String>,

    /// Remove all flags
    #[arg(long)]
    none: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Runs the action.
pub(crate) fn run(command: &HeaderCommand) -> Result<(), Failure> {
    match &command.action {
        Action::Backup(args) => backup(args),
        Action::Restore(args) => restore(args),
        Action::Check(args) => check(args),
        Action::Convert(args) => convert(args),
        Action::Wipe(args) => wipe(args),
        Action::Label(args) => label(args),
        Action::Uuid(args) => uuid(args),
        Action::Flags(args) => flags(args),
    }
}

fn backup(args: &BackupArgs) -> Result<(), Failure> {
    if args.output.as_os_str() == "-" {
        return Err(Failure::failed("a header backup goes to a file, not to standard output"));
    }
    let path = args.place.path();
    let backup = header::backup(path, &args.place.in_disk())?;
    header::write_backup(&backup, args.place.paths(), &args.output, args.force.force)?;
    let place = path.display();
    let output = args.output.display();
    say(&format!("{place}: the header is in {output}; it opens with the passphrases of today"));
    Ok(())
}

fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let backup = header::read_backup(&args.input)?;
    let mut writer = Writer::open(path, &args.place.in_disk())?;
    warn_of_lock(path, writer.lock_warning());
    let losses: Vec<_> = writer.compare(&backup)?.iter().map(Difference::to_string).collect();
    let losses = shown(&losses.join("; "));
    let place = path.display();
    let input = args.input.display();
    if !args.batch_mode {
        let losses = if losses.is_empty() { "they are equal" } else { &losses };
        let warning =
            format!("the header of {place} will be replaced by the backup {input}: {losses}");
        writer = confirmed(writer, &warning)?;
    } else if !losses.is_empty() {
        say(&format!("{place}: {losses}"));
    }
    writer.restore(&backup)?;
    say(&format!("{place}: the header was restored from {input}"));
    Ok(())
}

/// Asks at the terminal, without the locks: other programs need not wait for the person.
fn confirmed(writer: Writer, warning: &str) -> Result<Writer, Failure> {
    let released = writer.released();
    Terminal::confirm(warning)?;
    Ok(released.reopened()?)
}

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let (_, notices) = header::read(path, &args.place.in_disk(), None)?;
    if notices.is_empty() {
        say(&format!("{}: the header is intact", path.display()));
        return Ok(());
    }
    let notices: Vec<_> = notices.iter().map(|notice| printable(&notice.to_string())).collect();
    Err(Failure::failed(notices.join("; ")).at(path.display()))
}

fn convert(args: &ConvertArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let place = path.display();
    let (version, name) = match args.version {
        VersionName::Luks1 => (Version::Luks1, "LUKS1"),
        VersionName::Luks2 => (Version::Luks2, "LUKS2"),
    };
    let mut writer = Writer::open(path, &args.place.in_disk())?;
    warn_of_lock(path, writer.lock_warning());
    if !args.batch_mode {
        let warning = format!("the header of {place} will be converted to {name}");
        writer = confirmed(writer, &warning)?;
    }
    writer.convert(version)?;
    say(&format!("{place}: the header was converted to {name}"));
    Ok(())
}

fn wipe(args: &WipeArgs) -> Result<(), Failure> {
    let path = args.place.path();
    let place = path.display();
    let mut writer = Writer::open(path, &args.place.in_disk())?;
    warn_of_lock(path, writer.lock_warning());
    if !args.batch_mode {
        let warning = format!("the header of {place} will be destroyed, and so its data");
        writer = confirmed(writer, &warning)?;
    }
    let done = match writer.wipe()? {
        Wiped::HeaderAndKeyslots => "the header was destroyed",
        Wiped::HeaderOnly => {
            "the header was destroyed, but not its keyslots: Blockyard could not read where the \
             data starts. A backup of the header still opens the volume. To destroy the keyslots \
             too, overwrite the first 16 MiB of the disk, if its data may be lost"
        }
    };
    say(&format!("{place}: {done}"));
    Ok(())
}

fn label(args: &LabelArgs) -> Result<(), Failure> {
    let path = args.place.path();
    warn_without_lock(path, &args.place.in_disk());
    let label = args.label.as_deref();
    let subsystem = args.subsystem.as_deref();
    header::set_labels(path, &args.place.in_disk(), label, subsystem)?;
    say(&format!("{}: the labels were set", path.display()));
    Ok(())
}

fn uuid(args: &UuidArgs) -> Result<(), Failure> {
    let path = args.place.path();
    if let Some(uuid) = &args.uuid {
        warn_without_lock(path, &args.place.in_disk());
        header::set_uuid(path, &args.place.in_disk(), uuid)?;
        say(&format!("{}: the UUID was set", path.display()));
        return Ok(());
    }
    let (header, _) = header::read(path, &args.place.in_disk(), None)?;
    print(&format!("{}\n", printable(header.uuid())))
}

fn flags(args: &FlagsArgs) -> Result<(), Failure> {
    let path = args.place.path();
    if args.flags.is_empty() && !args.none {
        let (header, _) = header::read(path, &args.place.in_disk(), None)?;
        let flags = match header.info() {
            HeaderInfo::Luks1(_) => Vec::new(),
            HeaderInfo::Luks2(info) => info.flags,
        };
        let lines = flags.iter().map(|flag| format!("{}\n", printable(flag)));
        return print(&lines.collect::<String>());
    }
    warn_without_lock(path, &args.place.in_disk());
    let flags: Vec<_> = args.flags.iter().map(String::as_str).collect();
    header::set_flags(path, &args.place.in_disk(), &flags)?;
    say(&format!("{}: the flags were set", path.display()));
    Ok(())
}
