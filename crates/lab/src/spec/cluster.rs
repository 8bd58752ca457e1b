//! `[device] kind = "cluster"`: images of replicated object storage.

use blockyard_sim::device::cluster::{ClusterConfig, Layout, Network, OsdCpu, Recovery, Store};

use super::section::Section;
use super::world::{ns, sectors, us};
use crate::Error;

/// Reads the keys of a cluster.
pub(super) fn read(section: &mut Section<'_>) -> Result<ClusterConfig, Error> {
    let sectors = sectors(section)?;
    let layout = layout(section)?;
    Ok(ClusterConfig {
        sectors,
        image_sectors: section.number("image_mib", 1..=1 << 30, 10_240u64)? * 2_048,
        object_sectors: section.number("object_kib", 4..=32_768, 4_096u32)? * 2,
        layout,
        cpu: cpu(section)?,
        network: network(section)?,
        store: store(section)?,
        recovery: Recovery {
            active: section.number("recovery_active", 0..=64, 3)?,
            pause: us(section, "recovery_pause_us", 0)?,
        },
        queue_depth: section.number("queue_depth", 1..=65_536, 65_536)?,
    })
}

fn layout(section: &mut Section<'_>) -> Result<Layout, Error> {
    let layout = Layout {
        hosts: section.number("hosts", 1..=1_000, 3)?,
        osds_per_host: section.number("osds_per_host", 1..=100, 1)?,
        copies: section.number("copies", 1..=16, 3)?,
        lost_osds: section.number("lost_osds", 0..=1_000, 0)?,
    };
    if layout.hosts * layout.osds_per_host < layout.copies + layout.lost_osds {
        return Err(section.wrong("takes at least as many OSDs as copies, without the lost ones"));
    }
    Ok(layout)
}

/// The defaults are ours; `ceph-2026` fits them to a measured OSD.
fn cpu(section: &mut Section<'_>) -> Result<OsdCpu, Error> {
    Ok(OsdCpu {
        cpus_per_host: section.number("cpus_per_host", 1..=1_024, 8)?,
        read: us(section, "read_cpu_us", 150)?,
        write: us(section, "write_cpu_us", 300)?,
        copy: us(section, "copy_cpu_us", 250)?,
        read_sector: ns(section, "read_cpu_sector_ns", 200)?,
        write_sector: ns(section, "write_cpu_sector_ns", 400)?,
    })
}

/// The defaults are links of 25 Gbit/s in one room.
fn network(section: &mut Section<'_>) -> Result<Network, Error> {
    Ok(Network {
        latency: us(section, "network_us", 20)?,
        clients: section.number("clients", 1..=10_000, 1)?,
        client_sector: ns(section, "client_sector_ns", 170)?,
        host_sector: ns(section, "host_sector_ns", 170)?,
    })
}

/// The defaults are an NVMe drive: 400 000 reads/s, 3.3 GB/s.
fn store(section: &mut Section<'_>) -> Result<Store, Error> {
    Ok(Store {
        channels: section.number("channels", 1..=1_024, 32)?,
        read: us(section, "read_us", 75)?,
        write: us(section, "write_us", 20)?,
        sector: ns(section, "sector_ns", 5_000)?,
        commit: us(section, "commit_us", 30)?,
        journal_sector: ns(section, "journal_sector_ns", 200)?,
        journal_max_sectors: section.number("journal_max_kib", 0..=1 << 16, 0u32)? * 2,
    })
}
