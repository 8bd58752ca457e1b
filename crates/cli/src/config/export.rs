//! An export in the configuration.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blockyard::keys::{KeyCommand, TokenChoice};
use blockyard::{DeviceOptions, DirtyBitmapOptions, UblkOptions};
use blockyard_crypt::luks2;
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::priority::Priority;
use blockyard_host::pages::BounceChoice;
use blockyard_host::remote::is_remote;
use blockyard_host::server::{CONNECTIONS_MAX, QUEUES_USUAL, RING_LEN_MAX};
use blockyard_host::volume::{PipelineChoice, Scheduling};
use serde::Deserialize;

use super::{ExportSpec, FirstUse, of_key};
use crate::args::{PlainArgs, ProtectArgs, TcryptArgs, VolumeType};
use crate::bitmap_spec::{BitmapPlace, checked_granularity};
use crate::disk_spec::{DiskSocket, DiskSpec, checked_num_queues, checked_queue_size, disk_name};
use crate::failure::{Failure, printable};
use crate::key::{KeyInput, KeySource};
use crate::scheduling::{Alias, checked_max_sectors, checked_minimum_block, checked_queue_depth};
use crate::size::parse_size;
use crate::volume_spec::{LuksSpec, TokenUse, VolumeFormat, VolumeSpec};

/// Limit of `idle_close`: a year.
const IDLE_CLOSE_MAX_S: u64 = 365 * 24 * 60 * 60;

// 62 fields: one for each key of an export. serde cannot refuse unknown keys, and name the line of
// a wrong value, in flattened parts.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportText {
    volume: Option<PathBuf>,
    table: Option<PathBuf>,
    partition: Option<String>,
    #[serde(rename = "type")]
    kind: Option<TypeText>,
    header: Option<PathBuf>,
    header_copy: Option<HeaderCopyText>,
    key_slot: Option<u32>,
    max_kdf_memory: Option<SizeText>,
    max_kdf_time: Option<u64>,
    key_file: Option<PathBuf>,
    keyfile_offset: Option<SizeText>,
    keyfile_size: Option<SizeText>,
    key_fd: Option<i32>,
    key_command: Option<String>,
    key_credential: Option<String>,
    #[serde(default)]
    no_token: bool,
    #[serde(default)]
    token_only: bool,
    token_id: Option<u32>,
    token_type: Option<String>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    shared: bool,
    #[serde(default)]
    allow_discards: bool,
    minimum_block: Option<u32>,
    dirty_bitmap: Option<String>,
    dirty_granularity: Option<SizeText>,
    #[serde(default)]
    direct: bool,
    elevator: Option<String>,
    queue_depth: Option<u32>,
    max_sectors: Option<u32>,
    pipeline: Option<String>,
    pages: Option<String>,
    ioprio: Option<String>,
    pub(super) iops_limit: Option<NonZeroU64>,
    pub(super) bps_limit: Option<SizeText>,
    pub(super) burst: Option<String>,
    pub(super) limit_group: Option<String>,
    #[serde(default)]
    aliases: BTreeMap<String, String>,
    open: Option<OpenText>,
    idle_close: Option<u64>,
    max_connections: Option<u16>,
    vhost_user: Option<PathBuf>,
    num_queues: Option<u16>,
    queue_size: Option<u16>,
    poll: Option<String>,
    ublk: Option<UblkText>,
    cipher: Option<String>,
    key_size: Option<u32>,
    hash: Option<String>,
    offset: Option<u64>,
    skip: Option<u64>,
    size: Option<u64>,
    sector_size: Option<u32>,
    #[serde(default)]
    iv_large_sectors: bool,
    #[serde(default)]
    tcrypt_hidden: bool,
    #[serde(default)]
    tcrypt_system: bool,
    #[serde(default)]
    tcrypt_backup: bool,
    #[serde(default)]
    tcrypt_keyfiles: Vec<PathBuf>,
    veracrypt_pim: Option<u32>,
    #[serde(default)]
    protect_hidden: bool,
    protect_hidden_key_file: Option<PathBuf>,
    #[serde(default)]
    protect_hidden_tcrypt_keyfiles: Vec<PathBuf>,
    protect_hidden_veracrypt_pim: Option<u32>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum TypeText {
    Luks,
    Luks1,
    Luks2,
    Tcrypt,
    Bitlk,
    Plain,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum OpenText {
    Start,
    FirstUse,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum HeaderCopyText {
    Primary,
    Secondary,
}

/// The number of a disk of this machine, or whether there is one of any number.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "`ublk` is true, false or the number of a disk")]
enum UblkText {
    Any(bool),
    Number(u32),
}

/// A size as a number of bytes or as text with a suffix.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub(super) enum SizeText {
    Bytes(u64),
    Text(String),
}

/// A disk that a file in this folder names: a path, or the name of a remote disk as it is.
fn disk_in(folder: &Path, disk: &Path) -> PathBuf {
    if is_remote(disk) { disk.to_owned() } else { folder.join(disk) }
}

impl ExportText {
    pub(super) fn spec(self, name: String, folder: &Path) -> Result<ExportSpec, Failure> {
        let (path, is_table) = match (&self.volume, &self.table) {
            (Some(volume), None) => (disk_in(folder, volume), false),
            (None, Some(table)) => (folder.join(table), true),
            _ => return Err(Failure::failed("give either `volume` or `table`")),
        };
        let kind = if is_table { self.table_kind(folder)? } else { self.volume_kind(folder)? };
        let key = self.key(folder)?;
        let place = kind.place(self.partition.as_deref(), self.offset)?;
        let minimum_block = self.minimum_block.map(checked_minimum_block).transpose();
        let rate = self.rate()?;
        let disk = self.disk(folder, disk_name(&name, &path))?;
        let ublk = self.ublk()?;
        let first_use = self.first_use(&key.source)?;
        let text = self.clone().without_limits();
        Ok(ExportSpec {
            name,
            volume: VolumeSpec { path, place, kind, key, direct: self.direct },
            read_only: self.read_only,
            shared: self.shared,
            allow_discards: self.allow_discards,
            minimum_block_bytes: minimum_block.map_err(|error| of_key("minimum_block", &error))?,
            dirty_bitmap: self.dirty_bitmap(folder)?,
            scheduling: self.scheduling()?,
            pipeline: self.pipeline()?,
            bounce: self.bounce()?,
            priority: self.priority()?,
            rate,
            aliases: self.aliases()?,
            disk,
            ublk,
            first_use,
            max_connections: self.max_connections()?,
            text: Some(Box::new(text)),
        })
    }

    /// All that needs another opening of the volume.
    fn without_limits(self) -> Self {
        Self { iops_limit: None, bps_limit: None, burst: None, limit_group: None, ..self }
    }

    fn max_connections(&self) -> Result<Option<usize>, Failure> {
        match self.max_connections.map(usize::from) {
            Some(limit) if !(1..=CONNECTIONS_MAX).contains(&limit) => Err(Failure::failed(
                format!("max_connections = {limit}; it must be 1 to {CONNECTIONS_MAX}"),
            )),
            limit => Ok(limit),
        }
    }

    fn first_use(&self, key: &KeySource) -> Result<Option<FirstUse>, Failure> {
        if self.open != Some(OpenText::FirstUse) {
            return match self.idle_close {
                None => Ok(None),
                Some(_) => Err(Failure::failed(
                    "`idle_close` is for an export that opens again; add `open = \"first-use\"`",
                )),
            };
        }
        if self.vhost_user.is_some() || self.ublk.is_some() {
            return Err(Failure::failed(
                "`open = \"first-use\"` is for an export of NBD clients; remove it, or \
                 `vhost_user` and `ublk`",
            ));
        }
        let has_key = match key {
            // A table has its keys, and a token needs no passphrase.
            KeySource::Ask => self.table.is_some() || self.token_only,
            KeySource::Stdin | KeySource::Descriptor(_) => false,
            _ => true,
        };
        if !has_key {
            return Err(Failure::failed(
                "`open = \"first-use\"` needs `key_file`, `key_command`, `key_credential` or \
                 `token_only`: a running server asks for no passphrase",
            ));
        }
        match self.idle_close {
            Some(seconds) if !(1..=IDLE_CLOSE_MAX_S).contains(&seconds) => {
                Err(Failure::failed(format!(
                    "idle_close = {seconds}; it must be a time of 1 second to a year \
                     ({IDLE_CLOSE_MAX_S}), and without it the volume stays open"
                )))
            }
            seconds => Ok(Some(FirstUse { idle_close: seconds.map(Duration::from_secs) })),
        }
    }

    fn disk(&self, folder: &Path, name: String) -> Result<Option<DiskSpec>, Failure> {
        let Some(path) = &self.vhost_user else {
            if self.num_queues.is_some() || self.queue_size.is_some() || self.poll.is_some() {
                return Err(Failure::failed(
                    "`num_queues`, `queue_size` and `poll` are for a disk of a virtual machine; \
                     name its socket with `vhost_user`",
                ));
            }
            return Ok(None);
        };
        let queues = checked_num_queues(self.num_queues.unwrap_or(QUEUES_USUAL));
        let queues = queues.map_err(|error| of_key("num_queues", &error))?;
        let ring_len_max = checked_queue_size(self.queue_size.unwrap_or(RING_LEN_MAX));
        let ring_len_max = ring_len_max.map_err(|error| of_key("queue_size", &error))?;
        let polling = self.poll.as_deref().map(str::parse).transpose();
        let polling = polling.map_err(|error: String| of_key("poll", &error))?.unwrap_or_default();
        let options = DeviceOptions { name, queues, ring_len_max, polling };
        Ok(Some(DiskSpec { socket: DiskSocket::Path(folder.join(path)), options }))
    }

    fn ublk(&self) -> Result<Option<UblkOptions>, Failure> {
        let number = match self.ublk {
            None | Some(UblkText::Any(false)) => return Ok(None),
            Some(UblkText::Any(true)) => None,
            Some(UblkText::Number(number)) => Some(number),
        };
        if self.vhost_user.is_some() {
            return Err(Failure::failed(
                "`ublk` and `vhost_user` together would give the disk to this machine and to a \
                 virtual one, which destroys its file system; remove one of them",
            ));
        }
        Ok(Some(UblkOptions { number }))
    }

    fn scheduling(&self) -> Result<Scheduling, Failure> {
        let default = Scheduling::default();
        let elevator = self.elevator.as_deref().map(ElevatorSpec::parse).transpose();
        let queue_depth = self.queue_depth.map(checked_queue_depth).transpose();
        let max_sectors = self.max_sectors.map(checked_max_sectors).transpose();
        Ok(Scheduling {
            elevator: elevator.map_err(|error| of_key("elevator", &error))?,
            queue_depth: queue_depth.map_err(|error| of_key("queue_depth", &error))?,
            max_sectors: max_sectors
                .map_err(|error| of_key("max_sectors", &error))?
                .unwrap_or(default.max_sectors),
        })
    }

    fn dirty_bitmap(&self, folder: &Path) -> Result<Option<DirtyBitmapOptions>, Failure> {
        let granularity = self.dirty_granularity.as_ref().map(SizeText::bytes).transpose()?;
        let granularity = granularity.map(checked_granularity).transpose();
        let granularity = granularity.map_err(|error| of_key("dirty_granularity", &error))?;
        let Some(place) = &self.dirty_bitmap else {
            return match granularity {
                None => Ok(None),
                Some(_) => Err(Failure::failed(
                    "`dirty_granularity` is for a `dirty_bitmap`; add \
                     `dirty_bitmap = \"NAME=FILE\"`",
                )),
            };
        };
        if self.shared {
            return Err(Failure::failed(
                "a `dirty_bitmap` does not see the writes of other servers; remove it or `shared`",
            ));
        }
        let place = BitmapPlace::parse(place).map_err(|error| of_key("dirty_bitmap", &error))?;
        Ok(Some(place.options(folder, granularity)))
    }

    fn pipeline(&self) -> Result<PipelineChoice, Failure> {
        let pipeline = self.pipeline.as_deref().map(PipelineChoice::parse).transpose();
        Ok(pipeline.map_err(|error| of_key("pipeline", &error))?.unwrap_or_default())
    }

    fn bounce(&self) -> Result<BounceChoice, Failure> {
        let bounce = self.pages.as_deref().map(BounceChoice::parse).transpose();
        Ok(bounce.map_err(|error| of_key("pages", &error))?.unwrap_or_default())
    }

    fn priority(&self) -> Result<Priority, Failure> {
        let priority = self.ioprio.as_deref().map(Priority::parse).transpose();
        Ok(priority.map_err(|error| of_key("ioprio", &error))?.unwrap_or_default())
    }

    fn aliases(&self) -> Result<Vec<Alias>, Failure> {
        let alias = |(name, priority): (&String, &String)| {
            let place = format!("aliases.{}", printable(name));
            Alias::new(name, priority).map_err(|error| of_key(&place, &error))
        };
        self.aliases.iter().map(alias).collect()
    }

    fn table_kind(&self, folder: &Path) -> Result<VolumeFormat, Failure> {
        let luks_or_key = self.header.is_some()
            || self.header_copy.is_some()
            || self.key_slot.is_some()
            || self.key_file.is_some()
            || self.key_fd.is_some()
            || self.key_command.is_some()
            || self.key_credential.is_some()
            || self.tokens().is_asked_for()
            || self.cipher.is_some();
        if luks_or_key {
            return Err(Failure::failed(
                "a `table` says its ciphers and keys itself; remove header, header_copy, key_slot, \
                 key_file, key_fd, key_command, key_credential, the token's keys and cipher",
            ));
        }
        if let Some(option) = self.tcrypt(folder).first_given() {
            return Err(Failure::failed(format!(
                "{option} is for type = \"tcrypt\", and a `table` has no type; remove it"
            )));
        }
        Ok(VolumeFormat::Table)
    }

    fn volume_kind(&self, folder: &Path) -> Result<VolumeFormat, Failure> {
        let plain = PlainArgs {
            cipher: self.cipher.clone(),
            key_size: self.key_size,
            hash: self.hash.clone(),
            offset: self.offset,
            skip: self.skip,
            size: self.size,
            sector_size: self.sector_size,
            iv_large_sectors: self.iv_large_sectors,
        };
        let luks = LuksSpec {
            version: None,
            or_bitlk: false,
            header: self.header.as_ref().map(|header| disk_in(folder, header)),
            header_copy: self.header_copy.map(|copy| match copy {
                HeaderCopyText::Primary => luks2::Copy::Primary,
                HeaderCopyText::Secondary => luks2::Copy::Secondary,
            }),
            key_slot: self.key_slot,
            max_kdf_memory_bytes: self.max_kdf_memory.as_ref().map(SizeText::bytes).transpose()?,
            max_kdf_seconds: self.max_kdf_time,
            tokens: self.tokens(),
        };
        VolumeFormat::new(self.kind.map(Into::into), luks, &plain, &self.tcrypt(folder))
    }

    fn tcrypt(&self, folder: &Path) -> TcryptArgs {
        let all = |paths: &[PathBuf]| paths.iter().map(|path| folder.join(path)).collect();
        TcryptArgs {
            tcrypt_hidden: self.tcrypt_hidden,
            tcrypt_system: self.tcrypt_system,
            tcrypt_backup: self.tcrypt_backup,
            tcrypt_keyfile: all(&self.tcrypt_keyfiles),
            veracrypt_pim: self.veracrypt_pim,
            protect: ProtectArgs {
                protect_hidden: self.protect_hidden,
                protect_hidden_key_file: self
                    .protect_hidden_key_file
                    .as_ref()
                    .map(|path| folder.join(path)),
                protect_hidden_tcrypt_keyfile: all(&self.protect_hidden_tcrypt_keyfiles),
                protect_hidden_veracrypt_pim: self.protect_hidden_veracrypt_pim,
            },
        }
    }

    fn tokens(&self) -> TokenUse {
        let choice = TokenChoice { number: self.token_id, kind: self.token_type.clone() };
        TokenUse { never: self.no_token, only: self.token_only, choice }
    }

    fn key(&self, folder: &Path) -> Result<KeyInput, Failure> {
        let command = self.key_command.as_deref().map(KeyCommand::parse).transpose();
        let command = command.map_err(|error| of_key("key_command", &Failure::from(error)))?;
        if command.is_some() && (self.keyfile_offset.is_some() || self.keyfile_size.is_some()) {
            return Err(Failure::failed(
                "`keyfile_offset` and `keyfile_size` are for a key file; the output of \
                 `key_command` is used whole",
            ));
        }
        let given = [
            self.key_file.as_ref().map(|path| KeySource::File(folder.join(path))),
            self.key_fd.map(KeySource::Descriptor),
            command.map(KeySource::Command),
            self.key_credential.clone().map(KeySource::Credential),
        ];
        let mut given = given.into_iter().flatten();
        let source = given.next().unwrap_or(KeySource::Ask);
        if given.next().is_some() {
            return Err(Failure::failed(
                "give only one of `key_file`, `key_fd`, `key_command` and `key_credential`",
            ));
        }
        let tokens = self.tokens();
        if tokens.never && tokens.is_asked_for() {
            return Err(Failure::failed(
                "`no_token` tries no token; remove it or `token_only`, `token_id` and `token_type`",
            ));
        }
        if source != KeySource::Ask && tokens.is_asked_for() {
            return Err(Failure::failed(
                "`token_only`, `token_id` and `token_type` are for an export without another \
                 source of its key",
            ));
        }
        let offset_bytes = self.keyfile_offset.as_ref().map_or(Ok(0), SizeText::bytes)?;
        let len_bytes = self.keyfile_size.as_ref().map(SizeText::bytes).transpose()?;
        Ok(KeyInput { source, offset_bytes, len_bytes })
    }
}

impl From<TypeText> for VolumeType {
    fn from(text: TypeText) -> Self {
        match text {
            TypeText::Luks => Self::Luks,
            TypeText::Luks1 => Self::Luks1,
            TypeText::Luks2 => Self::Luks2,
            TypeText::Tcrypt => Self::Tcrypt,
            TypeText::Bitlk => Self::Bitlk,
            TypeText::Plain => Self::Plain,
        }
    }
}

impl SizeText {
    pub(super) fn bytes(&self) -> Result<u64, Failure> {
        match self {
            Self::Bytes(len_bytes) => Ok(*len_bytes),
            Self::Text(text) => {
                parse_size(text).map_err(|error| Failure::failed(format!("{text:?}: {error}")))
            }
        }
    }
}
