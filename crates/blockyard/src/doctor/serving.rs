//! The settings of a server: key files, address, threads.

use std::path::{Path, PathBuf};

use super::{Fact, Finding, Secret, cpus, file};

/// Settings of a server to check. Its volumes are checked one by one, by [`volume`](super::volume).
///
/// ```
/// use blockyard::doctor::{Fact, Serving};
///
/// let serving = Serving { address: Some("0.0.0.0:10809".into()), ..Serving::of("disks.toml") };
/// let findings = serving.findings();
/// assert!(matches!(findings[0].fact, Fact::OpenAddress { .. }));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// The configuration: the subject of the findings about the server itself.
    pub path: PathBuf,
    /// The TCP address, as `HOST:PORT`, if clients do not need TLS.
    pub address: Option<String>,
    /// Cipher workers of the server, if their number is set.
    pub worker_threads: Option<usize>,
    /// Number of CPUs that the server may use, if its settings limit them.
    pub cpus: Option<usize>,
    /// The key files of the volumes.
    pub key_files: Vec<PathBuf>,
}

impl Serving {
    /// A server that listens on no address.
    #[must_use]
    pub fn of(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// Checks the settings and the key files.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        self.findings_on(self.cpus.unwrap_or_else(cpus))
    }

    fn findings_on(&self, cpus: usize) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(address) = self.address.clone().filter(|address| !is_loopback(address)) {
            findings.push(Finding::at(&self.path, Fact::OpenAddress { address }));
        }
        if let Some(threads) = self.worker_threads.filter(|threads| *threads > cpus) {
            findings.push(Finding::at(&self.path, Fact::Workers { threads, cpus }));
        }
        findings.extend(self.key_files.iter().filter_map(|path| key_file(path)));
        findings
    }
}

pub(super) fn key_file(path: &Path) -> Option<Finding> {
    file::permissions(path, &path.metadata().ok()?, Secret::Key)
}

/// True if `HOST:PORT` is reachable from this machine only.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::Severity;
    use super::*;

    #[test]
    fn open_address_idle_threads_and_open_key_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        std::fs::write(&key, "pass").unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let findings_of = |address: &str, threads| {
            let serving = Serving {
                address: Some(address.into()),
                worker_threads: Some(threads),
                key_files: vec![key.clone()],
                ..Serving::of("c.toml")
            };
            serving.findings_on(2)
        };
        let bad = findings_of("0.0.0.0:10809", 8);
        let severities: Vec<Severity> = bad.iter().map(|one| one.severity).collect();
        assert_eq!(severities, [Severity::Risky, Severity::Slow, Severity::Risky], "{bad:?}");
        assert_eq!(findings_of("[::1]:10809", 2).len(), 1);
        assert_eq!(findings_of("localhost:10809", 2).len(), 1);
    }
}
