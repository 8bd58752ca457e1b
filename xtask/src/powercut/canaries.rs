//! Planted faults, each of which the power cuts must find.

use super::{Length, Outcome, cuts_of, mount};
use crate::cases::Cases;
use crate::lab::{self, Lab};
use anyhow::{Result, bail};

/// A fault, and the variants that show it.
struct Canary {
    /// Name, as in `crates/host/src/canary.rs`.
    name: &'static str,
    variants: &'static [&'static str],
}

const fn canary(name: &'static str, variants: &'static [&'static str]) -> Canary {
    Canary { name, variants }
}

/// Each sync of the server, left out in turn.
const CANARIES: &[Canary] = &[
    canary("fdatasync", &["cached", "direct", "deadline", "loop"]),
    canary("fua", &["cached", "direct", "deadline", "halves"]),
    canary("cut-fua", &["cached", "direct"]),
    canary("first-device", &["halves", "stripes"]),
    canary("own-writes", &["cached-clients"]),
    canary("joined-flush", &["halves"]),
    canary("exit-flush", &["cached", "direct", "remote"]),
    canary("remote-flush", &["remote"]),
    canary("remote-fua", &["remote"]),
    canary("header-sync", &["format-new", "format-over", "repair"]),
    canary("directory-sync", &["format-new", "format-detached"]),
    canary("bitmap-mark", &["bitmap"]),
];

/// Greatest number of cuts. The rarest fault was found after some 50 cuts; thread scheduling is
/// random, so 40 times that. Our choice.
const CUTS_MAX: u64 = 2000;

/// Plants one fault after another in each of its variants, until a cut finds it.
pub(super) fn run(seed: u64, only: Option<&str>) -> Result<()> {
    let built = lab::build_with_canaries()?;
    let mut cases = Cases::new(None);
    for canary in CANARIES {
        for variant in canary.variants {
            if only.is_some_and(|only| only != canary.name) {
                continue;
            }
            let name = format!("canary {} is found: {variant}", canary.name);
            cases.run(&name, || {
                let mut lab = Lab::with(&built)?;
                lab.plant(canary.name);
                let power = mount(&lab)?;
                match cuts_of(variant, &lab, &power, seed, Length { cuts: CUTS_MAX, time: None })? {
                    Outcome::Broken { cuts, why } => Ok(format!("after {cuts} cuts: {why}")),
                    Outcome::Kept(tally) => bail!("not found: {tally}"),
                    Outcome::Impossible(why) => Ok(why.to_owned()),
                }
            });
        }
    }
    cases.finish("powercut --canaries")
}
