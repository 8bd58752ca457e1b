//! Keyslots of a volume: new, changed and removed passphrases.
//!
//! ```
//! use blockyard::keys::{Keyslots, NewKeyslot, Opener};
//! use blockyard::{Key, Volume};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let image = folder.path().join("home.img");
//! # let options = blockyard::format::FormatOptions {
//! #     size_bytes: Some(20 << 20), pbkdf_iterations: Some(4), pbkdf_memory_kib: Some(32),
//! #     ..Default::default()
//! # };
//! # options.format(&image, &Key::passphrase("old"))?;
//! # let cheap = NewKeyslot {
//! #     pbkdf_iterations: Some(4), pbkdf_memory_kib: Some(32), ..NewKeyslot::default()
//! # };
//! # #[cfg(any())]
//! let cheap = NewKeyslot::default();
//! let keyslots = Keyslots::of(&image);
//! let old = Key::passphrase("old");
//! let new = Key::passphrase("new");
//! let opener = Opener::Key { key: &old, keyslot: None };
//! assert_eq!(keyslots.add(&opener, &new, &cheap)?, 1);
//! keyslots.remove(&old, None, false)?;
//! Volume::options().key(new).open(&image)?;
//! # Ok(())
//! # }
//! ```
//!
//! The volume may be open or served meanwhile, and cryptsetup may work on it: the header is locked
//! while it is read and while it is written, and not while a key is derived. An operation that
//! finds its keyslot changed starts again.

use std::path::{Path, PathBuf};

use blockyard_crypt::Error as CryptError;
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::KdfLimits;
use blockyard_crypt::keys::{self, InPlace, Usage};
pub use blockyard_crypt::keys::{Last, Planned};
use blockyard_crypt::luks::{Header, UnlockOptions, Unlocked};
pub use blockyard_crypt::luks2::Priority;
use blockyard_crypt::luks2::{AreaCipher, TokenChoice};
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::process::lock_secrets;

use super::Key;
use super::token_passphrase::{Attempt, by_token};
use crate::cost::{Cost, Pbkdf};
use crate::error::contained;
use crate::format::{FormatError, wrong};
use crate::header;
use crate::header_file::HeaderFile;
use crate::{Error, Place, TokenFailure};

/// Attempts at an operation whose keyslot another program changes meanwhile.
const ATTEMPTS: u32 = 10;
/// Hash of the anti-forensic split of a new keyslot of LUKS2; cryptsetup's default.
const HASH: &str = "sha256";
/// Length of a new unbound key.
const UNBOUND_KEY_BITS: u32 = 512;

/// The keyslots of an image, a block device or a detached header.
#[derive(Clone, Debug)]
pub struct Keyslots {
    path: PathBuf,
    place: Place,
    limits: KdfLimits,
}

/// Options of a new keyslot. The defaults are cryptsetup's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewKeyslot {
    /// Its number; `None`: the first free one.
    pub keyslot: Option<u32>,
    /// Key derivation function. `None`: argon2id, and PBKDF2 for LUKS1, which has no other.
    pub pbkdf: Option<Pbkdf>,
    /// Duration of one derivation on this machine, in milliseconds. `None`: 2000.
    pub pbkdf_target_ms: Option<u64>,
    /// Limit of argon2's memory. `None`: 1 GiB, and at most half of the machine's.
    pub pbkdf_memory_kib: Option<u32>,
    /// Threads of argon2. `None`: one for each CPU, at most 4.
    pub pbkdf_threads: Option<u32>,
    /// Iterations of PBKDF2 or passes of argon2. `None`: measured.
    pub pbkdf_iterations: Option<u32>,
    /// Hash of the anti-forensic split and of PBKDF2. `None`: sha256, or that of a LUKS1 header.
    pub hash: Option<String>,
    /// Cipher of the keyslot's area, LUKS2 only. `None`: that of the data, if it is suitable.
    pub keyslot_cipher: Option<String>,
    /// Key size of that cipher.
    pub keyslot_key_size_bits: Option<u32>,
    /// Priority, LUKS2 only. `None`: normal, or that of the changed keyslot.
    pub priority: Option<Priority>,
}

/// The way to the volume key.
#[derive(Debug)]
pub enum Opener<'a> {
    /// A passphrase or key file, for any keyslot or a given one.
    Key {
        /// The passphrase or key file.
        key: &'a Key,
        /// The keyslot; `None`: every one is tried.
        keyslot: Option<u32>,
    },
    /// The tokens of the header, without a question; see
    /// [`Locked::unlock_by_token`](crate::Locked::unlock_by_token).
    Token {
        /// The tokens to try.
        choice: &'a TokenChoice,
        /// The keyslot; `None`: all of the token.
        keyslot: Option<u32>,
    },
    /// The volume key itself, which needs no keyslot.
    VolumeKey(&'a SecretBytes),
}

impl Keyslots {
    /// The keyslots of this file or device. The call opens nothing.
    #[must_use]
    pub fn of(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        Self { path, place: Place::Whole, limits: KdfLimits::default() }
    }

    /// The part of the file or device that holds the volume.
    #[must_use]
    pub fn place(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// Limits on the demands of the header.
    #[must_use]
    pub fn kdf_limits(self, limits: KdfLimits) -> Self {
        Self { limits, ..self }
    }

    /// Refuses a change that the header excludes, before a person is asked for passphrases. The
    /// operations check it too.
    ///
    /// # Errors
    /// There is no intact header, or it excludes the change.
    pub fn check(&self, planned: Planned) -> Result<(), Error> {
        let (header, _) = header::read(&self.path, &self.place, None)?;
        self.checked(&header, planned)
    }

    fn checked(&self, header: &Header, planned: Planned) -> Result<(), Error> {
        keys::check(header, planned).map_err(|error| self.failed(error))
    }

    /// Stores a passphrase or key file in a free keyslot, and returns its number.
    ///
    /// # Errors
    /// The opener is wrong, all keyslots are in use, an option is wrong, or the header is locked or
    /// cannot be written.
    pub fn add(&self, opener: &Opener<'_>, new: &Key, options: &NewKeyslot) -> Result<u32, Error> {
        check_new(new)?;
        self.repeated(|file, header| {
            self.checked(header, Planned::Add(options.keyslot))?;
            let volume_key = match *opener {
                Opener::Key { key, keyslot } => self.unlock(file, header, key, keyslot)?.volume_key,
                Opener::Token { choice, keyslot } => {
                    self.unlock_by_token(file, header, choice, keyslot)?.volume_key
                }
                Opener::VolumeKey(key) => key.clone(),
            };
            let new = self.prepared(header, &volume_key, new, options, Usage::Data)?;
            self.locked(file, |file| keys::add(file, &new, options.keyslot))
        })
    }

    /// Stores a key that is not the key of this volume, LUKS2 only. `None` makes a random key of
    /// 512 bits. Returns the keyslot's number.
    ///
    /// # Errors
    /// As [`Keyslots::add`].
    pub fn add_unbound(
        &self,
        key: Option<&SecretBytes>,
        new: &Key,
        options: &NewKeyslot,
    ) -> Result<u32, Error> {
        check_new(new)?;
        let key = match key {
            Some(key) => key.clone(),
            None => self.random_key()?,
        };
        self.repeated(|file, header| {
            self.checked(header, Planned::Add(options.keyslot))?;
            let new = self.prepared(header, &key, new, options, Usage::Unbound)?;
            self.locked(file, |file| keys::add(file, &new, options.keyslot))
        })
    }

    /// Replaces a passphrase, and returns its keyslot: LUKS2 keeps the number, LUKS1 uses the first
    /// free keyslot. `in_place`: with a full table the old area is overwritten at once, and a power
    /// cut then loses this keyslot.
    ///
    /// # Errors
    /// The old passphrase is wrong, there is no room, or the header is locked or cannot be written.
    pub fn change(
        &self,
        old: &Key,
        keyslot: Option<u32>,
        new: &Key,
        options: &NewKeyslot,
        in_place: bool,
    ) -> Result<u32, Error> {
        // The keyslot of an empty passphrase may get another key derivation.
        if !old.secret().is_empty() {
            check_new(new)?;
        }
        let in_place = if in_place { InPlace::Allow } else { InPlace::Refuse };
        self.repeated(|file, header| {
            self.checked(header, Planned::Change(keyslot))?;
            let opened = self.unlock(file, header, old, keyslot)?;
            let new = self.prepared(header, &opened.volume_key, new, options, Usage::Data)?;
            self.locked(file, |file| keys::change(file, header, opened.keyslot, &new, in_place))
        })
    }

    /// Removes the keyslot that a passphrase opens, or only that keyslot, and returns its number.
    /// `last` allows the removal of the last one, and with it the loss of the data.
    ///
    /// # Errors
    /// The passphrase is wrong, its keyslot is the last one, or the header is locked or cannot be
    /// written.
    pub fn remove(&self, key: &Key, keyslot: Option<u32>, last: bool) -> Result<u32, Error> {
        self.repeated(|file, header| {
            self.checked(header, Planned::Change(keyslot))?;
            let opened = self.unlock(file, header, key, keyslot)?;
            self.locked(file, |file| {
                keys::remove(file, Some(header), opened.keyslot, last_of(last))
            })?;
            Ok(opened.keyslot)
        })
    }

    /// Removes a keyslot. `proof`: a passphrase that must open another keyslot first, or the last
    /// one itself. `last` allows the removal of the last one, and with it the loss of the data.
    ///
    /// # Errors
    /// The keyslot is not in use or is the last one, the proof is wrong, or the header is locked or
    /// cannot be written.
    pub fn kill(&self, number: u32, proof: Option<&Key>, last: bool) -> Result<(), Error> {
        self.repeated(|file, header| {
            self.checked(header, Planned::Remove(number, last_of(last)))?;
            if let Some(proof) = proof {
                let mut provers = keys::of_data(header);
                provers.retain(|other| *other != number);
                if provers.is_empty() {
                    provers.push(number);
                }
                self.unlock_one_of(file, header, proof, provers)?;
            }
            self.locked(file, |file| {
                keys::remove(file, proof.map(|_| header), number, last_of(last))
            })
        })
    }

    /// Sets the priority of a keyslot, LUKS2 only.
    ///
    /// # Errors
    /// The volume is not LUKS2, the keyslot is not in use, or the header is locked or cannot be
    /// written.
    pub fn set_priority(&self, number: u32, priority: Priority) -> Result<(), Error> {
        contained(|| {
            let mut file = HeaderFile::to_write(&self.path, &self.place)?;
            self.locked(&mut file, |file| keys::set_priority(file, number, priority))
        })
    }

    /// Whether `key` is the key of the volume's data.
    ///
    /// # Errors
    /// There is no intact header.
    pub fn confirms(&self, key: &SecretBytes) -> Result<bool, Error> {
        contained(|| {
            let file = HeaderFile::to_read(&self.path, &self.place)?;
            let header = self.header(&file)?;
            keys::confirms(&header, key).map_err(|error| self.failed(error))
        })
    }

    /// Runs an operation with the present header, and again if the header was changed meanwhile.
    fn repeated<T>(
        &self,
        operation: impl Fn(&mut HeaderFile, &Header) -> Result<T, Error>,
    ) -> Result<T, Error> {
        contained(|| {
            lock_secrets();
            let mut file = HeaderFile::to_write(&self.path, &self.place)?;
            let mut attempt = 1;
            loop {
                let header = self.header(&file)?;
                match operation(&mut file, &header) {
                    Err(Error::Crypt { source, .. })
                        if attempt < ATTEMPTS && self.is_outdated(&file, &header, &source)? =>
                    {
                        attempt += 1;
                    }
                    outcome => return outcome,
                }
            }
        })
    }

    /// Whether an error may come from a header that was changed while a key was derived: its area
    /// is then overwritten, and the right passphrase opens nothing.
    fn is_outdated(
        &self,
        file: &HeaderFile,
        header: &Header,
        error: &CryptError,
    ) -> Result<bool, Error> {
        Ok(match error {
            CryptError::Changed(_) => true,
            CryptError::WrongPassphrase { .. } => self.header(file)? != *header,
            _ => false,
        })
    }

    fn header(&self, file: &HeaderFile) -> Result<Header, Error> {
        let _lock = file.lock_to_read()?;
        let (header, _) = Header::read(file).map_err(|error| self.failed(error))?;
        Ok(header)
    }

    fn unlock(
        &self,
        file: &HeaderFile,
        header: &Header,
        key: &Key,
        keyslot: Option<u32>,
    ) -> Result<Unlocked, Error> {
        let options = UnlockOptions { keyslot, limits: self.limits };
        header.unlock(file, key.secret(), &options).map_err(|error| self.failed(error))
    }

    /// Unlocks with the first token that opens the volume.
    fn unlock_by_token(
        &self,
        file: &HeaderFile,
        header: &Header,
        choice: &TokenChoice,
        keyslot: Option<u32>,
    ) -> Result<Unlocked, Error> {
        let Header::Luks2(luks2) = header else {
            return Err(Error::options(&self.path, "LUKS1 has no tokens"));
        };
        let usable = luks2.usable_tokens(choice).map_err(|error| self.failed(error))?;
        let (opened, failures) = by_token(usable, keyslot, Attempt::of(choice), |keyslot, key| {
            let options = UnlockOptions { keyslot: Some(keyslot), limits: self.limits };
            header.unlock(file, key, &options)
        });
        if let Some(opened) = opened {
            return Ok(opened);
        }
        if self.header(file)? != *header {
            return Err(self.failed(CryptError::Changed("its tokens".to_owned())));
        }
        let problems: Vec<_> = failures.iter().map(TokenFailure::to_string).collect();
        let none = "the header has none that gives a passphrase".to_owned();
        let problems = if problems.is_empty() { none } else { problems.join("; ") };
        Err(Error::options(&self.path, format!("no token opens the volume: {problems}")))
    }

    fn unlock_one_of(
        &self,
        file: &HeaderFile,
        header: &Header,
        key: &Key,
        keyslots: Vec<u32>,
    ) -> Result<(), Error> {
        let untried = Vec::new();
        let mut failure = self.failed(CryptError::WrongPassphrase { untried });
        for keyslot in keyslots {
            match self.unlock(file, header, key, Some(keyslot)) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_wrong_key() => {}
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn prepared(
        &self,
        header: &Header,
        volume_key: &SecretBytes,
        new: &Key,
        options: &NewKeyslot,
        usage: Usage,
    ) -> Result<keys::Prepared, Error> {
        let options = options.of_header(header, usage)?;
        keys::prepare(header, volume_key, new.secret(), &options)
            .map_err(|error| self.failed(error))
    }

    /// Takes the lock for the short time of a change.
    fn locked<T>(
        &self,
        file: &mut HeaderFile,
        change: impl FnOnce(&mut HeaderFile) -> Result<T, CryptError>,
    ) -> Result<T, Error> {
        let _lock = file.lock_to_write()?;
        change(file).map_err(|error| self.failed(error))
    }

    fn random_key(&self) -> Result<SecretBytes, Error> {
        keys::random_key(UNBOUND_KEY_BITS).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: CryptError) -> Error {
        Error::crypt(&self.path, error)
    }
}

/// Refuses an empty new passphrase.
fn check_new(new: &Key) -> Result<(), Error> {
    if new.secret().is_empty() { Err(FormatError::EmptyPassphrase.into()) } else { Ok(()) }
}

fn last_of(may_remove: bool) -> Last {
    if may_remove { Last::Remove } else { Last::Keep }
}

impl NewKeyslot {
    /// The options with the defaults of the header's version.
    fn of_header(&self, header: &Header, usage: Usage) -> Result<keys::NewKeyslot, Error> {
        let only_hash = keys::only_hash(header);
        let hash = match (&self.hash, only_hash) {
            (None, Some(hash)) => hash,
            (text, _) => HashAlgorithm::parse(text.as_deref().unwrap_or(HASH))
                .map_err(|error| wrong("hash", &error))?,
        };
        let default = if only_hash.is_some() { Pbkdf::Pbkdf2 } else { Pbkdf::Argon2id };
        let cost = Cost {
            pbkdf: self.pbkdf.unwrap_or(default),
            target_ms: self.pbkdf_target_ms.unwrap_or(2000),
            memory_kib: self.pbkdf_memory_kib,
            threads: self.pbkdf_threads,
            iterations: self.pbkdf_iterations,
        };
        let area = match (&self.keyslot_cipher, self.keyslot_key_size_bits) {
            (None, None) => None,
            (Some(cipher), Some(key_size_bits)) => {
                Some(AreaCipher { cipher: cipher.clone(), key_size_bits })
            }
            _ => {
                let problem = "a cipher and its key size belong together";
                return Err(wrong("keyslot_cipher", &problem).into());
            }
        };
        let pbkdf = cost.measured(hash)?;
        Ok(keys::NewKeyslot { pbkdf, hash, area, priority: self.priority, usage })
    }
}
