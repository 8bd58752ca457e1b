//! A suspend beside writes of parts of sectors.

use std::num::NonZeroU64;
use std::thread;

use blockyard_engine::elevator::noop::NOOP;
use blockyard_engine::throttle::Limits;

use super::*;
use crate::gate::Gate;
use crate::throttle::Buckets;

const SOON: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(60);

fn options() -> VolumeOptions {
    let scheduling = Scheduling { elevator: Some(ElevatorSpec::of(&NOOP)), ..Default::default() };
    VolumeOptions {
        worker_threads: Some(0),
        direct: true,
        controlled: true,
        scheduling,
        ..VolumeOptions::default()
    }
}

fn controlled(dir: &Path) -> Arc<Volume> {
    encrypted(&dir.join("volume"), &options())
}

fn gate(volume: &Volume) -> &Gate {
    volume.parts.gate.as_ref().expect("it is controlled")
}

/// Begins a bio of a page.
type Begin = fn(&mut Driver, u32);

/// Changes some bytes of a page.
fn patch(driver: &mut Driver, page: u32) {
    let offset_bytes = u64::from(page) * 4096 + 100;
    let user = u64::from(page);
    driver.patch(&Patch { offset_bytes, len_bytes: 5, bytes: Some(b"patch"), sync: false, user });
}

fn write(driver: &mut Driver, page: u32) {
    driver.submit(bio(Op::Write, page));
}

/// The outcome of one bio.
fn outcome(driver: &mut Driver) -> BlkStatus {
    let mut done = Vec::new();
    while done.is_empty() {
        driver.wait();
        driver.take_done(&mut done);
    }
    let [Done { status, .. }] = done[..] else { panic!("one ends") };
    status
}

#[test]
fn begun_request_ends_beside_writes_of_its_sectors_that_wait_for_a_resume() {
    let dir = dir_on_disk();
    let volume = controlled(dir.path());
    let gate = gate(&volume);
    let [(mut guest, guest_pages), (mut client, _)] = [driver(&volume), driver(&volume)];
    fill(&guest_pages, 1);
    assert!(guest.begin_request());
    thread::scope(|scope| {
        let closer = scope.spawn(|| gate.close(LONG));
        while !gate.is_closed() {
            thread::yield_now();
        }
        patch(&mut client, 0);
        client.submit(bio(Op::Write, 1));
        (0..2).for_each(|page| guest.submit(bio(Op::Write, page)));
        let mut done = Vec::new();
        while done.len() < 2 && !closer.is_finished() {
            guest.wait_for(SOON);
            guest.take_done(&mut done);
        }
        guest.end_requests();
        assert!(closer.join().unwrap(), "the suspend waits for a request that waits for a resume");
    });
    gate.open();
    finish_some(&mut client, 2);
    guest.submit(bio(Op::Read, 0));
    assert_eq!(outcome(&mut guest), BlkStatus::Ok);
    assert_eq!(page(&guest_pages, 0)[98..107], *b"\x01\x01patch\x01\x01");
}

/// The outcome of one bio of a volume that cannot be suspended until it has ended.
fn outcome_before_a_suspend(driver: &mut Driver, gate: &Gate) -> BlkStatus {
    let mut done = Vec::new();
    while done.is_empty() {
        assert!(!gate.close(SOON));
        driver.wait();
        driver.take_done(&mut done);
    }
    done[0].status
}

#[test]
fn suspend_waits_for_what_waits_for_its_range() {
    let dir = dir_on_disk();
    let volume = controlled(dir.path());
    let gate = gate(&volume);
    let orders: [[Begin; 2]; 2] = [[patch, write], [write, patch]];
    for [owns, waits] in orders {
        let [(mut owner, _pages), (mut waiter, _more)] = [driver(&volume), driver(&volume)];
        // It has its range, and is in its plug.
        owns(&mut owner, 0);
        waits(&mut waiter, 0);
        for _ in 0..2 {
            assert!(!gate.close(SOON));
            // It follows the orders of the suspend.
            waiter.poll();
        }
        assert_eq!(outcome_before_a_suspend(&mut owner, gate), BlkStatus::Ok);
        assert_eq!(outcome_before_a_suspend(&mut waiter, gate), BlkStatus::Ok);
        assert!(gate.close(SOON), "nothing is left");
        gate.open();
    }
}

#[test]
fn suspend_waits_for_each_of_two_writes_that_get_their_ranges_at_once() {
    let dir = dir_on_disk();
    let path = dir.path().join("file");
    std::fs::write(&path, [0; 16 << 10]).unwrap();
    // Both lines have a part of the second page: one completes at once, one waits for the disk.
    let key = "7a".repeat(64);
    let table = format!("0 12 zero\n12 20 crypt aes-xts-plain64 {key} 12 {} 12\n", path.display());
    let text = SecretBytes::copy_of(table.as_bytes());
    let volume = Arc::new(Volume::from_table(&text, &options()).unwrap());
    let gate = gate(&volume);
    let [(mut owner, _pages), (mut waiter, _more)] = [driver(&volume), driver(&volume)];
    let offset_bytes = 12 * 512;
    owner.patch(&Patch { offset_bytes, len_bytes: 5, bytes: None, sync: false, user: 0 });
    for sector in [8, 12] {
        let buf = BufRef { len_bytes: 2048, ..bio(Op::Write, 1).buf };
        waiter.submit(Bio::new(Op::Write, Sector(sector), Sector(4), buf, sector));
    }
    assert_eq!(outcome_before_a_suspend(&mut owner, gate), BlkStatus::Ok);
    waiter.poll();
    let mut done = Vec::new();
    waiter.take_done(&mut done);
    assert_eq!(done, [Done { user: 8, status: BlkStatus::Ok }]);
    assert_eq!(outcome_before_a_suspend(&mut waiter, gate), BlkStatus::Ok);
    assert!(gate.close(SOON));
}

/// Closes the gate while a driver does what it can; returns the bios that have ended until then.
fn ended_by_a_suspend(driver: &mut Driver, gate: &Gate) -> Vec<Done> {
    let mut done = Vec::new();
    thread::scope(|scope| {
        let closer = scope.spawn(|| gate.close(LONG));
        while !gate.is_closed() {
            thread::yield_now();
        }
        while !closer.is_finished() {
            driver.wait_for(SOON);
            driver.take_done(&mut done);
        }
        assert!(closer.join().unwrap());
    });
    done
}

#[test]
fn suspend_waits_for_one_of_a_queue_of_writes_to_one_sector() {
    let dir = dir_on_disk();
    let volume = controlled(dir.path());
    let gate = gate(&volume);
    let (mut client, pages) = driver(&volume);
    for user in [0, 1] {
        let bytes = Some(&b"abcde"[..]);
        let offset_bytes = 100 * user;
        client.patch(&Patch { offset_bytes, len_bytes: 5, bytes, sync: false, user });
    }
    // Its order of arrival is that of the queue.
    client.submit(Bio { user: 2, ..bio(Op::Write, 0) });
    let done = ended_by_a_suspend(&mut client, gate);
    assert_eq!(done, [Done { user: 0, status: BlkStatus::Ok }]);
    gate.open();
    let mut later = Vec::new();
    while later.len() < 2 {
        client.wait();
        client.take_done(&mut later);
    }
    assert_eq!(later.iter().map(|done| done.user).collect::<Vec<_>>(), [1, 2]);
    assert!(client.is_idle());
    fill(&pages, 1);
    client.submit(bio(Op::Read, 0));
    assert_eq!(outcome(&mut client), BlkStatus::Ok);
    assert!(page(&pages, 0) == [0; 4096], "the last write was of zeroes");
}

#[test]
fn begun_request_that_waits_for_its_range_goes_on_through_a_closed_gate() {
    let dir = dir_on_disk();
    let volume = controlled(dir.path());
    let gate = gate(&volume);
    let [(mut guest, _pages), (mut client, _more)] = [driver(&volume), driver(&volume)];
    // It has its range, and is in its plug.
    patch(&mut client, 0);
    assert!(guest.begin_request());
    guest.submit(bio(Op::Write, 0));
    thread::scope(|scope| {
        let closer = scope.spawn(|| gate.close(LONG));
        while !guest.gate.as_ref().is_some_and(ShardGate::is_woken) {
            thread::yield_now();
        }
        guest.poll();
        assert_eq!(outcome(&mut client), BlkStatus::Ok);
        assert_eq!(outcome(&mut guest), BlkStatus::Ok);
        guest.end_requests();
        assert!(closer.join().unwrap());
    });
}

#[test]
fn bios_that_wait_for_tokens_wait_for_them_after_a_suspend_too() {
    let dir = dir_on_disk();
    let volume = controlled(dir.path());
    let gate = gate(&volume);
    let (mut client, _pages) = driver(&volume);
    // After the first write, the next may start in an hour.
    let limits = Limits { bytes_per_s: NonZeroU64::new(1), ..Limits::default() };
    client.set_throttle(Some(&Arc::new(SharedThrottle::new(Arc::new(Buckets::new(limits))))));
    for page in 0..2 {
        client.count_request();
        client.submit(bio(Op::Write, page));
    }
    let done = ended_by_a_suspend(&mut client, gate);
    assert_eq!(done, [Done { user: 0, status: BlkStatus::Ok }]);
    gate.open();
    client.poll();
    assert!(client.is_throttled() && !client.has_done());
    client.start_held();
    client.poll();
    assert_eq!(outcome(&mut client), BlkStatus::Ok);
}

#[test]
fn writes_that_wait_for_a_resume_fail_at_the_end_of_the_server() {
    let dir = dir_on_disk();
    let volume = controlled(dir.path());
    let gate = gate(&volume);
    let (mut client, _pages) = driver(&volume);
    assert!(gate.close(SOON));
    client.submit(bio(Op::Write, 1));
    patch(&mut client, 0);
    client.poll();
    assert!(!client.has_done());
    gate.stop();
    client.poll();
    let mut done = Vec::new();
    client.take_done(&mut done);
    let mut outcomes: Vec<_> = done.iter().map(|done| (done.user, done.status)).collect();
    outcomes.sort_unstable_by_key(|(user, _)| *user);
    assert_eq!(outcomes, [(0, BlkStatus::IoError), (1, BlkStatus::IoError)]);
    assert!(client.is_idle());
}
