//! I/O priority: a class and, in two of the classes, a level (`include/uapi/linux/ioprio.h`).

use core::fmt;

use thiserror::Error;

/// Scheduling class, most urgent first. The kernel's fourth class, *none*, is best effort at level
/// 4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PriorityClass {
    /// `IOPRIO_CLASS_RT`: before all other classes.
    RealTime,
    /// `IOPRIO_CLASS_BE`: the default.
    #[default]
    BestEffort,
    /// `IOPRIO_CLASS_IDLE`: only when the disk is otherwise idle.
    Idle,
}

/// An I/O priority: class and level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Priority {
    /// The class has precedence over the level.
    pub class: PriorityClass,
    /// 0 is the most urgent, 7 the least. The idle class has no levels: always 7.
    pub level: u8,
}

impl Priority {
    /// Least urgent level.
    pub const LEVEL_MAX: u8 = 7;
    /// `IOPRIO_CLASS_IDLE`.
    pub const IDLE: Self = Self { class: PriorityClass::Idle, level: Self::LEVEL_MAX };

    /// Number of priorities: eight levels of two classes, and the idle class.
    pub const COUNT: usize = 17;

    /// Position among all priorities, the most urgent first.
    #[must_use]
    pub fn index(self) -> usize {
        let level = usize::from(self.level);
        match self.class {
            PriorityClass::RealTime => level,
            PriorityClass::BestEffort => 8 + level,
            PriorityClass::Idle => 16,
        }
    }

    /// Real time at a level.
    #[must_use]
    pub const fn real_time(level: u8) -> Self {
        assert!(level <= Self::LEVEL_MAX);
        Self { class: PriorityClass::RealTime, level }
    }

    /// Best effort at a level.
    #[must_use]
    pub const fn best_effort(level: u8) -> Self {
        assert!(level <= Self::LEVEL_MAX);
        Self { class: PriorityClass::BestEffort, level }
    }

    /// Parses `CLASS` or `CLASS:LEVEL`: `rt`, `realtime`, `be`, `best-effort`, `idle`. The default
    /// level is 4, as for a process of nice 0.
    ///
    /// # Errors
    /// When the text is invalid.
    pub fn parse(text: &str) -> Result<Self, PriorityError> {
        let refuse = || PriorityError { text: text.into() };
        let (class, level) = match text.split_once(':') {
            Some((class, level)) => (class, Some(level)),
            None => (text, None),
        };
        let level = match level {
            None => 4,
            Some(digit @ ("0" | "1" | "2" | "3" | "4" | "5" | "6" | "7")) => {
                digit.as_bytes()[0] - b'0'
            }
            Some(_) => return Err(refuse()),
        };
        match class {
            "rt" | "realtime" => Ok(Self::real_time(level)),
            "be" | "best-effort" => Ok(Self::best_effort(level)),
            "idle" if !text.contains(':') => Ok(Self::IDLE),
            _ => Err(refuse()),
        }
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::best_effort(4)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class {
            PriorityClass::RealTime => write!(f, "rt:{}", self.level),
            PriorityClass::BestEffort => write!(f, "be:{}", self.level),
            PriorityClass::Idle => f.write_str("idle"),
        }
    }
}

/// Not a priority.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no I/O priority; use rt:0 to rt:7 (real time), be:0 to be:7 (best effort), or idle"
)]
pub struct PriorityError {
    text: alloc::string::String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_read_and_printed() {
        let read = |text| Priority::parse(text).unwrap();
        assert_eq!(read("rt:0"), Priority::real_time(0));
        assert_eq!(read("realtime"), Priority::real_time(4));
        assert_eq!(read("best-effort:7"), Priority::best_effort(7));
        assert_eq!(read("idle"), Priority::IDLE);
        for text in ["rt:0", "be:3", "idle"] {
            assert_eq!(alloc::format!("{}", read(text)), text);
        }
    }

    #[test]
    fn text_without_a_priority_is_refused_with_the_allowed_values() {
        for text in ["", "rt:8", "rt:", "rt:00", "idle:3", "RT:0", "be:-1", "none"] {
            let error = Priority::parse(text).unwrap_err();
            assert!(alloc::format!("{error}").contains("be:7"), "{text}");
        }
    }

    #[test]
    fn more_urgent_compares_less() {
        assert!(Priority::real_time(7) < Priority::best_effort(0));
        assert!(Priority::best_effort(7) < Priority::IDLE);
        assert!(Priority::best_effort(3) < Priority::default());
    }
}
