//! A queue for which the system has no descriptor starts when it has one again, without a message
//! of its front end.
//!
//! One test only: it limits the descriptors of its process.

mod client;
mod guest;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::server::{DeviceOptions, ServedExport, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use client::Serving;
use guest::*;

/// All smaller numbers of descriptors are used when the limit comes.
const LIMIT: u64 = 64;

fn limit(current: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

fn null() -> File {
    File::open("/dev/null").unwrap()
}

/// Uses all smaller numbers than the limit.
fn fill(fillers: &mut Vec<File>) {
    loop {
        fillers.push(null());
        if fillers.last().unwrap().as_raw_fd() >= LIMIT as i32 {
            return;
        }
    }
}

#[test]
fn queue_starts_when_the_system_has_descriptors_again() {
    let before = getrlimit(Resource::Nofile).current;
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut fillers = Vec::new();
    fill(&mut fillers);
    let text = SecretBytes::copy_of(b"0 16384 zero");
    let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
    let volume = Arc::new(Volume::from_table(&text, &options).unwrap());
    let export = ServedExport::new("", volume);
    let socket = dir.path().join("vhost");
    let at = socket.clone();
    let nbd = dir.path().join("nbd");
    let serving =
        Serving::start_with(&nbd, vec![export], ServerOptions::default(), move |server| {
            server.listen_vhost_user(&at, 0, &DeviceOptions::default()).unwrap();
        });
    let mut guest = Guest::connect(&socket, 1, F_FLUSH);
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    // The thread needs a descriptor, then its driver needs more.
    for spare in [0, 1] {
        fillers.drain(..spare);
        limit(Some(LIMIT));
        // The message stops the queue and starts it again.
        guest.set_logging(false);
        guest.push(0, 0, FLUSH, 0, 0);
        guest.kick(0);
        assert!(!guest.has_answer() && !guest.has_ended(0), "{spare}: it runs");
        limit(before);
        assert_eq!(guest.ended(0).0, 0, "{spare}");
    }
    drop(guest);
    // A stop of such a queue must not make the front end forget a request of an earlier server.
    for spare in [0, 1] {
        let mut guest = Guest::connect_with_record(&socket, F_FLUSH, record_one);
        guest.push(0, 0, FLUSH, 0, 0);
        fill(&mut fillers);
        fillers.drain(..spare);
        limit(Some(LIMIT));
        guest.set_logging(false);
        guest.kick(0);
        assert!(!guest.has_answer() && !guest.has_ended(0), "{spare}: it runs");
        guest.message(GET_VRING_BASE, 0, &[0; 8], &[]);
        assert!(guest.is_disconnected() && !guest.has_ended(0), "{spare}");
        limit(before);
        guest.reconnect(&socket);
        assert_eq!(guest.ended(0).0, 0, "{spare}");
    }
    serving.stop();
}
