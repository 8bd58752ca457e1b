//! Volumes created, filled, read and refused by the binary.

mod lab;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::{Child, ExitStatus, Stdio};

use lab::{
    Lab, PASSPHRASE, SMALL, SMALL_DATA_OFFSET_BYTES, SMALL_LEN_BYTES, noise, one_error, text,
};
use rustix::process::Signal;

#[test]
fn plaintext_loaded_from_a_file_is_dumped_to_a_file() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    let plaintext = noise(SMALL_LEN_BYTES, 1);
    lab.write("in", &plaintext);
    lab.ok(&["load", "vol", "-i", "in", "-d", "pass"]);
    lab.ok(&["dump", "vol", "-o", "out", "-d", "pass"]);
    assert!(lab.read("out") == plaintext);
    assert_eq!(fs::metadata(lab.path("out")).unwrap().permissions().mode() & 0o777, 0o600);
    let image = fs::read(volume).unwrap();
    assert!(!image.windows(16).any(|window| window == &plaintext[..16]), "it is not encrypted");
}

#[test]
fn plaintext_passes_through_pipes_and_the_rest_of_the_volume_stays() {
    let lab = Lab::new();
    lab.volume("vol");
    let before = noise(SMALL_LEN_BYTES, 2);
    let loaded = lab.fed(&["load", "vol", "-d", "pass"], &before);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    // 5000 bytes: the last sector keeps its second half.
    let short = noise(5000, 3);
    let load = ["load", "vol", "-i", "-", "-d", "pass", "--allow-short"];
    assert!(lab.fed(&load, &short).status.success());
    let out = lab.ok(&["dump", "vol", "-d", "pass"]).stdout;
    assert!(out[..5000] == short && out[5000..] == before[5000..]);
}

#[test]
fn dump_of_zeros_is_a_sparse_file() {
    let lab = Lab::new();
    lab.volume("vol");
    let mut plaintext = vec![0; SMALL_LEN_BYTES];
    plaintext[700_000] = 1;
    lab.write("in", &plaintext);
    lab.ok(&["load", "vol", "-i", "in", "-d", "pass"]);
    lab.write("out", noise(2 * SMALL_LEN_BYTES, 4));
    lab.ok(&["dump", "vol", "-o", "out", "-d", "pass", "--force"]);
    assert!(lab.read("out") == plaintext);
    let allocated = fs::metadata(lab.path("out")).unwrap().blocks() * 512;
    assert!(allocated <= 64 << 10, "{allocated} bytes are allocated");
}

#[test]
fn format_keeps_to_its_options() {
    let lab = Lab::new();
    let mut words = vec!["format", "vol", "--size", "2M", "-d", "pass", "--label", "attic"];
    words.extend(["--subsystem", "tests", "--uuid", "0b4b24a6-0d37-4e7c-9d53-6c8ab1bd5c2a"]);
    words.extend(["-c", "aes-cbc-essiv:sha256", "-s", "256", "--sector-size", "512"]);
    words.extend(["-h", "sha512"]);
    words.extend(SMALL);
    lab.ok(&words);
    let mode = fs::metadata(lab.path("vol")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others can read the new image");
    let json = text(&lab.ok(&["info", "--json", "vol"]).stdout);
    let info: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(info["label"], "attic");
    assert_eq!(info["subsystem"], "tests");
    assert_eq!(info["uuid"], "0b4b24a6-0d37-4e7c-9d53-6c8ab1bd5c2a");
    assert_eq!(info["segments"]["0"]["cipher"], "aes-cbc-essiv:sha256");
    assert_eq!(info["segments"]["0"]["sector_size_bytes"], 512);
    assert_eq!(info["segments"]["0"]["offset_bytes"], SMALL_DATA_OFFSET_BYTES);
    assert_eq!(info["notices"], serde_json::json!([]));
    let human = text(&lab.ok(&["info", "vol"]).stdout);
    for word in ["LUKS2", "attic", "aes-cbc-essiv:sha256", "pbkdf2"] {
        assert!(human.contains(word), "{word} is missing in {human}");
    }
    lab.ok(&["dump", "vol", "-d", "pass", "-o", "out"]);
}

#[test]
fn argon2_keyslot_opens_and_its_memory_limit_is_kept() {
    let lab = Lab::new();
    let mut words = vec!["format", "vol", "--size", "2M", "-d", "pass"];
    words.extend(["--luks2-keyslots-size", "256K", "--offset", "1024", "--pbkdf", "argon2id"]);
    words.extend(["--pbkdf-force-iterations", "4", "--pbkdf-memory", "32768"]);
    words.extend(["--pbkdf-parallel", "1"]);
    lab.ok(&words);
    lab.ok(&["dump", "vol", "-d", "pass", "-o", "out"]);
    let said = lab.refused(&["dump", "vol", "-d", "pass", "--max-kdf-memory", "16M"], 4);
    assert!(said.contains("--max-kdf-memory") && said.contains("32768"), "{said}");
}

#[test]
fn header_option_that_names_the_volume_means_its_own_header() {
    let lab = Lab::new();
    lab.ok(&[
        &["format", "vol", "--size", "17M", "-d", "pass", "--pbkdf", "pbkdf2"][..],
        &["--pbkdf-force-iterations", "1000"],
    ]
    .concat());
    let plaintext = noise(1 << 20, 5);
    lab.write("in", &plaintext);
    lab.ok(&["load", "vol", "--header", "vol", "-d", "pass", "-i", "in"]);
    let back = lab.ok(&["dump", "vol", "-d", "pass"]).stdout;
    assert!(back == plaintext);
}

#[test]
fn detached_header_opens_its_volume() {
    let lab = Lab::new();
    let mut words = vec!["format", "data", "--size", "1M", "--header", "head", "-d", "pass"];
    words.extend(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
    lab.ok(&words);
    assert_eq!(fs::metadata(lab.path("data")).unwrap().len(), 1 << 20);
    let plaintext = noise(1 << 20, 5);
    lab.write("in", &plaintext);
    lab.ok(&["load", "data", "--header", "head", "-d", "pass", "-i", "in"]);
    assert!(lab.ok(&["dump", "data", "--header", "head", "-d", "pass"]).stdout == plaintext);
    let said = lab.refused(&["dump", "data", "-d", "pass"], 4);
    assert!(said.contains("--header"), "{said}");
    assert!(text(&lab.ok(&["info", "--header", "head"]).stdout).contains("LUKS2"));
}

#[test]
fn key_comes_from_part_of_a_file_from_stdin_or_from_a_descriptor() {
    let lab = Lab::new();
    lab.volume("vol");
    let len = PASSPHRASE.len().to_string();
    lab.write("ring", format!("0123456789{PASSPHRASE}\nmore"));
    let part = ["dump", "vol", "-o", "out", "--force", "-d", "ring", "--keyfile-offset", "10"];
    let mut words = part.to_vec();
    words.extend(["--keyfile-size", &len]);
    lab.ok(&words);
    lab.refused(&part, 2);
    // A key file is exact: the newline is part of it. A piped passphrase ends there.
    lab.write("line", format!("{PASSPHRASE}\n"));
    lab.refused(&["dump", "vol", "-d", "line"], 2);
    let line = format!("{PASSPHRASE}\nnot this");
    assert!(lab.fed(&["dump", "vol", "-o", "out", "--force"], line.as_bytes()).status.success());
    let exact = lab.fed(&["dump", "vol", "-o", "again", "-d", "-"], PASSPHRASE.as_bytes());
    assert!(exact.status.success());
    assert_eq!(lab.fed(&["dump", "vol", "-d", "-"], line.as_bytes()).status.code(), Some(2));
    let script = r#"exec "$0" dump vol -o third --key-fd 7 7<pass"#;
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_blockyard")]).current_dir(lab.path(""));
    assert!(shell.status().unwrap().success());
    assert!(lab.refused(&["dump", "vol", "--key-fd", "77"], 1).contains("--key-fd 77"));
    assert!(lab.refused(&["dump", "vol", "-d", "nowhere"], 1).contains("nowhere"));
}

#[test]
fn passphrase_comes_from_a_command() {
    let lab = Lab::new();
    lab.write("line", format!("{PASSPHRASE}\n"));
    let mut words = vec!["format", "vol", "--size", "2M", "--key-command", "cat line"];
    words.extend(SMALL);
    lab.ok(&words);
    let dump = |command| ["dump", "vol", "-o", "out", "--force", "--key-command", command];
    // One newline at the end of the output is no part of the passphrase, and no shell runs.
    for command in ["cat pass", "cat 'line'", "sh -c 'tr -d x < line'"] {
        lab.ok(&dump(command));
    }
    lab.refused(&dump("cat line line"), 2);
    let failed = lab.refused(&dump("cat line '| cat'"), 1);
    assert!(failed.contains("command cat: it ended with exit code 1"), "{failed}");
    let failed = lab.refused(&dump("sh -c 'echo output; exit 9' argument"), 1);
    assert!(failed.ends_with("command sh: it ended with exit code 9"), "{failed}");
    assert!(lab.refused(&dump("no-such-program"), 1).contains("command no-such-program"));
    assert!(lab.refused(&dump("true"), 1).contains("command true has no passphrase or key"));
    assert!(lab.refused(&dump("cat 'line"), 1).contains("a quote has no end"));
    // Of a plain volume it is a passphrase, which is hashed.
    lab.write("plain", noise(1 << 20, 6));
    let plain = |key: [&'static str; 2]| {
        let words = ["dump", "plain", "--type", "plain", "-c", "aes-xts-plain64", "-s", "512"];
        [&words[..], &["-h", "sha512"], &key].concat()
    };
    let piped = lab.fed(&plain(["--key-fd", "0"])[..10], PASSPHRASE.as_bytes());
    assert!(lab.ok(&plain(["--key-command", "cat line"])).stdout == piped.stdout);
    // A configuration too.
    lab.write("disks.toml", "[exports.a]\nvolume = 'vol'\nkey_command = 'sh -c \"exit 4\"'\n");
    let served = lab.refused(&["serve", "--config", "disks.toml", "--socket", "s"], 1);
    assert!(served.contains("command sh: it ended with exit code 4"), "{served}");
}

#[test]
fn key_comes_from_a_credential_of_the_service() {
    let lab = Lab::new();
    lab.volume("vol");
    fs::create_dir(lab.path("credentials")).unwrap();
    fs::copy(lab.path("pass"), lab.path("credentials/disk")).unwrap();
    let dump =
        |name: &'static str| ["dump", "vol", "-o", "out", "--force", "--key-credential", name];
    let with_folder = |name| {
        let mut command = lab.blockyard(&dump(name));
        command.env("CREDENTIALS_DIRECTORY", lab.path("credentials")).output().unwrap()
    };
    assert!(with_folder("disk").status.success());
    assert!(one_error(&with_folder("other"), 1).contains("credentials/other"));
    assert!(one_error(&with_folder("../pass"), 1).contains("--key-credential \"../pass\""));
    let mut command = lab.blockyard(&dump("disk"));
    let unset = command.env_remove("CREDENTIALS_DIRECTORY").output().unwrap();
    assert!(one_error(&unset, 1).contains("LoadCredentialEncrypted="));
}

#[test]
fn key_file_of_any_bytes_is_a_passphrase() {
    let lab = Lab::new();
    lab.write("binary", b"\0\n\xff\0key\n");
    let mut words = vec!["format", "vol", "--size", "2M", "-d", "binary"];
    words.extend(SMALL);
    lab.ok(&words);
    lab.ok(&["dump", "vol", "-d", "binary", "-o", "out"]);
    lab.write("cut", b"\0\n\xff\0key");
    lab.refused(&["dump", "vol", "-d", "cut"], 2);
}

#[test]
fn wrong_passphrase_is_one_error_with_exit_code_2() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.write("wrong", "wrong");
    for command in ["dump", "load"] {
        lab.write("in", "x");
        let words = [command, "vol", "-d", "wrong"];
        let mut words = words.to_vec();
        if command == "load" {
            words.extend(["-i", "in"]);
        }
        let said = lab.refused(&words, 2);
        assert!(said.contains("vol") && said.contains("passphrase"), "{said}");
    }
    let piped = lab.fed(&["dump", "vol"], b"wrong\n");
    one_error(&piped, 2);
    assert!(piped.stdout.is_empty());
}

#[test]
fn load_of_more_than_fits_writes_nothing() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    let before = fs::read(&volume).unwrap();
    lab.write("in", noise(SMALL_LEN_BYTES + 1, 6));
    let said = lab.refused(&["load", "vol", "-i", "in", "-d", "pass"], 1);
    assert!(said.contains("1048577") && said.contains("1048576"), "{said}");
    assert!(fs::read(&volume).unwrap() == before);
    // A pipe has no length: it is refused at the volume's end.
    let piped = lab.fed(&["load", "vol", "-d", "pass"], &noise(SMALL_LEN_BYTES + 1, 7));
    assert!(one_error(&piped, 1).contains("longer"));
    let said = lab.refused(&["load", "vol", "-i", "vol", "-d", "pass"], 1);
    assert!(said.contains("itself"), "{said}");
    let said = lab.refused(&["dump", "vol", "-o", "vol", "-d", "pass"], 5);
    assert!(said.contains("in use"), "{said}");
}

#[test]
fn input_that_ends_early_is_an_error_unless_it_is_meant() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    let before = fs::read(&volume).unwrap();
    lab.write("in", noise(5000, 6));
    let said = lab.refused(&["load", "vol", "-i", "in", "-d", "pass"], 1);
    assert!(said.contains("5000 bytes") && said.contains("--allow-short"), "{said}");
    assert!(fs::read(&volume).unwrap() == before, "a file tells its length: nothing is written");
    for len in [0, 5000] {
        let piped = lab.fed(&["load", "vol", "-d", "pass"], &noise(len, 7));
        let said = one_error(&piped, 1);
        assert!(said.contains(&format!("{len} bytes")) && said.contains("--allow-short"), "{said}");
    }
    lab.ok(&["load", "vol", "-i", "in", "-d", "pass", "--allow-short"]);
}

#[test]
fn load_from_standard_input_does_not_take_the_passphrase_from_there() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    let before = fs::read(&volume).unwrap();
    // Without a controlling terminal, nobody can be asked.
    let mut command = std::process::Command::new("setsid");
    command.args(["--wait", env!("CARGO_BIN_EXE_blockyard"), "load", "vol"]);
    command.current_dir(lab.path("")).stdin(File::open(lab.path("pass")).unwrap());
    let said = one_error(&command.output().unwrap(), 1);
    assert!(said.contains("--key-file"), "{said}");
    for key in [["--key-file", "-"], ["--key-fd", "0"]] {
        let mut words = vec!["load", "vol"];
        words.extend(key);
        assert!(one_error(&lab.fed(&words, PASSPHRASE.as_bytes()), 1).contains("carries the data"));
    }
    assert!(fs::read(&volume).unwrap() == before);
}

#[test]
fn format_over_something_needs_to_be_told() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    lab.write("letters", noise(2 << 20, 8));
    for (name, word) in [("vol", "LUKS2"), ("letters", "data")] {
        let before = lab.read(name);
        let said = lab.refused(&["format", name, "-d", "pass"], 5);
        assert!(said.contains(name) && said.contains(word), "{said}");
        assert!(said.contains("--batch-mode"), "{said}");
        assert!(lab.read(name) == before, "{name} was changed");
    }
    let old = fs::read(&volume).unwrap();
    let mut words = vec!["format", "vol", "-q", "-d", "pass"];
    words.extend(SMALL);
    lab.ok(&words);
    assert!(fs::read(&volume).unwrap() != old);
    // Zeros are overwritten without confirmation.
    lab.write("zeros", vec![0; 2 << 20]);
    words[1] = "zeros";
    words.remove(2);
    lab.ok(&words);
}

#[test]
fn format_in_a_script_that_runs_again_keeps_the_volume() {
    let lab = Lab::new();
    lab.write("letters", noise(20 << 20, 8));
    let mut words = vec!["format", "vol", "--size", "20M", "--skip-existing", "-d", "pass"];
    words.extend(SMALL);
    lab.ok(&words);
    let first = lab.read("vol");
    words[3] = "30M";
    lab.ok(&words);
    assert!(lab.read("vol") == first, "the volume was changed");
    words[3] = "10M";
    lab.ok(&words);
    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s"]);
    lab.ok(&words);
    assert!(server.stop(Signal::TERM).success());
    assert!(lab.read("vol") == first, "the volume was changed");
    words[3] = "20M";
    words[1] = "letters";
    assert!(lab.refused(&words, 5).contains("letters holds data"));
    assert!(lab.read("letters") == noise(20 << 20, 8));
    words.push("--batch-mode");
    assert!(lab.refused(&words, 1).contains("--skip-existing"));
}

#[test]
fn format_in_a_script_that_runs_again_refuses_a_volume_of_which_a_half_is_missing() {
    let lab = Lab::new();
    let mut words = vec!["format", "data", "--size", "20M", "--header", "head"];
    words.extend(["--skip-existing", "-d", "pass"]);
    words.extend(&SMALL[4..]);
    lab.ok(&words);
    lab.ok(&words);
    let header = lab.read("head");
    lab.write("data", noise(20 << 20, 9));
    fs::remove_file(lab.path("head")).unwrap();
    let said = lab.refused(&words, 5);
    assert!(said.contains("data holds data, and its header head is missing"), "{said}");
    assert!(!lab.path("head").exists());
    lab.write("head", &header);
    fs::remove_file(lab.path("data")).unwrap();
    assert!(lab.refused(&words, 5).contains("head holds a LUKS2 volume"));
    assert!(!lab.path("data").exists() && lab.read("head") == header);
}

#[test]
fn formats_of_one_new_file_by_several_processes_leave_one_volume_that_opens() {
    let lab = Lab::new();
    for round in 0..10 {
        let name = format!("vol{round}");
        let mut words = vec!["format", &name, "--size", "20M", "-d", "pass"];
        words.extend(SMALL);
        let of_all = |words: &[&str]| {
            let start = |_| lab.blockyard(words).stderr(Stdio::null()).spawn().unwrap();
            let all: Vec<Child> = (0..4).map(start).collect();
            let ended = all.into_iter().map(|mut one| one.wait().unwrap());
            ended.filter(ExitStatus::success).count()
        };
        assert_eq!(of_all(&words), 1, "one has made it, and the others have found it");
        let dump = lab.ok(&["dump", &name, "-d", "pass"]);
        assert!(!dump.stdout.is_empty());
        words[1] = "again";
        words.push("--skip-existing");
        let _ = fs::remove_file(lab.path("again"));
        assert_eq!(of_all(&words), 4, "each has found or made a volume");
        lab.ok(&["dump", "again", "-d", "pass"]);
    }
    let left = fs::read_dir(lab.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn format_that_fails_leaves_no_file() {
    let lab = Lab::new();
    let said = lab.refused(&["format", "tiny", "--size", "1M", "-d", "pass"], 4);
    assert!(said.contains("tiny") && said.contains("larger"), "{said}");
    assert!(!lab.path("tiny").exists());
    lab.refused(&["format", "new", "--size", "20M", "-d", "nowhere"], 1);
    assert!(!lab.path("new").exists());
    lab.write("empty", "");
    lab.refused(&["format", "new", "--size", "20M", "-d", "empty"], 1);
    assert!(!lab.path("new").exists());
    lab.write("long", vec![0; 2 << 20]);
    assert!(lab.refused(&["format", "long", "--size", "1M", "-d", "pass"], 1).contains("cut"));
    assert_eq!(lab.read("long").len(), 2 << 20);
    let null =
        lab.refused(&["format", "new", "--size", "20M", "-d", "pass", "-c", "cipher_null-ecb"], 1);
    assert!(null.contains("--cipher"), "{null}");
    assert!(!lab.path("new").exists());
}

#[test]
fn files_that_are_no_volume_are_refused_by_every_command() {
    let lab = Lab::new();
    lab.write("in", "x");
    lab.write("noise", noise(1 << 20, 9));
    lab.write("empty", "");
    lab.volume("cut");
    File::options().write(true).open(lab.path("cut")).unwrap().set_len(3000).unwrap();
    fs::create_dir(lab.path("folder")).unwrap();
    for (name, word) in [
        ("noise", "no LUKS header"),
        ("empty", ""),
        ("cut", ""),
        ("folder", ""),
        ("missing", "No such file"),
    ] {
        for words in [
            &["info", name][..],
            &["info", "--json", name],
            &["dump", name, "-d", "pass"],
            &["load", name, "-i", "in", "-d", "pass"],
            &["serve", name, "-d", "pass", "--socket", "s"],
            &["repair", name],
        ] {
            let said = lab.refused(words, 4);
            assert!(said.contains(name) && said.contains(word), "{words:?}: {said}");
        }
    }
}

#[test]
fn volume_cut_off_in_its_data_or_keyslots_is_refused_by_what_is_missing() {
    let lab = Lab::new();
    lab.volume("vol");
    let file = File::options().write(true).open(lab.path("vol")).unwrap();
    for len_bytes in [SMALL_DATA_OFFSET_BYTES, 40_000, 20_000] {
        file.set_len(len_bytes).unwrap();
        let said = lab.refused(&["dump", "vol", "-d", "pass"], 4);
        assert!(said.contains("vol") && said.contains(&len_bytes.to_string()), "{said}");
    }
}

#[test]
fn volume_of_another_version_is_refused_by_type() {
    let lab = Lab::new();
    lab.volume("vol");
    lab.ok(&["dump", "vol", "--type", "luks2", "-d", "pass", "-o", "out"]);
    let said = lab.refused(&["dump", "vol", "--type", "luks1", "-d", "pass"], 4);
    assert!(said.contains("luks2") && said.contains("luks1"), "{said}");
}

#[test]
fn damaged_header_copy_is_reported_and_repaired_on_request() {
    let lab = Lab::new();
    let volume = lab.volume("vol");
    let whole = fs::read(&volume).unwrap();
    let said = text(&lab.ok(&["repair", "vol"]).stderr);
    assert!(said.contains("nothing to repair"), "{said}");
    // A byte in the JSON of the first copy.
    let file = File::options().write(true).open(&volume).unwrap();
    file.write_all_at(b"#", 4096 + 10).unwrap();
    let damaged = fs::read(&volume).unwrap();
    let info = lab.ok(&["info", "vol"]);
    assert!(text(&info.stderr).contains("warning: vol: the primary LUKS2 header is damaged"));
    let json: serde_json::Value =
        serde_json::from_slice(&lab.ok(&["info", "--json", "vol"]).stdout).unwrap();
    assert_eq!(json["notices"].as_array().unwrap().len(), 1);
    lab.ok(&["dump", "vol", "-d", "pass", "-o", "out"]);
    assert!(fs::read(&volume).unwrap() == damaged, "repaired without being asked");
    let said = text(&lab.ok(&["repair", "vol", "-q"]).stderr);
    assert!(said.contains("primary") && said.contains("rewritten"), "{said}");
    assert!(text(&lab.ok(&["info", "vol"]).stderr).is_empty());
    assert!(fs::read(&volume).unwrap()[4096..32768] == whole[4096..32768]);
}

#[test]
fn plain_volume_reads_back_with_its_parameters_and_only_with_them() {
    let lab = Lab::new();
    lab.write("vol", vec![0; 64 << 10]);
    lab.write("key", noise(100, 10));
    let plaintext = noise(8 * 512, 11);
    lab.write("in", &plaintext);
    let open = ["vol", "--type", "plain", "-c", "aes-xts-plain64", "-s", "512", "-d", "key"];
    let range = ["--offset", "16", "-p", "32", "-b", "8"];
    let words = |command: &'static str, more: &[&'static str]| {
        let mut words = vec![command];
        words.extend(open);
        words.extend(more);
        words
    };
    let mut load = words("load", &range);
    load.extend(["-i", "in"]);
    lab.ok(&load);
    assert!(lab.ok(&words("dump", &range)).stdout == plaintext);
    let other = lab.ok(&words("dump", &["--offset", "16", "-p", "33", "-b", "8"])).stdout;
    assert!(other.len() == plaintext.len() && other != plaintext);
    // A table gives the same.
    let key: String = noise(64, 10).iter().map(|byte| format!("{byte:02x}")).collect();
    lab.write("table", format!("0 8 crypt aes-xts-plain64 {key} 32 vol 16\n"));
    assert!(lab.ok(&["dump", "--table", "table"]).stdout == plaintext);
    let info = text(&lab.ok(&["info", "--table", "table"]).stdout);
    assert!(info.contains("aes-xts-plain64") && !info.contains(&key[..16]), "{info}");
    lab.write("bad", format!("0 8 crypt aes-xts-plain64 {key} 32 vol 9999\n"));
    let said = lab.refused(&["dump", "--table", "bad"], 4);
    assert!(said.contains("vol") && !said.contains(&key[..16]), "{said}");
    lab.write("short", noise(63, 10));
    let mut short = words("dump", &range);
    *short.iter_mut().find(|word| **word == "key").unwrap() = "short";
    assert!(lab.refused(&short, 1).contains("63 bytes"));
    let ask = ["dump", "vol", "--type", "plain", "-c", "aes-xts-plain64", "-s", "512"];
    assert!(one_error(&lab.fed(&ask, b"x\n"), 1).contains("--hash"));
}

#[test]
fn passphrases_are_not_in_the_arguments_or_the_environment() {
    let lab = Lab::new();
    lab.volume("vol");
    let server = lab.serve(&["vol", "-d", "pass", "--socket", "s"]);
    for place in ["cmdline", "environ"] {
        // The process is not dumpable, so its environment may be closed even to its owner.
        if let Ok(bytes) = fs::read(format!("/proc/{}/{place}", server.pid())) {
            assert!(!text(&bytes).contains(PASSPHRASE), "{place}");
        }
    }
    assert!(!server.said.concat().contains(PASSPHRASE));
}

#[test]
fn key_file_is_not_formatted() {
    let lab = Lab::new();
    let key = noise(17 << 20, 1);
    lab.write("key", &key);
    let error =
        lab.refused(&["format", "key", "-q", "--key-file", "./key", "--keyfile-size", "64"], 5);
    assert!(error.contains("key is the key file too"), "{error}");
    assert!(lab.read("key") == key);
}
