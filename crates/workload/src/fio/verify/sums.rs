//! Checksums of `verify` as fio 3.33 stores them: CRCs without the final inversion, SHA-1 as
//! native-endian words.

use md5::Md5;
use sha1::{Digest, Sha1};
use sha2::{Sha256, Sha512};

/// `verify`: method of verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// `meta`: the header only.
    Meta,
    /// `md5`.
    Md5,
    /// `crc64`.
    Crc64,
    /// `crc32`.
    Crc32,
    /// `crc32c`.
    Crc32c,
    /// `crc16`.
    Crc16,
    /// `sha1`.
    Sha1,
    /// `sha256`.
    Sha256,
    /// `sha512`.
    Sha512,
    /// `xxhash`: 32 bits.
    Xxhash,
    /// `pattern`: byte by byte, without a header.
    Pattern,
    /// `null`: no verification.
    Null,
}

impl Sum {
    /// All methods.
    pub const ALL: [Self; 12] = [
        Self::Meta,
        Self::Md5,
        Self::Crc64,
        Self::Crc32,
        Self::Crc32c,
        Self::Crc16,
        Self::Sha1,
        Self::Sha256,
        Self::Sha512,
        Self::Xxhash,
        Self::Pattern,
        Self::Null,
    ];

    /// The option's value.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Md5 => "md5",
            Self::Crc64 => "crc64",
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::Crc16 => "crc16",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Xxhash => "xxhash",
            Self::Pattern => "pattern",
            Self::Null => "null",
        }
    }

    /// Whether each byte of the data is read for it.
    pub(in super::super) fn covers_data(self) -> bool {
        !matches!(self, Self::Meta | Self::Null)
    }

    pub(super) fn has_header(self) -> bool {
        !matches!(self, Self::Pattern | Self::Null)
    }

    /// Number in the header.
    pub(super) fn kind(self) -> u16 {
        match self {
            Self::Meta => 1,
            Self::Md5 => 2,
            Self::Crc64 => 3,
            Self::Crc32 => 4,
            Self::Crc32c => 5,
            Self::Crc16 => 7,
            Self::Sha256 => 9,
            Self::Sha512 => 10,
            Self::Xxhash => 15,
            Self::Sha1 => 16,
            Self::Pattern | Self::Null => 0,
        }
    }

    /// Length in the header.
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Meta | Self::Pattern | Self::Null => 0,
            Self::Crc16 => 2,
            Self::Crc32 | Self::Crc32c | Self::Xxhash => 4,
            Self::Crc64 => 8,
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Checksum of these bytes.
    pub(super) fn of(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Meta | Self::Pattern | Self::Null => Vec::new(),
            Self::Md5 => Md5::digest(bytes).to_vec(),
            Self::Crc64 => crc64(bytes).to_le_bytes().to_vec(),
            Self::Crc32 => crc32(bytes).to_le_bytes().to_vec(),
            Self::Crc32c => crc32c(bytes).to_le_bytes().to_vec(),
            Self::Crc16 => crc16(bytes).to_le_bytes().to_vec(),
            Self::Sha1 => {
                let mut digest = Sha1::digest(bytes).to_vec();
                digest.chunks_mut(4).for_each(<[u8]>::reverse);
                digest
            }
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
            Self::Xxhash => xxh32(bytes, 1).to_le_bytes().to_vec(),
        }
    }
}

/// Table of a right-shifting CRC.
const fn reflected(polynomial: u64) -> [u64; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u64;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (polynomial * (value & 1));
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

/// Table of a left-shifting CRC-32.
const fn straight(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = (index as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            value = (value << 1) ^ (polynomial * (value >> 31));
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
}

const CRC32C: [u64; 256] = reflected(0x82f6_3b78);
const CRC64: [u64; 256] = reflected(0x95ac_9329_ac4b_c9b5);
const CRC16: [u64; 256] = reflected(0xa001);
const CRC32: [u32; 256] = straight(0x04c1_1db7);

fn shifted(table: &[u64; 256], start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |crc, byte| (crc >> 8) ^ table[(crc as u8 ^ byte) as usize])
}

/// CRC-32C (Castagnoli), without the final inversion.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    shifted(&CRC32C, u32::MAX.into(), bytes) as u32
}

fn crc64(bytes: &[u8]) -> u64 {
    shifted(&CRC64, 0, bytes)
}

fn crc16(bytes: &[u8]) -> u16 {
    shifted(&CRC16, 0, bytes) as u16
}

fn crc32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC32[((crc >> 24) as u8 ^ byte) as usize])
}

/// XXH32 (Yann Collet's specification).
fn xxh32(bytes: &[u8], seed: u32) -> u32 {
    const PRIMES: [u32; 5] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d, 0x27d4_eb2f, 0x1656_67b1];
    let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let round = |lane: u32, word: u32| {
        lane.wrapping_add(word.wrapping_mul(PRIMES[1])).rotate_left(13).wrapping_mul(PRIMES[0])
    };
    let stripes = bytes.chunks_exact(16);
    let rest = stripes.remainder();
    let mut hash = seed.wrapping_add(PRIMES[4]);
    if bytes.len() >= 16 {
        let start = seed.wrapping_add(PRIMES[0]);
        let mut lanes = [
            start.wrapping_add(PRIMES[1]),
            seed.wrapping_add(PRIMES[1]),
            seed,
            seed.wrapping_sub(PRIMES[0]),
        ];
        for stripe in stripes {
            for (lane, bytes) in lanes.iter_mut().zip(stripe.chunks_exact(4)) {
                *lane = round(*lane, word(bytes));
            }
        }
        let turned = lanes.iter().zip([1, 7, 12, 18]).map(|(lane, by)| lane.rotate_left(by));
        hash = turned.fold(0, u32::wrapping_add);
    }
    hash = hash.wrapping_add(bytes.len() as u32);
    let words = rest.chunks_exact(4);
    let tail = words.remainder();
    for bytes in words {
        hash = hash.wrapping_add(word(bytes).wrapping_mul(PRIMES[2]));
        hash = hash.rotate_left(17).wrapping_mul(PRIMES[3]);
    }
    for byte in tail {
        hash = hash.wrapping_add(u32::from(*byte).wrapping_mul(PRIMES[4]));
        hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    hash = (hash ^ (hash >> 15)).wrapping_mul(PRIMES[1]);
    hash = (hash ^ (hash >> 13)).wrapping_mul(PRIMES[2]);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the CRC catalogues and of the xxHash specification.
    #[test]
    fn sums_are_the_published_ones() {
        let digits = b"123456789";
        assert_eq!(crc32c(digits) ^ u32::MAX, 0xe306_9283);
        assert_eq!(crc16(digits), 0xbb3d);
        assert_eq!(crc64(digits), 0xe9c6_d914_c4b8_d9ca);
        assert_eq!(xxh32(b"", 0), 0x02cc_5d05);
        assert_eq!(xxh32(b"Nobody inspects the spammish repetition", 0), 0xe229_3b2f);
    }
}
