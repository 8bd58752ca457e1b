//! A bare NBD client on a unix socket, for behaviour that polite clients never show: it sends
//! arbitrary bytes at arbitrary times, and may leave in the middle. Fixed newstyle, EXPORT_NAME,
//! simple replies (the protocol's proto.md).

use crate::tools;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;

/// Flags of a request.
pub(crate) const FLAG_FUA: u16 = 1;
pub(crate) const FLAG_NO_HOLE: u16 = 2;

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub(crate) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_GO: u32 = 7;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;

/// Fixed newstyle, no zeroes after EXPORT_NAME.
const CLIENT_FLAGS: u32 = 3;

/// Time limit of a reply of a live server, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection, before or after its handshake.
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) len_bytes: u64,
    pub(crate) flags: u16,
}

impl Raw {
    /// Connects and reads the greeting only.
    pub(crate) fn greet(socket: &Path) -> Result<Raw> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut raw = Raw { stream, len_bytes: 0, flags: 0 };
        let mut greeting = [0; 18];
        raw.stream.read_exact(&mut greeting).context("no greeting")?;
        ensure!(be64(&greeting[..8]) == NBDMAGIC, "greeting without NBDMAGIC");
        ensure!(be64(&greeting[8..16]) == IHAVEOPT, "greeting without IHAVEOPT");
        Ok(raw)
    }

    /// Connects to the default export, ready to send requests.
    pub(crate) fn connect(socket: &Path) -> Result<Raw> {
        let mut raw = Raw::negotiate(socket)?;
        raw.option(OPT_EXPORT_NAME, &[])?;
        raw.export()?;
        Ok(raw)
    }

    /// Reads the answer to EXPORT_NAME.
    pub(crate) fn export(&mut self) -> Result<()> {
        let mut export = [0; 10];
        self.stream.read_exact(&mut export).context("no answer to EXPORT_NAME")?;
        self.len_bytes = be64(&export[..8]);
        self.flags = u16::from_be_bytes([export[8], export[9]]);
        Ok(())
    }

    /// Greeting and flags, ready to send options.
    pub(crate) fn negotiate(socket: &Path) -> Result<Raw> {
        let mut raw = Raw::greet(socket)?;
        raw.stream.write_all(&CLIENT_FLAGS.to_be_bytes())?;
        Ok(raw)
    }

    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Result<()> {
        let mut message = IHAVEOPT.to_be_bytes().to_vec();
        message.extend(option.to_be_bytes());
        message.extend(u32::try_from(data.len())?.to_be_bytes());
        message.extend(data);
        Ok(self.stream.write_all(&message)?)
    }

    /// Sends a request with any payload, without waiting for the reply.
    pub(crate) fn send(&mut self, command: u16, cookie: u64, at: Range, data: &[u8]) -> Result<()> {
        let mut message = header(command, cookie, at).to_vec();
        message.extend(data);
        Ok(self.stream.write_all(&message)?)
    }

    /// Sends a request with flags.
    pub(crate) fn send_flagged(
        &mut self,
        command: u16,
        flags: u16,
        cookie: u64,
        at: Range,
        data: &[u8],
    ) -> Result<()> {
        let mut message = header(command, cookie, at).to_vec();
        message[4..6].copy_from_slice(&flags.to_be_bytes());
        message.extend(data);
        Ok(self.stream.write_all(&message)?)
    }

    /// Reads one simple reply header: cookie and error.
    pub(crate) fn reply(&mut self) -> Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).context("no reply")?;
        let magic = u32::from_be_bytes(reply[..4].try_into()?);
        if magic != SIMPLE_REPLY {
            bail!("reply with magic {magic:#x}");
        }
        Ok((be64(&reply[8..]), u32::from_be_bytes(reply[4..8].try_into()?)))
    }

    /// Sends one request and returns its reply.
    pub(crate) fn call(&mut self, command: u16, at: Range, data: &[u8]) -> Result<Vec<u8>> {
        self.send(command, 77, at, data)?;
        let (cookie, error) = self.reply()?;
        ensure!(cookie == 77, "reply with another request's cookie {cookie}");
        let Range { offset, len } = at;
        ensure!(error == 0, "command {command} of {len} bytes at {offset} failed: error {error}");
        let mut payload = vec![0; if command == READ { at.len as usize } else { 0 }];
        self.stream.read_exact(&mut payload)?;
        Ok(payload)
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>> {
        self.call(READ, Range { offset, len }, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.call(WRITE, Range { offset, len: u32::try_from(data.len())? }, data).map(drop)
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.call(FLUSH, Range { offset: 0, len: 0 }, &[]).map(drop)
    }

    /// Whether the server has hung up: end of file or reset, within the socket's time limit.
    pub(crate) fn hung_up(&mut self) -> bool {
        let mut sink = [0; 4096];
        loop {
            match self.stream.read(&mut sink) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }
}

/// Range of a request.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// An encoded request header, for partial sends.
pub(crate) fn header(command: u16, cookie: u64, at: Range) -> [u8; 28] {
    let mut header = [0; 28];
    header[..4].copy_from_slice(&REQUEST.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&at.offset.to_be_bytes());
    header[24..].copy_from_slice(&at.len.to_be_bytes());
    header
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}

/// Starts and lengths of the dirty ranges in the bitmap of this name, as nbdinfo reads them.
pub(crate) fn dirty_ranges(uri: &str, bitmap: &str) -> Result<Vec<(u64, u64)>> {
    let map = format!("--map=qemu:dirty-bitmap:{bitmap}");
    let text = tools::read(tools::tool("nbdinfo").args([&map, "--json", uri]))?;
    let json: Vec<serde_json::Value> = serde_json::from_str(&text).context("nbdinfo --map")?;
    let dirty = json.iter().filter(|run| run["type"] == 1);
    let range = |run: &serde_json::Value| Some((run["offset"].as_u64()?, run["length"].as_u64()?));
    dirty.map(range).collect::<Option<_>>().with_context(|| format!("the map {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_header_is_laid_out_as_in_the_protocol() {
        let at = Range { offset: 0x0102_0304_0506_0708, len: 0x1122_3344 };
        let bytes = header(WRITE, 9, at);
        assert_eq!(bytes[..8], [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1]);
        assert_eq!(bytes[16..], [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x22, 0x33, 0x44]);
    }
}
