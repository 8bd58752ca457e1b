//! A shard and its real world, driven together: submit bios, run, collect what is done.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Origin, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::control::Suspend;
use blockyard_engine::dm::crypt::pipeline::Load;
use blockyard_engine::dm::table::TargetSpec;
use blockyard_engine::priority::Priority;
use blockyard_engine::sq::{Cqe, Sqe};
use blockyard_engine::stack::Stack;
use blockyard_engine::time::Nanos;

use crate::canary::{Canary, is_planted};
use crate::durability::Durability;
use crate::executor::{Buffers, Executor};
use crate::gate::{Counts, Order, ShardGate};
use crate::memory::Region;
use crate::poll;
use crate::ranges::{Claims, Granted};
use crate::recording::Tracepoint;
use crate::submitter::Submitter;
use crate::user_data::UserData;
use crate::workers::{Busy, Workers};

mod bounce;
mod parts;
mod patch;

pub(crate) use bounce::BounceBudget;
use bounce::PageShare;
pub(crate) use parts::Parts;
pub(crate) use patch::Patch;
use patch::Patches;

/// Bounce slots: what one write to a disk is cut to. Larger ones gain a few percent on a disk and
/// cost memory in flight.
pub(crate) const SLOT_BYTES: usize = 64 << 10;

/// One shard with its executor. More than twelve fields: each bio passes all of these parts.
pub(crate) struct Driver {
    shard: Stack,
    /// `None` without pages.
    page_share: Option<PageShare>,
    /// The clock of its targets starts there; `None` where no target reads it.
    epoch: Option<Instant>,
    executor: Executor,
    /// The lines whose state `status` shows.
    shown: Vec<u16>,
    /// To look at before it is decided where a bio of this length or more goes, if that depends on
    /// them: shorter ones are not to pay for the look.
    workers: Option<(Arc<Workers>, Sector)>,
    /// Whether the last bio is awaited, if it was that long.
    long: Option<bool>,
    submitter: Submitter,
    /// Bios that come and end are recorded there.
    tracepoint: Tracepoint,
    durability: Arc<Durability>,
    /// The `user` words of flushes and FUA writes in flight.
    stable: Vec<u64>,
    sqes: Vec<Sqe>,
    cqes: Vec<Cqe>,
    done: Vec<Done>,
    patches: Patches,
    /// Emptied after each use; kept for its memory.
    granted: Vec<Granted>,
    /// `None` where nothing is written. Behind the executor, which waits for what is in flight when
    /// it is dropped: until then the ranges are taken.
    claims: Option<Claims>,
    /// `None` where the volume cannot be suspended. The last field: until the executor is dropped
    /// the shard is busy.
    gate: Option<ShardGate>,
}

impl Driver {
    /// A driver with `bounce_slots` bounce slots (at least as many as the table needs are made),
    /// and the front end's buffers. What it submits has this priority, and an io-context of its
    /// own.
    pub(crate) fn new(
        parts: &Parts,
        bounce_slots: usize,
        world: Vec<Arc<Region>>,
        priority: Priority,
    ) -> io::Result<Self> {
        let (bounce, bounce_bytes) = parts.bounce.bounce(bounce_slots);
        let patch_slot = BufRef::FIRST_WORLD_SLOT + world.len() as u32;
        let patches = Patches::new(&parts.table, patch_slot)?;
        let buffers = Buffers {
            bounce: Region::new(bounce_bytes)?,
            bounce_slot_bytes: SLOT_BYTES,
            has_pages: parts.bounce.has_pages(),
            lists: Vec::new(),
            world: world.into_iter().chain([patches.region()]).collect(),
        };
        let submitter = Submitter::new(priority);
        let executor = Executor::new(
            &parts.backend,
            parts.workers.as_ref(),
            parts.writer,
            &parts.stage_stats,
            buffers,
            submitter.io_context(),
        )?;
        Ok(Self {
            epoch: parts.table.reads_clock().then_some(parts.opened),
            shown: shown_lines(parts),
            shard: Stack::new(&parts.table, bounce).expect("the pool is larger than the reserves"),
            page_share: PageShare::join(&parts.bounce),
            executor,
            workers: parts.workers.clone().zip(parts.asks_load_from),
            long: None,
            submitter,
            tracepoint: Tracepoint::new(&parts.switch),
            durability: Arc::clone(&parts.durability),
            stable: Vec::new(),
            sqes: Vec::new(),
            cqes: Vec::new(),
            done: Vec::new(),
            patches,
            granted: Vec::new(),
            claims: parts.ranges.as_ref().map(Claims::new).transpose()?,
            gate: parts.gate.as_ref().map(ShardGate::new).transpose()?,
        })
    }

    /// The front end has received something that it is about to submit.
    pub(crate) fn on_received(&mut self) {
        self.executor.samples.on_received();
    }

    /// Accepts a bio and does all of it that can be done at once. What a device with a queue is
    /// asked for waits for [`Driver::unplug`].
    pub(crate) fn submit(&mut self, bio: Bio) {
        self.executor.set_awaited(false);
        self.submit_with(bio, false);
    }

    /// What is submitted from now on has this priority.
    pub(crate) fn set_priority(&mut self, priority: Priority) {
        self.submitter.set_priority(priority);
    }

    /// The same for a bio whose submitter has nothing else to do until it ends. What would block
    /// may wait for [`Driver::wait`], or whatever else is called next.
    pub(crate) fn submit_awaited(&mut self, bio: Bio) {
        // A controlled volume follows orders while its device is slow.
        self.executor.set_awaited(self.gate.is_none());
        self.submit_with(bio, true);
    }

    /// What was to be awaited is not, for now.
    pub(crate) fn go_on(&mut self) {
        self.executor.set_awaited(false);
    }

    fn submit_with(&mut self, bio: Bio, is_awaited: bool) {
        assert!(UserData(bio.user).is_plain(), "the upper half of the word is the driver's");
        let fua = bio.fua && !is_planted(Canary::Fua);
        let bio = self.named(Bio { fua, ..bio });
        let is_long = self.workers.as_ref().is_some_and(|(_, least)| bio.len >= *least);
        self.long = is_long.then_some(is_awaited);
        if is_long {
            // What has come back since makes room for more.
            self.collect();
        }
        let _busy = self.busy();
        self.look(0);
        self.claim_and_pass(bio);
        self.settle();
    }

    /// A bio with its origin; it passes the tracepoint, and time may be kept of it.
    fn named(&mut self, bio: Bio) -> Bio {
        let origin = self.submitter.origin(&bio);
        let origin = Origin { sample: self.executor.samples.begin(&bio), ..origin };
        let bio = Bio { origin, ..bio };
        self.tracepoint.came(&bio);
        bio
    }

    /// Through the gate once it has its range.
    fn claim_and_pass(&mut self, bio: Bio) {
        let bio = match &mut self.claims {
            Some(claims) => claims.claim(bio),
            None => Some(bio),
        };
        if let Some(bio) = bio {
            self.pass(bio);
        }
    }

    /// Goes on with what has been granted its range, and with read-modify-writes one of whose bios
    /// has ended.
    fn settle(&mut self) {
        loop {
            if let Some(claims) = &mut self.claims {
                claims.take_granted(&mut self.granted);
            }
            if self.granted.is_empty() && !self.patches.has_ended() {
                return;
            }
            // What goes on now may be another's than who waits.
            self.go_on();
            let mut granted = std::mem::take(&mut self.granted);
            for granted in granted.drain(..) {
                match granted {
                    Granted::Bio(bio) => self.pass(bio),
                    Granted::Alone(number) => self.read_for_patch(number),
                }
            }
            self.granted = granted;
            self.advance_patches();
        }
    }

    /// Until the value is dropped, this thread keeps a CPU busy; `None` after a short bio.
    fn busy(&self) -> Option<Busy> {
        let (workers, _) = self.workers.as_ref().filter(|_| self.long.is_some())?;
        Some(workers.busy())
    }

    /// Sees what else goes on, while this thread is busy; so many bytes go to the cipher now. After
    /// a short bio nobody looks.
    fn look(&mut self, at_once_bytes: u64) {
        if let (Some((workers, _)), Some(is_awaited)) = (&self.workers, self.long) {
            self.shard.set_load(Load { at_once_bytes, is_awaited, ..workers.load() });
        }
    }

    /// Through the gate, if there is one and it is open.
    fn pass(&mut self, bio: Bio) {
        if self.gate.is_none() {
            return self.submit_now(bio);
        }
        self.follow_orders();
        if self.gate.as_mut().is_none_or(|gate| gate.admit(&bio)) {
            self.submit_now(bio);
        } else {
            self.pass_held();
        }
    }

    /// Follows the orders of the control thread.
    fn follow_orders(&mut self) {
        let Some(gate) = self.gate.as_ref().filter(|gate| gate.is_woken()) else { return };
        let (orders, now) = (gate.take_orders(), self.now());
        for order in orders {
            match order {
                Order::Message(number, text) => {
                    // It was tried before it was sent; one that comes while the volume is being
                    // suspended is refused here, and followed by nobody.
                    let _ = self.shard.message(now, number, &text);
                }
                Order::Suspend => self.shard.suspend(now, Suspend::Flush),
                Order::Resume => self.shard.resume_targets(now),
            }
        }
        self.run(now);
    }

    fn submit_now(&mut self, bio: Bio) {
        if let Some(status) = self.durability.refusal(bio.op) {
            return self.refuse(&bio, status);
        }
        if bio.op == Op::Flush || bio.fua || bio.preflush {
            self.stable.push(bio.user);
        }
        let now = self.now();
        if let Some(share) = &mut self.page_share
            && let Some(limit_pages) = share.changed()
        {
            self.shard.set_page_limit(now, limit_pages);
        }
        self.shard.submit_bio(now, bio);
        self.run(now);
    }

    /// Ends a bio that is not accepted any more.
    fn refuse(&mut self, bio: &Bio, status: BlkStatus) {
        let before = self.done.len();
        self.done.push(Done { user: bio.user, status });
        self.end(before);
        if let Some(gate) = &mut self.gate {
            gate.refused(bio.op);
            if self.shard.in_flight() == 0 {
                gate.left();
            }
        }
    }

    /// A flush that succeeded while another one failed has failed too.
    fn judge(&mut self, from: usize) {
        for done in &mut self.done[from..] {
            let place = self.stable.iter().position(|user| *user == done.user);
            if let Some(place) = place {
                self.stable.swap_remove(place);
                if done.status == BlkStatus::Ok {
                    done.status = self.durability.refusal(Op::Flush).unwrap_or(BlkStatus::Ok);
                }
            }
        }
    }

    /// What was held while the volume was suspended, as far as it may go on.
    fn pass_held(&mut self) {
        while let Some(gate) = &mut self.gate {
            let before = self.done.len();
            let bio = gate.next(&mut self.done);
            self.end(before);
            let Some(bio) = bio else { break };
            self.submit_now(bio);
        }
    }

    /// Nothing more is submitted for now: before anything is waited for.
    pub(crate) fn unplug(&mut self) {
        loop {
            self.settle();
            self.run_writer();
            self.executor.unplug(&mut self.cqes);
            if self.cqes.is_empty() && !self.patches.has_ended() {
                break;
            }
            let _busy = self.busy();
            let now = self.now();
            self.answer(now);
            self.run(now);
        }
        if let Some(gate) = &mut self.gate {
            let shard = &self.shard;
            gate.publish(Counts {
                decisions: shard.decisions(),
                errors: shard.failures(),
                parked: shard.parked() as u64,
                in_flight: shard.in_flight() as u64,
                ..Counts::default()
            });
            if !self.shown.is_empty() {
                let shard = &mut self.shard;
                let info = |&number| Some((number, shard.status(number)?.info));
                gate.show(self.shown.iter().filter_map(info).collect());
            }
        }
    }

    /// Since the volume was opened: all its connections have one clock.
    fn now(&self) -> Nanos {
        let elapsed = self.epoch.map_or(Duration::ZERO, |epoch| epoch.elapsed());
        Nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// This thread is also the one that submits encrypted writes: all that came together in this
    /// turn are one batch.
    fn run_writer(&mut self) {
        while self.executor.take_woken(&mut self.cqes) {
            let now = self.now();
            self.answer(now);
            self.shard.take_sq(&mut self.sqes);
            self.executor.execute_as_writer(&self.sqes, &self.shard, &mut self.cqes);
            self.sqes.clear();
            self.answer(now);
            self.run(now);
        }
    }

    fn run(&mut self, now: Nanos) {
        loop {
            self.shard.take_sq(&mut self.sqes);
            if self.sqes.is_empty() {
                break;
            }
            self.executor.execute(&self.sqes, &self.shard, &mut self.cqes);
            self.sqes.clear();
            self.answer(now);
        }
        let before = self.done.len();
        self.shard.take_done(&mut self.done);
        if !self.stable.is_empty() {
            self.judge(before);
        }
        self.end(before);
        if let Some(gate) = &mut self.gate
            && self.shard.in_flight() == 0
        {
            gate.left();
        }
    }

    /// Bios that have ended lie in `done` from here on: their ranges are given back, and what is of
    /// a read-modify-write goes there.
    fn end(&mut self, from: usize) {
        let Some(claims) = &mut self.claims else {
            return self.tracepoint.ended(&self.done[from..]);
        };
        let mut next = from;
        while next < self.done.len() {
            let done = &mut self.done[next];
            if let Some(number) = UserData(done.user).patch() {
                let done = self.done.remove(next);
                self.tracepoint.ended(&[done]);
                self.executor.samples.end(&[done]);
                self.patches.ended(number, done.status);
                continue;
            }
            done.user = claims.release(done.user);
            next += 1;
        }
        self.tracepoint.ended(&self.done[from..]);
    }

    /// Bios of this driver are never handed over, whatever their length.
    pub(crate) fn stay_inline(&mut self) {
        self.workers = None;
        self.shard.set_load(Load { idle_cpus: 0, ..Load::default() });
    }

    fn answer(&mut self, now: Nanos) {
        if self.long.is_some() {
            self.look(self.shard.arriving_bytes(&self.cqes));
        }
        for cqe in self.cqes.drain(..) {
            self.shard.on_cqe(now, cqe);
        }
    }

    /// Collects what has been answered meanwhile and goes on with it.
    pub(crate) fn poll(&mut self) {
        if self.gate.is_some() {
            self.follow_orders();
            self.pass_held();
        }
        self.collect();
        self.settle();
    }

    fn collect(&mut self) {
        if !self.executor.is_idle() {
            self.executor.poll(&mut self.cqes);
            let _busy = self.busy();
            let now = self.now();
            self.answer(now);
            self.run(now);
        }
    }

    /// Moves the finished bios to the end of `out`.
    pub(crate) fn take_done(&mut self, out: &mut Vec<Done>) {
        self.executor.samples.end(&self.done);
        out.append(&mut self.done);
    }

    /// Whether [`Driver::take_done`] has something.
    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Takes the outcome of the bio with this `user` word, if it has finished.
    pub(crate) fn take_one(&mut self, user: u64) -> Option<BlkStatus> {
        let place = self.done.iter().position(|done| done.user == user)?;
        self.executor.samples.end(&self.done[place..=place]);
        Some(self.done.swap_remove(place).status)
    }

    /// Submits a bio and waits for it; others that finish meanwhile stay for [`Driver::take_done`].
    pub(crate) fn submit_and_wait(&mut self, bio: Bio) -> BlkStatus {
        let user = bio.user;
        self.submit_awaited(bio);
        loop {
            self.unplug();
            if let Some(status) = self.take_one(user) {
                self.go_on();
                return status;
            }
            // Not `wait`: it returns at once while others lie finished.
            self.sleep();
        }
    }

    /// Waits until there is something to take.
    pub(crate) fn wait(&mut self) {
        self.unplug();
        if !self.has_done() {
            self.sleep();
        }
    }

    /// The same, for so long at most.
    pub(crate) fn wait_for(&mut self, limit: Duration) {
        self.unplug();
        if !self.has_done() {
            self.sleep_for(Some(limit));
        }
    }

    fn sleep(&mut self) {
        self.sleep_for(None);
    }

    /// Sleeps until something has been answered, and goes on with it; nothing is plugged.
    fn sleep_for(&mut self, limit: Option<Duration>) {
        assert!(!self.is_idle(), "what is waited for is in flight");
        if self.executor.help() {
            return self.poll();
        }
        let waits_outside = limit.is_some() || self.gate.is_some() || self.waits_for_range();
        if waits_outside || !self.executor.wait_inside() {
            self.go_on();
            let limit = self.wake_after().into_iter().chain(limit).min();
            if poll::readable(&self.wake_sources(), limit).is_err() {
                std::thread::yield_now();
            }
        }
        self.poll();
    }

    /// Whether nothing is with the ring, the workers, the disks, in a plug, waits for its time, for
    /// its range, for the volume to be resumed, or in a target for an order.
    pub(crate) fn is_idle(&self) -> bool {
        let goes_on = self.holds() || self.waits_for_range() || !self.patches.is_idle();
        self.executor.is_idle() && !goes_on && self.shard.parked() == 0
    }

    fn waits_for_range(&self) -> bool {
        self.claims.as_ref().is_some_and(Claims::waits)
    }

    fn holds(&self) -> bool {
        self.gate.as_ref().is_some_and(ShardGate::holds)
    }

    /// Whether a submitted write may still read the front end's buffer.
    pub(crate) fn reads_client_buffer(&self) -> bool {
        let waits = self.holds() || self.claims.as_ref().is_some_and(Claims::parks_bios);
        self.executor.reads_client_buffer() || self.shard.parked() > 0 || waits
    }

    /// What becomes readable when [`Driver::poll`] has something.
    pub(crate) fn wake_sources(&self) -> [Option<BorrowedFd<'_>>; 4] {
        let [ring, workers] = self.executor.wake_sources();
        let (gate, range) = (self.gate.as_ref(), self.claims.as_ref());
        [ring, workers, gate.and_then(ShardGate::wake), range.and_then(Claims::wake)]
    }

    /// After this time [`Driver::poll`] has something in any case.
    pub(crate) fn wake_after(&self) -> Option<Duration> {
        self.executor.wake_after()
    }

    /// Gives memory back while nothing is in flight.
    pub(crate) fn release_buffers(&self) {
        self.executor.release_buffers();
    }
}

/// The numbers of the lines whose state is shown, if there is anybody to look.
fn shown_lines(parts: &Parts) -> Vec<u16> {
    if !parts.gate.as_ref().is_some_and(|gate| gate.is_controlled()) {
        return Vec::new();
    }
    let lines = (0..).zip(parts.table.extents());
    let lines = lines.filter(|(_, line)| matches!(line.target, TargetSpec::Multipath(_)));
    lines.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests;
