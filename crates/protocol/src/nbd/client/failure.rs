//! The final error of a connection: [`Failure`].

use alloc::string::String;
use core::fmt;

use super::remote::RemoteError;
use crate::nbd::wire::*;

/// The reason for the end of a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The peer is not an NBD server.
    #[error("the peer is no NBD server: its first bytes are {0:#018x}")]
    NotNbd(u64),
    /// The server speaks oldstyle NBD, without options and export names.
    #[error("the server speaks oldstyle NBD, abandoned in 2017: start it with newstyle")]
    Oldstyle,
    /// The server is too old to refuse an option.
    #[error("the server does not speak fixed newstyle NBD: it is too old")]
    NotFixedNewstyle,
    /// The server requires TLS, for everything or for this export.
    #[error("the server requires TLS: write nbds:// or nbds+unix:// in the URI{}", Said(.text))]
    TlsRequired {
        /// The server's message, printable; may be empty.
        text: String,
    },
    /// The server has no TLS, although the caller wants it.
    #[error("the server does not offer TLS, which the URI asks for{}", Said(.text))]
    NoTls {
        /// The server's message, printable; may be empty.
        text: String,
    },
    /// The server refused a required option.
    #[error("the server does not open the export: {}{}", Reason(*.error), Said(.text))]
    Refused {
        /// Type of its reply, an `NBD_REP_ERR` of the specification.
        error: u32,
        /// The server's message, printable; may be empty.
        text: String,
    },
    /// The server's description of the export is invalid.
    #[error("the export cannot be used: {0}")]
    Remote(#[from] RemoteError),
    /// The server closed the connection before the export was open.
    #[error("the server closed the connection in the handshake")]
    ClosedInHandshake,
    /// The server closed the connection after EXPORT_NAME, its only way to refuse.
    #[error("the server closed the connection instead of opening the export: is the name right?")]
    ClosedOnExportName,
    /// The server closed the connection.
    #[error("the server closed the connection, with {in_flight} requests in flight")]
    Closed {
        /// Number of requests without a reply.
        in_flight: usize,
    },
    /// The caller gave up before the export was open.
    #[error("the handshake was aborted")]
    GivenUp,
    /// The server violates the protocol, so later bytes have no meaning.
    #[error("the server violates the protocol: {0}")]
    Violation(#[from] Violation),
}

/// A server's violation of the protocol, after which the client must disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Wrong magic of an option reply: the stream is out of step.
    #[error("wrong magic number {0:#018x} before the reply to an option")]
    OptionReplyMagic(u64),
    /// A reply to another option than the last one.
    #[error("a reply to option {answered} instead of option {asked}")]
    OptionReplyTo {
        /// The option sent.
        asked: u32,
        /// The option in the reply.
        answered: u32,
    },
    /// A reply type that is not valid for this option.
    #[error("a reply of type {kind:#x}, which is not valid for option {option}")]
    OptionReplyType {
        /// The option sent.
        option: u32,
        /// Type of the reply.
        kind: u32,
    },
    /// A length that is not valid for this reply type.
    #[error("a reply of type {kind:#x} to an option has {len_bytes} bytes")]
    OptionReplyLen {
        /// Type of the reply.
        kind: u32,
        /// Announced length.
        len_bytes: u32,
    },
    /// Bytes between the ACK of STARTTLS and TLS, which would enter the protected stream in the
    /// clear.
    #[error("bytes in the clear after the start of TLS")]
    BytesBeforeTls,
    /// Too many replies to one option.
    #[error("too many replies to one option")]
    TooManyReplies,
    /// GO was acknowledged without the export's size.
    #[error("the export was opened without its size")]
    NoExportInfo,
    /// A metadata context that was not requested, or a repeated one.
    #[error("metadata contexts were selected without a request")]
    MetaContext,
    /// Wrong magic of a reply: the stream is out of step, or the form of reply was not negotiated.
    #[error("wrong magic number {0:#010x} before a reply")]
    ReplyMagic(u32),
    /// No request in flight has this cookie.
    #[error("a reply to a request that is not in flight: its cookie is {0:#018x}")]
    Cookie(u64),
    /// An extended reply with another offset than its request.
    #[error("a reply with offset {0}, which differs from its request's")]
    ReplyOffset(u64),
    /// A simple reply to a READ although structured replies are negotiated.
    #[error("a read was answered by a simple reply, though structured ones were negotiated")]
    SimpleReplyToRead,
    /// A simple reply to a request that has received chunks.
    #[error("a simple reply after chunks of the same request")]
    SimpleReplyToChunks,
    /// An unknown chunk type, or one that is not valid for this command.
    #[error("a chunk of type {0} does not belong to its request")]
    ChunkType(u16),
    /// A length that is not valid for this chunk type or this request.
    #[error("a chunk of type {kind} has {len_bytes} bytes")]
    ChunkLen {
        /// Type of the chunk.
        kind: u16,
        /// Announced length.
        len_bytes: u64,
    },
    /// Data, a hole or an error outside its request.
    #[error("a chunk lies outside its request: {len_bytes} bytes at {offset_bytes}")]
    ChunkRange {
        /// Start of the chunk, relative to the start of the export.
        offset_bytes: u64,
        /// Length of the range.
        len_bytes: u64,
    },
    /// Content for an already answered part of a READ.
    #[error("two chunks of one read overlap")]
    Overlap,
    /// A READ answered in too many separate parts.
    #[error("a read is answered in too many separate pieces")]
    TooScattered,
    /// A READ that ended successfully without all of its data.
    #[error("a read succeeded without all of its data")]
    MissingData,
    /// A chunk NONE without the DONE flag.
    #[error("a chunk without content does not end its reply")]
    NoneWithoutDone,
    /// An error chunk with error number 0.
    #[error("an error chunk with error number 0")]
    ErrorZero,
    /// A message that exceeds its chunk, or the limit of strings.
    #[error("the message of an error chunk has {0} bytes, above the limit")]
    MessageLen(u16),
    /// A block status for an unselected metadata context.
    #[error("a block status in metadata context {0}, which was not selected")]
    ContextId(u32),
    /// A second block status chunk, or none.
    #[error("a block status request must be answered by exactly one status chunk")]
    StatusCount,
    /// A number of descriptors that does not fit the chunk or the request.
    #[error("a block status chunk with {0} descriptors")]
    DescriptorCount(u32),
    /// An empty extent, or one past the end of the request.
    #[error("a block status extent is empty, or begins past its request")]
    ExtentRange,
}

/// Meaning of an error reply to an option.
struct Reason(u32);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            REP_ERR_UNSUP => "it does not know the option",
            REP_ERR_POLICY => "its policy forbids it",
            REP_ERR_INVALID => "it rejects the request as invalid",
            REP_ERR_PLATFORM => "its platform does not support it",
            REP_ERR_UNKNOWN => "it has no export of this name",
            REP_ERR_SHUTDOWN => "it is shutting down",
            REP_ERR_BLOCK_SIZE_REQD => "it requires clients that respect its block sizes",
            REP_ERR_TOO_BIG => "it rejects the request as too big",
            REP_ERR_EXT_HEADER_REQD => "it requires clients with extended headers",
            error => return write!(f, "error {error:#x}"),
        })
    }
}

/// The server's message, if any.
struct Said<'a>(&'a str);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; it says: {}", self.0) }
    }
}
