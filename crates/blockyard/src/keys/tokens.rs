//! Tokens of a LUKS2 header: read, stored and removed.
//!
//! A token says where the passphrase of a keyslot comes from. Its JSON is cryptsetup's: what
//! `cryptsetup token export` writes can be imported here, and the reverse.

use std::path::{Path, PathBuf};

use blockyard_crypt::keys;
use blockyard_crypt::luks::Header;
use blockyard_crypt::luks2::Token;

use crate::error::contained;
use crate::header_file::HeaderFile;
use crate::{Error, Place};

/// The tokens of an image, a block device or a detached header.
#[derive(Clone, Debug)]
pub struct Tokens {
    path: PathBuf,
    place: Place,
}

impl Tokens {
    /// The tokens of this file or device. The call opens nothing.
    #[must_use]
    pub fn of(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned(), place: Place::Whole }
    }

    /// The part of the file or device that holds the volume.
    #[must_use]
    pub fn place(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// All tokens, by number; none of a LUKS1 volume.
    ///
    /// # Errors
    /// There is no intact header.
    pub fn list(&self) -> Result<Vec<(u32, Token)>, Error> {
        contained(|| match self.header()? {
            Header::Luks1(_) => Ok(Vec::new()),
            Header::Luks2(header) => header.tokens().map_err(|error| self.failed(error)),
        })
    }

    /// A token. Its text is its JSON.
    ///
    /// # Errors
    /// There is no intact header, or no such token.
    pub fn get(&self, number: u32) -> Result<Token, Error> {
        contained(|| match self.header()? {
            Header::Luks1(_) => {
                Err(Error::options(&self.path, "a LUKS1 volume has no tokens; LUKS2 has"))
            }
            Header::Luks2(header) => header.token(number).map_err(|error| self.failed(error)),
        })
    }

    /// Stores a token from its JSON, and returns its number. `number`: the first free one without
    /// it. `keyslot`: added to the keyslots that the token names. `replace`: an existing token of
    /// the number is replaced.
    ///
    /// # Errors
    /// The volume is not LUKS2, the JSON is no token of its keyslots, the number is in use, or the
    /// header is locked or cannot be written.
    pub fn import(
        &self,
        json: &[u8],
        number: Option<u32>,
        keyslot: Option<u32>,
        replace: bool,
    ) -> Result<u32, Error> {
        contained(|| {
            let token = Token::parse(json).map_err(|error| self.failed(error))?;
            let mut file = HeaderFile::to_write(&self.path, &self.place)?;
            let _lock = file.lock_to_write()?;
            keys::import_token(&mut file, &token, number, keyslot, replace)
                .map_err(|error| self.failed(error))
        })
    }

    /// Removes a token. Its keyslots stay.
    ///
    /// # Errors
    /// The volume is not LUKS2, there is no such token, or the header is locked or cannot be
    /// written.
    pub fn remove(&self, number: u32) -> Result<(), Error> {
        contained(|| {
            let mut file = HeaderFile::to_write(&self.path, &self.place)?;
            let _lock = file.lock_to_write()?;
            keys::remove_token(&mut file, number).map_err(|error| self.failed(error))
        })
    }

    fn header(&self) -> Result<Header, Error> {
        let file = HeaderFile::to_read(&self.path, &self.place)?;
        let _lock = file.lock_to_read()?;
        let (header, _) = Header::read(&file).map_err(|error| self.failed(error))?;
        Ok(header)
    }

    fn failed(&self, error: blockyard_crypt::Error) -> Error {
        Error::crypt(&self.path, error)
    }
}
