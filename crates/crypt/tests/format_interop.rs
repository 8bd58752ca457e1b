//! cryptsetup opens volumes formatted here, and volumes formatted by cryptsetup open here.
//!
//! The tests run only where `cryptsetup` is installed. They use plain files and need neither root
//! nor device-mapper.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use blockyard_crypt::format::{self, Detached, FormatOptions, Pbkdf};
use blockyard_crypt::hash::HashAlgorithm;
use blockyard_crypt::kdf::{Argon2Variant, Kdf};
use blockyard_crypt::luks::{self, Header, Notice, UnlockOptions};
use blockyard_crypt::luks1;
use blockyard_crypt::luks2::Copy;
use blockyard_crypt::secret::SecretBytes;

const MIB: usize = 1 << 20;
const PASSPHRASE: &[u8] = b"correct horse\nbattery\0staple";

const CHEAP_ARGON2: Kdf =
    Kdf::Argon2 { variant: Argon2Variant::Id, time: 4, memory_kib: 1024, lanes: 2 };
const CHEAP_PBKDF2: Kdf = Kdf::Pbkdf2 { hash: HashAlgorithm::Sha256, iterations: 1000 };

fn cheap(kdf: Kdf) -> FormatOptions {
    FormatOptions { digest_iterations: Some(1000), ..FormatOptions::new(Pbkdf::Fixed(kdf)) }
}

fn passphrase() -> SecretBytes {
    SecretBytes::copy_of(PASSPHRASE)
}

/// A folder with a key file; `None` without cryptsetup.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Option<Self> {
        Command::new("cryptsetup").arg("--version").output().ok()?;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("key"), PASSPHRASE).unwrap();
        Some(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    fn cryptsetup(&self, arguments: &[&str], files: &[&Path]) -> Output {
        let output = Command::new("cryptsetup")
            .args(["--batch-mode", "--disable-locks"])
            .args(arguments)
            .args(files)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "cryptsetup {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        output
    }

    fn assert_opens(&self, image: &Path) {
        self.cryptsetup(&["open", "--test-passphrase", "--key-file", "key"], &[image]);
    }
}

fn unlock(device: &[u8], passphrase: &SecretBytes) -> (u32, SecretBytes) {
    let (header, notices) = Header::read(&device).unwrap();
    assert_eq!(notices, []);
    let unlocked = header.unlock(&device, passphrase, &UnlockOptions::default()).unwrap();
    (unlocked.keyslot, unlocked.volume_key)
}

#[test]
fn luks2_formatted_here_opens_in_cryptsetup() {
    let Some(bench) = Bench::new() else { return };
    let kdfs = [
        CHEAP_ARGON2,
        CHEAP_PBKDF2,
        Kdf::Argon2 { variant: Argon2Variant::I, time: 4, memory_kib: 64, lanes: 1 },
        Kdf::Pbkdf2 { hash: HashAlgorithm::Sha3_256, iterations: 1000 },
        Kdf::Pbkdf2 { hash: HashAlgorithm::Blake2b512, iterations: 1000 },
    ];
    for kdf in kdfs {
        let mut device = vec![0xaa; 18 * MIB];
        let options = FormatOptions {
            label: "blockyard test".to_owned(),
            subsystem: "tests".to_owned(),
            ..cheap(kdf)
        };
        let formatted = format::format(&mut device, &passphrase(), &options).unwrap();
        assert_eq!(unlock(&device, &passphrase()), (0, formatted.volume_key), "{kdf:?}");
        assert!(device[16 * MIB..].iter().all(|byte| *byte == 0xaa), "the data was touched");
        let image = bench.write("image", &device);
        bench.assert_opens(&image);
        let dump = bench.cryptsetup(&["luksDump"], &[&image]);
        let dump = String::from_utf8(dump.stdout).unwrap();
        for expected in ["blockyard test", "tests", kdf.name(), "aes-xts-plain64", "16777216"] {
            assert!(dump.contains(expected), "{expected} is missing in {dump}");
        }
    }
}

#[test]
fn luks2_options_of_layout_and_cipher_open_in_cryptsetup() {
    let Some(bench) = Bench::new() else { return };
    let small = FormatOptions {
        cipher: "aes-cbc-essiv:sha256".to_owned(),
        key_size_bits: 128,
        sector_size_bytes: 512,
        keyslots_len_bytes: Some(256 << 10),
        data_offset_bytes: Some(1 << 20),
        hash: HashAlgorithm::Sha512,
        uuid: Some("12345678-9abc-4def-8123-456789abcdef".to_owned()),
        ..cheap(CHEAP_PBKDF2)
    };
    let large = FormatOptions { metadata_len_bytes: 4 << 20, ..cheap(CHEAP_PBKDF2) };
    let packed = FormatOptions { keyslots_len_bytes: Some(512 << 10), ..cheap(CHEAP_PBKDF2) };
    for (options, data_offset) in [(small, 1 << 20), (large, 16 << 20), (packed, 1 << 20)] {
        let mut device = vec![0; 17 * MIB];
        let formatted = format::format(&mut device, &passphrase(), &options).unwrap();
        let image = bench.write("image", &device);
        bench.assert_opens(&image);
        let params = formatted.header.crypt_params(&formatted.volume_key, 17 << 20, false).unwrap();
        assert_eq!(params.data_offset_sectors * 512, data_offset);
        assert_eq!(params.len_sectors, Some(((17 << 20) - data_offset) / 512));
        assert_eq!(params.sector_size_bytes, options.sector_size_bytes);
    }
}

#[test]
fn luks2_detached_header_opens_in_cryptsetup_with_its_data_apart() {
    let Some(bench) = Bench::new() else { return };
    let options = FormatOptions {
        detached: Some(Detached { data_device_len_bytes: Some(8192) }),
        ..cheap(CHEAP_PBKDF2)
    };
    let mut device = vec![0; usize::try_from(format::header_len_bytes(&options).unwrap()).unwrap()];
    let formatted = format::format(&mut device, &passphrase(), &options).unwrap();
    let header = bench.write("header", &device);
    bench.write("data", &[0; 8192]);
    let arguments =
        ["open", "--test-passphrase", "--key-file", "key", "--header", header.to_str().unwrap()];
    bench.cryptsetup(&arguments, &[Path::new("data")]);
    let key = &formatted.volume_key;
    assert_eq!(formatted.header.crypt_params(key, 8192, true).unwrap().len_sectors, Some(16));
    let attached = formatted.header.crypt_params(key, 8192, false).unwrap_err().to_string();
    assert!(attached.contains("`header`"), "{attached}");
}

#[test]
fn keyslots_added_by_cryptsetup_to_our_volume_open_here() {
    let Some(bench) = Bench::new() else { return };
    let mut device = vec![0; 18 * MIB];
    let formatted = format::format(&mut device, &passphrase(), &cheap(CHEAP_ARGON2)).unwrap();
    let image = bench.write("image", &device);
    bench.write("second", b"another passphrase");
    let arguments =
        ["luksAddKey", "--key-file", "key", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    bench.cryptsetup(&arguments, &[&image, Path::new("second")]);
    let device = std::fs::read(&image).unwrap();
    let second = SecretBytes::copy_of(b"another passphrase");
    assert_eq!(unlock(&device, &second), (1, formatted.volume_key));
}

#[test]
fn luks1_formatted_here_opens_in_cryptsetup() {
    let Some(bench) = Bench::new() else { return };
    for (cipher, key_size_bits, hash) in [
        ("aes-xts-plain64", 512, HashAlgorithm::Sha256),
        ("aes-cbc-essiv:sha256", 256, HashAlgorithm::Sha1),
        ("aes-xts-plain64", 256, HashAlgorithm::Sha512),
    ] {
        let options = luks1::FormatOptions {
            cipher: cipher.to_owned(),
            key_size_bits,
            hash,
            iterations: Some(1000),
            digest_iterations: Some(1000),
            ..luks1::FormatOptions::default()
        };
        let mut device = vec![0xaa; 4 * MIB];
        let (header, key) = luks1::format(&mut device, &passphrase(), &options).unwrap();
        assert_eq!(unlock(&device, &passphrase()), (0, key.clone()));
        let image = bench.write("image", &device);
        bench.assert_opens(&image);
        let params = header.crypt_params(&key, 4 << 20, false).unwrap();
        let start = usize::try_from(params.data_offset_sectors * 512).unwrap();
        assert!(start.is_multiple_of(MIB), "{start}");
        assert!(device[start..].iter().all(|byte| *byte == 0xaa), "the data was touched");
    }
}

#[test]
fn volumes_formatted_by_cryptsetup_open_here() {
    let Some(bench) = Bench::new() else { return };
    let cheap = "--pbkdf=pbkdf2 --pbkdf-force-iterations=1000";
    let argon2 = "--pbkdf-force-iterations=4 --pbkdf-memory=1024 --pbkdf-parallel=1";
    for arguments in [
        "--type luks1 --pbkdf-force-iterations=1000 --hash sha512".to_owned(),
        "--type luks1 --pbkdf-force-iterations=1000 -c aes-cbc-plain64 -s 256".to_owned(),
        format!("--type luks2 --pbkdf=argon2i {argon2}"),
        format!("--type luks2 --pbkdf=argon2id {argon2} --sector-size 4096 --label x"),
        format!("--type luks2 {cheap} --hash sha3-512 --luks2-metadata-size 64k"),
        format!("--type luks2 {cheap} --hash blake2s-256"),
    ] {
        let image = bench.write("image", &vec![0; 17 * MIB]);
        let mut words = vec!["luksFormat", "--key-file", "key"];
        words.extend(arguments.split(' '));
        bench.cryptsetup(&words, &[&image]);
        let device = std::fs::read(&image).unwrap();
        assert_eq!(unlock(&device, &passphrase()).0, 0, "{arguments}");
    }
}

#[test]
fn flags_and_priorities_set_by_cryptsetup_are_read() {
    let Some(bench) = Bench::new() else { return };
    let mut device = vec![0; 18 * MIB];
    format::format(&mut device, &passphrase(), &cheap(CHEAP_PBKDF2)).unwrap();
    let image = bench.write("image", &device);
    bench.cryptsetup(&["config", "--key-slot=0", "--priority=ignore"], &[&image]);
    let device = std::fs::read(&image).unwrap();
    let (header, _) = Header::read(&device).unwrap();
    let refused = header.unlock(&device, &passphrase(), &UnlockOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("name it with `keyslot`"), "{refused}");
    let named = UnlockOptions { keyslot: Some(0), ..UnlockOptions::default() };
    assert_eq!(header.unlock(&device, &passphrase(), &named).unwrap().keyslot, 0);
}

#[test]
fn damaged_copy_is_a_notice_and_repair_satisfies_cryptsetup() {
    let Some(bench) = Bench::new() else { return };
    let mut good = vec![0; 18 * MIB];
    format::format(&mut good, &passphrase(), &cheap(CHEAP_PBKDF2)).unwrap();
    // In the binary header, in its checksum, in the JSON, of either copy.
    let hits = [(Copy::Primary, 0), (Copy::Primary, 450), (Copy::Primary, 5000)];
    let hits = hits.into_iter().chain([(Copy::Secondary, 0x4000), (Copy::Secondary, 0x4000 + 9)]);
    for (copy, offset) in hits {
        let mut device = good.clone();
        device[offset] ^= 0x40;
        let (header, notices) = Header::read(&device).unwrap();
        let [Notice::DamagedCopy { copy: reported, .. }] = notices.as_slice() else {
            panic!("byte {offset}: {notices:?}");
        };
        assert_eq!(*reported, copy);
        assert!(notices[0].to_string().contains(&copy.to_string()), "{}", notices[0]);
        let options = UnlockOptions::default();
        header.unlock(&device, &passphrase(), &options).unwrap();

        assert_eq!(luks::repair(&mut device).unwrap(), [copy]);
        assert_eq!(luks::repair(&mut device).unwrap(), []);
        unlock(&device, &passphrase());
        assert_eq!(device[4096..0x4000], device[0x5000..0x8000], "the JSON areas differ");
        let image = bench.write("image", &device);
        bench.assert_opens(&image);
        assert_eq!(std::fs::read(&image).unwrap(), device, "cryptsetup repaired something");
    }
}
