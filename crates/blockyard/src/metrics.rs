//! A status in the text format of Prometheus, version 0.0.4.
//!
//! Names and units follow its conventions: seconds and bytes, `_total` for counters. Histograms are
//! cumulative over `le`. Those of requests and stages contain only samples: their `_count` is not
//! the number of requests, which is a separate metric. A counter is there from the start, with a
//! zero: the growth of a series that begins with its first error is not seen.

use std::fmt::Write;
use std::num::NonZeroU64;

use blockyard_host::stages::{self, RequestKind, Stage};
use blockyard_protocol::http::{self, Answer, Asked, HEAD_BYTES_MAX};

use crate::status::{
    Build, ExportLimits, KeyState, KindRequests, Process, State, Status, VolumeStatus,
};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Upper limits of a histogram's buckets in microseconds: 1, 2, 5 of each decade up to 10 s.
const BUCKETS_US: [u64; 22] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
];

/// The answer to a request with this head; `None` if none came in time. The status is read once,
/// and only for a valid request.
pub(crate) fn answer(head: Option<&[u8]>, status: impl FnOnce() -> Status) -> Vec<u8> {
    let Some(head) = head else {
        let body = format!("no request of at most {HEAD_BYTES_MAX} bytes came within 10 s\n");
        return Answer::plain("400 Bad Request", &body).bytes(false);
    };
    let (path, is_head) = match http::asked(head) {
        Asked::Get(path) => (path, false),
        Asked::Head(path) => (path, true),
        Asked::OtherMethod => {
            let body = "only GET is supported\n";
            return Answer::plain("405 Method Not Allowed", body).bytes(false);
        }
        Asked::Malformed => {
            let body = "this is no HTTP/1.1 request\n";
            return Answer::plain("400 Bad Request", body).bytes(false);
        }
    };
    if path != "/metrics" {
        let body = "the only page is /metrics\n";
        return Answer::plain("404 Not Found", body).bytes(is_head);
    }
    let body = text(&status());
    Answer { status: "200 OK", content_type: CONTENT_TYPE, body: &body }.bytes(is_head)
}

/// A metric family with its labelled samples.
fn family(text: &mut String, (name, kind, help): (&str, &str, &str), samples: &str) {
    if !samples.is_empty() {
        write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{samples}")
            .expect("writing to a string succeeds");
    }
}

/// Escapes a label value; the format has three escapes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The metrics of a status. A parsed status has no histograms.
#[must_use]
pub fn text(status: &Status) -> String {
    let mut text = String::new();
    of_server(&mut text, status);
    of_process(&mut text, &status.process);
    requests(&mut text, &status.devices);
    errors(&mut text, &status.devices);
    gauges(&mut text, &status.devices);
    paths(&mut text, &status.devices);
    limits(&mut text, &status.devices);
    threads(&mut text, &status.devices);
    times(&mut text, &status.devices);
    flushes(&mut text, &status.devices);
    text
}

fn of_server(text: &mut String, status: &Status) {
    let Build { version, commit, features } = &status.build;
    let [version, commit, features] =
        [version, commit, &features.join(" ")].map(|value| escaped(value));
    let name = "blockyard_build_info";
    let labels = format!("version=\"{version}\",commit=\"{commit}\",features=\"{features}\"");
    family(
        text,
        (name, "gauge", "The build of the server; always 1."),
        &format!("{name}{{{labels}}} 1\n"),
    );
    let name = "blockyard_max_connections";
    let help = "Limit of connections with an open export.";
    family(text, (name, "gauge", help), &format!("{name} {}\n", status.max_connections));
}

/// Names that all clients of Prometheus use.
fn of_process(text: &mut String, process: &Process) {
    let mut one = |name, kind, help, value: String| {
        family(text, (name, kind, help), &format!("{name} {value}\n"));
    };
    let started = process.started_at_unix_s.to_string();
    let help = "Start of the process since the Unix epoch.";
    one("process_start_time_seconds", "gauge", help, started);
    let cpu = (process.cpu_ns as f64 / 1e9).to_string();
    one("process_cpu_seconds_total", "counter", "CPU time of all threads.", cpu);
    let resident = process.resident_bytes.to_string();
    let help = "Memory in use, without swapped pages.";
    one("process_resident_memory_bytes", "gauge", help, resident);
    let open = process.open_descriptors.to_string();
    one("process_open_fds", "gauge", "Open descriptors.", open);
    let max = process.max_descriptors.map_or("+Inf".to_owned(), |max| max.to_string());
    one("process_max_fds", "gauge", "Limit of open descriptors.", max);
}

/// The label of a volume: its first name.
fn export_of(device: &VolumeStatus) -> String {
    escaped(device.exports.first().map_or("", String::as_str))
}

fn requests(text: &mut String, devices: &[VolumeStatus]) {
    type Figure = fn(&KindRequests) -> u64;
    let families: [(&str, &str, Figure); 2] = [
        ("blockyard_requests_total", "Requests received.", |kind| kind.requests),
        ("blockyard_request_bytes_total", "Bytes of requests.", |kind| kind.bytes),
    ];
    for (name, help, figure) in families {
        let mut samples = String::new();
        for device in devices {
            let export = export_of(device);
            for kind in RequestKind::ALL {
                let op = kind.name();
                let figure = figure(device.activity.requests.of(kind));
                writeln!(samples, "{name}{{export=\"{export}\",op=\"{op}\"}} {figure}")
                    .expect("writing to a string succeeds");
            }
        }
        family(text, (name, "counter", help), &samples);
    }
}

fn errors(text: &mut String, devices: &[VolumeStatus]) {
    let name = "blockyard_request_errors_total";
    let mut samples = String::new();
    for device in devices {
        let export = export_of(device);
        for kind in RequestKind::ALL {
            let op = kind.name();
            for (class, count) in device.activity.requests.of(kind).error_classes.named() {
                let labels = format!("export=\"{export}\",op=\"{op}\",class=\"{class}\"");
                writeln!(samples, "{name}{{{labels}}} {count}")
                    .expect("writing to a string succeeds");
            }
        }
    }
    let help = "Failed requests; docs/status.md explains the classes.";
    family(text, (name, "counter", help), &samples);
}

fn gauges(text: &mut String, devices: &[VolumeStatus]) {
    type Gauge = fn(&VolumeStatus) -> u64;
    let families: [(&str, &str, Gauge); 10] = [
        ("blockyard_size_bytes", "Size of the volume.", |device| device.size_bytes),
        ("blockyard_requests_in_flight", "Requests in flight.", |device| device.counts.in_flight),
        ("blockyard_requests_held", "Requests waiting for a resume.", |device| {
            device.counts.held_bios
        }),
        ("blockyard_parts_parked", "Parts waiting for a buffer, a delay or a path.", |device| {
            device.counts.parked_parts
        }),
        ("blockyard_connections", "Connections of clients, and queues of disks.", |device| {
            device.counts.connections
        }),
        ("blockyard_suspended", "Whether the volume is suspended.", |device| {
            u64::from(device.state == State::Suspended)
        }),
        (
            "blockyard_key_wiped",
            "Whether a crypt line has no key, so that requests fail.",
            |device| u64::from(device.key == KeyState::Wiped),
        ),
        (
            "blockyard_loss",
            "Whether acknowledged writes may be lost, so that flushes and writes fail.",
            |device| u64::from(device.loss.is_some()),
        ),
        ("blockyard_servers_lost", "NBD servers below without a connection.", |device| {
            device.lost_servers.len() as u64
        }),
        (
            "blockyard_write_refused",
            "Whether a write to protected sectors was refused; its line fails all writes.",
            |device| u64::from(device.refused_write.is_some()),
        ),
    ];
    for (name, help, gauge) in families {
        let sample = |device: &VolumeStatus| {
            format!("{name}{{export=\"{}\"}} {}\n", export_of(device), gauge(device))
        };
        let samples: String = devices.iter().map(sample).collect();
        family(text, (name, "gauge", help), &samples);
    }
}

fn paths(text: &mut String, devices: &[VolumeStatus]) {
    let name = "blockyard_paths";
    let mut samples = String::new();
    for device in devices.iter().filter(|device| device.paths.total > 0) {
        let export = export_of(device);
        let failed = device.paths.failed;
        for (state, count) in
            [("live", device.paths.total.saturating_sub(failed)), ("failed", failed)]
        {
            writeln!(samples, "{name}{{export=\"{export}\",state=\"{state}\"}} {count}")
                .expect("writing to a string succeeds");
        }
    }
    family(text, (name, "gauge", "Paths of multipath lines."), &samples);
}

/// One sample for each name of a volume: names may have limits of their own.
fn limits(text: &mut String, devices: &[VolumeStatus]) {
    type Rate = fn(&ExportLimits) -> Option<NonZeroU64>;
    let families: [(&str, &str, Rate); 2] = [
        ("blockyard_limit_requests_per_second", "Limit of requests.", |limits| limits.iops),
        ("blockyard_limit_bytes_per_second", "Limit of bytes.", |limits| limits.bytes_per_s),
    ];
    for (name, help, rate) in families {
        let mut samples = String::new();
        for limits in devices.iter().flat_map(|device| &device.limits) {
            let group = escaped(limits.group.as_deref().unwrap_or_default());
            let Some(rate) = rate(limits) else { continue };
            for export in limits.exports.iter().map(|export| escaped(export)) {
                writeln!(samples, "{name}{{export=\"{export}\",group=\"{group}\"}} {rate}")
                    .expect("writing to a string succeeds");
            }
        }
        family(text, (name, "gauge", help), &samples);
    }
}

fn threads(text: &mut String, devices: &[VolumeStatus]) {
    let mut cpu = String::new();
    let mut switches = String::new();
    for device in devices {
        let export = export_of(device);
        for of in &device.activity.threads {
            let mut labels = format!("export=\"{export}\",threads=\"{}\"", of.work.name());
            of.pool.iter().for_each(|pool| labels.push_str(&format!(",pool=\"{pool}\"")));
            let seconds = of.cpu_ns as f64 / 1e9;
            let written = writeln!(cpu, "blockyard_thread_cpu_seconds_total{{{labels}}} {seconds}");
            written.expect("writing to a string succeeds");
            for (kind, count) in
                [("voluntary", of.voluntary_switches), ("involuntary", of.involuntary_switches)]
            {
                writeln!(
                    switches,
                    "blockyard_thread_context_switches_total{{{labels},kind=\"{kind}\"}} {count}"
                )
                .expect("writing to a string succeeds");
            }
        }
    }
    let name = "blockyard_thread_cpu_seconds_total";
    family(text, (name, "counter", "CPU time of threads."), &cpu);
    let name = "blockyard_thread_context_switches_total";
    family(text, (name, "counter", "Context switches of threads."), &switches);
}

fn times(text: &mut String, devices: &[VolumeStatus]) {
    let mut whole = String::new();
    let mut stages = String::new();
    for device in devices {
        let export = export_of(device);
        for kind in RequestKind::ALL {
            let of_kind = device.activity.requests.of(kind);
            if of_kind.total.samples == 0 {
                continue;
            }
            let labels = format!("export=\"{export}\",op=\"{}\"", kind.name());
            histogram(&mut whole, "blockyard_request_seconds", &labels, &of_kind.total.histogram);
            for stage in Stage::ALL {
                let labels = format!("{labels},stage=\"{}\"", stage.name());
                let times = &of_kind.stages.of(stage).histogram;
                histogram(&mut stages, "blockyard_stage_seconds", &labels, times);
            }
        }
    }
    let help = "Time of sampled requests, from reception to reply.";
    family(text, ("blockyard_request_seconds", "histogram", help), &whole);
    let help = "Time of sampled requests by stage; docs/status.md explains the stages.";
    family(text, ("blockyard_stage_seconds", "histogram", help), &stages);
}

/// There from the start, so that the growth of the first flush is seen.
fn flushes(text: &mut String, devices: &[VolumeStatus]) {
    let name = "blockyard_flush_seconds";
    let mut samples = String::new();
    for device in devices {
        let labels = format!("export=\"{}\"", export_of(device));
        histogram(&mut samples, name, &labels, &device.activity.requests.flush_times.histogram);
    }
    family(text, (name, "histogram", "Time of each successful flush: no sample."), &samples);
}

fn histogram(text: &mut String, name: &str, labels: &str, times: &stages::Times) {
    let mut fine = times.buckets().peekable();
    let mut below = 0;
    for limit_us in BUCKETS_US {
        // A bucket completely below a limit counts for it; one across the limit counts for the
        // next.
        while let Some((_, count)) = fine.next_if(|(longest, _)| longest.0 <= limit_us * 1000) {
            below += count;
        }
        let le = limit_us as f64 / 1e6;
        writeln!(text, "{name}_bucket{{{labels},le=\"{le}\"}} {below}")
            .expect("writing to a string succeeds");
    }
    let count = times.count();
    let sum = times.sum_ns() as f64 / 1e9;
    write!(
        text,
        "{name}_bucket{{{labels},le=\"+Inf\"}} {count}\n{name}_sum{{{labels}}} {sum}\n\
         {name}_count{{{labels}}} {count}\n"
    )
    .expect("writing to a string succeeds");
}

#[cfg(test)]
mod tests {
    use blockyard_engine::time::Nanos;

    use super::*;

    #[test]
    fn histogram_is_cumulative_and_ends_with_all() {
        let mut times = stages::Times::default();
        for ns in [500, 3_000, 3_100, 40_000_000, 20_000_000_000] {
            times.record(Nanos(ns));
        }
        let mut text = String::new();
        histogram(&mut text, "x", "a=\"b\"", &times);
        let value = |le: &str| {
            let line = text.lines().find(|line| line.contains(&format!("le=\"{le}\"")));
            line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
        };
        let found = ["0.000001", "0.000002", "0.000005", "0.05", "10", "+Inf"].map(value);
        assert_eq!(found, [1, 1, 3, 4, 4, 5]);
        assert!(text.ends_with("x_sum{a=\"b\"} 20.0400066\nx_count{a=\"b\"} 5\n"), "{text}");
    }

    #[test]
    fn labels_are_escaped_as_the_format_says() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn only_get_of_the_one_path_is_answered() {
        for (head, status) in [
            (&b"GET /metrics HTTP/1.1\r\n\r\n"[..], "200 OK"),
            (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK"),
            (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            (b"hello\r\n\r\n", "400 Bad Request"),
        ] {
            let reply = String::from_utf8(answer(Some(head), Status::default)).unwrap();
            assert!(reply.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{reply}");
        }
        assert!(answer(None, Status::default).starts_with(b"HTTP/1.1 400 "));
    }
}
