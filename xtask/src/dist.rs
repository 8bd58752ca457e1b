//! `cargo x dist`: the release as it is shipped, in `target/dist`: the program without symbols, and
//! its symbols in `blockyard.debug` beside it. Backtraces and debuggers find that file by its name.

use crate::{lab, tools};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Size limit of the program. It has about 10 MB; with symbols, five times that.
const SIZE_MAX_BYTES: u64 = 16 << 20;

pub(crate) fn run() -> Result<()> {
    let built = lab::build()?;
    let dist = lab::target().join("dist");
    fs::create_dir_all(&dist)?;
    let program = dist.join("blockyard");
    let symbols = dist.join("blockyard.debug");
    tools::need("objcopy")?;
    tools::run(Command::new("objcopy").arg("--only-keep-debug").args([&built, &symbols]))?;
    // The link holds the name of the file without its folder.
    let mut strip = Command::new("objcopy");
    strip.current_dir(&dist).args(["--strip-all", "--add-gnu-debuglink=blockyard.debug"]);
    tools::run(strip.args([&built, &program]))?;
    let len_bytes = fs::metadata(&program)?.len();
    ensure!(len_bytes <= SIZE_MAX_BYTES, "the program has {len_bytes} bytes");
    find_symbols(&program, &symbols)?;
    let version = tools::read(Command::new(&program).arg("-V"))?;
    println!("{}: {}, {:.1} MB", program.display(), version.trim(), len_bytes as f64 / 1e6);
    println!("{}: its symbols", symbols.display());
    Ok(())
}

/// The line of a function must be found from the program, although only the other file has it.
fn find_symbols(program: &Path, symbols: &Path) -> Result<()> {
    let names = tools::read(Command::new("nm").arg("--demangle").arg(symbols))?;
    let address = names.lines().find_map(|line| line.split_once(" t blockyard::"));
    let (address, _) = address.context("no function of ours among the symbols")?;
    let mut find = Command::new("addr2line");
    let line = tools::read(find.arg("--exe").arg(program).arg(address))?;
    ensure!(line.contains(".rs:"), "the symbols are not found beside the program: {line}");
    Ok(())
}
