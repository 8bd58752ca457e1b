//! The server: doors, exports, configuration, readiness and the stop.

mod lab;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;

use lab::{Lab, SMALL_LEN_BYTES, Server, is_socket, noise, text};
use rustix::process::Signal;
use serde_json::Value;

fn info(lab: &Lab, uri: &str) -> Value {
    serde_json::from_slice(&lab.ok(&["info", "--json", uri]).stdout).unwrap()
}

/// The URIs that the last line of a server names.
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
    let mut command = lab.blockyard(&["serve", "--config", "yard/config.toml"]);
    command.stderr(std::process::Stdio::piped());
    let mut server = Server::start(command);
    server.wait_for("serving ");
    server.wait_for("serving ");
    assert_eq!(server.said.len(), 3, "{:?}", server.said);
    assert!(is_socket(&lab.path("yard/door")));
    let export = |name: &str| info(&lab, &format!("nbd+unix:///{name}?socket=yard/door"));
    assert_eq!(export("one")["size_bytes"], SMALL_LEN_BYTES);
    assert!(export("two")["flags"].to_string().contains("read_only"));
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
