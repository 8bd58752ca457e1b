//! The protection of a hidden volume while its outer volume is written.

use std::path::Path;

use blockyard_crypt::params::VolumePart;
use blockyard_crypt::tcrypt::{self, HiddenKey};

use super::{Format, Locked, LockedKind, Options, VolumeKey};
use crate::Error;
use crate::error::contained;

/// The problem of a volume that is not of TrueCrypt or VeraCrypt.
const NOT_TCRYPT: &str = "`protect_hidden` is for outer volumes of TrueCrypt and VeraCrypt; no \
                          other volume has a hidden one";

impl Options {
    /// Refuses a protection without a meaning.
    pub(super) fn check_protects(&self, path: &Path) -> Result<(), Error> {
        let Format::Tcrypt(tcrypt) = &self.format else {
            return Err(Error::options(path, NOT_TCRYPT));
        };
        tcrypt.check_protects().map_err(|error| Error::crypt(path, error))?;
        if self.volume.read_only {
            let problem = "`protect_hidden` is for a volume that is written; with `read_only` \
                           there is nothing to protect from";
            return Err(Error::options(path, problem));
        }
        Ok(())
    }
}

impl Locked {
    /// Adds the protection of a hidden volume to the key of its outer volume, as
    /// [`Options::protect_hidden`] does. Takes seconds; may be repeated with another key.
    ///
    /// # Errors
    /// The volume is no outer volume, or no hidden volume opens in it.
    pub fn protect_hidden(&self, key: &VolumeKey, hidden: &HiddenKey) -> Result<VolumeKey, Error> {
        contained(|| self.protected(key, hidden))
    }

    pub(super) fn protected(
        &self,
        key: &VolumeKey,
        hidden: &HiddenKey,
    ) -> Result<VolumeKey, Error> {
        let LockedKind::Tcrypt(file, options) = &self.kind else {
            return Err(Error::options(&self.path, NOT_TCRYPT));
        };
        let [VolumePart::Crypt(outer)] = &key.0.parts[..] else {
            return Err(self.key_is_missing());
        };
        let found = tcrypt::hidden_sectors(file, outer, options, hidden);
        let sectors = found.map_err(|error| Error::crypt(&self.path, error))?;
        let mut key = key.clone();
        key.0.protected = sectors.ranges().to_vec();
        Ok(key)
    }
}
