//! A front end sends a file of FUSE whose process does not answer the close. Its connection ends,
//! and the socket serves the next front end.

mod client;
mod guest;
mod silent;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blockyard_crypt::secret::SecretBytes;
use blockyard_host::server::{DeviceOptions, ServedExport, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};

use client::Serving;
use guest::*;
use silent::Silent;

const SET_BACKEND_REQ_FD: u32 = 21;
/// Front ends of one socket whose descriptors may be waited for.
const LIMIT: usize = 4;

fn serve(dir: &Path) -> (Serving, PathBuf) {
    let text = SecretBytes::copy_of(b"0 16384 zero");
    let volume = Arc::new(Volume::from_table(&text, &VolumeOptions::default()).unwrap());
    let export = ServedExport::new("", volume);
    let socket = dir.join("vhost");
    let at = socket.clone();
    let serving =
        Serving::start_with(&dir.join("nbd"), vec![export], ServerOptions::default(), move |to| {
            to.listen_vhost_user(&at, 0, &DeviceOptions::default()).unwrap();
        });
    (serving, socket)
}

fn one_region() -> Vec<u8> {
    [0, 1 << 40, 4096, 1 << 40, 0].into_iter().flat_map(u64::to_le_bytes).collect()
}

/// Messages that take a descriptor, one that takes none, and one that does not exist.
fn messages() -> [(u32, Vec<u8>); 9] {
    [
        (ADD_MEM_REG, one_region()),
        (SET_MEM_TABLE, table(&[region(0, 4096, 0)])),
        (SET_VRING_KICK, vec![0; 8]),
        (SET_VRING_CALL, vec![0; 8]),
        (SET_VRING_ERR, vec![0; 8]),
        (SET_BACKEND_REQ_FD, Vec::new()),
        (SET_INFLIGHT_FD, vec![0; 24]),
        (GET_FEATURES, Vec::new()),
        (4096, Vec::new()),
    ]
}

/// Sends a silent file beside a message, and looks whether the socket serves the next front end.
fn attack(request: u32, body: &[u8], count: usize) {
    let Some(mut silent) = Silent::mount() else { return };
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (serving, socket) = serve(dir.path());
    let mut guest = Guest::connect(&socket, 1, F_FLUSH);
    guest.message(request, 8, body, &vec![silent.file.as_fd(); count]);
    assert!(guest.is_disconnected(), "{request}");
    let mut next = Guest::connect(&socket, 1, F_FLUSH);
    assert_eq!(next.run(0, FLUSH, 0, 0), 0, "{request}");
    drop(next);
    silent.end();
    serving.stop();
}

#[test]
fn file_whose_process_does_not_answer_the_close_ends_its_connection_only() {
    messages().iter().for_each(|(request, body)| attack(*request, body, 1));
    // More than a message may have.
    attack(GET_FEATURES, &[], 16);
}

#[test]
fn socket_whose_front_ends_send_many_such_files_waits_until_their_processes_end() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (serving, socket) = serve(dir.path());
    let Some(mut silent) = Silent::mount() else { return };
    for _ in 0..LIMIT {
        let mut guest = Guest::connect(&socket, 1, F_FLUSH);
        guest.message(GET_FEATURES, 0, &[], &[silent.file.as_fd()]);
        assert!(guest.is_disconnected());
    }
    assert!(Guest::is_turned_away(&socket));
    silent.end();
    while Guest::is_turned_away(&socket) {
        std::thread::yield_now();
    }
    assert_eq!(Guest::connect(&socket, 1, F_FLUSH).run(0, FLUSH, 0, 0), 0);
    serving.stop();
}
