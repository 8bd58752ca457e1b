//! The ledger accepts correct histories and nothing else: by hand, without a queue.

use blockyard_engine::bio::{IoContext, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::priority::Priority;
use blockyard_engine::request::Tag;
use blockyard_workload::random::Random;

use super::super::Oracle;
use super::*;

/// A ledger, the medium, and a device that completes immediately.
struct Desk {
    ledger: Ledger,
    stamps: Stamps,
}

impl Desk {
    fn new() -> Self {
        let config =
            QueueConfig { plug: PlugRule::Off, fua: true, ..QueueConfig::of(Generation::Single) };
        Self { ledger: Ledger::new("mq-deadline", config), stamps: Stamps::new(true, Vec::new()) }
    }

    fn submit(&mut self, op: Op, sector: u64, len: u64) -> Bio {
        self.submit_with(op, sector, len, |_| {})
    }

    fn submit_with(&mut self, op: Op, sector: u64, len: u64, with: impl Fn(&mut Bio)) -> Bio {
        let user = self.ledger.next_user();
        let mut bio = Bio::new(op, Sector(sector), Sector(len), BufRef::NONE, user);
        with(&mut bio);
        self.ledger.submitted(&bio);
        bio
    }

    /// Writes at the device.
    fn write(&mut self, bio: &Bio) {
        let stamp = Ledger::stamp(bio.user);
        let number = self.stamps.write(bio.sector.0, bio.len.0, stamp, bio.fua);
        self.ledger.written(bio, number);
        self.ledger.performed(bio, BlkStatus::Ok);
    }

    fn read(&mut self, bio: &Bio) -> Result<(), Finding> {
        let sectors = bio.sector.0..bio.sector.0 + bio.len.0;
        let found: Vec<_> = sectors.map(|sector| (sector, self.stamps.read(sector))).collect();
        self.ledger.performed(bio, BlkStatus::Ok);
        self.ledger.read(bio, found.into_iter())
    }

    fn end(&mut self, bio: &Bio, status: BlkStatus) -> Result<Bio, Finding> {
        self.ledger.done(&Done { user: bio.user, status }, &self.stamps)
    }

    fn issue(&self, bios: &[Bio]) -> Result<(), Finding> {
        let len = bios.iter().map(|bio| bio.len.0).sum();
        let issue = Issue {
            tag: Tag { hctx: 0, index: 0 },
            op: bios[0].op,
            sector: bios[0].sector,
            len: Sector(len),
            fua: bios[0].fua,
            origin: bios[0].origin,
            segments: u16::try_from(bios.len()).unwrap(),
        };
        contiguous(&issue, bios)?;
        self.ledger.issued(&issue, bios, 0, &self.stamps)
    }
}

fn oracle<T>(result: Result<T, Finding>) -> Option<Oracle> {
    result.err().map(|finding| finding.oracle)
}

#[test]
fn bio_ends_once_and_well_only_if_it_was_done() {
    let mut desk = Desk::new();
    let write = desk.submit(Op::Write, 0, 8);
    assert_eq!(oracle(desk.end(&write, BlkStatus::IoError)), Some(Oracle::ExactlyOnce));
    let write = desk.submit(Op::Write, 0, 8);
    assert_eq!(oracle(desk.end(&write, BlkStatus::Ok)), Some(Oracle::ExactlyOnce));
    let write = desk.submit(Op::Write, 0, 8);
    desk.write(&write);
    assert_eq!(oracle(desk.end(&write, BlkStatus::Ok)), None);
    assert_eq!(oracle(desk.end(&write, BlkStatus::Ok)), Some(Oracle::ExactlyOnce));
    let stranger = Bio { user: 99, ..write };
    assert_eq!(oracle(desk.end(&stranger, BlkStatus::Ok)), Some(Oracle::ExactlyOnce));
}

#[test]
fn reader_may_find_a_write_in_flight_and_not_one_from_before_the_last() {
    let mut desk = Desk::new();
    let first = desk.submit(Op::Write, 0, 8);
    desk.write(&first);
    desk.end(&first, BlkStatus::Ok).unwrap();
    let second = desk.submit(Op::Write, 4, 1);
    let early = desk.submit(Op::Read, 0, 8);
    desk.write(&second);
    assert_eq!(oracle(desk.read(&early)), None, "the write is in flight");
    desk.end(&second, BlkStatus::Ok).unwrap();
    let late = desk.submit(Op::Read, 0, 8);
    let old = Ledger::stamp(first.user);
    assert_eq!(oracle(desk.ledger.read(&early, [(4, old)].into_iter())), None);
    assert_eq!(oracle(desk.ledger.read(&late, [(4, old)].into_iter())), Some(Oracle::Data));
    let elsewhere = Ledger::stamp(second.user);
    assert_eq!(oracle(desk.ledger.read(&late, [(5, elsewhere)].into_iter())), Some(Oracle::Data));
}

#[test]
fn write_that_failed_may_be_found_for_ever() {
    let mut desk = Desk::new();
    let failed = desk.submit(Op::Write, 0, 1);
    desk.write(&failed);
    desk.ledger.performed(&failed, BlkStatus::IoError);
    desk.end(&failed, BlkStatus::IoError).unwrap();
    let next = desk.submit(Op::Write, 0, 1);
    desk.write(&next);
    desk.end(&next, BlkStatus::Ok).unwrap();
    let read = desk.submit(Op::Read, 0, 1);
    let found = [(0, Ledger::stamp(failed.user))];
    assert_eq!(oracle(desk.ledger.read(&read, found.into_iter())), None);
}

#[test]
fn flush_that_did_not_reach_the_medium_is_found_and_so_is_the_loss_of_what_it_promised() {
    for reaches in [false, true] {
        let mut desk = Desk::new();
        let write = desk.submit(Op::Write, 0, 8);
        desk.write(&write);
        desk.end(&write, BlkStatus::Ok).unwrap();
        let flush = desk.submit(Op::Flush, 0, 0);
        if reaches {
            desk.stamps.flushed(0, desk.stamps.written());
        }
        let found = oracle(desk.end(&flush, BlkStatus::Ok));
        assert_eq!(found, (!reaches).then_some(Oracle::Flush));
    }
    // A lying medium: it claims durability falsely.
    let losses = |promised: bool| {
        (0..50).any(|seed| {
            let mut desk = Desk::new();
            let write = desk.submit(Op::Write, 0, 8);
            desk.write(&write);
            desk.end(&write, BlkStatus::Ok).unwrap();
            if promised {
                desk.stamps.flushed(0, desk.stamps.written());
                let flush = desk.submit(Op::Flush, 0, 0);
                desk.end(&flush, BlkStatus::Ok).unwrap();
            }
            let mut random = Random::new(seed, 0);
            desk.stamps.power_cut(&mut random);
            desk.stamps.lose_durable(&mut random);
            oracle(desk.ledger.power_cut(&mut desk.stamps)) == Some(Oracle::PowerCut)
        })
    };
    assert!(losses(true));
    assert!(!losses(false));
}

#[test]
fn content_after_a_power_cut_stays_until_it_is_overwritten() {
    let mut desk = Desk::new();
    let write = desk.submit(Op::Write, 0, 8);
    desk.write(&write);
    desk.stamps.power_cut(&mut Random::new(1, 0));
    desk.ledger.power_cut(&mut desk.stamps).unwrap();
    assert_eq!(desk.ledger.open(), 0);
    let read = desk.submit(Op::Read, 0, 8);
    assert_eq!(oracle(desk.read(&read)), None);
    let before = [(0, Ledger::stamp(write.user))];
    assert_eq!(oracle(desk.ledger.read(&read, [(0, 0)].into_iter())), Some(Oracle::Data));
    // It was in flight at the power cut; its outcome is known now.
    assert_eq!(oracle(desk.ledger.read(&read, before.into_iter())), Some(Oracle::Data));
}

#[test]
fn only_what_belongs_together_is_one_request() {
    let mut desk = Desk::new();
    let a = desk.submit(Op::Write, 0, 8);
    let b = desk.submit(Op::Write, 8, 8);
    assert_eq!(oracle(desk.issue(&[a, b])), None);
    let gap = desk.submit(Op::Write, 20, 8);
    assert_eq!(oracle(desk.issue(&[a, gap])), Some(Oracle::Merge));
    let fua = desk.submit_with(Op::Write, 16, 8, |bio| bio.fua = true);
    assert_eq!(oracle(desk.issue(&[fua])), None);
    // It was FUA at submission, regardless of its current flags.
    let stripped = Bio { fua: false, ..fua };
    assert_eq!(oracle(desk.issue(&[b, stripped])), Some(Oracle::Merge));
    let idle = |bio: &mut Bio| {
        bio.origin = Origin { priority: Priority::IDLE, io_context: IoContext(1), ..bio.origin };
    };
    let urgent = desk.submit_with(Op::Write, 16, 8, idle);
    assert_eq!(oracle(desk.issue(&[b, urgent])), Some(Oracle::Merge));
    let read = desk.submit(Op::Read, 16, 8);
    assert_eq!(oracle(desk.issue(&[b, read])), Some(Oracle::Merge));
    assert_eq!(oracle(desk.issue(&[Bio { user: 99, ..a }])), Some(Oracle::ExactlyOnce));
}

#[test]
fn write_does_not_start_before_its_preflush_has_ended() {
    let mut desk = Desk::new();
    let write = desk.submit(Op::Write, 0, 8);
    desk.write(&write);
    desk.end(&write, BlkStatus::Ok).unwrap();
    let next = desk.submit_with(Op::Write, 8, 8, |bio| bio.preflush = true);
    assert_eq!(oracle(desk.issue(&[next])), Some(Oracle::Flush));
    desk.stamps.flushed(0, desk.stamps.written());
    assert_eq!(oracle(desk.issue(&[next])), None);
}
