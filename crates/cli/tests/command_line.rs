//! The command line: help, completions, man pages, and errors.

mod lab;

use lab::{Lab, text};

const COMMANDS: [&str; 19] = [
    "serve",
    "format",
    "info",
    "dump",
    "load",
    "table",
    "repair",
    "key",
    "header",
    "erase",
    "resize",
    "status",
    "suspend",
    "resume",
    "message",
    "elevators",
    "lab",
    "completions",
    "man",
];

#[test]
fn help_of_every_command_is_there_and_names_its_options() {
    let lab = Lab::new();
    let main = text(&lab.ok(&["--help"]).stdout);
    for command in COMMANDS {
        assert!(main.contains(&format!("  {command} ")), "{command} is missing in {main}");
        for help in ["--help", "-?"] {
            let output = lab.ok(&[command, help]);
            assert!(text(&output.stdout).contains(&format!("blockyard {command}")));
            assert!(output.stderr.is_empty());
        }
    }
    assert_eq!(lab.ok(&["-h"]).stdout, lab.ok(&["-?"]).stdout);
    let serve = text(&lab.ok(&["serve", "--help"]).stdout);
    for option in [
        "--socket",
        "--listen",
        "--control",
        "--export-name",
        "-r, --read-only",
        "-d, --key-file",
        "--keyfile-offset",
        "-l, --keyfile-size",
        "--key-fd",
        "--key-command",
        "--key-credential",
        "--header",
        "-S, --key-slot",
        "--allow-discards",
        "--threads",
        "-M, --type",
        "-c, --cipher",
        "-s, --key-size",
        "-h, --hash",
        "-o, --offset",
        "-p, --skip",
        "-b, --size",
        "--sector-size",
        "--iv-large-sectors",
        "--table",
        "--config",
        "Scheduling:",
        "--elevator",
        "--queue-depth",
        "--max-sectors",
        "--ioprio",
        "--alias",
    ] {
        assert!(serve.contains(option), "{option} is missing");
    }
}

#[test]
fn version_has_the_commit_and_the_long_one_every_feature() {
    let lab = Lab::new();
    let short = text(&lab.ok(&["-V"]).stdout);
    let rest = short.strip_prefix(concat!("blockyard ", env!("CARGO_PKG_VERSION"), " ("));
    let commit = rest.and_then(|rest| rest.strip_suffix(")\n")).unwrap();
    assert_eq!(commit, env!("BLOCKYARD_COMMIT"));
    let long = text(&lab.ok(&["--version"]).stdout);
    let (first, features) = long.split_once('\n').unwrap();
    assert_eq!(first, short.trim_end());
    let mut names = Vec::new();
    for line in features.lines() {
        let (name, meaning) = line.trim().split_once(' ').expect("a feature has its meaning");
        assert!(!meaning.trim().is_empty(), "{line}");
        names.push(name);
    }
    for name in ["io_uring", "nbd", "rbd", "ublk", "vhost-user"] {
        assert!(names.contains(&name), "{long}");
    }
}

#[test]
fn generated_completions_know_the_commands() {
    let lab = Lab::new();
    for shell in ["elvish", "powershell"] {
        let script = text(&lab.ok(&["completions", shell]).stdout);
        for command in COMMANDS {
            assert!(script.contains(command), "{shell}: {command} is missing");
        }
        assert!(script.contains("allow-discards"), "{shell}: an option is missing");
    }
    assert_eq!(lab.run(&["completions", "csh"]).status.code(), Some(1));
}

#[test]
fn man_pages_are_written_for_every_command() {
    let lab = Lab::new();
    lab.ok(&["man", "pages/man1"]);
    for command in COMMANDS {
        let page = text(&lab.read(&format!("pages/man1/blockyard-{command}.1")));
        assert!(page.contains(".TH"), "{command}: {page}");
    }
    let main = text(&lab.ok(&["man"]).stdout);
    assert_eq!(main, text(&lab.read("pages/man1/blockyard.1")));
    assert!(main.contains("no keyslot opens with this passphrase"), "the exit codes are missing");
    let serve = text(&lab.ok(&["man", "serve"]).stdout);
    assert_eq!(serve, text(&lab.read("pages/man1/blockyard-serve.1")));
    assert!(serve.contains("max\\-connections"), "{serve}");
    let below = text(&lab.ok(&["man", "trace", "record"]).stdout);
    assert_eq!(below, text(&lab.read("pages/man1/blockyard-trace-record.1")));
    for mistyped in [&["serv"][..], &["trace-record"], &["trace", "recor"], &["serve", "pages"]] {
        assert!(lab.refused(&[&["man"], mistyped].concat(), 1).contains("is no command"));
    }
    for folder in ["serve", "serv", "trace-record"] {
        assert!(!lab.path(folder).exists(), "the folder {folder} was made");
    }
    lab.ok(&["man", "pages"]);
    assert!(lab.path("pages/blockyard-serve.1").exists());
    lab.write("file", "");
    assert!(lab.refused(&["man", "file/below"], 1).contains("file/below"));
}

#[test]
fn mistakes_on_the_command_line_exit_with_1_and_one_error() {
    let lab = Lab::new();
    lab.write("vol", "");
    for (words, named) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["serve", "vol", "--socket"], "--socket"),
        (&["serve", "vol", "--sokcet", "x"], "--sokcet"),
        (&["serve", "vol"], "--socket PATH"),
        (&["serve", "--socket", "s"], "--table FILE"),
        (&["serve", "vol", "--config", "c", "--socket", "s"], "--config"),
        (&["serve", "--config", "c", "--key-file", "k"], "--config"),
        (&["serve", "vol", "--socket", "no/folder/s"], "no/folder"),
        (&["serve", "vol", "--listen", "127.0.0.1:port"], "HOST:PORT"),
        (&["serve", "vol", "--socket", "s", "--export-name", &"n".repeat(4097)], "4096"),
        (&["dump", "vol", "--table", "t"], "--table"),
        (&["dump", "--table", "t", "--key-file", "k"], "--table"),
        (&["dump", "vol", "--key-file", "k", "--key-fd", "3"], "--key-fd"),
        (&["dump", "vol", "--key-file", "k", "--key-command", "c"], "--key-command"),
        (&["dump", "vol", "--key-command", "c", "--keyfile-size", "4"], "--keyfile-size"),
        (&["dump", "vol", "--key-credential", "c", "--key-fd", "4"], "--key-credential"),
        (&["dump", "vol", "--keyfile-size", "4X"], "4X"),
        (&["dump", "vol", "--skip", "3"], "--skip is for --type plain"),
        (&["dump", "vol", "--type", "plain"], "--cipher"),
        (&["dump", "vol", "--type", "plain", "--header", "h"], "--header"),
        (&["dump", "vol", "--type", "luks9"], "luks9"),
        (&["format", "new"], "--size"),
        (&["format", "new", "--size", "1M", "--hash", "md0"], "--hash"),
        (&["format", "new", "--size", "1M", "--pbkdf", "pbkdf2", "--pbkdf-memory", "9"], "argon2"),
        (&["format", "new", "--size", "1M", "--cipher", "rot13-xts-plain64"], "rot13"),
        (&["serve", "vol", "--elevator", "lift"], "mq-deadline"),
        (&["serve", "vol", "--elevator", "none,read_expire=1"], "none: \"read_expire\""),
        (&["serve", "vol", "--elevator", "deadline,fifo=1"], "fifo_batch="),
        (&["serve", "vol", "--elevator", "deadline,fifo_batch=-1"], "fifo_batch="),
        (&["serve", "vol", "--elevator", "deadline,fifo_batch"], "tunable=value"),
        (&["serve", "vol", "--queue-depth", "0"], "1 to 1024"),
        (&["serve", "vol", "--queue-depth", "1025"], "1 to 1024"),
        (&["serve", "vol", "--max-sectors", "2561"], "multiple of 8"),
        (&["serve", "vol", "--ioprio", "rt:8"], "rt:0 to rt:7"),
        (&["serve", "vol", "--alias", "other"], "NAME=CLASS"),
        (&["serve", "vol", "--alias", "other=urgent"], "be:0 to be:7"),
        (&["serve", "vol", "--alias", "=idle"], "empty"),
        (&["serve", "vol", "--alias", "a=idle", "--alias", "a=rt:0", "--socket", "s"], "\"a\""),
        (&["serve", "vol", "--alias", "a=idle", "--export-name", "a", "--socket", "s"], "\"a\""),
        (&["serve", "--config", "c", "--elevator", "none"], "--config"),
        (&["serve", "--config", "c", "--alias", "a=idle"], "--config"),
        (&["elevators", "lift"], "mq-deadline"),
        (&["info"], "VOLUME|URI"),
        (&["info", "nbd:localhost:1"], "nbd://HOST:PORT"),
        (&["info", "nbds://localhost/?tls-psk-file=x"], "blockyard tls init"),
    ] {
        let output = lab.run(words);
        let said = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 4)), "{words:?}: {said}");
        assert_eq!(said.matches("error: ").count(), 1, "{words:?}: {said}");
        assert!(said.contains(named), "{words:?} does not name {named}: {said}");
        assert!(output.stdout.is_empty(), "{words:?}");
        assert!(!lab.path("new").exists(), "{words:?} left a file");
    }
}

const ELEVATORS: [&str; 9] =
    ["none", "noop", "deadline", "deadline-prio", "cfq", "mq-deadline", "kyber", "bfq", "adios"];

#[test]
fn elevators_are_listed_with_every_tunable_on_narrow_lines() {
    let lab = Lab::new();
    let json = lab.ok(&["elevators", "--json"]).stdout;
    let all: Vec<serde_json::Value> = serde_json::from_slice(&json).unwrap();
    let listing = text(&lab.ok(&["elevators"]).stdout);
    assert!(listing.lines().all(|line| line.chars().count() <= 100), "{listing}");
    assert!(!listing.ends_with("\n\n") && !listing.contains("\n\n\n"), "{listing}");
    for name in ELEVATORS {
        let elevator = all.iter().find(|elevator| elevator["name"] == name).unwrap();
        assert!(listing.lines().any(|line| line.starts_with(&format!("{name} "))), "{listing}");
        let alone = text(&lab.ok(&["elevators", name]).stdout);
        let one = lab.ok(&["elevators", "--json", name]).stdout;
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&one).unwrap()[0], *elevator);
        for tunable in elevator["tunables"].as_array().unwrap() {
            let name = tunable["name"].as_str().unwrap();
            let default = &tunable["default"];
            let least = &tunable["min"];
            let most = &tunable["max"];
            for listing in [&listing, &alone] {
                let mut lines = listing.lines();
                let told = lines.any(|line| {
                    let words: Vec<_> = line.split_whitespace().collect();
                    words.starts_with(&[name, &default.to_string()])
                        && words.contains(&format!("{least}..{most}").as_str())
                });
                assert!(told, "{name} is missing in {listing}");
            }
        }
    }
    assert_eq!(all.len(), ELEVATORS.len(), "a new one belongs into the list");
}

#[test]
fn hash_has_the_short_form_h_as_in_cryptsetup() {
    let lab = Lab::new();
    lab.write("vol", vec![0; 8192]);
    let words = ["dump", "vol", "--type", "plain", "-c", "aes-xts-plain64", "-s", "512", "-h"];
    let mut words = words.to_vec();
    words.push("sha512");
    let output = lab.fed(&words, b"secret\n");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(output.stdout.len(), 8192);
}
