//! A position on a volume.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::Volume;

/// A position on a [`Volume`]: reads and writes advance it.
///
/// [`Write::flush`] is [`Volume::flush`]: it puts the data on stable storage. A short write means
/// the end of the volume.
#[derive(Debug)]
pub struct Cursor<'a> {
    volume: &'a Volume,
    offset: u64,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(volume: &'a Volume) -> Self {
        Self { volume, offset: 0 }
    }
}

impl Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.volume.read_at(buffer, self.offset)?;
        self.offset += len as u64;
        Ok(len)
    }
}

impl Write for Cursor<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let len = self.volume.write_at(data, self.offset)?;
        self.offset += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.volume.flush()
    }
}

impl Seek for Cursor<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let offset = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(distance) => self.volume.len().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.offset.checked_add_signed(distance),
        };
        self.offset = offset.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "a seek before the start of the volume")
        })?;
        Ok(self.offset)
    }
}
