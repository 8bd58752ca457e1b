//! A page as its reader follows it: commands, files to write, and blocks that do not run here.

use crate::tools::{self, root, tool};
use anyhow::{Context, Result, bail, ensure};
use std::iter::Peekable;
use std::str::Lines;

/// Programs that begin a line of commands, in blocks without a language.
const PROGRAMS: &[&str] = &[
    "$",
    "./x",
    "blktrace",
    "blockyard",
    "cargo",
    "cat",
    "cp",
    "curl",
    "ddrescue",
    "debootstrap",
    "fio",
    "install",
    "kubectl",
    "mkdir",
    "modprobe",
    "mount",
    "nbdcopy",
    "openssl",
    "pip",
    "podman",
    "promtool",
    "qemu-img",
    "qemu-nbd",
    "qemu-system-x86_64",
    "rbd",
    "sudo",
    "systemctl",
    "truncate",
];

/// A piece of a page that a shell runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Commands, and the output that the page shows. Commands with an error as their output fail.
    Commands { text: String, shown: Option<String> },
    /// A file that the reader writes.
    File { name: String, content: String },
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) steps: Vec<Step>,
    /// Commands that the reader sees and that run.
    pub(super) commands: usize,
    /// Blocks of commands that do not run here, for a reason on the page.
    pub(super) excused: usize,
}

/// Pages that a reader may follow, by name: the front page and docs, but no decisions.
pub(super) fn all() -> Result<Vec<(String, Page)>> {
    let mut git = tool("git");
    git.args(["ls-files", "README.md", "CONTRIBUTING.md", "docs/*.md"]).current_dir(root());
    let page = |path: &str| {
        let text = std::fs::read_to_string(root().join(path)).context(path.to_owned())?;
        let name = path.trim_start_matches("docs/").trim_end_matches(".md").to_owned();
        Ok((name, Page::parse(&text).context(path.to_owned())?))
    };
    let paths = tools::read(&mut git)?;
    paths.lines().filter(|path| !path.starts_with("docs/rfd/")).map(page).collect()
}

/// A part of the text that is no prose.
struct Piece<'a> {
    kind: Kind<'a>,
    /// Its first line, for errors.
    line: &'a str,
    text: String,
}

#[derive(PartialEq, Eq)]
enum Kind<'a> {
    Comment,
    /// With the words behind the backticks.
    Fenced(&'a str),
    Indented,
}

impl Page {
    pub(super) fn parse(text: &str) -> Result<Page> {
        let mut page = Page::default();
        let mut is_excused = false;
        let mut whole = false;
        for piece in pieces(text)? {
            let line = piece.line;
            if piece.kind == Kind::Comment {
                ensure!(!is_excused, "{line}: commands belong below the comment above this");
                whole |= reason(&piece.text, "not run on this page:")?;
                is_excused = reason(&piece.text, "not run:")?;
                if let Some(commands) = piece.text.strip_prefix("test\n") {
                    page.steps.push(Step::Commands { text: commands.to_owned(), shown: None });
                }
                continue;
            }
            if let Kind::Fenced(words) = piece.kind
                && let Some((_, name)) = words.split_once(' ')
            {
                page.steps.push(Step::File { name: name.to_owned(), content: piece.text });
                continue;
            }
            let is_commands = piece.has_commands();
            if is_excused || whole && is_commands {
                ensure!(is_commands, "{line}: a comment `not run` belongs above commands");
                page.excused += 1;
                is_excused = false;
            } else if piece.kind == Kind::Fenced("console") {
                let steps = commands(&piece.text);
                page.commands += steps.iter().map(Step::count).sum::<usize>();
                page.steps.extend(steps);
            } else if is_commands {
                bail!(
                    "{line}: commands stand in a block `console`, or below a comment \
                     `not run: REASON`"
                );
            }
        }
        ensure!(!is_excused, "commands belong below the last comment");
        if whole {
            page.steps.clear();
        }
        Ok(page)
    }
}

/// Whether a comment is the one that begins so. Then it has a reason.
fn reason(comment: &str, begin: &str) -> Result<bool> {
    let Some(reason) = comment.strip_prefix(begin) else { return Ok(false) };
    ensure!(!reason.trim().is_empty(), "{begin} has no reason");
    Ok(true)
}

impl Piece<'_> {
    fn has_commands(&self) -> bool {
        let begins = |line: &str| {
            line.split_whitespace().next().is_some_and(|word| PROGRAMS.contains(&word))
        };
        match self.kind {
            Kind::Comment => false,
            Kind::Fenced("console" | "sh" | "bash") => true,
            Kind::Fenced("") | Kind::Indented => self.text.lines().any(begins),
            Kind::Fenced(_) => false,
        }
    }
}

impl Step {
    /// Number of commands: lines that continue others do not count.
    fn count(&self) -> usize {
        let Step::Commands { text, .. } = self else { return 0 };
        let mut is_begun = false;
        let mut count = 0;
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            count += usize::from(!is_begun);
            is_begun = line.ends_with(['\\', '|']);
        }
        count
    }
}

fn pieces(page: &str) -> Result<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let mut lines = page.lines().peekable();
    let mut is_behind_empty = true;
    while let Some(line) = lines.next() {
        let (kind, text) = if line == "<!-- test" {
            (Kind::Comment, format!("test\n{}", until("-->", line, &mut lines)?))
        } else if let Some(comment) = line.strip_prefix("<!--") {
            let mut text = comment.trim_start().to_owned();
            while !text.contains("-->") {
                text += lines.next().with_context(|| format!("{line} has no end"))?;
            }
            (Kind::Comment, text.split("-->").next().unwrap_or_default().to_owned())
        } else if let Some(words) = line.strip_prefix("```") {
            (Kind::Fenced(words), until("```", line, &mut lines)?)
        } else if is_behind_empty && line.starts_with("    ") {
            let mut text = format!("{line}\n");
            while let Some(next) = lines.next_if(|it| it.starts_with("    ") || it.is_empty()) {
                text.push_str(next);
                text.push('\n');
            }
            (Kind::Indented, text)
        } else {
            is_behind_empty = line.is_empty();
            continue;
        };
        is_behind_empty = true;
        pieces.push(Piece { kind, line, text });
    }
    Ok(pieces)
}

/// The lines before an end.
fn until(end: &str, begin: &str, lines: &mut Peekable<Lines>) -> Result<String> {
    let mut block = String::new();
    loop {
        let line = lines.next().with_context(|| format!("{begin} has no end"))?;
        if line == end {
            return Ok(block);
        }
        block.push_str(line);
        block.push('\n');
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str, shown: Option<&str>) -> Step {
        Step::Commands { text: text.to_owned(), shown: shown.map(str::to_owned) }
    }

    #[test]
    fn steps_are_files_commands_and_their_output() {
        let page = "# A page\n\n```console\na\nb \\\n  b\n```\n<!-- test\nc\n-->\n\
                    ```yaml pod.yaml\nx: 1\n```\n\
                    ```console\n$ d\n1\n2\n$ e\nerror: no\n```\n";
        let page = Page::parse(page).unwrap();
        assert_eq!(
            page.steps,
            [
                command("a\nb \\\n  b\n", None),
                command("c\n", None),
                Step::File { name: "pod.yaml".to_owned(), content: "x: 1\n".to_owned() },
                command("d", Some("1\n2")),
                command("e", Some("error: no\n")),
            ]
        );
        assert_eq!((page.commands, page.excused), (4, 0));
        assert!(Page::parse("```console\na\n").is_err());
    }

    #[test]
    fn commands_that_do_not_run_have_a_reason() {
        for block in ["```sh\na\n```\n", "```\n$ a\n```\n", "\n    blockyard info x\n"] {
            assert!(Page::parse(block).is_err(), "{block}");
            let page = Page::parse(&format!("<!-- not run: a disk -->\n{block}")).unwrap();
            assert_eq!(page, Page { excused: 1, ..Page::default() }, "{block}");
            let page = format!("<!-- not run on this page: a\ndisk -->\n{block}Words.\n{block}");
            assert_eq!(Page::parse(&page).unwrap().excused, 2, "{block}");
            assert!(Page::parse(&format!("<!-- not run: -->\n{block}")).is_err(), "{block}");
        }
        assert_eq!(Page::parse("\n    0 2048 zero\n").unwrap(), Page::default());
        assert!(Page::parse("<!-- not run: a disk -->\n\n    0 2048 zero\n").is_err());
        assert!(Page::parse("<!-- not run: a disk -->\nWords.\n").is_err());
    }

    #[test]
    fn every_command_of_every_page_runs_or_says_why_not() {
        let pages = all().unwrap();
        assert!(pages.iter().any(|(name, page)| name == "README" && page.commands > 0));
        assert!(pages.iter().any(|(name, page)| name == "guide/everyday" && page.commands > 0));
    }
}
