//! The start of a disk: a header or a partition table, and its facts for programs.

use std::fmt;
use std::path::Path;

use blockyard_crypt::luks::Notice;
use blockyard_crypt::partition::TableInfo;
use serde::Serialize;

use crate::header::{partitions, read, read_bitlk};
use crate::{
    BitlkHeader, BitlkHeaderInfo, Error, Header, HeaderCopy, HeaderInfo, PartitionTable, Place,
};

/// A header, or the partition table of a disk without one.
#[derive(Debug)]
pub enum Found {
    /// A LUKS header, with its repairable damage.
    Luks(Box<Header>, Vec<Notice>),
    /// A BitLocker header.
    Bitlk(Box<BitlkHeader>),
    /// A partition table.
    Partitions(PartitionTable),
}

/// The facts of a header or a partition table: the JSON of `blockyard info --json`.
#[derive(Debug, Serialize)]
pub struct Report {
    #[serde(flatten)]
    facts: Facts,
    notices: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Facts {
    Luks(Box<HeaderInfo>),
    Bitlk(BitlkHeaderInfo),
    Partitions(TableInfo),
}

impl Found {
    /// Looks at a volume, a detached header or a disk, without a passphrase and without a lock of
    /// the volume. With `copy`, reads only this copy of a LUKS2 header.
    ///
    /// # Errors
    /// See [`read`]. A disk with a partition table is one only as a whole, and without `copy`.
    pub fn read(path: &Path, place: &Place, copy: Option<HeaderCopy>) -> Result<Self, Error> {
        let error = match read(path, place, copy) {
            Ok((header, notices)) => return Ok(Self::Luks(Box::new(header), notices)),
            Err(error) => error,
        };
        if error.is_bitlocker() && copy.is_none() {
            return Ok(Self::Bitlk(Box::new(read_bitlk(path, place)?)));
        }
        if *place == Place::Whole && copy.is_none() && error.is_other_format() {
            return partitions(path)?.map(Self::Partitions).ok_or(error);
        }
        Err(error)
    }

    /// Damage that leaves the volume or the disk usable.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        match self {
            Self::Luks(_, notices) => notices.iter().map(Notice::to_string).collect(),
            Self::Bitlk(header) => header.notices().to_vec(),
            Self::Partitions(table) => table.notices.clone(),
        }
    }

    /// The facts.
    #[must_use]
    pub fn report(&self) -> Report {
        let facts = match self {
            Self::Luks(header, _) => Facts::Luks(Box::new(header.info())),
            Self::Bitlk(header) => Facts::Bitlk(header.info()),
            Self::Partitions(table) => Facts::Partitions(table.info()),
        };
        Report { facts, notices: self.notices() }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Luks(header, _) => header.fmt(f),
            Self::Bitlk(header) => header.fmt(f),
            Self::Partitions(table) => table.fmt(f),
        }
    }
}
