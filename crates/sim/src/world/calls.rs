//! Calls of a task: the system call layer, from the task down to bios.

use std::ops::Range;

use blockyard_engine::time::Nanos;
use blockyard_workload::program::{
    Call, Content, DirectOp, FileId, Interface, Reaped, Returned, Task, Usage,
};

use super::background::throttle;
use super::config::{CallCosts, Config, FsyncOrder};
use super::devices::Devices;
use super::files::{Files, pages};
use super::in_flight::WritesUpTo;
use super::machine::Machine;
use super::thread::{Direct, Doing, Turn};
use super::threads::Threads;
use super::trace::Wait;
use crate::cache::{Lookup, PAGE_BYTES, ReadAhead};
use crate::cpu::{Costs, CpuId, Switches, ThreadId};
use crate::fs::Needs;

/// Continues the thread's current operation.
pub(super) fn go_on(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    task: &mut impl Task,
    (cpu, thread): (CpuId, ThreadId),
) -> Turn {
    match machine.threads[thread].doing.clone() {
        Doing::Next => next_call(machine, devices, task, (cpu, thread)),
        Doing::Read { file, pages, waited } => {
            read(machine, devices, (cpu, thread), Read { file, pages, waited }, Nanos(0))
        }
        Doing::Write { file, pages, handle } => {
            write(machine, devices, (cpu, thread), Write { file, pages, handle })
        }
        Doing::Create { file, directory, handle } => {
            create(machine, devices, (cpu, thread), (file, directory, handle))
        }
        Doing::SyncPages { writes } => sync_pages(machine, devices, (cpu, thread), writes),
        Doing::Throttled => throttle(machine, devices, cpu, thread),
        Doing::FsyncPages { file, again, writes } => {
            fsync_pages(machine, devices, (cpu, thread), file, again, writes)
        }
        Doing::FsyncAsk { data } => {
            let Machine { threads, files, .. } = machine;
            let transaction = files.journal.running;
            files.journal.wanted = transaction;
            threads.set(thread, Doing::FsyncCommit { transaction, data });
            threads.wake_from(files.journal.thread, Wait::Work);
            Turn::Run(Nanos(0))
        }
        Doing::FsyncCommit { transaction, .. } if machine.files.journal.committed < transaction => {
            machine.files.waiters.commit.push((thread, transaction));
            Turn::Block(Wait::Commit)
        }
        Doing::FsyncCommit { data: Some((file, writes)), .. } => {
            machine.threads.set(thread, Doing::FsyncPages { file, again: true, writes });
            Turn::Run(Nanos(0))
        }
        Doing::FsyncCommit { data: None, .. } => returns(&mut machine.threads, thread),
        Doing::Reap { at_least, at_most, until } => {
            let waits = must_wait(&machine.threads, thread, at_least, until);
            if let Some(turn) = devices.before_reap(machine, (cpu, thread), waits) {
                return turn;
            }
            reap(&mut machine.threads, thread, (at_least, at_most), until)
        }
        Doing::CommitData { .. } | Doing::CommitSteps { .. } => {
            unreachable!("only the journal commits")
        }
    }
}

/// Gets the task's next call, after its user time.
fn next_call(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    task: &mut impl Task,
    (cpu, thread): (CpuId, ThreadId),
) -> Turn {
    let usage = usage(&machine.threads, thread);
    let reaped = std::mem::take(&mut machine.threads[thread].direct.reaped);
    let now = machine.threads.now();
    let call = task.next(now, &Returned { status: Ok(()), reaped: &reaped, usage });
    let interface = task.interface();
    let own = own_time(&machine.config.costs, interface, &call);
    let jumps = jumps(&call, &mut machine.threads[thread].next_place);
    let choice = if jumps { machine.config.call_costs.random_offset } else { Nanos(0) };
    let summed_bytes = task.content().map_or(0, Content::take_summed_bytes);
    let sums = Nanos(machine.config.call_costs.verify_kib.0 * summed_bytes / 1024);
    let caller = &mut machine.threads[thread];
    // A call that blocks leaves it to the next one.
    caller.unpaid = caller.unpaid + own + choice + sums;
    let turn = make_call(machine, devices, (call, interface), (cpu, thread));
    let Turn::Run(burst) = turn else { return turn };
    let caller = &mut machine.threads[thread];
    let user = std::mem::take(&mut caller.unpaid);
    caller.user = caller.user + user;
    Turn::Run(burst + user)
}

/// A program's own time before a call.
fn own_time(costs: &Costs, interface: Interface, call: &Call) -> Nanos {
    match (interface, call) {
        // The wait for a synchronous operation is no call.
        (Interface::Sync, Call::Reap { .. }) => Nanos(0),
        _ => costs.user,
    }
}

/// Whether an operation does not begin at the end of the last one. Notes its own end. The first
/// operation of a file does not count.
fn jumps(call: &Call, next_place: &mut Option<(FileId, u64)>) -> bool {
    let (Call::Read { file, offset_bytes, len_bytes }
    | Call::Write { file, offset_bytes, len_bytes }
    | Call::Submit { file, offset_bytes, len_bytes, .. }) = *call
    else {
        return false;
    };
    let last = next_place.replace((file, offset_bytes + len_bytes));
    last.is_some_and(|(of, next_bytes)| of == file && offset_bytes != next_bytes)
}

fn usage(threads: &Threads<'_>, thread: ThreadId) -> Usage {
    let user = threads[thread].user;
    let Switches { voluntary, involuntary } = threads.cpus.switches_of(thread);
    let system = threads.cpus.used(thread) - user;
    let switches = threads.cpus.switches_to(thread);
    Usage { user, system, switches, voluntary, involuntary }
}

fn make_call(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (call, interface): (Call, Interface),
    (cpu, thread): (CpuId, ThreadId),
) -> Turn {
    let Machine { config, threads, files } = machine;
    let costs = &config.costs;
    match call {
        Call::Open(file) => {
            threads[thread].read_ahead.retain(|(open, _)| *open != file);
            Turn::Run(costs.syscall)
        }
        Call::Read { file, offset_bytes, len_bytes } => {
            let pages = pages(offset_bytes, len_bytes);
            let pages = pages.start..pages.end.min(files.fs.file_pages(file));
            let waited = false;
            read(machine, devices, (cpu, thread), Read { file, pages, waited }, costs.syscall)
        }
        Call::Write { file, offset_bytes, len_bytes } => {
            let pages = pages(offset_bytes, len_bytes);
            let copied = threads.copy_pages(cpu, thread, costs.page, pages.end - pages.start);
            threads.set(thread, Doing::Write { file, pages, handle: false });
            Turn::Run(costs.syscall + copied)
        }
        Call::Fsync(file) => {
            begin_fsync(config, threads, files, (thread, file));
            devices.go(machine, (cpu, thread), true, costs.syscall)
        }
        Call::Create(_)
        | Call::MakeDirectories(_)
        | Call::CreateIn { .. }
        | Call::Layout { .. }
        | Call::Sync => call_of_files(machine, devices, call, (cpu, thread)),
        Call::Close(file) => {
            files.fs.close(file);
            Turn::Run(costs.syscall)
        }
        Call::Submit { id, file, op, offset_bytes, len_bytes, more } => {
            let cost = cost_of_operation(&config.call_costs, op, len_bytes);
            prepare_direct(machine, thread, (id, op), file, (offset_bytes, len_bytes));
            if more {
                return Turn::Run(cost);
            }
            submit_direct(machine, devices, (cpu, thread), cost)
        }
        Call::Commit => submit_direct(machine, devices, (cpu, thread), Nanos(0)),
        Call::Reap { at_least, at_most } => {
            threads.set(thread, Doing::Reap { at_least, at_most, until: None });
            Turn::Run(cost_of_reap(costs, interface, &threads[thread].direct, at_least))
        }
        Call::ReapBefore(until) => {
            let until = Some(until);
            threads.set(thread, Doing::Reap { at_least: 1, at_most: u32::MAX, until });
            Turn::Run(costs.syscall)
        }
        Call::Priority(priority) => {
            threads[thread].priority = priority;
            Turn::Run(Nanos(0))
        }
        Call::Sleep(pause) => {
            threads.wake_at(thread, threads.now() + pause);
            Turn::Block(Wait::Sleep)
        }
        Call::Usage => Turn::Run(costs.syscall),
        Call::Exit => Turn::Exit,
    }
}

/// Calls that make directories and files, or need all files.
fn call_of_files(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    call: Call,
    (cpu, thread): (CpuId, ThreadId),
) -> Turn {
    let Machine { config, threads, files } = machine;
    let costs = &config.costs;
    match call {
        Call::Create(file) => {
            files.cache.forget(file);
            files.fs.create(file);
            Turn::Run(costs.syscall)
        }
        Call::MakeDirectories(count) => {
            files.fs.make_directories(count);
            Turn::Run(Nanos(0))
        }
        Call::CreateIn { file, directory } => {
            files.cache.forget(file);
            threads.set(thread, Doing::Create { file, directory, handle: false });
            Turn::Run(costs.syscall + config.call_costs.create)
        }
        Call::Sync => {
            let dirty: Vec<FileId> = files.cache.dirty_files().collect();
            for file in dirty {
                files.gather_all(&mut threads[thread].outbox, file, config.sync_flags);
            }
            let writes = files.write_backs.so_far();
            threads.set(thread, Doing::SyncPages { writes });
            devices.go(machine, (cpu, thread), true, costs.syscall)
        }
        Call::Layout { file, len_bytes } => {
            files.cache.forget(file);
            files.fs.layout(file, len_bytes.div_ceil(PAGE_BYTES));
            Turn::Run(Nanos(0))
        }
        _ => unreachable!("the caller has the others"),
    }
}

/// Returns from the call.
fn returns(threads: &mut Threads<'_>, thread: ThreadId) -> Turn {
    threads.set(thread, Doing::Next);
    Turn::Run(Nanos(0))
}

/// The rest of a `read`.
struct Read {
    file: FileId,
    pages: Range<u64>,
    /// The first page has been waited for.
    waited: bool,
}

/// Copies present pages; waits for the first absent one.
fn read(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (cpu, thread): (CpuId, ThreadId),
    Read { file, mut pages, mut waited }: Read,
    before: Nanos,
) -> Turn {
    let Machine { config, threads, files } = machine;
    let max_pages = config.cache.read_ahead_bytes / PAGE_BYTES;
    let file_pages = files.fs.file_pages(file);
    let mut cost = before;
    while let Some(page) = pages.clone().next() {
        let window = match files.cache.lookup(file, page) {
            Lookup::UpToDate => None,
            Lookup::Marked => read_ahead(threads, thread, file, max_pages).mark(page, file_pages),
            Lookup::Reading if files.cache.take_mark(file, page) => {
                // The next window is requested before the wait for this one.
                threads.set(thread, Doing::Read { file, pages, waited: true });
                let ahead = read_ahead(threads, thread, file, max_pages);
                if let Some(window) = ahead.mark(page, file_pages) {
                    let outbox = &mut threads[thread].outbox;
                    files.gather_read(outbox, file, window.pages, window.mark);
                }
                return devices.go(machine, (cpu, thread), true, cost);
            }
            Lookup::Reading => {
                threads.set(thread, Doing::Read { file, pages, waited: true });
                if cost > Nanos(0) {
                    return Turn::Run(cost);
                }
                if let Some(turn) = devices.unplug_for(machine, cpu, thread) {
                    return turn;
                }
                machine.files.waiters.pages.push((thread, file, page));
                return Turn::Block(Wait::Pages);
            }
            Lookup::Absent => {
                let left = pages.end - page;
                let ahead = read_ahead(threads, thread, file, max_pages);
                let window = ahead.miss(page, left, file_pages);
                let outbox = &mut threads[thread].outbox;
                files.gather_read(outbox, file, window.pages, window.mark);
                threads.set(thread, Doing::Read { file, pages, waited: true });
                return devices.go(machine, (cpu, thread), true, cost);
            }
        };
        pages.start += 1;
        cost = cost + threads.copy_pages(cpu, thread, config.costs.page, 1);
        let causes = &mut threads.observers.causes;
        causes.page_lookups += 1;
        causes.page_hits += u64::from(!std::mem::take(&mut waited));
        if let Some(window) = window {
            files.gather_read(&mut threads[thread].outbox, file, window.pages, window.mark);
            threads.set(thread, Doing::Read { file, pages, waited });
            return devices.go(machine, (cpu, thread), false, cost);
        }
    }
    if pages.start > 0 {
        read_ahead(threads, thread, file, max_pages).called(pages.start - 1);
    }
    threads.set(thread, Doing::Next);
    Turn::Run(cost)
}

/// A `write` whose pages are copied.
struct Write {
    file: FileId,
    pages: Range<u64>,
    /// Whether the call has a handle of the running transaction.
    handle: bool,
}

/// Ends a `write`, after its waits: for a handle (`start_this_handle`), for copies of the journal,
/// and for metadata that its allocation reads.
fn write(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (cpu, thread): (CpuId, ThreadId),
    Write { file, pages, handle }: Write,
) -> Turn {
    let Machine { threads, files, .. } = machine;
    if !handle {
        if !files.begin_handle(thread) {
            return Turn::Block(Wait::Journal);
        }
        threads.set(thread, Doing::Write { file, pages: pages.clone(), handle: true });
    }
    if let Err(needs) = files.fs.try_write(threads.now(), file, pages.clone()) {
        return wait_for(machine, devices, (cpu, thread), needs);
    }
    files.end_handle(threads);
    files.write(threads, thread, file, pages);
    Turn::Run(Nanos(0))
}

/// Ends the creation of a file, after its waits.
fn create(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (cpu, thread): (CpuId, ThreadId),
    (file, directory, handle): (FileId, u32, bool),
) -> Turn {
    let Machine { threads, files, .. } = machine;
    if !handle {
        if !files.begin_handle(thread) {
            return Turn::Block(Wait::Journal);
        }
        threads.set(thread, Doing::Create { file, directory, handle: true });
    }
    if let Err(needs) = files.fs.try_create(file, directory) {
        return wait_for(machine, devices, (cpu, thread), needs);
    }
    files.end_handle(threads);
    returns(threads, thread)
}

/// Waits for what a change of metadata needs.
fn wait_for(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (cpu, thread): (CpuId, ThreadId),
    needs: Needs,
) -> Turn {
    let Machine { threads, files, .. } = machine;
    let Needs::Metadata(sector) = needs else {
        files.waiters.copies.push(thread);
        return Turn::Block(Wait::Journal);
    };
    if files.begin_metadata_read(&mut threads[thread].outbox, sector) {
        return devices.go(machine, (cpu, thread), true, Nanos(0));
    }
    if let Some(turn) = devices.unplug_for(machine, cpu, thread) {
        return turn;
    }
    machine.files.waiters.metadata.push((thread, sector));
    Turn::Block(Wait::Pages)
}

/// The read-ahead of a file that the thread has open.
fn read_ahead<'a>(
    threads: &'a mut Threads<'_>,
    thread: ThreadId,
    file: FileId,
    max_pages: u64,
) -> &'a mut ReadAhead {
    let open = &mut threads[thread].read_ahead;
    let place = open.iter().position(|(open, _)| *open == file).unwrap_or_else(|| {
        open.push((file, ReadAhead::new(max_pages)));
        open.len() - 1
    });
    &mut open[place].1
}

/// Takes the file's dirty pages, and sets the first wait.
fn begin_fsync(
    config: &Config,
    threads: &mut Threads<'_>,
    files: &mut Files<'_>,
    (thread, file): (ThreadId, FileId),
) {
    files.gather_all(&mut threads[thread].outbox, file, config.sync_flags);
    let writes = files.write_backs.so_far();
    let doing = match config.write_back.fsync {
        FsyncOrder::DataFirst => Doing::FsyncPages { file, again: true, writes },
        FsyncOrder::CommitFirst => Doing::FsyncAsk { data: Some((file, writes)) },
    };
    threads.set(thread, doing);
}

/// Waits for the pages of `sync`, and then for a commit.
fn sync_pages(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (cpu, thread): (CpuId, ThreadId),
    writes: WritesUpTo,
) -> Turn {
    let Some(file) = machine.files.write_backs.running(writes) else {
        machine.threads.set(thread, Doing::FsyncAsk { data: None });
        return Turn::Run(Nanos(0));
    };
    if let Some(turn) = devices.unplug_for(machine, cpu, thread) {
        return turn;
    }
    machine.files.waiters.writes.push((thread, file, writes));
    Turn::Block(Wait::Writes)
}

fn fsync_pages(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (cpu, thread): (CpuId, ThreadId),
    file: FileId,
    again: bool,
    writes: WritesUpTo,
) -> Turn {
    if machine.files.write_backs.are_running(file, writes) {
        if let Some(turn) = devices.unplug_for(machine, cpu, thread) {
            return turn;
        }
        machine.files.waiters.writes.push((thread, file, writes));
        return Turn::Block(Wait::Writes);
    }
    let Machine { config, threads, files } = machine;
    if again && files.cache.dirty_pages_of(file) > 0 {
        // They were written again during their write-back.
        files.gather_all(&mut threads[thread].outbox, file, config.sync_flags);
        let writes = files.write_backs.so_far();
        threads.set(thread, Doing::FsyncPages { file, again: false, writes });
        return devices.go(machine, (cpu, thread), true, Nanos(0));
    }
    match config.write_back.fsync {
        FsyncOrder::DataFirst => threads.set(thread, Doing::FsyncAsk { data: None }),
        FsyncOrder::CommitFirst => threads.set(thread, Doing::Next),
    }
    Turn::Run(Nanos(0))
}

/// Makes the bios of a direct operation, which wait for their `io_submit`.
fn prepare_direct(
    machine: &mut Machine<'_>,
    thread: ThreadId,
    (id, op): (u32, DirectOp),
    file: FileId,
    range_bytes: (u64, u64),
) {
    let ended = machine.threads.now();
    let submitter = &mut machine.threads[thread];
    let bios = machine.files.make_direct(&mut submitter.direct.prepared, id, file, op, range_bytes);
    if bios == 0 {
        submitter.direct.ended.push(Reaped { id, status: Ok(()), ended });
    } else {
        submitter.direct.running.push((id, bios, Ok(())));
    }
}

/// Cost of the call that reaps, if it is one.
fn cost_of_reap(costs: &Costs, interface: Interface, direct: &Direct, at_least: u32) -> Nanos {
    match interface {
        Interface::Sync => Nanos(0),
        Interface::Ring if direct.ended.len() >= at_least as usize => Nanos(0),
        Interface::Aio | Interface::Ring | Interface::Nowhere => costs.syscall,
    }
}

/// Cost of a direct operation in addition to that of a read.
fn cost_of_operation(costs: &CallCosts, op: DirectOp, len_bytes: u64) -> Nanos {
    match op {
        DirectOp::Write => {
            costs.direct_write + Nanos(costs.direct_write_page.0 * len_bytes.div_ceil(PAGE_BYTES))
        }
        DirectOp::Read | DirectOp::Flush | DirectOp::Discard | DirectOp::Bio { .. } => Nanos(0),
    }
}

/// `io_submit` of the thread's prepared operations, after other work for them.
fn submit_direct(
    machine: &mut Machine<'_>,
    devices: &mut Devices,
    (cpu, thread): (CpuId, ThreadId),
    before: Nanos,
) -> Turn {
    let submitter = &mut machine.threads[thread];
    submitter.outbox.append(&mut submitter.direct.prepared);
    let syscall = machine.config.costs.syscall;
    devices.go(machine, (cpu, thread), true, syscall + before)
}

/// Whether too few direct operations have ended for a thread that reaps at least so many.
fn must_wait(threads: &Threads<'_>, thread: ThreadId, at_least: u32, until: Option<Nanos>) -> bool {
    let direct = &threads[thread].direct;
    let waits = match until {
        Some(until) => threads.now() < until,
        None => !direct.running.is_empty(),
    };
    waits && direct.ended.len() < at_least as usize
}

fn reap(
    threads: &mut Threads<'_>,
    thread: ThreadId,
    (least, at_most): (u32, u32),
    until: Option<Nanos>,
) -> Turn {
    if must_wait(threads, thread, least, until) {
        if let Some(until) = until {
            threads.wake_at(thread, until);
        }
        return Turn::Block(Wait::Direct);
    }
    let direct = &mut threads[thread].direct;
    let count = direct.ended.len().min(at_most as usize);
    direct.reaped.extend(direct.ended.drain(..count));
    returns(threads, thread)
}

#[cfg(test)]
mod tests;
