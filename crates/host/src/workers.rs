//! Crypto workers: the `Unbound` place. Whichever worker is free takes the oldest job.
//!
//! A hand-over and back costs as much as many small ciphers, so only large parts come here (the
//! crypt target decides). The answers of one executor come back in its own [`Answers`].

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use blockyard_engine::sq::Cqe;

use crate::answers::Answers;
use crate::process;

/// Something to run on a worker; it returns the answer for its executor.
pub(crate) struct Job {
    pub(crate) run: Box<dyn FnOnce() -> Cqe + Send>,
    pub(crate) answer_to: Arc<Answers>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stopping: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
}

/// The threads, until the last user drops them.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start(threads: usize) -> Arc<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), more: Condvar::new() });
        let spawn = |number| {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("crypt/{number}"));
            thread.spawn(move || run(&shared)).ok()
        };
        let threads = (0..threads).filter_map(spawn).collect();
        Arc::new(Self { shared, threads })
    }

    pub(crate) fn submit(&self, job: Job) {
        if self.threads.is_empty() {
            job.answer_to.push_worked((job.run)());
            return;
        }
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.jobs.push_back(job);
        drop(queue);
        self.shared.more.notify_one();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    process::leave_signals_to_others();
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = queue.jobs.pop_front() {
            drop(queue);
            job.answer_to.push_worked((job.run)());
            queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        } else if queue.stopping {
            return;
        } else {
            queue = shared.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
