//! A disk that fails a flush once: every client and the operator learn of it.

#[path = "../../host/tests/guest/mod.rs"]
mod guest;
mod lab;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use guest::Guest;
use lab::nbd::Nbd;
use lab::{Lab, Server, noise, text};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use serde_json::Value;

const LEN_BYTES: u64 = 1 << 20;
const EIO: u32 = 5;

/// A server of zeros that accepts every write, and fails flushes on request.
struct Disk {
    fails: AtomicBool,
    /// Number of successful flushes.
    flushes: AtomicU32,
}

impl Disk {
    /// Serves on this socket until the test ends.
    fn start(lab: &Lab, socket: &str) -> Arc<Self> {
        let listener = UnixListener::bind(lab.path(socket)).unwrap();
        let disk = Arc::new(Self { fails: AtomicBool::new(false), flushes: AtomicU32::new(0) });
        let serving = Arc::clone(&disk);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let serving = Arc::clone(&serving);
                std::thread::spawn(move || serving.serve(stream.unwrap()));
            }
        });
        disk
    }

    /// Simple replies, and no option but `NBD_OPT_GO`.
    fn serve(&self, mut stream: UnixStream) -> std::io::Result<()> {
        stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        stream.read_exact(&mut [0; 4])?;
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header)?;
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            stream.read_exact(&mut vec![0; word(12) as usize])?;
            let mut reply = |kind: u32, data: &[u8]| {
                let mut reply = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                for number in [word(8), kind, data.len() as u32] {
                    reply.extend(number.to_be_bytes());
                }
                reply.extend(data);
                stream.write_all(&reply)
            };
            // NBD_OPT_GO, with HAS_FLAGS and SEND_FLUSH.
            if word(8) == 7 {
                let mut export = vec![0, 0];
                export.extend(LEN_BYTES.to_be_bytes());
                export.extend(5u16.to_be_bytes());
                reply(3, &export)?;
                reply(1, &[])?;
                break;
            }
            reply((1 << 31) + 1, &[])?;
        }
        loop {
            let mut header = [0; 28];
            stream.read_exact(&mut header)?;
            let command = header[7];
            let len = u32::from_be_bytes(header[24..].try_into().unwrap());
            let fails = command == 3 && self.fails.load(Ordering::SeqCst);
            self.flushes.fetch_add(u32::from(command == 3 && !fails), Ordering::SeqCst);
            let mut reply = 0x6744_6698_u32.to_be_bytes().to_vec();
            reply.extend(if fails { EIO } else { 0 }.to_be_bytes());
            reply.extend(&header[8..16]);
            let mut payload = vec![0; len as usize];
            match command {
                0 => reply.extend(payload),
                1 => stream.read_exact(&mut payload)?,
                2 => return Ok(()),
                _ => {}
            }
            stream.write_all(&reply)?;
        }
    }
}

/// A table with one line, the disk on this socket.
fn table(lab: &Lab, socket: &str) {
    let line = format!("0 {} linear nbd+unix:///?socket={socket} 0\n", LEN_BYTES / 512);
    lab.write(&format!("{socket}.table"), line);
}

fn near(lab: &Lab) -> Server {
    table(lab, "far");
    lab.serve(&["--table", "far.table", "--socket", "s", "--control", "c", "--metrics", "./m"])
}

fn loss(lab: &Lab) -> Value {
    let reply: Value = serde_json::from_slice(&lab.ok(&["status", "--json", "c"]).stdout).unwrap();
    reply["devices"][0]["loss"].clone()
}

fn metrics(lab: &Lab) -> String {
    let mut stream = UnixStream::connect(lab.path("m")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// Statuses of virtio-blk.
const OK: u8 = 0;
const IOERR: u8 = 1;

#[test]
fn flush_that_failed_once_fails_for_virtual_machines_and_beside_them() {
    let lab = Lab::new();
    let disk = Disk::start(&lab, "far");
    table(&lab, "far");
    let words = ["--table", "far.table", "--vhost-user", "v", "--socket", "s"];
    let mut server = lab.serve(&words);
    let bytes = noise(4096, 1);
    let connect = || Guest::connect(&lab.path("v"), 2, guest::F_FLUSH);
    let mut guest = connect();
    assert_eq!((guest.write_data(0, &bytes), guest.run(1, guest::FLUSH, 0, 0)), (OK, OK));

    assert_eq!(guest.write_data(0, &bytes), OK);
    disk.fails.store(true, Ordering::SeqCst);
    assert_eq!(guest.run(1, guest::FLUSH, 0, 0), IOERR);
    disk.fails.store(false, Ordering::SeqCst);
    server.wait_for("blockyard: nbd+unix:///?socket=far: a flush failed");
    // The latch is the volume's: it outlives the front end, and holds at each door.
    for _ in 0..2 {
        for queue in 0..2 {
            assert_eq!(guest.run(queue, guest::FLUSH, 0, 0), IOERR);
        }
        assert_eq!(guest.write_data(0, &bytes), IOERR);
        assert_eq!(guest.read_data(0, 512), [0; 512]);
        drop(guest);
        guest = connect();
    }
    let mut client = Nbd::open(&lab.path("s"));
    assert_eq!((client.flush(), client.write(0, &bytes)), (EIO, EIO));
    // A guest that cannot flush has a flush in each write.
    drop(guest);
    let mut guest = Guest::connect(&lab.path("v"), 1, 0);
    assert_eq!(guest.write_data(0, &bytes), IOERR);
}

#[test]
fn flush_that_failed_once_fails_for_every_client_and_is_told_until_the_loss_is_accepted() {
    let lab = Lab::new();
    let disk = Disk::start(&lab, "far");
    let mut server = near(&lab);
    let [mut one, mut other] = [0, 1].map(|_| Nbd::open(&lab.path("s")));
    let bytes = noise(4096, 1);
    assert_eq!((one.write(0, &bytes), one.flush(), other.flush()), (0, 0, 0));
    assert_eq!(loss(&lab), Value::Null);
    assert!(metrics(&lab).contains("\nblockyard_loss{export=\"\"} 0\n"));

    assert_eq!(one.write(0, &bytes), 0);
    disk.fails.store(true, Ordering::SeqCst);
    assert_eq!(one.flush(), EIO);
    disk.fails.store(false, Ordering::SeqCst);
    server.wait_for("blockyard: nbd+unix:///?socket=far: a flush failed");
    for client in [&mut one, &mut other, &mut Nbd::open(&lab.path("s"))] {
        assert_eq!((client.flush(), client.write(0, &bytes)), (EIO, EIO));
        assert_eq!(client.read(0, 512), [0; 512]);
    }
    let told = loss(&lab);
    assert_eq!(told["device"], "nbd+unix:///?socket=far");
    assert!(told["problem"].as_str().unwrap().starts_with("a flush failed: "), "{told}");
    let people = text(&lab.ok(&["status", "c"]).stdout);
    assert!(people.contains("loss:") && people.contains("may be lost"), "{people}");
    let found = text(&lab.ok(&["doctor", "--control", "c"]).stdout);
    let remedy = "blockyard suspend c && blockyard resume c --accept-loss";
    assert!(found.contains("risky  export \"\": acknowledged writes may be lost"), "{found}");
    assert!(found.contains(remedy), "{found}");
    let top = text(&lab.ok(&["top", "--once", "c"]).stdout);
    assert!(top.starts_with("export \"\": active, flushes and writes fail"), "{top}");
    let page = metrics(&lab);
    let errors = "blockyard_request_errors_total{export=\"\"";
    for line in [
        "blockyard_loss{export=\"\"} 1",
        "blockyard_flush_seconds_count{export=\"\"} 2",
        &format!("{errors},op=\"flush\",class=\"medium\"}} 1"),
        &format!("{errors},op=\"flush\",class=\"refused\"}} 3"),
        &format!("{errors},op=\"write\",class=\"medium\"}} 0"),
        &format!("{errors},op=\"write\",class=\"refused\"}} 3"),
    ] {
        assert!(page.contains(&format!("\n{line}\n")), "{line}\n{page}");
    }

    let refused = lab.refused(&["resume", "c", "--accept-loss"], 1);
    assert!(refused.contains("suspend the volume first"), "{refused}");
    lab.ok(&["suspend", "c"]);
    let said = text(&lab.ok(&["resume", "c"]).stderr);
    assert!(said.contains("flushes and writes go on to fail"), "{said}");
    assert_eq!(other.flush(), EIO);
    lab.ok(&["suspend", "c"]);
    assert_eq!(text(&lab.ok(&["resume", "c", "--accept-loss"]).stderr), "");
    assert_eq!((other.write(0, &bytes), other.flush(), one.flush()), (0, 0, 0));
    assert_eq!(loss(&lab), Value::Null);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn loss_that_nobody_accepted_is_the_exit_code_of_the_server() {
    let lab = Lab::new();
    let disk = Disk::start(&lab, "far");
    let mut server = near(&lab);
    let mut client = Nbd::open(&lab.path("s"));
    disk.fails.store(true, Ordering::SeqCst);
    assert_eq!(client.flush(), EIO);
    disk.fails.store(false, Ordering::SeqCst);
    kill_process(pid(&server), Signal::TERM).unwrap();
    server.wait_for("error: nbd+unix:///?socket=far: a flush failed");
    // A second signal would end it at once.
    assert_eq!(server.ended().code(), Some(1));
}

fn pid(server: &Server) -> Pid {
    Pid::from_raw(server.pid() as i32).unwrap()
}

#[test]
fn every_volume_is_flushed_at_the_end_though_the_first_one_fails() {
    let lab = Lab::new();
    let disks = ["one", "two", "three"].map(|socket| {
        table(&lab, socket);
        Disk::start(&lab, socket)
    });
    let export = |name: &str| format!("[exports.{name}]\ntable = \"{name}.table\"\n");
    lab.write("all.toml", ["one", "two", "three"].map(export).concat());
    let mut server = lab.serve(&["--config", "all.toml", "--socket", "s"]);
    disks[0].fails.store(true, Ordering::SeqCst);
    kill_process(pid(&server), Signal::TERM).unwrap();
    server.wait_for("error: nbd+unix:///?socket=one: a flush failed");
    assert_eq!(server.ended().code(), Some(1));
    let flushes = disks.map(|disk| disk.flushes.load(Ordering::SeqCst));
    assert_eq!(flushes, [0, 1, 1]);
}

#[test]
fn removed_export_is_flushed_before_the_reload_succeeds() {
    let lab = Lab::new();
    let disks = ["one", "two"].map(|socket| {
        table(&lab, socket);
        Disk::start(&lab, socket)
    });
    let export = |name: &str| format!("[exports.{name}]\ntable = \"{name}.table\"\n");
    lab.write("all.toml", ["one", "two"].map(export).concat());
    let server = lab.serve(&["--config", "all.toml", "--socket", "s", "--control", "c"]);
    let mut client = Nbd::open_export(&lab.path("s"), "one");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    lab.write("all.toml", export("two"));
    lab.ok(&["reload", "c"]);
    let flushes = || disks.each_ref().map(|disk| disk.flushes.load(Ordering::SeqCst));
    assert_eq!(flushes(), [1, 0]);
    // A flush that fails is the outcome of the reload.
    lab.write("all.toml", ["one", "two"].map(export).concat());
    lab.ok(&["reload", "c"]);
    let mut client = Nbd::open_export(&lab.path("s"), "one");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    disks[0].fails.store(true, Ordering::SeqCst);
    lab.write("all.toml", export("two"));
    let said = lab.refused(&["reload", "c"], 1);
    assert!(said.contains("socket=one: a flush failed"), "{said}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn idle_export_is_flushed_at_its_close_and_one_with_a_loss_stays_open() {
    let lab = Lab::new();
    let disks = ["one", "two"].map(|socket| Disk::start(&lab, socket));
    let export = |name: &str| {
        format!(
            "[exports.{name}]\nvolume = 'nbd+unix:///?socket={name}'\ntype = 'plain'\n\
             cipher = 'aes-xts-plain64'\nkey_size = 512\nkey_file = 'key'\n\
             open = 'first-use'\nidle_close = 1\n"
        )
    };
    lab.write("key", [7; 64]);
    lab.write("all.toml", ["one", "two"].map(export).concat());
    let mut server = lab.serve(&["--config", "all.toml", "--socket", "s", "--control", "c"]);
    let mut client = Nbd::open_export(&lab.path("s"), "one");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    disks[0].fails.store(true, Ordering::SeqCst);
    assert_eq!(client.flush(), EIO);
    drop(client);
    // Its time begins later.
    let mut client = Nbd::open_export(&lab.path("s"), "two");
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    drop(client);
    server.wait_for("blockyard: export \"two\" is closed after 1 s without a client");
    assert_eq!(disks[1].flushes.load(Ordering::SeqCst), 1);
    let status = text(&lab.ok(&["status", "--json", "c"]).stdout);
    let status: Value = serde_json::from_str(&status).unwrap();
    let devices = status["devices"].as_array().unwrap();
    assert!(devices.len() == 1 && devices[0]["exports"][0] == "one", "{status}");
}

/// `poll` refuses more descriptors than the process may have.
#[test]
fn server_that_cannot_wait_any_more_drains_and_flushes() {
    let lab = Lab::new();
    let disk = Disk::start(&lab, "far");
    let mut server = near(&lab);
    let mut client = Nbd::open(&lab.path("s"));
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    let silent = || {
        let mut stream = UnixStream::connect(lab.path("s")).unwrap();
        stream.read_exact(&mut [0; 18]).unwrap();
        stream
    };
    let silent: Vec<_> = (0..60).map(|_| silent()).collect();
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(Some(pid(&server)), Resource::Nofile, Rlimit { current: Some(40), maximum }).unwrap();
    let last = UnixStream::connect(lab.path("s")).unwrap();
    server.wait_for("error: ");
    let said = server.said.last().unwrap();
    assert!(said.contains("wait for a connection"), "{said}");
    drop((last, silent));
    assert_eq!(server.ended().code(), Some(1));
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 1);
    // Requests were answered, and then the connection ended.
    assert_eq!(client.end(), 0);
}

/// The error reaches the program that asked for the flush, and the one that ends the mount.
#[test]
fn flush_that_failed_is_an_error_of_fsync_on_a_mount_and_of_umount() {
    let lab = Lab::new();
    let disk = Disk::start(&lab, "far");
    lab.write("key", [7; 64]);
    std::fs::create_dir(lab.path("dir")).unwrap();
    let words = ["mount", "nbd+unix:///plain?socket=far", "dir", "--as-file", "--type", "plain"];
    let cipher = ["-c", "aes-xts-plain64", "-s", "512", "-d", "key"];
    let mounted = lab.run(&[&words[..], &cipher].concat());
    let said = text(&mounted.stderr);
    if !mounted.status.success() {
        assert!(said.contains("/dev/fuse") || said.contains("fusermount3"), "{said}");
        println!("skipped, because this machine refuses FUSE: {said}");
        return;
    }
    let file = std::fs::File::options().write(true).open(lab.path("dir/volume")).unwrap();
    let write = |byte| std::os::unix::fs::FileExt::write_all_at(&file, &[byte; 4096], 4096);
    write(1).unwrap();
    file.sync_all().unwrap();
    write(2).unwrap();
    disk.fails.store(true, Ordering::SeqCst);
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(EIO.cast_signed()));
    disk.fails.store(false, Ordering::SeqCst);
    // A later flush would not bring back what was lost.
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(EIO.cast_signed()));
    drop(file);
    let ended = lab.refused(&["umount", "dir"], 1);
    assert!(ended.contains("a flush failed") || ended.contains("cannot flush"), "{ended}");
}
