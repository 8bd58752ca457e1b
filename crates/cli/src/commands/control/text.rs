//! A status for people.

use std::fmt::Write;

use serde_json::Value;

use crate::failure::printable;
use crate::size::human_size;

/// Each volume of the reply.
pub(super) fn of(reply: &Value) -> String {
    let devices = reply["devices"].as_array().map_or(&[][..], Vec::as_slice);
    devices.iter().map(device).collect::<Vec<_>>().join("\n")
}

fn device(device: &Value) -> String {
    let names: Vec<String> = words(&device["exports"]).map(|name| format!("{name:?}")).collect();
    let mut text = format!("export {}: {}\n", names.join(", "), word(&device["state"]));
    let mut line = |name: &str, value: &str| {
        writeln!(text, "  {name:<14}{}", printable(value)).expect("a string takes everything");
    };
    line("key:", word(&device["key"]));
    words(&device["table"]).for_each(|value| line("table:", value));
    words(&device["status"]).for_each(|value| line("status:", value));
    words(&device["pipelines"]).for_each(|value| line("pipeline:", value));
    let adaptive = device["adaptive"].as_array().map_or(&[][..], Vec::as_slice);
    adaptive.iter().for_each(|one| line("adaptive:", &decides(one)));
    for (name, key) in [("inline:", "inline"), ("workers:", "fanned_out"), ("sorted:", "sorted")] {
        line(name, &amount(&device["ciphers"][key], "parts"));
    }
    line("reads:", &amount(&device["reads"], "bios"));
    line("writes:", &amount(&device["writes"], "bios"));
    for (name, key) in [
        ("other bios:", "other_bios"),
        ("errors:", "errors"),
        ("held bios:", "held_bios"),
        ("parked parts:", "parked_parts"),
        ("connections:", "connections"),
    ] {
        line(name, &device[key].to_string());
    }
    text
}

fn decides(one: &Value) -> String {
    let us = |key: &str| one[key].as_f64().unwrap_or(0.0) / 1000.0;
    let to_workers = match one["fan_out_min_bytes"].as_u64() {
        Some(bytes) => format!("parts of {} or more go to workers", human_size(bytes)),
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

fn amount(value: &Value, unit: &str) -> String {
    format!("{} {unit}, {} bytes", value[unit], value["bytes"])
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn words(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().map_or(&[][..], Vec::as_slice).iter().map(word)
}
