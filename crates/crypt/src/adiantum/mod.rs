//! Adiantum (Crowley and Biggers, "Adiantum: length-preserving encryption for entry-level
//! processors", 2018): a whole sector as one block, on XChaCha, NH, Poly1305 and one AES block.
//!
//! ```text
//!   sector = L || R, R being the last 16 bytes        H(L) = Poly1305(K_T, length of L || tweak)
//!                                                          + Poly1305(K_M, NH(K_N, L))
//!   encrypt    X = AES(K_E, R + H(L))                 K_E, K_T, K_M, K_N: the key stream of K_S
//!              L' = L ^ XChaCha(K_S, X)                                   and nonce 1
//!              R' = X - H(L')                         + and - modulo 2^128, little-endian
//! ```
//!
//! Every byte of the result depends on every byte of the sector, the tweak and the key. The kernel
//! calls it `adiantum(xchacha12,aes)` and `adiantum(xchacha20,aes)`, with `nhpoly1305`.

mod nh;
mod poly1305;

#[cfg(test)]
mod tests;

use aes::Aes256;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use chacha20::cipher::{KeyIvInit, StreamCipher};
use chacha20::{XChaCha12, XChaCha20};
use zeroize::Zeroize;

use self::nh::Nh;
use self::poly1305::Poly1305;
use crate::block::page::Page;

/// Bytes of the key.
pub(crate) const KEY_BYTES: usize = 32;
/// Least length of a sector: the part that goes through AES.
const RIGHT_BYTES: usize = 16;
const NONCE_BYTES: usize = 24;

/// Rounds of the stream cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounds {
    /// `xchacha12`, the usual one.
    Twelve,
    /// `xchacha20`.
    Twenty,
}

/// Adiantum with a key.
pub(crate) struct Adiantum {
    keys: Box<Page<Keys>>,
    rounds: Rounds,
}

/// The key and all keys derived from it.
struct Keys {
    stream: [u8; KEY_BYTES],
    block: Aes256,
    /// Hash of length and tweak.
    header: Poly1305,
    /// Hash of NH's result.
    message: Poly1305,
    nh: Nh,
}

impl Adiantum {
    /// A cipher from a key of [`KEY_BYTES`].
    ///
    /// # Panics
    ///
    /// If the key has another length.
    pub(crate) fn new(rounds: Rounds, key: &[u8]) -> Self {
        Self { keys: Page::boxed(|| Keys::new(rounds, key)), rounds }
    }

    /// Encrypts a sector of 16 bytes or more in place.
    pub(crate) fn encrypt(&self, tweak: &[u8; 32], sector: &mut [u8]) {
        let (left, right) = split(sector);
        let header = self.header(tweak, left.len());
        let sum = u128::from_le_bytes(*right).wrapping_add(header).wrapping_add(self.hash(left));
        let mut middle = sum.to_le_bytes().into();
        self.keys.block.encrypt_block(&mut middle);
        self.stream(middle.0, left);
        let sum = u128::from_le_bytes(middle.0).wrapping_sub(header).wrapping_sub(self.hash(left));
        *right = sum.to_le_bytes();
    }

    /// Decrypts a sector of 16 bytes or more in place.
    pub(crate) fn decrypt(&self, tweak: &[u8; 32], sector: &mut [u8]) {
        let (left, right) = split(sector);
        let header = self.header(tweak, left.len());
        let sum = u128::from_le_bytes(*right).wrapping_add(header).wrapping_add(self.hash(left));
        let mut middle = sum.to_le_bytes().into();
        self.stream(sum.to_le_bytes(), left);
        self.keys.block.decrypt_block(&mut middle);
        let sum = u128::from_le_bytes(middle.0).wrapping_sub(header).wrapping_sub(self.hash(left));
        *right = sum.to_le_bytes();
    }

    /// Adds the key stream that `middle` selects.
    fn stream(&self, middle: [u8; RIGHT_BYTES], left: &mut [u8]) {
        let mut nonce = [0; NONCE_BYTES];
        nonce[..RIGHT_BYTES].copy_from_slice(&middle);
        nonce[RIGHT_BYTES] = 1;
        add_key_stream(self.rounds, &self.keys.stream, &nonce, left);
    }

    /// The part of the hash that does not depend on the data.
    fn header(&self, tweak: &[u8; 32], left_bytes: usize) -> u128 {
        let bits = 8 * left_bytes as u128;
        let mut sum = self.keys.header.sum();
        sum.add(bits);
        for part in tweak.as_chunks::<16>().0 {
            sum.add(u128::from_le_bytes(*part));
        }
        sum.finish()
    }

    /// The part of the hash that depends on the data.
    fn hash(&self, left: &[u8]) -> u128 {
        let mut sum = self.keys.message.sum();
        for unit in left.chunks(nh::UNIT_BYTES) {
            let [a, b, c, d] = self.keys.nh.hash(unit);
            sum.add(u128::from(a) | u128::from(b) << 64);
            sum.add(u128::from(c) | u128::from(d) << 64);
        }
        sum.finish()
    }
}

impl Keys {
    fn new(rounds: Rounds, key: &[u8]) -> Self {
        let stream_key = key.try_into().expect("Adiantum takes a key of 32 bytes");
        let mut derived = [0; KEY_BYTES + 2 * poly1305::KEY_BYTES + nh::KEY_BYTES];
        let mut nonce = [0; NONCE_BYTES];
        nonce[0] = 1;
        add_key_stream(rounds, &stream_key, &nonce, &mut derived);
        let (block, rest) = derived.split_at(KEY_BYTES);
        let (header, rest) = rest.split_at(poly1305::KEY_BYTES);
        let (message, nh) = rest.split_at(poly1305::KEY_BYTES);
        Self {
            stream: stream_key,
            block: Aes256::new_from_slice(block).expect("32 bytes"),
            header: Poly1305::new(header.try_into().expect("16 bytes")),
            message: Poly1305::new(message.try_into().expect("16 bytes")),
            nh: Nh::new(nh.try_into().expect("1072 bytes")),
        }
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.stream.zeroize();
        self.header.zeroize();
        self.message.zeroize();
        self.nh.zeroize();
        // `block` wipes itself.
    }
}

fn split(sector: &mut [u8]) -> (&mut [u8], &mut [u8; RIGHT_BYTES]) {
    sector.split_last_chunk_mut().expect("a sector has 16 bytes at least")
}

fn add_key_stream(
    rounds: Rounds,
    key: &[u8; KEY_BYTES],
    nonce: &[u8; NONCE_BYTES],
    data: &mut [u8],
) {
    match rounds {
        Rounds::Twelve => XChaCha12::new(key.into(), nonce.into()).apply_keystream(data),
        Rounds::Twenty => XChaCha20::new(key.into(), nonce.into()).apply_keystream(data),
    }
}
