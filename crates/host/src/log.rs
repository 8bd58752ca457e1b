//! Messages to the operator on standard error.

use std::fmt;
use std::io::Write;

/// Prints one line. A closed reader (`2>&1 | head`) is ignored, where `eprintln!` would panic.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "blockyard: {text}");
}
