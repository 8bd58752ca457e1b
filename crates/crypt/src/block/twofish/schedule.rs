//! The key schedule of Twofish: round keys, and S-boxes with the MDS matrix as tables.
//!
//! ```text
//!   words of the key, even and odd         round keys   a = h(2i, even), b = h(2i+1, odd) <<< 8
//!   S, eight bytes of key times RS each    S-boxes      T = h(x, S backwards), byte by byte
//! ```

/// Rounds of every key length.
pub(super) const ROUNDS: usize = 16;

/// Data that the rounds read.
pub(super) struct Schedule {
    /// For each byte of a word: its S-box, times its column of the MDS matrix.
    pub(super) tables: [[u32; 256]; 4],
    /// Whitening of the plaintext.
    pub(super) before: [u32; 4],
    /// Whitening of the ciphertext.
    pub(super) after: [u32; 4],
    /// Two words a round.
    pub(super) keys: [[u32; 2]; ROUNDS],
}

impl Schedule {
    /// Expands a key of 16, 24 or 32 bytes.
    pub(super) fn new(key: &[u8]) -> Self {
        let mut even = List::default();
        let mut odd = List::default();
        let mut coded = List::default();
        for eight in key.as_chunks::<8>().0 {
            even.push([eight[0], eight[1], eight[2], eight[3]]);
            odd.push([eight[4], eight[5], eight[6], eight[7]]);
        }
        for eight in key.as_chunks::<8>().0.iter().rev() {
            coded.push(reed_solomon(eight));
        }
        let mut pairs = (0..).map(|index| {
            let a = h(2 * index, &even);
            let b = h(2 * index + 1, &odd).rotate_left(8);
            [a.wrapping_add(b), a.wrapping_add(b.wrapping_mul(2)).rotate_left(9)]
        });
        let mut next = || pairs.next().expect("pairs do not end");
        let mut whitening = || {
            let [a, b] = next();
            let [c, d] = next();
            [a, b, c, d]
        };
        let before = whitening();
        let after = whitening();
        let keys = std::array::from_fn(|_| next());
        let mut tables = [[0; 256]; 4];
        for (column, table) in tables.iter_mut().enumerate() {
            for (byte, entry) in (0..=u8::MAX).zip(table) {
                *entry = times_column(column, substitute(column, byte, &coded));
            }
        }
        Self { tables, before, after, keys }
    }
}

/// Two to four words of key material, as bytes.
#[derive(Default)]
struct List {
    words: [[u8; 4]; 4],
    len: usize,
}

impl List {
    fn push(&mut self, word: [u8; 4]) {
        self.words[self.len] = word;
        self.len += 1;
    }
}

/// The function h, on a word of four equal bytes.
fn h(byte: u8, list: &List) -> u32 {
    (0..4).fold(0, |sum, column| sum ^ times_column(column, substitute(column, byte, list)))
}

/// A byte of h before the MDS matrix: the two permutations in turn, with key bytes between.
fn substitute(column: usize, byte: u8, list: &List) -> u8 {
    /// Permutation for each word of the list, the fourth word first, and the final one.
    const ORDER: [[usize; 5]; 4] =
        [[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 0, 1, 1, 0]];
    let order = ORDER[column];
    let mut byte = byte;
    for at in (0..list.len).rev() {
        byte = PERMUTATIONS[order[3 - at]][usize::from(byte)] ^ list.words[at][column];
    }
    PERMUTATIONS[order[4]][usize::from(byte)]
}

/// A column of the MDS matrix times a byte.
fn times_column(column: usize, byte: u8) -> u32 {
    const MDS: [[u8; 4]; 4] = [
        [0x01, 0x5b, 0xef, 0xef],
        [0xef, 0xef, 0x5b, 0x01],
        [0x5b, 0xef, 0x01, 0xef],
        [0x5b, 0x01, 0xef, 0x5b],
    ];
    u32::from_le_bytes(MDS[column].map(|factor| multiply(factor, byte, 0x69)))
}

/// Eight bytes of key times the RS matrix.
fn reed_solomon(bytes: &[u8; 8]) -> [u8; 4] {
    const RS: [[u8; 8]; 4] = [
        [0x01, 0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e],
        [0xa4, 0x56, 0x82, 0xf3, 0x1e, 0xc6, 0x68, 0xe5],
        [0x02, 0xa1, 0xfc, 0xc1, 0x47, 0xae, 0x3d, 0x19],
        [0xa4, 0x55, 0x87, 0x5a, 0x58, 0xdb, 0x9e, 0x03],
    ];
    RS.map(|row| {
        let products = row.iter().zip(bytes).map(|(factor, byte)| multiply(*factor, *byte, 0x4d));
        products.fold(0, |sum, product| sum ^ product)
    })
}

/// A product in GF(2^8), reduced by a polynomial that is given without its highest term.
fn multiply(factor: u8, byte: u8, polynomial: u8) -> u8 {
    let mut product = 0;
    let mut shifted = byte;
    for bit in 0..8 {
        product ^= shifted & (factor >> bit & 1).wrapping_neg();
        shifted = shifted << 1 ^ polynomial & (shifted >> 7).wrapping_neg();
    }
    product
}

/// The permutations q0 and q1.
static PERMUTATIONS: [[u8; 256]; 2] = [
    permutation([
        0x817d_6f32_0b59_eca4,
        0xecb8_1235_f4a6_709d,
        0xba5e_6d90_c8f3_2471,
        0xd7f4_126e_9b30_85ca,
    ]),
    permutation([
        0x28bd_f76e_3194_0ac5,
        0x1e2b_4c37_6da5_f908,
        0x4c75_169a_0ed8_2b3f,
        0xb951_c3de_647f_208a,
    ]),
];

/// A byte permutation from four nibble permutations, whose values are the digits of a number.
const fn permutation(nibbles: [u64; 4]) -> [u8; 256] {
    const fn look_up(nibbles: u64, at: u8) -> u8 {
        (nibbles >> (60 - 4 * at) & 15) as u8
    }
    const fn mix(a: u8, b: u8) -> (u8, u8) {
        (a ^ b, (a ^ (b >> 1 | b << 3) ^ a << 3) & 15)
    }
    let mut bytes = [0; 256];
    let mut x = 0;
    while x < 256 {
        let (a, b) = mix((x >> 4) as u8, (x & 15) as u8);
        let (a, b) = mix(look_up(nibbles[0], a), look_up(nibbles[1], b));
        bytes[x] = look_up(nibbles[3], b) << 4 | look_up(nibbles[2], a);
        x += 1;
    }
    bytes
}
