//! XTS on the `aes` crate, for CPUs without AES-NI and other architectures.

use aes::Block;

use crate::cipher::job::Job;
use crate::cipher::portable::{BATCH_BLOCKS, CALL_STACK_BYTES, IV_BATCH, load, store, xor};
use crate::cipher::schedule::Schedule;
use crate::stack::with_wiped_stack_of;

/// Runs a job.
///
/// # Safety
///
/// As [`crate::cipher::job::Kernel`].
pub(super) unsafe fn run<const ENCRYPT: bool>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller's promise is the callee's.
    with_wiped_stack_of::<CALL_STACK_BYTES, _>(|| unsafe { batches::<ENCRYPT>(schedule, job) });
}

unsafe fn batches<const ENCRYPT: bool>(schedule: *const Schedule, job: &Job) {
    // SAFETY: the caller vouches for the schedule, and this kernel gets one of its own tier.
    let keys = unsafe { (*schedule).portable.as_ref() }.expect("made for the portable tier");
    let iv_key = keys.iv.as_ref().expect("an XTS key has two halves");
    let sector_blocks = job.sector_bytes / size_of::<Block>();
    let batch_sectors = BATCH_BLOCKS / sector_blocks;

    let mut ivs = [Block::default(); IV_BATCH];
    let mut tweaks = [Block::default(); BATCH_BLOCKS];
    let mut data = [Block::default(); BATCH_BLOCKS];
    for first in (0..job.sectors).step_by(batch_sectors) {
        let iv_index = first % IV_BATCH;
        if iv_index == 0 {
            let ivs = &mut ivs[..IV_BATCH.min(job.sectors - first)];
            for (index, block) in ivs.iter_mut().enumerate() {
                *block = job.iv.block(first + index).into();
            }
            iv_key.encrypt(ivs);
        }
        let sectors = batch_sectors.min(job.sectors - first);
        let blocks = sectors * sector_blocks;
        for sector in 0..sectors {
            let tweaks = &mut tweaks[sector * sector_blocks..][..sector_blocks];
            expand(ivs[iv_index + sector], tweaks);
        }
        let tweaks = &tweaks[..blocks];
        let data = &mut data[..blocks];
        let offset = first * job.sector_bytes;
        // SAFETY: the batch lies within the job, for whose memory the caller vouches.
        unsafe { load(data, job.src.add(offset)) }
        xor(data, tweaks);
        if ENCRYPT {
            keys.data.encrypt(data);
        } else {
            keys.data.decrypt(data);
        }
        xor(data, tweaks);
        // SAFETY: the batch lies within the job, whose destination is valid for writes.
        unsafe { store(data, job.dst.add(offset)) }
    }
}

/// The tweaks of one sector from its encrypted IV: each is the tweak before, times x.
fn expand(first: Block, tweaks: &mut [Block]) {
    let mut tweak = u128::from_le_bytes(first.into());
    for block in tweaks {
        *block = tweak.to_le_bytes().into();
        tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
    }
}

const _: () = assert!(IV_BATCH.is_multiple_of(BATCH_BLOCKS / (512 / size_of::<Block>())));
