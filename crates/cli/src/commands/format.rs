//! `blockyard format`: makes a LUKS2 volume, in a new file if asked to.
//!
//! What is there is not overwritten without a word: a file with contents, a LUKS header or a block
//! device needs `YES` at the terminal, or `--batch-mode`. A file that was made for the volume is
//! removed again when formatting fails.

use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use blockyard_crypt::Error as CryptError;
use blockyard_crypt::cipher::CipherSpec;
use blockyard_crypt::format::{self, Detached, FormatOptions, Pbkdf};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::cost::Argon2Bounds;
use blockyard_crypt::kdf::{Argon2Variant, Kdf};
use blockyard_crypt::luks::Header;
use blockyard_crypt::source::HeaderSource;
use blockyard_host::file::{Access, DeviceFile};
use clap::{Args, ValueEnum, ValueHint};
use rustix::fs::SeekFrom;

use crate::args::{HeaderArgs, HelpArgs, KeyArgs};
use crate::commands::dump::is_zero;
use crate::failure::Failure;
use crate::memory;
use crate::nbd::Uri;
use crate::output::say;
use crate::progress::Progress;
use crate::size::{human_size, parse_size};
use crate::terminal::Terminal;
use crate::volume::{is_same_file, locked_header};
use blockyard::output::sync_created;

/// Length of a new header file, less what its two copies of the metadata take.
const DETACHED_KEYSLOTS_BYTES: u64 = (16 << 20) - (32 << 10);
/// The largest header that LUKS2 can have: two copies of 4 MiB and 128 MiB of keyslots.
const HEADER_LEN_MAX_BYTES: u64 = (2 * 4 + 128) << 20;
/// Iterations of the digest when a benchmark is not wanted; it protects a random key.
const DIGEST_ITERATIONS_MIN: u32 = 1000;

/// Make a LUKS2 volume
///
/// The defaults are aes-xts-plain64 with a 512-bit key and 4096-byte sectors, and argon2id measured
/// to about two seconds on this machine. cryptsetup and the kernel open the result.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct FormatArgs {
    /// Image file or block device
    #[arg(value_name = "VOLUME", value_hint = ValueHint::FilePath)]
    volume: PathBuf,

    /// Create the file with this size, or make it this large
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,

    /// What to make
    #[arg(short = 'M', long = "type", value_name = "TYPE", value_enum, default_value = "luks2")]
    kind: FormatType,

    /// Do not ask before overwriting
    #[arg(short = 'q', long, visible_alias = "force")]
    batch_mode: bool,

    /// Cipher of the data
    #[arg(short = 'c', long, default_value = "aes-xts-plain64")]
    cipher: String,

    /// Size of the volume key
    #[arg(short = 's', long, value_name = "BITS", default_value_t = 512)]
    key_size: u32,

    /// Encryption sector size, 512 to 4096; without it, 4096, or 512 where the data are no multiple
    /// of 4096 bytes
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

/// What `--type` can be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FormatType {
    /// LUKS2
    #[value(alias = "luks")]
    Luks2,
}

/// How dear it is to try a passphrase.
#[derive(Args, Debug)]
#[command(next_help_heading = "Key derivation options")]
struct CostArgs {
    /// Key derivation function
    #[arg(long, value_enum, default_value = "argon2id")]
    pbkdf: PbkdfName,

    /// Milliseconds that one try should take on this machine
    #[arg(short = 'i', long, value_name = "MS", default_value_t = 2000,
          value_parser = clap::value_parser!(u64).range(1..=600_000))]
    iter_time: u64,

    /// Most memory that argon2 takes; without it, 1 GiB and at most half of the machine's
    #[arg(long, value_name = "KIB")]
    pbkdf_memory: Option<u32>,

    /// Threads of argon2; without it, one for each CPU and at most 4
    #[arg(long, value_name = "N")]
    pbkdf_parallel: Option<u32>,

    /// Iterations of PBKDF2 or passes of argon2, instead of measuring
    #[arg(long, value_name = "N")]
    pbkdf_force_iterations: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PbkdfName {
    Argon2id,
    Argon2i,
    Pbkdf2,
}

/// The header: what it is called and how it is laid out.
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

    /// UUID; without it, a random one
    #[arg(long)]
    uuid: Option<String>,

    /// Size of each copy of the metadata, 16K to 4M
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "16K")]
    luks2_metadata_size: u64,

    /// Size of the keyslots area; without it, all that is left before the data
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    luks2_keyslots_size: Option<u64>,

    /// Where the data start; without it, after 16 MiB, or at once with --header
    #[arg(short = 'o', long, value_name = "SECTORS")]
    offset: Option<u64>,
}

/// Files that were created here and have to go if there will be no volume.
#[derive(Default)]
struct Created(Vec<PathBuf>);

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// Makes the volume.
pub(crate) fn run(args: &FormatArgs) -> Result<(), Failure> {
    let mut options = args.options()?;
    let mut created = Created::default();
    let header_path = args.layout.header.header.as_ref();
    if let Some(header) = header_path
        && is_same_file(header, &args.volume)
    {
        return Err(Failure::failed("--header names the volume itself; leave it out"));
    }
    ensure_file(&args.volume, args.size, &mut created)?;
    let data = DeviceFile::open(&args.volume, Access::ReadWrite, false)?;
    let data_len_bytes = len_with(&data, args.size)?;
    let (mut device, mut data) = match header_path {
        None => (data, None),
        Some(header) => {
            if !header.exists() {
                create(header, args.layout.header_len_bytes(), &mut created)?;
            }
            let device = DeviceFile::open(header, Access::ReadWrite, false)?;
            options.detached = Some(Detached { data_device_len_bytes: Some(data_len_bytes) });
            (device, Some(data))
        }
    };
    options.sector_size_bytes = args
        .sector_size
        .unwrap_or_else(|| default_sector_size(data_len_bytes, options.data_offset_bytes));
    let place = device.path().display().to_string();
    let _lock = locked_header(&device)?;
    if !args.batch_mode
        && let Some(loss) = what_would_be_lost(&device)?
    {
        confirm(&format!("{place} holds {loss}, which formatting destroys"))?;
    }
    let passphrase = args.key.input().read_new(&args.volume.display().to_string())?;
    if passphrase.is_empty() {
        return Err(Failure::failed("the passphrase is empty, which protects nothing; choose one"));
    }
    let data_device = data.as_mut().unwrap_or(&mut device);
    if data_len_bytes > data_device.len_bytes() {
        data_device.extend(data_len_bytes).map_err(|error| {
            let path = args.volume.display();
            Failure::failed(format!("cannot extend {path} to {data_len_bytes} bytes: {error}"))
        })?;
    }
    format::format(&mut device, &passphrase, &options)
        .map_err(|error| Failure::from(error).at(&place))?;
    created.0.clear();
    say(&format!(
        "formatted {}: LUKS2, {}, {}-bit key, {}-byte sectors, {} in all",
        args.volume.display(),
        options.cipher,
        options.key_size_bits,
        options.sector_size_bytes,
        human_size(data_len_bytes)
    ));
    Ok(())
}

impl FormatArgs {
    fn options(&self) -> Result<FormatOptions, Failure> {
        let FormatType::Luks2 = self.kind;
        // Checked before anybody has typed a passphrase twice.
        CipherSpec::parse(&self.cipher)
            .map_err(|error| Failure::failed(format!("--cipher: {error}")))?;
        let hash = HashAlgorithm::parse(&self.hash)
            .map_err(|error| Failure::failed(format!("--hash: {error}")))?;
        let data_offset_bytes = match self.layout.offset {
            None => None,
            Some(sectors) => Some(sectors.checked_mul(512).ok_or_else(|| {
                Failure::failed(format!("--offset {sectors}: no device has that many sectors"))
            })?),
        };
        Ok(FormatOptions {
            cipher: self.cipher.clone(),
            key_size_bits: self.key_size,
            hash,
            digest_iterations: self.cost.pbkdf_force_iterations.map(|_| DIGEST_ITERATIONS_MIN),
            label: self.layout.label.clone(),
            subsystem: self.layout.subsystem.clone(),
            uuid: self.layout.uuid.clone(),
            metadata_len_bytes: self.layout.luks2_metadata_size,
            keyslots_len_bytes: self.layout.luks2_keyslots_size,
            data_offset_bytes,
            ..FormatOptions::new(self.cost.pbkdf(hash)?)
        })
    }
}

impl CostArgs {
    fn pbkdf(&self, hash: HashAlgorithm) -> Result<Pbkdf, Failure> {
        let variant = match self.pbkdf {
            PbkdfName::Argon2id => Argon2Variant::Id,
            PbkdfName::Argon2i => Argon2Variant::I,
            PbkdfName::Pbkdf2 => {
                if self.pbkdf_memory.is_some() || self.pbkdf_parallel.is_some() {
                    return Err(Failure::failed(
                        "--pbkdf-memory and --pbkdf-parallel are for argon2; PBKDF2 has neither",
                    ));
                }
                return Ok(match self.pbkdf_force_iterations {
                    Some(iterations) => Pbkdf::Fixed(Kdf::Pbkdf2 { hash, iterations }),
                    None => Pbkdf::Pbkdf2 { hash, target_ms: self.iter_time },
                });
            }
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut bounds =
            Argon2Bounds::for_machine(self.iter_time, memory::limit_bytes(Path::new("/")), cpus);
        if let Some(lanes) = self.pbkdf_parallel {
            bounds.lanes = lanes;
        }
        if let Some(memory_kib) = self.pbkdf_memory {
            bounds.memory_kib_max = memory_kib;
        }
        Ok(match self.pbkdf_force_iterations {
            Some(time) => Pbkdf::Fixed(Kdf::Argon2 {
                variant,
                time,
                memory_kib: bounds.memory_kib_max,
                lanes: bounds.lanes,
            }),
            None => Pbkdf::Argon2 { variant, bounds },
        })
    }
}

impl LayoutArgs {
    /// How long a header file of its own has to be.
    fn header_len_bytes(&self) -> u64 {
        let keyslots_bytes = self.luks2_keyslots_size.unwrap_or(DETACHED_KEYSLOTS_BYTES);
        let areas_bytes = self.luks2_metadata_size.saturating_mul(2).saturating_add(keyslots_bytes);
        let offset_bytes = self.offset.unwrap_or(0).saturating_mul(512);
        areas_bytes.max(offset_bytes).min(HEADER_LEN_MAX_BYTES)
    }
}

/// Creates the file if it is to have a size and is not there.
fn ensure_file(path: &Path, size: Option<u64>, created: &mut Created) -> Result<(), Failure> {
    if path.to_str().is_some_and(Uri::is_uri) {
        return match size {
            None => Ok(()),
            Some(_) => {
                Err(Failure::failed("--size creates a file; a disk on a server has its own"))
            }
        };
    }
    let metadata = match (fs::metadata(path), size) {
        (Ok(metadata), _) => metadata,
        (Err(error), Some(size)) if error.kind() == std::io::ErrorKind::NotFound => {
            return create(path, size, created);
        }
        (Err(error), _) => {
            return Err(Failure::wrong_device(format!(
                "cannot open {}: {error}; --size 10G creates a file of that size",
                path.display()
            )));
        }
    };
    match size.is_some() && !metadata.is_file() {
        true => Err(Failure::failed(format!(
            "--size creates a file, but {} is there and is none; leave --size out",
            path.display()
        ))),
        false => Ok(()),
    }
}

/// How long the file will be. It is made longer once it is known that it may be overwritten, and
/// never shorter.
fn len_with(file: &DeviceFile, size: Option<u64>) -> Result<u64, Failure> {
    let (path, len_bytes) = (file.path().display(), file.len_bytes());
    match size {
        Some(size) if size < len_bytes => Err(Failure::failed(format!(
            "{path} has {len_bytes} bytes, and --size {size} would cut it off; leave --size out \
             or remove the file first"
        ))),
        size => Ok(size.unwrap_or(len_bytes)),
    }
}

fn create(path: &Path, size: u64, created: &mut Created) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::failed(format!(
            "cannot create {} with {}: {error}",
            path.display(),
            human_size(size)
        ))
    };
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    created.0.push(path.to_path_buf());
    file.set_len(size).and_then(|()| sync_created(&file, path)).map_err(failed)
}

/// The sector size where none was asked for: cryptsetup's rule. Unless an offset is given, the data
/// start at a whole MiB.
fn default_sector_size(device_len_bytes: u64, data_offset_bytes: Option<u64>) -> u32 {
    let fits = |number: u64| number.is_multiple_of(4096);
    if fits(data_offset_bytes.unwrap_or(0)) && fits(device_len_bytes) { 4096 } else { 512 }
}

/// Without a terminal nobody can say yes: then only `--batch-mode` does.
fn confirm(warning: &str) -> Result<(), Failure> {
    match Terminal::on_stdin() {
        Some(terminal) => terminal.confirmed(&format!("{warning}.")),
        None => Err(Failure::busy(format!("{warning}; to do it all the same, use --batch-mode"))),
    }
}

/// What a person would miss if this device were overwritten; nothing is said about zeros.
fn what_would_be_lost(device: &DeviceFile) -> Result<Option<&'static str>, Failure> {
    match Header::read(device) {
        Ok((Header::Luks1(_), _)) => return Ok(Some("a LUKS1 volume")),
        Ok((Header::Luks2(_), _)) => return Ok(Some("a LUKS2 volume")),
        Err(CryptError::OtherFormat(signature) | CryptError::Reused(signature)) => {
            return Ok(Some(signature.name));
        }
        Err(CryptError::NotLuks | CryptError::Read { .. }) => {}
        Err(_) => return Ok(Some("a LUKS header that is damaged or not supported")),
    }
    let failed = |error: std::io::Error| {
        Failure::wrong_device(format!("cannot read {}: {error}", device.path().display()))
    };
    if device.path().to_str().is_some_and(Uri::is_uri) {
        return Ok(remote_has_data(device)?.then_some("data"));
    }
    let file = File::open(device.path()).map_err(failed)?;
    if file.metadata().map_err(failed)?.file_type().is_block_device() {
        return Ok(Some("whatever is on this device"));
    }
    Ok(has_data(&file).map_err(failed)?.then_some("data"))
}

/// Whether an export holds anything but zeros: what its server does not know to be zeros is read,
/// up to the first byte that is none.
fn remote_has_data(device: &DeviceFile) -> Result<bool, Failure> {
    let len_bytes = device.len_bytes();
    let progress = Progress::new(Some(len_bytes));
    let mut at_bytes = 0;
    while at_bytes < len_bytes {
        let mut runs = device.remote_runs(at_bytes, len_bytes - at_bytes);
        if runs.is_empty() {
            runs = vec![(len_bytes - at_bytes, false)];
        }
        for (run_bytes, is_zero) in runs {
            let end_bytes = len_bytes.min(at_bytes + run_bytes);
            if !is_zero && remote_range_has_data(device, at_bytes..end_bytes, &progress)? {
                return Ok(true);
            }
            at_bytes = end_bytes;
            progress.at(at_bytes);
        }
    }
    Ok(false)
}

fn remote_range_has_data(
    device: &DeviceFile,
    range: Range<u64>,
    progress: &Progress,
) -> Result<bool, Failure> {
    let mut buffer = vec![0u8; 1 << 20];
    let mut at_bytes = range.start;
    while at_bytes < range.end {
        let left_bytes = usize::try_from(range.end - at_bytes).unwrap_or(usize::MAX);
        let piece = &mut buffer[..left_bytes.min(1 << 20)];
        device.read_at(at_bytes, piece).map_err(|error| {
            Failure::wrong_device(format!("cannot read {}: {error}", device.path().display()))
        })?;
        if !is_zero(piece) {
            return Ok(true);
        }
        at_bytes += piece.len() as u64;
        progress.at(at_bytes);
    }
    Ok(false)
}

/// Whether a file holds anything but zeros; holes are not read.
fn has_data(file: &File) -> std::io::Result<bool> {
    let mut buffer = vec![0u8; 1 << 20];
    let mut at_bytes = 0;
    loop {
        at_bytes = match rustix::fs::seek(file, SeekFrom::Data(at_bytes)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        let count = rustix::io::pread(file, &mut buffer, at_bytes)?;
        if count == 0 {
            return Ok(false);
        }
        if !is_zero(&buffer[..count]) {
            return Ok(true);
        }
        at_bytes += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn sector_size_is_4096_where_offset_and_length_are_multiples_of_it() {
        assert_eq!(default_sector_size(1 << 30, None), 4096);
        assert_eq!(default_sector_size((1 << 30) + 512, None), 512);
        assert_eq!(default_sector_size((1 << 30) + 100, None), 512);
        assert_eq!(default_sector_size(1 << 30, Some(512)), 512);
        assert_eq!(default_sector_size(1 << 30, Some(1 << 20)), 4096);
    }

    #[test]
    fn holes_and_zeros_are_no_data() {
        let file = tempfile::tempfile().unwrap();
        assert!(!has_data(&file).unwrap());
        file.set_len(8 << 20).unwrap();
        assert!(!has_data(&file).unwrap());
        file.write_all_at(&[0u8; 9000], 1 << 20).unwrap();
        assert!(!has_data(&file).unwrap());
        file.write_all_at(&[1], 5 << 20).unwrap();
        assert!(has_data(&file).unwrap());
    }
}
