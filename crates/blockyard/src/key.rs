//! The secret that opens a volume.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::process::lock_secrets;

use crate::Error;

/// cryptsetup's limit of a key file.
const KEY_FILE_MAX_BYTES: usize = 8 << 20;

/// The secret that opens a volume.
///
/// A LUKS keyslot does not tell a passphrase from the content of a key file. A plain volume hashes
/// a passphrase, and takes a key file as the key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Key {
    /// A passphrase, without a newline at its end.
    Passphrase(SecretBytes),
    /// The content of a key file.
    File(SecretBytes),
}

impl Key {
    /// A passphrase. Its bytes are copied into locked memory; the caller wipes its own copy.
    #[must_use]
    pub fn passphrase(passphrase: impl AsRef<[u8]>) -> Self {
        lock_secrets();
        Self::Passphrase(SecretBytes::copy_of(passphrase.as_ref()))
    }

    /// The content of a key file, newlines and NULs included; 8 MiB at most.
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be read or is longer.
    pub fn file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        read_secret(path, KEY_FILE_MAX_BYTES).map(Self::File)
    }

    pub(crate) fn secret(&self) -> &SecretBytes {
        match self {
            Self::Passphrase(secret) | Self::File(secret) => secret,
        }
    }
}

/// The whole of a file that holds a secret. The buffer never grows: that would leave a copy behind.
pub(crate) fn read_secret(path: &Path, max_bytes: usize) -> Result<SecretBytes, Error> {
    lock_secrets();
    let failed = |source| Error::file(path, source);
    let file = File::open(path).map_err(failed)?;
    let len_bytes = usize::try_from(file.metadata().map_err(failed)?.len()).unwrap_or(usize::MAX);
    let mut secret = SecretBytes::zeroed(len_bytes.max(4096).min(max_bytes) + 1);
    let mut filled = 0;
    loop {
        filled += read_until_full(&file, &mut secret.as_mut_slice()[filled..]).map_err(failed)?;
        if filled > max_bytes {
            let problem = format!("it is longer than {max_bytes} bytes");
            return Err(failed(std::io::Error::new(std::io::ErrorKind::FileTooLarge, problem)));
        }
        if filled < secret.len() {
            return Ok(SecretBytes::copy_of(&secret.as_slice()[..filled]));
        }
        // A pipe has no length.
        let mut longer = SecretBytes::zeroed((secret.len() * 2).min(max_bytes + 1));
        longer.as_mut_slice()[..filled].copy_from_slice(secret.as_slice());
        secret = longer;
    }
}

fn read_until_full(mut file: &File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_are_read_whole_and_long_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for len_bytes in [0, 1, 4095, 4096, 4097, 100_000] {
            let bytes: Vec<u8> = (0..len_bytes).map(|byte| (byte % 251) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(Key::file(&path).unwrap().secret().as_slice(), bytes);
        }
        std::fs::write(&path, vec![1; 101]).unwrap();
        assert!(read_secret(&path, 101).is_ok());
        let error = read_secret(&path, 100).unwrap_err().to_string();
        assert!(error.contains("longer than 100 bytes"), "{error}");
    }
}
