//! The load of `cargo x bench vhost`: `vhost_client DOOR PATH` and the words of `load::Job::parse`.
//! DOOR is `vhost-user`, `vhost-user-polled` or `nbd`.
//!
//! A package of its own, outside of the workspace: the tests need not build what it depends on.

mod load;
mod memory;
mod nbd;
mod vhost_user;

use load::{Job, load};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [door, path, words @ ..] = &words[..] else {
        return Err("the usage is at the top of src/main.rs".into());
    };
    let job = Job::parse(words)?;
    match door.as_str() {
        "vhost-user" => load(&job, vhost_user::connect(path, &job, false)?),
        "vhost-user-polled" => load(&job, vhost_user::connect(path, &job, true)?),
        "nbd" => load(&job, job.doors(|| nbd::Connection::open(path, &job))?),
        _ => Err(format!("{door}: no such door").into()),
    }
}
