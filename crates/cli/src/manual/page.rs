//! Man pages: the sections of `clap_mangen`, and those that it lacks.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use super::{examples, groups, markdown};

/// Name of the page about the configuration.
pub(crate) const CONFIG_PAGE: &str = "blockyard.toml";

const CONFIG: &str = include_str!("../../../../docs/cli/config.md");
const EXIT_CODES: &str = include_str!("../../../../docs/cli/exit-codes.md");
/// Centre of the line at the bottom, and of the one at the top.
const SOURCE: &str = concat!("blockyard ", env!("CARGO_PKG_VERSION"));
const MANUAL: &str = "Blockyard Manual";

/// A file or folder, the commands that use it, and its purpose.
type FileRow = (&'static str, &'static [&'static str], &'static str);

const FILES: &[FileRow] = &[
    ("$XDG_RUNTIME_DIR", &["serve"], "Folder of the private socket of --socket - and --run."),
    ("$XDG_RUNTIME_DIR/blockyard", &["mount", "umount"], "Files of the mounts of this session."),
    ("/dev/fuse", &["mount"], "The kernel's FUSE, to which the user needs access."),
    ("/dev/ublk-control, /dev/ublkb*", &["serve"], "The kernel's ublk, and the disks of --ublk."),
    (
        "/run/cryptsetup",
        &["serve", "format", "key", "token", "header", "erase", "resize", "repair"],
        "Locks of the headers of devices, which cryptsetup respects too.",
    ),
    (
        "~/.pki/blockyard, ~/.config/pki/blockyard, /etc/pki/blockyard",
        &["serve", "tls"],
        "Certificates and keys for TLS; the last one is root's.",
    ),
    (
        "/etc/ceph/ceph.conf",
        &["serve", "info", "dump", "load"],
        "The cluster of volumes that are named rbd:POOL/IMAGE.",
    ),
    (
        "/dev/tpmrm0",
        &["serve", "dump", "mount", "key"],
        "The TPM that opens volumes with a token of type systemd-tpm2.",
    ),
    ("NAME.fits.toml", &["lab"], "Accepted points of the fits of the experiment NAME.toml."),
];

/// The page of a command of the built definition, with its file name.
pub(crate) fn of_command(command: &Command) -> io::Result<(String, Vec<u8>)> {
    // Help that only `-h` hides would be missing.
    let command = command.clone().mut_args(|option| option.hide_short_help(false));
    let path = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let name = path.strip_prefix("blockyard").unwrap_or_default().trim_start();
    let has_commands = command.get_subcommands().any(|below| !below.is_hide_set());
    let synopsis = synopsis(&command, &path);
    let siblings = command.get_subcommands().filter(|below| !below.is_hide_set());
    let below: Vec<_> = siblings.map(|below| below.get_name().to_owned()).collect();
    let man = Man::new(command).source(SOURCE).manual(MANUAL);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis.to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_commands {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    if let Some(examples) = examples::of(name) {
        examples_section(&mut roff, examples);
    }
    files_section(&mut roff, name.split(' ').next().unwrap_or_default());
    roff.control("SH", ["EXIT STATUS"]);
    markdown::append(&mut roff, EXIT_CODES);
    see_also(&mut roff, name, &below);
    roff.to_writer(&mut page)?;
    Ok((man.get_filename(), in_ascii(&page)))
}

/// The page about the configuration, with its file name.
pub(crate) fn of_config() -> io::Result<(String, Vec<u8>)> {
    let mut roff = Roff::new();
    roff.control("TH", [CONFIG_PAGE, "5", "", SOURCE, MANUAL]);
    roff.control("SH", ["NAME"]);
    let title = markdown::title(CONFIG);
    roff.text([roman(format!("{CONFIG_PAGE} - {title}"))]);
    roff.control("SH", ["DESCRIPTION"]);
    markdown::append(&mut roff, CONFIG);
    roff.control("SH", ["SEE ALSO"]);
    roff.text(reference("blockyard-serve", "1", ""));
    roff.text(reference("blockyard-reload", "1", ""));
    roff.text(reference("blockyard-doctor", "1", ""));
    Ok((format!("{CONFIG_PAGE}.5"), in_ascii(roff.render().as_bytes())))
}

/// The page with other characters as groff names them: it reads only ASCII without options.
fn in_ascii(page: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    for c in String::from_utf8_lossy(page).chars() {
        match c {
            '…' => text += "...",
            c if c.is_ascii() => text.push(c),
            c => text += &format!("\\[u{:04X}]", u32::from(c)),
        }
    }
    text.into_bytes()
}

/// The usage: OPTIONS has the options, and there are a hundred of them in a command.
fn synopsis(command: &Command, path: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    for line in usage.trim_start_matches("Usage:").lines() {
        let line = line.trim();
        match line.strip_prefix(path) {
            Some(rest) => roff.text([bold(path), roman(rest)]),
            None => roff.text([roman(line)]),
        };
    }
    roff
}

/// Examples: requests are indented by two, and their lines more.
fn examples_section(roff: &mut Roff, examples: &str) {
    roff.control("SH", ["EXAMPLES"]);
    let mut is_literal = false;
    for line in examples.lines() {
        let is_line = line.starts_with("    ");
        match (is_literal, is_line) {
            (false, true) => literal(roff, true),
            (true, false) => literal(roff, false),
            _ => {}
        }
        if !is_line {
            roff.control("PP", []);
        }
        roff.text([roman(line.trim_start())]);
        is_literal = is_line;
    }
    if is_literal {
        literal(roff, false);
    }
}

/// Begins or ends lines that stay as they are.
pub(super) fn literal(roff: &mut Roff, begins: bool) {
    if begins {
        roff.control("RS", ["4"]);
        roff.control("nf", []);
    } else {
        roff.control("fi", []);
        roff.control("RE", []);
    }
}

fn files_section(roff: &mut Roff, command: &str) {
    let is_used = |row: &&FileRow| command.is_empty() || row.1.contains(&command);
    let mut rows = FILES.iter().filter(is_used).peekable();
    if rows.peek().is_none() {
        return;
    }
    roff.control("SH", ["FILES"]);
    for (path, _, purpose) in rows {
        roff.control("TP", []);
        roff.text([italic(*path)]);
        roff.text([roman(*purpose)]);
    }
}

/// The command above, those below, those beside, and programs of others.
fn see_also(roff: &mut Roff, name: &str, below: &[String]) {
    let page = |name: &str| format!("blockyard-{}", name.replace(' ', "-"));
    let mut pages = Vec::new();
    if let Some((above, _)) = name.rsplit_once(' ') {
        pages.push(page(above));
    } else if !name.is_empty() {
        pages.push("blockyard".to_owned());
    }
    pages.extend(below.iter().map(|below| page(&super::joined(name, below))));
    pages.extend(groups::beside(name).map(page));
    let mut pages: Vec<_> = pages.into_iter().map(|page| (page, "1")).collect();
    if ["", "serve", "reload", "doctor", "tune"].contains(&name) {
        pages.push((CONFIG_PAGE.to_owned(), "5"));
    }
    pages.push(("cryptsetup".to_owned(), "8"));
    if ["", "serve"].contains(&name) {
        pages.extend(["nbd-client", "qemu-nbd"].map(|other| (other.to_owned(), "8")));
    }
    roff.control("SH", ["SEE ALSO"]);
    for (index, (page, section)) in pages.iter().enumerate() {
        let comma = if index + 1 < pages.len() { "," } else { "" };
        roff.text(reference(page, section, comma));
    }
}

fn reference(page: &str, section: &str, after: &str) -> Vec<clap_mangen::roff::Inline> {
    vec![bold(page), roman(format!("({section}){after}"))]
}
