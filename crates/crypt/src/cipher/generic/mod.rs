//! All ciphers, modes and IVs without a specialised kernel: a private buffer holds a batch of
//! sectors.
//!
//! ```text
//!   source --copy--> data --before--> mode --after--> --copy--> destination
//!                            |          ^
//!                           IVs --------+        iv.rs, lmk.rs, tcw.rs, elephant.rs
//!                                                chain.rs, lrw.rs
//! ```
//!
//! The copy is necessary because another program may change the caller's memory (pages of a file)
//! meanwhile, and because some IVs depend on the data that they encrypt. A batch is 16 KiB. So
//! block ciphers get many blocks and IVs per call, and CBC encrypts the chains of several sectors
//! side by side. A call allocates nothing. At its end the call wipes its stack, which holds the
//! buffer and spilled round keys.
//!
//! Several volume keys can alternate by sector (loop-AES); then a batch is one sector.

mod chain;
mod elephant;
mod iv;
mod lmk;
mod lrw;
mod tcw;

use self::chain::{Chain, Run};
use self::elephant::Elephant;
use self::iv::Numbers;
use self::lmk::Lmk;
use self::tcw::Tcw;
use super::job::Job;
use super::rules::{self, ADIANTUM_BYTES, KeyLayout, WIDE_BLOCK_BYTES};
use super::spec::{CipherSpec, Digest, IvMode};
use crate::block::{self, BlockCipher};
use crate::stack::{with_wiped_stack, with_wiped_stack_of};

/// Four sectors of the largest size, so that CBC has several chains.
const BATCH_BYTES: usize = 16 * 1024;

/// Sectors of the smallest size in a batch.
const BATCH_SECTORS: usize = BATCH_BYTES / 512;

/// Work space of the modes: one sector of the largest size.
const SCRATCH_BYTES: usize = 4096;

/// Stack of a call: the buffers, and below them at most the 5 KiB of `elephant` or the 4 KiB of the
/// `aes` crate on its widest registers; the rest is margin.
const CALL_STACK_BYTES: usize = size_of::<Buffers>() + 16 * 1024;

/// A cipher with its keys.
pub(super) struct Generic {
    /// The volume keys, which alternate by sector.
    keys: Vec<Keyed>,
    iv: SectorIv,
    iv_bytes: usize,
}

/// State of one volume key.
struct Keyed {
    chain: Chain,
    /// Cipher for the IVs, keyed with the digest of the key.
    essiv: Option<Box<dyn BlockCipher>>,
}

/// Source of a sector's IV, and further effects of the IV mode.
enum SectorIv {
    /// The sector number alone: [`iv::fill`].
    Number(IvMode),
    Elephant(Elephant),
    Lmk(Lmk),
    Tcw(Tcw),
}

/// Work space of a call, on its stack.
struct Buffers {
    data: [u8; BATCH_BYTES],
    scratch: [u8; SCRATCH_BYTES],
    ivs: [u8; BATCH_SECTORS * ADIANTUM_BYTES],
}

impl Generic {
    /// Expands a key with the layout from [`CipherSpec::key_layout`].
    ///
    /// Each part wipes the stack after its own expansion: a value that moves to the heap takes
    /// stack content along in its padding.
    pub(super) fn new(spec: &CipherSpec, key: &[u8], layout: KeyLayout) -> Self {
        let (keys, extra) = key.split_at(key.len() - layout.extra_len_bytes);
        let iv = match spec.iv {
            IvMode::Elephant => SectorIv::Elephant(Elephant::new(extra)),
            IvMode::Lmk => SectorIv::Lmk(Lmk::new(extra)),
            IvMode::Tcw => SectorIv::Tcw(Tcw::new(extra)),
            mode => SectorIv::Number(mode),
        };
        let keys = keys.chunks(layout.key_len_bytes).map(|key| Keyed::new(spec, key)).collect();
        Self { keys, iv, iv_bytes: spec.iv_bytes() }
    }

    /// Encrypts a job.
    ///
    /// # Safety
    ///
    /// As [`super::job::Kernel`], without a schedule.
    pub(super) unsafe fn encrypt(&self, job: &Job) {
        // SAFETY: the caller's promise.
        with_wiped_stack_of::<CALL_STACK_BYTES, _>(|| unsafe {
            self.run(job, Self::encrypt_batch);
        });
    }

    /// Decrypts a job.
    ///
    /// # Safety
    ///
    /// As [`Generic::encrypt`].
    pub(super) unsafe fn decrypt(&self, job: &Job) {
        // SAFETY: the caller's promise.
        with_wiped_stack_of::<CALL_STACK_BYTES, _>(|| unsafe {
            self.run(job, Self::decrypt_batch);
        });
    }

    unsafe fn run(&self, job: &Job, batch: impl Fn(&Self, Numbers, &mut Run<'_>)) {
        let mut buffers = Buffers {
            data: [0; BATCH_BYTES],
            scratch: [0; SCRATCH_BYTES],
            ivs: [0; BATCH_SECTORS * ADIANTUM_BYTES],
        };
        let sectors_max = if self.keys.len() > 1 { 1 } else { BATCH_BYTES / job.sector_bytes };
        for first in (0..job.sectors).step_by(sectors_max) {
            let sectors = sectors_max.min(job.sectors - first);
            let offset = first * job.sector_bytes;
            let len_bytes = sectors * job.sector_bytes;
            let data = &mut buffers.data[..len_bytes];
            // SAFETY: the part lies within the job, whose source is valid for reads. The buffer on
            // this stack is separate from the caller's memory.
            unsafe { job.src.add(offset).copy_to_nonoverlapping(data.as_mut_ptr(), len_bytes) }
            let numbers = Numbers { counter: job.iv, first, sector_bytes: job.sector_bytes };
            let mut run = Run {
                data,
                ivs: &mut buffers.ivs[..sectors * self.iv_bytes],
                sector_bytes: job.sector_bytes,
                scratch: &mut buffers.scratch,
            };
            batch(self, numbers, &mut run);
            // SAFETY: the part lies within the job, whose destination is valid for writes. The
            // buffer on this stack is separate from the caller's memory.
            unsafe { job.dst.add(offset).copy_from_nonoverlapping(run.data.as_ptr(), len_bytes) }
        }
    }

    fn encrypt_batch(&self, numbers: Numbers, run: &mut Run<'_>) {
        let key = self.key(numbers);
        match &self.iv {
            SectorIv::Number(mode) => self.number_ivs(*mode, key, numbers, run),
            SectorIv::Elephant(elephant) => {
                elephant.diffuse(numbers, run);
                self.number_ivs(IvMode::Eboiv, key, numbers, run);
            }
            SectorIv::Lmk(lmk) => lmk.fill(numbers, run),
            SectorIv::Tcw(tcw) => tcw.fill(numbers, run),
        }
        key.chain.encrypt(run);
        if let SectorIv::Tcw(tcw) = &self.iv {
            tcw.whiten(numbers, run);
        }
    }

    fn decrypt_batch(&self, numbers: Numbers, run: &mut Run<'_>) {
        let key = self.key(numbers);
        match &self.iv {
            SectorIv::Number(mode) => self.number_ivs(*mode, key, numbers, run),
            SectorIv::Elephant(_) => self.number_ivs(IvMode::Eboiv, key, numbers, run),
            // The IV depends on the plaintext without the first block, which is decrypted first:
            // those blocks do not depend on the IV.
            SectorIv::Lmk(_) => run.ivs.fill(0),
            SectorIv::Tcw(tcw) => {
                tcw.whiten(numbers, run);
                tcw.fill(numbers, run);
            }
        }
        key.chain.decrypt(run);
        match &self.iv {
            SectorIv::Elephant(elephant) => elephant.collect(numbers, run),
            SectorIv::Lmk(lmk) => {
                lmk.fill(numbers, run);
                let sectors = run.data.chunks_exact_mut(run.sector_bytes);
                for (sector, iv) in sectors.zip(run.ivs.chunks_exact(self.iv_bytes)) {
                    xor(&mut sector[..iv.len()], iv);
                }
            }
            SectorIv::Number(_) | SectorIv::Tcw(_) => {}
        }
    }

    /// The key for a sector. The 512-byte unit selects the key, even where the IV counts encryption
    /// sectors.
    fn key(&self, numbers: Numbers) -> &Keyed {
        let turn = numbers.unit(0) & (self.keys.len() as u64 - 1);
        &self.keys[turn as usize]
    }

    fn number_ivs(&self, mode: IvMode, key: &Keyed, numbers: Numbers, run: &mut Run<'_>) {
        if self.iv_bytes == 0 {
            return;
        }
        iv::fill(mode, key.chain.unit_bytes(), numbers, run.ivs, self.iv_bytes);
        if let Some(essiv) = &key.essiv {
            essiv.encrypt(run.ivs);
        }
        if mode == IvMode::Eboiv {
            self.encrypt_offsets(run);
        }
    }

    /// Turns byte offsets into IVs: a block of zeros is encrypted as if it were a sector, with the
    /// offset as its IV. The first key is used for all sectors.
    fn encrypt_offsets(&self, run: &mut Run<'_>) {
        let mut blocks = [0u8; BATCH_SECTORS * WIDE_BLOCK_BYTES];
        let blocks = &mut blocks[..run.ivs.len()];
        let mut zeros =
            Run { data: blocks, ivs: run.ivs, sector_bytes: self.iv_bytes, scratch: run.scratch };
        self.keys[0].chain.encrypt(&mut zeros);
        run.ivs.copy_from_slice(blocks);
    }
}

impl Keyed {
    fn new(spec: &CipherSpec, key: &[u8]) -> Self {
        Self {
            chain: Chain::new(spec.mode, &spec.cipher, key),
            essiv: spec
                .essiv
                .map(|digest| with_wiped_stack(|| essiv_cipher(&spec.cipher, digest, key))),
        }
    }
}

/// A second instance of the data cipher, keyed with the digest of the key.
fn essiv_cipher(cipher: &str, digest: Digest, key: &[u8]) -> Box<dyn BlockCipher> {
    let mut salt = [0u8; 64];
    let digest_len = digest.len_bytes();
    match digest {
        Digest::Md5 => salt[..digest_len].copy_from_slice(&lmk::md5(key)),
        Digest::Hash(hash) => hash.digest(&[key], &mut salt[..digest_len]),
    }
    let key_len = rules::essiv_key_len(cipher, digest_len).expect("checked with the cipher string");
    if key_len > digest_len {
        // Serpent's rule for short keys: a one bit, then zeros.
        salt[digest_len] = 1;
    }
    block::new(cipher, &salt[..key_len])
}

/// `to ^= with`.
fn xor(to: &mut [u8], with: &[u8]) {
    debug_assert_eq!(to.len(), with.len());
    for (to, with) in to.iter_mut().zip(with) {
        *to ^= with;
    }
}
