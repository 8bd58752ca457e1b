//! An elevator of the program's own: `lifo` serves the youngest request first. Readers of a
//! simulated disk show its price: `cargo run -p blockyard-lab --example own_elevator`
//!
//! `docs/elevators/adding.md` explains the steps; their numbers are here too.

use blockyard_lab::engine::bio::IoContext;
use blockyard_lab::engine::elevator::{
    Attached, Candidate, Elevator, ElevatorSpec, ElevatorType, Generation, Merged, Work,
};
use blockyard_lab::engine::request::{RequestId, Requests};
use blockyard_lab::engine::time::Nanos;
use blockyard_lab::{Error, Experiment, Request, report, run};

// Step 1: the type.

static LIFO: ElevatorType = ElevatorType {
    name: "lifo",
    about: "last come, first served",
    generation: Generation::Single,
    tunables: &[],
    attach: |_, _| Attached { policy: Some(Box::new(Lifo(Vec::new()))), async_depth: None },
};

// Step 2: the policy.

/// The waiting requests, the youngest last.
struct Lifo(Vec<RequestId>);

impl Elevator for Lifo {
    fn allow_merge(&self, _: &Requests, _: RequestId, _: &Candidate) -> bool {
        false
    }

    fn insert(&mut self, _: Nanos, _: &Requests, request: RequestId) {
        self.0.push(request);
    }

    fn merged(&mut self, _: Nanos, _: &Requests, _: RequestId, _: Merged) {}

    fn dispatch(&mut self, _: Nanos, _: &Requests) -> Option<RequestId> {
        self.0.pop()
    }

    fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn completed(&mut self, _: Nanos, _: &Requests, _: RequestId) {}

    fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}

    fn work(&self, _: Nanos) -> Work {
        if self.0.is_empty() { Work::None } else { Work::Now }
    }
}

// Step 3: an experiment with it.

const EXPERIMENT: &str = r#"
name = "random-reads"
title = "Eight readers on one disk"
[device]
kind = "disk"
[queue]
elevator = "noop"
[jobs.reads]
program = "fio"
sections.reads = { rw = "randread", bs = "4k", size = "1m", direct = 1, numjobs = 8 }
[variants.noop]
"#;

/// The longest latency of a read, with the elevator of the experiment or another one.
fn longest(elevator: Option<ElevatorSpec>) -> Result<f64, Error> {
    let experiment = Experiment::parse("random-reads.toml", EXPERIMENT, None)?;
    let outcome = run(&experiment, &Request { elevator, ..Request::default() }, &|_, _| ())?;
    print!("{}", report::text(&outcome.report));
    let mut rows = outcome.report.rows.into_iter();
    let row = rows.find(|row| row.metric == "latency_max");
    Ok(row.and_then(|row| row.ours).expect("fio measures it").median)
}

fn main() -> Result<(), Error> {
    let noop = longest(None)?;
    let lifo = longest(Some(ElevatorSpec::of(&LIFO)))?;
    println!("longest latency: noop {noop}, lifo {lifo}");
    Ok(())
}

// Step 4: a test of the promise, here of its absence.

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_at_the_bottom_starves() {
        let noop = longest(None).unwrap();
        let lifo = longest(Some(ElevatorSpec::of(&LIFO))).unwrap();
        assert!(lifo > noop, "{lifo} {noop}");
    }
}
