//! CRC-32 of ISO 3309, with the reflected polynomial that GPT, TrueCrypt and the TCW IV use.
//!
//! It is computed bit by bit, because table look-ups would depend on secrets: a TrueCrypt header
//! has the checksum of its keys.

const REFLECTED: u32 = 0xedb8_8320;

/// The register after this many more bits, without the inversions at both ends.
pub(crate) fn shift(register: u32, bits: u32) -> u32 {
    (0..bits).fold(register, |crc, _| (crc >> 1) ^ (REFLECTED * (crc & 1)))
}

/// The checksum of `bytes`.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| shift(crc ^ u32::from(*byte), 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_value_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }
}
