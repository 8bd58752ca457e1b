//! A client in this process: its I/O takes the path of a connection, without a socket.
//!
//! A workload has one client for each of its tasks, on the task's own thread. The client has its
//! own io-context and priority, so a device's elevator can distinguish the tasks. The written bytes
//! do not matter, but they must not be compressible.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::priority::Priority;

use crate::Error;
use crate::driver::{Driver, Patch};
use crate::memory::Region;
use crate::volume::Volume;

/// Size of all buffers of a client; untouched memory costs nothing.
const BUFFER_BYTES: usize = 64 << 20;

/// Limit of one wait, so that the time of its end is valid.
const WAIT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Bounce slots of a client: 4 MiB in flight to an encrypted disk.
const BOUNCE_SLOTS: usize = 64;

/// An I/O request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Returned in [`Done`].
    pub user: u64,
    /// Operation.
    pub op: Op,
    /// First byte.
    pub offset_bytes: u64,
    /// Length; zero for a flush.
    pub len_bytes: u64,
    /// The submitter waits for this write. The writes of a submitter of many flushes are always
    /// synchronous, as on a connection.
    pub sync: bool,
}

/// A write of a part of one sector.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Returned in [`Done`].
    pub user: u64,
    /// Offset in the volume.
    pub offset_bytes: u64,
    /// Length of `bytes`.
    pub len_bytes: usize,
    /// New bytes; `None` means zeroes.
    pub bytes: Option<&'a [u8]>,
}

/// Flags of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// FUA: on stable storage before the write ends.
    pub fua: bool,
    /// Preflush: completed writes are on stable storage before this write starts.
    pub preflush: bool,
}

/// The data of requests.
pub trait Bytes {
    /// Produces the data of a write.
    fn fill(&mut self, user: u64, bytes: &mut [u8]);

    /// Checks the data of a read, some time before [`Client::wait`] returns.
    fn check(&mut self, user: u64, bytes: &[u8]);
}

/// Arbitrary data, never checked.
struct AnyBytes;

impl Bytes for AnyBytes {
    fn fill(&mut self, _: u64, _: &mut [u8]) {}

    fn check(&mut self, _: u64, _: &[u8]) {}
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct User {
    user: u64,
    /// Length of its read.
    read_bytes: usize,
}

/// A client of a volume, for one task. Aligned, because clients in one array would otherwise share
/// cache lines that their threads write.
#[repr(align(128))]
pub struct Client {
    driver: Driver,
    region: Arc<Region>,
    slots: Slots,
    /// Requests by slot.
    users: Vec<Option<User>>,
    in_flight: usize,
    /// Later requests stay in the plug.
    is_plugged: bool,
    /// Emptied after each use; kept for its memory.
    done: Vec<Done>,
    /// Ended requests that were not taken.
    ended: Vec<Done>,
}

/// Buffers of equal length: that of the longest request so far.
#[derive(Debug, Default)]
struct Slots {
    len_bytes: usize,
    free: Vec<u32>,
    /// Slots from here on were never used.
    fresh: u32,
}

impl Client {
    /// Creates a client of a volume.
    ///
    /// # Errors
    /// The system has not enough memory or descriptors.
    pub fn new(volume: &Arc<Volume>, priority: Priority) -> Result<Self, Error> {
        let failed = |error| Error::Copy(format!("cannot get memory for buffers: {error}"));
        let region = Arc::new(Region::new(BUFFER_BYTES).map_err(failed)?);
        let world = vec![Arc::clone(&region)];
        let since = Instant::now();
        let driver = Driver::new(&volume.parts, BOUNCE_SLOTS, world, priority, since);
        let driver = driver.map_err(failed)?;
        let slots = Slots::default();
        let users = Vec::new();
        let done = Vec::new();
        let ended = Vec::new();
        let is_plugged = false;
        Ok(Self { driver, region, slots, users, in_flight: 0, is_plugged, done, ended })
    }

    /// Length of the volume for this client: that of the client's start. Later growth of the volume
    /// is for later clients.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.driver.size_bytes()
    }

    /// Sets the priority of later requests.
    pub fn set_priority(&mut self, priority: Priority) {
        self.driver.set_priority(priority);
    }

    /// Later requests go to the device together, at [`Client::unplug`] or when the client waits.
    pub fn plug(&mut self) {
        self.is_plugged = true;
    }

    /// Requests since [`Client::plug`] go to the device.
    pub fn unplug(&mut self) {
        if std::mem::take(&mut self.is_plugged) {
            self.driver.unplug();
        }
    }

    /// Starts a request. It goes to the device at once; if nothing else is in flight, with the next
    /// call, because a lone synchronous request is one blocking system call. It ends in
    /// [`Client::wait`]. It ends immediately with [`BlkStatus::Invalid`] if it has partial sectors,
    /// exceeds 64 MiB, or would change a read-only volume. Blocks while all buffers are in use.
    pub fn submit(&mut self, request: Request) {
        self.submit_all(request, Marks::default(), &mut AnyBytes);
    }

    /// Like [`Client::submit`], for a write with flags.
    pub fn submit_marked(&mut self, request: Request, marks: Marks) {
        self.submit_all(request, marks, &mut AnyBytes);
    }

    /// Like [`Client::submit`], with the caller's data.
    pub fn submit_bytes(&mut self, request: Request, bytes: &mut dyn Bytes) {
        self.submit_all(request, Marks::default(), bytes);
    }

    fn submit_all(&mut self, request: Request, marks: Marks, bytes: &mut dyn Bytes) {
        let Request { user, op, offset_bytes, len_bytes, sync } = request;
        let has_data = matches!(op, Op::Read | Op::Write);
        let is_whole = offset_bytes.is_multiple_of(512) && len_bytes.is_multiple_of(512);
        let buffer_bytes = if has_data { len_bytes } else { 0 };
        let len = usize::try_from(buffer_bytes).ok();
        let is_valid = is_whole && self.driver.permits(op);
        let Some(len) = len.filter(|len| *len <= BUFFER_BYTES && is_valid) else {
            return self.refuse(user);
        };
        let slot = self.take_slot(len, bytes);
        if op == Op::Write {
            bytes.fill(user, self.slot_mut(slot, len));
        }
        let buf = if has_data { self.buf(slot, len) } else { BufRef::NONE };
        let sector = Sector::holding(offset_bytes);
        let len = Sector::holding(len_bytes);
        let origin = Origin { sync, ..Origin::default() };
        let Marks { fua, preflush } = marks;
        let bio = Bio::new(op, sector, len, buf, u64::from(slot));
        let bio = Bio { origin, fua, preflush, ..bio };
        // Not with several at a time: more may be submitted before the wait.
        let is_alone = self.in_flight() == 0 && !self.is_plugged;
        let read_bytes = if op == Op::Read { len_bytes } else { 0 };
        self.users[slot as usize] = Some(User { user, read_bytes: read_bytes as usize });
        self.in_flight += 1;
        if is_alone {
            self.driver.submit_awaited(bio);
        } else {
            self.driver.submit(bio);
        }
        if !self.is_plugged {
            self.driver.unplug();
        }
    }

    /// Starts a change of a part of one sector: `len_bytes` of `bytes`, or zeroes. The sector is
    /// read, changed and written; other writes to it wait. The change ends immediately with
    /// [`BlkStatus::Invalid`] if the part is empty or not inside one sector of the volume, if
    /// `len_bytes` is not the length of `bytes`, or on a read-only volume.
    pub fn submit_part(&mut self, part: Part<'_>, others: &mut dyn Bytes) {
        let has_len = part.bytes.is_none_or(|bytes| bytes.len() == part.len_bytes);
        let is_inside = self.driver.is_in_sector(part.offset_bytes, part.len_bytes);
        if !(has_len && is_inside && self.driver.permits(Op::Write)) {
            return self.refuse(part.user);
        }
        let slot = self.take_slot(0, others);
        while !self.driver.can_patch() {
            self.driver.wait();
            self.collect(others);
        }
        self.users[slot as usize] = Some(User { user: part.user, read_bytes: 0 });
        self.in_flight += 1;
        let Part { offset_bytes, len_bytes, bytes, .. } = part;
        let user = u64::from(slot);
        self.driver.patch(&Patch { offset_bytes, len_bytes, bytes, sync: true, user });
        self.driver.unplug();
    }

    /// Waits until `at_least` requests have ended; moves all ended requests to the end of `out`.
    ///
    /// # Panics
    /// Fewer requests are in flight.
    pub fn wait(&mut self, at_least: usize, out: &mut impl Extend<Done>) {
        self.wait_bytes(at_least, out, &mut AnyBytes);
    }

    /// Like [`Client::wait`], with the caller's data.
    ///
    /// # Panics
    /// Fewer requests are in flight.
    pub fn wait_bytes(
        &mut self,
        at_least: usize,
        out: &mut impl Extend<Done>,
        bytes: &mut dyn Bytes,
    ) {
        assert!(at_least <= self.in_flight + self.ended.len(), "enough requests are in flight");
        if at_least == 0 && !self.driver.has_done() {
            self.driver.go_on();
        }
        // Poll even if other requests are finished, so that requests that end immediately cannot
        // starve the others.
        self.driver.poll();
        if at_least == 0 && !self.driver.has_done() {
            self.driver.advance();
        }
        self.collect(bytes);
        while self.ended.len() < at_least {
            self.driver.wait();
            self.collect(bytes);
        }
        out.extend(self.ended.drain(..));
    }

    /// Waits until a request has ended, or until the limit, at most a year; moves all ended
    /// requests to the end of `out`.
    pub fn wait_for(&mut self, limit: Duration, out: &mut impl Extend<Done>) {
        self.wait_bytes_for(limit, out, &mut AnyBytes);
    }

    /// Like [`Client::wait_for`], with the caller's data.
    pub fn wait_bytes_for(
        &mut self,
        limit: Duration,
        out: &mut impl Extend<Done>,
        bytes: &mut dyn Bytes,
    ) {
        let until = Instant::now() + limit.min(WAIT_MAX);
        self.driver.go_on();
        self.driver.poll();
        self.collect(bytes);
        while self.ended.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.driver.advance();
                self.collect(bytes);
                break;
            }
            match self.in_flight {
                0 => {
                    self.driver.on_sleep();
                    std::thread::sleep(left);
                }
                _ => self.driver.wait_for(left),
            }
            self.collect(bytes);
        }
        out.extend(self.ended.drain(..));
    }

    /// Number of requests that [`Client::wait`] has not returned.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight + self.ended.len()
    }

    fn refuse(&mut self, user: u64) {
        self.ended.push(Done { user, status: BlkStatus::Invalid });
    }

    fn collect(&mut self, bytes: &mut dyn Bytes) {
        self.driver.take_done(&mut self.done);
        let mut done = std::mem::take(&mut self.done);
        for Done { user: slot, status } in done.drain(..) {
            let ended = self.users[slot as usize].take().expect("a request ends once");
            let User { user, read_bytes } = ended;
            if read_bytes > 0 && status == BlkStatus::Ok {
                bytes.check(user, self.slot_mut(slot as u32, read_bytes));
            }
            self.slots.free.push(slot as u32);
            self.in_flight -= 1;
            self.ended.push(Done { user, status });
        }
        self.done = done;
    }

    /// The bytes of an idle slot.
    fn slot_mut(&mut self, slot: u32, len_bytes: usize) -> &mut [u8] {
        assert!(len_bytes <= self.slots.len_bytes && self.users[slot as usize].is_none());
        let base = self.region.at(slot as usize * self.slots.len_bytes, len_bytes);
        // SAFETY: the range is inside the region, as `at` has checked, and was initialised when the
        // slot was first taken. No request uses the slot, and the borrow of `self` prevents new
        // ones.
        unsafe { std::slice::from_raw_parts_mut(base, len_bytes) }
    }

    /// Takes a buffer of at least this length.
    fn take_slot(&mut self, len_bytes: usize, bytes: &mut dyn Bytes) -> u32 {
        if len_bytes > self.slots.len_bytes || self.slots.len_bytes == 0 {
            while self.in_flight > 0 {
                self.driver.wait();
                self.collect(bytes);
            }
            let len_bytes = len_bytes.next_multiple_of(4096).max(4096);
            self.slots = Slots { len_bytes, ..Slots::default() };
            self.users = vec![None; BUFFER_BYTES / len_bytes];
        }
        while self.slots.free.is_empty() && self.slots.fresh as usize == self.users.len() {
            self.driver.wait();
            self.collect(bytes);
        }
        self.slots.free.pop().unwrap_or_else(|| {
            let slot = self.slots.fresh;
            self.slots.fresh += 1;
            self.fill(slot);
            slot
        })
    }

    fn buf(&self, slot: u32, len_bytes: usize) -> BufRef {
        BufRef {
            slot: BufRef::FIRST_WORLD_SLOT,
            offset_bytes: slot * self.slots.len_bytes as u32,
            len_bytes: len_bytes as u32,
        }
    }

    /// Fills a new buffer with noise (xorshift).
    fn fill(&self, slot: u32) {
        let len_bytes = self.slots.len_bytes;
        let base = self.region.at(slot as usize * len_bytes, len_bytes);
        let mut noise = 0x9e37_79b9_7f4a_7c15 ^ u64::from(slot);
        for word in 0..len_bytes / 8 {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            // SAFETY: the slot is inside the region, as `at` has checked, at a multiple of 4096,
            // and belongs to no request.
            unsafe { base.cast::<u64>().add(word).write(noise) };
        }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_crypt::params::CryptParams;
    use blockyard_crypt::secret::SecretBytes;
    use blockyard_engine::dm::crypt::pipeline::find;
    use blockyard_engine::elevator::{ELEVATORS, ElevatorSpec};

    use super::*;
    use crate::file::{Access, DeviceFile};
    use crate::volume::{PipelineChoice, Scheduling, VolumeOptions};

    fn client(elevator: &str, len_bytes: u64) -> Client {
        let elevator = Some(ElevatorSpec::parse(elevator).unwrap());
        let scheduling = Scheduling { elevator, ..Scheduling::default() };
        let options = VolumeOptions { scheduling, ..VolumeOptions::default() };
        let file = DeviceFile::in_memory(len_bytes).unwrap();
        let volume = Arc::new(Volume::from_file(file, &options).unwrap());
        Client::new(&volume, Priority::default()).unwrap()
    }

    fn request(op: Op, user: u64) -> Request {
        Request { user, op, offset_bytes: user * 4096, len_bytes: 4096, sync: false }
    }

    fn wait(client: &mut Client, at_least: usize) -> Vec<Done> {
        let mut done = Vec::new();
        client.wait(at_least, &mut done);
        done.sort_unstable_by_key(|done| done.user);
        done
    }

    #[test]
    fn endless_limit_of_a_wait_is_no_overflow() {
        let mut client = client("noop", 1 << 20);
        client.submit(request(Op::Read, 1));
        let mut done = Vec::new();
        client.wait_for(Duration::MAX, &mut done);
        assert_eq!(done.len(), 1);
    }

    #[test]
    fn requests_longer_than_any_volume_are_refused() {
        let file = DeviceFile::in_memory(1 << 20).unwrap();
        let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
        let volume = Arc::new(Volume::from_file(file, &options).unwrap());
        for _ in 0..2 {
            let mut client = Client::new(&volume, Priority::default()).unwrap();
            for user in 0..2 {
                let offset_bytes = 0;
                let len_bytes = u64::MAX - 511;
                client.submit(Request { offset_bytes, len_bytes, ..request(Op::Discard, user) });
            }
            let done = wait(&mut client, 2);
            assert!(done.iter().all(|done| done.status == BlkStatus::Invalid));
        }
    }

    #[test]
    fn every_request_ends_once_whatever_the_elevator() {
        for elevator in ELEVATORS {
            let mut client = client(elevator.name, 1 << 20);
            for user in 0..128 {
                client.submit(request(Op::Write, user));
            }
            let flush = Request { offset_bytes: 0, len_bytes: 0, ..request(Op::Flush, 128) };
            client.submit(flush);
            (129..256).for_each(|user| client.submit(request(Op::Read, user)));
            let done = wait(&mut client, 256);
            assert!(done.iter().map(|done| done.user).eq(0..256), "{}", elevator.name);
            assert!(done.iter().all(|done| done.status == BlkStatus::Ok));
            assert_eq!(client.in_flight(), 0);
        }
    }

    #[test]
    fn read_returns_the_written_bytes() {
        let mut client = client("mq-deadline", 1 << 20);
        let bytes = |client: &Client| {
            let base = client.region.at(0, 8192);
            // SAFETY: nothing is in flight.
            unsafe { std::slice::from_raw_parts(base, 8192).to_vec() }
        };
        let both = Request { len_bytes: 8192, ..request(Op::Write, 0) };
        client.submit(both);
        wait(&mut client, 1);
        let written = bytes(&client);
        assert_ne!(written[..4096], written[4096..]);
        client.submit(request(Op::Read, 1));
        wait(&mut client, 1);
        let read = bytes(&client);
        assert_eq!(read[..4096], written[4096..], "the second page, into the same buffer");
    }

    /// Beside the test binary, on a disk: through the page cache, and with direct I/O.
    fn clients_on_disk() -> (tempfile::TempDir, Vec<(std::fs::File, Client)>) {
        let dir = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(dir.parent().unwrap()).unwrap();
        let client = |direct: bool| {
            let path = dir.path().join(if direct { "direct" } else { "cached" });
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(1 << 20).unwrap();
            let device = DeviceFile::open(&path, Access::ReadWrite, direct).unwrap();
            let volume = Volume::from_file(device, &VolumeOptions::default()).unwrap();
            (file, Client::new(&Arc::new(volume), Priority::default()).unwrap())
        };
        let clients = [false, true].map(client).into();
        (dir, clients)
    }

    #[test]
    fn request_that_is_alone_ends_however_it_is_waited_for() {
        let (_dir, clients) = clients_on_disk();
        let flush = Request { offset_bytes: 0, len_bytes: 0, ..request(Op::Flush, 3) };
        for (_file, mut client) in clients {
            for lone in [request(Op::Write, 1), request(Op::Read, 2), flush] {
                let mut done = Vec::new();
                client.submit(lone);
                client.wait(1, &mut done);
                client.submit(lone);
                // Further requests; the test waits for one of them.
                client.submit(request(Op::Read, 4));
                client.wait(1, &mut done);
                while client.in_flight() > 0 {
                    client.wait(0, &mut done);
                }
                client.submit(lone);
                while client.in_flight() > 0 {
                    client.wait(0, &mut done);
                }
                client.submit(lone);
                while client.in_flight() > 0 {
                    client.wait_for(Duration::from_millis(1), &mut done);
                }
                assert_eq!(done.len(), 5, "{lone:?}");
                assert!(done.iter().all(|done| done.status == BlkStatus::Ok), "{lone:?}");
            }
        }
    }

    #[test]
    fn requests_that_end_at_once_do_not_starve_others() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let path = file.path().display();
        let table = format!("0 8 delay {path} 0 1\n8 2040 linear {path} 8\n");
        let table = SecretBytes::copy_of(table.as_bytes());
        let volume = Volume::from_table(&table, &VolumeOptions::default()).unwrap();
        let mut client = Client::new(&Arc::new(volume), Priority::default()).unwrap();
        client.submit(request(Op::Read, 0));
        let begun = Instant::now();
        let mut done = Vec::new();
        while !done.iter().any(|done: &Done| done.user == 0) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it takes a millisecond");
            done.clear();
            client.submit(request(Op::Read, 1));
            client.wait(1, &mut done);
        }
    }

    #[test]
    fn lone_request_past_the_end_of_a_file_that_was_cut_fails_and_the_next_does_not() {
        let (_dir, clients) = clients_on_disk();
        for (file, mut client) in clients {
            file.set_len(8192).unwrap();
            client.submit(request(Op::Read, 2));
            assert_eq!(wait(&mut client, 1), [Done { user: 2, status: BlkStatus::IoError }]);
            client.submit(request(Op::Read, 1));
            assert_eq!(wait(&mut client, 1), [Done { user: 1, status: BlkStatus::Ok }]);
        }
    }

    #[test]
    fn lone_write_is_in_the_file() {
        use std::os::unix::fs::FileExt;
        let (dir, clients) = clients_on_disk();
        for ((_file, mut client), name) in clients.into_iter().zip(["cached", "direct"]) {
            let mut known = Known(0x5a, Vec::new());
            client.submit_bytes(request(Op::Write, 3), &mut known);
            wait(&mut client, 1);
            let mut bytes = [0; 4096];
            let file = std::fs::File::open(dir.path().join(name)).unwrap();
            file.read_exact_at(&mut bytes, 3 * 4096).unwrap();
            assert!(bytes == [0x5a; 4096], "{name}");
        }
    }

    /// Writes a given byte, and keeps the bytes that it checks.
    struct Known(u8, Vec<(u64, Vec<u8>)>);

    impl Bytes for Known {
        fn fill(&mut self, _: u64, bytes: &mut [u8]) {
            bytes.fill(self.0);
        }

        fn check(&mut self, user: u64, bytes: &[u8]) {
            self.1.push((user, bytes.to_vec()));
        }
    }

    #[test]
    fn bytes_of_writes_are_made_and_those_of_reads_are_seen() {
        let mut client = client("none", 1 << 20);
        let mut known = Known(0xa5, Vec::new());
        client.submit_bytes(request(Op::Write, 3), &mut known);
        wait(&mut client, 1);
        assert!(known.1.is_empty(), "a write brings nothing");
        known.0 = 0;
        client.submit_bytes(request(Op::Write, 4), &mut known);
        client.submit_bytes(request(Op::Read, 3), &mut known);
        let mut done = Vec::new();
        client.wait_bytes(2, &mut done, &mut known);
        assert_eq!(known.1, [(3, vec![0xa5; 4096])]);
    }

    #[test]
    fn longer_request_gets_longer_buffers_and_none_is_too_many() {
        let mut client = client("deadline-prio", 256 << 20);
        client.submit(request(Op::Write, 0));
        // There is room for only two of these at a time.
        for user in 1..8 {
            let len_bytes = 32 << 20;
            client.submit(Request { len_bytes, ..request(Op::Read, user) });
        }
        let done = wait(&mut client, 8);
        assert!(
            done.iter().map(|done| (done.user, done.status)).eq((0..8).map(|n| (n, BlkStatus::Ok)))
        );
    }

    #[test]
    fn requests_that_no_disk_takes_end_at_once() {
        let mut client = client("none", 1 << 20);
        for bad in [
            Request { offset_bytes: 1, ..request(Op::Read, 0) },
            Request { len_bytes: 511, ..request(Op::Write, 0) },
            Request { len_bytes: (64 << 20) + 512, ..request(Op::Write, 0) },
            Request { offset_bytes: 1 << 20, ..request(Op::Read, 0) },
        ] {
            client.submit(bad);
            let [Done { status: BlkStatus::Invalid, .. }] = wait(&mut client, 1)[..] else {
                panic!("{bad:?}");
            };
        }
    }

    #[test]
    fn parts_outside_of_one_sector_are_refused_and_the_next_part_is_written() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let mut client = encrypted(file.path(), 0);
        let bytes = [7; 16];
        let good = Part { user: 1, offset_bytes: 520, len_bytes: 16, bytes: Some(&bytes) };
        for bad in [
            Part { offset_bytes: u64::MAX, ..good },
            Part { offset_bytes: u64::MAX, len_bytes: 1, bytes: None, ..good },
            Part { offset_bytes: 8 << 20, ..good },
            Part { offset_bytes: 1020, ..good },
            Part { len_bytes: usize::MAX, bytes: None, ..good },
            Part { len_bytes: 0, bytes: None, ..good },
            Part { len_bytes: 15, ..good },
        ] {
            client.submit_part(bad, &mut AnyBytes);
            assert_eq!(wait(&mut client, 1), [Done { user: 1, status: BlkStatus::Invalid }]);
        }
        client.submit_part(good, &mut AnyBytes);
        assert_eq!(wait(&mut client, 1), [Done { user: 1, status: BlkStatus::Ok }]);
    }

    /// Memory can always be written: only the client's own check protects it.
    #[test]
    fn client_of_a_read_only_volume_refuses_every_change() {
        let options = VolumeOptions { read_only: true, ..VolumeOptions::default() };
        let table = SecretBytes::copy_of(b"0 2048 ram");
        let volume = Arc::new(Volume::from_table(&table, &options).unwrap());
        let mut client = Client::new(&volume, Priority::default()).unwrap();
        let mut known = Known(0x5a, Vec::new());
        client.submit(request(Op::Write, 1));
        client.submit_marked(request(Op::Write, 2), Marks { fua: true, preflush: true });
        client.submit_bytes(request(Op::Write, 3), &mut known);
        client.submit(request(Op::Discard, 4));
        client.submit(request(Op::WriteZeroes, 5));
        let part = Part { user: 6, offset_bytes: 9, len_bytes: 9, bytes: None };
        client.submit_part(part, &mut known);
        let refused = (1..7).map(|user| Done { user, status: BlkStatus::Invalid });
        assert!(wait(&mut client, 6).into_iter().eq(refused));
        client.submit(Request { offset_bytes: 0, len_bytes: 0, ..request(Op::Flush, 7) });
        (1..6).for_each(|user| client.submit_bytes(request(Op::Read, user), &mut known));
        let mut done = Vec::new();
        client.wait_bytes(6, &mut done, &mut known);
        assert!(done.iter().all(|done| done.status == BlkStatus::Ok));
        assert!(known.1.iter().all(|(_, bytes)| bytes[..] == [0; 4096]), "nothing was written");
        assert_eq!(known.1.len(), 5);
    }

    fn encrypted(path: &std::path::Path, worker_threads: usize) -> Client {
        Client::new(&volume(path, worker_threads), Priority::default()).unwrap()
    }

    /// An encrypted volume of 8 MiB in memory, with a fixed cipher and key.
    fn volume(path: &std::path::Path, worker_threads: usize) -> Arc<Volume> {
        let worker_threads = Some(worker_threads);
        volume_with(path, &VolumeOptions { worker_threads, ..VolumeOptions::default() })
    }

    fn volume_with(path: &std::path::Path, options: &VolumeOptions) -> Arc<Volume> {
        let params = CryptParams::new(
            "aes-xts-plain64",
            SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()),
        );
        let file = DeviceFile::open(path, Access::ReadWrite, false).unwrap();
        Arc::new(Volume::from_crypt(file, &params, options).unwrap())
    }

    /// A client whose next short requests go to workers, if a CPU is idle.
    fn steady(volume: &Arc<Volume>) -> Client {
        let mut client = Client::new(volume, Priority::default()).unwrap();
        for _ in 0..2 {
            client.plug();
            (0..32).for_each(|user| client.submit(request(Op::Read, user)));
            wait(&mut client, 32);
        }
        volume.parts.workers.as_ref().unwrap().fall_asleep();
        client
    }

    #[test]
    fn requests_end_though_their_client_only_looks_for_their_end() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        looks_for_the_end_of_writes(&volume(file.path(), 2));
    }

    /// In memory, the cipher of a write is the write; on a disk the writing thread comes after it.
    #[test]
    fn writes_of_workers_to_a_disk_end_though_their_client_only_looks_for_their_end() {
        let folder = std::env::current_exe().unwrap();
        let file = tempfile::NamedTempFile::new_in(folder.parent().unwrap()).unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let pipeline = PipelineChoice::Fixed(find("F").unwrap().pipeline);
        let worker_threads = Some(2);
        let options = VolumeOptions { worker_threads, pipeline, ..VolumeOptions::default() };
        looks_for_the_end_of_writes(&volume_with(file.path(), &options));
    }

    fn looks_for_the_end_of_writes(volume: &Arc<Volume>) {
        for limit in [None, Some(Duration::ZERO)] {
            let mut client = steady(volume);
            (0..5).for_each(|user| client.submit(request(Op::Write, user)));
            client.unplug();
            let begun = Instant::now();
            let mut done = Vec::new();
            while done.len() < 5 {
                assert!(begun.elapsed() < Duration::from_secs(20), "{limit:?}: {done:?}");
                match limit {
                    None => client.wait(0, &mut done),
                    Some(limit) => client.wait_for(limit, &mut done),
                }
            }
        }
    }

    #[test]
    fn client_that_sleeps_without_requests_leaves_its_cpu_to_workers() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let volume = volume(file.path(), 2);
        let idle_cpus = || volume.parts.workers.as_ref().unwrap().load_now().idle_cpus;
        let before = idle_cpus();
        let mut client = steady(&volume);
        assert_eq!(idle_cpus(), before - 1);
        client.wait_for(Duration::from_millis(1), &mut Vec::new());
        assert_eq!(idle_cpus(), before);
    }

    #[test]
    fn long_requests_that_workers_share_are_those_of_one_thread() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        file.as_file().set_len(8 << 20).unwrap();
        let len_bytes = 2 << 20;
        let long =
            |op, user| Request { user, op, offset_bytes: user << 21, len_bytes, sync: false };
        let mut sharing = encrypted(file.path(), 1);
        (0..4).for_each(|user| sharing.submit(long(Op::Write, user)));
        assert!(wait(&mut sharing, 4).iter().all(|done| done.status == BlkStatus::Ok));
        let bytes = |client: &Client, slot: usize| {
            let base = client.region.at(slot << 21, len_bytes as usize);
            // SAFETY: nothing is in flight.
            unsafe { std::slice::from_raw_parts(base, len_bytes as usize).to_vec() }
        };
        let written: Vec<Vec<u8>> = (0..4).map(|slot| bytes(&sharing, slot)).collect();
        drop(sharing);
        let mut alone = encrypted(file.path(), 0);
        for user in 0..4 {
            alone.submit(long(Op::Read, user));
            wait(&mut alone, 1);
            assert!(bytes(&alone, 0) == written[user as usize], "request {user}");
        }
    }
}
