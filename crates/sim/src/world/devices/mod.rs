//! The devices: a request queue with a device model, and the back end that takes the bios of
//! threads.
//!
//! ```text
//!   thread ── bios ──> back end ─┬─ queue ──> [RAID] ──> request queue, elevator ──> device model
//!                                ├─ mapped ─> crypt target ── its bios ──^
//!                                └─ null ───> queues and device of its own
//! ```
//! Each member of a RAID is a device with its own queue and elevator ([`raid`]).
//! A limit of the rate holds bios in front of the queue and the mapped device.
//! A thread submits its bios in its turns ([`Devices::go`], [`Devices::proceed`]). An interrupt
//! ends them. Ended bios go to [`super::files`], which wakes the waiting threads.

mod bios;
mod dm;
mod elevator;
mod interrupts;
mod io;
mod member;
mod null;
mod raid;
mod throttled;
mod transfers;
mod turns;

use blockyard_engine::bio::{BlkStatus, Done};
use blockyard_engine::mq::Issue;
use blockyard_engine::request::Tag;
use blockyard_engine::time::{Nanos, earlier};

use self::bios::Bios;
use self::dm::Mapped;
use self::elevator::ElevatorWork;
use self::member::Member;
use self::null::Null;
use self::raid::Raid;
use self::throttled::Throttled;
use super::actions::{Context, Interrupt, MemberId, Step};
use super::causes::Causes;
use super::config::{Config, DeviceConfig};
use super::machine::Machine;
use super::thread::{Kind, Turn};
use super::threads::Threads;
use crate::cpu::{CpuId, ThreadId};
use crate::device::Device;
use crate::heap::EventHeap;

/// CPU of the queue's timers.
const KEEPER: CpuId = CpuId(0);

/// The layer that receives the bios of threads.
enum Backend {
    /// The request queue.
    Queue,
    /// A mapped device above it.
    Mapped(Box<Mapped>),
    /// A null device with its own queues; it replaces queue and device.
    Null(Box<Null>),
}

/// The back end, the RAID, and the devices with their queues.
pub(super) struct Devices {
    backend: Backend,
    /// `None` without a limit of the rate.
    throttled: Option<Throttled>,
    raid: Option<Raid>,
    /// One, or those of the RAID. The only one stays empty if the back end is a null device.
    members: Vec<Member>,
    bios: Bios,
    /// Actions of interrupts, after their cost is paid.
    interrupts: EventHeap<Interrupt>,
    /// Number of requests at the devices.
    at_device: u32,
    /// Number of dispatched requests that have not ended for the queue.
    in_flight: u32,
    scratch: Scratch,
}

/// Emptied after each use; kept for their memory.
#[derive(Default)]
struct Scratch {
    done: Vec<Done>,
    ended: Vec<(u64, BlkStatus)>,
    unparked: Vec<u64>,
    issues: Vec<Issue>,
    device_ended: Vec<(Nanos, Tag)>,
    steps: Vec<Step>,
}

impl Devices {
    pub(super) fn new(config: &Config) -> Self {
        let backend = match (&config.device, &config.mapped) {
            (DeviceConfig::Null(null), _) => {
                let stack = config.stack.as_ref();
                let work = ElevatorWork::new(config.elevator_costs, hw_queues(config));
                let null = Null::new(null, stack, config.queue, (&config.elevator, work));
                Backend::Null(Box::new(null))
            }
            (_, Some(mapped)) => Backend::Mapped(Box::new(Mapped::new(mapped, config))),
            (_, None) => Backend::Queue,
        };
        Self {
            backend,
            throttled: Throttled::new(config.limits),
            raid: config.raid.map(|raid| Raid::new(raid, config.queue.rotational)),
            members: (0..config.members()).map(|number| Member::new(config, number)).collect(),
            bios: Bios::default(),
            interrupts: EventHeap::default(),
            at_device: 0,
            in_flight: 0,
            scratch: Scratch::default(),
        }
    }

    /// Spawns the threads of the back end.
    pub(super) fn spawn(&mut self, machine: &mut Machine<'_>) {
        match &mut self.backend {
            Backend::Queue => {}
            Backend::Mapped(mapped) => mapped.spawn(&mut machine.threads),
            Backend::Null(null) => null.spawn(machine),
        }
    }

    /// Whether a flusher must wait before it writes more.
    pub(super) fn is_congested(&mut self) -> bool {
        self.members.iter_mut().any(|member| member.block.queue().is_congested(false))
    }

    fn member(&mut self, MemberId(number): MemberId) -> &mut Member {
        &mut self.members[usize::from(number)]
    }

    fn member_ids(&self) -> impl Iterator<Item = MemberId> + use<> {
        let members = u16::try_from(self.members.len()).expect("it was such a number");
        (0..members).map(MemberId)
    }

    /// Time of the next event of a device or its queue.
    fn next_of_members(&self) -> Option<Nanos> {
        self.members.iter().filter_map(|member| member.block.next_event()).min()
    }

    /// Time of the next event outside threads.
    pub(super) fn next_event(&self) -> Option<Nanos> {
        let null = match &self.backend {
            Backend::Null(null) => null.next_event(),
            Backend::Queue | Backend::Mapped(_) => None,
        };
        let tokens = self.throttled.as_ref().and_then(Throttled::next_event);
        let devices = earlier(null, tokens);
        earlier(earlier(self.next_of_members(), self.interrupts.next_at()), devices)
    }

    /// Handles the first event that is due: of the device, an interrupt, or a null device.
    pub(super) fn advance(&mut self, machine: &mut Machine<'_>) {
        let now = Some(machine.threads.now());
        if self.next_of_members() == now {
            self.advance_member(machine);
        } else if self.interrupts.next_at() == now {
            self.interrupt_ends(machine);
        } else if let Backend::Null(null) = &mut self.backend {
            null.advance(machine);
        } else {
            self.start_throttled(machine);
        }
    }

    /// Continues the submission of the thread's bios; `None` if it has none.
    pub(super) fn continue_turn(
        &mut self,
        machine: &mut Machine<'_>,
        cpu: CpuId,
        thread: ThreadId,
    ) -> Option<Turn> {
        let has_bios = !machine.threads[thread].outbox.is_empty();
        match &mut self.backend {
            Backend::Null(null) => has_bios.then(|| null.go(machine, cpu, thread, Nanos(0))),
            Backend::Queue | Backend::Mapped(_) => self.proceed(machine, cpu, thread),
        }
    }

    /// The turn of a thread of the back end.
    pub(super) fn turn(
        &mut self,
        machine: &mut Machine<'_>,
        (cpu, thread): (CpuId, ThreadId),
        kind: Kind,
    ) -> Turn {
        match (kind, &mut self.backend) {
            (Kind::Worker(pool), _) => self.work(machine, (cpu, thread), pool),
            (Kind::HostWorker, _) => self.work_for_host(machine, cpu, thread),
            (Kind::Writer, _) => self.write_out(machine, cpu, thread),
            (Kind::Kblockd(of), Backend::Null(null)) => null.run_worker(machine, of),
            (Kind::Softirq(of), Backend::Null(null)) => null.run_softirqs(machine, of),
            _ => unreachable!("the back end has made no such thread"),
        }
    }

    /// Ends a thread; its started work continues without it.
    pub(super) fn end_thread(&mut self, machine: &mut Machine<'_>, thread: ThreadId) {
        match &mut self.backend {
            Backend::Null(null) => null.abandon(machine, thread),
            Backend::Queue | Backend::Mapped(_) => self.abandon(machine, thread),
        }
        let now = machine.threads.now();
        let io_context = machine.threads[thread].io_context;
        for member in &mut self.members {
            member.block.queue().unplug(now, io_context);
            member.block.queue().exit_context(now, io_context);
        }
        let cpu = machine.threads.cpus.last_of(thread);
        self.run_queue(machine, Context::Interrupt(cpu));
    }

    /// Whether the back end has bios that need running threads to end.
    pub(super) fn needs_threads(&self) -> bool {
        match &self.backend {
            Backend::Queue => false,
            Backend::Mapped(_) => self.bios.len() > 0,
            Backend::Null(null) => null.bios_in_flight() > 0,
        }
    }

    /// Waits until all bios have ended. No thread runs any more.
    ///
    /// # Errors
    /// Something is left, or does not end; the text says which.
    pub(super) fn drain(&mut self, machine: &mut Machine<'_>) -> Result<(), String> {
        match &self.backend {
            Backend::Null(null) if !null.is_idle() => {
                return Err("every bio has ended, and the null device's queue has requests".into());
            }
            Backend::Mapped(mapped) if !mapped.is_idle() => {
                return Err("every bio has ended, and the mapped device still has parts".into());
            }
            _ => {}
        }
        self.release_issues(machine);
        while self.bios.len() > 0 {
            let block = self.next_of_members();
            let interrupt = self.interrupts.next_at();
            let memory = machine.threads.next_flow_end();
            let at = earlier(memory, earlier(block, interrupt)).ok_or_else(|| {
                format!("{} bios never end, and nothing happens any more", self.bios.len())
            })?;
            machine.threads.clock.now = machine.threads.now().max(at);
            if memory == Some(at) {
                machine.threads.end_flows();
                self.end_transfers(machine);
            } else if interrupt == Some(at) {
                self.interrupt_ends(machine);
            } else {
                self.advance_member(machine);
            }
        }
        let is_idle = self.members.iter_mut().all(|member| member.block.queue().is_idle());
        if !is_idle || self.in_flight > 0 || self.raid.as_ref().is_some_and(|raid| !raid.is_idle())
        {
            return Err("every bio has ended, and the queue still has requests".into());
        }
        Ok(())
    }

    /// Adds the causes that devices know.
    pub(super) fn add_causes(&mut self, threads: &Threads<'_>, causes: &mut Causes) {
        for member in &mut self.members {
            causes.add_queue(member.block.queue().counters());
            causes.elevator.add(&member.elevator.counters());
            if let Some(disk) = member.block.device().disk_counters() {
                causes.disk.get_or_insert_default().add(&disk);
            }
        }
        match &self.backend {
            Backend::Queue => {}
            Backend::Mapped(mapped) => causes.crypt = Some(mapped.causes()),
            Backend::Null(null) => {
                causes.queue = null.counters();
                causes.elevator = null.elevator_counters();
                causes.null = Some(null.causes(threads));
            }
        }
    }
}

/// Hardware queues of the queue with the elevator.
fn hw_queues(config: &Config) -> u16 {
    config.stack.map_or(config.queue.hw_queues, |stack| stack.upper.hw_queues)
}
