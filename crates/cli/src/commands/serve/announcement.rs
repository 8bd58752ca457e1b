//! The lines that say what is served, and where.

use blockyard::{Listening, Volume};

use super::Serving;
use super::tls::TlsArgs;
use crate::config::ExportSpec;
use crate::nbd;
use crate::size::human_size;

impl Serving<'_> {
    /// The lines about the disks of this machine, for the time when they have started.
    pub(super) fn of_disks(&self, listening: &Listening, servers: &[nbd::Server]) -> Vec<String> {
        let tls = &self.plan.fixed.tls;
        let mut lines = Vec::new();
        for (name, path) in listening.disks() {
            let exports = self.plan.exports.iter().zip(&self.volumes);
            for (spec, volume) in exports.filter(|(spec, _)| spec.name == *name) {
                lines.extend(announcement(spec, volume.as_ref(), servers, Some(path), tls));
            }
        }
        lines
    }
}

/// Volumes and their addresses: one line each, and one for each other name.
pub(super) fn announcement(
    spec: &ExportSpec,
    volume: Option<&Volume>,
    servers: &[nbd::Server],
    disk_path: Option<&String>,
    tls: &TlsArgs,
) -> Vec<String> {
    let at = |export: &str| {
        let uri = |server| tls.uri(server, export).to_string();
        servers.iter().map(uri).collect::<Vec<_>>().join(" and ")
    };
    let path = spec.volume.path.display();
    let aliases = spec.aliases.iter().filter(|_| !servers.is_empty()).map(|alias| {
        format!("serving {path} with I/O priority {} at {}", alias.priority, at(&alias.name))
    });
    let disk = spec.disk.as_ref();
    let vhost_user = disk.map(|disk| disk.socket.to_string());
    let nbd = (!servers.is_empty()).then(|| at(&spec.name));
    let places: Vec<_> = nbd.into_iter().chain(vhost_user).chain(disk_path.cloned()).collect();
    let what = volume.map_or_else(|| "closed until its first use".to_owned(), described);
    let itself = format!("serving {path} ({what}) at {}", places.join(" and "));
    std::iter::once(itself).chain(aliases).collect()
}

/// Size, format, elevator and access of an open volume.
pub(super) fn described(volume: &Volume) -> String {
    let elevator = Some(volume.elevator()).filter(|elevator| elevator != "none");
    format!(
        "{}, {}{}{}",
        human_size(volume.len()),
        volume.describe(),
        elevator.map_or_else(String::new, |elevator| format!(", elevator {elevator}")),
        if volume.is_read_only() { ", read-only" } else { "" },
    )
}
