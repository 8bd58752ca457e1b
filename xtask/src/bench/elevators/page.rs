//! The tables as readable Markdown.

use super::mix::{Client, ClientResult, Latency};
use crate::markdown::{short, table};

/// A row: its name, and its clients' measurements.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) seen: Vec<ClientResult>,
}

/// A heading, a sentence, a table.
pub(crate) fn section(heading: &str, about: &str, rows: &[Row]) -> String {
    let mut lines = vec![header(rows)];
    lines.extend(rows.iter().map(cells));
    format!("\n### {heading}\n\n{about}\n\n{}", table(&lines))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_a_client_have_its_percentiles() {
        let latency = Some(Latency { p50_ms: 0.254, p99_ms: 12.34, max_ms: 345.6 });
        let seen = |client| ClientResult {
            client,
            mib_s: 700.4,
            iops: 9.0,
            request: latency,
            flush: None,
        };
        let seen = [Client::Stream, Client::Read, Client::Log].map(seen).into();
        let text = section("Title", "About.", &[Row { name: "a".into(), seen }]);
        let cells = "| a |          700 | 0.25 / 12.3 / 346 |";
        assert!(text.contains(cells) && text.contains(" none |\n"), "{text}");
    }
}
