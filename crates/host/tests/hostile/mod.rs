//! Cases of hostile front ends.

pub(crate) mod chains;
pub(crate) mod descriptors;
pub(crate) mod leaving;
pub(crate) mod memory;
pub(crate) mod messages;
pub(crate) mod rings;
pub(crate) mod stage;

use crate::guest::Guest;

/// A name, a part of the only sentence on standard error (empty: there is none), and the attack.
pub(crate) type Case = (&'static str, &'static str, fn(&mut Guest));
