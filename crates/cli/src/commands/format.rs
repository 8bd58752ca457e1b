//! `blockyard format`: makes a LUKS2 volume, in a new file if asked to.
//!
//! Data is overwritten only after a confirmation: a file with contents, a LUKS header or a block
//! device needs `YES` at the terminal, or `--batch-mode`. A new file gets its name when the volume
//! is complete.

use std::path::PathBuf;

use blockyard::format::{Content, FormatOptions, Formatted, Pbkdf, Unformatted};
use blockyard::output::is_same_file;
use blockyard::{Error, Header, Key, Place, header};
use blockyard_host::remote::is_remote;
use clap::{Args, ValueEnum, ValueHint};

use crate::args::{CostArgs, HeaderArgs, HelpArgs, KeyArgs, PartitionArgs};
use crate::failure::Failure;
use crate::output::say;
use crate::progress::Progress;
use crate::size::{human_size, parse_size};
use crate::terminal::Terminal;
use crate::volume_spec::warn_of_lock;

/// Make a LUKS2 volume
///
/// The defaults are aes-xts-plain64 with a 512-bit key and 4096-byte sectors, and argon2id adjusted
/// to about two seconds on this machine. cryptsetup and the kernel open the result.
// 14 fields: one for each option of the command, and groups of shared options.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct FormatArgs {
    /// Image file or block device
    #[arg(value_name = "VOLUME", value_hint = ValueHint::FilePath)]
    volume: PathBuf,

    #[command(flatten)]
    partition: PartitionArgs,

    /// Create the file with this size, or extend it to this size
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,

    /// Format of the volume
    #[arg(short = 'M', long = "type", value_name = "TYPE", value_enum, default_value = "luks2")]
    kind: FormatType,

    /// Do not ask before overwriting
    #[arg(short = 'q', long, visible_alias = "force")]
    batch_mode: bool,

    /// If the file holds a LUKS2 volume already, succeed without a change
    ///
    /// For scripts that may run again, also while the volume is in use. Its passphrase and its
    /// options are not compared with the given ones. Other data is refused as usual.
    #[arg(long, conflicts_with = "batch_mode")]
    skip_existing: bool,

    /// Cipher of the data
    #[arg(short = 'c', long, default_value = "aes-xts-plain64")]
    cipher: String,

    /// Size of the volume key
    #[arg(short = 's', long, value_name = "BITS", default_value_t = 512)]
    key_size: u32,

    /// Encryption sector size, 512 to 4096
    ///
    /// The default is 4096, or 512 if the data area is no multiple of 4096 bytes.
    #[arg(long, value_name = "BYTES")]
    sector_size: Option<u32>,

    /// Hash of the anti-forensic split, the digest and PBKDF2
    #[arg(short = 'h', long, default_value = "sha256")]
    hash: String,

    #[command(flatten)]
    key: KeyArgs,

    #[command(flatten)]
    cost: CostArgs,

    #[command(flatten)]
    layout: LayoutArgs,

    #[command(flatten)]
    help: HelpArgs,
}

/// Values of `--type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatType {
    /// LUKS2
    #[value(alias = "luks")]
    Luks2,
}

/// Labels and layout of the header.
#[derive(Args, Debug)]
#[command(next_help_heading = "Header options")]
struct LayoutArgs {
    #[command(flatten)]
    header: HeaderArgs,

    /// Label, as `blkid` shows it
    #[arg(long, default_value = "", hide_default_value = true)]
    label: String,

    /// Subsystem label
    #[arg(long, default_value = "", hide_default_value = true)]
    subsystem: String,

    /// UUID; the default is a random one
    #[arg(long)]
    uuid: Option<String>,

    /// Size of each copy of the metadata, 16K to 4M
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16K")]
    luks2_metadata_size: u64,

    /// Size of the keyslots area; the default is all space before the data
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    luks2_keyslots_size: Option<u64>,

    /// Start of the data; the default is 16 MiB, or zero with --header
    #[arg(short = 'o', long, value_name = "SECTORS")]
    offset: Option<u64>,
}

/// Makes the volume.
pub(crate) fn run(args: &FormatArgs) -> Result<(), Failure> {
    let options = args.options()?;
    args.check_key_file()?;
    if args.keeps_volume() {
        return Ok(());
    }
    match opened(args, &options) {
        Ok(unformatted) => make(args, &options, unformatted),
        // Another process may have made it.
        Err(_) if args.keeps_volume() => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Opens the files, and refuses those that hold data. The lock of the header is given back before a
/// person is asked.
fn opened(args: &FormatArgs, options: &FormatOptions) -> Result<Unformatted, Failure> {
    let mut unformatted = options.open(&args.volume)?;
    warn_of_lock(unformatted.path(), unformatted.lock_warning());
    if args.batch_mode {
        unformatted.release();
        return Ok(unformatted);
    }
    let found = content(|progress| unformatted.content(progress))?;
    unformatted.release();
    if let Some(content) = found {
        let place = unformatted.path().display();
        let loss = loss(content);
        Terminal::confirm(&format!("{place} holds {loss}, which formatting destroys"))?;
    }
    if args.skip_existing
        && let Some(content) = content(|progress| unformatted.data_content(progress))?
    {
        let place = args.volume.display();
        let loss = loss(content);
        let text = format!(
            "{place} holds {loss}, and its header {} is missing or empty; restore the header, or \
             format without --skip-existing",
            unformatted.path().display()
        );
        return Err(Failure::busy(text));
    }
    Ok(unformatted)
}

fn make(
    args: &FormatArgs,
    options: &FormatOptions,
    unformatted: Unformatted,
) -> Result<(), Failure> {
    let passphrase = args.key.input().read_new(&args.volume.display().to_string())?;
    let formatted = match unformatted.format(&Key::Passphrase(passphrase)) {
        Err(error) if error.is_busy() && args.keeps_volume() => return Ok(()),
        formatted => formatted?,
    };
    let Formatted { size_bytes, sector_size_bytes, .. } = formatted;
    say(&format!(
        "formatted {}: LUKS2, {}, {}-bit key, {sector_size_bytes}-byte sectors, {} in all",
        args.volume.display(),
        options.cipher,
        options.key_size_bits,
        human_size(size_bytes)
    ));
    Ok(())
}

impl FormatArgs {
    /// The key would be overwritten by the volume that needs it.
    fn check_key_file(&self) -> Result<(), Failure> {
        let Some(key_file) = &self.key.key_file else { return Ok(()) };
        let header = self.layout.header.header.as_ref();
        for place in std::iter::once(&self.volume).chain(header) {
            if is_same_file(key_file, place) {
                let text = format!(
                    "{} is the key file too, and formatting would destroy it; name another one",
                    place.display()
                );
                return Err(Failure::busy(text));
            }
        }
        Ok(())
    }

    /// Whether `--skip-existing` keeps a volume that is there, perhaps in use. Says so.
    fn keeps_volume(&self) -> bool {
        let header = self.layout.header.header.as_ref();
        let place = if header.is_some() { Place::Whole } else { self.partition.place() };
        let path = header.unwrap_or(&self.volume);
        // A header without its data is no volume.
        let is_kept = self.skip_existing
            && (header.is_none() || is_remote(&self.volume) || self.volume.exists())
            && matches!(header::read(path, &place, None), Ok((Header::Luks2(_), _)));
        if is_kept {
            let path = path.display();
            say(&format!("{path} holds a LUKS2 volume already; nothing is changed"));
        }
        is_kept
    }

    fn options(&self) -> Result<FormatOptions, Failure> {
        let FormatType::Luks2 = self.kind;
        let data_offset_bytes = match self.layout.offset {
            None => None,
            Some(sectors) => Some(sectors.checked_mul(512).ok_or_else(|| {
                Failure::failed(format!("--offset {sectors} is too large for any device"))
            })?),
        };
        Ok(FormatOptions {
            size_bytes: self.size,
            place: self.partition.place(),
            header: self.layout.header.header.clone(),
            cipher: self.cipher.clone(),
            key_size_bits: self.key_size,
            sector_size_bytes: self.sector_size,
            hash: self.hash.clone(),
            pbkdf: self.cost.pbkdf.map_or_else(Pbkdf::default, Into::into),
            pbkdf_target_ms: self.cost.iter_time,
            pbkdf_memory_kib: self.cost.pbkdf_memory,
            pbkdf_threads: self.cost.pbkdf_parallel,
            pbkdf_iterations: self.cost.pbkdf_force_iterations,
            label: self.layout.label.clone(),
            subsystem: self.layout.subsystem.clone(),
            uuid: self.layout.uuid.clone(),
            metadata_len_bytes: self.layout.luks2_metadata_size,
            keyslots_len_bytes: self.layout.luks2_keyslots_size,
            data_offset_bytes,
            replace: self.batch_mode,
        })
    }
}

/// Searches for data, with a progress bar if that takes long.
fn content(
    find: impl FnOnce(&mut dyn FnMut(u64, u64)) -> Result<Option<Content>, Error>,
) -> Result<Option<Content>, Failure> {
    let mut bar = None;
    let found = find(&mut |done_bytes, len_bytes| {
        bar.get_or_insert_with(|| Progress::new(Some(len_bytes))).at(done_bytes);
    });
    Ok(found?)
}

/// A description of the data that formatting would destroy.
fn loss(content: Content) -> &'static str {
    match content {
        Content::Luks1 => "a LUKS1 volume",
        Content::Luks2 => "a LUKS2 volume",
        Content::DamagedLuks => "a LUKS header that is damaged or not supported",
        Content::Other(name) => name,
        Content::Device => "the data on this device",
        Content::Data => "data",
    }
}
