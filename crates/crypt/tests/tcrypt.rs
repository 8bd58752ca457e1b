//! TrueCrypt and VeraCrypt volumes of a writer of our own. `cryptsetup tcryptDump` opens the same
//! headers and prints the same keys and place, as far as its library has the ciphers without the
//! kernel: AES alone. The names of cipher and hash keep it from trying others, which would end it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use blockyard_crypt::Error;
use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::{Argon2Variant, Kdf, KdfLimits};
use blockyard_crypt::secret::SecretBytes;
use blockyard_crypt::tcrypt::{self, Options, VolumeKind};

const DISK_LEN: usize = 400 << 10;
const AREA: usize = 128 << 10;
const VOLUME_LEN: u64 = 64 << 10;

/// A header to write.
struct Written<'a> {
    magic: &'a [u8; 4],
    version: u16,
    names: &'a [&'a str],
    mode: &'a str,
    kdf: Kdf,
    at: usize,
    hidden_len: u64,
    encrypted_len: u64,
}

impl Default for Written<'_> {
    fn default() -> Self {
        Self {
            magic: b"TRUE",
            version: 5,
            names: &["aes"],
            mode: "xts-plain64",
            kdf: pbkdf2(HashAlgorithm::Sha512, 1000),
            at: 0,
            hidden_len: 0,
            encrypted_len: VOLUME_LEN,
        }
    }
}

fn pbkdf2(hash: HashAlgorithm, iterations: u32) -> Kdf {
    Kdf::Pbkdf2 { hash, iterations }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}

/// The keys of an area for a cipher after the other.
fn keys(names: usize, mode: &str, area: &[u8]) -> Vec<Vec<u8>> {
    let part = |at: usize, len: usize| area[at..at + len].to_vec();
    (0..names)
        .map(|index| match mode {
            "xts-plain64" => [part(32 * index, 32), part(32 * (names + index), 32)].concat(),
            _ => [part(32 * (index + 1), 32), part(0, 16)].concat(),
        })
        .collect()
}

impl Written<'_> {
    /// One cipher after the other, first to last.
    fn encrypt(&self, area: &[u8], data: &mut [u8], sector: u64) {
        for (name, key) in self.names.iter().zip(keys(self.names.len(), self.mode, area)) {
            let spec = CipherSpec::parse(&format!("{name}-{}", self.mode)).unwrap();
            let cipher = SectorCipher::new(&spec, &key, 512, false).unwrap();
            cipher.encrypt_in_place(data, sector);
        }
    }

    /// Area of the volume's keys.
    fn area() -> Vec<u8> {
        (0..256_u32).map(|at| (at * 7 + 3) as u8).collect()
    }

    /// A disk with this header and, in its volume, sectors with their number.
    fn disk(&self, password: &[u8]) -> Vec<u8> {
        let mut disk = vec![0x33; DISK_LEN];
        let mut header = vec![0; 512];
        header[..4].copy_from_slice(self.magic);
        header[4..6].copy_from_slice(&self.version.to_be_bytes());
        header[6..8].copy_from_slice(&0x0700_u16.to_be_bytes());
        header[8..12].copy_from_slice(&crc32(&Self::area()).to_be_bytes());
        header[28..36].copy_from_slice(&self.hidden_len.to_be_bytes());
        header[36..44].copy_from_slice(&VOLUME_LEN.to_be_bytes());
        header[44..52].copy_from_slice(&(AREA as u64).to_be_bytes());
        header[52..60].copy_from_slice(&self.encrypted_len.to_be_bytes());
        header[64..68].copy_from_slice(&512_u32.to_be_bytes());
        header[192..448].copy_from_slice(&Self::area());
        let sum = crc32(&header[..188]);
        header[188..192].copy_from_slice(&sum.to_be_bytes());
        let salt = [0x5c; 64];
        let mut key = vec![0; 192];
        self.kdf.derive(password, &salt, &mut key, &KdfLimits::default()).unwrap();
        self.encrypt(&key, &mut header, 0);
        disk[self.at..self.at + 64].copy_from_slice(&salt);
        disk[self.at + 64..self.at + 512].copy_from_slice(&header[..448]);
        let mut data = plaintext();
        let first = if self.mode == "xts-plain64" { AREA as u64 / 512 } else { 0 };
        self.encrypt(&Self::area(), &mut data, first);
        disk[AREA..AREA + data.len()].copy_from_slice(&data);
        disk
    }
}

fn plaintext() -> Vec<u8> {
    (0..VOLUME_LEN).map(|at| (at / 512 + at % 13) as u8).collect()
}

fn secret(bytes: &[u8]) -> SecretBytes {
    SecretBytes::copy_of(bytes)
}

/// The decrypted volume.
fn opened(disk: &[u8], password: &[u8], options: &Options) -> Result<Vec<u8>, Error> {
    let unlocked = tcrypt::unlock(&disk, &secret(password), options)?;
    let params = unlocked.crypt_params(disk.len() as u64)?;
    let spec = CipherSpec::parse_line(&params.cipher).unwrap();
    let cipher = SectorCipher::new(&spec, params.key.as_slice(), 512, false).unwrap();
    let start = params.data_offset_sectors as usize * 512;
    let len = params.len_sectors.unwrap() as usize * 512;
    let mut data = disk[start..start + len].to_vec();
    cipher.decrypt_in_place(&mut data, params.iv_offset_sectors);
    Ok(data)
}

/// Output of `cryptsetup tcryptDump`, or its error.
fn cryptsetup(disk: &[u8], password: &[u8], words: &[&str]) -> Result<String, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(disk).unwrap();
    let mut child = Command::new("cryptsetup")
        .args(["tcryptDump", "-q", "--dump-volume-key", "-c", "aes"])
        .args(words)
        .arg(file.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cryptsetup is installed");
    child.stdin.take().unwrap().write_all(password).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The bytes after `MK dump:`.
fn dumped_key(text: &str) -> Vec<u8> {
    let digits: String = text.split("MK dump:").nth(1).unwrap().split_whitespace().collect();
    let digits = digits.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// The dump of a header of [`Written`] with AES in XTS mode.
fn check_dump(dump: &str) {
    let words: String = dump.split_whitespace().collect();
    assert!(words.contains("xts-plain64"), "{dump}");
    assert!(words.contains(&format!("offset:{}MK", AREA / 512)), "{dump}");
    assert_eq!(dumped_key(dump), keys(1, "xts-plain64", &Written::area()).concat());
}

/// Time for TrueCrypt's derivations only.
fn cheap() -> Options {
    let limits = KdfLimits { seconds_max: 0, ..KdfLimits::default() };
    Options { limits, ..Options::default() }
}

const CHAINS: [&[&str]; 10] = [
    &["aes"],
    &["serpent"],
    &["twofish"],
    &["twofish", "aes"],
    &["serpent", "twofish", "aes"],
    &["aes", "serpent"],
    &["aes", "twofish", "serpent"],
    &["serpent", "twofish"],
    &["camellia"],
    &["serpent", "camellia"],
];

#[test]
fn every_cipher_cascade_and_mode_opens() {
    for mode in ["xts-plain64", "lrw-benbi"] {
        for names in CHAINS {
            let written = Written { names, mode, ..Written::default() };
            let disk = written.disk(b"a passphrase");
            let data = opened(&disk, b"a passphrase", &cheap()).unwrap();
            assert!(data == plaintext(), "{names:?} {mode}");
        }
    }
}

#[test]
fn every_kdf_of_truecrypt_and_veracrypt_opens() {
    use HashAlgorithm::{Blake2s256, Ripemd160, Sha1, Sha256, Sha512, Whirlpool};
    for (hash, iterations) in
        [(Ripemd160, 2000), (Ripemd160, 1000), (Sha512, 1000), (Whirlpool, 1000), (Sha1, 2000)]
    {
        let written = Written { kdf: pbkdf2(hash, iterations), ..Written::default() };
        let disk = written.disk(b"p");
        assert!(opened(&disk, b"p", &cheap()).unwrap() == plaintext(), "{hash:?}");
        // The first of its hash, of those that cryptsetup's library has.
        if hash == Sha512 {
            check_dump(&cryptsetup(&disk, b"p", &["-h", hash.name()]).unwrap());
        }
    }
    let argon2 =
        Kdf::Argon2 { variant: Argon2Variant::Id, time: 3, memory_kib: 64 << 10, lanes: 1 };
    let hashes = [Sha512, Sha256, Blake2s256, Whirlpool, Ripemd160];
    let kdfs = hashes.map(|hash| pbkdf2(hash, 16_000));
    let options = Options { pim: Some(1), ..Options::default() };
    for kdf in kdfs.into_iter().chain([argon2]) {
        let written = Written { magic: b"VERA", kdf, ..Written::default() };
        let disk = written.disk(b"p");
        assert!(opened(&disk, b"p", &options).unwrap() == plaintext(), "{kdf:?}");
        if let Kdf::Pbkdf2 { hash, .. } = kdf
            && matches!(hash, Sha512 | Sha256)
        {
            let words = ["--veracrypt", "--veracrypt-pim", "1", "-h", hash.name()];
            check_dump(&cryptsetup(&disk, b"p", &words).unwrap());
        }
    }
    let other = Options { pim: Some(2), ..Options::default() };
    let written = Written { magic: b"VERA", kdf: kdfs[0], ..Written::default() };
    assert!(matches!(opened(&written.disk(b"p"), b"p", &other), Err(Error::NoTcrypt { .. })));
}

#[test]
fn hidden_backup_and_system_headers_are_where_the_options_say() {
    let hidden = |at| Written { at, hidden_len: VOLUME_LEN, ..Written::default() };
    let normal = |at| Written { at, ..Written::default() };
    let cases = [
        (hidden(65_536), VolumeKind::Hidden, false, vec!["--tcrypt-hidden"]),
        (
            hidden(DISK_LEN - 65_536),
            VolumeKind::Hidden,
            true,
            vec!["--tcrypt-hidden", "--tcrypt-backup"],
        ),
        (normal(DISK_LEN - 131_072), VolumeKind::Normal, true, vec!["--tcrypt-backup"]),
        (normal(31_744), VolumeKind::System, false, vec!["--tcrypt-system"]),
    ];
    for (written, kind, backup, words) in cases {
        let disk = written.disk(b"p");
        let options = Options { kind, backup, ..cheap() };
        assert!(opened(&disk, b"p", &options).unwrap() == plaintext(), "{words:?}");
        let words = [&["-h", "sha512"], &words[..]].concat();
        check_dump(&cryptsetup(&disk, b"p", &words).unwrap());
        let elsewhere = opened(&disk, b"p", &cheap());
        assert!(matches!(elsewhere, Err(Error::NoTcrypt { .. })));
    }
}

#[test]
fn keyfiles_make_the_password_that_cryptsetup_makes() {
    let pool = |files: &[&[u8]], passphrase: &[u8]| {
        let mut pool = vec![0_u8; 64];
        for file in files {
            let mut crc = u32::MAX;
            let mut at = 0;
            for byte in *file {
                crc ^= u32::from(*byte);
                crc = (0..8).fold(crc, |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)));
                for part in crc.to_be_bytes() {
                    pool[at % 64] = pool[at % 64].wrapping_add(part);
                    at += 1;
                }
            }
        }
        for (place, byte) in pool.iter_mut().zip(passphrase) {
            *place = place.wrapping_add(*byte);
        }
        pool
    };
    let files: [&[u8]; 2] = [b"the first keyfile", &[0xff; 5000]];
    let disk = Written::default().disk(&pool(&files, b"word"));
    let keyfiles = files.iter().map(|file| secret(file)).collect();
    let options = Options { keyfiles, ..cheap() };
    assert!(opened(&disk, b"word", &options).unwrap() == plaintext());
    let mut words = vec!["-h".to_owned(), "sha512".to_owned()];
    let folder = tempfile::tempdir().unwrap();
    for (index, file) in files.iter().enumerate() {
        let path = folder.path().join(format!("key{index}"));
        std::fs::write(&path, file).unwrap();
        words.push(format!("--key-file={}", path.display()));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    check_dump(&cryptsetup(&disk, b"word", &words).unwrap());
    assert!(opened(&disk, b"other", &options).is_err());
}

#[test]
fn damaged_unfinished_and_costly_volumes_are_refused() {
    let whole = Written::default().disk(b"p");
    for place in [64, 72, 300, 511 - 64] {
        let mut disk = whole.clone();
        disk[place] ^= 1;
        assert!(matches!(opened(&disk, b"p", &cheap()), Err(Error::NoTcrypt { .. })));
    }
    // VeraCrypt writes 0 before the encryption of a disk begins.
    for encrypted_len in [0, VOLUME_LEN - 512] {
        let unfinished = Written { encrypted_len, ..Written::default() };
        let error = opened(&unfinished.disk(b"p"), b"p", &cheap()).unwrap_err().to_string();
        assert!(error.contains("are encrypted; let VeraCrypt finish"), "{error}");
    }
    let mut text = String::new();
    let limits = KdfLimits { seconds_max: 1, memory_kib_max: 1024, ..KdfLimits::default() };
    let options = Options { pim: Some(1_000_000), limits, ..Options::default() };
    let error = opened(&whole, b"p", &options).unwrap_err();
    write!(text, "{error}").unwrap();
    assert!(text.contains("not tried") && text.contains("`seconds_max`"), "{text}");
    for (len, backup) in [(0, false), (511, false), (1000, true)] {
        let options = Options { backup, ..cheap() };
        let error = opened(&whole[..len], b"p", &options).unwrap_err();
        assert!(matches!(error, Error::DataDevice(_)), "{error}");
    }
    let long = opened(&whole, &[b'x'; 129], &cheap()).unwrap_err().to_string();
    assert!(long.contains("at most 128"), "{long}");
    let short = whole[..AREA + 1024].to_vec();
    assert!(matches!(opened(&short, b"p", &cheap()), Err(Error::DataDevice(_))));
}
