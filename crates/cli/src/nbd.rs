//! A small NBD client: enough to ask a server what it serves.
//!
//! It speaks the handshake of the specification (`doc/proto.md` of the NBD project, "fixed
//! newstyle"): `LIST`, `STRUCTURED_REPLY`, `LIST_META_CONTEXT`, `INFO` and `ABORT`. It never enters
//! the transmission phase, so asking cannot disturb what is served. The server is not trusted:
//! every length has a limit and every wait a time-out.

mod client;

pub(crate) use blockyard_host::nbd::uri::{Server, Uri, split_host_port};
pub(crate) use client::{Client, ServerExport};
