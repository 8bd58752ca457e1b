//! The trace of a torture world: a hash of all events, and a readable log.

use std::fmt;

use blockyard_engine::bio::{Bio, BlkStatus, Done};
use blockyard_engine::mq::Issue;
use blockyard_engine::time::Nanos;

use super::paths::Order;

/// An event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event<'a> {
    Submit(&'a Bio),
    Park(u64),
    Unpark(u64),
    Plug(u32),
    Unplug(u32),
    Exit(u32),
    /// To this device, or on this path.
    Issue(u16, &'a Issue, usize),
    Refuse(u32),
    TimeOut(u32),
    End(u32, BlkStatus),
    Done(Done),
    Read(u64, u32),
    Quiet,
    PowerCut(u64),
    Path(u16, bool),
    Check,
    Order(&'a Order),
}

/// Receives each line of a log.
pub type Log<'a> = &'a mut dyn FnMut(&str);

/// The hash, and the log.
pub(super) struct Trace<'a> {
    hash: u64,
    log: Option<Log<'a>>,
}

impl<'a> Trace<'a> {
    pub(super) fn new(log: Option<Log<'a>>) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, log }
    }

    pub(super) fn note(&mut self, at: Nanos, event: Event<'_>) {
        for word in words(&event) {
            self.word(word);
        }
        self.word(at.0);
        if let Some(log) = &mut self.log {
            log(&format!("{:>10}.{:06} ms  {event}", at.0 / 1_000_000, at.0 % 1_000_000));
        }
    }

    fn word(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }
}

fn words(event: &Event<'_>) -> [u64; 3] {
    match *event {
        Event::Submit(bio) => {
            let flags = u64::from(bio.preflush) << 8 | u64::from(bio.fua) << 9;
            let range = bio.sector.0 << 32 | bio.len.0;
            [1 | flags | (bio.op as u64) << 16, bio.user, range]
        }
        Event::Park(user) => [2, user, 0],
        Event::Unpark(user) => [3, user, 0],
        Event::Plug(context) => [4, u64::from(context), 0],
        Event::Unplug(context) => [5, u64::from(context), 0],
        Event::Exit(context) => [6, u64::from(context), 0],
        Event::Issue(device, issue, pieces) => {
            let tag = u64::from(issue.tag.index) << 32 | u64::from(issue.tag.hctx) << 24;
            let range = issue.sector.0 << 32 | issue.len.0;
            let pieces = pieces as u64 | u64::from(device) << 32;
            [7 | tag | (issue.op as u64) << 16 | u64::from(issue.fua) << 8, pieces, range]
        }
        Event::Refuse(tag) => [8, u64::from(tag), 0],
        Event::TimeOut(tag) => [9, u64::from(tag), 0],
        Event::End(tag, status) => [10, u64::from(tag), status as u64],
        Event::Done(done) => [11, done.user, done.status as u64],
        Event::Read(user, stamps) => [12, user, u64::from(stamps)],
        Event::Quiet => [13, 0, 0],
        Event::PowerCut(lost) => [14, lost, 0],
        Event::Path(path, is_up) => [15, path.into(), is_up.into()],
        Event::Check => [16, 0, 0],
        Event::Order(_) => [17, 0, 0],
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Event::Submit(bio) => {
                let flag = |set: bool, name: &'static str| if set { name } else { "" };
                let Bio { op, sector, len, origin, user, .. } = bio;
                write!(f, "submit   bio {user}: {op:?} {}+{}", sector.0, len.0)?;
                f.write_str(flag(bio.preflush, " preflush"))?;
                f.write_str(flag(bio.fua, " fua"))?;
                f.write_str(flag(origin.sync, " sync"))?;
                let context = origin.io_context.0;
                let priority = origin.priority;
                write!(f, "  context {context}, cpu {}, {priority}", origin.cpu)
            }
            Event::Park(user) => write!(f, "park     bio {user}"),
            Event::Unpark(user) => write!(f, "unpark   bio {user}"),
            Event::Plug(context) => write!(f, "plug     context {context}"),
            Event::Unplug(context) => write!(f, "unplug   context {context}"),
            Event::Exit(context) => write!(f, "exit     context {context}"),
            Event::Issue(device, issue, pieces) => {
                let Issue { tag, op, sector, len, fua, .. } = issue;
                let fua = if *fua { " fua" } else { "" };
                let hctx = tag.hctx;
                let index = tag.index;
                write!(f, "issue    tag {hctx}:{index}: {op:?} {}+{}{fua}", sector.0, len.0)?;
                write!(f, "  of {pieces}, device {device}")
            }
            Event::Refuse(tag) => write!(f, "refuse   command {tag}"),
            Event::TimeOut(tag) => write!(f, "late     command {tag}"),
            Event::End(tag, status) => write!(f, "end      command {tag}: {status}"),
            Event::Done(Done { user, status }) => write!(f, "done     bio {user}: {status}"),
            Event::Read(user, stamps) => write!(f, "read     bio {user}: hash {stamps:08x}"),
            Event::Quiet => f.write_str("quiet    no more bios, no more faults"),
            Event::PowerCut(lost) => write!(f, "power    cut; {lost} sectors lost their newest"),
            Event::Path(path, true) => write!(f, "path     {path} is up"),
            Event::Path(path, false) => write!(f, "path     {path} is down"),
            Event::Check => f.write_str("check    of a path"),
            Event::Order(Order::Message(text)) => write!(f, "message  {text}"),
            Event::Order(Order::Suspend { flushes: true }) => f.write_str("suspend"),
            Event::Order(Order::Suspend { flushes: false }) => {
                f.write_str("suspend  without flush")
            }
            Event::Order(Order::Resume) => f.write_str("resume"),
        }
    }
}
