//! A shard with its executor: submits bios, runs the shard, collects completions.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Origin, Sample};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::control::Suspend;
use blockyard_engine::dm::table::Table;
use blockyard_engine::priority::Priority;
use blockyard_engine::sq::{Cqe, Sqe};
use blockyard_engine::stack::Stack;
use blockyard_engine::throttle::Held;
use blockyard_engine::time::Nanos;

use crate::canary::{Canary, is_planted};
use crate::dirty_bitmap::DirtyBitmap;
use crate::durability::Durability;
use crate::executor::{Buffers, Executor};
use crate::gate::{Counts, Next, Order, ShardGate};
use crate::memory::Region;
use crate::poll;
use crate::ranges::{Claims, Waited};
use crate::recording::Tracepoint;
use crate::stages::Stage;
use crate::submitter::Submitter;
use crate::throttle::{DriverThrottle, SharedThrottle};
use crate::user_data::UserData;

mod bounce;
mod load;
mod parts;
mod patch;
mod turn;

pub(crate) use bounce::BounceBudget;
use bounce::PageShare;
use load::Watch;
pub(crate) use parts::Parts;
pub(crate) use patch::Patch;
use patch::Patches;

/// Length of a bounce slot, and so of a write to a disk. Larger slots gain a few percent on a disk
/// and cost memory in flight.
pub(crate) const SLOT_BYTES: usize = 64 << 10;

/// Fate of bios that wait for tokens of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldBios {
    /// They wait.
    Wait,
    /// They start.
    Start,
    /// They fail.
    Fail,
}

impl HeldBios {
    /// Whether bios fail that need tokens. At the end of the server all start.
    fn fail(self, throttle: &DriverThrottle) -> bool {
        self == Self::Fail && throttle.is_limited() && !throttle.is_lifted()
    }
}

/// Writes that are to be stable.
struct Stability {
    /// Whether acknowledged writes can still be made stable.
    durability: Arc<Durability>,
    /// Flushes and FUA writes in flight.
    in_flight: Vec<Stable>,
}

/// One shard with its executor.
// 19 fields: each bio passes all of these parts.
pub(crate) struct Driver {
    shard: Stack,
    /// `None` without pages.
    page_share: Option<PageShare>,
    /// Start of its targets' clock; `None` if no target reads it.
    epoch: Option<Instant>,
    executor: Executor,
    /// Lines whose state `status` shows.
    shown: Vec<u16>,
    /// `None` if the placement of ciphers does not depend on the load.
    watch: Option<Watch>,
    submitter: Submitter,
    /// Records submissions and ends of bios.
    tracepoint: Tracepoint,
    stability: Stability,
    /// Blocks written since the last backup; `None` if they are not tracked.
    dirty: Option<Arc<DirtyBitmap>>,
    sqes: Vec<Sqe>,
    cqes: Vec<Cqe>,
    done: Vec<Done>,
    patches: Patches,
    /// Grants whose bios are to start.
    granted: VecDeque<Waited>,
    /// `None` without limits of the rate.
    throttle: Option<DriverThrottle>,
    /// Held bios do not wait for tokens any more.
    held_bios: HeldBios,
    /// `None` for read-only volumes. Declared after the executor, so that ranges stay taken until
    /// its drop has waited for operations in flight.
    claims: Option<Claims>,
    /// `None` if the volume cannot be suspended. The last field: the shard is busy until the
    /// executor is dropped.
    gate: Option<ShardGate>,
}

impl Driver {
    /// A driver with `bounce_slots` bounce slots, or as many as the table needs, and the front
    /// end's buffers. Its bios have this priority and a new io-context. No request of its client is
    /// older than `since`.
    pub(crate) fn new(
        parts: &Parts,
        bounce_slots: usize,
        world: Vec<Arc<Region>>,
        priority: Priority,
        since: Instant,
    ) -> io::Result<Self> {
        let (bounce, bounce_bytes) = parts.bounce.bounce(bounce_slots);
        let patch_slot = BufRef::FIRST_WORLD_SLOT + world.len() as u32;
        let table = parts.table.get();
        let patches = Patches::new(&table, patch_slot)?;
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
            (submitter.io_context(), since),
        )?;
        Ok(Self {
            epoch: table.reads_clock().then_some(parts.opened),
            shown: shown_lines(parts, &table),
            shard: Stack::new(&table, bounce).expect("the pool is larger than the reserves"),
            page_share: PageShare::join(&parts.bounce),
            executor,
            watch: Watch::new(parts),
            submitter,
            tracepoint: Tracepoint::new(&parts.switch),
            stability: Stability {
                durability: Arc::clone(&parts.durability),
                in_flight: Vec::new(),
            },
            dirty: parts.dirty.clone(),
            sqes: Vec::new(),
            cqes: Vec::new(),
            done: Vec::new(),
            patches,
            granted: VecDeque::new(),
            throttle: None,
            held_bios: HeldBios::Wait,
            claims: parts.ranges.as_ref().map(Claims::new).transpose()?,
            gate: parts.gate.as_ref().map(ShardGate::new).transpose()?,
        })
    }

    /// The front end has received a request that it is about to submit.
    pub(crate) fn on_received(&mut self) {
        self.executor.samples.on_received();
    }

    /// Limits the rate of later bios.
    pub(crate) fn set_throttle(&mut self, shared: Option<&Arc<SharedThrottle>>) {
        self.throttle = shared.map(DriverThrottle::new);
    }

    /// Logs slow requests of this export, if the operator wants it.
    pub(crate) fn log_slow_requests(&mut self, export: &str) {
        self.executor.samples.log_slow(export);
    }

    /// The client has left: held bios fail, because no reply can be sent.
    pub(crate) fn abandon_held(&mut self) {
        self.held_bios = HeldBios::Fail;
    }

    /// The front end waits for the end of its requests: held bios start.
    pub(crate) fn start_held(&mut self) {
        self.held_bios = HeldBios::Start;
    }

    /// Whether a bio would wait for tokens now.
    #[inline]
    pub(crate) fn would_wait(&self) -> bool {
        self.throttle.as_ref().is_some_and(DriverThrottle::would_wait)
    }

    /// A request begins that moves or discards data: one operation, also in several bios.
    #[inline]
    pub(crate) fn count_request(&mut self) {
        if let Some(throttle) = &mut self.throttle {
            throttle.begin_request();
        }
    }

    /// Accepts a bio and does all work that does not block. Operations for a device with a queue
    /// wait for [`Driver::unplug`].
    pub(crate) fn submit(&mut self, bio: Bio) {
        self.executor.set_awaited(false);
        self.submit_with(bio, false);
    }

    /// Whether the volume takes this operation: a read-only volume takes no changes. The front end
    /// asks, because the engine and memory would accept them.
    pub(crate) fn permits(&self, op: Op) -> bool {
        self.claims.is_some() || matches!(op, Op::Read | Op::Flush)
    }

    /// Sets the priority of later bios.
    pub(crate) fn set_priority(&mut self, priority: Priority) {
        self.submitter.set_priority(priority);
    }

    /// Like [`Driver::submit`], for a submitter that has nothing else to do until the bio ends.
    /// Blocking work may wait for [`Driver::wait`], or for the next other call.
    pub(crate) fn submit_awaited(&mut self, bio: Bio) {
        // A controlled volume must follow orders while its device is slow, and a held bio starts
        // later.
        self.executor.set_awaited(self.gate.is_none() && self.throttle.is_none());
        self.submit_with(bio, true);
    }

    /// The submitter no longer waits for its bio.
    pub(crate) fn go_on(&mut self) {
        self.executor.set_awaited(false);
    }

    fn submit_with(&mut self, mut bio: Bio, is_awaited: bool) {
        assert!(UserData(bio.user).is_plain(), "the upper half of the word is the driver's");
        bio.fua &= !is_planted(Canary::Fua);
        self.name(&mut bio);
        let at_workers = self.executor.at_workers();
        let watch = self.watch.as_mut();
        if watch.is_some_and(|watch| watch.note(&bio, is_awaited, at_workers)) {
            // Completions since the last call make room.
            self.collect();
        }
        let _busy = self.busy();
        self.look(0);
        if self.throttle.as_ref().is_some_and(|throttle| self.held_bios.fail(throttle)) {
            self.refuse_held(&bio);
        } else if self.held_bios == HeldBios::Start
            || self.throttle.as_mut().is_none_or(|throttle| throttle.admit(&bio))
        {
            self.pass(bio);
        }
        self.settle();
    }

    /// Starts held bios that have tokens; all, if a begun request or the end of the server would
    /// wait.
    fn start_throttled(&mut self) {
        while let Some(throttle) = &mut self.throttle {
            let is_open = self.held_bios != HeldBios::Wait
                || self.gate.as_ref().is_some_and(ShardGate::is_draining);
            let fails = self.held_bios.fail(throttle);
            if fails {
                throttle.give_back();
            }
            let Some(Held { bio, since, .. }) = throttle.next(is_open) else { break };
            if fails {
                self.refuse_held(&bio);
                continue;
            }
            if bio.origin.sample != Sample::NONE {
                self.executor.samples.add_since(bio.origin.sample, Stage::Throttle, since);
            }
            self.pass(bio);
        }
    }

    /// Ends a held bio, which has no range and has not passed the gate.
    fn refuse_held(&mut self, bio: &Bio) {
        if let Some(number) = UserData(bio.user).patch() {
            return self.patches.ended(number, BlkStatus::IoError);
        }
        self.tracepoint.ended(&[Done { user: bio.user, status: BlkStatus::IoError }]);
        self.done.push(Done { user: bio.user, status: BlkStatus::IoError });
    }

    /// Adds the origin to a bio, records it, and samples it if due.
    #[inline]
    fn name(&mut self, bio: &mut Bio) {
        let origin = self.submitter.origin(bio);
        bio.origin = Origin { sample: self.executor.samples.begin(bio), ..origin };
        self.tracepoint.came(bio);
    }

    /// Claims the range of a bio that has passed the gate, then submits it. A bio with the number
    /// of a patch stands for the patch.
    #[inline]
    fn claim_and_submit(&mut self, bio: Bio) {
        if let Some(number) = UserData(bio.user).patch() {
            return self.start_patch(number);
        }
        let bio = match &mut self.claims {
            Some(claims) => claims.claim(bio),
            None => Some(bio),
        };
        if let Some(bio) = bio {
            self.submit_now(bio);
        }
    }

    /// Continues bios whose range was granted, and read-modify-writes whose bio ended.
    #[inline]
    fn settle(&mut self) {
        if self.claims.as_ref().is_some_and(Claims::has_mail) || self.patches.has_ended() {
            self.settle_all();
        }
    }

    #[inline(never)]
    fn settle_all(&mut self) {
        loop {
            if let Some(claims) = &mut self.claims {
                claims.take_granted(&mut self.granted);
            }
            if self.granted.is_empty() && !self.patches.has_ended() {
                return self.leave_gate();
            }
            // The continued bios may have other submitters.
            self.go_on();
            self.follow_orders();
            // One by one, because the shard has not left the gate while one is to start.
            while let Some(granted) = self.granted.pop_front() {
                match granted {
                    Waited::Bio(bio) => self.submit_now(bio),
                    Waited::Patch(number) => self.read_for_patch(number),
                }
            }
            self.advance_patches();
        }
    }

    /// Passes a bio through the gate, if present and open. Then it claims its range: what waits
    /// at a closed gate has no range that a request behind the gate may need.
    #[inline]
    fn pass(&mut self, bio: Bio) {
        if self.gate.is_none() {
            return self.claim_and_submit(bio);
        }
        self.follow_orders();
        if self.gate.as_mut().is_none_or(|gate| gate.admit(&bio)) {
            self.claim_and_submit(bio);
        } else {
            self.pass_held();
        }
    }

    /// Holds what waits for its range at the gate that has closed, so that a suspend does not wait
    /// for a queue of writes to one sector. Bios of begun requests go on.
    fn hold_waiting(&mut self) {
        if let Some(gate) = &mut self.gate
            && gate.may_hold()
            && let Some(claims) = &mut self.claims
        {
            let waiting = claims.take_back().into_iter().map(|waited| match waited {
                Waited::Bio(bio) => bio,
                Waited::Patch(number) => self.patches.take_back(number),
            });
            gate.hold_first(waiting.collect());
        }
    }

    /// Marks the shard as idle at the gate, if nothing that has passed it is left: no bio in the
    /// shard, none that waits for its range, and no patch between its bios.
    #[inline]
    fn leave_gate(&mut self) {
        if self.shard.in_flight() == 0
            && self.granted.is_empty()
            && !self.waits_for_range()
            && !self.patches.has_begun()
            && let Some(gate) = &mut self.gate
        {
            gate.left();
        }
    }

    /// Follows the control thread's orders.
    fn follow_orders(&mut self) {
        let Some(gate) = self.gate.as_ref().filter(|gate| gate.is_woken()) else { return };
        let orders = gate.take_orders();
        let now = self.now();
        for order in orders {
            match order {
                Order::Message(number, text) => {
                    // The order was validated before. A message that arrives during a suspend fails
                    // here without further effect.
                    let _ = self.shard.message(now, number, &text);
                }
                Order::Suspend => {
                    self.shard.suspend(now, Suspend::Flush);
                    self.hold_waiting();
                }
                Order::Resume => self.shard.resume_targets(now),
            }
        }
        self.run(now);
        // The descriptor that told of a resume is read.
        self.pass_held();
    }

    #[inline]
    fn submit_now(&mut self, bio: Bio) {
        if let Some(gate) = &mut self.gate {
            gate.count(&bio);
        }
        if let Some(status) = self.stability.durability.refusal(bio.op) {
            return self.refuse(&bio, status);
        }
        if let Some(dirty) = &self.dirty
            && matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes)
        {
            dirty.mark(bio.sector.bytes(), bio.len.bytes());
        }
        if bio.op == Op::Flush || bio.fua || bio.preflush {
            let is_flush = bio.op == Op::Flush;
            let flush_from = is_flush.then(|| self.executor.samples.begin_flush()).flatten();
            self.stability.in_flight.push(Stable { user: bio.user, flush_from });
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

    /// Ends a bio with an error.
    fn refuse(&mut self, bio: &Bio, status: BlkStatus) {
        let before = self.done.len();
        self.done.push(Done { user: bio.user, status });
        self.end(before);
        if let Some(gate) = &mut self.gate {
            gate.refused(bio.op, status);
        }
        self.leave_gate();
    }

    /// Fails a flush that succeeded while another one failed, and times the others.
    fn judge(&mut self, from: usize) {
        for done in &mut self.done[from..] {
            let place = self.stability.in_flight.iter().position(|stable| stable.user == done.user);
            if let Some(place) = place {
                let Stable { flush_from, .. } = self.stability.in_flight.swap_remove(place);
                if done.status == BlkStatus::Ok {
                    done.status =
                        self.stability.durability.refusal(Op::Flush).unwrap_or(BlkStatus::Ok);
                }
                if done.status == BlkStatus::Ok
                    && let Some(from) = flush_from
                {
                    self.executor.samples.end_flush(from);
                }
            }
        }
    }

    /// Passes held bios after a suspend, as far as possible.
    fn pass_held(&mut self) {
        while let Some(next) = self.gate.as_mut().and_then(ShardGate::next) {
            match next {
                Next::Passes(bio) => self.claim_and_submit(bio),
                Next::Fails(bio) => self.refuse_held(&bio),
            }
        }
    }

    /// Ends the plug: call it before waiting.
    pub(crate) fn unplug(&mut self) {
        self.end_turn();
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
            let counts = Counts {
                decisions: shard.decisions(),
                parked: shard.parked() as u64,
                in_flight: shard.in_flight() as u64,
                ..Counts::default()
            };
            gate.publish(counts, shard.failures());
            if !self.shown.is_empty() {
                let shard = &mut self.shard;
                let info = |&number| Some((number, shard.status(number)?.info));
                gate.show(self.shown.iter().filter_map(info).collect());
            }
        }
    }

    /// Time since the volume was opened; all its connections share this clock.
    fn now(&self) -> Nanos {
        let elapsed = self.epoch.map_or(Duration::ZERO, |epoch| epoch.elapsed());
        Nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Runs the writing thread's work on this thread: all encrypted writes of this turn are one
    /// batch.
    #[inline]
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
        if !self.stability.in_flight.is_empty() {
            self.judge(before);
        }
        self.end(before);
        self.leave_gate();
    }

    /// Handles bios that ended in `done` from `from` on: releases their ranges, and passes
    /// completions of read-modify-writes on.
    #[inline]
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

    #[inline]
    fn answer(&mut self, now: Nanos) {
        if self.is_long() {
            self.look(self.shard.arriving_bytes(&self.cqes));
        }
        for cqe in self.cqes.drain(..) {
            self.shard.on_cqe(now, cqe);
        }
    }

    /// Collects completions and continues their bios.
    pub(crate) fn poll(&mut self) {
        self.end_turn();
        if self.gate.is_some() {
            self.follow_orders();
        }
        if self.is_throttled() {
            self.start_throttled();
        }
        self.collect();
        self.settle();
    }

    #[inline]
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

    /// Submits a bio and waits for it; other finished bios stay for [`Driver::take_done`].
    pub(crate) fn submit_and_wait(&mut self, bio: Bio) -> BlkStatus {
        let user = bio.user;
        self.submit_awaited(bio);
        loop {
            self.unplug();
            if let Some(status) = self.take_one(user) {
                self.go_on();
                return status;
            }
            // `wait` returns at once while other bios are finished.
            self.sleep();
        }
    }

    /// Waits until [`Driver::take_done`] has something.
    pub(crate) fn wait(&mut self) {
        self.unplug();
        if !self.has_done() {
            self.sleep();
        }
    }

    /// Like [`Driver::wait`], with a time limit.
    pub(crate) fn wait_for(&mut self, limit: Duration) {
        self.unplug();
        if !self.has_done() {
            self.sleep_for(Some(limit));
        }
    }

    fn sleep(&mut self) {
        self.sleep_for(None);
    }

    /// Sleeps until a completion arrives and continues its bio; requires an empty plug.
    fn sleep_for(&mut self, limit: Option<Duration>) {
        assert!(!self.is_idle(), "a bio is in flight");
        if self.help() {
            return;
        }
        let is_held = self.gate.is_some() || self.waits_for_range() || self.is_throttled();
        let waits_outside = limit.is_some() || is_held;
        self.on_sleep();
        if waits_outside || !self.executor.wait_inside() {
            self.go_on();
            let limit = self.wake_after().into_iter().chain(limit).min();
            if poll::readable(&self.wake_sources(), limit).is_err() {
                std::thread::yield_now();
            }
        }
        self.poll();
    }

    /// See [`Executor::hand_over_of_workers`].
    #[cfg(test)]
    pub(crate) fn hand_over(&self) -> crate::workers::HandOver {
        self.executor.hand_over_of_workers()
    }

    /// Whether no bio is in flight: none at the ring, the workers or the disks, in a plug, or
    /// waiting for a timer, a range, a resume or an order.
    pub(crate) fn is_idle(&self) -> bool {
        let is_held = self.holds() || self.waits_for_range() || self.is_throttled();
        let goes_on = is_held || !self.patches.is_idle();
        self.executor.is_idle() && !goes_on && self.shard.parked() == 0
    }

    fn is_throttled(&self) -> bool {
        self.throttle.as_ref().is_some_and(|throttle| !throttle.is_empty())
    }

    fn waits_for_range(&self) -> bool {
        self.claims.as_ref().is_some_and(Claims::waits)
    }

    fn holds(&self) -> bool {
        self.gate.as_ref().is_some_and(ShardGate::holds)
    }

    /// Whether another request may begin; its bios are not held until [`Driver::end_requests`]. A
    /// front end that can leave requests with its client asks before it takes one.
    pub(crate) fn begin_request(&mut self) -> bool {
        self.gate.as_mut().is_none_or(ShardGate::begin_request)
    }

    /// No request of the front end is left.
    pub(crate) fn end_requests(&mut self) {
        self.gate.iter_mut().for_each(ShardGate::end_requests);
    }

    /// Whether no further request may begin.
    pub(crate) fn is_suspended(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| !gate.lets_pass())
    }

    /// Whether the server ends and the volume was suspended, so that no further request begins.
    pub(crate) fn is_stopped(&self) -> bool {
        self.gate.as_ref().is_some_and(ShardGate::is_stopped)
    }

    /// Descriptor that becomes readable when the gate has moved, also for a front end that submits
    /// nothing while the volume is suspended.
    pub(crate) fn resumed(&self) -> Option<BorrowedFd<'_>> {
        self.gate.as_ref().map(ShardGate::moved)
    }

    /// Whether a submitted write may still read the front end's buffer.
    pub(crate) fn reads_client_buffer(&self) -> bool {
        let is_throttled = self.throttle.as_ref().is_some_and(DriverThrottle::has_writes);
        let waits = self.holds() || self.claims.as_ref().is_some_and(Claims::parks_bios);
        let waits = waits || is_throttled;
        self.executor.reads_client_buffer() || self.shard.parked() > 0 || waits
    }

    /// Descriptors that become readable when [`Driver::poll`] has work.
    pub(crate) fn wake_sources(&self) -> [Option<BorrowedFd<'_>>; 4] {
        let [ring, workers] = self.executor.wake_sources();
        // New limits, or a suspend, let held bios start.
        let is_throttled = self.is_throttled();
        let wake = |gate| if is_throttled { Some(ShardGate::moved(gate)) } else { gate.wake() };
        let gate = self.gate.as_ref().and_then(wake);
        let range = self.claims.as_ref();
        [ring, workers, gate, range.and_then(Claims::wake)]
    }

    /// Time after which [`Driver::poll`] has work in any case.
    pub(crate) fn wake_after(&self) -> Option<Duration> {
        let tokens = self.throttle.as_ref().and_then(DriverThrottle::wake_after);
        self.executor.wake_after().into_iter().chain(tokens).min()
    }

    /// Length of the volume for this driver: that of the start of its connection.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.patches.size_bytes()
    }

    /// Releases buffer memory while nothing is in flight.
    pub(crate) fn release_buffers(&self) {
        self.executor.release_buffers();
    }
}

/// A flush or FUA write in flight.
struct Stable {
    /// Its `user` word.
    user: u64,
    /// Start of a flush that is timed.
    flush_from: Option<Nanos>,
}

/// Numbers of the lines whose state is shown, on controlled volumes.
fn shown_lines(parts: &Parts, table: &Table) -> Vec<u16> {
    if !parts.gate.as_ref().is_some_and(|gate| gate.is_controlled()) {
        return Vec::new();
    }
    let lines = (0..).zip(table.extents());
    let lines = lines.filter(|(_, line)| line.facts().has_control);
    lines.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests;
