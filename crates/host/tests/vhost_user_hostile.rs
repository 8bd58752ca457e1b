//! Front ends and guests that do what they must not, one after another. After each of them the
//! disk has its data, another disk of the same server has gone on, no descriptor is left open, and
//! standard error has one sentence or none.
//!
//! One test only: it counts the descriptors of its process and owns standard error.

mod client;
mod guest;
mod hostile;

use hostile::stage::Stage;
use hostile::{chains, descriptors, leaving, memory, messages, rings};

#[test]
fn hostile_front_end_harms_itself_only() {
    let mut stage = Stage::new();
    let tables = [messages::CASES, memory::CASES, descriptors::CASES, rings::CASES, chains::CASES];
    for (name, said, attack) in tables.into_iter().chain([leaving::CASES]).flatten() {
        stage.play(name, said, *attack);
    }
    stage.end();
}
