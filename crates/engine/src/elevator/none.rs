//! `none`: no elevator. Requests go to the device in the order in which they come; what lies next
//! to each other in a plug or in a software queue is merged (`block/blk-mq-sched.c`).

use super::{Attached, ElevatorType, Facts, Generation, Tunables};

/// What it is.
pub static NONE: ElevatorType = ElevatorType {
    name: "none",
    about: "no scheduling: each client has a hardware queue of its own; for fast devices",
    generation: Generation::Multi,
    tunables: &[],
    attach,
};

fn attach(_: &Tunables<'_>, _: Facts) -> Attached {
    Attached { policy: None, async_depth: None }
}
