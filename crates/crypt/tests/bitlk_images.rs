//! The volumes of cryptsetup's own tests (`tests/bitlk-images.tar.xz` of its repository), in the
//! folder that `BLOCKYARD_BITLK_IMAGES` names. Without it the test does nothing: the images are not
//! part of this repository. Windows made them. Passphrases, and hashes of the decrypted volumes,
//! are those of the archive's `images.conf`.

use std::collections::BTreeMap;
use std::path::Path;

use blockyard_crypt::Error;
use blockyard_crypt::bitlk::Header;
use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::KdfLimits;
use blockyard_crypt::params::VolumePart;
use blockyard_crypt::secret::SecretBytes;

/// The values of an image.
type Facts = BTreeMap<String, String>;

/// The facts of all images.
fn facts(folder: &Path) -> BTreeMap<String, Facts> {
    let mut found = BTreeMap::<String, Facts>::new();
    let mut image = String::new();
    for line in std::fs::read_to_string(folder.join("images.conf")).unwrap().lines() {
        if let Some(name) = line.strip_prefix('[') {
            image = name.trim_end_matches(']').to_owned();
        } else if let Some((name, value)) = line.split_once('=') {
            found.entry(image.clone()).or_default().insert(name.into(), value.into());
        }
    }
    found
}

/// The secrets that open an image.
fn secrets(facts: &Facts, folder: &Path) -> Vec<SecretBytes> {
    let mut found = Vec::new();
    for name in ["PW", "RP", "RP2"] {
        let secret = facts.get(name).filter(|secret| !secret.is_empty());
        found.extend(secret.map(|secret| SecretBytes::copy_of(secret.as_bytes())));
    }
    if let Some(uuid) = facts.get("SK_VMK_GUID") {
        let file = folder.join(format!("{}.BEK", uuid.to_uppercase()));
        found.push(SecretBytes::copy_of(&std::fs::read(file).unwrap()));
    }
    if facts.contains_key("CLEARKEY_VMK_GUID") {
        found.push(SecretBytes::copy_of(b""));
    }
    found
}

/// The decrypted volume.
fn decrypted(disk: &[u8], parts: &[VolumePart]) -> Vec<u8> {
    let mut volume = Vec::with_capacity(disk.len());
    for part in parts {
        match part {
            VolumePart::Zeros { len_sectors } => {
                volume.resize(volume.len() + *len_sectors as usize * 512, 0);
            }
            VolumePart::Crypt(params) => {
                let start = params.data_offset_sectors as usize * 512;
                let len = params.len_sectors.unwrap() as usize * 512;
                let spec = CipherSpec::parse_line(&params.cipher).unwrap();
                let size = params.sector_size_bytes;
                let large = params.iv_large_sectors;
                let key = params.key.as_slice();
                let cipher = SectorCipher::new(&spec, key, size, large).unwrap();
                let mut data = disk[start..start + len].to_vec();
                cipher.decrypt_in_place(&mut data, params.iv_offset_sectors);
                volume.append(&mut data);
            }
        }
    }
    volume
}

/// Opens an image with a secret, and compares the hash.
fn check(disk: &[u8], secret: &SecretBytes, facts: &Facts) -> Result<(), String> {
    let header = Header::read(&disk).map_err(|error| error.to_string())?;
    let info = header.info();
    assert_eq!((&info.uuid, &info.cipher), (&facts["GUID"], &facts["CIPHER"]));
    let unlocked = match header.unlock(secret, &KdfLimits::default()) {
        Err(Error::Unsupported { what, .. }) if facts["SHA256SUM"].is_empty() => {
            println!("    refused: {what}");
            return Ok(());
        }
        unlocked => unlocked.map_err(|error| error.to_string())?,
    };
    let parts = unlocked.parts(disk.len() as u64).map_err(|error| error.to_string())?;
    let mut hash = [0; 32];
    HashAlgorithm::Sha256.digest(&[&decrypted(disk, &parts)], &mut hash);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    if hash == facts["SHA256SUM"] { Ok(()) } else { Err(format!("its hash is {hash}")) }
}

#[test]
fn volumes_that_windows_made_open_with_each_of_their_secrets() {
    let Some(folder) = std::env::var_os("BLOCKYARD_BITLK_IMAGES") else { return };
    let folder = Path::new(&folder);
    let mut wrong = Vec::new();
    let mut opened = 0;
    for (name, facts) in facts(folder) {
        let disk = std::fs::read(folder.join(format!("{name}.img"))).unwrap();
        let header = Header::read(&disk.as_slice());
        println!(
            "{name}\n{}",
            header.as_ref().map_or_else(ToString::to_string, ToString::to_string)
        );
        if let Ok(header) = &header {
            println!("{:?}", header.notices());
        }
        for secret in secrets(&facts, folder) {
            match check(&disk, &secret, &facts) {
                Ok(()) => opened += 1,
                Err(problem) => wrong.push(format!("{name}: {problem}")),
            }
        }
        let other = SecretBytes::copy_of(b"another passphrase");
        if !facts["SHA256SUM"].is_empty() && !facts.contains_key("CLEARKEY_VMK_GUID") {
            let refused = check(&disk, &other, &facts).unwrap_err();
            println!("    {refused}");
            assert!(refused.contains("no protector"), "{refused}");
        }
    }
    println!("{opened} times opened or refused as it should be");
    assert!(opened > 0 && wrong.is_empty(), "{wrong:#?}");
}
