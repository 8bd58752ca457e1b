use super::*;
use crate::model::{Axis, Interval, Plot, Series, Style, Unit};

const NASTY: &str = "<script>alert(\"1\" & '2')</script>\u{1}";

/// Names of the elements, in order. Panics on an unclosed tag, an unquoted attribute or an invalid
/// entity.
fn elements(page: &str) -> Vec<String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("a document says what it is");
    let mut open = Vec::new();
    let mut names = Vec::new();
    while let Some(at) = rest.find('<') {
        text(&rest[..at]);
        let end = rest[at..].find('>').expect("a tag ends") + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "closed in the wrong order");
            continue;
        }
        let (tag, empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let name = tag.split([' ', '\n']).next().expect("split yields at least one").to_owned();
        attributes(&tag[name.len()..]);
        names.push(name.clone());
        if !empty {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
    assert_eq!(rest, "\n");
    names
}

/// Checks a sequence of name="value".
fn attributes(mut text: &str) {
    while !text.trim().is_empty() {
        let (name, rest) = text.split_once("=\"").expect("an attribute has a quoted value");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        assert!(name.trim().chars().all(plain), "{name}");
        let (value, rest) = rest.split_once('"').expect("the quotes end");
        self::text(value);
        text = rest;
    }
}

fn text(text: &str) {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        assert!(known.iter().any(|known| text[at..].starts_with(known)), "{}", &text[at..]);
    }
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text}");
}

fn row(variant: &str, row: &str, published: f64, ours: f64) -> Row {
    Row {
        variant: variant.into(),
        row: row.into(),
        metric: "phase_time".into(),
        unit: Unit::Seconds,
        published: Some(published),
        ours: Some(Interval { low: ours - 1.0, median: ours, high: ours + 1.0 }),
        calibrated: variant == "original",
        artefact: false,
    }
}

fn claim(id: &str, at: Option<usize>) -> Claim {
    let held = at.map(|at| Held { at, of: 8 });
    Claim { id: id.into(), text: "It is faster.".into(), held, ..Claim::default() }
}

/// An experiment with all parts, and `name` in every text from outside.
fn full(name: &str) -> Experiment {
    let some = || name.to_owned();
    let axis = |log| Axis { label: some(), log, shows: None };
    let styles = [Style::Line, Style::Step, Style::Points, Style::Intervals, Style::Spans];
    let points = vec![(1.0, 2.0), (3.0, 4.0), (5.0, f64::NAN), (0.0, 0.0)];
    let series = styles.map(|style| Series { name: some(), style, points: points.clone() });
    let plot = |log| Plot { title: some(), x: axis(log), y: axis(!log), series: series.to_vec() };
    let tested = Claim {
        text: some(),
        threshold: some(),
        ours: some(),
        control: Some(some()),
        control_holds: Some(true),
        note: Some(some()),
        ..claim(name, Some(0))
    };
    let columns = vec![some()];
    let rows = vec![(some(), vec![some()])];
    let table = CauseTable { title: some(), columns, rows };
    Experiment {
        name: some(),
        title: some(),
        about: vec![some()],
        conditions: vec![(some(), some())],
        rows: vec![Row { metric: some(), ..row(name, name, 2.0, 3.0) }],
        claims: vec![tested],
        tables: vec![table.clone()],
        causes: vec![table],
        plots: vec![plot(false), plot(true)],
        listings: vec![Listing { title: some(), text: some() }],
    }
}

#[test]
fn page_is_well_formed_and_nothing_in_it_becomes_markup() {
    let page = html(NASTY, &[full(NASTY), full("plain")]);
    let names = elements(&page);
    assert!(!names.contains(&"script".to_owned()));
    assert_eq!(names.iter().filter(|name| *name == "section").count(), 2);
    // The number of elements is that of a harmless name: the data adds none.
    assert_eq!(names, elements(&html("plain", &[full("plain"), full("plain")])));
}

#[test]
fn empty_page_and_empty_experiment_are_well_formed() {
    elements(&html("nothing", &[]));
    let page = html("little", &[Experiment::default()]);
    elements(&page);
    assert!(!page.contains("<h3"), "no heading without a body");
}

#[test]
fn page_loads_nothing() {
    let page = html("t", &[full("plain")]);
    for outside in ["http:", "https:", "src=", "url(", "@import", "<link", "<script", "data:"] {
        assert!(!page.contains(outside), "{outside}");
    }
}

#[test]
fn every_link_leads_somewhere_and_every_anchor_is_one() {
    let page = html("t", &[full("plain"), full("plain")]);
    let values = |key: &str| -> Vec<String> {
        let found = page.split(key).skip(1);
        found.map(|rest| rest.split('"').next().unwrap_or_default().to_owned()).collect()
    };
    let anchors = values(" id=\"");
    for link in values("href=\"#") {
        assert_eq!(anchors.iter().filter(|anchor| **anchor == link).count(), 1, "{link}");
    }
    assert!(anchors.contains(&"e1-claims".to_owned()));
}

#[test]
fn fitted_and_predicted_rows_are_told_apart_in_words() {
    let rows = vec![
        row("original", "Write", 100.0, 102.0),
        row("original", "Read", 50.0, 51.0),
        row("cfq", "Write", 100.0, 88.0),
    ];
    let page = html("t", &[Experiment { rows, ..Experiment::default() }]);
    assert!(page.contains(
        "<tr class=\"calibrated\"><th rowspan=\"2\">Write</th><th rowspan=\"2\">phase_time</th>\
         <td class=\"name\">original</td><td class=\"n\">100.0 s</td><td class=\"n\">102.0 s</td>\
         <td class=\"range\">[101.0 .. 103.0]</td><td class=\"n\">+2.0 %</td>\
         <td class=\"role\">calibrated</td></tr>\n\
         <tr class=\"predicted\"><td class=\"name\">cfq</td><td class=\"n\">100.0 s</td>\
         <td class=\"n\">88.00 s</td>\
         <td class=\"range\">[87.00 .. 89.00]</td><td class=\"n\">-12.0 %</td>\
         <td class=\"role\">predicted</td></tr>\n"
    ));
    // The summary: two rows fitted, one predicted, and the size of its error.
    assert!(
        page.contains("<td class=\"n\">2</td><td class=\"n\">1</td><td class=\"n\">12.0 %</td>")
    );
}

#[test]
fn failing_claims_and_controls_are_visible() {
    let control = Some("without the flag: 0.9".to_owned());
    let claims = vec![
        claim("004-2", Some(8)),
        claim("004-17", Some(0)),
        claim("004-19", None),
        Claim { control, control_holds: Some(false), ..claim("004-9", None) },
        Claim { size: Some(Held { at: 8, of: 8 }), ..claim("004-18", Some(3)) },
    ];
    let page = html("t", &[Experiment { claims, ..Experiment::default() }]);
    assert!(page.contains("<a class=\"id\" href=\"#e0-claim1\">004-17</a>."));
    assert!(page.contains("<tr id=\"e0-claim0\"><td><span class=\"good\">\u{2713} holds</span>"));
    let fails = "<span class=\"bad\">\u{2717} FAILS</span>";
    assert!(page.contains(&format!("<tr id=\"e0-claim1\" class=\"fails\"><td>{fails}</td>")));
    assert!(page.contains("<tr id=\"e0-claim2\"><td><span class=\"none\">no verdict</span>"));
    assert!(page.contains("<tr id=\"e0-claim3\" class=\"fails\"><td><span class=\"none\">"));
    assert!(page.contains("holds at 3 of 8</span><br/>size as published at 8 of 8</td>"));
    assert!(page.contains(&format!("{fails}: without the flag: 0.9")));
    assert!(page.contains("1 hold, 1 hold at some points, 1 fail, 2 without a verdict (1 because"));
}
