//! `NAME[,option=on|off…]`: an allocator specification.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use thiserror::Error;

use super::{ALLOCATORS, AllocatorType};

/// Switches for experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Only the oldest waiter takes pages (`bio_alloc_lock`). Off: two waiters can deadlock.
    pub mutex: bool,
    /// Compound pages count towards the limit. Off: the bug before 6.7.
    pub accounting: bool,
    /// Block allocations may reclaim and compact.
    pub compaction: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { mutex: true, accounting: true, compaction: false }
    }
}

const NAMES: [&str; 3] = ["mutex", "accounting", "compaction"];

impl Options {
    fn switch(&mut self, name: &str) -> Option<&mut bool> {
        match name {
            "mutex" => Some(&mut self.mutex),
            "accounting" => Some(&mut self.accounting),
            "compaction" => Some(&mut self.compaction),
            _ => None,
        }
    }
}

/// An allocator and its options.
#[derive(Clone, Copy, Debug)]
pub struct AllocatorSpec {
    /// The allocator.
    pub allocator: &'static AllocatorType,
    /// Its options.
    pub options: Options,
}

/// An error in a specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SpecError(String);

impl AllocatorSpec {
    /// An allocator with default options.
    #[must_use]
    pub fn of(allocator: &'static AllocatorType) -> Self {
        Self { allocator, options: Options::default() }
    }

    /// Parses `NAME[,option=on|off…]`.
    ///
    /// # Errors
    /// When the allocator or option is unknown, or an option is neither `on` nor `off`, or given
    /// twice.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or("");
        let allocator = AllocatorType::named(name).ok_or_else(|| {
            let names: Vec<&str> = ALLOCATORS.iter().map(|allocator| allocator.name).collect();
            SpecError(format!("{name:?} is no page allocator; there are {}", names.join(", ")))
        })?;
        let mut spec = Self::of(allocator);
        let mut given: Vec<&str> = Vec::new();
        for word in words {
            let bad = |problem: &str| SpecError(format!("{name}: {word:?} {problem}"));
            let (option, value) = word
                .split_once('=')
                .ok_or_else(|| bad("is not of the form option=on or option=off"))?;
            let switch = spec
                .options
                .switch(option)
                .ok_or_else(|| bad(&format!("names no option; there are {}", NAMES.join(", "))))?;
            if given.contains(&option) {
                return Err(bad("is given twice"));
            }
            given.push(option);
            *switch = match value {
                "on" => true,
                "off" => false,
                _ => return Err(bad("is neither on nor off")),
            };
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn options_are_switched_by_name() {
        let spec = AllocatorSpec::parse("compound,accounting=off,compaction=on").unwrap();
        assert_eq!(spec.allocator.name, "compound");
        let expected = Options { mutex: true, accounting: false, compaction: true };
        assert_eq!(spec.options, expected);
    }

    #[test]
    fn wrong_word_is_refused_with_the_allowed_words() {
        let problem = |text| AllocatorSpec::parse(text).unwrap_err().to_string();
        assert_eq!(
            problem("bulk"),
            "\"bulk\" is no page allocator; there are single, bulk-list, bulk-array, \
             bulk-callback, compound, all-or-nothing"
        );
        assert_eq!(
            problem("single,lock=on"),
            "single: \"lock=on\" names no option; there are mutex, accounting, compaction"
        );
        assert_eq!(problem("single,mutex=2"), "single: \"mutex=2\" is neither on nor off");
        assert_eq!(
            problem("single,mutex"),
            "single: \"mutex\" is not of the form option=on or option=off"
        );
        assert_eq!(problem("single,mutex=on,mutex=on"), "single: \"mutex=on\" is given twice");
    }
}
