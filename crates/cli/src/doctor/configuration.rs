//! A configuration of `serve`: its keys, its addresses, its threads.

use std::path::Path;

use super::{Finding, Grade, place};
use crate::config::{Config, ExportSpec};
use crate::key::KeySource;

/// What is wrong with the file itself; its volumes are looked at one by one.
pub(crate) fn findings(path: &Path, config: &Config, cpus: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |grade, seen: String, mend: &str| {
        findings.push(Finding::new(grade, path.display().to_string(), seen, mend));
    };
    if let Some(listen) = config.listen.as_ref().filter(|listen| !is_loopback(listen)) {
        let seen =
            format!("{listen} is open to the network, and NBD has no cipher of its own there");
        add(Grade::Risky, seen, "socket = \"PATH\", and ssh -L or a VPN for those outside");
    }
    if let Some(threads) = config.threads.filter(|threads| usize::from(*threads) > cpus) {
        let seen = format!("{threads} cipher threads take turns on {cpus} CPUs");
        add(Grade::Slow, seen, "leave threads out, or let blockyard tune find the number");
    }
    findings.extend(config.exports.iter().filter_map(key_file));
    findings
}

fn key_file(export: &ExportSpec) -> Option<Finding> {
    let KeySource::File(path) = &export.volume.key.source else { return None };
    place::permissions(path, &std::fs::metadata(path).ok()?, "this key")
}

/// `HOST:PORT` of this machine alone.
fn is_loopback(listen: &str) -> bool {
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_address_idle_threads_and_open_key_are_named() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("key", "pass");
        let mode = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(folder.path().join("key"), mode).unwrap();
        let export = "[exports.a]\nvolume = \"a.img\"\nkey_file = \"key\"\n";
        let findings_of = |head: &str| {
            write("c.toml", &format!("{head}\n{export}"));
            let path = folder.path().join("c.toml");
            let config = Config::read(&path).unwrap();
            findings(&path, &config, 2)
        };
        let bad = findings_of("listen = \"0.0.0.0:10809\"\nthreads = 8");
        let grades: Vec<Grade> = bad.iter().map(|one| one.grade).collect();
        assert_eq!(grades, [Grade::Risky, Grade::Slow, Grade::Risky], "{bad:?}");
        assert_eq!(findings_of("listen = \"[::1]:10809\"\nthreads = 2").len(), 1);
    }
}
