//! Access to files and remote disks.

/// Access to a file or remote disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading.
    ReadOnly,
    /// Reading and writing, exclusively.
    ReadWrite,
    /// Reading and writing, shared with others who also use `Shared`: paths to one disk.
    Shared,
}

impl Access {
    /// Whether it includes writing.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Self::ReadOnly
    }
}
