//! Pages of `docs` as sections of man pages: the forms of Markdown that these pages have.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::page::literal;

/// The text of the first heading.
pub(super) fn title(page: &str) -> String {
    let line = page.lines().find_map(|line| line.strip_prefix("# "));
    line.unwrap_or_default().replace('`', "")
}

/// Appends a page without its first heading.
pub(super) fn append(roff: &mut Roff, page: &str) {
    let mut is_code = false;
    let mut is_header = true;
    for line in page.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            literal(roff, is_code);
        } else if is_code {
            roff.text([roman(line)]);
        } else if let Some(heading) = line.strip_prefix("## ") {
            roff.control("SH", [heading.to_uppercase().as_str()]);
        } else if let Some(row) = line.strip_prefix('|') {
            // The first row names the columns, and the second one is a rule.
            is_header = !row.starts_with("---") && is_header;
            if !is_header && !row.starts_with("---") {
                table_row(roff, row);
            }
        } else if line.is_empty() {
            is_header = true;
            roff.control("PP", []);
        } else if !line.starts_with('#') {
            roff.text(inlines(line));
        }
    }
}

fn table_row(roff: &mut Roff, row: &str) {
    let cells: Vec<_> = row.trim_end_matches('|').split('|').map(str::trim).collect();
    let Some((name, rest)) = cells.split_first() else { return };
    roff.control("TP", []);
    roff.text([bold(name.replace('`', ""))]);
    let rest: Vec<_> = rest.iter().copied().filter(|cell| !cell.is_empty()).collect();
    roff.text(inlines(&rest.join("; ")));
}

/// Code in italics, and links as their text: their targets are no man pages.
fn inlines(text: &str) -> Vec<Inline> {
    let text = without_targets(text).replace("**", "");
    let parts = text.split('`').enumerate().filter(|(_, part)| !part.is_empty());
    parts.map(|(index, part)| if index % 2 == 1 { italic(part) } else { roman(part) }).collect()
}

fn without_targets(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((_, behind)) = after.split_once(')') else { break };
        match before.rsplit_once('[') {
            Some((before, name)) => plain.extend([before, name]),
            None => plain += before,
        }
        rest = behind;
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_tables_become_entries_and_links_become_words() {
        let mut roff = Roff::new();
        append(&mut roff, "# A\n\n## B\n\n| k | v |\n|---|---|\n| `x` | [a](b.md), `c` | |\n");
        let text = roff.to_roff();
        assert_eq!(text, ".PP\n.SH B\n.PP\n.TP\n\\fBx\\fR\na, \\fIc\\fR\n");
    }
}
