//! `cargo x recipes`: runs the pages of docs/recipes as a reader would, and compares the output. It
//! also runs the pages in docs that have a comment of a test.
//!
//! All commands of a page run in one shell and an empty folder, in their order:
//!
//! * a block of `console`: commands. In a block with prompts (`$ `), the other lines are the output
//!   of the command above, and `…` stands for any text in a line.
//! * a block whose language is followed by a name: a file with that content.
//! * a comment that begins with `test`: commands that a reader does not see, such as the wait for a
//!   server that started in the background.

use crate::lab::Lab;
use crate::tools::{root, tail, tool};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Selection.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these pages, such as `machine`; without a name, all.
    #[arg(value_name = "PAGE")]
    pages: Vec<String>,
}

/// A piece of a page that a shell runs.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Commands, and the output that the page shows. Commands with an error as their output fail.
    Commands { text: String, shown: Option<String> },
    /// A file that the reader writes.
    File { name: String, content: String },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let lab = Lab::new()?;
    for page in pages(&args.pages)? {
        let name = page.file_stem().context("a page has a name")?.to_string_lossy().into_owned();
        follow(&lab, &page, &lab.disk().join(&name)).with_context(|| format!("the page {name}"))?;
        println!("{name}: every command works, and says what the page says");
    }
    Ok(())
}

/// The pages with these names, or all.
fn pages(names: &[String]) -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for folder in ["docs", "docs/recipes"] {
        for entry in fs::read_dir(root().join(folder))? {
            let path = entry?.path();
            let is_page = path.extension().is_some_and(|end| end == "md");
            if is_page && fs::read_to_string(&path)?.contains("\n<!-- test\n") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    let stem = |path: &PathBuf| path.file_stem().map(|name| name.to_string_lossy().into_owned());
    if let Some(name) =
        names.iter().find(|name| pages.iter().all(|it| stem(it).as_ref() != Some(*name)))
    {
        bail!(
            "{name}: no such page; the pages are {:?}",
            pages.iter().filter_map(stem).collect::<Vec<_>>()
        );
    }
    pages.retain(|path| names.is_empty() || stem(path).is_some_and(|name| names.contains(&name)));
    Ok(pages)
}

/// Runs a page in a new folder.
fn follow(lab: &Lab, page: &Path, folder: &Path) -> Result<()> {
    let text = fs::read_to_string(page)?;
    let steps = steps(&text)?;
    fs::create_dir_all(folder.join("said"))?;
    fs::create_dir(folder.join("work"))?;
    fs::set_permissions(folder, PermissionsExt::from_mode(0o700))?;
    let script = folder.join("script");
    fs::write(&script, shell(&steps))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = tool("bash");
    command.arg(&script).current_dir(folder.join("work"));
    command.env("PATH", format!("{}:{path}", lab.dir().display())).env("HOME", folder);
    command.env("said", folder.join("said")).env("dist", root().join("target/dist"));
    command.env("recipes", root().join("tests/recipes"));
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

/// The steps of a page.
fn steps(page: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let until = |end: &str, lines: &mut std::str::Lines| -> Result<String> {
            let mut block = String::new();
            loop {
                let inner = lines.next().with_context(|| format!("{line} has no end"))?;
                if inner == end {
                    return Ok(block);
                }
                block.push_str(inner);
                block.push('\n');
            }
        };
        if line == "<!-- test" {
            steps.push(Step::Commands { text: until("-->", &mut lines)?, shown: None });
        } else if let Some(language) = line.strip_prefix("```") {
            let block = until("```", &mut lines)?;
            match language.split_once(' ') {
                Some((_, name)) => steps.push(Step::File { name: name.to_owned(), content: block }),
                None if language == "console" => steps.extend(commands(&block)),
                None => bail!("{line}: a block is `console`, or has the name of its file"),
            }
        }
    }
    Ok(steps)
}

/// The commands of a block: all at once, or with prompts each apart.
fn commands(block: &str) -> Vec<Step> {
    if !block.starts_with("$ ") {
        return vec![Step::Commands { text: block.to_owned(), shown: None }];
    }
    let block = format!("\n{block}");
    let parts = block.split("\n$ ").skip(1);
    let step = |part: &str| {
        let (text, shown) = part.split_once('\n').unwrap_or((part, ""));
        // A server in the background goes on to speak.
        let shown = (!text.ends_with('&')).then(|| shown.to_owned());
        Step::Commands { text: text.to_owned(), shown }
    };
    parts.map(step).collect()
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
    fn steps_are_files_commands_and_their_output() {
        let page = "# A page\n\n```console\na\nb\n```\n<!-- test\nc\n-->\n\
                    ```yaml pod.yaml\nx: 1\n```\n\
                    ```console\n$ d\n1\n2\n$ e\nerror: no\n```\n";
        let commands = |text: &str, shown: Option<&str>| Step::Commands {
            text: text.to_owned(),
            shown: shown.map(str::to_owned),
        };
        let steps = steps(page).unwrap();
        assert_eq!(
            steps,
            [
                commands("a\nb\n", None),
                commands("c\n", None),
                Step::File { name: "pod.yaml".to_owned(), content: "x: 1\n".to_owned() },
                commands("d", Some("1\n2")),
                commands("e", Some("error: no\n")),
            ]
        );
        assert!(shell(&steps[4..]).contains("if e\nthen"));
        assert!(super::steps("```console\na\n").is_err());
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
