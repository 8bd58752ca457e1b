//! A plot as inline SVG: axes with ticks, series, and a legend in HTML.
//!
//! Colours are classes that the page's style sheet defines for light and dark. Series also differ
//! by dashes or by the shape of their marks, for readers who cannot distinguish colours.

mod scale;
mod thin;

use std::fmt::Write as _;

use crate::markup::escape;
use crate::model::{Plot, Series, Style};
use scale::{Scale, drawable};
use thin::{Bar, Point};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 340.0;

/// The area inside the axes.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 784.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 290.0;

/// Greatest number of points of all series of a plot: 250 KB.
const POINTS_MAX: usize = 16_000;

/// Greatest number of marks with a shape for each series; more marks are dots.
const SHAPES_MAX: usize = 400;

/// Number of colours in the style sheet; further series repeat them with other dashes.
const COLOURS: usize = 8;

/// Dashes of successive series.
const DASHES: [&str; 4] = ["", "7 3", "2 2.5", "9 3 2 3"];

/// Circle (a round line of length zero), square, triangle, diamond: around the current point.
const SHAPES: [&str; 4] = ["h0", "m-2.5-2.5h5v5h-5z", "m0-3.5l3.5 6h-7z", "m0-4l4 4-4 4-4-4z"];

/// Least and greatest thickness of a bar, in pixels.
const BAR_MIN: f64 = 1.5;
const BAR_MAX: f64 = 14.0;

/// Least visible length of a bar.
const BAR_LENGTH_MIN: f64 = 0.6;

/// The plot as a `figure`.
pub(crate) fn figure(plot: &Plot) -> String {
    let area = Area::of(plot);
    let mut drawn = 0;
    let mut paths = String::new();
    for (index, series) in plot.series.iter().enumerate() {
        let most = POINTS_MAX / plot.series.len();
        let (path, points) = area.draw(index, series, most);
        paths += &path;
        drawn += points;
    }
    let title = escape(&plot.title);
    let mut out = format!("<figure>\n<figcaption>{title}</figcaption>\n");
    out += &legend(&plot.series);
    let _ = writeln!(
        out,
        "<div class=\"wide\">\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{title}\">\n{}{paths}</svg></div>",
        area.axes(plot)
    );
    let given: usize = plot.series.iter().map(|series| series.points.len()).sum();
    if given == 0 {
        out += "<p class=\"note\">No points.</p>\n";
    } else if drawn < given {
        let _ = writeln!(
            out,
            "<p class=\"note\">Drawn: {drawn} of {given} points; extremes are kept.</p>"
        );
    }
    out + "</figure>\n"
}

/// Both axes of a plot.
struct Area {
    x: Scale,
    y: Scale,
    /// Thickness of bars.
    bar: f64,
}

impl Area {
    fn of(plot: &Plot) -> Area {
        let points = plot.series.iter().flat_map(|series| &series.points);
        let whole = points.filter(|(x, y)| drawable(*x) && drawable(*y));
        let ends = |shows: Option<(f64, f64)>| shows.into_iter().flat_map(|(a, b)| [a, b]);
        let x = whole.clone().map(|point| point.0).chain(ends(plot.x.shows));
        let x = Scale::covering(x, plot.x.log);
        // A bar needs room above and below its middle.
        let room = plot.series.iter().any(|series| series.style == Style::Spans) && !plot.y.log;
        let half = if room { 0.5 } else { 0.0 };
        let y = whole.flat_map(|point| [point.1 - half, point.1 + half]).chain(ends(plot.y.shows));
        let y = Scale::covering(y, plot.y.log);
        let row = (TOP - BOTTOM).abs() * (y.place(1.0) - y.place(0.0)).abs();
        Area { x, y, bar: (row * 0.7).clamp(BAR_MIN, BAR_MAX) }
    }

    fn point(&self, (x, y): Point) -> Option<Point> {
        (drawable(x) && drawable(y)).then(|| {
            let across = LEFT + self.x.place(x) * (RIGHT - LEFT);
            (across, BOTTOM - self.y.place(y) * (BOTTOM - TOP))
        })
    }

    /// The path of a series, and the number of its points that the path represents.
    fn draw(&self, index: usize, series: &Series, most: usize) -> (String, usize) {
        let (data, class, drawn) = match series.style {
            Style::Line | Style::Step => {
                let mut points: Vec<_> =
                    series.points.iter().filter_map(|point| self.point(*point)).collect();
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
                let kept = thin::curve(&points, most);
                (curve(&kept, series.style == Style::Step), "line", kept.len())
            }
            Style::Points => {
                let points: Vec<_> =
                    series.points.iter().filter_map(|point| self.point(*point)).collect();
                let kept = thin::cloud(&points, most);
                let few = kept.len() <= SHAPES_MAX;
                let shape = if few { SHAPES[index % SHAPES.len()] } else { SHAPES[0] };
                (cloud(&kept, shape), if few { "mark" } else { "dot" }, kept.len())
            }
            Style::Intervals => {
                let ends = series.points.chunks_exact(2);
                let lines = ends.filter_map(|ends| self.point(ends[0]).zip(self.point(ends[1])));
                let lines: Vec<_> = lines.take(most / 2).collect();
                let line = |(low, high): &(Point, Point)| {
                    format!("M{} {}V{}", pixels(low.0), pixels(low.1), pixels(high.1))
                };
                (lines.iter().map(line).collect(), "line", 2 * lines.len())
            }
            Style::Spans => {
                let ends = series.points.chunks_exact(2);
                let bars: Vec<_> = ends.filter_map(|ends| self.bar(ends[0], ends[1])).collect();
                let kept = thin::bars(&bars, most / 2);
                (spans(&kept), "bar", 2 * kept.len())
            }
        };
        let width = match series.style {
            Style::Spans => format!(" stroke-width=\"{}\"", pixels(self.bar)),
            _ => String::new(),
        };
        let name = escape(&series.name);
        let attributes = attributes(index, class);
        let path = format!("<path {attributes}{width} d=\"{data}\"><title>{name}</title></path>\n");
        (path, drawn)
    }

    fn bar(&self, from: Point, to: Point) -> Option<Bar> {
        let from = self.point(from)?;
        let to = self.point(to)?;
        let left = from.0.min(to.0);
        let right = from.0.max(to.0);
        Some(Bar { from: left, to: right.max(left + BAR_LENGTH_MIN), y: from.1 })
    }

    /// Lines and labels of the ticks, the frame, and the axis labels.
    fn axes(&self, plot: &Plot) -> String {
        let mut grid = String::new();
        let mut labels = String::new();
        for tick in self.x.ticks() {
            let x = pixels(LEFT + self.x.place(*tick) * (RIGHT - LEFT));
            let _ = write!(grid, "M{x} {TOP}V{BOTTOM}");
            let label = self.x.label(*tick);
            let y = BOTTOM + 18.0;
            let _ = writeln!(labels, "<text x=\"{x}\" y=\"{y}\" class=\"below\">{label}</text>");
        }
        for tick in self.y.ticks() {
            let y = BOTTOM - self.y.place(*tick) * (BOTTOM - TOP);
            let _ = write!(grid, "M{LEFT} {}H{RIGHT}", pixels(y));
            let label = self.y.label(*tick);
            let x = LEFT - 7.0;
            let y = pixels(y + 4.0);
            let _ = writeln!(labels, "<text x=\"{x}\" y=\"{y}\" class=\"beside\">{label}</text>");
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        let below = HEIGHT - 12.0;
        let across = 16;
        let up = f64::midpoint(TOP, BOTTOM);
        let x = escape(&plot.x.label);
        let y = escape(&plot.y.label);
        format!(
            "<path class=\"grid\" d=\"{grid}\"/>\n\
             <path class=\"frame\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>\n{labels}\
             <text x=\"{middle}\" y=\"{below}\" class=\"below\">{x}</text>\n\
             <text transform=\"translate({across} {up}) rotate(-90)\" class=\"below\">{y}</text>\n"
        )
    }
}

/// A path with straight lines, or with horizontal and then vertical steps.
fn curve(points: &[Point], step: bool) -> String {
    let mut path = String::new();
    for (index, (x, y)) in points.iter().enumerate() {
        let x = pixels(*x);
        let y = pixels(*y);
        let _ = match (index, step) {
            (0, _) => write!(path, "M{x} {y}"),
            (_, true) => write!(path, "H{x}V{y}"),
            (_, false) => write!(path, "L{x} {y}"),
        };
    }
    // A lone point becomes a visible dot.
    if points.len() == 1 { path + "h0" } else { path }
}

fn cloud(points: &[Point], shape: &str) -> String {
    points.iter().map(|(x, y)| format!("M{} {}{shape}", pixels(*x), pixels(*y))).collect()
}

fn spans(bars: &[Bar]) -> String {
    let one = |bar: &Bar| format!("M{} {}H{}", pixels(bar.from), pixels(bar.y), pixels(bar.to));
    bars.iter().map(one).collect()
}

/// A number with a precision of a tenth of a pixel.
fn pixels(number: f64) -> String {
    let number = format!("{number:.1}");
    number.strip_suffix(".0").map(str::to_owned).unwrap_or(number)
}

/// The SVG attributes that distinguish a series.
fn attributes(index: usize, class: &str) -> String {
    let dash = match (class, DASHES[(index + index / COLOURS) % DASHES.len()]) {
        ("line", dash) if !dash.is_empty() => format!(" stroke-dasharray=\"{dash}\""),
        _ => String::new(),
    };
    format!("class=\"{class} c{}\"{dash}", index % COLOURS)
}

/// A legend with the name and a sample of each series.
fn legend(series: &[Series]) -> String {
    let mut out = String::new();
    for (index, series) in series.iter().enumerate() {
        let (class, path) = match series.style {
            Style::Line => ("line", "M0 6H26".to_owned()),
            Style::Step => ("line", "M0 10H13V2H26".to_owned()),
            Style::Points => ("mark", format!("M13 6{}", SHAPES[index % SHAPES.len()])),
            Style::Intervals => ("line", "M13 0V12".to_owned()),
            Style::Spans => ("bar", "M0 6H26".to_owned()),
        };
        let width = if class == "bar" { " stroke-width=\"7\"" } else { "" };
        let attributes = attributes(index, class);
        let _ = writeln!(
            out,
            "<li><svg viewBox=\"0 0 26 12\" aria-hidden=\"true\"><path {attributes}{width} \
             d=\"{path}\"/></svg> {}</li>",
            escape(&series.name)
        );
    }
    if out.is_empty() { out } else { format!("<ul class=\"legend\">\n{out}</ul>\n") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Axis;

    fn plot(style: Style, log: bool, points: &[(f64, f64)]) -> Plot {
        let axis = |label: &str| Axis { label: label.into(), log, shows: None };
        let series = Series { name: "cfq".into(), style, points: points.to_vec() };
        Plot { title: "t".into(), x: axis("time, s"), y: axis("sector"), series: vec![series] }
    }

    /// Path data of the last path in a plot.
    fn data(plot: &Plot) -> String {
        let figure = figure(plot);
        let last = figure.rsplit(" d=\"").next().expect("rsplit yields at least one");
        last.split('"').next().expect("split yields at least one").to_owned()
    }

    #[test]
    fn each_style_draws_its_own_shape() {
        let points = [(0.0, 0.0), (10.0, 10.0)];
        assert_eq!(data(&plot(Style::Line, false, &points)), "M80 290L784 14");
        assert_eq!(data(&plot(Style::Step, false, &points)), "M80 290H784V14");
        assert_eq!(data(&plot(Style::Points, false, &points)), "M80 290h0M784 14h0");
        let bars = [(0.0, 0.5), (10.0, 0.5)];
        assert_eq!(data(&plot(Style::Spans, false, &bars)), "M80 152H784");
        assert_eq!(data(&plot(Style::Intervals, false, &[(1.0, 2.0), (1.0, 4.0)])), "M432 290V14");
    }

    #[test]
    fn odd_input_is_drawn_as_far_as_it_can_be() {
        let nan = f64::NAN;
        let given: [&[(f64, f64)]; 8] = [
            &[],
            &[(1.0, 1.0)],
            &[(nan, 1.0), (1.0, nan), (f64::INFINITY, 0.0)],
            &[(2.0, 5.0), (2.0, 5.0), (2.0, 5.0)],
            &[(0.0, 0.0), (-1.0, -1.0)],
            &[(1e308, -1e308), (-1e308, 1e308)],
            &[(0.0, 1e-300), (1e-300, 0.0), (nan, nan)],
            &[(1e99, 1e99), (-1e99, -1e99), (0.0, 1.0)],
        ];
        for points in given {
            for style in [Style::Line, Style::Step, Style::Points, Style::Intervals, Style::Spans] {
                for log in [false, true] {
                    let figure = figure(&plot(style, log, points));
                    let paths: Vec<_> = figure.match_indices(" d=\"").collect();
                    assert_eq!(paths.len(), 4, "{points:?}");
                    for wrong in ["NaN", "inf"] {
                        assert!(!figure.contains(wrong), "{style:?} {log} {points:?}: {figure}");
                    }
                }
            }
        }
        let none = Plot { series: Vec::new(), ..plot(Style::Line, false, &[]) };
        assert!(figure(&none).contains("No points."));
    }

    #[test]
    fn curve_is_drawn_in_the_order_of_x() {
        let points = [(10.0, 10.0), (0.0, 0.0)];
        assert_eq!(data(&plot(Style::Line, false, &points)), "M80 290L784 14");
    }

    #[test]
    fn many_points_make_a_file_of_moderate_size_that_says_so() {
        let y = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) % 5_000);
        let points: Vec<_> = (0..100_000_u32).map(|n| (f64::from(n), y(n))).collect();
        for style in [Style::Line, Style::Step, Style::Points, Style::Intervals, Style::Spans] {
            let one = plot(style, false, &points);
            let mut many = one.clone();
            many.series[0].points.truncate(20_000);
            many.series = vec![many.series[0].clone(); 5];
            for plot in [one, many] {
                let figure = figure(&plot);
                assert!(figure.len() < 300_000, "{style:?}: {}", figure.len());
                assert!(figure.contains("extremes are kept"), "{style:?}");
            }
        }
    }

    #[test]
    fn series_differ_without_their_colours() {
        let dash =
            |index| attributes(index, "line").split_once("stroke").map(|(_, d)| d.to_owned());
        let mut dashes: Vec<_> = (0..4).map(dash).collect();
        dashes.sort();
        dashes.dedup();
        assert_eq!(dashes.len(), 4);
        // The colours repeat after eight, with another dash.
        assert_ne!(attributes(0, "line"), attributes(8, "line"));
    }
}
