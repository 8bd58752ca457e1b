//! Every tier of every sector cipher against OpenSSL, which computes each sector separately from an
//! IV made in this file: the expected values share no code with the ciphers under test.

use blockyard_crypt::cipher::{CipherError, CipherSpec, Hints, SectorCipher, Tier};
use openssl::symm::{Cipher, Crypter, Mode};
use proptest::prelude::*;

const SECTOR_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
const HINTS: [Hints; 4] = [
    Hints { prefetch_source: false, stream_dest: false },
    Hints { prefetch_source: true, stream_dest: false },
    Hints { prefetch_source: false, stream_dest: true },
    Hints { prefetch_source: true, stream_dest: true },
];
const XTS_SPECS: [&str; 2] = ["aes-xts-plain64", "aes-xts-plain"];
const CBC_SPECS: [&str; 3] = ["aes-cbc-essiv:sha256", "aes-cbc-plain", "aes-cbc-plain64"];

/// One volume with all parameters but the tier.
#[derive(Clone, Debug)]
struct Volume {
    spec: &'static str,
    key: Vec<u8>,
    sector_bytes: u32,
    large: bool,
}

impl Volume {
    fn cipher(&self, tier: Tier) -> SectorCipher {
        let spec = CipherSpec::parse(self.spec).unwrap();
        let cipher =
            SectorCipher::with_tier(&spec, &self.key, self.sector_bytes, self.large, tier).unwrap();
        assert_eq!(cipher.tier(), tier);
        assert_eq!(cipher.sector_size_bytes(), self.sector_bytes);
        cipher
    }

    /// The expected ciphertext.
    fn expected(&self, plain: &[u8], iv_sector: u64) -> Vec<u8> {
        let mut sector = iv_sector;
        let mut out = Vec::with_capacity(plain.len());
        for data in plain.chunks(self.sector_bytes as usize) {
            let number =
                if self.large { sector / u64::from(self.sector_bytes / 512) } else { sector };
            let mut iv = [0u8; 16];
            if self.spec.ends_with("-plain") {
                iv[..4].copy_from_slice(&number.to_le_bytes()[..4]);
            } else {
                iv[..8].copy_from_slice(&number.to_le_bytes());
            }
            if self.spec.contains("essiv") {
                let hash = openssl::sha::sha256(&self.key);
                iv = ecb(&hash, &iv).try_into().unwrap();
            }
            out.extend(if self.spec.contains("xts") {
                xts(&self.key, iv, data)
            } else {
                let cipher = match self.key.len() {
                    16 => Cipher::aes_128_cbc(),
                    24 => Cipher::aes_192_cbc(),
                    _ => Cipher::aes_256_cbc(),
                };
                openssl_encrypt(cipher, &self.key, Some(&iv), data)
            });
            sector = sector.wrapping_add(u64::from(self.sector_bytes / 512));
        }
        out
    }
}

fn openssl_encrypt(cipher: Cipher, key: &[u8], iv: Option<&[u8]>, data: &[u8]) -> Vec<u8> {
    let mut crypter = Crypter::new(cipher, Mode::Encrypt, key, iv).unwrap();
    crypter.pad(false);
    let mut out = vec![0; data.len() + cipher.block_size()];
    let len = crypter.update(data, &mut out).unwrap();
    out.truncate(len);
    assert_eq!(out.len(), data.len());
    out
}

fn ecb(key: &[u8], data: &[u8]) -> Vec<u8> {
    let cipher = match key.len() {
        16 => Cipher::aes_128_ecb(),
        24 => Cipher::aes_192_ecb(),
        _ => Cipher::aes_256_ecb(),
    };
    openssl_encrypt(cipher, key, None, data)
}

/// OpenSSL's XTS, or its ECB with the XTS tweaks computed here for AES-192 and for equal key
/// halves, which OpenSSL's XTS does not support.
fn xts(key: &[u8], iv: [u8; 16], data: &[u8]) -> Vec<u8> {
    let (data_key, iv_key) = key.split_at(key.len() / 2);
    match key.len() {
        32 if data_key != iv_key => openssl_encrypt(Cipher::aes_128_xts(), key, Some(&iv), data),
        64 if data_key != iv_key => openssl_encrypt(Cipher::aes_256_xts(), key, Some(&iv), data),
        _ => xts_over_ecb(data_key, iv_key, iv, data),
    }
}

fn xts_over_ecb(data_key: &[u8], iv_key: &[u8], iv: [u8; 16], data: &[u8]) -> Vec<u8> {
    let mut tweak = u128::from_le_bytes(ecb(iv_key, &iv).try_into().unwrap());
    let mut tweaks = Vec::new();
    for _ in 0..data.len() / 16 {
        tweaks.extend(tweak.to_le_bytes());
        tweak = (tweak << 1) ^ if tweak >> 127 == 1 { 0x87 } else { 0 };
    }
    let xor = |a: &[u8], b: &[u8]| -> Vec<u8> { a.iter().zip(b).map(|(a, b)| a ^ b).collect() };
    xor(&ecb(data_key, &xor(data, &tweaks)), &tweaks)
}

/// Bytes that depend on `seed` alone.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Every mode with all its key lengths.
fn specs_and_keys() -> Vec<(&'static str, Vec<u8>)> {
    let xts = XTS_SPECS.into_iter().flat_map(|spec| [32, 48, 64].map(|len| (spec, len)));
    let cbc = CBC_SPECS.into_iter().flat_map(|spec| [16, 24, 32].map(|len| (spec, len)));
    xts.chain(cbc).map(|(spec, len)| (spec, bytes(7 + len as u64, len))).collect()
}

fn volumes() -> impl Iterator<Item = Volume> {
    specs_and_keys().into_iter().flat_map(|(spec, key)| {
        SECTOR_SIZES.into_iter().flat_map(move |sector_bytes| {
            let key = key.clone();
            [false, true].map(|large| Volume { spec, key: key.clone(), sector_bytes, large })
        })
    })
}

/// Asserts that all ways to call one cipher on one run of sectors give the same bytes.
fn check(volume: &Volume, tier: Tier, plain: &[u8], iv_sector: u64) {
    let expected = volume.expected(plain, iv_sector);
    let cipher = volume.cipher(tier);
    let mut out = vec![0xa5; plain.len()];
    for hints in HINTS {
        out.fill(0xa5);
        cipher.encrypt(plain, &mut out, iv_sector, hints);
        assert!(out == expected, "encrypt {volume:?} {tier:?} {hints:?} {iv_sector}");
        out.fill(0xa5);
        cipher.decrypt(&expected, &mut out, iv_sector, hints);
        assert!(out == plain, "decrypt {volume:?} {tier:?} {hints:?} {iv_sector}");
    }
    out.copy_from_slice(plain);
    cipher.encrypt_in_place(&mut out, iv_sector);
    assert!(out == expected, "encrypt in place {volume:?} {tier:?} {iv_sector}");
    cipher.decrypt_in_place(&mut out, iv_sector);
    assert!(out == plain, "decrypt in place {volume:?} {tier:?} {iv_sector}");
}

#[test]
fn every_sector_count_from_1_to_40_equals_openssl() {
    for (spec, key) in specs_and_keys() {
        for sector_bytes in [512, 4096] {
            let volume = Volume { spec, key: key.clone(), sector_bytes, large: false };
            let plain = bytes(3, 40 * sector_bytes as usize);
            let expected = volume.expected(&plain, 9);
            for tier in Tier::available() {
                let cipher = volume.cipher(tier);
                for sectors in 1..=40 {
                    let len = sectors * sector_bytes as usize;
                    let mut data = plain[..len].to_vec();
                    cipher.encrypt_in_place(&mut data, 9);
                    assert!(data == expected[..len], "{volume:?} {tier:?} {sectors} sectors");
                    cipher.decrypt_in_place(&mut data, 9);
                    assert!(data == plain[..len], "{volume:?} {tier:?} {sectors} sectors");
                }
            }
        }
    }
}

#[test]
fn every_sector_size_and_iv_width_equals_openssl() {
    for volume in volumes() {
        let plain = bytes(11, 19 * volume.sector_bytes as usize);
        for tier in Tier::available() {
            for iv_sector in [0, 8, 0xffff_ff80, 0xffff_fff8, u64::MAX - 7, u64::MAX - 79] {
                check(&volume, tier, &plain, iv_sector);
            }
        }
    }
}

#[test]
fn iv_sector_wraps_in_the_middle_of_a_batch() {
    for iv_sector in [0xffff_fffd, u64::MAX - 2] {
        for spec in XTS_SPECS.into_iter().chain(CBC_SPECS) {
            let key = bytes(1, if spec.contains("xts") { 64 } else { 32 });
            let volume = Volume { spec, key, sector_bytes: 512, large: false };
            for tier in Tier::available() {
                check(&volume, tier, &bytes(5, 21 * 512), iv_sector);
            }
        }
    }
}

#[test]
fn equal_halves_of_an_xts_key_are_accepted() {
    for half in [16, 24, 32] {
        let key = [bytes(2, half), bytes(2, half)].concat();
        let volume = Volume { spec: "aes-xts-plain64", key, sector_bytes: 512, large: false };
        for tier in Tier::available() {
            check(&volume, tier, &bytes(6, 9 * 512), 77);
        }
    }
}

#[test]
fn capi_names_are_the_same_ciphers() {
    for (capi, plain, key_len) in [
        ("capi:xts(aes)-plain64", "aes-xts-plain64", 64),
        ("capi:cbc(aes)-plain64", "aes-cbc-plain64", 32),
        ("capi:cbc(aes)-essiv:sha256", "aes-cbc-essiv:sha256", 32),
        ("aes", "aes-cbc-plain", 32),
        ("aes-plain", "aes-cbc-plain", 32),
    ] {
        let key = bytes(8, key_len);
        let data = bytes(9, 4096);
        let encrypted = |spec: &str| {
            let spec = CipherSpec::parse(spec).unwrap();
            let mut data = data.clone();
            SectorCipher::new(&spec, &key, 512, false).unwrap().encrypt_in_place(&mut data, 5);
            data
        };
        assert!(encrypted(capi) == encrypted(plain), "{capi}");
    }
}

#[test]
fn any_alignment_is_taken_and_nothing_else_touched() {
    const GUARD: usize = 64;
    for (spec, key_len) in [("aes-xts-plain64", 64), ("aes-cbc-essiv:sha256", 32)] {
        let volume = Volume { spec, key: bytes(4, key_len), sector_bytes: 512, large: false };
        let plain = bytes(12, 11 * 512);
        let expected = volume.expected(&plain, 40);
        for tier in Tier::available() {
            let cipher = volume.cipher(tier);
            for (src_offset, dst_offset) in [(0, 0), (1, 0), (0, 1), (16, 32), (28, 48), (63, 31)] {
                for hints in HINTS {
                    let mut src = vec![0u8; plain.len() + 2 * GUARD];
                    src[src_offset..][..plain.len()].copy_from_slice(&plain);
                    let mut dst = vec![0xeeu8; plain.len() + 3 * GUARD];
                    let start = GUARD + dst_offset;
                    let source = &src[src_offset..][..plain.len()];
                    cipher.encrypt(source, &mut dst[start..][..plain.len()], 40, hints);
                    assert!(dst[start..][..plain.len()] == expected, "{tier:?} {hints:?}");
                    assert!(dst[..start].iter().all(|byte| *byte == 0xee), "{tier:?} wrote before");
                    let after = &dst[start + plain.len()..];
                    assert!(after.iter().all(|byte| *byte == 0xee), "{tier:?} wrote behind");
                    cipher.decrypt_in_place(&mut dst[start..][..plain.len()], 40);
                    assert!(dst[start..][..plain.len()] == plain, "{tier:?} {hints:?} in place");
                }
            }
        }
    }
}

#[test]
fn large_and_cold_buffers_give_the_same_bytes_with_every_hint() {
    const LEN: usize = 3 << 20;
    let plain = bytes(20, LEN);
    for (spec, key_len) in [("aes-xts-plain64", 64), ("aes-cbc-plain64", 32)] {
        let volume = Volume { spec, key: bytes(21, key_len), sector_bytes: 4096, large: false };
        let reference = volume.expected(&plain, 1 << 33);
        for tier in Tier::available() {
            let cipher = volume.cipher(tier);
            for hints in HINTS {
                let mut out = vec![0u8; LEN];
                cipher.encrypt(&plain, &mut out, 1 << 33, hints);
                assert!(out == reference, "{spec} {tier:?} {hints:?}");
                let mut back = vec![0u8; LEN];
                cipher.decrypt(&out, &mut back, 1 << 33, hints);
                assert!(back == plain, "{spec} {tier:?} {hints:?}");
            }
        }
    }
}

#[test]
fn an_empty_run_is_no_work() {
    let spec = CipherSpec::parse("aes-xts-plain64").unwrap();
    for tier in Tier::available() {
        let cipher = SectorCipher::with_tier(&spec, &[1; 64], 512, false, tier).unwrap();
        cipher.encrypt_in_place(&mut [], 0);
        cipher.decrypt_in_place(&mut [], 0);
    }
}

#[test]
fn wrong_keys_and_sector_sizes_are_named() {
    let error = |spec: &str, key_len: usize, sector_bytes: u32| {
        let spec = CipherSpec::parse(spec).unwrap();
        SectorCipher::new(&spec, &vec![0; key_len], sector_bytes, false).unwrap_err()
    };
    for len in [0, 1, 16, 31, 33, 47, 63, 65, 128] {
        let error = error("aes-xts-plain64", len, 512);
        assert!(matches!(error, CipherError::BadKeyLength { got, .. } if got == len), "{len}");
    }
    for len in [0, 15, 17, 48, 64] {
        let error = error("aes-cbc-essiv:sha256", len, 512);
        assert!(matches!(error, CipherError::BadKeyLength { got, .. } if got == len), "{len}");
    }
    assert_eq!(
        error("aes-cbc-plain", 64, 512).to_string(),
        "cipher `aes-cbc-plain` takes a key of 16, 24 or 32 bytes, not 64"
    );
    for size in [0, 256, 511, 1536, 8192, u32::MAX] {
        assert_eq!(error("aes", 32, size), CipherError::BadSectorSize { got: size });
    }
}

#[test]
#[should_panic(expected = "length is not a multiple of the sector size")]
fn a_part_of_a_sector_is_refused() {
    let spec = CipherSpec::parse("aes-xts-plain64").unwrap();
    let cipher = SectorCipher::new(&spec, &[3; 64], 4096, false).unwrap();
    cipher.encrypt_in_place(&mut [0; 4096 + 512], 0);
}

#[test]
fn debug_output_shows_no_key() {
    let spec = CipherSpec::parse("aes-xts-plain64").unwrap();
    let cipher = SectorCipher::with_tier(&spec, &[0xab; 64], 512, false, Tier::Portable).unwrap();
    assert_eq!(
        format!("{cipher:?}"),
        "SectorCipher { tier: Portable, sector_size_bytes: 512, .. }"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_volumes_equal_openssl(
        choice in any::<prop::sample::Index>(),
        size in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        sectors in 1usize..24,
        iv_sector in any::<u64>(),
        large in any::<bool>(),
    ) {
        let choices = specs_and_keys();
        let (spec, key) = choice.get(&choices);
        let sector_bytes = *size.get(&SECTOR_SIZES);
        let key = bytes(seed, key.len());
        let volume = Volume { spec, key, sector_bytes, large };
        let plain = bytes(!seed, sectors * sector_bytes as usize);
        // dm-crypt requires an IV offset that is a multiple of the sector size.
        let iv_sector = iv_sector & !u64::from(sector_bytes / 512 - 1);
        for tier in Tier::available() {
            check(&volume, tier, &plain, iv_sector);
        }
    }
}
