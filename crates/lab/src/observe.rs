//! Histories of bios and requests, assembled from a world's events: the submitter of a request, its
//! waiting time, and the number of later bios that passed it.
//!
//! [`Follower`] keeps the histories, [`PlotObserver`] thins them out for plots; the listing of
//! `blockyard lab trace` is in [`super::trace`].

use std::collections::BTreeMap;

use blockyard_engine::bio::Op;
use blockyard_engine::time::Nanos;
use blockyard_sim::cpu::ThreadId;
use blockyard_sim::world::{Event, Observer};

/// Limit of the points of a plotted series.
const POINTS_MAX: usize = 2_000;
/// A point of a plotted distribution covers this part of all that take longer.
const TAIL_STEP: usize = 20;
/// Number of successive requests in a plot.
const SUCCESSIVE: usize = 400;

/// A bio in flight.
#[derive(Clone, Copy, Debug)]
struct Bio {
    thread: ThreadId,
    op: Op,
    sector: u64,
    sectors: u32,
    sync: bool,
    submitted: Nanos,
    issued: bool,
    passed_by: u32,
}

/// A request that the device has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Submitter of its first bio; `None` for a flush of the queue itself.
    pub(crate) thread: Option<ThreadId>,
    pub(crate) op: Op,
    pub(crate) sector: u64,
    pub(crate) sectors: u32,
    pub(crate) sync: bool,
    /// Submission time of its first bio.
    pub(crate) queued: Nanos,
    pub(crate) issued: Nanos,
    pub(crate) done: Nanos,
    /// Later bios that were issued earlier.
    pub(crate) passed_by: u32,
}

/// An ended bio.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) sync: bool,
    pub(crate) took: Nanos,
}

/// The request and the bio that an event completed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Finished {
    pub(crate) request: Option<Request>,
    pub(crate) bio: Option<Ended>,
}

/// Follows bios from submission to end.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    /// Bios by number, in the order of submission.
    bios: BTreeMap<u64, Bio>,
    /// First sector and number of each waiting bio.
    waiting: BTreeMap<(u64, u64), ()>,
    running: BTreeMap<u32, Request>,
}

impl Follower {
    /// Number of bios in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.bios.len()
    }

    /// Processes an event.
    pub(crate) fn event(&mut self, at: Nanos, event: &Event) -> Finished {
        match *event {
            Event::Submit { bio, thread, op, sector, sectors, sync, .. } => {
                let issued = matches!(op, Op::Flush);
                let new =
                    Bio { thread, op, sector, sectors, sync, submitted: at, issued, passed_by: 0 };
                self.bios.insert(bio, new);
                if !issued {
                    self.waiting.insert((sector, bio), ());
                }
                Finished::default()
            }
            Event::Issue { tag, op, sector, sectors, .. } => {
                let request = self.issue(at, op, sector, sectors);
                self.running.insert(tag, request);
                Finished::default()
            }
            Event::Complete { tag } => {
                let request =
                    self.running.remove(&tag).map(|request| Request { done: at, ..request });
                Finished { request, bio: None }
            }
            Event::End { bio, .. } => {
                let ended = self.bios.remove(&bio).map(|ended| {
                    self.waiting.remove(&(ended.sector, bio));
                    Ended { sync: ended.sync, took: at.since(ended.submitted) }
                });
                Finished { request: None, bio: ended }
            }
            Event::Spawn { .. }
            | Event::Switch { .. }
            | Event::Block { .. }
            | Event::Wake { .. } => Finished::default(),
        }
    }

    /// Finds the bios of a request: those that begin in it, or the one that it is a piece of.
    fn issue(&mut self, at: Nanos, op: Op, sector: u64, sectors: u32) -> Request {
        let mut request = Request {
            thread: None,
            op,
            sector,
            sectors,
            sync: false,
            queued: at,
            issued: at,
            done: at,
            passed_by: 0,
        };
        if op == Op::Flush {
            return request;
        }
        let end = sector + u64::from(sectors);
        let begins = self.waiting.range((sector, 0)..(end, 0)).map(|((_, bio), ())| *bio);
        let mut carried: Vec<u64> =
            begins.filter(|bio| self.bios[bio].op == op && !self.bios[bio].issued).collect();
        if carried.is_empty() {
            let before = self.waiting.range(..(sector, 0)).rev().take(4).map(|((_, bio), ())| *bio);
            let covers = |bio: &u64| {
                let bio = &self.bios[bio];
                bio.op == op && bio.sector + u64::from(bio.sectors) > sector
            };
            carried.extend(before.filter(covers).take(1));
        }
        if let Some(first) = carried.iter().min() {
            let bio = self.bios[first];
            request.thread = Some(bio.thread);
            (request.sync, request.queued) = (bio.sync, bio.submitted);
            request.passed_by = bio.passed_by;
        }
        for bio in &carried {
            let issued = self.bios.get_mut(bio).expect("a bio that waits is known");
            issued.issued = true;
            // The rest of a longer bio is found again by its start.
            if issued.sector + u64::from(issued.sectors) <= end {
                self.waiting.remove(&(issued.sector, *bio));
            }
        }
        if let Some(last) = carried.iter().max() {
            for (_, bio) in self.bios.range_mut(..last) {
                bio.passed_by += u32::from(!bio.issued);
            }
        }
        request
    }
}

/// Series of a run for plots; times are in seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlotData {
    /// Latency, and the share of synchronous bios that take as long or longer. The points are dense
    /// in the tail.
    pub(crate) latency: Vec<(f64, f64)>,
    /// Time, and first byte of a request in MiB from the start of the device.
    pub(crate) head: Vec<(f64, f64)>,
    /// Time, and number of bios in queue and device.
    pub(crate) depth: Vec<(f64, f64)>,
    /// Start, end and thread of successive requests at the device, from the second half of the run.
    pub(crate) served: Vec<(f64, f64, u32)>,
}

/// An observer that records series for plots, or does nothing.
#[derive(Debug)]
pub(crate) struct PlotObserver(Option<Box<Recording>>);

#[derive(Debug, Default)]
struct Recording {
    follower: Follower,
    sync_took: Vec<Nanos>,
    head: Thin<(f64, f64)>,
    depth: Thin<(f64, f64)>,
    served: Successive<(f64, f64, u32)>,
}

impl PlotObserver {
    pub(crate) fn new(record: bool) -> Self {
        Self(record.then(Box::default))
    }

    /// The recorded series.
    pub(crate) fn plot_data(self) -> Option<PlotData> {
        let Recording { mut sync_took, head, depth, served, .. } = *self.0?;
        sync_took.sort_unstable();
        let latency = tail(&sync_took);
        Some(PlotData { latency, head: head.kept, depth: depth.kept, served: served.kept })
    }
}

impl Observer for PlotObserver {
    fn event(&mut self, at: Nanos, event: &Event) {
        let Some(recording) = &mut self.0 else { return };
        let finished = recording.follower.event(at, event);
        if let Some(bio) = finished.bio.filter(|bio| bio.sync) {
            recording.sync_took.push(bio.took);
        }
        if let Some(request) = finished.request {
            let thread = request.thread.map_or(0, |thread| thread.0);
            recording.served.push((seconds(request.issued), seconds(request.done), thread));
        }
        match event {
            Event::Issue { sector, op, .. } if *op != Op::Flush => {
                recording.head.push((seconds(at), *sector as f64 / 2048.0));
            }
            Event::Submit { .. } | Event::End { .. } => {
                recording.depth.push((seconds(at), recording.follower.in_flight() as f64));
            }
            _ => {}
        }
    }
}

/// Points of the distribution of ascending times: the longest, then ever larger shares of all.
fn tail(ascending: &[Nanos]) -> Vec<(f64, f64)> {
    let all = ascending.len();
    let mut points = Vec::new();
    let mut longer = 1;
    while longer <= all {
        points.push((seconds(ascending[all - longer]), longer as f64 / all as f64));
        longer += (longer / TAIL_STEP).max(1);
    }
    if let Some(first) = ascending.first() {
        points.push((seconds(*first), 1.0));
    }
    points.reverse();
    points
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

/// Keeps every n-th item, and doubles n when [`POINTS_MAX`] is exceeded.
#[derive(Debug)]
struct Thin<T> {
    kept: Vec<T>,
    every: u64,
    came: u64,
}

impl<T> Default for Thin<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), every: 1, came: 0 }
    }
}

impl<T> Thin<T> {
    fn push(&mut self, one: T) {
        if self.came.is_multiple_of(self.every) {
            self.kept.push(one);
        }
        self.came += 1;
        if self.kept.len() > POINTS_MAX {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }
}

/// Keeps successive items from the second half of all: recording starts anew when their number
/// reaches a power of two.
#[derive(Debug)]
struct Successive<T> {
    kept: Vec<T>,
    came: u64,
}

impl<T> Default for Successive<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), came: 0 }
    }
}

impl<T> Successive<T> {
    fn push(&mut self, one: T) {
        self.came += 1;
        if self.came.is_power_of_two() && self.came > SUCCESSIVE as u64 {
            self.kept.clear();
        }
        if self.kept.len() < SUCCESSIVE {
            self.kept.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use blockyard_engine::bio::BlkStatus;
    use blockyard_engine::priority::Priority;

    use super::*;

    fn submit(follower: &mut Follower, at: u64, bio: u64, sector: u64, sectors: u32) {
        let thread = ThreadId(u32::try_from(bio).unwrap());
        let op = Op::Read;
        let sync = true;
        let fua = false;
        let preflush = false;
        let priority = Priority::default();
        let event =
            Event::Submit { bio, thread, op, sector, sectors, sync, fua, preflush, priority };
        follower.event(Nanos(at), &event);
    }

    fn request(follower: &mut Follower, at: u64, sector: u64, sectors: u32) -> Request {
        let op = Op::Read;
        let in_flight = 1;
        follower.event(Nanos(at), &Event::Issue { tag: 0, op, sector, sectors, in_flight });
        follower.event(Nanos(at + 5), &Event::Complete { tag: 0 }).request.unwrap()
    }

    #[test]
    fn request_is_its_oldest_bio_and_counts_those_that_passed_it() {
        let mut follower = Follower::default();
        submit(&mut follower, 10, 1, 800, 8);
        submit(&mut follower, 20, 2, 108, 8);
        submit(&mut follower, 30, 3, 100, 8);
        let merged = request(&mut follower, 40, 100, 16);
        assert_eq!((merged.thread, merged.queued.0), (Some(ThreadId(2)), 20));
        assert_eq!((merged.issued.0, merged.done.0, merged.passed_by), (40, 45, 0));
        submit(&mut follower, 50, 4, 300, 8);
        request(&mut follower, 60, 300, 8);
        let old = request(&mut follower, 70, 800, 8);
        assert_eq!((old.thread, old.passed_by), (Some(ThreadId(1)), 2), "two requests, not bios");
        let ended =
            follower.event(Nanos(90), &Event::End { bio: 1, status: BlkStatus::Ok }).bio.unwrap();
        assert_eq!(ended.took, Nanos(80));
        assert_eq!(follower.in_flight(), 3);
    }

    #[test]
    fn pieces_of_a_split_bio_belong_to_it() {
        let mut follower = Follower::default();
        submit(&mut follower, 10, 7, 1_000, 32);
        for piece in 0..4 {
            let piece = request(&mut follower, 20 + piece, 1_000 + piece * 8, 8);
            assert_eq!((piece.thread, piece.queued.0), (Some(ThreadId(7)), 10));
        }
    }

    #[test]
    fn tail_has_its_longest_times_one_by_one() {
        let all: Vec<Nanos> = (1..=10_000).map(|ms| Nanos(ms * 1_000_000)).collect();
        let points = tail(&all);
        assert!(points.len() < 250 && points.is_sorted(), "{}", points.len());
        assert_eq!(points[0], (0.001, 1.0));
        assert_eq!(points[points.len() - 2..], [(9.999, 0.0002), (10.0, 0.0001)]);
        assert!(tail(&[]).is_empty());
    }

    #[test]
    fn successive_items_have_no_gaps_and_come_from_the_second_half() {
        let mut recorded = Successive::default();
        (1..=3_000_u64).for_each(|n| recorded.push(n));
        assert_eq!(recorded.kept.len(), SUCCESSIVE);
        assert_eq!((recorded.kept[0], recorded.kept[SUCCESSIVE - 1]), (2_048, 2_447));
    }

    #[test]
    fn thinned_series_stays_in_its_limit_and_covers_everything() {
        let mut thin = Thin::default();
        (0..100_000u64).for_each(|n| thin.push(n));
        assert!(thin.kept.len() <= POINTS_MAX && thin.kept.len() >= POINTS_MAX / 2 - 1);
        assert_eq!(thin.kept[0], 0);
        assert!(*thin.kept.last().unwrap() > 95_000);
        assert!(thin.kept.is_sorted());
    }
}
