//! Whole batches for wide kernels, and a padded last batch.

/// Runs `kernel` over batches of `N` bytes. The remainder goes through a batch padded with zeros: a
/// narrow kernel would take as long for it.
#[inline(always)]
pub(super) fn batches<const N: usize>(blocks: &mut [u8], mut kernel: impl FnMut(&mut [u8; N])) {
    let (whole, rest) = blocks.as_chunks_mut::<N>();
    for batch in whole {
        kernel(batch);
    }
    if !rest.is_empty() {
        let mut padded = [0; N];
        padded[..rest.len()].copy_from_slice(rest);
        kernel(&mut padded);
        rest.copy_from_slice(&padded[..rest.len()]);
    }
}
