//! The part of a disk that holds a volume.

use std::ops::Range;

use blockyard_crypt::partition::Table;
use blockyard_crypt::source::HeaderSource;
use blockyard_host::file::DeviceFile;

use crate::Error;

/// The part of a file or device that holds a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// All of it.
    #[default]
    Whole,
    /// A partition: its number, UUID or name, or the UUID or label of the LUKS volume in it.
    Partition(String),
    /// Everything from this byte on; a multiple of 512.
    Offset(u64),
}

impl Place {
    /// The bytes of this place on a disk.
    ///
    /// # Errors
    /// There is no such partition, or the offset is no multiple of 512 or past the end.
    pub(crate) fn range(
        &self,
        source: &dyn HeaderSource,
    ) -> Result<Range<u64>, blockyard_crypt::Error> {
        let len_bytes = source.len_bytes();
        let wrong = |field, problem: String| blockyard_crypt::Error::Field { field, problem };
        match self {
            Self::Whole => Ok(0..len_bytes),
            Self::Partition(name) => match Table::read(source)? {
                Some(table) => Ok(table.find(name)?.bytes.clone()),
                None => {
                    let problem = "the disk has no partition table; without `partition`, the whole \
                                   disk is opened";
                    Err(wrong("partition", problem.into()))
                }
            },
            Self::Offset(offset) if !offset.is_multiple_of(512) => {
                Err(wrong("start_bytes", format!("{offset} is no multiple of 512")))
            }
            Self::Offset(offset) if *offset >= len_bytes => Err(wrong(
                "start_bytes",
                format!("{offset} is past the end of the disk, at byte {len_bytes}"),
            )),
            Self::Offset(offset) => Ok(*offset..len_bytes),
        }
    }

    /// The file, limited to this place.
    pub(crate) fn of(&self, file: DeviceFile) -> Result<DeviceFile, Error> {
        if *self == Self::Whole {
            return Ok(file);
        }
        let range = self.range(&file).map_err(|error| Error::crypt(file.path(), error))?;
        Ok(file.part(range))
    }
}
