//! The log of a server whose reader has stopped.

mod lab;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixDatagram;

use lab::nbd::Nbd;
use lab::{Lab, Server, noise};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::Signal;

/// Fills a pipe with newlines; returns their number.
fn fill(pipe: &mut File) -> usize {
    fcntl_setfl(&*pipe, OFlags::NONBLOCK).unwrap();
    let mut len_bytes = 0;
    loop {
        match pipe.write(b"\n") {
            Ok(len) => len_bytes += len,
            Err(error) => {
                assert_eq!(Errno::from_io_error(&error), Some(Errno::AGAIN));
                fcntl_setfl(&*pipe, OFlags::empty()).unwrap();
                return len_bytes;
            }
        }
    }
}

#[test]
fn full_pipe_delays_neither_clients_nor_commands_nor_the_end_and_lost_lines_are_counted() {
    let lab = Lab::new();
    lab.volume("vol");
    let manager = UnixDatagram::bind(lab.path("notify")).unwrap();
    for sandbox in ["on", "off"] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut full = File::from(writer.try_clone().unwrap());
        let mut drain = File::from(reader.try_clone().unwrap());
        let len_bytes = fill(&mut full);
        let words = ["serve", "vol", "-d", "pass", "--socket", "s", "--control", "c"];
        let mut command = lab.blockyard(&words);
        command.args(["--sandbox", sandbox]).env("NOTIFY_SOCKET", lab.path("notify"));
        let mut server = Server::start_on(command, (reader, writer));
        let mut state = [0; 64];
        let len = manager.recv(&mut state).unwrap();
        assert_eq!(&state[..len], b"READY=1");
        // It has said where it serves, and that this client has come.
        let mut client = Nbd::open(&lab.path("s"));
        assert_eq!(client.write(0, &noise(4096, 1)), 0);
        lab.ok(&["suspend", "c"]);
        lab.ok(&["resume", "c"]);
        drain.read_exact(&mut vec![0; len_bytes]).unwrap();
        lab.ok(&["suspend", "c"]);
        let note = server.wait_for_line("dropped");
        assert!(note.starts_with("blockyard: 4 lines of the log were dropped"), "{note}");
        server.wait_for_line("is suspended");
        lab.ok(&["resume", "c"]);
        drop(client);
        fill(&mut full);
        drop(Nbd::open(&lab.path("s")));
        server.send(Signal::TERM);
        assert_eq!(server.ended().code(), Some(0));
        while manager.recv(&mut state).is_ok_and(|len| &state[..len] != b"STOPPING=1") {}
    }
}
