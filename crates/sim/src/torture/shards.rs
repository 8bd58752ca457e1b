//! A shard over queues: one multipath line that chooses paths for bios, with a queue for each path;
//! or a table over several devices, with a queue for each.
//!
//! The shard copies [`Origin`](blockyard_engine::bio::Origin) to the SQE unchanged, so the bio's
//! number travels in place of its io-context, and is replaced again before the path's queue. A bio
//! that a path failed is resent as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Done, IoContext, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::bounce::Bounce;
use blockyard_engine::dm::control::Suspend;
use blockyard_engine::dm::multipath::is_path_error;
use blockyard_engine::dm::multipath::target::MultipathTargetSpec;
use blockyard_engine::dm::table::{Table, TableExtent};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::mq::{Issue, QueueConfig, RequestQueue, Submitted};
use blockyard_engine::request::Tag;
use blockyard_engine::shard::Shard;
use blockyard_engine::slab::Slab;
use blockyard_engine::sq::{Cqe, DevId, Sqe, SqeOp, Token};
use blockyard_engine::time::Nanos;

use super::below::{check, queue_counts};
use super::paths::{Path, Paths};
use super::plan::SECTORS;

/// An SQE in a queue.
struct Sent {
    token: Token,
    user: u64,
}

/// The shard and its queues.
pub(super) struct ShardOverQueues {
    shard: Shard,
    queues: Vec<RequestQueue>,
    /// SQEs by the user data in a queue.
    sent: Slab<Sent>,
    /// Io-contexts of the bios, by number.
    contexts: BTreeMap<u64, IoContext>,
    /// Whether bios are resent and paths checked.
    is_multipath: bool,
    timers: BTreeSet<(Nanos, Token)>,
    checks: Vec<(Token, u16)>,
    /// Bios that were sent to a path.
    resent: Vec<u64>,
    failed: u64,
}

impl ShardOverQueues {
    /// For a multipath line.
    pub(super) fn multipath(paths: &Paths, queue: QueueConfig, elevator: &ElevatorSpec) -> Self {
        let devs = (0..paths.count).map(DevId).collect();
        let spec = MultipathTargetSpec { multipath: paths.spec(), devs, requests: None };
        let start = Sector(0);
        let len = Sector(SECTORS);
        let table = Table::new(vec![TableExtent::new(start, len, Arc::new(spec))]);
        let queues = (0..paths.count).map(|_| RequestQueue::new(queue, elevator));
        Self { is_multipath: true, ..Self::new(&table, queues.collect()) }
    }

    /// With a queue for each device of the table.
    pub(super) fn new(table: &Table, queues: Vec<RequestQueue>) -> Self {
        let bounce = Bounce::Slots { slots: 1, slot_bytes: 4096 };
        Self {
            shard: Shard::new(table, bounce).expect("it needs no pages"),
            queues,
            sent: Slab::default(),
            contexts: BTreeMap::new(),
            is_multipath: false,
            timers: BTreeSet::new(),
            checks: Vec::new(),
            resent: Vec::new(),
            failed: 0,
        }
    }

    pub(super) fn queue(&mut self, path: u16) -> &mut RequestQueue {
        &mut self.queues[usize::from(path)]
    }

    pub(super) fn submit(&mut self, now: Nanos, mut bio: Bio) -> Submitted {
        self.contexts.insert(bio.user, bio.origin.io_context);
        bio.origin.io_context = IoContext(u32::try_from(bio.user).expect("few bios"));
        self.shard.submit_bio(now, bio);
        self.pump(now);
        Submitted::Accepted
    }

    pub(super) fn exit_context(&mut self, now: Nanos, io_context: IoContext) {
        self.queues.iter_mut().for_each(|queue| queue.exit_context(now, io_context));
    }

    /// Moves the shard's SQEs to their queues.
    fn pump(&mut self, now: Nanos) {
        let mut sqes = Vec::new();
        self.shard.take_sq(&mut sqes);
        for Sqe { token, op, mut origin, .. } in sqes {
            let none = BufRef::NONE;
            let (dev, op, sector, len, buf, fua) = match op {
                SqeOp::Read { dev, sector, buf } => {
                    (dev, Op::Read, sector, Sector::holding(buf.len_bytes.into()), buf, false)
                }
                SqeOp::Write { dev, sector, buf, fua } => {
                    (dev, Op::Write, sector, Sector::holding(buf.len_bytes.into()), buf, fua)
                }
                SqeOp::Flush { dev } => (dev, Op::Flush, Sector(0), Sector(0), none, false),
                SqeOp::Discard { dev, sector, len } => (dev, Op::Discard, sector, len, none, false),
                SqeOp::WriteZeroes { dev, sector, len } => {
                    (dev, Op::WriteZeroes, sector, len, none, false)
                }
                SqeOp::Timeout { after } => {
                    self.timers.insert((now + after, token));
                    continue;
                }
                SqeOp::Check { dev } => {
                    self.checks.push((token, dev.0));
                    continue;
                }
                other => unreachable!("no target here asks for {other:?}"),
            };
            let user = u64::from(origin.io_context.0);
            origin.io_context = self.contexts[&user];
            if self.is_multipath {
                self.resent.push(user);
            }
            let place = self.sent.insert(Sent { token, user });
            let bio = Bio { fua, origin, ..Bio::new(op, sector, len, buf, place.into()) };
            self.queue(dev.0).submit_bio(now, bio);
        }
    }

    /// Returns completions of the queues to the shard, which may push more.
    fn settle(&mut self, now: Nanos) {
        loop {
            let mut done = Vec::new();
            let mut unparked = Vec::new();
            for queue in &mut self.queues {
                queue.take_done(&mut done);
                queue.take_unparked(&mut unparked);
            }
            if done.is_empty() {
                return;
            }
            for Done { user, status } in done {
                let place = u32::try_from(user).expect("it is a place");
                let Sent { token, .. } = self.sent.remove(place);
                self.failed += u64::from(self.is_multipath && is_path_error(status));
                self.shard.on_cqe(now, Cqe { token, status });
            }
            self.pump(now);
        }
    }

    pub(super) fn dispatch(&mut self, now: Nanos, out: &mut Vec<(u16, Issue)>) {
        self.settle(now);
        let mut issues = Vec::new();
        for (path, queue) in (0..).zip(&mut self.queues) {
            queue.dispatch(now, &mut issues);
            out.extend(issues.drain(..).map(|issue| (path, issue)));
        }
    }

    pub(super) fn take_resent(&mut self, out: &mut Vec<u64>) {
        out.append(&mut self.resent);
    }

    pub(super) fn pieces(&self, path: u16, tag: Tag) -> Vec<Bio> {
        let user = |place: u64| self.sent.get(u32::try_from(place).expect("it is a place")).user;
        let bios = self.queues[usize::from(path)].bios(tag);
        bios.map(|bio| Bio { user: user(bio.user), ..*bio }).collect()
    }

    pub(super) fn complete(&mut self, now: Nanos, path: u16, tag: Tag, status: BlkStatus) {
        self.queue(path).complete(now, tag, status);
        self.settle(now);
    }

    /// As reported by the status.
    pub(super) fn fails_for_want_of_a_path(&mut self) -> bool {
        if !self.is_multipath {
            return false;
        }
        let status = self.shard.status(0).expect("a multipath target has a status");
        let words: Vec<&str> = status.info.split(' ').collect();
        let is_live = |pair: &[&str]| pair[0].starts_with('p') && pair[1] == "A";
        !words.windows(2).any(is_live) && !status.table.contains("queue_if_no_path")
    }

    pub(super) fn check(&mut self, now: Nanos, paths: &[Path], is_told: bool) -> u64 {
        while let Some((at, token)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            self.shard.on_cqe(now, Cqe { token, status: BlkStatus::Ok });
        }
        self.pump(now);
        let mut count = 0;
        for (token, path) in std::mem::take(&mut self.checks) {
            count += 1;
            if is_told {
                let status = check(&paths[usize::from(path)]);
                self.shard.on_cqe(now, Cqe { token, status });
            }
        }
        self.pump(now);
        count
    }

    pub(super) fn message(&mut self, now: Nanos, text: &str) {
        // While suspended the shard accepts none.
        drop(self.shard.message(now, 0, text));
        self.pump(now);
    }

    pub(super) fn suspend(&mut self, now: Nanos, how: Suspend) {
        self.shard.suspend(now, how);
        self.pump(now);
    }

    pub(super) fn resume(&mut self, now: Nanos) {
        self.shard.resume_targets(now);
        self.pump(now);
    }

    pub(super) fn wake_at(&self) -> Option<Nanos> {
        let queues = self.queues.iter().filter_map(RequestQueue::wake_at);
        queues.chain(self.timers.first().map(|(at, _)| *at)).min()
    }

    pub(super) fn timed_out(&mut self, now: Nanos, out: &mut Vec<(u16, Tag)>) {
        let mut late = Vec::new();
        for (path, queue) in (0..).zip(&mut self.queues) {
            queue.timed_out(now, &mut late);
            out.extend(late.drain(..).map(|tag| (path, tag)));
        }
    }

    pub(super) fn take_done(&mut self, out: &mut Vec<Done>) {
        self.shard.take_done(out);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.shard.is_idle()
            && self.queues.iter().all(RequestQueue::is_idle)
            && self.sent.is_empty()
    }

    pub(super) fn counts(&self) -> [u64; 4] {
        let mut sum = [0, 0, 0, self.failed];
        for queue in &self.queues {
            let [issued, merges, ..] = queue_counts(queue);
            sum[0] += issued;
            sum[1] += merges;
        }
        sum
    }
}
