//! Makes small TrueCrypt and VeraCrypt volumes, with the sector ciphers and key derivations of this
//! repository. The format is that of VeraCrypt's documentation.

#![allow(dead_code, reason = "each test uses a part")]

use std::ops::Range;

use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::{Kdf, KdfLimits};

/// Length of a disk.
pub(crate) const DISK_LEN: usize = 400 << 10;
/// Usual start of the data.
pub(crate) const AREA: usize = 128 << 10;
/// Usual length of a volume.
pub(crate) const VOLUME_LEN: u64 = 64 << 10;

/// Data of an outer volume with a hidden one, on its disk.
pub(crate) const OUTER: Range<usize> = 128 << 10..272 << 10;
/// Data of the hidden volume in it.
pub(crate) const HIDDEN: Range<usize> = 176 << 10..240 << 10;

/// A volume to write.
pub(crate) struct Written<'a> {
    pub(crate) magic: &'a [u8; 4],
    pub(crate) version: u16,
    pub(crate) names: &'a [&'a str],
    pub(crate) mode: &'a str,
    pub(crate) kdf: Kdf,
    /// Place of the header.
    pub(crate) at: usize,
    /// Place of the data.
    pub(crate) data: Range<usize>,
    pub(crate) hidden_len: u64,
    pub(crate) encrypted_len: u64,
}

impl Default for Written<'_> {
    fn default() -> Self {
        Self {
            magic: b"TRUE",
            version: 5,
            names: &["aes"],
            mode: "xts-plain64",
            kdf: pbkdf2(HashAlgorithm::Sha512, 1000),
            at: 0,
            data: AREA..AREA + VOLUME_LEN as usize,
            hidden_len: 0,
            encrypted_len: VOLUME_LEN,
        }
    }
}

pub(crate) fn pbkdf2(hash: HashAlgorithm, iterations: u32) -> Kdf {
    Kdf::Pbkdf2 { hash, iterations }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}

/// The keys of an area for a cipher after the other.
pub(crate) fn keys(names: usize, mode: &str, area: &[u8]) -> Vec<Vec<u8>> {
    let part = |at: usize, len: usize| area[at..at + len].to_vec();
    (0..names)
        .map(|index| match mode {
            "xts-plain64" => [part(32 * index, 32), part(32 * (names + index), 32)].concat(),
            _ => [part(32 * (index + 1), 32), part(0, 16)].concat(),
        })
        .collect()
}

impl Written<'_> {
    /// One cipher after the other, first to last.
    fn encrypt(&self, area: &[u8], data: &mut [u8], sector: u64) {
        for (name, key) in self.names.iter().zip(keys(self.names.len(), self.mode, area)) {
            let spec = CipherSpec::parse(&format!("{name}-{}", self.mode)).unwrap();
            let cipher = SectorCipher::new(&spec, &key, 512, false).unwrap();
            cipher.encrypt_in_place(data, sector);
        }
    }

    /// Area of the volume's keys.
    pub(crate) fn area() -> Vec<u8> {
        (0..256_u32).map(|at| (at * 7 + 3) as u8).collect()
    }

    /// A disk with this header and, in its volume, sectors with their number.
    pub(crate) fn disk(&self, password: &[u8]) -> Vec<u8> {
        let mut disk = vec![0x33; DISK_LEN];
        self.write_to(&mut disk, password);
        disk
    }

    /// The header before its encryption, in a sector.
    pub(crate) fn header(&self) -> Vec<u8> {
        let mut header = vec![0; 512];
        header[..4].copy_from_slice(self.magic);
        header[4..6].copy_from_slice(&self.version.to_be_bytes());
        header[6..8].copy_from_slice(&0x0700_u16.to_be_bytes());
        header[8..12].copy_from_slice(&crc32(&Self::area()).to_be_bytes());
        header[28..36].copy_from_slice(&self.hidden_len.to_be_bytes());
        header[36..44].copy_from_slice(&(self.data.len() as u64).to_be_bytes());
        header[44..52].copy_from_slice(&(self.data.start as u64).to_be_bytes());
        header[52..60].copy_from_slice(&self.encrypted_len.to_be_bytes());
        header[64..68].copy_from_slice(&512_u32.to_be_bytes());
        header[192..448].copy_from_slice(&Self::area());
        let sum = crc32(&header[..188]);
        header[188..192].copy_from_slice(&sum.to_be_bytes());
        header
    }

    /// Writes header and data.
    pub(crate) fn write_to(&self, disk: &mut [u8], password: &[u8]) {
        let mut header = self.header();
        let salt = [0x5c; 64];
        let mut key = vec![0; 192];
        self.kdf.derive(password, &salt, &mut key, &KdfLimits::default()).unwrap();
        self.encrypt(&key, &mut header, 0);
        disk[self.at..self.at + 64].copy_from_slice(&salt);
        disk[self.at + 64..self.at + 512].copy_from_slice(&header[..448]);
        let mut data = plaintext_of(self.data.len());
        let first = if self.mode == "xts-plain64" { self.data.start as u64 / 512 } else { 0 };
        self.encrypt(&Self::area(), &mut data, first);
        disk[self.data.clone()].copy_from_slice(&data);
    }
}

/// The plaintext of a volume of the usual length.
pub(crate) fn plaintext() -> Vec<u8> {
    plaintext_of(VOLUME_LEN as usize)
}

/// The plaintext of a volume of this length.
pub(crate) fn plaintext_of(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512 + at % 13) as u8).collect()
}

/// An outer volume with a hidden one, each with its passphrase.
pub(crate) fn with_hidden(outer: &[u8], hidden: &[u8]) -> Vec<u8> {
    let len = |range: &Range<usize>| range.len() as u64;
    let volume = Written { data: OUTER, encrypted_len: len(&OUTER), ..Written::default() };
    let mut disk = volume.disk(outer);
    let hidden_len = len(&HIDDEN);
    let volume = Written { at: 65_536, data: HIDDEN, hidden_len, ..Written::default() };
    volume.write_to(&mut disk, hidden);
    disk
}
