//! Facts that a job file may refer to: the volume's length, the machine, the environment.
//!
//! `${NAME}` in a value is an environment variable, or empty if there is none, as in fio.
//! `$pagesize`, `$mb_memory` and `$ncpus` are numbers of the machine.

use std::fmt;

/// Greatest length of an expanded value. Our choice.
const VALUE_MAX_BYTES: usize = 4096;

/// The machine and volume for which a job file is read.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Length of the volume.
    pub device_bytes: u64,
    /// `$pagesize`.
    pub page_bytes: u64,
    /// `$mb_memory`.
    pub memory_mib: u64,
    /// `$ncpus`.
    pub cpus: u64,
    /// Looks up an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("device_bytes", &self.device_bytes).finish()
    }
}

impl Surroundings<'static> {
    /// A volume of this length on a small machine without environment variables: for tests.
    #[must_use]
    pub fn of_device(device_bytes: u64) -> Self {
        Self { device_bytes, page_bytes: 4096, memory_mib: 1024, cpus: 2, variable: &|_| None }
    }
}

impl Surroundings<'_> {
    /// Substitutes the variables in a value.
    pub(super) fn expand(&self, value: &str) -> Result<String, String> {
        let mut text = value.to_owned();
        if value.contains('$') {
            for (name, number) in [
                ("$pagesize", self.page_bytes),
                ("$mb_memory", self.memory_mib),
                ("$ncpus", self.cpus),
            ] {
                text = text.replace(name, &number.to_string());
            }
            text = self.with_variables(&text)?;
        }
        if text.len() > VALUE_MAX_BYTES {
            return Err(format!("a value is longer than {VALUE_MAX_BYTES} bytes"));
        }
        Ok(text)
    }

    fn with_variables(&self, text: &str) -> Result<String, String> {
        let mut done = String::new();
        let mut left = text;
        while let Some((before, behind)) = left.split_once("${") {
            let (name, rest) =
                behind.split_once('}').ok_or_else(|| format!("{text:?} has no }} behind ${{"))?;
            done += before;
            done += &(self.variable)(name).unwrap_or_default();
            left = rest;
        }
        Ok(done + left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_keywords_are_put_in() {
        let variable = |name: &str| (name == "SIZE").then(|| String::from("64m"));
        let here = Surroundings { variable: &variable, ..Surroundings::of_device(0) };
        for (value, expanded) in [
            ("${SIZE}", "64m"),
            ("a${SIZE}b${NONE}c", "a64mbc"),
            ("5*1024*$mb_memory/8", "5*1024*1024/8"),
            ("$ncpus,$pagesize", "2,4096"),
            ("a$b", "a$b"),
        ] {
            assert_eq!(here.expand(value).as_deref(), Ok(expanded));
        }
        assert!(here.expand("${SIZE").is_err());
        assert!(here.expand(&"x".repeat(5000)).is_err());
    }
}
