//! Lists the thread switches of each CPU, the waits, and the history of each request in a window of
//! simulated time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use blockyard_engine::bio::Op;
use blockyard_engine::time::Nanos;
use blockyard_sim::cpu::{CpuId, ThreadId};
use blockyard_sim::world::{Event, Observer, Role, Wait};

use super::observe::{Follower, Request};

/// A window of simulated time.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Start.
    pub from: Nanos,
    /// End.
    pub until: Nanos,
    /// Limit of lines in each of the two lists.
    pub limit: usize,
}

/// An observer that lists the events and the requests of a window.
#[derive(Debug)]
pub struct Tracer {
    window: Window,
    follower: Follower,
    /// Names of kernel threads.
    names: BTreeMap<ThreadId, String>,
    first_task: Option<ThreadId>,
    /// The last thread on each CPU.
    on_cpu: BTreeMap<CpuId, ThreadId>,
    events: Vec<(Nanos, String)>,
    requests: Vec<Request>,
    /// Numbers of events and of requests beyond the limit.
    left_out: (usize, usize),
    last: Nanos,
}

impl Tracer {
    /// A tracer of a window.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self {
            window,
            follower: Follower::default(),
            names: BTreeMap::new(),
            first_task: None,
            on_cpu: BTreeMap::new(),
            events: Vec::new(),
            requests: Vec::new(),
            left_out: (0, 0),
            last: Nanos(0),
        }
    }

    /// The number of the job's first thread.
    #[must_use]
    pub fn first_task(&self) -> u32 {
        self.first_task.map_or(0, |thread| thread.0)
    }

    /// The listing.
    #[must_use]
    pub fn print(&self) -> String {
        let Window { from, until, .. } = self.window;
        let mut text = format!("From {} to {} s.\n\n", seconds(from), seconds(until));
        if self.last < from {
            let _ = writeln!(text, "No events: the last event was at {} s.", seconds(self.last));
            return text;
        }
        text += "     time, s  event\n";
        // A burst is recorded at its start with events at its end, so the list needs sorting.
        let mut events: Vec<_> = self.events.iter().collect();
        events.sort_by_key(|(at, _)| *at);
        events.iter().for_each(|(_, line)| text += line);
        left_out(&mut text, self.left_out.0);
        text += "\nRequests in the order of completion: submission of the first bio, time in the \
                 queue,\ntime at the device, number of later bios that were issued earlier.\n\n";
        text += "   queued, s  waited, ms  device, ms  passed by  thread  operation\n";
        for request in &self.requests {
            let _ = writeln!(text, "{}", line(request));
        }
        left_out(&mut text, self.left_out.1);
        text
    }

    fn name(&self, thread: ThreadId) -> String {
        let unnamed = || format!("thread {}", thread.0);
        self.names.get(&thread).cloned().unwrap_or_else(unnamed)
    }

    fn says(&mut self, at: Nanos, event: &Event) -> String {
        let what = match *event {
            Event::Spawn { thread, .. } => format!("{} starts", self.name(thread)),
            Event::Switch { cpu, thread } => match self.on_cpu.insert(cpu, thread) {
                Some(before) => {
                    let name = self.name(thread);
                    let before = self.name(before);
                    format!("cpu {}: {name} runs after {before}", cpu.0)
                }
                None => format!("cpu {}: {} runs", cpu.0, self.name(thread)),
            },
            Event::Block { thread, on } => {
                format!("{} waits for {}", self.name(thread), reason(on))
            }
            Event::Wake { thread } => format!("{} is woken up", self.name(thread)),
            Event::Submit { bio, thread, op, sector, sectors, sync, .. } => {
                let sync = if sync { "" } else { ", async" };
                let range = range(op, sector, sectors);
                format!("thread {} submits bio {bio}: {range}{sync}", thread.0)
            }
            Event::Issue { tag, op, sector, sectors, in_flight } => {
                let range = range(op, sector, sectors);
                format!("request {tag} to the device: {range}; {in_flight} in flight")
            }
            Event::Complete { tag } => format!("request {tag} is done"),
            Event::End { bio, .. } => format!("bio {bio} has ended"),
        };
        format!("{:>12}  {what}\n", seconds(at))
    }
}

impl Observer for Tracer {
    fn event(&mut self, at: Nanos, event: &Event) {
        if let Event::Spawn { thread, role } = event {
            if *role == Role::Task {
                self.first_task.get_or_insert(*thread);
            }
            self.names.extend(name_of(*role).map(|name| (*thread, name)));
            return;
        }
        let finished = self.follower.event(at, event);
        self.last = self.last.max(at);
        let Window { from, until, limit } = self.window;
        let inside = from <= at && at < until;
        if let (true, Some(request)) = (inside, finished.request) {
            if self.requests.len() < limit {
                self.requests.push(request);
            } else {
                self.left_out.1 += 1;
            }
        }
        if inside && self.events.len() < limit {
            let line = self.says(at, event);
            self.events.push((at, line));
        } else {
            self.left_out.0 += usize::from(inside);
            // The first switch in the window names the thread before it.
            if let Event::Switch { cpu, thread } = event {
                self.on_cpu.insert(*cpu, *thread);
            }
        }
    }
}

/// Linux's name of a kernel thread.
fn name_of(role: Role) -> Option<String> {
    match role {
        Role::Kblockd(cpu) => Some(format!("kworker/{}", cpu.0)),
        Role::Softirq(cpu) => Some(format!("ksoftirqd/{}", cpu.0)),
        _ => None,
    }
}

fn left_out(text: &mut String, count: usize) {
    if count > 0 {
        let _ = writeln!(text, "... and {count} more: see --limit, --from and --until");
    }
}

fn line(request: &Request) -> String {
    let Request { thread, op, sector, sectors, sync, queued, issued, done, passed_by } = *request;
    let thread = thread.map_or_else(|| "-".into(), |thread| thread.0.to_string());
    let sync = if sync { "" } else { ", async" };
    format!(
        "{:>12}  {:>10}  {:>10}  {passed_by:>9}  {thread:>6}  {}{sync}",
        seconds(queued),
        milliseconds(issued.since(queued)),
        milliseconds(done.since(issued)),
        range(op, sector, sectors),
    )
}

fn range(op: Op, sector: u64, sectors: u32) -> String {
    let name = match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => return "flush".into(),
        Op::Discard => "discard",
        Op::WriteZeroes => "write zeroes",
    };
    format!("{name} {} KiB at sector {sector}", f64::from(sectors) / 2.0)
}

fn reason(wait: Wait) -> &'static str {
    match wait {
        Wait::Pages => "pages under read",
        Wait::Writes => "its writes (fsync)",
        Wait::Commit => "a commit of the journal",
        Wait::Journal => "a handle or copies of the journal",
        Wait::DirtyLimit => "fewer dirty pages",
        Wait::Request => "a free request",
        Wait::Direct => "direct operations",
        Wait::Sleep => "time to pass",
        Wait::Work => "work",
        Wait::Exit => "the end of the phase",
    }
}

fn seconds(time: Nanos) -> String {
    format!("{:.6}", time.0 as f64 / 1e9)
}

fn milliseconds(time: Nanos) -> String {
    format!("{:.3}", time.0 as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use blockyard_engine::priority::Priority;

    use super::*;

    #[test]
    fn window_names_the_thread_before_it_and_counts_lines_beyond_the_limit() {
        let window = Window { from: Nanos(1_000), until: Nanos(9_000), limit: 2 };
        let mut tracer = Tracer::new(window);
        let switch = |thread| Event::Switch { cpu: CpuId(1), thread: ThreadId(thread) };
        tracer.event(Nanos(500), &switch(3));
        tracer.event(Nanos(1_000), &switch(4));
        tracer.event(Nanos(2_000), &Event::Block { thread: ThreadId(4), on: Wait::Request });
        tracer.event(Nanos(3_000), &switch(3));
        tracer.event(Nanos(9_000), &switch(4));
        let text = tracer.print();
        assert!(text.contains("    0.000001  cpu 1: thread 4 runs after thread 3\n"), "{text}");
        assert!(text.contains("thread 4 waits for a free request"), "{text}");
        assert!(text.contains("... and 1 more"), "{text}");
    }

    #[test]
    fn request_is_listed_with_its_wait_and_the_bios_that_passed_it() {
        let window = Window { from: Nanos(0), until: Nanos(u64::MAX), limit: 100 };
        let mut tracer = Tracer::new(window);
        let op = Op::Write;
        let sectors = 8;
        for (bio, sector) in [(1, 80), (2, 16)] {
            let thread = ThreadId(bio as u32);
            let fua = false;
            let preflush = false;
            let priority = Priority::default();
            let sync = bio == 2;
            let event =
                Event::Submit { bio, thread, op, sector, sectors, sync, fua, preflush, priority };
            tracer.event(Nanos(bio * 1_000_000), &event);
        }
        for (tag, sector) in [(0, 16), (1, 80)] {
            let issued = Nanos(3_000_000 + u64::from(tag) * 1_000_000);
            tracer.event(issued, &Event::Issue { tag, op, sector, sectors, in_flight: 1 });
            tracer.event(issued + Nanos(500_000), &Event::Complete { tag });
        }
        let text = tracer.print();
        let wanted = "    0.001000       3.000       0.500          1       1  \
                      write 4 KiB at sector 80, async";
        assert!(text.contains(wanted), "{text}");
    }
}
