//! The log of a process: events for the operator, one line each, on standard error.
//!
//! Lines are text, text with the journal's levels, or JSON. `docs/log.md` has the events and
//! fields. Each kind of event has a limited rate, so that a client or a broken disk cannot flood
//! the log.

mod line;
mod place;

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

pub use line::Value;

/// Limit of lines of one kind in [`INTERVAL`]. Ours: a server whose 64 usual clients come at once
/// logs all of them, and a flood has at most 10 lines a second.
const LINES_MAX: u32 = 100;
/// Time after which a kind may have [`LINES_MAX`] lines again.
const INTERVAL: Duration = Duration::from_secs(10);

/// Importance of an event: those of syslog(3) that occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Data, an export or a client is affected.
    Error = 3,
    /// Something may become an error.
    Warning = 4,
    /// A state has changed by request.
    Notice = 5,
    /// Normal operation.
    Info = 6,
}

impl Level {
    /// Name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Notice => "notice",
            Self::Info => "info",
        }
    }
}

/// Form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Format {
    /// Sentences.
    #[default]
    Text,
    /// Sentences behind `<LEVEL>`, which the journal takes off (sd-daemon(3)).
    Journal,
    /// JSON objects.
    Json,
}

/// Kind of an event, with its name in JSON and its level.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $level:ident;)*) => {
        /// Kind of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];

            /// Name in JSON.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// Importance.
            #[must_use]
            pub fn level(self) -> Level {
                match self { $(Self::$kind => Level::$level,)* }
            }
        }
    };
}

kinds! {
    /// A client has opened an export.
    ClientConnected = "client-connected", Info;
    /// A client has left.
    ClientDisconnected = "client-disconnected", Info;
    /// A client is refused.
    ClientRefused = "client-refused", Warning;
    /// An operation of a file or device has failed.
    IoError = "io-error", Error;
    /// Acknowledged writes may be lost.
    WritesLost = "writes-lost", Error;
    /// A write to protected sectors was refused.
    WriteRefused = "write-refused", Error;
    /// A flush at the end of an export has failed.
    FlushFailed = "flush-failed", Error;
    /// A volume was opened at the first use of its export.
    ExportOpened = "export-opened", Notice;
    /// A volume could not be opened at the first use of its export.
    OpenFailed = "open-failed", Error;
    /// A volume was closed, because its exports had no client.
    ExportClosed = "export-closed", Notice;
    /// A path of a multipath device has failed.
    PathLost = "path-lost", Warning;
    /// The state of a connection to a remote NBD server or a cluster.
    Remote = "remote", Warning;
    /// A request is with a device for long, or a request took longer than `--slow-request`.
    SlowRequest = "slow-request", Warning;
    /// A front end or a queue of a virtual machine.
    VirtualMachine = "virtual-machine", Warning;
    /// The I/O of a volume waits.
    Suspended = "suspended", Notice;
    /// The I/O of a volume continues.
    Resumed = "resumed", Notice;
    /// A volume has another size.
    Resized = "resized", Notice;
    /// An export has other limits.
    Limited = "limited", Notice;
    /// The key of a crypt line was set or wiped, or a target got a message.
    Message = "message", Notice;
    /// A step of a backup.
    Backup = "backup", Notice;
    /// A dirty bitmap is lost: the whole volume counts as dirty.
    BitmapLost = "bitmap-lost", Warning;
    /// The configuration was read again.
    Reloaded = "reloaded", Notice;
    /// The configuration was not applied.
    ReloadFailed = "reload-failed", Error;
    /// Lines of the log had no room on standard error.
    LinesDropped = "lines-dropped", Warning;
    /// Something for the operator to know.
    Warning = "warning", Warning;
    /// The command has failed.
    Failed = "failed", Error;
    /// Another message of the command line.
    Said = "said", Info;
}

/// An event.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    kind: Kind,
    export: Option<&'a str>,
    peer: Option<&'a str>,
    fields: &'a [(&'static str, Value<'a>)],
}

impl<'a> Event<'a> {
    /// An event of a kind.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self { kind, export: None, peer: None, fields: &[] }
    }

    /// Of an export.
    #[must_use]
    pub fn export(self, export: &'a str) -> Self {
        Self { export: Some(export), ..self }
    }

    /// Of a client.
    #[must_use]
    pub fn peer(self, peer: &'a str) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// With these fields in JSON.
    #[must_use]
    pub fn fields(self, fields: &'a [(&'static str, Value<'a>)]) -> Self {
        Self { fields, ..self }
    }

    /// Logs the event with its sentence.
    pub fn say(&self, text: fmt::Arguments<'_>) {
        if self.kind.level() as u8 > LEVEL.load(Ordering::Relaxed) {
            return;
        }
        let suppressed = {
            let mut rates = RATES.lock().unwrap_or_else(PoisonError::into_inner);
            rates[self.kind as usize].admit(Instant::now())
        };
        let Some(suppressed) = suppressed else { return };
        if suppressed > 0 {
            let fields = &[("suppressed", Value::Number(suppressed.into()))];
            let note = Event { fields, ..Event::new(self.kind) };
            let name = self.kind.name();
            note.write(format_args!("{suppressed} more lines of the kind {name} were suppressed"));
        }
        self.write(text);
    }

    fn write(&self, text: fmt::Arguments<'_>) {
        place::put(&line::of(self, text, format(), SystemTime::now()), note_of_dropped);
    }
}

/// Writes a line of the command line itself, which has no kind and no limit: in text as it is, with
/// a level by its first word otherwise.
pub fn say(text: &str) {
    let kind = match text {
        _ if text.starts_with("error: ") => Kind::Failed,
        _ if text.starts_with("warning: ") => Kind::Warning,
        _ => Kind::Said,
    };
    match format() {
        Format::Text => place::put(&line::plain(text), note_of_dropped),
        Format::Journal | Format::Json => {
            let rest = text.strip_prefix("error: ").or_else(|| text.strip_prefix("warning: "));
            Event::new(kind).write(format_args!("{}", rest.unwrap_or(text)));
        }
    }
}

/// Lets no later line wait for the reader of standard error: lines without room are dropped, and
/// counted in a later line. For servers.
pub fn never_wait() {
    place::never_wait();
}

/// Tells the number of dropped lines, if there is room now.
pub fn catch_up() {
    place::catch_up(note_of_dropped);
}

fn note_of_dropped(lines: u64) -> String {
    let fields = &[("lines", Value::Number(lines))];
    let event = Event { fields, ..Event::new(Kind::LinesDropped) };
    let text = format_args!(
        "{lines} lines of the log were dropped, because the reader of standard error took no more"
    );
    line::of(&event, text, format(), SystemTime::now())
}

fn format() -> Format {
    match FORMAT.load(Ordering::Relaxed) {
        0 => Format::Text,
        1 => Format::Journal,
        _ => Format::Json,
    }
}

static FORMAT: AtomicU8 = AtomicU8::new(Format::Text as u8);
/// A program that links this library gets warnings, unless it asks for more.
static LEVEL: AtomicU8 = AtomicU8::new(Level::Warning as u8);
static SLOW_NS: AtomicU64 = AtomicU64::new(u64::MAX);
static RATES: Mutex<[Rate; Kind::ALL.len()]> = Mutex::new([Rate::NEW; Kind::ALL.len()]);

/// Sets the form of all later lines, and the least important level of a line.
pub fn configure(format: Format, level: Level) {
    FORMAT.store(format as u8, Ordering::Relaxed);
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// Logs requests of connections from then on that take longer; `None` logs none.
pub fn log_slow_requests(limit: Option<Duration>) {
    let ns = limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    SLOW_NS.store(ns, Ordering::Relaxed);
}

/// The limit of a request's time, if requests are to be measured.
pub(crate) fn slow_request_ns() -> Option<u64> {
    Some(SLOW_NS.load(Ordering::Relaxed)).filter(|ns| *ns < u64::MAX)
}

/// Whether standard error is connected to the journal (systemd.exec(5), `$JOURNAL_STREAM`).
#[must_use]
pub fn is_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    let found = rustix::fs::fstat(rustix::stdio::stderr());
    found.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino).as_str())
}

/// Lines of one kind since the begin of its interval.
struct Rate {
    began: Option<Instant>,
    lines: u32,
    suppressed: u32,
}

impl Rate {
    const NEW: Self = Self { began: None, lines: 0, suppressed: 0 };

    /// Whether a line may be written, and how many were suppressed before it.
    fn admit(&mut self, now: Instant) -> Option<u32> {
        if self.began.is_none_or(|began| now.duration_since(began) >= INTERVAL) {
            let suppressed = self.suppressed;
            *self = Self { began: Some(now), lines: 1, suppressed: 0 };
            return Some(suppressed);
        }
        if self.lines == LINES_MAX {
            self.suppressed = self.suppressed.saturating_add(1);
            return None;
        }
        self.lines += 1;
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_is_cut_off_and_its_rest_counted() {
        let mut rate = Rate::NEW;
        let begin = Instant::now();
        let admitted = (0..250).filter(|_| rate.admit(begin).is_some()).count();
        assert_eq!(admitted, LINES_MAX as usize);
        assert_eq!(rate.admit(begin + INTERVAL / 2), None);
        assert_eq!(rate.admit(begin + INTERVAL), Some(151));
        assert_eq!(rate.admit(begin + INTERVAL), Some(0));
    }

    #[test]
    fn kinds_have_their_own_names() {
        for (place, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
            assert!(Kind::ALL[..place].iter().all(|other| other.name() != kind.name()));
        }
    }
}
