//! Volume formats and sector ciphers of Blockyard: bytes in, bytes out, no system calls.

pub mod cipher;
pub mod params;
pub mod secret;
