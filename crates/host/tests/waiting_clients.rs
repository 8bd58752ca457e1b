//! Silent and waiting clients do not affect other clients.

mod client;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use blockyard_host::file::{Access, DeviceFile};
use blockyard_host::server::{Answer, ServedExport, Server, ServerOptions};
use blockyard_host::volume::{Volume, VolumeOptions};
use client::{READ, Serving};

const SIZE_BYTES: u64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);
/// Time limit of a client's wait, below the limit of the test run.
const PATIENCE: Duration = Duration::from_secs(20);
/// `NBD_FLAG_CAN_MULTI_CONN`.
const CAN_MULTI_CONN: u16 = 1 << 8;

/// Options with time limits far beyond the test.
fn options(max_connections: usize) -> ServerOptions {
    ServerOptions { max_connections, handshake_timeout: HOUR, ..ServerOptions::default() }
}

fn exports(folder: &Path) -> Vec<ServedExport> {
    let path = folder.join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE_BYTES).unwrap();
    let file = DeviceFile::open(&path, Access::ReadWrite, false).unwrap();
    let volume = Arc::new(Volume::from_file(file, &VolumeOptions::default()).unwrap());
    vec![ServedExport::new("", volume)]
}

/// Connects without sending anything.
fn silent(socket: &Path) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream
}

fn is_connected(stream: &mut (impl Read + std::os::fd::AsFd)) -> bool {
    rustix::io::ioctl_fionbio(&*stream, true).unwrap();
    let got = stream.read(&mut [0]);
    matches!(got, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

/// Asks for the default export, without waiting for the reply.
fn ask_for_export(stream: &mut impl Write) {
    let mut hello = 3u32.to_be_bytes().to_vec();
    hello.extend(b"IHAVEOPT");
    hello.extend([0, 0, 0, 1, 0, 0, 0, 0]);
    stream.write_all(&hello).unwrap();
}

/// The flags of the opened export.
fn export_flags(stream: &mut impl Read) -> u16 {
    let mut export = [0; 10];
    stream.read_exact(&mut export).unwrap();
    assert_eq!(export[..8], SIZE_BYTES.to_be_bytes());
    u16::from_be_bytes([export[8], export[9]])
}

#[test]
fn client_is_served_while_200_silent_ones_are_connected() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let server = Serving::start_with(&socket, exports(folder.path()), options(2), |_| ());
    let mut idle: Vec<_> = (0..200).map(|_| silent(&socket)).collect();
    let mut client = server.connect("");
    client.ask(READ, 0, 7, (0, 512), 0);
    assert_eq!(client.reply(), 7);
    assert_eq!(client.data(512), [0; 512]);
    assert!(idle.iter_mut().all(is_connected), "silent clients are still connected");
    drop(client);
    server.stop();
}

#[test]
fn oldest_silent_client_goes_when_too_many_wait() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let server = Serving::start_with(&socket, exports(folder.path()), options(1), |_| ());
    let mut idle: Vec<_> = (0..300).map(|_| silent(&socket)).collect();
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0, "the first was dropped");
    assert!(is_connected(&mut idle[299]));
    let mut client = server.connect("");
    client.ask(READ, 0, 7, (0, 512), 0);
    assert_eq!(client.reply(), 7);
    client.data(512);
    drop(client);
    server.stop();
}

#[test]
fn silent_clients_of_one_address_make_room_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let (told, address) = mpsc::channel();
    let open = move |server: &mut Server| {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        told.send(server.listen_tcp(any).unwrap()).unwrap();
    };
    let server = Serving::start_with(&socket, exports(folder.path()), options(1), open);
    let address = address.recv().unwrap();
    let mut on_unix = silent(&socket);
    let connect = || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream
    };
    let mut idle: Vec<_> = (0..70).map(|_| connect()).collect();
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 0, "the first of this address was dropped");
    assert!(is_connected(&mut on_unix), "clients on unix sockets have no address");
    let mut client = connect();
    ask_for_export(&mut client);
    export_flags(&mut client);
    drop(client);
    server.stop();
}

#[test]
fn single_place_is_not_announced_as_several_and_goes_to_the_one_who_waits() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let server = Serving::start_with(&socket, exports(folder.path()), options(1), |_| ());
    let [mut first, mut second] = [silent(&socket), silent(&socket)];
    ask_for_export(&mut first);
    assert_eq!(export_flags(&mut first) & CAN_MULTI_CONN, 0);
    ask_for_export(&mut second);
    // A third client negotiates meanwhile, and leaves before there is room.
    let mut third = silent(&socket);
    ask_for_export(&mut third);
    drop(third);
    assert!(is_connected(&mut second), "the client waits without a reply");
    rustix::io::ioctl_fionbio(&second, false).unwrap();
    drop(first);
    export_flags(&mut second);
    server.stop();
}

#[test]
fn several_places_are_announced() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let server = Serving::start_with(&socket, exports(folder.path()), options(2), |_| ());
    let mut client = silent(&socket);
    ask_for_export(&mut client);
    assert_ne!(export_flags(&mut client) & CAN_MULTI_CONN, 0);
    server.stop();
}

/// A server whose control socket gives this reply.
fn controlled(folder: &Path, answer: Answer) -> Serving {
    let control = folder.join("c");
    let open = move |server: &mut Server| server.listen_control(&control, answer).unwrap();
    Serving::start_with(&folder.join("s"), exports(folder), options(2), open)
}

fn asks(control: &Path, line: &str) -> UnixStream {
    let mut stream = UnixStream::connect(control).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(line.as_bytes()).unwrap();
    stream
}

fn answer_of(mut stream: UnixStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn control_socket_answers_while_and_after_idle_clients_are_connected() {
    let folder = tempfile::tempdir().unwrap();
    let echo: Answer = Arc::new(|line| line.unwrap_or(b"none").to_vec());
    let server = controlled(folder.path(), echo);
    let control = folder.path().join("c");
    let idle: Vec<_> = (0..8).map(|_| asks(&control, "")).collect();
    assert_eq!(answer_of(asks(&control, "while they wait\n")), "while they wait");
    drop(idle);
    assert_eq!(answer_of(asks(&control, "when they are gone\n")), "when they are gone");
    let many: Vec<_> = (0..40).map(|_| asks(&control, "half a li")).collect();
    assert_eq!(answer_of(asks(&control, "a whole one\n")), "a whole one");
    drop(many);
    assert_eq!(answer_of(asks(&control, &"x".repeat(20_000))), "none");
    server.stop();
}

#[test]
fn request_behind_eight_slow_ones_is_answered_when_one_of_them_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (started, starts) = mpsc::channel();
    let (go_on, gate) = mpsc::channel::<()>();
    let started = Mutex::new(started);
    let gate = Mutex::new(gate);
    let slow: Answer = Arc::new(move |line| {
        started.lock().unwrap().send(()).unwrap();
        gate.lock().unwrap().recv().unwrap();
        line.unwrap().to_vec()
    });
    let server = controlled(folder.path(), slow);
    let control = folder.path().join("c");
    let running: Vec<_> = (0..8).map(|at| asks(&control, &format!("{at}\n"))).collect();
    running.iter().for_each(|_| starts.recv().unwrap());
    let ninth = asks(&control, "ninth\n");
    (0..9).for_each(|_| go_on.send(()).unwrap());
    assert_eq!(answer_of(ninth), "ninth");
    for (at, stream) in running.into_iter().enumerate() {
        assert_eq!(answer_of(stream), at.to_string());
    }
    server.stop();
}
