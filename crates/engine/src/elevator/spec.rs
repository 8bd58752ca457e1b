//! `NAME[,tunable=value…]`: an elevator specification.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use thiserror::Error;

use super::{Attached, ELEVATORS, ElevatorType, Facts, Tunable};

/// An elevator and the values of its tunables.
#[derive(Clone)]
pub struct ElevatorSpec {
    /// The elevator.
    pub elevator: &'static ElevatorType,
    /// Values in the order of the tunables.
    values: Vec<u64>,
}

/// The values of an elevator's tunables.
#[derive(Clone, Copy)]
pub struct Tunables<'a> {
    spec: &'a ElevatorSpec,
}

impl Tunables<'_> {
    /// Value of a tunable, in its unit.
    ///
    /// # Panics
    /// When the elevator has no tunable of this name.
    #[must_use]
    pub fn value(&self, name: &str) -> u64 {
        let place = self.spec.elevator.tunables.iter().position(|tunable| tunable.name == name);
        self.spec.values[place.expect("an elevator asks for its own tunables")]
    }
}

/// An error in a specification.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ElevatorError(String);

impl ElevatorSpec {
    /// An elevator with its default values.
    #[must_use]
    pub fn of(elevator: &'static ElevatorType) -> Self {
        let values = elevator.tunables.iter().map(|tunable| tunable.default).collect();
        Self { elevator, values }
    }

    /// Parses `NAME[,tunable=value…]`.
    ///
    /// # Errors
    /// When the elevator or tunable is unknown, or a value is out of its range; the error names the
    /// valid ones.
    pub fn parse(text: &str) -> Result<Self, ElevatorError> {
        let mut words = text.split(',');
        let name = words.next().unwrap_or("");
        let elevator = ElevatorType::named(name).ok_or_else(|| {
            let names = list(ELEVATORS.iter().map(|elevator| elevator.name.to_string()));
            ElevatorError(format!("{name:?} is no elevator; the elevators are {names}"))
        })?;
        let mut spec = Self::of(elevator);
        let mut given: Vec<&str> = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| {
                ElevatorError(format!("{name}: {word:?} is not of the form tunable=value"))
            })?;
            if given.contains(&name) {
                let problem = format!("{}: {name} is given twice", elevator.name);
                return Err(ElevatorError(problem));
            }
            spec.set(name, value)?;
            given.push(name);
        }
        Ok(spec)
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), ElevatorError> {
        let Self { elevator, values } = self;
        let place = elevator.tunables.iter().position(|tunable| tunable.name == name);
        let place = place.ok_or_else(|| {
            let has = match elevator.tunables {
                [] => "it has none".to_string(),
                tunables => {
                    format!("there are {}", list(tunables.iter().map(ToString::to_string)))
                }
            };
            ElevatorError(format!("{}: {name:?} is no tunable; {has}", elevator.name))
        })?;
        let tunable = &elevator.tunables[place];
        let in_range = |value: &u64| (tunable.min..=tunable.max).contains(value);
        let value = text.parse().ok().filter(in_range).ok_or_else(|| {
            ElevatorError(format!("{}: {text:?} is out of range; {tunable}", elevator.name))
        })?;
        values[place] = value;
        Ok(())
    }

    /// Creates an elevator for one queue.
    #[must_use]
    pub fn attach(&self, facts: Facts) -> Attached {
        (self.elevator.attach)(&Tunables { spec: self }, facts)
    }
}

fn list(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(", ")
}

/// `name=min..max unit`.
impl fmt::Display for Tunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}..{}", self.name, self.min, self.max)?;
        if self.unit.is_empty() { Ok(()) } else { write!(f, " {}", self.unit) }
    }
}

/// Prints the parsable form, with the values that differ from the defaults.
impl fmt::Display for ElevatorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.elevator.name)?;
        for (tunable, value) in self.elevator.tunables.iter().zip(&self.values) {
            if *value != tunable.default {
                write!(f, ",{}={value}", tunable.name)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ElevatorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq for ElevatorSpec {
    fn eq(&self, other: &Self) -> bool {
        self.elevator.name == other.elevator.name && self.values == other.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        ElevatorSpec::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn unknown_elevator_is_refused_with_the_names_of_all() {
        for text in ["", "dealdine", "NOOP", "noop "] {
            let refusal = refusal(text);
            assert!(ELEVATORS.iter().all(|elevator| refusal.contains(elevator.name)), "{refusal}");
        }
    }

    #[test]
    fn tunable_of_an_elevator_without_any_is_refused() {
        assert!(refusal("none,fifo_batch=1").contains("it has none"));
        assert!(refusal("noop,fifo_batch").contains("tunable=value"));
    }

    #[test]
    fn every_default_is_in_its_range_and_every_name_is_its_own() {
        for elevator in ELEVATORS {
            assert_eq!(ElevatorSpec::parse(elevator.name).unwrap(), ElevatorSpec::of(elevator));
            for (place, tunable) in elevator.tunables.iter().enumerate() {
                assert!((tunable.min..=tunable.max).contains(&tunable.default), "{tunable}");
                let others = &elevator.tunables[place + 1..];
                assert!(others.iter().all(|other| other.name != tunable.name), "{tunable}");
                let name = elevator.name;
                let default = tunable.default;
                let text = format!("{name},{}={default}", tunable.name);
                assert_eq!(ElevatorSpec::parse(&text).unwrap(), ElevatorSpec::of(elevator));
                let twice = format!("{text},{}={default}", tunable.name);
                assert!(refusal(&twice).contains("twice"));
                let above = format!("{name},{}={}", tunable.name, u128::from(tunable.max) + 1);
                assert!(refusal(&above).contains(tunable.name), "{above}");
            }
        }
    }
}
