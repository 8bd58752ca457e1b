//! Keyslots that two programs change at once: `cryptsetup luksAddKey` beside `blockyard key add`.
//!
//! Both may lose the race for a number; then cryptsetup gives up and is started again, as a person
//! would. No keyslot of either may be lost.

use crate::cases::Cases;
use crate::lab::Lab;
use crate::tools;
use crate::totals::Totals;
use crate::volume::{luks_format, sparse};
use anyhow::{Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// Attempts of cryptsetup, which gives up when the header was changed meanwhile.
const ATTEMPTS: u32 = 50;
/// Rounds on one volume, which has 32 keyslots.
const ROUNDS_OF_A_VOLUME: u32 = 15;
const CHEAP: &str = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";

pub(crate) fn run(cases: &mut Cases, lab: &Lab, rounds: u32, totals: &mut Totals) {
    cases.run("cryptsetup luksAddKey beside ours: no keyslot is lost", || {
        let said = beside(lab, rounds)?;
        totals.add("key_rounds", u64::from(rounds));
        Ok(said)
    });
}

fn beside(lab: &Lab, rounds: u32) -> Result<String> {
    let mut left = rounds;
    let mut repeated = 0;
    while left > 0 {
        let of_this = left.min(ROUNDS_OF_A_VOLUME);
        let image = lab.path("keys.img");
        if image.exists() {
            fs::remove_file(&image)?;
        }
        sparse(&image, 32 << 20)?;
        luks_format(&image, &lab.pass(), &format!("--type luks2 {CHEAP}"))?;
        lab.give(&image)?;
        for round in 0..of_this {
            repeated += one_round(lab, &image, round)?;
        }
        for round in 0..of_this {
            for who in ["ours", "theirs"] {
                let key = lab.path(&format!("{who}-{round}.key"));
                let mut open = tools::tool("cryptsetup");
                open.args(["open", "--test-passphrase", "-d"]).arg(&key).arg(&image);
                ensure!(
                    tools::output(&mut open)?.status.success(),
                    "round {round}: the keyslot of {who} is lost"
                );
            }
        }
        left -= of_this;
    }
    Ok(format!("{rounds} rounds; cryptsetup gave up {repeated} times and was started again"))
}

/// Both add a keyslot at once. Returns how often cryptsetup was started again.
fn one_round(lab: &Lab, image: &Path, round: u32) -> Result<u32> {
    let ours = lab.write(&format!("ours-{round}.key"), format!("ours in round {round}"))?;
    let theirs = lab.write(&format!("theirs-{round}.key"), format!("theirs in round {round}"))?;
    let mut words = vec!["key".to_owned(), "add".to_owned(), image.display().to_string()];
    words.extend(["-d".to_owned(), lab.pass().display().to_string()]);
    words.extend(["--new-keyfile".to_owned(), ours.display().to_string()]);
    words.extend(CHEAP.split(' ').map(str::to_owned));
    let mut add = lab.blockyard(&words);
    let child = add.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut add = tools::tool("cryptsetup");
        add.arg("luksAddKey").args(CHEAP.split(' ')).arg("-d").arg(lab.pass());
        let ended = tools::output(add.arg(image).arg(&theirs))?;
        if ended.status.success() {
            break;
        }
        let said = tools::text(&ended.stderr).to_string();
        ensure!(attempts < ATTEMPTS, "cryptsetup gave up {attempts} times: {said}");
    }
    let ended = child.wait_with_output()?;
    ensure!(ended.status.success(), "ours: {}", tools::text(&ended.stderr));
    Ok(attempts - 1)
}
