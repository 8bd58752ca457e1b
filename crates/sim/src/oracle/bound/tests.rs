//! Forgotten requests are found, waiting ones are not.

use blockyard_engine::bio::Sector;
use blockyard_engine::buf::BufRef;
use blockyard_engine::elevator::Tunable;

use super::*;

fn waits(elevator: &str, values: Vec<(&'static str, u64)>) -> Waits {
    let elevator = ElevatorType::named(elevator).unwrap();
    let config = QueueConfig { queue_depth: 1, ..QueueConfig::of(Generation::Single) };
    Waits::new(Settings { elevator, values }, config, 1, true)
}

fn bio(op: Op, user: u64) -> Bio {
    Bio::new(op, Sector(user * 100), Sector(8), BufRef::NONE, user)
}

/// Issues other requests, one per millisecond, until the oracle reports the first bio as forgotten.
fn forgotten_after(mut waits: Waits, op: Op) -> Option<u64> {
    let forgotten = bio(op, 0);
    waits.submitted(&forgotten);
    waits.waits(Nanos(0), 0);
    (1..20_000).find(|user| {
        let now = Nanos::from_ms(*user);
        let other = bio(Op::Read, *user);
        waits.submitted(&other);
        waits.waits(now, *user);
        waits.served(Nanos::from_ms(1));
        let found = waits.issued(now, &[other]);
        waits.ended(*user);
        found.is_err()
    })
}

#[test]
fn bio_that_is_passed_again_and_again_is_found_under_every_elevator() {
    let short = |elevator| ElevatorType::named(elevator).unwrap();
    let elevators = [
        "none",
        "noop",
        "deadline",
        "deadline-prio",
        "mq-deadline",
        "cfq",
        "kyber",
        "adios",
        "bfq",
    ];
    for elevator in elevators {
        // Every tunable with a small value; weight raising, which has no bound, is off.
        let tunables = short(elevator).tunables.iter();
        let small = |tunable: &Tunable| match tunable.name {
            "low_latency" if elevator == "bfq" => 0,
            _ => tunable.min.max(1),
        };
        let values = tunables.map(|tunable| (tunable.name, small(tunable))).collect();
        let after = forgotten_after(waits(elevator, values), Op::Write);
        assert!(after.is_some_and(|after| after < 5_000), "{elevator}: {after:?}");
    }
}

#[test]
fn deadline_counts_from_the_expiry_and_by_its_tunables() {
    let values = |expire, batch| vec![("write_expire", expire), ("fifo_batch", batch)];
    let after =
        |expire, batch| forgotten_after(waits("deadline", values(expire, batch)), Op::Write);
    let soon = after(1, 1);
    let later = after(500, 1);
    let longer = after(1, 16);
    assert!(soon.unwrap() + 400 < later.unwrap(), "{soon:?} and {later:?}");
    assert!(soon.unwrap() * 4 < longer.unwrap(), "{soon:?} and {longer:?}");
}

#[test]
fn parked_and_plugged_bios_are_not_passed() {
    let mut waits = waits("noop", Vec::new());
    waits.submitted(&bio(Op::Write, 0));
    for user in 1..1_000 {
        let other = bio(Op::Read, user);
        waits.submitted(&other);
        assert!(waits.issued(Nanos::from_ms(user), &[other]).is_ok());
    }
}
