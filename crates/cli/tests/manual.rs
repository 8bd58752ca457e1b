//! Help and man pages, as a person reads them.

mod lab;

use std::fs;
use std::process::Command;

use lab::home::has;
use lab::{Lab, text};

/// All pages, by file name.
fn pages(lab: &Lab) -> Vec<(String, String)> {
    lab.ok(&["man", "man1/"]);
    let mut pages = Vec::new();
    for folder in ["man1", "man5"] {
        for entry in fs::read_dir(lab.path(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let page = text(&lab.read(&format!("{folder}/{name}")));
            pages.push((name, page));
        }
    }
    pages.sort();
    pages
}

/// The words of each command, from the NAME of its page.
fn commands(lab: &Lab) -> Vec<Vec<String>> {
    let of = |page: String| {
        let synopsis = page.split(".SH SYNOPSIS\n\\fB").nth(1)?;
        let path = synopsis.split("\\fR").next()?.replace("\\-", "-");
        Some(path.split(' ').skip(1).map(str::to_owned).collect())
    };
    pages(lab).into_iter().filter_map(|(_, page)| of(page)).collect()
}

fn help(lab: &Lab, words: &[String], how: &str) -> String {
    let words: Vec<_> = words.iter().map(String::as_str).chain([how]).collect();
    text(&lab.ok(&words).stdout)
}

#[test]
fn short_help_fits_a_screen_and_the_other_is_complete() {
    let lab = Lab::new();
    let commands = commands(&lab);
    assert!(commands.len() > 60, "{commands:?}");
    for words in commands {
        let brief = help(&lab, &words, "-?");
        assert!(brief.lines().count() <= 24, "{words:?} has {} lines", brief.lines().count());
        assert_eq!(brief, help(&lab, &words, "-h"), "{words:?}");
        let complete = help(&lab, &words, "--help");
        for line in brief.lines().chain(complete.lines()) {
            assert!(line.chars().count() <= 80, "{words:?}: {line}");
        }
        assert!(complete.contains("\nExamples:\n"), "{words:?} has no examples");
        for option in brief.split_whitespace().filter(|word| word.starts_with("--")) {
            let option = option.trim_end_matches([',', ']', '`', ';', ')']);
            assert!(complete.contains(option), "{words:?}: {option} is in the short help only");
        }
    }
}

#[test]
fn dash_h_with_a_hash_is_no_help() {
    let lab = Lab::new();
    lab.write("vol", vec![0; 4096]);
    let words = ["dump", "vol", "--type=plain", "-c", "aes-xts-plain64", "-s", "512", "-h"];
    assert!(text(&lab.ok(&words).stdout).contains("Usage: blockyard dump"));
    assert!(lab.refused(&["format", "vol", "-s", "-h"], 1).contains("--key-size"));
    let words = [&words[..], &["sha512"]].concat();
    let output = lab.fed(&words, b"secret\n");
    assert!(output.status.success() && output.stdout.len() == 4096, "{}", text(&output.stderr));
}

const OF_CONFIG: &[&str] = &["NAME", "DESCRIPTION", "\"KEYS OF AN EXPORT\"", "\"SEE ALSO\""];
const OF_COMMAND: &[&str] =
    &["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "\"EXIT STATUS\"", "\"SEE ALSO\""];

#[test]
fn pages_have_all_sections_and_groff_has_no_warning() {
    let lab = Lab::new();
    let pages = pages(&lab);
    for (name, page) in &pages {
        let mut rest = page.as_str();
        let wanted = if name.ends_with(".5") { OF_CONFIG } else { OF_COMMAND };
        for section in wanted {
            let place = rest.find(&format!(".SH {section}\n"));
            let place = place.unwrap_or_else(|| panic!("{name} has no {section} there"));
            rest = &rest[place + 1..];
        }
        for reference in rest.split("\\fB").skip(1) {
            let (page, behind) = reference.split_once("\\fR(").unwrap();
            let file = format!("{}.{}", page.replace("\\-", "-"), &behind[..1]);
            let is_ours = file.starts_with("blockyard");
            assert!(!is_ours || pages.iter().any(|(name, _)| *name == file), "{name}: {file}");
        }
    }
    let files = ["serve", "mount", "lab-run"].map(|command| format!("blockyard-{command}.1"));
    for (name, page) in pages.iter().filter(|(name, _)| files.contains(name)) {
        assert!(page.contains(".SH FILES\n"), "{name}");
    }
    if !has("groff") {
        return;
    }
    for (name, _) in pages {
        let section = name.rsplit('.').next().unwrap();
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Tascii", "-ww"]).arg(lab.path(&format!("man{section}/{name}")));
        let output = groff.output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        assert!(!output.stdout.is_empty(), "{name}");
    }
}

#[test]
fn page_of_the_configuration_has_its_keys_and_its_example() {
    let lab = Lab::new();
    let page = text(&lab.ok(&["man", "blockyard.toml"]).stdout);
    assert_eq!(pages(&lab).iter().find(|(name, _)| name == "blockyard.toml.5").unwrap().1, page);
    for key in ["\\fBvolume\\fR", "\\fBidle_close\\fR", "\\fBmetrics\\fR", "[exports.home]"] {
        assert!(page.contains(key), "{key} is missing");
    }
    assert!(!page.contains("](") && !page.contains('`'), "Markdown is left in {page}");
    lab.ok(&["man", "pages/"]);
    assert!(lab.path("pages/blockyard.toml.5").exists());
}

/// The options that the examples of LUKS1 and of `format --type luks1` name.
#[test]
fn luks1_is_made_in_the_two_steps_of_the_example() {
    let lab = Lab::new();
    let format = ["format", "old.img", "--size", "32M", "--key-file", "pass", "--pbkdf", "pbkdf2"];
    let cost = ["--pbkdf-force-iterations", "1000", "--sector-size", "512"];
    lab.ok(&[&format[..], &cost].concat());
    lab.ok(&["header", "convert", "old.img", "--type", "luks1", "--batch-mode"]);
    assert!(text(&lab.ok(&["info", "old.img"]).stdout).contains("LUKS1"));
    let told = lab.refused(&["format", "other.img", "--size", "32M", "--type", "luks1"], 1);
    assert!(told.contains("--pbkdf pbkdf2 --sector-size 512"), "{told}");
    assert!(!lab.path("other.img").exists());
}

#[test]
fn words_of_cryptsetup_and_qemu_nbd_work_or_name_ours() {
    let lab = Lab::new();
    let told = lab.refused(&["luksOpen", "/dev/sdx", "home", "-d", "key"], 1);
    assert!(told.contains("`blockyard serve /dev/sdx --socket home.sock -d key`"), "{told}");
    let told = lab.refused(&["dump", "vol", "--test-passphrase"], 1);
    assert!(told.contains("`blockyard table VOLUME`"), "{told}");
    lab.volume("vol");
    let server = lab.serve(&["-k", "s", "-x", "name", "-r", "vol", "--key-file", "pass"]);
    assert!(server.said.iter().any(|line| line.contains("nbd+unix:///name?socket=")));
}
