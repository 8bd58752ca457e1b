//! Why a connection cannot be used: [`Failure`], of which there is one, and it is final.

use alloc::string::String;
use core::fmt;

use super::remote::RemoteError;
use crate::nbd::wire::*;

/// What ended a session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Something else answers there.
    #[error("it is no NBD server: its first bytes are {0:#018x}")]
    NotNbd(u64),
    /// The protocol without options, and without export names.
    #[error("the server speaks oldstyle NBD, given up in 2017: start it with newstyle")]
    Oldstyle,
    /// An old server, which cannot refuse an option.
    #[error("the server does not speak fixed newstyle NBD: it is older than any that can be used")]
    NotFixedNewstyle,
    /// The server wants TLS, for everything or for this export.
    #[error("the server requires TLS, which this client does not speak{}", Said(.text))]
    TlsRequired {
        /// The server's message, made printable; may be empty.
        text: String,
    },
    /// The server refused an option without which the export cannot be opened.
    #[error("the server does not open the export: {}{}", Reason(*.error), Said(.text))]
    Refused {
        /// The type of its reply, an `NBD_REP_ERR` of the specification.
        error: u32,
        /// The server's message, made printable; may be empty.
        text: String,
    },
    /// What the server says about the export does not describe a disk.
    #[error("the export cannot be used: {0}")]
    Remote(#[from] RemoteError),
    /// The connection ended before the export was open.
    #[error("the server closed the connection in the handshake")]
    ClosedInHandshake,
    /// The connection ended in reply to EXPORT_NAME, which cannot be refused in another way.
    #[error("the server closed the connection instead of opening the export: is the name right?")]
    ClosedOnExportName,
    /// The connection ended.
    #[error("the server closed the connection, with {in_flight} requests in flight")]
    Closed {
        /// How many requests will not be answered.
        in_flight: usize,
    },
    /// The caller gave up before the export was open.
    #[error("the handshake was given up")]
    GivenUp,
    /// The server does not keep to the protocol; nothing that it sends can be understood any more.
    #[error("the server breaks the protocol: {0}")]
    Violation(#[from] Violation),
}

/// What a server did that leaves only the disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The stream is out of step.
    #[error("wrong magic number {0:#018x} in front of the reply to an option")]
    OptionReplyMagic(u64),
    /// An answer that nobody asked for.
    #[error("a reply to option {answered} came where one to option {asked} was due")]
    OptionReplyTo {
        /// The option that was sent.
        asked: u32,
        /// The option that the reply names.
        answered: u32,
    },
    /// A type that this option does not have.
    #[error("a reply of type {kind:#x} to option {option}, which has no such replies")]
    OptionReplyType {
        /// The option that was sent.
        option: u32,
        /// The type of the reply.
        kind: u32,
    },
    /// A length that this type does not have.
    #[error("a reply of type {kind:#x} to an option has {len_bytes} bytes")]
    OptionReplyLen {
        /// The type of the reply.
        kind: u32,
        /// The length that it announced.
        len_bytes: u32,
    },
    /// Replies without end.
    #[error("too many replies to one option")]
    TooManyReplies,
    /// GO was acknowledged without the size of the export.
    #[error("the export was opened without a word about its size")]
    NoExportInfo,
    /// A metadata context that was not asked for, or the same one twice.
    #[error("metadata contexts were selected that were not asked for")]
    MetaContext,
    /// The stream is out of step, or a form of reply that was not negotiated.
    #[error("wrong magic number {0:#010x} in front of a reply")]
    ReplyMagic(u32),
    /// No request has this cookie, or it has been answered.
    #[error("a reply to a request that is not in flight: its cookie is {0:#018x}")]
    Cookie(u64),
    /// An extended reply has to repeat the offset of its request.
    #[error("a reply names offset {0}, which is not its request's")]
    ReplyOffset(u64),
    /// With structured replies, a READ is not answered by a simple one.
    #[error("a read was answered by a simple reply, though structured ones were negotiated")]
    SimpleReplyToRead,
    /// A reply comes in one form.
    #[error("a simple reply to a request of which chunks had come")]
    SimpleReplyToChunks,
    /// A type that is unknown, or does not answer this command.
    #[error("a chunk of type {0} does not belong to its request")]
    ChunkType(u16),
    /// A length that this type or this request does not have.
    #[error("a chunk of type {kind} has {len_bytes} bytes")]
    ChunkLen {
        /// The type of the chunk.
        kind: u16,
        /// The length that it announced.
        len_bytes: u64,
    },
    /// Data, a hole or an error that lies outside its request.
    #[error("a chunk lies outside its request: {len_bytes} bytes at {offset_bytes}")]
    ChunkRange {
        /// Start of the chunk, counted from the start of the export.
        offset_bytes: u64,
        /// Length of its effect.
        len_bytes: u64,
    },
    /// Content for a part of a READ that had some already.
    #[error("two chunks of one read overlap")]
    Overlap,
    /// A READ that was answered in far too many separate places.
    #[error("a read is answered in too many pieces that do not touch")]
    TooScattered,
    /// A READ that ended without an error and without all of its data.
    #[error("a read succeeded without all of its data")]
    MissingData,
    /// NONE is a final chunk.
    #[error("a chunk without content does not end its reply")]
    NoneWithoutDone,
    /// An error chunk whose error is 0.
    #[error("an error chunk says that there is no error")]
    ErrorZero,
    /// A message that does not fit into its chunk, or is longer than strings may be.
    #[error("the message of an error chunk has {0} bytes, more than there is room for")]
    MessageLen(u16),
    /// A block status in a metadata context that was not selected.
    #[error("a block status in metadata context {0}, which was not selected")]
    ContextId(u32),
    /// A second block status chunk, or none.
    #[error("a block status request must be answered by exactly one status chunk")]
    StatusCount,
    /// Descriptors that do not fit the chunk or the request.
    #[error("a block status chunk with {0} descriptors")]
    DescriptorCount(u32),
    /// An extent of no bytes, or one behind the end of the request.
    #[error("a block status extent is empty, or begins behind its request")]
    ExtentRange,
}

/// What an error reply to an option means.
struct Reason(u32);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            REP_ERR_UNSUP => "it does not know the option",
            REP_ERR_POLICY => "its policy forbids it",
            REP_ERR_INVALID => "it takes the request for invalid",
            REP_ERR_PLATFORM => "its platform does not support it",
            REP_ERR_UNKNOWN => "it has no export of this name",
            REP_ERR_SHUTDOWN => "it is shutting down",
            REP_ERR_BLOCK_SIZE_REQD => "it wants clients that keep to its block sizes",
            REP_ERR_TOO_BIG => "it takes the request for too big",
            REP_ERR_EXT_HEADER_REQD => "it wants clients with extended headers",
            error => return write!(f, "error {error:#x}"),
        })
    }
}

/// The server's own words, if it had any.
struct Said<'a>(&'a str);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; it says: {}", self.0) }
    }
}
