//! Memory of keys and passphrases: zeroised on drop, never printed, compared in constant time.
//!
//! `crypt` makes no system calls. A world that can lock memory installs a function with
//! [`set_protector`], which gets every later secret (`host` locks the pages and keeps them out of
//! core dumps). A secret never grows, because a reallocation would leave a copy behind.

use std::fmt;
use std::sync::OnceLock;

use subtle::ConstantTimeEq;
use zeroize::Zeroize;

static PROTECTOR: OnceLock<fn(&[u8])> = OnceLock::new();

/// Installs the function that protects the memory of secrets. The first call wins.
pub fn set_protector(protect: fn(&[u8])) {
    let _ = PROTECTOR.set(protect);
}

/// Passes memory that will hold a secret to the protector, if there is one.
pub fn protect(memory: &[u8]) {
    if let Some(protect) = PROTECTOR.get() {
        protect(memory);
    }
}

/// Secret bytes of a fixed length.
pub struct SecretBytes {
    bytes: Box<[u8]>,
}

impl SecretBytes {
    /// A zeroed secret of `len_bytes`, to be filled through [`SecretBytes::as_mut_slice`].
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        let bytes = vec![0u8; len_bytes].into_boxed_slice();
        protect(&bytes);
        Self { bytes }
    }

    /// A copy of `bytes`; the caller wipes its own.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut secret = Self::zeroed(bytes.len());
        secret.bytes.copy_from_slice(bytes);
        secret
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, mutable.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl Clone for SecretBytes {
    fn clone(&self) -> Self {
        Self::copy_of(&self.bytes)
    }
}

impl PartialEq for SecretBytes {
    /// Constant time for equal lengths; the length is not secret.
    fn eq(&self, other: &Self) -> bool {
        self.bytes.ct_eq(&other.bytes).into()
    }
}

impl Eq for SecretBytes {}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn secret_debug_output_does_not_show_the_bytes() {
        let secret = SecretBytes::copy_of(b"hunter2");
        assert_eq!(format!("{secret:?}"), "SecretBytes(7 bytes)");
    }

    #[test]
    fn secrets_compare_by_content_and_length() {
        let secret = SecretBytes::copy_of(b"abc");
        assert_eq!(secret, SecretBytes::copy_of(b"abc"));
        assert_ne!(secret, SecretBytes::copy_of(b"abd"));
        assert_ne!(secret, SecretBytes::copy_of(b"ab"));
    }

    #[test]
    fn secret_without_a_byte_is_empty() {
        assert!(SecretBytes::copy_of(b"").is_empty());
        assert!(!SecretBytes::zeroed(1).is_empty());
    }

    static PROTECTED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

    #[test]
    fn memory_of_every_secret_is_handed_to_the_first_protector() {
        set_protector(|memory| {
            PROTECTED.lock().unwrap().push(memory.as_ptr() as usize);
        });
        set_protector(|_| panic!("a second protector"));
        let secret = SecretBytes::copy_of(b"hunter2");
        let copy = secret.clone();
        let protected = PROTECTED.lock().unwrap();
        for memory in [secret.as_slice(), copy.as_slice()] {
            assert!(protected.contains(&(memory.as_ptr() as usize)));
        }
    }
}
