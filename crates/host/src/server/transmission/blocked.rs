//! A client that does not read its replies, and whose requests go to workers in batches.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Instant;

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::dm::crypt::hand_over::WakeUp;
use blockyard_protocol::nbd::Export;

use super::*;
use crate::completions::CompletionQueue;
use crate::file::{Access, DeviceFile};
use crate::memory::Budget;
use crate::volume::VolumeOptions;
use crate::workers::{HandOver, Job, Task, Workers};

const SIZE_BYTES: u64 = 1 << 20;
const REPLY_BYTES: usize = 16;
/// Writes of 4 KiB that fit the inbox together.
const TOGETHER: u64 = 28;
const HANGS: Duration = Duration::from_secs(20);

fn volume(path: &Path) -> Arc<Volume> {
    File::create(path).unwrap().set_len(SIZE_BYTES).unwrap();
    let params =
        CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()));
    let options = VolumeOptions { worker_threads: Some(2), ..VolumeOptions::default() };
    Arc::new(Volume::from_crypt(opened(path), &params, &options).unwrap())
}

fn opened(path: &Path) -> DeviceFile {
    DeviceFile::open(path, Access::ReadWrite, false).unwrap()
}

/// A connection and its client, after the handshake.
fn connected(volume: &Arc<Volume>) -> (Transmission, UnixStream) {
    connected_to(volume, SIZE_BYTES)
}

/// As [`connected`], with a volume of this size.
pub(super) fn connected_to(volume: &Arc<Volume>, size_bytes: u64) -> (Transmission, UnixStream) {
    let mut session = Session::new([Export::new("", size_bytes)].into(), Some(0));
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    let mut rest = &hello[..];
    while !session.is_transmission() {
        rest = &rest[session.on_bytes(rest, &mut Vec::new()).consumed..];
    }
    let (ours, client) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(HANGS)).unwrap();
    let socket = Arc::new(Socket::new(ours.into(), true));
    let grant = Budget::new(1).grant(Transmission::useful_bytes(volume));
    let served = ServedExport::new("", Arc::clone(volume));
    let transmission = Transmission::new(socket, session, &served, grant, &[]);
    (transmission.expect("the system has memory"), client)
}

fn writes(count: u64) -> Vec<u8> {
    let write = |number: u64| {
        let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
        write.extend([0, 0, 0, 1]);
        write.extend(number.to_be_bytes());
        write.extend((number * 4096).to_be_bytes());
        write.extend(4096u32.to_be_bytes());
        write.resize(write.len() + 4096, 7);
        write
    };
    (0..count).flat_map(write).collect()
}

impl Transmission {
    /// Takes requests until they are at the workers, or have ended.
    fn take_and_submit(&mut self, requests: &[u8]) {
        self.take_over(requests);
        let begun = self.parse().and_then(|()| self.collect());
        begun.expect("the client is there");
        self.driver.unplug();
    }

    /// The next short requests go to workers, if a CPU is idle.
    fn become_steady(&mut self, client: &mut UnixStream) {
        let workers = self.volume.parts.workers.as_ref().expect("it has some");
        workers.fall_asleep();
        for _ in 0..2 {
            self.take_and_submit(&writes(TOGETHER));
            while self.open_requests() > 0 {
                self.collect().expect("the client is there");
                self.driver.unplug();
                self.driver.help();
            }
            self.send().expect("the client reads");
            client.read_exact(&mut [0; TOGETHER as usize * REPLY_BYTES]).unwrap();
        }
    }

    /// Lets the client's socket accept nothing more, and one reply wait for it; returns the number
    /// of bytes before the reply.
    fn fill_socket(&mut self) -> usize {
        let mut filled = 0;
        loop {
            match self.socket.send_now(&[0; 512]).unwrap() {
                0 => break,
                sent => filled += sent,
            }
        }
        self.append(&[0; REPLY_BYTES]).expect("the outbox is empty");
        filled
    }
}

fn comes_true(mut is_true: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_true() {
        if begun.elapsed() > HANGS {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Its requests are few, and no worker is awake. The ranges of its writes, or a suspend, may wait
/// for them, and other volumes for its CPU.
#[test]
fn requests_of_a_client_that_does_not_read_end_and_its_thread_is_not_busy() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let volume = volume(&dir.path().join("image"));
    let workers: &Arc<Workers> = volume.parts.workers.as_ref().unwrap();
    let before = workers.load_now();
    for count in [5, 0] {
        let (mut transmission, mut client) = connected(&volume);
        transmission.become_steady(&mut client);
        let filled = transmission.fill_socket();
        transmission.take_and_submit(&writes(count));
        std::thread::scope(|scope| {
            let client = scope.spawn(move || {
                let has_ended = comes_true(|| workers.load_now().fanned_out_bytes == 0);
                let is_free = comes_true(|| workers.load_now() == before);
                client
                    .read_exact(&mut vec![0; filled + (1 + count as usize) * REPLY_BYTES])
                    .unwrap();
                client.shutdown(Shutdown::Both).unwrap();
                (has_ended, is_free)
            });
            let _ = transmission.run();
            assert_eq!(client.join().unwrap(), (true, true), "{count}");
        });
    }
}

/// A worker encrypts writes to a disk while the thread runs another job of its volume. Then the
/// client reads again, so the thread does not look for completions another time.
#[test]
fn writes_that_a_worker_has_encrypted_go_to_the_disk_before_the_thread_waits() {
    let dir = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(dir.parent().unwrap()).unwrap();
    let volume = volume(&dir.path().join("image"));
    let (mut transmission, mut client) = connected(&volume);
    transmission.become_steady(&mut client);
    let filled = transmission.fill_socket();
    let hand_over = transmission.driver.hand_over();
    let mut reader = client.try_clone().unwrap();
    let own = hand_over.again();
    put(&hand_over, WakeUp::ForMany, move || {
        let (ends, ended) = channel();
        put(&own, WakeUp::Always, move || ends.send(()).unwrap());
        // The worker has taken the older jobs first.
        ended.recv().unwrap();
        reader.read_exact(&mut vec![0; filled]).unwrap();
    });
    transmission.take_and_submit(&writes(5));
    if transmission.driver.reads_client_buffer() {
        transmission.send().expect("the client reads");
        let driver = &transmission.driver;
        assert!(driver.has_done() || driver.wake_sources().iter().any(Option::is_some));
    }
}

/// Adds a job to those of the volume.
fn put(hand_over: &HandOver, wake: WakeUp, run: impl FnOnce() + Send + 'static) {
    let completions = CompletionQueue::new().unwrap();
    let job = Job::one(Box::new(|_| run()), &completions, 0);
    hand_over.submit(Job { wake, ..job }, &mut Task::new());
}

/// At rest, nothing but the socket and the gate ends the wait.
#[test]
fn connection_at_rest_follows_orders_and_serves_the_next_request() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
    let params = CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&[7; 64]));
    let options = VolumeOptions { controlled: true, ..VolumeOptions::default() };
    let volume = Arc::new(Volume::from_crypt(opened(&path), &params, &options).unwrap());
    let (mut connection, mut client) = connected(&volume);
    connection.socket.set_receive_timeout(Duration::from_millis(1));
    connection.wait().ok().unwrap();
    assert!(connection.is_at_rest);
    let unheard = client.try_clone().unwrap();
    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(HANGS).is_err() {
                unheard.shutdown(Shutdown::Both).unwrap();
            }
        });
        volume.parts.gate.as_ref().expect("it can be suspended").wake_all();
        connection.wait().ok().unwrap();
        done.send(()).unwrap();
    });
    assert!(!connection.closing, "the order was not heard");
    client.write_all(&writes(1)).unwrap();
    connection.wait().ok().unwrap();
    assert!(!connection.is_at_rest && !connection.inbox.is_empty());
}
