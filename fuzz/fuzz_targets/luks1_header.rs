//! The LUKS1 header: the input is the start of an image, with the magic put right.
#![no_main]

use blockyard_crypt::luks::Header;
use blockyard_crypt::secret::SecretBytes;
use libfuzzer_sys::fuzz_target;

const MAGIC: &[u8; 8] = b"LUKS\xba\xbe\0\x01";

fuzz_target!(|input: &[u8]| {
    let mut image = input.to_vec();
    if let Some(start) = image.get_mut(..MAGIC.len()) {
        start.copy_from_slice(MAGIC);
    }
    if let Ok((header, _)) = Header::read(&image) {
        let _ = format!("{:?}", header.info());
        let _ = header.to_string();
        for device_len_bytes in [0, 1 << 20, u64::MAX] {
            let key = SecretBytes::zeroed(64);
            let _ = header.crypt_params(&key, device_len_bytes, false);
        }
    }
});
