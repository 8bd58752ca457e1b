//! Exports that are opened when a client asks for them, and closed when they have no client.
//!
//! ```text
//! client ─ GO, INFO, EXPORT_NAME of a closed export ─> Asks (`waiting`): no time limit
//!   FirstUse::open ─> the program opens the volume on another thread
//!                       Remote::exchange ─> the client continues    Remote::refuse ─> an error
//! last client has left, `idle_close` has passed ─> FirstUse::closing, Leaving: flushed, closed
//! ```
//! Clients that ask for an export that is being closed wait for its end first: its file and its
//! lock must be free. A list of exports opens none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use super::Server;
use super::exchange::number;
use super::exports::{ServedExport, distinct};
use super::handshake::Handshake;
use crate::Error;
use crate::log::{Event, Kind, Value};

/// Gives volumes of the program back. Called on the thread of their last flush, after it.
pub type Release = Box<dyn FnOnce() + Send>;

/// The program's part. Both functions run on the serving thread, and must return at once.
pub struct FirstUse {
    /// A client asks for the closed export of this name. The program answers with
    /// [`Remote::exchange`](super::Remote::exchange) or [`Remote::refuse`](super::Remote::refuse).
    pub open: Box<dyn Fn(&str) + Send>,
    /// The exports of these names are being closed: the program shows them no more.
    pub closing: Box<dyn Fn(Vec<String>) -> Release + Send>,
}

/// State of the exports that are opened and closed.
#[derive(Default)]
pub(super) struct State {
    program: Option<FirstUse>,
    /// Names that the program was asked to open.
    asked: BTreeSet<String>,
    /// The ends of idleness, by the number of a volume's first export.
    idle: BTreeMap<usize, Instant>,
    /// The first failure of a flush at a close, for the end of the server.
    failure: Option<Error>,
}

impl State {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.idle.values().min().copied()
    }

    /// Forgets names that the program was asked for, but for some.
    pub(super) fn forget_all_but(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.asked.retain(|name| is_kept(name));
    }

    pub(super) fn keep_outcome(&mut self, outcome: Result<(), Error>) {
        self.failure = self.failure.take().or(outcome.err());
    }

    pub(super) fn take_outcome(&mut self) -> Result<(), Error> {
        self.failure.take().map_or(Ok(()), Err)
    }
}

impl Server {
    /// Opens closed exports at their first use. Without it their clients are refused.
    pub fn on_first_use(&mut self, program: FirstUse) {
        self.first_use.program = Some(program);
    }

    /// Answers clients that ask for an export which is open now or gone, and asks the program for
    /// the others.
    pub(super) fn answer_first_uses(&mut self, now: Instant) {
        let Self { handshakes, catalogue, leaving, first_use, .. } = self;
        let mut wanted = BTreeSet::new();
        handshakes.answer(now, |client| {
            let Some(name) = client.asks() else { return false };
            if let Some(export) = catalogue.find(name) {
                client.answer(Some((export, catalogue.described(export))));
                return true;
            }
            if !catalogue.is_closed(name) || first_use.program.is_none() {
                client.answer(None);
                return true;
            }
            if !leaving.iter().any(|leaving| leaving.has_name(name)) {
                wanted.insert(name.to_owned());
            }
            false
        });
        for name in wanted {
            if first_use.asked.insert(name.clone())
                && let Some(program) = &first_use.program
            {
                (program.open)(&name);
            }
        }
    }

    /// Refuses clients that ask for these exports.
    pub(super) fn refuse_first_use(&mut self, names: &[String]) {
        let has = |name: &str| names.iter().any(|one| one == name);
        self.first_use.forget_all_but(|name| !has(name));
        self.handshakes.answer(Instant::now(), |client| {
            let is_refused = client.asks().is_some_and(has);
            if is_refused {
                client.answer(None);
            }
            is_refused
        });
    }

    /// Closes exports that have had no client for their time.
    pub(super) fn close_idle(&mut self, now: Instant) {
        let before = std::mem::take(&mut self.first_use.idle);
        for group in self.catalogue.closable() {
            let is_of = |client: &Handshake, export: &Arc<ServedExport>| {
                client.opened().is_some_and(|one| Arc::ptr_eq(&one, export))
            };
            let is_used = group.iter().any(|export| {
                self.connections.any(|of| of == number(export))
                    || self.handshakes.complete().any(|client| is_of(client, export))
            });
            let may_be_closed = !is_used && group[0].volume.may_be_closed();
            let Some(limit) = group[0].idle_close.filter(|_| may_be_closed) else { continue };
            let key = number(&group[0]);
            let deadline = before.get(&key).copied().or_else(|| now.checked_add(limit));
            // A time that no clock reaches is none.
            let Some(deadline) = deadline else { continue };
            if now < deadline {
                self.first_use.idle.insert(key, deadline);
                continue;
            }
            // A suspend on another thread may be first.
            if !group[0].volume.begin_close() {
                continue;
            }
            let (unheard, _) = mpsc::channel();
            if self.close_group(&group, (unheard, Some(limit))).is_err() {
                // Without a thread for the flush, it is tried again after the time.
                group[0].volume.cancel_close();
            }
        }
    }

    /// Closes the exports of a volume.
    pub(super) fn close_group(
        &mut self,
        group: &[Arc<ServedExport>],
        report: (Sender<Result<(), Error>>, Option<Duration>),
    ) -> Result<(), Error> {
        let place = self.leaving.len();
        self.let_leave(group.to_vec(), distinct(group), report)?;
        self.catalogue.close(group);
        let names = group.iter().map(|export| export.name.clone()).collect();
        self.leaving[place].release =
            self.first_use.program.as_ref().map(|program| (program.closing)(names));
        // The end of the exports continues in the next round.
        self.ends.signal();
        Ok(())
    }
}

/// Says that the exports of a volume are closed.
pub(super) fn say_closed(names: &[String], idle: Duration, outcome: &Result<(), Error>) {
    let export = names.first().map_or("", String::as_str);
    let seconds = idle.as_secs();
    let mut text = format!("export {export:?} is closed after {seconds} s without a client");
    if let Err(error) = outcome {
        let _ = write!(text, ", and its flush has failed: {error}");
    }
    let kind = if outcome.is_ok() { Kind::ExportClosed } else { Kind::FlushFailed };
    let fields = [("seconds", Value::Number(seconds))];
    Event::new(kind).export(export).fields(&fields).say(format_args!("{text}"));
}
