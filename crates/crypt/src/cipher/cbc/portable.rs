//! CBC on the `aes` crate, for CPUs without AES-NI and other architectures.

use aes::Block;

use crate::cipher::job::Job;
use crate::cipher::portable::{
    BATCH_BLOCKS, CALL_STACK_BYTES, IV_BATCH, PortableKeys, load, store, xor, xor_raw,
};
use crate::cipher::schedule::Schedule;
use crate::stack::with_wiped_stack_of;

/// Chains that run side by side: the best number of blocks for the `aes` crate.
const CHAINS: usize = IV_BATCH;

/// Encrypts a job.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
pub(super) unsafe fn encrypt(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    with_wiped_stack_of::<CALL_STACK_BYTES, _>(|| unsafe { encrypt_chains(schedule, job) });
}

unsafe fn encrypt_chains(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller vouches for the schedule, and this kernel gets one of its own tier.
    let keys = unsafe { (*schedule).portable.as_ref() }.expect("made for the portable tier");
    let mut chains = [Block::default(); CHAINS];
    let mut data = [Block::default(); CHAINS];
    for first in (0..job.sectors).step_by(CHAINS) {
        let sectors = CHAINS.min(job.sectors - first);
        let chains = &mut chains[..sectors];
        let data = &mut data[..sectors];
        ivs(keys, job, first, chains);
        for in_sector in (0..job.sector_bytes).step_by(size_of::<Block>()) {
            let offset = |index: usize| (first + index) * job.sector_bytes + in_sector;
            for (index, block) in data.iter_mut().enumerate() {
                // SAFETY: the block lies within the job, for whose memory the caller vouches.
                unsafe { load(std::slice::from_mut(block), job.src.add(offset(index))) }
            }
            xor(chains, data);
            keys.data.encrypt(chains);
            for (index, block) in chains.iter().enumerate() {
                // SAFETY: the block lies within the job, whose destination is valid for writes.
                unsafe { store(std::slice::from_ref(block), job.dst.add(offset(index))) }
            }
        }
    }
}

/// Decrypts a job.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
pub(super) unsafe fn decrypt(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    with_wiped_stack_of::<CALL_STACK_BYTES, _>(|| unsafe { decrypt_batches(schedule, job) });
}

unsafe fn decrypt_batches(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller vouches for the schedule, and this kernel gets one of its own tier.
    let keys = unsafe { (*schedule).portable.as_ref() }.expect("made for the portable tier");
    let sector_blocks = job.sector_bytes / size_of::<Block>();
    let batch_sectors = BATCH_BLOCKS / sector_blocks;
    let mut iv_batch = [Block::default(); IV_BATCH];
    let mut data = [Block::default(); BATCH_BLOCKS];
    for first in (0..job.sectors).step_by(batch_sectors) {
        let iv_index = first % IV_BATCH;
        if iv_index == 0 {
            ivs(keys, job, first, &mut iv_batch[..IV_BATCH.min(job.sectors - first)]);
        }
        let sectors = batch_sectors.min(job.sectors - first);
        let data = &mut data[..sectors * sector_blocks];
        let offset = first * job.sector_bytes;
        // SAFETY: the batch lies within the job, for whose memory the caller vouches.
        unsafe { load(data, job.src.add(offset)) }
        keys.data.decrypt(data);
        for (sector, blocks) in data.chunks_mut(sector_blocks).enumerate() {
            xor(&mut blocks[..1], &iv_batch[iv_index + sector..][..1]);
            // The source still has the ciphertext, even in place: nothing of the batch is stored
            // yet.
            // SAFETY: every block but the last of a sector of the job.
            unsafe { xor_raw(&mut blocks[1..], job.src.add(offset + sector * job.sector_bytes)) }
        }
        // SAFETY: the batch lies within the job, whose destination is valid for writes.
        unsafe { store(data, job.dst.add(offset)) }
    }
}

/// The IVs of the sectors from `first` on.
fn ivs(keys: &PortableKeys, job: &Job, first: usize, ivs: &mut [Block]) {
    for (index, block) in ivs.iter_mut().enumerate() {
        *block = job.iv.block(first + index).into();
    }
    if let Some(key) = &keys.iv {
        key.encrypt(ivs);
    }
}
