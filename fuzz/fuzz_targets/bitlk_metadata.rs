//! The metadata of a BitLocker volume. The input is the fields of a block from its state on, then
//! its first entries. A clear key and a volume key follow, and all checksums are put right.
#![no_main]

use std::sync::LazyLock;

use aes::Aes256;
use blockyard_crypt::bitlk::Header;
use blockyard_crypt::kdf::KdfLimits;
use blockyard_crypt::params::VolumePart;
use blockyard_crypt::secret::SecretBytes;
use ccm::Ccm;
use ccm::aead::consts::{U12, U16};
use ccm::aead::inout::InOutBuf;
use ccm::aead::{AeadInOut, KeyInit};
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};

const DISK_LEN: usize = 256 << 10;
const AT: usize = 64 << 10;
const FIELDS: usize = 12;
const ENTRIES: usize = 112;
const GUID: &[u8; 16] = b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01";
const KEY: [u8; 32] = [7; 32];

/// The clear key and the volume key.
static KEYS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let properties = [key_value(&KEY), encrypted(0, &key_value(&KEY))].concat();
    let protector = datum(2, 8, &[&[0; 28][..], &properties].concat());
    [protector, encrypted(3, &key_value(&[9; 64]))].concat()
});

fuzz_target!(|input: &[u8]| {
    let (fields, entries) = input.split_at(input.len().min(ENTRIES - FIELDS));
    let entries = &entries[..entries.len().min(32 << 10)];
    let metadata_len = 48 + entries.len() + KEYS.len();
    let mut block = vec![0; ENTRIES];
    block[FIELDS..FIELDS + fields.len()].copy_from_slice(fields);
    block.extend(entries);
    block.extend(&*KEYS);
    block.resize(block.len().next_multiple_of(16), 0);
    let units = u16::try_from(block.len() / 16).expect("it is short");
    block[..8].copy_from_slice(b"-FVE-FS-");
    block[8..10].copy_from_slice(&units.to_le_bytes());
    block[10..12].copy_from_slice(&[2, 0]);
    block[32..40].copy_from_slice(&(AT as u64).to_le_bytes());
    block[64..68].copy_from_slice(&u32::try_from(metadata_len).expect("short").to_le_bytes());
    let mut hash = vec![44, 0, 0, 0, 1, 0, 1, 0, 5, 0x20, 0, 0];
    hash.extend(Sha256::digest(&block));
    let validation =
        [&[88, 0, 2, 0][..], &crc32(&block).to_le_bytes(), &encrypted(0, &hash)].concat();
    block.extend(validation);
    let mut disk = vec![0; DISK_LEN];
    disk[..11].copy_from_slice(b"\xeb\x58\x90-FVE-FS-");
    disk[160..176].copy_from_slice(GUID);
    disk[176..184].copy_from_slice(&(AT as u64).to_le_bytes());
    disk[AT..AT + block.len()].copy_from_slice(&block);
    let Ok(header) = Header::read(&disk) else { return };
    let _ = header.to_string();
    let _ = header.info();
    let limits = KdfLimits { seconds_max: 0, ..KdfLimits::default() };
    let Ok(unlocked) = header.unlock(&SecretBytes::copy_of(b""), &limits) else { return };
    for device_len in [0, DISK_LEN as u64, 1 << 40, u64::MAX] {
        if let Ok(parts) = unlocked.parts(device_len) {
            check(&parts, device_len.min(header.info().volume_len_bytes) / 512);
        }
    }
});

/// All parts end at `end`, or before it by less than a sector of 4096 bytes.
fn check(parts: &[VolumePart], end: u64) {
    let mut volume_len = 0;
    for part in parts {
        let len = match part {
            VolumePart::Zeros { len_sectors } => *len_sectors,
            VolumePart::Crypt(params) => {
                let len = params.len_sectors.expect("every part has a length");
                assert!(params.data_offset_sectors + len <= end);
                len
            }
        };
        assert!(len > 0);
        volume_len += len;
    }
    assert!(volume_len <= end && end - volume_len < 8);
}

fn datum(entry: u16, value: u16, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + data.len()).expect("short");
    [[len, entry, value, 1].map(u16::to_le_bytes).as_flattened(), data].concat()
}

fn key_value(key: &[u8]) -> Vec<u8> {
    datum(0, 1, &[&[0; 4][..], key].concat())
}

fn encrypted(entry: u16, plain: &[u8]) -> Vec<u8> {
    let cipher = Ccm::<Aes256, U16, U12>::new(&KEY.into());
    let mut bytes = plain.to_vec();
    let nonce = [1; 12];
    let buffer = InOutBuf::from(bytes.as_mut_slice());
    let tag = cipher.encrypt_inout_detached(&nonce.into(), &[], buffer).expect("it is short");
    datum(entry, 5, &[&nonce[..], &tag, &bytes].concat())
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}
