//! A status for people.

use std::fmt::Write;
use std::time::SystemTime;

use blockyard_host::stages::Kind;
use serde_json::Value;

use crate::failure::printable;
use crate::size::{human_count, human_size, human_time};
use crate::stages;

/// Each volume of the reply, and what the kernel withholds.
pub(super) fn of(reply: &Value) -> String {
    let devices = reply["devices"].as_array().map_or(&[][..], Vec::as_slice);
    let devices = devices.iter().map(device).collect::<Vec<_>>().join("\n");
    let rings = match reply["io_uring"].as_str() {
        Some("unrestricted") => {
            "\nio_uring: this kernel cannot restrict rings to the data path (Linux 5.10 can)\n"
        }
        Some("unavailable") => {
            "\nio_uring: this system gives no rings; plain calls do their work\n"
        }
        _ => "",
    };
    devices + rings
}

fn device(device: &Value) -> String {
    let names: Vec<String> = words(&device["exports"]).map(|name| format!("{name:?}")).collect();
    let mut text = format!("export {}: {}\n", names.join(", "), word(&device["state"]));
    let mut line = |name: &str, value: &str| {
        writeln!(text, "  {name:<14}{}", printable(value)).expect("a string takes everything");
    };
    line("key:", word(&device["key"]));
    if !device["loss"].is_null() {
        line("loss:", &lost(&device["loss"]));
    }
    words(&device["table"]).for_each(|value| line("table:", value));
    words(&device["status"]).for_each(|value| line("status:", value));
    words(&device["pipelines"]).for_each(|value| line("pipeline:", value));
    let adaptive = device["adaptive"].as_array().map_or(&[][..], Vec::as_slice);
    adaptive.iter().for_each(|one| line("adaptive:", &decides(one)));
    for (name, key) in [("inline:", "inline"), ("workers:", "fanned_out"), ("sorted:", "sorted")] {
        line(name, &amount(&device["ciphers"][key]));
    }
    for (name, key) in [
        ("held bios:", "held_bios"),
        ("parked parts:", "parked_parts"),
        ("connections:", "connections"),
        ("in flight:", "in_flight"),
    ] {
        line(name, &device[key].to_string());
    }
    let kinds = Kind::ALL.map(Kind::name);
    kinds.iter().for_each(|kind| line(&format!("{kind}:"), &asked(&device["requests"][kind])));
    let threads = device["threads"].as_array().map_or(&[][..], Vec::as_slice);
    threads.iter().for_each(|of| line("threads:", &used(of)));
    let rest = stages::table(&device["requests"]) + &stages::verdict(&device["limit"]);
    rest.lines().for_each(|line| {
        writeln!(text, "  {}", printable(line)).expect("a string takes everything");
    });
    text
}

fn lost(loss: &Value) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ago_s = now.as_secs().saturating_sub(loss["at_unix_s"].as_u64().unwrap_or(0));
    let when = match ago_s {
        0 => "just now".to_owned(),
        _ => format!("{} ago", human_time(ago_s as f64 * 1e9)),
    };
    format!(
        "acknowledged writes may be lost, so flushes and writes fail ({}): {}: {}, {when}",
        word(&loss["status"]),
        word(&loss["device"]),
        word(&loss["problem"])
    )
}

fn decides(one: &Value) -> String {
    let us = |key: &str| one[key].as_f64().unwrap_or(0.0) / 1000.0;
    let to_workers = match one["fan_out_min_bytes"].as_u64() {
        Some(bytes) => format!("{} or more at once go to workers", human_size(bytes)),
        None => "all parts stay where they are".into(),
    };
    let seeks = if one["seeks"] == true { "; writes are sorted" } else { "" };
    format!(
        "the cipher takes {:.1} us for {}, a hand-over and back {:.0} us: {to_workers}{seeks}",
        us("cipher_ns"),
        human_size(one["part_bytes"].as_u64().unwrap_or(0)),
        us("hand_over_ns"),
    )
}

fn asked(kind: &Value) -> String {
    let counts = [("requests", "request"), ("bytes", "byte"), ("errors", "error")];
    counted(counts.map(|(key, thing)| (&kind[key], thing)))
}

fn used(threads: &Value) -> String {
    format!(
        "{} of {}: {} of CPU, {} switches, {} of them for others",
        threads["count"],
        word(&threads["threads"]),
        human_time(threads["cpu_ns"].as_f64().unwrap_or(0.0)),
        threads["voluntary_switches"].as_u64().unwrap_or(0)
            + threads["involuntary_switches"].as_u64().unwrap_or(0),
        threads["involuntary_switches"],
    )
}

fn amount(value: &Value) -> String {
    counted([(&value["parts"], "part"), (&value["bytes"], "byte")])
}

fn counted<const N: usize>(counts: [(&Value, &str); N]) -> String {
    counts.map(|(count, thing)| human_count(count, thing)).join(", ")
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn words(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().map_or(&[][..], Vec::as_slice).iter().map(word)
}
