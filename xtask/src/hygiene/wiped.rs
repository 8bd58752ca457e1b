//! A live server after `suspend` and `message key wipe`: nothing of the key is left in it, for any
//! cipher: neither the key, in bytes or as text, nor a round key.
//!
//! The searched round keys are the contents of protected memory of the same cipher with the same
//! key in this process.

use super::memory::{self, Needle};
use crate::interop::content;
use crate::lab::{Door, Lab, Server};
use crate::tools;
use crate::volume::{noise, sparse};
use anyhow::{Context, Result, ensure};
use blockyard_crypt::cipher::{CipherSpec, SectorCipher};
use blockyard_crypt::secret::set_protector;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A cipher of each kind, with the lengths of its key and of its sectors: each block cipher, each
/// mode, and each IV with separate keys.
const CIPHERS: &[(&str, usize, u32)] = &[
    ("aes-xts-plain64", 64, 512),
    ("aes-xts-plain64", 32, 4096),
    ("aes-xts-benbi", 64, 512),
    ("aes-cbc-essiv:sha256", 32, 512),
    ("aes-cbc-essiv:sha256", 32, 4096),
    ("aes-cbc-plain64", 24, 512),
    ("aes-cbc-plain64be", 32, 512),
    ("aes-cbc-eboiv", 32, 512),
    ("aes-lrw-benbi", 48, 512),
    ("aes-ecb", 32, 512),
    ("aes-ctr-plain64", 32, 512),
    ("aes-cbc-elephant", 64, 4096),
    ("aes:2-cbc-tcw", 96, 512),
    ("aes:64-cbc-lmk", 1040, 512),
    ("serpent-xts-plain64", 64, 512),
    ("serpent-cbc-essiv:sha256", 32, 512),
    ("serpent-lrw-benbi", 48, 512),
    ("twofish-xts-plain64", 64, 512),
    ("twofish-cbc-essiv:sha256", 32, 512),
    ("camellia-xts-plain64", 64, 512),
    ("camellia-cbc-plain64", 32, 512),
    ("cast5-cbc-plain64", 16, 512),
    ("cast6-xts-plain64", 64, 512),
    ("cast6-ctr-plain64", 32, 512),
    ("xchacha12,aes-adiantum-plain64", 32, 4096),
    ("xchacha20,aes-adiantum-plain64", 32, 4096),
];

const VOLUME_BYTES: u64 = 2 << 20;
/// Length of a searched piece of a round key.
const NEEDLE_BYTES: usize = 16;

/// Wipes the key of a server with this control socket, and leaves it suspended.
pub(super) fn wipe(lab: &Lab, control: &str) -> Result<()> {
    tools::run(&mut lab.blockyard(&["suspend", control]))?;
    tools::run(&mut lab.blockyard(&["message", control, "key", "wipe"])).map(drop)
}

/// Every cipher in turn.
pub(super) fn ciphers(lab: &Lab) -> Result<String> {
    let mut round_keys = 0;
    for (number, cipher) in CIPHERS.iter().enumerate() {
        let subject = Subject::make(lab, number as u64, *cipher)?;
        round_keys += subject.check().with_context(|| format!("{cipher:?}"))?;
    }
    Ok(format!("{} ciphers, {round_keys} pieces of round keys", CIPHERS.len()))
}

/// A headerless volume, and the searched bytes.
struct Subject<'a> {
    lab: &'a Lab,
    table: PathBuf,
    needles: Vec<Needle>,
}

impl<'a> Subject<'a> {
    fn make(
        lab: &'a Lab,
        seed: u64,
        (cipher, key_bytes, sector): (&str, usize, u32),
    ) -> Result<Self> {
        let key = noise(0x5eed_c0de + seed, key_bytes);
        let hex = key.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        let image = lab.path("wiped.img");
        sparse(&image, VOLUME_BYTES)?;
        lab.give(&image)?;
        let options =
            if sector == 512 { String::new() } else { format!(" 1 sector_size:{sector}") };
        let sectors = VOLUME_BYTES / 512;
        let image = image.display();
        let line = format!("0 {sectors} crypt {cipher} {hex} 0 {image} 0{options}\n");
        let table = lab.write("wiped.table", line)?;
        let mut needles = round_keys(cipher, &key, sector)?;
        needles.push(Needle::new("key as text", &hex.as_bytes()[..24]));
        needles.extend(key.chunks_exact(NEEDLE_BYTES).map(|part| Needle::new("key", part)));
        Ok(Self { lab, table, needles })
    }

    /// Returns the number of searched pieces of round keys.
    fn check(&self) -> Result<usize> {
        let control = self.lab.path("wiped.ctl").display().to_string();
        let _ = fs::remove_file(&control);
        let server = self.serve(&control)?;
        fs::remove_file(&self.table)?;
        content::fill(server.socket(), 3)?;
        content::read(server.socket())?;
        let pid = server.process().0;
        let count =
            |found: &[memory::Hit]| found.iter().filter(|hit| hit.what == ROUND_KEY).count();
        let serving = count(&memory::scan(pid, &self.needles)?);
        ensure!(serving > 0, "while it serves no round key is found: this check sees nothing");
        wipe(self.lab, &control)?;
        let hits = memory::scan(pid, &self.needles)?;
        ensure!(hits.is_empty(), "{} hits: {}", hits.len(), memory::list(&hits));
        server.stop()?;
        Ok(serving)
    }

    fn serve(&self, control: &str) -> Result<Server> {
        let socket = self.lab.path("wiped.sock");
        let mut serve = self.lab.blockyard(&["serve", "--threads", "2", "--control", control]);
        serve.arg("--table").arg(&self.table).arg("--socket").arg(&socket);
        self.lab.start("wiped", serve, Door::Unix(socket))
    }
}

const ROUND_KEY: &str = "round key";

/// The content of protected memory for a cipher with this key, in pieces.
pub(super) fn round_keys(cipher: &str, key: &[u8], sector_bytes: u32) -> Result<Vec<Needle>> {
    static PROTECTED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());
    let protected = || PROTECTED.lock().unwrap_or_else(PoisonError::into_inner);
    set_protector(|memory| {
        let mut protected = PROTECTED.lock().unwrap_or_else(PoisonError::into_inner);
        protected.push((memory.as_ptr() as usize, memory.len()));
    });
    let memory = File::open("/proc/self/mem").context("this process's memory")?;
    protected().clear();
    let spec = CipherSpec::parse(cipher)?;
    let held = SectorCipher::new(&spec, key, sector_bytes, false)?;
    let mut pieces = BTreeSet::new();
    for (address, len_bytes) in protected().iter() {
        let mut bytes = vec![0; *len_bytes];
        memory.read_exact_at(&mut bytes, *address as u64)?;
        let chunks = bytes.as_chunks::<NEEDLE_BYTES>().0;
        // Zeroes, lengths and pointers are no keys.
        let looks_random = |chunk: &&[u8; NEEDLE_BYTES]| {
            chunk.iter().collect::<BTreeSet<_>>().len() > NEEDLE_BYTES / 2
        };
        pieces.extend(chunks.iter().filter(looks_random).copied());
    }
    drop(held);
    Ok(pieces.iter().map(|piece| Needle::new(ROUND_KEY, piece)).collect())
}
