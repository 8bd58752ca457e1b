//! Cost of the engine per bio, without any world.
//!
//! A shard: submit, map, SQEs taken, CQEs given, done; the median of the rounds. A request queue:
//! submit, dispatch, complete, done, with each elevator and without one; the fastest of many short
//! rounds, because the differences are small, and other load on the machine only adds time. A
//! stacked queue (request-based multipath) beside the queue alone, in the same way. The range of a
//! write, announced and withdrawn.
//! Prints nanoseconds per 4 KiB bio; `--json` for programs.

#[path = "engine_bench/queue.rs"]
mod queue;
#[path = "engine_bench/ranges.rs"]
mod ranges;
#[path = "engine_bench/stacked.rs"]
mod stacked;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::DeviceArea;
use blockyard_engine::dm::bounce::Bounce;
use blockyard_engine::dm::crypt::CryptSpec;
use blockyard_engine::dm::crypt::pipeline::{Adaptive, Choice};
use blockyard_engine::dm::linear::Linear;
use blockyard_engine::dm::table::{Table, TableExtent, TargetSpec};
use blockyard_engine::shard::Shard;
use blockyard_engine::sq::{CipherId, Cqe, DevId};
use blockyard_engine::time::Nanos;

const BIOS: u64 = 200_000;
const ROUNDS: usize = 15;
const DEPTH: u64 = 32;

fn main() {
    let crypt = |fuses_cipher| -> Arc<dyn TargetSpec> {
        Arc::new(CryptSpec {
            dev: DevId(0),
            start: Sector(4096),
            iv_offset: 0,
            sector_size_bytes: 512,
            cipher: CipherId(0),
            allow_discards: false,
            fuses_cipher,
            pipeline: Choice::Adaptive(Adaptive {
                fan_out_min_bytes: None,
                seeks: false,
                queues: true,
            }),
        })
    };
    let linear = Linear { area: DeviceArea { dev: DevId(0), start: Sector(0) } };
    let cases: [(&str, Arc<dyn TargetSpec>, Op); 6] = [
        ("linear read", Arc::new(linear), Op::Read),
        ("multipath read, one path", Arc::new(stacked::one_path()), Op::Read),
        ("crypt read, fused", crypt(true), Op::Read),
        ("crypt write, fused", crypt(true), Op::Write),
        ("crypt read, bounced", crypt(false), Op::Read),
        ("crypt write, bounced", crypt(false), Op::Write),
    ];
    let json = std::env::args().any(|argument| argument == "--json");
    let rows: Vec<(&str, f64)> = cases
        .iter()
        .map(|(name, target, op)| {
            let mut rounds: Vec<f64> =
                (0..ROUNDS).map(|_| round(Arc::clone(target), *op)).collect();
            rounds.sort_by(f64::total_cmp);
            (*name, rounds[ROUNDS / 2])
        })
        .collect();
    for (name, ns) in rows {
        if json {
            println!("{{\"bench\": \"engine\", \"case\": \"{name}\", \"ns_per_bio\": {ns:.1}}}");
        } else {
            println!("{name:<28} {ns:6.1} ns per 4 KiB bio, {DEPTH} at a time");
        }
    }
    ranges::print(json);
    queue::print(json);
    stacked::print(json);
}

/// Nanoseconds per bio.
fn round(target: Arc<dyn TargetSpec>, op: Op) -> f64 {
    let extent = TableExtent::new(Sector(0), Sector(1 << 30), target);
    let bounce = Bounce::Slots { slots: 64, slot_bytes: 64 << 10 };
    let mut shard = Shard::new(&Table::new(vec![extent]), bounce).expect("slots are at hand");
    let mut sqes = Vec::new();
    let mut done = Vec::new();
    let now = Nanos(0);
    let start = Instant::now();
    for batch in 0..BIOS / DEPTH {
        for index in 0..DEPTH {
            let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes: 4096 };
            let sector = Sector((batch * DEPTH + index) * 8);
            shard
                .submit_bio(black_box(now), black_box(Bio::new(op, sector, Sector(8), buf, index)));
        }
        loop {
            shard.take_sq(&mut sqes);
            if sqes.is_empty() {
                break;
            }
            let mut linked = false;
            for sqe in black_box(&sqes) {
                if !linked {
                    shard.on_cqe(black_box(now), Cqe { token: sqe.token, status: BlkStatus::Ok });
                }
                linked = sqe.linked;
            }
            sqes.clear();
        }
        shard.take_done(&mut done);
        assert_eq!(done.len() as u64, DEPTH);
        done.clear();
    }
    start.elapsed().as_nanos() as f64 / (BIOS / DEPTH * DEPTH) as f64
}
