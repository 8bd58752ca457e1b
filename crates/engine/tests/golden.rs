//! Golden traces: behaviour of queue and elevators for a few bios, worked out by hand.
//!
//! Each file `golden/<topic>/<case>.trace` is a text with the input of a queue and the expected
//! output. `#` starts a comment. The first statement describes the queue, the others follow, one
//! per line:
//!
//! ```text
//!   queue elevator=deadline,fifo_batch=2 depth=1 nr_requests=128 max_sectors=1024 max_segments=128
//!         rotational=1 tick_us=1 cpus=1 hw_queues=1 plug=off write_cache=1 fua=1 timeout_ms=30000
//!                              (on one line; each key optional; generation=single|multi if it is
//!                              not the elevator's own; plug=off|context|queue)
//!   at 5ms                     virtual time from here on; us, too
//!   read a 100+8               bio a: first sector and length
//!   write b 100+8 sync         options: ctx=1 cpu=0 prio=rt:0 sync fua preflush
//!   flush f
//!   discard d 100+8
//!   plug 1                     io-context 1 has more to come
//!   unplug 1
//!   dispatch => a b+c          the device gets exactly these requests, in this order; + joins the
//!                              bios of a request in sector order; FLUSH is a flush that the queue
//!                              made; => - is nothing
//!   complete a [error]         the oldest issued request that holds bio a ends; complete FLUSH
//!   busy a                     the device could not take it
//!   done => a b!               bios ended since the last time, in order; ! failed
//!   parked => c d              bios that wait for a request, in order
//!   wake => 13ms               when the queue wants to be woken; => - is never
//!   late => a                  issued requests that have timed out since the last time
//!   congested sync => yes      or async, or no
//!   exit 1                     io-context 1 is gone
//! ```
//!
//! Defaults of a `queue`: elevator none, depth 32, 128 requests, 1280 KiB, 128 segments, a disk
//! that seeks, an exact clock, one CPU and hardware queue, no plug, a cache and FUA.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use blockyard_engine::bio::{Bio, BlkStatus, IoContext, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::{ElevatorSpec, Generation};
use blockyard_engine::mq::{Issue, PlugRule, QueueConfig, RequestQueue, Submitted};
use blockyard_engine::priority::Priority;
use blockyard_engine::request::Tag;
use blockyard_engine::time::Nanos;

/// Name of a flush by the queue itself.
const FLUSH: &str = "FLUSH";

#[test]
fn every_trace_holds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut failures = String::new();
    for folder in entries(&root) {
        let traces = entries(&folder);
        assert!(!traces.is_empty(), "{}: a folder without traces", folder.display());
        for trace in traces {
            let name = trace.strip_prefix(&root).expect("it lies there").display().to_string();
            let is_trace = trace.extension().is_some_and(|extension| extension == "trace");
            assert!(is_trace, "{name}: not a trace");
            let text = fs::read_to_string(&trace).expect("a trace is a text");
            if let Err((line, problem)) = run(&text) {
                writeln!(failures, "{name}:{line}: {problem}").expect("a string takes it");
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    paths.sort();
    paths
}

/// Runs a trace; on a mismatch returns its line and description.
fn run(text: &str) -> Result<(), (usize, String)> {
    let mut bench: Option<Bench> = None;
    let mut expectations = 0;
    for (number, line) in text.lines().enumerate() {
        let statement = line.split('#').next().unwrap_or("").trim();
        if statement.is_empty() {
            continue;
        }
        let done = match &mut bench {
            None => queue(statement).map(|made| bench = Some(made)),
            Some(bench) => bench.run(statement),
        };
        done.map_err(|problem| (number + 1, problem))?;
        expectations += usize::from(statement.contains("=>"));
    }
    if expectations == 0 {
        return Err((text.lines().count(), "expects nothing".into()));
    }
    Ok(())
}

/// A queue and the test's knowledge of it.
struct Bench {
    queue: RequestQueue,
    now: Nanos,
    /// Names by `user`.
    names: Vec<String>,
    /// Issued requests in the order of their issue, with the names of their bios.
    issued: Vec<(Tag, Vec<String>)>,
    /// Parked bios, by `user`.
    parked: Vec<u64>,
}

fn queue(statement: &str) -> Result<Bench, String> {
    let mut words = statement.split_whitespace();
    if words.next() != Some("queue") {
        return Err("the first statement is `queue`".into());
    }
    let keys: Vec<_> = words.map(|word| word.split_once('=').ok_or(word)).collect();
    let keys = keys.into_iter().collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(|word| format!("{word:?} is not key=value"))?;
    let elevator = keys.iter().find(|(key, _)| *key == "elevator");
    let spec = ElevatorSpec::parse(elevator.map_or("none", |(_, value)| *value));
    let spec = spec.map_err(|error| error.to_string())?;
    let usual = QueueConfig::of(spec.elevator.generation);
    let mut config = QueueConfig { nr_requests: 128, fua: true, plug: PlugRule::Off, ..usual };
    for (key, value) in keys {
        match key {
            "elevator" => {}
            "generation" => config.generation = generation(value)?,
            "depth" => config.queue_depth = number(value)?,
            "nr_requests" => config.nr_requests = number(value)?,
            "max_sectors" => config.limits.max_sectors = number(value)?,
            "max_segments" => config.limits.max_segments = number(value)?,
            "rotational" => config.rotational = yes(value)?,
            "tick_us" => config.tick = Nanos(number::<u64>(value)? * 1000),
            "cpus" => config.cpus = number(value)?,
            "hw_queues" => config.hw_queues = number(value)?,
            "plug" => config.plug = plug(value)?,
            "write_cache" => config.write_cache = yes(value)?,
            "fua" => config.fua = yes(value)?,
            "timeout_ms" => config.timeout = Some(Nanos::from_ms(number(value)?)),
            _ => return Err(format!("{key:?} is no key of a queue")),
        }
    }
    let queue = RequestQueue::new(config, &spec);
    let names = Vec::new();
    let issued = Vec::new();
    let parked = Vec::new();
    Ok(Bench { queue, now: Nanos(0), names, issued, parked })
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number, or too large"))
}

fn yes(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err(format!("{text:?} is neither 0 nor 1")),
    }
}

fn generation(text: &str) -> Result<Generation, String> {
    match text {
        "single" => Ok(Generation::Single),
        "multi" => Ok(Generation::Multi),
        _ => Err(format!("{text:?} is neither single nor multi")),
    }
}

fn plug(text: &str) -> Result<PlugRule, String> {
    match text {
        "off" => Ok(PlugRule::Off),
        "context" => Ok(PlugRule::PerContext),
        "queue" => Ok(PlugRule::PerQueue),
        _ => Err(format!("{text:?} is none of off, context, queue")),
    }
}

/// Parses `5ms`, `250us`.
fn time(text: &str) -> Result<Nanos, String> {
    let unit = |suffix, ns: u64| text.strip_suffix(suffix).map(|count| (count, ns));
    let (count, ns) = unit("ms", 1_000_000)
        .or_else(|| unit("us", 1000))
        .ok_or_else(|| format!("{text:?} is no time in ms or us"))?;
    Ok(Nanos(number::<u64>(count)? * ns))
}

fn context(text: &str) -> Result<IoContext, String> {
    number(text).map(IoContext)
}

impl Bench {
    fn run(&mut self, statement: &str) -> Result<(), String> {
        if let Some((question, expected)) = statement.split_once("=>") {
            let expected = expected.split_whitespace().collect::<Vec<_>>().join(" ");
            let question: Vec<_> = question.split_whitespace().collect();
            let found = self.answer(&question)?;
            if found != expected {
                return Err(format!("{}: expected {expected}, found {found}", question.join(" ")));
            }
            return Ok(());
        }
        let words: Vec<_> = statement.split_whitespace().collect();
        match words[..] {
            ["at", at] => self.advance(time(at)?)?,
            ["read" | "write" | "discard" | "flush", ..] => self.submit(&words)?,
            ["plug", io_context] => self.queue.plug(context(io_context)?),
            ["unplug", io_context] => self.queue.unplug(self.now, context(io_context)?),
            ["exit", io_context] => self.queue.exit_context(self.now, context(io_context)?),
            ["complete", name] => self.complete(name, BlkStatus::Ok)?,
            ["complete", name, "error"] => self.complete(name, BlkStatus::IoError)?,
            ["busy", name] => {
                let tag = self.issued_with(name)?;
                self.queue.busy(self.now, tag);
            }
            _ => return Err(format!("{statement:?} is no statement")),
        }
        let mut unparked = Vec::new();
        self.queue.take_unparked(&mut unparked);
        self.parked.retain(|user| !unparked.contains(user));
        Ok(())
    }

    fn advance(&mut self, to: Nanos) -> Result<(), String> {
        if to < self.now {
            return Err("time goes forward".into());
        }
        self.now = to;
        Ok(())
    }

    fn submit(&mut self, words: &[&str]) -> Result<(), String> {
        let name = *words.get(1).ok_or("a bio has a name")?;
        if self.names.iter().any(|known| known == name) || name == FLUSH || name == "-" {
            return Err(format!("{name:?} cannot be the name of another bio"));
        }
        let (op, fixed) = match words[0] {
            "flush" => (Op::Flush, 2),
            "read" => (Op::Read, 3),
            "write" => (Op::Write, 3),
            _ => (Op::Discard, 3),
        };
        let options = words.get(fixed..).ok_or("a bio has a range")?;
        let (sector, len) = if op == Op::Flush { (0, 0) } else { range(words[2])? };
        let moves_bytes = matches!(op, Op::Read | Op::Write);
        let buf = if moves_bytes { BufRef::zeros(len * 512) } else { BufRef::NONE };
        let user = u64::try_from(self.names.len()).expect("few bios");
        let mut bio = Bio::new(op, Sector(sector), Sector(u64::from(len)), buf, user);
        for option in options {
            set(&mut bio, option)?;
        }
        self.names.push(name.into());
        if self.queue.submit_bio(self.now, bio) == Submitted::Parked {
            self.parked.push(user);
        }
        Ok(())
    }

    fn answer(&mut self, question: &[&str]) -> Result<String, String> {
        match question {
            ["dispatch"] => Ok(self.dispatch()),
            ["done"] => {
                let mut done = Vec::new();
                self.queue.take_done(&mut done);
                let word = |status| if status == BlkStatus::Ok { "" } else { "!" };
                let names = done.iter().map(|done| self.name(done.user) + word(done.status));
                Ok(list(&names.collect::<Vec<_>>()))
            }
            ["parked"] => {
                let names: Vec<_> = self.parked.iter().map(|user| self.name(*user)).collect();
                Ok(list(&names))
            }
            ["wake"] => Ok(self.queue.wake_at().map_or("-".into(), written)),
            ["late"] => {
                let mut late = Vec::new();
                self.queue.timed_out(self.now, &mut late);
                let names: Vec<_> = late.iter().map(|tag| self.bios(*tag).join("+")).collect();
                Ok(list(&names))
            }
            ["congested", "sync"] => Ok(yes_or_no(self.queue.is_congested(true))),
            ["congested", "async"] => Ok(yes_or_no(self.queue.is_congested(false))),
            _ => Err(format!("{:?} is no question", question.join(" "))),
        }
    }

    fn dispatch(&mut self) -> String {
        let mut issues: Vec<Issue> = Vec::new();
        self.queue.dispatch(self.now, &mut issues);
        let mut found = Vec::new();
        for issue in issues {
            let bios = self.bios(issue.tag);
            found.push(bios.join("+"));
            self.issued.push((issue.tag, bios));
        }
        list(&found)
    }

    fn bios(&self, tag: Tag) -> Vec<String> {
        let names: Vec<_> = self.queue.bios(tag).map(|bio| self.name(bio.user)).collect();
        if names.is_empty() { vec![FLUSH.into()] } else { names }
    }

    fn name(&self, user: u64) -> String {
        self.names[usize::try_from(user).expect("few bios")].clone()
    }

    /// Removes the oldest issued request with this bio from the list.
    fn issued_with(&mut self, name: &str) -> Result<Tag, String> {
        let has = |(_, names): &(Tag, Vec<String>)| names.iter().any(|held| held == name);
        let place = self.issued.iter().position(has);
        let place = place.ok_or_else(|| format!("the device has no request with {name:?}"))?;
        Ok(self.issued.remove(place).0)
    }

    fn complete(&mut self, name: &str, status: BlkStatus) -> Result<(), String> {
        let tag = self.issued_with(name)?;
        self.queue.complete(self.now, tag, status);
        Ok(())
    }
}

fn range(text: &str) -> Result<(u64, u32), String> {
    let (sector, len) = text.split_once('+').ok_or_else(|| format!("{text:?} is no range"))?;
    let sector = number(sector)?;
    let len = number(len)?;
    if len == 0 {
        return Err("a range has a length".into());
    }
    Ok((sector, len))
}

fn set(bio: &mut Bio, option: &str) -> Result<(), String> {
    match option.split_once('=').unwrap_or((option, "")) {
        ("sync", "") => bio.origin.sync = true,
        ("fua", "") => bio.fua = true,
        ("preflush", "") => bio.preflush = true,
        ("ctx", value) => bio.origin.io_context = context(value)?,
        ("cpu", value) => bio.origin.cpu = number(value)?,
        ("prio", value) => {
            bio.origin.priority = Priority::parse(value).map_err(|error| error.to_string())?;
        }
        _ => return Err(format!("{option:?} is no option of a bio")),
    }
    Ok(())
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "-".into() } else { names.join(" ") }
}

fn written(time: Nanos) -> String {
    match (time.0 % 1_000_000, time.0 % 1000) {
        (0, _) => format!("{}ms", time.0 / 1_000_000),
        (_, 0) => format!("{}us", time.0 / 1000),
        _ => format!("{}ns", time.0),
    }
}

fn yes_or_no(answer: bool) -> String {
    if answer { "yes" } else { "no" }.into()
}

#[test]
fn the_runner_refuses_unknown_lines_and_false_expectations() {
    let cases = [
        ("read a 0+8", "the first statement"),
        ("queue dept=1", "no key"),
        ("queue\nreed a 0+8", "no statement"),
        ("queue\nread a 0+8 hurry", "no option"),
        ("queue\nread a 0+8\nread a 8+8", "name"),
        ("queue\nread a 0+8", "expects nothing"),
        ("queue\nread a 0+8\ndispatch => b", "expected b, found a"),
        ("queue\nread a 0+8\ncomplete a", "the device has no request"),
        ("queue\nmood => good", "no question"),
        ("queue\nat 2ms\nat 1ms", "forward"),
    ];
    for (trace, problem) in cases {
        let (_, found) = run(trace).expect_err(trace);
        assert!(found.contains(problem), "{trace:?}: {found}");
    }
}
