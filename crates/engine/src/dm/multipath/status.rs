//! Status of a multipath target (`multipath_status`).
//!
//! ```text
//! info   2 <queueing> <pg_init_count> 0 <#groups> <group>
//!            { <D|A|E> <#selector args> [<arg>...] <#paths> <#path words>
//!              { <device> <A|F> <fail count> [<word>...] }... }...
//! table  the line's current arguments
//! ```
//! A group is disabled (D), that of the last I/O (A), or another one (E). `queueing` and
//! `pg_init_count` concern hardware handlers and are always 0. Each word is followed by a space,
//! including the last, as in the kernel.

use alloc::string::String;
use core::fmt::{self, Write as _};
use core::str::SplitWhitespace;

use super::Multipath;

/// Number of failed paths in a text of [`Multipath::info`].
#[must_use]
pub fn failed_paths(info: &str) -> usize {
    let mut words = info.split_whitespace();
    let number = |words: &mut SplitWhitespace<'_>| -> usize {
        words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    // The four words of the hardware handler.
    words.by_ref().take(4).for_each(drop);
    let groups = number(&mut words);
    words.next();
    let mut failed = 0;
    for _ in 0..groups {
        words.next();
        let args = number(&mut words);
        words.by_ref().take(args).for_each(drop);
        let paths = number(&mut words);
        let path_words = number(&mut words);
        for _ in 0..paths {
            words.next();
            failed += usize::from(words.next() == Some("F"));
            words.by_ref().take(1 + path_words).for_each(drop);
        }
    }
    failed
}

impl Multipath {
    /// `STATUSTYPE_INFO`.
    #[must_use]
    pub fn info(&self) -> String {
        let mut out = String::new();
        self.write_info(&mut out).expect("a string never fails");
        out
    }

    /// `STATUSTYPE_TABLE`.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        let written = self.spec.write(self.queue_if_no_path, self.shown_group(), &mut out);
        written.expect("a string never fails");
        out
    }

    /// The group that the next I/O tries first, counted from one; zero if there are no groups.
    fn shown_group(&self) -> usize {
        match self.next.or(self.current) {
            Some(group) => group + 1,
            None => self.groups.len().min(1),
        }
    }

    fn write_info(&self, out: &mut String) -> fmt::Result {
        write!(out, "2 0 0 0 {} {} ", self.groups.len(), self.shown_group())?;
        let mut specs = self.spec.paths();
        for (number, group) in self.groups.iter().enumerate() {
            let selector = &self.spec.groups[number].selector;
            let state = match (group.bypassed, self.current == Some(number)) {
                (true, _) => 'D',
                (false, true) => 'A',
                (false, false) => 'E',
            };
            write!(out, "{state} ")?;
            selector.args(out)?;
            write!(out, "{} {} ", group.paths.len(), selector.info_args())?;
            for (path, spec) in self.paths[group.paths.clone()].iter().zip(&mut specs) {
                let state = if path.failed.is_some() { 'F' } else { 'A' };
                write!(out, "{} {state} {} ", spec.device, path.fail_count)?;
                group.selector.info(path.place, out);
            }
        }
        Ok(())
    }
}
