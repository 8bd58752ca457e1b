//! The thread of the device: distributes operations of all clients to connections, and handles lost
//! connections.
//!
//! ```text
//!   slot    event                               next
//!   Up      the link is lost                    Down, or Dialing at once if the device retries
//!   Down    the pause ends, or a check asks     Dialing
//!   Dialing connected                           Up
//!   Dialing not connected                       Down, for twice as long
//! ```
//! While no slot is up, a device that retries holds operations until its limit, and fails them
//! afterwards; a path fails them immediately, but its checks wait for a new connection.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use blockyard_engine::bio::{BlkStatus, Sample};
use blockyard_engine::sq::Cqe;
use blockyard_protocol::nbd::client::{Refusal, Remote};

use super::NbdDisk;
use super::dial::Opened;
use super::link::{Dying, Link, Loss};
use super::ops::{Next, Ops};
use super::remote::lost_with;
use super::unflushed::{Success, Unflushed, difference};
use crate::device_thread::{Clients, DeviceBio, DeviceThread, Inbox, Shared};
use crate::durability::{Durability, loss_of};
use crate::stages::{self, Span, Stage, Timed};
use crate::{poll, process};

/// Pause before a new attempt to connect: first and longest. Ours.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Starts the thread of the table's device with this number.
///
/// # Errors
/// The system has no more descriptors or threads.
pub(super) fn start(
    number: usize,
    disk: Arc<NbdDisk>,
    durability: Arc<Durability>,
    unflushed: Arc<Unflushed>,
) -> io::Result<DeviceThread> {
    DeviceThread::start(format!("nbd/{number}"), move |inbox| {
        Running::new(disk, durability, unflushed, inbox).run();
    })
}

/// The pause after a loss, from the pause before.
pub(super) fn pause_after(before: Duration, has_answered: bool) -> Duration {
    if has_answered { RETRY_FIRST } else { (2 * before).min(RETRY_MAX) }
}

/// The place of a connection.
#[derive(Debug)]
enum Slot {
    Up(Box<Link>),
    /// Not connected; `retry_after` is the pause after the next failure.
    Down {
        retry_at: Instant,
        retry_after: Duration,
    },
    /// A thread is connecting.
    Dialing {
        retry_after: Duration,
    },
}

impl Slot {
    fn link(&mut self) -> Option<&mut Link> {
        match self {
            Self::Up(link) => Some(link),
            Self::Down { .. } | Self::Dialing { .. } => None,
        }
    }
}

/// Results of connecting threads, with their slots.
type Dialed = Arc<Mutex<Vec<(usize, Result<Opened, String>)>>>;

/// Operations that wait for a connection.
#[derive(Default)]
struct Waiting {
    /// Operations with requests to be made.
    ready: VecDeque<u32>,
    /// Checks that wait while no slot is up.
    checks: Vec<u32>,
    /// An operation that may have caused a loss, and now has a connection to itself.
    alone: Option<u32>,
}

/// State of a server that cannot be reached.
struct Outage {
    /// Start of the outage; `None` while a slot is up.
    since: Option<Instant>,
    /// The failure of operations was reported.
    is_reported: bool,
    /// The server was silent or refused connections at the end of the clients' server; no new
    /// attempts.
    is_away: bool,
    /// Pause after a loss; it grows until a request completes.
    retry_after: Duration,
}

/// State of the thread.
// 16 fields: the operations, the connections, deadlines, and vectors that are kept for their
// memory.
struct Running {
    disk: Arc<NbdDisk>,
    /// Latch of the volume.
    durability: Arc<Durability>,
    /// A path fails lost operations; other devices retry them.
    is_path: bool,
    inbox: Arc<Shared>,
    dialed: Dialed,
    clients: Clients,
    ops: Ops,
    waiting: Waiting,
    slots: Vec<Slot>,
    dying: Vec<Dying>,
    outage: Outage,
    /// The last description of the export.
    remote: Option<Remote>,
    is_stopping: bool,
    /// The clients' server ends: operations no longer wait for a connection.
    is_ending: bool,
    /// Emptied after each use; kept for their memory.
    received: Inbox,
    unused: Vec<u32>,
}

impl Running {
    fn new(
        disk: Arc<NbdDisk>,
        durability: Arc<Durability>,
        unflushed: Arc<Unflushed>,
        inbox: Arc<Shared>,
    ) -> Self {
        let now = Instant::now();
        let mut running = Self {
            durability,
            inbox,
            dialed: Dialed::default(),
            clients: Clients::default(),
            ops: Ops::new(unflushed),
            waiting: Waiting::default(),
            outage: Outage {
                since: Some(now),
                is_reported: false,
                is_away: false,
                retry_after: RETRY_FIRST,
            },
            is_ending: false,
            slots: vec![Slot::Down { retry_at: now, retry_after: RETRY_FIRST }],
            dying: Vec::new(),
            remote: None,
            is_path: disk.is_path(),
            is_stopping: false,
            received: Inbox::default(),
            unused: Vec::new(),
            disk,
        };
        if let Some(opened) = running.disk.take_over() {
            running.ops.unflushed.succeeded(Success::Unflushed(running.disk.unflushed_bytes()));
            running.connected(now, 0, opened);
        }
        running
    }

    fn run(&mut self) {
        loop {
            let now = Instant::now();
            self.receive(now);
            self.collect_dialed(now);
            self.collect_replies(now);
            self.collect_dead(now);
            self.dial_what_is_due(now);
            self.fail_what_waits_too_long(now);
            self.dispatch(now);
            self.clients.answer();
            if self.is_stopping && self.ops.len() == 0 {
                return self.close();
            }
            self.sleep(now);
        }
    }

    fn receive(&mut self, now: Instant) {
        let mut received = std::mem::take(&mut self.received);
        self.inbox.take(&mut received);
        let Inbox { joined, bios, batches, abandoned, left, nudged, ending, stopping } =
            &mut received;
        batches.clear();
        *nudged = false;
        joined.drain(..).for_each(|joined| self.clients.join(joined));
        for op in bios.drain(..) {
            let is_check = op.is_check;
            let index = self.ops.insert(op);
            if is_check && self.outage.since.is_some() {
                self.waiting.checks.push(index);
            } else {
                self.queue(index);
            }
        }
        for io_context in abandoned.drain(..) {
            let mut indices = Vec::new();
            self.ops.abandon(io_context, &mut indices);
            for index in indices {
                for dying in &mut self.dying {
                    dying.forget(index, &mut self.ops, &mut self.unused);
                }
            }
        }
        for io_context in left.drain(..) {
            self.clients.leave(io_context);
        }
        self.is_ending |= std::mem::take(ending);
        self.is_stopping |= std::mem::take(stopping);
        self.received = received;
        self.settle(now);
    }

    fn queue(&mut self, index: u32) {
        if !std::mem::replace(&mut self.ops.at(index).is_queued, true) {
            self.waiting.ready.push_back(index);
        }
    }

    fn answer(&mut self, index: u32, status: BlkStatus) {
        if self.ops.get(index).is_queued {
            self.waiting.ready.retain(|queued| *queued != index);
        }
        self.was_alone(index);
        let op = self.ops.remove(index);
        self.latch(&op, status);
        if op.bio.origin.sample != Sample::NONE {
            // The server's queue and the network count as the device.
            let span = Span { stage: Stage::Device, from: op.submitted, to: stages::now() };
            self.clients.time(op.client, Timed { sample: op.bio.origin.sample, span });
        }
        self.clients.put(op.client, Cqe { token: op.token, status }, op.borrows);
    }

    /// Latches a flush or FUA write that the server has failed, because the state of acknowledged
    /// writes is unknown.
    fn latch(&self, op: &DeviceBio, status: BlkStatus) {
        if let Some(problem) = loss_of(&op.bio, status, self.is_path) {
            self.durability.lose(self.disk.name().to_owned(), problem, status);
        }
    }

    /// Ends the exclusive use of connections by an operation.
    fn was_alone(&mut self, index: u32) {
        if self.waiting.alone == Some(index) {
            self.waiting.alone = None;
        }
    }

    /// Continues operations that no connection uses.
    fn settle(&mut self, now: Instant) {
        while let Some(index) = self.unused.pop() {
            let needs_flush =
                self.remote.as_ref().is_some_and(|remote| remote.can_flush && !remote.can_fua);
            match self.ops.at(index).next(needs_flush) {
                Next::Wait => {}
                Next::Issue => {
                    // Its flush follows the operations that wait for the connections.
                    self.was_alone(index);
                    self.queue(index);
                }
                Next::Lost if self.has_failed(now) || self.ops.get(index).is_abandoned() => {
                    self.answer(index, BlkStatus::Transport);
                }
                Next::Lost if self.ops.get(index).is_given_up() => {
                    self.disk.say_once("a request with which connections were lost fails");
                    self.answer(index, BlkStatus::IoError);
                }
                Next::Lost => {
                    self.was_alone(index);
                    self.ops.at(index).begin_again();
                    self.queue(index);
                }
                Next::Answer(status) => self.answer(index, status),
            }
        }
    }

    /// Whether operations without a connection fail instead of waiting.
    fn has_failed(&self, now: Instant) -> bool {
        self.is_path || self.is_ending || self.fails_at().is_some_and(|at| at <= now)
    }

    /// Time from which on operations fail.
    fn fails_at(&self) -> Option<Instant> {
        self.outage.since.map(|since| since + self.disk.reconnect_delay())
    }

    fn collect_replies(&mut self, now: Instant) {
        for index in 0..self.slots.len() {
            let Some(link) = self.slots[index].link() else { continue };
            let received = link.receive(&mut self.ops, &mut self.unused);
            let late = if received.is_ok() { link.is_late(now) } else { None };
            if let Err(loss) = received {
                self.lose(now, index, &loss);
            }
            if let Some(late) = late {
                self.lose(now, index, &late);
                if self.is_ending {
                    self.give_up(now, &late);
                }
            }
        }
        self.settle(now);
    }

    /// Handles the loss of a slot's connection.
    fn lose(&mut self, now: Instant, index: usize, loss: &Loss) {
        let has_answered = self.slots[index].link().expect("it is up").has_answered;
        // With a pause, because a server may close every new connection.
        self.outage.retry_after = pause_after(self.outage.retry_after, has_answered);
        let retry_at = now + self.outage.retry_after;
        let retry_after = self.outage.retry_after;
        let down = Slot::Down { retry_at, retry_after };
        let Slot::Up(link) = std::mem::replace(&mut self.slots[index], down) else {
            unreachable!("only a slot that is up is lost");
        };
        // The exclusive operation was lost too, and may have to wait for the connection's end.
        self.waiting.alone = None;
        let until = now + self.disk.timeout();
        self.dying.extend(link.fail(loss, until, &mut self.ops, &mut self.unused));
        self.latch_unflushed();
        let is_up = self.slots.iter().any(|slot| matches!(slot, Slot::Up(_)));
        if !is_up && self.outage.since.is_none() {
            self.outage.since = Some(now);
            self.disk.set_lost();
            self.disk.say(&loss.why);
        }
    }

    /// Gives up all connections of a silent server.
    fn give_up(&mut self, now: Instant, silence: &Loss) {
        self.outage.is_away = true;
        for index in 0..self.slots.len() {
            if self.slots[index].link().is_some() {
                self.lose(now, index, silence);
            }
        }
    }

    /// Latches unflushed writes. With a connection the server and its cache may be lost, even after
    /// an announced end. A flush on another connection would not prove the stability of this one's
    /// acknowledged writes.
    fn latch_unflushed(&self) {
        let unflushed_bytes = self.ops.unflushed.bytes();
        if unflushed_bytes > 0 && !self.disk.trusts_unflushed() {
            self.lose_acknowledged(lost_with(unflushed_bytes));
            self.ops.unflushed.reported();
        }
    }

    fn lose_acknowledged(&self, problem: String) {
        self.durability.lose(self.disk.name().to_owned(), problem, BlkStatus::IoError);
    }

    fn collect_dead(&mut self, now: Instant) {
        for index in (0..self.dying.len()).rev() {
            // At the end no later write exists that a late write could undo.
            if self.is_ending || self.dying[index].is_dead(now) {
                let dying = self.dying.swap_remove(index);
                dying.release(&mut self.ops, &mut self.unused);
            }
        }
        self.settle(now);
    }

    fn collect_dialed(&mut self, now: Instant) {
        let dialed = Arc::clone(&self.dialed);
        let mut dialed = dialed.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, outcome) in dialed.drain(..) {
            match outcome {
                Ok(_) if self.outage.is_away => {
                    self.not_connected(now, index, "the server was silent before");
                }
                Ok(opened) => self.connected(now, index, opened),
                Err(why) => self.not_connected(now, index, &why),
            }
        }
    }

    fn connected(&mut self, now: Instant, index: usize, opened: Opened) {
        let link = Link::new(now, opened, self.disk.timeout());
        let multi_conn = link.remote().multi_conn;
        let is_single = |slot: &Slot| matches!(slot, Slot::Up(up) if !up.remote().multi_conn);
        if !multi_conn && self.slots.iter().any(is_single) {
            // Another connection was made at the same time.
            link.close();
            self.slots[index] = Slot::Down { retry_at: now, retry_after: RETRY_FIRST };
            return;
        }
        let before = self.remote.replace(link.remote().clone());
        let changed = before.and_then(|before| difference(&before, link.remote()));
        if let Some(changed) = changed.filter(|_| self.disk.writes()) {
            self.lose_acknowledged(format!("another export has come back: {changed}"));
        }
        self.slots[index] = Slot::Up(Box::new(link));
        let wanted = if multi_conn { self.disk.connections() } else { 1 };
        if !multi_conn {
            self.keep_only(now, index);
        }
        while self.slots.len() < wanted {
            self.slots.push(Slot::Down { retry_at: now, retry_after: RETRY_FIRST });
        }

        self.disk.set_found();
        if self.outage.since.take().is_some_and(|since| since < now) {
            self.disk.say("connected");
        }
        self.outage.is_reported = false;
        for check in std::mem::take(&mut self.waiting.checks) {
            self.queue(check);
        }
    }

    /// Keeps one connection, because the server now allows only one: a flush covers no write of
    /// another connection.
    fn keep_only(&mut self, now: Instant, index: usize) {
        for other in (0..self.slots.len()).filter(|other| *other != index) {
            if self.slots[other].link().is_some() {
                let why = "the server allows one connection only".to_owned();
                self.lose(now, other, &Loss { why, is_dead: false });
            }
        }
    }

    /// Whether another connection may be made: the server may now allow only one.
    fn may_dial(&self) -> bool {
        let is_taken = |slot: &Slot| matches!(slot, Slot::Up(_) | Slot::Dialing { .. });
        let has_room = self.remote.as_ref().is_none_or(|remote| remote.multi_conn)
            || !self.slots.iter().any(is_taken);
        has_room && !self.outage.is_away
    }

    fn not_connected(&mut self, now: Instant, index: usize, why: &str) {
        let Slot::Dialing { retry_after } = self.slots[index] else {
            unreachable!("only a dialing slot gets a result");
        };
        let retry_at = now + retry_after;
        self.slots[index] = Slot::Down { retry_at, retry_after: (2 * retry_after).min(RETRY_MAX) };
        if self.outage.since.is_some() {
            self.outage.is_away |= self.is_ending;
            self.disk.say_once(why);
            for check in std::mem::take(&mut self.waiting.checks) {
                self.answer(check, BlkStatus::Transport);
            }
        }
    }

    fn dial_what_is_due(&mut self, now: Instant) {
        if self.is_stopping {
            return;
        }
        let is_down = self.outage.since.is_some();
        for index in 0..self.slots.len() {
            let Slot::Down { retry_at, retry_after } = self.slots[index] else { continue };
            // A check of a path waits for no pause.
            let is_checked = self.is_path && is_down && !self.waiting.checks.is_empty();
            let is_due = self.is_dialed(index, !is_down) && (retry_at <= now || is_checked);
            if is_due && self.may_dial() {
                self.slots[index] = Slot::Dialing { retry_after };
                self.dial(index);
            }
        }
    }

    /// Whether a slot is connected again: a path whose server is away needs only the first.
    fn is_dialed(&self, index: usize, is_up: bool) -> bool {
        !self.is_path || is_up || index == 0
    }

    fn dial(&self, index: usize) {
        let disk = Arc::clone(&self.disk);
        let inbox = Arc::clone(&self.inbox);
        let dialed = Arc::clone(&self.dialed);
        let tell = move |outcome| {
            dialed.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
            inbox.nudge();
        };
        let failed = tell.clone();
        let thread = std::thread::Builder::new().name("nbd/dial".into());
        let spawned = thread.spawn(move || {
            process::leave_signals_to_others();
            tell(disk.dial());
        });
        if let Err(error) = spawned {
            failed(Err(format!("cannot start a thread to connect: {error}")));
        }
    }

    fn fail_what_waits_too_long(&mut self, now: Instant) {
        if self.outage.since.is_none() {
            return;
        }
        if self.has_failed(now) {
            if !self.is_path && !std::mem::replace(&mut self.outage.is_reported, true) {
                self.disk.say("requests fail until it is back");
            }
            for index in std::mem::take(&mut self.waiting.ready) {
                self.ops.at(index).is_queued = false;
                self.fail(index);
            }
        } else {
            let of_the_gone = |index: &u32| self.ops.get(*index).is_abandoned();
            let gone: Vec<u32> = self.waiting.ready.iter().copied().filter(of_the_gone).collect();
            gone.into_iter().for_each(|index| self.fail(index));
        }
        let fails = |index: &u32| self.outage.is_away || self.ops.get(*index).is_abandoned();
        for check in self.waiting.checks.extract_if(.., |index| fails(index)).collect::<Vec<_>>() {
            self.answer(check, BlkStatus::Transport);
        }
    }

    /// Fails an operation that waits for a connection, unless a dying connection still uses it.
    fn fail(&mut self, index: u32) {
        let pending = self.ops.at(index);
        if pending.is_used() {
            pending.lose();
        } else {
            self.answer(index, BlkStatus::Transport);
        }
    }

    /// Distributes operations to connections, and sends them.
    fn dispatch(&mut self, now: Instant) {
        while let Some(&index) = self.waiting.ready.front() {
            let Some(slot) = self.least_loaded() else { break };
            let is_suspect = self.ops.get(index).is_suspect();
            if !self.may_issue(index, is_suspect) {
                break;
            }
            let link = self.slots[slot].link().expect("it is up");
            let Some(issue) = self.ops.at(index).issue(link.remote()) else {
                self.waiting.ready.pop_front();
                self.ops.at(index).is_queued = false;
                if !self.ops.get(index).is_used() {
                    self.unused.push(index);
                    self.settle(now);
                }
                continue;
            };
            match link.submit(now, index, &issue, &mut self.ops) {
                Ok(()) if is_suspect => self.waiting.alone = Some(index),
                Ok(()) => {}
                Err(Refusal::Busy) => unreachable!("the least loaded has room"),
                Err(refusal) => self.ops.at(index).refuse(&refusal),
            }
        }
        for index in 0..self.slots.len() {
            let Some(link) = self.slots[index].link() else { continue };
            if let Err(loss) = link.send(&mut self.ops, &mut self.unused) {
                self.lose(now, index, &loss);
            }
        }
        self.settle(now);
    }

    /// Whether an operation may be issued. A suspect is sent only while no other is in flight, so
    /// that it cannot cost others their attempts.
    fn may_issue(&mut self, index: u32, is_suspect: bool) -> bool {
        match self.waiting.alone {
            Some(alone) => alone == index,
            None if is_suspect => {
                self.slots.iter_mut().filter_map(Slot::link).all(|link| link.load() == Some(0))
            }
            None => true,
        }
    }

    /// The slot of the connection with the fewest requests, if one accepts more.
    fn least_loaded(&mut self) -> Option<usize> {
        let load = |(index, slot): (usize, &mut Slot)| Some((slot.link()?.load()?, index));
        let least = self.slots.iter_mut().enumerate().filter_map(load).min();
        least.filter(|(load, _)| *load < super::dial::IN_FLIGHT_MAX).map(|(_, index)| index)
    }

    fn sleep(&mut self, now: Instant) {
        // A connection was lost in this turn, or an operation must be retried.
        let is_up = self.outage.since.is_none();
        let front = self.waiting.ready.front().copied();
        let may_issue = front.is_some_and(|index| {
            let is_suspect = self.ops.get(index).is_suspect();
            self.may_issue(index, is_suspect)
        });
        let goes_on =
            if is_up { may_issue && self.least_loaded().is_some() } else { self.has_failed(now) };
        if goes_on && !self.waiting.ready.is_empty() {
            return;
        }
        let waits = !self.waiting.ready.is_empty();
        let mut times: Vec<Instant> = self.dying.iter().filter_map(Dying::until).collect();
        times.extend(self.fails_at().filter(|_| waits && !self.is_path));
        for (index, slot) in self.slots.iter().enumerate() {
            match slot {
                Slot::Up(link) => times.extend(link.look_at()),
                Slot::Down { retry_at, .. } if self.is_dialed(index, is_up) && self.may_dial() => {
                    times.push(*retry_at);
                }
                Slot::Down { .. } | Slot::Dialing { .. } => {}
            }
        }
        if self.slots.iter().any(|slot| matches!(slot, Slot::Up(link) if link.has_received())) {
            return;
        }
        let limit = times.into_iter().min().map(|at| at.saturating_duration_since(now));
        let mut fds = vec![(self.inbox.as_fd(), false)];
        fds.extend(self.dying.iter().map(|dying| (dying.as_fd(), false)));
        for slot in &self.slots {
            if let Slot::Up(link) = slot {
                fds.push((link.as_fd(), link.has_out()));
            }
        }
        if poll::ready_of(&fds, limit).is_err() {
            std::thread::yield_now();
        }
    }

    fn close(&mut self) {
        for slot in self.slots.drain(..) {
            if let Slot::Up(link) = slot {
                link.close();
            }
        }
    }
}
