//! Published vectors, and the properties that all ciphers share.

use super::*;
use crate::vectors::unhex;

/// One block of every cipher: FIPS 197 appendix C, and the specifications of the others.
const VECTORS: [(&str, &str, &str, &str); 3] = [
    (
        "aes",
        "000102030405060708090a0b0c0d0e0f",
        "00112233445566778899aabbccddeeff",
        "69c4e0d86a7b0430d8cdb78070b4c55a",
    ),
    (
        "aes",
        "000102030405060708090a0b0c0d0e0f1011121314151617",
        "00112233445566778899aabbccddeeff",
        "dda97ca4864cdfe06eaf70a0ec0d7191",
    ),
    (
        "aes",
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "00112233445566778899aabbccddeeff",
        "8ea2b7ca516745bfeafc49904b496089",
    ),
];

#[test]
fn published_vectors_come_out() {
    for (name, key, plain, encrypted) in VECTORS {
        let cipher = new(name, &unhex(key));
        let mut block = unhex(plain);
        cipher.encrypt(&mut block);
        assert_eq!(block, unhex(encrypted), "{name} encrypting with {key}");
        cipher.decrypt(&mut block);
        assert_eq!(block, unhex(plain), "{name} decrypting with {key}");
    }
}
