//! Commands at a terminal: a pseudo-terminal whose other end is the test.

mod lab;
#[path = "../../crypt/tests/tcrypt_maker/mod.rs"]
mod tcrypt_maker;

use lab::screen::Session;
use lab::{Lab, PASSPHRASE, SMALL, noise};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn passphrase_is_asked_for_and_not_shown() {
    let lab = Lab::new();
    lab.volume("vol");
    let mut session = Session::start(&lab, &["dump", "vol", "-o", "out"]);
    session.expect("Enter passphrase for vol: ");
    session.type_in(&format!("{PASSPHRASE}x\x7f\n"));
    let (status, screen) = session.end();
    assert!(status.success(), "{screen}");
    assert!(!screen.contains(PASSPHRASE), "{screen}");
    assert!(lab.path("out").exists());
}

#[test]
fn wrong_passphrase_can_be_tried_three_times() {
    let lab = Lab::new();
    lab.volume("vol");
    let mut session = Session::start(&lab, &["dump", "vol", "-o", "out"]);
    session.expect("Enter passphrase for vol: ");
    session.type_in("wrong\n");
    session.expect("try again");
    session.type_in("wrong\n");
    session.expect("try again");
    session.type_in(&format!("{PASSPHRASE}\n"));
    assert!(session.end().0.success());
    let mut session = Session::start(&lab, &["dump", "vol", "-o", "never"]);
    for _ in 0..3 {
        session.expect("Enter passphrase");
        session.type_in("wrong\n");
    }
    let (status, screen) = session.end();
    assert_eq!(status.code(), Some(2), "{screen}");
    assert_eq!(screen.matches("error: ").count(), 1, "{screen}");
    assert!(!lab.path("never").exists());
}

#[test]
fn passphrase_of_a_hidden_volume_to_protect_is_asked_for_and_can_be_tried_again() {
    let lab = Lab::new();
    lab.write("vol", tcrypt_maker::with_hidden(b"outer", b"hidden"));
    lab.write("in", "new");
    let words = ["load", "vol", "-i", "in", "--allow-short", "--type", "tcrypt"];
    let words = [&words[..], &["--protect-hidden", "--max-kdf-time", "0"]].concat();
    let mut session = Session::start(&lab, &words);
    session.expect("Enter passphrase for vol: ");
    session.type_in("outer\n");
    for passphrase in ["wrong", "outer", "hidden"] {
        session.expect("Enter passphrase for the hidden volume in vol: ");
        session.type_in(&format!("{passphrase}\n"));
    }
    let (status, screen) = session.end();
    assert!(status.success(), "{screen}");
    assert_eq!(screen.matches("cannot be protected; try again").count(), 2, "{screen}");
}

#[test]
fn ctrl_c_at_the_prompt_ends_it_and_restores_the_terminal() {
    let lab = Lab::new();
    lab.volume("vol");
    let mut session = Session::start(&lab, &["dump", "vol", "-o", "never"]);
    session.expect("Enter passphrase");
    session.type_in("half a pass\x03");
    let (status, screen) = session.end();
    assert_eq!(status.code(), Some(1), "{screen}");
    assert!(!screen.contains("half a pass"), "{screen}");
}

#[test]
fn new_passphrase_is_asked_for_twice() {
    let lab = Lab::new();
    let mut words = vec!["format", "vol", "--size", "2M"];
    words.extend(SMALL);
    let mut session = Session::start(&lab, &words);
    session.expect("Enter passphrase for vol: ");
    session.type_in("one\n");
    session.expect("Verify passphrase: ");
    session.type_in("two\n");
    let (status, screen) = session.end();
    assert_eq!(status.code(), Some(2), "{screen}");
    assert!(screen.contains("passphrases differ"), "{screen}");
    assert!(!lab.path("vol").exists());
    let mut session = Session::start(&lab, &words);
    session.expect("Enter passphrase for vol: ");
    session.type_in("one\none\n");
    assert!(session.end().0.success());
    assert!(lab.fed(&["dump", "vol", "-o", "out"], b"one\n").status.success());
}

#[test]
fn overwriting_needs_yes_in_capitals() {
    let lab = Lab::new();
    lab.volume("vol");
    let before = lab.read("vol");
    let mut words = vec!["format", "vol", "-d", "pass"];
    words.extend(SMALL);
    for answer in ["\n", "yes\n", "YES!\n"] {
        let mut session = Session::start(&lab, &words);
        session.expect("Are you sure?");
        session.type_in(answer);
        let (status, screen) = session.end();
        assert_eq!(status.code(), Some(1), "{screen}");
        assert!(screen.contains("WARNING: vol holds a LUKS2 volume"), "{screen}");
        assert!(lab.read("vol") == before, "changed after {answer:?}");
    }
    let mut session = Session::start(&lab, &words);
    session.expect("Are you sure?");
    session.type_in("YES\n");
    assert!(session.end().0.success());
    assert!(lab.read("vol") != before);
}

#[test]
fn header_is_not_locked_while_a_person_thinks_and_not_replaced_if_it_changed_meanwhile() {
    let lab = Lab::new();
    lab.volume("vol");
    let backup = ["header", "backup", "vol", "-o", "backup", "--force"];
    lab.ok(&backup);
    let format = [&["format", "vol", "-d", "pass"][..], &SMALL].concat();
    for words in [
        &format[..],
        &["header", "wipe", "vol"],
        &["header", "convert", "vol", "--type", "luks1"],
        &["header", "restore", "vol", "-i", "backup"],
        &["erase", "vol"],
        &["resize", "vol", "--size", "8"],
    ] {
        let mut session = Session::start(&lab, words);
        session.expect("Are you sure?");
        lab.ok(&["header", "label", "vol", "--label", &words[..2].join(" ")]);
        session.type_in("YES\n");
        let (status, screen) = session.end();
        assert!(!status.success(), "{screen}");
        assert!(
            ["changed by another program", "another program has written"]
                .iter()
                .any(|words| screen.contains(words)),
            "{screen}"
        );
        lab.ok(&["header", "check", "vol"]);
    }
    lab.ok(&backup);
    let mut session = Session::start(&lab, &["header", "wipe", "vol"]);
    session.expect("Are you sure?");
    session.type_in("YES\n");
    assert!(session.end().0.success());
    lab.refused(&["header", "check", "vol"], 4);
}

#[test]
fn bytes_are_not_dumped_onto_a_terminal() {
    let lab = Lab::new();
    lab.volume("vol");
    let session = Session::start(&lab, &["load", "vol", "-d", "pass"]);
    let (status, screen) = session.end();
    assert_eq!(status.code(), Some(1), "{screen}");
    assert!(screen.contains("standard input is a terminal"), "{screen}");
}

/// A server of this number of raw images.
fn many_exports(lab: &Lab, count: usize) -> lab::Server {
    lab.write("key", noise(64, 1));
    let export = |number: usize| {
        lab.write(&format!("v{number:02}"), vec![0; 1 << 20]);
        format!(
            "[exports.disk{number:02}]\nvolume = 'v{number:02}'\ntype = 'plain'\n\
             cipher = 'aes-xts-plain64'\nkey_size = 512\nkey_file = 'key'\n"
        )
    };
    let exports: String = (0..count).map(export).collect();
    lab.write("c.toml", format!("socket = 's'\ncontrol = 'c'\n{exports}"));
    lab::Server::start(lab.blockyard(&["serve", "--config", "c.toml"]))
}

const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

#[test]
fn top_of_thirty_exports_scrolls_sorts_and_leaves_the_terminal_as_it_was() {
    let lab = Lab::new();
    let server = many_exports(&lab, 30);
    let mut top = Session::full(&lab, &["top", "c"]);
    top.expect("30 exports, ");
    top.expect("sort: ");
    let last = top.screen.rsplit("\x1b[H").next().unwrap().to_owned();
    assert!(last.contains("disk20") && !last.contains("disk21"), "{last}");
    assert_eq!(last.matches("\r\n").count(), 23, "{last}");
    top.type_in("\x1b[F");
    top.expect("> disk29");
    top.type_in("kk");
    top.expect("> disk27");
    top.type_in("w");
    top.expect("by write");
    top.type_in("n\x1b[H\r");
    top.expect("export \"disk00\"");
    top.type_in("\x1b");
    top.expect("> disk00");
    // A smaller terminal has fewer rows, at once.
    top.resize(40, 6);
    top.expect("> disk00");
    let last = top.screen.rsplit("\x1b[H").next().unwrap().to_owned();
    assert!(last.matches("\r\n").count() <= 5 && !last.contains("disk03"), "{last}");
    top.type_in("q");
    let (status, screen) = top.end();
    assert!(status.success() && screen.contains(LEAVE), "{screen}");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = Session::full(&lab, &["top", "c"]);
        top.expect("\x1b[?1049h");
        kill_process(Pid::from_child(&top.child), signal).unwrap();
        let (status, screen) = top.end();
        assert!(status.success() && screen.contains(LEAVE), "{screen}");
    }
    // An error is shown behind the screen.
    let mut top = Session::full(&lab, &["top", "c"]);
    top.expect("30 exports, ");
    assert_eq!(server.stop(Signal::TERM).code(), Some(0));
    let (status, screen) = top.end();
    assert!(!status.success());
    let behind = screen.rsplit(LEAVE).next().unwrap();
    assert!(behind.contains("error: c: "), "{screen}");
}
