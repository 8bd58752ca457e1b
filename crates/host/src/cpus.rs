//! The CPUs of this process, and the NUMA node of its memory.
//!
//! Both are set before the first thread starts, because each thread inherits them from the one that
//! starts it. A sandbox hides the cgroup's quota, so the quota is read once, before the sandbox.

use std::io;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Limit of NUMA nodes: `MAX_NUMNODES` of Linux is 1024 at most.
const NODES_MAX: usize = 1024;
const BITS: usize = libc::c_ulong::BITS as usize;

/// The CPUs that the calling thread, and so each later thread, may run on.
#[must_use]
pub fn allowed() -> Vec<u16> {
    let cpus = sched_getaffinity(None).unwrap_or_default();
    let all = 0..CpuSet::MAX_CPU as u16;
    all.filter(|cpu| cpus.is_set(usize::from(*cpu))).collect()
}

/// Threads that run at a time: the number of the allowed CPUs, or the [`quota`].
#[must_use]
pub fn parallelism() -> usize {
    allowed().len().max(1).min(quota().unwrap_or(usize::MAX))
}

/// CPUs whose time the cgroup's quota permitted at the first call, if they were fewer than the
/// allowed ones.
#[must_use]
pub fn quota() -> Option<usize> {
    static QUOTA: OnceLock<Option<usize>> = OnceLock::new();
    *QUOTA.get_or_init(|| {
        let available = std::thread::available_parallelism().ok()?.get();
        (available < allowed().len()).then_some(available)
    })
}

/// Reads what a sandbox hides, for later calls of [`quota`] and [`memory_node`].
pub(crate) fn look() {
    let _ = quota();
    let _ = memory_node();
}

/// CPUs as text, as Linux writes them: `0-3,8`.
#[must_use]
pub fn as_list(cpus: &[u16]) -> String {
    let runs = cpus.chunk_by(|one, next| one + 1 == *next);
    let texts = runs.map(|run| match run {
        [cpu] => cpu.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    texts.collect::<Vec<_>>().join(",")
}

/// Limits the calling thread, and each later thread, to these CPUs.
///
/// # Errors
/// The system allows none of them.
pub fn run_on(cpus: &[u16]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| usize::from(**cpu) < CpuSet::MAX_CPU).for_each(|cpu| {
        set.set(usize::from(*cpu));
    });
    sched_setaffinity(None, &set).map_err(io::Error::from)
}

/// Takes new memory from this NUMA node as long as it has free memory, in the calling thread and in
/// each later one.
///
/// # Errors
/// The node does not exist, or the kernel has no NUMA.
pub fn prefer_memory_of(node: u16) -> io::Result<()> {
    let mut mask = [0 as libc::c_ulong; NODES_MAX / BITS];
    let word = mask.get_mut(usize::from(node) / BITS);
    *word.ok_or(io::ErrorKind::InvalidInput)? = 1 << (usize::from(node) % BITS);
    // The kernel ignores the last bit of the number that it is given.
    let bits = NODES_MAX + 1;
    // SAFETY: the mask has `NODES_MAX` bits, and the call only reads it.
    let set = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_PREFERRED, mask.as_ptr(), bits)
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The node whose memory this process prefers, as it was at the first call.
#[must_use]
pub fn memory_node() -> Option<u16> {
    static NODE: OnceLock<Option<u16>> = OnceLock::new();
    *NODE.get_or_init(preferred_node)
}

/// The node that the calling thread prefers.
fn preferred_node() -> Option<u16> {
    let mut mask = [0 as libc::c_ulong; NODES_MAX / BITS];
    let mut mode: libc::c_int = 0;
    let bits = NODES_MAX + 1;
    // SAFETY: the call writes at most `NODES_MAX` bits to the mask, and the mode.
    let got = unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), bits, 0, 0)
    };
    let first = mask.iter().position(|word| *word != 0)?;
    let node = first * BITS + mask[first].trailing_zeros() as usize;
    (got == 0 && mode == libc::MPOL_PREFERRED).then_some(node as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_of_linux() {
        assert_eq!(as_list(&[]), "");
        assert_eq!(as_list(&[7]), "7");
        assert_eq!(as_list(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
    }

    #[test]
    fn threads_inherit_cpus_and_node_and_the_caller_of_others_keeps_its_own() {
        let before = allowed();
        let [.., last] = before[..] else { panic!("no CPU is allowed") };
        let placed = move || {
            run_on(&[last]).unwrap();
            let node = match prefer_memory_of(0) {
                Ok(()) => Some(0),
                // A kernel without NUMA, or a container that may not choose its memory.
                Err(error) => {
                    let refused = [Some(libc::ENOSYS), Some(libc::EPERM)];
                    assert!(refused.contains(&error.raw_os_error()), "{error}");
                    None
                }
            };
            let seen = std::thread::spawn(|| (allowed(), preferred_node())).join().unwrap();
            assert_eq!(seen, (vec![last], node));
            assert!(prefer_memory_of(1023).is_err());
            assert!(prefer_memory_of(u16::MAX).is_err());
        };
        std::thread::spawn(placed).join().unwrap();
        assert_eq!((allowed(), preferred_node()), (before, None));
    }
}
