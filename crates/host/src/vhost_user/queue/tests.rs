//! A queue between the end of a poll and its sleep.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{Bio, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::crypt::pipeline::find;
use blockyard_protocol::vhost_user::{Addresses, FEATURE_EVENT_INDEX, MemoryRegion};
use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::file::{Access, DeviceFile};
use crate::memory::Budget;
use crate::volume::{PipelineChoice, VolumeOptions};

const MEMORY_BYTES: u64 = 64 << 10;
const AVAILABLE_AT: u64 = 4096;
const USED_AT: u64 = 8192;
const RING_LEN: u16 = 16;
const HANGS: Duration = Duration::from_secs(20);

fn setup(memory: &OwnedFd, features: u64, kick: &Shared) -> Setup {
    rustix::fs::ftruncate(memory, MEMORY_BYTES).unwrap();
    let region = MemoryRegion {
        guest_addr: 0,
        len_bytes: MEMORY_BYTES,
        front_end_addr: 0,
        file_offset_bytes: 0,
    };
    let memory = GuestMemory::default().with(region, memory).unwrap();
    let mut queue = Queue::default();
    queue.ring_len = RING_LEN;
    queue.addresses = Some(Addresses { descriptors: 0, available: AVAILABLE_AT, used: USED_AT });
    let text = SecretBytes::copy_of(b"0 8 zero");
    let volume = Arc::new(Volume::from_table(&text, &VolumeOptions::default()).unwrap());
    Setup {
        name: String::new(),
        grant: Budget::new(1).grant(useful_bytes(&volume)),
        priority: Priority::default(),
        throttle: None,
        disk: Disk {
            size_bytes: 4096,
            block_bytes: 512,
            queues: 1,
            read_only: false,
            can_discard: false,
        },
        disk_name: [0; NAME_BYTES],
        memory: Arc::new(memory),
        queue,
        features,
        write_back: Arc::default(),
        state: State { next_available: 0, is_kicked: true, is_broken: false },
        kick: Arc::clone(kick),
        record: None,
        polling: Polling::Auto,
        volume,
    }
}

fn orders() -> Orders {
    Orders {
        signals: Mutex::default(),
        stops: AtomicBool::new(false),
        waits_for_recovered: AtomicBool::new(false),
        is_new: AtomicBool::new(false),
        wake: event(),
        foreign: Foreign::default(),
    }
}

fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

/// The guest sees that no kick is wanted, and sends none. The kick here would only end the sleep of
/// a queue that does not look again.
#[test]
fn request_that_comes_between_the_poll_and_the_sleep_is_seen_without_its_kick() {
    for features in [0, FEATURE_EVENT_INDEX] {
        let memory: OwnedFd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let kick = Arc::new(event());
        let orders = orders();
        let setup = setup(&memory, features, &kick);
        let means = Means::new(&setup).unwrap();
        let mut thread = QueueThread::new(setup, means, &orders).unwrap();
        thread.ring.disarm();
        assert!(!polling::poll(Duration::ZERO, || thread.is_found()));
        File::from(memory).write_all_at(&1u16.to_le_bytes(), AVAILABLE_AT + 2).unwrap();
        signal(&kick);
        thread.sleep().unwrap();
        assert!(take(&kick).unwrap(), "it waited for a kick");
        assert!(thread.has_work());
    }
}

/// An encrypted volume of 1 MiB in memory, with workers.
fn encrypted(path: &Path) -> Arc<Volume> {
    encrypted_with(path, &VolumeOptions { worker_threads: Some(2), ..VolumeOptions::default() })
}

fn encrypted_with(path: &Path, options: &VolumeOptions) -> Arc<Volume> {
    File::create(path).unwrap().set_len(1 << 20).unwrap();
    let params = CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&[7; 32]));
    let file = DeviceFile::open(path, Access::ReadWrite, false).unwrap();
    Arc::new(Volume::from_crypt(file, &params, options).unwrap())
}

/// The poll finds completions of the device, and decrypts its data in a batch that is too small to
/// wake a worker up.
#[test]
fn queue_that_polls_does_not_sleep_beside_a_batch_of_its_own() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let memory: OwnedFd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    let kick = Arc::new(event());
    let orders = orders();
    let volume = encrypted(&dir.path().join("image"));
    let setup = Setup { volume: Arc::clone(&volume), ..setup(&memory, 0, &kick) };
    let means = Means::new(&setup).unwrap();
    let mut thread = QueueThread::new(setup, means, &orders).unwrap();
    let submit = |driver: &mut Driver, count: u32| {
        for page in 0..count {
            let slot = BufRef::FIRST_WORLD_SLOT;
            let buf = BufRef { slot, offset_bytes: page * 4096, len_bytes: 4096 };
            driver.submit(Bio::new(Op::Read, Sector(u64::from(page) * 8), Sector(8), buf, 0));
        }
    };
    for _ in 0..2 {
        submit(&mut thread.driver, 32);
        thread.driver.unplug();
        thread.driver.take_done(&mut Vec::new());
        assert!(thread.driver.is_idle());
    }
    volume.parts.workers.as_ref().unwrap().fall_asleep();
    submit(&mut thread.driver, 5);
    let is_found = polling::poll(Duration::ZERO, || thread.is_found());
    assert!(is_found || !thread.driver.help());
}

/// The last look of a poll runs the cipher of a write, and the writing thread, which is this one,
/// comes after the cipher.
#[test]
fn write_that_goes_on_in_the_last_look_of_a_poll_is_not_left_behind() {
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let memory: OwnedFd = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    let kick = Arc::new(event());
    let orders = orders();
    let pipeline = PipelineChoice::Fixed(find("F").unwrap().pipeline);
    let options = VolumeOptions { worker_threads: Some(2), pipeline, ..VolumeOptions::default() };
    let volume = encrypted_with(&dir.path().join("image"), &options);
    let setup = Setup { volume: Arc::clone(&volume), ..setup(&memory, 0, &kick) };
    let means = Means::new(&setup).unwrap();
    let mut thread = QueueThread::new(setup, means, &orders).unwrap();
    for round in 0..100 {
        let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes: 4096 };
        thread.driver.submit(Bio::new(Op::Write, Sector(0), Sector(8), buf, 0));
        thread.is_found();
        while !thread.driver.has_done() {
            let ready = poll::readable(&thread.driver.wake_sources(), Some(HANGS)).unwrap();
            assert!(ready.contains(&true), "round {round}: nothing would end the sleep");
            thread.driver.advance();
        }
        thread.driver.take_done(&mut Vec::new());
    }
}
