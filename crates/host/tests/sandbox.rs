//! Attempts of a server that was taken over. Each attempt runs in a process of its own, on a
//! thread that is older than the sandbox.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use blockyard_host::sandbox::{self, Needs, Network, Parts, Place, Reach};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use seccompiler::{SeccompAction, SeccompFilter, apply_filter_all_threads};

/// The attempt of a child process.
const ATTEMPT: &str = "BLOCKYARD_TEST_ATTEMPT";
/// A folder with a permitted file, and another one.
const FOLDER: &str = "BLOCKYARD_TEST_FOLDER";
/// The only permitted TCP port, and a closed one.
const PORTS: &str = "BLOCKYARD_TEST_PORTS";
/// Exit codes of a child are error numbers; this is above.
const SUCCESS: i32 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Works,
    Fails(i32),
    Killed,
}
use End::{Fails, Killed, Works};

/// A system call without effect if it is permitted by mistake.
fn call(number: libc::c_long, arguments: [libc::c_long; 4]) -> io::Result<()> {
    let [a, b, c, d] = arguments;
    // SAFETY: no attempt passes memory that the kernel could write.
    match unsafe { libc::syscall(number, a, b, c, d) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn folder() -> PathBuf {
    std::env::var_os(FOLDER).unwrap().into()
}

fn port(number: usize) -> u16 {
    let ports = std::env::var(PORTS).unwrap();
    ports.split(' ').nth(number).unwrap().parse().unwrap()
}

fn at(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

type Attempt = fn() -> io::Result<()>;

/// An attempt, and how it must end.
type Tried = (&'static str, End, Attempt);

fn attempts() -> Vec<Tried> {
    [files(), hindrances(), network(), processes(), kernel(), without_a_part()].concat()
}

/// Files, and what a server does all the time.
fn files() -> Vec<Tried> {
    vec![
        ("read a permitted file", Works, || File::open(folder().join("in/file")).map(drop)),
        ("read its own facts", Works, || fs::read("/proc/self/status").map(drop)),
        ("start a thread", Works, || thread::Builder::new().spawn(|| ()).map(drop)),
        ("allocate", Works, || {
            drop(vec![1u8; 64 << 20]);
            Ok(())
        }),
        ("read another file", Fails(libc::EACCES), || {
            File::open(folder().join("out/file")).map(drop)
        }),
        ("read on a new thread", Fails(libc::EACCES), || {
            thread::spawn(|| File::open(folder().join("out/file")).map(drop)).join().unwrap()
        }),
        ("write a file that may be read", Fails(libc::EACCES), || {
            File::options().write(true).open(folder().join("in/file")).map(drop)
        }),
        ("create a file", Fails(libc::EACCES), || File::create(folder().join("in/new")).map(drop)),
        ("remove a file", Fails(libc::EACCES), || fs::remove_file(folder().join("in/file"))),
        ("cut a file by name", Fails(libc::ENOSYS), || {
            call(libc::SYS_truncate, [at(&folder().join("in/file")).as_ptr() as _, 0, 0, 0])
        }),
        ("change a mode by name", Fails(libc::ENOSYS), || {
            let path = at(&folder().join("in/file"));
            call(libc::SYS_fchmodat, [libc::AT_FDCWD.into(), path.as_ptr() as _, 0o777, 0])
        }),
        ("read another process", Fails(libc::EACCES), || {
            File::open(format!("/proc/{}/status", std::os::unix::process::parent_id())).map(drop)
        }),
    ]
}

/// Reasons that a server gives. EACCES: the sandbox.
fn hindrances() -> Vec<Tried> {
    fn hindrance(name: &str) -> io::Result<()> {
        let is_hindered = sandbox::hinders_reading(&folder().join(name));
        if is_hindered { Err(io::Error::from_raw_os_error(libc::EACCES)) } else { Ok(()) }
    }
    vec![
        ("hindrance: a permitted file", Works, || hindrance("in/file")),
        ("hindrance: a permitted folder", Works, || hindrance("in")),
        ("hindrance: another file", Fails(libc::EACCES), || hindrance("out/file")),
        ("hindrance: another folder", Fails(libc::EACCES), || hindrance("out")),
        ("hindrance: a missing file", Works, || hindrance("out/missing")),
        // Its writer waits in the parent.
        ("hindrance: a permitted FIFO", Works, || hindrance("in/fifo")),
    ]
}

fn network() -> Vec<Tried> {
    vec![
        ("connect to a socket", Fails(libc::ENOSYS), || {
            UnixStream::connect(folder().join("socket")).map(drop)
        }),
        ("connect by TCP", Fails(libc::ENOSYS), || {
            TcpStream::connect(("127.0.0.1", port(0))).map(drop)
        }),
        ("listen by TCP", Fails(libc::ENOSYS), || TcpListener::bind("127.0.0.1:0").map(drop)),
        ("tcp: connect to the server", Works, || {
            TcpStream::connect(("127.0.0.1", port(0))).map(drop)
        }),
        ("tcp: connect to another port", Fails(libc::EACCES), || {
            TcpStream::connect(("127.0.0.1", port(1))).map(drop)
        }),
        ("tcp: connect to a Unix socket", Fails(libc::ENOSYS), || {
            UnixStream::connect(folder().join("socket")).map(drop)
        }),
        ("tcp: send datagrams", Fails(libc::ENOSYS), || {
            std::net::UdpSocket::bind("127.0.0.1:0").map(drop)
        }),
    ]
}

fn processes() -> Vec<Tried> {
    vec![
        ("start a program", Killed, || {
            let program = c"/bin/true".as_ptr();
            call(libc::SYS_execve, [program as _, 0, 0, 0])
        }),
        ("start a process", Fails(libc::ENOSYS), || {
            // A copy of this process, without the program.
            call(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0])
        }),
        ("start a process whose flags are hidden", Fails(libc::ENOSYS), || {
            call(libc::SYS_clone3, [0, 0, 0, 0])
        }),
        ("trace a process", Killed, || {
            let parent = std::os::unix::process::parent_id();
            call(libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), parent.into(), 0, 0])
        }),
        ("read a process", Killed, || {
            let parent = std::os::unix::process::parent_id();
            call(libc::SYS_process_vm_readv, [parent.into(), 0, 0, 0])
        }),
        ("end a process", Fails(libc::ENOSYS), || {
            call(libc::SYS_kill, [std::os::unix::process::parent_id().into(), 0, 0, 0])
        }),
        ("end a thread of a process", Fails(libc::ENOSYS), || {
            let parent = std::os::unix::process::parent_id().into();
            call(libc::SYS_tgkill, [parent, parent, 0, 0])
        }),
    ]
}

fn kernel() -> Vec<Tried> {
    vec![
        ("mount", Killed, || call(libc::SYS_mount, [0, 0, 0, 0])),
        ("make a namespace", Killed, || {
            call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0])
        }),
        ("ask for a key", Fails(libc::ENOSYS), || call(libc::SYS_keyctl, [-1, 0, 0, 0])),
        ("load a program into the kernel", Killed, || call(libc::SYS_bpf, [-1, 0, 0, 0])),
        ("make a ring", Fails(libc::ENOSYS), || call(libc::SYS_io_uring_setup, [1, 0, 0, 0])),
        ("run data", Fails(libc::ENOSYS), || {
            let rights = libc::PROT_READ | libc::PROT_EXEC;
            call(libc::SYS_mprotect, [0, 0, rights.into(), 0])
        }),
        ("type into a terminal", Fails(libc::ENOSYS), || {
            call(libc::SYS_ioctl, [0, libc::TIOCSTI as libc::c_long, 0, 0])
        }),
        ("be traced", Fails(libc::ENOSYS), || {
            call(libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 1, 0, 0])
        }),
        ("make a call of the future", Fails(libc::ENOSYS), || call(2000, [0, 0, 0, 0])),
    ]
}

/// Kernels that do not have everything.
fn without_a_part() -> Vec<Tried> {
    vec![
        ("no landlock: read another file", Works, || {
            File::open(folder().join("out/file")).map(drop)
        }),
        ("no landlock: connect to a socket", Fails(libc::ENOSYS), || {
            UnixStream::connect(folder().join("socket")).map(drop)
        }),
        ("no seccomp: read another file", Fails(libc::EACCES), || {
            File::open(folder().join("out/file")).map(drop)
        }),
        ("no seccomp: gain privileges", Fails(libc::EPERM), || {
            let facts = fs::read_to_string("/proc/thread-self/status")?;
            let is_limited = facts.contains("\nNoNewPrivs:\t1\n");
            if is_limited { Err(io::Error::from_raw_os_error(libc::EPERM)) } else { Ok(()) }
        }),
        ("no seccomp: make a ring", Fails(libc::EFAULT), || {
            call(libc::SYS_io_uring_setup, [1, 0, 0, 0])
        }),
    ]
}

/// A kernel that does not know these calls.
fn without(calls: &[libc::c_long]) {
    let rules: BTreeMap<i64, Vec<_>> = calls.iter().map(|call| (*call, Vec::new())).collect();
    let missing = SeccompAction::Errno(libc::ENOSYS as u32);
    let here = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, here).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    apply_filter_all_threads(&program).unwrap();
}

fn needs(name: &str) -> Needs {
    let mut needs = Needs::of_process();
    needs.places.push(Place { must_exist: true, ..Place::new(folder().join("in"), Reach::Read) });
    if name.starts_with("tcp: ") {
        needs.network = Network { tcp_ports: [port(0)].into(), ..Network::default() };
    }
    needs
}

/// The child: starts the sandbox beside an older thread, and tries there.
fn child(name: &str) -> ! {
    let (_, _, attempt) =
        attempts().into_iter().find(|(attempt, ..)| *attempt == name).expect("an attempt");
    let (start, started) = channel();
    let older = thread::spawn(move || {
        started.recv().unwrap();
        attempt().err().map_or(SUCCESS, |error| error.raw_os_error().unwrap())
    });
    let mut all = Parts::of_kernel();
    assert_eq!(all.missing(), None, "this test needs Landlock and seccomp");
    if name.starts_with("no landlock: ") {
        without(&[libc::SYS_landlock_create_ruleset]);
        all.landlock = None;
    }
    if name.starts_with("no seccomp: ") {
        without(&[libc::SYS_seccomp]);
        all.seccomp = false;
    }
    assert_eq!(sandbox::start(&needs(name)).unwrap(), all);
    start.send(()).unwrap();
    std::process::exit(older.join().unwrap());
}

#[test]
fn server_that_was_taken_over_goes_no_further() {
    if let Ok(name) = std::env::var(ATTEMPT) {
        child(&name);
    }
    let dir = tempfile::tempdir().unwrap();
    for name in ["in", "out"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("file"), "precious").unwrap();
    }
    let _unix = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    let fifo = dir.path().join("in/fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let (opened, has_reader) = channel();
    let writer = thread::spawn({
        let fifo = fifo.clone();
        move || opened.send(File::options().write(true).open(fifo).map(drop)).unwrap()
    });
    let [server, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = [&server, &other].map(|listener| listener.local_addr().unwrap().port());
    let mut wrong = Vec::new();
    for (name, end, _) in attempts() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["server_that_was_taken_over_goes_no_further", "--exact"]);
        child.env(ATTEMPT, name).env(FOLDER, dir.path());
        child.env(PORTS, format!("{} {}", ports[0], ports[1]));
        let output = child.output().unwrap();
        let ended = match (output.status.code(), output.status.signal()) {
            (Some(SUCCESS), _) => Some(Works),
            (_, Some(libc::SIGSYS)) => Some(Killed),
            (Some(errno), _) if errno != 101 => Some(Fails(errno)),
            _ => None,
        };
        if ended != Some(end) {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            wrong.push(format!("{name}: {ended:?}, not {end:?} {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(fs::read(dir.path().join("in/file")).unwrap(), b"precious");
    assert!(has_reader.try_recv().is_err(), "the FIFO was opened, and its writer loses its bytes");
    let _reader = File::open(&fifo).unwrap();
    writer.join().unwrap();
}
