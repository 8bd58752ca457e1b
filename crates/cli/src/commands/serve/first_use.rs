//! Volumes that are opened when a client asks for their export (`open = "first-use"`).
//!
//! ```text
//! client ─> serving thread ─> a thread: header, key ─> one key derivation at a time ─> served
//!                                        fails ─> the client is refused, and the log says why
//! ```
//! The server closes them again after `idle_close`. The next client makes it ask for the key anew.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use blockyard::{Listening, Server};
use blockyard_host::log::{Event, Kind, Value};
use blockyard_host::sandbox;

use super::announcement::described;
use super::reload::{Reloader, STACK_BYTES, check_sandbox};
use crate::config::ExportSpec;
use crate::failure::Failure;
use crate::key::KeySource;

/// Limit of exports that are being closed on request. Each close waits for clients, and for disks
/// that may not answer, on one of the eight threads of the control socket.
const CLOSES_MAX: usize = 4;

/// Longest wait of a close for an opening, which may wait for a program.
const OPENING_MAX: Duration = Duration::from_secs(20);

/// Openings and closes of an export exclude each other. An opening with former settings delays no
/// other: its program may never end.
#[derive(Default)]
pub(super) struct Turns {
    taken: Mutex<BTreeMap<String, Arc<ExportSpec>>>,
    freed: Condvar,
}

impl Turns {
    /// Waits for a turn; `None` if it takes longer than the limit.
    fn take(&self, spec: &Arc<ExportSpec>, limit: Option<Duration>) -> Option<Turn<'_>> {
        let is_taken = |taken: &mut BTreeMap<String, Arc<ExportSpec>>| {
            taken.get(&spec.name).is_some_and(|other| other.is_like(spec))
        };
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = match limit {
            None => self.freed.wait_while(taken, is_taken).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.freed.wait_timeout_while(taken, limit, is_taken);
                let (taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                if waited.timed_out() {
                    return None;
                }
                taken
            }
        };
        taken.insert(spec.name.clone(), Arc::clone(spec));
        Some(Turn { turns: self, spec: Arc::clone(spec) })
    }
}

struct Turn<'a> {
    turns: &'a Turns,
    spec: Arc<ExportSpec>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut taken = self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.get(&self.spec.name).is_some_and(|spec| Arc::ptr_eq(spec, &self.spec)) {
            taken.remove(&self.spec.name);
        }
        self.turns.freed.notify_all();
    }
}

/// Opens exports at their first use from now on.
pub(super) fn start(reloader: &Arc<Reloader>, listening: &mut Listening) {
    let reloader = Arc::clone(reloader);
    let forgetter = Arc::clone(&reloader);
    reloader.live.on_forget(move |name| forgetter.forget(name));
    listening.on_first_use(move |name| {
        let thread = std::thread::Builder::new().name("first-use".into()).stack_size(STACK_BYTES);
        let opener = Arc::clone(&reloader);
        let asked = name.to_owned();
        let open = move || {
            // Clients of the export wait until the opening is answered.
            if catch_unwind(AssertUnwindSafe(|| opener.open_first(&asked))).is_err() {
                say_failed(&asked, &Failure::failed("a defect has ended the opening"));
                opener.live.refuse(&[asked]);
            }
        };
        if let Err(error) = thread.spawn(open) {
            say_failed(name, &Failure::failed(format!("no thread for it: {error}")));
            reloader.live.refuse(&[name.to_owned()]);
        }
    });
}

impl Reloader {
    /// Closes an export for a client of the control socket.
    pub(super) fn forget(&self, name: &str) -> Result<(), String> {
        let spec = self.spec(name).ok_or_else(|| format!("there is no export {name:?}"))?;
        if spec.first_use.is_none() {
            return Err(format!(
                "export {name:?} opens with the server; `open = \"first-use\"` lets it open again"
            ));
        }
        let _closing = Closing::begin(&self.closes, &spec.name)?;
        let Some(_turn) = self.first_uses.take(&spec, Some(OPENING_MAX)) else {
            return Err(format!(
                "export {name:?} is being opened for more than {} s; end what gives its key, or \
                 reload without the export",
                OPENING_MAX.as_secs()
            ));
        };
        if self.live.close(&spec.name).map_err(|error| error.to_string())? {
            let event = Event::new(Kind::ExportClosed).export(&spec.name);
            event.say(format_args!("export {:?} is closed on request", spec.name));
        }
        Ok(())
    }

    /// Opens the export with this name, or refuses its clients.
    fn open_first(&self, name: &str) {
        let Some(spec) = self.spec(name) else { return self.live.refuse(&[name.to_owned()]) };
        let _turn = self.first_uses.take(&spec, None);
        // A client of another name was first.
        if self.live.names().iter().any(|open| open == name) {
            return;
        }
        let started = Instant::now();
        if let Err(failure) = self.opened_first(&spec, started) {
            say_failed(&spec.name, &failure);
            self.live.refuse(&spec.names().cloned().collect::<Vec<_>>());
        }
    }

    /// The present settings of the export with this name.
    fn spec(&self, name: &str) -> Option<Arc<ExportSpec>> {
        let current = self.current();
        current.exports.iter().find(|spec| spec.names().any(|one| one == name)).cloned()
    }

    fn opened_first(&self, spec: &Arc<ExportSpec>, started: Instant) -> Result<(), Failure> {
        if sandbox::parts().is_some() {
            check_sandbox(spec)?;
        }
        let volume = self.open(spec)?;
        let what = described(&volume);
        let mut current = self.current();
        let present = current.exports.iter().find(|one| one.is_like(spec)).cloned();
        let Some(present) = present else {
            return Err(Failure::failed("the configuration has changed meanwhile; try again"));
        };
        let opened = [(present, Some(volume))];
        let leaving = self.change(&mut current, &opened, &BTreeSet::new(), Server::new())?;
        drop(current);
        leaving.wait()?;
        say_opened(spec, &what, started);
        Ok(())
    }
}

/// An export that a client of the control socket is closing.
struct Closing<'a> {
    all: &'a Mutex<BTreeSet<String>>,
    name: &'a str,
}

impl<'a> Closing<'a> {
    fn begin(all: &'a Mutex<BTreeSet<String>>, name: &'a str) -> Result<Self, String> {
        let mut names = all.lock().unwrap_or_else(PoisonError::into_inner);
        if names.contains(name) {
            return Err(format!("export {name:?} is being closed already"));
        }
        if names.len() >= CLOSES_MAX {
            let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            let names = names.join(", ");
            return Err(format!("exports {names} are being closed; try again after them"));
        }
        names.insert(name.to_owned());
        Ok(Self { all, name })
    }
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(self.name);
    }
}

fn say_opened(spec: &ExportSpec, what: &str, started: Instant) {
    let name = &spec.name;
    let milliseconds = started.elapsed().as_millis();
    let key = match &spec.volume.key.source {
        KeySource::Command(_) => "key_command",
        KeySource::Credential(_) => "key_credential",
        KeySource::Ask if spec.volume.table().is_some() => "table",
        KeySource::Ask => "token",
        _ => "key_file",
    };
    let number = u64::try_from(milliseconds).unwrap_or(u64::MAX);
    let fields = [("key", Value::Text(key)), ("milliseconds", Value::Number(number))];
    Event::new(Kind::ExportOpened).export(name).fields(&fields).say(format_args!(
        "export {name:?} was opened in {milliseconds} ms with its {key}: {} ({what})",
        spec.volume.path.display()
    ));
}

fn say_failed(name: &str, failure: &Failure) {
    let event = Event::new(Kind::OpenFailed).export(name);
    event.say(format_args!("export {name:?} cannot be opened: {failure}"));
}
