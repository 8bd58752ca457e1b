//! The client's side of the handshake.
//!
//! ```text
//!   server: NBDMAGIC IHAVEOPT flags                client: flags
//!   client: IHAVEOPT option len data
//!   server: reply-magic option type len data ...   until the type is ACK or an error
//!   both:   TLS, after the ACK to STARTTLS         if the URI asks for it
//! ```

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use blockyard::tls::{ClientConnection, StreamOwned};

use super::{Server, Uri};
use crate::failure::{Failure, printable};

/// Limit of every wait for the server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a reply's length: names and descriptions have at most 4096 bytes.
const REPLY_LEN_MAX_BYTES: u32 = 64 << 10;
/// Limit of the replies to one option: the longest list of exports.
const REPLY_COUNT_MAX: usize = 4096;

const MAGIC: u64 = 0x4e42_444d_4147_4943; // "NBDMAGIC"
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054; // "IHAVEOPT"
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;

const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
const FLAG_NO_ZEROES: u16 = 1 << 1;

const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_STARTTLS: u32 = 5;
const OPT_INFO: u32 = 6;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_LIST_META_CONTEXT: u32 = 9;

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;
const REP_ERROR: u32 = 1 << 31;
const REP_ERR_POLICY: u32 = REP_ERROR | 2;
const REP_ERR_TLS_REQD: u32 = REP_ERROR | 5;
const REP_ERR_UNKNOWN: u32 = REP_ERROR | 6;

const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_DESCRIPTION: u16 = 2;
const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags and their names, in the order of their bits.
const TRANSMISSION_FLAGS: [(u16, &str); 12] = [
    (0, "has_flags"),
    (1, "read_only"),
    (2, "flush"),
    (3, "fua"),
    (4, "rotational"),
    (5, "trim"),
    (6, "write_zeroes"),
    (7, "df"),
    (8, "multi_conn"),
    (9, "resize"),
    (10, "cache"),
    (11, "fast_zero"),
];

/// Description of an export by its server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerExport {
    /// Size in bytes.
    pub(crate) size_bytes: u64,
    /// The transmission flags.
    pub(crate) flags: u16,
    /// Minimum, preferred and maximum block size, if the server sends them.
    pub(crate) block_sizes: Option<[u32; 3]>,
    /// Its canonical name, if the server sends one.
    pub(crate) name: Option<String>,
    /// Its description, if the server sends one.
    pub(crate) description: Option<String>,
    /// True if the server supports structured replies.
    pub(crate) structured_replies: bool,
    /// The metadata contexts.
    pub(crate) contexts: Vec<String>,
}

impl ServerExport {
    /// The names of the set flags, without "has_flags".
    pub(crate) fn flag_names(&self) -> Vec<&'static str> {
        TRANSMISSION_FLAGS[1..]
            .iter()
            .filter(|(bit, _)| self.flags & (1 << bit) != 0)
            .map(|&(_, name)| name)
            .collect()
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection in its option phase.
pub(crate) struct Client {
    stream: Box<dyn Stream>,
}

/// A server's answer to an option.
struct Answer {
    /// The replies before the last one: type and data.
    replies: Vec<(u32, Vec<u8>)>,
    /// The final error and the server's text.
    error: Option<(u32, String)>,
}

impl Client {
    /// Connects and greets.
    pub(crate) fn connect(uri: &Uri) -> Result<Self, Failure> {
        let stream = connected(&uri.server)
            .map_err(|error| Failure::wrong_device(format!("cannot connect to {uri}: {error}")))?;
        let client = Self::greet(stream).map_err(|error| broken(uri, &error))?;
        if uri.tls.is_some() { client.start_tls(uri) } else { Ok(client) }
    }

    /// Encrypts the connection, or fails.
    fn start_tls(mut self, uri: &Uri) -> Result<Self, Failure> {
        let answer = self.option(OPT_STARTTLS, &[]).map_err(|error| broken(uri, &error))?;
        if let Some((kind, text)) = answer.error {
            return Err(refusal(uri, kind, &text, None).at("the server does not start TLS"));
        }
        let problem = |problem: String| Failure::failed(problem).at(uri);
        let connection = uri.tls_connection().map_err(problem)?;
        let mut stream = StreamOwned::new(connection, self.stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(|error| broken(uri, &error))?;
        }
        Ok(Self { stream: Box::new(TlsStream(stream)) })
    }

    /// The server's description of the export of `uri`.
    pub(crate) fn export(&mut self, uri: &Uri) -> Result<ServerExport, Failure> {
        self.ask(uri).map_err(|error| broken(uri, &error))?
    }

    fn greet(mut stream: Box<dyn Stream>) -> io::Result<Self> {
        let mut greeting = [0u8; 18];
        stream.read_exact(&mut greeting)?;
        if be64(&greeting[..8]) != MAGIC {
            return Err(violation("this is no NBD server"));
        }
        match be64(&greeting[8..16]) {
            OPTION_MAGIC => {}
            OLDSTYLE_MAGIC => {
                return Err(violation("the server uses oldstyle NBD, abandoned in 2017"));
            }
            _ => return Err(violation("this is no NBD server")),
        }
        let server_flags = be16(&greeting[16..]);
        if server_flags & FLAG_FIXED_NEWSTYLE == 0 {
            return Err(violation("the server does not support fixed newstyle NBD"));
        }
        let flags = server_flags & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        stream.write_all(&u32::from(flags).to_be_bytes())?;
        Ok(Self { stream })
    }

    fn ask(&mut self, uri: &Uri) -> io::Result<Result<ServerExport, Failure>> {
        let structured = self.option(OPT_STRUCTURED_REPLY, &[])?.error.is_none();
        let mut export = ServerExport { structured_replies: structured, ..Default::default() };
        let answer = self.option(OPT_INFO, &info_request(&uri.export))?;
        if let Some((kind, text)) = answer.error {
            let names = if kind == REP_ERR_UNKNOWN { self.list()? } else { None };
            return Ok(Err(refusal(uri, kind, &text, names.as_deref())));
        }
        for (kind, data) in &answer.replies {
            if *kind == REP_INFO {
                export.learn(data)?;
            }
        }
        if structured {
            let answer = self.option(OPT_LIST_META_CONTEXT, &context_request(&uri.export))?;
            for (kind, data) in answer.replies {
                if kind == REP_META_CONTEXT && data.len() > 4 {
                    export.contexts.push(text_of(&data[4..]));
                }
            }
        }
        // The server may close without an answer, which does not matter.
        let _ = self.send_option(OPT_ABORT, &[]);
        Ok(Ok(export))
    }

    /// The names of all exports, if the server lists them.
    fn list(&mut self) -> io::Result<Option<Vec<String>>> {
        let answer = self.option(OPT_LIST, &[])?;
        if answer.error.is_some() {
            return Ok(None);
        }
        let mut names = Vec::new();
        for (kind, data) in answer.replies {
            if kind != REP_SERVER {
                continue;
            }
            let (len, rest) =
                data.split_at_checked(4).ok_or_else(|| violation("a list entry is cut off"))?;
            let name = usize::try_from(be32(len))
                .ok()
                .and_then(|len| rest.get(..len))
                .ok_or_else(|| violation("a list entry is cut off"))?;
            names.push(text_of(name));
        }
        Ok(Some(names))
    }

    fn option(&mut self, option: u32, data: &[u8]) -> io::Result<Answer> {
        self.send_option(option, data)?;
        let mut replies = Vec::new();
        while replies.len() <= REPLY_COUNT_MAX {
            let (kind, data) = self.reply(option)?;
            if kind == REP_ACK {
                return Ok(Answer { replies, error: None });
            }
            if kind & REP_ERROR != 0 {
                return Ok(Answer { replies, error: Some((kind, text_of(&data))) });
            }
            replies.push((kind, data));
        }
        Err(violation("the server's reply does not end"))
    }

    fn send_option(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let len =
            u32::try_from(data.len()).map_err(|_| violation("the export's name is too long"))?;
        let mut message = Vec::with_capacity(16 + data.len());
        message.extend(OPTION_MAGIC.to_be_bytes());
        message.extend(option.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message)
    }

    fn reply(&mut self, option: u32) -> io::Result<(u32, Vec<u8>)> {
        let mut header = [0u8; 20];
        self.stream.read_exact(&mut header)?;
        let len = be32(&header[16..]);
        if be64(&header[..8]) != REPLY_MAGIC || be32(&header[8..12]) != option {
            return Err(violation("the server's reply does not belong to the request"));
        }
        if len > REPLY_LEN_MAX_BYTES {
            return Err(violation(&format!("the server announces a reply of {len} bytes")));
        }
        let mut data = vec![0u8; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok((be32(&header[12..16]), data))
    }
}

impl ServerExport {
    /// Takes one `NBD_REP_INFO`.
    fn learn(&mut self, data: &[u8]) -> io::Result<()> {
        let (kind, value) =
            data.split_at_checked(2).ok_or_else(|| violation("an information reply is cut off"))?;
        match (be16(kind), value.len()) {
            (INFO_EXPORT, 10) => {
                self.size_bytes = be64(&value[..8]);
                self.flags = be16(&value[8..]);
            }
            (INFO_BLOCK_SIZE, 12) => {
                self.block_sizes = Some([0, 4, 8].map(|at| be32(&value[at..at + 4])));
            }
            (INFO_NAME, _) => self.name = Some(text_of(value)),
            (INFO_DESCRIPTION, _) => self.description = Some(text_of(value)),
            (INFO_EXPORT | INFO_BLOCK_SIZE, len) => {
                return Err(violation(&format!("an information reply has {len} bytes")));
            }
            _ => {}
        }
        Ok(())
    }
}

fn connected(server: &Server) -> io::Result<Box<dyn Stream>> {
    match server {
        Server::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Ok(Box::new(stream))
        }
        Server::Tcp(host, port) => {
            let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, TIMEOUT) {
                    Ok(stream) => {
                        stream.set_read_timeout(Some(TIMEOUT))?;
                        stream.set_write_timeout(Some(TIMEOUT))?;
                        return Ok(Box::new(stream));
                    }
                    Err(error) => last_error = error,
                }
            }
            Err(last_error)
        }
    }
}

/// The name, and the requested kinds of information.
fn info_request(export: &str) -> Vec<u8> {
    let wanted = [INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE];
    let mut data = counted(export);
    data.extend(3u16.to_be_bytes());
    data.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// The name without a query: all contexts.
fn context_request(export: &str) -> Vec<u8> {
    let mut data = counted(export);
    data.extend(0u32.to_be_bytes());
    data
}

fn counted(export: &str) -> Vec<u8> {
    // The server refuses longer names.
    let len = u32::try_from(export.len()).unwrap_or(u32::MAX);
    let mut data = len.to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data
}

fn refusal(uri: &Uri, kind: u32, text: &str, names: Option<&[String]>) -> Failure {
    let reason = match kind {
        REP_ERR_UNKNOWN => "the server has no such export",
        REP_ERR_TLS_REQD => "the server requires TLS: write nbds:// or nbds+unix://",
        REP_ERR_POLICY => "the server forbids it",
        _ => "the server refuses",
    };
    let text = if text.is_empty() { String::new() } else { format!(" ({text})") };
    let names = match names {
        None | Some([]) => String::new(),
        Some(names) => {
            let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
            format!("; it has {}", names.join(", "))
        }
    };
    Failure::wrong_device(format!("{uri}: {reason}{text}{names}"))
}

/// A TLS stream whose failures have the server's alert as the reason.
///
/// In TLS 1.3 a server refuses a client's certificate after the client's handshake, so the refusal
/// may become known only when a write fails.
struct TlsStream(StreamOwned<ClientConnection, Box<dyn Stream>>);

impl TlsStream {
    fn reason(&mut self, error: io::Error) -> io::Error {
        let StreamOwned { conn, sock } = &mut self.0;
        let received = conn.read_tls(sock);
        match received.map(|_| conn.process_new_packets()) {
            Ok(Err(alert)) => io::Error::new(io::ErrorKind::InvalidData, alert),
            _ => error,
        }
    }
}

impl Read for TlsStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // rustls reports a failed write at the next read.
        self.0.read(bytes).map_err(|error| self.reason(error))
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| self.reason(error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(|error| self.reason(error))
    }
}

fn broken(uri: &Uri, error: &io::Error) -> Failure {
    if let Some(of_tls) = error.get_ref().and_then(|error| error.downcast_ref()) {
        return Failure::failed(blockyard::tls::explain(of_tls, "the server")).at(uri);
    }
    let problem = match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => "the server closed the connection".into(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("the server did not answer within {} s", TIMEOUT.as_secs())
        }
        _ => error.to_string(),
    };
    Failure::failed(format!("{uri}: {problem}"))
}

fn violation(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn text_of(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes[..2].try_into().expect("two bytes"))
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("four bytes"))
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
