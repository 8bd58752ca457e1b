//! Sampled requests of one connection, until they end.
//!
//! One of [`EVERY_SYNCHRONOUS`] requests is sampled if all end immediately, one of [`EVERY_QUEUED`]
//! if they wait. A sample cost up to 2.5 µs in measurements, including cold caches; requests of the
//! first kind take at least 1 µs, of the second at least 5 µs. The gap to the next sample is
//! random, so no pattern of a client is missed.

use std::sync::Arc;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Sample, Sector};
use blockyard_engine::sq::{Cqe, Token};
use blockyard_engine::time::Nanos;

use super::record::Record;
use super::stats::StageStats;
use super::{RequestKind, Span, Stage, Timed, attribute, now};
use crate::log::{self, Event, Kind, Value};

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
    sector: Sector,
    len: Sector,
    from: Nanos,
    spans: Vec<Span>,
    is_free: bool,
}

/// Logs requests that take long.
struct Slow {
    limit_ns: u64,
    export: String,
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
    slow: Option<Slow>,
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
            slow: None,
        }
    }

    /// Logs slow requests of this export, if the operator wants it. Each request is a sample then,
    /// as long as [`LIVE_MAX`] suffices.
    pub(crate) fn log_slow(&mut self, export: &str) {
        if let Some(limit_ns) = log::slow_request_ns() {
            self.slow = Some(Slow { limit_ns, export: export.to_owned() });
            self.every = 1;
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
            let [sector, len] = [bio.sector, bio.len];
            let kind = RequestKind::Other;
            self.live.push(Live { user: 0, kind, sector, len, from, spans, is_free: true });
            self.live.len() - 1
        });
        let live = &mut self.live[place];
        (live.user, live.kind, live.from, live.is_free) =
            (bio.user, RequestKind::of(bio.op), from, false);
        (live.sector, live.len) = (bio.sector, bio.len);
        self.in_flight += 1;
        Sample(u8::try_from(place + 1).expect("few are in flight"))
    }

    /// Starts the time of a flush. Flushes are rare, and each is a system call or a message: two
    /// readings of the clock are no cost, and a sample would miss the slow one.
    pub(crate) fn begin_flush(&self) -> Option<Nanos> {
        (self.every > 0).then(now)
    }

    /// Ends the time of a successful flush.
    pub(crate) fn end_flush(&self, from: Nanos) {
        self.record.add_flush(now().since(from));
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
        let is_ok = *status == BlkStatus::Ok;
        if is_ok || self.slow.is_some() {
            let stages = attribute(live.from, now(), &mut live.spans);
            if is_ok {
                self.record.add(live.kind, &stages);
            }
            if let Some(slow) = &self.slow {
                slow.look(live, &stages);
            }
        }
        live.spans.clear();
        live.is_free = true;
        self.in_flight -= 1;
    }
}

impl Slow {
    fn look(&self, live: &Live, stages: &[u64; Stage::ALL.len()]) {
        let total: u64 = stages.iter().sum();
        if total > self.limit_ns {
            self.say(live, stages, total);
        }
    }

    #[cold]
    fn say(&self, live: &Live, stages: &[u64; Stage::ALL.len()], total_ns: u64) {
        let Self { export, .. } = self;
        let Live { sector, len, .. } = *live;
        let kind = live.kind.name();
        let us = |ns: u64| ns / 1000;
        let mut fields = vec![
            ("operation", Value::Text(kind)),
            ("sector", Value::Number(sector.0)),
            ("sectors", Value::Number(len.0)),
            ("total_us", Value::Number(us(total_ns))),
        ];
        let mut text = String::new();
        for (stage, ns) in Stage::ALL.into_iter().zip(stages).filter(|(_, ns)| **ns > 0) {
            fields.push((stage.name(), Value::Number(us(*ns))));
            text.push_str(&format!(", {} {} us", stage.name(), us(*ns)));
        }
        let event = Event::new(Kind::SlowRequest).export(export).fields(&fields);
        event.say(format_args!(
            "export {export:?}: a {kind} of {} sectors at {} took {} us{text}",
            len.0,
            sector.0,
            us(total_ns)
        ));
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        self.stats.close(&self.record);
    }
}
