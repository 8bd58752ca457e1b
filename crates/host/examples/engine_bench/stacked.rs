//! Cost of a layer of request-based multipath: a queue with `none`, and the same queue over that of
//! one path, clones inserted directly. Random bios, so that nothing is merged; as many at a time as
//! there are tags. The two alternate; each has its fastest round.

use std::hint::black_box;
use std::time::Instant;

use blockyard_engine::bio::{Bio, BlkStatus, Done, Op, Sector};
use blockyard_engine::buf::BufRef;
use blockyard_engine::dm::multipath::Multipath;
use blockyard_engine::dm::multipath::line::{MultipathSpec, parse};
use blockyard_engine::dm::multipath::stacked::{
    Answer, Dispatched, StackedConfig, StackedQueue, Stacking,
};
use blockyard_engine::dm::multipath::target::MultipathTargetSpec;
use blockyard_engine::elevator::{ElevatorSpec, none};
use blockyard_engine::mq::{PlugRule, QueueConfig, RequestQueue};
use blockyard_engine::sq::DevId;
use blockyard_engine::time::Nanos;

const DEPTH: u32 = 32;
const ROUNDS: usize = 300;
const BATCHES: usize = 30;
/// Prime, so that successive bios are not adjacent on the disk.
const STRIDE: u64 = 1_000_003;

fn spec() -> MultipathSpec {
    parse(&["0", "0", "1", "1", "service-time", "0", "1", "0", "/path"]).expect("the line is one")
}

/// Bio-based multipath over one path.
pub(crate) fn one_path() -> MultipathTargetSpec {
    let multipath = spec();
    let devs = vec![DevId(0)];
    MultipathTargetSpec { multipath, devs, requests: None }
}

pub(crate) fn print(json: bool) {
    let config = QueueConfig {
        queue_depth: DEPTH,
        rotational: false,
        plug: PlugRule::Off,
        ..QueueConfig::default()
    };
    let elevator = ElevatorSpec::of(&none::NONE);
    let mut bare = RequestQueue::new(config, &elevator);
    let stacking = Stacking::TODAY;
    let config = StackedConfig { upper: config, elevator, lower: config, stacking };
    let mut stacked = StackedQueue::new(config, Multipath::new(spec()));
    let mut best = [f64::MAX; 2];
    let mut issues = Vec::new();
    let mut dispatched = Vec::new();
    for _ in 0..ROUNDS {
        best[0] = best[0].min(round(&mut bare, |queue, bio| match bio {
            Step::Submit(bio) => drop(queue.submit_bio(Nanos(0), bio)),
            Step::End(done) => {
                queue.dispatch(Nanos(0), &mut issues);
                for issue in issues.drain(..) {
                    queue.complete(Nanos(0), black_box(issue).tag, BlkStatus::Ok);
                }
                queue.take_done(done);
            }
        }));
        best[1] = best[1].min(round(&mut stacked, |queue, bio| match bio {
            Step::Submit(bio) => drop(queue.submit_bio(Nanos(0), bio)),
            Step::End(done) => {
                queue.dispatch(Nanos(0), 0, &mut dispatched);
                for dispatched in dispatched.drain(..) {
                    let Dispatched::Issue { path, issue } = black_box(dispatched) else {
                        unreachable!("clones are inserted directly")
                    };
                    queue.complete(Nanos(0), path, issue.tag, Answer::done(&issue));
                }
                queue.take_done(done);
            }
        }));
    }
    for (case, ns) in ["request queue, none", "stacked queue, one path"].into_iter().zip(best) {
        if json {
            println!("{{\"bench\": \"engine\", \"case\": \"{case}\", \"ns_per_bio\": {ns:.1}}}");
        } else {
            let over = ns - best[0];
            println!("{case:<28} {ns:6.1} ns per 4 KiB bio, {DEPTH} at a time; {over:+.1} to bare");
        }
    }
}

enum Step<'a> {
    Submit(Bio),
    /// Dispatch and end all requests.
    End(&'a mut Vec<Done>),
}

/// Nanoseconds per bio.
fn round<Q>(queue: &mut Q, mut step: impl FnMut(&mut Q, Step<'_>)) -> f64 {
    let mut done = Vec::new();
    let start = Instant::now();
    for batch in 0..BATCHES as u64 {
        for index in 0..u64::from(DEPTH) {
            let sector = Sector((batch * u64::from(DEPTH) + index) * STRIDE);
            let bio = Bio::new(Op::Read, sector, Sector(8), BufRef::zeros(4096), index);
            step(queue, Step::Submit(black_box(bio)));
        }
        step(queue, Step::End(&mut done));
        assert_eq!(done.len(), DEPTH as usize);
        done.clear();
    }
    start.elapsed().as_nanos() as f64 / (BATCHES * DEPTH as usize) as f64
}
