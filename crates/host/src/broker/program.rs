//! Programs that print keys: named before the seal, started on request of the server.
//!
//! The output goes to the server by a pipe, and never through the broker. One program runs at a
//! time, in a process group of its own, and ends with the broker.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::{Broker, KILL, PROGRAM, START, STATUS, packet_of_words};
use crate::poll;
use crate::process::{end_with_this_thread, with_usual_signals};

/// Limit for the end of a killed program. A usual end takes milliseconds; a program that waits for
/// a disk ends when that answers.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// A program that the broker has started.
#[derive(Debug)]
pub struct Started {
    /// Its standard output.
    pub output: OwnedFd,
    /// Readable when it has ended.
    pub end: OwnedFd,
}

impl Broker {
    /// Names a program, by its words, that [`Broker::start`] may start later. Numbers count from 0.
    ///
    /// # Errors
    /// The words are too long; the broker has ended, or is sealed.
    pub fn add_program(&self, words: &[String]) -> io::Result<()> {
        let packet = packet_of_words(PROGRAM, words.iter().map(|word| word.as_bytes()))?;
        self.ask(&packet, None).map(drop)
    }

    /// Starts the program of this number. Callers start one at a time: a start whose reply is lost
    /// kills the running program.
    ///
    /// # Errors
    /// It cannot be started, another one runs, its descriptors have no room, or the broker has
    /// ended.
    pub fn start(&self, number: u32) -> io::Result<Started> {
        let packet = [&[START][..], &number.to_ne_bytes()].concat();
        let started = self.ask(&packet, None);
        let started = started.and_then(|reply| {
            let fds = <[OwnedFd; 2]>::try_from(reply.fds);
            let [output, end] = fds.map_err(|_| ErrorKind::BrokenPipe)?;
            Ok(Started { output, end })
        });
        started.inspect_err(|error| {
            // The program may run, and its descriptors are lost.
            if error.kind() != ErrorKind::ResourceBusy {
                let _ = self.kill_program();
            }
        })
    }

    /// The status of the started program, as wait(2) has it, once it has ended.
    ///
    /// # Errors
    /// It runs, or none was started; or the broker has ended.
    pub fn program_status(&self) -> io::Result<i32> {
        self.ask(&[STATUS], None).map(|reply| reply.number)
    }

    /// Kills the started program and its process group, if it runs.
    ///
    /// # Errors
    /// The broker has ended.
    pub fn kill_program(&self) -> io::Result<()> {
        self.ask(&[KILL], None).map(drop)
    }
}

/// The broker's side.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// Words of each program.
    known: Vec<Vec<OsString>>,
    running: Option<Child>,
    /// Killed programs that have not ended.
    killed: Vec<Child>,
}

impl Programs {
    /// Adds a program: words, each with a zero byte at its end.
    pub(super) fn add(&mut self, words: &[u8]) {
        let words = words.strip_suffix(&[0]).unwrap_or(words).split(|byte| *byte == 0);
        self.known.push(words.map(|word| OsStr::from_bytes(word).to_owned()).collect());
    }

    pub(super) fn start(&mut self, number: u32) -> io::Result<Started> {
        self.reap();
        if self.running.is_some() {
            // By number: the reply has the kind of an error only so.
            return Err(Errno::BUSY.into());
        }
        let words = self.known.get(number as usize).and_then(|words| words.split_first());
        let (program, arguments) = words.ok_or(ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        end_with_this_thread(with_usual_signals(&mut command));
        let mut child = command.spawn()?;
        let output = child.stdout.take().map(OwnedFd::from).ok_or(ErrorKind::BrokenPipe)?;
        let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        self.running = Some(child);
        match end {
            Ok(end) => Ok(Started { output, end }),
            Err(errno) => {
                self.kill();
                Err(errno.into())
            }
        }
    }

    pub(super) fn status(&mut self) -> io::Result<i32> {
        let running = self.running.as_mut().ok_or(ErrorKind::NotFound)?;
        // A wait would keep the broker from its other work.
        let status = running.try_wait()?.ok_or(ErrorKind::WouldBlock)?;
        self.running = None;
        Ok(status.into_raw())
    }

    pub(super) fn kill(&mut self) {
        let Some(mut child) = self.running.take() else { return };
        // The group has its number until the process is waited for.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.kill();
        // A wait without a limit would keep the broker from its other work.
        if let Ok(end) = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            let _ = poll::readable(&[Some(end.as_fd())], Some(KILL_LIMIT));
        }
        self.killed.push(child);
        self.reap();
    }

    fn reap(&mut self) {
        self.killed.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Mutex, mpsc};

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::super::{DONE, failed, receive, send};
    use super::*;

    fn wait(end: &OwnedFd) {
        poll::readable(&[Some(end.as_fd())], Some(Duration::from_secs(60))).unwrap();
    }

    #[test]
    fn known_program_prints_to_the_server_and_no_other_is_started() {
        let mut programs = Programs::default();
        programs.add(b"sh\0-c\0echo \"$1\"; exit 3\0sh\0a  b\0");
        assert!(programs.start(1).is_err() && programs.status().is_err());
        let Started { output, end } = programs.start(0).unwrap();
        assert_eq!(io::read_to_string(File::from(output)).unwrap(), "a  b\n");
        wait(&end);
        assert_eq!(programs.status().unwrap(), 3 << 8);
        assert!(programs.status().is_err(), "its status was taken");
    }

    #[test]
    fn one_program_runs_at_a_time_and_is_killed_with_its_group() {
        let mut programs = Programs::default();
        programs.add(b"sh\0-c\0sleep 999 & wait\0");
        let Started { output, end } = programs.start(0).unwrap();
        assert_eq!(programs.start(0).unwrap_err().kind(), ErrorKind::ResourceBusy);
        assert_eq!(programs.status().unwrap_err().kind(), ErrorKind::WouldBlock);
        programs.kill();
        wait(&end);
        // The pipe ends with its last writer.
        assert_eq!(io::read_to_string(File::from(output)).unwrap(), "");
        programs.start(0).unwrap();
        programs.kill();
    }

    /// Traces a process until its standard input ends: a process that is killed while another one
    /// traces it cannot be waited for, as if it waited for a disk.
    fn trace(pid: libc::pid_t) {
        // SAFETY: these requests touch no memory of this process.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) };
        println!("{}", if seized == 0 { "traced" } else { "refused" });
        let _ = io::stdin().read_line(&mut String::new());
    }

    #[test]
    fn killed_program_that_does_not_end_keeps_no_other_from_its_start() {
        const TRACED: &str = "BLOCKYARD_TEST_TRACED";
        if let Ok(pid) = std::env::var(TRACED) {
            return trace(pid.parse().unwrap());
        }
        let mut programs = Programs::default();
        programs.add(b"sleep\0999\0");
        programs.start(0).unwrap();
        let name = "broker::program::tests::\
                    killed_program_that_does_not_end_keeps_no_other_from_its_start";
        let pid = programs.running.as_ref().unwrap().id();
        let mut tracer = Command::new(std::env::current_exe().unwrap());
        tracer.args([name, "--exact", "--nocapture"]).env(TRACED, pid.to_string());
        let mut tracer = tracer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(tracer.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = said.map(|line| line.ends_with("traced").then_some(true));
        let is_traced = said.flatten().next().is_some();
        let (sender, killed) = mpsc::channel();
        let killing = std::thread::spawn(move || {
            programs.kill();
            sender.send(()).unwrap();
            programs
        });
        let in_time = killed.recv_timeout(Duration::from_secs(10));
        let left = in_time.is_ok().then(|| killing.join().unwrap()).map(|mut programs| {
            let left = programs.killed.len();
            programs.start(0).unwrap();
            programs.kill();
            left
        });
        drop(tracer.stdin.take());
        tracer.wait().unwrap();
        // Without the right to trace, the program has ended at once, or soon.
        assert!(left.is_some_and(|left| left == 1 || !is_traced), "{left:?}");
    }

    /// A broker, and the socket of its process.
    fn broker() -> (Broker, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        // The drop of a broker waits for its process.
        let pid = Pid::from_child(&Command::new("true").spawn().unwrap());
        (
            Broker { socket: ours, turn: Mutex::new(()), pid, is_lost: AtomicBool::new(false) },
            theirs,
        )
    }

    /// The requests of a start whose reply is this.
    fn asked_after(reply: &[u8]) -> Vec<u8> {
        let (broker, theirs) = broker();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                let mut requests = Vec::new();
                let mut packet = [0; 64];
                while let Ok((len, _)) = receive(&theirs, &mut packet)
                    && len > 0
                {
                    requests.push(packet[0]);
                    let reply = if packet[0] == START { reply } else { &[DONE] };
                    send(&theirs, reply, &[]).unwrap();
                }
                requests
            });
            broker.start(0).unwrap_err();
            drop(broker);
            served.join().unwrap()
        })
    }

    #[test]
    fn program_whose_descriptors_are_lost_is_killed_and_one_that_runs_already_is_not() {
        assert_eq!(asked_after(&[DONE]), [START, KILL]);
        let busy = failed(&Errno::BUSY.into());
        assert_eq!(asked_after(&busy), [START]);
    }

    #[test]
    fn broker_that_does_not_reply_in_time_counts_as_ended() {
        let (broker, theirs) = broker();
        let late = broker.ask_within(&[START], None, Duration::ZERO).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        let _ = send(&theirs, &[DONE], &[]);
        assert!(broker.kill_program().is_err(), "a late reply is not that of another request");
    }
}
