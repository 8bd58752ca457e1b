//! A small NBD client, which asks a server for its exports.
//!
//! It implements the handshake of the specification (`doc/proto.md` of the NBD project, "fixed
//! newstyle"): `STARTTLS`, `LIST`, `STRUCTURED_REPLY`, `LIST_META_CONTEXT`, `INFO` and `ABORT`. It
//! never enters the transmission phase, so it cannot disturb the export. The server is not trusted:
//! every length has a limit and every wait a time-out.

mod client;

pub(crate) use blockyard_host::nbd::uri::{DEFAULT_PORT, Server, Uri, UriTls, split_host_port};
pub(crate) use client::{Client, ServerExport};
