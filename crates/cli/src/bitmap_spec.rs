//! The dirty bitmap of an export, from options or a configuration file.

use std::path::{Path, PathBuf};

use blockyard::{DirtyBitmapOptions, GRANULARITY_MAX_BYTES, GRANULARITY_MIN_BYTES};

use crate::size::parse_size;

/// The name and the file in `NAME=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BitmapPlace {
    name: String,
    path: PathBuf,
}

impl BitmapPlace {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').ok_or("give a name and a file, as in NAME=FILE")?;
        if !DirtyBitmapOptions::is_name(name) {
            return Err(format!(
                "{name:?} is no name of a bitmap: it has 1 to 255 letters, digits, `.`, `_` and `-`"
            ));
        }
        if path.is_empty() {
            return Err("the path of the file is empty".into());
        }
        Ok(Self { name: name.to_owned(), path: path.into() })
    }

    /// The bitmap, with its file in this folder.
    pub(crate) fn options(
        self,
        folder: &Path,
        granularity_bytes: Option<u32>,
    ) -> DirtyBitmapOptions {
        DirtyBitmapOptions::new(self.name, folder.join(self.path)).granularity(granularity_bytes)
    }
}

pub(crate) fn parse_granularity(text: &str) -> Result<u32, String> {
    checked_granularity(parse_size(text).map_err(|error| error.to_string())?)
}

pub(crate) fn checked_granularity(bytes: u64) -> Result<u32, String> {
    let bytes = u32::try_from(bytes).ok();
    bytes.filter(|bytes| DirtyBitmapOptions::is_granularity(*bytes)).ok_or_else(|| {
        format!(
            "the granularity must be a power of two, {} KiB to {} MiB",
            GRANULARITY_MIN_BYTES >> 10,
            GRANULARITY_MAX_BYTES >> 20
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_has_a_name_that_shells_and_clients_accept() {
        let place = BitmapPlace::parse("daily=/b/a=c").unwrap();
        assert_eq!((place.name.as_str(), place.path.as_path()), ("daily", Path::new("/b/a=c")));
        for text in ["daily", "=file", "daily=", "a b=file", "a:b=file", "ä=file"] {
            assert!(BitmapPlace::parse(text).is_err(), "{text}");
        }
        let long = "a".repeat(256);
        assert!(BitmapPlace::parse(&format!("{long}=file")).is_err());
    }

    #[test]
    fn granularity_is_a_power_of_two_within_its_limits() {
        for (text, bytes) in [("4096", 4096), ("64K", 65_536), ("64M", 64 << 20)] {
            assert_eq!(parse_granularity(text), Ok(bytes));
        }
        for text in ["0", "512", "96K", "128M", "4G", "16E"] {
            assert!(parse_granularity(text).is_err(), "{text}");
        }
    }
}
