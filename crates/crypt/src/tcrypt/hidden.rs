//! The sectors of an outer volume that belong to the hidden volume in it.
//!
//! ```text
//!   0       65536     131072                              end-131072  end-65536
//!   header | hidden h. | outer data ... [hidden data] ... | backup   | hidden backup   version 4
//!   header | outer data ............ [hidden data][hidden h.] ......................   before it
//! ```
//! The header of a hidden volume lies outside of the outer volume's data since version 4 of the
//! format. Before, it lies behind the hidden data, where a write to the outer volume reaches it.

use std::ops::Range;

use crate::error::Error;
use crate::params::CryptParams;
use crate::secret::SecretBytes;
use crate::source::HeaderSource;

use super::header::OLD_HIDDEN_DISTANCE_BYTES;
use super::{HEADER_LEN_BYTES, Options, Unlocked, VolumeKind, unlock};

/// Name of the hidden volume's header in errors.
const HEADER: &str = "header of the hidden volume";

/// Length that is reserved for a header since version 4.
const HEADER_AREA_BYTES: u64 = 65_536;

/// The secrets of a hidden volume that is to be protected.
#[derive(Clone, Debug)]
pub struct HiddenKey {
    /// Its passphrase.
    pub passphrase: SecretBytes,
    /// Its PIM.
    pub pim: Option<u32>,
    /// Contents of its keyfiles.
    pub keyfiles: Vec<SecretBytes>,
}

/// Sectors of an outer volume, counted from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenSectors(Vec<Range<u64>>);

impl HiddenSectors {
    /// Their ranges; at least one.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.0
    }
}

/// Finds the hidden volume in an outer volume: its data, and those of its headers that lie in the
/// outer volume's data. `options` are those of the outer volume.
///
/// # Errors
/// [`Error::Field`] if `options` are not for an outer volume, [`Error::NoHidden`] if no hidden
/// volume opens, [`Error::Header`] if it does not lie in the outer volume.
pub fn hidden_sectors(
    source: &dyn HeaderSource,
    outer: &CryptParams,
    options: &Options,
    hidden: &HiddenKey,
) -> Result<HiddenSectors, Error> {
    options.check_protects()?;
    let kind = VolumeKind::Hidden;
    let HiddenKey { passphrase, pim, keyfiles } = hidden.clone();
    let options = Options { kind, pim, keyfiles, ..options.clone() };
    let unlocked = unlock(source, &passphrase, &options).map_err(|error| match error {
        Error::NoTcrypt { untried } => Error::NoHidden { untried },
        other => of_hidden(other),
    })?;
    unlocked.sectors_in(outer, source.len_bytes())
}

/// An error in the fields of the hidden volume's header, by its name: the outer volume has one too.
fn of_hidden(error: Error) -> Error {
    match error {
        Error::Header { problem, .. } => Error::header(HEADER, problem),
        Error::DataDevice(problem) => Error::header(HEADER, problem),
        other => other,
    }
}

/// The sectors of a device that a mapping uses.
fn sectors_of(params: &CryptParams, device_len_bytes: u64) -> Range<u64> {
    let start = params.data_offset_sectors;
    let to_end = (device_len_bytes / 512).saturating_sub(start);
    start..start.saturating_add(params.len_sectors.unwrap_or(to_end))
}

impl Unlocked {
    /// The sectors of an outer volume that belong to this hidden one.
    ///
    /// # Errors
    /// [`Error::Header`] if it does not lie in the outer volume.
    pub fn sectors_in(
        &self,
        outer: &CryptParams,
        device_len_bytes: u64,
    ) -> Result<HiddenSectors, Error> {
        let params = self.crypt_params(device_len_bytes).map_err(of_hidden)?;
        let data = sectors_of(&params, device_len_bytes);
        let volume = sectors_of(outer, device_len_bytes);
        if data.start < volume.start || volume.end < data.end {
            let problem = format!(
                "its data is in sectors {} to {} of the device, but the outer volume is in \
                 sectors {} to {}",
                data.start,
                data.end.saturating_sub(1),
                volume.start,
                volume.end.saturating_sub(1)
            );
            return Err(Error::header(HEADER, problem));
        }
        let ranges = [data].into_iter().chain(self.header_sectors(device_len_bytes));
        let inside = ranges.filter_map(|range| {
            let start = range.start.max(volume.start) - volume.start;
            let end = range.end.min(volume.end).saturating_sub(volume.start);
            (start < end).then_some(start..end)
        });
        Ok(HiddenSectors(inside.collect()))
    }

    /// Sectors of the device with the header of a hidden volume or its backup.
    fn header_sectors(&self, device_len_bytes: u64) -> Vec<Range<u64>> {
        let from_end = |back: u64| device_len_bytes.saturating_sub(back);
        let areas = if self.header.version > 3 {
            let backup = from_end(HEADER_AREA_BYTES)..device_len_bytes;
            [Some(HEADER_AREA_BYTES..2 * HEADER_AREA_BYTES), Some(backup)]
        } else {
            let start = from_end(OLD_HIDDEN_DISTANCE_BYTES);
            [Some(start..start + HEADER_LEN_BYTES as u64), None]
        };
        let sectors = |area: Range<u64>| area.start / 512..area.end.div_ceil(512);
        let mut all: Vec<_> = areas.into_iter().flatten().map(sectors).collect();
        // The version does not bind the header that opened to its usual place.
        let opened = sectors(self.offset_bytes..self.offset_bytes + HEADER_LEN_BYTES as u64);
        if !all.iter().any(|area| area.start <= opened.start && opened.end <= area.end) {
            all.push(opened);
        }
        all
    }
}

impl Options {
    /// Refuses volumes without a hidden volume in them.
    ///
    /// # Errors
    /// [`Error::Field`] for hidden and system volumes.
    pub fn check_protects(&self) -> Result<(), Error> {
        match self.kind {
            VolumeKind::Normal => Ok(()),
            VolumeKind::Hidden | VolumeKind::System => {
                let problem = "only an outer volume has a hidden volume in it, and this is a \
                               hidden or a system volume";
                Err(Error::field("protect_hidden", problem))
            }
        }
    }
}
