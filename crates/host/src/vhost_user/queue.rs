//! The thread of one queue.
//!
//! ```text
//! first kick ─> fetch ─> submit ─> completions ─> used ring ─> call
//!                 └──────────────<── wait: poll, then sleep until a kick, the device or orders
//! ```
//! Its configuration is fixed. A change stops the thread, which first finishes what it has fetched,
//! and a new one starts. Only its call and error descriptors change while it runs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use blockyard_engine::priority::Priority;
use blockyard_protocol::vhost_user::Queue;
use blockyard_protocol::virtio_blk::{Command, Disk, NAME_BYTES};
use blockyard_protocol::virtio_queue::Chain;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::interrupt::{self, Foreign};
use super::memory::{GuestMemory, Window};
use super::pieces::Pieces;
use super::polling::{self, Poller, Polling};
use super::requests::{GuestBuffers, GuestRequest};
use super::virtqueue::{RingFault, Virtqueue};
use super::write_back::WriteBack;
use crate::cpus;
use crate::driver::{Driver, SLOT_BYTES};
use crate::log::{Event, Kind};
use crate::memory::{GRANT_MAX_BYTES, Grant, Region};
use crate::poll;
use crate::requests::Requests;
use crate::throttle::SharedThrottle;
use crate::volume::Volume;

const STACK_BYTES: usize = 256 << 10;
/// Completions after which the guest is told, so that it works beside us.
const PUBLISH_EVERY: u16 = 32;
/// Idle time after which a queue releases its buffers.
const IDLE: Duration = Duration::from_secs(5);
/// Time between attempts to start a queue for which the system has no thread, descriptor or memory.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Time after which a queue that is to stop is perhaps stuck in a descriptor of its front end.
const STUCK_AFTER: Duration = Duration::from_millis(10);
/// Memory for data: a multiple of 256 KiB.
const PIECES_UNIT_BYTES: usize = 256 << 10;

/// A descriptor that several threads hold.
pub(super) type Shared = Arc<OwnedFd>;

/// All that a queue needs, for one run.
// 15 fields: the front end, the volume and the queue each have a part.
pub(super) struct Setup {
    /// Name of the queue in a sentence.
    pub(super) name: String,
    pub(super) volume: Arc<Volume>,
    pub(super) priority: Priority,
    pub(super) throttle: Option<Arc<SharedThrottle>>,
    pub(super) disk: Disk,
    /// Name of the disk in the guest.
    pub(super) disk_name: [u8; NAME_BYTES],
    pub(super) memory: Arc<GuestMemory>,
    pub(super) queue: Queue,
    pub(super) features: u64,
    /// Whether writes may wait in a cache until the guest flushes.
    pub(super) write_back: Arc<WriteBack>,
    pub(super) state: State,
    pub(super) kick: Shared,
    /// Record of requests in flight.
    pub(super) record: Option<Window>,
    pub(super) grant: Grant,
    pub(super) polling: Polling,
}

/// State that outlives a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Index of the next request in the ring.
    pub(super) next_available: u16,
    /// The guest has kicked the queue, so its ring is initialised.
    pub(super) is_kicked: bool,
    /// The queue has stopped by itself, and stays so until it is set up again.
    pub(super) is_broken: bool,
}

/// Descriptors to write to.
#[derive(Clone, Debug, Default)]
pub(super) struct Signals {
    pub(super) call: Option<Shared>,
    pub(super) error: Option<Shared>,
}

/// Orders to a running queue.
#[derive(Debug)]
struct Orders {
    signals: Mutex<Signals>,
    stops: AtomicBool,
    /// Requests of an earlier server end before the stop, also those of a suspended volume.
    waits_for_recovered: AtomicBool,
    /// Something of the above has changed.
    is_new: AtomicBool,
    wake: OwnedFd,
    /// Calls in which the thread may be stuck.
    foreign: Foreign,
}

impl Orders {
    fn give(&self) {
        self.is_new.store(true, Ordering::Release);
        signal(&self.wake);
    }

    fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Acquire)
    }

    /// Writes to a descriptor of the front end.
    fn signal(&self, fd: &OwnedFd) {
        self.foreign.call(|| signal(fd));
    }

    /// Empties a descriptor of the front end.
    fn take(&self, fd: &OwnedFd) -> io::Result<bool> {
        self.foreign.call(|| take(fd))
    }

    fn signals(&self) -> Signals {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running queue.
pub(super) struct Running {
    orders: Arc<Orders>,
    thread: JoinHandle<State>,
    /// Disconnected when the thread ends.
    end: Receiver<()>,
}

impl Running {
    /// # Errors
    /// The system has no more descriptors or threads.
    pub(super) fn start(setup: Setup, signals: Signals) -> io::Result<Self> {
        let orders = Arc::new(Orders {
            signals: Mutex::new(signals),
            stops: AtomicBool::new(false),
            waits_for_recovered: AtomicBool::new(false),
            is_new: AtomicBool::new(true),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            foreign: Foreign::default(),
        });
        let given = Arc::clone(&orders);
        let (ends, end) = mpsc::channel();
        let thread = std::thread::Builder::new().name("vhost queue".into());
        let thread = thread.stack_size(STACK_BYTES).spawn(move || {
            let _ends: mpsc::Sender<()> = ends;
            interrupt::allow();
            run(setup, &given)
        })?;
        Ok(Self { orders, thread, end })
    }

    /// Replaces the descriptors. The guest is called once: what has ended before was perhaps
    /// signalled to nobody.
    pub(super) fn set_signals(&self, signals: Signals) {
        *self.orders.signals.lock().unwrap_or_else(PoisonError::into_inner) = signals;
        self.orders.give();
    }

    /// The next stop also waits for requests of an earlier server that cannot begin yet, because
    /// the volume is suspended.
    pub(super) fn wait_for_recovered(&self) {
        self.orders.waits_for_recovered.store(true, Ordering::Release);
    }

    /// Stops the queue when nothing that it has fetched is in flight.
    pub(super) fn stop(self, before: State) -> State {
        self.orders.stops.store(true, Ordering::Release);
        self.orders.give();
        while self.end.recv_timeout(STUCK_AFTER) == Err(RecvTimeoutError::Timeout) {
            self.orders.foreign.interrupt(&self.thread);
        }
        // A panic is a defect of ours: the queue stays stopped, and the others live.
        self.thread.join().unwrap_or(State { is_broken: true, ..before })
    }
}

/// Writes to an event descriptor or a pipe. A full one is readable, which is what a signal does.
fn signal(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// The reason why a queue stops.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Ring(#[from] RingFault),
    #[error("{0}")]
    System(#[from] io::Error),
}

fn run(setup: Setup, orders: &Orders) -> State {
    let name = setup.name.clone();
    let mut state = setup.state;
    let outcome = wait_for_kick(&setup, orders, &mut state).and_then(|is_kicked| {
        if !is_kicked {
            return Ok(());
        }
        let Some(means) = Means::gather(&setup, orders) else { return Ok(()) };
        let mut thread = QueueThread::new(setup, means, orders)?;
        let outcome = thread.run();
        state.next_available = thread.ring.next_available();
        outcome
    });
    if let Err(fault) = outcome {
        state.is_broken = true;
        Event::new(Kind::VirtualMachine).say(format_args!("{name} is stopped: {fault}"));
        orders.signals().error.iter().for_each(|error| orders.signal(error));
    }
    state
}

/// Waits until the guest has kicked the queue; returns whether it has. Before that its ring may not
/// be initialised: firmware leaves it to the kernel of the guest.
fn wait_for_kick(setup: &Setup, orders: &Orders, state: &mut State) -> Result<bool, Fault> {
    while !state.is_kicked && !orders.stops.load(Ordering::Acquire) {
        let sources = [Some(setup.kick.as_fd()), Some(orders.wake.as_fd())];
        let [is_kicked, is_ordered] = poll::readable(&sources, None)?;
        if is_ordered {
            take(&orders.wake)?;
        }
        state.is_kicked = is_kicked && orders.take(&setup.kick)?;
    }
    Ok(state.is_kicked)
}

/// Empties an event descriptor, or takes some of a pipe; returns whether it held something.
fn take(fd: &OwnedFd) -> io::Result<bool> {
    match rustix::io::read(fd, &mut [0; 64]) {
        Ok(0) => Err(io::Error::other("the kick descriptor has no writer any more")),
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Parts of a queue for which the system may have no memory or descriptors.
struct Means {
    driver: Driver,
    region: Arc<Region>,
}

impl Means {
    fn new(setup: &Setup) -> io::Result<Self> {
        let Setup { volume, grant, priority, throttle, .. } = setup;
        let layout = Layout::of(grant.len_bytes(), volume.is_synchronous());
        let region = Arc::new(Region::new(layout.pieces_bytes)?);
        let world = vec![Arc::clone(&region)];
        let mut driver =
            Driver::new(&volume.parts, layout.bounce_slots, world, *priority, Instant::now())?;
        driver.set_throttle(throttle.as_ref());
        driver.log_slow_requests(&setup.name);
        Ok(Self { driver, region })
    }

    /// Tries again until the system has them; `None` if the queue is to stop first.
    fn gather(setup: &Setup, orders: &Orders) -> Option<Self> {
        let mut has_said = false;
        loop {
            match Self::new(setup) {
                Ok(means) => return Some(means),
                Err(error) if !has_said => {
                    Event::new(Kind::VirtualMachine)
                        .say(format_args!("{} waits: {error}", setup.name));
                    has_said = true;
                }
                Err(_) => {}
            }
            if orders.stops.load(Ordering::Acquire) {
                return None;
            }
            // An order only ends the wait; it is followed later.
            if let Ok([true]) = poll::readable(&[Some(orders.wake.as_fd())], Some(RETRY)) {
                let _ = take(&orders.wake);
            }
        }
    }
}

/// A queue whose guest has kicked it.
// 14 fields: the ring, the requests and the orders each have a part.
struct QueueThread<'a> {
    // First, so that its drop has waited for the operations that use the memory of the others.
    driver: Driver,
    ring: Virtqueue,
    requests: Requests<GuestBuffers>,
    /// The front end does not flush: every change is stable before it ends. Read when a request
    /// begins.
    write_back: Arc<WriteBack>,
    memory: Arc<GuestMemory>,
    ring_len: usize,
    kick: Shared,
    orders: &'a Orders,
    signals: Signals,
    /// Fetches nothing new, and ends when nothing is in flight.
    is_stopping: bool,
    /// The reason for it, if it is the guest's.
    fault: Option<RingFault>,
    poller: Poller,
    /// The buffers are released, and nothing has come since.
    is_at_rest: bool,
    _grant: Grant,
}

impl<'a> QueueThread<'a> {
    fn new(setup: Setup, means: Means, orders: &'a Orders) -> Result<Self, RingFault> {
        let Means { mut driver, region } = means;
        let Setup { volume, memory, queue, features, record, grant, polling, .. } = setup;
        let next_available = setup.state.next_available;
        let ring = Virtqueue::new(&memory, &queue, features, next_available, record)?;
        if !volume.fans_out_pieces() {
            driver.stay_inline();
        }
        let pieces = Pieces::new(region);
        let buffers = GuestBuffers::new(setup.disk, setup.disk_name, Arc::clone(&memory), pieces);
        Ok(Self {
            driver,
            ring,
            requests: Requests::new(buffers),
            write_back: setup.write_back,
            memory,
            ring_len: queue.ring_len.into(),
            kick: setup.kick,
            orders,
            signals: Signals::default(),
            is_stopping: false,
            fault: None,
            // Also a limit of the process to the time of one CPU counts.
            poller: Poller::new(polling, cpus::parallelism()),
            is_at_rest: false,
            _grant: grant,
        })
    }

    /// Serves until it is stopped.
    fn run(&mut self) -> Result<(), Fault> {
        self.ring.disarm();
        loop {
            match self.turn() {
                Ok(()) => {}
                // Replies in the lost memory reach no guest, so no further request is acknowledged.
                Err(fault @ (RingFault::MemoryTaken | RingFault::Log)) => return Err(fault.into()),
                Err(fault) => {
                    self.fault = Some(fault);
                    self.is_stopping = true;
                    continue;
                }
            }
            if self.may_end() {
                return self.fault.take().map_or(Ok(()), |fault| Err(fault.into()));
            }
            if !self.has_work() && !self.driver.help() {
                self.wait()?;
            }
        }
    }

    /// Whether nothing is in flight that the stop waits for.
    fn may_end(&self) -> bool {
        let waits = self.orders.waits_for_recovered.load(Ordering::Acquire)
            && self.ring.has_recovered()
            && self.fault.is_none()
            && !self.driver.is_stopped();
        self.is_stopping && self.requests.len() == 0 && !self.may_fetch() && !waits
    }

    fn turn(&mut self) -> Result<(), RingFault> {
        self.follow_orders();
        if self.is_stopping {
            // The front end waits for the end of what has begun.
            self.driver.start_held();
        }
        self.fetch()?;
        self.driver.poll();
        self.requests.collect(&mut self.driver);
        // Requests that have ended have freed pieces for the waiting ones.
        self.requests.feed(&mut self.driver)?;
        // Last, because all of these submit.
        self.driver.unplug();
        self.complete();
        self.publish()
    }

    fn follow_orders(&mut self) {
        if self.orders.is_new() && self.orders.is_new.swap(false, Ordering::AcqRel) {
            self.is_stopping |= self.orders.stops.load(Ordering::Acquire);
            self.signals = self.orders.signals();
            self.call();
        }
    }

    /// Whether another request may be fetched, and there is room for it. One of an earlier server
    /// is in flight already, so a stop waits for it.
    fn may_fetch(&self) -> bool {
        self.fault.is_none()
            && (!self.is_stopping || self.ring.has_recovered())
            && self.requests.len() < self.ring_len
            && !self.requests.waits_for_memory()
            && !self.driver.is_suspended()
    }

    fn has_work(&self) -> bool {
        self.driver.has_done() || self.may_fetch() && self.ring.has_available()
    }

    /// Fetches and submits requests, at most as many as the ring has entries: orders and
    /// completions get their turn.
    fn fetch(&mut self) -> Result<(), RingFault> {
        for _ in 0..self.ring_len {
            let comes = self.may_fetch() && self.ring.has_available();
            if !comes || !self.driver.begin_request() {
                break;
            }
            let mut chain = self.requests.buffers.chain();
            let Some(head) = self.ring.fetch(&self.memory, &mut chain)? else { break };
            self.driver.on_received();
            self.begin(head, chain)?;
            self.ring.advance(head);
            let is_first = self.ring.unpublished() == 0;
            self.complete();
            if is_first || self.ring.unpublished() >= PUBLISH_EVERY {
                self.publish()?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, head: u16, chain: Chain) -> Result<(), RingFault> {
        let command = self.requests.buffers.check(&chain)?;
        if command == Ok(Command::Flush) {
            self.write_back.prove();
        }
        let must_be_stable = !self.write_back.is_obeyed();
        let request = GuestRequest::new(head, chain, command);
        self.requests.begin(request, command, must_be_stable, &mut self.driver)
    }

    /// Moves ended requests to the used ring.
    fn complete(&mut self) {
        while let Some(ended) = self.requests.take_ended() {
            let (head, written_bytes) = self.requests.buffers.finish(ended);
            self.ring.complete(head, written_bytes);
        }
    }

    /// Shows the guest what has ended, and calls it if it waits for that.
    fn publish(&mut self) -> Result<(), RingFault> {
        if self.memory.log().is_some_and(|log| log.is_short()) {
            return Err(RingFault::Log);
        }
        if self.memory.is_broken() || self.ring.has_lost_record() {
            return Err(RingFault::MemoryTaken);
        }
        // Before the call: a guest whose descriptor blocks does not hold up a suspension.
        if self.requests.len() == 0 {
            self.driver.end_requests();
        }
        if self.ring.publish() {
            self.call();
        }
        Ok(())
    }

    /// Calls the guest. Without a descriptor it polls.
    fn call(&self) {
        self.signals.call.iter().for_each(|call| self.orders.signal(call));
    }

    /// Waits for a request, an order, or the device.
    fn wait(&mut self) -> Result<(), Fault> {
        let start = Instant::now();
        let mut polled = Duration::ZERO;
        let mut is_found = false;
        if let Some(limit) = self.poller.limit().filter(|_| self.may_poll()) {
            is_found = polling::poll(limit, || self.is_found());
            polled = start.elapsed();
        }
        if !is_found {
            self.sleep()?;
        }
        self.poller.waited(start.elapsed(), polled);
        Ok(())
    }

    /// Whether something may come that a poll finds: not on a suspended volume.
    fn may_poll(&self) -> bool {
        self.may_fetch() || !self.driver.is_idle()
    }

    /// Whether a poll has found something, or will not. The ring wants no kicks meanwhile.
    fn is_found(&mut self) -> bool {
        if !self.driver.is_idle() {
            self.driver.advance();
        }
        self.has_work() || self.orders.is_new() || !self.may_poll()
    }

    /// Sleeps until a kick, an order, or the device.
    fn sleep(&mut self) -> Result<(), Fault> {
        self.driver.on_sleep();
        let fetches = self.may_fetch();
        if fetches && self.ring.arm() {
            self.ring.disarm();
            return Ok(());
        }
        let [ring, workers, gate, ranges] = self.driver.wake_sources();
        let gate = gate.or_else(|| self.driver.resumed());
        let kick = fetches.then(|| self.kick.as_fd());
        let sources = [kick, Some(self.orders.wake.as_fd()), ring, workers, gate, ranges];
        let is_idle = self.driver.is_idle();
        let rest = (is_idle && !self.is_at_rest).then_some(IDLE);
        let limit = self.driver.wake_after().into_iter().chain(rest).min();
        let ready = poll::readable(&sources, limit)?;
        let [is_kicked, is_ordered, ..] = ready;
        if is_ordered {
            take(&self.orders.wake)?;
        }
        if is_kicked {
            self.orders.take(&self.kick)?;
        }
        self.is_at_rest = is_idle && !ready.contains(&true);
        if self.is_at_rest {
            self.driver.release_buffers();
        }
        if fetches {
            self.ring.disarm();
        }
        Ok(())
    }
}

/// Limit of the memory that a queue can use.
pub(super) fn useful_bytes(volume: &Volume) -> usize {
    if volume.is_synchronous() { Layout::SYNCHRONOUS_BYTES } else { GRANT_MAX_BYTES }
}

/// Division of a grant.
struct Layout {
    pieces_bytes: usize,
    bounce_slots: usize,
}

impl Layout {
    const SYNCHRONOUS_BYTES: usize = PIECES_UNIT_BYTES;

    /// Pieces of a synchronous volume end at once; any other has many in flight, and bounce slots
    /// for its writes.
    fn of(grant_bytes: usize, is_synchronous: bool) -> Self {
        if is_synchronous {
            return Self { pieces_bytes: Self::SYNCHRONOUS_BYTES, bounce_slots: 0 };
        }
        let pieces_bytes = (grant_bytes / 2).next_multiple_of(PIECES_UNIT_BYTES);
        Self { pieces_bytes, bounce_slots: (grant_bytes - pieces_bytes) / SLOT_BYTES }
    }
}

#[cfg(test)]
mod tests;
