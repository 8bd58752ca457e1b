//! The reasons why a message is not followed: [`Violation`], [`Refusal`].

/// A front end's violation of the protocol, after which the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A version other than 1, or a reply.
    #[error("message {0} has wrong flags: it is no request of version 1")]
    Flags(u32),
    /// A body above the limit.
    #[error("message {request} has a body of {len_bytes} bytes, above this server's limit")]
    TooLong {
        /// Number of the message.
        request: u32,
        /// Announced length.
        len_bytes: u32,
    },
    /// A body that is not laid out as its message demands.
    #[error("message {request} has a body of {len_bytes} bytes, which does not fit it")]
    Length {
        /// Number of the message.
        request: u32,
        /// Length of the body.
        len_bytes: u32,
    },
    /// A refusal that the front end did not ask to hear about.
    #[error("message {request} is refused: {refusal}")]
    Refused {
        /// Number of the message.
        request: u32,
        /// The reason.
        refusal: Refusal,
    },
}

/// The reason why a well-formed message is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// An unknown number, or a feature that was not offered.
    #[error("this server does not offer it")]
    NotOffered,
    /// An index of a queue that does not exist.
    #[error("queue {0} does not exist")]
    NoSuchQueue(u64),
    /// Another number of descriptors.
    #[error("it came with {came} descriptors instead of {expected}")]
    Descriptors {
        /// Number of descriptors that came.
        came: usize,
        /// Number of descriptors that the message needs.
        expected: usize,
    },
    /// A queue without a kick descriptor.
    #[error("a queue without a kick descriptor is not supported")]
    NoKick,
    /// A ring's size.
    #[error("a ring of {0} entries is no power of two within the limit")]
    RingSize(u32),
    /// An index in a ring, of 16 bits.
    #[error("{0} is no index in a ring")]
    RingIndex(u32),
    /// Addresses of a ring.
    #[error("the addresses of the ring are not aligned, or have flags that were not offered")]
    RingAddresses,
    /// A change of the size or the index of a ring that runs.
    #[error("queue {0} is running")]
    Running(u16),
    /// Memory that wraps, overlaps, or has no bytes.
    #[error("the memory is empty, wraps around or overlaps")]
    Memory,
    /// More regions than slots.
    #[error("there is no slot for more memory")]
    MemorySlots,
    /// Memory that is not there.
    #[error("this memory was not added")]
    NoSuchMemory,
    /// Memory for requests in flight of other queues than there are, or too short for them.
    #[error("the memory for requests in flight does not fit {queues} queues of {ring_len} entries")]
    Inflight {
        /// Number of queues.
        queues: u16,
        /// Size of their rings.
        ring_len: u16,
    },
    /// A value that is neither 0 nor 1.
    #[error("{0} is neither on nor off")]
    Switch(u32),
    /// Bytes of the configuration that the driver does not write.
    #[error("{len_bytes} bytes at {offset} of the configuration are not writable")]
    Config {
        /// Offset in the configuration.
        offset: u32,
        /// Number of bytes.
        len_bytes: u32,
    },
    /// The world could not follow the message.
    #[error("it failed")]
    Failed,
}

/// The reason why a message is not followed.
pub(super) enum Fault {
    Violation(Violation),
    Refusal(Refusal),
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}
