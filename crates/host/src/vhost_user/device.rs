//! The thread of one front end: its messages, its memory and its queues.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::priority::Priority;
use blockyard_protocol::vhost_user::{
    Action, HEADER_BYTES, Header, InflightArea, LogArea, MemoryRegion, Offer, Outcome, Queue,
    Session, config_change,
};
use blockyard_protocol::virtio_blk::{CONFIG_WRITEBACK_AT, Disk, NAME_BYTES};
use rustix::fs::{FileType, MemfdFlags, memfd_create};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use super::channel::{self, Notices};
use super::closing::Closing;
use super::dirty_log::DirtyLog;
use super::inflight;
use super::memory::{GuestMemory, Window};
use super::origin;
use super::polling::Polling;
use super::queue::{RETRY, Running, Setup, Shared, Signals, State, useful_bytes};
use super::write_back::WriteBack;
use crate::driver::Driver;
use crate::log::{Event, Kind};
use crate::memory::Budget;
use crate::throttle::SharedThrottle;
use crate::volume::Volume;
use crate::{memory, poll};

const FOREIGN: &str = "a descriptor is a file of FUSE, or of another mount namespace; put guest \
                       memory into a file of tmpfs, hugetlbfs or a mounted disk";
const STILL_CLOSING: &str = "files of FUSE that front ends have sent are still being closed; their \
                             processes do not answer";
const NO_SIGNAL: &str = "a descriptor is neither an event, a pipe nor a Unix socket";

/// A volume that is offered to front ends.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) volume: Arc<Volume>,
    pub(crate) priority: Priority,
    pub(crate) throttle: Option<Arc<SharedThrottle>>,
    /// Number of queues, 1 to 256.
    pub(crate) queues: u16,
    /// Limit of a ring's size.
    pub(crate) ring_len_max: u16,
    pub(crate) polling: Polling,
    /// The socket, for sentences.
    pub(crate) place: String,
    /// Name of the disk in the guest.
    pub(crate) name: [u8; NAME_BYTES],
    /// Whether the disk says that its cache is a write-back cache. It outlives resets and
    /// connections: a front end that connects again does not repeat what its guest has switched.
    pub(crate) writeback: Arc<AtomicBool>,
    pub(crate) closing: Arc<Closing>,
}

impl Device {
    fn disk(&self) -> Disk {
        let Self { volume, queues, .. } = self;
        Disk {
            size_bytes: volume.size_bytes(),
            block_bytes: volume.sector_size_bytes().max(volume.minimum_block_bytes()).max(512),
            queues: *queues,
            read_only: volume.read_only(),
            can_discard: volume.can_discard(),
        }
    }

    /// Serves a front end until it or the server ends the connection. All requests that were
    /// fetched are then finished.
    pub(crate) fn serve(&self, socket: BorrowedFd<'_>) {
        let outcome = if self.closing.has_room() {
            let mut front_end = FrontEnd::new(self);
            let outcome = front_end.serve(socket);
            front_end.stop_all();
            outcome
        } else {
            Err(STILL_CLOSING.into())
        };
        if let Err(problem) = outcome {
            Event::new(Kind::VirtualMachine)
                .say(format_args!("{}: a front end is disconnected: {problem}", self.place));
        }
    }
}

/// A queue, whether it runs or not.
struct Line {
    kick: Option<Shared>,
    signals: Signals,
    running: Option<Running>,
    state: State,
    /// The system had no thread, descriptor or memory for it; another start is due.
    is_owed: bool,
}

impl Line {
    const STOPPED: State = State { next_available: 0, is_kicked: false, is_broken: false };

    fn new() -> Self {
        let signals = Signals::default();
        Self { kick: None, signals, running: None, state: Self::STOPPED, is_owed: false }
    }

    /// A new kick descriptor: the front end has set a broken queue up again.
    fn set_kick(&mut self, kick: Shared) {
        self.stop();
        self.kick = Some(kick);
        self.state.is_broken = false;
    }

    fn set_signals(&mut self, signals: Signals) {
        self.signals = signals;
        self.running.iter().for_each(|running| running.set_signals(self.signals.clone()));
    }

    /// Stops it when nothing that it has fetched is in flight.
    fn stop(&mut self) {
        self.is_owed = false;
        if let Some(running) = self.running.take() {
            self.state = running.stop(self.state);
        }
    }

    /// Stops it when nothing of it is in flight, also from an earlier server: its index is about to
    /// be all that the front end keeps.
    fn finish(&mut self) {
        self.running.iter().for_each(Running::wait_for_recovered);
        self.stop();
    }
}

/// A connected front end.
struct FrontEnd<'a> {
    device: &'a Device,
    disk: Disk,
    session: Session,
    memory: Arc<GuestMemory>,
    /// The log of a migration, which is used while the features say so.
    log: Option<Arc<DirtyLog>>,
    /// Memory that records requests in flight.
    records: Option<(InflightArea, GuestMemory)>,
    /// A descriptor that goes with the next answer.
    to_send: Option<OwnedFd>,
    /// The channel for messages to the front end.
    notices: Option<Notices>,
    lines: Vec<Line>,
    budget: Arc<Budget>,
    write_back: Arc<WriteBack>,
}

impl<'a> FrontEnd<'a> {
    fn new(device: &'a Device) -> Self {
        let disk = device.disk();
        let Device { queues, ring_len_max, .. } = *device;
        let mut config = disk.config();
        config[CONFIG_WRITEBACK_AT] = device.writeback.load(Ordering::Acquire).into();
        let offer = Offer { device_features: disk.features(), queues, ring_len_max };
        Self {
            device,
            disk,
            session: Session::new(offer, &config),
            memory: Arc::default(),
            log: None,
            records: None,
            to_send: None,
            notices: None,
            lines: (0..queues).map(|_| Line::new()).collect(),
            budget: Budget::new(queues.into()),
            // A front end that sets no features cannot flush.
            write_back: Arc::default(),
        }
    }

    /// Follows messages until the end of the stream, and the growth of the volume.
    fn serve(&mut self, socket: BorrowedFd<'_>) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        let growth = self.device.volume.parts.table.watch().map_err(failed)?;
        // It may have grown before the watch.
        self.grow();
        loop {
            let sources = [Some(socket), Some(growth.as_fd())];
            let limit = self.lines.iter().any(|line| line.is_owed).then_some(RETRY);
            let [has_message, has_grown] = poll::readable(&sources, limit).map_err(failed)?;
            self.start_owed();
            if has_grown {
                let _ = rustix::io::read(&growth, &mut [0; 8]);
                self.grow();
            }
            if has_message && !self.follow_message(socket)? {
                return Ok(());
            }
        }
    }

    /// Follows the next message; returns false at the end of the stream.
    fn follow_message(&mut self, socket: BorrowedFd<'_>) -> Result<bool, String> {
        // A descriptor that the message does not take is closed when this vector is dropped.
        let mut descriptors = Vec::new();
        let received = self.receive(socket, &mut descriptors);
        // Before anything is dropped: to close one may take for ever.
        if descriptors.iter().any(origin::is_foreign) {
            self.device.closing.close(descriptors);
            return Err(FOREIGN.into());
        }
        let Some((header, body)) = received? else { return Ok(false) };
        let mut reply = Vec::new();
        let count = descriptors.len();
        let action = self.session.on_message(header, &body, count, &mut reply);
        let action = action.map_err(|error| error.to_string())?;
        let (outcome, problem) = match self.follow(action, descriptors) {
            Ok(outcome) => (outcome, None),
            Err(problem) => (Outcome::Failed, Some(problem)),
        };
        let finished = self.session.finish(outcome, &mut reply);
        finished.map_err(|error| problem.unwrap_or_else(|| error.to_string()))?;
        let beside = self.to_send.take();
        let sent = channel::send(socket, &reply, beside.as_ref().map(AsFd::as_fd));
        sent.map_err(|error| error.to_string())?;
        Ok(true)
    }

    /// Receives a message, and the descriptors beside it; `None` at the end of the stream.
    fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<Option<(Header, Vec<u8>)>, String> {
        let failed = |error: std::io::Error| error.to_string();
        let mut header = [0; HEADER_BYTES];
        if !channel::receive(socket, &mut header, descriptors).map_err(failed)? {
            return Ok(None);
        }
        let header = self.session.on_header(header).map_err(|error| error.to_string())?;
        let mut body = vec![0; header.body_bytes()];
        let is_whole = channel::receive(socket, &mut body, descriptors).map_err(failed)?;
        Ok(is_whole.then_some((header, body)))
    }

    /// Takes the volume's size: queues start again with its table, then the front end is told.
    fn grow(&mut self) {
        let disk = self.device.disk();
        if disk == self.disk {
            return;
        }
        self.disk = disk;
        self.session.set_device_config(&disk.config());
        self.stop_all();
        self.start_all();
        self.notices = self.notices.take().filter(|notices| notices.send(&config_change()));
    }

    fn follow(&mut self, action: Action, descriptors: Vec<OwnedFd>) -> Result<Outcome, String> {
        let mut descriptors = descriptors.into_iter();
        match action {
            Action::Nothing => {}
            Action::SetMemory(regions) => self.set_memory(&regions, descriptors)?,
            Action::AddMemory(region) => {
                let file = descriptors.next().ok_or("memory came without a descriptor")?;
                let memory = self.memory.with(region, &file)?;
                self.change_memory(memory);
            }
            Action::RemoveMemory(region) => {
                let memory = self.memory.without(&region);
                self.change_memory(memory);
            }
            Action::MakeInflight(area) => self.to_send = Some(make_records(area)?),
            Action::SetInflight(area) => {
                let file = descriptors.next().ok_or("memory came without a descriptor")?;
                self.set_records(area, &file)?;
            }
            Action::SetFeatures => {
                self.stop_all();
                self.take_writeback();
                self.device.writeback.store(self.session.has_writeback(), Ordering::Release);
                if !self.session.logs() {
                    self.log = None;
                }
                self.change_memory(GuestMemory::clone(&self.memory));
            }
            Action::SetWriteback(is_on) => self.switch_writeback(is_on)?,
            Action::SetLog(area) => {
                let file = descriptors.next().ok_or("a log came without a descriptor")?;
                self.log = Some(Self::map_log(area, &file)?);
                self.change_memory(GuestMemory::clone(&self.memory));
            }
            Action::Channel => {
                let notices = descriptors.next().and_then(Notices::over);
                let notices = notices.ok_or("a channel is neither a stream socket nor a pipe")?;
                self.notices = Some(notices);
            }
            Action::Configure(queue) => self.restart(queue),
            Action::Kick(queue) => {
                let kick = descriptors.next().and_then(signal_descriptor);
                let kick = kick.ok_or(NO_SIGNAL)?;
                self.line(queue).set_kick(kick);
                self.restart(queue);
            }
            Action::Call(queue, is_some) | Action::Error(queue, is_some) => {
                let fd = descriptors.next().filter(|_| is_some).map(signal_descriptor);
                let fd = fd.map(|fd| fd.ok_or(NO_SIGNAL));
                let fd = fd.transpose()?;
                let signals = self.line(queue).signals.clone();
                let signals = match action {
                    Action::Call(..) => Signals { call: fd, ..signals },
                    _ => Signals { error: fd, ..signals },
                };
                self.line(queue).set_signals(signals);
            }
            Action::Stop(queue) => {
                let base = self.finish(queue)?;
                return Ok(Outcome::Stopped { queue, base });
            }
            Action::Reset => {
                self.stop_all();
                self.lines.iter_mut().for_each(|line| *line = Line::new());
            }
        }
        Ok(Outcome::Done)
    }

    /// Follows the session's kind of caching, for requests that are fetched from now on.
    fn take_writeback(&self) {
        self.write_back.set(self.session.writes_back(), self.session.may_switch_writeback());
    }

    /// Without a flush there is no switch, so the configuration says what it said before. Writes
    /// are stable all the same: the guest believes in its switch.
    fn switch_writeback(&mut self, is_on: bool) -> Result<(), String> {
        // Requests that began before the switch end before the flush.
        self.stop_all();
        self.take_writeback();
        self.write_back.prove();
        self.start_all();
        if !is_on {
            self.flush()?;
        }
        self.device.writeback.store(is_on, Ordering::Release);
        Ok(())
    }

    /// Makes stable what has ended: a guest that has switched write-back caching off does not flush
    /// any more.
    fn flush(&self) -> Result<(), String> {
        let Device { volume, priority, .. } = self.device;
        let driver = Driver::new(&volume.parts, 0, Vec::new(), *priority, Instant::now());
        let mut driver = driver.map_err(|error| format!("a flush cannot start: {error}"))?;
        if !driver.begin_request() {
            return Err("a suspended volume is not flushed".into());
        }
        let flush = Bio::new(Op::Flush, Sector(0), Sector(0), BufRef::NONE, 0);
        match driver.submit_and_wait(flush) {
            BlkStatus::Ok => Ok(()),
            status => Err(format!("a flush has failed: {status:?}")),
        }
    }

    fn line(&mut self, queue: u16) -> &mut Line {
        &mut self.lines[usize::from(queue)]
    }

    /// Finishes a queue until it is set up again; returns the index of its next request.
    ///
    /// # Errors
    /// Its record has a request that this server has not done. The index would make the front end
    /// forget it; a front end that is disconnected brings the record to the next connection.
    fn finish(&mut self, queue: u16) -> Result<u16, String> {
        let Queue { base, ring_len, .. } = *self.session.queue(queue);
        let line = self.line(queue);
        line.finish();
        line.kick = None;
        let state = std::mem::replace(&mut line.state, Line::STOPPED);
        let is_left = self.record(queue).is_some_and(|kept| inflight::has_taken(&kept, ring_len));
        if is_left && !state.is_broken {
            return Err(format!(
                "queue {queue} has requests of an earlier server, which cannot be done before its \
                 stop"
            ));
        }
        Ok(if state.is_kicked { state.next_available } else { base })
    }

    fn stop_all(&mut self) {
        self.lines.iter_mut().for_each(Line::stop);
    }

    fn start_all(&mut self) {
        (0..self.device.queues).for_each(|queue| self.restart(queue));
    }

    /// Starts queues again for which the system had no means.
    fn start_owed(&mut self) {
        for queue in 0..self.device.queues {
            if self.line(queue).is_owed {
                self.restart(queue);
            }
        }
    }

    /// Replaces the memory while nothing is in flight.
    fn change_memory(&mut self, memory: GuestMemory) {
        self.stop_all();
        let log = self.log.clone().filter(|_| self.session.logs());
        self.memory = Arc::new(memory.logged(log));
        self.start_all();
    }

    fn set_memory(
        &mut self,
        regions: &[MemoryRegion],
        files: impl Iterator<Item = OwnedFd>,
    ) -> Result<(), String> {
        // Before the new memory is mapped: a front end may replace nearly all of its address space.
        self.stop_all();
        self.memory = Arc::default();
        let mut memory = GuestMemory::default();
        for (region, file) in regions.iter().zip(files) {
            memory = memory.with(*region, &file)?;
        }
        self.change_memory(memory);
        Ok(())
    }

    /// Maps memory that is no guest's, as a region whose addresses are offsets.
    fn map(len_bytes: u64, file_offset_bytes: u64, file: &OwnedFd) -> Result<GuestMemory, String> {
        let region =
            MemoryRegion { guest_addr: 0, len_bytes, front_end_addr: 0, file_offset_bytes };
        GuestMemory::default().with(region, file)
    }

    fn map_log(area: LogArea, file: &OwnedFd) -> Result<Arc<DirtyLog>, String> {
        let mapped = Self::map(area.len_bytes, area.file_offset_bytes, file)?;
        let window = mapped.window(0, area.len_bytes as usize, 1).expect("it is the whole region");
        Ok(Arc::new(DirtyLog::new(window)))
    }

    /// Records requests in flight in this memory.
    fn set_records(&mut self, area: InflightArea, file: &OwnedFd) -> Result<(), String> {
        let records = Self::map(area.len_bytes, area.file_offset_bytes, file)?;
        self.stop_all();
        self.records = Some((area, records));
        self.start_all();
        Ok(())
    }

    /// The record of a queue, if the front end keeps one for it.
    fn record(&self, queue: u16) -> Option<Window> {
        let (area, records) = self.records.as_ref()?;
        let queue_bytes = area.queue_bytes();
        let set_up = self.session.queue(queue);
        let fits = queue < area.queues && set_up.ring_len <= area.ring_len;
        let at = u64::from(queue) * queue_bytes;
        fits.then(|| records.window(at, queue_bytes as usize, 8)).flatten()
    }

    /// Stops a queue, and starts it if it may run.
    fn restart(&mut self, queue: u16) {
        let may_run = self.session.may_run(queue);
        let set_up = *self.session.queue(queue);
        let line = self.line(queue);
        let was_owed = line.is_owed;
        line.stop();
        if !line.state.is_kicked {
            line.state.next_available = set_up.base;
        }
        let state = line.state;
        let signals = line.signals.clone();
        let Some(kick) = line.kick.clone().filter(|_| may_run && !state.is_broken) else { return };
        let name = format!("{}: queue {queue}", self.device.place);
        let setup = Setup {
            name: name.clone(),
            volume: Arc::clone(&self.device.volume),
            priority: self.device.priority,
            throttle: self.device.throttle.clone(),
            disk: self.disk,
            disk_name: self.device.name,
            memory: Arc::clone(&self.memory),
            queue: set_up,
            features: self.session.features(),
            write_back: Arc::clone(&self.write_back),
            state,
            kick,
            record: self.record(queue),
            grant: self.budget.grant(useful_bytes(&self.device.volume)),
            polling: self.device.polling,
        };
        let has_memory = memory::has_headroom();
        let started = has_memory.then(|| Running::start(setup, signals));
        let started = started.unwrap_or_else(|| Err(std::io::ErrorKind::OutOfMemory.into()));
        match started {
            Ok(running) => self.line(queue).running = Some(running),
            Err(error) => {
                self.line(queue).is_owed = true;
                if !was_owed {
                    Event::new(Kind::VirtualMachine).say(format_args!(
                        "{name} waits: the system has no thread for it: {error}"
                    ));
                }
            }
        }
    }
}

/// Memory of zeroes for records.
fn make_records(area: InflightArea) -> Result<OwnedFd, String> {
    let made = memfd_create("blockyard-inflight", MemfdFlags::CLOEXEC);
    let made = made.and_then(|file| rustix::fs::ftruncate(&file, area.len_bytes).map(|()| file));
    made.map_err(|error| format!("there is no memory for requests in flight: {error}"))
}

/// A descriptor of an event, a pipe or a Unix socket, non-blocking: a full one must not stop a
/// thread. User-Mode Linux sends sockets. Others are not taken. Devices and directories are always
/// ready or never, and to read from a descriptor of signals would take them away from this process.
fn signal_descriptor(fd: OwnedFd) -> Option<Shared> {
    let facts = rustix::fs::fstat(&fd).ok()?;
    let is_signal = match FileType::from_raw_mode(facts.st_mode) {
        FileType::Fifo => true,
        FileType::Socket => socket_domain(&fd) == Ok(AddressFamily::UNIX),
        _ => is_event(&fd),
    };
    (is_signal && rustix::io::ioctl_fionbio(&fd, true).is_ok()).then(|| Arc::new(fd))
}

/// Events have no type of their own; only their name tells them from other anonymous files.
fn is_event(fd: &OwnedFd) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}
