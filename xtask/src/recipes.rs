//! `cargo x recipes`: follows README.md and the pages of docs as a reader would, and compares the
//! output.
//!
//! All commands of a page run in one shell and an empty folder, in their order:
//!
//! * a block of `console`: commands. In a block with prompts (`$ `), the other lines are the output
//!   of the command above, and `…` stands for any text in a line.
//! * a block whose language is followed by a name: a file with that content.
//! * a comment that begins with `test`: commands that a reader does not see, such as the wait for a
//!   server that started in the background.
//!
//! A comment `not run: REASON` is above commands that cannot run here, and `not run on this page:
//! REASON` on a page of such commands.

mod page;

use crate::lab::{self, Lab};
use crate::tools::{root, tail, tool};
use anyhow::{Context, Result, bail, ensure};
use page::{Page, Step};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

/// Selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these pages, such as `machine` or `cli/key`; without a name, all.
    #[arg(value_name = "PAGE")]
    pages: Vec<String>,
}

/// Pages that are followed at a time. Most commands wait: for a time limit, a disk, the network.
const READERS: usize = 2;

pub(crate) fn run(args: &Args) -> Result<()> {
    let pages = page::all()?;
    let lab = Lab::new()?;
    let wanted = wanted(&pages, &args.pages)?;
    let next = AtomicUsize::new(0);
    let readers: Vec<Result<()>> = thread::scope(|scope| {
        let read = || {
            while let Some((name, page)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                let begin = Instant::now();
                follow(&lab, page, &lab.disk().join(name.replace('/', "-")))
                    .with_context(|| format!("the page {name}"))?;
                let seconds = begin.elapsed().as_secs_f64();
                println!("{name}: {} commands, {seconds:.1} s", page.commands);
            }
            Ok(())
        };
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
        readers.into_iter().map(|reader| reader.join().expect("readers do not panic")).collect()
    });
    readers.into_iter().collect::<Result<()>>()?;
    let commands: usize = wanted.iter().map(|(_, page)| page.commands).sum();
    let excused: usize = pages.iter().map(|(_, page)| page.excused).sum();
    println!("{commands} commands have run, and say what their pages say");
    println!("{excused} blocks of all pages have a reason not to run");
    Ok(())
}

/// The pages that run with these names or ends of names, or all.
fn wanted<'a>(pages: &'a [(String, Page)], names: &[String]) -> Result<Vec<&'a (String, Page)>> {
    let mut pages: Vec<_> = pages.iter().filter(|(_, page)| !page.steps.is_empty()).collect();
    let is = |page: &str, name: &String| page == name || page.ends_with(&format!("/{name}"));
    if let Some(name) = names.iter().find(|name| pages.iter().all(|(page, _)| !is(page, name))) {
        let known = pages.iter().map(|(page, _)| page.as_str()).collect::<Vec<_>>();
        bail!("{name}: no such page; the pages are {}", known.join(" "));
    }
    pages.retain(|(page, _)| names.is_empty() || names.iter().any(|name| is(page, name)));
    Ok(pages)
}

/// Runs a page in a new folder.
fn follow(lab: &Lab, page: &Page, folder: &Path) -> Result<()> {
    let steps = &page.steps;
    fs::create_dir_all(folder.join("said"))?;
    fs::create_dir(folder.join("work"))?;
    fs::set_permissions(folder, PermissionsExt::from_mode(0o700))?;
    let script = folder.join("script");
    fs::write(&script, shell(steps))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = tool("bash");
    command.arg(&script).current_dir(folder.join("work"));
    command.env("PATH", format!("{}:{path}", lab.dir().display())).env("HOME", folder);
    command.env("said", folder.join("said")).env("dist", root().join("target/dist"));
    command.env("recipes", root().join("tests/recipes"));
    command.env("kept", lab::target().join("recipes"));
    command.env("qemu", lab::target().join("qemu/root"));
    let is_success = command.status()?.success();
    for (index, step) in steps.iter().enumerate() {
        let Step::Commands { text, shown } = step else { continue };
        let Ok(said) = fs::read_to_string(folder.join("said").join(index.to_string())) else {
            break;
        };
        let is_last = !folder.join("said").join((index + 1).to_string()).exists();
        if is_last && !is_success {
            bail!("failed in:\n{text}\n{}", tail(&said));
        }
        if let Some(shown) = shown {
            let text = text.trim();
            ensure!(is_like(shown, &said), "{text}\nsays:\n{said}\nand the page has:\n{shown}");
        }
    }
    ensure!(is_success, "the page has no commands that run");
    Ok(())
}

/// A script of all steps. The output of each goes into a file.
fn shell(steps: &[Step]) -> String {
    let mut script =
        "set -eu -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n".to_owned();
    for (index, step) in steps.iter().enumerate() {
        let _ = writeln!(script, "exec >\"$said\"/{index} 2>&1 </dev/null");
        let _ = match step {
            Step::Commands { text, shown } if fails(shown.as_deref()) => {
                writeln!(script, "if {text}\nthen echo 'has ended with success'; exit 1; fi")
            }
            Step::Commands { text, .. } => writeln!(script, "{text}"),
            Step::File { name, content } => {
                writeln!(script, "cat >{name} <<'END OF THE FILE'\n{content}END OF THE FILE")
            }
        };
    }
    script
}

fn fails(shown: Option<&str>) -> bool {
    shown.is_some_and(|shown| shown.starts_with("error: "))
}

/// Whether an output is the one of a page, in which `…` stands for any text.
fn is_like(shown: &str, said: &str) -> bool {
    let mut rest = said.trim_end();
    let mut pieces = shown.trim_end().split('…');
    let Some(mut piece) = pieces.next().filter(|first| rest.starts_with(first)) else {
        return false;
    };
    rest = &rest[piece.len()..];
    let mut is_open = false;
    for next in pieces {
        piece = next;
        is_open = true;
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.is_empty() || is_open && (piece.is_empty() || said.trim_end().ends_with(piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_with_an_error_as_their_output_must_fail() {
        let page = Page::parse("```console\n$ d\n1\n$ e\nerror: no\n```\n").unwrap();
        assert!(shell(&page.steps).contains("if e\nthen"));
        assert!(!shell(&page.steps).contains("if d\nthen"));
    }

    #[test]
    fn dots_stand_for_any_text() {
        assert!(is_like("one\ntwo\n", "one\ntwo\n"));
        assert!(!is_like("one\n", "one\ntwo\n"));
        assert!(!is_like("one\ntwo\n", "one\n"));
        assert!(is_like("size: … MiB\nend", "size: 7 MiB\nend\n"));
        assert!(!is_like("size: … MiB\nend", "size: 7 KiB\nend\n"));
        assert!(is_like("first\n…", "first\n2\n3\n"));
        assert!(!is_like("… MiB", "7 MiB, not 8\n"));
        assert!(is_like("…", ""));
    }
}
