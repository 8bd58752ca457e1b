//! A slow client gets the right bytes: sent bytes are never overwritten, neither in the socket nor
//! in a pipe that the client has spliced them into.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::thread::JoinHandleExt;
use std::path::Path;
use std::sync::{Arc, mpsc};

use blockyard_crypt::params::CryptParams;
use blockyard_crypt::secret::SecretBytes;
use blockyard_host::copy::load;
use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::process::StopSignal;
use blockyard_host::server::{ServedExport, Server, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};

const SIZE_BYTES: usize = 8 << 20;

/// Every 8 bytes contain their offset.
fn plaintext() -> Vec<u8> {
    (0..SIZE_BYTES as u64).step_by(8).flat_map(u64::to_le_bytes).collect()
}

fn volume(path: &Path) -> Arc<Volume> {
    File::create(path).unwrap().set_len(SIZE_BYTES as u64).unwrap();
    let params =
        CryptParams::new("aes-xts-plain64", SecretBytes::copy_of(&(0..64).collect::<Vec<u8>>()));
    // Not `None`: a slow build of the cipher would get workers, and reads would not be streamed.
    let options = VolumeOptions { worker_threads: Some(0), ..VolumeOptions::default() };
    let file = DeviceFile::open(path, Access::ReadWrite, false).unwrap();
    let volume = Arc::new(Volume::from_crypt(file, &params, &options).unwrap());
    load(&volume, &mut plaintext().as_slice(), &mut |_| {}).unwrap();
    volume
}

/// Opens the default export in the old style, with simple replies.
fn connect(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    stream
}

fn read_request(cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0; 4]);
    request.extend(cookie.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(len.to_be_bytes());
    request
}

/// Sends all requests at once, and reads the replies a few bytes at a time.
fn read_slowly(stream: &mut UnixStream, reads: &[(u64, u32)]) {
    let requests = reads.iter().enumerate();
    let requests = requests.flat_map(|(cookie, (at, len))| read_request(cookie as u64, *at, *len));
    stream.write_all(&requests.collect::<Vec<u8>>()).unwrap();
    let plaintext = plaintext();
    for (cookie, (offset, len)) in reads.iter().enumerate() {
        let mut reply = vec![0; 16 + *len as usize];
        for piece in reply.chunks_mut(1500) {
            stream.read_exact(piece).unwrap();
        }
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
        assert_eq!(reply[8..16], (cookie as u64).to_be_bytes());
        let expected = &plaintext[*offset as usize..][..*len as usize];
        assert!(reply[16..] == *expected, "read {cookie} of {len} bytes at {offset}");
    }
}

/// Runs `client` on a connection to a volume in tmpfs, which completes requests immediately.
fn with_client(client: impl FnOnce(&mut UnixStream)) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let socket = dir.path().join("socket");
    let volume = volume(&dir.path().join("image"));
    let (ready, listening) = mpsc::channel();
    let path = socket.clone();
    let server = std::thread::spawn(move || {
        let stop = StopSignal::install().unwrap();
        let exports = vec![ServedExport::new("", volume)];
        let options = ServerOptions::default();
        let mut server = Server::new(&[String::new()], exports, options).unwrap();
        server.listen_unix(&path).unwrap();
        ready.send(()).unwrap();
        server.run(&stop, || {}).unwrap();
    });
    listening.recv().unwrap();
    let mut stream = connect(&socket);
    client(&mut stream);
    drop(stream);
    // SAFETY: the thread is running until it is joined; the signal is blocked in it and waits in
    // its descriptor.
    unsafe { libc::pthread_kill(server.as_pthread_t() as libc::pthread_t, libc::SIGTERM) };
    server.join().unwrap();
}

#[test]
fn replies_stay_as_they_were_until_a_slow_client_has_read_them() {
    with_client(|stream| {
        for len in [32 << 10, 33 << 10, 100 << 10, 128 << 10, 1 << 20] {
            let place = |number: u64| (number * 130_560 + 512 * number) % (7 << 20);
            let reads: Vec<(u64, u32)> = (0..40).map(|number| (place(number), len)).collect();
            read_slowly(stream, &reads);
        }
    });
}

/// Like a proxy (`systemd-socket-proxyd`): the pages move from the socket into a pipe without a
/// copy, and are read there later.
#[test]
fn replies_stay_as_they_were_in_a_pipe_that_the_client_splices_them_into() {
    const LEN_BYTES: u32 = 128 << 10;
    with_client(|stream| {
        let (read_end, write_end) = rustix::pipe::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&write_end, 1 << 20).unwrap();
        stream.write_all(&read_request(1, 0, LEN_BYTES)).unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        let mut left = LEN_BYTES as usize;
        while left > 0 {
            let flags = rustix::pipe::SpliceFlags::empty();
            let moved =
                rustix::pipe::splice(&*stream, None, &write_end, None, left, flags).unwrap();
            assert_ne!(moved, 0, "the server has hung up");
            left -= moved;
        }
        for number in 1..40 {
            read_slowly(stream, &[(number * u64::from(LEN_BYTES), LEN_BYTES)]);
        }
        let mut spliced = vec![0; LEN_BYTES as usize];
        File::from(read_end).read_exact(&mut spliced).unwrap();
        assert!(spliced == plaintext()[..LEN_BYTES as usize], "pages in the pipe were reused");
    });
}
