//! Sampled requests of one connection, until they end.
//!
//! One of [`EVERY_SYNCHRONOUS`] requests is sampled if all end immediately, one of [`EVERY_QUEUED`]
//! if they wait. A sample cost up to 2.5 µs in measurements, including cold caches; requests of the
//! first kind take at least 1 µs, of the second at least 5 µs. The gap to the next sample is
//! random, so no pattern of a client is missed.

use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Sample};
use blockyard_engine::sq::{Cqe, Token};
use blockyard_engine::time::Nanos;

use super::record::Record;
use super::stats::StageStats;
use super::{RequestKind, Span, Stage, Timed, attribute, now};

/// Interval for requests without waits.
pub(crate) const EVERY_SYNCHRONOUS: u32 = 256;
/// Interval for requests that wait for devices or workers.
pub(crate) const EVERY_QUEUED: u32 = 32;
/// Limit of samples in flight.
const LIVE_MAX: usize = 64;

/// A sampled request.
struct Live {
    user: u64,
    kind: RequestKind,
    from: Nanos,
    spans: Vec<Span>,
    is_free: bool,
}

/// An SQE at the ring or a timer, with its start.
struct Waiting {
    token: Token,
    sample: Sample,
    from: Nanos,
}

/// Samples of one connection.
pub(crate) struct Samples {
    stats: Arc<StageStats>,
    record: Arc<Record>,
    /// Mean interval; zero samples nothing.
    every: u32,
    /// Requests to skip before the next sample.
    skip: u32,
    noise: u32,
    live: Vec<Live>,
    in_flight: usize,
    waiting: Vec<Waiting>,
    /// Time of reception of the next request, if the front end reports it.
    received: Option<Nanos>,
}

impl Samples {
    /// For the calling thread.
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

    /// Notes the reception of data: the following requests came with it.
    pub(crate) fn on_received(&mut self) {
        self.received = (self.every > 0).then(now);
    }

    /// Starts a bio; returns its mark.
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
            self.live.push(Live { user: 0, kind: RequestKind::Other, from, spans, is_free: true });
            self.live.len() - 1
        });
        let live = &mut self.live[place];
        (live.user, live.kind, live.from, live.is_free) =
            (bio.user, RequestKind::of(bio.op), from, false);
        self.in_flight += 1;
        Sample(u8::try_from(place + 1).expect("few are in flight"))
    }

    /// Number of requests to skip: `every - 1` on average.
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

    /// Adds a span.
    pub(crate) fn add(&mut self, Timed { sample, span }: Timed) {
        self.live[usize::from(sample.0) - 1].spans.push(span);
    }

    /// Adds a span from `from` until now.
    pub(crate) fn add_since(&mut self, sample: Sample, stage: Stage, from: Nanos) {
        self.add(Timed { sample, span: Span { stage, from, to: now() } });
    }

    /// Adds spans from other threads.
    pub(crate) fn add_all(&mut self, timed: &mut Vec<Timed>) {
        timed.drain(..).for_each(|timed| self.add(timed));
    }

    /// Starts the span of an SQE at the ring or a timer, which counts as the device.
    pub(crate) fn wait(&mut self, sample: Sample, token: Token, from: Nanos) {
        self.waiting.push(Waiting { token, sample, from });
    }

    /// Ends the spans of completed SQEs.
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

    /// Ends the bios that the front end takes.
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
