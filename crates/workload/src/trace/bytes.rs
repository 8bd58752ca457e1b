//! Encodings of blocks and records: varints (LEB128), zigzag for signed ones, and the CRC-32 of
//! zlib and Ethernet (polynomial 0xedb88320, reflected).

/// Appends a varint: seven bits a byte, the lowest first.
pub(super) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends the signed distance between two numbers.
pub(super) fn put_distance(out: &mut Vec<u8>, from: u64, to: u64) {
    let distance = to.wrapping_sub(from).cast_signed();
    put_varint(out, ((distance << 1) ^ (distance >> 63)).cast_unsigned());
}

/// Takes a varint from the front; `None` unless it is below 2^64.
pub(super) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if (bits << shift) >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Takes a signed distance from the front and returns the number that it leads to.
pub(super) fn take_distance(bytes: &mut &[u8], from: u64) -> Option<u64> {
    let zigzag = take_varint(bytes)?;
    Some(from.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg()))
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// CRC-32 of the concatenated parts.
pub(super) fn crc32(parts: &[&[u8]]) -> u32 {
    let mut crc = !0u32;
    for byte in parts.iter().copied().flatten() {
        crc = (crc >> 8) ^ CRC_TABLE[usize::from(crc as u8 ^ byte)];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_that_of_zlib() {
        assert_eq!(crc32(&[b"1234", b"56789"]), 0xcbf4_3926);
        assert_eq!(crc32(&[]), 0);
    }

    #[test]
    fn numbers_come_back_and_longer_ones_are_refused() {
        for number in [0, 1, 127, 128, 1 << 35, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            put_distance(&mut bytes, 5, number);
            put_distance(&mut bytes, number, 5);
            let mut rest = &bytes[..];
            assert_eq!(take_varint(&mut rest), Some(number));
            assert_eq!(take_distance(&mut rest, 5), Some(number));
            assert_eq!(take_distance(&mut rest, number), Some(5));
            assert!(rest.is_empty());
            assert_eq!(take_varint(&mut &bytes[..0]), None);
        }
        assert_eq!(take_varint(&mut &[0xff; 9][..]), None, "it does not end");
        let mut long = [0xff; 10];
        long[9] = 2;
        assert_eq!(take_varint(&mut &long[..]), None, "2^64 and more");
        long[9] = 1;
        assert_eq!(take_varint(&mut &long[..]), Some(u64::MAX));
    }
}
