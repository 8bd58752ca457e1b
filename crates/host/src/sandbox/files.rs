//! Landlock: files by name, TCP by port, signals and abstract sockets.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope, make_bitflags,
};
use rustix::fs::{FileType, Mode, OFlags};

use super::calls::Network;
use super::failed;
use crate::Error;

/// The newest version whose limits are asked for; older kernels leave some out.
const NEWEST: ABI = ABI::V9;
/// Flag of `landlock_create_ruleset(2)`: ask for the version.
const CREATE_RULESET_VERSION: libc::c_ulong = 1;

/// A file, or a folder with all that is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its path. Rules follow the file, not the name.
    pub path: PathBuf,
    /// Permitted use.
    pub reach: Reach,
    /// It must exist.
    pub must_exist: bool,
}

impl Place {
    /// A place that may be missing.
    pub fn new(path: impl Into<PathBuf>, reach: Reach) -> Self {
        Self { path: path.into(), reach, must_exist: false }
    }
}

/// Use of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Open to read, and list folders.
    Read,
    /// Create, write and remove files of locks.
    Locks,
    /// Connect to sockets. Kernels before 7.1 do not limit this.
    Connect,
    /// Everything, but programs and device nodes.
    Everything,
}

impl Reach {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => make_bitflags!(AccessFs::{ReadFile | ReadDir}),
            Self::Locks => {
                make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | MakeReg | RemoveFile})
            }
            Self::Connect => AccessFs::ResolveUnix.into(),
            Self::Everything => {
                let programs_and_nodes = make_bitflags!(AccessFs::{Execute | MakeChar | MakeBlock});
                AccessFs::from_all(NEWEST) & !programs_and_nodes
            }
        }
    }
}

/// Version of the kernel's Landlock; `None` without it.
pub(super) fn version() -> Option<u32> {
    // SAFETY: with this flag the call reads no memory.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Rules for these places and servers, and descriptors of the places.
pub(super) fn ruleset(
    places: &[Place],
    network: &Network,
) -> Result<(OwnedFd, Vec<OwnedFd>), Error> {
    let refused = |error: RulesetError| failed(&format!("Landlock: {error}"));
    let mut ruleset = empty().map_err(refused)?;
    let mut opened = Vec::with_capacity(places.len());
    for place in places {
        let fd = match rustix::fs::open(&place.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        {
            Ok(fd) => fd,
            Err(_) if !place.must_exist => continue,
            Err(error) => return Err(Error::io(&place.path, "permit in the sandbox", error)),
        };
        let rights = place.reach.rights() & possible(&fd).map_err(|error| failed(&error))?;
        if !rights.is_empty() {
            ruleset = ruleset.add_rule(PathBeneath::new(fd.as_fd(), rights)).map_err(refused)?;
        }
        opened.push(fd);
    }
    for port in &network.tcp_ports {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp)).map_err(refused)?;
    }
    let ruleset: Option<OwnedFd> = ruleset.into();
    Ok((ruleset.ok_or_else(|| failed("Landlock: there is no set of rules"))?, opened))
}

/// Rules that permit nothing of what this kernel can limit.
fn empty() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(make_bitflags!(AccessNet::{BindTcp | ConnectTcp}))?
        .scope(make_bitflags!(Scope::{AbstractUnixSocket | Signal}))?
        .create()
}

/// The rights that a file or folder can have.
fn possible(fd: &OwnedFd) -> Result<BitFlags<AccessFs>, String> {
    let facts = rustix::fs::fstat(fd).map_err(|error| error.to_string())?;
    let is_folder = FileType::from_raw_mode(facts.st_mode) == FileType::Directory;
    Ok(if is_folder { AccessFs::from_all(NEWEST) } else { AccessFs::from_file(NEWEST) })
}
