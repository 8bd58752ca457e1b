//! The commands of a page, by section.

use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Headings with the commands below them.
pub(super) struct Page {
    sections: BTreeMap<String, String>,
    /// Headings whose commands have been taken.
    taken: RefCell<Vec<String>>,
}

impl Page {
    /// Finds the blocks of a page that are marked as shell.
    pub(super) fn of(text: &str) -> Page {
        let mut sections: BTreeMap<String, String> = BTreeMap::new();
        let mut heading = "";
        let mut is_shell = false;
        for line in text.lines() {
            if line.starts_with("```") {
                is_shell = line == "```sh";
            } else if is_shell {
                let script = sections.entry(heading.to_owned()).or_default();
                script.push_str(line);
                script.push('\n');
            } else if let Some(name) = line.strip_prefix("## ") {
                heading = name;
            }
        }
        Page { sections, taken: RefCell::default() }
    }

    /// The commands of a section.
    pub(super) fn commands(&self, heading: &str) -> Result<&str> {
        self.taken.borrow_mut().push(heading.to_owned());
        let script = self.sections.get(heading);
        script.map(String::as_str).with_context(|| format!("the page has no {heading:?}"))
    }

    /// Every command of the page must have been run.
    pub(super) fn all_were_taken(&self) -> Result<()> {
        let taken = self.taken.borrow();
        let left: Vec<_> = self.sections.keys().filter(|name| !taken.contains(name)).collect();
        ensure!(left.is_empty(), "no case runs the commands of {left:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_belong_to_their_heading_and_none_is_forgotten() {
        let page = Page::of(
            "## A\n```sh\none\n# two\n```\ntext\n```toml\nx = 1\n```\n## B\n\
                             ```sh\nthree\n```\n",
        );
        assert_eq!(page.commands("A").unwrap(), "one\n# two\n");
        assert!(page.commands("C").is_err());
        let error = page.all_were_taken().unwrap_err().to_string();
        assert!(error.contains("\"B\"") && !error.contains("\"A\""), "{error}");
    }
}
