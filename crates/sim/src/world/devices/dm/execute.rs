//! Executes SQEs: their costs, effects and successors.

use blockyard_engine::bio::{Bio, BlkStatus, IoContext, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::crypt::hand_over::WakeUp;
use blockyard_engine::sq::{Direction, Place, Sqe, SqeOp, Token};
use blockyard_engine::time::Nanos;

use super::super::super::actions::{Action, Context, Interrupt, Next, Step, Via};
use super::super::super::bandwidth::Traffic;
use super::super::super::config::{Below, Config, Cryptd};
use super::super::super::machine::Machine;
use super::super::super::pools::PoolId;
use super::super::super::threads::Threads;
use super::super::super::trace::Wait;
use super::super::{Backend, Devices};
use super::adaptive::{HostWorkers, Job};
use super::{Lower, Mapped, WORLD_SLOTS};
use crate::cpu::{CpuId, Distance, ThreadId};

impl Step {
    /// Whether the executing context has a cipher to run, or to hand over to cryptd.
    fn is_cipher(&self) -> bool {
        let inline = matches!(self.sqe.op, SqeOp::Crypt { place: Place::Inline, .. });
        inline || self.is_taken
    }

    /// Whether the executing context runs a cipher.
    fn runs_cipher(&self) -> bool {
        self.is_cipher() && self.via != Via::Cryptd
    }
}

impl Mapped {
    /// Time of a cipher and its overhead on a CPU.
    fn cipher_time(&mut self, step: &Step, cpu: CpuId) -> Nanos {
        let SqeOp::Crypt { direction, src, .. } = step.sqe.op else {
            unreachable!("only a cipher takes the time of one");
        };
        let costs = self.config.costs;
        let kib = match direction {
            Direction::Encrypt => costs.encrypt_kib,
            Direction::Decrypt => costs.decrypt_kib,
        };
        let ns = kib.0 * u64::from(src.len_bytes) / 1024;
        let jitter = u64::from(costs.jitter_percent);
        let ns = ns * (100 - jitter + self.random.below(2 * jitter + 1)) / 100;
        let more_percent = match self.topology.distance(cpu, step.queued_on) {
            Distance::SameCache => 0,
            Distance::SameSocket => costs.other_l3_percent,
            Distance::Remote => costs.remote_percent,
        };
        let ns = ns * u64::from(100 + more_percent) / 100;
        let spent = Nanos(ns) + costs.requests(self.sectors_of(step));
        self.causes.cipher_busy = self.causes.cipher_busy + spent;
        self.causes.cipher_bytes += u64::from(src.len_bytes);
        // A read ends after its cipher, a write below the target.
        let end = match direction {
            Direction::Decrypt => costs.end_of(src.len_bytes.into()),
            Direction::Encrypt => Nanos(0),
        };
        costs.part + spent + end
    }

    /// Time for the lock of a pool's queue.
    pub(super) fn lock_time(&mut self, pool: PoolId, at: Nanos, cpu: CpuId) -> Nanos {
        self.pools.lock(pool, at, cpu, self.config.costs.queue_lines)
    }

    /// Pool of the workers for a cipher that this CPU hands over.
    fn pool_of(&self, place: Place, cpu: CpuId) -> PoolId {
        match place {
            Place::SameCpu => self.pools.bound(cpu),
            Place::Unbound | Place::UnboundBatch | Place::Inline => self.pools.unbound(cpu),
        }
    }

    /// Number of requests to the cipher of a part.
    fn sectors_of(&self, step: &Step) -> u64 {
        let SqeOp::Crypt { src, .. } = step.sqe.op else { return 0 };
        u64::from(src.len_bytes).div_ceil(u64::from(self.config.sector_bytes))
    }

    /// Cost of the end of a write below the target.
    pub(in crate::world::devices) fn end_of_write(&self, len_bytes: u64) -> Nanos {
        self.config.costs.end_of(len_bytes)
    }

    /// Notes the context and the order of an ended cipher.
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
        let thread = whole.thread;
        let worker = match by {
            Context::Thread(_, worker) => Some(worker),
            Context::Interrupt(_) => None,
        };
        whole.workers.insert(worker);
        self.causes.cpus_of_writer.entry(thread).or_default().insert(by.cpu());
    }
}

impl Devices {
    pub(in crate::world::devices) fn mapped(&mut self) -> &mut Mapped {
        match &mut self.backend {
            Backend::Mapped(mapped) => mapped,
            Backend::Queue | Backend::Null(_) => unreachable!("only a mapped device has steps"),
        }
    }

    /// Passes a thread's bio to the mapped device.
    pub(in crate::world::devices) fn submit_mapped(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        bio: Bio,
        thread: ThreadId,
    ) {
        let now = machine.threads.now();
        let is_awaited = machine.threads[thread].direct.running.len() == 1;
        let mapped = self.mapped();
        if let Some(workers) = &mut mapped.host_workers {
            workers.arrives(thread, bio.len.bytes(), is_awaited);
            mapped.set_load(&machine.threads, thread);
        }
        mapped.submit(now, by.cpu(), bio, thread);
        self.collect(machine, by);
    }

    /// Collects the shard's steps for this context. Page costs are paid first.
    pub(in crate::world::devices) fn collect(&mut self, machine: &mut Machine<'_>, by: Context) {
        let mut steps = std::mem::take(&mut self.scratch.steps);
        let mapped = self.mapped();
        let deferred = mapped.take_deferred();
        mapped.take_steps(by.cpu(), |step| steps.push(step));
        match by {
            Context::Thread(_, thread) => {
                machine.threads[thread].defer_cost(deferred);
                machine.threads[thread].pending.todo.extend(steps.drain(..));
            }
            Context::Interrupt(cpu) => {
                machine.threads.charge(cpu, deferred);
                steps.drain(..).for_each(|step| self.interrupt(machine, cpu, Action::Step(step)));
            }
        }
        self.scratch.steps = steps;
        let mut ended = std::mem::take(&mut self.scratch.ended);
        self.mapped().take_done(|user, status| ended.push((user, status)));
        for (user, status) in ended.drain(..) {
            self.bios.end(machine, user, status);
        }
        self.scratch.ended = ended;
    }

    /// Completes an SQE of the shard.
    pub(in crate::world::devices) fn answer(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        token: Token,
        status: BlkStatus,
    ) {
        let now = machine.threads.now();
        if let Context::Thread(_, thread) = by {
            self.mapped().set_load(&machine.threads, thread);
        }
        self.mapped().answer(now, by.cpu(), token, status);
        self.collect(machine, by);
    }

    /// Handles the end of a bio in the queue below.
    pub(in crate::world::devices) fn end_lower(
        &mut self,
        machine: &mut Machine<'_>,
        cpu: CpuId,
        user: u64,
        status: BlkStatus,
    ) {
        let index = u32::try_from(user).expect("the queue was given such a number");
        let Lower { token, .. } = self.mapped().lowers.remove(index);
        self.answer(machine, Context::Interrupt(cpu), token, status);
    }

    /// Cost of a step for its context, which begins at this time.
    pub(in crate::world::devices) fn cost_of_step(
        &mut self,
        config: &Config,
        (cpu, at): (CpuId, Nanos),
        step: &Step,
    ) -> Nanos {
        let submit = config.costs.submit;
        let mapped = self.mapped();
        match (step.sqe.op, mapped.config.below) {
            (SqeOp::Crypt { .. }, _) if step.runs_cipher() => mapped.cipher_time(step, cpu),
            // Each sector is a request of its own.
            (SqeOp::Crypt { .. }, _) if step.is_cipher() => {
                Nanos(mapped.config.costs.queue_work.0 * mapped.sectors_of(step))
            }
            (SqeOp::Crypt { place, src, .. }, _) if mapped.host_workers.is_some() => {
                let owner = mapped.whole_of(src).expect("a cipher is of a bio").thread;
                let workers = mapped.host_workers.as_mut().expect("there are some");
                match place {
                    Place::UnboundBatch if !workers.fills_batch(owner, step) => Nanos(0),
                    _ => self.cost_of_hand_over((cpu, at), owner),
                }
            }
            (SqeOp::Crypt { place, .. }, _) => {
                let pool = mapped.pool_of(place, cpu);
                let queue_work = mapped.config.costs.queue_work;
                queue_work + mapped.lock_time(pool, at + queue_work, cpu)
            }
            (SqeOp::Wake | SqeOp::Timeout { .. }, _) => Nanos(0),
            (SqeOp::Read { buf, .. }, Below::Memory { ns_per_kib }) => {
                submit + copy(ns_per_kib, buf)
            }
            // The submitter of a write ends it as well.
            (SqeOp::Write { buf, .. }, Below::Memory { ns_per_kib }) => {
                submit + copy(ns_per_kib, buf) + mapped.end_of_write(buf.len_bytes.into())
            }
            _ => submit,
        }
    }

    /// Traffic of a step through memory: of a cipher that its context runs, or of the copy of a RAM
    /// disk. The data is in the socket of the original submitter.
    pub(in crate::world::devices) fn traffic_of_step(
        &mut self,
        config: &Config,
        step: &Step,
    ) -> Traffic {
        let Some(bandwidth) = config.bandwidth else { return Traffic::default() };
        let (len_bytes, percent) = match (step.sqe.op, self.mapped().config.below) {
            (SqeOp::Crypt { src, .. }, _) if step.runs_cipher() => {
                (src.len_bytes, bandwidth.cipher_percent)
            }
            (SqeOp::Read { buf, .. } | SqeOp::Write { buf, .. }, Below::Memory { ns_per_kib })
                if ns_per_kib > 0 =>
            {
                (buf.len_bytes, bandwidth.copy_percent)
            }
            _ => return Traffic::default(),
        };
        let home = config.topology.socket_of(CpuId(step.sqe.origin.cpu));
        Traffic { bytes: u64::from(len_bytes) * u64::from(percent) / 100, home }
    }

    /// Executes a step that is paid for. Returns whether a thread must wait for a request.
    pub(in crate::world::devices) fn execute(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        step: Step,
    ) -> bool {
        let sqe = step.sqe;
        match sqe.op {
            SqeOp::Crypt { .. } if step.runs_cipher() => self.ciphered(machine, by, step),
            SqeOp::Crypt { .. } if step.is_cipher() => {
                let pool = self.mapped().pools.cryptd(by.cpu());
                self.mapped().causes.by_cryptd += 1;
                let item = Step { is_taken: true, via: Via::TakenByCryptd, ..step };
                self.queue_item(machine, pool, item);
            }
            SqeOp::Crypt { place, .. } => self.hand_over(machine, by, place, step),
            SqeOp::Wake if self.mapped().writer.is_none() => {
                self.answer(machine, by, sqe.token, BlkStatus::Ok);
            }
            SqeOp::Wake => {
                self.mapped().wake = Some(sqe.token);
                let writer = self.mapped().writer.expect("a pipeline that wakes it has one");
                machine.threads.wake_from(writer, Wait::Work);
            }
            SqeOp::Timeout { after } => {
                let timeout = Interrupt::of(by.cpu(), Action::Timeout(sqe.token));
                self.interrupts.schedule(machine.threads.now() + after, timeout);
            }
            SqeOp::Fill { .. } | SqeOp::Log { .. } | SqeOp::Check { .. } => {
                unreachable!("a crypt target neither fills, logs nor checks")
            }
            SqeOp::Read { sector, buf, .. } => {
                let len = Sector::holding(buf.len_bytes.into());
                return self.give_down(machine, by, &sqe, Op::Read, (sector, len));
            }
            SqeOp::Write { sector, buf, .. } => {
                self.note_write(machine, by, &sqe, buf);
                let len = Sector::holding(buf.len_bytes.into());
                return self.give_down(machine, by, &sqe, Op::Write, (sector, len));
            }
            SqeOp::Flush { .. } => {
                return self.give_down(machine, by, &sqe, Op::Flush, (Sector(0), Sector(0)));
            }
            SqeOp::Discard { sector, len, .. } => {
                return self.give_down(machine, by, &sqe, Op::Discard, (sector, len));
            }
            SqeOp::WriteZeroes { sector, len, .. } => {
                return self.give_down(machine, by, &sqe, Op::WriteZeroes, (sector, len));
            }
        }
        false
    }

    /// Hands a cipher to a worker.
    fn hand_over(&mut self, machine: &mut Machine<'_>, by: Context, place: Place, step: Step) {
        let cpu = by.cpu();
        let mapped = self.mapped();
        mapped.causes.hand_overs += 1;
        if mapped.host_workers.is_some() {
            return self.hand_over_to_host(machine, by, place, step);
        }
        let pool = mapped.pool_of(place, cpu);
        self.queue_item(machine, pool, Step { queued_on: cpu, is_taken: true, ..step });
    }

    fn queue_item(&mut self, machine: &mut Machine<'_>, pool: PoolId, item: Step) {
        if let Some(worker) = self.mapped().pools.queue(pool, item) {
            machine.threads.wake_from(worker, Wait::Work);
        }
    }

    /// Way of a step that an interrupt is to execute: to cryptd if it has found a cipher.
    pub(in crate::world::devices) fn via_of_interrupt(
        &mut self,
        threads: &Threads<'_>,
        cpu: CpuId,
        step: &Step,
    ) -> Via {
        if self.mapped().config.cryptd != Cryptd::Busy || !step.is_cipher() {
            return step.via;
        }
        let interrupted = threads.cpus.current_of(cpu).map(|thread| &threads[thread].pending);
        let finds_cipher = interrupted.is_some_and(|pending| {
            matches!(pending.paid, Some(Next::Step))
                && pending.todo.front().is_some_and(Step::runs_cipher)
        });
        if finds_cipher { Via::Cryptd } else { step.via }
    }

    /// After a cipher: the linked write is next, or the shard is completed.
    fn ciphered(&mut self, machine: &mut Machine<'_>, by: Context, step: Step) {
        self.mapped().note_ciphered(&step, by);
        let Some(write) = step.then else {
            return self.cipher_ends(machine, by, &step);
        };
        let write =
            Step { sqe: write, then: None, queued_on: by.cpu(), is_taken: false, via: Via::Own };
        match by {
            Context::Thread(_, thread) => {
                machine.threads[thread].pending.todo.push_front(write);
            }
            Context::Interrupt(cpu) => self.interrupt(machine, cpu, Action::Step(write)),
        }
    }

    /// A cipher without a linked write completes. Those of a job do at its end.
    fn cipher_ends(&mut self, machine: &mut Machine<'_>, by: Context, step: &Step) {
        let token = step.sqe.token;
        match &mut self.mapped().host_workers {
            Some(workers) if step.is_taken => {
                for token in workers.ends(token) {
                    self.answer(machine, by, token, BlkStatus::Ok);
                }
            }
            _ => self.answer(machine, by, token, BlkStatus::Ok),
        }
    }

    pub(super) fn host_workers(&mut self) -> &mut HostWorkers {
        self.mapped().host_workers.as_mut().expect("the pipeline is adaptive")
    }

    /// Hands a cipher to the workers of `adaptive`: in a batch, or alone.
    fn hand_over_to_host(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        place: Place,
        step: Step,
    ) {
        let SqeOp::Crypt { src, .. } = step.sqe.op else { unreachable!("only a cipher does") };
        let owner = self.mapped().whole_of(src).expect("a cipher is of a bio").thread;
        let step = Step { queued_on: by.cpu(), is_taken: true, ..step };
        let workers = self.host_workers();
        let job = match (place, by) {
            (Place::UnboundBatch, Context::Thread(..)) => workers.gather(owner, step),
            // The submitter may sleep.
            _ => Some(Job { steps: vec![step], owner, wake: WakeUp::Always }),
        };
        self.queue_job(machine, job);
    }

    /// Hands over the batch of a thread, if it has one.
    pub(in crate::world::devices) fn hand_over_batch(
        &mut self,
        machine: &mut Machine<'_>,
        thread: ThreadId,
    ) {
        let Backend::Mapped(mapped) = &mut self.backend else { return };
        let job = mapped.host_workers.as_mut().and_then(|workers| workers.take_batch(thread));
        self.queue_job(machine, job);
    }

    /// Workers run the jobs of a submitter that has ended.
    pub(in crate::world::devices) fn take_over(&mut self, machine: &mut Machine<'_>) {
        let Backend::Mapped(mapped) = &mut self.backend else { return };
        if let Some(worker) = mapped.host_workers.as_mut().and_then(HostWorkers::takes_over) {
            machine.threads.wake_from(worker, Wait::Work);
        }
    }

    fn queue_job(&mut self, machine: &mut Machine<'_>, job: Option<Job>) {
        let woken = job.and_then(|job| self.host_workers().put(job));
        if let Some(worker) = woken {
            machine.threads.wake_from(worker, Wait::Work);
        }
    }

    /// Cost of a submitter's job for the CPU that hands it over at this time.
    pub(in crate::world::devices) fn cost_of_hand_over(
        &mut self,
        (cpu, at): (CpuId, Nanos),
        owner: ThreadId,
    ) -> Nanos {
        let queue_work = self.mapped().config.costs.queue_work;
        let lane = self.host_workers().lane_of(owner);
        queue_work + self.lock_of_jobs(lane, at + queue_work, cpu)
    }

    /// Time for the lock of a lane of jobs.
    pub(super) fn lock_of_jobs(&mut self, lane: usize, at: Nanos, cpu: CpuId) -> Nanos {
        let lines = self.mapped().config.costs.queue_lines;
        self.host_workers().lock_time(lane, at, cpu, lines)
    }

    /// Notes the submitter of a part of a write.
    fn note_write(&mut self, machine: &Machine<'_>, by: Context, sqe: &Sqe, buf: BufRef) {
        let context = context_of(&machine.threads, by, sqe);
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

    /// Passes a bio to the device below; returns whether a thread must wait for a request.
    fn give_down(
        &mut self,
        machine: &mut Machine<'_>,
        by: Context,
        sqe: &Sqe,
        op: Op,
        (sector, len): (Sector, Sector),
    ) -> bool {
        if let Below::Memory { .. } = self.mapped().config.below {
            self.answer(machine, by, sqe.token, BlkStatus::Ok);
            return false;
        }
        let fua = matches!(sqe.op, SqeOp::Write { fua: true, .. });
        let bio = Bio { fua, ..self.lower_bio(machine, by, sqe, op, (sector, len)) };
        let thread = match by {
            Context::Thread(_, thread) => Some(thread),
            Context::Interrupt(_) => None,
        };
        let user = bio.user;
        let named = thread.unwrap_or(machine.files.journal.thread);
        let parked = self.enters_queue(machine, by, bio, named);
        let sleeper = thread.filter(|_| parked);
        // The queue may give it a request at once.
        if let Some(sleeper) = sleeper {
            self.bios.park(user, sleeper);
        }
        self.run_queue(machine, by);
        sleeper.is_some()
    }

    fn lower_bio(
        &mut self,
        machine: &Machine<'_>,
        by: Context,
        sqe: &Sqe,
        op: Op,
        (sector, len): (Sector, Sector),
    ) -> Bio {
        let mut origin = sqe.origin;
        origin.io_context = context_of(&machine.threads, by, sqe);
        origin.cpu = by.cpu().0;
        let bytes = len.bytes();
        let lower = Lower { token: sqe.token, bytes };
        let user = u64::from(self.mapped().lowers.insert(lower));
        let buf = match op {
            Op::Read | Op::Write => BufRef::zeros(u32::try_from(bytes).expect("parts are short")),
            _ => BufRef::NONE,
        };
        Bio { origin, ..Bio::new(op, sector, len, buf, user) }
    }

    /// The writing thread takes its batch.
    pub(in crate::world::devices) fn take_batch(
        &mut self,
        machine: &mut Machine<'_>,
        cpu: CpuId,
        thread: ThreadId,
        token: Token,
    ) -> Nanos {
        self.answer(machine, Context::Thread(cpu, thread), token, BlkStatus::Ok);
        let sectors =
            machine.threads[thread].pending.todo.iter().filter_map(|step| match step.sqe.op {
                SqeOp::Write { sector, .. } => Some(sector),
                _ => None,
            });
        let sectors: Vec<Sector> = sectors.collect();
        let mapped = self.mapped();
        mapped.causes.note_batch(&sectors);
        let costs = mapped.config.costs;
        let sorts = super::threads::sorts(&mapped.config.pipeline);
        let each = if sorts { costs.batch + costs.sort } else { costs.batch };
        Nanos(each.0 * sectors.len() as u64)
    }
}

/// Time of the copy of a buffer into memory, or out of it.
fn copy(ns_per_kib: u64, buf: BufRef) -> Nanos {
    Nanos(ns_per_kib * u64::from(buf.len_bytes) / 1024)
}

/// The io-context of a bio below the target.
fn context_of(threads: &Threads<'_>, by: Context, sqe: &Sqe) -> IoContext {
    match (sqe.origin.io_context, by) {
        (IoContext::OF_TASK, Context::Thread(_, thread)) => threads[thread].io_context,
        // An interrupt borrows an arbitrary thread's context; an anonymous one is equivalent.
        (IoContext::OF_TASK, Context::Interrupt(_)) => IoContext(0),
        (context, _) => context,
    }
}
