//! Outer volumes of TrueCrypt and VeraCrypt whose hidden volume is protected.

#[path = "../../host/tests/guest/mod.rs"]
mod guest;
mod lab;
#[path = "../../crypt/tests/tcrypt_maker/mod.rs"]
mod tcrypt_maker;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use guest::Guest;
use lab::nbd::Nbd;
use lab::{Lab, noise, text};
use serde_json::Value;
use tcrypt_maker::{HIDDEN, OUTER, plaintext_of, with_hidden};

const EIO: u32 = 5;
/// Places in the outer volume.
const START: u64 = (HIDDEN.start - OUTER.start) as u64;
const END: u64 = (HIDDEN.end - OUTER.start) as u64;
/// Opens the outer volume. A wrong passphrase costs only the derivations of TrueCrypt.
const OUTER_WORDS: [&str; 7] = ["vol", "--type", "tcrypt", "-d", "outer", "--max-kdf-time", "0"];
const PROTECT: [&str; 3] = ["--protect-hidden", "--protect-hidden-key-file", "hidden"];

fn lab() -> Lab {
    let lab = Lab::new();
    lab.write("vol", with_hidden(b"outer", b"hidden"));
    lab.write("outer", "outer");
    lab.write("hidden", "hidden");
    lab
}

fn words<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

fn hidden_data(lab: &Lab) -> Vec<u8> {
    let words = ["dump", "vol", "--type", "tcrypt", "--tcrypt-hidden", "-d", "hidden"];
    lab.ok(&words).stdout
}

fn assert_hidden_volume_is_unchanged(lab: &Lab) {
    assert!(hidden_data(lab) == plaintext_of(HIDDEN.len()));
    let disk = lab.read("vol");
    let before = with_hidden(b"outer", b"hidden");
    for kept in [0..OUTER.start, HIDDEN, OUTER.end..disk.len()] {
        assert!(disk[kept.clone()] == before[kept.clone()], "{kept:?}");
    }
}

fn refused_write(lab: &Lab) -> Value {
    let reply: Value = serde_json::from_slice(&lab.ok(&["status", "--json", "c"]).stdout).unwrap();
    reply["devices"][0]["refused_write"].clone()
}

fn metrics(lab: &Lab) -> String {
    let mut stream = UnixStream::connect(lab.path("m")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn write_to_the_hidden_volume_makes_the_outer_one_read_only_for_every_client() {
    let lab = lab();
    let served = ["--socket", "s", "--control", "c", "--metrics", "./m", "--allow-discards"];
    let mut server = lab.serve(&words(&[&OUTER_WORDS, &PROTECT, &served]));
    let [mut one, mut other] = [0, 1].map(|_| Nbd::open(&lab.path("s")));
    let mut expected = plaintext_of(OUTER.len());
    let hidden = one.read(START, HIDDEN.len());
    expected[START as usize..END as usize].copy_from_slice(&hidden);
    // Up to the border from both sides, and parts of the sectors there.
    for (offset, len) in
        [(START - 8192, 8192), (END, 4096), (START - 100, 100), (END, 1), (END + 300, 1000)]
    {
        let client = if offset < START { &mut one } else { &mut other };
        let bytes = noise(len, offset);
        assert_eq!(client.write(offset, &bytes), 0, "{offset}");
        expected[offset as usize..][..len].copy_from_slice(&bytes);
    }
    assert_eq!(one.zero(512, 1024), 0);
    expected[512..1536].fill(0);
    assert_eq!(other.trim(2048, 512), 0);
    expected[2048..2560].copy_from_slice(&one.read(2048, 512));
    assert_eq!(refused_write(&lab), Value::Null);
    assert!(metrics(&lab).contains("\nblockyard_write_refused{export=\"\"} 0\n"));

    // One byte of the hidden volume.
    assert_eq!(one.write(END - 1, &[1]), EIO);
    server.wait_for("blockyard: vol: a write to sectors 223 to 223 was refused");
    for client in [&mut one, &mut other, &mut Nbd::open(&lab.path("s"))] {
        assert_eq!(client.write(0, &noise(4096, 1)), EIO);
        assert_eq!((client.write(7, b"part"), client.zero(0, 512)), (EIO, EIO));
        assert_eq!((client.trim(0, 512), client.flush()), (EIO, 0));
        assert!(client.read(0, OUTER.len()) == expected);
    }
    let told = refused_write(&lab);
    assert_eq!((&told["sector"], &told["sectors"]), (&Value::from(223), &Value::from(1)));
    let people = text(&lab.ok(&["status", "c"]).stdout);
    assert!(people.contains("  read-only:    a write to sectors 223 to 223 would"), "{people}");
    assert!(people.contains("vol: 0 288 protect /dev/mapper/vol-outer 0 96 128"), "{people}");
    let top = text(&lab.ok(&["top", "--once", "c"]).stdout);
    assert!(top.starts_with("export \"\": active, writes fail"), "{top}");
    let found = text(&lab.run(&["doctor", "--control", "c"]).stdout);
    assert!(found.contains("risky  export \"\": a write to sectors 223 to 223"), "{found}");
    assert!(!found.contains("smartctl"), "the disk is not to blame: {found}");
    assert!(metrics(&lab).contains("\nblockyard_write_refused{export=\"\"} 1\n"));
    // No suspension ends it.
    lab.ok(&["suspend", "c"]);
    lab.ok(&["resume", "c"]);
    assert_eq!(one.write(0, &[1]), EIO);
    drop((one, other));
    assert_eq!(server.stop(rustix::process::Signal::TERM).code(), Some(0));
    assert_hidden_volume_is_unchanged(&lab);

    // Closed and opened again, the outer volume has its data and is writable.
    let _server = lab.serve(&words(&[&OUTER_WORDS, &PROTECT, &["--socket", "s"]]));
    let mut client = Nbd::open(&lab.path("s"));
    assert!(client.read(0, OUTER.len()) == expected);
    assert_eq!(client.write(0, &noise(512, 1)), 0);
}

#[test]
fn every_kind_of_change_is_refused_at_the_first_sector_of_the_hidden_volume() {
    type Change = fn(&mut Nbd) -> u32;
    let changes: [Change; 5] = [
        |client| client.write(START, &noise(512, 1)),
        |client| client.write(START - 1, &[1, 2]),
        |client| client.write(0, &noise(OUTER.len(), 1)),
        |client| client.zero(START - 512, 1024),
        |client| client.trim(START, 512),
    ];
    for change in changes {
        let lab = lab();
        let served = ["--socket", "s", "--allow-discards"];
        let server = lab.serve(&words(&[&OUTER_WORDS, &PROTECT, &served]));
        let mut client = Nbd::open(&lab.path("s"));
        assert_eq!(change(&mut client), EIO);
        assert_eq!((client.write(0, &[1]), client.flush()), (EIO, 0));
        drop(client);
        assert_eq!(server.stop(rustix::process::Signal::TERM).code(), Some(0));
        assert_hidden_volume_is_unchanged(&lab);
    }
}

#[test]
fn virtual_machine_cannot_write_to_the_hidden_volume() {
    let lab = lab();
    let served = ["--vhost-user", "v", "--socket", "s"];
    let server = lab.serve(&words(&[&OUTER_WORDS, &PROTECT, &served]));
    let mut guest = Guest::connect(&lab.path("v"), 2, guest::F_FLUSH);
    let bytes = noise(4096, 1);
    let sector = START / 512;
    assert_eq!(guest.write_data(sector - 8, &bytes), 0);
    assert_eq!(guest.write_data(sector - 7, &bytes), 1);
    assert_eq!((guest.write_data(0, &bytes), guest.run(1, guest::FLUSH, 0, 0)), (1, 0));
    assert_eq!(guest.read_data(sector - 8, 4096), bytes);
    assert_eq!(Nbd::open(&lab.path("s")).write(0, &bytes), EIO);
    drop((guest, server));
    assert_hidden_volume_is_unchanged(&lab);
}

#[test]
fn load_stops_before_the_hidden_volume() {
    let lab = lab();
    lab.write("short", noise(START as usize, 1));
    let short = ["load", "-i", "short", "--allow-short"];
    lab.ok(&words(&[&short, &OUTER_WORDS, &PROTECT]));
    let dump = lab.ok(&words(&[&["dump"], &OUTER_WORDS])).stdout;
    assert!(dump[..START as usize] == lab.read("short"));
    let piped = words(&[&["load"], &OUTER_WORDS, &PROTECT]);
    let output = lab.fed(&piped, &noise(OUTER.len(), 2));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("was refused, because it would change protected sectors"), "{said}");
    // The length of a file is known before.
    let before = lab.read("vol");
    lab.write("long", noise(START as usize + 1, 3));
    let load = words(&[&["load"], &OUTER_WORDS, &PROTECT, &["-i", "long", "--allow-short"]]);
    let said = lab.refused(&load, 1);
    assert!(said.contains(&format!("the hidden volume starts at byte {START}")), "{said}");
    let load = words(&[&["load"], &OUTER_WORDS, &["--protect-hidden", "--allow-short"]]);
    let said = lab::one_error(&lab.fed(&load, b"data"), 1);
    assert!(said.contains("use --protect-hidden-key-file FILE"), "{said}");
    assert!(lab.read("vol") == before);
    assert_hidden_volume_is_unchanged(&lab);
}

#[test]
fn table_with_the_protection_is_opened_again() {
    let lab = lab();
    let keyed = text(&lab.ok(&words(&[&["table", "--show-keys"], &OUTER_WORDS])).stdout);
    lab.write("t", format!("o: {keyed}p: 0 288 protect /dev/mapper/o 0 96 128\n"));
    let _server = lab.serve(&["--table", "t", "--socket", "s"]);
    let mut client = Nbd::open(&lab.path("s"));
    assert_eq!((client.write(0, &[1]), client.write(START, &[1])), (0, EIO));
    assert_eq!(client.write(0, &[1]), EIO);
}

#[test]
fn configuration_protects_too_and_ignores_no_key() {
    let lab = lab();
    let export = "socket = 's'\n[exports.a]\nvolume = 'vol'\ntype = 'tcrypt'\nkey_file = 'outer'\n\
                  protect_hidden_key_file = 'hidden'\n";
    lab.write("c.toml", format!("{export}protect_hidden = true\n"));
    let server = lab.serve(&["--config", "c.toml"]);
    assert_eq!(Nbd::open(&lab.path("s")).write(START, &[1]), EIO);
    drop(server);
    assert_hidden_volume_is_unchanged(&lab);
    lab.write("c.toml", export);
    let said = lab.refused(&["serve", "--config", "c.toml"], 1);
    assert!(said.contains("needs --protect-hidden"), "{said}");
    let read_only = format!("{export}protect_hidden = true\nread_only = true\n");
    lab.write("c.toml", read_only);
    let said = lab.refused(&["serve", "--config", "c.toml"], 1);
    assert!(said.contains("--protect-hidden is for a volume that is written"), "{said}");
    lab.write("t", "0 8 zero\n");
    lab.write("c.toml", "socket = 's'\n[exports.a]\ntable = 't'\nprotect_hidden = true\n");
    let said = lab.refused(&["serve", "--config", "c.toml"], 1);
    assert!(said.contains("--protect-hidden") && said.contains("table"), "{said}");
}

#[test]
fn protection_without_a_meaning_or_with_a_wrong_passphrase_serves_nothing() {
    let lab = lab();
    lab.volume("luks");
    let serve = ["serve", "--socket", "s"];
    let outer = words(&[&serve, &OUTER_WORDS, &PROTECT]);
    for (more, problem) in [
        (&["--read-only"][..], "--protect-hidden is for a volume that is written"),
        (&["--tcrypt-hidden"], "cannot be used with"),
        (&["--tcrypt-system"], "cannot be used with"),
    ] {
        let said = lab.run(&words(&[&outer, more]));
        assert!(text(&said.stderr).contains(problem), "{said:?}");
        assert!(!said.status.success());
    }
    let said = lab.refused(&words(&[&serve, &["luks", "-d", "pass"], &PROTECT]), 1);
    assert!(said.contains("--protect-hidden is for --type tcrypt"), "{said}");
    let said = lab.refused(&words(&[&["dump"], &OUTER_WORDS, &PROTECT]), 1);
    assert!(said.contains("a command that only reads"), "{said}");
    let wrong = ["--protect-hidden", "--protect-hidden-key-file", "outer"];
    let said = lab.refused(&words(&[&serve, &OUTER_WORDS, &wrong]), 2);
    assert!(
        said.contains("no hidden volume opens") && said.contains("cannot be protected"),
        "{said}"
    );
    for more in
        [["--protect-hidden-veracrypt-pim", "2"], ["--protect-hidden-tcrypt-keyfile", "vol"]]
    {
        let said = lab.refused(&words(&[&outer, &more]), 2);
        assert!(said.contains("no hidden volume opens"), "{said}");
    }
    assert!(!lab::is_socket(&lab.path("s")));
    // The first line is the outer volume's passphrase, the second one that of the hidden volume.
    let piped = ["load", "vol", "--type", "tcrypt", "--protect-hidden", "-i", "hidden"];
    let piped = words(&[&piped, &["--allow-short", "--max-kdf-time", "0"]]);
    assert!(lab.fed(&piped, b"outer\nhidden\n").status.success());
    let said = lab::one_error(&lab.fed(&piped, b"outer\nother\n"), 2);
    assert!(said.contains("no hidden volume opens"), "{said}");
}
