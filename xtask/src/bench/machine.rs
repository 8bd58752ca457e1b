//! Description of the measured machine, without which figures cannot be compared.

use crate::tools::{self, root, tool};
use serde_json::{Value, json};
use std::fs;

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// The first line of a program's version output.
fn version(program: &str) -> String {
    let said = tools::read(tool(program).arg("--version")).unwrap_or_default();
    said.lines().next().unwrap_or("not installed").trim().to_owned()
}

/// Machine, kernel, date, and the versions of all programs.
pub(crate) fn describe() -> Value {
    let cpuinfo = line("/proc/cpuinfo");
    let field = |name: &str| {
        let found = cpuinfo.lines().find(|line| line.starts_with(name));
        found.and_then(|line| line.split(": ").nth(1)).unwrap_or("?").to_owned()
    };
    let flags = field("flags");
    let vector = ["aes", "vaes", "vpclmulqdq", "avx2", "avx512f", "avx512vl"];
    let vector: Vec<_> =
        vector.into_iter().filter(|flag| flags.split(' ').any(|word| word == *flag)).collect();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let id = ["sys_vendor", "product_name"].map(|name| line(&format!("/sys/class/dmi/id/{name}")));
    let model = id.join(" ");
    let model = match (model.trim(), flags.split(' ').any(|flag| flag == "hypervisor")) {
        ("", true) => "a virtual machine without a name",
        ("", false) => "a machine without a name",
        (model, _) => model,
    };
    let cpu = format!(
        "{}, family {} model {}",
        field("model name"),
        field("cpu family"),
        field("model\t\t")
    );
    let date = tools::read(tool("date").args(["-u", "+%F %H:%M UTC"])).unwrap_or_default();
    let commit =
        tools::read(tool("git").args(["describe", "--always", "--dirty"]).current_dir(root()));
    json!({
        "machine": model,
        "cpu": cpu,
        "cpus": cores,
        "instructions": vector.join(" "),
        "kernel": line("/proc/sys/kernel/osrelease"),
        "date": date.trim(),
        "load": line("/proc/loadavg").split(' ').next(),
        "blockyard": commit.unwrap_or_default().trim(),
        "nbdkit": version("nbdkit"),
        "qemu": version("qemu-storage-daemon"),
        "fio": version("fio"),
    })
}

/// The description as lines above a table.
pub(crate) fn print(machine: &Value) {
    let Value::Object(fields) = machine else { return };
    for (name, value) in fields {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        println!("{name:>13}: {text}");
    }
}
