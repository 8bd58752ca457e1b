//! The header of a TrueCrypt volume. The input is the decrypted part without its keys; magic and
//! checksums are put right, and it is encrypted with a key that the cheapest derivation gives.
#![no_main]

use std::sync::LazyLock;

use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::{Kdf, KdfLimits};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::tcrypt::{self, Options, VolumeKind};
use libfuzzer_sys::fuzz_target;

const FIELDS_LEN: usize = 188;
const SALT: [u8; 64] = [0; 64];

static CIPHER: LazyLock<SectorCipher> = LazyLock::new(|| {
    let kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Ripemd160, iterations: 2000 };
    let mut key = [0; 192];
    kdf.derive(b"p", &SALT, &mut key, &KdfLimits::default()).expect("cheap");
    let spec = CipherSpec::parse("aes-xts-plain64").expect("a known cipher");
    SectorCipher::new(&spec, &key[..64], 512, false).expect("its key size")
});

fuzz_target!(|input: &[u8]| {
    let mut header = vec![0; 512];
    let len = input.len().min(FIELDS_LEN);
    header[..len].copy_from_slice(&input[..len]);
    header[..4].copy_from_slice(b"TRUE");
    header[192..448].copy_from_slice(&[7; 256]);
    let keys_sum = crc32(&header[192..448]);
    header[8..12].copy_from_slice(&keys_sum.to_be_bytes());
    let sum = crc32(&header[..FIELDS_LEN]);
    header[188..192].copy_from_slice(&sum.to_be_bytes());
    CIPHER.encrypt_in_place(&mut header, 0);
    let mut disk = vec![0; 256 << 10];
    for at in [0, 65_536] {
        disk[at..at + 64].copy_from_slice(&SALT);
        disk[at + 64..at + 512].copy_from_slice(&header[..448]);
    }
    // No time: the derivations of VeraCrypt are over the limit.
    let limits = KdfLimits { seconds_max: 0, memory_kib_max: 0, ..KdfLimits::default() };
    for kind in [VolumeKind::Normal, VolumeKind::Hidden] {
        let options = Options { kind, limits, ..Options::default() };
        let opened = tcrypt::unlock(&disk, &SecretBytes::copy_of(b"p"), &options);
        if let Ok(unlocked) = opened {
            let _ = unlocked.header.to_string();
            let _ = unlocked.header.info().to_string();
            for device_len in [0, 1 << 20, u64::MAX] {
                if let Ok(params) = unlocked.crypt_params(device_len) {
                    let len = params.len_sectors.expect("the header has a length");
                    let end = params.data_offset_sectors + len;
                    assert!(end <= device_len / 512);
                }
            }
        }
    }
});

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}
