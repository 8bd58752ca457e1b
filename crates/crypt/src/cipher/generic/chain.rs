//! Modes over any block cipher: ECB, CBC and CTR (NIST SP 800-38A), XTS (IEEE 1619), and calls to
//! LRW and Adiantum.
//!
//! A call gets a batch of consecutive sectors and one IV per sector. The cipher gets as many blocks
//! at a time as the mode allows: the whole batch, or in CBC encryption one block of each sector.

use crate::adiantum::Adiantum;
use crate::block::{self, BlockCipher};
use crate::cipher::rules::{ADIANTUM_BYTES, WIDE_BLOCK_BYTES};
use crate::cipher::spec::Mode;

use super::lrw::Tweaks;
use super::{SCRATCH_BYTES, xor};

/// A mode with its key.
pub(super) enum Chain {
    Ecb(Box<dyn BlockCipher>),
    Cbc(Box<dyn BlockCipher>),
    Ctr(Box<dyn BlockCipher>),
    Lrw { data: Box<dyn BlockCipher>, tweaks: Box<Tweaks> },
    Xts { data: Box<dyn BlockCipher>, tweak: Box<dyn BlockCipher> },
    Adiantum(Adiantum),
}

/// Sectors and their IVs. The mode overwrites the IVs.
pub(super) struct Run<'a> {
    pub(super) data: &'a mut [u8],
    pub(super) ivs: &'a mut [u8],
    pub(super) sector_bytes: usize,
    pub(super) scratch: &'a mut [u8; SCRATCH_BYTES],
}

impl Run<'_> {
    /// Each sector with its IV of `iv_bytes`.
    pub(super) fn sectors(
        &mut self,
        iv_bytes: usize,
    ) -> impl Iterator<Item = (&mut [u8], &mut [u8])> {
        let sectors = self.data.chunks_exact_mut(self.sector_bytes);
        sectors.zip(self.ivs.chunks_exact_mut(iv_bytes))
    }
}

impl Chain {
    /// Creates a mode with its key; `key_layout` has checked the key's length.
    pub(super) fn new(mode: Mode, cipher: &str, key: &[u8]) -> Self {
        match mode {
            Mode::Ecb => Self::Ecb(block::new(cipher, key)),
            Mode::Cbc => Self::Cbc(block::new(cipher, key)),
            Mode::Ctr => Self::Ctr(block::new(cipher, key)),
            Mode::Lrw => {
                let (data, tweak) = key.split_at(key.len() - WIDE_BLOCK_BYTES);
                Self::Lrw { data: block::new(cipher, data), tweaks: Tweaks::new(tweak) }
            }
            Mode::Xts => {
                let (data, tweak) = key.split_at(key.len() / 2);
                Self::Xts { data: block::new(cipher, data), tweak: block::new(cipher, tweak) }
            }
            Mode::Adiantum(rounds) => Self::Adiantum(Adiantum::new(rounds, key)),
        }
    }

    /// Block size for `benbi`: a byte in CTR, which is a stream.
    pub(super) fn unit_bytes(&self) -> usize {
        match self {
            Self::Ecb(cipher) | Self::Cbc(cipher) => cipher.block_bytes(),
            Self::Ctr(_) => 1,
            Self::Lrw { .. } | Self::Xts { .. } | Self::Adiantum(_) => WIDE_BLOCK_BYTES,
        }
    }

    pub(super) fn encrypt(&self, run: &mut Run<'_>) {
        match self {
            Self::Ecb(cipher) => cipher.encrypt(run.data),
            Self::Cbc(cipher) => cbc_encrypt(cipher.as_ref(), run),
            Self::Ctr(cipher) => ctr(cipher.as_ref(), run),
            Self::Lrw { data, tweaks } => {
                tweaks.mask(run);
                data.encrypt(run.data);
                tweaks.mask(run);
            }
            Self::Xts { data, tweak } => {
                tweak.encrypt(run.ivs);
                xts_mask(run);
                data.encrypt(run.data);
                xts_mask(run);
            }
            Self::Adiantum(adiantum) => {
                for (sector, tweak) in run.sectors(ADIANTUM_BYTES) {
                    adiantum.encrypt(wide_tweak(tweak), sector);
                }
            }
        }
    }

    pub(super) fn decrypt(&self, run: &mut Run<'_>) {
        match self {
            Self::Ecb(cipher) => cipher.decrypt(run.data),
            Self::Cbc(cipher) => cbc_decrypt(cipher.as_ref(), run),
            Self::Ctr(cipher) => ctr(cipher.as_ref(), run),
            Self::Lrw { data, tweaks } => {
                tweaks.mask(run);
                data.decrypt(run.data);
                tweaks.mask(run);
            }
            Self::Xts { data, tweak } => {
                tweak.encrypt(run.ivs);
                xts_mask(run);
                data.decrypt(run.data);
                xts_mask(run);
            }
            Self::Adiantum(adiantum) => {
                for (sector, tweak) in run.sectors(ADIANTUM_BYTES) {
                    adiantum.decrypt(wide_tweak(tweak), sector);
                }
            }
        }
    }
}

fn wide_tweak(iv: &[u8]) -> &[u8; ADIANTUM_BYTES] {
    iv.try_into().expect("the IV is as long as the tweak")
}

/// Encrypts one block of each sector per call. The chains of the batch run side by side, and the
/// IVs carry the ciphertext to the next block.
fn cbc_encrypt(cipher: &dyn BlockCipher, run: &mut Run<'_>) {
    let block_bytes = cipher.block_bytes();
    for at in (0..run.sector_bytes).step_by(block_bytes) {
        for (sector, chain) in run.sectors(block_bytes) {
            xor(chain, &sector[at..at + block_bytes]);
        }
        cipher.encrypt(run.ivs);
        for (sector, chain) in run.sectors(block_bytes) {
            sector[at..at + block_bytes].copy_from_slice(chain);
        }
    }
}

/// Decrypts as many whole sectors per call as the scratch space holds.
fn cbc_decrypt(cipher: &dyn BlockCipher, run: &mut Run<'_>) {
    let sector_bytes = run.sector_bytes;
    let block_bytes = cipher.block_bytes();
    let group_sectors = SCRATCH_BYTES / sector_bytes;
    let groups = run.data.chunks_mut(group_sectors * sector_bytes);
    for (data, ivs) in groups.zip(run.ivs.chunks(group_sectors * block_bytes)) {
        let plain = &mut run.scratch[..data.len()];
        plain.copy_from_slice(data);
        cipher.decrypt(plain);
        let sectors = data.chunks_exact_mut(sector_bytes).zip(ivs.chunks_exact(block_bytes));
        for ((sector, iv), plain) in sectors.zip(plain.chunks_exact_mut(sector_bytes)) {
            let (first, rest) = plain.split_at_mut(block_bytes);
            xor(first, iv);
            xor(rest, &sector[..sector_bytes - block_bytes]);
            sector.copy_from_slice(plain);
        }
    }
}

/// Both directions: adds the encrypted counters, big endian, from the IV on, with wrap-around.
fn ctr(cipher: &dyn BlockCipher, run: &mut Run<'_>) {
    let block_bytes = cipher.block_bytes();
    let sectors = run.data.chunks_exact_mut(run.sector_bytes);
    for (sector, iv) in sectors.zip(run.ivs.chunks_exact(block_bytes)) {
        let stream = &mut run.scratch[..sector.len()];
        let first = iv.iter().fold(0, |counter, byte| (counter << 8) | u128::from(*byte));
        for (index, block) in stream.chunks_exact_mut(block_bytes).enumerate() {
            let counter = first.wrapping_add(index as u128).to_be_bytes();
            block.copy_from_slice(&counter[counter.len() - block_bytes..]);
        }
        cipher.encrypt(stream);
        xor(sector, stream);
    }
}

/// Adds the XTS tweaks: each sector's IV, encrypted, and doubled from block to block.
fn xts_mask(run: &mut Run<'_>) {
    for (sector, iv) in run.sectors(WIDE_BLOCK_BYTES) {
        let iv: &[u8; WIDE_BLOCK_BYTES] = (&*iv).try_into().expect("an IV is a block");
        let mut tweak = u128::from_le_bytes(*iv);
        for block in sector.chunks_exact_mut(WIDE_BLOCK_BYTES) {
            add(block, tweak.to_le_bytes());
            tweak = double(tweak);
        }
    }
}

/// `x * a` in GF(2^128) modulo `x^128 + x^7 + x^2 + x + 1`, without a branch.
#[inline]
pub(super) fn double(a: u128) -> u128 {
    (a << 1) ^ (0x87 & 0u128.wrapping_sub(a >> 127))
}

/// `block ^= mask`.
#[inline]
pub(super) fn add(block: &mut [u8], mask: [u8; WIDE_BLOCK_BYTES]) {
    let block: &mut [u8; WIDE_BLOCK_BYTES] = block.try_into().expect("a block of 16 bytes");
    *block = (u128::from_ne_bytes(*block) ^ u128::from_ne_bytes(mask)).to_ne_bytes();
}
