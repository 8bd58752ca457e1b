//! Ciphertext of a real kernel's dm-crypt, for ciphers, modes and IVs of every kind: the result
//! here is equal, in one call and in many, in place and not, and the same combinations are refused.

use blockyard_crypt::cipher::{CipherSpec, Hints, SectorCipher};
use blockyard_crypt::hash::HashAlgorithm;

const VECTORS: &str = include_str!("../../../testdata/vectors/dm-crypt/linux-6.1.txt");

const DATA_BYTES: usize = 32 * 512;

/// One line of the file.
struct Vector<'a> {
    cipher: &'a str,
    key: Vec<u8>,
    sector_size_bytes: u32,
    large: bool,
    iv_offset: u64,
    /// Start of the ciphertext's checksum; `None`: the cipher must be refused.
    sha256: Option<&'a str>,
}

impl<'a> Vector<'a> {
    fn all() -> Vec<Vector<'a>> {
        VECTORS.lines().filter(|line| !line.starts_with('#')).map(Vector::of).collect()
    }

    fn of(line: &'a str) -> Vector<'a> {
        let words: Vec<&str> = line.split(' ').collect();
        let key_len: usize = words[1].parse().unwrap();
        Vector {
            cipher: words[0].trim_start_matches('!'),
            key: (0..key_len).map(|i| (73 * i + 5 * (i / 16) + 11) as u8).collect(),
            sector_size_bytes: words[2].parse().unwrap(),
            large: words[3] == "1",
            iv_offset: words[4].parse().unwrap(),
            sha256: (words[5] != "-").then_some(words[5]),
        }
    }

    fn cipher(&self) -> Result<SectorCipher, String> {
        let spec = CipherSpec::parse(self.cipher).map_err(|error| error.to_string())?;
        SectorCipher::new(&spec, &self.key, self.sector_size_bytes, self.large)
            .map_err(|error| error.to_string())
    }
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    let mut digest = vec![0; 32];
    HashAlgorithm::Sha256.digest(&[bytes], &mut digest);
    digest
}

fn plaintext() -> Vec<u8> {
    (0..DATA_BYTES / 32).flat_map(|index| sha256(format!("block {index}").as_bytes())).collect()
}

fn check(vector: &Vector<'_>) -> Result<(), String> {
    let cipher = match (vector.cipher(), vector.sha256) {
        (Ok(cipher), Some(_)) => cipher,
        (Ok(_), None) => return Err("there must be no such cipher".to_owned()),
        (Err(error), Some(_)) => return Err(error),
        (Err(error), None) if error.contains(vector.cipher) => return Ok(()),
        (Err(error), None) => return Err(format!("the error does not name it: {error}")),
    };
    let plain = plaintext();
    let mut encrypted = vec![0; DATA_BYTES];
    let mut back = vec![0; DATA_BYTES];
    cipher.encrypt(&plain, &mut encrypted, vector.iv_offset, Hints::default());
    let digest: String = sha256(&encrypted)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    if Some(digest.as_str()) != vector.sha256 {
        return Err(format!("the ciphertext's checksum is {digest}"));
    }
    cipher.decrypt(&encrypted, &mut back, vector.iv_offset, Hints::default());
    if back != plain {
        return Err("it decrypts to something else".to_owned());
    }
    cipher.encrypt_in_place(&mut back, vector.iv_offset);
    if back != encrypted {
        return Err("in place, it encrypts to something else".to_owned());
    }
    let size = vector.sector_size_bytes as usize;
    let units = u64::from(vector.sector_size_bytes) / 512;
    for (index, sector) in back.chunks_exact_mut(size).enumerate() {
        cipher.decrypt_in_place(sector, vector.iv_offset + index as u64 * units);
    }
    if back != plain {
        return Err("sector by sector, it decrypts to something else".to_owned());
    }
    Ok(())
}

#[test]
fn every_cipher_writes_what_the_kernel_writes() {
    let vectors = Vector::all();
    assert!(vectors.len() > 250, "{} vectors", vectors.len());
    let failures: Vec<String> = vectors
        .iter()
        .filter_map(|vector| {
            let size = vector.sector_size_bytes;
            let key = vector.key.len();
            let error = check(vector).err()?;
            Some(format!("{} key {key} sectors of {size}: {error}", vector.cipher))
        })
        .collect();
    assert!(failures.is_empty(), "{} of them:\n{}", failures.len(), failures.join("\n"));
}
