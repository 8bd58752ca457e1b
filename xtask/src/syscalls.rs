//! `cargo x syscalls`: ENOSPC, EIO and EINTR at each system call of the real program by turns.
//!
//! `strace` answers the Nth call of a kind with an error, without executing it. The program must
//! end with success or with one error line, without a panic, and in time. Success means that its
//! work is done. After a failure, the volume opens with the old or the new key and has its data. A
//! server must have all that a flush acknowledged when it is started again.

mod commands;
mod server;

use crate::cases::Cases;
use crate::lab::Lab;
use crate::random::Random;
use crate::tools;
use crate::totals::Totals;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) use commands::{Bench, JOBS};

const ERRORS: [&str; 3] = ["EIO", "ENOSPC", "EINTR"];

/// Calls that cannot fail with these errors, or have no result that a program could act on.
const SAFE: &str = "access arch_prctl brk clock_nanosleep close_range execve exit exit_group \
                    futex getegid geteuid getgid getpid getrandom gettid getuid kill madvise mmap \
                    mprotect mremap munmap nanosleep prctl prlimit64 restart_syscall rseq \
                    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait sched_getaffinity \
                    sched_yield set_robust_list set_tid_address shutdown sigaltstack tgkill";

/// Name of the job that serves a volume.
const SERVE: &str = "serve";

/// Time and selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// As many calls as fit into this time; without it, all calls of all jobs.
    #[arg(long)]
    seconds: Option<u64>,
    /// Seed of the order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this job.
    job: Option<String>,
    /// Only this fault: call, error and number of the call, as `pwrite64:EIO:3`.
    #[arg(requires = "job")]
    fault: Option<String>,
}

/// An error instead of the result of a system call.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    call: String,
    error: &'static str,
    /// The Nth call of this kind in each thread.
    when: u32,
}

impl Fault {
    fn parse(text: &str) -> Option<Self> {
        let [call, error, when] = text.split(':').collect::<Vec<_>>()[..] else { return None };
        let error = ERRORS.into_iter().find(|known| *known == error)?;
        Some(Self { call: call.to_owned(), error, when: when.parse().ok()? })
    }

    /// Options of strace.
    fn options(&self) -> [String; 4] {
        let Self { call, error, when } = self;
        let inject = format!("inject={call}:error={error}:when={when}");
        ["-e".into(), format!("trace={call},eventfd2"), "-e".into(), inject]
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { call, error, when } = self;
        write!(f, "{call}:{error}:{when}")
    }
}

pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    tools::need("strace")?;
    let lab = Lab::new()?;
    let bench = Bench::new(&lab)?;
    let mut cases = Cases::new(None);
    let all = JOBS.iter().map(|job| job.name).chain([SERVE]);
    let is_chosen = |name: &&str| args.job.as_deref().is_none_or(|wanted| wanted == *name);
    let chosen: Vec<_> = all.clone().filter(is_chosen).collect();
    if chosen.is_empty() {
        bail!("no such job; there are {}", all.collect::<Vec<_>>().join(", "));
    }
    let each = args.seconds.map(|s| Duration::from_secs(s) / chosen.len() as u32);
    totals.raise("first_seed", args.seed);
    for name in chosen {
        let mut run = |fault: &Fault| match JOBS.iter().find(|job| job.name == name) {
            Some(job) => bench.check(job, fault),
            None => server::check(&bench, fault),
        };
        if let Some(text) = &args.fault {
            let fault = Fault::parse(text).context("a fault is CALL:ERROR:NUMBER")?;
            cases.run(&format!("{name} {fault}"), || run(&fault).map(Met::remark));
            continue;
        }
        let calls = match JOBS.iter().find(|job| job.name == name) {
            Some(job) => bench.calls(job),
            None => server::calls(&bench),
        };
        let mut faults = faults(&calls.with_context(|| format!("the calls of {name}"))?);
        shuffle(&mut faults, args.seed);
        turns(&lab, &mut cases, name, &faults, each, &mut run, totals);
    }
    cases.finish("syscalls")
}

/// Outcome of a program that met a fault and behaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    /// It ended before the call.
    Nothing,
    Success,
    Error,
}

impl Met {
    fn remark(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// Tries the faults until the time is over.
fn turns(
    lab: &Lab,
    cases: &mut Cases,
    name: &str,
    faults: &[Fault],
    time: Option<Duration>,
    run: &mut dyn FnMut(&Fault) -> Result<Met>,
    totals: &mut Totals,
) {
    let start = Instant::now();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for fault in faults {
        if time.is_some_and(|time| start.elapsed() >= time) {
            break;
        }
        totals.add("calls_failed", 1);
        let met = run(fault).or_else(|why| if is_wake(lab) { Ok(Met::Nothing) } else { Err(why) });
        match met {
            Ok(Met::Nothing) => *counts.entry("not reached").or_default() += 1,
            Ok(Met::Success) => *counts.entry("successes").or_default() += 1,
            Ok(Met::Error) => *counts.entry("errors").or_default() += 1,
            Err(why) => {
                let again = format!("again: cargo x syscalls {name} {fault}");
                cases.verdict(&format!("{name} {fault}"), Err(why.context(again)));
            }
        }
    }
    let words: Vec<_> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    let of = faults.len();
    cases.verdict(name, Ok(format!("{} of {of} calls", words.join(", "))));
}

/// Whether the failed call was to wake a thread: no eventfd fails with these errors.
fn is_wake(lab: &Lab) -> bool {
    fails_a_wake(&fs::read(lab.path("fault.log")).map(|log| tools::text(&log)).unwrap_or_default())
}

/// Whether a failed call of this log, one in each thread, wrote to an eventfd. A process that hides
/// its memory hides the names of its files too, so only their numbers tell. A call during which
/// another thread called something has two lines, and the second one has no number.
fn fails_a_wake(log: &str) -> bool {
    let mut eventfds = BTreeSet::new();
    let mut begun = BTreeMap::new();
    for line in log.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        if rest.starts_with("eventfd2(") || rest.starts_with("<... eventfd2 resumed>") {
            let number = rest.rsplit_once("= ").map(|(_, end)| first_number(end));
            eventfds.extend(number);
        }
        if let Some(words) = rest.strip_prefix("write(") {
            begun.insert(thread, first_number(words));
        }
        let is_write = rest.starts_with("write(") || rest.starts_with("<... write resumed>");
        if is_write && rest.contains("(INJECTED)") {
            let number = begun.get(thread);
            if number.is_some_and(|number| eventfds.contains(number)) {
                return true;
            }
        }
    }
    false
}

/// The digits at the start.
fn first_number(text: &str) -> String {
    text.chars().take_while(char::is_ascii_digit).collect()
}

/// Greatest number of each call in one thread, and how many of these came before `main`.
type Calls = BTreeMap<String, (u32, u32)>;

fn faults(calls: &Calls) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (call, (before_main, count)) in calls {
        for error in ERRORS {
            let fault = |when| Fault { call: call.clone(), error, when };
            faults.extend((before_main + 1..=*count).map(fault));
        }
    }
    faults
}

fn shuffle(faults: &mut [Fault], seed: u64) {
    let mut random = Random::new(seed);
    for last in (1..faults.len()).rev() {
        faults.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// Counts the calls in a log of `strace -f`. The loader's calls end where Rust's runtime
/// begins, with a `poll` of the standard streams.
fn counted(log: &Path, has_loader: bool) -> Result<Calls> {
    let text = tools::text(&fs::read(log)?);
    let mut by_thread: BTreeMap<(&str, &str), (u32, u32)> = BTreeMap::new();
    let mut is_loading = has_loader;
    for line in text.lines() {
        let Some((thread, rest)) = line.split_once(' ') else { continue };
        let name = rest.trim_start().split('(').next().unwrap_or("");
        let is_call = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_call || !rest.contains('(') || SAFE.split(' ').any(|safe| safe == name) {
            continue;
        }
        let (before_main, count) = by_thread.entry((thread, name)).or_default();
        *count += 1;
        *before_main += u32::from(is_loading);
        is_loading &= name != "poll";
    }
    let mut calls = Calls::new();
    for ((_, name), (before_main, count)) in by_thread {
        let known = calls.entry(name.to_owned()).or_default();
        *known = (known.0.max(before_main), known.1.max(count));
    }
    ensure!(!calls.is_empty(), "strace saw no system call");
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_wake_is_found_in_one_line_and_in_two() {
        let [wake, other] = ["write(6<anon_inode:[eventfd]>, 0x7f, 8", "write(7, 0x7f, 8"];
        let failed = "= -1 EIO (Input/output error) (INJECTED)";
        let log =
            |lines: &str| format!("8 eventfd2(0, EFD_CLOEXEC) = 6<anon_inode:[eventfd]>\n{lines}");
        let whole = |call: &str| format!("8 {call}) {failed}\n");
        assert!(fails_a_wake(&log(&whole(wake))) && !fails_a_wake(&log(&whole(other))));
        let cut = |call: &str| {
            let end = format!("8 <... write resumed>) {failed}\n");
            format!("8 {call} <unfinished ...>\n9 {wake}) = 8\n{end}")
        };
        assert!(fails_a_wake(&log(&cut(wake))) && !fails_a_wake(&log(&cut(other))));
        assert!(!fails_a_wake(&log(&format!("8 {wake}) = 8\n"))), "nothing failed");
        assert!(fails_a_wake(&log(&(whole(other) + &cut(wake)))), "one in each thread");
        assert!(!fails_a_wake(&whole(wake)), "6 is another file");
    }

    #[test]
    fn each_call_behind_the_loader_fails_with_each_error() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let text = "7 read(3) = 9\n7 poll([]) = 0\n7 read(3) = 9\n8 read(3 <unfinished ...>\n\
                    7 munmap(0x1) = 0\n8 <... read resumed>) = 1\n7 +++ exited with 0 +++\n";
        fs::write(&log, text).unwrap();
        let calls = counted(&log, true).unwrap();
        let expected = [("poll".to_owned(), (1, 1)), ("read".to_owned(), (1, 2))];
        assert_eq!(calls, Calls::from(expected));
        let names: Vec<_> = faults(&calls).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["read:EIO:2", "read:ENOSPC:2", "read:EINTR:2"]);
        assert_eq!(Fault::parse("read:EIO:2").unwrap().to_string(), "read:EIO:2");
        assert_eq!(Fault::parse("read:EPERM:2"), None);
    }
}
