//! A device that fails once, under several clients. Its descriptor is replaced by one that supports
//! no operation (`O_PATH`), and restored later. A ring keeps the file itself, so the tests use
//! none, except if the device fails from the start.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use blockyard_engine::bio::{BlkStatus, Done};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::elevator::mq_deadline::MQ_DEADLINE;
use blockyard_engine::priority::Priority;
use rustix::fs::{Mode, OFlags};

use super::*;
use crate::file::{Access, DeviceFile};
use crate::local::{Client, Marks, Request};
use crate::volume::{Scheduling, VolumeOptions};

/// The paths to a file: the page cache, direct I/O per connection, a common thread.
const WAYS: [&str; 3] = ["cached", "direct", "elevator"];

struct World {
    volume: Arc<Volume>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new(way: &str) -> Self {
        let (world, failing) = Self::failing(way, &nothing());
        // Afterwards the device's thread, if any, has no ring.
        drop(world.client());
        drop(failing);
        world
    }

    /// Replaces the device's descriptor before a ring is made.
    fn failing(way: &str, instead: &OwnedFd) -> (Self, Failing) {
        // Beside the test binary, because `/tmp` may be in memory.
        let beside = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let elevator = (way == "elevator").then(|| ElevatorSpec::of(&MQ_DEADLINE));
        let scheduling = Scheduling { elevator, ..Scheduling::default() };
        let options = VolumeOptions { scheduling, controlled: true, ..VolumeOptions::default() };
        let file = DeviceFile::open(&path, Access::ReadWrite, way != "cached").unwrap();
        let failing = Failing::new(file.data_fd(), instead);
        let volume = Arc::new(Volume::from_file(file, &options).unwrap());
        (Self { volume, _dir: dir }, failing)
    }

    /// A client without a ring.
    fn client(&self) -> Client {
        let _failing = self.fail();
        let mut client = Client::new(&self.volume, Priority::default()).unwrap();
        assert_eq!(run(&mut client, Op::Read), BlkStatus::IoError);
        client
    }

    fn fail(&self) -> Failing {
        Failing::new(self.volume.parts.backend.devices[0].file.data_fd(), &nothing())
    }
}

/// A descriptor on which every operation fails, including its use in a ring.
fn nothing() -> OwnedFd {
    rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap()
}

/// A replaced descriptor, restored by the drop.
struct Failing {
    number: i32,
    good: OwnedFd,
}

impl Failing {
    fn new(number: i32, instead: &OwnedFd) -> Self {
        // SAFETY: the volume has it open.
        let good = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().unwrap();
        Self::put(instead.as_fd(), number);
        Self { number, good }
    }

    fn put(fd: BorrowedFd<'_>, number: i32) {
        // SAFETY: the number stays open; the test can lose the file behind it.
        assert_eq!(unsafe { libc::dup2(fd.as_raw_fd(), number) }, number);
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        Self::put(self.good.as_fd(), self.number);
    }
}

fn request(op: Op) -> Request {
    let len_bytes = if op == Op::Flush { 0 } else { 4096 };
    Request { user: 0, op, offset_bytes: 0, len_bytes, sync: false }
}

fn run(client: &mut Client, op: Op) -> BlkStatus {
    run_marked(client, op, Marks::default())
}

fn run_marked(client: &mut Client, op: Op, marks: Marks) -> BlkStatus {
    let mut done: Vec<Done> = Vec::new();
    client.submit_marked(request(op), marks);
    client.wait(1, &mut done);
    done[0].status
}

#[test]
fn flush_that_failed_for_one_client_fails_for_all_until_the_loss_is_accepted() {
    for way in WAYS {
        let world = World::new(way);
        let [mut one, mut other] = [world.client(), world.client()];
        assert_eq!(run(&mut one, Op::Write), BlkStatus::Ok);
        assert_eq!(run(&mut one, Op::Flush), BlkStatus::Ok);
        let failing = world.fail();
        assert_eq!(run(&mut one, Op::Flush), BlkStatus::IoError, "{way}");
        drop(failing);
        for client in [&mut one, &mut other, &mut world.client()] {
            for op in [Op::Flush, Op::Write, Op::WriteZeroes, Op::Discard] {
                assert_eq!(run(client, op), BlkStatus::IoError, "{way} {op:?}");
            }
            assert_eq!(run(client, Op::Read), BlkStatus::Ok, "{way}");
        }
        assert!(matches!(world.volume.flush(), Err(Error::Lost(_))), "{way}");

        let refused = world.volume.resume(true).unwrap_err();
        assert_eq!(refused.name, "EINVAL", "the volume is not suspended");
        world.volume.suspend().unwrap();
        let loss = world.volume.resume(false).unwrap().expect("the loss was not accepted");
        assert!(loss.device.ends_with("/image"), "{loss}");
        assert!(loss.problem.starts_with("a flush failed: "), "{loss}");
        assert_eq!(run(&mut other, Op::Flush), BlkStatus::IoError, "{way}");
        world.volume.suspend().unwrap();
        assert_eq!(world.volume.resume(true).unwrap(), None);
        for op in [Op::Write, Op::Flush] {
            assert_eq!(run(&mut other, op), BlkStatus::Ok, "{way} {op:?}");
        }
        world.volume.flush().unwrap();
    }
}

#[test]
fn fua_write_that_failed_makes_the_flushes_of_others_fail() {
    for way in WAYS {
        let world = World::new(way);
        let [mut one, mut other] = [world.client(), world.client()];
        let failing = world.fail();
        assert_eq!(run(&mut one, Op::Write), BlkStatus::IoError, "{way}");
        assert_eq!(world.volume.status().loss, None, "a plain write has reported to its client");
        let fua = Marks { fua: true, preflush: false };
        assert_eq!(run_marked(&mut one, Op::Write, fua), BlkStatus::IoError, "{way}");
        drop(failing);
        let loss = world.volume.status().loss.expect("it may have consumed another's error");
        assert!(loss.problem.starts_with("a FUA write failed: "), "{way}: {loss}");
        assert_eq!(run(&mut other, Op::Flush), BlkStatus::IoError, "{way}");
        assert!(world.volume.flush().is_err(), "{way}");
    }
}

#[test]
fn error_that_another_operation_was_told_fails_a_flush_and_a_fua_write() {
    let fua = Marks { fua: true, preflush: false };
    for way in WAYS {
        for (op, marks) in [(Op::Flush, Marks::default()), (Op::Write, fua)] {
            let world = World::new(way);
            let mut one = world.client();
            let mut other = world.client();
            // The shared descriptor has no more errors to report, but the witness has.
            let witness =
                world.volume.parts.backend.devices[0].file.witness_fd().expect("the file has one");
            let failing = Failing::new(witness, &nothing());
            assert_eq!(
                run(&mut one, Op::Write),
                BlkStatus::Ok,
                "a plain write does not query the witness"
            );
            assert_eq!(run_marked(&mut one, op, marks), BlkStatus::IoError, "{way} {op:?}");
            drop(failing);
            assert_eq!(run(&mut other, Op::Flush), BlkStatus::IoError, "{way} {op:?}");
        }
    }
}

#[test]
fn flush_whose_client_has_gone_is_heard_all_the_same() {
    for way in WAYS {
        // A ring accepts it, but its flushes fail.
        let (_, pipe) = io::pipe().unwrap();
        let (world, _failing) = World::failing(way, &OwnedFd::from(pipe));
        let mut gone = Client::new(&world.volume, Priority::default()).unwrap();
        gone.submit(request(Op::Flush));
        drop(gone);
        assert_eq!(
            world.volume.parts.durability.refusal(Op::Flush),
            Some(BlkStatus::Invalid),
            "{way}"
        );
    }
}

#[test]
fn flush_of_the_end_that_fails_is_kept_too() {
    for way in WAYS {
        let world = World::new(way);
        let failing = world.fail();
        assert!(world.volume.flush().is_err(), "{way}");
        drop(failing);
        let again = world.volume.flush().unwrap_err().to_string();
        assert!(again.contains("a flush failed"), "{way}: {again}");
    }
}
