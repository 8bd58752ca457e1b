//! The queue with a device under the test's control.

use std::fs::File;

use blockyard_engine::bio::Origin;
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::mq_deadline::MQ_DEADLINE;
use blockyard_engine::elevator::{ELEVATORS, ElevatorType};
use blockyard_engine::priority::Priority;
use blockyard_engine::sq::{Owner, Token};

use super::*;
use crate::file::Access;
use crate::memory::{Address, Memory};

/// A queue, the operations at its device, and memory that is never touched.
struct World {
    queue: DiskQueue,
    device: Vec<Started>,
    memory: Vec<u8>,
    now: Nanos,
    _dir: tempfile::TempDir,
}

/// An operation, and offset and length of each piece of its memory.
type Started = (FileOp<Tag>, Vec<(usize, usize)>);

const STREAM: (u32, Priority) = (1, Priority::best_effort(4));
const URGENT: (u32, Priority) = (2, Priority::real_time(0));

impl World {
    fn new(elevator: &'static ElevatorType, config: QueueConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let file = DeviceFile::open(&path, Access::ReadWrite, false).unwrap();
        let config =
            QueueConfig { generation: elevator.generation, write_cache: true, fua: true, ..config };
        let queue = DiskQueue::new(Arc::new(file), config, &ElevatorSpec::of(elevator));
        Self { queue, device: Vec::new(), memory: vec![0; 1 << 20], now: Nanos(0), _dir: dir }
    }

    /// Operation `index` on 8 sectors; its memory is the page of that number.
    fn submit(&mut self, index: u32, op: Op, sector: u64, (context, priority): (u32, Priority)) {
        let len = Sector(if op == Op::Flush { 0 } else { 8 });
        let base = Address(self.memory[index as usize * 4096..].as_mut_ptr());
        let memory = Memory::Whole(base);
        let io_context = IoContext(context);
        let origin = Origin { io_context, priority, ..Origin::default() };
        let token = Token { owner: Owner::Shard, index };
        let client = origin.io_context;
        let buf = if op == Op::Flush { BufRef::NONE } else { BufRef::zeros(4096) };
        let bio = Bio { origin, ..Bio::new(op, Sector(sector), len, buf, 0) };
        let borrows = false;
        let is_check = false;
        let submitted = Nanos(0);
        let op = DeviceBio { bio, memory, token, client, borrows, is_check, submitted };
        self.queue.submit(self.now, op);
    }

    fn dispatch(&mut self) {
        let device = &mut self.device;
        let base = self.memory.as_ptr() as usize;
        self.queue.dispatch(self.now, &mut |op, memory| {
            let place = |vec: &libc::iovec| (vec.iov_base as usize - base, vec.iov_len);
            device.push((op, memory.iter().map(place).collect()));
            None
        });
    }

    /// Completes the oldest operation of the device; returns the completed bios.
    fn complete(&mut self) -> Vec<u32> {
        let (op, _) = self.device.remove(0);
        self.queue.complete(self.now, op.user, Ok(()));
        let mut done = Vec::new();
        self.queue.take_done(&mut done);
        done.iter().map(|(_, cqe)| cqe.token.index).collect()
    }

    fn offset_of(&self, place: usize) -> u64 {
        match self.device[place].0.kind {
            FileOpKind::Read { offset_bytes } | FileOpKind::Write { offset_bytes, .. } => {
                offset_bytes
            }
            other => panic!("{other:?} is no transfer"),
        }
    }
}

#[test]
fn neighbours_in_one_plug_are_one_transfer_whatever_the_elevator() {
    for elevator in ELEVATORS {
        let mut world = World::new(elevator, QueueConfig::default());
        world.queue.plug(IoContext(1));
        for index in [0, 1, 2, 3, 5] {
            // Every second page: neighbours on the device are not adjacent in memory.
            world.submit(2 * index, Op::Write, u64::from(8 * index), STREAM);
        }
        world.queue.unplug(Nanos(0), IoContext(1));
        let mut issued = Vec::new();
        let mut done = Vec::new();
        while done.len() < 5 {
            world.dispatch();
            if world.device.is_empty() {
                world.now = world.queue.wake_at().expect("something waits");
                continue;
            }
            issued.push((world.offset_of(0), world.device[0].1.clone()));
            done.extend(world.complete());
        }
        issued.sort();
        done.sort_unstable();
        let four = (0..4).map(|page| (8192 * page, 4096)).collect();
        let name = elevator.name;
        assert_eq!(issued, [(0, four), (5 * 4096, vec![(40960, 4096)])], "{name}");
        assert_eq!((world.queue.counters().bios, world.queue.counters().issued), (5, 2), "{name}");
        assert_eq!(done, [0, 2, 4, 6, 10], "{name}");
    }
}

#[test]
fn neighbours_in_memory_are_one_piece() {
    let mut world = World::new(&MQ_DEADLINE, QueueConfig::default());
    world.queue.plug(IoContext(1));
    (0..4).for_each(|index| world.submit(index, Op::Read, u64::from(8 * index), STREAM));
    world.queue.unplug(Nanos(0), IoContext(1));
    world.dispatch();
    assert_eq!(world.device[0].1, [(0, 4 * 4096)]);
}

#[test]
fn operation_longer_than_a_request_is_answered_once_after_all_of_its_pieces() {
    let mut config = QueueConfig::default();
    config.limits.max_sectors = 3;
    let mut world = World::new(&MQ_DEADLINE, config);
    world.submit(0, Op::Write, 0, STREAM);
    world.dispatch();
    let mut pieces: Vec<_> =
        (0..3).map(|place| (world.offset_of(place), world.device[place].1[0])).collect();
    pieces.sort_unstable();
    assert_eq!(pieces, [(0, (0, 1536)), (1536, (1536, 1536)), (3072, (3072, 1024))]);
    assert!(world.complete().is_empty() && world.complete().is_empty());
    assert_eq!(world.complete(), [0]);
}

#[test]
fn urgent_read_is_the_next_one_however_many_others_wait() {
    let config = QueueConfig { queue_depth: 1, ..QueueConfig::default() };
    let mut world = World::new(&MQ_DEADLINE, config);
    (0..30).for_each(|index| world.submit(index, Op::Read, u64::from(16 * index), STREAM));
    world.dispatch();
    assert_eq!(world.device.len(), 1, "the depth is 1");
    world.submit(99, Op::Read, 1600, URGENT);
    world.dispatch();
    assert_eq!(world.device.len(), 1, "issued operations stay");
    world.complete();
    world.dispatch();
    assert_eq!(world.complete(), [99]);
}

#[test]
fn flush_reaches_the_file_and_is_answered_after_it() {
    for elevator in ELEVATORS {
        let mut world = World::new(elevator, QueueConfig::default());
        world.submit(0, Op::Write, 0, STREAM);
        world.dispatch();
        assert_eq!(world.complete(), [0]);
        world.submit(1, Op::Flush, 0, STREAM);
        world.dispatch();
        let mut done = Vec::new();
        world.queue.take_done(&mut done);
        assert!(done.is_empty(), "{}: the device has not answered", elevator.name);
        assert!(matches!(world.device[0].0.kind, FileOpKind::Flush), "{}", elevator.name);
        assert_eq!(world.complete(), [1]);
        assert_eq!(world.queue.len(), 0);
    }
}

#[test]
fn discards_and_zeroes_reach_the_file() {
    let mut world = World::new(&MQ_DEADLINE, QueueConfig::default());
    let path = world._dir.path().join("image");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    world.submit(0, Op::Discard, 0, STREAM);
    world.submit(1, Op::WriteZeroes, 8, STREAM);
    world.dispatch();
    let [(FileOp { kind, .. }, _)] = world.device[..] else { panic!("zeroes end at once") };
    assert!(matches!(kind, FileOpKind::PunchHole { offset_bytes: 0, len_bytes: 4096 }));
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes[4095], bytes[4096], bytes[8191], bytes[8192]), (7, 0, 0, 7));
}

#[test]
fn late_request_is_told_once_and_still_waited_for() {
    let timeout = Some(super::super::TIMEOUT);
    let config = QueueConfig { timeout, ..QueueConfig::default() };
    let mut world = World::new(&MQ_DEADLINE, config);
    world.submit(0, Op::Read, 24, STREAM);
    world.dispatch();
    let mut told = Vec::new();
    for seconds in [29, 31, 62, 93] {
        let now = Nanos::from_ms(seconds * 1000);
        world.queue.newly_late(now, &mut |line| told.push((seconds, line.to_owned())));
    }
    let [(31, line)] = &told[..] else { panic!("once: {told:?}") };
    assert!(line.contains("image: a read of 8 sectors at sector 24"), "{line}");
    assert_eq!(world.complete(), [0]);
}
