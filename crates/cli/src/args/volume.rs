//! Options that name and describe a volume.

use std::path::{Path, PathBuf};

use blockyard::{KdfLimits, Place, TcryptKind};
use blockyard_crypt::luks2;
use clap::{Args, ValueEnum, ValueHint};

use super::{KeyArgs, TokenArgs};
use crate::failure::Failure;
use crate::size::parse_size;
use crate::volume_spec::{HiddenSpec, LuksSpec, PlainSpec, TcryptSpec, VolumeFormat, VolumeSpec};

/// Values of `--type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum VolumeType {
    /// LUKS1 or LUKS2, according to the header
    Luks,
    /// LUKS1 only
    Luks1,
    /// LUKS2 only
    Luks2,
    /// TrueCrypt or VeraCrypt
    Tcrypt,
    /// BitLocker; the key is a passphrase, a recovery key, or with --key-file a startup key file
    Bitlk,
    /// dm-crypt without a header; needs --cipher and --key-size
    Plain,
}

/// The values of `--header-copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeaderCopy {
    /// The copy at the start
    Primary,
    /// The second copy
    Secondary,
}

impl From<HeaderCopy> for luks2::Copy {
    fn from(copy: HeaderCopy) -> Self {
        match copy {
            HeaderCopy::Primary => Self::Primary,
            HeaderCopy::Secondary => Self::Secondary,
        }
    }
}

/// A volume, as an image or as a table.
// 15 fields: one for each option of a volume, and groups of options that commands share.
#[derive(Args, Clone, Debug)]
pub(crate) struct VolumeArgs {
    /// Image file or block device
    #[arg(value_name = "VOLUME", value_hint = ValueHint::FilePath)]
    pub(crate) volume: Option<PathBuf>,

    /// Open a device-mapper table instead of a volume
    ///
    /// The file has the output of `dmsetup table --showkeys`: lines of `START LENGTH TARGET
    /// ARGUMENTS`, with files or devices as devices.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["volume", "kind", "header", "header_copy", "key_slot",
                                "max_kdf_memory", "max_kdf_time", "key_file", "keyfile_offset",
                                "keyfile_size", "key_fd", "key_command", "key_credential",
                                "token_only", "token_id", "token_type", "partition",
                                "tcrypt_hidden", "tcrypt_system", "tcrypt_backup",
                                "tcrypt_keyfile", "veracrypt_pim", "protect_hidden",
                                "cipher", "key_size", "hash",
                                "offset", "skip", "size", "sector_size", "iv_large_sectors"])]
    pub(crate) table: Option<PathBuf>,

    /// Type of the volume
    ///
    /// The default is LUKS or BitLocker, according to the header.
    #[arg(short = 'M', long = "type", value_name = "TYPE", value_enum)]
    pub(crate) kind: Option<VolumeType>,

    #[command(flatten)]
    pub(crate) partition: PartitionArgs,

    #[command(flatten)]
    pub(crate) header: HeaderArgs,

    /// Use this copy of a LUKS2 header, read-only
    ///
    /// The copy may be outdated, or left over from an earlier use of the disk.
    #[arg(long, value_name = "COPY", value_enum)]
    pub(crate) header_copy: Option<HeaderCopy>,

    /// Open with this keyslot only
    #[arg(short = 'S', long, value_name = "N", help_heading = "Key options")]
    pub(crate) key_slot: Option<u32>,

    /// Refuse a keyslot whose key derivation needs more memory than this (default 4G)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Key options")]
    pub(crate) max_kdf_memory: Option<u64>,

    /// Refuse a keyslot whose key derivation would take more seconds than this (default 60)
    #[arg(long, value_name = "SECONDS", help_heading = "Key options")]
    pub(crate) max_kdf_time: Option<u64>,

    /// Bypass the page cache (O_DIRECT)
    #[arg(long)]
    pub(crate) direct: bool,

    #[command(flatten)]
    pub(crate) key: KeyArgs,

    #[command(flatten)]
    pub(crate) tokens: TokenArgs,

    #[command(flatten)]
    pub(crate) plain: PlainArgs,

    #[command(flatten)]
    pub(crate) tcrypt: TcryptArgs,

    #[command(flatten)]
    pub(crate) end: EndOfHeadings,
}

/// Ends the heading of the options above: those of the command that follow have none.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = None::<&str>)]
pub(crate) struct EndOfHeadings {}

/// Partition of a disk.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PartitionArgs {
    /// Use this partition: its number, UUID or name
    ///
    /// The UUID or label of the LUKS volume in it selects it too.
    #[arg(long, value_name = "N|NAME")]
    pub(crate) partition: Option<String>,
}

impl PartitionArgs {
    /// The partition, or the whole disk.
    pub(crate) fn place(&self) -> Place {
        self.partition.clone().map_or(Place::Whole, Place::Partition)
    }
}

/// Place of a LUKS header outside the volume.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct HeaderArgs {
    /// Detached LUKS header
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) header: Option<PathBuf>,
}

/// A volume whose header is read or changed.
#[derive(Args, Clone, Debug)]
pub(crate) struct HeaderPlaceArgs {
    /// Image file, block device or detached header
    #[arg(value_name = "VOLUME", value_hint = ValueHint::FilePath)]
    pub(crate) volume: PathBuf,

    #[command(flatten)]
    pub(crate) partition: PartitionArgs,

    /// Start of the volume on the disk, in sectors of 512 bytes
    #[arg(long, value_name = "SECTORS", conflicts_with_all = ["partition", "header"])]
    pub(crate) offset: Option<u64>,

    #[command(flatten)]
    pub(crate) header: HeaderArgs,
}

impl HeaderPlaceArgs {
    /// The file or device with the header.
    pub(crate) fn path(&self) -> &Path {
        self.header.header.as_deref().unwrap_or(&self.volume)
    }

    /// All files and devices of the volume.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        [Some(self.volume.as_path()), self.header.header.as_deref()].into_iter().flatten()
    }

    /// The part of that file or device with the header. A detached header has no partitions.
    pub(crate) fn in_disk(&self) -> Place {
        match (&self.header.header, self.offset) {
            (Some(_), _) => Place::Whole,
            (None, Some(sectors)) => Place::Offset(sectors.saturating_mul(512)),
            (None, None) => self.partition.place(),
        }
    }
}

/// Parameters of a plain volume, which has no header.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of --type plain")]
pub(crate) struct PlainArgs {
    /// Cipher, for example aes-xts-plain64
    #[arg(short = 'c', long)]
    pub(crate) cipher: Option<String>,

    /// Size of the volume key
    #[arg(short = 's', long, value_name = "BITS")]
    pub(crate) key_size: Option<u32>,

    /// Hash that derives the key from the passphrase; `plain` is no hash. A key file is not hashed
    #[arg(short = 'h', long)]
    pub(crate) hash: Option<String>,

    /// Start of the encrypted data on the device; for LUKS, the start of the header
    #[arg(short = 'o', long, value_name = "SECTORS")]
    pub(crate) offset: Option<u64>,

    /// Number added to the sector number for the IV
    #[arg(short = 'p', long, value_name = "SECTORS")]
    pub(crate) skip: Option<u64>,

    /// Size of the volume; the default is the rest of the device
    #[arg(short = 'b', long, value_name = "SECTORS")]
    pub(crate) size: Option<u64>,

    /// Encryption sector size, 512 to 4096
    #[arg(long, value_name = "BYTES")]
    pub(crate) sector_size: Option<u32>,

    /// Count IVs in encryption sectors instead of units of 512 bytes
    #[arg(long)]
    pub(crate) iv_large_sectors: bool,
}

/// Parameters of a TrueCrypt or VeraCrypt volume.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of --type tcrypt")]
pub(crate) struct TcryptArgs {
    /// Open the hidden volume
    #[arg(long, conflicts_with = "tcrypt_system")]
    pub(crate) tcrypt_hidden: bool,

    /// Open the system disk or partition, of which VOLUME is the whole disk
    #[arg(long)]
    pub(crate) tcrypt_system: bool,

    /// Use the backup of the header, at the end of the volume
    #[arg(long)]
    pub(crate) tcrypt_backup: bool,

    /// Keyfile beside the passphrase; may be repeated. --key-file names the passphrase's file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tcrypt_keyfile: Vec<PathBuf>,

    /// VeraCrypt's personal iterations multiplier
    #[arg(long, value_name = "N")]
    pub(crate) veracrypt_pim: Option<u32>,

    #[command(flatten)]
    pub(crate) protect: ProtectArgs,
}

/// Protection of the hidden volume in an outer volume.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of --type tcrypt")]
pub(crate) struct ProtectArgs {
    /// Protect the hidden volume in this outer volume from writes
    ///
    /// The passphrase of the hidden volume is asked for too. The first write that would change the
    /// hidden volume fails, and from then on all writes fail until the volume is closed.
    #[arg(long, conflicts_with_all = ["tcrypt_hidden", "tcrypt_system"])]
    pub(crate) protect_hidden: bool,

    /// Read the passphrase of the hidden volume from a file, byte for byte
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "protect_hidden")]
    pub(crate) protect_hidden_key_file: Option<PathBuf>,

    /// Keyfile of the hidden volume, beside its passphrase; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "protect_hidden")]
    pub(crate) protect_hidden_tcrypt_keyfile: Vec<PathBuf>,

    /// VeraCrypt's personal iterations multiplier of the hidden volume
    #[arg(long, value_name = "N", requires = "protect_hidden")]
    pub(crate) protect_hidden_veracrypt_pim: Option<u32>,
}

impl ProtectArgs {
    /// The first given option.
    fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.protect_hidden, "--protect-hidden"),
            (self.protect_hidden_key_file.is_some(), "--protect-hidden-key-file"),
            (!self.protect_hidden_tcrypt_keyfile.is_empty(), "--protect-hidden-tcrypt-keyfile"),
            (self.protect_hidden_veracrypt_pim.is_some(), "--protect-hidden-veracrypt-pim"),
        ];
        given.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
    }

    /// The hidden volume, if it is to be protected.
    fn spec(&self) -> Result<Option<HiddenSpec>, Failure> {
        match (self.protect_hidden, self.first_given()) {
            (false, None) => return Ok(None),
            (false, Some(option)) => {
                return Err(Failure::failed(format!("{option} needs --protect-hidden")));
            }
            (true, _) => {}
        }
        let key = KeyArgs { key_file: self.protect_hidden_key_file.clone(), ..KeyArgs::default() };
        Ok(Some(HiddenSpec {
            key: key.input(),
            pim: self.protect_hidden_veracrypt_pim,
            keyfiles: self.protect_hidden_tcrypt_keyfile.clone(),
        }))
    }
}

impl TcryptArgs {
    /// The first given option.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.tcrypt_hidden, "--tcrypt-hidden"),
            (self.tcrypt_system, "--tcrypt-system"),
            (self.tcrypt_backup, "--tcrypt-backup"),
            (!self.tcrypt_keyfile.is_empty(), "--tcrypt-keyfile"),
            (self.veracrypt_pim.is_some(), "--veracrypt-pim"),
        ];
        let first = given.into_iter().find_map(|(is_given, option)| is_given.then_some(option));
        first.or_else(|| self.protect.first_given())
    }

    /// The volume that the options describe.
    pub(crate) fn spec(&self, limits: KdfLimits) -> Result<TcryptSpec, Failure> {
        let kind = match (self.tcrypt_hidden, self.tcrypt_system) {
            (true, _) => TcryptKind::Hidden,
            (false, true) => TcryptKind::System,
            (false, false) => TcryptKind::Normal,
        };
        Ok(TcryptSpec {
            kind,
            backup: self.tcrypt_backup,
            pim: self.veracrypt_pim,
            keyfiles: self.tcrypt_keyfile.clone(),
            limits,
            hidden: self.protect.spec()?,
        })
    }
}

impl VolumeArgs {
    /// The volume that the options describe.
    pub(crate) fn spec(&self) -> Result<VolumeSpec, Failure> {
        let (path, kind) = match (&self.table, &self.volume) {
            (Some(table), _) => (table.clone(), VolumeFormat::Table),
            (None, Some(volume)) => (volume.clone(), self.kind()?),
            (None, None) => {
                return Err(Failure::failed(
                    "no volume: name an image file or a block device, or a table with --table FILE",
                ));
            }
        };
        let place = kind.place(self.partition.partition.as_deref(), self.plain.offset)?;
        Ok(VolumeSpec { path, place, kind, key: self.key.input(), direct: self.direct })
    }

    fn kind(&self) -> Result<VolumeFormat, Failure> {
        let luks = LuksSpec {
            version: None,
            or_bitlk: false,
            header: self.header.header.clone(),
            header_copy: self.header_copy.map(Into::into),
            key_slot: self.key_slot,
            max_kdf_memory_bytes: self.max_kdf_memory,
            max_kdf_seconds: self.max_kdf_time,
            tokens: self.tokens.token_use(),
        };
        VolumeFormat::new(self.kind, luks, &self.plain, &self.tcrypt)
    }
}

impl PlainArgs {
    /// The first given option for plain volumes only; LUKS volumes have an offset too.
    pub(crate) fn first_given_but_offset(&self) -> Option<&'static str> {
        let given = [
            (self.cipher.is_some(), "--cipher"),
            (self.key_size.is_some(), "--key-size"),
            (self.hash.is_some(), "--hash"),
            (self.skip.is_some(), "--skip"),
            (self.size.is_some(), "--size"),
            (self.sector_size.is_some(), "--sector-size"),
            (self.iv_large_sectors, "--iv-large-sectors"),
        ];
        given.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
    }

    /// A plain volume; no parameter is guessed, because a wrong guess looks like an empty disk.
    pub(crate) fn spec(&self) -> Result<PlainSpec, Failure> {
        let (Some(cipher), Some(key_size_bits)) = (self.cipher.clone(), self.key_size) else {
            return Err(Failure::failed(
                "a plain volume has no header with its parameters: give --cipher and --key-size, \
                 and --hash for a passphrase. cryptsetup's own defaults are \
                 aes-cbc-essiv:sha256, 256, ripemd160 before version 2.7 and aes-xts-plain64, 256, \
                 sha256 since",
            ));
        };
        Ok(PlainSpec {
            cipher,
            key_size_bits,
            hash: self.hash.clone(),
            offset_sectors: self.offset.unwrap_or(0),
            skip_sectors: self.skip.unwrap_or(0),
            len_sectors: self.size,
            sector_size_bytes: self.sector_size.unwrap_or(512),
            iv_large_sectors: self.iv_large_sectors,
        })
    }
}
