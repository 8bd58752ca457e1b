//! `cargo x bench budget`: instructions of a 4 KiB request on an encrypted volume in memory, by
//! layer, above those of the bare cipher.
//!
//! `callgrind` counts every instruction of `budget_bench` for two numbers of requests; the
//! difference is the cost of the requests. An instruction belongs to the innermost function of this
//! workspace that the compiler inlined there, so the standard library counts for its caller. The
//! counts do not depend on the load of the machine.

use super::{example_command, line_numbers};
use crate::tools;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Numbers of requests of the two runs.
const REQUESTS: [u32; 2] = [1000, 3000];

/// Layers in the order of a request, and the starts of their files' paths. The first match counts.
const LAYERS: &[(&str, &[&str])] = &[
    ("the submitter", &["host/examples/", "host/src/local.rs"]),
    (
        "driver",
        &[
            "host/src/driver",
            "host/src/submitter.rs",
            "host/src/durability.rs",
            "host/src/user_data.rs",
        ],
    ),
    ("accounting", &["host/src/stages/", "host/src/recording"]),
    ("gate", &["host/src/gate"]),
    ("ranges", &["host/src/ranges.rs", "engine/src/ranges.rs"]),
    ("queue, elevator", &["host/src/executor/hctx.rs", "host/src/disk/", "engine/src/mq/"]),
    ("mapping", &["engine/src/dm/"]),
    ("shard: split, completion", &["engine/src/"]),
    ("executor", &["host/src/"]),
    ("cipher", &["crypt/src/"]),
];
/// Instructions outside of the workspace's functions, such as `memcpy`.
const LIBRARIES: &str = "libraries";

/// Address of an instruction in this program; `None` in a library.
type Place = Option<u64>;

/// Instructions of one request with one operation.
struct Column {
    cipher: f64,
    /// Those above the cipher, by layer.
    above: BTreeMap<&'static str, f64>,
}

pub(crate) fn run() -> Result<()> {
    tools::need("valgrind").context("callgrind counts them: apt-get install valgrind")?;
    tools::need("addr2line").context("their lines are needed: apt-get install binutils")?;
    let ops = ["read", "write"];
    let mut columns = Vec::new();
    for op in ops {
        let cipher = layers("cipher", op)?;
        let mut above = layers("engine", op)?;
        for (layer, count) in &cipher {
            *above.entry(layer).or_default() -= count;
        }
        columns.push(Column { cipher: cipher.values().sum(), above });
    }
    println!("instructions of a request of 4 KiB, above the bare cipher");
    println!("{:<28} {:>8} {:>8}", "", ops[0], ops[1]);
    let print = |name: &str, of: &dyn Fn(&Column) -> f64| {
        println!("{name:<28} {:>8.0} {:>8.0}", of(&columns[0]), of(&columns[1]));
    };
    for name in LAYERS.iter().map(|(name, _)| *name).chain([LIBRARIES]) {
        print(name, &|column| column.above.get(name).copied().unwrap_or_default());
    }
    print("all", &|column| column.above.values().sum());
    print("the bare cipher", &|column| column.cipher);
    Ok(())
}

/// Instructions of one request in each layer.
fn layers(part: &str, op: &str) -> Result<BTreeMap<&'static str, f64>> {
    let [few, many] = REQUESTS;
    let before = counts(part, op, few)?;
    let mut counts = counts(part, op, many)?;
    for (place, count) in before {
        *counts.entry(place).or_default() -= count;
    }
    counts.retain(|_, count| *count != 0);
    let places: Vec<u64> = counts.keys().copied().flatten().collect();
    let names = names(&places)?;
    let names = places.into_iter().zip(names).collect::<BTreeMap<_, _>>();
    let mut layers = BTreeMap::new();
    for (place, count) in counts {
        let name = place.map_or(LIBRARIES, |address| names[&address]);
        *layers.entry(name).or_default() += count as f64 / f64::from(many - few);
    }
    Ok(layers)
}

fn program() -> Result<PathBuf> {
    Ok(example_command("blockyard-host", "budget_bench")?.get_program().into())
}

/// Executions of each instruction in one run.
fn counts(part: &str, op: &str, requests: u32) -> Result<BTreeMap<Place, i64>> {
    let program = program()?;
    let out = tempfile::NamedTempFile::new()?;
    let file = format!("--callgrind-out-file={}", out.path().display());
    let mut valgrind = tools::tool("valgrind");
    valgrind.args(["--tool=callgrind", "--dump-instr=yes"]);
    valgrind.args(["--compress-pos=no", "--compress-strings=no", &file]);
    valgrind.arg(&program).args([part, op, &requests.to_string()]);
    tools::run(&mut valgrind)?;
    Ok(parse(&std::fs::read_to_string(out.path())?, &program))
}

/// Counts by address from the text of a callgrind profile.
fn parse(profile: &str, program: &Path) -> BTreeMap<Place, i64> {
    let mut counts = BTreeMap::new();
    let mut is_program = false;
    let mut is_call = false;
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_program = Path::new(object) == program;
        } else if line.starts_with("calls=") {
            // The next line repeats the cost of the callee.
            is_call = true;
        } else if let Some(line) = line.strip_prefix("0x") {
            if std::mem::take(&mut is_call) {
                continue;
            }
            let mut words = line.split(' ');
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let count = words.nth(1).and_then(|word| word.parse::<i64>().ok());
            let place = address.filter(|_| is_program);
            *counts.entry(place).or_default() += count.unwrap_or_default();
        }
    }
    counts
}

/// The layer of each address.
fn names(addresses: &[u64]) -> Result<Vec<&'static str>> {
    let blocks = line_numbers::of(&program()?, addresses)?;
    let name = |block: &String| block.lines().find_map(layer_of).unwrap_or(LIBRARIES);
    Ok(blocks.iter().map(name).collect())
}

/// The layer of a source file of this workspace.
fn layer_of(line: &str) -> Option<&'static str> {
    let crates = tools::root().join("crates/");
    let line = line.strip_prefix(&*crates.to_string_lossy())?;
    let is_in = |starts: &[&str]| starts.iter().any(|start| line.starts_with(start));
    LAYERS.iter().find(|(_, starts)| is_in(starts)).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_the_program_are_told_from_those_of_libraries_and_of_calls() {
        let profile = "events: Ir\nob=/a/bench\nfn=f\n0x10 3 5\ncob=/lib/libc.so\ncalls=1 0x8 0\n\
                       0x14 3 900\n0x10 4 2\nob=/lib/libc.so\n0x10 0 7\n0x18 0 1\n";
        let counts = parse(profile, Path::new("/a/bench"));
        assert_eq!(counts, BTreeMap::from([(Some(0x10), 7), (None, 8)]));
    }

    #[test]
    fn file_belongs_to_the_first_layer_that_names_it() {
        let layer = |file: &str| layer_of(&format!("{}/crates/{file}:7", tools::root().display()));
        assert_eq!(layer("host/src/driver/patch.rs"), Some("driver"));
        assert_eq!(layer("engine/src/slab.rs"), Some("shard: split, completion"));
        assert_eq!(layer("engine/src/dm/crypt/mod.rs"), Some("mapping"));
        assert_eq!(layer_of("/rustc/0/library/core/src/option.rs:3"), None);
    }
}
