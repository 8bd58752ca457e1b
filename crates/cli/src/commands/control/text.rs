//! A status as text.

use std::fmt::Write;
use std::time::SystemTime;

use blockyard::status::{
    Adaptive, DirtyBitmap, ExportLimits, KindRequests, Loss, LostServer, Parts, Placement, Rings,
    Sandbox, Threads, VolumeStatus,
};
use blockyard::{RequestKind, Status};

use crate::failure::printable;
use crate::size::{human_count, human_size, human_time};
use crate::stages;

/// All volumes, and missing features of the kernel.
pub(super) fn of(status: &Status) -> String {
    let devices = status.devices.iter().map(device).collect::<Vec<_>>().join("\n");
    let rings = match status.io_uring {
        Rings::Restricted => "",
        Rings::Unrestricted => {
            "\nio_uring: this kernel cannot restrict rings to the data path (Linux 5.10 can)\n"
        }
        Rings::Unavailable => {
            "\nio_uring: unavailable on this system; plain system calls are used instead\n"
        }
    };
    let placement = placement(&status.placement);
    devices + &closed(&status.closed) + rings + &sandbox(status.sandbox) + &placement
}

/// Number of names in a line; `--json` has all.
const NAMES_MAX: usize = 10;

/// The exports that are closed until their next use.
fn closed(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown = names.iter().take(NAMES_MAX).map(|name| printable(&format!("{name:?}")));
    let shown = shown.collect::<Vec<_>>().join(", ");
    let left = match names.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        left => format!(" and {left} more"),
    };
    format!("\nclosed exports: {} ({shown}{left})\n", names.len())
}

/// CPUs, quota and memory of the server's process.
fn placement(placement: &Placement) -> String {
    let Placement { cpus, quota_cpus, memory_node } = placement;
    // An older server does not say it.
    if cpus.is_empty() {
        return String::new();
    }
    let quota = quota_cpus.map(|quota| format!("; the cgroup's quota is the time of {quota}"));
    let quota = quota.unwrap_or_default();
    let node = memory_node.map(|node| format!("; memory of NUMA node {node}"));
    format!("CPUs: {cpus}{quota}{}\n", node.unwrap_or_default())
}

/// The parts that hold in the server's process.
fn sandbox(sandbox: Option<Sandbox>) -> String {
    let Some(Sandbox { landlock, seccomp, .. }) = sandbox else {
        return "\nsandbox: off\n".into();
    };
    let parts = blockyard::sandbox::Parts { landlock, seccomp };
    let missing = parts.missing().map_or_else(String::new, |missing| format!("; {missing}"));
    format!("\nsandbox: {parts}{missing}\n")
}

fn device(device: &VolumeStatus) -> String {
    let names: Vec<String> =
        device.exports.iter().map(|name| printable(&format!("{name:?}"))).collect();
    let mut text = format!("export {}: {}\n", names.join(", "), device.state.name());
    let mut line = |name: &str, value: &str| {
        writeln!(text, "  {name:<14}{}", printable(value)).expect("writing to a string succeeds");
    };
    line("size:", &format!("{} bytes", device.size_bytes));
    line("key:", device.key.name());
    if let Some(loss) = &device.loss {
        line("loss:", &lost(loss));
    }
    device.lost_servers.iter().for_each(|lost| line("server lost:", &away(lost)));
    if let Some(refused) = &device.refused_write {
        line("read-only:", &refused.to_string());
    }
    if let Some(bitmap) = &device.dirty_bitmap {
        line("dirty bitmap:", &dirty(bitmap));
    }
    device.limits.iter().for_each(|limits| line("limits:", &limited(limits)));
    device.table.iter().for_each(|value| line("table:", value));
    device.status.iter().for_each(|value| line("status:", value));
    device.pipelines.iter().for_each(|value| line("pipeline:", value));
    device.adaptive.iter().for_each(|one| line("adaptive:", &decides(one)));
    let counts = &device.counts;
    let activity = &device.activity;
    line("inline:", &amount(counts.ciphers.inline));
    line("workers:", &amount(counts.ciphers.fanned_out));
    line("sorted:", &amount(counts.ciphers.sorted));
    for (name, count) in [
        ("held bios:", counts.held_bios),
        ("parked parts:", counts.parked_parts),
        ("connections:", counts.connections),
        ("in flight:", counts.in_flight),
    ] {
        line(name, &count.to_string());
    }
    for kind in RequestKind::ALL {
        line(&format!("{}:", kind.name()), &asked(activity.requests.of(kind)));
    }
    activity.threads.iter().for_each(|of| line("threads:", &used(of)));
    let rest = stages::table(&activity.requests) + &stages::verdict(activity.limit.as_ref());
    rest.lines().for_each(|line| {
        writeln!(text, "  {}", printable(line)).expect("writing to a string succeeds");
    });
    text
}

fn lost(loss: &Loss) -> String {
    let Loss { device, problem, at_unix_s, status } = loss;
    let when = match seconds_since(*at_unix_s) {
        0 => "just now".to_owned(),
        ago_s => format!("{} ago", human_time(ago_s as f64 * 1e9)),
    };
    format!(
        "acknowledged writes may be lost, so flushes and writes fail ({status}): {device}: \
         {problem}, {when}"
    )
}

fn seconds_since(unix_s: u64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_secs().saturating_sub(unix_s)
}

fn away(lost: &LostServer) -> String {
    let LostServer { server, since_unix_s, .. } = lost;
    let time = human_time(seconds_since(*since_unix_s) as f64 * 1e9);
    format!("{server} has had no connection for {time}; the log has the reason")
}

fn decides(one: &Adaptive) -> String {
    let us = |ns: u64| ns as f64 / 1000.0;
    let to_workers = match one.fan_out_min_bytes {
        Some(bytes) => {
            format!("{} or more that arrive at once go to workers", human_size(bytes.into()))
        }
        None => "no part goes to a worker".into(),
    };
    let seeks = if one.seeks { "; writes are sorted" } else { "" };
    format!(
        "the cipher takes {:.1} us for {}, a hand-over both ways {:.0} us: {to_workers}{seeks}",
        us(one.cipher_ns),
        human_size(one.part_bytes),
        us(one.hand_over_ns),
    )
}

fn dirty(bitmap: &DirtyBitmap) -> String {
    let DirtyBitmap { name, granularity_bytes, dirty_bytes, frozen_bytes, backup } = bitmap;
    let [block, dirty] = [u64::from(*granularity_bytes), *dirty_bytes].map(human_size);
    let id = backup.as_deref().unwrap_or_default();
    let backup = frozen_bytes.map(|bytes| format!(", {} in the backup {id}", human_size(bytes)));
    format!("{name}, {dirty} dirty in blocks of {block}{}", backup.unwrap_or_default())
}

fn limited(limits: &ExportLimits) -> String {
    let iops = limits.iops.map(|iops| format!("{iops} requests/s"));
    let bytes = limits.bytes_per_s.map(|bytes| format!("{}/s", human_size(bytes.get())));
    let rates: Vec<String> = iops.into_iter().chain(bytes).collect();
    let burst = human_time(limits.burst_ns as f64);
    let names: Vec<String> = limits.exports.iter().map(|name| format!("{name:?}")).collect();
    let of_group = limits.group.as_ref().map(|group| format!(" of the group {group:?}"));
    let of_group = of_group.unwrap_or_default();
    format!("{} for {}{of_group}, burst {burst}", rates.join(" and "), names.join(", "))
}

fn asked(kind: &KindRequests) -> String {
    let KindRequests { requests, bytes, errors, .. } = *kind;
    counted([(requests, "request"), (bytes, "byte"), (errors, "error")])
}

fn used(threads: &Threads) -> String {
    format!(
        "{} of {}: {} of CPU, {} switches, {} of them involuntary",
        threads.count,
        threads.work.name(),
        human_time(threads.cpu_ns as f64),
        threads.voluntary_switches + threads.involuntary_switches,
        threads.involuntary_switches,
    )
}

fn amount(Parts { parts, bytes }: Parts) -> String {
    counted([(parts, "part"), (bytes, "byte")])
}

fn counted<const N: usize>(counts: [(u64, &str); N]) -> String {
    counts.map(|(count, thing)| human_count(count, thing)).join(", ")
}
