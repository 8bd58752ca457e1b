//! Executing SQEs: what each one costs, and who goes on.

use blockyard_engine::bio::{Bio, BlkStatus, IoContext, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::sq::{Direction, Place, Sqe, SqeOp, Token};
use blockyard_engine::time::Nanos;
use blockyard_load::program::Task;

use super::super::io::INTERRUPTED;
use super::super::trace::{Observer, Wait};
use super::super::{Sent, World};
use super::{Below, Context, Event, Lower, Mapped, Step, WORLD_SLOTS};
use crate::cpu::{CpuId, ThreadId};

/// What became of a step.
pub(super) enum Started {
    /// Somebody has it; what that cost.
    Done(Nanos),
    /// Its cipher runs here, for so long.
    Cipher(Nanos, Step),
    /// The queue has no request for it, and the thread waits.
    Parked,
}

impl Mapped {
    /// How long a cipher takes on a CPU.
    pub(super) fn cipher_time(&mut self, step: &Step, cpu: CpuId) -> Nanos {
        let SqeOp::Crypt { src, .. } = step.sqe.op else {
            unreachable!("only a cipher takes the time of one");
        };
        let costs = self.config.costs;
        let ns = costs.cipher_kib.0 * u64::from(src.len_bytes) / 1024;
        let jitter = u64::from(costs.jitter_percent);
        let ns = ns * (100 - jitter + self.random.below(2 * jitter + 1)) / 100;
        let far = self.topology.socket_of(cpu) != self.topology.socket_of(step.queued_on);
        let ns = if far { ns * u64::from(100 + costs.remote_percent) / 100 } else { ns };
        let spent = Nanos(ns);
        self.causes.cipher_busy = self.causes.cipher_busy + spent;
        self.causes.cipher_bytes += u64::from(src.len_bytes);
        spent
    }

    /// A cipher has run: who did it, and in which order.
    fn note_ciphered(&mut self, step: &Step, by: Context) {
        self.causes.parts += 1;
        let SqeOp::Crypt { direction: Direction::Encrypt, src, dst, .. } = step.sqe.op else {
            return;
        };
        if WORLD_SLOTS.contains(&src.slot) {
            self.slot_of.insert(dst.slot, src.slot - BufRef::FIRST_WORLD_SLOT);
        }
        let Some(whole) = self.whole_of(src) else { return };
        whole.encrypted.push(u64::from(src.offset_bytes));
        let (thread, worker) = (
            whole.thread,
            match by {
                Context::Thread(_, worker) => Some(worker),
                Context::Interrupt(_) => None,
            },
        );
        whole.workers.insert(worker);
        self.causes.cpus_of_writer.entry(thread).or_default().insert(by.cpu());
    }
}

impl<T: Task, O: Observer> World<'_, T, O> {
    pub(super) fn mapped(&mut self) -> &mut Mapped {
        self.mapped.as_mut().expect("there is a mapped device")
    }

    /// A bio that a thread makes enters the mapped device.
    pub(in crate::world) fn submit_mapped(&mut self, by: Context, bio: Bio, thread: ThreadId) {
        let now = self.now;
        self.mapped().submit(now, by.cpu(), bio, thread);
        self.collect(by);
    }

    /// What the shard has to say, to whoever it told.
    pub(super) fn collect(&mut self, by: Context) {
        let mapped = self.mapped.as_mut().expect("there is a mapped device");
        match by {
            Context::Thread(cpu, thread) => {
                let todo = &mut self.threads[thread.0 as usize].pending.todo;
                mapped.take_steps(cpu, |step| todo.push_back(step));
            }
            Context::Interrupt(cpu) => {
                let todo = &mut self.interrupts;
                mapped.take_steps(cpu, |step| todo.push_back((cpu, step)));
            }
        }
        let mut ended = std::mem::take(&mut self.ended);
        self.mapped().take_done(|user, status| ended.push((user, status)));
        for (user, status) in ended.drain(..) {
            self.end_bio(user, status);
        }
        self.ended = ended;
    }

    /// Executes what interrupts have been told to, until there is no more.
    pub(in crate::world) fn run_interrupts(&mut self) {
        while let Some((cpu, step)) = self.interrupts.pop_front() {
            match self.start_step(Context::Interrupt(cpu), step) {
                Started::Done(cost) => self.cpus.charge(self.now, cpu, cost),
                Started::Parked => {}
                Started::Cipher(cost, step) => {
                    self.cpus.charge(self.now, cpu, cost);
                    let now = self.now;
                    let mapped = self.mapped();
                    let until = mapped.interrupts_until.entry(cpu).or_insert(now);
                    *until = now.max(*until) + cost;
                    let until = *until;
                    mapped.events.schedule(until, Event::Ciphered(cpu, step));
                }
            }
            let owed = self.mapped().take_owed();
            self.cpus.charge(self.now, cpu, owed);
        }
    }

    /// Something that needs no thread happens.
    pub(in crate::world) fn advance_mapped(&mut self) {
        let now = self.now;
        let Some((_, event)) = self.mapped().events.take() else { return };
        match event {
            Event::Timeout(token) => {
                self.mapped().answer(now, INTERRUPTED, token, BlkStatus::Ok);
                self.collect(Context::Interrupt(INTERRUPTED));
            }
            Event::Ciphered(cpu, step) => self.ciphered(Context::Interrupt(cpu), step),
        }
        self.run_interrupts();
    }

    /// A bio of the queue below has ended.
    pub(in crate::world) fn end_lower(&mut self, user: u64, status: BlkStatus) {
        let now = self.now;
        let index = u32::try_from(user).expect("the queue was given such a number");
        let Lower { token, bytes, cpu } = self.mapped().lowers.remove(index);
        self.leaves_queue(user, bytes, status);
        let interrupted = self.interrupted_for(cpu);
        self.mapped().answer(now, interrupted, token, status);
        self.collect(Context::Interrupt(interrupted));
        // Pages that were given back, whether or not something goes on.
        let owed = self.mapped().take_owed();
        self.cpus.charge(now, interrupted, owed);
        self.run_interrupts();
    }

    /// The CPU that completes a request: the interrupted one if it shares its socket with the
    /// submitter, else the submitter's (`rq_affinity=1`).
    fn interrupted_for(&self, cpu: CpuId) -> CpuId {
        let topology = self.config.topology;
        let near = topology.socket_of(cpu) == topology.socket_of(INTERRUPTED);
        if near { INTERRUPTED } else { cpu }
    }

    /// Executes what a thread has to, until nothing is left, its cipher runs, or it has to wait.
    pub(super) fn execute(&mut self, cpu: CpuId, thread: ThreadId) -> (Sent, bool) {
        let (at, by) = (thread.0 as usize, Context::Thread(cpu, thread));
        if let Some(step) = self.threads[at].pending.ciphering.take() {
            self.ciphered(by, step);
        }
        let mut spent = self.mapped().take_owed();
        while let Some(step) = self.threads[at].pending.todo.pop_front() {
            match self.start_step(by, step) {
                Started::Done(cost) => spent = spent + cost + self.mapped().take_owed(),
                Started::Parked => return (Sent::Parked, false),
                Started::Cipher(cost, step) => {
                    self.threads[at].pending.ciphering = Some(step);
                    return (Sent::All(spent + cost), true);
                }
            }
        }
        (Sent::All(spent), false)
    }

    /// Starts a step.
    fn start_step(&mut self, by: Context, step: Step) -> Started {
        let (cpu, sqe) = (by.cpu(), step.sqe);
        match sqe.op {
            SqeOp::Crypt { place: Place::Inline, .. } => {
                let mapped = self.mapped();
                let cost = mapped.config.costs.part + mapped.cipher_time(&step, cpu);
                Started::Cipher(cost, step)
            }
            SqeOp::Crypt { place, .. } => Started::Done(self.hand_over(cpu, place, step)),
            SqeOp::Wake => {
                self.mapped().wake = Some(sqe.token);
                let writer = self.mapped().writer.expect("a pipeline that wakes it has one");
                self.wake_from(writer, Wait::Work);
                Started::Done(Nanos(0))
            }
            SqeOp::Timeout { after } => {
                let at = self.now + after;
                self.mapped().events.schedule(at, Event::Timeout(sqe.token));
                Started::Done(Nanos(0))
            }
            SqeOp::Fill { .. } | SqeOp::Log { .. } | SqeOp::Check { .. } => {
                unreachable!("a crypt target neither fills, logs nor checks")
            }
            SqeOp::Read { sector, buf, .. } => {
                self.give_down(by, &sqe, Op::Read, (sector, Sector::holding(buf.len_bytes.into())))
            }
            SqeOp::Write { sector, buf, .. } => {
                self.note_write(by, &sqe, buf);
                let len = Sector::holding(buf.len_bytes.into());
                self.give_down(by, &sqe, Op::Write, (sector, len))
            }
            SqeOp::Flush { .. } => self.give_down(by, &sqe, Op::Flush, (Sector(0), Sector(0))),
            SqeOp::Discard { sector, len, .. } => {
                self.give_down(by, &sqe, Op::Discard, (sector, len))
            }
            SqeOp::WriteZeroes { sector, len, .. } => {
                self.give_down(by, &sqe, Op::WriteZeroes, (sector, len))
            }
        }
    }

    /// A worker is to run the cipher.
    fn hand_over(&mut self, cpu: CpuId, place: Place, step: Step) -> Nanos {
        let mapped = self.mapped();
        mapped.causes.hand_overs += 1;
        let pool = match place {
            Place::SameCpu => mapped.pools.bound(cpu),
            Place::Unbound | Place::Inline => mapped.pools.unbound(cpu),
        };
        let item = Step { queued_on: cpu, ..step };
        let worker = mapped.pools.queue(pool, item);
        let cost = mapped.config.costs.queue_work;
        if let Some(worker) = worker {
            self.wake_from(worker, Wait::Work);
        }
        cost
    }

    /// A cipher has run: the linked write is next, or the shard is told.
    pub(super) fn ciphered(&mut self, by: Context, step: Step) {
        let now = self.now;
        self.mapped().note_ciphered(&step, by);
        if let Some(write) = step.then {
            let write = Step { sqe: write, then: None, queued_on: by.cpu() };
            match by {
                Context::Thread(_, thread) => {
                    self.threads[thread.0 as usize].pending.todo.push_front(write);
                }
                Context::Interrupt(cpu) => self.interrupts.push_back((cpu, write)),
            }
            return;
        }
        self.mapped().answer(now, by.cpu(), step.sqe.token, BlkStatus::Ok);
        self.collect(by);
    }

    /// In whose name a bio goes down.
    fn context_of(&mut self, by: Context, sqe: &Sqe) -> IoContext {
        match (sqe.origin.io_context, by) {
            (IoContext::OF_TASK, Context::Thread(_, thread)) => {
                self.threads[thread.0 as usize].io_context
            }
            // An interrupt borrows whatever it interrupted; that of nobody is as good.
            (IoContext::OF_TASK, Context::Interrupt(_)) => IoContext(0),
            (context, _) => context,
        }
    }

    /// A write is about to go down: who submits pieces of which bio.
    fn note_write(&mut self, by: Context, sqe: &Sqe, buf: BufRef) {
        let context = self.context_of(by, sqe);
        let mapped = self.mapped();
        if let Some(whole) = mapped.whole_of(buf) {
            whole.contexts.insert(context);
        }
        mapped.causes.write_contexts.insert(context.0);
        mapped.causes.write_bios += 1;
        if let Context::Thread(_, thread) = by {
            mapped.causes.submitting_threads.insert(thread);
        }
    }

    /// A bio goes to what is below the target.
    fn give_down(
        &mut self,
        by: Context,
        sqe: &Sqe,
        op: Op,
        (sector, len): (Sector, Sector),
    ) -> Started {
        if let Below::Memory { ns_per_kib } = self.mapped().config.below {
            let now = self.now;
            let copied = matches!(op, Op::Read | Op::Write);
            let cost = if copied { Nanos(ns_per_kib * len.bytes() / 1024) } else { Nanos(0) };
            self.mapped().answer(now, by.cpu(), sqe.token, BlkStatus::Ok);
            self.collect(by);
            return Started::Done(cost + self.config.costs.submit);
        }
        let fua = matches!(sqe.op, SqeOp::Write { fua: true, .. });
        let bio = self.lower_bio(by, sqe, op, (sector, len));
        let thread = match by {
            Context::Thread(_, thread) => thread,
            Context::Interrupt(_) => self.journal.thread,
        };
        let parked = self.enters_queue(Bio { fua, ..bio }, thread);
        self.block.run(self.now);
        let cost = self.config.costs.submit + self.see_device();
        match by {
            Context::Thread(..) if parked => {
                self.parked.push((bio.user, thread));
                Started::Parked
            }
            _ => Started::Done(cost),
        }
    }

    fn lower_bio(
        &mut self,
        by: Context,
        sqe: &Sqe,
        op: Op,
        (sector, len): (Sector, Sector),
    ) -> Bio {
        let mut origin = sqe.origin;
        origin.io_context = self.context_of(by, sqe);
        origin.cpu = by.cpu().0;
        let bytes = len.bytes();
        let lower = Lower { token: sqe.token, bytes, cpu: by.cpu() };
        let user = u64::from(self.mapped().lowers.insert(lower));
        let buf = match op {
            Op::Read | Op::Write => BufRef::zeros(u32::try_from(bytes).expect("parts are short")),
            _ => BufRef::NONE,
        };
        Bio { origin, ..Bio::new(op, sector, len, buf, user) }
    }

    /// The writing thread takes its batch.
    pub(super) fn take_batch(&mut self, cpu: CpuId, thread: ThreadId, token: Token) -> Nanos {
        let now = self.now;
        let by = Context::Thread(cpu, thread);
        self.mapped().answer(now, cpu, token, BlkStatus::Ok);
        self.collect(by);
        let sectors = self.threads[thread.0 as usize].pending.todo.iter().filter_map(|step| {
            match step.sqe.op {
                SqeOp::Write { sector, .. } => Some(sector),
                _ => None,
            }
        });
        let sectors: Vec<Sector> = sectors.collect();
        let mapped = self.mapped.as_mut().expect("there is a mapped device");
        mapped.causes.note_batch(&sectors);
        let costs = mapped.config.costs;
        let sorts = super::threads::sorts(&mapped.config.pipeline);
        let each = if sorts { costs.batch + costs.sort } else { costs.batch };
        Nanos(each.0 * sectors.len() as u64)
    }
}
