//! Reduces the points of a plot without a visible change.
//!
//! A plot may get more points than it has pixels. The points of one pixel column are reduced to its
//! first and last point and its extremes. If the result is still too large for the file, columns
//! get wider. Points are in pixels, with x to the right.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Point = (f64, f64);

/// One horizontal bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) y: f64,
}

/// Growth factor of the column width: small, so that little more than necessary is removed.
const COLUMN_GROWTH: f64 = 1.25;

/// Greatest column width: wider than any plot.
const COLUMN_MAX: f64 = 2048.0;

/// Thins a curve in the order of x: per column the first, the last, and both extremes.
pub(crate) fn curve(points: &[Point], most: usize) -> Vec<Point> {
    fitting(points, most, |column| {
        let mut kept = Vec::new();
        for group in points.chunk_by(|a, b| cell(a.0, column) == cell(b.0, column)) {
            let indices = 0..group.len();
            let lowest = indices.clone().min_by(|a, b| group[*a].1.total_cmp(&group[*b].1));
            let highest = indices.max_by(|a, b| group[*a].1.total_cmp(&group[*b].1));
            let shown = [Some(0), lowest, highest, Some(group.len() - 1)];
            let shown: BTreeSet<usize> = shown.into_iter().flatten().collect();
            kept.extend(shown.into_iter().map(|index| group[index]));
        }
        kept
    })
}

/// Thins a cloud: one point per square, and the extremes of each column of squares.
pub(crate) fn cloud(points: &[Point], most: usize) -> Vec<Point> {
    fitting(points, most, |side| {
        let mut squares = BTreeSet::new();
        let mut shown = BTreeSet::new();
        let mut columns = BTreeMap::new();
        for (index, (x, y)) in points.iter().enumerate() {
            if squares.insert((cell(*x, side), cell(*y, side))) {
                shown.insert(index);
            }
            let (lowest, highest) = columns.entry(cell(*x, side)).or_insert((index, index));
            if *y < points[*lowest].1 {
                *lowest = index;
            }
            if *y > points[*highest].1 {
                *highest = index;
            }
        }
        shown.extend(columns.into_values().flat_map(|(lowest, highest)| [lowest, highest]));
        shown.into_iter().map(|index| points[index]).collect()
    })
}

/// Thins bars: merges bars in one row of pixels with gaps below a column.
pub(crate) fn bars(bars: &[Bar], most: usize) -> Vec<Bar> {
    let mut sorted = bars.to_vec();
    let row = |bar: &Bar| cell(bar.y, 1.0);
    sorted.sort_by(|a, b| row(a).cmp(&row(b)).then(a.from.total_cmp(&b.from)));
    fitting(&sorted, most, |gap| {
        let mut kept: Vec<Bar> = Vec::new();
        for bar in &sorted {
            match kept.last_mut() {
                Some(last) if row(last) == row(bar) && bar.from - last.to < gap => {
                    last.to = last.to.max(bar.to);
                }
                _ => kept.push(*bar),
            }
        }
        kept
    })
}

/// All, if there are at most `most`; otherwise the result of `thinned` with the narrowest
/// sufficient columns.
fn fitting<T: Clone>(all: &[T], most: usize, thinned: impl Fn(f64) -> Vec<T>) -> Vec<T> {
    if all.len() <= most {
        return all.to_vec();
    }
    let mut column = 1.0;
    loop {
        let kept = thinned(column);
        if kept.len() <= most || column >= COLUMN_MAX {
            return kept;
        }
        column *= COLUMN_GROWTH;
    }
}

fn cell(pixels: f64, side: f64) -> i64 {
    (pixels / side).floor() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(count: usize) -> Vec<Point> {
        let y = |n: usize| (n.wrapping_mul(2_654_435_761) % 1_000) as f64 / 4.0;
        (0..count).map(|n| (n as f64 * 700.0 / count as f64, y(n))).collect()
    }

    fn extremes(points: &[Point]) -> (f64, f64) {
        let ys = points.iter().map(|point| point.1);
        (ys.clone().fold(f64::MAX, f64::min), ys.fold(f64::MIN, f64::max))
    }

    #[test]
    fn extremes_ends_and_order_survive() {
        let mut points = noise(30_000);
        points[11_234].1 = 9_999.0;
        points[20_001].1 = -9_999.0;
        for most in [100, 1_000, 5_000] {
            for kept in [curve(&points, most), cloud(&points, most)] {
                assert!(kept.len() <= most, "{} of {most}", kept.len());
                assert_eq!(extremes(&kept), (-9_999.0, 9_999.0));
                assert_eq!(kept[0], points[0]);
                assert!(kept.is_sorted_by(|a, b| a.0 <= b.0));
            }
            let kept = curve(&points, most);
            assert_eq!(kept[kept.len() - 1], points[29_999]);
        }
    }

    #[test]
    fn each_pixel_column_keeps_its_extremes() {
        let points = noise(20_000);
        let kept = curve(&points, 4_000);
        let columns = |points: &[Point]| -> Vec<(f64, f64)> {
            points.chunk_by(|a, b| cell(a.0, 1.0) == cell(b.0, 1.0)).map(extremes).collect()
        };
        assert_eq!(columns(&kept).len(), 700);
        assert_eq!(columns(&kept), columns(&points));
    }

    #[test]
    fn few_points_stay_as_they_are() {
        let points = noise(50);
        assert_eq!(curve(&points, 50), points);
        assert_eq!(cloud(&points, 50), points);
        assert!(curve(&[], 0).is_empty() && cloud(&[], 0).is_empty() && bars(&[], 0).is_empty());
    }

    #[test]
    fn bars_of_one_row_grow_together_and_others_do_not() {
        let bar = |from, to, y| Bar { from, to, y };
        let given =
            [bar(5.2, 6.0, 1.0), bar(0.0, 5.0, 1.0), bar(0.0, 1.0, 2.0), bar(9.0, 9.5, 1.0)];
        let expected = [bar(0.0, 6.0, 1.0), bar(9.0, 9.5, 1.0), bar(0.0, 1.0, 2.0)];
        assert_eq!(bars(&given, 3), expected);
        let many: Vec<_> = (0..20_000).map(|n| f64::from(n) / 30.0).collect();
        let many: Vec<_> = many.into_iter().map(|x| bar(x, x + 0.01, 7.0)).collect();
        let kept = bars(&many, 500);
        assert_eq!((kept.len(), kept[0].from, kept[0].to), (1, 0.0, many[19_999].to));
    }
}
