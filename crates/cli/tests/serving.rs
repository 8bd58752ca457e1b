//! The server: sockets, exports, configuration, readiness and the stop.

mod lab;

use std::fs;
use std::io::{BufRead, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;

use lab::nbd::Nbd;
use lab::{Lab, SMALL, SMALL_LEN_BYTES, Server, is_socket, noise, text};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn info(lab: &Lab, uri: &str) -> Value {
    serde_json::from_slice(&lab.ok(&["info", "--json", uri]).stdout).unwrap()
}

/// The URIs in a server's last line.
fn uris(server: &Server) -> Vec<String> {
    let line = server.said.last().unwrap();
    line.split(" at ").nth(1).unwrap().split(" and ").map(str::to_owned).collect()
}

#[test]
fn server_says_one_line_with_a_uri_that_works() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s", "--listen", "127.0.0.1:0"]);
    assert_eq!(server.said.len(), 1, "{:?}", server.said);
    assert!(server.said[0].contains("aes-xts-plain64") && server.said[0].contains("1 MiB"));
    let uris = uris(&server);
    assert_eq!(uris.len(), 2, "{uris:?}");
    for uri in &uris {
        let export = info(&lab, uri);
        assert_eq!(export["size_bytes"], SMALL_LEN_BYTES);
        assert_eq!(export["block_sizes"]["preferred_bytes"], 4096);
        let flags = export["flags"].to_string();
        assert!(flags.contains("flush") && flags.contains("multi_conn"), "{flags}");
        assert!(!flags.contains("read_only") && !flags.contains("trim"), "{flags}");
        let human = text(&lab.ok(&["info", uri]).stdout);
        assert!(human.contains("1 MiB (1048576 bytes)"), "{human}");
    }
    let wrong = lab.refused(&["info", &uris[0].replace("///?", "///other?")], 4);
    assert!(wrong.contains("no such export"), "{wrong}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    assert!(!lab.path("s").exists(), "the socket is left behind");
    assert_eq!(lab.run(&["info", &uris[0]]).status.code(), Some(4));
}

#[test]
fn flags_of_the_export_follow_the_options() {
    let lab = Lab::new();
    lab.volume("vol");
    let words = ["vol", "-d", "pass", "--socket", "s", "--export-name", "my disk", "-r"];
    let server = lab.serve(&words);
    let uris = uris(&server);
    assert!(uris[0].contains("my%20disk"), "{uris:?}");
    assert!(info(&lab, &uris[0])["flags"].to_string().contains("read_only"));
    assert!(server.said[0].contains("read-only"));
    assert_eq!(server.stop(Signal::INT).code(), Some(0));
    let server =
        lab.serve(&["vol", "-d", "pass", "--socket", "s", "--allow-discards", "--threads", "2"]);
    assert!(info(&lab, "nbd+unix:///?socket=s")["flags"].to_string().contains("trim"));
    drop(server);
}

#[test]
fn volume_that_is_served_is_not_opened_twice() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s"]);
    for words in [
        &["serve", "vol", "-d", "pass", "--socket", "t"][..],
        &["dump", "vol", "-d", "pass"],
        &["format", "vol", "-q", "-d", "pass"],
    ] {
        let said = lab.refused(words, 5);
        assert!(said.contains("vol") && said.contains("in use"), "{said}");
        assert!(!said.contains("both with --read-only"), "`dump` has no such option: {said}");
    }
    assert!(text(&lab.ok(&["info", "vol"]).stdout).contains("LUKS2"), "its header can be shown");
    lab.volume("other");
    let said = one_line(&lab, &["serve", "other", "-d", "pass", "--socket", "s"]);
    assert!(said.contains("s: "), "{said}");
    assert!(UnixStream::connect(lab.path("s")).is_ok(), "the living socket was taken away");
    drop(server);
}

fn one_line(lab: &Lab, words: &[&str]) -> String {
    let output = lab.run(words);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn config_serves_every_volume_under_its_name() {
    let lab = Lab::new();
    fs::create_dir(lab.path("yard")).unwrap();
    lab.volume("yard/one");
    lab.volume("yard/two");
    lab.write("yard/pass", lab::PASSPHRASE);
    lab.write("plain.key", noise(64, 1));
    lab.write("raw", vec![0; 8192]);
    lab.write(
        "yard/config.toml",
        "socket = 'door'\nthreads = 2\n\
         [exports.one]\nvolume = 'one'\nkey_file = 'pass'\n\
         [exports.two]\nvolume = 'two'\nkey_file = 'pass'\nread_only = true\n\
         [exports.raw]\nvolume = '../raw'\ntype = 'plain'\ncipher = 'aes-xts-plain64'\n\
         key_size = 512\nkey_file = '../plain.key'\nallow_discards = true\n",
    );
    let mut command = lab.blockyard(&["serve", "--config", "yard/config.toml", "--control", "c"]);
    command.stderr(std::process::Stdio::piped());
    let mut server = Server::start(command);
    server.wait_for("serving ");
    server.wait_for("serving ");
    assert_eq!(server.said.len(), 3, "{:?}", server.said);
    assert!(is_socket(&lab.path("yard/door")));
    let export = |name: &str| info(&lab, &format!("nbd+unix:///{name}?socket=yard/door"));
    assert_eq!(export("one")["size_bytes"], SMALL_LEN_BYTES);
    assert!(export("two")["flags"].to_string().contains("read_only"));
    let said = lab.refused(&["suspend", "c"], 4);
    assert!(said.contains("name one with --export") && said.contains("\"two\""), "{said}");
    assert_eq!(export("raw")["size_bytes"], 8192);
    assert!(export("raw")["flags"].to_string().contains("trim"));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn aliases_are_names_of_the_same_volume() {
    let lab = Lab::new();
    lab.volume("vol");
    let words = ["vol", "-d", "pass", "--socket", "s", "--export-name", "home", "--ioprio", "be:2"];
    let mut words = words.to_vec();
    words.extend(["--alias", "home-rt=rt:0", "--alias", "a=b=idle", "--elevator", "none"]);
    let mut server = lab.serve(&words);
    server.wait_for("serving ");
    server.wait_for("serving ");
    assert!(server.said[1].contains("I/O priority rt:0 at nbd+unix:///home-rt?"));
    assert!(server.said[2].contains("I/O priority idle at nbd+unix:///a%3Db?"));
    for line in &server.said {
        let uri = line.split(" at ").nth(1).unwrap();
        assert_eq!(info(&lab, uri)["size_bytes"], SMALL_LEN_BYTES, "{uri}");
    }
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn config_with_a_mistake_names_the_place() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("wrong", "wrong");
    for (config, words) in [
        ("[exports.a]\nvolume = 'vol'\nkey_file = 'pass'\n", &["--socket"][..]),
        ("socket = 's'\nsokcet = 't'\n", &["c.toml:2:1", "sokcet"]),
        (
            "socket = 's'\n[exports.a]\nvolume = 'vol'\n[exports.a]\nvolume = 'vol'\n",
            &["c.toml:4", "duplicate"],
        ),
        ("socket = 's'\n[exports.a]\nvolume = 'gone'\nkey_file = 'pass'\n", &["gone"]),
        ("socket = 's'\n[exports.a]\nvolume = 'vol'\nkey_file = 'gone'\n", &["gone"]),
        (
            "socket = 's'\n[exports.a]\nvolume = 'vol'\npassphrase = 'hunter2'\n",
            &["c.toml:4:1", "key_file"],
        ),
        ("socket = 's'\n[exports.a]\nvolume = 5\n", &["c.toml:3:10"]),
        (
            "socket = 's'\n[exports.a]\nvolume = 'vol'\nelevator = 'lift'\n",
            &["exports.a: elevator", "\"lift\"", "mq-deadline"],
        ),
        (
            "socket = 's'\n[exports.a]\nvolume = 'vol'\naliases = { b = 'rt:9' }\n",
            &["exports.a: aliases.b", "rt:0 to rt:7"],
        ),
        ("socket = 's\n", &["c.toml:1"]),
        ("socket = 's'\n[exports.a]\nvolume = 'vol'\nkey_file = 'wrong'\n", &["vol", "passphrase"]),
        ("socket = 's'\nthreads = -1\n[exports.a]\nvolume = 'vol'\n", &["c.toml:2:11"]),
        (
            "socket = 's'\nthreads = 0\n[exports.a]\nvolume = 'vol'\nkey_file = 'pass'\n\
             pipeline = 'E'\n",
            &["cipher workers", "--threads 1"],
        ),
    ] {
        lab.write("c.toml", config);
        let said = one_line(&lab, &["serve", "--config", "c.toml"]);
        for word in words {
            assert!(said.contains(word), "{config}: {said}");
        }
        assert!(!said.contains("hunter2"), "{said}");
    }
    assert!(one_line(&lab, &["serve", "--config", "no.toml"]).contains("no.toml"));
}

#[test]
fn parameters_that_no_volume_can_have_exit_with_1() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("file", "precious");
    let serve = ["serve", "vol", "-d", "pass", "--socket"];
    for (words, problem) in [
        (&["s", "--threads", "0", "--pipeline", "E"][..], "cipher workers"),
        (&["file"], "is not a socket"),
    ] {
        let said = lab.refused(&[&serve[..], words].concat(), 1);
        assert!(said.contains(problem), "{said}");
    }
    assert_eq!(lab.read("file"), b"precious");
}

#[test]
fn readiness_is_told_to_the_service_manager() {
    let lab = Lab::new();
    lab.volume("vol");
    let manager = UnixDatagram::bind(lab.path("notify")).unwrap();
    let mut command = lab.blockyard(&["serve", "vol", "-d", "pass", "--socket", "s"]);
    command.env("NOTIFY_SOCKET", lab.path("notify"));
    let server = Server::start(command);
    let mut message = [0; 256];
    let len = manager.recv(&mut message).unwrap();
    assert!(text(&message[..len]).lines().any(|line| line == "READY=1"));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let len = manager.recv(&mut message).unwrap();
    assert!(text(&message[..len]).lines().any(|line| line == "STOPPING=1"));
}

#[test]
fn socket_of_the_service_manager_is_taken_over() {
    let lab = Lab::new();
    lab.volume("vol");
    let listener = UnixListener::bind(lab.path("activated")).unwrap();
    // The shell moves it to descriptor 3, where `sd_listen_fds` looks for it.
    let script = r#"LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" serve vol -d pass 3<&0 </dev/null"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_blockyard")]).current_dir(lab.path(""));
    shell.stdin(OwnedFd::from(listener));
    let server = Server::start(shell);
    let uris = uris(&server);
    assert!(uris[0].ends_with("/activated"), "{uris:?}");
    assert_eq!(info(&lab, &uris[0])["size_bytes"], SMALL_LEN_BYTES);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    assert!(lab.path("activated").exists(), "the socket is the service manager's");
}

#[test]
fn descriptor_that_is_no_socket_is_refused_by_its_number() {
    let lab = Lab::new();
    lab.volume("vol");
    let script = r#"LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" serve vol -d pass 3</dev/null"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_blockyard")]).current_dir(lab.path(""));
    let said = lab::one_error(&shell.output().unwrap(), 1);
    assert!(said.contains("descriptor 3"), "{said}");
}

#[test]
fn terminal_that_is_closed_stops_the_server_in_order() {
    let lab = Lab::new();
    lab.volume("vol");
    // The test itself may run under nohup, and a child inherits that.
    let mut serve = Command::new("env");
    serve.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_blockyard"), "serve", "vol"]);
    serve.args(["-d", "pass", "--socket", "s"]).current_dir(lab.path(""));
    let server = Server::start(serve);
    let mut client = Nbd::open(&lab.path("s"));
    assert_eq!(client.write(0, &noise(4096, 3)), 0);
    assert_eq!(server.stop(Signal::HUP).code(), Some(0));
    assert!(!lab.path("s").exists(), "the socket is left behind");
    // Under nohup the signal is ignored, and stays so.
    let mut shell = Command::new("sh");
    let script = r#"trap '' HUP; exec "$0" serve vol -d pass --socket s"#;
    shell.args(["-c", script, env!("CARGO_BIN_EXE_blockyard")]).current_dir(lab.path(""));
    let server = Server::start(shell);
    kill_process(Pid::from_raw(server.pid() as i32).unwrap(), Signal::HUP).unwrap();
    assert_eq!(Nbd::open(&lab.path("s")).read(0, 4096), noise(4096, 3));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

/// The server, started with a limit of the shell's `ulimit`.
fn limited(lab: &Lab, limit: &str) -> Command {
    let script = format!(r#"ulimit {limit}; exec "$0" serve vol -d pass --socket s --control c"#);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_blockyard")]).current_dir(lab.path(""));
    shell
}

#[test]
fn write_beyond_the_file_size_limit_fails_and_the_server_goes_on() {
    // On a disk: a mapping of a file in memory has no such limit.
    let lab = Lab::new();
    lab.volume("vol");
    // Blocks of 512 bytes: the second half of the volume is beyond.
    let server = Server::start(limited(&lab, "-f 2048"));
    let mut client = Nbd::open(&lab.path("s"));
    let no_space = 28;
    assert_eq!(client.write((SMALL_LEN_BYTES - 4096) as u64, &noise(4096, 1)), no_space);
    assert_eq!(client.write(0, &noise(4096, 2)), 0);
    assert_eq!(client.read(0, 4096), noise(4096, 2));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn log_that_nobody_reads_any_more_ends_no_connection() {
    let lab = Lab::new();
    lab.volume("vol");
    let mut command = limited(&lab, "-f 2048");
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut String::new()).unwrap();
    drop(stderr);
    let mut client = Nbd::open(&lab.path("s"));
    // This is logged.
    assert_ne!(client.write((SMALL_LEN_BYTES - 4096) as u64, &noise(4096, 1)), 0);
    assert_eq!(client.write(0, &noise(4096, 2)), 0);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Connects, and reads if served; returns the stream if so.
fn is_served(lab: &Lab) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(lab.path("s")).ok()?;
    stream.read_exact(&mut [0; 18]).ok()?;
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0").ok()?;
    stream.read_exact(&mut [0; 10]).ok()?;
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0; 20]);
    request.extend(65536_u32.to_be_bytes());
    stream.write_all(&request.repeat(16)).ok()?;
    stream.read_exact(&mut vec![0; 16 * (16 + 65536)]).ok()?;
    Some(stream)
}

#[test]
fn memory_that_is_short_refuses_a_client_and_ends_no_server() {
    let lab = Lab::new();
    lab.volume("vol");
    let mut started = 0;
    for limit_kib in (60_000..=280_000).step_by(20_000) {
        // Below the minimum the server itself reports that it cannot start.
        let mut child = limited(&lab, &format!("-v {limit_kib}"));
        let mut child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut said).unwrap();
        if said.starts_with("serving ") {
            started += 1;
            let clients: Vec<_> = (0..24).filter_map(|_| is_served(&lab)).collect();
            drop(clients);
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            let status = child.wait().unwrap();
            assert_eq!(status.code(), Some(0), "{limit_kib} KiB");
        } else {
            let _ = child.wait().unwrap();
        }
    }
    assert!(started >= 5, "only {started} servers started: the limits are too low");
}

#[test]
fn silent_clients_give_up_their_descriptors_to_others() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = Server::start(limited(&lab, "-n 48"));
    let idle: Vec<_> = (0..60).map(|_| UnixStream::connect(lab.path("s")).unwrap()).collect();
    let status = text(&lab.ok(&["status", "c"]).stdout);
    assert!(status.contains("connections:  0"), "{status}");
    drop(idle);
    assert_eq!(Nbd::open(&lab.path("s")).read(0, 512).len(), 512);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

/// A connection takes more descriptors than its socket: silent clients must leave some.
#[test]
fn silent_clients_leave_descriptors_for_connections() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = Server::start(limited(&lab, "-n 64"));
    let idle: Vec<_> = (0..300).map(|_| UnixStream::connect(lab.path("s")).unwrap()).collect();
    let mut clients: Vec<_> = (0..8).map(|_| Nbd::open(&lab.path("s"))).collect();
    for client in &mut clients {
        assert_eq!(client.read(0, 512).len(), 512);
    }
    drop((idle, clients));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn clients_are_told_to_write_whole_sectors_where_a_torn_one_would_be_garbage() {
    let lab = Lab::new();
    let mut cbc = vec!["format", "cbc", "--size", "2M", "-d", "pass", "-c", "aes-cbc-essiv:sha256"];
    cbc.extend(["-s", "256", "--sector-size", "4096"]);
    cbc.extend(SMALL);
    lab.ok(&cbc);
    lab.volume("xts");
    for (volume, more, minimum) in [
        ("cbc", &[][..], 4096),
        ("cbc", &["--minimum-block", "1"], 1),
        ("xts", &[], 1),
        ("xts", &["--minimum-block", "512"], 512),
    ] {
        let serve = [volume, "-d", "pass", "--socket", "s"];
        let server = lab.serve(&[&serve[..], more].concat());
        let info = lab.ok(&["info", "--json", "nbd+unix:///?socket=s"]).stdout;
        let told = format!("\"minimum_bytes\": {minimum}");
        assert!(text(&info).contains(&told), "{volume} {more:?}: {}", text(&info));
        // A client that does not ask for the minimum may use any size.
        let mut client = Nbd::open(&lab.path("s"));
        assert_eq!(client.write(1000, &[7; 100]), 0);
        assert_eq!(client.read(1000, 100), [7; 100]);
        drop(client);
        assert!(server.stop(Signal::TERM).success());
    }
    let wrong = ["serve", "xts", "-d", "pass", "--socket", "s", "--minimum-block", "1000"];
    assert!(lab.refused(&wrong, 1).contains("power of two"));
    lab.write("t", "0 9 zero\n");
    let wrong = ["serve", "--table", "t", "--socket", "s", "--minimum-block", "4096"];
    let error = lab.refused(&wrong, 1);
    assert!(error.contains("t: its size, 4608 bytes, is no multiple"), "{error}");
}
