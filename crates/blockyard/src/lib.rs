//! Encrypted block devices in user space: LUKS1, LUKS2, plain dm-crypt, VeraCrypt, TrueCrypt and
//! BitLocker volumes, and device-mapper tables, without root and without a kernel module.
//!
//! ```standalone_crate
//! use blockyard::{Key, Volume};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #   let folder = tempfile::tempdir()?;
//! #   std::env::set_current_dir(&folder)?;
//! #   let cheap = blockyard::format::FormatOptions {
//! #       size_bytes: Some(20 << 20), pbkdf_iterations: Some(4), pbkdf_memory_kib: Some(32),
//! #       ..Default::default()
//! #   };
//! #   cheap.format("home.img", &Key::passphrase("correct horse"))?;
//!     let volume = Volume::options().key(Key::passphrase("correct horse")).open("home.img")?;
//!     let mut block = [0; 4096];
//!     volume.read_exact_at(&mut block, 0)?;
//!     volume.write_all_at(b"hello", 4096)?;
//!     volume.flush()?;
//!     Ok(())
//! }
//! ```
//!
//! # Order of calls
//!
//! 1. [`format`](mod@format) makes a volume. [`keys`] has its passphrase or key file. A volume of
//!    cryptsetup or the kernel needs no such call.
//! 2. [`Volume::options`] has the options for opening a volume. [`Options::open`] reads the header,
//!    derives the key and starts the workers. A program that asks the user calls its three steps:
//!    [`Options::read`], [`Locked::unlock`], [`Locked::start`].
//! 3. [`Volume`] reads and writes at any offset, from any number of threads. [`Volume::cursor`] has
//!    [`std::io::Read`], [`std::io::Write`] and [`std::io::Seek`]. [`Volume::copy_out`] and
//!    [`Volume::copy_in`] copy all of it.
//! 4. [`Volume::flush`] puts all completed writes on stable storage. Nothing else does:
//!    neither dropping the volume nor the end of the program.
//! 5. [`Server`] serves volumes over NBD until [`Running::stop`]. Its control socket answers
//!    [`Control`] in this or another process: [`Control::status`] is a [`Status`].
//! 6. [`Volume::mount_file`] and [`Volume::mount_files`] mount a volume by FUSE, as one file or as
//!    the files in it, until [`Mounted::run`](mount::Mounted::run) returns.
//! 7. [`Volume::files`] reads the files in a volume without FUSE: [`files::Files`] lists and
//!    copies.
//! 8. [`Volume::record`] writes a trace of the I/O until [`Volume::stop_recording`].
//! 9. [`mod@bench`] runs a workload on a volume: fio's jobs, a trace, or a program of your own.
//! 10. [`mod@tune`] finds the best settings for a volume and a workload, by measuring.
//! 11. [`doctor`] finds settings that cost time or put data at risk. [`header`] reads and repairs
//!     headers.
//!
//! An [`Error`] names the fields of options that are wrong. A panic of the library does not unwind
//! into the program, except out of [`client::Client`], whose methods list their panics.
//!
//! # Effects on the process
//!
//! - Keys and passphrases are in locked memory (`mlock`), excluded from core dumps, and wiped when
//!   they are dropped.
//! - Files in memory (tmpfs) are mapped. The library's SIGBUS handler turns a truncated file into
//!   an error. It replaces a handler of the program; any other SIGBUS ends the process.
//! - Threads of the library block all signals except SIGBUS and SIGSEGV.
//! - The library prints messages for the operator on standard error, each with `blockyard: ` in
//!   front: a failed device or flush, a lost connection to an NBD server, a refused client.
//!
//! [`harden`] does more, for a dedicated program: no core dumps, no `ptrace` by the same user, and
//! an error in place of SIGXFSZ.

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/everyday.md")]
struct Everyday;

pub mod bench;
mod control;
mod cost;
mod cursor;
pub mod doctor;
mod error;
mod fat;
mod file_system;
pub mod files;
pub mod format;
mod found;
pub mod header;
mod header_file;
pub mod keys;
pub mod limit;
mod memory;
pub mod metrics;
pub mod mount;
mod options;
pub mod output;
mod part;
mod place;
mod rate;
mod recorder;
pub mod resize;
pub mod sandbox;
mod server;
pub mod size;
mod sparse;
pub mod status;
pub mod text;
pub mod tls;
pub mod traces;
pub mod tune;
mod volume;

pub use blockyard_crypt::bitlk::{Header as BitlkHeader, HeaderInfo as BitlkHeaderInfo};
pub use blockyard_crypt::kdf::KdfLimits;
pub use blockyard_crypt::luks::{Header, HeaderInfo, Notice};
pub use blockyard_crypt::luks2::Copy as HeaderCopy;
pub use blockyard_crypt::partition::Table as PartitionTable;
pub use blockyard_crypt::plain::PlainOptions;
pub use blockyard_crypt::secret::SecretBytes;
pub use blockyard_crypt::tcrypt::{HiddenKey, Options as TcryptOptions, VolumeKind as TcryptKind};
pub use blockyard_engine::dm::line::MappedDevice;
pub use blockyard_engine::elevator::ElevatorSpec;
pub use blockyard_host::dirty_bitmap::{
    BackupId, BackupStep, DirtyBitmapOptions, GRANULARITY_MAX_BYTES, GRANULARITY_MIN_BYTES,
};
pub use blockyard_host::file::BackingKind;
pub use blockyard_host::pages::BounceChoice;
pub use blockyard_host::process::{StopSignal, harden};
pub use blockyard_host::server::{DeviceOptions, Polling, SocketAccess, UblkOptions};
pub use blockyard_host::stages::{RequestKind, Stage};
pub use blockyard_host::volume::{Backing, PipelineChoice, Scheduling, VolumeOptions as Settings};
pub use blockyard_workload as workload;

/// A queue with many requests in flight ([`Volume::client`]).
pub mod client {
    pub use blockyard_engine::bio::{BlkStatus, Done, Op};
    pub use blockyard_engine::priority::Priority;
    pub use blockyard_host::local::{Bytes, Client, Marks, Part, Request};
}

/// Interfaces of an elevator of the program's own: `ElevatorSpec::of` puts it into [`Scheduling`].
/// `docs/elevators/adding.md` has the steps, the package `examples/elevator` their result.
pub mod elevator {
    pub use blockyard_engine::bio::{IoContext, Op, Origin, Sector};
    pub use blockyard_engine::elevator::{
        Attached, Candidate, Elevator, ElevatorSpec, ElevatorType, Facts, Generation, Merged, Side,
        Tunable, Tunables, Work, fifo, sort,
    };
    pub use blockyard_engine::request::{Request, RequestId, Requests};
    pub use blockyard_engine::time::Nanos;
}

/// Interfaces of a device-mapper target of the program's own ([`Options::target`]).
/// `docs/targets/adding.md` has the steps, the example `own_target` their result.
pub mod target {
    pub use blockyard_engine::bio::{BlkStatus, Op, Sector};
    pub use blockyard_engine::dm::control::{MessageError, Suspend, TargetControl};
    pub use blockyard_engine::dm::registry::{
        Arguments, DeviceNeed, Keys, LineRange, Needs, Opened, TargetType, Use,
    };
    pub use blockyard_engine::dm::table::{Flushes, Reserve, TargetFacts, TargetSpec};
    pub use blockyard_engine::dm::{DeviceArea, Mapped, Part, Target, TargetCx, words};
    pub use blockyard_engine::slab::Slab;
    pub use blockyard_engine::sq::{DevId, Owner, Sqe, SqeOp, Token};
    pub use blockyard_engine::time::Nanos;
}

pub use control::{Control, ControlError, Reloaded};
pub use cursor::Cursor;
pub use error::Error;
pub use keys::Key;
pub use options::{ByToken, Locked, LuksVersion, Options, TokenFailure, VolumeKey};
pub use place::Place;
pub use rate::RateLimits;
pub use recorder::{Recorded, TraceFile};
pub use server::{Leaving, Listening, Live, Running, Server};
pub use sparse::SparseFile;
pub use status::Status;
pub use volume::Volume;
