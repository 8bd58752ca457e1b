use blockyard_engine::bio::{Origin, Sector};
use blockyard_engine::buf::BufRef;

use super::*;
use crate::file::DeviceFile;
use crate::local::{Client, Request};
use crate::volume::{Volume, VolumeOptions};

fn volume() -> Arc<Volume> {
    let file = DeviceFile::in_memory(1 << 20).unwrap();
    Arc::new(Volume::from_file(file, &VolumeOptions::default()).unwrap())
}

fn request(op: Op, user: u64) -> Request {
    Request { user, op, offset_bytes: user * 4096, len_bytes: 4096, sync: false }
}

fn drained(recording: &mut Recording) -> Vec<(u32, Event)> {
    let mut events = Vec::new();
    recording.drain(|submitter, event| events.push((submitter, event)));
    events
}

fn run(client: &mut Client, request: Request) {
    client.submit(request);
    client.wait(1, &mut Vec::new());
}

#[test]
fn recording_has_the_requests_of_every_client_from_start_to_stop() {
    let volume = volume();
    let mut clients = [Priority::real_time(3), Priority::IDLE]
        .map(|priority| Client::new(&volume, priority).unwrap());
    run(&mut clients[0], request(Op::Write, 1));
    let mut recording = volume.record().unwrap();
    assert!(volume.record().is_none(), "one at a time");
    run(&mut clients[1], request(Op::Read, 2));
    run(&mut clients[0], request(Op::Write, 3));
    run(&mut clients[1], Request { offset_bytes: 1 << 20, ..request(Op::Read, 4) });
    recording.stop();
    run(&mut clients[0], request(Op::Write, 5));
    let events = drained(&mut recording);
    let mut came = Vec::new();
    for (submitter, event) in &events {
        match event {
            Event::Came { op, sector, sectors, priority, .. } => {
                came.push((*submitter, *op, *sector, *sectors, *priority));
            }
            Event::Ended { status, .. } => {
                let wanted = match came.last() {
                    Some((_, _, 2048, ..)) => BlkStatus::Invalid,
                    _ => BlkStatus::Ok,
                };
                assert_eq!(*status, wanted, "{came:?}");
            }
        }
    }
    // Submitters are numbered in the order of their first bio.
    let wanted = [
        (0, Op::Read, 16, 8, Priority::IDLE),
        (0, Op::Read, 2048, 8, Priority::IDLE),
        (1, Op::Write, 24, 8, Priority::real_time(3)),
    ];
    assert_eq!((came.as_slice(), events.len()), (&wanted[..], 6));
    assert_eq!(recording.lost(), 0);
    drop(recording);

    let mut again = volume.record().unwrap();
    run(&mut clients[0], request(Op::Write, 6));
    assert_eq!(drained(&mut again).len(), 2, "no earlier events");
}

#[test]
fn events_without_room_are_counted() {
    let volume = volume();
    let mut recording = volume.record().unwrap();
    let mut tracepoint = Tracepoint::new(&volume.parts.switch);
    let bio = Bio::new(Op::Read, Sector(8), Sector(8), BufRef::NONE, 7);
    for _ in 0..RING_EVENTS + 5 {
        tracepoint.came(&bio);
    }
    assert_eq!(drained(&mut recording).len() as u64, RING_EVENTS);
    assert_eq!(recording.lost(), 5);
    tracepoint.ended(&[Done { user: 7, status: BlkStatus::Medium }]);
    let [(0, Event::Ended { user: 7, status: BlkStatus::Medium, .. })] =
        drained(&mut recording)[..]
    else {
        panic!("there is room again");
    };
}

#[test]
fn everything_of_a_bio_comes_out_as_it_went_in() {
    for (op, sectors) in OPS.into_iter().zip([1, 8, 0, u64::from(u32::MAX), 1 << 40]) {
        for class in CLASSES {
            let priority = Priority { class, level: 7 };
            let origin = Origin { priority, sync: true, ..Origin::default() };
            let bio = Bio::new(op, Sector(u64::MAX >> 9), Sector(sectors), BufRef::NONE, u64::MAX);
            let bio = Bio { origin, fua: op == Op::Write, ..bio };
            let wanted = Event::Came {
                at: Nanos(0),
                user: u64::MAX,
                op,
                fua: op == Op::Write,
                preflush: false,
                sync: true,
                sector: u64::MAX >> 9,
                sectors: u32::try_from(sectors).unwrap_or(u32::MAX),
                priority,
            };
            assert_eq!(event_of(words_of_bio(&bio)), wanted);
        }
    }
    for status in STATUSES {
        let word = ENDED | (status as u64) << OP_SHIFT;
        assert_eq!(event_of([1, 2, 0, word]), Event::Ended { at: Nanos(1), user: 2, status });
    }
}
