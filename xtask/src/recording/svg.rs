//! A terminal as an SVG picture. Its lines appear one after the other; a reader who wants no motion
//! sees all at once.

use super::Shown;
use std::fmt::Write as _;

/// Characters of a line; longer lines continue on the next one.
pub(super) const COLUMNS: usize = 92;

const CHARACTER_PX: f64 = 7.83;
const LINE_PX: usize = 19;
const MARGIN_PX: usize = 16;
const TITLE_PX: usize = 28;

/// Time until the next line after a command, and after a line of its output.
const AFTER_COMMAND_S: f64 = 1.0;
const AFTER_OUTPUT_S: f64 = 0.35;

const STYLE: &str = "\
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d0d7de;white-space:pre}
.c{fill:#7ee787}
g{animation:show .01s both}
@keyframes show{from{opacity:0}to{opacity:1}}
@media(prefers-reduced-motion:reduce){g{animation:none}}
";

/// The picture.
pub(super) fn draw(screen: &[Shown]) -> String {
    let mut lines = String::new();
    let mut row = 0;
    let mut at_s = 0.2;
    for shown in screen {
        let text = if shown.is_command { format!("$ {}", shown.text) } else { shown.text.clone() };
        let class = if shown.is_command { " class=\"c\"" } else { "" };
        let _ = writeln!(lines, "<g style=\"animation-delay:{at_s:.2}s\">");
        for part in wrapped(&text) {
            let y = TITLE_PX + MARGIN_PX + row * LINE_PX + 8;
            let part = escape(&part);
            let _ = writeln!(lines, "<text x=\"{MARGIN_PX}\" y=\"{y}\"{class}>{part}</text>");
            row += 1;
        }
        lines += "</g>\n";
        at_s += if shown.is_command { AFTER_COMMAND_S } else { AFTER_OUTPUT_S };
    }
    let width = (COLUMNS as f64 * CHARACTER_PX).ceil() + 2.0 * MARGIN_PX as f64;
    let height = TITLE_PX + 2 * MARGIN_PX + row * LINE_PX;
    let lamps: String = [(16, "#ff5f57"), (34, "#febc2e"), (52, "#28c840")]
        .iter()
        .map(|(x, colour)| format!("<circle cx=\"{x}\" cy=\"14\" r=\"5\" fill=\"{colour}\"/>"))
        .collect();
    format!(
        "<!-- written by `cargo x recording --write` -->\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-label=\"A terminal session with blockyard\">\n<style>\n{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n{lamps}\n{lines}</svg>\n"
    )
}

/// Lines of at most `COLUMNS` characters, cut at spaces where there are some.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let mut rest: Vec<char> = word.chars().collect();
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 0 && used + word.trim_end().chars().count() > COLUMNS {
            lines.push(String::new());
        }
        while rest.len() > COLUMNS {
            let line = rest.drain(..COLUMNS).collect::<String>();
            lines.last_mut().expect("there is a line").push_str(&line);
            lines.push(String::new());
        }
        lines.last_mut().expect("there is a line").extend(rest);
    }
    lines
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_continue_below() {
        let long = "x".repeat(COLUMNS + 3);
        assert_eq!(wrapped(&long), ["x".repeat(COLUMNS), "xxx".into()]);
        assert_eq!(wrapped(&format!("short {long}")).len(), 3);
        let words = "seven by".repeat(COLUMNS / 8) + " more words";
        assert_eq!(wrapped(&words).len(), 2, "{:?}", wrapped(&words));
        assert_eq!(wrapped("")[0], "");
        let picture = draw(&[Shown { text: format!("a<b {long}"), is_command: false }]);
        assert_eq!(picture.matches("<text").count(), 3);
        assert!(picture.contains("a&lt;b"));
    }
}
