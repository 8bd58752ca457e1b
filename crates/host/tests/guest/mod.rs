//! The front end and the guest of a vhost-user disk: memory in a file, one thread, no mapping.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Request types.
pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;
/// Feature bits.
pub(crate) const F_FLUSH: u64 = 1 << 9;
pub(crate) const F_INDIRECT: u64 = 1 << 28;
pub(crate) const F_EVENT_INDEX: u64 = 1 << 29;
const F_LOG_ALL: u64 = 1 << 26;
const F_PROTOCOL: u64 = 1 << 30;
const F_VERSION_1: u64 = 1 << 32;
/// Flags of descriptors.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITABLE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// Messages.
pub(crate) const GET_FEATURES: u32 = 1;
pub(crate) const SET_FEATURES: u32 = 2;
pub(crate) const SET_MEM_TABLE: u32 = 5;
pub(crate) const SET_VRING_NUM: u32 = 8;
pub(crate) const SET_VRING_ADDR: u32 = 9;
pub(crate) const SET_VRING_BASE: u32 = 10;
pub(crate) const GET_VRING_BASE: u32 = 11;
pub(crate) const SET_VRING_KICK: u32 = 12;
pub(crate) const SET_VRING_CALL: u32 = 13;
pub(crate) const SET_VRING_ERR: u32 = 14;
pub(crate) const SET_VRING_ENABLE: u32 = 18;
pub(crate) const GET_CONFIG: u32 = 24;
pub(crate) const GET_INFLIGHT_FD: u32 = 31;
pub(crate) const SET_INFLIGHT_FD: u32 = 32;
pub(crate) const ADD_MEM_REG: u32 = 37;
pub(crate) const REM_MEM_REG: u32 = 38;

pub(crate) const RING_LEN: u16 = 256;
/// Where parts of queue 0 are in memory; those of queue 1 are behind them.
const QUEUE_BYTES: u64 = 0x10000;
pub(crate) const AVAILABLE_AT: u64 = 0x1000;
pub(crate) const USED_AT: u64 = 0x2000;
const HEADERS_AT: u64 = 0x4000;
const STATUS_AT: u64 = 0x8000;
const DATA_AT: u64 = 0x10_0000;
/// Memory for the data of one request.
pub(crate) const SLOT_BYTES: u64 = 0x4_0000;
/// Requests of a queue.
pub(crate) const SLOTS: u16 = 32;
const MEMORY_BYTES: u64 = DATA_AT + 2 * SLOTS as u64 * SLOT_BYTES;
/// Addresses of the front end.
pub(crate) const FRONT_END: u64 = 0x7000_0000_0000;
/// Time limit of an answer; a slower server hangs.
const HANGS: Duration = Duration::from_secs(60);
const NO_TIME: Duration = Duration::ZERO;
/// Time in which an answer comes that nothing holds up.
const SOON: Duration = Duration::from_millis(200);

/// A guest with one or two queues.
pub(crate) struct Guest {
    socket: UnixStream,
    pub(crate) memory: File,
    queues: Vec<GuestQueue>,
    features: u64,
    /// Record of requests in flight, and the message that names it.
    record: Option<(OwnedFd, Vec<u8>)>,
}

struct GuestQueue {
    kick: OwnedFd,
    call: OwnedFd,
    error: OwnedFd,
    available: u16,
    used: u16,
    /// Index of the next request when the server was last asked whether it wants a kick.
    announced: u16,
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

fn is_ready(fd: &impl AsFd, limit: Duration) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let tv_nsec = limit.subsec_nanos().into();
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec };
    poll(&mut polled, Some(&limit)).unwrap() == 1
}

pub(crate) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Guest {
    /// Connects, and starts this many queues.
    pub(crate) fn connect(socket: &Path, queues: u32, features: u64) -> Self {
        let mut guest = Self::greet(socket, features);
        (0..queues).for_each(|queue| guest.start(queue));
        guest
    }

    /// Connects with a record of requests in flight, and starts a queue.
    pub(crate) fn connect_recorded(socket: &Path, features: u64) -> Self {
        Self::connect_with_record(socket, features, |_| ())
    }

    /// Fills the record, as an earlier server may have done, before it is used.
    pub(crate) fn connect_with_record(
        socket: &Path,
        features: u64,
        fill: impl FnOnce(&OwnedFd),
    ) -> Self {
        let mut guest = Self::greet(socket, features);
        let mut body = [0; 24];
        body[16..20].copy_from_slice(&[1, 0, (RING_LEN % 256) as u8, (RING_LEN / 256) as u8]);
        guest.message(31, 0, &body, &[]);
        let (reply, fd) = guest.reply_with_descriptor();
        fill(&fd);
        guest.command(32, &reply, &[fd.as_fd()]);
        guest.record = Some((fd, reply));
        guest.start(0);
        guest
    }

    fn greet(socket: &Path, features: u64) -> Self {
        let memory = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, MEMORY_BYTES).unwrap();
        let socket = UnixStream::connect(socket).unwrap();
        let memory = memory.into();
        let features = features | F_PROTOCOL | F_VERSION_1;
        let queues = Vec::new();
        let mut guest = Self { socket, memory, queues, features, record: None };
        guest.negotiate();
        guest
    }

    fn negotiate(&mut self) {
        self.socket.set_read_timeout(Some(HANGS)).unwrap();
        let offered = self.ask(1, &[]);
        let features = self.features;
        assert_eq!(u64::from_le_bytes(offered.try_into().unwrap()) & features, features);
        // MQ, LOG_SHMFD, REPLY_ACK, BACKEND_REQ, CONFIG, INFLIGHT_SHMFD, CONFIGURE_MEM_SLOTS.
        self.message(16, 0, &0x922bu64.to_le_bytes(), &[]);
        self.message(3, 0, &[], &[]);
        self.command(2, &features.to_le_bytes(), &[]);
        let memory = self.memory.try_clone().unwrap();
        self.command(SET_MEM_TABLE, &table(&[region(0, MEMORY_BYTES, 0)]), &[memory.as_fd()]);
    }

    /// Connects to the next server, as QEMU does: the base is a guess from the used index.
    pub(crate) fn reconnect(&mut self, socket: &Path) {
        self.socket = UnixStream::connect(socket).unwrap();
        self.negotiate();
        if let Some((fd, body)) = self.record.take() {
            self.command(32, &body, &[fd.as_fd()]);
            self.record = Some((fd, body));
        }
        let index = self.read(USED_AT + 2, 2);
        let before = self.queues.remove(0);
        self.start_at(0, u16::from_le_bytes([index[0], index[1]]).into());
        self.queues[0].available = before.available;
        self.queues[0].used = before.used;
        self.queues[0].announced = before.available;
        self.kick(0);
    }

    /// Whether an answer comes soon.
    pub(crate) fn has_answer(&self) -> bool {
        is_ready(&self.socket, SOON)
    }

    /// Waits until the server has seen the kick.
    pub(crate) fn await_kicked(&self, queue: u32) {
        while is_ready(&self.queues[queue as usize].kick, NO_TIME) {
            std::thread::yield_now();
        }
    }

    /// Receives the body of a reply, and the descriptor beside it.
    fn reply_with_descriptor(&mut self) -> (Vec<u8>, OwnedFd) {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let into = &mut [IoSliceMut::new(&mut header)];
        recvmsg(&self.socket, into, &mut beside, RecvFlags::WAITALL).unwrap();
        let mut came = beside.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let fd = came.next().expect("a descriptor comes with the answer");
        let mut body = vec![0; header[8].into()];
        self.socket.read_exact(&mut body).unwrap();
        (body, fd)
    }

    fn start(&mut self, queue: u32) {
        self.start_at(queue, 0);
    }

    fn start_at(&mut self, queue: u32, base: u32) {
        let kick = event();
        let call = event();
        let error = event();
        self.command(8, &words(&[queue, RING_LEN.into()]), &[]);
        self.command(10, &words(&[queue, base]), &[]);
        self.command(9, &Self::addresses(queue, 0), &[]);
        let number = u64::from(queue).to_le_bytes();
        self.command(SET_VRING_KICK, &number, &[kick.as_fd()]);
        self.command(SET_VRING_CALL, &number, &[call.as_fd()]);
        self.command(14, &number, &[error.as_fd()]);
        self.command(18, &words(&[queue, 1]), &[]);
        self.queues.push(GuestQueue { kick, call, error, available: 0, used: 0, announced: 0 });
    }

    /// Addresses of a ring, with the guest's address of its used ring.
    fn addresses(queue: u32, flags: u32) -> Vec<u8> {
        let mut body = words(&[queue, flags]);
        let at = FRONT_END + Self::base(queue);
        let addresses = [at, at + USED_AT, at + AVAILABLE_AT, Self::base(queue) + USED_AT];
        addresses.iter().for_each(|addr| body.extend(addr.to_le_bytes()));
        body
    }

    /// Switches the log on or off, as QEMU does: features, then the addresses of each ring.
    pub(crate) fn set_logging(&mut self, is_on: bool) {
        let all = self.features | if is_on { F_LOG_ALL } else { 0 };
        self.command(2, &all.to_le_bytes(), &[]);
        for queue in 0..self.queues.len() as u32 {
            self.command(9, &Self::addresses(queue, is_on.into()), &[]);
        }
    }

    /// Sends a message.
    pub(crate) fn message(&self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut bytes = words(&[request, 1 | flags, body.len() as u32]);
        bytes.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || beside.push(SendAncillaryMessage::ScmRights(fds)));
        let sent = sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut beside, SendFlags::NOSIGNAL);
        assert_eq!(sent.unwrap(), bytes.len());
    }

    /// Sends bytes that need not be a message.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    /// Receives the body of a reply.
    pub(crate) fn reply(&mut self) -> Vec<u8> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header).unwrap();
        let len = u32::from_le_bytes(header[8..].try_into().unwrap());
        let mut body = vec![0; len as usize];
        self.socket.read_exact(&mut body).unwrap();
        body
    }

    /// Sends a question, and returns the answer.
    pub(crate) fn ask(&mut self, request: u32, body: &[u8]) -> Vec<u8> {
        self.message(request, 0, body, &[]);
        self.reply()
    }

    /// Sends a message, and returns whether it was followed.
    pub(crate) fn try_command(
        &mut self,
        request: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> bool {
        self.message(request, 8, body, fds);
        self.reply() == [0; 8]
    }

    fn command(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        assert!(self.try_command(request, body, fds), "message {request}");
    }

    /// Whether the server has ended the connection, without an answer.
    pub(crate) fn is_disconnected(&mut self) -> bool {
        match self.socket.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    /// Whether the server ends a connection before its first message.
    pub(crate) fn is_turned_away(socket: &Path) -> bool {
        let mut socket = UnixStream::connect(socket).unwrap();
        socket.set_read_timeout(Some(HANGS)).unwrap();
        let question = words(&[GET_FEATURES, 1, 0]);
        socket.write_all(&question).is_err() || socket.read_exact(&mut [0; 20]).is_err()
    }

    /// The configuration.
    pub(crate) fn config(&mut self) -> Vec<u8> {
        let mut body = words(&[0, 60, 0]);
        body.resize(72, 0);
        self.ask(GET_CONFIG, &body).split_off(12)
    }

    /// Stops a queue; returns the index of its next request.
    pub(crate) fn stop(&mut self, queue: u32) -> u32 {
        let reply = self.ask(GET_VRING_BASE, &words(&[queue, 0]));
        u32::from_le_bytes(reply[4..].try_into().unwrap())
    }

    /// Starts a stopped queue from the same index on.
    pub(crate) fn start_again(&mut self, queue: u32, base: u32) {
        self.command(10, &words(&[queue, base]), &[]);
        let kick = self.queues[queue as usize].kick.try_clone().unwrap();
        self.command(SET_VRING_KICK, &u64::from(queue).to_le_bytes(), &[kick.as_fd()]);
    }

    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, addr).unwrap();
    }

    pub(crate) fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, addr).unwrap();
        bytes
    }

    fn base(queue: u32) -> u64 {
        u64::from(queue) * QUEUE_BYTES
    }

    /// Writes a descriptor into the ring's table.
    pub(crate) fn descriptor(
        &self,
        queue: u32,
        index: u16,
        (addr, len, flags, next): (u64, u32, u16, u16),
    ) {
        let at = Self::base(queue) + 16 * u64::from(index);
        self.descriptor_at(at, (addr, len, flags, next));
    }

    pub(crate) fn descriptor_at(&self, at: u64, (addr, len, flags, next): (u64, u32, u16, u16)) {
        let word = u128::from(addr)
            | u128::from(len) << 64
            | u128::from(flags) << 96
            | u128::from(next) << 112;
        self.write(at, &word.to_le_bytes());
    }

    /// Makes a chain available, without a kick.
    pub(crate) fn make_available(&mut self, queue: u32, head: u16) {
        let ring = &mut self.queues[queue as usize];
        let at = Self::base(queue) + AVAILABLE_AT;
        let entry = u64::from(ring.available % RING_LEN);
        ring.available = ring.available.wrapping_add(1);
        let index = ring.available.to_le_bytes();
        self.write(at + 4 + 2 * entry, &head.to_le_bytes());
        self.write(at + 2, &index);
    }

    /// Makes the available ring hold this index.
    pub(crate) fn set_available(&mut self, queue: u32, index: u16) {
        self.write(Self::base(queue) + AVAILABLE_AT + 2, &index.to_le_bytes());
    }

    pub(crate) fn kick(&self, queue: u32) {
        rustix::io::write(&self.queues[queue as usize].kick, &1u64.to_ne_bytes()).unwrap();
    }

    /// Kicks a queue if the server wants that, as a driver does; returns whether it did.
    pub(crate) fn announce(&mut self, queue: u32) -> bool {
        let ring = &mut self.queues[queue as usize];
        let before = std::mem::replace(&mut ring.announced, ring.available);
        let now = ring.available;
        let event = self.asked_kick(queue);
        let is_new =
            |event: u16| now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before);
        let is_wanted = event.is_some_and(is_new);
        if is_wanted {
            self.kick(queue);
        }
        is_wanted
    }

    /// Index of the request with which the server wants a kick. Without an event index it wants
    /// one with each request or with none.
    pub(crate) fn asked_kick(&self, queue: u32) -> Option<u16> {
        let word = |at: u64| {
            let bytes = self.read(Self::base(queue) + USED_AT + at, 2);
            u16::from_le_bytes([bytes[0], bytes[1]])
        };
        if self.features & F_EVENT_INDEX != 0 {
            return Some(word(4 + 8 * u64::from(RING_LEN)));
        }
        let next = self.queues[queue as usize].available.wrapping_sub(1);
        (word(0) & 1 == 0).then_some(next)
    }

    /// Address of the header of a slot.
    pub(crate) fn header_at(queue: u32, slot: u16) -> u64 {
        Self::base(queue) + HEADERS_AT + 32 * u64::from(slot)
    }

    /// Address of the status of a slot.
    pub(crate) fn status_at(queue: u32, slot: u16) -> u64 {
        Self::base(queue) + STATUS_AT + u64::from(slot)
    }

    /// Address of the data of a slot.
    pub(crate) fn data_at(queue: u32, slot: u16) -> u64 {
        DATA_AT + (u64::from(queue) * u64::from(SLOTS) + u64::from(slot)) * SLOT_BYTES
    }

    pub(crate) fn put_header(&self, queue: u32, slot: u16, kind: u32, sector: u64) {
        let mut header = words(&[kind, 0]);
        header.extend(sector.to_le_bytes());
        self.write(Self::header_at(queue, slot), &header);
        self.write(Self::status_at(queue, slot), &[0xee]);
    }

    /// Makes a request available: a header, data, a status.
    pub(crate) fn push(&mut self, queue: u32, slot: u16, kind: u32, sector: u64, len: u32) {
        self.put_header(queue, slot, kind, sector);
        let first = 3 * slot;
        let data = Self::data_at(queue, slot);
        let direction = if matches!(kind, READ | GET_ID) { WRITABLE } else { 0 };
        let after_header = if len > 0 { first + 1 } else { first + 2 };
        self.descriptor(queue, first, (Self::header_at(queue, slot), 16, NEXT, after_header));
        self.descriptor(queue, first + 1, (data, len, NEXT | direction, first + 2));
        self.descriptor(queue, first + 2, (Self::status_at(queue, slot), 1, WRITABLE, 0));
        self.make_available(queue, first);
    }

    /// Waits until a request has ended; returns its head and the written length.
    pub(crate) fn ended(&mut self, queue: u32) -> (u16, u32) {
        let at = Self::base(queue) + USED_AT;
        while !self.has_ended(queue) {
            let call = &self.queues[queue as usize].call;
            assert!(is_ready(call, HANGS), "the server hangs");
            rustix::io::read(call, &mut [0; 8]).unwrap();
        }
        let ring = &mut self.queues[queue as usize];
        let entry = at + 4 + 8 * u64::from(ring.used % RING_LEN);
        ring.used = ring.used.wrapping_add(1);
        // The guest waits for the next one.
        let event = ring.used.to_le_bytes();
        self.write(Self::base(queue) + AVAILABLE_AT + 4 + 2 * u64::from(RING_LEN), &event);
        let bytes = self.read(entry, 8);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (word(0) as u16, word(4))
    }

    /// Whether a request has ended that [`Guest::ended`] has not returned.
    pub(crate) fn has_ended(&self, queue: u32) -> bool {
        let index = self.read(Self::base(queue) + USED_AT + 2, 2);
        u16::from_le_bytes([index[0], index[1]]) != self.queues[queue as usize].used
    }

    /// Runs one request in slot 0; returns its status.
    pub(crate) fn run(&mut self, queue: u32, kind: u32, sector: u64, len: u32) -> u8 {
        self.push(queue, 0, kind, sector, len);
        self.kick(queue);
        assert_eq!(self.ended(queue).0, 0);
        self.status(queue, 0)
    }

    pub(crate) fn write_data(&mut self, sector: u64, bytes: &[u8]) -> u8 {
        self.write(Self::data_at(0, 0), bytes);
        self.run(0, WRITE, sector, bytes.len() as u32)
    }

    pub(crate) fn read_data(&mut self, sector: u64, len: u32) -> Vec<u8> {
        assert_eq!(self.run(0, READ, sector, len), 0);
        self.read(Self::data_at(0, 0), len as usize)
    }

    /// A request for a range in a segment.
    pub(crate) fn run_segment(&mut self, kind: u32, sector: u64, sectors: u32, flags: u32) -> u8 {
        let mut segment = sector.to_le_bytes().to_vec();
        segment.extend(words(&[sectors, flags]));
        self.write(Self::data_at(0, 0), &segment);
        self.run(0, kind, 0, 16)
    }

    pub(crate) fn status(&self, queue: u32, slot: u16) -> u8 {
        self.read(Self::status_at(queue, slot), 1)[0]
    }

    /// Waits for the error descriptor of a queue.
    pub(crate) fn is_stopped(&self, queue: u32) -> bool {
        is_ready(&self.queues[queue as usize].error, HANGS)
    }

    /// Whether the error descriptor of a queue was not written to.
    pub(crate) fn lives(&self, queue: u32) -> bool {
        !is_ready(&self.queues[queue as usize].error, NO_TIME)
    }

    pub(crate) fn call(&self, queue: u32) -> BorrowedFd<'_> {
        self.queues[queue as usize].call.as_fd()
    }
}

/// A region for a memory table: at an address of the guest, and at an offset of the file.
pub(crate) fn region(guest: u64, len: u64, offset: u64) -> [u64; 4] {
    [guest, len, FRONT_END + guest, offset]
}

/// Message of the addresses of a ring: descriptors, used ring, available ring.
pub(crate) fn addresses(queue: u32, addresses: [u64; 3]) -> Vec<u8> {
    let mut body = words(&[queue, 0]);
    let words = addresses.into_iter().chain([0]);
    body.extend(words.flat_map(u64::to_le_bytes));
    body
}

pub(crate) fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let mut body = words(&[regions.len() as u32, 0]);
    body.extend(regions.iter().flatten().flat_map(|word| word.to_le_bytes()));
    body
}

/// Writes a record of requests in flight, as a server leaves it that fetched the request of slot 0.
pub(crate) fn record_one(record: &OwnedFd) {
    let record = File::from(record.try_clone().unwrap());
    let [low, high] = RING_LEN.to_le_bytes();
    record.write_all_at(&[1, 0, low, high], 8).unwrap();
    record.write_all_at(&[1, 0, 0, 0, 0, 0, 0, 0, 1], 16).unwrap();
}

/// Length of a guest's memory.
pub(crate) fn memory_bytes() -> u64 {
    MEMORY_BYTES
}
