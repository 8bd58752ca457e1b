//! The loop called by the test, with and without a ring.

use std::os::unix::fs::FileExt;

use blockyard_engine::bio::{Bio, BlkStatus, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::mq_deadline::MQ_DEADLINE;
use blockyard_engine::sq::{Owner, Token};

use super::*;
use crate::completions::CompletionQueue;
use crate::device_thread::DeviceBio;
use crate::file::Access;
use crate::memory::{Address, Memory, Region};

fn write(context: u32, index: u32, memory: &Region) -> DeviceBio {
    let sector = Sector(u64::from(8 * index));
    let buf = BufRef::zeros(4096);
    let origin = Origin { io_context: IoContext(context), ..Origin::default() };
    let write = Bio::new(Op::Write, sector, Sector(8), buf, 0);
    DeviceBio {
        bio: Bio { fua: index == 0, origin, ..write },
        memory: Memory::Whole(Address(memory.at(4096 * index as usize, 4096))),
        token: Token { owner: Owner::Shard, index },
        client: IoContext(context),
        borrows: false,
        is_check: false,
        submitted: Nanos(0),
    }
}

#[test]
fn each_connection_gets_its_own_answers_with_a_ring_and_without() {
    for with_ring in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let image = std::fs::File::create_new(&path).unwrap();
        image.set_len(1 << 20).unwrap();
        let file = Arc::new(DeviceFile::open(&path, Access::ReadWrite, false).unwrap());
        let mut memory = Region::new(64 << 10).unwrap();
        for (byte, index) in memory.bytes().iter_mut().zip(0..) {
            *byte = 1 + (index / 4096) as u8;
        }
        let (disk, shared) = DeviceThread::by_hand();
        let spec = ElevatorSpec::of(&MQ_DEADLINE);
        let fd = file.data_fd();
        let queue =
            DiskQueue::new(file, QueueConfig { fua: true, ..QueueConfig::default() }, &spec);
        let ring = if with_ring { Ring::new(32, vec![fd]).ok() } else { None };
        let mut running = Running::new(shared, queue, ring);

        let completions = [CompletionQueue::new().unwrap(), CompletionQueue::new().unwrap()];
        disk.join(IoContext(1), Arc::clone(&completions[0]), Instant::now());
        disk.join(IoContext(2), Arc::clone(&completions[1]), Instant::now());
        let mut batch = vec![write(1, 0, &memory), write(1, 2, &memory), write(1, 4, &memory)];
        disk.send(&mut batch);
        assert!(batch.is_empty());
        disk.send(&mut vec![write(2, 1, &memory)]);
        drop(disk);
        // The loop ends by itself, after all operations.
        running.run();

        let mut answered = [Vec::new(), Vec::new()];
        for (completions, answered) in completions.iter().zip(&mut answered) {
            let mut cqes = Vec::new();
            let taken = completions.take(&mut cqes, &mut Vec::new());
            assert_eq!((taken.from_workers, taken.from_devices), (0, cqes.len()));
            assert!(cqes.iter().all(|cqe| cqe.status == BlkStatus::Ok));
            answered.extend(cqes.iter().map(|cqe| cqe.token.index));
            answered.sort_unstable();
        }
        assert_eq!(answered, [vec![0, 2, 4], vec![1]], "with a ring: {with_ring}");
        let mut bytes = [0; 5 * 4096];
        image.read_exact_at(&mut bytes, 0).unwrap();
        let first: Vec<u8> = bytes.chunks(4096).map(|page| page[4095]).collect();
        assert_eq!(first, [1, 2, 3, 0, 5]);
    }
}
