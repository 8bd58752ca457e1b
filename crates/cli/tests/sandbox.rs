//! The sandbox of `serve`: limits of the running server, their display, and uses that must stay
//! possible. The attempts of a taken-over server are in `host/tests/sandbox.rs`.

mod lab;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::nbd::Nbd;
use lab::{Lab, Server, noise, text};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;

const LEN_BYTES: usize = 1 << 20;

fn status(lab: &Lab) -> Value {
    serde_json::from_slice(&lab.ok(&["status", "--json", "ctl"]).stdout).unwrap()
}

/// A field of `status` of every thread of a process: proc(5).
fn of_threads(server: &Server, field: &str) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let value = |path: &Path| {
        let facts = fs::read_to_string(path.join("status")).unwrap();
        let line = facts.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().to_owned()
    };
    threads.map(|thread| value(&thread.unwrap().path())).collect()
}

/// Processes that a server has started.
fn children(server: &Server) -> Vec<i32> {
    let pid = server.pid();
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A volume with cipher workers, which are older than the sandbox.
const WORDS: [&str; 8] = ["vol", "-d", "pass", "--threads", "2", "--socket", "s", "--control=ctl"];

#[test]
fn workers_are_those_of_all_volumes_and_run_on_the_given_cpus() {
    let lab = Lab::new();
    lab.write("key", noise(64, 1));
    let mut config = String::from("socket = 's'\ncontrol = 'ctl'\nthreads = 3\n");
    for number in 0..20 {
        lab.write(&format!("v{number}"), vec![0; LEN_BYTES]);
        config += &format!(
            "[exports.e{number}]\nvolume = 'v{number}'\ntype = 'plain'\nkey_file = 'key'\n\
             cipher = 'aes-xts-plain64'\nkey_size = 512\n"
        );
    }
    lab.write("c.toml", config);
    let mut server = lab.serve(&["--config", "c.toml", "--cpus", "0"]);
    while !server.said.last().is_some_and(|line| line.contains("/e9?")) {
        server.wait_for("serving ");
    }
    // The answer comes after the start.
    let status = status(&lab);
    assert_eq!(status["placement"]["cpus"], "0");
    let pools: BTreeSet<_> = status["devices"].as_array().unwrap().iter().map(pool).collect();
    assert_eq!(pools.len(), 1, "{pools:?}");
    let names = of_threads(&server, "Name:");
    let workers = names.iter().filter(|name| name.starts_with("crypt/")).count();
    assert_eq!(workers, 3, "{names:?}");
    assert!(names.len() < 20, "{names:?}");
    let cpus = of_threads(&server, "Cpus_allowed_list:");
    assert!(cpus.iter().all(|list| list == "0"), "{cpus:?}");
    // The process that starts a key_command later.
    let [broker] = children(&server)[..] else { panic!("one process is outside of the sandbox") };
    let broker = fs::read_to_string(format!("/proc/{broker}/status")).unwrap();
    assert!(broker.contains("\nCpus_allowed_list:\t0\n"), "{broker}");
    assert!(text(&lab.ok(&["status", "ctl"]).stdout).contains("\nCPUs: 0\n"));
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

/// A cgroup with a limit of its CPU time, until the value is dropped.
struct Cgroup {
    folder: PathBuf,
    /// Name of the limit, and its texts for one CPU and for all.
    limit: (&'static str, [&'static str; 2]),
}

impl Cgroup {
    /// `None` where this user cannot make one.
    fn made() -> Option<Self> {
        let name = format!("blockyard-test-{}", std::process::id());
        let unified = ("cpu.max", ["100000 100000", "max 100000"]);
        let old = ("cpu.cfs_quota_us", ["100000", "-1"]);
        let places = [("/sys/fs/cgroup", unified), ("/sys/fs/cgroup/cpu", old)];
        places.into_iter().find_map(|(above, limit)| {
            let folder = Path::new(above).join(&name);
            fs::create_dir(&folder).ok()?;
            let cgroup = Self { folder, limit };
            cgroup.folder.join(limit.0).exists().then_some(cgroup)
        })
    }

    fn set_quota(&self, is_one_cpu: bool) {
        let (name, [one, all]) = self.limit;
        fs::write(self.folder.join(name), if is_one_cpu { one } else { all }).unwrap();
    }
}

impl Drop for Cgroup {
    /// The kernel needs a moment after the end of the last process.
    fn drop(&mut self) {
        let start = Instant::now();
        while fs::remove_dir(&self.folder).is_err() && start.elapsed() < Duration::from_secs(10) {}
    }
}

#[test]
fn quota_that_changes_is_seen_from_inside_of_the_sandbox() {
    let lab = Lab::new();
    lab.volume("vol");
    let Some(cgroup) = Cgroup::made() else {
        println!("skipped, because this user makes no cgroup for CPU time");
        return;
    };
    let blockyard = lab.blockyard(&[&["serve"][..], &WORDS].concat());
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"echo $$ >"$0"/cgroup.procs && exec "$@""#]).arg(&cgroup.folder);
    shell.arg(blockyard.get_program()).args(blockyard.get_args()).current_dir(lab.path("."));
    let _server = Server::start(shell);
    let quota = |is_one_cpu| {
        cgroup.set_quota(is_one_cpu);
        status(&lab)["placement"]["quota_cpus"].clone()
    };
    let is_shown = std::thread::available_parallelism().unwrap().get() > 1;
    let one = if is_shown { Value::from(1) } else { Value::Null };
    assert_eq!([quota(true), quota(false), quota(true)], [one.clone(), Value::Null, one]);
}

/// Number of the workers' pool of a volume.
fn pool(device: &Value) -> u64 {
    let threads = device["threads"].as_array().unwrap();
    let workers = threads.iter().find(|threads| threads["threads"] == "workers").unwrap();
    workers["pool"].as_u64().unwrap()
}

#[test]
fn cpus_and_nodes_that_are_not_there_are_named() {
    let lab = Lab::new();
    lab.volume("vol");
    let serve = |words: &[&str]| {
        lab.refused(&[&["serve", "vol", "-d", "pass", "--socket", "s"], words].concat(), 1)
    };
    let said = serve(&["--cpus", "0,4095"]);
    assert!(
        said.contains("--cpus 0,4095: this process may not run on CPU 4095, only on "),
        "{said}"
    );
    let said = serve(&["--numa", "999"]);
    assert!(
        said.contains("--numa 999: there is no such node; the nodes of this machine are "),
        "{said}"
    );
    let said = lab.refused(&["serve", "vol", "--cpus", "0-"], 1);
    assert!(said.contains("--cpus") && said.contains("as in 0-3 or 0,8"), "{said}");
    lab.write("c.toml", "cpus = '1,,x'\nsocket = 's'\n[exports.a]\nvolume = 'vol'\n");
    let said = lab.refused(&["serve", "--config", "c.toml"], 1);
    lab.write("d.toml", "cpus = '4095'\nsocket = 's'\n[exports.a]\nvolume = 'vol'\n");
    let other = lab.refused(&["serve", "--config", "d.toml"], 1);
    assert!(other.contains("d.toml: --cpus 4095: this process may not run on"), "{other}");
    lab.write("e.toml", "numa = 999\nsocket = 's'\n[exports.a]\nvolume = 'vol'\n");
    let node = lab.refused(&["serve", "--config", "e.toml", "--cpus", "0"], 1);
    assert!(node.contains("e.toml: --numa 999: there is no such node"), "{node}");
    lab.write("f.toml", "numa = 'all'\nsocket = 's'\n[exports.a]\nvolume = 'vol'\n");
    let word = lab.refused(&["serve", "--config", "f.toml"], 1);
    assert!(word.contains("`numa` must be the number of a node"), "{word}");
    assert!(said.contains("c.toml: cpus") && said.contains("as in 0-3 or 0,8"), "{said}");
}

#[test]
fn all_threads_are_limited_from_the_start_and_status_says_so() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&WORDS);
    let mut client = Nbd::open(&lab.path("s"));
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    assert_eq!(server.said.len(), 1, "{:?}", server.said);
    let sandbox = &status(&lab)["sandbox"];
    assert!(sandbox["landlock"].as_u64().unwrap() > 0, "{sandbox}");
    assert_eq!((&sandbox["seccomp"], &sandbox["no_new_privileges"]), (&true.into(), &true.into()));
    let human = text(&lab.ok(&["status", "ctl"]).stdout);
    assert!(human.contains("\nsandbox: Landlock ") && human.contains("seccomp"), "{human}");
    // The main thread, two workers, and the connection.
    for (field, value) in [("Seccomp:", "2"), ("NoNewPrivs:", "1")] {
        let all = of_threads(&server, field);
        assert!(all.len() >= 4 && all.iter().all(|one| one == value), "{field} {all:?}");
    }
    let children = children(&server);
    assert_eq!(children.len(), 1, "the broker");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let broker = Pid::from_raw(children[0]).unwrap();
    assert!(test_kill_process(broker).is_err(), "the broker lives longer than the server");
}

/// The configuration may be on a file system that hangs, and the broker with it.
#[test]
fn server_whose_broker_does_not_answer_ends_in_order() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&WORDS);
    // An answer comes after the start, which needs the broker.
    assert!(status(&lab)["sandbox"]["seccomp"].as_bool().unwrap());
    let broker = Pid::from_raw(children(&server)[0]).unwrap();
    kill_process(broker, Signal::STOP).unwrap();
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    kill_process(broker, Signal::KILL).unwrap();
}

/// The server itself may not end the command, so it does not wait for it.
#[test]
fn server_of_a_command_ends_without_its_broker() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&[&WORDS[..], &["--run", "exec sleep 1000"]].concat());
    assert!(status(&lab)["sandbox"]["seccomp"].as_bool().unwrap());
    // The server starts the broker first.
    let [broker, command] = children(&server)[..] else { panic!("two children") };
    let all = [broker, command].map(|child| Pid::from_raw(child).unwrap());
    kill_process(all[0], Signal::KILL).unwrap();
    let code = server.stop(Signal::TERM).code();
    kill_process(all[1], Signal::KILL).unwrap();
    assert_eq!(code, Some(1));
}

#[test]
fn sandbox_that_is_off_changes_nothing() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&[&WORDS[..], &["--sandbox", "off", "--pid-file", "pid"]].concat());
    assert_eq!(status(&lab)["sandbox"], Value::Null);
    assert!(text(&lab.ok(&["status", "ctl"]).stdout).contains("\nsandbox: off\n"));
    for field in ["Seccomp:", "NoNewPrivs:"] {
        assert!(of_threads(&server, field).iter().all(|one| one == "0"), "{field}");
    }
    assert!(children(&server).is_empty());
    lab.ok(&["trace", "record", "ctl", "-o", "any.trace", "--for", "10ms"]);
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    assert!(["s", "ctl", "pid"].iter().all(|name| !lab.path(name).exists()));
}

#[test]
fn files_of_the_server_go_with_it() {
    let lab = Lab::new();
    lab.volume("vol");
    let more = ["--pid-file", "pid", "--metrics", "./metrics", "--sandbox", "require"];
    let server = lab.serve(&[&WORDS[..], &more, &["--vhost-user", "vhost"]].concat());
    let files = ["s", "ctl", "pid", "metrics", "vhost"];
    // The server accepts when all is there.
    Nbd::open(&lab.path("s"));
    assert!(files.iter().all(|name| lab.path(name).exists()));
    lab.write("mine", "precious");
    fs::rename(lab.path("mine"), lab.path("pid")).unwrap();
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let left: Vec<_> = files.into_iter().filter(|name| lab.path(name).exists()).collect();
    assert_eq!(left, ["pid"], "a file that has taken a name stays");
}

#[test]
fn trace_outside_of_the_permitted_folders_is_refused_with_the_remedy() {
    let lab = Lab::new();
    lab.volume("vol");
    let record =
        |file: &str| ["trace", "record", "ctl", "-o", file, "--for", "10ms"].map(String::from);
    let server = lab.serve(&WORDS);
    let error = lab.refused(&record("some.trace"), 1);
    assert!(error.contains("some.trace: the sandbox of the server"), "{error}");
    assert!(error.contains("--sandbox-allow") && error.contains("`sandbox_allow`"), "{error}");
    assert!(!lab.path("some.trace").exists());
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    fs::create_dir(lab.path("traces")).unwrap();
    lab.write(
        "config.toml",
        "socket='s'\nsandbox_allow=['traces']\n[exports.\"\"]\nvolume='vol'\nkey_file='pass'\n",
    );
    let by_option = [&WORDS[..], &["--sandbox-allow", "traces"]].concat();
    let by_key = vec!["--config", "config.toml", "--control", "ctl"];
    for (number, words) in [by_option, by_key].into_iter().enumerate() {
        let server = lab.serve(&words);
        let file = format!("traces/{number}");
        lab.ok(&record(&file));
        assert!(lab.path(&file).exists());
        lab.refused(&record("other.trace"), 1);
        assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    }
    let missing = lab.refused(&["serve", "vol", "-U", "s", "--sandbox-allow", "missing"], 1);
    assert!(missing.contains("--sandbox-allow missing: "), "{missing}");
}

#[test]
fn file_that_has_taken_the_name_of_a_volume_is_not_followed() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&WORDS);
    assert!(text(&lab.ok(&["resize", "ctl"]).stderr).contains("as before"));
    fs::copy(lab.path("vol"), lab.path("new")).unwrap();
    fs::rename(lab.path("new"), lab.path("vol")).unwrap();
    let error = lab.refused(&["resize", "ctl"], 1);
    assert!(error.contains("another file has this name now"), "{error}");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn server_by_tcp_is_connected_again_by_name_and_with_its_certificates() {
    let lab = Lab::new();
    lab.ok(&["tls", "init", "pki", "--host", "localhost", "127.0.0.1"]);
    lab.write("image", vec![0; LEN_BYTES]);
    lab.write("far.table", format!("0 {} linear image 0\n", LEN_BYTES / 512));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let far = || {
        let listen = free.to_string();
        let words = ["--table", "far.table", "--listen", &listen, "--tls-certificates", "pki"];
        lab.serve(&words)
    };
    let first = far();
    let uri = format!(
        "nbds://localhost:{}/?tls-certificates={}&unflushed=trust",
        free.port(),
        lab.path("pki").display()
    );
    lab.write("near.table", format!("0 {} linear {uri} 0\n", LEN_BYTES / 512));
    let near = lab.serve(&["--table", "near.table", "--socket", "near"]);
    let mut client = Nbd::open(&lab.path("near"));
    assert_eq!(client.write(0, &noise(4096, 1)), 0);
    first.stop(Signal::KILL);
    // A renewed certificate has another file.
    let renewed = lab.read("pki/ca-cert.pem");
    lab.write("renewed", renewed);
    fs::rename(lab.path("renewed"), lab.path("pki/ca-cert.pem")).unwrap();
    let second = far();
    assert_eq!(client.write(4096, &noise(4096, 2)), 0);
    assert!(client.read(0, 8192) == [noise(4096, 1), noise(4096, 2)].concat());
    assert_eq!(near.stop(Signal::TERM).code(), Some(0));
    assert_eq!(second.stop(Signal::TERM).code(), Some(0));
}

#[test]
fn killed_server_leaves_no_process() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&WORDS);
    let broker = Pid::from_raw(children(&server)[0]).unwrap();
    server.stop(Signal::KILL);
    // The kernel ends it when it closes the descriptors of the server.
    let deadline = Instant::now() + Duration::from_secs(60);
    while test_kill_process(broker).is_ok() && !is_zombie(broker) {
        assert!(Instant::now() < deadline, "the broker stays");
        std::thread::yield_now();
    }
}

/// Whether it has ended, and waits for the process that adopted it.
fn is_zombie(pid: Pid) -> bool {
    let facts = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    facts.is_ok_and(|facts| facts.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}
