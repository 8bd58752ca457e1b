//! The tables as readable Markdown, and their place on a page.

use super::mix::{Client, ClientResult, Latency};
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Marks before and after the tables on a page.
const BEGIN: &str = "<!-- cargo x bench elevators: from here -->";
const END: &str = "<!-- cargo x bench elevators: to here -->";

/// A row: its name, and its clients' measurements.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) seen: Vec<ClientResult>,
}

/// A heading, a sentence, a table.
pub(crate) fn section(heading: &str, about: &str, rows: &[Row]) -> String {
    let mut lines = vec![header(rows)];
    lines.extend(rows.iter().map(cells));
    let columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = format!("\n### {heading}\n\n{about}\n\n");
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

fn header(rows: &[Row]) -> Vec<String> {
    let mut cells = vec![String::new()];
    for seen in rows.first().map_or(&[][..], |row| &row.seen) {
        cells.extend(match seen.client {
            Client::Stream => vec!["stream MiB/s".into(), "stream write".into()],
            Client::Read => vec!["read IOPS".into(), "4 KiB read".into()],
            Client::Log => vec!["log write".into(), "its flush".into()],
        });
    }
    cells
}

fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.name.clone()];
    for seen in &row.seen {
        let request = latency(seen.request);
        cells.extend(match seen.client {
            Client::Stream => [format!("{:.0}", seen.mib_s), request],
            Client::Read => [format!("{:.0}", seen.iops), request],
            Client::Log => [request, latency(seen.flush)],
        });
    }
    cells
}

/// `p50 / p99 / max`.
fn latency(latency: Option<Latency>) -> String {
    let Some(Latency { p50_ms, p99_ms, max_ms }) = latency else { return "none".into() };
    [p50_ms, p99_ms, max_ms].map(short).join(" / ")
}

/// Three significant digits, if there are so many.
fn short(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2}"),
        ms if ms < 100.0 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    }
}

/// Puts the text between the two marks of a page and keeps the rest.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let place = path.display().to_string();
    let page = fs::read_to_string(path).with_context(|| place.clone())?;
    let page = put(&page, text);
    let page =
        page.with_context(|| format!("{place}: the lines {BEGIN:?} and {END:?} are missing"));
    fs::write(path, page?).context(place)
}

fn put(page: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, behind) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{}\n{END}{behind}", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_replace_what_was_between_the_marks() {
        let page = format!("# Title\n\n{BEGIN}\nold\n{END}\n\nWords.\n");
        let page = put(&page, "new\n").expect("both marks are there");
        assert_eq!(page, format!("# Title\n\n{BEGIN}\nnew\n{END}\n\nWords.\n"));
        assert!(put("# Title\n", "new").is_none());
    }

    #[test]
    fn rows_line_up_under_their_heading() {
        let latency = Some(Latency { p50_ms: 0.254, p99_ms: 12.34, max_ms: 345.6 });
        let seen = |client| ClientResult {
            client,
            mib_s: 700.4,
            iops: 9.0,
            request: latency,
            flush: None,
        };
        let row = |name: &str| Row {
            name: name.into(),
            seen: [Client::Stream, Client::Read, Client::Log].map(seen).into(),
        };
        let text = section("Title", "About.", &[row("a"), row("longer name")]);
        assert!(text.contains("0.25 / 12.3 / 346"), "{text}");
        let lengths: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(lengths.len(), 4);
        assert!(lengths.iter().all(|line| line.len() == lengths[0].len()), "{text}");
    }
}
