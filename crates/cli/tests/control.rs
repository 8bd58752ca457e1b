//! A running server: suspended, its key changed, resumed, asked for its status.

mod lab;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::thread::JoinHandle;

use lab::nbd::Nbd;
use lab::{Lab, Server, noise, one_error, text};
use rustix::process::Signal;
use serde_json::Value;

const EIO: u32 = 5;

fn status(lab: &Lab) -> Value {
    let reply: Value = serde_json::from_slice(&lab.ok(&["status", "--json", "c"]).stdout).unwrap();
    reply["devices"][0].clone()
}

/// Waits until this many bios wait at the gate.
fn wait_for_held(lab: &Lab, count: u64) {
    while status(lab)["held_bios"] != count {
        std::thread::yield_now();
    }
}

/// The hex digits of the volume key.
fn key(lab: &Lab) -> String {
    let table = text(&lab.ok(&["table", "--show-keys", "vol", "-d", "pass"]).stdout);
    table.split(' ').nth(4).unwrap().to_owned()
}

fn serve(lab: &Lab, more: &[&str]) -> Server {
    let mut words = vec!["vol", "-d", "pass", "--socket", "s", "--control", "c"];
    words.extend(more);
    lab.serve(&words)
}

/// A separate client that writes one block and returns the error.
fn writer(lab: &Lab, offset: u64, bytes: &[u8]) -> JoinHandle<u32> {
    let socket = lab.path("s");
    let bytes = bytes.to_vec();
    std::thread::spawn(move || Nbd::open(&socket).write(offset, &bytes))
}

#[test]
fn key_is_wiped_and_set_while_a_write_waits_and_then_it_ends() {
    for pipeline in ["adaptive", "G"] {
        let lab = Lab::new();
        lab.volume("vol");
        let key = key(&lab);
        let server = serve(&lab, &["--pipeline", pipeline]);
        let mut early = Nbd::open(&lab.path("s"));
        let [first, second, third] = [1, 2, 3].map(|seed| noise(8192, seed));
        assert_eq!(early.write(0, &first), 0);
        let said = lab.refused(&["message", "c", "key", "wipe"], 1);
        assert!(said.contains("EINVAL") && said.contains("not suspended"), "{said}");

        lab.ok(&["suspend", "c"]);
        assert_eq!(status(&lab)["state"], "suspended");
        lab.ok(&["suspend", "c"]);
        // One connection is older than the suspend, the other is newer.
        let bytes = second.clone();
        let old = std::thread::spawn(move || {
            let error = early.write(65_536, &bytes);
            (early, error)
        });
        let young = writer(&lab, 131_072, &third);
        wait_for_held(&lab, 2);

        lab.ok(&["message", "c", "key", "wipe"]);
        assert_eq!(status(&lab)["key"], "wiped");
        let said = lab.refused(&["resume", "c"], 5);
        assert!(said.contains("EAGAIN") && said.contains("no valid key"), "{said}");
        let set = |digits: &str| lab.fed(&["message", "c", "key", "set"], digits.as_bytes());
        let said = one_error(&set(&key[2..]), 1);
        assert!(said.contains("EINVAL") && said.contains("size of a key"), "{said}");
        assert!(!said.contains(&key[2..10]), "{said}");
        let said = one_error(&set("zz\n"), 1);
        assert!(said.contains("EINVAL") && said.contains("hex"), "{said}");
        lab.refused(&["resume", "c"], 5);
        assert!(set(&format!("{key}\n")).status.success());
        assert!(!old.is_finished() && !young.is_finished());
        lab.ok(&["resume", "c"]);
        let (mut early, error) = old.join().unwrap();
        assert_eq!((error, young.join().unwrap()), (0, 0));
        for (offset, bytes) in [(0, &first), (65_536, &second), (131_072, &third)] {
            assert!(early.read(offset, 8192) == *bytes, "{offset}");
        }
        assert_eq!(early.flush(), 0);
        drop(early);
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
        let plaintext = lab.ok(&["dump", "vol", "-d", "pass"]).stdout;
        assert!(plaintext[..8192] == first && plaintext[65_536..][..8192] == second);
        assert!(plaintext[131_072..][..8192] == third);
    }
}

#[test]
fn another_key_decrypts_otherwise_until_the_right_one_is_back() {
    let lab = Lab::new();
    lab.volume("vol");
    let key = key(&lab);
    let _server = serve(&lab, &[]);
    let mut client = Nbd::open(&lab.path("s"));
    let bytes = noise(4096, 1);
    assert_eq!(client.write(0, &bytes), 0);
    let other: String = noise(key.len() / 2, 9).iter().map(|byte| format!("{byte:02x}")).collect();
    lab.write("other", other);
    lab.write("right", format!("{key}\n"));
    for (file, is_right) in [("other", false), ("right", true)] {
        lab.ok(&["suspend", "c"]);
        lab.ok(&["message", "c", "key", "set", "--key-file", file]);
        lab.ok(&["resume", "c"]);
        assert_eq!(client.read(0, 4096) == bytes, is_right, "{file}");
    }
}

/// The whole reply of an HTTP server to this request.
fn fetch(lab: &Lab, request: &str) -> (String, String) {
    let mut stream = std::os::unix::net::UnixStream::connect(lab.path("m")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Checks the rules of `promtool check metrics`: each family in one piece after its HELP and TYPE,
/// labels in quotes, then a number, and histograms that grow up to `+Inf`, which is their count.
fn check_metrics(body: &str) {
    assert!(body.ends_with('\n'));
    let mut family = String::new();
    let mut seen = Vec::<String>::new();
    let mut below: Option<(String, u64)> = None;
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            family = rest.split(' ').next().unwrap().to_owned();
            assert!(!seen.contains(&family), "{family} is in two pieces");
            seen.push(family.clone());
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, family);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        assert!(name.starts_with(&family), "{line}");
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let (key, value) = label.split_once('=').unwrap();
            assert!(key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
            assert!(value.len() >= 2 && value.starts_with('"') && value.ends_with('"'), "{line}");
        }
        if name.ends_with("_bucket") {
            let (labels, le) = labels.rsplit_once(",le=").unwrap();
            let before = below.take().filter(|(of, _)| of == labels).map_or(0, |(_, n)| n);
            assert!(value as u64 >= before, "{line}");
            below = Some((labels.to_owned(), value as u64));
            assert!(le == "\"+Inf\"" || le.trim_matches('"').parse::<f64>().is_ok(), "{line}");
        } else if name.ends_with("_count") {
            assert_eq!(below.take(), Some((labels.to_owned(), value as u64)), "{line}");
        }
    }
}

#[test]
fn metrics_are_what_a_scraper_takes_and_top_shows_the_same() {
    let lab = Lab::new();
    lab.volume("vol");
    let metrics = ["--metrics", "./m", "--threads", "0", "--max-connections", "5"];
    let _server = serve(&lab, &[&metrics[..], &["--iops-limit", "1000000"]].concat());
    let mut client = Nbd::open(&lab.path("s"));
    for _ in 0..400 {
        client.read(0, 4096);
    }
    assert_eq!(client.write(0, &noise(8192, 1)), 0);
    assert_eq!((client.flush(), client.flush()), (0, 0));
    let (head, body) = fetch(&lab, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    check_metrics(&body);
    for line in [
        "blockyard_request_bytes_total{export=\"\",op=\"write\"} 8192\n",
        "blockyard_request_errors_total{export=\"\",op=\"read\",class=\"io\"} 0\n",
        "blockyard_flush_seconds_count{export=\"\"} 2\n",
        "blockyard_size_bytes{export=\"\"} 1048576\n",
        "blockyard_limit_requests_per_second{export=\"\",group=\"\"} 1000000\n",
        "blockyard_max_connections 5\n",
        "blockyard_key_wiped{export=\"\"} 0\n",
        "blockyard_requests_total{export=\"\",op=\"read\"} 400\n",
        "blockyard_connections{export=\"\"} 1\n",
        "# TYPE blockyard_stage_seconds histogram\n",
        "blockyard_stage_seconds_bucket{export=\"\",op=\"read\",stage=\"cipher\",le=\"0.000001\"} ",
    ] {
        assert!(body.contains(line), "{line}\n{body}");
    }
    let build =
        concat!("blockyard_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\",commit=\"");
    let build = body.lines().find(|line| line.starts_with(build)).unwrap();
    assert!(build.contains(" io_uring ") && build.ends_with("\"} 1"), "{build}");
    let figure = |name: &str| -> u64 {
        let line = body.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    };
    assert!((8..64).contains(&figure("process_open_fds ")), "{body}");
    assert!(figure("process_max_fds ") > figure("process_open_fds "));
    assert!(figure("process_resident_memory_bytes ") > 1 << 20);
    for (request, status) in [
        ("HEAD /metrics HTTP/1.1\r\n\r\n", "200"),
        ("GET /else HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("hello\r\n\r\n", "400"),
        (&format!("GET /metrics HTTP/1.1\r\nA: {}", "b".repeat(8192)), "400"),
    ] {
        let (head, _) = fetch(&lab, request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
    let frame = lab.ok(&["top", "c", "--once", "--json"]).stdout;
    let frame: Value = serde_json::from_slice(&frame).unwrap();
    assert_eq!(frame["devices"][0]["connections"], 1);
    assert_eq!(frame["devices"][0]["limit"], Value::Null, "nothing was asked for meanwhile");
    let frame = text(&lab.ok(&["top", "c", "--once"]).stdout);
    assert!(frame.contains("limit: no requests") && !frame.contains('\u{1b}'), "{frame}");
    let mut top = lab.blockyard(&["top", "c"]);
    let mut top = top.stdout(Stdio::piped()).spawn().unwrap();
    drop(top.stdout.take());
    assert!(top.wait().unwrap().success(), "it ends when nobody reads");
}

#[test]
fn metrics_name_the_class_of_an_error_and_count_failed_paths() {
    let lab = Lab::new();
    for path in ["one", "two"] {
        lab.write(path, vec![0; 1 << 19]);
    }
    let paths = "round-robin 0 2 0 one two";
    let table = format!("0 1024 multipath 0 0 1 1 {paths}\n1024 8 error\n");
    lab.write("table", table);
    let server = ["--table", "table", "--socket", "s", "--control", "c", "--metrics", "./m"];
    let _server = lab.serve(&server);
    let mut client = Nbd::open(&lab.path("s"));
    assert_eq!(client.read_error(1024 * 512, 4096), EIO);
    assert_eq!(client.read(0, 512), [0; 512]);
    lab.ok(&["message", "c", "fail_path", "two"]);
    assert_eq!(client.read(0, 512), [0; 512]);
    let (_, body) = fetch(&lab, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    check_metrics(&body);
    for line in [
        "blockyard_request_errors_total{export=\"\",op=\"read\",class=\"io\"} 1\n",
        "blockyard_request_errors_total{export=\"\",op=\"write\",class=\"io\"} 0\n",
        "blockyard_paths{export=\"\",state=\"live\"} 1\n",
        "blockyard_paths{export=\"\",state=\"failed\"} 1\n",
    ] {
        assert!(body.contains(line), "{line}\n{body}");
    }
}

#[test]
fn status_says_what_rings_can_do() {
    let lab = Lab::new();
    lab.volume("vol");
    let _server = serve(&lab, &[]);
    let said: Value = serde_json::from_slice(&lab.ok(&["status", "c", "--json"]).stdout).unwrap();
    let human = text(&lab.ok(&["status", "c"]).stdout);
    match said["io_uring"].as_str().unwrap() {
        "restricted" => assert!(!human.contains("io_uring"), "{human}"),
        "unrestricted" => assert!(human.contains("cannot restrict"), "{human}"),
        "unavailable" => assert!(human.contains("plain calls"), "{human}"),
        other => panic!("{other}"),
    }
}

#[test]
fn status_says_what_was_done_and_hides_the_key() {
    let lab = Lab::new();
    lab.volume("vol");
    let key = key(&lab);
    let server = serve(&lab, &["--threads", "0", "--alias", "other=idle"]);
    let mut client = Nbd::open(&lab.path("s"));
    assert_eq!(client.write(0, &noise(8192, 1)), 0);
    client.read(0, 4096);
    assert_eq!(client.flush(), 0);
    let status = status(&lab);
    assert_eq!((&status["state"], &status["key"]), (&"active".into(), &"valid".into()));
    assert_eq!(status["exports"], serde_json::json!(["", "other"]));
    assert_eq!((&status["connections"], &status["errors"]), (&1.into(), &0.into()));
    assert_eq!(status["writes"]["bytes"], 8192);
    assert!(status["reads"]["bytes"].as_u64().unwrap() >= 4096);
    assert_eq!(status["other_bios"], 1);
    let asked = |kind: &str, figure: &str| status["requests"][kind][figure].as_u64().unwrap();
    assert_eq!((asked("write", "requests"), asked("write", "bytes")), (1, 8192));
    assert_eq!((asked("flush", "requests"), asked("flush", "errors")), (1, 0));
    assert_eq!((&status["in_flight"], &status["threads"][0]["count"]), (&0.into(), &1.into()));
    let ciphers = &status["ciphers"];
    assert!(ciphers["inline"]["bytes"].as_u64().unwrap() >= 8192 + 4096, "{ciphers}");
    assert_eq!(ciphers["fanned_out"]["parts"], 0);
    assert_eq!(status["pipelines"], serde_json::json!(["adaptive"]));
    assert_eq!(status["adaptive"][0]["fan_out_min_bytes"], Value::Null);
    assert_eq!(status["status"], serde_json::json!(["0 2048 crypt"]));
    let table = status["table"][0].as_str().unwrap();
    assert!(
        table.starts_with("0 2048 crypt aes-xts-plain64 0000")
            && table.ends_with(
                " vol 1024 1 \
             sector_size:4096"
            ),
        "{table}"
    );
    let human = text(&lab.ok(&["status", "c"]).stdout);
    for word in [
        "export \"\", \"other\": active",
        " 1 request, 8192 bytes, 0 errors\n",
        " 0 parts, 0 bytes\n",
        "adaptive",
        "connections:",
    ] {
        assert!(human.contains(word), "{word}: {human}");
    }
    assert!(!human.contains(&key[..8]));
    drop(client);
    while self::status(&lab)["connections"] != 0 {
        std::thread::yield_now();
    }
    let after = self::status(&lab);
    assert_eq!(after["writes"], status["writes"], "what a connection did stays counted");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn stop_of_a_suspended_server_fails_what_waits() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = serve(&lab, &[]);
    lab.ok(&["suspend", "c"]);
    let waiting = writer(&lab, 0, &noise(4096, 1));
    wait_for_held(&lab, 1);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    assert_eq!(waiting.join().unwrap(), EIO);
    assert!(!lab.path("c").exists(), "the control socket is left behind");
}

#[test]
fn control_socket_is_its_owners_and_mistakes_are_named() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.volume("vol2");
    let server = serve(&lab, &[]);
    let mode = std::fs::metadata(lab.path("c")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let words = ["serve", "vol2", "-d", "pass", "--socket", "t", "--control", "c"];
    assert!(lab.refused(&words, 5).contains("another server is listening"));
    let words = ["serve", "vol2", "-d", "pass", "--socket", &"s".repeat(109)];
    assert!(lab.refused(&words, 1).contains("at most 108 bytes"));
    for (words, code, problem) in [
        (&["suspend", "c", "--export", "home"][..], 4, "ENXIO"),
        (&["status", "nowhere"], 4, "--control nowhere"),
        (&["status", "s"], 4, "no control socket"),
        (&["message", "c", "key"], 1, "`key set` and `key wipe`"),
        (
            &["message", "c", "fail_path", "/a"],
            1,
            "is of crypt, which takes `key set` and `key wipe`",
        ),
        (&["message", "c", "key", "set", "00ff"], 1, "never an argument"),
        (&["message", "c", "key", "wipe", "-d", "pass"], 1, "takes no key"),
    ] {
        let said = lab.refused(words, code);
        assert!(said.contains(problem), "{words:?}: {said}");
    }
    lab.ok(&["suspend", "c"]);
    let said = lab.refused(&["message", "c", "--sector", "2048", "key", "wipe"], 1);
    assert!(said.contains("outside of the volume"), "{said}");
    drop(server);
    assert!(lab.refused(&["status", "c"], 4).contains("is a server running"));
}
