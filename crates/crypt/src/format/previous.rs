//! Wipes the remains of earlier volumes on a device: headers, second copies, keyslots. They are
//! wiped before a new header is written, even within the new volume's data: an old keyslot still
//! opens with its passphrase, and reveals the key of every backup of the old data.

use std::ops::Range;

use crate::header_write::{Step, Write};
use crate::source::HeaderSource;
use crate::{luks1, luks2};

/// Header length of a default LUKS2 volume of cryptsetup, and more than that of a LUKS1 volume.
/// This length is wiped if a header is damaged and the place of its keyslots unknown.
pub(crate) const UNKNOWN_LEN_BYTES: u64 = 16 << 20;

/// Zeros over every header that a program would find, including one behind a newer one, and over
/// its keyslots. The starts of the headers are wiped and synced first, so that no header is ever
/// left with wiped keyslots. Nothing is written from `end_bytes` on.
pub(crate) fn wiped(source: &dyn HeaderSource, end_bytes: u64) -> [Step; 2] {
    wiped_before(source, end_bytes, end_bytes)
}

/// As [`wiped`], but the ranges of keyslots are written up to `keyslots_end_bytes` only: data may
/// start there.
pub(crate) fn wiped_before(
    source: &dyn HeaderSource,
    end_bytes: u64,
    keyslots_end_bytes: u64,
) -> [Step; 2] {
    // Ranges of bytes; they may overlap, and end past the end of the device.
    let mut previous: Vec<Range<u64>> = Vec::new();
    luks1::Header::find_previous(source, &mut previous);
    luks2::find_previous(source, &mut previous);
    let end_bytes = end_bytes.min(source.len_bytes());
    let keyslots_end_bytes = keyslots_end_bytes.min(end_bytes);
    let clipped = previous
        .into_iter()
        .filter(|range| range.start < keyslots_end_bytes)
        .map(|range| Write::Zeros(range.start..range.end.min(keyslots_end_bytes)));
    [
        Step::new("the old header", luks2::erased_copies(source, end_bytes)),
        Step::new("over the old keyslots", clipped.collect()),
    ]
}
