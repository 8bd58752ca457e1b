//! Makes small BitLocker volumes, with the cryptography of OpenSSL and the sector ciphers of this
//! repository. The format is that of libbde's documentation.

#![allow(dead_code, reason = "each test uses a part")]

use std::sync::LazyLock;

use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use openssl::sha::sha256;

/// Length of the disk and of the volume.
pub(crate) const DISK_LEN: usize = 768 << 10;
/// The places of the metadata blocks.
pub(crate) const METADATA: [usize; 3] = [64 << 10, 256 << 10, 448 << 10];
/// Length of a metadata area.
pub(crate) const AREA_LEN: usize = 64 << 10;
/// The place of the volume's first bytes: right after the first metadata.
pub(crate) const HEADER_AT: usize = 128 << 10;
/// Their number.
pub(crate) const HEADER_LEN: usize = 8192;
/// The passphrase of [`Secret::Passphrase`]; not all of its letters are ASCII.
pub(crate) const PASSPHRASE: &str = "pass wört 🔑";
/// The recovery key of [`Secret::RecoveryKey`].
pub(crate) const RECOVERY_KEY: &str = "013574-720885-000000-000077-440000-000121-244442-597531";
/// The same as numbers of 16 bits.
const RECOVERY_PARTS: [u16; 8] = [1234, 65535, 0, 7, 40000, 11, 22222, 54321];

const NORMAL: &[u8; 16] = b"\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01";
const ENCRYPT_ON_WRITE: &[u8; 16] =
    b"\x3b\x4d\xa8\x92\x80\xdd\x0e\x4d\x9e\x4e\xb1\xe3\x28\x4e\xae\xd8";
const SALT: [u8; 16] = [0x5a; 16];
const MASTER_KEY: [u8; 32] = [0x4d; 32];
const STARTUP_KEY: [u8; 32] = [0x53; 32];
const CLEAR_KEY: [u8; 32] = [0x43; 32];

/// Protectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secret {
    Passphrase,
    RecoveryKey,
    StartupKey,
    ClearKey,
    Tpm,
}

/// A volume to make.
#[derive(Clone, Debug)]
pub(crate) struct Maker {
    /// Number of the cipher.
    pub(crate) method: u16,
    pub(crate) sector_size: u16,
    pub(crate) is_to_go: bool,
    pub(crate) encrypts_on_write: bool,
    /// Current and next state.
    pub(crate) state: [u16; 2],
    pub(crate) protectors: Vec<Secret>,
    /// The place of the first bytes stands in the block header, as in newer Windows 10.
    pub(crate) header_in_block: bool,
    pub(crate) metadata: [u64; 3],
}

impl Default for Maker {
    fn default() -> Self {
        Self {
            method: 0x8004,
            sector_size: 512,
            is_to_go: false,
            encrypts_on_write: false,
            state: [4, 4],
            protectors: vec![Secret::Passphrase],
            header_in_block: false,
            metadata: METADATA.map(|at| at as u64),
        }
    }
}

/// The decrypted volume.
pub(crate) fn plaintext() -> Vec<u8> {
    let mut volume: Vec<u8> = (0..DISK_LEN).map(|at| (at / 512 + at % 251) as u8).collect();
    for at in METADATA {
        volume[at..at + AREA_LEN].fill(0);
    }
    volume[HEADER_AT..HEADER_AT + HEADER_LEN].fill(0);
    volume
}

/// The contents of the startup key file.
pub(crate) fn startup_key_file() -> Vec<u8> {
    let external = [&[0; 24][..], &key_value(&STARTUP_KEY)].concat();
    let entry = datum(6, 9, &external);
    let mut file = vec![0; 48];
    file[..4].copy_from_slice(&(48 + entry.len() as u32).to_le_bytes());
    file[4..8].copy_from_slice(&1_u32.to_le_bytes());
    file[8..12].copy_from_slice(&48_u32.to_le_bytes());
    file[16..32].copy_from_slice(&guid(Secret::StartupKey));
    [file, entry].concat()
}

fn guid(secret: Secret) -> [u8; 16] {
    [secret as u8 + 1; 16]
}

fn datum(entry: u16, value: u16, data: &[u8]) -> Vec<u8> {
    let fields = [8 + data.len() as u16, entry, value, 1].map(u16::to_le_bytes);
    [fields.as_flattened(), data].concat()
}

/// A key as a property.
fn key_value(key: &[u8]) -> Vec<u8> {
    datum(0, 1, &[&0x2000_u32.to_le_bytes()[..], key].concat())
}

/// `plain` as an encrypted value.
fn encrypted(entry: u16, key: &[u8], nonce: u8, plain: &[u8]) -> Vec<u8> {
    let (nonce, mut tag) = ([nonce; 12], [0; 16]);
    let mut context = CipherCtx::new().unwrap();
    context.encrypt_init(Some(Cipher::aes_256_ccm()), None, None).unwrap();
    context.set_iv_length(nonce.len()).unwrap();
    context.set_tag_length(tag.len()).unwrap();
    context.encrypt_init(None, Some(key), Some(&nonce)).unwrap();
    let mut bytes = Vec::new();
    context.cipher_update_vec(plain, &mut bytes).unwrap();
    context.tag(&mut tag).unwrap();
    datum(entry, 5, &[&nonce[..], &tag, &bytes].concat())
}

fn stretched(first: [u8; 32]) -> [u8; 32] {
    let mut input = [0; 88];
    input[32..64].copy_from_slice(&first);
    input[64..80].copy_from_slice(&SALT);
    for round in 0..1_048_576_u64 {
        input[80..].copy_from_slice(&round.to_le_bytes());
        let hash = sha256(&input);
        input[..32].copy_from_slice(&hash);
    }
    *input.first_chunk().unwrap()
}

static PASSPHRASE_KEY: LazyLock<[u8; 32]> = LazyLock::new(|| {
    let utf16: Vec<u8> = PASSPHRASE.encode_utf16().flat_map(u16::to_le_bytes).collect();
    stretched(sha256(&sha256(&utf16)))
});
static RECOVERY_KEY_KEY: LazyLock<[u8; 32]> =
    LazyLock::new(|| stretched(sha256(RECOVERY_PARTS.map(u16::to_le_bytes).as_flattened())));

impl Maker {
    fn protector(&self, secret: Secret) -> Vec<u8> {
        let salt = || datum(0, 3, &[&0x1000_u32.to_le_bytes()[..], &SALT].concat());
        let (number, key, extra) = match secret {
            Secret::Passphrase => (0x2000, *PASSPHRASE_KEY, salt()),
            Secret::RecoveryKey => (0x0800, *RECOVERY_KEY_KEY, salt()),
            Secret::StartupKey => (0x0200, STARTUP_KEY, Vec::new()),
            Secret::ClearKey => (0x0000, CLEAR_KEY, key_value(&CLEAR_KEY)),
            Secret::Tpm => (0x0100, [9; 32], Vec::new()),
        };
        let name: Vec<u8> = "Key\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut fields = guid(secret).to_vec();
        fields.extend([0; 10]);
        fields.extend(u16::to_le_bytes(number));
        let master = encrypted(0, &key, 1 + secret as u8, &key_value(&MASTER_KEY));
        datum(2, 8, &[fields, datum(0, 2, &name), extra, master].concat())
    }

    /// Cipher, and volume key as it is stored.
    fn cipher(&self) -> (&'static str, Vec<u8>, Vec<u8>) {
        let part = |len: usize, start: u8| (start..start + len as u8).collect::<Vec<u8>>();
        let (name, len) = match self.method {
            0x8000 | 0x8001 => ("aes-cbc-elephant", 64),
            0x8002 => ("aes-cbc-eboiv", 16),
            0x8003 => ("aes-cbc-eboiv", 32),
            0x8004 => ("aes-xts-plain64", 32),
            _ => ("aes-xts-plain64", 64),
        };
        let stored = part(len, 7);
        let key = match self.method {
            0x8000 => [&stored[..16], &stored[32..48]].concat(),
            _ => stored.clone(),
        };
        (name, key, stored)
    }

    /// A metadata block with its validation.
    pub(crate) fn block(&self) -> Vec<u8> {
        let (_, _, stored) = self.cipher();
        let mut entries: Vec<u8> =
            self.protectors.iter().flat_map(|it| self.protector(*it)).collect();
        entries.extend(encrypted(3, &MASTER_KEY, 0x77, &key_value(&stored)));
        let text: Vec<u8> = "PC E: 1/2/2020\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
        entries.extend(datum(7, 2, &text));
        let place = [HEADER_AT as u64, HEADER_LEN as u64].map(u64::to_le_bytes);
        if !self.header_in_block {
            entries.extend(datum(0x0f, 0x0f, place.as_flattened()));
        }
        let len = (112 + entries.len()).next_multiple_of(16);
        let mut block = vec![0; 112];
        block[..8].copy_from_slice(b"-FVE-FS-");
        block[8..10].copy_from_slice(&(len as u16 / 16).to_le_bytes());
        block[10..12].copy_from_slice(&2_u16.to_le_bytes());
        block[12..16].copy_from_slice(self.state.map(u16::to_le_bytes).as_flattened());
        block[16..24].copy_from_slice(&(DISK_LEN as u64).to_le_bytes());
        block[32..56].copy_from_slice(self.metadata.map(u64::to_le_bytes).as_flattened());
        if self.header_in_block {
            block[28..32].copy_from_slice(&(HEADER_LEN as u32 / 512).to_le_bytes());
            block[56..64].copy_from_slice(&place[0]);
        }
        block[64..68].copy_from_slice(&(48 + entries.len() as u32).to_le_bytes());
        block[68..72].copy_from_slice(&1_u32.to_le_bytes());
        block[72..76].copy_from_slice(&48_u32.to_le_bytes());
        block[80..96].copy_from_slice(&[0xd1; 16]);
        block[100..102].copy_from_slice(&self.method.to_le_bytes());
        block[104..112].copy_from_slice(&132_537_600_000_000_000_u64.to_le_bytes());
        block.extend(entries);
        block.resize(len, 0);
        validated(&block)
    }

    /// The disk.
    pub(crate) fn disk(&self) -> Vec<u8> {
        let (name, key, _) = self.cipher();
        let spec = CipherSpec::parse(name).unwrap();
        let size = usize::from(self.sector_size);
        let cipher = SectorCipher::new(&spec, &key, size as u32, size != 512).unwrap();
        let mut disk = vec![0; DISK_LEN];
        for (index, sector) in plaintext().chunks(size).enumerate() {
            let at = index * size;
            let is_hidden = METADATA.iter().any(|area| (*area..area + AREA_LEN).contains(&at))
                || (HEADER_AT..HEADER_AT + HEADER_LEN).contains(&at);
            if is_hidden {
                continue;
            }
            let place = if at < HEADER_LEN { HEADER_AT + at } else { at };
            let mut sector = sector.to_vec();
            cipher.encrypt_in_place(&mut sector, place as u64 / 512);
            disk[place..place + size].copy_from_slice(&sector);
        }
        let block = self.block();
        for at in METADATA {
            disk[at..at + block.len()].copy_from_slice(&block);
        }
        disk[..512].copy_from_slice(&self.boot_sector());
        disk
    }

    fn boot_sector(&self) -> [u8; 512] {
        let mut sector = [0; 512];
        let (signature, guid_at) =
            if self.is_to_go { (b"MSWIN4.1", 424) } else { (b"-FVE-FS-", 160) };
        sector[..3].copy_from_slice(&[0xeb, 0x58, 0x90]);
        sector[3..11].copy_from_slice(signature);
        sector[11..13].copy_from_slice(&self.sector_size.to_le_bytes());
        sector[82..90].copy_from_slice(b"FAT32   ");
        sector[guid_at..guid_at + 16].copy_from_slice(if self.encrypts_on_write {
            ENCRYPT_ON_WRITE
        } else {
            NORMAL
        });
        let offsets = self.metadata.map(u64::to_le_bytes);
        sector[guid_at + 16..guid_at + 40].copy_from_slice(offsets.as_flattened());
        sector[510..].copy_from_slice(b"\x55\xaa");
        sector
    }
}

/// A block with the right checksums.
fn validated(block: &[u8]) -> Vec<u8> {
    let mut hash = vec![44, 0, 0, 0, 1, 0, 1, 0, 5, 0x20, 0, 0];
    hash.extend(sha256(block));
    let hash = encrypted(0, &MASTER_KEY, 0x99, &hash);
    with_crc(block, &hash)
}

/// A block with the right CRC and this validation.
pub(crate) fn with_crc(block: &[u8], validation: &[u8]) -> Vec<u8> {
    let crc = !block.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    });
    let fields = [&88_u16.to_le_bytes()[..], &2_u16.to_le_bytes(), &crc.to_le_bytes()].concat();
    [block, &fields, validation].concat()
}
