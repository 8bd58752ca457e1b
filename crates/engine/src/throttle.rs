//! Limits of a rate: token buckets for operations and bytes, and the bios that wait for tokens.
//!
//! A bucket gains tokens at its rate and holds at most those of the burst time. A bio may start
//! while its buckets are not in debt, and then takes all its tokens. So a bio larger than a bucket
//! starts too, and later bios wait until its debt is paid: over any time `t` at most
//! `rate × (t + burst)` and one bio start.
//!
//! ```text
//! bio ── admit ──> tokens: starts at once
//!          └─────> none, or others wait: held, first in, first out
//!                  the first one reserves its tokens, and with them the time of its start
//! ```
//! Submitters may share a throttle. Only the first bio of each reserves, so they take turns.
//! Flushes pass: they move no data, and a client waits for them.
//!
//! A throttle has no clock: the callers pass the time. The model is QEMU's throttle groups
//! (`util/throttle.c`) and the kernel's `io.max` (`block/blk-throttle.c`).

use alloc::collections::VecDeque;
use core::num::NonZeroU64;

use crate::bio::{Bio, Op};
use crate::time::Nanos;

const NANOS_PER_S: u64 = 1_000_000_000;
/// Burst without another choice: as in QEMU, a tenth of a second.
pub const BURST_USUAL: Nanos = Nanos(NANOS_PER_S / 10);
/// The longest burst: an hour. Longer ones would let a client ignore its limit for a day.
pub const BURST_MAX: Nanos = Nanos(3600 * NANOS_PER_S);

/// Limits; without any of the two, nothing waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Operations per second.
    pub iops: Option<NonZeroU64>,
    /// Bytes per second.
    pub bytes_per_s: Option<NonZeroU64>,
    /// Time whose unused tokens are kept.
    pub burst: Nanos,
}

impl Limits {
    /// Whether anything is limited.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.iops.is_some() || self.bytes_per_s.is_some()
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { iops: None, bytes_per_s: None, burst: BURST_USUAL }
    }
}

/// A token bucket, as the time at which it has no debt. Signed: a full bucket of a clock that has
/// just begun had none before its beginning.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    free_at_ns: i64,
}

impl Default for Bucket {
    /// A full one.
    fn default() -> Self {
        Self { free_at_ns: i64::MIN }
    }
}

impl Bucket {
    /// Takes tokens; returns the time from which on they may be used.
    fn take(&mut self, now: Nanos, rate: Option<NonZeroU64>, burst: Nanos, tokens: u64) -> Nanos {
        let Some(rate) = rate.filter(|_| tokens > 0) else { return now };
        let signed = |nanos: u128| i64::try_from(nanos).unwrap_or(i64::MAX);
        let now_ns = signed(now.0.into());
        let start_ns = self.free_at_ns.max(now_ns);
        let full_since_ns = now_ns.saturating_sub(signed(burst.0.into()));
        self.free_at_ns = self.free_at_ns.max(full_since_ns).saturating_add(cost_ns(rate, tokens));
        Nanos(start_ns.unsigned_abs())
    }

    fn give_back(&mut self, rate: Option<NonZeroU64>, tokens: u64) {
        if let Some(rate) = rate {
            self.free_at_ns = self.free_at_ns.saturating_sub(cost_ns(rate, tokens));
        }
    }
}

/// The time in which this rate brings these tokens.
fn cost_ns(rate: NonZeroU64, tokens: u64) -> i64 {
    let cost = u128::from(tokens) * u128::from(NANOS_PER_S) / u128::from(rate.get());
    i64::try_from(cost).unwrap_or(i64::MAX)
}

/// Token buckets of one or several submitters.
#[derive(Debug, Default)]
pub struct Throttle {
    limits: Limits,
    operations: Bucket,
    bytes: Bucket,
}

impl Throttle {
    /// Full buckets.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Changes the limits. Debts and unused tokens of the old limits are void.
    pub fn set(&mut self, now: Nanos, limits: Limits) {
        let empty = Bucket { free_at_ns: i64::try_from(now.0).unwrap_or(i64::MAX) };
        *self = Self { limits, operations: empty, bytes: empty };
    }

    /// Gives reserved tokens back.
    pub fn give_back(&mut self, Cost { operations, bytes }: Cost) {
        let Limits { iops, bytes_per_s, .. } = self.limits;
        self.operations.give_back(iops, operations);
        self.bytes.give_back(bytes_per_s, bytes);
    }

    /// Whether a bio would wait.
    #[must_use]
    pub fn is_in_debt(&self, now: Nanos) -> bool {
        let now_ns = i64::try_from(now.0).unwrap_or(i64::MAX);
        let owes = |rate: Option<NonZeroU64>, bucket: &Bucket| {
            rate.is_some() && bucket.free_at_ns > now_ns
        };
        owes(self.limits.iops, &self.operations) || owes(self.limits.bytes_per_s, &self.bytes)
    }

    /// Takes tokens; returns the time from which on they may be used.
    pub fn reserve(&mut self, now: Nanos, Cost { operations, bytes }: Cost) -> Nanos {
        let Limits { iops, bytes_per_s, burst } = self.limits;
        let start = self.operations.take(now, iops, burst, operations);
        start.max(self.bytes.take(now, bytes_per_s, burst, bytes))
    }
}

/// Tokens of a bio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Requests that start with the bio: one, or none for a later part of a request.
    pub operations: u64,
    /// Bytes; a discard moves none.
    pub bytes: u64,
}

impl Cost {
    /// The cost of a bio with which this number of requests starts; `None` if it never waits.
    fn of(bio: &Bio, operations: u64) -> Option<Self> {
        match bio.op {
            Op::Flush => None,
            Op::Discard => Some(Self { operations, bytes: 0 }),
            Op::Read | Op::Write | Op::WriteZeroes => {
                Some(Self { operations, bytes: bio.len.bytes() })
            }
        }
    }
}

/// A bio that waits, with the time at which it came.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The bio.
    pub bio: Bio,
    /// Its arrival.
    pub since: Nanos,
    cost: Cost,
}

/// Bios of one submitter that wait for tokens.
#[derive(Debug, Default)]
pub struct Waiting {
    held: VecDeque<Held>,
    /// Time at which the first one may start.
    first_at: Nanos,
    /// Requests that have begun since the last bio.
    begun: u64,
}

impl Waiting {
    /// Nothing waits.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A request has begun: its operation counts with its first bio.
    pub fn begin_request(&mut self) {
        self.begun += 1;
    }

    /// Nothing is limited: requests that have begun cost nothing.
    pub fn forget_requests(&mut self) {
        self.begun = 0;
    }

    /// Whether a bio may start now; otherwise it is held. `reserve` is [`Throttle::reserve`].
    pub fn admit(&mut self, now: Nanos, bio: &Bio, reserve: impl FnOnce(Cost) -> Nanos) -> bool {
        let Some(cost) = Cost::of(bio, self.begun) else { return true };
        self.begun = 0;
        if self.held.is_empty() {
            self.first_at = reserve(cost);
            if self.first_at <= now {
                return true;
            }
        }
        self.held.push_back(Held { bio: *bio, since: now, cost });
        false
    }

    /// The first held bio, if it may start. The next one then reserves its tokens.
    pub fn next(&mut self, now: Nanos, reserve: impl FnOnce(Cost) -> Nanos) -> Option<Held> {
        if self.first_at > now {
            return None;
        }
        self.release(reserve)
    }

    /// The first held bio, regardless of tokens.
    pub fn release(&mut self, reserve: impl FnOnce(Cost) -> Nanos) -> Option<Held> {
        let first = self.held.pop_front()?;
        if let Some(Held { cost, .. }) = self.held.front() {
            self.first_at = reserve(*cost);
        }
        Some(first)
    }

    /// The tokens that the first held bio has reserved, which then has none.
    pub fn take_reservation(&mut self) -> Option<Cost> {
        let first = self.held.front_mut()?;
        Some(core::mem::take(&mut first.cost))
    }

    /// Reserves again for the first held bio, after a change of the limits.
    pub fn reserve_again(&mut self, reserve: impl FnOnce(Cost) -> Nanos) {
        if let Some(Held { cost, .. }) = self.held.front() {
            self.first_at = reserve(*cost);
        }
    }

    /// Time at which [`Waiting::next`] has a bio.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        (!self.held.is_empty()).then_some(self.first_at)
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether a held write still needs its buffer.
    #[must_use]
    pub fn has_writes(&self) -> bool {
        self.held.iter().any(|held| held.bio.op == Op::Write)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::bio::Sector;
    use crate::buf::BufRef;

    const S: u64 = NANOS_PER_S;

    fn limits(iops: u64, bytes_per_s: u64, burst: Nanos) -> Limits {
        let limit = NonZeroU64::new;
        Limits { iops: limit(iops), bytes_per_s: limit(bytes_per_s), burst }
    }

    fn bio(op: Op, sectors: u64, user: u64) -> Bio {
        Bio::new(op, Sector(0), Sector(sectors), BufRef::NONE, user)
    }

    /// Runs until all submitted bios have started; returns the times of their starts.
    fn starts(throttle: &mut Throttle, bios: &[Bio], from: Nanos) -> Vec<(u64, Nanos)> {
        let mut waiting = Waiting::new();
        let mut starts = Vec::new();
        for bio in bios {
            waiting.begin_request();
            if waiting.admit(from, bio, |cost| throttle.reserve(from, cost)) {
                starts.push((bio.user, from));
            }
        }
        while let Some(at) = waiting.wake_at() {
            let held = waiting.next(at, |cost| throttle.reserve(at, cost)).expect("it is due");
            starts.push((held.bio.user, at));
        }
        starts
    }

    #[test]
    fn operations_start_at_their_rate_after_the_burst() {
        let mut throttle = Throttle::new(limits(10, 0, Nanos(S / 2)));
        let bios: Vec<Bio> = (0..8).map(|user| bio(Op::Read, 8, user)).collect();
        let starts = starts(&mut throttle, &bios, Nanos(100 * S));
        let tenths: Vec<u64> =
            starts.iter().map(|(_, at)| (at.0 - 100 * S).div_ceil(S / 10)).collect();
        // Five of the burst, the sixth takes the bucket into debt, then one a tenth.
        assert_eq!(tenths, [0, 0, 0, 0, 0, 0, 1, 2]);
        assert!(starts.iter().map(|(user, _)| *user).eq(0..8), "in their order");
    }

    #[test]
    fn started_bytes_never_pass_the_rate_with_burst_and_one_bio() {
        for seed in 1..200u64 {
            let mut noise = seed;
            let mut random = move |below: u64| {
                noise ^= noise << 13;
                noise ^= noise >> 7;
                noise ^= noise << 17;
                noise % below
            };
            let rate = 1 + random(1 << 24);
            let burst = Nanos(random(2 * S));
            let mut throttle = Throttle::new(limits(0, rate, burst));
            let mut waiting = Waiting::new();
            let mut now = Nanos(10 * S);
            let mut started: Vec<(Nanos, u64)> = Vec::new();
            for user in 0..60 {
                now = now + Nanos(random(S / 4));
                while let Some(at) = waiting.wake_at().filter(|at| *at <= now) {
                    let held = waiting.next(at, |cost| throttle.reserve(at, cost)).unwrap();
                    started.push((at, held.bio.len.bytes()));
                }
                let bio = bio(Op::Write, 1 + random(4096), user);
                waiting.begin_request();
                if waiting.admit(now, &bio, |cost| throttle.reserve(now, cost)) {
                    started.push((now, bio.len.bytes()));
                }
            }
            for first in 0..started.len() {
                for last in first..started.len() {
                    let span = started[last].0.since(started[first].0) + burst;
                    let bytes: u64 = started[first..last].iter().map(|(_, bytes)| bytes).sum();
                    let most = u128::from(span.0) * u128::from(rate) / u128::from(S) + 1;
                    let slack = (last - first + 1) as u128;
                    assert!(u128::from(bytes) <= most + slack, "seed {seed}: {bytes} of {most}");
                }
            }
        }
    }

    #[test]
    fn bucket_is_full_when_the_clock_begins() {
        let mut throttle = Throttle::new(limits(1, 0, Nanos(3 * S)));
        let bios: Vec<Bio> = (0..5).map(|user| bio(Op::Read, 8, user)).collect();
        let times: Vec<u64> =
            starts(&mut throttle, &bios, Nanos(1)).iter().map(|(_, at)| at.0).collect();
        assert_eq!(times, [1, 1, 1, 1, S + 1]);
    }

    #[test]
    fn bio_larger_than_the_bucket_starts_and_the_next_pays() {
        let mut throttle = Throttle::new(limits(0, 1 << 20, Nanos(0)));
        let bios = [bio(Op::Write, 8192, 0), bio(Op::Write, 1, 1)];
        let starts = starts(&mut throttle, &bios, Nanos(S));
        assert_eq!(starts, [(0, Nanos(S)), (1, Nanos(5 * S))]);
    }

    #[test]
    fn flushes_pass_and_discards_cost_an_operation_only() {
        let mut throttle = Throttle::new(limits(1, 1, Nanos(0)));
        let bios =
            [bio(Op::Discard, 1 << 40, 0), bio(Op::Discard, 1 << 40, 1), bio(Op::Flush, 0, 2)];
        let starts = starts(&mut throttle, &bios, Nanos(S));
        assert_eq!(starts, [(0, Nanos(S)), (2, Nanos(S)), (1, Nanos(2 * S))]);
    }

    #[test]
    fn later_parts_of_a_request_are_no_operations() {
        let mut throttle = Throttle::new(limits(1, 0, Nanos(0)));
        let mut waiting = Waiting::new();
        waiting.begin_request();
        for user in 0..4 {
            assert!(waiting.admit(Nanos(S), &bio(Op::Read, 8, user), |cost| {
                throttle.reserve(Nanos(S), cost)
            }));
        }
        waiting.begin_request();
        assert!(
            !waiting
                .admit(Nanos(S), &bio(Op::Read, 8, 4), |cost| { throttle.reserve(Nanos(S), cost) })
        );
    }

    #[test]
    fn submitters_of_one_throttle_take_turns() {
        let mut throttle = Throttle::new(limits(1, 0, Nanos(0)));
        let mut two = [Waiting::new(), Waiting::new()];
        for (number, waiting) in two.iter_mut().enumerate() {
            for _ in 0..4 {
                waiting.begin_request();
                waiting.admit(Nanos(S), &bio(Op::Read, 8, number as u64), |cost| {
                    throttle.reserve(Nanos(S), cost)
                });
            }
        }
        let mut order = Vec::new();
        while let Some(at) = two.iter().filter_map(Waiting::wake_at).min() {
            let waiting = two.iter_mut().find(|waiting| waiting.wake_at() == Some(at)).unwrap();
            order.push(waiting.next(at, |cost| throttle.reserve(at, cost)).unwrap().bio.user);
        }
        assert_eq!(order, [0, 1, 0, 1, 0, 1, 1]);
    }

    #[test]
    fn new_limits_hold_for_the_bio_that_waits() {
        let mut throttle = Throttle::new(limits(1, 0, Nanos(0)));
        let mut waiting = Waiting::new();
        for user in 0..3 {
            waiting.begin_request();
            waiting
                .admit(Nanos(S), &bio(Op::Read, 8, user), |cost| throttle.reserve(Nanos(S), cost));
        }
        let now = Nanos(S + 1);
        throttle.set(now, limits(1000, 0, Nanos(0)));
        waiting.reserve_again(|cost| throttle.reserve(now, cost));
        assert_eq!(waiting.wake_at(), Some(now));
        waiting.next(now, |cost| throttle.reserve(now, cost)).unwrap();
        assert_eq!(waiting.wake_at(), Some(now + Nanos(S / 1000)));
    }

    #[test]
    fn tokens_of_a_bio_that_does_not_start_are_there_for_others() {
        let mut throttle = Throttle::new(limits(1, 0, Nanos(0)));
        let mut two = [Waiting::new(), Waiting::new()];
        let now = Nanos(S);
        for (number, count) in [(0, 2), (1, 1)] {
            for _ in 0..count {
                two[number].begin_request();
                let bio = bio(Op::Read, 8, number as u64);
                two[number].admit(now, &bio, |cost| throttle.reserve(now, cost));
            }
        }
        assert_eq!(two.each_ref().map(Waiting::wake_at), [2, 3].map(|at| Some(Nanos(at * S))));
        let cost = two[0].take_reservation().unwrap();
        throttle.give_back(cost);
        assert!(two[0].release(|_| unreachable!("no other one waits")).is_some());
        two[0].begin_request();
        assert!(!two[0].admit(now, &bio(Op::Read, 8, 0), |cost| throttle.reserve(now, cost)));
        assert_eq!(two[0].wake_at(), Some(Nanos(3 * S)), "not behind the one that did not start");
    }

    #[test]
    fn nothing_waits_without_limits() {
        let mut throttle = Throttle::new(Limits::default());
        let bios: Vec<Bio> = (0..9).map(|user| bio(Op::Write, u64::MAX >> 9, user)).collect();
        assert!(starts(&mut throttle, &bios, Nanos(7)).iter().all(|(_, at)| *at == Nanos(7)));
    }
}
