//! Tables in Markdown that line up, and their place on a page between two marks.

use crate::tools;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Lines of cells as a table; the first line is the heading. Numbers stand right.
pub(crate) fn table(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let padded = line.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!(" {cell:<width$} ") } else { format!(" {cell:>width$} ") }
        });
        let _ = writeln!(text, "|{}|", padded.collect::<Vec<_>>().join("|"));
        if index == 0 {
            let rules = widths.iter().enumerate().map(|(column, width)| {
                let end = if column == 0 { '-' } else { ':' };
                format!("{}{end}", "-".repeat(width + 1))
            });
            let _ = writeln!(text, "|{}|", rules.collect::<Vec<_>>().join("|"));
        }
    }
    text
}

/// Three significant digits, if there are so many.
pub(crate) fn short(number: f64) -> String {
    match number {
        number if number < 10.0 => format!("{number:.2}"),
        number if number < 100.0 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

/// The part of a page that a command makes: it stands between two comments with the command.
pub(crate) struct Section {
    /// The command.
    pub(crate) command: &'static str,
}

impl Section {
    /// Puts the text between the marks of a page and keeps the rest.
    pub(crate) fn write(&self, path: &Path, text: &str) -> Result<()> {
        let place = path.display().to_string();
        fs::write(path, self.page(path, text)?).context(place)
    }

    /// Writes the text to a page of the project, or compares it with the page.
    pub(crate) fn check_or_write(&self, page: &str, text: &str, write: bool) -> Result<()> {
        let path = tools::root().join(page);
        if write {
            return self.write(&path, text);
        }
        ensure!(
            fs::read_to_string(&path).context(page.to_owned())? == self.page(&path, text)?,
            "{page} differs from the experiment; write it with: {} --write\n{text}",
            self.command
        );
        println!("{page} has the numbers of the experiment");
        Ok(())
    }

    /// The page with this text between its marks.
    pub(crate) fn page(&self, path: &Path, text: &str) -> Result<String> {
        let place = path.display().to_string();
        let page = fs::read_to_string(path).with_context(|| place.clone())?;
        let [begin, end] = self.marks();
        self.put(&page, text)
            .with_context(|| format!("{place}: the lines {begin:?} and {end:?} are missing"))
    }

    fn marks(&self) -> [String; 2] {
        ["from here", "to here"].map(|end| format!("<!-- {}: {end} -->", self.command))
    }

    fn put(&self, page: &str, text: &str) -> Option<String> {
        let [begin, end] = self.marks();
        let (before, rest) = page.split_once(&begin)?;
        let (_, behind) = rest.split_once(&end)?;
        Some(format!("{before}{begin}\n{}\n{end}{behind}", text.trim_end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_replace_what_was_between_the_marks() {
        let section = Section { command: "cargo x bench all" };
        let [begin, end] = section.marks();
        let page = format!("# Title\n\n{begin}\nold\n{end}\n\nWords.\n");
        let page = section.put(&page, "new\n").expect("both marks are there");
        assert_eq!(page, format!("# Title\n\n{begin}\nnew\n{end}\n\nWords.\n"));
        assert!(section.put("# Title\n", "new").is_none());
    }

    #[test]
    fn rows_line_up_under_their_heading() {
        let line = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = table(&[line(["", "ms"]), line(["a", "0.25"]), line(["longer name", "12"])]);
        let lengths: Vec<_> = text.lines().map(str::len).collect();
        assert_eq!(lengths, [lengths[0]; 4], "{text}");
        assert!(text.contains("| longer name |   12 |"), "{text}");
    }
}
