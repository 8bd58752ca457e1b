//! Serpent, one block at a time on plain 32-bit words, for CPUs without SSE2.

use super::rounds::{self, RoundKeys};

/// Encrypts whole blocks.
pub(super) fn encrypt(keys: &RoundKeys, blocks: &mut [u8]) {
    for block in blocks.chunks_exact_mut(16) {
        let words = rounds::encrypt(keys, load(block));
        store(words, block);
    }
}

/// Decrypts whole blocks.
pub(super) fn decrypt(keys: &RoundKeys, blocks: &mut [u8]) {
    for block in blocks.chunks_exact_mut(16) {
        let words = rounds::decrypt(keys, load(block));
        store(words, block);
    }
}

fn load(block: &[u8]) -> [u32; 4] {
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    [word(0), word(4), word(8), word(12)]
}

fn store(words: [u32; 4], block: &mut [u8]) {
    for (bytes, word) in block.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}
