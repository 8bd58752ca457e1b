//! The requests of one connection that time is kept of, until they end.
//!
//! One of [`EVERY_SYNCHRONOUS`] is sampled where everything ends at once, one of [`EVERY_QUEUED`]
//! where something is waited for: a sample was seen to cost up to 2.5 µs, with all that it finds
//! cold, a request of the first kind takes from 1 µs on, of the second from 5 µs on. The gap to the
//! next is drawn: no pattern of a client is missed.

use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Sample};
use blockyard_engine::sq::{Cqe, Token};
use blockyard_engine::time::Nanos;

use super::record::Record;
use super::stats::StageStats;
use super::{Kind, Span, Stage, Timed, attribute, now};

/// Where no request waits for anything.
pub(crate) const EVERY_SYNCHRONOUS: u32 = 256;
/// Where requests wait for devices or workers.
pub(crate) const EVERY_QUEUED: u32 = 32;
/// Samples in flight; while there are so many, nothing more is sampled.
const LIVE_MAX: usize = 64;

/// A request that time is kept of.
struct Live {
    user: u64,
    kind: Kind,
    from: Nanos,
    spans: Vec<Span>,
    is_free: bool,
}

/// What the ring or a timer has, and since when.
struct Waiting {
    token: Token,
    sample: Sample,
    from: Nanos,
}

/// Of one connection.
pub(crate) struct Samples {
    stats: Arc<StageStats>,
    record: Arc<Record>,
    /// Zero samples nothing.
    every: u32,
    /// So many more are not sampled.
    skip: u32,
    noise: u32,
    live: Vec<Live>,
    in_flight: usize,
    waiting: Vec<Waiting>,
    /// When what is submitted next was received, if the front end says so.
    received: Option<Nanos>,
}

impl Samples {
    /// For the thread that this runs on.
    pub(crate) fn new(stats: &Arc<StageStats>) -> Self {
        Self {
            stats: Arc::clone(stats),
            record: stats.open(),
            every: stats.every(),
            skip: 0,
            noise: 0x9e37_79b9,
            live: Vec::new(),
            in_flight: 0,
            waiting: Vec::new(),
            received: None,
        }
    }

    /// The front end has received something: what it submits from now on came with it.
    pub(crate) fn on_received(&mut self) {
        self.received = (self.every > 0).then(now);
    }

    /// The mark of a bio that comes.
    #[inline]
    pub(crate) fn begin(&mut self, bio: &Bio) -> Sample {
        if self.skip > 0 {
            self.skip -= 1;
            return Sample::NONE;
        }
        self.begin_sample(bio)
    }

    #[cold]
    fn begin_sample(&mut self, bio: &Bio) -> Sample {
        self.skip = self.gap();
        if self.every == 0 || self.in_flight == LIVE_MAX {
            return Sample::NONE;
        }
        let from = self.received.unwrap_or_else(now);
        let place = self.live.iter().position(|live| live.is_free).unwrap_or_else(|| {
            let spans = Vec::with_capacity(8);
            self.live.push(Live { user: 0, kind: Kind::Other, from, spans, is_free: true });
            self.live.len() - 1
        });
        let live = &mut self.live[place];
        (live.user, live.kind, live.from, live.is_free) = (bio.user, Kind::of(bio.op), from, false);
        self.in_flight += 1;
        Sample(u8::try_from(place + 1).expect("few are in flight"))
    }

    /// How many are not sampled before the next: `every - 1` in the mean.
    fn gap(&mut self) -> u32 {
        match self.every {
            0 => u32::MAX,
            every => {
                self.noise ^= self.noise << 13;
                self.noise ^= self.noise >> 17;
                self.noise ^= self.noise << 5;
                self.noise % (2 * every - 1)
            }
        }
    }

    /// Something of a bio was somewhere.
    pub(crate) fn add(&mut self, Timed { sample, span }: Timed) {
        self.live[usize::from(sample.0) - 1].spans.push(span);
    }

    /// The same until now.
    pub(crate) fn add_since(&mut self, sample: Sample, stage: Stage, from: Nanos) {
        self.add(Timed { sample, span: Span { stage, from, to: now() } });
    }

    /// What other threads saw.
    pub(crate) fn add_all(&mut self, timed: &mut Vec<Timed>) {
        timed.drain(..).for_each(|timed| self.add(timed));
    }

    /// An SQE of a bio waits for the ring or its time: for the device, as far as its stages go.
    pub(crate) fn wait(&mut self, sample: Sample, token: Token, from: Nanos) {
        self.waiting.push(Waiting { token, sample, from });
    }

    /// These have been waited for, among others.
    #[inline]
    pub(crate) fn on_answers(&mut self, cqes: &[Cqe]) {
        if !self.waiting.is_empty() && !cqes.is_empty() {
            self.end_waiting(cqes);
        }
    }

    fn end_waiting(&mut self, cqes: &[Cqe]) {
        let to = now();
        for Cqe { token, .. } in cqes {
            if let Some(place) = self.waiting.iter().position(|waiting| waiting.token == *token) {
                let Waiting { sample, from, .. } = self.waiting.swap_remove(place);
                self.add(Timed { sample, span: Span { stage: Stage::Device, from, to } });
            }
        }
    }

    /// The front end takes these.
    #[inline]
    pub(crate) fn end(&mut self, done: &[Done]) {
        if self.in_flight > 0 {
            done.iter().for_each(|done| self.end_one(done));
        }
    }

    fn end_one(&mut self, Done { user, status }: &Done) {
        let is_it = |live: &Live| !live.is_free && live.user == *user;
        let Some(place) = self.live.iter().position(is_it) else { return };
        let live = &mut self.live[place];
        if *status == BlkStatus::Ok {
            let stages = attribute(live.from, now(), &mut live.spans);
            self.record.add(live.kind, &stages);
        }
        live.spans.clear();
        live.is_free = true;
        self.in_flight -= 1;
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        self.stats.close(&self.record);
    }
}
