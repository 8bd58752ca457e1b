//! `cargo x recording`: the terminal session on the front page, from a real run.
//!
//! Each command runs in a terminal of its own. The picture has the commands, the typed keys that a
//! terminal shows, and the output. Without `--write`, the text of a new run is compared with the
//! text of the picture.

mod svg;
mod terminal;

use crate::lab::Lab;
use crate::tools;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use terminal::Prompt;

const PICTURE: &str = "docs/images/terminal.svg";

/// A command, and the answers to its prompts.
struct Step {
    command: &'static str,
    prompts: &'static [Prompt],
}

const ASKS: Prompt = Prompt { text: "assphrase for home.img: ", answer: "correct horse\n" };
const AGAIN: Prompt = Prompt { text: "Verify passphrase: ", answer: "correct horse\n" };

const SESSION: &[Step] = &[
    Step { command: "blockyard format home.img --size 48M", prompts: &[ASKS, AGAIN] },
    Step { command: "mke2fs -q -t ext4 -d Documents documents.img 32M", prompts: &[] },
    Step { command: "blockyard load home.img -i documents.img", prompts: &[ASKS] },
    Step { command: "blockyard ls home.img:/", prompts: &[ASKS] },
    Step {
        command: "blockyard serve home.img --run 'qemu-img convert -O qcow2 \"$uri\" home.qcow2'",
        prompts: &[ASKS],
    },
    Step { command: "blockyard mount home.img files", prompts: &[ASKS] },
    Step { command: "cat files/letter.txt; blockyard umount files", prompts: &[] },
    Step {
        command: "cryptsetup open --test-passphrase home.img && echo cryptsetup opens it too",
        prompts: &[ASKS],
    },
];

/// Comparison with the picture, or its update.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the picture, instead of comparing its text.
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let lab = Lab::new()?;
    let screen = record(&lab)?;
    if args.write {
        let path = picture();
        fs::write(&path, svg::draw(&screen)).with_context(|| path.display().to_string())?;
        println!("{}", path.display());
        return Ok(());
    }
    compare(&screen)
}

fn picture() -> PathBuf {
    tools::root().join(PICTURE)
}

fn compare(screen: &[Shown]) -> Result<()> {
    let picture = fs::read_to_string(picture()).context(PICTURE)?;
    ensure!(
        picture == svg::draw(screen),
        "{PICTURE} differs from this run; `cargo x recording --write` writes it:\n{}",
        screen.iter().map(|shown| shown.text.as_str()).collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

/// One line of the terminal.
struct Shown {
    text: String,
    /// Whether a person typed it.
    is_command: bool,
}

/// Runs the session in a folder of its own.
fn record(lab: &Lab) -> Result<Vec<Shown>> {
    let home = lab.path("home");
    let documents = home.join("Documents");
    fs::create_dir_all(&documents)?;
    fs::create_dir(home.join("files"))?;
    fs::write(documents.join("letter.txt"), "Dear Anna, the keys are with the neighbour.\n")?;
    fs::write(documents.join("taxes.ods"), [0; 20_000])?;
    let mut screen = Vec::new();
    for step in SESSION {
        screen.push(Shown { text: step.command.into(), is_command: true });
        let output = terminal::run(&home, lab.dir(), step.command, step.prompts);
        let output = output.with_context(|| step.command)?;
        let lines = output.lines().filter_map(|line| settled(line, &home));
        screen.extend(lines.map(|text| Shown { text, is_command: false }));
    }
    fs::remove_dir_all(&home)?;
    Ok(screen)
}

/// The line that remains on the screen, without what differs between runs: the folder of this run,
/// and the process number in the name of a private socket. `None` for a line that was erased.
fn settled(line: &str, home: &Path) -> Option<String> {
    let last = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
    let text = without_escapes(last).trim_end().replace(&format!("{}/", home.display()), "~/");
    if text.is_empty() && !line.is_empty() {
        return None;
    }
    Some(match text.split_once("?socket=") {
        Some((before, _)) => format!("{before}?socket=…"),
        None => text,
    })
}

/// The text without control sequences, ECMA-48 `CSI … final byte`: they clear a line and colour it.
fn without_escapes(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |kept, piece| {
        let end = piece.find(|c: char| ('@'..='~').contains(&c)).map_or(piece.len(), |at| at + 1);
        kept + &piece[end..]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_only_what_remains_on_the_screen() {
        let home = Path::new("/tmp/x");
        let settled = |line| settled(line, home);
        assert_eq!(settled("    (50/100%)\r    (100/100%)\r").as_deref(), Some("    (100/100%)"));
        assert_eq!(settled("at /tmp/x/files").as_deref(), Some("at ~/files"));
        assert_eq!(
            settled("at nbd+unix:///?socket=/run/b-7/s").as_deref(),
            Some("at nbd+unix:///?socket=…")
        );
        assert_eq!(settled("reading 5 of 9\r\x1b[2K"), None);
        assert_eq!(settled("\x1b[1mbold\x1b[0m").as_deref(), Some("bold"));
        assert_eq!(settled("").as_deref(), Some(""));
    }
}
