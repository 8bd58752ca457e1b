//! Tab in real shells: bash, zsh and fish, with the scripts of `blockyard completions`.
//!
//! In each shell a function stands for the command and prints its words, so that their quotes are
//! tested too. The scripts themselves start the program.

mod lab;

use std::path::Path;
use std::process::Command;

use lab::home::has;
use lab::screen::Session;
use lab::{Lab, Server, text};

/// Typed words before Tab, and the words of the command then. The file `my disk.img` exists, and a
/// server with the exports "anna's" and "build" has the control socket `c`.
const TYPED: &[(&str, &str)] = &[
    ("ke", "<key>"),
    ("key l", "<key><list>"),
    ("serve vol --sock-is-no-option", "<serve><vol><--sock-is-no-option>"),
    ("serve vol --read-o", "<serve><vol><--read-only>"),
    ("serve vol --elevator ky", "<serve><vol><--elevator><kyber>"),
    ("serve vol --elevator=ky", "<serve><vol><--elevator=kyber>"),
    ("serve vol --pipeline adap", "<serve><vol><--pipeline><adaptive>"),
    ("dump vol -c aes-cbc-e", "<dump><vol><-c><aes-cbc-essiv:sha256>"),
    ("dump vol -c aes-cbc-essiv:s", "<dump><vol><-c><aes-cbc-essiv:sha256>"),
    ("dump vol --hash whirl", "<dump><vol><--hash><whirlpool>"),
    ("tune vol --workload dat", "<tune><vol><--workload><database>"),
    ("lab run deadl", "<lab><run><deadline-2009>"),
    ("lab run deadline-2009 --variant hdd-c", "<lab><run><deadline-2009><--variant><hdd-cfq>"),
    ("lab run x --set queue.elevator=ky", "<lab><run><x><--set><queue.elevator=kyber>"),
    ("info my", "<info><my disk.img>"),
    ("lab show my", "<lab><show><my disk.img>"),
    ("serve --config=my", "<serve><--config=my disk.img>"),
    ("status c --export ann", "<status><c><--export><anna's>"),
    ("message c --export build ke", "<message><c><--export><build><key>"),
];

/// The files and the server.
fn surroundings() -> (Lab, Server) {
    let lab = Lab::new();
    lab.volume("anna.img");
    lab.volume("build.img");
    lab.write("my disk.img", "");
    lab.write(
        "config",
        "socket = \"s\"\ncontrol = \"c\"\n[exports.\"anna's\"]\nvolume = \"anna.img\"\nkey_file = \
         \"pass\"\n[exports.build]\nvolume = \"build.img\"\nkey_file = \"pass\"\n",
    );
    let server = lab.serve(&["--config", "config"]);
    (lab, server)
}

/// The shell, in which the command is in PATH.
fn shell(lab: &Lab, words: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_blockyard"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    let mut shell = Command::new(words[0]);
    shell.args(&words[1..]).current_dir(lab.path("")).env("PATH", path);
    shell.env("TERM", "dumb").env("INPUTRC", "/dev/null").env("HOME", lab.path(""));
    shell.env_remove("ENV").env_remove("BASH_ENV").env_remove("ZDOTDIR");
    shell
}

/// Types all lines with a Tab at the end of each.
fn typed_in(shell: Command, setup: &str) {
    let mut session = Session::of(shell, true);
    session.type_in(&format!("{setup}; echo rea''dy\n"));
    session.expect("ready");
    for (typed, wanted) in TYPED {
        session.type_in(&format!("blockyard {typed}\t\n"));
        session.expect(">.");
        let seen = &session.screen;
        let said = seen.rsplit("\n<").next().unwrap_or_default();
        let said = format!("<{}>", said.split_once(">.").map_or(said, |(words, _)| words));
        assert_eq!(said, *wanted, "blockyard {typed}: {seen}");
    }
    session.type_in("exit\n");
}

#[test]
fn bash_completes_words_and_files() {
    let (lab, _server) = surroundings();
    typed_in(
        shell(&lab, &["bash", "--norc", "--noprofile", "-i"]),
        "source <(blockyard completions bash); blockyard() { printf '<%s>' \"$@\"; echo .; }",
    );
}

#[test]
fn zsh_completes_words_and_files() {
    if !has("zsh") {
        return;
    }
    let (lab, _server) = surroundings();
    typed_in(
        shell(&lab, &["zsh", "-f", "-i"]),
        "autoload -U compinit; compinit -u -D; source <(blockyard completions zsh); unsetopt \
         zle_bracketed_paste; blockyard() { printf '<%s>' \"$@\"; echo .; }",
    );
}

#[test]
fn fish_completes_words_and_files() {
    if !has("fish") {
        return;
    }
    let (lab, _server) = surroundings();
    for (typed, wanted) in TYPED {
        let script =
            format!("blockyard completions fish | source; complete -C \"blockyard {typed}\"");
        let output = shell(&lab, &["fish", "--no-config", "-c", &script]).output().unwrap();
        let said = text(&output.stdout);
        let words: Vec<_> = said.lines().map(|line| line.split('\t').next().unwrap()).collect();
        let last = wanted.rsplit('<').next().unwrap().trim_end_matches('>');
        let nothing = last == typed.rsplit(' ').next().unwrap();
        let is_right = if nothing { words.is_empty() } else { words == [last] };
        assert!(is_right, "blockyard {typed}: {said}{}", text(&output.stderr));
    }
}

#[test]
fn server_that_does_not_answer_and_odd_words_complete_to_nothing() {
    let lab = Lab::new();
    for words in [
        &["complete", "--", "status", "no-socket", "--export", ""][..],
        &["complete", "--", "lab", "run", "no-such", "--variant", ""],
        &["complete", "--", "no-command", "--", "-"],
        &["complete", "--", "serve", "--socket", "--", "-x", "--ublk", "--=", "-"],
        &["complete", "--", "serve", "--no-such="],
        &["complete", "--"],
        &["complete"],
    ] {
        let output = lab.ok(words);
        assert!(output.stderr.is_empty(), "{words:?}: {}", text(&output.stderr));
        let said = text(&output.stdout);
        assert!(["none", "files"].contains(&said.lines().next().unwrap()), "{words:?}: {said}");
    }
}
