//! The bytes of a file system, for the crates that read it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use blockyard_engine::priority::Priority;
use blockyard_host::calls::Calls;
use blockyard_host::local::Client;

use crate::fat::Storage;
use crate::{Error, Volume};

/// A part of the plaintext, read by a client of its own.
pub(super) struct Source {
    client: Client,
    sector_bytes: u32,
    range: Range<u64>,
}

impl Source {
    pub(super) fn new(volume: &Volume, range: Range<u64>) -> Result<Self, Error> {
        let host = Arc::clone(&volume.shared().host);
        let client = Client::new(&host, Priority::default())?;
        Ok(Self { client, sector_bytes: host.sector_size_bytes(), range })
    }

    pub(super) fn len_bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Reads exactly this range.
    pub(super) fn read(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match offset.checked_add(buffer.len() as u64) {
            Some(end) if end <= self.len_bytes() => {}
            _ => {
                let problem = format!("byte {offset} is behind the end of the file system");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem));
            }
        }
        let size = self.client.size_bytes();
        let calls = Calls::new(&mut self.client, self.sector_bytes, size);
        calls.read(buffer, self.range.start + offset)
    }
}

impl Storage for Source {
    fn len_bytes(&self) -> u64 {
        self.len_bytes()
    }

    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read(buffer, offset)
    }

    fn write_at(&mut self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
