//! Protectors: copies of the volume master key, each encrypted with another key.

use uuid::Uuid;

use super::datum::{self, Datum, entry, value};
use super::encrypted::Encrypted;
use super::le16;

/// Length of a protector's fields before its properties.
const FIELDS_LEN_BYTES: usize = 28;
pub(super) const SALT_LEN_BYTES: usize = 16;

/// The secret that opens a protector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProtectorKind {
    /// No secret: the key stands beside it.
    ClearKey,
    Tpm,
    StartupKey,
    TpmAndPin,
    RecoveryKey,
    SmartCard,
    Passphrase,
    Unknown(u16),
}

impl ProtectorKind {
    fn of(number: u16) -> Self {
        match number {
            0x0000 => Self::ClearKey,
            0x0100 => Self::Tpm,
            0x0200 => Self::StartupKey,
            0x0500 => Self::TpmAndPin,
            0x0800 => Self::RecoveryKey,
            0x1000 => Self::SmartCard,
            0x2000 => Self::Passphrase,
            other => Self::Unknown(other),
        }
    }

    pub(super) fn name(self) -> String {
        let name = match self {
            Self::ClearKey => "clear key",
            Self::Tpm => "TPM",
            Self::StartupKey => "startup key",
            Self::TpmAndPin => "TPM and PIN",
            Self::RecoveryKey => "recovery key",
            Self::SmartCard => "smart card",
            Self::Passphrase => "passphrase",
            Self::Unknown(number) => return format!("unknown type 0x{number:04x}"),
        };
        name.into()
    }

    /// Whether this program can open it.
    pub(super) fn is_supported(self) -> bool {
        matches!(self, Self::ClearKey | Self::StartupKey | Self::RecoveryKey | Self::Passphrase)
    }
}

/// A protector, with its properties as far as they are used.
#[derive(Clone, Debug)]
pub(super) struct Protector {
    pub(super) uuid: Uuid,
    pub(super) kind: ProtectorKind,
    pub(super) name: Option<String>,
    /// Of a passphrase or recovery key.
    pub(super) salt: Option<[u8; SALT_LEN_BYTES]>,
    /// The key in the clear.
    pub(super) clear_key: Option<Vec<u8>>,
    pub(super) master_key: Option<Encrypted>,
}

impl Protector {
    pub(super) fn parse(datum: &Datum<'_>) -> Result<Self, String> {
        let Some((fields, properties)) = datum.data.split_first_chunk::<FIELDS_LEN_BYTES>() else {
            return Err("a protector is truncated".into());
        };
        let properties = datum::parse(properties)?;
        let find = |wanted: u16| {
            let is_it = |one: &&Datum<'_>| one.entry == entry::PROPERTY && one.value == wanted;
            properties.iter().find(is_it).map(|one| one.data)
        };
        let after_method = |data: &'_ [u8]| data.get(4..).map(<[u8]>::to_vec);
        let salt = find(value::STRETCHED_KEY).and_then(|data| data.get(4..)?.first_chunk());
        let name = properties.iter().find(|one| one.value == value::TEXT).map(Datum::text);
        Ok(Self {
            uuid: Uuid::from_bytes_le(*fields.first_chunk().expect("it has 28 bytes")),
            kind: ProtectorKind::of(le16(fields, 26)),
            name: name.filter(|name| !name.is_empty()),
            salt: salt.copied(),
            clear_key: find(value::KEY).and_then(after_method),
            master_key: find(value::ENCRYPTED_KEY).and_then(Encrypted::parse),
        })
    }
}
