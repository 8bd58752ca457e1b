//! The interface between the engine and a world: SQEs leave a shard, CQEs come back.
//!
//! The vocabulary is io_uring's, not the mechanism: a world executes each SQE in the cheapest way
//! for its file. Every SQE has exactly one CQE with the same token, except that a linked pair has
//! one CQE.

#[cfg(doc)]
use crate::bio::IoContext;
use crate::bio::{BlkStatus, Origin, Sector};
use crate::buf::BufRef;
use crate::time::Nanos;

/// Identity of an SQE's I/O for its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    /// Owner of the CQE: the shard itself, or the target with this number.
    pub owner: Owner,
    /// The owner's index of the I/O.
    pub index: u32,
}

/// Owner of an SQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The shard, for a remapped bio.
    Shard,
    /// The target with this number.
    Target(u16),
    /// The shard's pages: a timer, after which waiters try again.
    Pages,
    /// The stack, on behalf of one of its shards ([`crate::stack`]).
    Stack,
}

/// A device (file) that a world has opened for a table, or another mapped device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevId(pub u16);

impl DevId {
    /// First number of a mapped device, which has its own table.
    const FIRST_MAPPED: u16 = 1 << 15;

    /// The mapped device with this number among those below a table
    /// ([`crate::dm::table::Table::over`]).
    ///
    /// # Panics
    /// When there are more than 2^15.
    #[must_use]
    pub fn mapped(number: usize) -> Self {
        let number = u16::try_from(number).expect("a table has few devices below it");
        assert!(number < Self::FIRST_MAPPED);
        Self(Self::FIRST_MAPPED | number)
    }

    /// Number of a mapped device; `None` for a device of the world.
    #[must_use]
    pub fn below(self) -> Option<usize> {
        (self.0 >= Self::FIRST_MAPPED).then(|| usize::from(self.0 & !Self::FIRST_MAPPED))
    }
}

/// A write log that a world keeps for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId(pub u16);

/// An event for a write log ([`crate::dm::log_writes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// The SQE's bytes were written.
    Written {
        /// First sector.
        sector: Sector,
        /// Whether they are stable.
        fua: bool,
    },
    /// A range was discarded.
    Discarded {
        /// First sector.
        sector: Sector,
        /// Length.
        len: Sector,
    },
    /// A flush starts: it covers all earlier events.
    FlushStarts,
    /// The flush that started with the same token has ended.
    FlushEnded {
        /// Whether it succeeded.
        is_stable: bool,
    },
}

/// A keyed cipher that a world holds for a table. Keys never enter the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherId(pub u16);

/// Direction of a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}

/// Place of execution of a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The context that has the data: the submitter of a write, the completion context of a read
    /// (`no_write_workqueue`, `no_read_workqueue`).
    Inline,
    /// A worker on the CPU where the work was queued (`same_cpu_crypt`; always until 4.0).
    SameCpu,
    /// Any free worker (`WQ_UNBOUND`).
    Unbound,
    /// Any free worker, in one job with other short ciphers of the same submitter.
    UnboundBatch,
}

/// One operation for a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqe {
    /// Token, returned in the [`Cqe`].
    pub token: Token,
    /// Operation.
    pub op: SqeOp,
    /// Links this SQE with the next one: both run in order on one thread and have one CQE. If the
    /// buffer between them is [`BufRef::LINKED_SLOT`], the world chooses it, or needs none because
    /// the cipher runs straight out of or into the file's pages.
    pub linked: bool,
    /// Origin of the bio. [`IoContext::OF_TASK`] stands for the io-context of the executing task.
    pub origin: Origin,
}

/// Operation of an SQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqeOp {
    /// Fill `buf` from `dev`.
    Read {
        /// Source device.
        dev: DevId,
        /// First sector on the device.
        sector: Sector,
        /// Destination buffer.
        buf: BufRef,
    },
    /// Write `buf` to `dev`.
    Write {
        /// Destination device.
        dev: DevId,
        /// First sector on the device.
        sector: Sector,
        /// Source buffer.
        buf: BufRef,
        /// `REQ_FUA`: data on stable storage before the CQE.
        fua: bool,
    },
    /// All acknowledged writes to `dev` are on stable storage before the CQE.
    Flush {
        /// The device.
        dev: DevId,
    },
    /// The range is no longer needed.
    Discard {
        /// The device.
        dev: DevId,
        /// First sector.
        sector: Sector,
        /// Length.
        len: Sector,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// The device.
        dev: DevId,
        /// First sector.
        sector: Sector,
        /// Length.
        len: Sector,
    },
    /// Check that `dev` is reachable: connect if necessary, and read its first sector into a buffer
    /// of the world. Used by multipath only.
    Check {
        /// The device.
        dev: DevId,
    },
    /// Set every byte of `buf`.
    Fill {
        /// The buffer.
        buf: BufRef,
        /// The value of every byte.
        byte: u8,
    },
    /// Complete after this time (`IORING_OP_TIMEOUT`).
    Timeout {
        /// Time from the execution of the SQE.
        after: Nanos,
    },
    /// Notify a write log of an event; stable events are in the log before the CQE.
    Log {
        /// The log.
        log: LogId,
        /// The event.
        step: LogStep,
        /// Buffer of a write.
        buf: BufRef,
    },
    /// Wake the shard's writing thread (`dmcrypt_write`): the CQE comes when it runs. The thread
    /// submits SQEs pushed in response, under one plug.
    Wake,
    /// Run a cipher from `src` to `dst`, which are of equal length and the same or disjoint.
    Crypt {
        /// Key and mode.
        cipher: CipherId,
        /// Direction.
        direction: Direction,
        /// IV sector of the first byte in 512-byte units, `iv_offset` included.
        iv_sector: u64,
        /// Source buffer.
        src: BufRef,
        /// Destination buffer.
        dst: BufRef,
        /// Place of execution.
        place: Place,
    },
}

/// Completion of an SQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// Token of the SQE.
    pub token: Token,
    /// Status.
    pub status: BlkStatus,
}
