//! Exports that come and go while a server runs.
//!
//! ```text
//! another thread ── Exchange ──> the serving thread: new list, sockets of disks
//!                                removed exports ──> Leaving: no more requests are received
//!                                  answered all ──> flushed on a thread ──> closed ──> Outcome
//! ```
//! New clients see the new list at once. A connection to a removed export answers the requests that
//! it has received, as at the end of the server, and then ends. Others are not touched.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use super::devices::{DeviceDoor, DeviceOptions};
use super::exports::{Catalogue, ServedExport, distinct};
use super::first_use::Release;
use super::handshake::ServerTls;
use super::threads::{Ends, Threads};
use super::{Server, first_use, flush_all};
use crate::Error;
use crate::volume::Volume;

/// A change of the exports.
pub struct Exchange {
    /// The names of all exports, in the order for clients. Exports without a name here leave. A
    /// name without an export is that of a closed one.
    pub order: Vec<String>,
    /// New exports.
    pub added: Vec<ServedExport>,
    /// Sockets of virtual machines for new exports, by the export's name.
    pub disks: Vec<(PathBuf, String, DeviceOptions)>,
    /// TLS for new connections; `None` leaves it as it is.
    pub tls: Option<ServerTls>,
    /// Called with the open exports' names when new clients see the change, and before any other.
    pub on_change: Box<dyn FnOnce(Vec<String>) -> Release + Send>,
}

/// A running server, for other threads.
#[derive(Clone)]
pub struct Remote {
    calls: Sender<Call>,
    ends: Ends,
}

/// A call on the serving thread.
pub(super) type Call = Box<dyn FnOnce(&mut Server) + Send>;

/// The end of removed exports.
pub struct Outcome(Receiver<Result<(), Error>>);

impl Outcome {
    /// Waits until they are drained, flushed and closed. `None`: the server ended before, which
    /// flushes them too.
    ///
    /// # Errors
    /// A volume cannot be flushed: acknowledged writes may be lost.
    #[must_use]
    pub fn wait(self) -> Option<Result<(), Error>> {
        self.0.recv().ok()
    }
}

impl Remote {
    pub(super) fn new(ends: Ends) -> (Self, Receiver<Call>) {
        let (calls, receiver) = mpsc::channel();
        (Self { calls, ends }, receiver)
    }

    /// Closes the open volume of this export, with all its names, until clients ask for it again.
    /// `None`: the server has ended, or the export is not open.
    ///
    /// # Errors
    /// There is no thread for the flush.
    #[must_use]
    pub fn close(&self, name: String) -> Option<Result<Outcome, Error>> {
        let (reply, replies) = mpsc::channel();
        let call = move |server: &mut Server| {
            let _ = reply.send(server.close(&name));
        };
        self.calls.send(Box::new(call)).ok()?;
        self.ends.signal();
        replies.recv().ok()?
    }

    /// Refuses clients that ask for these closed exports. The next ones are asked for anew.
    pub fn refuse(&self, names: Vec<String>) {
        let call = move |server: &mut Server| server.refuse_first_use(&names);
        if self.calls.send(Box::new(call)).is_ok() {
            self.ends.signal();
        }
    }

    /// Changes the exports, and returns when new clients see the change. `None`: the server has
    /// ended.
    ///
    /// # Errors
    /// A name is invalid or used twice, or a socket cannot be created. Nothing is changed then.
    #[must_use]
    pub fn exchange(&self, exchange: Exchange) -> Option<Result<Outcome, Error>> {
        let (reply, replies) = mpsc::channel();
        let call = move |server: &mut Server| {
            let _ = reply.send(server.exchange(exchange));
        };
        self.calls.send(Box::new(call)).ok()?;
        self.ends.signal();
        replies.recv().ok()
    }
}

/// Exports that leave, with their sockets of virtual machines.
pub(super) struct Leaving {
    names: Vec<String>,
    exports: Vec<Arc<ServedExport>>,
    pub(super) doors: Vec<DeviceDoor>,
    deadline: Instant,
    /// The time is up: connections were cut.
    is_cut: bool,
    flush: Flush,
    pub(super) release: Option<Release>,
    outcome: Sender<Result<(), Error>>,
    /// They had no client: the time without one.
    idle: Option<Duration>,
}

/// Exports and sockets without connections.
struct Drained {
    exports: Vec<Arc<ServedExport>>,
    doors: Vec<DeviceDoor>,
    release: Option<Release>,
}

/// The thread that flushes and closes. Closing a remote disk may take its time limit, and the
/// program may use the volume for some time.
pub(super) struct Flush {
    /// Sent when the connections have ended. Without it the thread ends, and flushes nothing.
    drained: Option<Sender<Drained>>,
    has_ended: Arc<AtomicBool>,
    /// The result of the flush; closed when the thread has closed the volumes.
    flushed: Receiver<Result<(), Error>>,
}

impl Flush {
    fn start(volumes: Vec<Arc<Volume>>, ends: Ends) -> Result<Self, Error> {
        let (drained, is_drained) = mpsc::channel::<Drained>();
        let (outcome, flushed) = mpsc::channel();
        let has_ended = Arc::new(AtomicBool::new(false));
        let end = End { has_ended: Arc::clone(&has_ended), ends };
        let flush = move || {
            let _end = end;
            // As at the end of the server: a remote server without a sign of life counts as away.
            let asked: Vec<_> = volumes.iter().flat_map(|volume| volume.stop()).collect();
            asked.into_iter().for_each(|asked| drop(asked.answer()));
            match is_drained.recv() {
                Ok(Drained { exports, doors, release }) => {
                    let _ = outcome.send(flush_all(&volumes));
                    drop((exports, doors));
                    // A recording writes the rest of its file.
                    release.into_iter().for_each(|release| release());
                    drop(volumes);
                }
                Err(_) => drop(outcome.send(Ok(()))),
            }
            drop(outcome);
        };
        let thread = std::thread::Builder::new().name("flush".into()).spawn(flush);
        thread.map_err(|error| Error::io("thread".as_ref(), "start", error))?;
        Ok(Self { drained: Some(drained), has_ended, flushed })
    }

    /// Waits for the flush; returns its result.
    pub(super) fn outcome(&self) -> Result<(), Error> {
        self.flushed.recv().unwrap_or_else(|_| {
            Err(Error::volume("flush".as_ref(), "a defect has ended the thread"))
        })
    }

    /// After the flush, waits until the volumes are closed, or until a time.
    pub(super) fn wait_until(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let _ = self.flushed.recv_timeout(left);
    }
}

/// Wakes the serving thread at the end of a thread.
struct End {
    has_ended: Arc<AtomicBool>,
    ends: Ends,
}

impl Drop for End {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Release);
        self.ends.signal();
    }
}

impl Leaving {
    /// Whether an export of this name is not closed yet.
    pub(super) fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|one| one == name)
    }

    /// Whether a connection belongs to these exports.
    fn has(&self, of: usize) -> bool {
        self.exports.iter().any(|export| number(export) == of)
    }

    /// The end of the drain, while it goes on.
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.is_cut && self.flush.drained.is_some()).then_some(self.deadline)
    }

    /// Continues; returns whether the exports are closed.
    fn go_on(&mut self, now: Instant, connections: &Threads) -> bool {
        self.doors.iter_mut().for_each(|door| door.front_end.join_ended());
        let is_served = connections.any(|of| self.has(of))
            || self.doors.iter().any(|door| door.front_end.len() > 0);
        if is_served && now >= self.deadline && !self.is_cut {
            self.is_cut = true;
            connections.shut_down(|of| self.has(of));
            self.doors.iter().for_each(|door| door.front_end.shut_down(|_| true));
        }
        if !is_served && let Some(drained) = self.flush.drained.take() {
            let exports = std::mem::take(&mut self.exports);
            let doors = std::mem::take(&mut self.doors);
            let _ = drained.send(Drained { exports, doors, release: self.release.take() });
        }
        self.flush.has_ended.load(Ordering::Acquire)
    }

    /// Reports the end; returns the outcome if nobody waits for it.
    fn end(self) -> Result<(), Error> {
        let outcome = self.flush.outcome();
        match self.idle {
            Some(idle) => {
                first_use::say_closed(&self.names, idle, &outcome);
                outcome
            }
            None => {
                let _ = self.outcome.send(outcome);
                Ok(())
            }
        }
    }

    /// At the end of the server: the volumes that it must flush itself, and the thread that
    /// flushes the others.
    pub(super) fn abandon(self) -> (Vec<Arc<Volume>>, Flush) {
        let Self { exports, mut flush, .. } = self;
        flush.drained = None;
        (distinct(&exports), flush)
    }

    /// Lets bios start without tokens.
    pub(super) fn lift(&self) {
        self.exports.iter().filter_map(|one| one.throttle.as_ref()).for_each(|one| one.lift());
    }
}

/// A number of an export for its threads, unique while the export is kept.
pub(super) fn number(export: &Arc<ServedExport>) -> usize {
    Arc::as_ptr(export) as usize
}

impl Server {
    /// The server for other threads.
    #[must_use]
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }

    /// Closes the volume of an export.
    fn close(&mut self, name: &str) -> Option<Result<Outcome, Error>> {
        let export = self.catalogue.find(name)?;
        let volume = Arc::clone(&export.volume);
        let all = self.catalogue.served().filter(|one| Arc::ptr_eq(&one.volume, &volume));
        let group: Vec<_> = all.cloned().collect();
        let (sender, outcome) = mpsc::channel();
        Some(self.close_group(&group, (sender, None)).map(|()| Outcome(outcome)))
    }

    /// Changes the exports. Fails without a change.
    fn exchange(&mut self, exchange: Exchange) -> Result<Outcome, Error> {
        let Exchange { order, added, disks, tls, on_change } = exchange;
        let catalogue = self.catalogue.changed(&order, added)?;
        let doors = disks.iter().map(|(path, name, options)| {
            let missing = || Error::volume(path, "its export is not served");
            let export = catalogue.find(name).ok_or_else(missing)?;
            let access = &self.shared.options.socket_access;
            DeviceDoor::open(path, access, export, options, self.ends.clone())
        });
        let doors = doors.collect::<Result<Vec<_>, _>>()?;
        let place = self.leaving.len();
        let outcome = self.remove_all_but(&catalogue)?;
        self.catalogue = catalogue;
        self.devices.extend(doors);
        if let Some(tls) = tls {
            self.tls = Some(tls);
        }
        let release = on_change(self.catalogue.served().map(|one| one.name.clone()).collect());
        if let Some(leaving) = self.leaving.get_mut(place) {
            leaving.release = Some(release);
        }
        self.first_use.forget_all_but(|name| self.catalogue.is_closed(name));
        Ok(outcome)
    }

    /// Begins the end of the exports that are in no list any more.
    fn remove_all_but(&mut self, kept: &Catalogue) -> Result<Outcome, Error> {
        let (sender, outcome) = mpsc::channel();
        let gone = self.catalogue.served().filter(|one| !kept.has(one));
        let exports: Vec<_> = gone.cloned().collect();
        if exports.is_empty() {
            let _ = sender.send(Ok(()));
            return Ok(Outcome(outcome));
        }
        let stays =
            |volume: &Arc<Volume>| kept.served().any(|one| Arc::ptr_eq(&one.volume, volume));
        let volumes = distinct(&exports).into_iter().filter(|volume| !stays(volume)).collect();
        self.let_leave(exports, volumes, (sender, None))?;
        Ok(Outcome(outcome))
    }

    /// Begins the end of exports, and of volumes that have no other name.
    pub(super) fn let_leave(
        &mut self,
        exports: Vec<Arc<ServedExport>>,
        volumes: Vec<Arc<Volume>>,
        (outcome, idle): (Sender<Result<(), Error>>, Option<Duration>),
    ) -> Result<(), Error> {
        let flush = Flush::start(volumes, self.ends.clone())?;
        let is_gone = |door: &mut DeviceDoor| exports.iter().any(|one| number(one) == door.export);
        let doors: Vec<_> = self.devices.extract_if(.., is_gone).collect();
        let deadline = Instant::now() + self.shared.options.drain_timeout;
        let names = exports.iter().map(|one| one.name.clone()).collect();
        let is_cut = false;
        let release = None;
        let leaving =
            Leaving { names, exports, doors, deadline, is_cut, flush, release, outcome, idle };
        leaving.lift();
        self.connections.stop_receiving(|of| leaving.has(of));
        leaving.doors.iter().for_each(|door| door.front_end.stop_receiving(|_| true));
        self.leaving.push(leaving);
        Ok(())
    }

    /// Runs the calls of other threads, and continues the end of removed exports.
    pub(super) fn go_on_with_exchanges(&mut self) {
        while let Ok(call) = self.calls.try_recv() {
            call(self);
        }
        let now = Instant::now();
        let connections = &self.connections;
        let ended = self.leaving.extract_if(.., |leaving| leaving.go_on(now, connections));
        for ended in ended.collect::<Vec<_>>() {
            self.first_use.keep_outcome(ended.end());
        }
    }
}
