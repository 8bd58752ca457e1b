//! A client that asks for one thing at a time: enough of NBD to see what a server answers.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

pub(crate) struct Nbd {
    stream: UnixStream,
    /// Size of the export, as the server told it.
    pub(crate) size_bytes: u64,
}

/// A connection after the greeting of the server.
pub(crate) fn greeted(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream
}

impl Nbd {
    /// Opens the default export (`NBD_OPT_EXPORT_NAME`, without the zeroes).
    pub(crate) fn open(socket: &Path) -> Self {
        Self::open_export(socket, "")
    }

    /// Opens the export of this name.
    pub(crate) fn open_export(socket: &Path, name: &str) -> Self {
        Self::of_greeted(greeted(socket), name)
    }

    /// Asks for an export on a connection that is [`greeted`].
    pub(crate) fn of_greeted(mut stream: UnixStream, name: &str) -> Self {
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(1u32.to_be_bytes());
        hello.extend((name.len() as u32).to_be_bytes());
        hello.extend(name.as_bytes());
        stream.write_all(&hello).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        let size_bytes = u64::from_be_bytes(export[..8].try_into().unwrap());
        Self { stream, size_bytes }
    }

    /// Whether an export of this name can be opened.
    pub(crate) fn can_open(socket: &Path, name: &str) -> bool {
        let mut stream = greeted(socket);
        let mut hello = 3u32.to_be_bytes().to_vec();
        hello.extend(OPTION_MAGIC.to_be_bytes());
        hello.extend(1u32.to_be_bytes());
        hello.extend((name.len() as u32).to_be_bytes());
        hello.extend(name.as_bytes());
        stream.write_all(&hello).unwrap();
        stream.read_exact(&mut [0; 10]).is_ok()
    }

    fn ask(&mut self, command: u16, offset: u64, len: u32, payload: &[u8]) -> u32 {
        self.send(command, offset, len, payload);
        self.reply()
    }

    fn send(&mut self, command: u16, offset: u64, len: u32, payload: &[u8]) {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend([0, 0]);
        request.extend(command.to_be_bytes());
        request.extend(7u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(payload);
        self.stream.write_all(&request).unwrap();
    }

    /// The error of the next reply.
    pub(crate) fn reply(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], REPLY_MAGIC.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    /// Writes, and returns the error.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> u32 {
        self.ask(1, offset, bytes.len() as u32, bytes)
    }

    /// Counts the bytes after the last reply until the connection ends.
    pub(crate) fn end(mut self) -> usize {
        self.stream.read_to_end(&mut Vec::new()).unwrap()
    }

    /// The error of a read that must fail.
    pub(crate) fn read_error(&mut self, offset: u64, len: u32) -> u32 {
        let error = self.ask(0, offset, len, &[]);
        assert_ne!(error, 0);
        error
    }

    pub(crate) fn flush(&mut self) -> u32 {
        self.ask(3, 0, 0, &[])
    }

    /// `NBD_CMD_TRIM`; returns the error.
    pub(crate) fn trim(&mut self, offset: u64, len: u32) -> u32 {
        self.ask(4, offset, len, &[])
    }

    /// `NBD_CMD_WRITE_ZEROES`; returns the error.
    pub(crate) fn zero(&mut self, offset: u64, len: u32) -> u32 {
        self.ask(6, offset, len, &[])
    }

    /// Writes without a wait for the reply.
    pub(crate) fn send_write(&mut self, offset: u64, bytes: &[u8]) {
        self.send(1, offset, bytes.len() as u32, bytes);
    }

    /// Zeroes, without a wait for the reply.
    pub(crate) fn send_zero(&mut self, offset: u64, len: u32) {
        self.send(6, offset, len, &[]);
    }

    /// Reads without a wait for the reply, which [`Nbd::read_reply`] takes.
    pub(crate) fn send_read(&mut self, offset: u64, len: u32) {
        self.send(0, offset, len, &[]);
    }

    /// Takes the reply to a read of this length.
    pub(crate) fn read_reply(&mut self, len: usize) -> Vec<u8> {
        assert_eq!(self.reply(), 0);
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.send_read(offset, len as u32);
        self.read_reply(len)
    }
}
