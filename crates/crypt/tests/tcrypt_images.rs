//! The volumes of cryptsetup's own tests (`tests/tcrypt-images.tar.xz` of its repository), in the
//! folder that `BLOCKYARD_TCRYPT_IMAGES` names. Without it the test does nothing: the images are
//! not part of this repository. Passphrases and the file system's UUID are those of cryptsetup's
//! `tests/tcrypt-compat-test`.

use std::path::Path;

use blockyard_crypt::Error;
use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::tcrypt::{self, Options, VolumeKind};

/// The volume serial number of the FAT file systems, DEAD-BABE.
const SERIAL: [u8; 4] = [0xbe, 0xba, 0xad, 0xde];
/// The volume serial number of the file systems in hidden volumes, CAFE-BABE.
const HIDDEN_SERIAL: [u8; 4] = [0xbe, 0xba, 0xfe, 0xca];

/// Passphrase and options of an image, from its name.
fn of_name(name: &str, folder: &Path) -> (SecretBytes, Options) {
    let mut options = Options::default();
    let mut passphrase = "aaaaaaaaaaaa".to_owned();
    if name.starts_with("vcpim") {
        let pim = name.trim_start_matches("vcpim_1_").split('-').next().unwrap();
        options.pim = Some(pim.parse().unwrap());
        passphrase = "c".repeat(20);
    }
    if name.starts_with("tc") {
        // Time for TrueCrypt's derivations only.
        options.limits.seconds_max = 0;
    }
    if name.starts_with("sys") {
        options.kind = VolumeKind::System;
    }
    if name.starts_with("vck") || name.starts_with("tck") {
        let read = |file| SecretBytes::copy_of(&std::fs::read(folder.join(file)).unwrap());
        options.keyfiles = vec![read("keyfile1"), read("keyfile2")];
        if name.contains("nopw") {
            passphrase.clear();
        } else if name.contains("pw72") {
            passphrase = ["a", "b", "c", "d", "e", "f"].map(|letter| letter.repeat(12)).concat();
        }
    }
    (SecretBytes::copy_of(passphrase.as_bytes()), options)
}

/// The first sector of the volume, decrypted.
fn first_sector(
    disk: &[u8],
    passphrase: &SecretBytes,
    options: &Options,
) -> Result<Vec<u8>, Error> {
    let unlocked = tcrypt::unlock(&disk, passphrase, options)?;
    // Some images are shortened.
    let len = disk.len() as u64;
    let params = unlocked.crypt_params(len).or_else(|_| unlocked.crypt_params(1 << 40))?;
    let spec = CipherSpec::parse_line(&params.cipher).unwrap();
    let cipher = SectorCipher::new(&spec, params.key.as_slice(), 512, false).unwrap();
    let start = usize::try_from(params.data_offset_sectors).unwrap() * 512;
    let mut sector = disk.get(start..start + 512).unwrap_or(&[0; 512]).to_vec();
    cipher.decrypt_in_place(&mut sector, params.iv_offset_sectors);
    Ok(sector)
}

fn is_unsupported(name: &str) -> bool {
    ["-cbc-", "kuznyechik", "stribog"].iter().any(|word| name.contains(word))
}

#[test]
fn volumes_of_cryptsetups_tests_open_except_those_that_are_not_supported() {
    let Some(folder) = std::env::var_os("BLOCKYARD_TCRYPT_IMAGES") else { return };
    let folder = Path::new(&folder);
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains('-'))
        .collect();
    names.sort();
    let mut wrong = Vec::new();
    let mut opened = 0;
    for name in &names {
        let disk = std::fs::read(folder.join(name)).unwrap();
        let (passphrase, options) = of_name(name, folder);
        let hidden = (
            SecretBytes::copy_of(b"bbbbbbbbbbbb"),
            Options { kind: VolumeKind::Hidden, ..options.clone() },
        );
        let mut tries = vec![(passphrase, options)];
        if name.ends_with("-hidden") {
            tries.push(hidden);
        }
        for (passphrase, options) in tries {
            let is_hidden = options.kind == VolumeKind::Hidden;
            let serial = if is_hidden { HIDDEN_SERIAL } else { SERIAL };
            match (is_unsupported(name), first_sector(&disk, &passphrase, &options)) {
                (true, Err(Error::NoTcrypt { .. })) => {}
                (false, Ok(sector)) if options.kind == VolumeKind::System => {
                    opened += 1;
                    println!("{name}: header opens; {:02x?}", &sector[..sector.len().min(16)]);
                }
                (false, Ok(sector))
                    if [0x27, 0x43].iter().any(|at| sector[*at..].starts_with(&serial)) =>
                {
                    opened += 1;
                }
                (_, result) => wrong.push(format!("{name} {:?}: {:02x?}", options.kind, result)),
            }
        }
    }
    println!("{} images, {opened} volumes opened", names.len());
    assert!(wrong.is_empty() && !names.is_empty(), "{wrong:#?}");
}
