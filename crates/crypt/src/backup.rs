//! Backups of headers, with their keyslots: the bytes of `cryptsetup luksHeaderBackup`.
//!
//! A backup opens the volume with the passphrases of its time, for ever: a passphrase that was
//! removed since opens the backup, and with it the data.
//!
//! A restore leaves the present header or the restored one after a power cut. Keyslots of the
//! present header whose areas the backup needs are moved to free space first. Without free space,
//! or if the two headers differ in version or layout, the present header is erased first: then only
//! the backup is left until the restore has ended.

use std::fmt;
use std::ops::Range;

use crate::error::Error;
use crate::format::previous;
use crate::header_write::{Step, Write, write_steps};
use crate::luks::{self, Header};
use crate::partition;
use crate::source::{HeaderDevice, HeaderSource};

/// A whole header with its keyslots.
#[derive(Clone, Debug)]
pub struct Backup {
    bytes: Vec<u8>,
    header: Header,
}

/// A difference between a backup and the header that it would replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// There is no header that can be read.
    NoHeader {
        /// The reason.
        problem: String,
        /// Length of the restored header.
        lost_bytes: u64,
    },
    /// The versions of LUKS differ.
    Version,
    /// The UUIDs differ: it is the backup of another volume.
    Uuid {
        /// UUID in the backup.
        backup: String,
        /// UUID of the volume.
        present: String,
    },
    /// The volume keys have different digests: the data becomes unreadable.
    VolumeKey,
    /// Keyslots in use now that are not in the backup, or that have another passphrase there.
    Keyslots(Vec<u32>),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoHeader { problem, lost_bytes } => {
                write!(f, "{problem}, and its first {lost_bytes} bytes will be overwritten")
            }
            Self::Version => f.write_str("the backup is of another version of LUKS"),
            Self::Uuid { backup, present } => {
                write!(f, "the backup is of the volume {backup}, and this is {present}")
            }
            Self::VolumeKey => f.write_str(
                "the backup has another volume key, and so the present data becomes unreadable",
            ),
            Self::Keyslots(numbers) => {
                let numbers: Vec<_> = numbers.iter().map(u32::to_string).collect();
                write!(f, "the present passphrases of keyslots {} are lost", numbers.join(", "))
            }
        }
    }
}

impl Backup {
    /// The backup of the header on `source`.
    ///
    /// # Errors
    /// There is no intact header, or it cannot be read.
    pub fn of(source: &dyn HeaderSource) -> Result<Self, Error> {
        let (header, _) = Header::read(source)?;
        let len = header.backup_len_bytes()?;
        let mut bytes = vec![0; len];
        // The rest of LUKS1's last page is data, or behind the end of a file; cryptsetup has zeros.
        let end_bytes = header.end_bytes().min(source.len_bytes());
        let readable = usize::try_from(end_bytes).map_or(len, |end| end.min(len));
        source
            .read_at(0, &mut bytes[..readable])
            .map_err(|error| Error::Read { what: "the header and its keyslots".into(), error })?;
        header.clean_backup(&mut bytes);
        Ok(Self { bytes, header })
    }

    /// A backup in the form of [`Backup::bytes`]. A damaged copy in it is repaired.
    ///
    /// # Errors
    /// It has no intact header, or is too short.
    pub fn from_bytes(mut bytes: Vec<u8>) -> Result<Self, Error> {
        let (header, notices) = Header::read(&bytes).map_err(|error| match error {
            Error::NotLuks | Error::OtherFormat(_) => {
                Error::header("header backup", "the file holds no LUKS header")
            }
            Error::BothCopiesDamaged { primary, .. } => {
                let problem = format!("both copies of its header are damaged ({primary})");
                Error::header("header backup", problem)
            }
            other => other,
        })?;
        let len = header.backup_len_bytes()?;
        if bytes.len() < len {
            let problem = format!("it has {} bytes and needs {len}; it is truncated", bytes.len());
            return Err(Error::header("header backup", problem));
        }
        bytes.truncate(len);
        if !notices.is_empty() {
            luks::repair(&mut bytes)?;
        }
        Ok(Self { bytes, header })
    }

    /// The bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The header in the backup.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Compares the backup with the present header.
    ///
    /// # Errors
    /// The backup cannot be restored here; see [`Backup::restore`].
    pub fn compare(&self, source: &dyn HeaderSource) -> Result<Vec<Difference>, Error> {
        self.check_fits(source)?;
        let present = match Header::read(source) {
            Ok((header, _)) => header,
            Err(error) => {
                let problem = match error {
                    Error::OtherFormat(found) => format!("it holds {found}"),
                    Error::NotLuks => "it has no LUKS header".to_owned(),
                    other => format!("it has no readable LUKS header ({other})"),
                };
                let lost_bytes = self.header.end_bytes();
                return Ok(vec![Difference::NoHeader { problem, lost_bytes }]);
            }
        };
        let mut differences = Vec::new();
        if self.header.uuid() != present.uuid() {
            let backup = self.header.uuid().into();
            let present = present.uuid().into();
            differences.push(Difference::Uuid { backup, present });
        }
        match (&self.header, &present) {
            (Header::Luks1(_), Header::Luks2(_)) | (Header::Luks2(_), Header::Luks1(_)) => {
                differences.push(Difference::Version);
            }
            (Header::Luks1(a), Header::Luks1(b)) if !a.has_same_digest(b) => {
                differences.push(Difference::VolumeKey);
            }
            (Header::Luks2(a), Header::Luks2(b)) if !a.has_same_digest(b) => {
                differences.push(Difference::VolumeKey);
            }
            _ => {}
        }
        let lost: Vec<u32> = present
            .areas()
            .into_iter()
            .filter(|(_, area)| self.differs(source, area) || !self.names(area))
            .map(|(number, _)| number)
            .collect();
        if !lost.is_empty() {
            differences.push(Difference::Keyslots(lost));
        }
        Ok(differences)
    }

    /// Checks that a restore overwrites no data.
    fn check_fits(&self, source: &dyn HeaderSource) -> Result<(), Error> {
        if let Header::Luks2(header) = &self.header {
            header.check_restorable()?;
        }
        let end = self.header.end_bytes();
        let len = source.len_bytes();
        if len < end {
            return Err(Error::DataDevice(format!(
                "the backup is of a header of {end} bytes, but the device or file has {len}"
            )));
        }
        let Ok((present, _)) = Header::read(source) else { return check_no_partitions(source) };
        let own_bytes = self.header.data_offset_bytes();
        let present_bytes = present.data_offset_bytes();
        if own_bytes == present_bytes {
            return Ok(());
        }
        Err(Error::DataDevice(format!(
            "by the backup the data starts at byte {own_bytes}, but here at {present_bytes}: it is \
             the backup of another volume, or of an earlier state; restored, it would overwrite \
             data or hide it. To use it nevertheless, destroy the present header first, with \
             blockyard header wipe"
        )))
    }

    /// Whether the header in the backup has this area.
    fn names(&self, area: &Range<u64>) -> bool {
        self.header.areas().iter().any(|(_, own)| own.start == area.start)
    }

    /// Whether the area has other bytes on the device than in the backup.
    fn differs(&self, source: &dyn HeaderSource, area: &Range<u64>) -> bool {
        let mut present = vec![0; usize::try_from(area.end - area.start).unwrap_or(0)];
        let is_read = source.read_at(area.start, &mut present).is_ok();
        !is_read || self.part(area) != Some(&present)
    }

    fn part(&self, range: &Range<u64>) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
    }

    /// The write of a part of the backup to its place.
    fn write(&self, range: Range<u64>) -> Write {
        Write::Bytes(range.start, self.part(&range).expect("a part of the backup").to_vec())
    }

    /// Writes the backup over the present header. The data is not touched.
    ///
    /// # Errors
    /// The device is too short, the data starts elsewhere, the backup has a requirement that this
    /// program does not meet, or writing fails.
    pub fn restore(&self, device: &mut dyn HeaderDevice) -> Result<(), Error> {
        self.check_fits(&&*device)?;
        let source: &dyn HeaderSource = &&*device;
        let steps = match self.moved_aside(source) {
            Some((mut steps, header_steps)) => {
                steps.push(self.areas());
                steps.extend(header_steps);
                steps.push(self.everything_else());
                steps
            }
            None => {
                // The data may start where the backup ends.
                let [erased, wiped] = previous::wiped(source, self.header.end_bytes());
                let mut steps = vec![erased, wiped, self.everything_else(), self.areas()];
                steps.extend(self.header_steps());
                steps
            }
        };
        write_steps(device, &steps)
    }

    /// The steps after which no present keyslot lies where the backup has a keyslot with other
    /// bytes, and the steps that then write the header; `None` if the present header cannot stay
    /// until the restored one is stable.
    fn moved_aside(&self, source: &dyn HeaderSource) -> Option<(Vec<Step>, Vec<Step>)> {
        let (present, _) = Header::read(source).ok()?;
        let own: Vec<_> = self.header.areas().into_iter().map(|(_, area)| area).collect();
        let overlaps =
            |area: &Range<u64>| own.iter().any(|own| own.start < area.end && area.start < own.end);
        let areas = present.areas().into_iter();
        let in_the_way: Vec<_> = areas
            .filter(|(_, area)| overlaps(area) && self.differs(source, area))
            .map(|(number, _)| number)
            .collect();
        match (&self.header, &present) {
            (Header::Luks1(own), Header::Luks1(present)) => {
                let is_free = own.has_layout_of(present) && in_the_way.is_empty();
                let header_steps = own.steps_over(present).filter(|_| is_free)?;
                Some((Vec::new(), header_steps.to_vec()))
            }
            (Header::Luks2(own), Header::Luks2(present)) if own.has_layout_of(present) => {
                let moves = present.steps_of_moves(source, &in_the_way, own).ok()?;
                Some((moves, self.header_steps()))
            }
            _ => None,
        }
    }

    /// The keyslots' areas.
    fn areas(&self) -> Step {
        let areas = self.header.areas().into_iter();
        Step::new("the keyslots", areas.map(|(_, area)| self.write(area)).collect())
    }

    /// The header or its copies, byte for byte.
    fn header_steps(&self) -> Vec<Step> {
        match &self.header {
            Header::Luks1(header) => header.steps().to_vec(),
            Header::Luks2(header) => header.verbatim_steps(&self.bytes),
        }
    }

    /// All bytes of the backup behind the header that are in no keyslot, up to the last keyslot's
    /// end.
    fn everything_else(&self) -> Step {
        let mut areas: Vec<_> = self.header.areas().into_iter().map(|(_, area)| area).collect();
        areas.sort_unstable_by_key(|area| area.start);
        let mut writes = Vec::new();
        let mut at_bytes = self.header.header_end_bytes();
        let end = self.header.end_bytes();
        for area in areas {
            if at_bytes < area.start {
                writes.push(self.write(at_bytes..area.start));
            }
            at_bytes = at_bytes.max(area.end);
        }
        if at_bytes < end {
            writes.push(self.write(at_bytes..end));
        }
        Step::new("the space between the keyslots", writes)
    }
}

/// Refuses a disk with partitions: the backup is probably that of one of them.
fn check_no_partitions(source: &dyn HeaderSource) -> Result<(), Error> {
    let mut first = [0; 4104];
    // The start of a disk whose table was destroyed may be restored: only the copy of a GPT at the
    // end is left then.
    let is_read = source.read_at(0, &mut first).is_ok();
    let has_gpt = [512, 4096].iter().any(|at| first[*at..].starts_with(b"EFI PART"));
    if is_read && first[..512] == [0; 512] && !has_gpt {
        return Ok(());
    }
    match partition::Table::read(source)? {
        Some(table) if !table.partitions.is_empty() => Err(Error::DataDevice(
            "it is a disk with partitions, which a restored header would destroy; name the \
             partition of the backup in `partition`. If the table has to go, erase it with wipefs \
             first"
                .to_owned(),
        )),
        _ => Ok(()),
    }
}
