//! The designers' vectors, comparison of the parts with other implementations, and wiping of keys.

use super::*;
use crate::block::tests::{assert_wiped, noise};
use crate::vectors::{lines, unhex};

#[test]
fn vectors_of_the_designers_come_out() {
    let vectors = lines(include_str!("../../../../testdata/vectors/adiantum/adiantum.txt"));
    assert_eq!(vectors.len(), 32);
    for (index, vector) in vectors.iter().enumerate() {
        let rounds = if vector[0] == "12" { Rounds::Twelve } else { Rounds::Twenty };
        let cipher = Adiantum::new(rounds, &unhex(vector[1]));
        let tweak = unhex(vector[2]).try_into().unwrap();
        let plain = unhex(vector[3]);
        let mut sector = plain.clone();
        cipher.encrypt(&tweak, &mut sector);
        assert_eq!(sector, unhex(vector[4]), "vector {index} encrypted");
        cipher.decrypt(&tweak, &mut sector);
        assert_eq!(sector, plain, "vector {index} decrypted");
    }
}

#[test]
fn every_length_comes_back_and_every_bit_counts() {
    let cipher = Adiantum::new(Rounds::Twelve, &noise(1, KEY_BYTES));
    for len_bytes in (16..300).chain(1000..1100).chain([4096]) {
        let plain = noise(2, len_bytes);
        let mut sector = plain.clone();
        cipher.encrypt(&[7; 32], &mut sector);
        let encrypted = sector.clone();
        cipher.decrypt(&[7; 32], &mut sector);
        assert_eq!(sector, plain, "{len_bytes} bytes");
        sector[len_bytes / 2] ^= 1;
        cipher.encrypt(&[7; 32], &mut sector);
        assert_ne!(sector[..16], encrypted[..16], "{len_bytes} bytes, one bit changed");
        assert_ne!(sector[len_bytes - 16..], encrypted[len_bytes - 16..], "{len_bytes} bytes");
    }
}

/// RFC 8439, appendix A.3, vectors 7 and 9 to 12, which end on a whole block and add no key:
/// carries and results next to 2^130 - 5.
#[test]
fn poly1305_carries_as_in_the_rfc() {
    const ONES: &str = "ffffffffffffffffffffffffffffffff";
    const ONE: &str = "01000000000000000000000000000000";
    const TWO: &str = "02000000000000000000000000000000";
    const LONG: &str = "01000000000000000400000000000000";
    let blocks = [
        "e33594d7505e43b90000000000000000",
        "3394d7505e4379cd0100000000000000",
        "00000000000000000000000000000000",
        ONE,
    ];
    for (key, blocks, sum) in [
        (TWO, &[ONES][..], "03000000000000000000000000000000"),
        (
            ONE,
            &[ONES, "f0ffffffffffffffffffffffffffffff", "11000000000000000000000000000000"],
            "05000000000000000000000000000000",
        ),
        (
            ONE,
            &[ONES, "fbfefefefefefefefefefefefefefefe", "01010101010101010101010101010101"],
            "00000000000000000000000000000000",
        ),
        (TWO, &["fdffffffffffffffffffffffffffffff"], "faffffffffffffffffffffffffffffff"),
        (LONG, &blocks, "14000000000000005500000000000000"),
        (LONG, &blocks[..3], "13000000000000000000000000000000"),
    ] {
        let number = |text| u128::from_le_bytes(unhex(text).try_into().unwrap());
        let hash = Poly1305::new(&unhex(key).try_into().unwrap());
        let mut state = hash.sum();
        blocks.iter().for_each(|block| state.add(number(block)));
        assert_eq!(state.finish(), number(sum), "{blocks:?}");
    }
}

#[test]
#[should_panic(expected = "16 bytes at least")]
fn a_sector_that_is_too_short_is_refused() {
    Adiantum::new(Rounds::Twelve, &[0; 32]).encrypt(&[0; 32], &mut [0; 15]);
}

#[test]
fn keys_are_wiped_when_dropped() {
    for rounds in [Rounds::Twelve, Rounds::Twenty] {
        let new = |seed| Adiantum::new(rounds, &noise(seed, KEY_BYTES)).keys;
        assert_wiped([new(1), new(2)], &format!("{rounds:?}"));
    }
}
