use blockyard_sim::world::Causes;

use super::*;
use crate::execute::{JobDone, Key, Measured};
use crate::spec::measure::Over;
use crate::spec::metric::Cell;
use crate::spec::tree::Override;

fn side(variant: &str) -> Side {
    let cell = Cell { variant: variant.into(), row: "fsync".into(), metric: "fsync_median" };
    Side::Cells(Cells { pattern: cell.to_string(), cells: vec![cell], braces: vec![] })
}

fn ratio(min: Option<f64>, max: Option<f64>) -> Measure {
    Measure {
        quantity: Quantity::Ratio(side("new"), side("old")),
        over: Over::One,
        condition: None,
        bounds: Bounds { min, max },
        size: None,
        published: Some(0.1),
    }
}

fn claim(measure: Measure, control: Option<Control>) -> ClaimSpec {
    ClaimSpec {
        id: "1".into(),
        text: "new is better".into(),
        note: String::new(),
        judge: Judge::Measures { measures: vec![measure], control },
    }
}

/// Medians of `old` and `new` at each point.
fn done(control: &str, points: &[(f64, f64)], done: &mut Done) {
    let of_one_seed = points.iter().enumerate().map(|(point, values)| (point, 1, *values));
    runs_of(control, of_one_seed, done);
}

/// Medians of `old` and `new` by point and seed.
fn runs_of(
    control: &str,
    runs: impl IntoIterator<Item = (usize, u64, (f64, f64))>,
    done: &mut Done,
) {
    for (point, seed, (old, new)) in runs {
        for (variant, value) in [("old", old), ("new", new)] {
            let key = Key { variant: variant.into(), point, seed, control: control.into() };
            let measured = vec![Measured { row: "fsync".into(), metric: "fsync_median", value }];
            let job = JobDone {
                job: "fsync".into(),
                measured,
                listing: String::new(),
                causes: Causes::default(),
                trace_hash: 0,
                plot_data: None,
            };
            done.insert(key, vec![job]);
        }
    }
}

fn runs(points: &[(f64, f64)]) -> Done {
    let mut runs = Done::new();
    done("", points, &mut runs);
    runs
}

fn held(at: usize, of: usize) -> Option<Held> {
    Some(Held { at, of })
}

#[test]
fn verdict_counts_the_points_at_which_a_claim_holds() {
    let spec = claim(ratio(None, Some(0.3)), None);
    let all = judge(&spec, &runs(&[(2.0, 0.2), (1.0, 0.3)]), 1);
    assert_eq!(all.held, held(2, 2));
    assert!(all.ours.starts_with("0.200 (0.100 to 0.300); at 2 of 2 points"), "{}", all.ours);
    let one = judge(&spec, &runs(&[(2.0, 0.2), (1.0, 0.31)]), 1);
    assert_eq!(one.held, held(1, 2));
    assert!(one.ours.ends_with("at 1 of 2 points"), "{}", one.ours);
    assert!(one.threshold.contains("new / old at most 0.300 (published 0.100)"), "{one:?}");
    assert_eq!(judge(&spec, &Done::new(), 1).held, None, "nothing was run");
}

#[test]
fn point_is_judged_by_the_median_over_its_seeds() {
    let spec = claim(ratio(None, Some(0.3)), None);
    for (third, at) in [(0.25, 1), (0.35, 0)] {
        let mut done = Done::new();
        let of_seeds = [(1, 0.1), (2, 0.9), (3, third)];
        runs_of("", of_seeds.map(|(seed, new)| (0, seed, (1.0, new))), &mut done);
        assert_eq!(judge(&spec, &done, 1).held, held(at, 1), "{third}");
    }
}

#[test]
fn size_has_a_count_of_its_own() {
    let spec = claim(Measure { size: Some((0.05, 0.15)), ..ratio(None, Some(0.3)) }, None);
    let found = judge(&spec, &runs(&[(1.0, 0.1), (1.0, 0.2), (1.0, 0.4)]), 1);
    assert_eq!((found.held, found.size), (held(2, 3), held(1, 3)));
}

#[test]
fn ratio_is_of_the_same_point() {
    // Of medians it would be 1; at each point it is not.
    let spec = claim(ratio(Some(0.9), Some(1.1)), None);
    assert_eq!(judge(&spec, &runs(&[(1.0, 2.0), (2.0, 1.0)]), 1).held, held(0, 2));
}

#[test]
fn claim_has_no_verdict_if_its_control_keeps_the_threshold_anywhere() {
    let set = vec![Override::parse("write_back.sync_flags=false").unwrap()];
    let key = control_key(&set);
    let spec = claim(ratio(None, Some(0.3)), Some(Control { set, measures: vec![] }));
    for (points, as_it_must) in
        [(&[(1.0, 1.0), (1.0, 0.9)], true), (&[(1.0, 1.0), (1.0, 0.2)], false)]
    {
        let mut runs = runs(&[(1.0, 0.1), (1.0, 0.1)]);
        done(&key, points, &mut runs);
        let claim = judge(&spec, &runs, 1);
        assert_eq!(claim.held, held(2, 2).filter(|_| as_it_must));
        assert_eq!(claim.control_holds, Some(as_it_must));
        assert!(claim.control.unwrap().starts_with("write_back.sync_flags = false"));
    }
}

#[test]
fn rules_bring_their_own_control_and_unknown_ones_are_refused() {
    let spec = |id: &str| ClaimSpec {
        id: "r".into(),
        text: "two classes".into(),
        note: String::new(),
        judge: Judge::Check(id.into()),
    };
    let claim = judge(&spec("004-1"), &Done::new(), 1);
    assert_eq!((claim.held, claim.control_holds), (held(5, 5), Some(true)), "{claim:?}");
    assert_eq!(judge(&spec("004-1"), &Done::new(), u64::MAX).held, held(5, 5));
    let said = check_rules(&[spec("004-99")]).unwrap_err().to_string();
    assert!(said.contains("004-99") && said.contains("004-13"), "{said}");
}
