//! Reads a corpus: a folder with `manifest.json`, compressed images and key files.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::luks::{Header, UnlockOptions, Unlocked};
use blockyard_crypt::params::{CryptFlags, CryptParams};
use blockyard_crypt::plain::{self, PlainKey, PlainOptions};
use blockyard_crypt::secret::SecretBytes;

/// A folder with volumes.
pub(crate) struct Corpus {
    folder: PathBuf,
}

/// One volume.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) image: String,
    pub(crate) header: Option<String>,
    pub(crate) key_file: String,
    pub(crate) format_options: String,
    pub(crate) dm_table: Option<String>,
    pub(crate) plaintext_bytes: usize,
    pub(crate) plaintext_sha256: String,
    pub(crate) volume_key_hex: Option<String>,
}

impl Corpus {
    /// The external corpus, if present.
    pub(crate) fn find() -> Option<Self> {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
        let folder = std::env::var_os("BLOCKYARD_CORPUS").map_or(beside, PathBuf::from);
        folder.join("manifest.json").exists().then_some(Self { folder })
    }

    /// The volumes in the repository.
    pub(crate) fn in_repository() -> Self {
        Self { folder: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/volumes") }
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        let text = std::fs::read(self.folder.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let text = |value: &serde_json::Value, key: &str| value[key].as_str().map(str::to_owned);
        manifest
            .as_array()
            .unwrap()
            .iter()
            .map(|value| Entry {
                name: text(value, "name").unwrap(),
                kind: text(value, "type").unwrap(),
                image: text(value, "image").unwrap(),
                header: text(value, "header"),
                key_file: text(value, "key_file").unwrap(),
                format_options: text(value, "format_options").unwrap_or_default(),
                dm_table: text(value, "dm_table"),
                plaintext_bytes: value["plaintext_bytes"].as_u64().unwrap() as usize,
                plaintext_sha256: text(value, "plaintext_sha256").unwrap(),
                volume_key_hex: text(value, "volume_key_hex"),
            })
            .collect()
    }

    pub(crate) fn entry(&self, name: &str) -> Entry {
        self.entries().into_iter().find(|entry| entry.name == name).unwrap()
    }

    pub(crate) fn key(&self, file: &str) -> SecretBytes {
        SecretBytes::copy_of(&std::fs::read(self.folder.join(file)).unwrap())
    }

    /// An image, uncompressed.
    pub(crate) fn unpack(&self, file: &str) -> Vec<u8> {
        let path = self.folder.join(file);
        let output = Command::new("xz").arg("-dc").arg(&path).output().expect("xz is installed");
        assert!(output.status.success(), "xz -dc {}", path.display());
        output.stdout
    }

    pub(crate) fn unlock(
        &self,
        entry: &Entry,
        key_file: &str,
        keyslot: Option<u32>,
    ) -> Result<Unlocked, String> {
        let device = self.unpack(entry.header.as_ref().unwrap_or(&entry.image));
        let (header, notices) = Header::read(&device).map_err(|error| error.to_string())?;
        assert!(notices.is_empty(), "{notices:?}");
        let options = UnlockOptions { keyslot, ..UnlockOptions::default() };
        header.unlock(&device, &self.key(key_file), &options).map_err(|error| error.to_string())
    }

    /// Opens the volume as its entry says and decrypts all of it.
    pub(crate) fn plaintext_sha256(&self, entry: &Entry) -> Result<String, String> {
        let image = self.unpack(&entry.image);
        let params = match entry.kind.as_str() {
            "luks1" | "luks2" => self.luks_params(entry, &image)?,
            "plain" => self.plain_params(entry, image.len() as u64)?,
            "rawdm" => table_params(entry)?,
            other => panic!("type {other}"),
        };
        check_against_table(entry, &params);
        let mut data = data_of(&params, &image, entry.plaintext_bytes)?;
        let spec = CipherSpec::parse(&params.cipher).map_err(|error| error.to_string())?;
        let key = params.key.as_slice();
        let cipher =
            SectorCipher::new(&spec, key, params.sector_size_bytes, params.iv_large_sectors)
                .map_err(|error| error.to_string())?;
        cipher.decrypt_in_place(&mut data, params.iv_offset_sectors);
        let mut sha256 = [0u8; 32];
        HashAlgorithm::Sha256.digest(&[&data], &mut sha256);
        Ok(hex(&sha256))
    }

    fn luks_params(&self, entry: &Entry, image: &[u8]) -> Result<CryptParams, String> {
        let packed_header = entry.header.as_ref().map(|file| self.unpack(file));
        let device = packed_header.as_deref().unwrap_or(image);
        let (header, notices) = Header::read(&device).map_err(|error| error.to_string())?;
        assert!(notices.is_empty(), "{notices:?}");
        let key_file = self.key(&entry.key_file);
        let unlocked = header
            .unlock(&device, &key_file, &UnlockOptions::default())
            .map_err(|error| error.to_string())?;
        if let Some(expected) = &entry.volume_key_hex {
            assert_eq!(&hex(unlocked.volume_key.as_slice()), expected, "{}", entry.name);
        }
        header
            .crypt_params(&unlocked.volume_key, image.len() as u64, entry.header.is_some())
            .map_err(|error| error.to_string())
    }

    fn plain_params(&self, entry: &Entry, device_len: u64) -> Result<CryptParams, String> {
        let mut options = PlainOptions::default();
        let mut stdin = None;
        let mut key_file = None;
        let mut key_offset = 0usize;
        let mut words = entry.format_options.split_whitespace();
        while let Some(word) = words.next() {
            if let Some(file) = word.strip_prefix("stdin=") {
                stdin = Some(file);
                continue;
            }
            let mut value = || words.next().expect("an option's value");
            match word {
                "-c" => options.cipher = value().to_owned(),
                "-s" => options.key_size_bits = value().parse().unwrap(),
                "-h" => options.hash = Some(value().to_owned()),
                "--key-file" => key_file = Some(value()),
                "--keyfile-offset" => key_offset = value().parse().unwrap(),
                "--offset" => options.offset_sectors = value().parse().unwrap(),
                "--skip" => options.skip_sectors = value().parse().unwrap(),
                "--sector-size" => options.sector_size_bytes = value().parse().unwrap(),
                "--iv-large-sectors" => options.iv_large_sectors = true,
                // The image was shortened; its table has the remaining length.
                "--size" => {
                    value();
                    options.size_sectors = Some(512);
                }
                other => panic!("option {other}"),
            }
        }
        let key = match (key_file, stdin) {
            (Some(file), _) => {
                let bytes = self.key(file);
                PlainKey::KeyFile(SecretBytes::copy_of(&bytes.as_slice()[key_offset..]))
            }
            // As from a terminal: up to the first newline.
            (None, Some(file)) => {
                let bytes = self.key(file);
                let line = bytes.as_slice().split(|byte| *byte == b'\n').next().unwrap();
                PlainKey::Passphrase(SecretBytes::copy_of(line))
            }
            (None, None) => panic!("no key"),
        };
        plain::open(&options, &key, device_len).map_err(|error| error.to_string())
    }
}

/// Parameters from a crypt line of a table.
fn table_params(entry: &Entry) -> Result<CryptParams, String> {
    let words: Vec<&str> = entry.dm_table.as_ref().unwrap().split_whitespace().collect();
    let number = |index: usize| words[index].parse::<u64>().unwrap();
    let option = |name: &str| words[8..].iter().find_map(|word| word.strip_prefix(name));
    CipherSpec::parse(words[3]).map_err(|error| error.to_string())?;
    Ok(CryptParams {
        cipher: words[3].to_owned(),
        key: SecretBytes::copy_of(&unhex(words[4])),
        iv_offset_sectors: number(5),
        data_offset_sectors: number(7),
        len_sectors: Some(number(1)),
        sector_size_bytes: option("sector_size:").map_or(512, |size| size.parse().unwrap()),
        iv_large_sectors: option("iv_large_sectors").is_some(),
        flags: CryptFlags::default(),
    })
}

/// Compares the kernel's table of the volume with ours.
fn check_against_table(entry: &Entry, params: &CryptParams) {
    let Some(table) = entry.dm_table.as_ref() else {
        return;
    };
    let words: Vec<&str> = table.split_whitespace().collect();
    assert_eq!(params.cipher, words[3], "{}", entry.name);
    if !words[4].starts_with(':') {
        assert_eq!(hex(params.key.as_slice()), words[4], "{}", entry.name);
    }
    assert_eq!(params.iv_offset_sectors.to_string(), words[5], "{}", entry.name);
    assert_eq!(params.data_offset_sectors.to_string(), words[7], "{}", entry.name);
    assert_eq!(params.len_sectors.unwrap().to_string(), words[1], "{}", entry.name);
    let has = |option: &str| words.iter().skip(8).any(|word| *word == option);
    assert_eq!(params.flags.allow_discards, has("allow_discards"), "{}", entry.name);
    assert_eq!(params.flags.no_read_workqueue, has("no_read_workqueue"), "{}", entry.name);
    assert_eq!(params.flags.no_write_workqueue, has("no_write_workqueue"), "{}", entry.name);
}

fn data_of(params: &CryptParams, image: &[u8], len: usize) -> Result<Vec<u8>, String> {
    let start = params.data_offset_sectors as usize * 512;
    image.get(start..start + len).map(<[u8]>::to_vec).ok_or_else(|| "image too short".to_owned())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}
