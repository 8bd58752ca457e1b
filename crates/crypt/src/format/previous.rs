//! What earlier volumes left on a device: headers, second copies, keyslots. All of it is wiped
//! before a new header is written, also where the new volume has its data: an old keyslot still
//! opens with its passphrase, and gives the key of every backup of the old data.

use std::ops::Range;

use crate::error::Error;
use crate::source::HeaderDevice;
use crate::wipe::wipe_zero;
use crate::{luks1, luks2};

/// The default header of a LUKS2 volume in cryptsetup, and more than that of a LUKS1 volume. So
/// much is wiped where a header is damaged and does not say where its keyslots lie.
pub(crate) const UNKNOWN_LEN_BYTES: u64 = 16 << 20;

/// Zeros over every header that a program would find, also behind a newer one, and over its
/// keyslots. The starts of the headers go first, and are gone on stable storage before the rest, so
/// that no header is left whose keyslots open with no passphrase.
pub(crate) fn wipe(device: &mut dyn HeaderDevice) -> Result<(), Error> {
    // Ranges of bytes; they may overlap, and end behind the device.
    let mut previous: Vec<Range<u64>> = Vec::new();
    luks1::Header::find_previous(&&*device, &mut previous);
    luks2::find_previous(&&*device, &mut previous);
    luks2::erase_copies(device)?;
    device.sync().map_err(|error| Error::Write { what: "the old header".to_owned(), error })?;
    let device_len = device.len_bytes();
    for range in previous {
        wipe_zero(device, range.start, range.end.min(device_len))?;
    }
    Ok(())
}
