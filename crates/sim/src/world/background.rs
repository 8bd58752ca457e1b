//! Background threads: flushers, throttled writers, the journal, housekeeping.

use std::collections::VecDeque;

use blockyard_engine::bio::Op;
use blockyard_engine::time::Nanos;
use blockyard_workload::program::FileId;

use super::config::{Config, Housekeeping};
use super::devices::Devices;
use super::in_flight::{Mark, Out, Purpose};
use super::machine::Machine;
use super::thread::{Doing, Kind, Turn};
use super::threads::Threads;
use super::trace::Wait;
use crate::cache::DirtyLevel;
use crate::cpu::{Affinity, CpuId, ThreadId};
use crate::fs::{CommitStep, SyncRule};

/// Pause of a thread that finds the queue congested, or too much under write-back
/// (`congestion_wait(WRITE, HZ / 10)`).
const CONGESTION_WAIT: Nanos = Nanos::from_ms(100);

/// A flusher looks for work.
pub(super) fn flush(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    cpu: CpuId,
    thread: ThreadId,
) -> Turn {
    let Machine { config, threads, files } = machine;
    let now = threads.now();
    let is_old = |(_, since): (FileId, Nanos)| now.since(since) >= config.cache.dirty_expire;
    let wanted = files.cache.level() >= DirtyLevel::Background
        || files.cache.oldest_dirty().is_some_and(is_old);
    if !wanted {
        threads.set(thread, Doing::Next);
        threads.wake_at(thread, now + config.cache.write_back_interval);
        return Turn::Block(Wait::Work);
    }
    let most = u64::from(config.write_back.flusher_pages);
    if devices.is_congested() || files.gather_turn(&mut threads[thread].outbox, most) == 0 {
        threads.set(thread, Doing::Throttled);
        threads.wake_at(thread, now + CONGESTION_WAIT);
        return Turn::Block(Wait::Work);
    }
    devices.go(machine, (cpu, thread), false, Nanos(0))
}

/// A writer is above the limit: it writes back more than it wrote, or waits.
pub(super) fn throttle(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    cpu: CpuId,
    thread: ThreadId,
) -> Turn {
    let Machine { config, threads, files } = machine;
    if files.cache.level() < DirtyLevel::Limit {
        threads.set(thread, Doing::Next);
        return Turn::Run(Nanos(0));
    }
    let share = u64::from(config.write_back.writer_pages) * 3 / 2;
    let outbox = &mut threads[thread].outbox;
    if config.write_back.writers_write && files.gather_turns(outbox, share) > 0 {
        threads.set(thread, Doing::Next);
        return devices.go(machine, (cpu, thread), false, Nanos(0));
    }
    files.waiters.limit.push(thread);
    threads.wake_at(thread, threads.now() + CONGESTION_WAIT);
    Turn::Block(Wait::DirtyLimit)
}

/// Continues the journal.
pub(super) fn journal(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    cpu: CpuId,
    thread: ThreadId,
) -> Turn {
    match machine.threads[thread].doing.clone() {
        Doing::CommitData { files, writes, steps, transaction, sync } => {
            let write_backs = &machine.files.write_backs;
            let Some(file) = files.iter().find(|file| write_backs.are_running(**file, writes))
            else {
                let Machine { threads, files, .. } = machine;
                threads.set(thread, Doing::CommitSteps { steps, transaction, sync });
                files.copies(threads, false);
                return Turn::Run(Nanos(0));
            };
            if let Some(turn) = devices.unplug_for(machine, cpu, thread) {
                return turn;
            }
            machine.files.waiters.writes.push((thread, *file, writes));
            Turn::Block(Wait::Writes)
        }
        Doing::CommitSteps { .. } if machine.threads[thread].in_flight > 0 => {
            devices.unplug_for(machine, cpu, thread).unwrap_or(Turn::Block(Wait::Writes))
        }
        Doing::CommitSteps { steps, transaction, sync } => {
            next_step(machine, devices, (cpu, thread), (steps, transaction, sync))
        }
        _ => begin_commit(machine, devices, cpu, thread),
    }
}

fn begin_commit(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    cpu: CpuId,
    thread: ThreadId,
) -> Turn {
    let Machine { config, threads, files } = machine;
    let journal = &mut files.journal;
    let asked = journal.wanted > journal.committed;
    if !asked && threads.now() < journal.due {
        threads.wake_at(thread, journal.due);
        return Turn::Block(Wait::Work);
    }
    if !files.lock_transaction(threads) {
        return Turn::Block(Wait::Journal);
    }
    let journal = &mut files.journal;
    journal.due = threads.now() + journal.interval;
    let transaction = journal.running;
    journal.running += 1;
    let Some(commit) = files.fs.commit() else {
        files.end_commit(threads, transaction);
        return Turn::Run(Nanos(0));
    };
    // `t_synchronous_commit`: a periodic commit is asynchronous.
    let sync = asked && config.sync_flags;
    for file in &commit.data_first {
        files.gather_all(&mut threads[thread].outbox, *file, sync);
    }
    let writes = files.write_backs.so_far();
    let steps = commit.steps.into();
    let doing = Doing::CommitData { files: commit.data_first, writes, steps, transaction, sync };
    threads.set(thread, doing);
    devices.go(machine, (cpu, thread), true, Nanos(0))
}

fn next_step(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (cpu, thread): (CpuId, ThreadId),
    (mut steps, transaction, sync): (VecDeque<CommitStep>, u64, bool),
) -> Turn {
    let Machine { config, threads, files } = machine;
    let Some(step) = steps.pop_front() else {
        threads.set(thread, Doing::Next);
        files.end_commit(threads, transaction);
        return Turn::Run(Nanos(0));
    };
    let steps_left = steps.len();
    if steps_left == 0 {
        files.copies(threads, true);
    }
    threads.set(thread, Doing::CommitSteps { steps, transaction, sync });
    let rule = files.fs.sync_rule();
    let last = step.writes.len().checked_sub(1).filter(|_| steps_left == 0);
    let committer = &mut threads[thread];
    let flush = Out {
        op: Op::Flush,
        sector: 0,
        sectors: 0,
        mark: Mark::Async,
        preflush: false,
        fua: false,
        purpose: Purpose::Commit,
    };
    for (number, (sector, sectors)) in step.writes.iter().enumerate() {
        let preflush = step.preflush && number == 0;
        let sector = *sector;
        let sectors = *sectors;
        let fua = step.fua;
        let mark = match rule {
            SyncRule::EachWrite if sync => Mark::SyncNoidle,
            SyncRule::SegmentEnd { .. } if config.sync_flags && last == Some(number) => Mark::Sync,
            SyncRule::EachWrite | SyncRule::SegmentEnd { .. } => Mark::Async,
        };
        let op = Op::Write;
        committer.outbox.push_back(Out { op, sector, sectors, preflush, fua, mark, ..flush });
    }
    if step.writes.is_empty() && step.preflush {
        committer.outbox.push_back(flush);
    }
    committer.in_flight = u32::try_from(committer.outbox.len()).expect("bios are few");
    devices.go(machine, (cpu, thread), true, Nanos(0))
}

/// Spawns the housekeeping thread of each CPU.
pub(super) fn spawn_housekeepers(threads: &mut Threads<'_>, config: &Config) {
    let Some(Housekeeping { every, .. }) = config.housekeeping else { return };
    let cpus = config.topology.cpus();
    for cpu in 0..cpus {
        let thread = threads.spawn_asleep(Kind::Housekeeper, Affinity::Cpu(CpuId(cpu)));
        // Not on all CPUs at once.
        let first = Nanos(every.0 * u64::from(cpu + 1) / u64::from(cpus));
        threads.wake_sleeper_at(thread, first);
    }
}

/// Housekeeping: schedules the next turn.
pub(super) fn keep_house(machine: &mut Machine<'_>, thread: ThreadId) -> Turn {
    let Some(Housekeeping { every, takes }) = machine.config.housekeeping else {
        unreachable!("somebody has spawned it");
    };
    let threads = &mut machine.threads;
    if threads[thread].doing == Doing::Next {
        threads.set(thread, Doing::Throttled);
        return Turn::Run(takes);
    }
    threads.set(thread, Doing::Next);
    threads.wake_at(thread, threads.now() + every);
    Turn::Block(Wait::Work)
}
