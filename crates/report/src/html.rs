//! Experiments as one self-contained HTML file: no external script, font or picture. An XML parser
//! can read it too.
//!
//! Tables come first, because they are the results. Important facts are written in words besides
//! colours: the fitted rows, and the failing claims.

use std::fmt::Write as _;

use crate::markup::escape;
use crate::model::{
    Axis, CauseTable, Claim, Experiment, Held, Listing, Plot, Role, Row, Series, Style, Tally,
};
use crate::plot;
use crate::quantity::{self, Scale};
use crate::text::grouped;

const STYLE: &str = include_str!("page.css");

/// The page: contents, summary, and a section for each experiment.
#[must_use]
pub fn html(title: &str, experiments: &[Experiment]) -> String {
    let title = escape(title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    out += &contents(experiments);
    if experiments.iter().any(|one| !one.rows.is_empty() || !one.claims.is_empty()) {
        out += &summary(experiments);
    }
    for (index, experiment) in experiments.iter().enumerate() {
        out += &section(index, experiment);
    }
    out + "</body>\n</html>\n"
}

/// The parts of an experiment: anchor, heading, body.
fn parts(index: usize, experiment: &Experiment) -> Vec<(&'static str, &'static str, String)> {
    let Experiment { conditions, rows, claims, tables, causes, plots, listings, .. } = experiment;
    let plots: String = plots.iter().map(plot::figure).collect();
    let parts = [
        ("comparison", "Ours against published", comparison(rows)),
        ("conditions", "Conditions", self::conditions(conditions)),
        ("results", "Published and ours", self::rows(rows)),
        ("claims", "Claims", self::claims(index, claims)),
        ("measured", "Measured", tables.iter().map(self::causes).collect()),
        ("causes", "Causes", causes.iter().map(self::causes).collect()),
        ("plots", "Plots", plots),
        ("listings", "The workload's own tables", listings.iter().map(listing).collect()),
    ];
    parts.into_iter().filter(|(_, _, body)| !body.is_empty()).collect()
}

fn contents(experiments: &[Experiment]) -> String {
    let mut out = String::from("<nav>\n<ul>\n");
    for (index, experiment) in experiments.iter().enumerate() {
        let title = escape(&experiment.title);
        let _ = write!(out, "<li><a href=\"#e{index}\">{title}</a>");
        let links = parts(index, experiment).into_iter().map(|(anchor, heading, _)| {
            format!("<a href=\"#e{index}-{anchor}\">{}</a>", heading.to_lowercase())
        });
        let links = links.collect::<Vec<_>>().join(", ");
        out += if links.is_empty() { "" } else { ": " };
        out += &links;
        out += "</li>\n";
    }
    if experiments.is_empty() { String::new() } else { out + "</ul>\n</nav>\n" }
}

/// The summary table, with a row for each experiment.
fn summary(experiments: &[Experiment]) -> String {
    let mut out = String::from(
        "<div class=\"wide\"><table class=\"prose\">\n<caption>Summary</caption>\n\
         <thead><tr><th>experiment</th><th class=\"n\">rows calibrated</th>\
         <th class=\"n\">rows predicted</th><th class=\"n\">median size of their error</th>\
         <th>claims</th></tr></thead>\n<tbody>\n",
    );
    for experiment in experiments {
        let of = |role| experiment.rows.iter().filter(move |row| row.role() == role);
        let predicted = of(Role::Predicted);
        let mut errors: Vec<_> = predicted.filter_map(Row::error).map(f64::abs).collect();
        errors.sort_by(f64::total_cmp);
        let median = errors.get(errors.len() / 2);
        let median = median.map_or_else(|| "-".to_owned(), |error| quantity::percent(*error));
        let _ = writeln!(
            out,
            "<tr><th>{}</th><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{median}\
             </td><td>{}</td></tr>",
            escape(&experiment.name),
            of(Role::Calibrated).count(),
            of(Role::Predicted).count(),
            Tally::of(&experiment.claims),
        );
    }
    if experiments.is_empty() { String::new() } else { out + "</tbody>\n</table></div>\n" }
}

fn section(index: usize, experiment: &Experiment) -> String {
    let mut out = format!(
        "<section id=\"e{index}\">\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n",
        escape(&experiment.title),
        escape(&experiment.name)
    );
    for paragraph in &experiment.about {
        let _ = writeln!(out, "<p>{}</p>", escape(paragraph));
    }
    for (anchor, heading, body) in parts(index, experiment) {
        let _ = write!(out, "<h3 id=\"e{index}-{anchor}\">{heading}</h3>\n{body}");
    }
    out + "</section>\n"
}

/// Our numbers over the published ones, in the order of the table, with their intervals. All
/// experiments have one scale: from a tenth to ten times the published number.
fn comparison(rows: &[Row]) -> String {
    let rows = grouped(rows);
    let is_judged = |row: &Row| row.error().is_some() && row.role() != Role::Artefact;
    let mut all: Vec<(f64, &Row, f64)> = Vec::new();
    for (place, row) in rows.iter().copied().filter(|row| is_judged(row)).enumerate() {
        all.extend(row.published.map(|published| (place as f64 + 1.0, row, published)));
    }
    if all.is_empty() {
        return String::new();
    }
    let most = all.len() as f64;
    let line = vec![(1.0, 1.0), (most, 1.0)];
    let mut series = vec![Series { name: "equal".into(), style: Style::Line, points: line }];
    for (role, name) in [(Role::Calibrated, "calibrated"), (Role::Predicted, "predicted")] {
        let of_role = || all.iter().filter(|(_, row, _)| row.role() == role);
        let interval = |(place, row, published): &(f64, &Row, f64)| {
            let ours = row.ours.into_iter();
            ours.flat_map(|ours| [ours.low, ours.high])
                .map(|end| (*place, end / published))
                .collect::<Vec<_>>()
        };
        let median = |(place, row, published): &(f64, &Row, f64)| {
            row.ours.map(|ours| (*place, ours.median / published))
        };
        let intervals: Vec<_> = of_role().flat_map(interval).collect();
        let medians: Vec<_> = of_role().filter_map(median).collect();
        if !medians.is_empty() {
            let style = Style::Intervals;
            series.push(Series { name: format!("{name}, interval"), style, points: intervals });
            let style = Style::Points;
            series.push(Series { name: name.into(), style, points: medians });
        }
    }
    plot::figure(&Plot {
        title: "Ours / published, row by row in the order of the table below".into(),
        x: Axis { label: "row".into(), log: false, shows: None },
        y: Axis { label: "ours / published".into(), log: true, shows: Some((0.1, 10.0)) },
        series,
    })
}

fn conditions(conditions: &[(String, String)]) -> String {
    let mut out = String::from("<div class=\"wide\"><table class=\"stacked\">\n<tbody>\n");
    for (name, value) in conditions {
        let _ = writeln!(out, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    if conditions.is_empty() { String::new() } else { out + "</tbody>\n</table></div>\n" }
}

fn rows(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<p>Ours is the median over all accepted fits and seeds, with the smallest and the largest \
         in brackets. A fit may use the rows marked <em>calibrated</em> and no others: which of \
         them decide stands among the conditions. <em>Predicted</em> rows the model had not seen. \
         An <em>artefact</em> was published, but lies outside the model and is not judged.</p>\n\
         <div class=\"wide\"><table class=\"rows\">\n<thead><tr><th>row</th><th>metric</th>\
         <th>variant</th><th class=\"n\">published</th><th class=\"n\">ours</th>\
         <th>low .. high</th><th class=\"n\">error</th><th>role</th></tr></thead>\n",
    );
    for same_row in grouped(rows).chunk_by(|a, b| a.row == b.row) {
        out += "<tbody>\n";
        let mut row_head = head(&same_row[0].row, same_row.len());
        for same_metric in same_row.chunk_by(|a, b| a.metric == b.metric) {
            let mut metric_head = head(&same_metric[0].metric, same_metric.len());
            for row in same_metric {
                let heads = (std::mem::take(&mut row_head), std::mem::take(&mut metric_head));
                out += &one_row(row, &(heads.0 + &heads.1));
            }
        }
        out += "</tbody>\n";
    }
    out + "</table></div>\n"
}

/// A heading beside `rows` rows.
fn head(name: &str, rows: usize) -> String {
    format!("<th rowspan=\"{rows}\">{}</th>", escape(name))
}

fn one_row(row: &Row, heads: &str) -> String {
    let scale = Scale::of(row.unit, &[row.published, row.ours.map(|ours| ours.median)]);
    let number =
        |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |n| scale.with_unit(n));
    let role = row.role().mark().1;
    format!(
        "<tr class=\"{role}\">{heads}<td class=\"name\">{}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"range\">{}</td><td class=\"n\">{}</td><td class=\"role\">{role}</td></tr>\n",
        escape(&row.variant),
        number(row.published),
        number(row.ours.map(|ours| ours.median)),
        row.ours.map_or_else(String::new, |ours| scale.range(ours)),
        row.error_text(),
    )
}

fn claims(index: usize, claims: &[Claim]) -> String {
    if claims.is_empty() {
        return String::new();
    }
    let mut out = format!("<p><strong>{}.</strong>", Tally::of(claims));
    let failing =
        claims.iter().enumerate().filter(|(_, claim)| claim.held.is_some_and(Held::nowhere));
    let links: Vec<_> = failing
        .map(|(n, claim)| {
            format!("<a class=\"id\" href=\"#e{index}-claim{n}\">{}</a>", escape(&claim.id))
        })
        .collect();
    if !links.is_empty() {
        let _ = write!(out, " Open questions, because they fail: {}.", links.join(", "));
    }
    out += " A negative control is the same test where the effect must be absent.</p>\n\
            <div class=\"wide\"><table class=\"claims stacked\">\n<thead><tr>\
            <th>verdict</th><th>claim</th>\
            <th>statement</th><th>asked</th><th>ours</th><th>negative control</th>\
            </tr></thead>\n<tbody>\n";
    for (n, claim) in claims.iter().enumerate() {
        let fails = claim.held.is_some_and(Held::nowhere) || claim.control_holds == Some(false);
        let note =
            claim.note.as_deref().map(|note| format!("<p class=\"note\">{}</p>", escape(note)));
        let control = claim.control.as_deref().map(|control| {
            let verdict = match claim.control_holds {
                Some(true) => format!("{HOLDS}: "),
                Some(false) => format!("{FAILS}: "),
                None => String::new(),
            };
            format!("{verdict}{}", escape(control))
        });
        let _ = writeln!(
            out,
            "<tr id=\"e{index}-claim{n}\"{}><td>{}</td><th>{}</th><td>{}{}</td>{}{}{}</tr>",
            if fails { " class=\"fails\"" } else { "" },
            verdict(claim),
            escape(&claim.id),
            escape(&claim.text),
            note.unwrap_or_default(),
            named_cell("asked", &escape(&claim.threshold)),
            named_cell("ours", &escape(&claim.ours)),
            named_cell("negative control", &control.unwrap_or_default()),
        );
    }
    out + "</tbody>\n</table></div>\n"
}

/// A cell with its name, for narrow screens without column headings.
fn named_cell(name: &str, body: &str) -> String {
    if body.is_empty() {
        return "<td class=\"empty\"></td>".into();
    }
    format!("<td data-name=\"{name}\">{body}</td>")
}

const HOLDS: &str = "<span class=\"good\">\u{2713} holds</span>";
const FAILS: &str = "<span class=\"bad\">\u{2717} FAILS</span>";

fn verdict(claim: &Claim) -> String {
    let mut out = match claim.held {
        Some(held) if held.everywhere() => HOLDS.to_owned(),
        Some(held) if held.nowhere() => FAILS.to_owned(),
        Some(Held { at, of }) => format!("<span class=\"none\">holds at {at} of {of}</span>"),
        None => "<span class=\"none\">no verdict</span>".to_owned(),
    };
    if let Some(Held { at, of }) = claim.size {
        let _ = write!(out, "<br/>size as published at {at} of {of}");
    }
    out
}

fn causes(causes: &CauseTable) -> String {
    let mut out = format!(
        "<div class=\"wide\"><table>\n<caption>{}</caption>\n<thead><tr><th></th>",
        escape(&causes.title)
    );
    for column in &causes.columns {
        let _ = write!(out, "<th class=\"n\">{}</th>", escape(column));
    }
    out += "</tr></thead>\n<tbody>\n";
    for (name, cells) in &causes.rows {
        let _ = write!(out, "<tr><th>{}</th>", escape(name));
        for cell in cells {
            let _ = write!(out, "<td class=\"n\">{}</td>", escape(cell));
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table></div>\n"
}

fn listing(listing: &Listing) -> String {
    let title = escape(&listing.title);
    let text = escape(listing.text.trim_end());
    format!("<figure>\n<figcaption>{title}</figcaption>\n<pre>{text}</pre>\n</figure>\n")
}

#[cfg(test)]
mod tests;
