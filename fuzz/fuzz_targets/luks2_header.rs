//! The LUKS2 header. An input that begins with `{` is the metadata of a header whose binary part is
//! well; any other is a whole image. In both, checksums are put right: a reader must judge what
//! they cover.
#![no_main]

use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::luks::Header;
use blockyard_crypt::secret::SecretBytes;
use libfuzzer_sys::fuzz_target;

const HEADER_BYTES: usize = 16 << 10;
const BINARY_BYTES: usize = 4096;
const IMAGE_BYTES: usize = 64 << 10;

fuzz_target!(|input: &[u8]| {
    let is_json = input.first() == Some(&b'{');
    let mut image = vec![0; if is_json { 2 * HEADER_BYTES } else { IMAGE_BYTES }];
    if is_json {
        binary(&mut image);
        let len = input.len().min(HEADER_BYTES - BINARY_BYTES);
        image[BINARY_BYTES..BINARY_BYTES + len].copy_from_slice(&input[..len]);
    } else {
        let len = input.len().min(IMAGE_BYTES);
        image[..len].copy_from_slice(&input[..len]);
        image[..8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
    }
    seal(&mut image);
    if let Ok((header, notices)) = Header::read(&image) {
        let _ = format!("{:?}", header.info());
        let _ = header.to_string();
        for notice in &notices {
            let _ = notice.to_string();
        }
        for device_len_bytes in [0, IMAGE_BYTES as u64, 1 << 30, u64::MAX] {
            let key = SecretBytes::zeroed(64);
            let _ = header.crypt_params(&key, device_len_bytes, false);
            let _ = header.crypt_params(&key, device_len_bytes, true);
        }
    }
});

/// A primary binary header as cryptsetup writes it, but for its checksum: with SHA-256, checksums
/// take three quarters of the time on a CPU without instructions for it.
fn binary(image: &mut [u8]) {
    image[..8].copy_from_slice(b"LUKS\xba\xbe\0\x02");
    image[8..16].copy_from_slice(&(HEADER_BYTES as u64).to_be_bytes());
    image[16..24].copy_from_slice(&3_u64.to_be_bytes());
    image[72..83].copy_from_slice(b"blake2b-512");
    image[168..204].copy_from_slice(b"1c6ff3d8-46a2-4a53-9c31-8f4ba3c9a3d5");
}

/// The checksum of the primary header, of the algorithm and over the length that it names itself.
fn seal(image: &mut [u8]) {
    let named = u64::from_be_bytes(image[8..16].try_into().expect("eight bytes"));
    let len = usize::try_from(named).unwrap_or(usize::MAX).clamp(BINARY_BYTES, image.len());
    let name = String::from_utf8_lossy(&image[72..104]);
    let hash = HashAlgorithm::parse(name.trim_end_matches('\0')).unwrap_or(HashAlgorithm::Sha256);
    image[448..512].fill(0);
    let mut sum = vec![0; hash.digest_len_bytes()];
    hash.digest(&[&image[..len]], &mut sum);
    image[448..448 + sum.len()].copy_from_slice(&sum);
}
