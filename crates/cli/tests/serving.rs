//! The server: sockets, exports, configuration, readiness and the stop.

mod lab;

use std::fs;
use std::io::{BufRead, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::nbd::Nbd;
use lab::{Lab, SMALL, SMALL_LEN_BYTES, Server, is_socket, noise, text};
use rustix::process::{Pid, Signal, geteuid, getgid, kill_process};
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
fn disk_of_this_machine_without_ublk_is_refused_with_the_remedy_before_the_passphrase() {
    let lab = Lab::new();
    if std::path::Path::new("/dev/ublk-control").exists() {
        return;
    }
    // The key file does not exist.
    let said = lab.refused(&["serve", "vol", "-d", "missing", "--ublk"], 1);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(said.contains("modprobe ublk_drv") && said.contains(release.trim()), "{said}");
    let said = lab.refused(&["serve", "vol", "--ublk=3", "--run", "true"], 1);
    assert!(said.contains("--run"), "{said}");
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
    command.stderr(Stdio::piped());
    let mut server = Server::start(command);
    server.wait_for("serving ");
    server.wait_for("serving ");
    assert_eq!(server.said.len(), 3, "{:?}", server.said);
    assert!(is_socket(&lab.path("yard/door")));
    let export = |name: &str| info(&lab, &format!("nbd+unix:///{name}?socket=yard/door"));
    assert_eq!(export("one")["size_bytes"], SMALL_LEN_BYTES);
    assert!(export("two")["flags"].to_string().contains("read_only"));
    let said = lab.refused(&["suspend", "c"], 4);
    assert!(said.contains("name an export with --export") && said.contains("\"two\""), "{said}");
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
        ("[exports.a]\nvolume = 'vol'\nkey_file = 'pass'\n", &["c.toml: ", "`socket`"][..]),
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
fn terminal_that_is_closed_leaves_the_server_running() {
    let lab = Lab::new();
    lab.volume("vol");
    // With the usual effect of the signal, and under nohup.
    for effect in ["--default-signal=HUP", "--ignore-signal=HUP"] {
        let mut serve = Command::new("env");
        serve.args([effect, env!("CARGO_BIN_EXE_blockyard"), "serve", "vol"]);
        serve.args(["-d", "pass", "--socket", "s"]).current_dir(lab.path(""));
        let mut server = Server::start(serve);
        let mut client = Nbd::open(&lab.path("s"));
        // The kernel and the shell both send it for one lost terminal.
        server.send(Signal::HUP);
        server.send(Signal::HUP);
        server.wait_for_line("SIGHUP: ");
        assert_eq!(client.write(0, &noise(4096, 3)), 0);
        assert_eq!(client.read(0, 4096), noise(4096, 3));
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        assert!(!lab.path("s").exists(), "the socket is left behind");
    }
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
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
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
        let mut child = child.stderr(Stdio::piped()).spawn().unwrap();
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

/// The server with a command, and a runtime folder of its own.
fn run(lab: &Lab, command: &str, words: &[&str]) -> Command {
    let _ = fs::create_dir(lab.path("run"));
    let serve = ["serve", "vol", "-d", "pass", "--run", command];
    let mut server = lab.blockyard(&[&serve[..], words].concat());
    server
        .env("XDG_RUNTIME_DIR", lab.path("run"))
        .env("BLOCKYARD", env!("CARGO_BIN_EXE_blockyard"));
    server
}

fn is_empty(lab: &Lab, folder: &str) -> bool {
    fs::read_dir(lab.path(folder)).unwrap().next().is_none()
}

#[test]
fn command_is_served_on_a_private_socket_and_its_exit_code_is_the_servers() {
    let lab = Lab::new();
    lab.volume("vol");
    let command = "\"$BLOCKYARD\" info --json \"$uri\"; stat -c %a \"${unixsocket%/*}\" >mode; \
                   echo \"$port,$exportname,$unixsocket\" >variables; exit 7";
    let output = run(&lab, command, &["--export-name", "it's \"my\" $disk"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let served: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(served["size_bytes"], SMALL_LEN_BYTES);
    assert_eq!(lab.read("mode"), b"700\n");
    let variables = text(&lab.read("variables"));
    let place = lab.path("run");
    let start = format!(",it's \"my\" $disk,{}/blockyard-", place.display());
    assert!(variables.starts_with(&start) && variables.ends_with("/socket\n"), "{variables}");
    assert!(is_empty(&lab, "run"), "the folder is left behind");
    assert_eq!(run(&lab, "kill -s KILL $$", &[]).status().unwrap().code(), Some(128 + 9));
    let listen = ["--listen", "127.0.0.1:0"];
    let output = run(&lab, "echo $port $uri; test -z \"$unixsocket\"", &listen).output().unwrap();
    let said = text(&output.stdout);
    let port = said.split(' ').next().unwrap();
    assert_eq!(said, format!("{port} nbd://127.0.0.1:{port}/\n"));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn command_has_the_signals_of_the_server_before_its_start() {
    let lab = Lab::new();
    lab.volume("vol");
    let output = run(&lab, "grep -E 'Sig(Blk|Ign)' /proc/self/status", &[]).output().unwrap();
    let said = text(&output.stdout);
    let set = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(set("SigBlk:"), 0);
    assert_eq!(set("SigIgn:") >> (Signal::XFSZ.as_raw() - 1) & 1, 0, "{said}");
}

#[test]
fn signal_that_stops_the_server_ends_its_command() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = Server::start(run(&lab, "exec sleep 1000", &["-U", "s"]));
    assert_eq!(server.stop(Signal::TERM).code(), Some(128 + 15));
    assert!(!lab.path("s").exists());
}

#[test]
fn server_ends_with_the_program_that_started_it() {
    let lab = Lab::new();
    lab.volume("vol");
    let script = r#""$0" serve vol -d pass --socket s --exit-with-parent </dev/null & read end"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_blockyard")]).current_dir(lab.path(""));
    let server = Server::start({
        shell.stdin(Stdio::piped());
        shell
    });
    let mut client = UnixStream::connect(lab.path("s")).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    server.stop(Signal::KILL);
    assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 0);
    assert!(!lab.path("s").exists(), "it has not ended in order");
}

#[test]
fn file_of_the_process_id_is_there_while_the_server_is_ready() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("p", "12345\n");
    let words = ["vol", "-d", "pass", "--socket", "s"];
    let mut command = lab.blockyard(&[&["serve", "--pid-file", "p"][..], &words].concat());
    let manager = UnixDatagram::bind(lab.path("notify")).unwrap();
    command.env("NOTIFY_SOCKET", lab.path("notify"));
    let server = Server::start(command);
    manager.recv(&mut [0; 256]).unwrap();
    assert_eq!(text(&lab.read("p")), format!("{}\n", server.pid()));
    lab.volume("other");
    let words = ["serve", "other", "-d", "pass", "--socket", "t", "--pid-file", "p"];
    let said = lab.refused(&words, 5);
    assert!(said.contains("--pid-file p") && said.contains("a running server"), "{said}");
    assert_eq!(text(&lab.read("p")), format!("{}\n", server.pid()));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    assert!(!lab.path("p").exists());
    let config = "socket = 's'\npid_file = 'q'\n[exports.a]\nvolume = 'vol'\nkey_file = 'pass'\n";
    lab.write("c.toml", config);
    let output = lab.run(&["serve", "--config", "c.toml", "--run", "cat q; echo 1 >q"]);
    assert!(!output.stdout.is_empty() && output.status.success());
    assert_eq!(lab.read("q"), b"1\n", "the file of another server stays");
}

#[test]
fn file_of_the_process_id_destroys_nothing_and_is_refused_before_keys_are_derived() {
    let lab = Lab::new();
    let volume = fs::read(lab.volume("vol")).unwrap();
    lab.write("wrong", "wrong");
    lab.write("text", "precious");
    fs::create_dir(lab.path("folder")).unwrap();
    std::os::unix::fs::symlink("text", lab.path("link")).unwrap();
    for (path, problem) in [
        ("none/p", "No such file"),
        ("folder", "is no file"),
        ("link", "is no file"),
        ("text", "holds no process ID"),
        ("vol", "holds no process ID"),
        ("/proc/p", "--pid-file /proc/p"),
    ] {
        let said = lab.run(&["serve", "vol", "-d", "wrong", "--socket", "s", "--pid-file", path]);
        // A wrong passphrase is 2.
        assert_ne!(said.status.code(), Some(2), "{path}");
        let said = text(&said.stderr);
        assert!(said.contains("--pid-file") && said.contains(problem), "{path}: {said}");
        assert!(!said.contains(".pid"), "the name of a file beside it: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // The folder may be of another user, who guesses the name of a file beside.
    for pid in std::process::id()..std::process::id() + 4000 {
        std::os::unix::fs::symlink("text", lab.path(&format!("pid.{pid}"))).unwrap();
    }
    let words = ["serve", "vol", "-d", "pass", "--pid-file", "pid", "--run", "true"];
    assert!(lab.run(&words).status.success());
    // The control socket appears there after the check.
    let words =
        ["serve", "vol", "-d", "pass", "--control", "c", "--pid-file", "c", "--run", "true"];
    let said = lab.run(&words);
    assert!(!said.status.success() && text(&said.stderr).contains("is no file"));
    assert!(lab.read("vol") == volume && lab.read("text") == b"precious");
}

#[test]
fn sockets_have_the_mode_the_group_and_the_owner_of_the_options() {
    let lab = Lab::new();
    lab.volume("vol");
    let group = getgid().as_raw().to_string();
    let words = ["vol", "-d", "pass", "--socket", "s", "--vhost-user", "v", "--control", "c"];
    let more = ["--metrics", "./m", "--socket-group", &group];
    let modes = |names: &[&str]| {
        let mode =
            |name: &&str| fs::metadata(lab.path(name)).unwrap().permissions().mode() & 0o7777;
        names.iter().map(mode).collect::<Vec<_>>()
    };
    let server = lab.serve(&[&words[..], &more].concat());
    assert_eq!(modes(&["s", "v", "c", "m"]), [0o660, 0o660, 0o660, 0o600]);
    assert_eq!(fs::metadata(lab.path("s")).unwrap().gid(), getgid().as_raw());
    drop(server);
    let config = "socket = 's'\nsocket_mode = '0622'\n[exports.a]\nvolume = 'vol'\n\
                  key_file = 'pass'\n";
    lab.write("c.toml", config);
    drop(lab.serve(&["--config", "c.toml", "--socket-mode", "606"]));
    assert_eq!(modes(&["s"]), [0o606], "the command line takes precedence");
    let server = lab.serve(&["--config", "c.toml"]);
    assert_eq!(modes(&["s"]), [0o622]);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let owner = ["vol", "-d", "pass", "--socket", "s", "--socket-owner", "65534"];
    if geteuid().is_root() {
        let server = lab.serve(&owner);
        assert_eq!(fs::metadata(lab.path("s")).unwrap().uid(), 65534);
        assert_eq!(modes(&["s"]), [0o600]);
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    } else {
        let said = one_line(&lab, &[&["serve"][..], &owner].concat());
        assert!(said.contains("only root"), "{said}");
    }
    assert!(!lab.path("s").exists());
}

#[test]
fn wrong_access_to_sockets_is_refused_by_its_option() {
    let lab = Lab::new();
    lab.volume("vol");
    for (words, problem) in [
        (&["--socket", "s", "--socket-mode", "888"][..], "octal digits"),
        (&["--socket", "s", "--socket-owner", "no such user"], "--socket-owner no such user"),
        (&["--socket", "s", "--socket-group", "no-such-group"], "getent group"),
        (&["-U", "-", "--socket-mode", "666"], "private socket"),
    ] {
        let said = lab.refused(&[&["serve", "vol", "-d", "pass"], words].concat(), 1);
        assert!(said.contains(problem), "{said}");
    }
}

#[test]
fn option_of_qemu_nbd_or_nbdkit_is_answered_with_ours() {
    let lab = Lab::new();
    lab.volume("vol");
    for (words, ours) in [
        (&["-e4"][..], "--max-connections N"),
        (&["-f", "raw"], "--type TYPE"),
        (&["-t"], "until a signal"),
        (&["-v"], "standard error"),
        (&["--persistent"], "until a signal"),
        (&["--filter=cow"], "--table FILE"),
        (&["-p", "10809"], "--listen HOST:PORT"),
        (&["-b", "0.0.0.0"], "--listen HOST:PORT"),
        (&["--shared=4"], "--max-connections N"),
        (&["-c", "/dev/nbd0"], "nbd-client -unix"),
        (&["-s"], "--key-size"),
        (&["-P", "pid"], "--pid-file PATH"),
    ] {
        let said = one_line(&lab, &[&["serve"][..], words, &["vol"]].concat());
        assert!(said.starts_with("error: ") && said.contains(ours), "{words:?}: {said}");
    }
    let said = one_line(&lab, &["serve", "-d", "/dev/nbd0"]);
    assert!(said.contains("nbd-client -d"), "{said}");
    let said = lab.run(&["dump", "-k", "vol"]);
    assert!(text(&said.stderr).contains("unexpected argument"), "another command");
}

#[test]
fn socket_that_was_passed_for_nbd_is_not_that_of_a_virtual_machine_too() {
    let lab = Lab::new();
    lab.volume("vol");
    let listener = UnixListener::bind(lab.path("activated")).unwrap();
    let script = r#"LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" serve vol -d pass --fd 3 3<&0 </dev/null"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_blockyard")]).current_dir(lab.path(""));
    let said = lab::one_error(&shell.stdin(OwnedFd::from(listener)).output().unwrap(), 1);
    assert!(said.contains("--fd 3") && said.contains("LISTEN_FDS"), "{said}");
}
