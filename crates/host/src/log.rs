//! What the person who runs this should know, on standard error.

use std::fmt;
use std::io::Write;

/// One line. A reader that has gone (`2>&1 | head`) is no reason to stop serving: `eprintln!`
/// panics then.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "blockyard: {text}");
}
