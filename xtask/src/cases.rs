//! Named cases: each prints one line that passes or fails, and their sum decides the exit status.
//!
//! A case that panics counts as failed, and the rest still run, so that one CI run shows all
//! faults.

use anyhow::{Result, bail};
use std::io::{IsTerminal, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// The cases of one command: the number of passed ones, and the failed ones with their reasons.
pub(crate) struct Cases {
    /// Filter: a part of the names.
    only: Option<String>,
    passed: u32,
    failed: Vec<(String, String)>,
}

impl Cases {
    pub(crate) fn new(only: Option<&str>) -> Cases {
        Cases { only: only.map(str::to_owned), passed: 0, failed: Vec::new() }
    }

    /// Whether the filter admits a case of this name: to skip expensive preparations.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Whether the filter may admit a case whose name contains `part`.
    pub(crate) fn wants_some(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(part) || part.contains(only.as_str()))
    }

    /// Runs one case. Its result is a remark that is printed after its name; it may be empty.
    pub(crate) fn run(&mut self, name: &str, case: impl FnOnce() -> Result<String>) {
        if !self.wants(name) {
            return;
        }
        let start = Instant::now();
        let outcome = match catch_unwind(AssertUnwindSafe(case)) {
            Ok(Ok(remark)) => Ok(remark),
            Ok(Err(error)) => Err(format!("{error:#}")),
            Err(_) => Err("the check itself panicked (see above)".to_owned()),
        };
        self.line(name, &outcome, Some(start.elapsed().as_secs_f64()));
        self.count(name, outcome);
    }

    /// Records the result of a case that ran elsewhere (in a guest, in a script).
    pub(crate) fn verdict(&mut self, name: &str, outcome: Result<String>) {
        if !self.wants(name) {
            return;
        }
        let outcome = outcome.map_err(|error| format!("{error:#}"));
        self.line(name, &outcome, None);
        self.count(name, outcome);
    }

    fn count(&mut self, name: &str, outcome: Result<String, String>) {
        match outcome {
            Ok(_) => self.passed += 1,
            Err(why) => self.failed.push((name.to_owned(), why)),
        }
    }

    fn line(&self, name: &str, outcome: &Result<String, String>, seconds: Option<f64>) {
        let colour = std::io::stdout().is_terminal();
        let (word, code, text) = match outcome {
            Ok(remark) => ("ok  ", "32", remark),
            Err(why) => ("FAIL", "31", why),
        };
        let word = if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() };
        let took = seconds.filter(|s| *s >= 0.1).map_or(String::new(), |s| format!(" ({s:.1} s)"));
        let colon = if text.is_empty() { "" } else { ": " };
        println!("  {word} {name}{took}{colon}{}", text.trim_end().replace('\n', "\n         "));
        let _ = std::io::stdout().flush();
    }

    /// Prints the sum; fails if a case failed or none ran. The error has the reasons again: CI
    /// shows the end of a part's output, and hundreds of cases may be behind the failed one.
    pub(crate) fn finish(self, what: &str) -> Result<()> {
        println!("{what}: {} passed, {} failed", self.passed, self.failed.len());
        if !self.failed.is_empty() {
            let failed =
                self.failed.iter().map(|(name, why)| format!("{name}: {}", why.trim_end()));
            bail!("{what}: failed:\n{}", failed.collect::<Vec<_>>().join("\n"));
        }
        if self.passed == 0 {
            bail!("{what}: no case of that name");
        }
        Ok(())
    }
}
