use super::*;
use crate::vectors::{lines, unhex};

/// The stripes of the vectors: counting bytes instead of random ones.
fn counted_stripes(key_len: usize, stripes: usize) -> Vec<u8> {
    let byte = |at: usize| ((at / key_len) * 7 + (at % key_len) * 13 + 1) as u8;
    (0..key_len * stripes).map(byte).collect()
}

#[test]
fn af_split_gives_the_known_last_stripe_and_merge_gives_the_key() {
    for vector in lines(include_str!("../../../../testdata/vectors/kdf/af.txt")) {
        let hash = HashAlgorithm::parse(vector[0]).unwrap();
        let key = unhex(vector[1]);
        let stripes = vector[2].parse::<u32>().unwrap();
        let mut material = counted_stripes(key.len(), stripes as usize);
        split(&key, &mut material, stripes, hash);
        assert_eq!(material[material.len() - key.len()..], unhex(vector[3]), "{vector:?}");
        let mut merged = vec![0u8; key.len()];
        merge(&material, &mut merged, stripes, hash);
        assert_eq!(merged, key, "{vector:?}");
    }
}

#[test]
fn af_merge_with_one_changed_bit_loses_the_key() {
    let key = [0x5a; 64];
    let mut material = counted_stripes(64, STRIPES as usize);
    split(&key, &mut material, STRIPES, HashAlgorithm::Sha256);
    material[70_001] ^= 1;
    let mut merged = [0u8; 64];
    merge(&material, &mut merged, STRIPES, HashAlgorithm::Sha256);
    let wrong_bytes = merged.iter().zip(&key).filter(|(a, b)| a != b).count();
    assert!(wrong_bytes > 24, "{wrong_bytes}");
}

#[test]
fn af_material_fills_whole_sectors() {
    assert_eq!(material_len_bytes(64), 256_000);
    assert_eq!(material_len_bytes(33), 132_096);
}
