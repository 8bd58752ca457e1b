//! A partition table as facts and as text.

use std::fmt;

use serde::Serialize;

use super::{Content, Partition, Table};

/// Facts of a partition table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TableInfo {
    /// Always `partitions`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its format: `gpt` or `mbr`.
    pub scheme: String,
    /// Size of a sector, in which the table counts.
    pub sector_size_bytes: u32,
    /// GUID of the disk, or its signature in an MBR.
    pub uuid: String,
    /// The partitions in the order of their numbers.
    pub partitions: Vec<PartitionInfo>,
}

/// Facts of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartitionInfo {
    /// Its number, as in the name of the kernel's device.
    pub number: u32,
    /// Its first byte on the disk.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
    /// Name of its type, or the type's number.
    pub kind: String,
    /// Its UUID (`PARTUUID`).
    pub uuid: String,
    /// Its name (`PARTLABEL`); empty in an MBR.
    pub name: String,
    /// The reason why its range cannot be used.
    pub problem: Option<String>,
    /// Its contents; `None` if no known format.
    pub content: Option<ContentInfo>,
}

/// Facts of a partition's contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ContentInfo {
    /// A LUKS1 volume.
    Luks1 {
        /// Its UUID.
        uuid: String,
        /// Always empty: LUKS1 has no labels.
        label: String,
    },
    /// A LUKS2 volume.
    Luks2 {
        /// Its UUID.
        uuid: String,
        /// Its label.
        label: String,
    },
    /// Another known format.
    Other {
        /// Name of the format.
        description: &'static str,
    },
}

impl Table {
    /// The facts of this table.
    #[must_use]
    pub fn info(&self) -> TableInfo {
        TableInfo {
            kind: "partitions",
            scheme: self.scheme.to_string().to_lowercase(),
            sector_size_bytes: self.sector_size_bytes,
            uuid: self.uuid.clone(),
            partitions: self.partitions.iter().map(Partition::info).collect(),
        }
    }
}

impl Partition {
    fn info(&self) -> PartitionInfo {
        PartitionInfo {
            number: self.number,
            offset_bytes: self.bytes.start,
            len_bytes: self.bytes.end.saturating_sub(self.bytes.start),
            kind: self.kind.clone(),
            uuid: self.uuid.clone(),
            name: self.name.clone(),
            problem: self.problem.clone(),
            content: self.content.info(),
        }
    }
}

impl Content {
    fn info(&self) -> Option<ContentInfo> {
        match self {
            Self::Luks { version, uuid, label } => {
                let uuid = uuid.clone();
                let label = label.clone();
                Some(match version {
                    1 => ContentInfo::Luks1 { uuid, label },
                    _ => ContentInfo::Luks2 { uuid, label },
                })
            }
            Self::Other(signature) => Some(ContentInfo::Other { description: signature.name }),
            Self::Unknown => None,
        }
    }
}

impl fmt::Display for Table {
    /// A tree: the disk, its partitions, their contents.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} partition table, {}-byte sectors", self.scheme, self.sector_size_bytes)?;
        writeln!(f, "UUID:        {}", self.uuid)?;
        for one in &self.partitions {
            let start = one.bytes.start;
            let end = one.bytes.end;
            write!(f, "Partition {}: {}", one.number, one.kind)?;
            if !one.name.is_empty() {
                write!(f, " {:?}", one.name)?;
            }
            writeln!(f)?;
            writeln!(f, "    UUID:    {}", one.uuid)?;
            writeln!(f, "    Place:   bytes {start} to {end}")?;
            match &one.problem {
                None => writeln!(f, "    Content: {}", one.content)?,
                Some(problem) => writeln!(f, "    Problem: it {problem}")?,
            }
        }
        Ok(())
    }
}
