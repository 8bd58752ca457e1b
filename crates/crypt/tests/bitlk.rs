//! BitLocker volumes of a maker of our own.

mod bitlk_maker;

use blockyard_crypt::Error;
use blockyard_crypt::bitlk::Header;
use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::kdf::KdfLimits;
use blockyard_crypt::params::VolumePart;
use blockyard_crypt::secret::SecretBytes;

use bitlk_maker::{
    DISK_LEN, HEADER_AT, METADATA, Maker, PASSPHRASE, RECOVERY_KEY, Secret, plaintext,
    startup_key_file, with_crc,
};

fn secret(text: &str) -> SecretBytes {
    SecretBytes::copy_of(text.as_bytes())
}

/// The decrypted volume.
fn opened(disk: &[u8], secret: &SecretBytes) -> Result<Vec<u8>, Error> {
    let unlocked = Header::read(&disk)?.unlock(secret, &KdfLimits::default())?;
    let mut volume = Vec::new();
    for part in unlocked.parts(disk.len() as u64)? {
        match part {
            VolumePart::Zeros { len_sectors } => {
                volume.resize(volume.len() + len_sectors as usize * 512, 0);
            }
            VolumePart::Crypt(params) => {
                let start = params.data_offset_sectors as usize * 512;
                let len = params.len_sectors.unwrap() as usize * 512;
                let spec = CipherSpec::parse_line(&params.cipher).unwrap();
                let size = params.sector_size_bytes;
                let large = params.iv_large_sectors;
                let cipher = SectorCipher::new(&spec, params.key.as_slice(), size, large).unwrap();
                let mut data = disk[start..start + len].to_vec();
                cipher.decrypt_in_place(&mut data, params.iv_offset_sectors);
                volume.append(&mut data);
            }
        }
    }
    Ok(volume)
}

fn problem(disk: &[u8], text: &str) -> String {
    opened(disk, &secret(text)).unwrap_err().to_string()
}

/// Opens without a key derivation.
fn cheap() -> Maker {
    Maker { protectors: vec![Secret::ClearKey], ..Maker::default() }
}

#[test]
fn every_cipher_sector_size_and_layout_opens() {
    for method in 0x8000..=0x8005 {
        for sector_size in [512, 4096] {
            let disk = Maker { method, sector_size, ..cheap() }.disk();
            assert!(opened(&disk, &secret("")).unwrap() == plaintext(), "{method:x} {sector_size}");
        }
    }
    for maker in [
        Maker { is_to_go: true, ..cheap() },
        Maker { header_in_block: true, ..cheap() },
        Maker { sector_size: 0, ..cheap() },
    ] {
        let sector_size = maker.sector_size.max(512);
        let mut disk = Maker { sector_size, ..maker.clone() }.disk();
        disk[11..13].copy_from_slice(&maker.sector_size.to_le_bytes());
        assert!(opened(&disk, &secret("")).unwrap() == plaintext(), "{maker:?}");
        assert_eq!(Header::read(&disk).unwrap().info().to_go, maker.is_to_go);
    }
}

#[test]
fn each_secret_opens_its_protector_behind_others() {
    let protectors = vec![Secret::Tpm, Secret::StartupKey, Secret::RecoveryKey, Secret::Passphrase];
    let disk = Maker { protectors, ..Maker::default() }.disk();
    let file = SecretBytes::copy_of(&startup_key_file());
    let in_file = format!("{RECOVERY_KEY}\n");
    for secret in [secret(PASSPHRASE), secret(RECOVERY_KEY), secret(&in_file), file] {
        assert!(opened(&disk, &secret).unwrap() == plaintext());
    }
    assert!(!Header::read(&disk).unwrap().has_clear_key());
    for wrong in ["", "pass", &RECOVERY_KEY.replace("000077", "000088")] {
        let error = opened(&disk, &secret(wrong)).unwrap_err();
        assert!(matches!(error, Error::NoBitlk { .. }));
        let error = error.to_string();
        assert!(error.contains("TPM 05050505-") && error.contains("only Windows"), "{error}");
    }
    let mistyped = problem(&disk, &RECOVERY_KEY.replace("440000", "440001"));
    assert!(mistyped.contains("group 5 of the recovery key is mistyped"), "{mistyped}");
    let large = problem(&disk, &RECOVERY_KEY.replace("720885", "720896"));
    assert!(large.contains("group 2 of the recovery key is mistyped"), "{large}");
    let mut other = startup_key_file();
    other[16] ^= 1;
    let error = opened(&disk, &SecretBytes::copy_of(&other)).unwrap_err();
    assert!(matches!(error, Error::NoBitlk { .. }), "{error}");
    let mut damaged = startup_key_file();
    damaged[50] = 9;
    let error = opened(&disk, &SecretBytes::copy_of(&damaged)).unwrap_err().to_string();
    assert!(error.contains("startup key file is damaged"), "{error}");
}

#[test]
fn stretching_over_the_time_limit_is_not_tried() {
    let disk = Maker::default().disk();
    let limits = KdfLimits { seconds_max: 0, ..KdfLimits::default() };
    let error = Header::read(&disk).unwrap().unlock(&secret(PASSPHRASE), &limits).unwrap_err();
    assert!(error.to_string().contains("the time limit is used up"), "{error}");
}

#[test]
fn intact_copy_of_the_metadata_is_used() {
    let mut disk = cheap().disk();
    for (copy, at) in METADATA.into_iter().enumerate() {
        assert_eq!(Header::read(&disk).unwrap().notices().len(), copy);
        assert!(opened(&disk, &secret("")).unwrap() == plaintext());
        // Signature, version and checksum.
        disk[at + [0, 10, 200][copy]] ^= 1;
    }
    let error = problem(&disk, "");
    assert!(error.contains("all copies of its metadata are damaged"), "{error}");
    for reason in ["no signature", "its version is 3", "its checksum is wrong"] {
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn what_follows_the_volume_on_a_longer_disk_is_not_part_of_it() {
    let mut disk = cheap().disk();
    disk.extend([7; 8192]);
    assert!(opened(&disk, &secret("")).unwrap() == plaintext());
}

#[test]
fn metadata_that_windows_did_not_write_is_refused() {
    let maker = cheap();
    let whole = maker.block();
    let (block, validation) = whole.split_at(whole.len() - 88);
    let mut changed = block.to_vec();
    changed[100] = 5;
    let changed = with_crc(&changed, &validation[8..]);
    let mut disk = maker.disk();
    for at in METADATA {
        disk[at..at + changed.len()].copy_from_slice(&changed);
    }
    let error = problem(&disk, "");
    assert!(error.contains("changed by another program"), "{error}");
}

#[test]
fn unfinished_old_and_unknown_volumes_are_refused_by_name() {
    for (state, name) in [
        ([1, 1], "`decrypted`"),
        ([2, 1], "`being decrypted`"),
        ([2, 4], "`being encrypted`"),
        ([5, 1], "`decryption paused`"),
        ([5, 4], "`encryption paused`"),
        ([4, 2], "`unknown`"),
    ] {
        let disk = Maker { state, ..cheap() }.disk();
        let error = problem(&disk, "");
        assert!(error.contains(name) && error.contains("let Windows finish"), "{error}");
        assert_eq!(format!("`{}`", Header::read(&disk).unwrap().info().state), name);
    }
    let on_write = problem(&Maker { encrypts_on_write: true, ..cheap() }.disk(), "");
    assert!(on_write.contains("`encrypted on write`"), "{on_write}");
    let mut disk = cheap().disk();
    disk[160] ^= 1;
    assert!(problem(&disk, "").contains("`unknown layout"));
    disk[1] = 0x52;
    assert!(problem(&disk, "").contains("Windows Vista"));
    disk[0] = 0;
    assert!(problem(&disk, "").contains("no jump of BitLocker"));
    let mut disk = cheap().disk();
    disk[11..13].copy_from_slice(&1024_u16.to_le_bytes());
    assert!(problem(&disk, "").contains("sectors of 1024 bytes"));
    assert!(problem(&Maker { method: 0x8006, ..cheap() }.disk(), "").contains("cipher 0x8006"));
}

#[test]
fn disks_without_bitlocker_are_named() {
    let mut ntfs = vec![0; DISK_LEN];
    assert!(matches!(Header::read(&ntfs), Err(Error::NotBitlk(None))));
    assert!(matches!(Header::read(&vec![0; 100]), Err(Error::NotBitlk(None))));
    ntfs[3..11].copy_from_slice(b"NTFS    ");
    let error = Header::read(&ntfs).unwrap_err().to_string();
    assert!(error.contains("holds an NTFS file system"), "{error}");
    let mut fat = Maker { is_to_go: true, ..cheap() }.disk();
    fat[430] ^= 1;
    let error = Header::read(&fat).unwrap_err().to_string();
    assert!(error.contains("holds a FAT file system"), "{error}");
}

#[test]
fn metadata_at_impossible_places_is_refused() {
    for (places, text) in [
        ([65_536, 65_536 + 512, 458_752], "overlap"),
        ([65_536, 4096, 458_752], "overlap"),
        ([65_536, 262_145, 458_752], "no whole sectors"),
        ([65_536, 262_144, DISK_LEN as u64 - 512], "truncated"),
        ([65_536, 262_144, u64::MAX - 511], "truncated"),
    ] {
        let disk = Maker { metadata: places, ..cheap() }.disk();
        let error = problem(&disk, "");
        assert!(error.contains(text), "{error}");
    }
    let moved = Maker { metadata: [66_048, 262_144, 458_752], ..cheap() };
    let mut disk = moved.disk();
    disk.copy_within(65_536..HEADER_AT - 512, 66_048);
    disk[176..184].copy_from_slice(&262_144_u64.to_le_bytes());
    let error = problem(&disk, "");
    assert!(error.contains("says that it is at"), "{error}");
    let disk = cheap().disk();
    let header = Header::read(&&disk[..DISK_LEN - 512]).unwrap();
    assert!(header.notices()[0].contains("by its metadata"), "{:?}", header.notices());
}

#[test]
fn facts_are_those_of_the_metadata() {
    let protectors = vec![Secret::Tpm, Secret::RecoveryKey];
    let disk = Maker { protectors, method: 0x8001, ..Maker::default() }.disk();
    let header = Header::read(&disk).unwrap();
    let info = header.info();
    assert_eq!((info.cipher.as_str(), info.key_bits), ("aes-cbc-elephant", 512));
    assert_eq!(info.description.as_deref(), Some("PC E: 1/2/2020"));
    // 30 December 2020, 00:00 UTC.
    assert_eq!(info.created_unix_s, 1_609_286_400);
    let kinds: Vec<_> = info.protectors.iter().map(|it| (it.kind.as_str(), it.supported)).collect();
    assert_eq!(kinds, [("TPM", false), ("recovery key", true)]);
    let text = header.to_string();
    assert!(text.contains("TPM \"Key\", not supported"), "{text}");
}
