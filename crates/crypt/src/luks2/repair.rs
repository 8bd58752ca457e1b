//! Makes the two copies of a header equal, on request.
//!
//! cryptsetup's rule: the newest intact copy replaces the other, with a new salt and the other's
//! place, and with the *same* sequence id, because the content is unchanged.

use super::copy_steps;
use super::header::{Copies, Copy, Intact, same_contents};
use crate::error::Error;
use crate::header_write::write_steps;
use crate::source::{HeaderDevice, HeaderSource};

/// See [`crate::luks::repair`].
pub(crate) fn repair(device: &mut dyn HeaderDevice) -> Result<Vec<Copy>, Error> {
    let source: &dyn HeaderSource = &*device;
    let copies = Copies::read(source)?;
    if let (super::header::Found::Intact(a), super::header::Found::Intact(b)) =
        (&copies.primary, &copies.secondary)
        && same_contents(a, b)
    {
        return Ok(Vec::new());
    }
    let (good, _) = copies.newest()?;
    rewrite(device, good)
}

fn rewrite(device: &mut dyn HeaderDevice, good: Intact) -> Result<Vec<Copy>, Error> {
    let bad = good.copy.other();
    let Intact { mut binary, json_area, .. } = good;
    getrandom::fill(&mut binary.salt)?;
    write_steps(device, &copy_steps(bad, &binary, &json_area))?;
    Ok(vec![bad])
}
