//! Sector ciphers.
