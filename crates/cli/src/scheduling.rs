//! Names with a priority, and limits of a queue, for options and configuration.

use blockyard_engine::priority::Priority;
use blockyard_host::volume::Scheduling;

use crate::config::check_export_name;

/// A request consists of whole 4096-byte sectors.
const SECTORS_STEP: u32 = 8;

/// Another name of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alias {
    /// The name for clients.
    pub(crate) name: String,
    /// I/O priority of its clients.
    pub(crate) priority: Priority,
}

impl Alias {
    /// Parses `NAME=CLASS[:LEVEL]`; the name may contain equals signs.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, priority) = text
            .rsplit_once('=')
            .ok_or("not of the form NAME=CLASS[:LEVEL], for example home-rt=rt:0")?;
        Self::new(name, priority)
    }

    /// A name and the text of its priority.
    pub(crate) fn new(name: &str, priority: &str) -> Result<Self, String> {
        if name.is_empty() {
            return Err("an alias cannot be empty: the empty name is the export itself".into());
        }
        check_export_name(name).map_err(|failure| failure.message)?;
        let priority = Priority::parse(priority).map_err(|error| error.to_string())?;
        Ok(Self { name: name.into(), priority })
    }
}

/// Checks a queue depth.
pub(crate) fn checked_queue_depth(depth: u32) -> Result<u32, String> {
    let allowed = Scheduling::QUEUE_DEPTHS;
    if allowed.contains(&depth) {
        return Ok(depth);
    }
    Err(format!("a queue depth must be {} to {}", allowed.start(), allowed.end()))
}

/// Checks a minimum block size: at most the longest sector.
pub(crate) fn checked_minimum_block(bytes: u32) -> Result<u32, String> {
    if bytes.is_power_of_two() && bytes <= 4096 {
        Ok(bytes)
    } else {
        Err("the minimum block must be a power of two from 1 to 4096 bytes".into())
    }
}

/// Checks the length of the longest request.
pub(crate) fn checked_max_sectors(sectors: u32) -> Result<u32, String> {
    let allowed = Scheduling::MAX_SECTORS;
    if allowed.contains(&sectors) && sectors.is_multiple_of(SECTORS_STEP) {
        return Ok(sectors);
    }
    Err(format!(
        "the longest request must be a multiple of {SECTORS_STEP} from {} to {} 512-byte sectors",
        allowed.start(),
        allowed.end()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_is_split_at_its_last_equals_sign() {
        let alias = Alias::parse("a=b=idle").unwrap();
        assert_eq!((alias.name.as_str(), alias.priority), ("a=b", Priority::IDLE));
        assert!(Alias::parse("home").unwrap_err().contains("NAME=CLASS"));
        assert!(Alias::parse("home=").unwrap_err().contains("be:7"));
        assert!(Alias::parse("=rt:0").unwrap_err().contains("empty"));
        assert!(Alias::parse(&format!("{}=rt:0", "n".repeat(4097))).unwrap_err().contains("4096"));
    }

    #[test]
    fn limits_of_a_queue_are_kept() {
        for depth in [1, 32, 1024] {
            assert_eq!(checked_queue_depth(depth), Ok(depth));
        }
        for depth in [0, 1025, u32::MAX] {
            assert!(checked_queue_depth(depth).unwrap_err().contains("1 to 1024"), "{depth}");
        }
        for sectors in [8, 2560, 65528] {
            assert_eq!(checked_max_sectors(sectors), Ok(sectors));
        }
        for sectors in [0, 7, 9, 2561, 65535, 65536] {
            assert!(checked_max_sectors(sectors).unwrap_err().contains("65528"), "{sectors}");
        }
    }
}
