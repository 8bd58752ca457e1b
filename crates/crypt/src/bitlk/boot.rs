//! The first sector of a volume: its sector size, and the places of the three metadata blocks.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 3 | jump: `eb 58 90` since Windows 7, `eb 52 90` in Windows Vista |
//! | 3 | 8 | `-FVE-FS-`; `MSWIN4.1` in BitLocker To Go |
//! | 11 | 2 | sector size |
//! | 160, To Go: 424 | 16 | GUID of the layout |
//! | 176, To Go: 440 | 3 × 8 | offsets of the metadata blocks |

use uuid::Uuid;

use super::{le16, le64};
use crate::error::Error;
use crate::signature;
use crate::source::HeaderSource;

const LEN_BYTES: usize = 512;
pub(super) const SIGNATURE: &[u8; 8] = b"-FVE-FS-";
const TO_GO_SIGNATURE: &[u8; 8] = b"MSWIN4.1";
const JUMP: [u8; 3] = [0xeb, 0x58, 0x90];
const VISTA_JUMP: [u8; 3] = [0xeb, 0x52, 0x90];
const GUID: usize = 160;
const TO_GO_GUID: usize = 424;

/// The usual layout.
const NORMAL: [u8; 16] = [
    0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01,
];
/// Encrypt on write: a disk of which only written parts are encrypted, while its conversion runs.
const ENCRYPT_ON_WRITE: [u8; 16] = [
    0x3b, 0x4d, 0xa8, 0x92, 0x80, 0xdd, 0x0e, 0x4d, 0x9e, 0x4e, 0xb1, 0xe3, 0x28, 0x4e, 0xae, 0xd8,
];

/// The layout of the encrypted parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Normal,
    EncryptOnWrite,
    Unknown(Uuid),
}

/// The checked fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BootSector {
    pub(super) is_to_go: bool,
    pub(super) layout: Layout,
    pub(super) sector_size_bytes: u32,
    pub(super) metadata_offsets_bytes: [u64; 3],
}

impl BootSector {
    pub(super) fn read(source: &dyn HeaderSource) -> Result<Self, Error> {
        let mut bytes = [0; LEN_BYTES];
        if source.len_bytes() < LEN_BYTES as u64 {
            return Err(Error::NotBitlk(None));
        }
        let what = || "the first sector of the BitLocker volume".to_owned();
        source.read_at(0, &mut bytes).map_err(|error| Error::Read { what: what(), error })?;
        Self::parse(&bytes)?.ok_or_else(|| Error::NotBitlk(signature::probe(source)))
    }

    /// `None` if it is of no BitLocker volume.
    fn parse(bytes: &[u8; LEN_BYTES]) -> Result<Option<Self>, Error> {
        let is_to_go = &bytes[3..11] == TO_GO_SIGNATURE;
        let guid_at = if is_to_go { TO_GO_GUID } else { GUID };
        let guid: [u8; 16] = *bytes[guid_at..].first_chunk().expect("it is in the sector");
        let layout = match guid {
            NORMAL => Layout::Normal,
            ENCRYPT_ON_WRITE => Layout::EncryptOnWrite,
            other => Layout::Unknown(Uuid::from_bytes_le(other)),
        };
        // A FAT file system of Windows 98 has the same signature, and no GUID.
        let is_known = !matches!(layout, Layout::Unknown(_));
        if !(&bytes[3..11] == SIGNATURE || is_to_go && is_known) {
            return Ok(None);
        }
        if bytes[..3] == VISTA_JUMP {
            return Err(Error::unsupported(
                "boot sector",
                "this is a BitLocker volume of Windows Vista, whose metadata has another form; \
                 `manage-bde -upgrade` of a later Windows converts it",
            ));
        }
        if bytes[..3] != JUMP {
            return Err(Error::header("boot sector", "its first bytes are no jump of BitLocker"));
        }
        let sector_size_bytes = match le16(bytes, 11) {
            0 | 512 => 512,
            4096 => 4096,
            size => {
                let what =
                    format!("the volume has sectors of {size} bytes; 512 and 4096 are known");
                return Err(Error::unsupported("boot sector", what));
            }
        };
        let metadata_offsets_bytes = [16, 24, 32].map(|after| le64(bytes, guid_at + after));
        Ok(Some(Self { is_to_go, layout, sector_size_bytes, metadata_offsets_bytes }))
    }
}
