//! A lean NBD client: requests are gathered, replies are read into the buffers of their slots.

use crate::Result;
use crate::load::{Door, Job};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;

/// Bytes that are gathered before a system call.
const GATHERED_BYTES: usize = 256 << 10;

const FIXED_NEWSTYLE: u32 = 1;
const NO_ZEROES: u32 = 2;
const EXPORT_NAME: u32 = 1;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;

/// One connection.
pub(crate) struct Connection {
    replies: BufReader<UnixStream>,
    requests: BufWriter<UnixStream>,
    slots: Vec<Vec<u8>>,
    is_write: bool,
}

impl Connection {
    pub(crate) fn open(path: &str, job: &Job) -> Result<Self> {
        let mut stream = UnixStream::connect(path)?;
        // Two magic numbers and the flags of the server.
        stream.read_exact(&mut [0; 18])?;
        stream.write_all(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes())?;
        // The default export has an empty name.
        stream.write_all(&[b"IHAVEOPT", &EXPORT_NAME.to_be_bytes()[..], &[0; 4]].concat())?;
        // The size and the flags of the export.
        stream.read_exact(&mut [0; 10])?;
        Ok(Self {
            replies: BufReader::with_capacity(GATHERED_BYTES, stream.try_clone()?),
            requests: BufWriter::with_capacity(GATHERED_BYTES, stream),
            slots: vec![vec![1; job.len_bytes]; job.depth],
            is_write: job.is_write,
        })
    }

    fn reply(&mut self) -> Result<usize> {
        let mut header = [0; 16];
        self.replies.read_exact(&mut header)?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        if word(0) != SIMPLE_REPLY || word(4) != 0 {
            return Err(format!("a reply with magic {:#x}, error {}", word(0), word(4)).into());
        }
        let slot = word(12) as usize;
        if !self.is_write {
            self.replies.read_exact(&mut self.slots[slot])?;
        }
        Ok(slot)
    }
}

impl Door for Connection {
    fn submit(&mut self, slot: usize, offset: u64) -> Result<()> {
        let data = &self.slots[slot];
        let mut header = [0; 28];
        header[..4].copy_from_slice(&REQUEST.to_be_bytes());
        header[7] = u8::from(self.is_write);
        header[8..16].copy_from_slice(&(slot as u64).to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..].copy_from_slice(&(data.len() as u32).to_be_bytes());
        self.requests.write_all(&header)?;
        if self.is_write {
            self.requests.write_all(data)?;
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        Ok(self.requests.flush()?)
    }

    fn wait(&mut self, ended: &mut Vec<usize>) -> Result<()> {
        ended.push(self.reply()?);
        // Whole replies that have come with it.
        let reply_bytes = 16 + if self.is_write { 0 } else { self.slots[0].len() };
        while self.replies.buffer().len() >= reply_bytes {
            ended.push(self.reply()?);
        }
        Ok(())
    }
}
