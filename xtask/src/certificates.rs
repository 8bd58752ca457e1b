//! Certificates of `blockyard tls init` for servers and clients of other projects.

use crate::lab::Lab;
use crate::tools;
use anyhow::Result;
use std::fs;
use std::path::Path;

/// Directories of a server and of a client.
pub(crate) struct Pki {
    pub(crate) server: String,
    pub(crate) client: String,
    /// A client without a certificate.
    pub(crate) bare: String,
}

impl Pki {
    /// A certificate of the host `localhost`, and one of a client.
    pub(crate) fn make(lab: &Lab) -> Result<Self> {
        let dir = lab.path("pki");
        let of = |name: &str| dir.join(name).display().to_string();
        let server = dir.display().to_string();
        tools::run(lab.blockyard(&["tls", "init"]).arg(&dir).args(["--host", "localhost"]))?;
        tools::run(lab.blockyard(&["tls", "add-client"]).arg(&dir).arg("client"))?;
        fs::create_dir(dir.join("bare"))?;
        fs::copy(dir.join("ca-cert.pem"), dir.join("bare/ca-cert.pem"))?;
        // The server runs as another user, who owns what it reads.
        for file in ["ca-cert.pem", "server-cert.pem", "server-key.pem"] {
            lab.give(&dir.join(file))?;
        }
        lab.give(&dir)?;
        for file in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
            lab.give(&dir.join("client").join(file))?;
        }
        lab.give(&dir.join("client"))?;
        Ok(Self { server, client: of("client"), bare: of("bare") })
    }

    /// The URI of an export for libnbd, with the directory of a client.
    pub(crate) fn uri(socket: &Path, certificates: &str, export: &str) -> String {
        format!(
            "nbds+unix:///{export}?socket={}&tls-certificates={certificates}\
             &tls-hostname=localhost",
            socket.display()
        )
    }

    /// The URI of an export for fio, which refuses a directory in it: no end checks the other.
    pub(crate) fn uri_for_fio(socket: &Path, export: &str) -> String {
        format!("nbds+unix:///{export}?socket={}&tls-verify-peer=false", socket.display())
    }

    /// QEMU's object `tls` for a server.
    pub(crate) fn qemu_server(&self, verify_peer: bool) -> String {
        let verify_peer = if verify_peer { "yes" } else { "no" };
        let dir = &self.server;
        format!("tls-creds-x509,id=tls,dir={dir},endpoint=server,verify-peer={verify_peer}")
    }
}
