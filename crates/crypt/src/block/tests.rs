//! Published vectors, comparison with other implementations, and wiping of dropped keys.

use super::*;
use crate::vectors::unhex;

const NAMES: [&str; 6] = ["aes", "serpent", "twofish", "camellia", "cast5", "cast6"];

/// Key, plaintext and ciphertext of one block:
/// FIPS 197 appendix C; NESSIE's vectors of Serpent (set 1, vector 0); the vectors of the Twofish
/// paper; RFC 3713 appendix A; RFC 2144 appendix B.1; RFC 2612 appendix A.
const VECTORS: &str = "\
aes 000102030405060708090a0b0c0d0e0f 00112233445566778899aabbccddeeff \
    69c4e0d86a7b0430d8cdb78070b4c55a
aes 000102030405060708090a0b0c0d0e0f1011121314151617 00112233445566778899aabbccddeeff \
    dda97ca4864cdfe06eaf70a0ec0d7191
aes 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f \
    00112233445566778899aabbccddeeff 8ea2b7ca516745bfeafc49904b496089
serpent 80000000000000000000000000000000 00000000000000000000000000000000 \
    264e5481eff42a4606abda06c0bfda3d
serpent 800000000000000000000000000000000000000000000000 00000000000000000000000000000000 \
    9e274ead9b737bb21efcfca548602689
serpent 8000000000000000000000000000000000000000000000000000000000000000 \
    00000000000000000000000000000000 a223aa1288463c0e2be38ebd825616c0
twofish 00000000000000000000000000000000 00000000000000000000000000000000 \
    9f589f5cf6122c32b6bfec2f2ae8c35a
twofish 0123456789abcdeffedcba98765432100011223344556677 00000000000000000000000000000000 \
    cfd1d2e5a9be9cdf501f13b892bd2248
twofish 0123456789abcdeffedcba987654321000112233445566778899aabbccddeeff \
    00000000000000000000000000000000 37527be0052334b89f0cfccae87cfa20
camellia 0123456789abcdeffedcba9876543210 0123456789abcdeffedcba9876543210 \
    67673138549669730857065648eabe43
camellia 0123456789abcdeffedcba98765432100011223344556677 0123456789abcdeffedcba9876543210 \
    b4993401b3e996f84ee5cee7d79b09b9
camellia 0123456789abcdeffedcba987654321000112233445566778899aabbccddeeff \
    0123456789abcdeffedcba9876543210 9acc237dff16d76c20ef7c919e3a7509
cast5 0123456712345678234567893456789a 0123456789abcdef 238b4fe5847e44b2
cast5 01234567123456782345 0123456789abcdef eb6a711a2c02271b
cast5 0123456712 0123456789abcdef 7ac816d16e9b302e
cast6 2342bb9efa38542c0af75647f29f615d 00000000000000000000000000000000 \
    c842a08972b43d20836c91d1b7530f6b
cast6 2342bb9efa38542cbed0ac83940ac298bac77a7717942863 00000000000000000000000000000000 \
    1b386c0210dcadcbdd0e41aa08a7a7e8
cast6 2342bb9efa38542cbed0ac83940ac2988d7c47ce264908461cc1b5137ae6b604 \
    00000000000000000000000000000000 4f6a2038286897b9c9870136553317fa
";

/// Pseudo-random bytes from a multiplicative generator.
pub(crate) fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut byte = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..len_bytes).map(|_| byte()).collect()
}

/// Asserts that two ciphers or kernels with the same key agree on 1 to 70 blocks.
pub(super) fn assert_same(one: &dyn BlockCipher, other: &dyn BlockCipher, what: &str) {
    for blocks in 1..=70 {
        let plain = noise(blocks as u64, blocks * one.block_bytes());
        let mut ours = plain.clone();
        let mut theirs = plain.clone();
        one.encrypt(&mut ours);
        other.encrypt(&mut theirs);
        assert_eq!(ours, theirs, "{what}: encrypting {blocks} blocks");
        one.decrypt(&mut ours);
        assert_eq!(ours, plain, "{what}: decrypting {blocks} blocks");
        one.decrypt(&mut ours);
        other.decrypt(&mut theirs);
        other.decrypt(&mut theirs);
        assert_eq!(ours, theirs, "{what}: decrypting other bytes, {blocks} blocks");
    }
}

#[test]
fn published_vectors_come_out() {
    let vectors = crate::vectors::lines(VECTORS);
    assert_eq!(vectors.len(), 18);
    for vector in vectors {
        let name = vector[0];
        let key = vector[1];
        let plain = unhex(vector[2]);
        let encrypted = unhex(vector[3]);
        let cipher = new(name, &unhex(key));
        assert_eq!(cipher.block_bytes(), plain.len(), "{name}");
        let mut block = plain.clone();
        cipher.encrypt(&mut block);
        assert_eq!(block, encrypted, "{name} encrypting with {key}");
        cipher.decrypt(&mut block);
        assert_eq!(block, plain, "{name} decrypting with {key}");
    }
}

#[test]
fn blocks_of_one_call_do_not_depend_on_each_other() {
    for name in NAMES {
        for key_len_bytes in key_lengths(name).unwrap() {
            let cipher = new(name, &noise(1, *key_len_bytes));
            for blocks in 1..=70 {
                let plain = noise(blocks, blocks as usize * cipher.block_bytes());
                let mut together = plain.clone();
                cipher.encrypt(&mut together);
                let mut alone = plain.clone();
                alone.chunks_mut(cipher.block_bytes()).for_each(|block| cipher.encrypt(block));
                assert_eq!(together, alone, "{name}: encrypting {blocks} blocks");
                cipher.decrypt(&mut together);
                assert_eq!(together, plain, "{name}: decrypting {blocks} blocks");
                alone.chunks_mut(cipher.block_bytes()).for_each(|block| cipher.decrypt(block));
                assert_eq!(alone, plain, "{name}: decrypting {blocks} blocks one by one");
            }
        }
    }
}

#[test]
fn serpent_and_twofish_agree_with_their_crates() {
    for key_len_bytes in [16, 24, 32] {
        for seed in 0..40 {
            let key = noise(seed, key_len_bytes);
            let theirs = CrateCipher::<::serpent::Serpent>::boxed(&key);
            assert_same(&*new("serpent", &key), &*theirs, "serpent");
        }
        for seed in 0..4 {
            let key = noise(seed, key_len_bytes);
            let theirs = CrateCipher::<::twofish::Twofish>::boxed(&key);
            assert_same(&*new("twofish", &key), &*theirs, "twofish");
        }
    }
}

#[test]
fn camellia_agrees_with_openssl() {
    use openssl::symm::{Cipher, Crypter, Mode};

    for (key_len_bytes, theirs) in [
        (16, Cipher::camellia_128_ecb()),
        (24, Cipher::camellia_192_ecb()),
        (32, Cipher::camellia_256_ecb()),
    ] {
        for seed in 0..100 {
            let key = noise(seed, key_len_bytes);
            let plain = noise(seed + 1000, 70 * 16);
            let mut ours = plain.clone();
            let cipher = new("camellia", &key);
            cipher.encrypt(&mut ours);
            let mut encrypted = vec![0; plain.len() + 16];
            let mut crypter = Crypter::new(theirs, Mode::Encrypt, &key, None).unwrap();
            crypter.pad(false);
            let len = crypter.update(&plain, &mut encrypted).unwrap();
            assert_eq!(ours, encrypted[..len], "{key_len_bytes} bytes of key, seed {seed}");
            cipher.decrypt(&mut ours);
            assert_eq!(ours, plain, "{key_len_bytes} bytes of key, seed {seed}");
        }
    }
}

#[test]
fn a_name_of_another_kind_has_no_key_lengths() {
    for name in ["", "AES", "xts(aes)", "cipher_null", "adiantum"] {
        assert_eq!(key_lengths(name), None, "{name}");
    }
}

#[test]
#[should_panic(expected = "a block is cut short")]
fn part_of_a_block_is_refused() {
    new("serpent", &[0; 16]).encrypt(&mut [0; 40]);
}

/// The bytes of a box before and after its value is dropped.
fn images_around_drop<T: ?Sized>(value: Box<T>) -> (Vec<u8>, Vec<u8>) {
    let value = Box::into_raw(value);
    // SAFETY: the value is alive; a page is allocated as zeros, so that no byte is uninitialised.
    let layout = unsafe { std::alloc::Layout::for_value(&*value) };
    // SAFETY: the allocation has `layout.size()` bytes and is freed last. A page is allocated as
    // zeros, so that no byte is uninitialised.
    let bytes =
        || unsafe { std::slice::from_raw_parts(value.cast::<u8>(), layout.size()).to_vec() };
    let before = bytes();
    // SAFETY: dropped once, and its memory is not used as a value after that.
    unsafe { std::ptr::drop_in_place(value) };
    let after = bytes();
    // SAFETY: allocated by a box of this layout, and its value is dropped.
    unsafe { std::alloc::dealloc(value.cast(), layout) };
    (before, after)
}

/// Asserts that two dropped values differ no more, if only their keys differed before.
pub(crate) fn assert_wiped<T: ?Sized>([one, other]: [Box<T>; 2], what: &str) {
    let differing =
        |one: &[u8], other: &[u8]| one.iter().zip(other).filter(|(a, b)| a != b).count();
    let (before, after) = images_around_drop(one);
    let (other_before, other_after) = images_around_drop(other);
    assert!(differing(&before, &other_before) >= 16, "{what}: nothing to wipe");
    // A difference of less than a word may be padding with random stack content.
    let left = differing(&after, &other_after);
    assert!(left < size_of::<u64>(), "{what}: {left} bytes of a key are still there");
}

#[test]
fn key_schedules_are_wiped_when_dropped() {
    for name in NAMES {
        for key_len_bytes in key_lengths(name).unwrap() {
            let new = |seed| new(name, &noise(seed, *key_len_bytes));
            assert_wiped([new(1), new(2)], &format!("{name}, {key_len_bytes} bytes of key"));
        }
    }
}
