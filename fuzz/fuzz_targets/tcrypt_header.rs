//! The header of a TrueCrypt or VeraCrypt volume. The input is the decrypted part without its keys,
//! and may have two more bytes: the number of a cipher, and a bit for the magic. Magic and
//! checksums are put right. The key derivation and the search for the cipher are left out: they
//! take most of a second, and no byte of the header reaches them.
#![no_main]

use blockyard_crypt::tcrypt::{PLAIN_LEN_BYTES, Unlocked, VolumeKind};
use libfuzzer_sys::fuzz_target;

const FIELDS_LEN: usize = 188;

fuzz_target!(|input: &[u8]| {
    let (fields, rest) = input.split_at(input.len().min(FIELDS_LEN));
    let [cipher, magic] = rest.first_chunk().copied().unwrap_or_default();
    let mut plain = [0; PLAIN_LEN_BYTES];
    plain[..fields.len()].copy_from_slice(fields);
    plain[..4].copy_from_slice([b"TRUE", b"VERA"][usize::from(magic & 1)]);
    plain[192..448].copy_from_slice(&[7; 256]);
    let keys_sum = crc32(&plain[192..448]);
    plain[8..12].copy_from_slice(&keys_sum.to_be_bytes());
    let sum = crc32(&plain[..FIELDS_LEN]);
    plain[188..192].copy_from_slice(&sum.to_be_bytes());
    for kind in [VolumeKind::Normal, VolumeKind::Hidden, VolumeKind::System] {
        if let Ok(opened) = Unlocked::of_decrypted(&plain, kind, cipher) {
            check(&opened.expect("magic and checksums are right"));
        }
    }
});

fn check(unlocked: &Unlocked) {
    let _ = unlocked.header.to_string();
    let _ = unlocked.header.info().to_string();
    for device_len in [0, 1 << 20, u64::MAX] {
        let Ok(params) = unlocked.crypt_params(device_len) else { continue };
        let len = params.len_sectors.expect("the header has a length");
        let end = params.data_offset_sectors + len;
        assert!(end <= device_len / 512);
        let mut outer = params;
        (outer.data_offset_sectors, outer.len_sectors) = (0, None);
        let sectors = unlocked.sectors_in(&outer, device_len).expect("the whole device has it");
        for range in sectors.ranges() {
            assert!(range.start < range.end && range.end <= device_len.div_ceil(512));
        }
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}
