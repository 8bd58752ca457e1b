//! The CPUs of this process, and the NUMA node of its memory.
//!
//! Both are set before the first thread starts, because each thread inherits them from the one that
//! starts it. The quota of the cgroups may change at any time.

mod quota;

use std::io;
use std::sync::OnceLock;

use quota::Quota;

/// Limit of NUMA nodes: `MAX_NUMNODES` of Linux is 1024 at most.
const NODES_MAX: usize = 1024;
/// Limit of CPUs: `NR_CPUS` of Linux is 8192 at most. The kernel refuses a mask with fewer CPUs
/// than it supports, so `cpu_set_t` with its 1024 does not suffice.
const CPUS_MAX: usize = 8192;
const BITS: usize = libc::c_ulong::BITS as usize;

/// CPUs of a thread, as the kernel takes them.
type CpuMask = [libc::c_ulong; CPUS_MAX / BITS];

/// The CPUs that the calling thread, and so each later thread, may run on.
#[must_use]
pub fn allowed() -> Vec<u16> {
    allowed_of(0)
}

/// As [`allowed`], for a thread; 0 is the calling thread.
pub(crate) fn allowed_of(thread: libc::pid_t) -> Vec<u16> {
    let mask = mask_of(thread).unwrap_or([0; CPUS_MAX / BITS]);
    let is_set = |cpu: &u16| mask[usize::from(*cpu) / BITS] >> (usize::from(*cpu) % BITS) & 1 == 1;
    (0..CPUS_MAX as u16).filter(is_set).collect()
}

/// The CPUs of a thread; 0 is the calling thread.
fn mask_of(thread: libc::pid_t) -> Option<CpuMask> {
    let mut mask: CpuMask = [0; CPUS_MAX / BITS];
    // SAFETY: the call writes at most the bytes of the mask.
    let got = unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, thread, size_of::<CpuMask>(), mask.as_mut_ptr())
    };
    (got >= 0).then_some(mask)
}

/// Threads that run at a time: the number of the allowed CPUs, or the [`quota`].
#[must_use]
pub fn parallelism() -> usize {
    parallelism_of(0)
}

/// As [`parallelism`], for a thread; 0 is the calling thread.
pub(crate) fn parallelism_of(thread: libc::pid_t) -> usize {
    limited(thread, opened())
}

fn limited(thread: libc::pid_t, quota: &Quota) -> usize {
    let count = |mask: CpuMask| mask.iter().map(|word| word.count_ones() as usize).sum();
    let allowed: usize = mask_of(thread).map_or(1, count);
    allowed.min(quota.cpus().unwrap_or(usize::MAX))
}

/// CPUs whose time the cgroups permit now, if they are fewer than the allowed ones.
#[must_use]
pub fn quota() -> Option<usize> {
    opened().cpus().filter(|quota| *quota < allowed().len())
}

fn opened() -> &'static Quota {
    static QUOTA: OnceLock<Quota> = OnceLock::new();
    if QUOTA.get().is_none() {
        // The files are opened without the lock: a child after `fork` would wait for it forever.
        let _ = QUOTA.set(Quota::open());
    }
    QUOTA.get().expect("it is set, here or by another thread")
}

/// Opens what a sandbox hides, for later calls of [`quota`] and [`memory_node`].
pub(crate) fn look() {
    let _ = (quota(), memory_node());
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
    run_thread_on(0, cpus)
}

/// Limits a thread, or the only thread of a process, to these CPUs; 0 is the calling thread.
///
/// # Errors
/// The system allows none of them, or there is no such thread.
pub(crate) fn run_thread_on(thread: libc::pid_t, cpus: &[u16]) -> io::Result<()> {
    let mut mask: CpuMask = [0; CPUS_MAX / BITS];
    for cpu in cpus.iter().map(|cpu| usize::from(*cpu)).filter(|cpu| *cpu < CPUS_MAX) {
        mask[cpu / BITS] |= 1 << (cpu % BITS);
    }
    // SAFETY: the call reads the bytes of the mask.
    let set = unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, thread, size_of::<CpuMask>(), mask.as_ptr())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
    fn quota_limits_the_cpus_of_a_thread() {
        let place = tempfile::tempdir().unwrap();
        let all = allowed().len();
        for (limit, expected) in [("100000 100000", 1), ("max 100000", all)] {
            std::fs::write(place.path().join("cpu.max"), limit).unwrap();
            let path = place.path().display();
            let mount = format!("30 24 0:26 / {path} rw - cgroup2 cgroup2 rw");
            assert_eq!(limited(0, &Quota::of("0::/\n", &mount)), expected);
        }
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
