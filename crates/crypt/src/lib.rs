//! Volume formats and sector ciphers of Blockyard: bytes in, bytes out, no files and no devices.
//!
//! ```text
//!   luks::Header::read -> unlock -> crypt_params --+
//!   plain::open -----------------------------------+--> params::CryptParams -> SectorCipher
//! ```
//!
//! Headers are untrusted: every number in them is checked before its use, and bounded before any
//! allocation or computation.

mod adiantum;
pub mod af;
pub mod backup;
pub mod bitlk;
mod block;
pub mod cipher;
pub mod convert;
mod crc32;
mod error;
mod extent;
pub mod format;
pub mod hash;
mod header_write;
pub mod info;
pub mod kdf;
mod key_material;
pub mod keys;
pub mod luks;
pub mod luks1;
pub mod luks2;
pub mod params;
pub mod partition;
pub mod plain;
pub mod secret;
pub mod signature;
pub mod source;
mod stack;
pub mod tcrypt;
mod unlock_attempt;
mod uuid_field;
#[cfg(test)]
mod vectors;

pub use error::{Error, KeyslotProblem, Requirement};
