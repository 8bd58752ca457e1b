//! The identity of a volume: of the plaintext that it shows, not of its paths.

use std::fmt;

use blockyard_crypt::params::VolumePart;
use blockyard_engine::dm::line::MappedDevice;
use blockyard_engine::dm::registry::Keys;
use sha2::{Digest, Sha256};

use super::crypt_mapping::with_protection;
use super::{Composition, Volume, content_ids};
use crate::Error;
use crate::file::DeviceFile;
use crate::remote;

/// Separates these digests from all others of a key.
const CONTEXT: &[u8] = b"blockyard: identity of a volume\0";

/// Hashes text, so that a key is never in a string.
struct Hashed(Sha256);

impl fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text);
        Ok(())
    }
}

/// The digest of a table with its keys. The length of a line is left out, because a volume may
/// grow; the start of the next line implies it.
pub(super) fn digest(devices: &[MappedDevice]) -> [u8; 32] {
    let mut hashed = Hashed(Sha256::new_with_prefix(CONTEXT));
    for line in devices.iter().flat_map(|device| &device.lines) {
        let mut write = || {
            fmt::Write::write_fmt(
                &mut hashed,
                format_args!("{} {}", line.start, line.target.name),
            )?;
            line.arguments.write(Keys::Shown, &mut hashed)?;
            fmt::Write::write_char(&mut hashed, '\n')
        };
        write().expect("a digest never fails");
    }
    hashed.0.finalize().into()
}

/// The digest of a crypt volume. Flags are left out, because they change no plaintext.
pub(super) fn digest_of_crypt(
    file: &DeviceFile,
    composition: &Composition,
) -> Result<[u8; 32], Error> {
    let mut composition = composition.clone();
    for part in &mut composition.parts {
        if let VolumePart::Crypt(params) = part {
            params.flags = Default::default();
        }
    }
    Ok(digest(&with_protection(file, &device_name(file), &composition)?))
}

/// The name of a device in a digest. A local file may have several paths, so its number stands for
/// it ([`Volume::identity`]).
pub(super) fn device_name(file: &DeviceFile) -> String {
    let path = file.path();
    if remote::is_remote(path) { path.display().to_string() } else { "-".into() }
}

impl Volume {
    /// A digest of the table with its keys, and of the local files and devices by their numbers.
    /// Two volumes with the same digest show the same plaintext; one of them may be longer.
    pub(crate) fn identity(&self) -> [u8; 32] {
        let mut hashed = Sha256::new_with_prefix(self.described.digest);
        content_ids(&self.parts).for_each(|id| hashed.update(id.to_bytes()));
        hashed.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use blockyard_crypt::params::{CryptFlags, CryptParams};
    use blockyard_crypt::secret::SecretBytes;
    use tempfile::NamedTempFile;

    use super::*;
    use crate::file::Access;
    use crate::volume::VolumeOptions;

    fn params() -> CryptParams {
        CryptParams {
            cipher: "aes-xts-plain64".into(),
            key: SecretBytes::copy_of(&[7; 64]),
            iv_offset_sectors: 0,
            data_offset_sectors: 8,
            len_sectors: Some(2048),
            sector_size_bytes: 512,
            iv_large_sectors: false,
            flags: CryptFlags::default(),
        }
    }

    fn opened(file: &std::path::Path, params: &CryptParams) -> Volume {
        let file = DeviceFile::open(file, Access::ReadOnly, false).unwrap();
        Volume::from_crypt(file, params, &VolumeOptions::default()).unwrap()
    }

    fn image() -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(4 << 20).unwrap();
        file
    }

    #[test]
    fn volume_keeps_its_identity_by_another_path_with_other_flags_and_when_it_has_grown() {
        let file = image();
        let identity = opened(file.path(), &params()).identity();
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::fs::hard_link(file.path(), &link).unwrap();
        assert_eq!(opened(&link, &params()).identity(), identity);
        let flags = CryptFlags { allow_discards: true, ..CryptFlags::default() };
        assert_eq!(opened(file.path(), &CryptParams { flags, ..params() }).identity(), identity);
        let longer = CryptParams { len_sectors: Some(4096), ..params() };
        assert_eq!(opened(file.path(), &longer).identity(), identity);
    }

    #[test]
    fn other_plaintext_is_another_identity() {
        let file = image();
        let identity = |params: &CryptParams| opened(file.path(), params).identity();
        let own = identity(&params());
        let mut key = [7; 64];
        key[63] = 8;
        for other in [
            CryptParams { key: SecretBytes::copy_of(&key), ..params() },
            CryptParams { key: SecretBytes::copy_of(&[7; 32]), ..params() },
            CryptParams { cipher: "aes-xts-plain".into(), ..params() },
            CryptParams { iv_offset_sectors: 8, ..params() },
            CryptParams { data_offset_sectors: 16, ..params() },
            CryptParams { sector_size_bytes: 4096, ..params() },
        ] {
            assert_ne!(identity(&other), own, "{other:?}");
        }
        assert_ne!(opened(image().path(), &params()).identity(), own, "another file");
        let table = |text: &str| {
            let text = SecretBytes::copy_of(text.as_bytes());
            Volume::from_table(&text, &VolumeOptions::default()).unwrap().identity()
        };
        let line = |start: u64| format!("0 8 linear {} {start}\n", file.path().display());
        assert_eq!(table(&line(0)), table(&line(0)));
        assert_ne!(table(&line(0)), table(&line(8)), "an edited table");
    }
}
