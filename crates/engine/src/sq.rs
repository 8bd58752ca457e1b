//! The one vocabulary between the engine and a world: SQEs leave a shard, CQEs come back.
//!
//! It is io_uring's vocabulary, not its mechanism: a world executes each SQE in the way that is
//! cheapest for its file, and every SQE is answered by exactly one CQE with the same token, except
//! that a linked pair is answered by one.

#[cfg(doc)]
use crate::bio::IoContext;
use crate::bio::{BlkStatus, Origin, Sector};
use crate::buf::BufRef;
use crate::time::Nanos;

/// Names the I/O that an SQE belongs to, for its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token {
    /// Who is answered: the shard itself, or the target with this number.
    pub owner: Owner,
    /// The owner's place for the I/O.
    pub index: u32,
}

/// Who pushed an SQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A remapped bio: the shard ends it.
    Shard,
    /// A target that keeps state of its own.
    Target(u16),
    /// The shard's pages: a timer, after which waiters try again.
    Pages,
    /// The stack, in the name of one of its shards ([`crate::stack`]).
    Stack,
}

/// One of the devices (files) that a world has opened for a table, or one that is mapped itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevId(pub u16);

impl DevId {
    /// Numbers from here on are not the world's: the device has a table of its own.
    const FIRST_MAPPED: u16 = 1 << 15;

    /// The device with this number among those below a table ([`crate::dm::table::Table::over`]).
    ///
    /// # Panics
    /// When there are more than 2^15.
    #[must_use]
    pub fn mapped(number: usize) -> Self {
        let number = u16::try_from(number).expect("a table has few devices below it");
        assert!(number < Self::FIRST_MAPPED);
        Self(Self::FIRST_MAPPED | number)
    }

    /// Its number if it is mapped, `None` if it is one of the world's.
    #[must_use]
    pub fn below(self) -> Option<usize> {
        (self.0 >= Self::FIRST_MAPPED).then(|| usize::from(self.0 & !Self::FIRST_MAPPED))
    }
}

/// One of the write logs that a world keeps for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogId(pub u16);

/// What a write log is told ([`crate::dm::log_writes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// The SQE's bytes were written.
    Written {
        /// From here on.
        sector: Sector,
        /// They are stable.
        fua: bool,
    },
    /// A range was discarded.
    Discarded {
        /// First sector.
        sector: Sector,
        /// Length.
        len: Sector,
    },
    /// A flush starts: it is for all that the log was told before.
    FlushStarts,
    /// The flush that was started with the same token has ended.
    FlushEnded {
        /// It did not fail.
        is_stable: bool,
    },
}

/// One of the keyed ciphers that a world holds for a table. Keys never enter the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherId(pub u16);

/// Which way a cipher runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Plaintext to ciphertext.
    Encrypt,
    /// Ciphertext to plaintext.
    Decrypt,
}

/// Where a cipher runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the context that has the data: the submitter of a write, whoever ends a read
    /// (`no_write_workqueue`, `no_read_workqueue`).
    Inline,
    /// On a worker of the CPU where the work was queued (`same_cpu_crypt`; all of them until 4.0).
    SameCpu,
    /// On whichever worker is free (`WQ_UNBOUND`).
    Unbound,
}

/// One operation for a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqe {
    /// Given back in the [`Cqe`].
    pub token: Token,
    /// What to do.
    pub op: SqeOp,
    /// This SQE and the next one are one unit, executed in order by one task and answered by one
    /// CQE. If the buffer between them is [`BufRef::LINKED_SLOT`], the world chooses it, or needs
    /// none, because the cipher runs straight out of or into the file's pages.
    pub linked: bool,
    /// Of the bio that it is for. An io-context of [`IoContext::OF_TASK`] stands for that of the
    /// task which executes it.
    pub origin: Origin,
}

/// The operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqeOp {
    /// Fill `buf` from `dev`.
    Read {
        /// From where.
        dev: DevId,
        /// First sector on the device.
        sector: Sector,
        /// Into where.
        buf: BufRef,
    },
    /// Write `buf` to `dev`.
    Write {
        /// To where.
        dev: DevId,
        /// First sector on the device.
        sector: Sector,
        /// From where.
        buf: BufRef,
        /// On stable storage before the CQE.
        fua: bool,
    },
    /// Everything that was written to `dev` and answered is on stable storage before the CQE.
    Flush {
        /// The device.
        dev: DevId,
    },
    /// The range is not needed any more.
    Discard {
        /// The device.
        dev: DevId,
        /// First sector.
        sector: Sector,
        /// Length.
        len: Sector,
    },
    /// The range reads as zeros afterwards.
    WriteZeroes {
        /// The device.
        dev: DevId,
        /// First sector.
        sector: Sector,
        /// Length.
        len: Sector,
    },
    /// Find out whether `dev` can be reached: connect if there is a connection to be made, and read
    /// its first sector, whereto is the world's business. Only multipath asks for it.
    Check {
        /// The device.
        dev: DevId,
    },
    /// Set every byte of `buf`.
    Fill {
        /// The bytes.
        buf: BufRef,
        /// To what.
        byte: u8,
    },
    /// Nothing, answered once this much time has passed (`IORING_OP_TIMEOUT`).
    Timeout {
        /// From when the SQE is executed.
        after: Nanos,
    },
    /// Tell a write log what has happened; what is stable is in the log before the CQE.
    Log {
        /// Which log.
        log: LogId,
        /// What has happened.
        step: LogStep,
        /// The bytes of a write.
        buf: BufRef,
    },
    /// Wake the shard's writing thread (`dmcrypt_write`): answered when it runs. What is pushed on
    /// the answer is submitted by it, under one plug.
    Wake,
    /// Run a cipher from `src` to `dst`, which are equally long and the same or disjoint.
    Crypt {
        /// Which key and mode.
        cipher: CipherId,
        /// Which way.
        direction: Direction,
        /// The 512-byte unit that the IV of the first byte counts from, `iv_offset` included.
        iv_sector: u64,
        /// From where.
        src: BufRef,
        /// To where.
        dst: BufRef,
        /// On which thread.
        place: Place,
    },
}

/// The answer to an SQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// Of the SQE.
    pub token: Token,
    /// How it went.
    pub status: BlkStatus,
}
