//! Makes the two copies of a header equal, on request.
//!
//! cryptsetup's rule: the newest intact copy replaces the other, with a new salt and the other's
//! place, and with the *same* sequence id, because the content is unchanged.

use super::Header;
use super::header::Copy;
use crate::error::Error;
use crate::header_write::write_steps;
use crate::source::HeaderDevice;

/// See [`crate::luks::repair`].
pub(crate) fn repair(device: &mut dyn HeaderDevice) -> Result<Vec<Copy>, Error> {
    let (header, _) = Header::read(&&*device)?;
    write_steps(device, &header.steps_of_repair()?)?;
    Ok(header.bad.into_iter().map(|bad| bad.copy).collect())
}
