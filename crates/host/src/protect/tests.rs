use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{Bio, Done};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::bounce::Bounce;
use blockyard_engine::dm::line::MappedDevice;
use blockyard_engine::dm::table::{Table, TableExtent};
use blockyard_engine::shard::Shard;
use blockyard_engine::sq::{Cqe, SqeOp};
use blockyard_engine::time::Nanos;

use super::*;
use crate::table;

const LEN: u64 = 64;
const CHANGES: [Op; 3] = [Op::Write, Op::WriteZeroes, Op::Discard];

/// A line with the protected sectors 16 to 23 and 40, on sector 100 of a device.
fn open() -> Table {
    let protected = vec![16..24, 40..41];
    let area = DeviceArea { dev: "disk".to_owned(), start: Sector(100) };
    let arguments = ProtectArguments { area, protected, volume: None };
    let target = arguments.open(Opened::devices(vec![DevId(0)])).unwrap();
    Table::new(vec![TableExtent::new(Sector(0), Sector(LEN), target)])
}

fn shard(table: &Table) -> Shard {
    Shard::new(table, Bounce::Slots { slots: 0, slot_bytes: 4096 }).unwrap()
}

/// The SQE of a bio, which succeeds, and the status of the bio.
fn run(shard: &mut Shard, bio: Bio) -> (Option<SqeOp>, BlkStatus) {
    let mut sqes = Vec::new();
    shard.submit_bio(Nanos(0), bio);
    loop {
        let known = sqes.len();
        shard.take_sq(&mut sqes);
        if known == sqes.len() {
            break;
        }
        for sqe in &sqes[known..] {
            shard.on_cqe(Nanos(0), Cqe { token: sqe.token, status: BlkStatus::Ok });
        }
    }
    let mut done = Vec::new();
    shard.take_done(&mut done);
    let [Done { status, .. }] = done[..] else { panic!("it ends once: {done:?}") };
    (sqes.last().map(|sqe| sqe.op), status)
}

fn bio(op: Op, sector: u64, len: u64) -> Bio {
    let len_bytes = len as u32 * 512;
    let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes };
    let buf = if matches!(op, Op::Read | Op::Write) { buf } else { BufRef::NONE };
    Bio::new(op, Sector(sector), Sector(len), buf, 7)
}

fn spec(table: &Table) -> &ProtectSpec {
    table.extents()[0].target().downcast().unwrap()
}

#[test]
fn change_of_protected_sectors_ends_all_changes_of_all_shards() {
    for op in CHANGES {
        let table = open();
        let [mut one, mut other] = [shard(&table), shard(&table)];
        let sent = run(&mut one, bio(op, 8, 8));
        let is_sent = matches!(
            sent,
            (
                Some(
                    SqeOp::Write { sector: Sector(108), .. }
                        | SqeOp::WriteZeroes { sector: Sector(108), len: Sector(8), .. }
                        | SqeOp::Discard { sector: Sector(108), len: Sector(8), .. }
                ),
                BlkStatus::Ok,
            )
        );
        assert!(is_sent, "{sent:?}");
        assert_eq!(spec(&table).refused(), None);
        assert_eq!(run(&mut one, bio(op, 12, 6)), (None, BlkStatus::IoError), "{op:?}");
        for shard in [&mut one, &mut other, &mut shard(&table)] {
            for later in CHANGES {
                assert_eq!(run(shard, bio(later, 0, 1)), (None, BlkStatus::IoError), "{op:?}");
            }
            let read = run(shard, bio(Op::Read, 0, LEN));
            assert!(matches!(read, (Some(SqeOp::Read { .. }), BlkStatus::Ok)), "{read:?}");
            let flush = run(shard, bio(Op::Flush, 0, 0));
            assert_eq!(flush, (Some(SqeOp::Flush { dev: DevId(0) }), BlkStatus::Ok));
        }
        let refused = spec(&table).refused().unwrap();
        assert_eq!((refused.sector, refused.sectors), (12, 6), "the first one is kept");
        let again = open();
        assert_eq!(run(&mut shard(&again), bio(op, 0, 1)).1, BlkStatus::Ok, "after the close");
    }
}

#[test]
fn only_ranges_that_touch_protected_sectors_are_refused() {
    for (sector, len, is_refused) in [
        (0, 16, false),
        (15, 1, false),
        (15, 2, true),
        (16, 1, true),
        (18, 2, true),
        (23, 1, true),
        (23, 9, true),
        (24, 16, false),
        (24, 17, true),
        (40, 1, true),
        (41, 23, false),
        (0, LEN, true),
    ] {
        for op in CHANGES {
            let table = open();
            let (_, status) = run(&mut shard(&table), bio(op, sector, len));
            assert_eq!(status == BlkStatus::IoError, is_refused, "{op:?} {sector} {len}");
            assert_eq!(spec(&table).refused().is_some(), is_refused);
        }
        let table = open();
        let read = run(&mut shard(&table), bio(Op::Read, sector, len));
        assert_eq!((read.1, spec(&table).refused()), (BlkStatus::Ok, None));
    }
    // A range outside of the device, also one that wraps around, is no change of protected sectors.
    for sector in [LEN, u64::MAX - 1] {
        let table = open();
        let (_, status) = run(&mut shard(&table), bio(Op::Write, sector, 8));
        assert_eq!((status, spec(&table).refused()), (BlkStatus::Invalid, None));
    }
}

#[test]
fn write_with_a_flush_before_and_after_it_is_refused_too() {
    let table = open();
    let mut shard = shard(&table);
    let stable = Bio { fua: true, preflush: true, ..bio(Op::Write, 0, 1) };
    let write = SqeOp::Write { dev: DevId(0), sector: Sector(100), buf: stable.buf, fua: true };
    assert_eq!(run(&mut shard, stable), (Some(write), BlkStatus::Ok));
    let flush = Some(SqeOp::Flush { dev: DevId(0) });
    let onto = Bio { sector: Sector(40), ..stable };
    assert_eq!(run(&mut shard, onto), (flush, BlkStatus::IoError));
    assert_eq!(run(&mut shard, stable), (flush, BlkStatus::IoError));
}

#[test]
fn no_thread_writes_after_a_refusal_was_seen() {
    let table = open();
    let protection = &spec(&table).protection;
    let is_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = || {
            for _ in 0..20_000 {
                let was_seen = is_seen.load(Ordering::Acquire);
                let is_refused = protection.refuses(Sector(0), Sector(1));
                assert!(is_refused || !was_seen);
            }
        };
        let writers = [scope.spawn(writer), scope.spawn(writer)];
        for first in [16, 40] {
            scope.spawn(move || protection.refuses(Sector(first), Sector(1)));
        }
        assert!(protection.refuses(Sector(20), Sector(1)));
        is_seen.store(true, Ordering::Release);
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

fn parsed(text: &str) -> Result<Vec<MappedDevice>, String> {
    let text = SecretBytes::copy_of(text.as_bytes());
    table::parse(&text, &[]).map_err(|error| error.to_string())
}

#[test]
fn line_is_read_as_it_is_written_and_wrong_ranges_are_refused() {
    let line = "0 64 protect /disk 100 16 8 40 1";
    assert_eq!(parsed(line).unwrap()[0].without_keys().trim_end(), line);
    for (arguments, problem) in [
        ("/disk 0", "at most 16 ranges"),
        ("/disk 0 1", "protect takes `<device> <start> <first sector>"),
        ("/disk 0 0 0", "0 protected sectors from sector 0 on are no range"),
        ("/disk 0 60 5", "are no range of a line of 64 sectors"),
        ("/disk 0 18446744073709551615 1", "are no range"),
        ("/disk 0 x 1", "first protected sector `x` is not a number"),
        ("/disk 36028797018963967 0 1", "after 2^64 bytes"),
    ] {
        let error = parsed(&format!("0 64 protect {arguments}")).unwrap_err();
        assert!(error.contains(problem), "{arguments}: {error}");
    }
    let many = " 0 1".repeat(RANGES_MAX + 1);
    assert!(parsed(&format!("0 64 protect /disk 0{many}")).unwrap_err().contains("at most 16"));
}
