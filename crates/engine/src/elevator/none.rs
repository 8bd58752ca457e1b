//! `none`: no elevator. Requests go to the device in the order of arrival; adjacent ones in a plug
//! or in a software queue are merged (`block/blk-mq-sched.c`).

use super::{Attached, ElevatorType, Facts, Generation, Tunables};

/// The elevator's type.
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
