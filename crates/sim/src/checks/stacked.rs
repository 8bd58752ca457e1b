//! Exact rules of the mail on request-based device mapper (Mike Snitzer, dm-devel, February 2016):
//! the thread that runs a stacked queue, and the completion of parts of a request.

use std::collections::BTreeSet;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::multipath::line::parse;
use blockyard_engine::dm::multipath::stacked::{
    Answer, Dispatched, StackedConfig, StackedQueue, Stacking,
};
use blockyard_engine::dm::multipath::{Multipath, PathId};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::{Issue, QueueConfig};
use blockyard_engine::time::Nanos;
use blockyard_workload::random::Random;

use super::{Check, Verdict, WorldResult};

const BIOS: u64 = 2000;
const BIO_SECTORS: u64 = 8;

pub(super) const NO_LOST_WAKE_UP: Check = Check {
    id: "002-19",
    about: "2000 writes, 64 at a time, over two paths with 1 tag each; after a completion the \
            queue is run only when that says that something waits; control: never then",
    run: |seed| Verdict::of(ended(seed, true), &[ended(seed, false)]),
};

pub(super) const PARTS_END_ALONE: Check = Check {
    id: "002-22",
    about: "2000 writes over two paths, half of the requests stop within; control: who did a part \
            says that it did all, as a helper does that ends requests in whole",
    run: |seed| Verdict::of(written(seed, false), &[written(seed, true)]),
};

/// A queue over two paths with this many tags.
fn queue(tags: u32) -> StackedQueue {
    let words = "1 queue_if_no_path 0 1 1 round-robin 0 2 0 a b".split(' ');
    let spec = parse(&words.collect::<Vec<_>>()).expect("the words are a line");
    let upper = QueueConfig::default();
    let elevator = ElevatorSpec::parse("mq-deadline").expect("there is one");
    let lower = QueueConfig { queue_depth: tags, ..upper };
    let config = StackedConfig { upper, elevator, lower, stacking: Stacking::TODAY };
    StackedQueue::new(config, Multipath::new(spec))
}

fn write(user: u64) -> Bio {
    let len_bytes = (BIO_SECTORS * 512) as u32;
    let buf = BufRef { slot: BufRef::FIRST_WORLD_SLOT, offset_bytes: 0, len_bytes };
    // Pairs are adjacent and merge; others do not.
    let sector = Sector((user + user / 2) * BIO_SECTORS);
    Bio::new(Op::Write, sector, Sector(BIO_SECTORS), buf, user)
}

fn dispatched(queue: &mut StackedQueue, flying: &mut Vec<(PathId, Issue)>) {
    let mut out = Vec::new();
    queue.dispatch(Nanos(0), 0, &mut out);
    for one in out {
        let Dispatched::Issue { path, issue } = one else { unreachable!("nobody is called") };
        flying.push((path, issue));
    }
}

/// Time stands still, so only completions can cause a run of the queue.
fn ended(seed: u64, is_heard: bool) -> WorldResult {
    let mut queue = queue(1);
    let mut random = Random::new(seed, 0);
    let mut flying = Vec::new();
    let mut done = Vec::new();
    let mut submitted = 0;
    let mut runs = 0;
    loop {
        while submitted < BIOS && submitted - (done.len() as u64) < 64 {
            queue.submit_bio(Nanos(0), write(submitted));
            submitted += 1;
            // Only the first run finds idle devices.
            if submitted == 1 {
                dispatched(&mut queue, &mut flying);
            }
        }
        if flying.is_empty() {
            break;
        }
        let (path, issue) = flying.swap_remove(random.below(flying.len() as u64) as usize);
        let completed = queue.complete(Nanos(0), path, issue.tag, Answer::done(&issue));
        if completed.run && is_heard {
            runs += 1;
            dispatched(&mut queue, &mut flying);
        }
        queue.take_done(&mut done);
    }
    let ended = done.len() as u64;
    let all = submitted;
    let what = format!("{ended} of {all} writes have ended, {runs} runs were asked for");
    WorldResult { holds: ended == BIOS && queue.is_idle(), what }
}

/// Writes that end successfully must be written, and all writes must end.
fn written(seed: u64, claims_all: bool) -> WorldResult {
    let mut queue = queue(32);
    let mut random = Random::new(seed, 1);
    let mut flying = Vec::new();
    let mut done = Vec::new();
    let mut on_disk = BTreeSet::new();
    let mut submitted = 0;
    let mut parts = 0;
    let mut lost = 0;
    while done.len() < BIOS as usize {
        while submitted < BIOS && submitted - (done.len() as u64) < 32 {
            queue.submit_bio(Nanos(0), write(submitted));
            submitted += 1;
        }
        dispatched(&mut queue, &mut flying);
        let (path, issue) = flying.swap_remove(random.below(flying.len() as u64) as usize);
        let stops = issue.len.0 > 1 && random.below(2) == 0;
        let sectors = if stops { 1 + random.below(issue.len.0 - 1) } else { issue.len.0 };
        on_disk.extend(issue.sector.0..issue.sector.0 + sectors);
        parts += u64::from(stops);
        let answer = Answer { status: BlkStatus::Ok, done_bytes: sectors * 512 };
        let answer = if claims_all { Answer::done(&issue) } else { answer };
        queue.complete(Nanos(0), path, issue.tag, answer);
        let before = done.len();
        queue.take_done(&mut done);
        for Done { user, status } in &done[before..] {
            let first = write(*user).sector.0;
            let is_written = (first..first + BIO_SECTORS).all(|at| on_disk.contains(&at));
            lost += u64::from(*status == BlkStatus::Ok && !is_written);
        }
    }
    let what = format!(
        "{parts} requests were done in part; of {} writes that ended well {lost} are not on the \
         disk",
        done.len()
    );
    WorldResult { holds: lost == 0 && parts > 0 && queue.is_idle(), what }
}
