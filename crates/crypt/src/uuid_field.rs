//! The UUID of a LUKS header. No byte of it is needed to open the volume, so cryptsetup takes any.

/// Length on disk.
pub(crate) const UUID_LEN_BYTES: usize = 40;

/// The field as on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UuidField(pub(crate) [u8; UUID_LEN_BYTES]);

impl UuidField {
    /// A UUID of at most 40 bytes.
    pub(crate) fn of(text: &str) -> Self {
        let mut field = [0; UUID_LEN_BYTES];
        field[..text.len()].copy_from_slice(text.as_bytes());
        Self(field)
    }

    /// The text up to the first byte that is not printable ASCII.
    pub(crate) fn text(&self) -> &str {
        let printable = |byte: &u8| (b' '..=b'~').contains(byte);
        let len = self.0.iter().take_while(|byte| printable(byte)).count();
        std::str::from_utf8(&self.0[..len]).expect("ASCII is UTF-8")
    }
}
