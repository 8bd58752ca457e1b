//! Conversion of numbers to places on an axis, and the ticks: steps of 1, 2 and 5.

/// Approximate number of ticks of a linear axis.
const TICKS: f64 = 6.0;

/// Greatest drawn number: differences of larger ones would overflow.
const DRAWN_MAX: f64 = 1e100;

/// Greatest number of decades of a logarithmic axis with ticks at 1, 2 and 5; a longer one has
/// ticks at 1.
const FINE_DECADES: i32 = 3;

/// Greatest number of decades with a tick each; a longer axis has a tick at each second, third, ...
const DECADE_TICKS: i32 = 10;

/// Distance of an end tick, in steps, beyond which it is left out.
const FAR: f64 = 0.3;

/// One axis: its range and its ticks.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    log: bool,
    /// Ends of the range, as logarithms on a logarithmic axis.
    from: f64,
    to: f64,
    ticks: Vec<f64>,
    /// Distance between ticks of a linear axis.
    step: f64,
}

impl Scale {
    /// A scale that covers all drawable numbers, with ticks at or near both ends. Zero and negative
    /// numbers do not extend a logarithmic axis: they are drawn at its lower edge.
    pub(crate) fn covering(numbers: impl Iterator<Item = f64>, log: bool) -> Scale {
        let mut ends: Option<(f64, f64)> = None;
        for number in numbers.filter(|number| drawable(*number) && (!log || *number > 0.0)) {
            let (low, high) = ends.unwrap_or((number, number));
            ends = Some((low.min(number), high.max(number)));
        }
        let (low, high) = ends.unwrap_or(if log { (1.0, 10.0) } else { (0.0, 1.0) });
        if log { Scale::log(low, high) } else { Scale::linear(low, high) }
    }

    fn linear(low: f64, high: f64) -> Scale {
        // All numbers equal or nearly so: a little room around them.
        let alike = high - low <= high.abs().max(low.abs()) * 1e-9;
        let room = if high == 0.0 { 1.0 } else { high.abs() * 0.1 };
        let (low, high) = if alike { (low - room, high + room) } else { (low, high) };
        let step = nice((high - low) / TICKS);
        let first = (low / step).floor();
        let last = (high / step).ceil();
        let mut ticks = Vec::new();
        let mut n = first;
        while n <= last {
            ticks.push(n * step);
            n += 1.0;
        }
        Scale { log: false, from: first * step, to: last * step, ticks, step }.cut(low, high)
    }

    fn log(low: f64, high: f64) -> Scale {
        let bottom = low.log10().floor() as i32;
        let top = high.log10().ceil() as i32;
        let top = top.max(bottom + 1);
        let decades = top - bottom;
        let stride = (decades + DECADE_TICKS - 1) / DECADE_TICKS;
        let steps: &[f64] = if decades <= FINE_DECADES { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let mut ticks = Vec::new();
        for decade in (bottom..=top + stride).step_by(stride as usize) {
            ticks.extend(steps.iter().map(|step| decimal(*step, decade)));
        }
        // From the last tick at or below the numbers to the first at or above them.
        let first = ticks.iter().rposition(|tick| *tick <= low).unwrap_or(0);
        let last = ticks.iter().position(|tick| *tick >= high).unwrap_or(ticks.len() - 1);
        let ticks = ticks[first..=last.max(first + 1)].to_vec();
        let ends = (ticks[0].log10(), ticks[ticks.len() - 1].log10());
        Scale { log: true, from: ends.0, to: ends.1, ticks, step: 0.0 }
            .cut(low.log10(), high.log10())
    }

    /// Removes a distant end tick, so that the axis ends at the numbers without wasted room.
    fn cut(mut self, low: f64, high: f64) -> Scale {
        let at = |tick: f64| if self.log { tick.log10() } else { tick };
        let places: Vec<_> = self.ticks.iter().map(|tick| at(*tick)).collect();
        let far = |out: f64, next: f64, end: f64| (end - out).abs() > (next - out).abs() * FAR;
        if let [.., next, last] = places[..]
            && places.len() > 2
            && far(last, next, high)
        {
            self.ticks.pop();
            self.to = high;
        }
        if let [first, next, ..] = places[..]
            && self.ticks.len() > 2
            && far(first, next, low)
        {
            self.ticks.remove(0);
            self.from = low;
        }
        self
    }

    /// Place of a number on the axis: 0 at its begin, 1 at its end.
    pub(crate) fn place(&self, number: f64) -> f64 {
        let number = if !self.log {
            number
        } else if number > 0.0 {
            number.log10()
        } else {
            self.from
        };
        ((number - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }

    /// Numbers with a line and a label.
    pub(crate) fn ticks(&self) -> &[f64] {
        &self.ticks
    }

    /// Label of a tick, with enough digits to distinguish its neighbours.
    pub(crate) fn label(&self, tick: f64) -> String {
        if self.log {
            return match tick {
                _ if !(1e-3..1e12).contains(&tick) => format!("{tick:e}"),
                _ if tick >= 1.0 => suffixed(tick, tick),
                _ => format!("{tick}"),
            };
        }
        suffixed(tick, self.step)
    }
}

/// Whether the number has a place on an axis.
pub(crate) fn drawable(number: f64) -> bool {
    number.abs() <= DRAWN_MAX
}

/// `digit` times ten to the power, without a multiplication's error, because it is printed.
fn decimal(digit: f64, power: i32) -> f64 {
    format!("{digit}e{power}").parse().unwrap_or(f64::MAX)
}

/// The smallest of 1, 2, 5 times a power of ten that is not below `step`.
fn nice(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    let nice = [1.0, 2.0, 5.0].map(|digit| digit * power).into_iter().find(|nice| *nice >= step);
    nice.unwrap_or(10.0 * power)
}

/// 20k and 1.5M; the digits after the point come from the step.
fn suffixed(number: f64, step: f64) -> String {
    const SUFFIXES: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let size = number.abs();
    if size >= 1e15 || (size != 0.0 && step.abs() < 1e-6) {
        return format!("{number:.3e}");
    }
    let decimals = |unit: f64| (unit / step).log10().ceil().max(0.0) as usize;
    // Few decimals with a suffix, or all of them without one.
    let fits = |unit: f64| size >= unit && size >= 1e4 && decimals(unit) <= 2;
    match SUFFIXES.into_iter().find(|(unit, _)| fits(*unit)) {
        Some((unit, suffix)) => format!("{:.*}{suffix}", decimals(unit), number / unit),
        None => format!("{:.*}", decimals(1.0), number + 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(numbers: &[f64], log: bool) -> Scale {
        Scale::covering(numbers.iter().copied(), log)
    }

    fn labels(numbers: &[f64], log: bool) -> Vec<String> {
        let scale = scale(numbers, log);
        scale.ticks().iter().map(|tick| scale.label(*tick)).collect()
    }

    #[test]
    fn ticks_cover_the_range_in_steps_of_one_two_and_five() {
        assert_eq!(labels(&[0.0, 118.0], false), ["0", "20", "40", "60", "80", "100", "120"]);
        assert_eq!(labels(&[-0.3, 0.4], false), ["-0.2", "0.0", "0.2", "0.4"]);
        assert_eq!(labels(&[2e4, 7.8e4], false), ["20k", "30k", "40k", "50k", "60k", "70k", "80k"]);
        assert_eq!(labels(&[0.55, 45.0], true), ["0.5", "1", "2", "5", "10", "20", "50"]);
        let long = ["1e-5", "1e-4", "0.001", "0.01", "0.1", "1", "10"];
        assert_eq!(labels(&[1.2e-5, 15.0], true), long);
    }

    #[test]
    fn ticks_cover_any_range_and_are_few() {
        let numbers = [1e-9, 3.3e-4, 0.02, 0.999, 1.0, 17.9, 4_096.0, 8.1e8, 2.2e12, 1e90];
        for low in numbers {
            for high in numbers.into_iter().filter(|high| *high >= low) {
                for log in [false, true] {
                    let scale = scale(&[low, high], log);
                    let first = scale.ticks()[0];
                    let last = scale.ticks()[scale.ticks().len() - 1];
                    let ticks = scale.ticks();
                    let step = |a: f64, b: f64| scale.place(b) - scale.place(a);
                    let widest = ticks.windows(2).map(|pair| step(pair[0], pair[1]));
                    let widest = widest.fold(0.0, f64::max);
                    assert!(scale.place(first) < widest, "{low} {high} {log}: {first}");
                    assert!(1.0 - scale.place(last) < widest, "{low} {high} {log}: {last}");
                    // A logarithmic axis is at least as long as a step.
                    let narrow = low == high || log && high < low * 3.0;
                    assert!(narrow || step(low, high) > 0.3, "{low} {high} {log}");
                    assert!((2..=14).contains(&scale.ticks().len()), "{low} {high} {log}");
                }
            }
        }
    }

    #[test]
    fn axis_ends_at_the_numbers_where_the_next_tick_is_far() {
        let scale = scale(&[-0.5, 31.5], false);
        assert_eq!((scale.place(-0.5), scale.place(31.5)), (0.0, 1.0));
        assert_eq!(scale.ticks(), [0.0, 10.0, 20.0, 30.0]);
        let scale = Scale::covering([0.0, 103.0].into_iter(), false);
        assert_eq!((scale.place(103.0), scale.ticks().len()), (1.0, 6));
    }

    #[test]
    fn no_number_one_number_and_what_cannot_be_drawn_have_an_axis() {
        assert_eq!(labels(&[], false), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&[f64::NAN, f64::INFINITY, 1e200], true), ["1", "2", "5", "10"]);
        for log in [false, true] {
            for number in [0.0, 5.0, -3.0, 1e9, 1e-30] {
                let scale = scale(&[number], log);
                assert!((0.0..=1.0).contains(&scale.place(number)), "{number} {log}");
                assert!((2..=14).contains(&scale.ticks().len()), "{number} {log}");
            }
        }
    }

    #[test]
    fn zero_stands_at_the_lower_edge_of_a_logarithmic_axis() {
        let scale = scale(&[0.0, -1.0, 0.01, 100.0], true);
        assert_eq!((scale.place(0.0), scale.place(-1.0), scale.place(0.01)), (0.0, 0.0, 0.0));
        assert_eq!((scale.place(1.0), scale.place(100.0)), (0.5, 1.0));
    }

    #[test]
    fn neighbours_have_different_labels() {
        for numbers in [[1e9, 1e9 + 3.0], [123_456.0, 123_457.0], [0.1, 0.1003], [0.0, 4e-8]] {
            let mut found = labels(&numbers, false);
            let count = found.len();
            found.dedup();
            assert_eq!(found.len(), count, "{found:?}");
        }
    }
}
