//! The S-boxes of Camellia (RFC 3713, section 2.4.1), each multiplied out by the P-function.

/// The contribution to F of each byte of a word, the most significant byte first.
pub(super) static TABLES: [[u64; 256]; 8] = {
    // The result bytes to which each S-box's output is added.
    const SPREAD: [u64; 8] = [
        0x0101_0100_0100_0001,
        0x0001_0101_0101_0000,
        0x0100_0101_0001_0100,
        0x0101_0001_0000_0101,
        0x0001_0101_0001_0101,
        0x0100_0101_0100_0101,
        0x0101_0001_0101_0001,
        0x0101_0100_0101_0100,
    ];
    // Numbers of the S-boxes.
    const BOX: [u8; 8] = [1, 2, 3, 4, 2, 3, 4, 1];
    let mut tables = [[0; 256]; 8];
    let mut index = 0;
    while index < 8 {
        let mut byte = 0;
        while byte < 256 {
            let substituted = match BOX[index] {
                1 => s1(byte),
                2 => s1(byte).rotate_left(1),
                3 => s1(byte).rotate_right(1),
                _ => s1((byte as u8).rotate_left(1) as usize),
            };
            tables[index][byte] = SPREAD[index] * substituted as u64;
            byte += 1;
        }
        index += 1;
    }
    tables
};

/// SBOX1; the others are rotations of its input or output.
const fn s1(byte: usize) -> u8 {
    (SBOX1[byte / 16] >> (120 - 8 * (byte % 16))) as u8
}

/// The table, sixteen entries in each number.
const SBOX1: [u128; 16] = [
    0x7082_2cec_b327_c0e5_e485_5735_ea0c_ae41,
    0x23ef_6b93_4519_a521_ed0e_4f4e_1d65_92bd,
    0x86b8_af8f_7ceb_1fce_3e30_dc5f_5ec5_0b1a,
    0xa6e1_39ca_d547_5d3d_d901_5ad6_5156_6c4d,
    0x8b0d_9a66_fbcc_b02d_7412_2b20_f0b1_8499,
    0xdf4c_cbc2_347e_7605_6db7_a931_d117_04d7,
    0x1458_3a61_de1b_111c_320f_9c16_5318_f222,
    0xfe44_cfb2_c3b5_7a91_2408_e8a8_60fc_6950,
    0xaad0_a07d_a189_6297_545b_1e95_e0ff_64d2,
    0x10c4_0048_a3f7_75db_8a03_e6da_093f_dd94,
    0x875c_8302_cd4a_9033_7367_f6f3_9d7f_bfe2,
    0x529b_d826_c837_c63b_8196_6f4b_13be_632e,
    0xe979_a78c_9f6e_bc8e_29f5_f9b6_2ffd_b459,
    0x7898_066a_e746_71ba_d425_ab42_88a2_8dfa,
    0x7207_b955_f8ee_ac0a_3649_2a68_3c38_f1a4,
    0x4028_d37b_bbc9_43c1_15e3_adf4_77c7_809e,
];
