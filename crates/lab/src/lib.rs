//! The lab: experiments with I/O schedulers, from a TOML file to a report.
//!
//! ```text
//!   file ── spec ──> experiment ── page: which runs ──> execute: all cores, a world each
//!                        │                                   │
//!                     search: fits                       results ──> judge: claims
//!                                                            └──> blockyard-report
//! ```
//! [`Experiment::parse`] reads an experiment, [`builtin::load`] loads a built-in one. [`run`] runs
//! it in the simulated world and judges its claims, [`real::run`] runs its jobs on this machine.
//! [`search`] fits the constants of its world. [`run_job`] runs a single job under an observer of
//! the calling program.
//!
//! # An elevator of your own
//!
//! ```
//! use blockyard_lab::engine::bio::IoContext;
//! use blockyard_lab::engine::elevator::{
//!     Attached, Candidate, Elevator, ElevatorSpec, ElevatorType, Generation, Merged, Work,
//! };
//! use blockyard_lab::engine::request::{RequestId, Requests};
//! use blockyard_lab::engine::time::Nanos;
//! use blockyard_lab::{Experiment, Request, report, run};
//!
//! /// The last request goes first.
//! struct Lifo(Vec<RequestId>);
//!
//! impl Elevator for Lifo {
//!     fn allow_merge(&self, _: &Requests, _: RequestId, _: &Candidate) -> bool {
//!         false
//!     }
//!     fn insert(&mut self, _: Nanos, _: &Requests, request: RequestId) {
//!         self.0.push(request);
//!     }
//!     fn merged(&mut self, _: Nanos, _: &Requests, _: RequestId, _: Merged) {}
//!     fn dispatch(&mut self, _: Nanos, _: &Requests) -> Option<RequestId> {
//!         self.0.pop()
//!     }
//!     fn requeued(&mut self, _: Nanos, _: &Requests, _: RequestId) {}
//!     fn completed(&mut self, _: Nanos, _: &Requests, _: RequestId) {}
//!     fn exit_context(&mut self, _: Nanos, _: &Requests, _: IoContext) {}
//!     fn work(&self, _: Nanos) -> Work {
//!         if self.0.is_empty() { Work::None } else { Work::Now }
//!     }
//! }
//!
//! static LIFO: ElevatorType = ElevatorType {
//!     name: "lifo",
//!     about: "last come, first served",
//!     generation: Generation::Single,
//!     tunables: &[],
//!     attach: |_, _| Attached { policy: Some(Box::new(Lifo(Vec::new()))), async_depth: None },
//! };
//!
//! const EXPERIMENT: &str = r#"
//! name = "random-reads"
//! title = "Eight readers on one disk"
//! [device]
//! kind = "disk"
//! [queue]
//! elevator = "noop"
//! [jobs.reads]
//! program = "fio"
//! sections.reads = { rw = "randread", bs = "4k", size = "1m", direct = 1, numjobs = 8 }
//! [variants.noop]
//! "#;
//!
//! # fn main() -> Result<(), blockyard_lab::Error> {
//! let experiment = Experiment::parse("random-reads.toml", EXPERIMENT, None)?;
//! let longest = |request: &Request| {
//!     let outcome = run(&experiment, request, &|_, _| ())?;
//!     print!("{}", report::text(&outcome.report));
//!     let mut rows = outcome.report.rows.into_iter();
//!     let row = rows.find(|row| row.metric == "latency_max");
//!     Ok(row.and_then(|row| row.ours).expect("fio measures it").median)
//! };
//! let noop = longest(&Request::default())?;
//! let mine = Request { elevator: Some(ElevatorSpec::of(&LIFO)), ..Request::default() };
//! assert!(longest(&mine)? > noop, "a request at the bottom starves");
//! # Ok(())
//! # }
//! ```

pub mod builtin;
mod causes;
pub mod compare;
mod error;
mod execute;
mod judge;
mod lines;
mod measured;
mod observe;
mod page;
pub mod real;
mod relabel;
mod results;
mod rules;
mod search;
mod spec;
mod trace;

pub use blockyard_engine as engine;
pub use blockyard_report as report;
pub use blockyard_sim as sim;

pub use error::Error;
pub use execute::{JobDone, Measured, Progress, run_job};
pub use page::{Outcome, Request, run, side_by_side};
pub use relabel::relabel;
pub use search::{Found, search};
pub use spec::fit::{Fit, Point};
pub use spec::job::JobSpec;
pub use spec::traced::TraceJob;
pub use spec::tree::Override;
pub use spec::{Experiment, Setup, Variant};
pub use trace::{Tracer, Window};
