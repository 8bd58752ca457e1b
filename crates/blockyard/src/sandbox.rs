//! The sandbox of a process that serves volumes.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use blockyard::sandbox::{self, Needs};
//! let volume = blockyard::Volume::options().open("home.img")?;
//! let server = blockyard::Server::new().export("", &volume).unix("home.sock").listen()?;
//! let mut needs = Needs::of_process();
//! needs.rings = 64; // one for each connection
//! sandbox::add_volume(&mut needs, &volume, false)?;
//! sandbox::start(&needs)?;
//! let stop = blockyard::StopSignal::install()?;
//! server.run(&stop, || ())?;
//! # Ok(())
//! # }
//! ```
//!
//! The limits are those of the whole process, and for good. Open files and sockets stay usable.

use std::path::Path;

use blockyard_host::nbd::uri::Uri;
use blockyard_host::rbd::RbdName;
pub use blockyard_host::sandbox::{Needs, Network, Parts, Place, Reach, parts};

use crate::{Error, Volume};
use blockyard_host::remote::is_remote;

/// Adds the needs of an open volume: its servers, and, if it is to be resized, its file and header.
///
/// # Errors
/// The path of the header is no URI.
pub fn add_volume(needs: &mut Needs, volume: &Volume, is_resized: bool) -> Result<(), Error> {
    let shared = volume.shared();
    shared.host.servers().for_each(|uri| needs.connects_to(uri));
    for path in shared.followed().into_iter().filter(|_| is_resized) {
        match path.to_str().filter(|_| is_remote(path)) {
            Some(name) if RbdName::is_rbd(name) => {}
            Some(uri) => {
                let uri = Uri::parse(uri).map_err(|error| Error::options(path, error))?;
                needs.connects_to(&uri);
            }
            None => needs.follows(path),
        }
    }
    Ok(())
}

/// Whether an open volume rules a sandbox out: the library of a Ceph cluster blocks all signals in
/// its threads, which must take part.
#[must_use]
pub fn hinders(volume: &Volume) -> bool {
    volume.shared().host.has_image()
}

/// Limits this process.
///
/// # Errors
/// A place cannot be opened, or the kernel refuses. The process may be limited in part.
pub fn start(needs: &Needs) -> Result<Parts, Error> {
    Ok(blockyard_host::sandbox::start(needs)?)
}

/// The error for a file that the sandbox does not permit to write; any other stays.
pub(crate) fn explained(path: &Path, error: Error) -> Error {
    if error.is_permission() && blockyard_host::sandbox::hinders_writing(path) {
        return Error::Sandboxed { path: path.to_owned() };
    }
    error
}
