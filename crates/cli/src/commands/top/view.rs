//! The view of `top` on a terminal: a table of all exports, or all figures of one.

use std::cmp::Ordering;

use blockyard::status::{Activity, State, VolumeStatus};

use super::screen::{Key, Size};
use super::{Snapshot, rates, volume, volumes};
use crate::failure::printable;
use crate::size::{human_count, human_size, human_time};

/// Lines of the table besides its rows: the summary, the names of the columns, the keys.
const OTHER_LINES: usize = 3;
const KEYS: &str = "q quit  arrows PgUp PgDn  Enter details  sort: n name, r read, w write, l mean";

/// Order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Name,
    Read,
    Write,
    Latency,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Read => "read",
            Self::Write => "write",
            Self::Latency => "latency",
        }
    }
}

/// State of the view.
pub(super) struct View {
    sort: Sort,
    /// Names of the selected volume, which stays selected when the order changes.
    selected: Option<Vec<String>>,
    /// First row of the table on the screen; first line of the details.
    first: usize,
    shows_details: bool,
    /// A person has chosen.
    has_chosen: bool,
}

/// A volume in the table.
struct Row<'a> {
    device: &'a VolumeStatus,
    before: Activity,
    name: String,
    /// Requests and bytes per second.
    read: [f64; 2],
    write: [f64; 2],
    mean_ns: f64,
}

impl View {
    pub(super) fn new() -> Self {
        Self { sort: Sort::Name, selected: None, first: 0, shows_details: false, has_chosen: false }
    }

    /// Follows a key; true if the person quits.
    pub(super) fn on_key(
        &mut self,
        key: Key,
        (now, before): (&Snapshot, &Snapshot),
        size: Size,
    ) -> bool {
        let page = size.rows.saturating_sub(OTHER_LINES).max(1) as isize;
        match key {
            Key::Char('q') => return true,
            Key::Char('n') => self.sort = Sort::Name,
            Key::Char('r') => self.sort = Sort::Read,
            Key::Char('w') => self.sort = Sort::Write,
            Key::Char('l') => self.sort = Sort::Latency,
            Key::Enter => {
                self.shows_details = !self.details(now);
                self.has_chosen = true;
                self.first = 0;
            }
            Key::Escape => {
                self.shows_details = false;
                self.has_chosen = true;
                self.first = 0;
            }
            Key::Up | Key::Char('k') => self.go((now, before), -1),
            Key::Down | Key::Char('j') => self.go((now, before), 1),
            Key::PageUp => self.go((now, before), -page),
            Key::PageDown => self.go((now, before), page),
            Key::Home | Key::Char('g') => self.go((now, before), isize::MIN),
            Key::End | Key::Char('G') => self.go((now, before), isize::MAX),
            Key::Char(_) => {}
        }
        false
    }

    /// The only export is shown in full from the start.
    fn details(&self, now: &Snapshot) -> bool {
        self.shows_details || (!self.has_chosen && now.status.devices.len() == 1)
    }

    fn go(&mut self, (now, before): (&Snapshot, &Snapshot), by: isize) {
        if self.details(now) {
            self.first = self.first.saturating_add_signed(by);
            return;
        }
        let rows = self.rows(now, before);
        let place = self.place(&rows).saturating_add_signed(by).min(rows.len().saturating_sub(1));
        self.selected = rows.get(place).map(|row| row.device.exports.clone());
    }

    fn rows<'a>(&self, now: &'a Snapshot, before: &'a Snapshot) -> Vec<Row<'a>> {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let mut rows: Vec<Row<'_>> =
            volumes(now, before).map(|(device, before)| Row::of(device, before, seconds)).collect();
        let more = |one: f64, other: f64| other.total_cmp(&one);
        rows.sort_by(|one, other| {
            let by = match self.sort {
                Sort::Name => Ordering::Equal,
                Sort::Read => more(one.read[1], other.read[1]),
                Sort::Write => more(one.write[1], other.write[1]),
                Sort::Latency => more(one.mean_ns, other.mean_ns),
            };
            by.then_with(|| one.name.cmp(&other.name))
        });
        rows
    }

    /// Row of the selected volume; the first if it is gone.
    fn place(&self, rows: &[Row<'_>]) -> usize {
        let is_it = |row: &Row<'_>| self.selected.as_ref() == Some(&row.device.exports);
        rows.iter().position(is_it).unwrap_or(0)
    }

    /// The lines of the screen.
    pub(super) fn lines(&mut self, now: &Snapshot, before: &Snapshot, size: Size) -> Vec<String> {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let rows = self.rows(now, before);
        let place = self.place(&rows);
        let body = size.rows.saturating_sub(OTHER_LINES).max(1);
        if self.details(now)
            && let Some(row) = rows.get(place)
        {
            let text = volume(row.device, &row.before, seconds);
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            // The last line of the screen has the keys.
            let room = size.rows.saturating_sub(1).max(1);
            self.first = self.first.min(lines.len().saturating_sub(room));
            lines = lines.split_off(self.first);
            lines.truncate(room);
            lines.push("q quit  arrows scroll  Enter all exports".into());
            return lines;
        }
        // The selected row is on the screen.
        let first = self.first.min(place).max((place + 1).saturating_sub(body));
        self.first = first.min(rows.len().saturating_sub(body));
        let connections = rows.iter().map(|row| row.device.counts.connections).sum();
        let mut lines = vec![
            format!(
                "{}, {}, by {}",
                human_count(rows.len() as u64, "export"),
                human_count(connections, "connection"),
                self.sort.name()
            ),
            format!(
                "  {:<20}{:>5}{:>9}{:>12}{:>9}{:>12}",
                "EXPORT", "CONN", "READ/s", "", "WRITE/s", ""
            ) + &format!("{:>9}", "MEAN"),
        ];
        let shown = rows.iter().enumerate().skip(self.first).take(body);
        lines.extend(shown.map(|(at, row)| row.line(at == place)));
        lines.push(KEYS.into());
        lines
    }
}

impl<'a> Row<'a> {
    fn of(device: &'a VolumeStatus, before: Activity, seconds: f64) -> Self {
        let requests = &device.activity.requests;
        let [read_requests, read_bytes, _] = rates(&requests.read, &before.requests.read, seconds);
        let [write_requests, write_bytes, _] =
            rates(&requests.write, &before.requests.write, seconds);
        let mean_ns = requests.shares_since(&before.requests).mean_ns;
        let name = printable(device.exports.first().map_or("", String::as_str));
        let read = [read_requests, read_bytes];
        let write = [write_requests, write_bytes];
        Self { device, before, name, read, write, mean_ns }
    }

    fn line(&self, is_selected: bool) -> String {
        let mark = if is_selected { '>' } else { ' ' };
        let flag = match self.device.state {
            _ if self.device.loss.is_some() || self.device.refused_write.is_some() => '!',
            State::Suspended => 'S',
            State::Active if !self.device.lost_servers.is_empty() => 'L',
            State::Active => ' ',
        };
        // An export with a long name keeps its columns.
        let name: String = self.name.chars().take(19).collect();
        let size = |bytes: f64| human_size(bytes as u64);
        format!(
            "{mark}{flag}{name:<20}{:>5}{:>9.0}{:>12}{:>9.0}{:>12}{:>9}",
            self.device.counts.connections,
            self.read[0],
            size(self.read[1]),
            self.write[0],
            size(self.write[1]),
            human_time(self.mean_ns),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use blockyard::Status;
    use serde_json::json;

    use super::*;

    const SIZE: Size = Size { columns: 80, rows: 24 };

    /// Exports of these names; each reads more than the one before.
    fn snapshot(count: u64, at: Instant, factor: u64) -> Snapshot {
        let device = |number: u64| {
            let reads = json!({ "requests": number * factor, "bytes": number * factor * 4096 });
            json!({ "exports": [format!("disk{number:02}\u{1b}")], "state": "active",
                    "requests": { "read": reads } })
        };
        let devices: Vec<_> = (0..count).map(device).collect();
        let status = json!({ "devices": devices }).to_string();
        Snapshot { status: Status::parse(status.as_bytes()).unwrap(), at }
    }

    fn both(count: u64) -> (Snapshot, Snapshot) {
        let begun = Instant::now();
        (snapshot(count, begun + Duration::from_secs(1), 20), snapshot(count, begun, 10))
    }

    fn rows(lines: &[String]) -> Vec<&str> {
        lines[2..lines.len() - 1].iter().map(|line| line[2..8].trim()).collect()
    }

    #[test]
    fn thirty_exports_fit_and_the_selected_one_is_always_shown() {
        let (now, before) = both(30);
        let mut view = View::new();
        let lines = view.lines(&now, &before, SIZE);
        assert_eq!(lines.len(), 24);
        for line in &lines {
            assert!(line.chars().count() <= 80 && !line.contains('\u{1b}'), "{line}");
        }
        assert_eq!(rows(&lines)[..2], ["disk00", "disk01"]);
        assert!(lines[2].starts_with('>'));
        for (key, selected) in [
            (Key::Down, "disk01"),
            (Key::Char('j'), "disk02"),
            (Key::Up, "disk01"),
            (Key::PageDown, "disk22"),
            (Key::End, "disk29"),
            (Key::Down, "disk29"),
            (Key::PageUp, "disk08"),
            (Key::Home, "disk00"),
            (Key::Char('k'), "disk00"),
        ] {
            assert!(!view.on_key(key, (&now, &before), SIZE));
            let lines = view.lines(&now, &before, SIZE);
            let line = lines.iter().find(|line| line.starts_with('>')).unwrap();
            assert!(line.contains(selected), "{key:?}: {line}");
        }
        assert!(view.on_key(Key::Char('q'), (&now, &before), SIZE));
    }

    #[test]
    fn rows_are_sorted_and_the_selected_export_stays_selected() {
        let (now, before) = both(30);
        let mut view = View::new();
        view.on_key(Key::Down, (&now, &before), SIZE);
        view.on_key(Key::Char('r'), (&now, &before), SIZE);
        let lines = view.lines(&now, &before, SIZE);
        assert!(lines[0].contains("by read"), "{}", lines[0]);
        assert!(lines.iter().any(|line| line.starts_with('>') && line.contains("disk01")));
        view.on_key(Key::Home, (&now, &before), SIZE);
        assert_eq!(rows(&view.lines(&now, &before, SIZE))[..2], ["disk29", "disk28"]);
        view.on_key(Key::Char('n'), (&now, &before), SIZE);
        view.on_key(Key::Home, (&now, &before), SIZE);
        assert_eq!(rows(&view.lines(&now, &before, SIZE))[0], "disk00");
    }

    #[test]
    fn details_of_one_export_are_shown_and_left_again() {
        let (now, before) = both(1);
        let mut view = View::new();
        assert!(view.lines(&now, &before, SIZE)[0].contains("export \"disk00"));
        view.on_key(Key::Enter, (&now, &before), SIZE);
        assert!(view.lines(&now, &before, SIZE)[0].contains("1 export,"));
        let (now, before) = both(30);
        let mut view = View::new();
        view.on_key(Key::End, (&now, &before), SIZE);
        view.on_key(Key::Enter, (&now, &before), SIZE);
        let small = Size { columns: 80, rows: 5 };
        view.on_key(Key::End, (&now, &before), small);
        let lines = view.lines(&now, &before, small);
        assert_eq!(lines.len(), 5);
        assert!(!lines[0].contains("disk29"), "{lines:?}");
        view.on_key(Key::Home, (&now, &before), small);
        assert!(view.lines(&now, &before, small)[0].contains("disk29"));
        view.on_key(Key::Escape, (&now, &before), small);
        assert_eq!(view.lines(&now, &before, small).len(), 5);
    }
}
