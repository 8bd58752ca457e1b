//! `serve --vhost-user`: a LUKS2 volume as the disk of a virtual machine.

#[path = "../../host/tests/guest/mod.rs"]
mod guest;
mod lab;

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use guest::{F_EVENT_INDEX, F_FLUSH, FLUSH, GET_ID, Guest, READ, SLOTS, WRITE};
use lab::{Lab, SMALL_LEN_BYTES, Server, is_socket, noise};
use rustix::process::{Pid, Signal, kill_process};

const SLOT: usize = guest::SLOT_BYTES as usize;
/// Length of a request beside others.
const PART: usize = 16 << 10;

fn connect(lab: &Lab) -> Guest {
    Guest::connect(&lab.path("v"), 1, F_FLUSH | F_EVENT_INDEX)
}

fn fill(guest: &mut Guest, bytes: &[u8]) {
    for (sector, bytes) in (0..).step_by(SLOT / 512).zip(bytes.chunks(SLOT)) {
        assert_eq!(guest.write_data(sector, bytes), 0);
    }
}

fn kill(server: Server) {
    let pid = Pid::from_raw(server.pid() as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    server.ended();
}

#[test]
fn virtual_machine_writes_what_dump_reads() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&["vol", "-d", "pass", "--vhost-user", "v"]);
    assert!(server.said[0].ends_with("at vhost-user socket v"), "{:?}", server.said);
    let bytes = noise(SMALL_LEN_BYTES, 1);
    let mut guest = connect(&lab);
    fill(&mut guest, &bytes);
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
    assert_eq!(guest.run(0, GET_ID, 0, 20), 0);
    assert_eq!(guest.read(Guest::data_at(0, 0), 4), b"vol\0");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0), "while the machine is connected");
    assert!(guest.is_disconnected() && !is_socket(&lab.path("v")));
    assert!(lab.ok(&["dump", "vol", "-d", "pass"]).stdout == bytes);
}

#[test]
fn configuration_offers_each_volume_to_its_own_machine_and_over_nbd() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.volume("other");
    let export = |volume: &str, socket: &str| {
        format!(
            "[exports.{volume}]\nvolume = '{volume}'\nkey_file = 'pass'\n\
             vhost_user = '{socket}'\nnum_queues = 2\n"
        )
    };
    let text = format!("socket = 'nbd'\n{}{}", export("vol", "v"), export("other", "w"));
    std::fs::write(lab.path("disks.toml"), text).unwrap();
    let server = lab.serve(&["--config", "disks.toml"]);
    // The first line is that of the first name.
    assert!(server.said[0].ends_with(" and vhost-user socket w"), "{:?}", server.said);
    assert!(lab.ok(&["info", "nbd+unix:///vol?socket=nbd"]).status.success());
    let sockets = ["v", "w"];
    let names = ["vol", "other"];
    let contents = [noise(SMALL_LEN_BYTES, 1), noise(SMALL_LEN_BYTES, 2)];
    let mut guests = sockets.map(|socket| Guest::connect(&lab.path(socket), 2, F_FLUSH));
    for (guest, bytes) in guests.iter_mut().zip(&contents) {
        fill(guest, bytes);
        assert_eq!(guest.run(1, FLUSH, 0, 0), 0);
    }
    for (guest, name) in guests.iter_mut().zip(names) {
        assert_eq!(guest.run(0, GET_ID, 0, 20), 0);
        assert_eq!(guest.read(Guest::data_at(0, 0), name.len()), name.as_bytes());
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    for (name, bytes) in names.iter().zip(&contents) {
        assert!(lab.ok(&["dump", name, "-d", "pass"]).stdout == *bytes, "{name}");
    }
}

#[test]
fn killed_server_has_what_it_acknowledged() {
    let lab = Lab::new();
    lab.volume("vol");
    for round in 0..5 {
        let server = lab.serve(&["vol", "-d", "pass", "--vhost-user", "v"]);
        let bytes = noise(SMALL_LEN_BYTES, round);
        let mut guest = connect(&lab);
        fill(&mut guest, &bytes);
        kill(server);
        assert!(lab.ok(&["dump", "vol", "-d", "pass"]).stdout == bytes, "round {round}");
    }
}

/// Rounds of a kill for each way of access; `BLOCKYARD_SOAK=1` makes 500.
fn rounds() -> u16 {
    if std::env::var_os("BLOCKYARD_SOAK").is_some() { 500 } else { 20 }
}

/// A place for each slot. An elevator sorts them, so that requests end in another order.
fn place(slot: u16) -> usize {
    usize::from(slot * 7 % SLOTS) * PART
}

/// Writes and reads are in flight when the server is killed. Each ends once, and its data is right.
#[test]
fn requests_in_flight_at_a_kill_are_done_by_the_next_server() {
    let lab = Lab::new();
    lab.volume("vol");
    let elevator = ["--direct", "--elevator", "mq-deadline", "--queue-depth", "4"];
    for options in [&[][..], &["--poll", "always"], &["--direct"], &elevator] {
        let words = [&["vol", "-d", "pass", "--vhost-user", "v"], options].concat();
        let mut server = lab.serve(&words);
        let mut guest = Guest::connect_recorded(&lab.path("v"), F_FLUSH | F_EVENT_INDEX);
        let mut bytes = noise(SMALL_LEN_BYTES, 1);
        fill(&mut guest, &bytes);
        let mut killed_out_of_order = 0;
        for round in 0..rounds() {
            for slot in 0..SLOTS {
                let at = place(slot);
                let part = &mut bytes[at..at + PART];
                let kind = if slot % 3 == round % 3 { READ } else { WRITE };
                guest.write(Guest::data_at(0, slot), &[0; PART]);
                if kind == WRITE {
                    part.copy_from_slice(&noise(PART, u64::from(round) << 8 | u64::from(slot)));
                    guest.write(Guest::data_at(0, slot), part);
                }
                guest.push(0, slot, kind, at as u64 / 512, PART as u32);
            }
            guest.kick(0);
            let mut ended: Vec<u16> = (0..round % 20).map(|_| guest.ended(0).0).collect();
            kill(server);
            // The record must tell what is in flight: the used index does not.
            let in_order = ended.iter().zip(0..).all(|(head, slot)| *head == 3 * slot);
            killed_out_of_order += u32::from(!in_order);
            server = lab.serve(&words);
            guest.reconnect(&lab.path("v"));
            ended.extend((ended.len()..SLOTS.into()).map(|_| guest.ended(0).0));
            ended.sort_unstable();
            assert_eq!(ended, (0..SLOTS).map(|slot| 3 * slot).collect::<Vec<_>>());
            for slot in 0..SLOTS {
                assert_eq!(guest.status(0, slot), 0, "round {round}");
                let part = &bytes[place(slot)..][..PART];
                assert!(guest.read(Guest::data_at(0, slot), PART) == part, "round {round}: {slot}");
            }
        }
        assert!(options != elevator || killed_out_of_order > 0, "each ended in order");
        assert!(!guest.has_ended(0) && guest.lives(0));
        assert_eq!(guest.run(0, FLUSH, 0, 0), 0);
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        assert!(lab.ok(&["dump", "vol", "-d", "pass"]).stdout == bytes);
    }
}

/// A limit of a byte a second: the first write is a debt of more than an hour.
#[test]
fn limit_of_the_rate_holds_for_a_virtual_machine_and_delays_no_flush_and_no_suspend() {
    let lab = Lab::new();
    lab.volume("vol");
    let words = ["vol", "-d", "pass", "--vhost-user", "v", "--control", "c", "--bps-limit", "1"];
    let server = lab.serve(&words);
    let mut guest = connect(&lab);
    assert_eq!(guest.write_data(0, &noise(4096, 1)), 0);
    guest.push(0, 1, READ, 0, 4096);
    guest.kick(0);
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0, "it passes the read");
    assert!(!guest.has_ended(0), "the read waits");
    lab.ok(&["limit", "c", "--none"]);
    assert_eq!(guest.ended(0).0, 3);
    assert!(guest.read(Guest::data_at(0, 1), 4096) == noise(4096, 1));
    lab.ok(&["limit", "c", "--iops-limit", "1"]);
    for slot in [1, 2, 3] {
        guest.push(0, slot, READ, 0, 4096);
    }
    guest.kick(0);
    // The queue has taken all of them, and a suspend waits for their end.
    lab.ok(&["suspend", "c"]);
    lab.ok(&["resume", "c"]);
    let ended: Vec<u16> = (0..3).map(|_| guest.ended(0).0).collect();
    assert_eq!(ended, [3, 6, 9]);
    lab.ok(&["limit", "c", "--bps-limit", "1"]);
    assert_eq!(guest.write_data(0, &noise(4096, 1)), 0);
    for slot in [1, 2, 3] {
        guest.push(0, slot, READ, 0, 4096);
    }
    guest.kick(0);
    assert_eq!(guest.run(0, FLUSH, 0, 0), 0, "the queue has taken the reads");
    guest.stop(0);
    let ended: Vec<u16> = (0..3).map(|_| guest.ended(0).0).collect();
    assert_eq!(ended, [3, 6, 9], "a stop waits for their end, and not for tokens");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

/// A socket that listens at this path and is the standard input of the command.
fn passed(command: &mut Command, path: &Path) {
    command.stdin(Stdio::from(OwnedFd::from(UnixListener::bind(path).unwrap())));
}

#[test]
fn socket_that_was_passed_serves_the_disk_and_another_descriptor_is_refused_with_its_number() {
    let lab = Lab::new();
    lab.volume("vol");
    let mut command = lab.blockyard(&["serve", "vol", "-d", "pass", "--fd", "0", "-r"]);
    passed(&mut command, &lab.path("v"));
    let server = Server::start(command);
    assert!(server.said[0].ends_with("at vhost-user descriptor 0"), "{:?}", server.said);
    let mut guest = connect(&lab);
    assert_eq!(guest.run(0, READ, 0, 4096), 0);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    assert!(guest.is_disconnected());
    let (connected, _other) = UnixStream::pair().unwrap();
    let other: [(&str, OwnedFd, &str); 4] = [
        ("0", connected.into(), "does not listen"),
        ("0", UnixDatagram::unbound().unwrap().into(), "no Unix stream socket"),
        ("0", TcpListener::bind("127.0.0.1:0").unwrap().into(), "no Unix stream socket"),
        ("99", File::open("/dev/null").unwrap().into(), "is not open"),
    ];
    for (number, fd, expected) in other {
        let mut command = lab.blockyard(&["serve", "vol", "-d", "pass", "--fd", number]);
        let said = lab::one_error(&command.stdin(Stdio::from(fd)).output().unwrap(), 1);
        let place = format!("--fd: descriptor {number}");
        assert!(said.contains(&place) && said.contains(expected), "{said}");
    }
}

/// The folder of this repository's files for packages.
fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/vhost-user")
}

/// QEMU's conventions for vhost-user programs, and vhost-user.json.
#[test]
fn program_that_the_descriptor_names_follows_the_conventions_of_vhost_user_programs() {
    let descriptor = std::fs::read(packaging().join("50-blockyard.json")).unwrap();
    let descriptor: serde_json::Value = serde_json::from_slice(&descriptor).unwrap();
    let keys: Vec<_> = descriptor.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["description", "type", "binary"]);
    let binary = Path::new(descriptor["binary"].as_str().unwrap());
    assert!(binary.is_absolute());
    let lab = Lab::new();
    lab.volume("vol");
    let program = packaging().join(binary.file_name().unwrap());
    let run = |words: &[&str]| {
        let mut command = Command::new(&program);
        let folder = Path::new(env!("CARGO_BIN_EXE_blockyard")).parent().unwrap();
        command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        command.args(words).current_dir(lab.path(".")).stdin(Stdio::null());
        command
    };
    let expected = serde_json::json!({"type": "block", "features": ["read-only", "blk-file"]});
    for words in [&["--print-capabilities"][..], &["--socket-path=v", "--print-capabilities"]] {
        let output = run(words).output().unwrap();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(output.status.success() && said == expected, "{said}");
        assert_eq!(said["type"], descriptor["type"]);
    }
    let words = ["--socket-path=v", "--blk-file=vol", "--read-only", "-d", "pass"];
    let server = Server::start(run(&words));
    let mut guest = connect(&lab);
    assert_eq!((guest.run(0, READ, 0, 4096), guest.write_data(0, &[0; 4096])), (0, 1));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0), "the program is the server itself");
}

#[test]
fn disk_has_the_queues_that_the_options_say_and_nbd_beside_it() {
    let lab = Lab::new();
    lab.volume("vol");
    let words = ["vol", "-d", "pass", "-r", "--socket", "s", "--vhost-user", "v"];
    let server = lab.serve(&[&words[..], &["--num-queues", "3", "--queue-size", "256"]].concat());
    let said = &server.said[0];
    assert!(said.contains("at nbd+unix:") && said.ends_with(" and vhost-user socket v"), "{said}");
    let mut guest = connect(&lab);
    assert_eq!(guest.config()[34], 3);
    assert_eq!(guest.write_data(0, &[0; 4096]), 1, "read-only");
    drop((guest, server));
    for (words, expected) in [
        (&["--vhost-user", "v", "--queue-size", "3"][..], "power of two"),
        (&["--vhost-user", "v", "--num-queues", "257"], "256"),
        (&["--socket", "s", "--num-queues", "2"], "--vhost-user"),
        (&["--socket", "s", "--poll", "off"], "--vhost-user"),
        (&["--vhost-user", "v", "--poll", "never"], "always"),
        (&["--vhost-user", "none/v"], "does not exist"),
        (&["--socket-path", "v", "--fd", "3"], "cannot be used with"),
        (&["--socket-path", "v", "--blk-file", "other"], "cannot be used with"),
        (&[], "--vhost-user"),
    ] {
        let words = [&["serve", "vol", "-d", "pass"], words].concat();
        let output = lab.run(&words);
        let said = lab::text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(expected), "{said}");
    }
}
