//! seccomp: the system calls of a server that has started.
//!
//! Three answers:
//! * Calls of the data path, of threads, timers and memory are executed ([`ALWAYS`]); some only
//!   with harmless arguments ([`limited`]).
//! * Calls by which only an attacker goes on end the process at once ([`FATAL`]): there is no way
//!   to them from correct code, and a process that makes them is no longer ours.
//! * All others fail with `ENOSYS`. A C library takes this for an old kernel and uses another call,
//!   so that a new version of it does not end the server. `EPERM` would be an error to it. New
//!   processes and keyrings are among them: an export that comes with a reload may want them, and
//!   gets an error.
//!
//! The kernel remembers which calls are always executed (Linux 5.11) and asks no filter about them.

use std::collections::{BTreeMap, BTreeSet};
use std::env::consts::ARCH;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

/// Servers that a process connects to after its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Ports of TCP servers.
    pub tcp_ports: BTreeSet<u16>,
    /// Hosts are named, and their addresses asked for.
    pub names: bool,
    /// Unix sockets.
    pub unix: bool,
}

/// Executed with all arguments.
const ALWAYS: &[libc::c_long] = &[
    // Data.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_splice,
    libc::SYS_vmsplice,
    libc::SYS_tee,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_lseek,
    // Without `io_uring_setup`: rings are made before.
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Files by name, which Landlock limits.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    // Facts about files, which Landlock does not limit.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    // Descriptors.
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fchmod,
    libc::SYS_pipe2,
    libc::SYS_eventfd2,
    libc::SYS_memfd_create,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    // Waiting.
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Sockets that are open already.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    // Memory, without code: see `limited`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_brk,
    libc::SYS_membarrier,
    // Threads; see `limited` for `clone`. `clone3` hides its flags from a filter.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setparam,
    libc::SYS_sched_getparam,
    libc::SYS_sched_setattr,
    libc::SYS_sched_getattr,
    libc::SYS_setpriority,
    libc::SYS_getpriority,
    libc::SYS_ioprio_set,
    libc::SYS_ioprio_get,
    libc::SYS_getcpu,
    // Signals to this thread.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Facts about this process.
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
    // The command of `--run`, at its end.
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Older forms of these, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const ALWAYS_HERE: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_mkdir,
    libc::SYS_rename,
    libc::SYS_getdents,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_time,
    libc::SYS_getrlimit,
];
#[cfg(not(target_arch = "x86_64"))]
const ALWAYS_HERE: &[libc::c_long] = &[];

/// They end the process.
const FATAL: &[libc::c_long] = &[
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // The kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // File systems and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    // Other users.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
];

/// Like [`FATAL`], on this architecture only.
#[cfg(target_arch = "x86_64")]
const FATAL_HERE: &[libc::c_long] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load];
#[cfg(not(target_arch = "x86_64"))]
const FATAL_HERE: &[libc::c_long] = &[];

/// Flags of `clone(2)` that make a process or a namespace; a thread has only the first.
const NEW_NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;
/// `PR_SET_VMA` of `linux/prctl.h`: names of memory, which some C libraries give.
const PR_SET_VMA: i32 = 0x5356_4d41;
/// The type of a socket, without its flags.
const SOCKET_TYPE: u64 = 0xf;
/// ioctl(2) on files and sockets: `linux/fs.h`, `asm-generic/ioctls.h`. Not `TIOCSTI`, which types
/// into a terminal.
const IOCTLS: [u64; 10] = [
    0x1268,      // BLKSSZGET
    0x1277,      // BLKDISCARD
    0x127f,      // BLKZEROOUT
    0x4c05,      // LOOP_GET_STATUS64
    0x8008_1272, // BLKGETSIZE64
    0x5401,      // TCGETS, by isatty(3)
    0x541b,      // FIONREAD
    0x5421,      // FIONBIO
    0x5451,      // FIOCLEX
    0x8004_e500, // FUSE_DEV_IOC_CLONE, of `linux/fuse.h`: a descriptor for each thread of a mount
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Whether the kernel and this architecture have filters with these answers.
pub(super) fn is_supported() -> bool {
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the call reads one number, which outlives it.
    let asked = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action)
    };
    asked == 0 && architecture().is_some()
}

fn architecture() -> Option<TargetArch> {
    ARCH.try_into().ok()
}

/// Limits the system calls of all threads.
pub(super) fn limit(network: &Network) -> Result<(), String> {
    let refused = |error: seccompiler::Error| format!("the kernel refuses seccomp: {error}");
    let (fatal, allowed) = programs(network).map_err(|error| format!("seccomp: {error}"))?;
    apply_filter_all_threads(&fatal).map_err(refused)?;
    apply_filter_all_threads(&allowed).map_err(refused)
}

/// The filter of fatal calls, and that of permitted ones.
fn programs(network: &Network) -> Result<(BpfProgram, BpfProgram), BackendError> {
    let here = architecture().ok_or(BackendError::InvalidTargetArch(ARCH.to_owned()))?;
    let with_all_arguments = |calls: [&[libc::c_long]; 2]| -> Rules {
        calls.concat().into_iter().map(|call| (call, Vec::new())).collect()
    };
    let fatal = with_all_arguments([FATAL, FATAL_HERE]);
    let fatal = SeccompFilter::new(fatal, SeccompAction::Allow, SeccompAction::KillProcess, here)?;
    let mut allowed = with_all_arguments([ALWAYS, ALWAYS_HERE]);
    allowed.extend(limited(network));
    let other = SeccompAction::Errno(libc::ENOSYS as u32);
    let allowed = SeccompFilter::new(allowed, other, SeccompAction::Allow, here)?;
    Ok((fatal.try_into()?, allowed.try_into()?))
}

/// Calls that are executed with some arguments only.
fn limited(network: &Network) -> Rules {
    let exec = libc::PROT_EXEC as u64;
    let thread = libc::CLONE_THREAD as u64;
    let options = [libc::PR_SET_NAME, libc::PR_GET_NAME, PR_SET_VMA].map(|of| of as u64);
    let mut rules = Rules::from([
        (libc::SYS_mmap, vec![rule([masked(2, exec, 0)])]),
        (libc::SYS_mprotect, vec![rule([masked(2, exec, 0)])]),
        (libc::SYS_clone, vec![rule([masked(0, NEW_NAMESPACES as u64 | thread, thread)])]),
        (libc::SYS_tgkill, vec![rule([equal(0, std::process::id().into())])]),
        (libc::SYS_prlimit64, vec![rule([equal(0, 0)])]),
        (libc::SYS_prctl, one_of(0, &options)),
        (libc::SYS_ioctl, one_of(1, &IOCTLS)),
    ]);
    let mut sockets = Vec::new();
    let mut socket = |domain: i32, kind: i32| {
        sockets.push(rule([equal(0, domain as u64), masked(1, SOCKET_TYPE, kind as u64)]));
    };
    if network.unix {
        socket(libc::AF_UNIX, libc::SOCK_STREAM);
    }
    for domain in [libc::AF_INET, libc::AF_INET6] {
        if !network.tcp_ports.is_empty() {
            socket(domain, libc::SOCK_STREAM);
        }
        if network.names {
            socket(domain, libc::SOCK_DGRAM);
        }
    }
    if !sockets.is_empty() {
        rules.insert(libc::SYS_socket, sockets);
        rules.insert(libc::SYS_connect, Vec::new());
    }
    rules
}

fn rule<const N: usize>(conditions: [SeccompCondition; N]) -> SeccompRule {
    SeccompRule::new(conditions.into()).expect("a rule has conditions")
}

fn one_of(argument: u8, values: &[u64]) -> Vec<SeccompRule> {
    values.iter().map(|value| rule([equal(argument, *value)])).collect()
}

/// An argument, as the 32 bits that the kernel reads of it.
fn equal(argument: u8, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::Eq, value)
}

/// The bits of a mask in an argument.
fn masked(argument: u8, mask: u64, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::MaskedEq(mask), value)
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
        .expect("a call has up to six arguments")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_both_fatal_and_permitted() {
        let fatal: BTreeSet<_> = [FATAL, FATAL_HERE].concat().into_iter().collect();
        let network = Network { tcp_ports: [1].into(), names: true, unix: true };
        let mut allowed: BTreeSet<_> = [ALWAYS, ALWAYS_HERE].concat().into_iter().collect();
        allowed.extend(limited(&network).into_keys());
        assert_eq!(fatal.intersection(&allowed).count(), 0);
    }

    #[test]
    fn filters_are_as_long_as_the_kernel_takes() {
        let network = Network { tcp_ports: [1].into(), names: true, unix: true };
        let (fatal, allowed) = programs(&network).unwrap();
        assert!(fatal.len() < 4096 && allowed.len() < 4096, "{} {}", fatal.len(), allowed.len());
    }
}
