//! An idle disk uses no CPU, although its queues poll while their guest is busy.
//!
//! One test only: it looks at the threads of its process.

mod client;
mod guest;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::server::{DeviceOptions, Polling, ServedExport, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};

use client::Serving;
use guest::*;

/// Times and turns on a CPU of the queues' threads, by their numbers.
fn usage() -> BTreeMap<String, String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_queue = |path: &std::path::PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "vhost queue")
    };
    let usage = |path: std::path::PathBuf| {
        (path.display().to_string(), fs::read_to_string(path.join("schedstat")).unwrap())
    };
    tasks.filter(is_queue).map(usage).collect()
}

/// Zeroes, served on this socket.
fn serve(socket: &Path, polling: Polling) -> (Serving, Arc<Volume>) {
    let text = SecretBytes::copy_of(b"0 16384 zero");
    let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
    let volume = Arc::new(Volume::from_table(&text, &options).unwrap());
    let export = ServedExport::new("", Arc::clone(&volume));
    let at = socket.to_owned();
    let options = DeviceOptions { polling, ..DeviceOptions::default() };
    let nbd = socket.with_extension("nbd");
    let serving =
        Serving::start_with(&nbd, vec![export], ServerOptions::default(), move |server| {
            server.listen_vhost_user(&at, 0, &options).unwrap();
        });
    (serving, volume)
}

fn burst(guest: &mut Guest) {
    for _ in 0..2000 {
        guest.push(0, 0, READ, 0, 4096);
        guest.announce(0);
        guest.ended(0);
    }
}

/// Whether none of these queues runs while another disk is busy for a while.
fn sleep_beside(other: &mut Guest, quiet: &BTreeMap<String, String>) -> bool {
    let before = usage();
    burst(other);
    let after = usage();
    quiet.keys().all(|thread| after[thread] == before[thread])
}

#[test]
fn queue_without_requests_does_not_run_while_another_disk_is_busy() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let [idle, always, busy] = ["idle", "always", "busy"].map(|name| dir.path().join(name));
    let (serving, _) = serve(&idle, Polling::Auto);
    let (serving_always, volume) = serve(&always, Polling::Always);
    let (serving_busy, _) = serve(&busy, Polling::Auto);
    let mut guests = [idle, always].map(|socket| Guest::connect(&socket, 1, F_FLUSH));
    guests.iter_mut().for_each(burst);
    let quiet = usage();
    assert_eq!(quiet.len(), 2);
    let mut other = Guest::connect(&busy, 1, F_FLUSH);
    // The poll after the last request ends during this burst.
    burst(&mut other);
    let has_cpus = std::thread::available_parallelism().unwrap().get() > 1;
    // Others may use the CPUs of a busy machine for longer than a burst.
    let runs = (0..1000).any(|_| !sleep_beside(&mut other, &quiet));
    assert!(!has_cpus || runs, "one of them always polls");
    // Requests of a suspended volume cannot begin.
    volume.suspend().unwrap();
    burst(&mut other);
    // A queue wakes once to release its memory, after some seconds without a request.
    let sleeps = (0..10).any(|_| sleep_beside(&mut other, &quiet));
    assert!(sleeps, "a queue has run");
    drop((guests, other));
    [serving, serving_always, serving_busy].into_iter().for_each(Serving::stop);
}
