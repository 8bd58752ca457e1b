//! Tokens: changed by commands, and used to open a volume, with a program in the place of clevis.

mod lab;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use lab::nbd::Nbd;
use lab::{Lab, PASSPHRASE, Server, one_error, text};
use rustix::process::Signal;

/// A token of clevis with the pin `fake`.
const TOKEN: &str = concat!(
    r#"{"type":"clevis","keyslots":["0"],"jwe":{"ciphertext":"YWI","encrypted_key":"","#,
    r#""iv":"YWI","protected":"eyJjbGV2aXMiOnsicGluIjoiZmFrZSJ9fQ","tag":"YWI"}}"#
);
/// The compact form of [`known_token`].
const COMPACT: &str = "eyJjbGV2aXMiOnsicGluIjoidHBtMiIsInRwbTIiOnt9fX0..YWI.YWI.YWI";

/// The protected header {"clevis":{"pin":"tpm2","tpm2":{}}}, in base64url.
const KNOWN: &str = "eyJjbGV2aXMiOnsicGluIjoidHBtMiIsInRwbTIiOnt9fX0";
/// The protected header of [`TOKEN`].
const FAKE: &str = "eyJjbGV2aXMiOnsicGluIjoiZmFrZSJ9fQ";

/// A token of clevis with a pin that is tried by itself.
fn known_token() -> String {
    TOKEN.replace(FAKE, KNOWN)
}

fn list(lab: &Lab) -> String {
    text(&lab.ok(&["token", "list", "vol"]).stdout)
}

fn import(lab: &Lab, json: &str, more: &[&str]) {
    let words = [&["token", "import", "vol"], more].concat();
    let imported = lab.fed(&words, json.as_bytes());
    assert!(imported.status.success(), "{}", text(&imported.stderr));
}

/// `dump` with a script in the place of clevis. Its standard input is the line `typed`.
fn dump(lab: &Lab, script: &str, more: &[&str], typed: &str) -> Output {
    let words = [&["dump", "vol", "--force", "-o", "out"], more].concat();
    with_clevis(lab, script, &words, typed)
}

/// A command with a script in the place of clevis.
fn with_clevis(lab: &Lab, script: &str, words: &[&str], typed: &str) -> Output {
    let mut command = clevis_command(lab, script, words);
    lab.write("typed", typed);
    command.stdin(fs::File::open(lab.path("typed")).unwrap());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

fn clevis_command(lab: &Lab, script: &str, words: &[&str]) -> Command {
    let programs = lab.path("programs");
    fs::create_dir_all(&programs).unwrap();
    let clevis = lab.write("programs/clevis", format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(clevis, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = lab.blockyard(words);
    command.env("PATH", format!("{}:{path}", programs.display()));
    command.env("PASSPHRASE_FILE", lab.path("pass"));
    command
}

#[test]
fn token_is_imported_listed_exported_and_removed() {
    let lab = Lab::new();
    lab.volume("vol");
    import(&lab, TOKEN, &[]);
    let acme = r#"{ "type": "acme", "keyslots": [], "b": 1.5, "a": "/" }"#;
    import(&lab, acme, &["--token-id", "7"]);
    assert_eq!(list(&lab), "0: clevis, keyslots 0\n7: acme, no keyslot\n");
    let exported = lab.ok(&["token", "export", "vol", "--token-id", "7"]).stdout;
    assert_eq!(text(&exported), r#"{"type":"acme","keyslots":[],"b":1.5,"a":"/"}"#);
    lab.ok(&["token", "export", "vol", "--token-id", "0", "--json-file", "json"]);
    assert_eq!(lab.read("json"), TOKEN.as_bytes());
    let json: serde_json::Value =
        serde_json::from_slice(&lab.ok(&["token", "list", "vol", "--json"]).stdout).unwrap();
    assert_eq!(json["7"]["b"], 1.5);
    // The keyslot is added to those of the JSON, once.
    let replace = ["--token-id", "7", "--token-replace", "--key-slot", "0"];
    import(&lab, r#"{"type":"acme","keyslots":["0"]}"#, &replace);
    import(&lab, r#"{"type":"acme","keyslots":[]}"#, &["--key-slot", "0"]);
    lab.ok(&["token", "remove", "vol", "--token-id", "0"]);
    assert_eq!(list(&lab), "1: acme, keyslots 0\n7: acme, keyslots 0\n");
    assert!(lab.refused(&["token", "remove", "vol", "--token-id", "0"], 1).contains("no token 0"));
    assert!(lab.refused(&["token", "export", "vol", "--token-id", "0"], 1).contains("no token 0"));
}

#[test]
fn token_that_is_none_changes_nothing() {
    let lab = Lab::new();
    lab.volume("vol");
    import(&lab, TOKEN, &[]);
    let before = lab.read("vol");
    for (json, more, code, named) in [
        ("", &[][..], 1, "no JSON"),
        ("[]", &[], 1, "must be an object"),
        (r#"{"keyslots":[]}"#, &[], 1, "type: it is missing"),
        (r#"{"type":"a","keyslots":[0]}"#, &[], 1, "keyslots[0]: it is a number"),
        (r#"{"type":"a","keyslots":["1"]}"#, &[], 4, "there is no keyslot 1"),
        (TOKEN, &["--token-id", "0"], 1, "--token-replace"),
        (TOKEN, &["--token-id", "32"], 1, "tokens 0 to 31"),
        (TOKEN, &["--key-slot", "9"], 1, "keyslot 9: it is not in use"),
    ] {
        let words = [&["token", "import", "vol"], more].concat();
        let said = one_error(&lab.fed(&words, json.as_bytes()), code);
        assert!(said.contains(named), "{json}: {said}");
    }
    assert!(lab.read("vol") == before);
}

#[test]
fn volume_is_opened_by_its_token_without_a_passphrase() {
    let lab = Lab::new();
    lab.volume("vol");
    import(&lab, &known_token(), &[]);
    let right = format!("[ \"$1 $(cat)\" = 'decrypt {COMPACT}' ] && cat \"$PASSPHRASE_FILE\"");
    for more in [&[][..], &["--token-only"], &["--token-id", "0"], &["--token-type", "clevis"]] {
        let opened = dump(&lab, &right, more, "");
        assert!(opened.status.success(), "{more:?}: {}", text(&opened.stderr));
        assert_eq!(text(&opened.stderr), "");
    }
    // Neither of these may be used; then there is nothing else.
    for more in [["--token-id", "1"], ["--token-type", "systemd-tpm2"]] {
        let words = ["--token-only", more[0], more[1]];
        assert!(one_error(&dump(&lab, &right, &words, ""), 2).contains("no token opens"));
    }
    // A key option is used alone.
    let said = dump(&lab, "echo used > used", &["-d", "pass"], "");
    assert!(said.status.success() && !lab.path("used").exists());
}

#[test]
fn export_is_opened_by_its_token_at_the_first_use() {
    let lab = Lab::new();
    lab.volume("vol");
    import(&lab, &known_token(), &[]);
    let export = "[exports.a]\nvolume = 'vol'\nopen = 'first-use'\ntoken_only = true\n";
    lab.write("c.toml", format!("socket = 's'\n{export}"));
    let script = "cat \"$PASSPHRASE_FILE\"";
    let server = Server::start(clevis_command(&lab, script, &["serve", "--config", "c.toml"]));
    let mut client = Nbd::open_export(&lab.path("s"), "a");
    assert_eq!(client.write(0, &[7; 4096]), 0);
    assert_eq!(client.read(0, 4096), [7; 4096]);
    drop(client);
    let lines = server.stop_and_read(Signal::TERM);
    let has = |part: &str| lines.iter().any(|line| line.contains(part));
    assert!(has("with its token: ") && has("so the server has no sandbox"), "{lines:?}");
    // A server with a sandbox cannot start the program of the token.
    let required = ["serve", "--config", "c.toml", "--sandbox", "require"];
    let refused = clevis_command(&lab, script, &required).output().unwrap();
    assert!(one_error(&refused, 1).contains("--sandbox require: exports.a: a token"));
}

#[test]
fn volume_is_opened_without_its_tokens_on_request() {
    let lab = Lab::new();
    lab.volume("vol");
    import(&lab, &known_token(), &[]);
    let line = format!("{PASSPHRASE}\n");
    let opened = dump(&lab, "echo used > used", &["--no-token"], &line);
    assert!(opened.status.success() && !lab.path("used").exists());
    assert_eq!(text(&opened.stderr), "");
    let used = dump(&lab, "echo used > used", &[], &line);
    assert!(used.status.success() && lab.path("used").exists());
}

#[test]
fn program_inherits_no_descriptor_with_a_key() {
    let lab = Lab::new();
    lab.volume("vol");
    let command = "sh -c '[ ! -e /proc/self/fd/9 ] && cat pass'";
    let words = ["dump", "vol", "-o", "out", "--key-command", command];
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 9<pass; exec \"$@\"", "sh"]).arg(lab.blockyard(&words).get_program());
    let ended = shell.args(words).current_dir(lab.path("")).output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
}

#[test]
fn program_that_the_header_names_runs_only_for_the_chosen_token() {
    let lab = Lab::new();
    lab.volume("vol");
    import(&lab, TOKEN, &[]);
    let line = format!("{PASSPHRASE}\n");
    let script = "echo used > used; cat \"$PASSPHRASE_FILE\"";
    let opened = dump(&lab, script, &[], &line);
    assert!(opened.status.success());
    assert_eq!(
        text(&opened.stderr),
        "warning: vol: token 0 (clevis): the pin fake is not one of tang, tpm2 and sss; the \
         program of the pin runs only if --token-id chooses this token\n"
    );
    for more in [&["--token-only"][..], &["--token-only", "--token-type", "clevis"]] {
        assert_eq!(dump(&lab, script, more, "").status.code(), Some(2));
    }
    assert!(!lab.path("used").exists());
    let chosen = dump(&lab, script, &["--token-id", "0"], "");
    assert!(chosen.status.success() && lab.path("used").exists());
}

#[test]
fn token_that_fails_is_named_and_the_passphrase_is_asked_for() {
    let lab = Lab::new();
    lab.volume("vol");
    import(&lab, &known_token(), &[]);
    import(&lab, r#"{"type":"systemd-fido2","keyslots":["0"]}"#, &[]);
    import(&lab, r#"{"type":"clevis","keyslots":["0"],"jwe":7}"#, &[]);
    import(&lab, r#"{"type":"systemd-recovery","keyslots":["0"]}"#, &[]);
    let line = format!("{PASSPHRASE}\n");
    let opened = dump(&lab, "echo output; echo offline >&2; exit 3", &[], &line);
    assert!(opened.status.success());
    let said = text(&opened.stderr);
    let warnings: Vec<_> = said.lines().collect();
    assert_eq!(
        warnings,
        [
            "warning: vol: token 0 (clevis): pin tpm2: clevis: it ended with exit code 3: offline",
            "warning: vol: token 1 (systemd-fido2): tokens of this type are not supported",
            "warning: vol: token 2 (clevis): jwe: it is a number, must be an object",
        ]
    );
    let wrong = dump(&lab, "echo a wrong passphrase", &["--token-only"], &line);
    assert_eq!(wrong.status.code(), Some(2));
    let said = text(&wrong.stderr);
    assert!(said.contains("token 0 (clevis): its passphrase opens none of its keyslots"), "{said}");
    assert!(!said.contains("a wrong"), "{said}");
    // The keyslot that a person names is the only one that is tried.
    lab.ok(&["key", "priority", "vol", "-S", "0", "--priority", "ignore"]);
    let ignored = dump(&lab, "cat \"$PASSPHRASE_FILE\"", &["--token-only"], "");
    assert_eq!(ignored.status.code(), Some(2));
    let named = dump(&lab, "cat \"$PASSPHRASE_FILE\"", &["--token-only", "--token-id", "0"], "");
    assert!(named.status.success(), "{}", text(&named.stderr));
}

#[test]
fn token_opens_the_volume_for_a_new_passphrase() {
    let lab = Lab::new();
    let layout = ["--size", "5M", "--luks2-keyslots-size", "1M", "--offset", "8192"];
    let cheap = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000"];
    lab.ok(&[&["format", "vol", "-d", "pass"][..], &layout, &cheap].concat());
    import(&lab, TOKEN, &[]);
    lab.write("new", "a new one");
    let script = "cat \"$PASSPHRASE_FILE\"";
    let add = |how: &[&str]| {
        let words = [&["key", "add", "vol", "--new-keyfile", "new"][..], how, &cheap].concat();
        with_clevis(&lab, script, &words, "")
    };
    // The program of an unknown pin runs only for the chosen token.
    let refused = add(&["--token-only"]);
    let said = one_error(&refused, 1);
    assert!(said.contains("no token opens the volume: token 0 (clevis): the pin fake"), "{said}");
    let said = one_error(&add(&["--token-id", "5"]), 1);
    assert!(said.contains("no token opens the volume"), "{said}");
    let added = add(&["--token-id", "0"]);
    assert!(added.status.success(), "{}", text(&added.stderr));
    lab.ok(&["dump", "vol", "-d", "new", "-o", "out", "--force"]);
}
