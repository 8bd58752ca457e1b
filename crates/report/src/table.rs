//! Columns of equal width, and paragraphs of limited width.

/// Alignment of a cell in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Between two columns.
const GAP: &str = "  ";

/// Formats rows of cells, with columns as wide as their widest cells. The first row is the heading
/// and gets a rule below it. A row may be shorter than the others.
pub(crate) fn table(aligns: &[Align], rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns)
        .map(|n| rows.iter().filter_map(|row| row.get(n)).map(|c| width(c)).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (n, cell) in row.iter().enumerate() {
            let space = " ".repeat(widths[n] - width(cell));
            let align = aligns.get(n).copied().unwrap_or(Align::Right);
            let gap = if n == 0 { "" } else { GAP };
            line += gap;
            match align {
                Align::Left => line.extend([clean(cell).as_str(), &space]),
                Align::Right => line.extend([space.as_str(), &clean(cell)]),
            }
        }
        out += line.trim_end();
        out.push('\n');
        if index == 0 {
            let rule: Vec<_> = widths.iter().map(|width| "-".repeat(*width)).collect();
            out += &rule.join(GAP);
            out.push('\n');
        }
    }
    out
}

/// Breaks text into lines of at most `width_max` characters; a longer word has a line of its own.
pub(crate) fn wrap(text: &str, width_max: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && width(&line) + 1 + width(word) > width_max {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += &clean(word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// Replaces control characters, because names come from untrusted files.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [row(&["item", "time"]), row(&["a", "4.1 µs"]), row(&["Random Read", "1 s"])];
        let expected = "\
item           time
-----------  ------
a            4.1 µs
Random Read     1 s
";
        assert_eq!(table(&[Align::Left, Align::Right], &rows), expected);
    }

    #[test]
    fn short_rows_long_rows_and_no_rows_print() {
        assert_eq!(table(&[], &[]), "");
        let rows = [row(&["a"]), row(&["b", "2"]), row(&[])];
        assert_eq!(table(&[Align::Left], &rows), "a\n-  -\nb  2\n\n");
    }

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        let rows = [row(&["a\x1b[2J"]), row(&["b\nc"])];
        assert_eq!(table(&[], &rows), "a?[2J\n-----\n  b?c\n");
    }

    #[test]
    fn paragraphs_break_between_words() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrap("a verylongword b", 5), ["a", "verylongword", "b"]);
        assert!(wrap(" ", 5).is_empty());
    }
}
