//! A served export: [`Export`], a named range of bytes, and its description for clients.

use alloc::string::String;

use super::reply::ReplyMode;
use super::wire::*;

/// Longest name of a dirty bitmap.
const BITMAP_NAME_MAX_BYTES: usize = 1023;

/// One disk that clients may open by name.
// 13 fields: each is told to clients, by options and flags of its own.
#[derive(Clone, Debug)]
pub struct Export {
    /// Name for clients: at most 4096 bytes, without NUL.
    pub name: String,
    /// Description in lists of exports: at most 4096 bytes, without NUL; may be empty.
    pub description: String,
    /// Size of the disk; a multiple of `block_min_bytes`.
    pub size_bytes: u64,
    /// Whether writes, trims and zeroes are refused with EPERM.
    pub read_only: bool,
    /// Whether TRIM is advertised and passed to the world.
    pub can_trim: bool,
    /// Whether WRITE_ZEROES with FAST_ZERO is passed to the world. Otherwise the session refuses it
    /// with ENOTSUP, the fast answer that the flag asks for.
    pub can_fast_zero: bool,
    /// Whether a flush on one connection covers the writes of all: then clients may open several.
    pub multi_conn: bool,
    /// Hint for the client's I/O scheduler.
    pub rotational: bool,
    /// Granularity of requests: a power of two up to 64 KiB.
    pub block_min_bytes: u32,
    /// Granularity of efficient requests: a power of two, at least 512.
    pub block_preferred_bytes: u32,
    /// Longest READ or WRITE for clients that asked for block sizes. Other clients may send 32 MiB,
    /// the protocol's default.
    pub block_max_bytes: u32,
    /// Name of the dirty bitmap, for the context `qemu:dirty-bitmap:NAME`: at most 1023 bytes
    /// without NUL, as in QEMU. `None`: there is none.
    pub dirty_bitmap: Option<String>,
    /// Whether the size and all before and after it are unknown until a client asks for the export:
    /// [`super::Event::Asked`].
    pub is_closed: bool,
}

/// The reason why an [`Export`] cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The name or the description violates the protocol's rule for strings.
    #[error("the {0} of an export must be at most 4096 bytes without NUL")]
    Text(&'static str),
    /// The name of the bitmap cannot be a part of a context's name.
    #[error("the name of a dirty bitmap must be 1 to {BITMAP_NAME_MAX_BYTES} bytes without NUL")]
    Bitmap,
    /// Block sizes that clients would reject.
    #[error(
        "block sizes of an export must be powers of two with \
         minimum <= 64 KiB, preferred >= both 512 and the minimum, and maximum >= preferred"
    )]
    BlockSizes,
    /// A size that clients cannot use: they count in signed 64-bit offsets and in blocks.
    #[error("the size of an export must be below 2^63 bytes and a multiple of its minimum block")]
    Size,
}

impl Export {
    /// A writable export with the protocol's default block sizes and without optional features.
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            size_bytes,
            read_only: false,
            can_trim: false,
            can_fast_zero: false,
            multi_conn: false,
            rotational: false,
            block_min_bytes: 1,
            block_preferred_bytes: 4096,
            block_max_bytes: DEFAULT_PAYLOAD_MAX_BYTES,
            dirty_bitmap: None,
            is_closed: false,
        }
    }

    /// Checks the protocol's rules for an export. [`super::Session::new`] panics on invalid ones.
    pub fn check(&self) -> Result<(), ExportError> {
        let text_ok = |text: &str| text.len() <= STRING_MAX_BYTES && !text.contains('\0');
        if !text_ok(&self.name) {
            return Err(ExportError::Text("name"));
        }
        if !text_ok(&self.description) {
            return Err(ExportError::Text("description"));
        }
        let bitmap = self.dirty_bitmap.as_deref().unwrap_or("bitmap");
        if !text_ok(bitmap) || bitmap.is_empty() || bitmap.len() > BITMAP_NAME_MAX_BYTES {
            return Err(ExportError::Bitmap);
        }
        let min = self.block_min_bytes;
        let preferred = self.block_preferred_bytes;
        if !min.is_power_of_two()
            || min > 1 << 16
            || !preferred.is_power_of_two()
            || preferred < min.max(512)
            || self.block_max_bytes < preferred
        {
            return Err(ExportError::BlockSizes);
        }
        if self.size_bytes > i64::MAX as u64 || !self.size_bytes.is_multiple_of(u64::from(min)) {
            return Err(ExportError::Size);
        }
        Ok(())
    }

    /// Whether clients need block sizes even if they did not ask.
    pub(super) fn has_unusual_blocks(&self) -> bool {
        self.block_min_bytes > 1 || self.block_max_bytes < DEFAULT_PAYLOAD_MAX_BYTES
    }

    /// The transmission flags of this export for a client in this mode.
    ///
    /// `has_contexts`: the client selected metadata contexts for this export.
    pub(super) fn transmission_flags(&self, mode: ReplyMode, has_contexts: bool) -> u16 {
        let when = |condition: bool, flags: u16| if condition { flags } else { 0 };
        FLAG_HAS_FLAGS
            | FLAG_SEND_FLUSH
            | FLAG_SEND_FUA
            | FLAG_SEND_CACHE
            | when(self.read_only, FLAG_READ_ONLY)
            | when(self.rotational, FLAG_ROTATIONAL)
            | when(self.multi_conn, FLAG_CAN_MULTI_CONN)
            | when(self.can_trim && !self.read_only, FLAG_SEND_TRIM)
            | when(!self.read_only, FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO)
            | when(mode != ReplyMode::Simple, FLAG_SEND_DF)
            | when(mode == ReplyMode::Extended && has_contexts, FLAG_BLOCK_STATUS_PAYLOAD)
    }
}

/// All exports of a server, for one connection.
#[derive(Debug)]
pub(super) struct Exports {
    pub(super) list: alloc::sync::Arc<[Export]>,
    pub(super) default: Option<usize>,
    /// The answer for a closed export of the list that the client has asked for.
    pub(super) answered: Option<(usize, Availability)>,
}

/// The answer to a question for a closed export.
#[derive(Clone, Debug)]
pub(super) enum Availability {
    Opened(Export),
    Refused,
}

/// An export for a client that asks for it.
#[derive(Debug)]
pub(super) enum Looked<'a> {
    Up(&'a Export),
    /// The world has to say what it is.
    Closed,
    Refused,
}

impl Exports {
    /// The export with this index.
    pub(super) fn look_up(&self, index: usize) -> Looked<'_> {
        match &self.answered {
            _ if !self.list[index].is_closed => Looked::Up(&self.list[index]),
            Some((of, Availability::Opened(export))) if *of == index => Looked::Up(export),
            Some((of, Availability::Refused)) if *of == index => Looked::Refused,
            _ => Looked::Closed,
        }
    }

    /// Finds an export by a client's name. The empty name means the default export, unless an
    /// export has that name.
    pub(super) fn find(&self, name: &[u8]) -> Option<usize> {
        let found = self.list.iter().position(|export| export.name.as_bytes() == name);
        if name.is_empty() { found.or(self.default) } else { found }
    }
}
